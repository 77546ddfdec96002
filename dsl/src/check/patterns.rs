//! Patterns of tensor parameters: `x[.., t, d]` names the argument's axes.

use super::Checker;
use super::axes::Ax;
use super::reading::plural;
use super::value::{Checked, Reported, Tensor, Value};
use crate::ast::{Ident, PatternAxis, Span};
use crate::diagnostics::{SourceId, quote};

impl<'a> Checker<'a> {
    /// Binds a tensor parameter: the pattern's names become names of the argument's axes.
    #[allow(clippy::too_many_arguments, reason = "one place, and each is what the pattern needs to know")]
    pub(super) fn bind_tensor(
        &mut self,
        name: &'a Ident,
        pattern: &'a [PatternAxis],
        value: Value,
        last: Option<Ax>,
        at: Span,
        first: bool,
        bound: &mut Vec<Ax>,
    ) -> Checked<()> {
        let Value::Tensor(tensor) = value else {
            self.set_var(&name.name, value, name.span);
            return Ok(());
        };
        let rest_at = pattern.iter().position(|p| matches!(p, PatternAxis::Rest(_)));
        let names: Vec<&'a Ident> = pattern
            .iter()
            .filter_map(|p| match p {
                PatternAxis::Name(name) => Some(name),
                PatternAxis::Rest(_) => None,
            })
            .collect();
        let rank = tensor.axes.len();
        if names.len() > rank || (rest_at.is_none() && names.len() < rank) {
            return Err(self.pattern_mismatch(name, pattern, &tensor, at));
        }
        let before = rest_at.unwrap_or(names.len());
        let after = names.len() - before;
        // With `over` the last name takes that axis; the others take the rest by position.
        let mut places: Vec<Ax> = tensor.axes.clone();
        if let Some(last) = last {
            places.retain(|&a| a != last);
            let end = if after == 0 && rest_at.is_some() { before - 1 } else { places.len() };
            places.insert(end, last);
        }
        let rest = places[before..rank - after].to_vec();
        let mut renames = Vec::new();
        let named = places[..before].iter().chain(&places[rank - after..]).copied().collect::<Vec<Ax>>();
        for (&axis, name) in named.iter().zip(&names) {
            match self.frame().names.axes.get(&name.name).copied() {
                None => {
                    self.frame_mut().names.axes.insert(name.name.clone(), axis);
                    bound.push(axis);
                }
                Some(known) if known == axis => bound.push(axis),
                Some(known) => {
                    self.argument_size(axis, known, name, at)?;
                    renames.push((axis, known));
                    bound.push(known);
                }
            }
        }
        let renamed = |axis: Ax| renames.iter().find(|(from, _)| *from == axis).map_or(axis, |(_, to)| *to);
        let after: Vec<Ax> = tensor.axes.iter().map(|&a| renamed(a)).collect();
        if let Some((_, clash)) = after.iter().enumerate().find(|(i, axis)| after[..*i].contains(axis)) {
            let message =
                format!("the argument would have the axis {} of the block twice", quote(self.axis_name(*clash)));
            let declared = self.source();
            let diagnostic = self.error_at_call("E0208", at, message).related(declared, name.span, "the parameter");
            return Err(self.report(diagnostic));
        }
        let tensor = self.rename_all(tensor, renames, at)?;
        let frame = self.frame_mut();
        frame.rest.extend(rest.iter().filter(|a| !frame.rest.contains(a)).copied().collect::<Vec<_>>());
        if first && rest_at.is_some() {
            frame.first_rest = Some(rest);
        }
        self.set_var(&name.name, Value::Tensor(tensor), name.span);
        Ok(())
    }

    /// Two arguments whose axes a block calls by one name must agree in size.
    fn argument_size(&mut self, axis: Ax, known: Ax, name: &'a Ident, at: Span) -> Checked<()> {
        let ragged = self.ragged_parent(axis).is_some() || self.ragged_parent(known).is_some();
        if self.size(axis) == self.size(known) && !ragged {
            return Ok(());
        }
        let message = format!(
            "the axis {} of the block has size {} in this argument but {} in another",
            quote(&name.name),
            self.size(axis),
            self.size(known)
        );
        let diagnostic = self.error_at_call("E0204", at, message);
        let declared = self.source();
        let diagnostic = diagnostic.related(declared, name.span, "the parameter");
        Err(self.report(diagnostic))
    }

    fn pattern_mismatch(&mut self, name: &'a Ident, pattern: &'a [PatternAxis], tensor: &Tensor, at: Span) -> Reported {
        let names = pattern.iter().filter(|p| matches!(p, PatternAxis::Name(_))).count();
        let exactly = if names == pattern.len() { "exactly" } else { "at least" };
        let message = format!(
            "{} has {exactly} {names} {}, the argument has {}",
            quote(&name.name),
            plural(names, "axis", "axes"),
            tensor.axes.len()
        );
        let caller = self.frames.len() - 2;
        let axes: Vec<&str> = tensor.axes.iter().map(|&a| self.axis_name_in(caller, a)).collect();
        let label = format!("its axes are [{}]", axes.join(", "));
        let declared: SourceId = self.source();
        let diagnostic =
            self.error_at_call("E0203", at, message).label(label).related(declared, name.span, "the parameter");
        self.report(diagnostic)
    }
}
