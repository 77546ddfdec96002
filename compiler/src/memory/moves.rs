//! Choices that differ in one value: what a search among corners of the front leaves free is used, and what is over the limit leaves, a value at a time.
//!
//! ```text
//! seconds │ z                 z: over the limit, as near as cuts came     z → y: out goes what takes least seconds a byte
//!         │   y ─ b           b: within it, the best of the cuts          then in comes what saves most, while it fits
//!         └────┼─ limit
//! ```
//!
//! Cuts find corners of the front. Where copies are hidden one tensor can be worth a long edge of it: there the best corner within a limit leaves much of it free.

use super::choose::{Fate, Part, Problem, Selection};
use forebay_ir::{Op, Unit, ValueId};
use rustc_hash::FxHashSet;

/// Values of less than this part of all bytes are left as they are.
const TRIFLE: f64 = 1e-3;
/// So many values change places at most.
const MOVES: usize = 64;

impl Problem<'_> {
    /// A selection within the limit that takes no more seconds than `best`, which is within it: from that one, and from those beyond.
    pub fn improved(&self, best: Selection, beyond: Vec<Selection>, limit: f64) -> Selection {
        let mut starts: Vec<Selection> = vec![];
        let fitted = beyond.into_iter().filter_map(|selection| self.emptied(selection, limit));
        for selection in fitted.chain([best.clone()]) {
            if !starts.contains(&selection) {
                starts.push(selection);
            }
        }
        // (One value after another, sums are rounded otherwise than all at once.)
        let summed = |found: Selection| self.selection(found.kept, found.swapped);
        let found = starts.into_iter().map(|selection| summed(self.filled(selection, limit)));
        let found = found.filter(|found| found.bytes <= limit).min_by(|a, b| a.seconds.total_cmp(&b.seconds));
        found.filter(|found| found.seconds < best.seconds).unwrap_or(best)
    }

    /// With more of what saves time, while it fits.
    fn filled(&self, mut selection: Selection, limit: f64) -> Selection {
        for _ in 0..MOVES {
            let fitting = self.moves(&selection).filter(|other| other.bytes <= limit);
            let best = fitting.min_by(|a, b| a.seconds.total_cmp(&b.seconds));
            match best.filter(|best| best.seconds < selection.seconds) {
                Some(best) => selection = best,
                None => break,
            }
        }
        selection
    }

    /// With less of what takes most bytes for its time, until it fits.
    fn emptied(&self, mut selection: Selection, limit: f64) -> Option<Selection> {
        for _ in 0..MOVES {
            if selection.bytes <= limit {
                return Some(selection);
            }
            let smaller = self.moves(&selection).filter(|other| other.bytes < selection.bytes);
            // What goes beyond the limit is worth no more than what reaches it.
            let price =
                |other: &Selection| (other.seconds - selection.seconds) / (selection.bytes - other.bytes.max(limit));
            selection = smaller.min_by(|a, b| price(a).total_cmp(&price(b)))?;
        }
        None
    }

    /// All selections in which one value is elsewhere.
    fn moves<'s>(&'s self, selection: &'s Selection) -> impl Iterator<Item = Selection> + 's {
        let least = TRIFLE * self.all_bytes();
        self.parts().iter().enumerate().flat_map(move |(n, part)| {
            let now = Now::new(part, (&selection.kept[n], &selection.swapped[n]));
            let values = now.values().into_iter().filter(move |v| part.bytes[v.index()] >= least);
            let fates = values.flat_map(|v| [Fate::Kept, Fate::Swapped, Fate::Again].map(|fate| (v, fate)));
            let fates: Vec<(ValueId, Fate)> = fates.filter(|(v, fate)| now.can(*v, *fate)).collect();
            fates.into_iter().map(move |(v, fate)| {
                let (kept, swapped) = now.with(v, fate);
                self.with_part(selection, n, (kept, swapped))
            })
        })
    }
}

/// Where the values of a part are.
struct Now<'p, 'g> {
    part: &'p Part<'g>,
    kept: FxHashSet<ValueId>,
    swapped: FxHashSet<ValueId>,
}

impl<'p, 'g> Now<'p, 'g> {
    fn new(part: &'p Part<'g>, (kept, swapped): (&[ValueId], &[ValueId])) -> Now<'p, 'g> {
        Now { part, kept: kept.iter().copied().collect(), swapped: swapped.iter().copied().collect() }
    }

    /// What is there at the backward pass or made again, but for views.
    fn values(&self) -> Vec<ValueId> {
        let kept: Vec<ValueId> = self.kept.iter().copied().collect();
        let mut values = [self.part.made_again(&kept), kept].concat();
        values.retain(|v| self.part.graph.node(*v).op.row().unit != Unit::None);
        values.sort_unstable();
        values
    }

    fn fate(&self, v: ValueId) -> Fate {
        match (self.kept.contains(&v), self.swapped.contains(&v)) {
            (true, true) => Fate::Swapped,
            (true, false) => Fate::Kept,
            (false, _) => Fate::Again,
        }
    }

    /// Can a value go elsewhere?
    fn can(&self, v: ValueId, fate: Fate) -> bool {
        let is_free = match fate {
            Fate::Kept => true,
            Fate::Swapped => self.part.away.get(v.index()).copied().flatten().is_some(),
            Fate::Again => self.part.graph.node(v).op != Op::Input,
        };
        is_free && fate != self.fate(v)
    }

    /// What is kept, and what of it swapped, once a value is elsewhere: what nothing is made from any longer is not kept.
    fn with(&self, v: ValueId, fate: Fate) -> (Vec<ValueId>, Vec<ValueId>) {
        let kept = self.part.needed(|u| if u == v { fate != Fate::Again } else { self.kept.contains(&u) });
        let away = |u: &ValueId| if *u == v { fate == Fate::Swapped } else { self.swapped.contains(u) };
        let swapped = kept.iter().copied().filter(away).collect();
        (kept, swapped)
    }
}
