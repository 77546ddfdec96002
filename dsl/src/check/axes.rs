//! Axes of the language: identities with a size, which scopes give names to.
//!
//! A scope maps names to identities, so a block can call the caller's axis `dh` its own `d`, and an axis hidden in `..` never
//! coincides with one of the block's. Each graph has its own table of the axes that it uses ([`super::build`]).

use super::Checker;
use super::constant::{Constant, show};
use super::value::{Checked, Tensor};
use crate::ast::{AxisDecl, Expr, ExprKind, Ident, OverAxis, Span};
use crate::diagnostics::{Diagnostic, SourceId, closest, quote};
use crate::model::Const;

/// An axis of the model: an index into the checker's table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct Ax(pub u32);

/// An entry of the table.
#[derive(Clone, Debug)]
pub(super) struct AxisInfo {
    /// The name it was made under.
    pub name: String,
    pub extent: Size,
    /// The constant its size was written with.
    pub label: Option<String>,
    /// Where it was made.
    pub source: SourceId,
    pub span: Span,
}

/// The length of an axis.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Size {
    Fixed(u64),
    Ragged { parent: Ax, bound: u64 },
}

/// The largest size of an axis, and of a tensor in elements: products of two sizes still fit into 64 bits.
pub(super) const MAX_ELEMENTS: u64 = 1 << 48;

impl<'a> Checker<'a> {
    pub(super) fn axis(&self, axis: Ax) -> &AxisInfo {
        &self.axes[axis.0 as usize]
    }

    /// The size; the bound of a ragged axis.
    pub(super) fn size(&self, axis: Ax) -> u64 {
        match self.axis(axis).extent {
            Size::Fixed(n) | Size::Ragged { bound: n, .. } => n,
        }
    }

    pub(super) fn ragged_parent(&self, axis: Ax) -> Option<Ax> {
        match self.axis(axis).extent {
            Size::Fixed(_) => None,
            Size::Ragged { parent, .. } => Some(parent),
        }
    }

    /// The ragged axis of a tensor, with its parent.
    pub(super) fn ragged(&self, axes: &[Ax]) -> Option<(Ax, Ax)> {
        axes.iter().find_map(|&a| self.ragged_parent(a).map(|parent| (parent, a)))
    }

    /// Makes an axis that no scope has a name for.
    pub(super) fn new_axis(&mut self, name: &str, extent: Size, label: Option<String>, span: Span) -> Ax {
        let source = self.source();
        self.axes.push(AxisInfo { name: name.to_string(), extent, label, source, span });
        Ax(self.axes.len() as u32 - 1)
    }

    /// The name of the axis in this scope, or the one it was made under.
    pub(super) fn axis_name(&self, axis: Ax) -> &str {
        self.axis_name_in(self.frames.len() - 1, axis)
    }

    /// The name of the axis in a scope.
    pub(super) fn axis_name_in(&self, frame: usize, axis: Ax) -> &str {
        let names = &self.frames[frame].names.axes;
        names.iter().find(|(_, a)| **a == axis).map_or(self.axis(axis).name.as_str(), |(name, _)| name)
    }

    /// `[t, d]`, for messages.
    pub(super) fn list(&self, axes: &[Ax]) -> String {
        let names: Vec<&str> = axes.iter().map(|&a| self.axis_name(a)).collect();
        format!("[{}]", names.join(", "))
    }

    /// `8 × 256 × 64`, for messages; of many the first few.
    pub(super) fn sizes(&self, axes: &[Ax]) -> String {
        const SHOWN: usize = 16;
        let sizes = axes.iter().take(SHOWN).map(|&a| self.size(a).to_string());
        let more = (axes.len() > SHOWN).then(|| "…".to_string());
        sizes.chain(more).collect::<Vec<_>>().join(" × ")
    }

