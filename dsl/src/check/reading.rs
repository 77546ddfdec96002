//! Reading by position: `T[i, (a, b), s: 1..n, tokens, 0]`.
//!
//! First every position is understood, then elements are taken, slices, splits and renames applied, and gathers last, so that an index
//! tensor lines up with the names that this reading gives.

use super::Checker;
use super::axes::{Ax, Size};
use super::expressions::bare_name;
use super::value::{Checked, Reported, Tensor, Value};
use crate::ast::{AxisDecl, Expr, Ident, Index, Span};
use crate::diagnostics::{Diagnostic, closest, quote};
use crate::model::Const;
use forebay_ir::{DType, Op};

/// What a position does with its axis.
enum Action {
    Call(Ax),
    Take(u64),
    Slice { start: u64, into: Ax },
    Split(Vec<Ax>),
    Gather(Tensor, Span),
}

impl<'a> Checker<'a> {
    /// Reads a tensor under new names.
    pub(super) fn read(&mut self, tensor: Tensor, indices: &'a [Index], span: Span) -> Checked<Tensor> {
        let positions = self.positions(&tensor, indices, span)?;
        let mut actions = Vec::new();
        let mut failed = false;
        for (axis, index) in positions {
            match self.action(&tensor, axis, index) {
                Ok(action) => actions.push((axis, action, index_span(index))),
                Err(Reported) => failed = true,
            }
        }
        if failed {
            return Err(Reported);
        }
        self.no_axis_twice(&tensor, &actions)?;
        self.perform(tensor, actions, span)
    }

    /// Which index belongs to which axis; `..` takes the axes that are not written.
    fn positions(&mut self, tensor: &Tensor, indices: &'a [Index], span: Span) -> Checked<Vec<(Ax, &'a Index)>> {
        let rest = indices.iter().position(|i| matches!(i, Index::Rest(_)));
        let written = indices.len() - usize::from(rest.is_some());
        let rank = tensor.axes.len();
        if written > rank || (rest.is_none() && written < rank) {
            let message =
                format!("{written} {} read, but the tensor has {rank}", plural(written, "axis is", "axes are"));
            let mut diagnostic =
                self.error("E0203", span, message).label(format!("its axes are {}", self.list(&tensor.axes)));
            if written < rank {
                diagnostic = diagnostic.help("`..` stands for the axes that are not written");
            }
            return Err(self.report(diagnostic));
        }
        let before = rest.unwrap_or(indices.len());
        let head = tensor.axes.iter().copied().zip(&indices[..before]);
        let after = indices.len().saturating_sub(before + 1);
        let tail = tensor.axes[rank - after..].iter().copied().zip(&indices[indices.len() - after..]);
        Ok(head.chain(tail).collect())
    }

    fn action(&mut self, tensor: &Tensor, axis: Ax, index: &'a Index) -> Checked<Action> {
        let size = self.size(axis);
        if self.is_grouped(tensor, axis) {
            return match index {
                Index::Expr(expr) if self.names_axis(expr, axis) => Ok(Action::Call(axis)),
                _ => Err(self.grouped_axis(axis, index_span(index))),
            };
        }
        match index {
            Index::Expr(expr) => self.element_or_name(axis, size, expr),
            Index::Slice { name, from, to } => self.slice(size, name, from, to),
            Index::Split { parts, span } => self.split(size, parts, *span).map(Action::Split),
            Index::SplitRest(span) => {
                let rest = self.first_rest(*span)?;
                self.check_product(&rest, size, *span)?;
                Ok(Action::Split(rest))
            }
            // The parser lets these stand in definitions only.
            Index::Rest(_) | Index::Merge { .. } | Index::MergeRest { .. } => Err(Reported),
        }
    }

    /// Is the axis ragged, or the parent of the tensor's ragged axis?
    fn is_grouped(&self, tensor: &Tensor, axis: Ax) -> bool {
        self.ragged(&tensor.axes).is_some_and(|(parent, ragged)| axis == parent || axis == ragged)
    }

