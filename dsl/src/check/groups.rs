//! Routing: `top`, `group`, `x at rows`, `scatter`.
//!
//! `group(chosen, e, r)` sorts the slots of `chosen` (its elements, numbered row-major) by value. Dispatch turns the slot
//! numbers into element numbers of x, by dividing by the axes of `chosen` that x lacks; combine looks the row of each slot up in the
//! inverse permutation.

use super::Checker;
use super::axes::{Ax, Size, label_of};
use super::build::Rows;
use super::expressions::bare_name;
use super::operators::Want;
use super::value::{Checked, Reported, Tensor, Value};
use crate::ast::{Arg, Call, ExprKind, Ident, Span};
use crate::diagnostics::quote;
use forebay_ir::{BinaryOp, DType, Op, ReduceKind};

/// As many as a plan may have (`forebay_plan::verify::MAX_GROUPS`; a test compiles that many).
const MAX_GROUPS: u64 = 1 << 24;

impl<'a> Checker<'a> {
    /// `top(x over e, k: n)`.
    pub(super) fn top(&mut self, call: &'a Call, span: Span) -> Checked<Tensor> {
        if call.args.len() != 2 {
            return Err(self.written_wrong(call, span));
        }
        let (tensor, axis) = self.over_one(call, &call.args[..1], Want::Number)?;
        let (into, k) = self.axis_of_arg(&call.args[1], call)?;
        if self.size(into) > self.size(axis) {
            let message = format!("the {} largest of {} elements", self.size(into), self.size(axis));
            let diagnostic = self.error("E0210", call.args[1].span, message);
            return Err(self.report(diagnostic));
        }
        self.countable(self.size(axis), "elements", call.args[0].span)?;
        if tensor.has(into) {
            let diagnostic = self.error("E0208", k.span, format!("the operand already has an axis {}", quote(&k.name)));
            return Err(self.report(diagnostic));
        }
        let op = Op::TopK { axis: self.axis_id(axis), into: self.axis_id(into) };
        self.emit(op, &[&tensor], span)
    }

    /// An argument that names an axis: `e` or `k: n`.
    fn axis_of_arg(&mut self, arg: &'a Arg, call: &'a Call) -> Checked<(Ax, Ident)> {
        let Some(name) = bare_name(&arg.value).filter(|_| arg.name.is_none() && arg.over.is_empty()) else {
            return Err(self.written_wrong(call, arg.span));
        };
        let axis = match &arg.size {
            None => self.need_axis(&name)?,
            Some(size) => {
                let constant = self.eval_const(size)?;
                let n = self.as_size(&constant, size.span, Some(size))?;
                self.sized_axis(&name, n, label_of(size), size.span)?
            }
        };
        if self.ragged_parent(axis).is_some() {
            let diagnostic = self.error("E0215", arg.span, format!("{} is a ragged axis", quote(&name.name)));
            return Err(self.report(diagnostic));
        }
        Ok((axis, name))
    }

    /// `group(chosen, e, r)`.
    pub(super) fn group(&mut self, call: &'a Call, span: Span) -> Checked<Value> {
        if call.args.len() != 3 {
            return Err(self.written_wrong(call, span));
        }
        let value = self.eval(&call.args[0].value)?;
        let chosen = self.tensor(value, call.args[0].span)?;
        if chosen.dtype != DType::I32 || self.ragged(&chosen.axes).is_some() {
            let diagnostic = self
                .error("E0214", call.args[0].span, "the first argument of `group` is an int tensor")
                .help("`top(score over e, k: n)` makes one");
            return Err(self.report(diagnostic));
        }
        let (parent, e) = self.axis_of_arg(&call.args[1], call)?;
        if self.size(parent) > MAX_GROUPS {
            let message = format!("{} groups are more than the {MAX_GROUPS} that are possible", self.size(parent));
            let diagnostic = self.error("E0405", call.args[1].span, message);
            return Err(self.report(diagnostic));
        }
        if chosen.has(parent) {
            let message = format!("the slots to be grouped already have the axis {}", quote(&e.name));
            let diagnostic = self.error("E0208", call.args[1].span, message);
            return Err(self.report(diagnostic));
        }
        let ragged = self.ragged_name(&call.args[2], parent, &chosen)?;
        let op = Op::Group { ragged: self.axis_id(ragged) };
        let rows = self.emit(op, &[&chosen], span)?;
        self.offsets(&chosen, parent, ragged, span)?;
        let builder = self.builder();
        builder.rows.push(Rows { chosen, rows, parent, ragged, inverse: None, indices: Vec::new() });
        Ok(Value::Rows(builder.rows.len() - 1))
    }

