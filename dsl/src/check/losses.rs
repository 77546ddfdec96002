//! Losses, their counts, and what happens between steps: `loss`, `stat`, `update`.
//!
//! A loss statement becomes two scalars of the forward graph, the contribution to the total and the value that is reported. With
//! `per` it is divided by a `Count` input, the step's total of the count ([`super::counts`]).

use super::Checker;
use super::axes::Ax;
use super::build::LossParts;
use super::constant::number;
use super::value::{Checked, InitKind, InitValue, Outside, Reported, Tensor, Var, Variable};
use crate::ast::{Expr, Ident, Span, Target};
use crate::diagnostics::quote;
use crate::model::{Loss, Scope};
use forebay_ir::{BinaryOp, DType, Op, ReduceKind, ValueId};

/// A loss statement.
#[derive(Clone, Copy)]
pub(super) struct Written<'a> {
    pub name: &'a Ident,
    pub value: &'a Expr,
    pub per: Option<&'a Expr>,
    pub weight: Option<&'a Expr>,
    pub scope: Option<&'a Ident>,
}

/// What a loss is divided by.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Divisor {
    /// The number of micro-batches.
    MicroBatches,
    /// A constant count of each micro-batch.
    Fixed(f64),
    /// An output of the graph of counts.
    Count(ValueId),
}

/// A loss that was met, and what tells it from another of the same name.
#[derive(Clone, Debug)]
pub(super) struct KnownLoss {
    pub loss: Loss,
    /// The name as written, with its path.
    pub wanted: String,
    pub divisor: Divisor,
}

impl<'a> Checker<'a> {
    /// `loss name = value per count weight w scope s`.
    pub(super) fn loss(&mut self, written: Written<'a>) -> Checked<()> {
        let Written { name, .. } = written;
        self.not_while_updating(name)?;
        if !self.loss_path_free(name) {
            return Err(self.declared_twice(name));
        }
        // The count of a loss is an input of the graph under the loss's name.
        let is_input = name.name == "rng" || self.inputs.iter().any(|i| i.name.name == name.name);
        if is_input && self.frame().path.is_empty() {
            let message = format!("{} is an input and cannot be the name of a loss as well", quote(&name.name));
            let diagnostic = self.error("E0302", name.span, message);
            return Err(self.report(diagnostic));
        }
        let scope = self.loss_scope(&written);
        let weight = self.loss_weight(written.weight);
        let value = self.loss_value(&written, scope.unwrap_or(Scope::Micro));
        let divisor = match written.per {
            None => Ok(Divisor::MicroBatches),
            Some(count) => self.count(count),
        };
        let (scope, weight, value, divisor) = (scope?, weight?, value?, divisor?);
        let wanted = format!("{}{}", self.frame().path, name.name);
        let full = self.known_loss(wanted, scope, weight, divisor);
        let metric = self.divide(value, divisor, &full, name.span)?;
        let loss = if weight == 1.0 {
            metric.clone()
        } else {
            let weight = self.literal(weight, metric.dtype);
            self.emit(Op::Binary(BinaryOp::Mul), &[&metric, &weight], name.span)?
        };
        self.builder().name_from_source(metric.node, full.clone());
        self.add_loss(full, loss, metric, name.span)
    }

    /// May a loss be declared under this path? Several statements in unrolled repeats have different paths.
    fn loss_path_free(&mut self, name: &Ident) -> bool {
        let path = format!("{}{} (loss)", self.frame().path, name.name);
        self.frame_mut().declared.insert(path)
    }

    fn loss_scope(&mut self, written: &Written<'a>) -> Checked<Scope> {
        let Some(scope) = written.scope else {
            return Ok(if written.per.is_some() { Scope::Step } else { Scope::Micro });
        };
        if written.per.is_some() {
            let diagnostic = self
                .error("E0507", scope.span, "a loss has either `per` or `scope`")
                .help("with `per` the value is a sum over the whole step, divided by a count over the whole step");
            return Err(self.report(diagnostic));
        }
        match scope.name.as_str() {
            "micro" => Ok(Scope::Micro),
            "sequence" => Ok(Scope::Sequence),
            "group" => Ok(Scope::Group),
            "global" => Ok(Scope::Global),
            other => {
                let diagnostic = self
                    .error("E0507", scope.span, format!("there is no scope {}", quote(other)))
                    .help("scopes are micro, sequence, group and global");
                Err(self.report(diagnostic))
            }
        }
    }

