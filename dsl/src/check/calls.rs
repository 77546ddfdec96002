//! Calls of blocks: each is an instance with a scope, a path and parameters of its own.

use super::axes::Ax;
use super::expressions::{Help, bare_name};
use super::reading::plural;
use super::value::{
    Checked, ConstEntry, ConstValue, Frame, InitKind, InitValue, Reported, Tensor, Value, Var, Variable,
};
use super::{Checker, MAX_CALLS};
use crate::ast::{Arg, Block, BlockParam, Call, ConstParam, Expr, ExprKind, Ident, OverAxis, PatternAxis, Span};
use crate::diagnostics::{closest, quote};
use crate::parse::is_builtin;

/// An argument, evaluated in the caller's scope.
enum Passed {
    Tensor { value: Value, last: Option<Ax>, span: Span },
    Const(ConstValue),
}

impl<'a> Checker<'a> {
    /// A call of a block or of a built-in function.
    pub(super) fn call(&mut self, call: &'a Call, span: Span) -> Checked<Value> {
        if is_builtin(&call.name.name) {
            return self.builtin(call, span);
        }
        let Some(&(source, block)) = self.blocks.get(call.name.name.as_str()) else {
            return Err(self.unknown_block(call));
        };
        self.no_cycle(block, call)?;
        let passed = self.arguments(block, call)?;
        let label = call.label.as_ref().unwrap_or(&call.name);
        let component = self.frame_mut().component(&label.name);
        let path = format!("{}{component}.", self.frame().path);
        let mut frame = Frame::new(source, Some(block), path);
        frame.call = Some((self.source(), span));
        let punned = self.punned(block, &passed, call)?;
        self.frames.push(frame);
        let result = self.run_block(block, passed, punned);
        self.frames.pop();
        result
    }

    fn unknown_block(&mut self, call: &'a Call) -> Reported {
        let name = &call.name.name;
        let candidates = self.blocks.keys().copied().chain(crate::parse::BUILTINS.iter().copied());
        let near = closest(name, candidates);
        let help = match near {
            Some(near) => Some(format!("did you mean `{near}`?")),
            None if self.frame().names.vars.contains_key(name) => {
                Some(format!("{} is a tensor; it is indexed with square brackets: `{name}[…]`", quote(name)))
            }
            None => Some("define it in this file: `block name(x[.., d]) { … }`".to_string()),
        };
        let mut diagnostic = self.error("E0304", call.name.span, format!("there is no block {}", quote(name)));
        diagnostic.help = help;
        self.report(diagnostic)
    }

    fn no_cycle(&mut self, block: &'a Block, call: &'a Call) -> Checked<()> {
        let at = self.frames.iter().position(|f| f.block.is_some_and(|b| std::ptr::eq(b, block)));
        if let Some(at) = at {
            let names = self.frames[at..].iter().filter_map(|f| f.block).map(|b| b.name.name.as_str());
            let cycle: Vec<&str> = names.chain([block.name.name.as_str()]).collect();
            let message = format!("the block {} calls itself", quote(&block.name.name));
            let diagnostic = self.error("E0305", call.name.span, message).label(cycle.join(" → "));
            return Err(self.report(diagnostic));
        }
        if self.frames.len() >= MAX_CALLS {
            return Err(self.too_much_work(call.name.span, "blocks call each other too deeply"));
        }
        Ok(())
    }

    /// Matches arguments to parameters and evaluates them, in the order of the parameters.
    fn arguments(&mut self, block: &'a Block, call: &'a Call) -> Checked<Vec<Option<Passed>>> {
        let mut matched: Vec<Option<&'a Arg>> = vec![None; block.params.len()];
        let mut failed = false;
        let mut next = 0;
        for arg in &call.args {
            let at = match &arg.name {
                None => {
                    next += 1;
                    next - 1
                }
                Some(name) => match block.params.iter().position(|p| param_name(p).name == name.name) {
                    Some(at) => at,
                    None => {
                        self.unknown_argument(block, name);
                        failed = true;
                        continue;
                    }
                },
            };
            match matched.get_mut(at) {
                None => {
                    self.too_many_arguments(block, arg);
                    failed = true;
                }
                Some(Some(_)) => {
                    let name = &param_name(&block.params[at]).name;
                    let diagnostic =
                        self.error("E0306", arg.span, format!("the argument {} is given twice", quote(name)));
                    self.report(diagnostic);
                    failed = true;
                }
                Some(place) => *place = Some(arg),
            }
        }
        let passed: Vec<Checked<Option<Passed>>> = block
            .params
            .iter()
            .zip(matched)
            .map(|(param, arg)| arg.map(|arg| self.argument(block, param, arg)).transpose())
            .collect();
        if failed { Err(Reported) } else { passed.into_iter().collect() }
    }

