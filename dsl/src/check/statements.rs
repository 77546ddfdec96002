//! Statements, apart from losses and what runs after a step ([`super::losses`]) and top-level repeats ([`super::layers`]).

use super::Checker;
use super::axes::Ax;
use super::constant::{Constant, show};
use super::reading::plural;
use super::value::{
    Checked, ConstEntry, ConstValue, DataInput, Declared, InitKind, InitValue, Outside, Reported, Tensor, Value, Var,
    Variable,
};
use crate::ast::{Body, Expr, Ident, Initializer, InputDecl, Span, Statement, StatementKind, Target, TensorDecl};
use crate::diagnostics::quote;
use crate::model::Const;
use rustc_hash::FxHashSet;

/// The names that inputs can have: they say what the data loader puts there.
const INPUTS: [&str; 4] = ["tokens", "labels", "positions", "documents"];

impl<'a> Checker<'a> {
    /// The statements of a body, in the scope that is open.
    pub(super) fn run_body(&mut self, body: &'a Body) {
        for statement in &body.statements {
            if self.halted {
                return;
            }
            if self.frame().returned.is_some() {
                let diagnostic = self
                    .error("E0504", statement.span, "this is never reached")
                    .help("`return` is the last statement of a block");
                self.report(diagnostic);
                return;
            }
            // What went wrong was reported; the next statement is looked at all the same.
            if self.deeper(statement.span, |cx| cx.statement(statement)).is_err() {
                self.poison_axes(statement);
            }
        }
    }

    fn statement(&mut self, statement: &'a Statement) -> Checked<()> {
        let span = statement.span;
        match &statement.kind {
            StatementKind::Input(decls) => return all(decls, |d| self.input(d)),
            StatementKind::Const { name, value } => return self.const_statement(name, value),
            StatementKind::Param(decls) => return all(decls, |d| self.declare(d, TensorKind::Param)),
            StatementKind::State(decls) => return all(decls, |d| self.declare(d, TensorKind::State)),
            StatementKind::Stat { target, value } => return self.stat(target, value),
            StatementKind::Update { name, value } => return self.update_statement(name, value),
            StatementKind::Define { targets, value } => return self.define_statement(targets, value),
            StatementKind::Loss { name, value, per, weight, scope } => {
                return self.loss(super::losses::Written {
                    name,
                    value,
                    per: per.as_ref(),
                    weight: weight.as_ref(),
                    scope: scope.as_ref(),
                });
            }
            StatementKind::Output(names) => return all(names, |n| self.output(n)),
            StatementKind::Repeat { counter, count, body } => return self.repeat(counter.as_ref(), count, body, span),
            StatementKind::If { branches, otherwise } => {
                for (condition, body) in branches {
                    if self.eval_condition(condition)? {
                        // A branch opens no scope: what it defines stays defined.
                        self.run_body(body);
                        return Ok(());
                    }
                }
                if let Some(body) = otherwise {
                    self.run_body(body);
                }
            }
            StatementKind::Return(values) => return self.return_statement(values, span),
            StatementKind::Error => {}
        }
        Ok(())
    }

    fn input(&mut self, decl: &'a InputDecl) -> Checked<()> {
        let name = &decl.name;
        if self.frames.len() > 1 || self.in_layer {
            let place = if self.in_layer { "in a repeat" } else { "in a block" };
            let diagnostic = self
                .error("E0502", decl.span, format!("an input is declared {place}"))
                .help("inputs belong to the model");
            return Err(self.report(diagnostic));
        }
        let bind = |cx: &mut Self, var| {
            cx.frame_mut().names.vars.insert(name.name.clone(), Variable { var, span: name.span });
        };
        if !INPUTS.contains(&name.name.as_str()) {
            bind(self, Var::Poisoned);
            let mut diagnostic = self.error("E0503", name.span, format!("there is no input {}", quote(&name.name)));
            diagnostic.help = Some(match crate::diagnostics::closest(&name.name, INPUTS) {
                Some(near) => format!("did you mean `{near}`?"),
                None => format!("inputs are {}", INPUTS.join(", ")),
            });
            return Err(self.report(diagnostic));
        }
        self.new_tensor_name(name)?;
        if decl.kind.name != "token" {
            let diagnostic = self
                .error("E0503", decl.kind.span, format!("there is no element kind {}", quote(&decl.kind.name)))
                .help(format!("inputs are integers: `{}: token[batch, seq]`", name.name));
            self.report(diagnostic);
        }
        let axes: Checked<Vec<Ax>> =
            decl.axes.iter().map(|a| self.declared_axis(a)).collect::<Vec<_>>().into_iter().collect();
        let Ok(axes) = axes else {
            bind(self, Var::Poisoned);
            return Err(Reported);
        };
        let names: Vec<&str> = decl.axes.iter().map(|a| a.name.name.as_str()).collect();
        let sizes: Vec<u64> = axes.iter().map(|&a| self.size(a)).collect();
        if names != ["batch", "seq"] || sizes != [self.batch, self.seq] {
            bind(self, Var::Poisoned);
            let diagnostic = self
                .error(
                    "E0503",
                    decl.span,
                    format!("the input {} does not have the axes [batch, seq]", quote(&name.name)),
                )
                .help(format!("write `{}: token[batch, seq]`", name.name));
            return Err(self.report(diagnostic));
        }
        self.batch_axis = Some(axes[0]);
        // The inputs are to the model what the first tensor parameter is to a block.
        self.frame_mut().rest.clone_from(&axes);
        self.frame_mut().first_rest = Some(axes.clone());
        bind(self, Var::Outside(Outside::Data(self.inputs.len())));
        self.inputs.push(DataInput { name: name.clone(), axes });
        Ok(())
    }

