//! The best choice where there are few tensors: each is there, in the host's memory or made again, and all that could still be better is tried.
//!
//! Depth first, values in turn. What is decided costs no less for what is not: with all others there and free, the seconds are a bound from below.

use super::choose::{Fate, Part, Problem, Selection};
use forebay_ir::ValueId;

/// So many values are few.
const FEW: usize = 14;
/// So many decisions are made at most: about a second.
const DECISIONS: u32 = 1 << 18;

impl Problem<'_> {
    /// The selection within the limit that takes the fewest seconds; `known` is one within it. None where there are too many values to try them all.
    pub(super) fn of_few(&self, known: &Selection, limit: f64) -> Option<Selection> {
        let free = |(n, part): (usize, &Part)| part.free().map(move |v| (n, v)).collect::<Vec<_>>();
        let values: Vec<(usize, ValueId)> = self.parts().iter().enumerate().flat_map(free).collect();
        // The last to be made is what others are made from the least.
        let values: Vec<(usize, ValueId)> = values.into_iter().rev().collect();
        if values.len() > FEW {
            return None;
        }
        let mut search = Search { problem: self, limit, values, fates: vec![], best: known.clone(), left: DECISIONS };
        search.go_on();
        (search.left > 0).then_some(search.best)
    }
}

impl Part<'_> {
    /// The values that can be elsewhere: what is read, and all that it is made from.
    fn free(&self) -> impl Iterator<Item = ValueId> {
        self.made_again(&[]).into_iter()
    }
}

struct Search<'p, 'g> {
    problem: &'p Problem<'g>,
    limit: f64,
    values: Vec<(usize, ValueId)>,
    /// What is decided of the first values.
    fates: Vec<Fate>,
    best: Selection,
    left: u32,
}

impl Search<'_, '_> {
    fn go_on(&mut self) {
        self.left = self.left.saturating_sub(1);
        let selection = self.selection();
        // (What has no better time is not looked for, whatever the rounding.)
        if self.left == 0 || selection.seconds >= self.best.seconds * (1.0 - 1e-12) || self.bytes() > self.limit {
            return;
        }
        let Some(&(n, v)) = self.values.get(self.fates.len()) else {
            if selection.bytes <= self.limit {
                self.best = selection;
            }
            return;
        };
        let can_leave = self.problem.parts()[n].away.get(v.index()).copied().flatten().is_some();
        for fate in [Fate::Kept, Fate::Swapped, Fate::Again] {
            if fate != Fate::Swapped || can_leave {
                self.fates.push(fate);
                self.go_on();
                self.fates.pop();
            }
        }
    }

    /// What is decided, with all that is not decided there.
    fn selection(&self) -> Selection {
        let (mut kept, mut swapped) = (vec![], vec![]);
        for (n, part) in self.problem.parts().iter().enumerate() {
            let fate = |v: ValueId| {
                let at = self.values.iter().position(|value| *value == (n, v));
                at.and_then(|at| self.fates.get(at)).copied().unwrap_or(Fate::Kept)
            };
            let of_part = part.needed(|v| fate(v) != Fate::Again);
            swapped.push(of_part.iter().copied().filter(|&v| fate(v) == Fate::Swapped).collect());
            kept.push(of_part);
        }
        self.problem.selection(kept, swapped)
    }

    /// Bytes that what is decided takes in any case: of what is read, and not just made from.
    fn bytes(&self) -> f64 {
        let decided = self.values.iter().zip(&self.fates);
        let wanted = decided.filter(|((n, v), _)| self.problem.parts()[*n].wanted.contains(v));
        let bytes = |((n, v), fate): (&(usize, ValueId), &Fate)| match fate {
            Fate::Kept => self.problem.parts()[*n].bytes[v.index()],
            Fate::Swapped => self.problem.parts()[*n].away[v.index()].map_or(0.0, |away| away.bytes),
            Fate::Again => 0.0,
        };
        wanted.map(bytes).sum()
    }
}