    fn unknown_argument(&mut self, block: &'a Block, name: &Ident) {
        let names: Vec<&str> = block.params.iter().map(|p| param_name(p).name.as_str()).collect();
        let message = format!("{} has no parameter {}", quote(&block.name.name), quote(&name.name));
        let help = match closest(&name.name, names.iter().copied()) {
            Some(near) => format!("did you mean `{near}`?"),
            None => format!("its parameters are {}", names.join(", ")),
        };
        let diagnostic = self.error("E0306", name.span, message).help(help);
        self.report(diagnostic);
    }

    fn too_many_arguments(&mut self, block: &'a Block, arg: &Arg) {
        let (name, n) = (&block.name.name, block.params.len());
        let diagnostic = self
            .error(
                "E0306",
                arg.span,
                format!("{} takes at most {n} {}", quote(name), plural(n, "argument", "arguments")),
            )
            .help(header(block));
        self.report(diagnostic);
    }

    fn argument(&mut self, block: &'a Block, param: &'a BlockParam, arg: &'a Arg) -> Checked<Passed> {
        if arg.size.is_some() || arg.into.is_some() || arg.renamed.is_some() {
            let diagnostic = self
                .error("E0306", arg.span, format!("this is not an argument of {}", quote(&block.name.name)))
                .help("blocks take `x`, `x over d` and `name = x`");
            return Err(self.report(diagnostic));
        }
        match param {
            BlockParam::Tensor { pattern, optional, name } => {
                let value = match self.none_variable(&arg.value) {
                    true => Value::None,
                    false => self.eval(&arg.value)?,
                };
                if matches!(value, Value::None) && !optional {
                    let diagnostic = self
                        .error("E0306", arg.span, format!("{} is not optional", quote(&name.name)))
                        .help(header(block));
                    return Err(self.report(diagnostic));
                }
                if matches!(value, Value::None) {
                    return Ok(Passed::Tensor { value, last: None, span: arg.value.span });
                }
                let tensor = self.tensor(value, arg.value.span)?;
                let last = self.bound_axis(block, pattern, arg, &tensor)?;
                Ok(Passed::Tensor { value: Value::Tensor(tensor), last, span: arg.value.span })
            }
            BlockParam::Const(constant) => {
                if !arg.over.is_empty() {
                    let message = format!("{} is a constant, it has no axes", quote(&constant.name.name));
                    let diagnostic = self.error("E0306", arg.span, message);
                    return Err(self.report(diagnostic));
                }
                let name = &constant.name.name;
                let help = || format!("{}; to take a tensor, `{name}` has to have axes: `{name}[..]`", header(block));
                self.const_value(&arg.value, Some(&help)).map(Passed::Const)
            }
        }
    }

    /// Is this the name of an optional tensor that was not passed?
    fn none_variable(&self, expr: &Expr) -> bool {
        bare_name(expr)
            .and_then(|name| self.frame().names.vars.get(&name.name))
            .is_some_and(|v| matches!(v.var, Var::Here { value: Value::None, .. }))
    }