    fn loss_weight(&mut self, weight: Option<&'a Expr>) -> Checked<f64> {
        let Some(expr) = weight else { return Ok(1.0) };
        let constant = self.eval_const(expr)?;
        match number(&self.used(&constant)) {
            Some(weight) if weight.is_finite() => Ok(weight),
            _ => {
                let diagnostic = self.error("E0404", expr.span, "a weight is a finite number");
                Err(self.report(diagnostic))
            }
        }
    }

    /// The value as a wide scalar.
    fn loss_value(&mut self, written: &Written<'a>, scope: Scope) -> Checked<Tensor> {
        let span = written.value.span;
        let value = self.eval(written.value)?;
        let tensor = self.tensor(value, span)?;
        let mut tensor = self.wide(tensor, span)?;
        if scope == Scope::Sequence {
            let Some(batch) = self.batch_axis.filter(|&b| tensor.axes == [b]) else {
                let diagnostic = self
                    .error("E0207", span, "a loss of scope `sequence` has one value for each sequence")
                    .label(format!("its axes are {}", self.list(&tensor.axes)))
                    .help("keep the batch axis and sum over the others");
                return Err(self.report(diagnostic));
            };
            tensor = self.reduce(ReduceKind::Sum, tensor, &[batch], span)?;
            tensor = self.divide_by_size(tensor, &[batch], span)?;
        }
        if tensor.axes.is_empty() {
            return Ok(tensor);
        }
        let names: Vec<&str> = tensor.axes.iter().map(|&a| self.axis_name(a)).collect();
        let verb = if written.per.is_some() { "sum" } else { "mean" };
        let text = self.text(span);
        let text = if text.len() > 40 { "…" } else { text };
        let help = format!("write `{verb}({text} over {})`", names.join(", "));
        let diagnostic = self
            .error("E0207", span, "a loss is a single number")
            .label(format!("its axes are {}", self.list(&tensor.axes)))
            .help(help);
        Err(self.report(diagnostic))
    }

    pub(super) fn wide(&mut self, tensor: Tensor, span: Span) -> Checked<Tensor> {
        if tensor.dtype == DType::Bool {
            let diagnostic = self
                .error("E0209", span, "a bool is used as a number")
                .help("`where(condition, 1.0, 0.0)` turns a bool into a number");
            return Err(self.report(diagnostic));
        }
        self.cast(tensor, self.options.wide, span)
    }

    fn divide(&mut self, value: Tensor, divisor: Divisor, name: &str, span: Span) -> Checked<Tensor> {
        let micro_batches = f64::from(self.options.micro_batches.max(1));
        let number = match divisor {
            Divisor::MicroBatches => micro_batches,
            Divisor::Fixed(count) => count * micro_batches,
            Divisor::Count(_) => {
                let at = self.counted.iter().position(|n| n == name).unwrap_or_else(|| {
                    self.counted.push(name.to_string());
                    self.counted.len() - 1
                });
                let count = self.import(Outside::Count(at), name);
                return self.emit(Op::Binary(BinaryOp::Div), &[&value, &count], span);
            }
        };
        if number == 1.0 {
            return Ok(value);
        }
        let number = self.literal(number, value.dtype);
        self.emit(Op::Binary(BinaryOp::Div), &[&value, &number], span)
    }

    /// Adds to what the layer contributes to the loss of this name.
    fn add_loss(&mut self, name: String, loss: Tensor, metric: Tensor, span: Span) -> Checked<()> {
        let before = self.builder().losses.get(&name).cloned();
        let parts = match before {
            None => LossParts { loss: loss.node, metric: metric.node },
            Some(before) => {
                let same = loss.node == metric.node && before.loss == before.metric;
                let earlier = |node| Tensor { node, dtype: metric.dtype, axes: vec![] };
                let add = Op::Binary(BinaryOp::Add);
                let total = self.emit(add.clone(), &[&earlier(before.metric), &metric], span)?;
                let loss = if same { total.clone() } else { self.emit(add, &[&earlier(before.loss), &loss], span)? };
                LossParts { loss: loss.node, metric: total.node }
            }
        };
        self.builder().losses.insert(name, parts);
        Ok(())
    }

    /// The loss's name: its path, or with a number when a loss of that path differs in weight, scope or count.
    fn known_loss(&mut self, wanted: String, scope: Scope, weight: f64, divisor: Divisor) -> String {
        let same = |k: &&KnownLoss| {
            k.wanted == wanted && k.loss.scope == scope && k.loss.weight == weight && k.divisor == divisor
        };
        if let Some(known) = self.losses.iter().find(same) {
            return known.loss.name.clone();
        }
        let name = self.loss_names.free(&wanted);
        let main = scope == Scope::Step && !self.losses.iter().any(|k| k.loss.main);
        let loss = Loss { name: name.clone(), weight, scope, main };
        self.losses.push(KnownLoss { loss, wanted, divisor });
        if let Divisor::Count(value) = divisor {
            self.counts.builder.outputs.insert(name.clone(), value);
        }
        name
    }