    pub(super) fn declared_twice(&mut self, name: &Ident) -> Reported {
        let diagnostic = self.error("E0303", name.span, format!("{} is declared twice", quote(&name.name)));
        self.report(diagnostic)
    }

    fn const_statement(&mut self, name: &'a Ident, value: &'a Expr) -> Checked<()> {
        let names = &self.frame().names;
        if let Some(variable) = names.vars.get(&name.name) {
            let span = variable.span;
            let diagnostic = self
                .error("E0302", name.span, format!("{} is a tensor already", quote(&name.name)))
                .secondary(span, "defined here");
            return Err(self.report(diagnostic));
        }
        if self.frame().scopes.last().is_some_and(|scope| scope.contains(&name.name))
            && let Some(entry) = names.consts.get(&name.name)
        {
            let span = entry.span;
            let diagnostic = self
                .error("E0303", name.span, format!("the constant {} is defined twice", quote(&name.name)))
                .secondary(span, "the first definition")
                .help("a constant keeps its value; give this one another name");
            return Err(self.report(diagnostic));
        }
        if self.refuse_builtin(name) {
            return Err(Reported);
        }
        let value = self.const_value(value, None);
        let entry = ConstEntry { value: value.as_ref().ok().cloned(), span: name.span, is_counter: false };
        self.frame_mut().define_const(&name.name, entry);
        value.map(drop)
    }

    /// Built-in names cannot be given another meaning.
    pub(super) fn refuse_builtin(&mut self, name: &Ident) -> bool {
        if !crate::parse::is_builtin(&name.name) && name.name != "training" {
            return false;
        }
        let diagnostic = self
            .error("E0302", name.span, format!("{} is built in and cannot be defined", quote(&name.name)))
            .help("choose another name");
        self.report(diagnostic);
        true
    }

    /// `param w[d, f] = normal(0.02)` or `state b[e]`.
    fn declare(&mut self, decl: &'a TensorDecl, kind: TensorKind) -> Checked<()> {
        let axes: Checked<Vec<Ax>> =
            decl.axes.iter().map(|a| self.declared_axis(a)).collect::<Vec<_>>().into_iter().collect();
        let init = match &decl.init {
            Some(init) => self.written_init(init),
            None if kind == TensorKind::State => Ok(InitValue { kind: InitKind::Zeros, args: vec![] }),
            None => {
                let args = vec![Constant::fixed(Const::Float(0.02))];
                Ok(InitValue { kind: InitKind::Normal, args })
            }
        };
        let (axes, init) = match (axes, init) {
            (Ok(axes), Ok(init)) => (axes, init),
            _ => return self.poison(&decl.name),
        };
        self.storable(&axes, &decl.name, decl.span)?;
        self.new_tensor_name(&decl.name)?;
        let declared = self.new_declared(&decl.name, axes, init)?;
        let outside = match kind {
            TensorKind::Param => {
                self.params.push(declared);
                Outside::Param(self.params.len() - 1)
            }
            TensorKind::State => {
                self.states.push(declared);
                Outside::State(self.states.len() - 1)
            }
        };
        let variable = Variable { var: Var::Outside(outside), span: decl.name.span };
        self.frame_mut().names.vars.insert(decl.name.name.clone(), variable);
        Ok(())
    }

    /// A declaration went wrong: uses of the name are not complained about.
    fn poison(&mut self, name: &Ident) -> Checked<()> {
        let variable = Variable { var: Var::Poisoned, span: name.span };
        self.frame_mut().names.vars.insert(name.name.clone(), variable);
        Err(Reported)
    }