    /// The axis that `x over a` gives to the pattern's last name.
    fn bound_axis(
        &mut self,
        block: &'a Block,
        pattern: &'a [PatternAxis],
        arg: &'a Arg,
        tensor: &Tensor,
    ) -> Checked<Option<Ax>> {
        let has_name = pattern.iter().any(|p| matches!(p, PatternAxis::Name(_)));
        match &arg.over[..] {
            [] => Ok(None),
            [OverAxis::Name(name)] if has_name => {
                let axis = self.need_axis(name)?;
                self.check_has(tensor, axis, name)?;
                Ok(Some(axis))
            }
            _ => {
                let diagnostic = self
                    .error(
                        "E0306",
                        arg.span,
                        format!("this argument of {} goes over one axis at most", quote(&block.name.name)),
                    )
                    .help(header(block));
                Err(self.report(diagnostic))
            }
        }
    }

    /// A constant, or an initialiser; `help` says what to do about a tensor.
    pub(super) fn const_value(&mut self, expr: &'a Expr, help: Help) -> Checked<ConstValue> {
        let init = match &expr.kind {
            ExprKind::Name(name) => {
                let entry = self.frame().names.consts.get(name);
                if let Some(ConstValue::Init(init)) = entry.and_then(|e| e.value.as_ref()) {
                    return Ok(ConstValue::Init(init.clone()));
                }
                let unbound = entry.is_none() && !self.frame().names.vars.contains_key(name);
                InitKind::named(name).filter(|_| unbound).map(|kind| (kind, &[][..]))
            }
            ExprKind::Call(call) if !self.blocks.contains_key(call.name.name.as_str()) => {
                InitKind::named(&call.name.name).map(|kind| (kind, &call.args[..]))
            }
            _ => None,
        };
        match init {
            Some(((kind, arity), args)) => {
                let args: Vec<&'a Expr> = args.iter().map(|a| &a.value).collect();
                self.initializer(kind, arity, &args, expr.span).map(ConstValue::Init)
            }
            None => self.eval_const_or(expr, help).map(ConstValue::Plain),
        }
    }

