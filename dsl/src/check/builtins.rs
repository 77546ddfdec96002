//! Built-in functions, apart from those that move data between axes ([`super::groups`], [`super::joining`]) or remember positions ([`super::linear`]).

use super::Checker;
use super::axes::Ax;
use super::constant::Function;
use super::expressions::{bare_name, fixed};
use super::operators::Want;
use super::reading::plural;
use super::value::{Checked, Outside, Reported, Tensor, Value, Var};
use crate::ast::{Arg, Call, Expr, ExprKind, Span};
use crate::diagnostics::quote;
use crate::model::Const;
use forebay_ir::{BinaryOp, DType, Direction, LinearReads, Op, ReduceKind, UnaryOp};

impl<'a> Checker<'a> {
    /// A call of a built-in function.
    pub(super) fn builtin(&mut self, call: &'a Call, span: Span) -> Checked<Value> {
        if let Some(label) = &call.label {
            let diagnostic = self
                .error(
                    "E0307",
                    label.span,
                    format!("the built-in function {} has no instances", quote(&call.name.name)),
                )
                .help("only blocks have parameters, and so instances with names");
            return Err(self.report(diagnostic));
        }
        match call.name.name.as_str() {
            "exp" => self.float_function(UnaryOp::Exp, call, span),
            "log" => self.float_function(UnaryOp::Log, call, span),
            "sqrt" => self.float_function(UnaryOp::Sqrt, call, span),
            "rsqrt" => self.float_function(UnaryOp::Rsqrt, call, span),
            "tanh" => self.float_function(UnaryOp::Tanh, call, span),
            "sin" => self.float_function(UnaryOp::Sin, call, span),
            "cos" => self.float_function(UnaryOp::Cos, call, span),
            "floor" => self.float_function(UnaryOp::Floor, call, span),
            "abs" => self.number_function(UnaryOp::Abs, call, span),
            "sign" => self.number_function(UnaryOp::Sign, call, span),
            "ceil" | "round" => self.constant_function(call, span),
            "min" | "max" | "sum" | "mean" => self.reduction(call, span),
            "scan" => self.scan(call, span),
            "linear_attention" => self.linear_attention(LinearReads::Inclusive, call, span),
            "delta_solve" => self.linear_attention(LinearReads::Solve, call, span),
            "where" => self.select(call, span),
            "index" => self.index(call),
            "size" => self.size_of(call),
            "given" => self.given(call),
            "random" => self.random(call, span),
            "detach" => {
                let [x] = self.values(call)?;
                let x = self.tensor(x, span)?;
                self.emit(Op::Detach, &[&x], span).map(Value::Tensor)
            }
            "wide" => self.conversion(call, self.options.wide, span),
            "narrow" => self.conversion(call, self.options.narrow, span),
            "top" => self.top(call, span).map(Value::Tensor),
            "group" => self.group(call, span),
            "scatter" => self.scatter(call, span).map(Value::Tensor),
            "stack" => self.stack(call, span).map(Value::Tensor),
            "concat" => self.concat(call, span).map(Value::Tensor),
            name => {
                let diagnostic =
                    self.error("E0307", call.name.span, format!("{} is a constant, not a function", quote(name)));
                Err(self.report(diagnostic))
            }
        }
    }

    /// The arguments of a function that takes exactly so many, without clauses.
    pub(super) fn exprs<const N: usize>(&mut self, call: &'a Call) -> Checked<[&'a Expr; N]> {
        for arg in &call.args {
            self.no_clauses(arg, call)?;
        }
        let exprs: Vec<&'a Expr> = call.args.iter().map(|a| &a.value).collect();
        exprs.try_into().map_err(|_| {
            let name = &call.name.name;
            let message =
                format!("{} takes {N} {}, not {}", quote(name), plural(N, "argument", "arguments"), call.args.len());
            let diagnostic = self.error("E0307", call.name.span, message).help(format!("write `{}`", usage(name)));
            self.report(diagnostic)
        })
    }

    /// Complains about the form of a call.
    pub(super) fn written_wrong(&mut self, call: &'a Call, at: Span) -> Reported {
        let name = &call.name.name;
        let message = format!("this is not how {} is written", quote(name));
        let diagnostic = self.error("E0307", at, message).help(format!("write `{}`", usage(name)));
        self.report(diagnostic)
    }