    /// What is kept has a fixed size that can be counted, and no axis twice.
    pub(super) fn storable(&mut self, axes: &[Ax], name: &Ident, span: Span) -> Checked<()> {
        let mut seen = FxHashSet::default();
        let diagnostic = if let Some(&axis) = axes.iter().find(|axis| !seen.insert(**axis)) {
            let message = format!("{} has the axis {} twice", quote(&name.name), quote(self.axis_name(axis)));
            self.error("E0208", span, message).help("give one of them another name with its size: `d2: d`")
        } else if self.ragged(axes).is_some() {
            self.error("E0215", span, format!("{} has a ragged axis", quote(&name.name)))
        } else if self.numel(axes).is_none() {
            let message = format!("{} has too many elements", quote(&name.name));
            self.error("E0405", span, message).label(self.sizes(axes))
        } else {
            return Ok(());
        };
        let reported = self.report(diagnostic);
        self.poison(name).and(Err(reported))
    }

    /// A new tensor that lives longer than a step, under a path that is not taken.
    pub(super) fn new_declared(&mut self, name: &Ident, axes: Vec<Ax>, init: InitValue) -> Checked<Declared> {
        let path = format!("{}{}", self.frame().path, name.name);
        if !self.frame_mut().declared.insert(path.clone()) {
            return Err(self.declared_twice(name));
        }
        let layer = self.layer_name.clone();
        Ok(Declared { path, layer, axes, init, source: self.source(), span: name.span })
    }

    fn written_init(&mut self, init: &'a Initializer) -> Checked<InitValue> {
        let name = &init.name.name;
        if init.args.is_empty()
            && let Some(entry) = self.frame().names.consts.get(name)
        {
            match entry.value.clone() {
                Some(ConstValue::Init(value)) => return Ok(value),
                None => return Err(Reported),
                Some(ConstValue::Plain(_)) => {}
            }
        }
        let Some((kind, arity)) = InitKind::named(name) else {
            let names: Vec<&str> = InitKind::NAMES.iter().map(|(n, _, _)| *n).collect();
            let help = match crate::diagnostics::closest(name, names.iter().copied()) {
                Some(near) => format!("did you mean `{near}`?"),
                None => format!("initialisers are {}", names.join(", ")),
            };
            let diagnostic =
                self.error("E0301", init.name.span, format!("there is no initialiser {}", quote(name))).help(help);
            return Err(self.report(diagnostic));
        };
        let args: Vec<&'a Expr> = init.args.iter().collect();
        self.initializer(kind, arity, &args, init.span)
    }

    /// Complains when a declaration cannot have this name: declarations, unlike definitions, do not take a name over.
    pub(super) fn new_tensor_name(&mut self, name: &Ident) -> Checked<()> {
        self.free_for_tensor(name)?;
        let Some(variable) = self.frame().names.vars.get(&name.name) else { return Ok(()) };
        let span = variable.span;
        let diagnostic = self
            .error("E0303", name.span, format!("{} is defined already", quote(&name.name)))
            .secondary(span, "the first definition");
        Err(self.report(diagnostic))
    }

    /// Complains when a tensor cannot have this name.
    pub(super) fn free_for_tensor(&mut self, name: &Ident) -> Checked<()> {
        if self.refuse_builtin(name) {
            return Err(Reported);
        }
        let names = &self.frame().names;
        if let Some(entry) = names.consts.get(&name.name) {
            let span = entry.span;
            let diagnostic = self
                .error("E0302", name.span, format!("{} is a constant already", quote(&name.name)))
                .secondary(span, "defined here");
            return Err(self.report(diagnostic));
        }
        if let Some(&axis) = names.axes.get(&name.name) {
            let message = format!("{} is an axis and cannot be the name of a tensor as well", quote(&name.name));
            let diagnostic = self.error("E0302", name.span, message);
            let diagnostic = self.point_at_axis(diagnostic, axis, "the axis".into());
            return Err(self.report(diagnostic));
        }
        Ok(())
    }

