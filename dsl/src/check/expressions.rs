//! Expressions: names, operators, and where the other forms are handled.

use super::constant::Constant;
use super::value::{Checked, ConstValue, Outside, Reported, Tensor, Value, Var};
use super::{Checker, build::Purpose};
use crate::ast::{BinaryOp, Expr, ExprKind, Ident, Span};
use crate::diagnostics::{Diagnostic, closest, quote};
use crate::model::Const;

/// What to do about a tensor where a constant is needed, if there is something to say.
pub(super) type Help<'h> = Option<&'h dyn Fn() -> String>;

impl<'a> Checker<'a> {
    /// The value of an expression.
    pub(super) fn eval(&mut self, expr: &'a Expr) -> Checked<Value> {
        self.deeper(expr.span, |cx| cx.eval_here(expr))
    }

    fn eval_here(&mut self, expr: &'a Expr) -> Checked<Value> {
        let span = expr.span;
        match &expr.kind {
            ExprKind::Int(n) => Ok(fixed(Const::Int(*n))),
            ExprKind::Float(x) => Ok(fixed(Const::Float(*x))),
            ExprKind::Str(s) => Ok(fixed(Const::Str(s.clone()))),
            ExprKind::Bool(b) => Ok(fixed(Const::Bool(*b))),
            ExprKind::None => Ok(Value::None),
            ExprKind::Name(name) => self.name(name, span),
            ExprKind::Paren(inner) => self.eval(inner),
            ExprKind::Unary(op, a) => {
                let a = self.eval(a)?;
                self.unary(*op, a, None, span)
            }
            ExprKind::Binary(op, a, b) => {
                let a = self.eval(a);
                if let Some(decided) = self.short_circuit(*op, &a) {
                    return Ok(decided);
                }
                let b = self.eval(b);
                self.binary(*op, a?, b?, None, span)
            }
            ExprKind::At { value, rows } => {
                let value = self.eval(value);
                let rows = self.eval(rows);
                self.at(value?, rows?, span).map(Value::Tensor)
            }
            ExprKind::Read(base, indices) => {
                let value = self.eval(base)?;
                let tensor = self.tensor(value, base.span)?;
                self.read(tensor, indices, span).map(Value::Tensor)
            }
            ExprKind::Shape(inner, axes) => self.define(inner, axes, span).map(Value::Tensor),
            ExprKind::Call(call) => self.call(call, span),
            ExprKind::Rest => {
                let diagnostic = self.error("E0307", span, "`..` is not a value").help("only `size(..)` takes it");
                Err(self.report(diagnostic))
            }
            ExprKind::Error => Err(Reported),
        }
    }

    /// `false and …`, `true or …`: the right side is not looked at, so `n > 0 and d / n == 2` works for n = 0.
    pub(super) fn short_circuit(&mut self, op: BinaryOp, left: &Checked<Value>) -> Option<Value> {
        let decides = match op {
            BinaryOp::And => false,
            BinaryOp::Or => true,
            _ => return None,
        };
        let Ok(Value::Const(constant)) = left else { return None };
        if !matches!(constant.value(), Const::Bool(_)) {
            return None;
        }
        // Whether the right side is evaluated depends on this value.
        (self.used(constant) == Const::Bool(decides)).then(|| Value::Const(constant.clone()))
    }

    /// What a name stands for.
    pub(super) fn name(&mut self, name: &str, span: Span) -> Checked<Value> {
        if let Some(variable) = self.frame().names.vars.get(name) {
            let var = variable.var.clone();
            return self.variable(name, var, span);
        }
        if let Some(entry) = self.frame().names.consts.get(name) {
            return match entry.value.clone() {
                None => Err(Reported),
                Some(ConstValue::Plain(constant)) => Ok(Value::Const(constant)),
                Some(ConstValue::Init(_)) => {
                    let diagnostic =
                        self.error("E0404", span, format!("{} is an initialiser, not a number", quote(name)));
                    Err(self.report(diagnostic))
                }
            };
        }
        match name {
            "inf" => Ok(fixed(Const::Float(f64::INFINITY))),
            "pi" => Ok(fixed(Const::Float(std::f64::consts::PI))),
            "training" => Ok(fixed(Const::Bool(self.options.training))),
            _ => Err(self.unknown_name(name, span)),
        }
    }

    fn unknown_name(&mut self, name: &str, span: Span) -> Reported {
        let quoted = quote(name);
        let names = &self.frame().names;
        let in_block = self.frames.len() > 1;
        if names.axes.contains_key(name) {
            let diagnostic = self
                .error("E0301", span, format!("{quoted} is an axis, not a value"))
                .help(format!("`size({name})` is its length, `index({name})` the position along it"));
            return self.report(diagnostic);
        }
        let near = closest(name, names.vars.keys().chain(names.consts.keys()).map(String::as_str));
        let help = match near {
            Some(near) => Some(format!("did you mean `{near}`?")),
            None if in_block && self.constants.contains_key(name) => Some(format!(
                "{quoted} is a constant of the model; a block gets it as a parameter: add `{name}` to the block's list"
            )),
            None if in_block && self.frames[0].names.vars.contains_key(name) => {
                Some(format!("{quoted} is a tensor of the model; a block gets it as a parameter: `{name}[..]`"))
            }
            None if crate::parse::is_builtin(name) => {
                Some(format!("{quoted} is a built-in function: call it, `{name}(…)`"))
            }
            None if self.blocks.contains_key(name) => Some(format!("{quoted} is a block: call it, `{name}(…)`")),
            None => None,
        };
        let mut diagnostic = self.error("E0301", span, format!("there is no {quoted} here"));
        diagnostic.help = help;
        self.report(diagnostic)
    }

