//! What the compiler tells a user about a `.moe` file: an error code, a place, a sentence, and a fix where one is known.
//!
//! Rendering is bounded whatever the source looks like: a message quotes at most a line of text, a source line is cut to
//! a window around what is underlined, and only the first [`MAX_SHOWN`] diagnostics are printed in full.

use crate::ast::Span;
use annotate_snippets::{Annotation, AnnotationKind, Group, Level, Padding, Renderer, Snippet};
use std::borrow::Cow;
use std::ops::Range;

/// How many diagnostics [`render`] prints in full.
pub const MAX_SHOWN: usize = 50;
/// Lines of source longer than this many bytes are cut for display.
const MAX_LINE: usize = 1000;
/// Bytes kept before the underlined place when a line is cut.
const KEEP_BEFORE: usize = 60;
/// Bytes of a message, label or help text that are printed.
const MAX_TEXT: usize = 1000;
/// Annotations of one file this many lines apart are shown as separate excerpts.
const MAX_GAP: usize = 200;

/// Which text a [`Span`] points into: an index into the list of [`Source`]s of a compilation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default, PartialOrd, Ord)]
pub struct SourceId(pub u32);

/// A text and the name that is shown for it.
#[derive(Clone, Debug)]
pub struct Source<'a> {
    /// `model.moe`, `<std>/moe.moe`, `--set`.
    pub name: Cow<'a, str>,
    /// The whole text.
    pub text: Cow<'a, str>,
}

impl<'a> Source<'a> {
    /// A named text.
    pub fn new(name: impl Into<Cow<'a, str>>, text: impl Into<Cow<'a, str>>) -> Self {
        Source { name: name.into(), text: text.into() }
    }
}

/// Whether compilation can go on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Severity {
    /// It cannot.
    Error,
    /// It can.
    Warning,
}

/// A place in another file, or far away in the same one, that explains a diagnostic: "called here".
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Related {
    /// The text `span` is in.
    pub source: SourceId,
    /// The place.
    pub span: Span,
    /// What it has to do with the diagnostic.
    pub message: String,
}

/// One message about one place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Diagnostic {
    /// `E0101`; stable, one per kind of mistake.
    pub code: &'static str,
    /// Error or warning.
    pub severity: Severity,
    /// One sentence, in the user's words, without a full stop.
    pub message: String,
    /// The text `span` and `secondary` are in.
    pub source: SourceId,
    /// The place to underline.
    pub span: Span,
    /// What is said at that place; may be empty.
    pub label: String,
    /// Further places of the same source.
    pub secondary: Vec<(Span, String)>,
    /// Places shown as excerpts of their own, such as the calls that led into a library block.
    pub related: Vec<Related>,
    /// How to fix it.
    pub help: Option<String>,
}

impl Diagnostic {
    /// An error.
    pub fn error(code: &'static str, source: SourceId, span: Span, message: impl Into<String>) -> Self {
        Diagnostic {
            code,
            severity: Severity::Error,
            message: message.into(),
            source,
            span,
            label: String::new(),
            secondary: Vec::new(),
            related: Vec::new(),
            help: None,
        }
    }

    /// A warning.
    pub fn warning(code: &'static str, source: SourceId, span: Span, message: impl Into<String>) -> Self {
        Diagnostic { severity: Severity::Warning, ..Self::error(code, source, span, message) }
    }

    /// Sets what is said under the underlined place.
    pub fn label(mut self, label: impl Into<String>) -> Self {
        self.label = label.into();
        self
    }

    /// Adds a further place of the same source.
    pub fn secondary(mut self, span: Span, label: impl Into<String>) -> Self {
        self.secondary.push((span, label.into()));
        self
    }

    /// Adds a place shown as an excerpt of its own.
    pub fn related(mut self, source: SourceId, span: Span, message: impl Into<String>) -> Self {
        self.related.push(Related { source, span, message: message.into() });
        self
    }

    /// Sets the fix.
    pub fn help(mut self, help: impl Into<String>) -> Self {
        self.help = Some(help.into());
        self
    }

    /// True for errors.
    pub fn is_error(&self) -> bool {
        self.severity == Severity::Error
    }
}

/// True when there is an error among them.
pub fn has_errors(diagnostics: &[Diagnostic]) -> bool {
    diagnostics.iter().any(Diagnostic::is_error)
}

/// A name or a piece of source in backticks, cut so that a message stays readable.
pub fn quote(text: &str) -> String {
    const KEEP: usize = 40;
    if text.len() <= KEEP {
        return format!("`{text}`");
    }
    format!("`{}…`", &text[..floor_boundary(text, KEEP)])
}