    /// The product of sizes, ragged parents counted once.
    pub(super) fn numel(&self, axes: &[Ax]) -> Option<u64> {
        let parents: Vec<Ax> = axes.iter().filter_map(|&a| self.ragged_parent(a)).collect();
        let sizes = axes.iter().filter(|a| !parents.contains(a)).map(|&a| self.size(a));
        sizes.into_iter().try_fold(1u64, |n, size| n.checked_mul(size)).filter(|&n| n <= MAX_ELEMENTS)
    }

    /// The axis that a name stands for: one of this scope, or a new one from the constant of the same name.
    pub(super) fn find_axis(&mut self, name: &Ident) -> Checked<Option<Ax>> {
        if let Some(&axis) = self.frame().names.axes.get(&name.name) {
            return Ok(Some(axis));
        }
        let Some((constant, defined)) = self.size_constant(&name.name)? else {
            let is_poisoned = self.frame().names.poisoned_axes.contains(&name.name);
            return if is_poisoned { Err(super::Reported) } else { Ok(None) };
        };
        let size = match self.size_value(&constant, None) {
            Ok(size) => size,
            Err((message, help)) => {
                let value = format!("{} is {}", quote(&name.name), show(constant.value()));
                let mut diagnostic = self.error("E0403", name.span, message).secondary(defined, value);
                diagnostic.help = help.map(String::from);
                return Err(self.report(diagnostic));
            }
        };
        self.check_free_for_axis(name)?;
        let axis = self.new_axis(&name.name, Size::Fixed(size), Some(name.name.clone()), name.span);
        self.bind_axis(&name.name, axis);
        Ok(Some(axis))
    }

    /// The constant of this name and where it was defined, unless it is a counter.
    fn size_constant(&mut self, name: &str) -> Checked<Option<(Constant, Span)>> {
        let Some(entry) = self.frame().names.consts.get(name) else { return Ok(None) };
        if entry.is_counter {
            return Ok(None);
        }
        match &entry.value {
            None => Err(super::Reported),
            Some(super::value::ConstValue::Plain(c)) => Ok(Some((c.clone(), entry.span))),
            Some(super::value::ConstValue::Init(_)) => Ok(None),
        }
    }

    /// The axis that a name stands for, which must exist.
    pub(super) fn need_axis(&mut self, name: &Ident) -> Checked<Ax> {
        match self.find_axis(name)? {
            Some(axis) => Ok(axis),
            None => Err(self.unknown_axis(name)),
        }
    }

    fn unknown_axis(&mut self, name: &Ident) -> super::Reported {
        let names = &self.frame().names;
        let near = closest(&name.name, names.axes.keys().chain(names.consts.keys()).map(String::as_str));
        let quoted = quote(&name.name);
        let help = match near {
            Some(near) => format!("did you mean `{near}`?"),
            None if names.vars.contains_key(&name.name) => format!("{quoted} is a tensor, not an axis"),
            None => format!(
                "an axis comes from a constant of the same name, from `{}: size`, or by reading a tensor",
                name.name
            ),
        };
        let diagnostic = self.error("E0201", name.span, format!("there is no axis {quoted} here")).help(help);
        self.report(diagnostic)
    }

    /// The axis of a declaration: `d` or `e: experts`.
    pub(super) fn declared_axis(&mut self, decl: &'a AxisDecl) -> Checked<Ax> {
        let Some(size) = &decl.size else { return self.need_axis(&decl.name) };
        let constant = self.eval_const(size)?;
        let n = self.as_size(&constant, size.span, Some(size))?;
        self.sized_axis(&decl.name, n, label_of(size), size.span)
    }

    /// An axis that is written with its size: the one in scope if there is one, else a new one.
    pub(super) fn sized_axis(&mut self, name: &Ident, size: u64, label: Option<String>, at: Span) -> Checked<Ax> {
        if let Some(&axis) = self.frame().names.axes.get(&name.name) {
            self.check_size(axis, size, name, at)?;
            return Ok(axis);
        }
        self.check_free_for_axis(name)?;
        let axis = self.new_axis(&name.name, Size::Fixed(size), label, name.span.to(at));
        self.bind_axis(&name.name, axis);
        Ok(axis)
    }