    fn no_clauses(&mut self, arg: &'a Arg, call: &'a Call) -> Checked<()> {
        let odd = arg.name.is_some()
            || arg.size.is_some()
            || !arg.over.is_empty()
            || arg.into.is_some()
            || arg.renamed.is_some();
        if odd { Err(self.written_wrong(call, arg.span)) } else { Ok(()) }
    }

    fn values<const N: usize>(&mut self, call: &'a Call) -> Checked<[Value; N]> {
        let exprs = self.exprs::<N>(call)?;
        let values: Vec<Checked<Value>> = exprs
            .iter()
            .map(|e| {
                let value = self.eval(e)?;
                self.plain(value, e.span)
            })
            .collect();
        let values = values.into_iter().collect::<Checked<Vec<Value>>>()?;
        Ok(values.try_into().expect("as many values as expressions"))
    }

    fn float_function(&mut self, op: UnaryOp, call: &'a Call, span: Span) -> Checked<Value> {
        let [x] = self.values(call)?;
        if let (Value::Const(c), Some(function)) = (&x, Function::named(&call.name.name, 1)) {
            return self.fold(function, std::slice::from_ref(c), span).map(Value::Const);
        }
        let is_int = matches!(&x, Value::Tensor(t) if t.dtype == DType::I32);
        if op == UnaryOp::Floor && is_int {
            return Ok(x);
        }
        let x = self.float_tensor(x, span)?;
        self.emit(Op::Unary(op), &[&x], span).map(Value::Tensor)
    }

    fn number_function(&mut self, op: UnaryOp, call: &'a Call, span: Span) -> Checked<Value> {
        let [x] = self.values(call)?;
        if let (Value::Const(c), Some(function)) = (&x, Function::named(&call.name.name, 1)) {
            return self.fold(function, std::slice::from_ref(c), span).map(Value::Const);
        }
        let [x] = self.unify([x], Want::Number, span)?;
        self.emit(Op::Unary(op), &[&x], span).map(Value::Tensor)
    }

    fn constant_function(&mut self, call: &'a Call, span: Span) -> Checked<Value> {
        let [x] = self.values(call)?;
        let function = Function::named(&call.name.name, 1);
        if let (Value::Const(c), Some(function)) = (&x, function) {
            return self.fold(function, std::slice::from_ref(c), span).map(Value::Const);
        }
        let diagnostic = self
            .error("E0307", span, format!("{} takes constants only", quote(&call.name.name)))
            .help("`floor(x + 0.5)` rounds a tensor, `-floor(-x)` rounds it up");
        Err(self.report(diagnostic))
    }

    /// `sum(x over d)` and its relatives, and `min(a, b)`, `max(a, b)`.
    fn reduction(&mut self, call: &'a Call, span: Span) -> Checked<Value> {
        let name = call.name.name.as_str();
        let pairwise = matches!(name, "min" | "max");
        if pairwise && call.args.iter().all(|a| a.over.is_empty()) && call.args.len() == 2 {
            return self.min_or_max(call, span);
        }
        let [arg] = &call.args[..] else {
            return Err(self.written_wrong(call, span));
        };
        if arg.over.is_empty()
            || arg.name.is_some()
            || arg.into.is_some()
            || arg.renamed.is_some()
            || arg.size.is_some()
        {
            return Err(self.written_wrong(call, span));
        }
        let value = self.eval(&arg.value)?;
        let value = self.plain(value, arg.value.span)?;
        let [tensor] = self.unify([value], if name == "mean" { Want::Float } else { Want::Number }, arg.value.span)?;
        let over = self.over_axes(&arg.over, &tensor, arg.span)?;
        let kind = match name {
            "max" => ReduceKind::Max,
            "min" => ReduceKind::Min,
            _ => ReduceKind::Sum,
        };
        let sum = self.reduce(kind, tensor, &over, span)?;
        if name == "mean" { self.divide_by_size(sum, &over, span).map(Value::Tensor) } else { Ok(Value::Tensor(sum)) }
    }

    pub(super) fn reduce(&mut self, kind: ReduceKind, tensor: Tensor, over: &[Ax], span: Span) -> Checked<Tensor> {
        self.whole_groups(&[&tensor], over, span)?;
        let over = self.axis_set(over);
        self.emit(Op::Reduce { kind, over }, &[&tensor], span)
    }