    fn names_axis(&self, expr: &Expr, axis: Ax) -> bool {
        bare_name(expr).is_some_and(|name| self.frame().names.axes.get(&name.name) == Some(&axis))
    }

    fn grouped_axis(&mut self, axis: Ax, span: Span) -> Reported {
        let message =
            format!("{} belongs to a group and can only be read under its own name", quote(self.axis_name(axis)));
        let diagnostic = self.error("E0215", span, message).help("bring the values back with `at` first");
        self.report(diagnostic)
    }

    /// `u`, `0`, `n - 1`, `tokens`.
    fn element_or_name(&mut self, axis: Ax, size: u64, expr: &'a Expr) -> Checked<Action> {
        if let Some(name) = bare_name(expr) {
            let names = &self.frame().names;
            let is_counter = names.consts.get(&name.name).is_some_and(|c| c.is_counter);
            if !names.vars.contains_key(&name.name) && !is_counter {
                return self.called(axis, size, &name).map(Action::Call);
            }
        }
        let value = self.eval(expr)?;
        match self.plain(value, expr.span)? {
            Value::Const(constant) => match self.used(&constant) {
                Const::Int(n) if n >= 0 && (n as u64) < size => Ok(Action::Take(n as u64)),
                Const::Int(n) => {
                    let message = format!("there is no element {n} in an axis of size {size}");
                    let diagnostic = self
                        .error("E0210", expr.span, message)
                        .help(format!("elements are counted from 0 to {}", size - 1));
                    Err(self.report(diagnostic))
                }
                other => {
                    let message = format!("an index is an integer, not {}", super::constant::kind(&other));
                    let diagnostic = self.error("E0210", expr.span, message);
                    Err(self.report(diagnostic))
                }
            },
            Value::Tensor(tensor) if tensor.dtype == DType::I32 => Ok(Action::Gather(tensor, expr.span)),
            Value::Tensor(tensor) => {
                let message = format!("an index tensor holds integers, this one {}", dtype_words(tensor.dtype));
                let diagnostic = self.error("E0210", expr.span, message);
                Err(self.report(diagnostic))
            }
            Value::None | Value::Rows(_) | Value::Several(_) => Err(Reported),
        }
    }

    /// The axis that a position is called. A hidden axis without a name in this scope just gets one; an axis that has one, or that
    /// belongs to `..`, becomes another.
    fn called(&mut self, axis: Ax, size: u64, name: &Ident) -> Checked<Ax> {
        if self.find_axis(name)?.is_some() {
            return self.found_axis(name, size);
        }
        let frame = self.frame();
        let is_hidden = !frame.rest.contains(&axis) && !frame.names.axes.values().any(|&a| a == axis);
        if is_hidden {
            self.bind_axis(&name.name, axis);
            return Ok(axis);
        }
        self.suspect(name);
        self.found_axis(name, size)
    }

    /// Remembers a name that becomes an axis here and was perhaps meant to be a tensor.
    fn suspect(&mut self, name: &Ident) {
        let tensors = self.frame().names.vars.keys().map(String::as_str);
        let Some(near) = closest(&name.name, tensors) else { return };
        let (message, help) =
            (format!("{} became a new axis here", quote(&name.name)), format!("did you mean the tensor `{near}`?"));
        let source = self.source();
        if self.warned.insert((source, name.span)) {
            self.suspects.push(Diagnostic::warning("W0603", source, name.span, message).help(help));
        }
    }

    fn slice(&mut self, size: u64, name: &Ident, from: &'a Expr, to: &'a Expr) -> Checked<Action> {
        let (start, end) = (self.bound(from), self.bound(to));
        let (start, end) = (start?, end?);
        if start >= end || end > size {
            let message = format!("elements {start} to {end} of an axis of size {size}");
            let diagnostic = self
                .error("E0211", from.span.to(to.span), message)
                .help("a slice `s: a..b` has the elements a, a + 1, … up to b - 1, at least one of them");
            return Err(self.report(diagnostic));
        }
        let into = self.found_axis(name, end - start)?;
        Ok(Action::Slice { start, into })
    }

