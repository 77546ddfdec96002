//! Tensors put together: `stack` and `concat`.

use super::Checker;
use super::axes::Ax;
use super::operators::Want;
use super::value::{Checked, Reported, Tensor, Value};
use crate::ast::{Arg, Call, Ident, Span};
use crate::diagnostics::quote;
use forebay_ir::Op;

impl<'a> Checker<'a> {
    /// `stack(a, b as two)`.
    pub(super) fn stack(&mut self, call: &'a Call, span: Span) -> Checked<Tensor> {
        let name = self.joined_name(call)?;
        let tensors = self.joined_operands(call)?;
        let mut axes: Vec<Ax> = Vec::new();
        for tensor in &tensors {
            axes.extend(tensor.axes.iter().filter(|a| !axes.contains(a)).copied().collect::<Vec<_>>());
        }
        let two = self.found_axis(name, tensors.len() as u64)?;
        self.not_yet(&axes, two, name)?;
        let mut operands = Vec::new();
        for tensor in tensors {
            let wide = self.spread(tensor, &axes, span)?;
            operands.push(self.in_order(wide, &axes, span)?);
        }
        let op = Op::Stack(self.axis_id(two));
        self.emit(op, &operands.iter().collect::<Vec<_>>(), span)
    }

    /// `concat(a over n, b over p as q)`.
    pub(super) fn concat(&mut self, call: &'a Call, span: Span) -> Checked<Tensor> {
        let name = self.joined_name(call)?;
        let tensors = self.joined_operands(call)?;
        let Some(last) = call.args.last().filter(|a| !a.over.is_empty()) else {
            return Err(self.written_wrong(call, span));
        };
        let mut joined = Vec::new();
        for (arg, tensor) in call.args.iter().zip(&tensors) {
            let over = if arg.over.is_empty() { &last.over } else { &arg.over };
            match self.over_axes(over, tensor, arg.span)?[..] {
                [axis] if self.ragged(&tensor.axes).is_none() => joined.push(axis),
                _ => {
                    let diagnostic = self.error("E0307", arg.span, "`concat` joins one axis, which is not ragged");
                    return Err(self.report(diagnostic));
                }
            }
        }
        let total: u64 = joined.iter().map(|&a| self.size(a)).sum();
        let into = self.found_axis(name, total)?;
        let others =
            |tensor: &Tensor, axis: Ax| tensor.axes.iter().copied().filter(|&a| a != axis).collect::<Vec<Ax>>();
        let mut all: Vec<Ax> = Vec::new();
        for (tensor, &axis) in tensors.iter().zip(&joined) {
            all.extend(others(tensor, axis).into_iter().filter(|a| !all.contains(a)).collect::<Vec<_>>());
        }
        self.not_yet(&all, into, name)?;
        self.concat_in_order(tensors, joined, &all, into, span)
    }

    /// Concatenates once every operand has all axes, in the order of the first operand.
    fn concat_in_order(
        &mut self,
        tensors: Vec<Tensor>,
        joined: Vec<Ax>,
        all: &[Ax],
        into: Ax,
        span: Span,
    ) -> Checked<Tensor> {
        let at = tensors[0].axes.iter().position(|&a| a == joined[0]).ok_or(Reported)?;
        let mut operands = Vec::new();
        for (tensor, &axis) in tensors.into_iter().zip(&joined) {
            if all.contains(&axis) {
                let name = self.axis_name(axis).to_string();
                let message = format!("the axis {} is joined in one operand and not in another", quote(&name));
                let diagnostic = self.error("E0208", span, message).help("read one of them under another name first");
                return Err(self.report(diagnostic));
            }
            let mut order = all.to_vec();
            order.insert(at.min(order.len()), axis);
            let wide = self.spread(tensor, &order, span)?;
            operands.push(self.in_order(wide, &order, span)?);
        }
        let op = Op::Concat { from: self.axis_ids(&joined), into: self.axis_id(into) };
        self.emit(op, &operands.iter().collect::<Vec<_>>(), span)
    }

    /// The name after `as`.
    fn joined_name(&mut self, call: &'a Call) -> Checked<&'a Ident> {
        let is_plain = |arg: &Arg| arg.name.is_none() && arg.size.is_none() && arg.into.is_none();
        match call.args.iter().filter_map(|a| a.renamed.as_ref()).next_back() {
            Some(name) if call.args.iter().all(is_plain) => Ok(name),
            _ => {
                let message = format!("{} needs a name for its axis", quote(&call.name.name));
                let diagnostic = self
                    .error("E0307", call.name.span, message)
                    .help(format!("write `{}`", super::builtins::usage(&call.name.name)));
                Err(self.report(diagnostic))
            }
        }
    }

    /// The operands, all of one element type.
    fn joined_operands(&mut self, call: &'a Call) -> Checked<Vec<Tensor>> {
        let values: Vec<Checked<Value>> = call
            .args
            .iter()
            .map(|arg| {
                let value = self.eval(&arg.value)?;
                self.plain(value, arg.value.span)
            })
            .collect();
        let values = values.into_iter().collect::<Checked<Vec<Value>>>()?;
        let dtype = self.common_dtype(&values, Want::Any, call.name.span)?;
        let tensors = self.convert_all(&values, dtype, call.name.span)?;
        self.same_groups(&tensors.iter().collect::<Vec<_>>(), call.name.span)?;
        Ok(tensors)
    }

    fn not_yet(&mut self, axes: &[Ax], new: Ax, name: &Ident) -> Checked<()> {
        if !axes.contains(&new) {
            return Ok(());
        }
        let diagnostic =
            self.error("E0208", name.span, format!("the operands already have an axis {}", quote(&name.name)));
        Err(self.report(diagnostic))
    }
}