    /// `stat load[e] = value`.
    pub(super) fn stat(&mut self, target: &'a Target, value: &'a Expr) -> Checked<()> {
        let name = &target.name;
        self.not_while_updating(name)?;
        let result = match &target.axes {
            Some(axes) => self.define(value, axes, target.span),
            None => self.eval(value).and_then(|v| self.tensor(v, value.span)),
        };
        let tensor = result.and_then(|t| self.wide(t, value.span)).and_then(|t| {
            self.new_tensor_name(name)?;
            self.storable(&t.axes, name, target.span).map(|()| t)
        });
        let Ok(tensor) = tensor else {
            let variable = Variable { var: Var::Poisoned, span: name.span };
            self.frame_mut().names.vars.insert(name.name.clone(), variable);
            return Err(Reported);
        };
        let init = InitValue { kind: InitKind::Zeros, args: vec![] };
        let declared = self.new_declared(name, tensor.axes.clone(), init)?;
        self.name_tensor(&tensor, &name.name);
        self.stats.push(declared);
        let number = self.stats.len() - 1;
        self.forward.stats.push((number, tensor.node));
        let variable = Variable { var: Var::Outside(Outside::Stat(number)), span: name.span };
        self.frame_mut().names.vars.insert(name.name.clone(), variable);
        Ok(())
    }

    /// `update bias = value`.
    pub(super) fn update_statement(&mut self, name: &'a Ident, value: &'a Expr) -> Checked<()> {
        self.not_while_updating(name)?;
        let var = self.frame().names.vars.get(&name.name).map(|v| v.var.clone());
        let state = match var {
            Some(Var::Outside(Outside::State(state))) => state,
            Some(Var::Poisoned) => return Err(Reported),
            _ => {
                let states = self.frame().names.vars.iter();
                let states = states.filter(|(_, v)| matches!(v.var, Var::Outside(Outside::State(_))));
                let near = crate::diagnostics::closest(&name.name, states.map(|(name, _)| name.as_str()));
                let help = match near {
                    Some(near) => format!("did you mean `{near}`?"),
                    None => "declare it with `state`".into(),
                };
                let message = format!("{} is not a state", quote(&name.name));
                let diagnostic = self.error("E0510", name.span, message).help(help);
                return Err(self.report(diagnostic));
            }
        };
        if self.in_layer && state < self.own_states {
            let diagnostic = self
                .error("E0510", name.span, format!("every layer of the repeat would update {}", quote(&name.name)))
                .help("declare the state inside the repeat, or update it after");
            return Err(self.report(diagnostic));
        }
        self.updating = true;
        let result = self.next_state(state, name, value);
        self.updating = false;
        let tensor = result?;
        if self.update.next_states.insert(state, tensor.node).is_some() || !self.updated.insert(state) {
            let diagnostic = self.error("E0510", name.span, format!("{} is updated twice", quote(&name.name)));
            return Err(self.report(diagnostic));
        }
        Ok(())
    }

    /// Blocks that `update` calls cannot add to what a micro-batch computes.
    fn not_while_updating(&mut self, name: &'a Ident) -> Checked<()> {
        if !self.updating {
            return Ok(());
        }
        let message = "a block that `update` calls has no losses, statistics and updates of its own";
        let diagnostic = self.error("E0502", name.span, message);
        Err(self.report(diagnostic))
    }

    /// The next value of a state, with the state's axes.
    fn next_state(&mut self, state: usize, name: &'a Ident, value: &'a Expr) -> Checked<Tensor> {
        let result = self.eval(value)?;
        let result = self.plain(result, value.span)?;
        let tensor = self.tensor(result, value.span)?;
        let tensor = self.wide(tensor, value.span)?;
        let want: Vec<Ax> = self.states[state].axes.clone();
        if let Some(&axis) = tensor.axes.iter().find(|a| !want.contains(a)) {
            let message = format!("{} has no axis {}", quote(&name.name), quote(self.axis_name(axis)));
            let label = format!("axes {} for a state with {}", self.list(&tensor.axes), self.list(&want));
            let diagnostic = self.error("E0510", value.span, message).label(label);
            return Err(self.report(diagnostic));
        }
        let tensor = self.spread(tensor, &want, value.span)?;
        let tensor = self.in_order(tensor, &want, value.span)?;
        self.name_tensor(&tensor, &name.name);
        Ok(tensor)
    }
}
