//! The checker: a syntax tree becomes a [`CheckedModel`], whose segments are graphs.
//!
//! Statements are evaluated in order, once the constants are known. An expression evaluates to a constant or to a tensor of the
//! graph under construction; a block call opens a scope and evaluates the block's statements there. A mistake is reported where it is found,
//! and its value is an error that nobody complains about again, so that one run shows all mistakes.
//!
//! * [`constant`], [`memo`]: constants, and which layers of a repeat share a graph. * [`axes`], [`value`]: names and what they stand for.
//! * [`build`]: the graph under construction. * [`expressions`], [`operators`], [`defining`], [`reading`], [`builtins`], [`groups`],
//!   [`joining`]: expressions. * [`calls`], [`patterns`]: blocks. * [`statements`], [`losses`], [`counts`], [`layers`], [`templates`]:
//!   statements. * [`finish`]: the result. * [`poison`]: names after a mistake.
//!
//! Codes: `E0201`–`E0217` axes and types, `E0299` type rules; `E0301`–`E0308` names, blocks, calls; `E0401`–`E0407` constants; `E0501`–`E0510`
//! structure; `W0601` unused tensors, `W0602` variables that change their type in a repeat.

mod axes;
mod build;
mod builtins;
mod calls;
mod constant;
mod counts;
mod defining;
mod expressions;
mod finish;
mod groups;
mod joining;
mod layers;
mod linear;
mod losses;
mod memo;
mod operators;
mod patterns;
mod poison;
mod reading;
mod setup;
mod statements;
mod templates;
mod value;

use crate::ast::{Block, File, Item, Model, Span};
use crate::diagnostics::{Diagnostic, SourceId, has_errors, quote};
use crate::model::{CheckOptions, CheckedModel, Const};
use crate::parse::parse_program;
use crate::std_library;
use axes::{Ax, AxisInfo};
use build::{Builder, Purpose};
use constant::Symbol;
use counts::Counts;
use finish::Taken;
use indexmap::IndexMap;
use layers::{Own, RawLayer, RawSegment, Slot};
use losses::KnownLoss;
use memo::Note;
use rustc_hash::{FxHashMap, FxHashSet};
use value::{Checked, DataInput, Declared, Frame, Reported};

/// Blocks inside each other.
const MAX_CALLS: usize = 64;
/// Expressions, statements and calls inside each other.
const MAX_DEPTH: usize = 4000;
/// Stack of the checker: room for [`MAX_DEPTH`] levels.
const STACK: usize = 192 << 20;
/// Errors after which the checker gives up.
const MAX_ERRORS: usize = 100;

/// A model that passed, and what is odd about it.
#[derive(Clone, Debug)]
pub struct Accepted {
    /// The model.
    pub model: CheckedModel,
    /// Warnings; they point into [`std_library::sources`].
    pub warnings: Vec<Diagnostic>,
}

/// Reads and checks a file.
///
/// # Errors
/// All mistakes of the file. They point into [`std_library::sources`] of the same name and text.
pub fn load(text: &str, options: &CheckOptions) -> Result<Accepted, Vec<Diagnostic>> {
    let parsed = parse_program(text, SourceId(0));
    if has_errors(&parsed.diagnostics) {
        return Err(parsed.diagnostics);
    }
    let mut accepted = check(&parsed.file, text, options)?;
    accepted.warnings.splice(0..0, parsed.diagnostics);
    Ok(accepted)
}

/// Checks a file that was read without errors.
///
/// # Errors
/// All mistakes of the file.
pub fn check(file: &File, text: &str, options: &CheckOptions) -> Result<Accepted, Vec<Diagnostic>> {
    let run = || {
        let model = file.items.iter().find_map(|item| match item {
            Item::Model(model) => Some(model),
            Item::Block(_) => None,
        });
        match model {
            Some(model) => Checker::new(file, model, text, options).run(),
            None => Err(vec![Diagnostic::error("E0109", SourceId(0), Span::default(), "the file has no model")]),
        }
    };
    // Expressions nest deeper than a thread's usual stack allows in an unoptimised build.
    std::thread::scope(|scope| {
        let spawned = std::thread::Builder::new().stack_size(STACK).spawn_scoped(scope, run);
        match spawned.map(std::thread::ScopedJoinHandle::join) {
            Ok(Ok(result)) => result,
            Ok(Err(panic)) => std::panic::resume_unwind(panic),
            Err(_) => Err(vec![Diagnostic::error(
                "E0501",
                SourceId(0),
                Span::default(),
                "no memory is left to check the file",
            )]),
        }
    })
}

