//! Layers made after others: what the first of a kind teaches, and how another is made from it.
//!
//! A template knows which variables its segment reads and what becomes of the variables; a layer like it only gets parameters,
//! states and statistics of its own. Layers are alike only if the variables they start with are of the same kinds.

use super::Checker;
use super::axes::Ax;
use super::constant::Constant;
use super::layers::{RawLayer, Slot, SlotSource};
use super::value::{Checked, Declared, Outside, Var};
use crate::ast::Span;
use crate::diagnostics::{Diagnostic, SourceId, quote};
use forebay_ir::DType;
use rustc_hash::{FxHashMap, FxHashSet};

/// What a layer did to a variable that existed before it.
#[derive(Clone, Debug)]
pub(super) enum Change {
    Export {
        export: usize,
        axes: Vec<Ax>,
        dtype: DType,
    },
    /// The variable is what another was at the start of the layer.
    Same(String),
    Outside(Outside),
    Unavailable(&'static str),
}

/// A layer that others can be made after.
#[derive(Debug)]
pub(super) struct Template {
    segment: usize,
    /// Variables that the segment imports, with the slots they were in.
    carried: Vec<(usize, String)>,
    changes: Vec<(String, Change)>,
}

/// The kind of a variable at the start of a layer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Outside(Outside),
    /// The first variable in the same slot, and the type.
    Carry {
        first: usize,
        dtype: DType,
        axes: Vec<AxisKind>,
    },
    Other,
}

/// An axis as far as it matters to a layer: by identity when the model has a name for it, else by order of appearance and size.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum AxisKind {
    Named(Ax),
    Hidden(usize, u64),
}

impl<'a> Checker<'a> {
    /// What the layer just built teaches about others like it.
    pub(super) fn template(&self, start: &[(String, Var)], changes: Vec<(String, Change)>) -> Template {
        let slot_of = |var: &Var| match var {
            Var::Outside(Outside::Carry(slot)) => Some(*slot),
            _ => None,
        };
        let variable_in =
            |slot: usize| start.iter().find(|(_, var)| slot_of(var) == Some(slot)).map(|(name, _)| name.clone());
        let segment = self.segments.len() - 1;
        let imports = self.segments[segment].forward.imports.keys();
        let carried = imports
            .filter_map(|outside| match outside {
                Outside::Carry(slot) => variable_in(*slot).map(|name| (*slot, name)),
                _ => None,
            })
            .collect();
        let changes = changes
            .into_iter()
            .map(|(name, change)| match change {
                Change::Outside(Outside::Carry(slot)) => {
                    let same = variable_in(slot).unwrap_or_else(|| name.clone());
                    (name, Change::Same(same))
                }
                change => (name, change),
            })
            .collect();
        Template { segment, carried, changes }
    }

    /// The kinds of the model's variables.
    pub(super) fn kinds(&self) -> Vec<Kind> {
        let names = &self.frames[0].names;
        let named: FxHashSet<Ax> = names.axes.values().copied().collect();
        let mut hidden: Vec<Ax> = Vec::new();
        let mut first_in: FxHashMap<usize, usize> = FxHashMap::default();
        let mut kinds = Vec::new();
        for (i, variable) in names.vars.values().enumerate() {
            kinds.push(match &variable.var {
                Var::Outside(Outside::Carry(slot)) => {
                    let first = *first_in.entry(*slot).or_insert(i);
                    let axes = self.slots[*slot].axes.iter().map(|&axis| {
                        if named.contains(&axis) {
                            return AxisKind::Named(axis);
                        }
                        let at = hidden.iter().position(|&h| h == axis).unwrap_or_else(|| {
                            hidden.push(axis);
                            hidden.len() - 1
                        });
                        AxisKind::Hidden(at, self.size(axis))
                    });
                    Kind::Carry { first, dtype: self.slots[*slot].dtype, axes: axes.collect() }
                }
                Var::Outside(outside) => Kind::Outside(*outside),
                Var::Here { .. } | Var::Unavailable(_) | Var::Poisoned => Kind::Other,
            });
        }
        kinds
    }

