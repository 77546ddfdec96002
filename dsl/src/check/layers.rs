//! Repeats, and how a model falls into layers and segments.
//!
//! The iterations of a top-level `repeat` are layers. The first is built; each later one is looked up in the [`Memo`] of
//! those built before, provided that the variables it starts with are of the same kinds, and then only gets parameters of its own.
//! The statements in between are layers as well, each with a segment to itself.
//!
//! A variable that is defined in one layer and used in another is a *slot*: an export of the earlier layer's segment. Exports are
//! all noted down; which of them become outputs is decided at the end ([`super::finish`]).

use super::Checker;
use super::axes::Ax;
use super::build::{Builder, Purpose};
use super::constant::Constant;
use super::memo::Memo;
use super::templates::{Change, Kind, Template};
use super::value::{Checked, ConstEntry, ConstValue, Names, Outside, Reported, Value, Var};
use crate::ast::{Body, Expr, ExprKind, Ident, Span};
use crate::diagnostics::quote;
use crate::model::Const;
use forebay_ir::{DType, ValueId};
use rustc_hash::{FxHashMap, FxHashSet};

/// Distinct segments that a model may have.
const MAX_SEGMENTS: usize = 4096;

/// Which value of which layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct SlotSource {
    pub layer: usize,
    pub export: usize,
}

/// A value of an earlier layer that later ones may use.
#[derive(Clone, Debug)]
pub(super) struct Slot {
    pub source: SlotSource,
    pub axes: Vec<Ax>,
    pub dtype: DType,
}

/// A variable's value at the end of a layer.
#[derive(Clone, Debug)]
pub(super) struct Export {
    pub name: String,
    pub value: ValueId,
}

/// Numbers of parameters, states and statistics.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Own {
    pub params: usize,
    pub states: usize,
    pub stats: usize,
}

/// A segment as it was built.
#[derive(Debug)]
pub(super) struct RawSegment {
    /// The repeat it belongs to; `None` for the statements in between.
    pub repeat: Option<String>,
    pub forward: Builder,
    pub update: Builder,
    pub exports: Vec<Export>,
    /// Where the declarations of its first layer begin and end.
    pub first: Own,
    pub end: Own,
}

/// A layer as it was met.
#[derive(Debug)]
pub(super) struct RawLayer {
    pub segment: usize,
    pub name: String,
    /// Where its declarations begin.
    pub own: Own,
    /// For slots that its segment imports, where this layer finds them when not there.
    pub carries: FxHashMap<usize, SlotSource>,
}

impl RawLayer {
    /// Where the layer finds a slot that its segment imports.
    pub(super) fn source_of(&self, slot: usize) -> Option<SlotSource> {
        self.carries.get(&slot).copied()
    }

    /// What the layer means by something that its segment imports.
    pub(super) fn shifted(&self, outside: Outside, segment: &RawSegment) -> Outside {
        let shift =
            |i: usize, first: usize, end: usize, own: usize| if i >= first && i < end { i - first + own } else { i };
        let (first, end) = (segment.first, segment.end);
        match outside {
            Outside::Param(i) => Outside::Param(shift(i, first.params, end.params, self.own.params)),
            Outside::State(i) => Outside::State(shift(i, first.states, end.states, self.own.states)),
            Outside::Stat(i) => Outside::Stat(shift(i, first.stats, end.stats, self.own.stats)),
            Outside::Data(_) | Outside::Carry(_) | Outside::Count(_) | Outside::Rng => outside,
        }
    }
}

/// What a scope looked like before a repeat's body.
pub(super) struct Outer {
    names: Names,
    components: FxHashMap<String, u32>,
    declared: FxHashSet<String>,
    path: String,
}

impl<'a> Checker<'a> {
    /// `repeat i in n { … }`.
    pub(super) fn repeat(
        &mut self,
        counter: Option<&'a Ident>,
        count: &'a Expr,
        body: &'a Body,
        span: Span,
    ) -> Checked<()> {
        let n = self.repeat_count(count)?;
        if n == 0 {
            return Ok(());
        }
        let label = match &count.kind {
            ExprKind::Name(name) => name.as_str(),
            _ => "repeat",
        };
        let component = self.frame_mut().component(label);
        if self.frames.len() == 1 && !self.in_layer {
            self.layers_of(counter, n, &component, body, span);
            return Ok(());
        }
        for i in 0..n {
            self.step(span)?;
            let path = format!("{}{component}.{i}.", self.frame().path);
            let outer = self.open_scope(path);
            self.bind_counter(counter, Constant::fixed(Const::Int(i)));
            self.run_body(body);
            self.close_scope(outer);
            if self.halted {
                break;
            }
        }
        Ok(())
    }