    fn bound(&mut self, expr: &'a Expr) -> Checked<u64> {
        let constant = self.eval_const(expr)?;
        match self.used(&constant) {
            Const::Int(n) if n >= 0 => Ok(n as u64),
            other => {
                let message =
                    format!("a bound of a slice is an integer from 0 on, not {}", super::constant::show(&other));
                let diagnostic = self.error("E0211", expr.span, message);
                Err(self.report(diagnostic))
            }
        }
    }

    /// The axes of `(i, two: 2)`; one size may be left out.
    fn split(&mut self, size: u64, parts: &'a [AxisDecl], span: Span) -> Checked<Vec<Ax>> {
        let mut known: Vec<Option<Ax>> = Vec::new();
        for part in parts {
            let axis = if part.size.is_some() { Some(self.declared_axis(part)?) } else { self.find_axis(&part.name)? };
            known.push(axis);
        }
        let open: Vec<usize> = (0..parts.len()).filter(|&i| known[i].is_none()).collect();
        let axes: Vec<Ax> = known.iter().copied().flatten().collect();
        match open[..] {
            [] => {}
            [open] => {
                let product = self.numel(&axes).unwrap_or(0);
                if product == 0 || !size.is_multiple_of(product) {
                    return Err(self.bad_split(&axes, size, span));
                }
                let name = &parts[open].name;
                known[open] = Some(self.sized_axis(name, size / product, None, name.span)?);
            }
            [_, second, ..] => {
                let diagnostic = self
                    .error("E0212", parts[second].name.span, "the sizes of two parts are unknown")
                    .help(format!("give one of them: `{}: …`", parts[second].name.name));
                return Err(self.report(diagnostic));
            }
        }
        let axes: Vec<Ax> = known.into_iter().flatten().collect();
        self.check_product(&axes, size, span)?;
        Ok(axes)
    }

    /// Complains when the sizes of the axes do not multiply to `size`.
    pub(super) fn check_product(&mut self, axes: &[Ax], size: u64, span: Span) -> Checked<()> {
        if self.numel(axes) == Some(size) && self.ragged(axes).is_none() {
            return Ok(());
        }
        Err(self.bad_split(axes, size, span))
    }

    fn bad_split(&mut self, axes: &[Ax], size: u64, span: Span) -> Reported {
        let product: Vec<String> = axes.iter().map(|&a| format!("{} {}", self.axis_name(a), self.size(a))).collect();
        let message = format!("an axis of size {size} does not split into {}", product.join(" × "));
        let diagnostic = self.error("E0212", span, message);
        self.report(diagnostic)
    }

    /// Complains when the result would have an axis twice.
    fn no_axis_twice(&mut self, tensor: &Tensor, actions: &[(Ax, Action, Span)]) -> Checked<()> {
        let touched = |axis: Ax| actions.iter().any(|(a, _, _)| *a == axis);
        let mut seen: Vec<Ax> = tensor.axes.iter().copied().filter(|&a| !touched(a)).collect();
        for (_, action, span) in actions {
            let results: &[Ax] = match action {
                Action::Call(axis) | Action::Slice { into: axis, .. } => std::slice::from_ref(axis),
                Action::Split(parts) => parts,
                Action::Take(_) | Action::Gather(..) => &[],
            };
            for &axis in results {
                if seen.contains(&axis) {
                    let message = format!("the result would have the axis {} twice", quote(self.axis_name(axis)));
                    let diagnostic = self.error("E0208", *span, message).help("read one of them under another name");
                    return Err(self.report(diagnostic));
                }
                seen.push(axis);
            }
        }
        Ok(())
    }