/// The candidate closest to `word` in spelling, if it is close enough to be what was meant.
///
/// The distance counts typing mistakes, with a limit of a third of the length, so `parm` finds `param` and `x` finds nothing.
/// Words longer than 32 bytes are not compared: the cost stays small on hostile input.
pub fn closest<'c>(word: &str, candidates: impl IntoIterator<Item = &'c str>) -> Option<&'c str> {
    if word.len() > 32 || word.len() < 2 {
        return None;
    }
    let limit = (word.len() / 3).max(1);
    candidates
        .into_iter()
        .filter(|c| c.len() >= 2 && c.len().abs_diff(word.len()) <= limit)
        .map(|c| (edit_distance(word, c), c))
        .filter(|&(distance, _)| distance <= limit)
        .min_by_key(|&(distance, _)| distance)
        .map(|(_, c)| c)
}

/// Insertions, deletions, replacements and swaps of neighbours that turn `a` into `b`.
fn edit_distance(a: &str, b: &str) -> usize {
    let (a, b) = (a.as_bytes(), b.as_bytes());
    let width = b.len() + 1;
    let mut table: Vec<usize> = (0..width).collect();
    for i in 1..=a.len() {
        table.push(i);
        for j in 1..=b.len() {
            let at = |i: usize, j: usize| table[i * width + j];
            let mut best = (at(i - 1, j) + 1).min(at(i, j - 1) + 1);
            best = best.min(at(i - 1, j - 1) + usize::from(a[i - 1] != b[j - 1]));
            if i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] {
                best = best.min(at(i - 2, j - 2) + 1);
            }
            table.push(best);
        }
    }
    table[a.len() * width + b.len()]
}

/// Prints diagnostics the way rustc does, in the order given. `color` adds ANSI escapes.
pub fn render(diagnostics: &[Diagnostic], sources: &[Source], color: bool) -> String {
    let renderer = if color { Renderer::styled() } else { Renderer::plain() };
    let indexes: Vec<LineIndex> = sources.iter().map(|s| LineIndex::new(&s.text)).collect();
    let shown = &diagnostics[..diagnostics.len().min(MAX_SHOWN)];
    let mut out = String::new();
    for diagnostic in shown {
        out.push_str(&render_one(diagnostic, sources, &indexes, &renderer));
        out.push_str("\n\n");
    }
    let left = diagnostics.len() - shown.len();
    if left > 0 {
        out.push_str(&format!("… and {left} more\n"));
    }
    out
}

fn render_one(diagnostic: &Diagnostic, sources: &[Source], indexes: &[LineIndex], renderer: &Renderer) -> String {
    let level = match diagnostic.severity {
        Severity::Error => Level::ERROR,
        Severity::Warning => Level::WARNING,
    };
    let mut columns = Columns::default();
    let mut excerpts_of = |id: SourceId, marks| match (sources.get(id.0 as usize), indexes.get(id.0 as usize)) {
        (Some(source), Some(index)) => excerpts(source, index, marks, &mut columns),
        _ => Vec::new(),
    };
    let mut marks = vec![Mark::new(diagnostic.span, &diagnostic.label, AnnotationKind::Primary)];
    marks.extend(diagnostic.secondary.iter().map(|(span, label)| Mark::new(*span, label, AnnotationKind::Context)));
    let mut group = Group::with_title(level.primary_title(cut(&diagnostic.message)).id(diagnostic.code))
        .elements(excerpts_of(diagnostic.source, marks));
    if let Some(help) = &diagnostic.help {
        group = group.element(Padding).element(Level::HELP.message(cut(help)));
    }
    let mut report = vec![group];
    for related in &diagnostic.related {
        let marks = vec![Mark::new(related.span, "", AnnotationKind::Primary)];
        let title = Level::NOTE.secondary_title(cut(&related.message));
        report.push(Group::with_title(title).elements(excerpts_of(related.source, marks)));
    }
    columns.correct(renderer.render(&report))
}

/// Columns of lines that were cut on the left: what the renderer prints for them, and what it should be.
#[derive(Default)]
struct Columns(Vec<(String, String)>);

impl Columns {
    fn correct(self, text: String) -> String {
        self.0.into_iter().fold(text, |text, (printed, right)| text.replacen(&printed, &right, 1))
    }
}

/// A place to underline.
struct Mark<'a> {
    span: Span,
    label: &'a str,
    kind: AnnotationKind,
}

impl<'a> Mark<'a> {
    fn new(span: Span, label: &'a str, kind: AnnotationKind) -> Self {
        Mark { span, label, kind }
    }
}

