//! Operators and elementwise functions on tensors and constants: promotion of element types, literals, folding.

use super::Checker;
use super::axes::Ax;
use super::constant::{Constant, Function, number};
use super::value::{Checked, Reported, Tensor, Value};
use crate::ast::{self, Span};
use crate::model::Const;
use forebay_ir::{BinaryOp, DType, Op, UnaryOp};

/// What an operator wants of the operands' common type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Want {
    /// Floats or integers.
    Number,
    /// Floats; integers become wide.
    Float,
    /// Anything, all alike.
    Any,
    /// Bools.
    Bool,
}

impl<'a> Checker<'a> {
    /// The operand as a tensor or a constant; complains about the others.
    pub(super) fn plain(&mut self, value: Value, span: Span) -> Checked<Value> {
        let (code, message, help) = match value {
            Value::Const(_) | Value::Tensor(_) => return Ok(value),
            Value::None => {
                ("E0213", "this optional tensor was not passed".to_string(), "use it inside `if given(…) { … }` only")
            }
            Value::Rows(_) => {
                ("E0214", "rows can only be used with `at`".to_string(), "dispatch and combine are written `x at rows`")
            }
            Value::Several(values) => (
                "E0308",
                format!("one value is needed here, the call returns {}", values.len()),
                "name them: `a, b = call(…)`",
            ),
        };
        let diagnostic = self.error(code, span, message).help(help);
        Err(self.report(diagnostic))
    }

    /// The operand as a tensor; a constant gets the type it has by itself.
    pub(super) fn tensor(&mut self, value: Value, span: Span) -> Checked<Tensor> {
        let value = self.plain(value, span)?;
        let [tensor] = self.unify([value], Want::Any, span)?;
        Ok(tensor)
    }

    /// The operand as a float tensor: integers become wide.
    pub(super) fn float_tensor(&mut self, value: Value, span: Span) -> Checked<Tensor> {
        let value = self.plain(value, span)?;
        let [tensor] = self.unify([value], Want::Float, span)?;
        Ok(tensor)
    }

    /// Brings operands to a common element type. Literals take that of the others.
    pub(super) fn unify<const N: usize>(&mut self, values: [Value; N], want: Want, span: Span) -> Checked<[Tensor; N]> {
        let dtype = self.common_dtype(&values, want, span)?;
        let tensors = self.convert_all(&values, dtype, span)?;
        Ok(tensors.try_into().expect("as many tensors as values"))
    }

    /// Converts operands to an element type.
    pub(super) fn convert_all(&mut self, values: &[Value], dtype: DType, span: Span) -> Checked<Vec<Tensor>> {
        values.iter().map(|v| self.convert(v, dtype, span)).collect()
    }

    /// The common element type of operands.
    pub(super) fn common_dtype(&mut self, values: &[Value], want: Want, span: Span) -> Checked<DType> {
        let (mut bools, mut numbers, mut float_literal, mut integers) = (false, false, false, false);
        let mut float: Option<DType> = None;
        for value in values {
            match value {
                Value::Const(constant) => match constant.value() {
                    Const::Int(_) => numbers = true,
                    Const::Float(_) => (numbers, float_literal) = (true, true),
                    Const::Bool(_) => bools = true,
                    Const::Str(text) => {
                        let message = format!("the string \"{text}\" cannot be used in a tensor");
                        let diagnostic = self.error("E0209", span, message);
                        return Err(self.report(diagnostic));
                    }
                },
                Value::Tensor(tensor) => match tensor.dtype {
                    DType::Bool => bools = true,
                    DType::I32 => (numbers, integers) = (true, true),
                    dtype => {
                        numbers = true;
                        // A wide operand makes the others wide.
                        float = Some(if float.is_none_or(|f| f == dtype) { dtype } else { self.options.wide });
                    }
                },
                Value::None | Value::Rows(_) | Value::Several(_) => return Err(Reported),
            }
        }
        if bools && (numbers || matches!(want, Want::Number | Want::Float)) {
            let diagnostic = self
                .error("E0209", span, "a bool is used as a number")
                .help("`where(condition, 1.0, 0.0)` turns a bool into a number");
            return Err(self.report(diagnostic));
        }
        if numbers && want == Want::Bool {
            let diagnostic = self
                .error("E0209", span, "`and`, `or` and `not` take bools, this is a number")
                .help("compare it: `x > 0`");
            return Err(self.report(diagnostic));
        }
        if bools {
            return Ok(DType::Bool);
        }
        Ok(match float {
            Some(_) if integers => self.options.wide,
            Some(dtype) => dtype,
            None if float_literal || want == Want::Float => self.options.wide,
            None => DType::I32,
        })
    }

    /// Converts one operand.
    pub(super) fn convert(&mut self, value: &Value, dtype: DType, span: Span) -> Checked<Tensor> {
        match value {
            Value::Tensor(tensor) => self.cast(tensor.clone(), dtype, span),
            Value::Const(constant) => {
                let x = self.literal_value(constant, dtype, span)?;
                Ok(self.literal(x, dtype))
            }
            Value::None | Value::Rows(_) | Value::Several(_) => Err(Reported),
        }
    }

    /// A constant's value as an element of this type.
    fn literal_value(&mut self, constant: &Constant, dtype: DType, span: Span) -> Checked<f64> {
        match self.used(constant) {
            Const::Bool(b) => Ok(f64::from(u8::from(b))),
            Const::Int(n) if dtype == DType::I32 && i32::try_from(n).is_err() => {
                let diagnostic =
                    self.error("E0402", span, format!("{n} does not fit into the 32 bits of an int tensor"));
                Err(self.report(diagnostic))
            }
            value => number(&value).ok_or(Reported),
        }
    }