/// The state of a check.
struct Checker<'a> {
    options: &'a CheckOptions,
    file: &'a File,
    model: &'a Model,
    text: &'a str,
    /// Blocks by name: the file's own, then the library's.
    blocks: FxHashMap<&'a str, (SourceId, &'a Block)>,
    constants: IndexMap<String, Const>,
    batch: u64,
    seq: u64,
    /// Scopes, the model's first.
    frames: Vec<Frame<'a>>,

    axes: Vec<AxisInfo>,
    /// Axes from the model's constants, which belong to the whole model.
    model_axes: IndexMap<String, Ax>,
    batch_axis: Option<Ax>,
    key_axis: Option<Ax>,

    inputs: Vec<DataInput>,
    params: Vec<Declared>,
    states: Vec<Declared>,
    stats: Vec<Declared>,
    slots: Vec<Slot>,
    losses: Vec<KnownLoss>,
    loss_names: Taken,
    /// Names of the losses with a `Count` input.
    counted: Vec<String>,
    counts: Counts,
    /// States that an `update` statement was met for.
    updated: FxHashSet<usize>,

    /// The graphs under construction.
    forward: Builder,
    update: Builder,
    /// Is the value of an `update` being evaluated?
    updating: bool,
    next_graph: u32,
    segments: Vec<RawSegment>,
    layers: Vec<RawLayer>,
    /// Where the declarations of the segment under construction begin.
    segment_start: Own,
    /// Is an iteration of a top-level repeat being built?
    in_layer: bool,
    /// The first state that belongs to it.
    own_states: usize,
    /// Its prefix: `layers.3`.
    layer_name: String,
    /// Constants that depended on its counter and were used.
    notes: Vec<Note>,
    noted: FxHashSet<*const Symbol>,

    diagnostics: Vec<Diagnostic>,
    warnings: Vec<Diagnostic>,
    /// Names that became axes and look like misspelt tensors: shown when something is wrong.
    suspects: Vec<Diagnostic>,
    seen: FxHashSet<(&'static str, SourceId, Span, String, Option<Span>)>,
    warned: FxHashSet<(SourceId, Span)>,
    error_count: usize,
    /// A limit was passed; nothing more is looked at.
    halted: bool,
    depth: usize,
    steps: usize,
    total_nodes: usize,
}