    /// The second half of a mean.
    pub(super) fn divide_by_size(&mut self, sum: Tensor, over: &[Ax], span: Span) -> Checked<Tensor> {
        if self.ragged(over).is_some() {
            let diagnostic = self
                .error("E0215", span, "the mean over a ragged axis depends on how long it is when the model runs")
                .help("use `sum` and divide by a count of your own");
            return Err(self.report(diagnostic));
        }
        let n = self.numel(over).ok_or(Reported)?;
        let factor = self.literal(1.0 / n as f64, sum.dtype);
        self.emit(Op::Binary(BinaryOp::Mul), &[&sum, &factor], span)
    }

    fn min_or_max(&mut self, call: &'a Call, span: Span) -> Checked<Value> {
        let [a, b] = self.values(call)?;
        if let (Value::Const(a), Value::Const(b)) = (&a, &b) {
            let function = Function::named(&call.name.name, 2).ok_or(Reported)?;
            return self.fold(function, &[a.clone(), b.clone()], span).map(Value::Const);
        }
        let op = if call.name.name == "min" { BinaryOp::Min } else { BinaryOp::Max };
        self.pair(op, Want::Number, a, b, None, span)
    }

    /// `scan(x over t)`.
    fn scan(&mut self, call: &'a Call, span: Span) -> Checked<Value> {
        let (tensor, axis) = self.over_one(call, &call.args, Want::Number)?;
        let op = Op::Scan { axis: self.axis_id(axis), direction: Direction::Forward };
        self.emit(op, &[&tensor], span).map(Value::Tensor)
    }

    /// The only argument of the form `x over a`.
    pub(super) fn over_one(&mut self, call: &'a Call, args: &'a [Arg], want: Want) -> Checked<(Tensor, Ax)> {
        let [arg] = args else { return Err(self.written_wrong(call, call.name.span)) };
        let value = self.eval(&arg.value)?;
        let value = self.plain(value, arg.value.span)?;
        let [tensor] = self.unify([value], want, arg.value.span)?;
        let over = self.over_axes(&arg.over, &tensor, arg.span)?;
        let [axis] = over[..] else {
            let message = format!("{} goes over one axis", quote(&call.name.name));
            let diagnostic = self.error("E0307", arg.span, message);
            return Err(self.report(diagnostic));
        };
        if self.is_in_group(&tensor, axis) {
            let message = format!("{} cannot go over a ragged axis or its parent", quote(&call.name.name));
            let diagnostic = self.error("E0215", arg.span, message);
            return Err(self.report(diagnostic));
        }
        Ok((tensor, axis))
    }

    fn is_in_group(&self, tensor: &Tensor, axis: Ax) -> bool {
        self.ragged(&tensor.axes).is_some_and(|(parent, ragged)| axis == parent || axis == ragged)
    }

    /// `where(c, a, b)`.
    fn select(&mut self, call: &'a Call, span: Span) -> Checked<Value> {
        let [condition, a, b] = self.values(call)?;
        if let Value::Const(constant) = &condition {
            return match self.used(constant) {
                Const::Bool(true) => Ok(a),
                Const::Bool(false) => Ok(b),
                _ => Err(self.not_a_condition(call.args[0].span)),
            };
        }
        let condition = self.tensor(condition, span)?;
        if condition.dtype != DType::Bool {
            return Err(self.not_a_condition(call.args[0].span));
        }
        let [a, b] = self.unify([a, b], Want::Any, span)?;
        self.same_groups(&[&condition, &a, &b], span)?;
        let order = self.broadcast_order(&[&a, &b, &condition]);
        self.emit_in(Op::Select, &[&condition, &a, &b], &order, span).map(Value::Tensor)
    }

    fn not_a_condition(&mut self, span: Span) -> Reported {
        let diagnostic =
            self.error("E0209", span, "the first argument of `where` is a condition").help("compare it: `x > 0`");
        self.report(diagnostic)
    }

    /// `index(t)`.
    fn index(&mut self, call: &'a Call) -> Checked<Value> {
        let axis = self.axis_argument(call)?;
        if self.ragged_parent(axis).is_some() {
            let diagnostic = self.error("E0215", call.args[0].span, "a ragged axis has no positions that are known");
            return Err(self.report(diagnostic));
        }
        self.countable(self.size(axis), "positions", call.args[0].span)?;
        let op = Op::Iota(self.axis_id(axis));
        self.emit(op, &[], call.name.span).map(Value::Tensor)
    }

    /// An error if an i32 cannot number so many positions.
    pub(super) fn countable(&mut self, number: u64, of: &str, span: Span) -> Checked<()> {
        if number <= i32::MAX as u64 {
            return Ok(());
        }
        let diagnostic = self.error("E0405", span, format!("{number} {of} are more than an int can count"));
        Err(self.report(diagnostic))
    }