    pub(super) fn cast(&mut self, tensor: Tensor, dtype: DType, span: Span) -> Checked<Tensor> {
        if tensor.dtype == dtype { Ok(tensor) } else { self.emit(Op::Cast(dtype), &[&tensor], span) }
    }

    /// `op a`.
    pub(super) fn unary(&mut self, op: ast::UnaryOp, a: Value, order: Option<&[Ax]>, span: Span) -> Checked<Value> {
        let a = self.plain(a, span)?;
        if let Value::Const(constant) = &a {
            return self.fold(Function::Unary(op), std::slice::from_ref(constant), span).map(Value::Const);
        }
        let (op, want) = match op {
            ast::UnaryOp::Neg => (UnaryOp::Neg, Want::Number),
            ast::UnaryOp::Not => (UnaryOp::Not, Want::Bool),
        };
        let [a] = self.unify([a], want, span)?;
        self.emit_toward(Op::Unary(op), &[&a], order, span).map(Value::Tensor)
    }

    /// `a op b`.
    pub(super) fn binary(
        &mut self,
        op: ast::BinaryOp,
        a: Value,
        b: Value,
        order: Option<&[Ax]>,
        span: Span,
    ) -> Checked<Value> {
        let (a, b) = (self.plain(a, span)?, self.plain(b, span)?);
        if let (Value::Const(a), Value::Const(b)) = (&a, &b) {
            return self.fold(Function::Binary(op), &[a.clone(), b.clone()], span).map(Value::Const);
        }
        let (op, want) = graph_op(op);
        self.pair(op, want, a, b, order, span)
    }

    /// An elementwise op of two operands, at least one of them a tensor.
    pub(super) fn pair(
        &mut self,
        op: BinaryOp,
        want: Want,
        a: Value,
        b: Value,
        order: Option<&[Ax]>,
        span: Span,
    ) -> Checked<Value> {
        let [a, b] = self.unify([a, b], want, span)?;
        self.same_groups(&[&a, &b], span)?;
        let own = self.broadcast_order(&[&a, &b]);
        let order = order.filter(|order| own.iter().all(|axis| order.contains(axis)));
        self.emit_toward(Op::Binary(op), &[&a, &b], Some(order.unwrap_or(&own)), span).map(Value::Tensor)
    }

    /// The axes of an elementwise result: those of the operand that has most, the first of equals, then what the others add. So a
    /// mask or a bias does not turn the order of what it is applied to around, whichever side it stands on.
    pub(super) fn broadcast_order(&self, operands: &[&Tensor]) -> Vec<Ax> {
        let most = operands.iter().map(|t| t.axes.len()).max().unwrap_or(0);
        let first = operands.iter().find(|t| t.axes.len() == most);
        let mut axes: Vec<Ax> = first.map(|t| t.axes.clone()).unwrap_or_default();
        for axis in operands.iter().flat_map(|t| &t.axes) {
            if axes.contains(axis) {
                continue;
            }
            // A ragged axis stands directly after its parent.
            let parent = self.ragged_parent(*axis).and_then(|parent| axes.iter().position(|a| *a == parent));
            axes.insert(parent.map_or(axes.len(), |at| at + 1), *axis);
        }
        axes
    }

    /// Operands of one op may have one ragged axis between them.
    pub(super) fn same_groups(&mut self, tensors: &[&Tensor], span: Span) -> Checked<()> {
        let mut groups = tensors.iter().filter_map(|t| self.ragged(&t.axes));
        let Some(first) = groups.next() else { return Ok(()) };
        if groups.all(|g| g == first) {
            return Ok(());
        }
        let diagnostic = self
            .error("E0215", span, "tensors in the order of two different groups cannot be combined")
            .help("bring both back with `at` first");
        Err(self.report(diagnostic))
    }

    /// A function of constants.
    pub(super) fn fold(&mut self, function: Function, args: &[Constant], span: Span) -> Checked<Constant> {
        let mut args = args.to_vec();
        if Constant::too_large(&args) {
            args.iter_mut().for_each(|a| *a = Constant::fixed(self.used(a)));
        }
        Constant::apply(function, &args).map_err(|message| {
            let diagnostic = self.error("E0402", span, message);
            self.report(diagnostic)
        })
    }
}

fn graph_op(op: ast::BinaryOp) -> (BinaryOp, Want) {
    match op {
        ast::BinaryOp::Add => (BinaryOp::Add, Want::Number),
        ast::BinaryOp::Sub => (BinaryOp::Sub, Want::Number),
        ast::BinaryOp::Mul => (BinaryOp::Mul, Want::Number),
        // Integers are divided as floats: a silent truncation would be a trap.
        ast::BinaryOp::Div => (BinaryOp::Div, Want::Float),
        ast::BinaryOp::Rem => (BinaryOp::Rem, Want::Number),
        ast::BinaryOp::Pow => (BinaryOp::Pow, Want::Float),
        ast::BinaryOp::Eq => (BinaryOp::Eq, Want::Any),
        ast::BinaryOp::Ne => (BinaryOp::Ne, Want::Any),
        ast::BinaryOp::Lt => (BinaryOp::Lt, Want::Number),
        ast::BinaryOp::Le => (BinaryOp::Le, Want::Number),
        ast::BinaryOp::Gt => (BinaryOp::Gt, Want::Number),
        ast::BinaryOp::Ge => (BinaryOp::Ge, Want::Number),
        ast::BinaryOp::And => (BinaryOp::And, Want::Bool),
        ast::BinaryOp::Or => (BinaryOp::Or, Want::Bool),
    }
}