    /// The new ragged axis of a group.
    fn ragged_name(&mut self, arg: &'a Arg, parent: Ax, chosen: &Tensor) -> Checked<Ax> {
        let name = bare_name(&arg.value).filter(|_| arg.size.is_none() && arg.name.is_none());
        let taken = name.as_ref().and_then(|n| self.frame().names.axes.get(&n.name).copied());
        let clashes = taken.is_some_and(|axis| self.ragged_parent(axis).is_none());
        let Some(name) = name.filter(|n| !clashes && !self.frame().names.vars.contains_key(&n.name)) else {
            let diagnostic = self
                .error("E0307", arg.span, "the third argument of `group` is the name of a new axis")
                .help("it is ragged: as long as there are slots with each value");
            return Err(self.report(diagnostic));
        };
        let bound = self.numel(&chosen.axes).ok_or(Reported)?;
        self.countable(bound, "slots", arg.span)?;
        let axis = self.new_axis(&name.name, Size::Ragged { parent, bound }, None, name.span);
        self.bind_axis(&name.name, axis);
        Ok(axis)
    }

    /// The group starts of a ragged axis.
    fn offsets(&mut self, chosen: &Tensor, parent: Ax, ragged: Ax, span: Span) -> Checked<()> {
        let name = format!("{}_starts", self.axis(parent).name);
        let into = self.new_axis(&name, Size::Fixed(self.size(parent) + 1), None, span);
        let op = Op::Offsets { parent: self.axis_id(parent), into: self.axis_id(into) };
        let offsets = self.emit(op, &[chosen], span)?;
        let id = self.axis_id(ragged);
        self.builder().graph.offsets.push((id, offsets.node));
        Ok(())
    }

    /// `x at rows`.
    pub(super) fn at(&mut self, value: Value, rows: Value, span: Span) -> Checked<Tensor> {
        let Value::Rows(number) = rows else {
            let diagnostic = self
                .error("E0214", span, "what stands after `at` must be rows")
                .help("`rows = group(chosen, e, r)` makes them");
            return Err(self.report(diagnostic));
        };
        let tensor = self.tensor(value, span)?;
        let rows = self.builder().rows[number].clone();
        if tensor.has(rows.ragged) {
            self.combine(&tensor, number, &rows, span)
        } else if let Some((_, other)) = self.ragged(&tensor.axes) {
            let message = format!("the values are in the order of another group, {}", quote(self.axis_name(other)));
            let diagnostic = self.error("E0214", span, message);
            Err(self.report(diagnostic))
        } else {
            self.dispatch(tensor, number, &rows, span)
        }
    }

    /// `[e, r, …]` back to the axes of `chosen`.
    fn combine(&mut self, tensor: &Tensor, number: usize, rows: &Rows, span: Span) -> Checked<Tensor> {
        if let Some(&axis) = rows.chosen.axes.iter().find(|a| tensor.has(**a)) {
            let message = format!("the values have the axis {} besides their rows", quote(self.axis_name(axis)));
            let diagnostic = self.error("E0214", span, message);
            return Err(self.report(diagnostic));
        }
        let inverse = match &rows.inverse {
            Some(inverse) => inverse.clone(),
            None => self.emit_in(Op::Invert, &[&rows.rows], &rows.chosen.axes, span)?,
        };
        self.builder().rows[number].inverse = Some(inverse.clone());
        let op = Op::Gather { axis: self.axis_id(rows.ragged) };
        self.emit(op, &[tensor, &inverse], span)
    }

    /// Values over (some of) the axes of `chosen` to `[e, r, …]`.
    fn dispatch(&mut self, mut tensor: Tensor, number: usize, rows: &Rows, span: Span) -> Checked<Tensor> {
        let shared: Vec<Ax> = rows.chosen.axes.iter().copied().filter(|a| tensor.has(*a)).collect();
        if shared.is_empty() || tensor.has(rows.parent) {
            let message = format!("{} cannot be brought into group order", self.list(&tensor.axes));
            let diagnostic = self
                .error("E0214", span, message)
                .label(format!("the rows group slots over {}", self.list(&rows.chosen.axes)))
                .help("what is dispatched has some of the axes of the slots, and not the axis they are grouped by");
            return Err(self.report(diagnostic));
        }
        let others = tensor.axes.iter().copied().filter(|a| !shared.contains(a));
        let order: Vec<Ax> = shared.iter().copied().chain(others).collect();
        tensor = self.in_order(tensor, &order, span)?;
        let mut axis = shared[0];
        if shared.len() > 1 {
            let size = self.numel(&shared).ok_or(Reported)?;
            axis = self.new_axis("slot", Size::Fixed(size), None, span);
            let op = Op::Merge { from: self.axis_ids(&shared), into: self.axis_id(axis) };
            tensor = self.emit(op, &[&tensor], span)?;
        }
        let index = self.element_of_slot(number, rows, &shared, span)?;
        self.gather(&tensor, axis, &index, span)
    }

