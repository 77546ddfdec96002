//! What losses are divided by.
//!
//! The count of one micro-batch is computed by a graph of its own. It copies the part of the layers' graphs that the count depends on,
//! following carried values into the layers that they come from.

use super::Checker;
use super::build::{Builder, Purpose};
use super::constant::number;
use super::losses::Divisor;
use super::value::{Checked, Outside, Value};
use crate::ast::{Expr, Span};
use crate::diagnostics::quote;
use forebay_ir::{DType, Op, Type, ValueId};
use rustc_hash::FxHashMap;

/// The graph of counts under construction. Equal expressions are one node, so that the layers of a repeat share a count.
#[derive(Debug)]
pub(super) struct Counts {
    pub builder: Builder,
    made: FxHashMap<String, ValueId>,
}

impl Counts {
    pub(super) fn new(number: u32) -> Counts {
        Counts { builder: Builder::new(number, Purpose::Counts), made: FxHashMap::default() }
    }
}

impl<'a> Checker<'a> {
    /// What a `per` loss is divided by.
    pub(super) fn count(&mut self, expr: &'a Expr) -> Checked<Divisor> {
        let value = self.eval(expr)?;
        if let Value::Const(constant) = &value {
            return match number(&self.used(constant)) {
                Some(n) if n.is_finite() && n > 0.0 => Ok(Divisor::Fixed(n)),
                _ => {
                    let diagnostic = self.error("E0507", expr.span, "a count is a positive number");
                    Err(self.report(diagnostic))
                }
            };
        }
        let tensor = self.tensor(value, expr.span)?;
        let tensor = self.wide(tensor, expr.span)?;
        if !tensor.axes.is_empty() {
            let names: Vec<&str> = tensor.axes.iter().map(|&a| self.axis_name(a)).collect();
            let help = format!("sum it over {}", names.join(", "));
            let diagnostic = self
                .error("E0207", expr.span, "the count of a loss is a single number")
                .label(format!("its axes are {}", self.list(&tensor.axes)))
                .help(help);
            return Err(self.report(diagnostic));
        }
        self.copy_count(tensor.node, expr.span).map(Divisor::Count)
    }

    /// Copies what a value of the current layer depends on into the graph of counts.
    fn copy_count(&mut self, value: ValueId, span: Span) -> Checked<ValueId> {
        self.steps += value.index() / 8;
        let mut counts = std::mem::replace(&mut self.counts, Counts::new(0));
        let result = Copier { cx: self, counts: &mut counts, done: FxHashMap::default() }.copy(None, value, 0);
        self.counts = counts;
        result.map_err(|why| {
            let diagnostic = self
                .error("E0508", span, format!("the count of a loss {why}"))
                .help("it may depend on inputs and constants only");
            self.report(diagnostic)
        })
    }
}

/// Copies values into the graph of counts, following carried values into the layers they come from.
struct Copier<'c, 'a> {
    cx: &'c mut Checker<'a>,
    counts: &'c mut Counts,
    done: FxHashMap<(Option<usize>, ValueId), ValueId>,
}

/// Layers that a count may reach back through.
const MAX_REACH: usize = 1000;

impl Copier<'_, '_> {
    /// The copy of a value of a layer; `None` is the one under construction. The error ends the sentence "the count …".
    fn copy(&mut self, layer: Option<usize>, value: ValueId, depth: usize) -> Result<ValueId, String> {
        if depth > MAX_REACH {
            return Err("depends on too many layers".into());
        }
        for node in self.slice(layer, value) {
            if !self.done.contains_key(&(layer, node)) {
                let copy = self.copy_node(layer, node, depth)?;
                self.done.insert((layer, node), copy);
            }
        }
        Ok(self.done[&(layer, value)])
    }

    fn builder(&self, layer: Option<usize>) -> &Builder {
        match layer {
            None => &self.cx.forward,
            Some(layer) => &self.cx.segments[self.cx.layers[layer].segment].forward,
        }
    }

    /// What a value depends on within its layer, operands first.
    fn slice(&self, layer: Option<usize>, value: ValueId) -> Vec<ValueId> {
        let graph = &self.builder(layer).graph;
        let mut needed = vec![false; value.index() + 1];
        needed[value.index()] = true;
        for at in (0..=value.index()).rev().filter(|&i| i < graph.nodes.len()) {
            if needed[at] {
                graph.reads(ValueId(at as u32)).iter().for_each(|r| needed[r.index()] = true);
            }
        }
        (0..needed.len()).filter(|&i| needed[i]).map(|i| ValueId(i as u32)).collect()
    }

    fn copy_node(&mut self, layer: Option<usize>, value: ValueId, depth: usize) -> Result<ValueId, String> {
        let builder = self.builder(layer);
        let node = builder.graph.node(value).clone();
        if node.op == Op::Input {
            let Some(outside) = builder.import_of(value) else { return Err("depends on something unknown".into()) };
            return self.copy_input(layer, outside, depth);
        }
        let axes = builder.axes.clone();
        let name = builder.names[value.index()].clone();
        let offsets: Vec<_> = builder.graph.offsets.iter().filter(|(_, v)| *v == value).map(|(a, _)| *a).collect();
        let operands: Vec<ValueId> = node.operands.iter().map(|&o| self.done[&(layer, o)]).collect();
        let counts = &mut self.counts.builder;
        let op = node.op.map_axes(|a| counts.axis_id(&self.cx.axes, axes[a.0 as usize]));
        let ty_axes: Vec<_> = node.ty.axes.iter().map(|a| counts.axis_id(&self.cx.axes, axes[a.0 as usize])).collect();
        let ty = Type::new(node.ty.dtype, ty_axes);
        let key = format!("{op:?} {operands:?} {ty:?}");
        if let Some(&made) = self.counts.made.get(&key) {
            return Ok(made);
        }
        if counts.graph.nodes.len() >= self.cx.options.limits.nodes {
            return Err("is too complicated".into());
        }
        let copy = counts.graph.push(op, operands, ty, "n");
        counts.names.push(name);
        for ragged in offsets {
            let ragged = counts.axis_id(&self.cx.axes, axes[ragged.0 as usize]);
            counts.graph.offsets.push((ragged, copy));
        }
        self.counts.made.insert(key, copy);
        Ok(copy)
    }

    fn copy_input(&mut self, layer: Option<usize>, outside: Outside, depth: usize) -> Result<ValueId, String> {
        match outside {
            Outside::Data(i) => {
                let (name, axes) = (self.cx.inputs[i].name.name.clone(), self.cx.inputs[i].axes.clone());
                Ok(self.counts.builder.import(&self.cx.axes, outside, &name, DType::I32, &axes))
            }
            Outside::Carry(slot) => {
                let slot = match layer {
                    None => self.cx.slots[slot].source,
                    Some(layer) => self.cx.layers[layer].source_of(slot).ok_or("depends on something unknown")?,
                };
                let value = self.cx.segments[self.cx.layers[slot.layer].segment].exports[slot.export].value;
                self.copy(Some(slot.layer), value, depth + 1)
            }
            Outside::Param(i) => Err(format!("depends on the parameter {}", quote(&self.cx.params[i].name()))),
            Outside::State(i) => Err(format!("depends on the state {}", quote(&self.cx.states[i].name()))),
            Outside::Stat(_) | Outside::Count(_) => Err("depends on a statistic".into()),
            Outside::Rng => Err("depends on random numbers".into()),
        }
    }
}