    fn axis_argument(&mut self, call: &'a Call) -> Checked<Ax> {
        let [expr] = self.exprs(call)?;
        match bare_name(expr) {
            Some(name) => self.need_axis(&name),
            None => {
                let message = format!("{} takes the name of an axis", quote(&call.name.name));
                let diagnostic = self.error("E0307", expr.span, message);
                Err(self.report(diagnostic))
            }
        }
    }

    /// `size(t)`, `size(..)`.
    fn size_of(&mut self, call: &'a Call) -> Checked<Value> {
        if let [Arg { value: Expr { kind: ExprKind::Rest, span }, .. }] = &call.args[..] {
            let rest = self.first_rest(*span)?;
            let n = self.numel(&rest).ok_or(Reported)?;
            return Ok(fixed(Const::Int(n as i64)));
        }
        let axis = self.axis_argument(call)?;
        if self.ragged_parent(axis).is_some() {
            let diagnostic =
                self.error("E0215", call.args[0].span, "the length of a ragged axis is known only when the model runs");
            return Err(self.report(diagnostic));
        }
        Ok(fixed(Const::Int(self.size(axis) as i64)))
    }

    /// `given(x)`.
    fn given(&mut self, call: &'a Call) -> Checked<Value> {
        let [expr] = self.exprs(call)?;
        let variable = bare_name(expr).and_then(|name| self.frame().names.vars.get(&name.name));
        match variable {
            Some(variable) => {
                let none = matches!(variable.var, Var::Here { value: Value::None, .. });
                Ok(fixed(Const::Bool(!none)))
            }
            None => {
                let diagnostic = self
                    .error("E0307", expr.span, "`given` takes a tensor parameter of this block")
                    .help("an optional one is declared `doc[..] = none`");
                Err(self.report(diagnostic))
            }
        }
    }

    /// `random(x)`.
    fn random(&mut self, call: &'a Call, span: Span) -> Checked<Value> {
        let [x] = self.values(call)?;
        let x = self.tensor(x, span)?;
        if self.updating || self.ragged(&x.axes).is_some() {
            let place = if self.updating { "in `update`" } else { "for values in group order" };
            let diagnostic = self.error("E0307", span, format!("random numbers are not to be had {place}"));
            return Err(self.report(diagnostic));
        }
        let rng = self.import(Outside::Rng, "rng");
        let batch = self.batch_axis.filter(|&b| x.has(b));
        let axes: Vec<Ax> = batch.into_iter().chain(x.axes.iter().copied().filter(|&a| Some(a) != batch)).collect();
        let site = self.builder().sites;
        self.builder().sites += 1;
        let batch = batch.map(|b| self.axis_id(b));
        let value = self.emit_in(Op::Random { site, batch }, &[&rng], &axes, span)?;
        self.cast(value, self.options.wide, span).map(Value::Tensor)
    }

    /// `wide(x)`, `narrow(x)`.
    fn conversion(&mut self, call: &'a Call, dtype: DType, span: Span) -> Checked<Value> {
        let [x] = self.values(call)?;
        let x = self.tensor(x, span)?;
        if x.dtype == DType::Bool {
            let diagnostic = self
                .error("E0209", span, "a bool is not a number")
                .help("`where(condition, 1.0, 0.0)` turns a bool into a number");
            return Err(self.report(diagnostic));
        }
        self.cast(x, dtype, span).map(Value::Tensor)
    }
}

/// How a built-in function is written.
pub(super) fn usage(name: &str) -> String {
    let usage = match name {
        "sum" => "sum(x over a, b)",
        "mean" => "mean(x over a, b)",
        "max" => "max(x over a)` or `max(a, b)",
        "min" => "min(x over a)` or `min(a, b)",
        "scan" => "scan(x over t)",
        "linear_attention" => "linear_attention(q, k over d, v, g over t)",
        "delta_solve" => "delta_solve(q, k over d, v, g over t)",
        "where" => "where(condition, a, b)",
        "index" => "index(t)",
        "size" => "size(t)",
        "top" => "top(x over e, k: n)",
        "group" => "group(chosen, e, r)",
        "scatter" => "scatter(v at idx over a into e: n)",
        "stack" => "stack(a, b as two)",
        "concat" => "concat(a, b over x as xx)` or `concat(a over n, b over p as q)",
        _ => return format!("{name}(x)"),
    };
    usage.to_string()
}