    fn repeat_count(&mut self, count: &'a Expr) -> Checked<i64> {
        let constant = self.eval_const(count)?;
        match self.used(&constant) {
            Const::Int(n) if n >= 0 => Ok(n),
            other => {
                let message =
                    format!("a repeat's count is an integer from 0 on, this is {}", super::constant::show(&other));
                let diagnostic = self.error("E0403", count.span, message);
                Err(self.report(diagnostic))
            }
        }
    }

    fn bind_counter(&mut self, counter: Option<&'a Ident>, value: Constant) {
        let Some(name) = counter else { return };
        if self.refuse_builtin(name) {
            return;
        }
        if self.frame().names.vars.contains_key(&name.name) {
            let diagnostic = self.error("E0302", name.span, format!("{} is a tensor already", quote(&name.name)));
            self.report(diagnostic);
            return;
        }
        let entry = ConstEntry { value: Some(ConstValue::Plain(value)), span: name.span, is_counter: true };
        self.frame_mut().define_const(&name.name, entry);
    }

    /// Opens the scope of a repeat's body.
    fn open_scope(&mut self, path: String) -> Outer {
        let names = &self.frame().names;
        self.steps += (names.vars.len() + names.consts.len() + names.axes.len()) / 4;
        let frame = self.frame_mut();
        frame.scopes.push(FxHashSet::default());
        Outer {
            names: frame.names.clone(),
            components: std::mem::take(&mut frame.components),
            declared: std::mem::take(&mut frame.declared),
            path: std::mem::replace(&mut frame.path, path),
        }
    }

    /// Forgets what was first named inside; variables from outside keep their new values.
    fn close_scope(&mut self, outer: Outer) {
        let is_model = self.frames.len() == 1;
        let model_axes = if is_model { self.model_axes.clone() } else { Default::default() };
        let frame = self.frame_mut();
        frame.scopes.pop();
        frame.names.vars.retain(|name, _| outer.names.vars.contains_key(name));
        frame.names.consts = outer.names.consts;
        frame.names.axes = outer.names.axes;
        frame.names.axes.extend(model_axes);
        frame.components = outer.components;
        frame.declared = outer.declared;
        frame.path = outer.path;
    }

    /// The layers of a top-level repeat.
    fn layers_of(&mut self, counter: Option<&'a Ident>, n: i64, component: &str, body: &'a Body, span: Span) {
        self.end_segment(None);
        let mut memos: Vec<(Vec<Kind>, Memo<usize>)> = Vec::new();
        let mut templates: Vec<Template> = Vec::new();
        for i in 0..n {
            if self.layers.len() >= self.options.limits.layers || templates.len() >= MAX_SEGMENTS {
                let what = if templates.len() >= MAX_SEGMENTS { "different layers" } else { "layers" };
                let _ = self.too_much_work(span, &format!("the model has too many {what}"));
                return;
            }
            self.steps += self.frames[0].names.vars.len() / 4;
            if self.step(span).is_err() {
                return;
            }
            let kinds = self.kinds();
            let known = memos.iter().position(|(k, _)| *k == kinds);
            let found = known.and_then(|at| memos[at].1.find(i, &mut self.steps));
            self.layer_name = format!("{component}.{i}");
            if let Some(&template) = found {
                if self.another(&templates[template], i, span).is_err() {
                    break;
                }
                continue;
            }
            let Ok(template) = self.build_layer(counter, i, component, body) else { break };
            if memos.is_empty() {
                self.warn_changed(&kinds);
            }
            let at = known.unwrap_or_else(|| {
                memos.push((kinds, Memo::new()));
                memos.len() - 1
            });
            templates.push(template);
            memos[at].1.insert(&self.notes, templates.len() - 1);
        }
        self.notes.clear();
        self.noted.clear();
        self.layer_name = String::new();
    }

