//! Attention without a softmax: `linear_attention` and `delta_solve`.

use super::Checker;
use super::axes::Ax;
use super::operators::Want;
use super::value::{Checked, Tensor, Value};
use crate::ast::{Arg, Call, Span};
use crate::diagnostics::quote;
use forebay_ir::{Direction, LinearAttention, LinearReads, Op};

impl<'a> Checker<'a> {
    /// `linear_attention(q, k over d, v, g over t)`.
    pub(super) fn linear_attention(&mut self, reads: LinearReads, call: &'a Call, span: Span) -> Checked<Value> {
        let [q, k, v, g] = &call.args[..] else { return Err(self.written_wrong(call, span)) };
        let odd = |arg: &Arg| arg.name.is_some() || arg.size.is_some() || arg.into.is_some() || arg.renamed.is_some();
        let over = [q, k, v, g].map(|arg| !arg.over.is_empty());
        if over != [false, true, false, true] || call.args.iter().any(odd) {
            return Err(self.written_wrong(call, span));
        }
        let mut values = vec![];
        for arg in &call.args {
            let value = self.eval(&arg.value)?;
            values.push(self.plain(value, arg.value.span)?);
        }
        let decays = values.pop().expect("four arguments");
        let operands: [Value; 3] = values.try_into().expect("three are left");
        let operands = self.unify(operands, Want::Float, span)?;
        let [decays] = self.unify([decays], Want::Float, g.value.span)?;
        let decays = self.wide(decays, g.value.span)?;
        let over = self.over_axes(&k.over, &operands[1], k.span)?;
        let positions = self.over_axes(&g.over, &decays, g.span)?;
        let ([_], [axis]) = (&over[..], &positions[..]) else {
            let message = format!("{} sums one axis, and goes over one", quote(&call.name.name));
            let diagnostic = self.error("E0307", span, message);
            return Err(self.report(diagnostic));
        };
        for (arg, tensor) in call.args.iter().zip(&operands) {
            self.needs(arg, tensor, *axis)?;
        }
        self.needs(q, &operands[0], over[0])?;
        self.apart(call, &operands, &decays, [over[0], *axis])?;
        let (axis, over) = (self.axis_id(*axis), self.axis_set(&over));
        let (direction, result) = (Direction::Forward, operands[2].dtype);
        let op = LinearAttention { axis, over, direction, reads, result };
        let [q, k, v] = &operands;
        self.emit(Op::LinearAttention(Box::new(op)), &[q, k, v, &decays], span).map(Value::Tensor)
    }

    /// Are what is summed, positions and what a value consists of different axes?
    fn apart(&mut self, call: &'a Call, [q, k, v]: &[Tensor; 3], g: &Tensor, [summed, axis]: [Ax; 2]) -> Checked<()> {
        let name = quote(self.axis_name(summed));
        let (at, message) = if summed == axis {
            let message = format!("{name} is summed, and it is the axis of the positions");
            let diagnostic = self.error("E0208", call.args[1].span, message).help("sum the elements of a key");
            return Err(self.report(diagnostic));
        } else if v.has(summed) {
            (&call.args[2], format!("the values have the axis {name}, which is summed"))
        } else if g.has(summed) {
            (&call.args[3], format!("the decays have the axis {name}, which is summed"))
        } else if v.axes.iter().all(|&a| q.has(a) || k.has(a) || g.has(a)) {
            (&call.args[2], "the values have no axis that queries, keys and decays lack".to_string())
        } else {
            return Ok(());
        };
        let diagnostic =
            self.error("E0208", at.span, message).help("read a tensor under another name first: `x[.., e]`");
        Err(self.report(diagnostic))
    }

    fn needs(&mut self, arg: &'a Arg, tensor: &Tensor, axis: Ax) -> Checked<()> {
        if tensor.has(axis) {
            return Ok(());
        }
        let message = format!("this has no axis {}", quote(self.axis_name(axis)));
        let diagnostic = self.error("E0202", arg.span, message);
        Err(self.report(diagnostic))
    }
}