    fn perform(&mut self, mut tensor: Tensor, actions: Vec<(Ax, Action, Span)>, span: Span) -> Checked<Tensor> {
        let mut renames: Vec<(Ax, Ax)> = Vec::new();
        let mut later: Vec<(Ax, Vec<Ax>)> = Vec::new();
        let mut gathers = Vec::new();
        for (axis, action, at) in actions {
            let from = self.axis_id(axis);
            match action {
                Action::Take(index) => tensor = self.emit(Op::Take { axis: from, index }, &[&tensor], at)?,
                Action::Slice { start, into } if start == 0 && self.size(into) == self.size(axis) => {
                    renames.push((axis, into));
                }
                Action::Slice { start, into } => {
                    // `into` may still be the name of another axis of the tensor; then the slice gets one of its own first.
                    let part = if tensor.has(into) { self.twin(into, at) } else { into };
                    let op = Op::Slice { from, into: self.axis_id(part), start };
                    tensor = self.emit(op, &[&tensor], at)?;
                    renames.push((part, into));
                }
                Action::Split(parts) => later.push((axis, parts)),
                Action::Call(name) => renames.push((axis, name)),
                Action::Gather(index, at) => gathers.push((axis, index, at)),
            }
        }
        tensor = self.rename_all(tensor, renames, span)?;
        for (axis, parts) in later {
            let op = Op::Split { from: self.axis_id(axis), into: self.axis_ids(&parts) };
            tensor = self.emit(op, &[&tensor], span)?;
        }
        for (axis, index, at) in gathers {
            tensor = self.gather(&tensor, axis, &index, at)?;
        }
        Ok(tensor)
    }

    /// A new axis of the same size and name.
    fn twin(&mut self, axis: Ax, span: Span) -> Ax {
        let (name, size) = (self.axis(axis).name.clone(), self.size(axis));
        self.new_axis(&name, Size::Fixed(size), None, span)
    }

    /// Renames axes all at once: `x[b, a]` of `x[a, b]` swaps the names.
    pub(super) fn rename_all(&mut self, mut tensor: Tensor, mut renames: Vec<(Ax, Ax)>, span: Span) -> Checked<Tensor> {
        renames.retain(|(from, to)| from != to);
        while !renames.is_empty() {
            let free = renames.iter().position(|&(_, to)| !tensor.has(to));
            let (from, to) = renames.remove(free.unwrap_or(0));
            let to = if tensor.has(to) {
                let twin = self.twin(to, span);
                renames.push((twin, to));
                twin
            } else {
                to
            };
            let op = Op::Rename { from: self.axis_id(from), to: self.axis_id(to) };
            tensor = self.emit(op, &[&tensor], span)?;
        }
        Ok(tensor)
    }

    /// Looks elements of an axis up.
    pub(super) fn gather(&mut self, tensor: &Tensor, axis: Ax, index: &Tensor, span: Span) -> Checked<Tensor> {
        if index.has(axis) {
            let name = self.axis_name(axis).to_string();
            let diagnostic = self
                .error("E0210", span, format!("the index has the axis {} that it looks up", quote(&name)))
                .help("read the tensor under another name first: `x[.., u][…]`");
            return Err(self.report(diagnostic));
        }
        self.same_groups(&[tensor, index], span)?;
        self.countable(self.size(axis), "elements", span)?;
        let op = Op::Gather { axis: self.axis_id(axis) };
        self.emit(op, &[tensor, index], span)
    }
}

fn index_span(index: &Index) -> Span {
    match index {
        Index::Rest(span) | Index::SplitRest(span) => *span,
        Index::Split { span, .. } | Index::Merge { span, .. } | Index::MergeRest { span, .. } => *span,
        Index::Slice { name, to, .. } => name.span.to(to.span),
        Index::Expr(expr) => expr.span,
    }
}

pub(super) fn plural(n: usize, one: &'static str, many: &'static str) -> &'static str {
    if n == 1 { one } else { many }
}

fn dtype_words(dtype: DType) -> &'static str {
    match dtype {
        DType::Bool => "bools",
        DType::I32 => "integers",
        DType::F64 | DType::F32 | DType::BF16 => "floats",
    }
}