/// Splits the marks of one source into runs of nearby lines; the first run holds the primary mark.
fn excerpts<'a>(
    source: &'a Source,
    index: &LineIndex,
    marks: Vec<Mark<'a>>,
    columns: &mut Columns,
) -> Vec<Snippet<'a, Annotation<'a>>> {
    let mut placed: Vec<Placed> =
        marks.into_iter().map(|mark| Placed { line: index.line_of(mark.span.start as usize), mark }).collect();
    placed.sort_by_key(|p| (p.line, !p.is_primary(), p.mark.span));
    let mut runs: Vec<Vec<Placed>> = Vec::new();
    for entry in placed {
        match runs.last_mut() {
            Some(run) if entry.line - run[run.len() - 1].line <= MAX_GAP => run.push(entry),
            _ => runs.push(vec![entry]),
        }
    }
    runs.sort_by_key(|run| !run.iter().any(Placed::is_primary));
    runs.into_iter().map(|run| excerpt(source, index, run, columns)).collect()
}

struct Placed<'a> {
    line: usize,
    mark: Mark<'a>,
}

impl Placed<'_> {
    fn is_primary(&self) -> bool {
        self.mark.kind == AnnotationKind::Primary
    }
}

/// Copies the lines of a run, each cut to a window, into a small text of their own and moves the marks there.
fn excerpt<'a>(
    source: &'a Source,
    index: &LineIndex,
    run: Vec<Placed<'a>>,
    columns: &mut Columns,
) -> Snippet<'a, Annotation<'a>> {
    let text: &str = &source.text;
    let (first, last) = (run[0].line, run[run.len() - 1].line);
    let head = run.iter().position(Placed::is_primary).unwrap_or(0);
    let mut small = String::new();
    let mut annotations = Vec::new();
    for line in first..=last {
        let range = index.range(text, line);
        let marks = || run.iter().enumerate().filter(|(_, placed)| placed.line == line);
        let window = window(text, range.clone(), marks().map(|(_, placed)| placed.mark.span.start as usize).min());
        let base = small.len();
        let before = if window.start > range.start { "…" } else { "" };
        let after = if window.end < range.end { "…" } else { "" };
        small.extend([before, &text[window.clone()], after, "\n"]);
        for (i, Placed { mark, .. }) in marks() {
            // A mark of several lines shows the first; ends outside the window move to its edge.
            let start = floor_boundary(text, (mark.span.start as usize).clamp(window.start, window.end));
            let end = floor_boundary(text, (mark.span.end as usize).clamp(start, window.end));
            let moved = base + before.len();
            let span = moved + start - window.start..moved + end - window.start;
            if i == head && !before.is_empty() {
                let printed = before.chars().count() + text[window.start..start].chars().count() + 1;
                let right = text[range.start..start].chars().count() + 1;
                let place = |column| format!("{}:{}:{column}", source.name, line + 1);
                columns.0.push((place(printed), place(right)));
            }
            let label = (!mark.label.is_empty()).then(|| cut(mark.label));
            annotations.push(mark.kind.span(span).label(label));
        }
    }
    Snippet::source(small).path(&source.name).line_start(first + 1).annotations(annotations)
}

/// The part of a line that is shown: all of it, or a window that starts a little before its first mark.
fn window(text: &str, line: Range<usize>, first_mark: Option<usize>) -> Range<usize> {
    if line.len() <= MAX_LINE {
        return line;
    }
    let first = first_mark.unwrap_or(line.start).min(line.end);
    let mut start = line.start;
    if first > line.start + MAX_LINE / 2 {
        start = floor_boundary(text, first - KEEP_BEFORE);
    }
    start..floor_boundary(text, (start + MAX_LINE).min(line.end))
}

fn cut(text: &str) -> Cow<'_, str> {
    if text.len() <= MAX_TEXT {
        return Cow::Borrowed(text);
    }
    Cow::Owned(format!("{}…", &text[..floor_boundary(text, MAX_TEXT)]))
}

/// The last character boundary at or before `at`.
fn floor_boundary(text: &str, at: usize) -> usize {
    let mut at = at.min(text.len());
    while !text.is_char_boundary(at) {
        at -= 1;
    }
    at
}

/// Where each line of a text starts.
pub struct LineIndex {
    starts: Vec<u32>,
}

impl LineIndex {
    /// Reads the text once.
    pub fn new(text: &str) -> Self {
        let after_newlines = text.bytes().enumerate().filter(|&(_, b)| b == b'\n').map(|(i, _)| i as u32 + 1);
        LineIndex { starts: std::iter::once(0).chain(after_newlines).collect() }
    }

    /// The line, counted from 0, that the byte `at` is in.
    pub fn line_of(&self, at: usize) -> usize {
        self.starts.partition_point(|&start| start as usize <= at) - 1
    }

    /// The bytes of a line, without its end.
    fn range(&self, text: &str, line: usize) -> Range<usize> {
        let start = self.starts[line] as usize;
        let end = self.starts.get(line + 1).map_or(text.len(), |&next| next as usize - 1);
        start..end
    }
}