    /// Warns of variables that the first layer of a repeat gives another type: the second is a layer of another kind then, which is
    /// hardly ever meant.
    pub(super) fn warn_changed(&mut self, before: &[Kind]) {
        let after = self.kinds();
        let names: Vec<(String, Span)> =
            self.frames[0].names.vars.iter().map(|(name, v)| (name.clone(), v.span)).collect();
        for ((name, span), (before, after)) in names.into_iter().zip(before.iter().zip(&after)) {
            let (Kind::Carry { dtype: old, axes: from, .. }, Kind::Carry { dtype: new, axes: to, .. }) =
                (before, after)
            else {
                continue;
            };
            let what = match (old != new, from != to) {
                (true, _) => format!("{old} becomes {new}"),
                (false, true) => "its axes change".to_string(),
                (false, false) => continue,
            };
            let message = format!("{} has another type after the first layer of the repeat: {what}", quote(&name));
            let help = if old != new {
                format!("`narrow` keeps the type: `{name} = narrow(…)`")
            } else {
                format!("write the order of the axes: `{name}[batch, seq, d] = …`")
            };
            let warning = Diagnostic::warning("W0602", SourceId(0), span, message);
            self.warnings.push(warning.label("so the layers are not all alike").help(help));
        }
    }

    /// Another layer like the template's.
    pub(super) fn another(&mut self, template: &Template, counter: i64, span: Span) -> Checked<()> {
        let own = self.own();
        let segment = &self.segments[template.segment];
        let (first, end) = (segment.first, segment.end);
        let name = self.layer_name.clone();
        let copies = |table: &[Declared], from: usize, to: usize| -> Result<Vec<Declared>, String> {
            table[from..to].iter().map(|d| d.for_layer(&name, counter)).collect()
        };
        let params = copies(&self.params, first.params, end.params);
        let states = copies(&self.states, first.states, end.states);
        let stats = copies(&self.stats, first.stats, end.stats);
        match (params, states, stats) {
            (Ok(params), Ok(states), Ok(stats)) => {
                self.params.extend(params);
                self.states.extend(states);
                self.stats.extend(stats);
            }
            (Err(why), _, _) | (_, Err(why), _) | (_, _, Err(why)) => {
                let diagnostic = self.error("E0402", span, format!("an initialiser of layer {counter}: {why}"));
                return Err(self.report(diagnostic));
            }
        }
        let mut axes: FxHashMap<Ax, Ax> = FxHashMap::default();
        let mut carries = FxHashMap::default();
        for (slot, variable) in &template.carried {
            if let Some(Var::Outside(Outside::Carry(now))) = self.frames[0].names.vars.get(variable).map(|v| &v.var) {
                carries.insert(*slot, self.slots[*now].source);
                axes.extend(self.slots[*slot].axes.iter().copied().zip(self.slots[*now].axes.iter().copied()));
            }
        }
        let layer = RawLayer { segment: template.segment, name, own, carries };
        let index = self.layers.len();
        let start: Vec<(String, Var)> =
            self.frames[0].names.vars.iter().map(|(name, v)| (name.clone(), v.var.clone())).collect();
        for (name, change) in &template.changes {
            let var = match change {
                Change::Export { export, axes: list, dtype } => {
                    let source = SlotSource { layer: index, export: *export };
                    let list = list.iter().map(|a| *axes.get(a).unwrap_or(a)).collect();
                    self.slots.push(Slot { source, axes: list, dtype: *dtype });
                    Var::Outside(Outside::Carry(self.slots.len() - 1))
                }
                Change::Same(other) => {
                    start.iter().find(|(name, _)| name == other).map_or(Var::Poisoned, |(_, var)| var.clone())
                }
                Change::Outside(outside) => Var::Outside(layer.shifted(*outside, &self.segments[template.segment])),
                Change::Unavailable(why) => Var::Unavailable(why),
            };
            if let Some(variable) = self.frames[0].names.vars.get_mut(name) {
                variable.var = var;
            }
        }
        self.layers.push(layer);
        self.segment_start = self.own();
        Ok(())
    }
}

impl Declared {
    /// The same declaration in another layer of its repeat.
    fn for_layer(&self, layer: &str, counter: i64) -> Result<Declared, String> {
        let args = self.init.args.iter().map(|arg| match arg.symbol() {
            None => Ok(arg.clone()),
            Some(symbol) => match symbol.value(counter)? {
                value if super::constant::number(&value).is_some_and(f64::is_finite) => Ok(Constant::fixed(value)),
                value => Err(format!("{} is not a finite number", super::constant::show(&value))),
            },
        });
        let mut copy = self.clone();
        copy.layer = layer.to_string();
        copy.init.args = args.collect::<Result<Vec<_>, String>>()?;
        Ok(copy)
    }
}