    /// An initialiser with its arguments.
    pub(super) fn initializer(
        &mut self,
        kind: InitKind,
        arity: usize,
        args: &[&'a Expr],
        span: Span,
    ) -> Checked<InitValue> {
        if args.len() != arity {
            let name = InitKind::NAMES.iter().find(|(_, k, _)| *k == kind).map_or("", |(name, _, _)| name);
            let message =
                format!("{} takes {arity} {}, not {}", quote(name), plural(arity, "argument", "arguments"), args.len());
            let diagnostic = self.error("E0306", span, message);
            return Err(self.report(diagnostic));
        }
        let args = args
            .iter()
            .map(|arg| {
                let constant = self.eval_const(arg)?;
                match super::constant::number(constant.value()) {
                    Some(x) if x.is_finite() => Ok(constant),
                    _ => {
                        let diagnostic = self.error("E0404", arg.span, "an initialiser takes finite numbers");
                        Err(self.report(diagnostic))
                    }
                }
            })
            .collect::<Checked<Vec<_>>>()?;
        let numbers: Vec<f64> = args.iter().filter_map(|arg| super::constant::number(arg.value())).collect();
        let wrong = match (kind, &numbers[..]) {
            (InitKind::Uniform, &[lo, hi]) if lo > hi => Some(format!("there is no number from {lo} to {hi}")),
            (InitKind::Normal | InitKind::TruncatedNormal, &[std]) if std < 0.0 => {
                Some(format!("a standard deviation of {std}"))
            }
            _ => None,
        };
        if let Some(message) = wrong {
            let diagnostic = self.error("E0404", span, message);
            return Err(self.report(diagnostic));
        }
        Ok(InitValue { kind, args })
    }

    /// The caller's constants for parameters without default that the call does not pass.
    fn punned(
        &mut self,
        block: &'a Block,
        passed: &[Option<Passed>],
        call: &'a Call,
    ) -> Checked<Vec<(&'a Ident, ConstEntry)>> {
        let mut punned = Vec::new();
        let mut missing = Vec::new();
        for (param, passed) in block.params.iter().zip(passed) {
            if passed.is_some() {
                continue;
            }
            match param {
                BlockParam::Const(ConstParam { name, default: None }) => {
                    match self.frame().names.consts.get(&name.name) {
                        Some(entry) => {
                            punned.push((name, ConstEntry { span: name.span, is_counter: false, ..entry.clone() }));
                        }
                        None => missing.push(name),
                    }
                }
                BlockParam::Tensor { name, optional: false, .. } => missing.push(name),
                BlockParam::Tensor { .. } | BlockParam::Const(_) => {}
            }
        }
        let Some(first) = missing.first() else { return Ok(punned) };
        let names: Vec<String> = missing.iter().map(|n| quote(&n.name)).collect();
        let message = format!("{} needs {}", quote(&block.name.name), names.join(", "));
        let hint = if self.frame().names.vars.contains_key(&first.name) { "pass it: " } else { "" };
        let diagnostic = self.error("E0306", call.name.span, message).help(format!("{hint}{}", header(block)));
        Err(self.report(diagnostic))
    }

    /// Binds the parameters in the new scope and runs the statements.
    fn run_block(
        &mut self,
        block: &'a Block,
        passed: Vec<Option<Passed>>,
        punned: Vec<(&'a Ident, ConstEntry)>,
    ) -> Checked<Value> {
        for (name, entry) in punned {
            self.frame_mut().define_const(&name.name, entry);
        }
        let mut bound = Vec::new();
        let mut first = true;
        let mut consts = Vec::new();
        for (param, passed) in block.params.iter().zip(passed) {
            match (param, passed) {
                (BlockParam::Tensor { name, pattern, .. }, passed) => {
                    let (value, last, span) = match passed {
                        Some(Passed::Tensor { value, last, span }) => (value, last, span),
                        _ => (Value::None, None, name.span),
                    };
                    self.bind_tensor(name, pattern, value, last, span, first, &mut bound)?;
                    first = false;
                }
                (BlockParam::Const(param), Some(Passed::Const(value))) => {
                    let entry = ConstEntry { value: Some(value), span: param.name.span, is_counter: false };
                    self.frame_mut().define_const(&param.name.name, entry);
                }
                (BlockParam::Const(param), _) => consts.push(param),
            }
        }
        let named = std::mem::take(&mut bound);
        self.frame_mut().rest.retain(|a| !named.contains(a));
        // Defaults come last: they may use the other constants and the sizes of axes.
        for ConstParam { name, default } in consts {
            let Some(default) = default else { continue };
            let value = self.const_value(default, None).ok();
            let entry = ConstEntry { value, span: name.span, is_counter: false };
            self.frame_mut().define_const(&name.name, entry);
        }
        self.run_body(&block.body);
        match self.frame_mut().returned.take() {
            Some(result) => result,
            None if self.halted => Err(Reported),
            None => {
                let diagnostic = self
                    .error("E0504", block.name.span, format!("the block {} returns nothing", quote(&block.name.name)))
                    .help("end it with `return x`");
                Err(self.report(diagnostic))
            }
        }
    }
}

pub(super) fn param_name(param: &BlockParam) -> &Ident {
    match param {
        BlockParam::Tensor { name, .. } => name,
        BlockParam::Const(constant) => &constant.name,
    }
}

impl<'a> Checker<'a> {
    /// Defines a variable of the scope without any questions.
    pub(super) fn set_var(&mut self, name: &str, value: Value, span: Span) {
        let graph = self.builder().number;
        let var = Var::Here { value, graph };
        self.frame_mut().names.vars.insert(name.to_string(), Variable { var, span });
    }
}

/// The block's header, for a suggestion.
fn header(block: &Block) -> String {
    let params: Vec<String> = block
        .params
        .iter()
        .map(|param| match param {
            BlockParam::Tensor { name, pattern, optional } => {
                let axes: Vec<&str> = pattern
                    .iter()
                    .map(|p| match p {
                        PatternAxis::Rest(_) => "..",
                        PatternAxis::Name(name) => name.name.as_str(),
                    })
                    .collect();
                format!("{}[{}]{}", name.name, axes.join(", "), if *optional { " = none" } else { "" })
            }
            BlockParam::Const(ConstParam { name, .. }) => name.name.clone(),
        })
        .collect();
    format!("it is declared `{}({})`", block.name.name, params.join(", "))
}