impl<'a> Checker<'a> {
    fn new(file: &'a File, model: &'a Model, text: &'a str, options: &'a CheckOptions) -> Checker<'a> {
        let library = std_library::parsed().iter().enumerate().map(|(i, p)| (SourceId(i as u32 + 1), &p.file));
        let mut blocks = FxHashMap::default();
        // The file comes last: its blocks replace the library's.
        for (source, file) in library.chain([(SourceId(0), file)]) {
            for item in &file.items {
                if let Item::Block(block) = item {
                    blocks.insert(block.name.name.as_str(), (source, block));
                }
            }
        }
        Checker {
            options,
            file,
            model,
            text,
            blocks,
            constants: IndexMap::new(),
            batch: 0,
            seq: 0,
            frames: vec![Frame::new(SourceId(0), None, String::new())],
            axes: Vec::new(),
            model_axes: IndexMap::new(),
            batch_axis: None,
            key_axis: None,
            inputs: Vec::new(),
            params: Vec::new(),
            states: Vec::new(),
            stats: Vec::new(),
            slots: Vec::new(),
            losses: Vec::new(),
            loss_names: Taken::default(),
            counted: Vec::new(),
            counts: Counts::new(1),
            updated: FxHashSet::default(),
            forward: Builder::new(2, Purpose::Forward),
            update: Builder::new(3, Purpose::Update),
            updating: false,
            next_graph: 4,
            segments: Vec::new(),
            layers: Vec::new(),
            segment_start: Own { params: 0, states: 0, stats: 0 },
            in_layer: false,
            own_states: 0,
            layer_name: String::new(),
            notes: Vec::new(),
            noted: FxHashSet::default(),
            diagnostics: Vec::new(),
            warnings: Vec::new(),
            suspects: Vec::new(),
            seen: FxHashSet::default(),
            warned: FxHashSet::default(),
            error_count: 0,
            halted: false,
            depth: 0,
            steps: 0,
            total_nodes: 0,
        }
    }

    fn run(mut self) -> Result<Accepted, Vec<Diagnostic>> {
        self.check_blocks();
        self.model_constants();
        self.run_body(&self.model.body);
        self.end_model();
        if self.error_count == 0 {
            self.check_losses();
        }
        if self.error_count > 0 {
            let mut diagnostics = self.diagnostics;
            diagnostics.append(&mut self.suspects);
            // What went wrong inside of the library stands where it was called.
            let in_file = |d: &Diagnostic| match d.source {
                SourceId(0) => d.span,
                _ => d.related.last().filter(|r| r.source == SourceId(0)).map_or(d.span, |r| r.span),
            };
            diagnostics.sort_by_key(|d| (in_file(d), d.source, d.span));
            return Err(diagnostics);
        }
        let name = self.model.name.span;
        let (model, warnings) = self.finish();
        if let Err(states) = model.update_order() {
            let names: Vec<String> = states.iter().map(|&s| quote(&model.states[s].name)).collect();
            let message = format!("layers update states that they read from each other: {}", names.join(", "));
            let error = Diagnostic::error("E0511", SourceId(0), name, message);
            return Err(vec![
                error.help("declare and update them in one place: there, all see the values from before"),
            ]);
        }
        Ok(Accepted { model, warnings })
    }

    fn frame(&self) -> &Frame<'a> {
        self.frames.last().expect("the model's scope stays open")
    }

    fn frame_mut(&mut self) -> &mut Frame<'a> {
        self.frames.last_mut().expect("the model's scope stays open")
    }

    /// The file that the current statement stands in.
    fn source(&self) -> SourceId {
        self.frame().source
    }

    /// The text of the current file.
    fn file_text(&self) -> &'a str {
        match self.source() {
            SourceId(0) => self.text,
            SourceId(i) => std_library::FILES[i as usize - 1].1,
        }
    }

    /// A piece of the current file.
    fn text(&self, span: Span) -> &'a str {
        self.file_text().get(span.start as usize..span.end as usize).unwrap_or("…")
    }

    /// The line of the current file, counted from 1, that a span begins in.
    fn line(&self, span: Span) -> usize {
        let before = self.file_text().get(..span.start as usize).unwrap_or_default();
        1 + before.bytes().filter(|&b| b == b'\n').count()
    }

    /// An error at a place of the current file, with the calls that led there.
    fn error(&self, code: &'static str, span: Span, message: impl Into<String>) -> Diagnostic {
        self.with_calls(Diagnostic::error(code, self.source(), span, message), self.frames.len())
    }

    /// An error at the call of the current block.
    fn error_at_call(&self, code: &'static str, span: Span, message: impl Into<String>) -> Diagnostic {
        let caller = self.frames.len().saturating_sub(2);
        self.with_calls(Diagnostic::error(code, self.frames[caller].source, span, message), caller + 1)
    }

    /// Adds the calls that led to the scope, up to the first in the user's file: in a library block that is the one to look at.
    fn with_calls(&self, mut diagnostic: Diagnostic, frames: usize) -> Diagnostic {
        for frame in self.frames[..frames].iter().rev() {
            let (Some((source, span)), Some(block)) = (frame.call, frame.block) else { break };
            diagnostic = diagnostic.related(source, span, format!("in this call of `{}`", block.name.name));
            if source == SourceId(0) {
                break;
            }
        }
        diagnostic
    }

    /// Gives a diagnostic to the user. The same mistake at the same place is told once.
    fn report(&mut self, diagnostic: Diagnostic) -> Reported {
        self.error_count += 1;
        if self.error_count >= MAX_ERRORS {
            self.halted = true;
        }
        // In a library block the call is what is wrong, in a block of the file the block.
        let call = diagnostic.related.last().filter(|_| diagnostic.source != SourceId(0)).map(|r| r.span);
        let Diagnostic { code, source, span, ref message, .. } = diagnostic;
        if self.seen.insert((code, source, span, message.clone(), call)) {
            self.diagnostics.push(diagnostic);
        }
        Reported
    }

    /// A limit on the work was passed: reports it and stops the check.
    fn too_much_work(&mut self, span: Span, what: &str) -> Reported {
        if !self.halted {
            let diagnostic = self.error("E0501", span, what).help("is a repeat's count larger than was meant?");
            self.report(diagnostic);
        }
        self.halted = true;
        Reported
    }

    /// Counts a step of work.
    fn step(&mut self, span: Span) -> Checked<()> {
        self.steps += 1;
        if self.halted {
            return Err(Reported);
        }
        if self.steps > self.options.limits.nodes.saturating_mul(50) {
            return Err(self.too_much_work(span, "the model takes too long to check"));
        }
        Ok(())
    }

    /// Goes one level down into expressions, statements or calls.
    fn deeper<T>(&mut self, span: Span, run: impl FnOnce(&mut Self) -> Checked<T>) -> Checked<T> {
        self.step(span)?;
        if self.depth >= MAX_DEPTH {
            return Err(self.too_much_work(span, "blocks and expressions are nested too deeply"));
        }
        self.depth += 1;
        let result = run(self);
        self.depth -= 1;
        result
    }
}