    /// An axis whose size was found: the one in scope, one from the constant of the same name, or a new one.
    pub(super) fn found_axis(&mut self, name: &Ident, size: u64) -> Checked<Ax> {
        match self.find_axis(name)? {
            Some(axis) => self.check_size(axis, size, name, name.span).map(|()| axis),
            None => self.sized_axis(name, size, None, name.span),
        }
    }

    /// Complains when an axis does not have this size.
    pub(super) fn check_size(&mut self, axis: Ax, size: u64, name: &Ident, at: Span) -> Checked<()> {
        let info = self.axis(axis);
        match info.extent {
            Size::Fixed(n) if n == size => Ok(()),
            Size::Fixed(n) => {
                let place = match info.source == self.source() {
                    true => format!("at line {}", self.line(info.span)),
                    false => "elsewhere".to_string(),
                };
                let message = format!("axis {} has size {size} here but {n} {place}", quote(&name.name));
                let diagnostic = self.error("E0204", at, message).label(format!("this says {size}"));
                let diagnostic = self.point_at_axis(diagnostic, axis, format!("{n} comes from here"));
                Err(self.report(diagnostic))
            }
            Size::Ragged { .. } => {
                let message = format!("{} is a ragged axis; it has no size of its own", quote(&name.name));
                let diagnostic = self.error("E0215", at, message);
                Err(self.report(diagnostic))
            }
        }
    }

    /// Adds the place where an axis was made.
    pub(super) fn point_at_axis(&self, diagnostic: Diagnostic, axis: Ax, message: String) -> Diagnostic {
        let info = self.axis(axis);
        if info.source == diagnostic.source {
            diagnostic.secondary(info.span, message)
        } else {
            diagnostic.related(info.source, info.span, message)
        }
    }

    /// A tensor and an axis may not share a name.
    fn check_free_for_axis(&mut self, name: &Ident) -> Checked<()> {
        let Some(var) = self.frame().names.vars.get(&name.name) else { return Ok(()) };
        let span = var.span;
        let quoted = quote(&name.name);
        let diagnostic = self
            .error("E0302", name.span, format!("{quoted} is a tensor and cannot be the name of an axis as well"))
            .secondary(span, "the tensor");
        Err(self.report(diagnostic))
    }

    /// Gives an axis a name in this scope. Axes of a model's constants belong to the whole model, wherever they are used first.
    pub(super) fn bind_axis(&mut self, name: &str, axis: Ax) {
        let shadowed = self.frame().scopes[1..].iter().any(|scope| scope.contains(name));
        if self.frames.len() == 1 && self.constants.contains_key(name) && !shadowed {
            self.model_axes.insert(name.to_string(), axis);
        }
        let names = &mut self.frame_mut().names;
        names.poisoned_axes.remove(name);
        names.axes.insert(name.to_string(), axis);
    }

    /// The axes of an `over` list, which must be axes of `tensor`.
    pub(super) fn over_axes(&mut self, over: &'a [OverAxis], tensor: &Tensor, span: Span) -> Checked<Vec<Ax>> {
        let mut axes: Vec<Ax> = Vec::new();
        for entry in over {
            match entry {
                OverAxis::Rest(at) => {
                    let rest = self.first_rest(*at)?;
                    // An axis of `..` that the operand lacks is summed over nothing.
                    axes.extend(rest.into_iter().filter(|a| tensor.has(*a)));
                }
                OverAxis::Name(name) => {
                    let axis = self.need_axis(name)?;
                    self.check_has(tensor, axis, name)?;
                    if axes.contains(&axis) {
                        let diagnostic = self.error("E0208", name.span, format!("axis {} twice", quote(&name.name)));
                        return Err(self.report(diagnostic));
                    }
                    axes.push(axis);
                }
            }
        }
        if axes.is_empty() {
            let message = "there is no axis to go over";
            let diagnostic =
                self.error("E0202", span, message).help("name the axes: `over d`, `over a, b`, or `over ..`");
            return Err(self.report(diagnostic));
        }
        Ok(axes)
    }