    /// For each row, which element over the shared axes its slot belongs to.
    fn element_of_slot(&mut self, number: usize, rows: &Rows, shared: &[Ax], span: Span) -> Checked<Tensor> {
        if let Some((_, index)) = rows.indices.iter().find(|(axes, _)| axes == shared) {
            return Ok(index.clone());
        }
        let all = &rows.chosen.axes;
        let index = if all.starts_with(shared) {
            let trailing = self.numel(&all[shared.len()..]).ok_or(Reported)?;
            self.by_number(BinaryOp::Div, rows.rows.clone(), trailing, span)?
        } else {
            self.digits(rows, shared, span)?
        };
        self.builder().rows[number].indices.push((shared.to_vec(), index.clone()));
        Ok(index)
    }

    /// The digits of the slot number that belong to the shared axes, put together again.
    fn digits(&mut self, rows: &Rows, shared: &[Ax], span: Span) -> Checked<Tensor> {
        let all = &rows.chosen.axes;
        let mut sum: Option<Tensor> = None;
        for (i, &axis) in shared.iter().enumerate() {
            let at = all.iter().position(|&a| a == axis).ok_or(Reported)?;
            let below = self.numel(&all[at + 1..]).ok_or(Reported)?;
            let weight = self.numel(&shared[i + 1..]).ok_or(Reported)?;
            let mut digit = self.by_number(BinaryOp::Div, rows.rows.clone(), below, span)?;
            if at > 0 {
                digit = self.by_number(BinaryOp::Rem, digit, self.size(axis), span)?;
            }
            digit = self.by_number(BinaryOp::Mul, digit, weight, span)?;
            sum = Some(match sum {
                None => digit,
                Some(sum) => self.emit(Op::Binary(BinaryOp::Add), &[&sum, &digit], span)?,
            });
        }
        sum.ok_or(Reported)
    }

    /// `x op n` on integers; dividing or multiplying by one is nothing.
    fn by_number(&mut self, op: BinaryOp, x: Tensor, n: u64, span: Span) -> Checked<Tensor> {
        if n == 1 && op != BinaryOp::Rem {
            return Ok(x);
        }
        let n = self.literal(n as f64, DType::I32);
        self.emit(Op::Binary(op), &[&x, &n], span)
    }

    /// `scatter(v at idx over a, b into e: n)`.
    pub(super) fn scatter(&mut self, call: &'a Call, span: Span) -> Checked<Tensor> {
        let parts = match &call.args[..] {
            [arg] => match (&arg.value.kind, &arg.into) {
                (ExprKind::At { value, rows }, Some(into)) => Some((arg, value, rows, into)),
                _ => None,
            },
            _ => None,
        };
        let Some((arg, value, index, into)) = parts else {
            return Err(self.written_wrong(call, span));
        };
        let (v, idx) = (self.eval(value), self.eval(index));
        let v = self.plain(v?, value.span)?;
        let [v] = self.unify([v], Want::Number, value.span)?;
        let idx = self.tensor(idx?, index.span)?;
        if idx.dtype != DType::I32 {
            let diagnostic = self.error("E0210", index.span, "the index of `scatter` is an int tensor");
            return Err(self.report(diagnostic));
        }
        if self.ragged(&v.axes).is_some() || self.ragged(&idx.axes).is_some() {
            let diagnostic = self
                .error("E0215", span, "`scatter` does not take values in group order")
                .help("bring them back with `at` first");
            return Err(self.report(diagnostic));
        }
        let mut v = self.spread(v, &idx.axes, span)?;
        let over = self.over_axes(&arg.over, &v, arg.span)?;
        let axis = self.declared_axis(into)?;
        if v.has(axis) {
            let name = &into.name;
            let diagnostic = self
                .error("E0208", name.span, format!("the values already have the axis {}", quote(&name.name)))
                .help("read them under another name first");
            return Err(self.report(diagnostic));
        }
        // The graph's op sums over axes of the index; what only the values have is summed before.
        let (over, before): (Vec<Ax>, Vec<Ax>) = over.into_iter().partition(|&a| idx.has(a));
        if !before.is_empty() {
            v = self.reduce(ReduceKind::Sum, v, &before, span)?;
        }
        if over.is_empty() {
            let diagnostic = self
                .error("E0202", arg.span, "the index has none of the axes that are summed")
                .help("name the axes of the index that disappear: `over a, b`");
            return Err(self.report(diagnostic));
        }
        let op = Op::ScatterAdd { axis: self.axis_id(axis), over: self.axis_set(&over) };
        self.emit(op, &[&v, &idx], span)
    }

    /// The tensor copied along the axes that it lacks.
    pub(super) fn spread(&mut self, tensor: Tensor, axes: &[Ax], span: Span) -> Checked<Tensor> {
        let new: Vec<Ax> = axes.iter().copied().filter(|&a| !tensor.has(a)).collect();
        if new.is_empty() {
            return Ok(tensor);
        }
        let op = Op::Broadcast(self.axis_ids(&new));
        self.emit(op, &[&tensor], span)
    }
}