    fn variable(&mut self, name: &str, var: Var, span: Span) -> Checked<Value> {
        match var {
            Var::Poisoned => Err(Reported),
            Var::Unavailable(why) => {
                let diagnostic = self.error("E0506", span, format!("{} {why}", quote(name)));
                Err(self.report(diagnostic))
            }
            Var::Here { value, graph } => {
                if graph != self.builder().number && !matches!(value, Value::None | Value::Const(_)) {
                    return Err(self.not_in_update(name, span));
                }
                Ok(value)
            }
            Var::Outside(outside) => self.outside(name, outside, span).map(Value::Tensor),
        }
    }

    /// A variable that lives outside of the graph becomes an input of it.
    fn outside(&mut self, name: &str, outside: Outside, span: Span) -> Checked<Tensor> {
        let updating = self.builder().purpose == Purpose::Update;
        match outside {
            Outside::Stat(_) if !updating => {
                let diagnostic = self
                    .error("E0509", span, format!("the statistic {} is known after the step only", quote(name)))
                    .help("only `update` reads statistics");
                Err(self.report(diagnostic))
            }
            Outside::Data(_) | Outside::Param(_) | Outside::Carry(_) if updating => Err(self.not_in_update(name, span)),
            Outside::Data(i) => {
                let name = self.inputs[i].name.name.clone();
                Ok(self.import(outside, &name))
            }
            Outside::Param(i) => {
                let name = self.params[i].path.clone();
                Ok(self.import(outside, &name))
            }
            Outside::State(i) => {
                let name = self.states[i].path.clone();
                Ok(self.import(outside, &name))
            }
            Outside::Stat(i) => {
                let name = self.stats[i].path.clone();
                Ok(self.import(outside, &name))
            }
            Outside::Carry(_) => Ok(self.import(outside, name)),
            Outside::Count(_) | Outside::Rng => Err(Reported),
        }
    }

    fn not_in_update(&mut self, name: &str, span: Span) -> Reported {
        let diagnostic = self
            .error("E0509", span, format!("{} cannot be used in `update`", quote(name)))
            .label("a value of one micro-batch")
            .help(
                "`update` runs once per step and reads states, statistics and constants; sum what it needs with `stat`",
            );
        self.report(diagnostic)
    }

    /// The value of an expression that must be a constant.
    pub(super) fn eval_const(&mut self, expr: &'a Expr) -> Checked<Constant> {
        self.eval_const_or(expr, None)
    }

    /// The same; `help` says what to do about a tensor.
    pub(super) fn eval_const_or(&mut self, expr: &'a Expr, help: Help) -> Checked<Constant> {
        match self.eval(expr)? {
            Value::Const(constant) => Ok(constant),
            Value::None => {
                let diagnostic = self.error("E0401", expr.span, "a constant is needed here, not `none`");
                Err(self.report(diagnostic))
            }
            Value::Tensor(_) | Value::Rows(_) | Value::Several(_) => {
                let diagnostic = self
                    .error("E0401", expr.span, "a constant is needed here")
                    .label("this is a tensor, known only when the model runs");
                let help = help.map(|help| help());
                Err(self.report(help.into_iter().fold(diagnostic, Diagnostic::help)))
            }
        }
    }

    /// A constant condition.
    pub(super) fn eval_condition(&mut self, expr: &'a Expr) -> Checked<bool> {
        let constant = self.eval_const(expr)?;
        match self.used(&constant) {
            Const::Bool(b) => Ok(b),
            other => {
                let diagnostic = self
                    .error(
                        "E0404",
                        expr.span,
                        format!("a condition is true or false, not {}", super::constant::kind(&other)),
                    )
                    .help("compare it: `n > 0`");
                Err(self.report(diagnostic))
            }
        }
    }

    /// The value of a constant that is about to shape the graph.
    pub(super) fn used(&mut self, constant: &Constant) -> Const {
        if let Some(symbol) = constant.symbol()
            && self.noted.insert(std::rc::Rc::as_ptr(symbol))
        {
            self.notes.push((symbol.clone(), constant.value().clone()));
        }
        constant.value().clone()
    }
}

/// A constant that depends on nothing.
pub(super) fn fixed(value: Const) -> Value {
    Value::Const(Constant::fixed(value))
}

/// An identifier made of an expression that is a bare name.
pub(super) fn bare_name(expr: &Expr) -> Option<Ident> {
    match &expr.kind {
        ExprKind::Name(name) => Some(Ident { name: name.clone(), span: expr.span }),
        _ => None,
    }
}