    /// Builds the graph of an iteration.
    fn build_layer(
        &mut self,
        counter: Option<&'a Ident>,
        i: i64,
        component: &str,
        body: &'a Body,
    ) -> Checked<Template> {
        let errors = self.error_count;
        self.notes.clear();
        self.noted.clear();
        let outer = self.open_scope(String::new());
        self.in_layer = true;
        self.own_states = self.states.len();
        self.bind_counter(counter, Constant::counter(i));
        self.run_body(body);
        self.in_layer = false;
        let start = outer.names.vars.iter().map(|(name, v)| (name.clone(), v.var.clone())).collect::<Vec<_>>();
        self.close_scope(outer);
        let changes = self.end_segment(Some(component));
        if self.error_count > errors || self.halted {
            return Err(Reported);
        }
        Ok(self.template(&start, changes))
    }

    /// How many parameters, states and statistics there are.
    pub(super) fn own(&self) -> Own {
        Own { params: self.params.len(), states: self.states.len(), stats: self.stats.len() }
    }

    /// Ends the segment under construction: it becomes a layer, and the model's variables in it become slots. Returns how the
    /// variables changed.
    fn end_segment(&mut self, repeat: Option<&str>) -> Vec<(String, Change)> {
        let number = self.next_graph;
        self.next_graph += 2;
        let forward = std::mem::replace(&mut self.forward, Builder::new(number, Purpose::Forward));
        let update = std::mem::replace(&mut self.update, Builder::new(number + 1, Purpose::Update));
        self.total_nodes += forward.graph.nodes.len() + update.graph.nodes.len();
        if self.total_nodes > self.options.limits.nodes.saturating_mul(10) {
            let _ = self.too_much_work(Span::default(), "the model has too many operations");
        }
        let layer = self.layers.len();
        let mut exports = Vec::new();
        let mut changes = Vec::new();
        let mut vars = std::mem::take(&mut self.frames[0].names.vars);
        for (name, variable) in &mut vars {
            let change = match &variable.var {
                Var::Here { value, graph } if *graph == forward.number => match value {
                    Value::Tensor(tensor) => match forward.import_of(tensor.node) {
                        Some(outside) => Change::Outside(outside),
                        None if self.ragged(&tensor.axes).is_some() => {
                            Change::Unavailable("is in group order, which does not outlive its layer")
                        }
                        None => {
                            exports.push(Export { name: name.clone(), value: tensor.node });
                            Change::Export { export: exports.len() - 1, axes: tensor.axes.clone(), dtype: tensor.dtype }
                        }
                    },
                    Value::Rows(_) => Change::Unavailable("is a grouping, which does not outlive its layer"),
                    Value::Const(_) | Value::None | Value::Several(_) => continue,
                },
                Var::Here { .. } | Var::Outside(_) | Var::Unavailable(_) | Var::Poisoned => continue,
            };
            variable.var = match &change {
                Change::Export { export, axes, dtype } => {
                    let source = SlotSource { layer, export: *export };
                    self.slots.push(Slot { source, axes: axes.clone(), dtype: *dtype });
                    Var::Outside(Outside::Carry(self.slots.len() - 1))
                }
                Change::Outside(outside) => Var::Outside(*outside),
                Change::Unavailable(why) => Var::Unavailable(why),
                Change::Same(_) => Var::Poisoned,
            };
            changes.push((name.clone(), change));
        }
        self.frames[0].names.vars = vars;
        let carries = forward
            .imports
            .keys()
            .filter_map(|outside| match outside {
                Outside::Carry(slot) => Some((*slot, self.slots[*slot].source)),
                _ => None,
            })
            .collect();
        let (first, end) = (self.segment_start, self.own());
        self.segment_start = end;
        let repeat = repeat.map(String::from);
        self.segments.push(RawSegment { repeat, forward, update, exports, first, end });
        let segment = self.segments.len() - 1;
        self.layers.push(RawLayer { segment, name: self.layer_name.clone(), own: first, carries });
        changes
    }

    /// Ends the last segment.
    pub(super) fn end_model(&mut self) {
        self.end_segment(None);
    }
}