    /// What `..` stands for outside of a definition.
    pub(super) fn first_rest(&mut self, at: Span) -> Checked<Vec<Ax>> {
        match &self.frame().first_rest {
            Some(rest) => Ok(rest.clone()),
            None => {
                let message = "`..` has no meaning here";
                let help =
                    "it stands for the axes before the named ones in the block's first tensor parameter, `x[.., d]`";
                let diagnostic = self.error("E0203", at, message).help(help);
                Err(self.report(diagnostic))
            }
        }
    }

    /// Complains when a tensor lacks an axis.
    pub(super) fn check_has(&mut self, tensor: &Tensor, axis: Ax, name: &Ident) -> Checked<()> {
        if tensor.has(axis) {
            return Ok(());
        }
        let mut diagnostic = self
            .error("E0202", name.span, format!("the operand has no axis {}", quote(&name.name)))
            .label(format!("its axes are {}", self.list(&tensor.axes)));
        diagnostic.help = self.hidden_help(&tensor.axes, axis, &name.name);
        Err(self.report(diagnostic))
    }

    /// What to do when a tensor has an axis of the right size that the scope has no name for: it is that of another block.
    pub(super) fn hidden_help(&self, have: &[Ax], wanted: Ax, name: &str) -> Option<String> {
        let frame = self.frame();
        let mut hidden =
            have.iter().filter(|a| !frame.rest.contains(a) && !frame.names.axes.values().any(|b| *b == **a));
        let axis = *hidden.find(|&&a| self.size(a) == self.size(wanted) && self.ragged_parent(a).is_none())?;
        let other = quote(&self.axis(axis).name);
        Some(format!("{other} is an axis of another block; name it by reading: `f(…)[.., {name}]`"))
    }

    /// A constant as a size: a positive integer. `written` is the expression it came from.
    pub(super) fn as_size(&mut self, constant: &Constant, span: Span, written: Option<&'a Expr>) -> Checked<u64> {
        self.size_value(constant, written).map_err(|(message, help)| {
            let mut diagnostic = self.error("E0403", span, message);
            diagnostic.help = help.map(String::from);
            self.report(diagnostic)
        })
    }

    /// A constant as a size, or why it is none and what to do.
    fn size_value(
        &mut self,
        constant: &Constant,
        written: Option<&'a Expr>,
    ) -> Result<u64, (String, Option<&'static str>)> {
        match self.used(constant) {
            Const::Int(n) if n > 0 && n as u64 <= MAX_ELEMENTS => Ok(n as u64),
            Const::Int(n) if n > 0 => Err((format!("{n} is too large for a size"), None)),
            Const::Int(n) => Err((format!("a size must be at least 1, this is {n}"), None)),
            Const::Float(x) => Err(match written.and_then(|e| self.inexact_division(e)) {
                Some((a, b)) => (format!("{a} is not divisible by {b}"), None),
                None => (
                    format!("a size must be an integer, this is {x:?}"),
                    Some("`floor`, `ceil` and `round` give integers"),
                ),
            }),
            other => Err((format!("a size must be an integer, this is {}", show(&other)), None)),
        }
    }

    /// The operands of `a / b` when both are integers.
    fn inexact_division(&mut self, written: &'a Expr) -> Option<(i64, i64)> {
        match &written.kind {
            ExprKind::Paren(inner) => self.inexact_division(inner),
            ExprKind::Binary(crate::ast::BinaryOp::Div, a, b) => {
                let (a, b) = (self.eval_const(a).ok()?, self.eval_const(b).ok()?);
                match (self.used(&a), self.used(&b)) {
                    (Const::Int(a), Const::Int(b)) => Some((a, b)),
                    _ => None,
                }
            }
            _ => None,
        }
    }
}

/// The constant that a size was written with.
pub(super) fn label_of(size: &Expr) -> Option<String> {
    match &size.kind {
        ExprKind::Name(name) => Some(name.clone()),
        _ => None,
    }
}