    fn define_statement(&mut self, targets: &'a [Target], value: &'a Expr) -> Checked<()> {
        let result = match targets {
            [Target { name: _, axes: Some(axes), span }] => self.define(value, axes, *span).map(Value::Tensor),
            _ => self.eval(value),
        };
        let values = result.and_then(|results| self.spread_results(results, targets, value.span));
        let Ok(values) = values else {
            for target in targets {
                if self.free_for_tensor(&target.name).is_ok() {
                    let _: Checked<()> = self.poison(&target.name);
                }
            }
            return Err(Reported);
        };
        for (target, value) in targets.iter().zip(values) {
            let value = match (&target.axes, targets.len()) {
                (Some(axes), 2..) => self.define_value(value, axes, target.span).map(Value::Tensor),
                _ => Ok(value),
            };
            // Other targets are defined even if one of them is wrong.
            let _: Checked<()> = value.and_then(|v| self.bind(target, v)).or_else(|Reported| {
                if self.free_for_tensor(&target.name).is_ok() { self.poison(&target.name) } else { Err(Reported) }
            });
        }
        Ok(())
    }

    /// As many values as targets.
    fn spread_results(&mut self, value: Value, targets: &'a [Target], span: Span) -> Checked<Vec<Value>> {
        match value {
            Value::Several(values) if values.len() == targets.len() => Ok(values),
            Value::Several(values) => {
                let message =
                    format!("{} values for {} {}", values.len(), targets.len(), plural(targets.len(), "name", "names"));
                let diagnostic = self.error("E0308", span, message);
                Err(self.report(diagnostic))
            }
            value if targets.len() == 1 => Ok(vec![value]),
            _ => {
                let message = format!("one value for {} names", targets.len());
                let diagnostic = self
                    .error("E0308", span, message)
                    .help("only a call of a block that returns several values has more than one");
                Err(self.report(diagnostic))
            }
        }
    }

    /// Gives a variable its value.
    fn bind(&mut self, target: &'a Target, value: Value) -> Checked<()> {
        let name = &target.name;
        self.free_for_tensor(name)?;
        let value = match value {
            Value::Const(constant) => {
                let diagnostic = self
                    .error("E0402", name.span, format!("{} is a constant", quote(&name.name)))
                    .label(format!("its value is {}", show(constant.value())))
                    .help(format!("write `const {} = …`", name.name));
                return Err(self.report(diagnostic));
            }
            Value::Several(_) | Value::None => self.plain(value, target.span)?,
            Value::Tensor(_) | Value::Rows(_) => value,
        };
        if let Value::Tensor(tensor) = &value {
            self.name_tensor(tensor, &name.name);
        }
        self.set_var(&name.name, value, name.span);
        Ok(())
    }

    /// The node takes the variable's name.
    pub(super) fn name_tensor(&mut self, tensor: &Tensor, name: &str) {
        let text = format!("{}{name}", self.frame().path);
        self.builder().name_from_source(tensor.node, text);
    }

    fn output(&mut self, name: &'a Ident) -> Checked<()> {
        if self.frames.len() > 1 || self.in_layer {
            let diagnostic = self
                .error("E0502", name.span, "`output` belongs to the end of the model")
                .help("return the tensor from the block, and name it in the model");
            return Err(self.report(diagnostic));
        }
        let value = self.name(&name.name, name.span)?;
        let tensor = self.tensor(value, name.span)?;
        if self.ragged(&tensor.axes).is_some() {
            let diagnostic = self.error("E0215", name.span, "a tensor in group order cannot be an output");
            return Err(self.report(diagnostic));
        }
        if self.builder().outputs.insert(name.name.clone(), tensor.node).is_some() {
            return Err(self.declared_twice(name));
        }
        Ok(())
    }

    fn return_statement(&mut self, values: &'a [Expr], span: Span) -> Checked<()> {
        if self.frames.len() == 1 || self.frame().scopes.len() > 1 {
            let place = if self.frames.len() == 1 { "a model" } else { "a repeat" };
            let mut diagnostic = self.error("E0504", span, format!("{place} cannot return"));
            if self.frames.len() == 1 {
                diagnostic = diagnostic.help("`output logits` names what evaluation reads");
            }
            return Err(self.report(diagnostic));
        }
        let results: Vec<Checked<Value>> = values
            .iter()
            .map(|value| {
                let result = self.eval(value)?;
                match result {
                    Value::Several(_) => self.plain(result, value.span),
                    other => Ok(other),
                }
            })
            .collect();
        let results: Checked<Vec<Value>> = results.into_iter().collect();
        let result =
            results.map(|mut results| if results.len() == 1 { results.remove(0) } else { Value::Several(results) });
        self.frame_mut().returned = Some(result);
        Ok(())
    }
}

/// What kind of tensor is declared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum TensorKind {
    Param,
    State,
}

/// Does something with every entry of a list, whether others went wrong or not.
fn all<'a, T>(list: &'a [T], run: impl FnMut(&'a T) -> Checked<()>) -> Checked<()> {
    let results: Vec<Checked<()>> = list.iter().map(run).collect();
    results.into_iter().collect()
}
