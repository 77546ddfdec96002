//! Cheapest selections of a part that are known.
//!
//! A search asks for them again and again: at the ends of the front after each decision, and with other limits. What was cheapest with fewer decisions still is
//! where it agrees with the others, since decisions only take selections away (and of equal ones the same is taken).

use super::part::{Fixed, Prices, Question, Taken};
use forebay_ir::ValueId;
use rustc_hash::FxHashMap;
use std::cell::RefCell;
use std::rc::Rc;

/// What is decided of a part's values.
type Decisions = Vec<((ValueId, Question), bool)>;

/// A part's cheapest selection.
#[derive(Debug)]
pub(super) struct Cheapest {
    decided: Decisions,
    pub kept: Vec<ValueId>,
    pub swapped: Vec<ValueId>,
    pub taken: Taken,
}

impl Cheapest {
    /// Is it the cheapest with these decisions as well?
    fn holds(&self, decisions: &Decisions) -> bool {
        let is_decided = |d| decisions.contains(d);
        self.decided.iter().all(is_decided)
            && decisions.iter().all(|&((v, question), yes)| self.agrees(v, question, yes))
    }

    fn agrees(&self, v: ValueId, question: Question, yes: bool) -> bool {
        let is_there = self.kept.binary_search(&v).is_ok();
        match question {
            Question::There => is_there == yes,
            Question::Swapped => !is_there || self.swapped.binary_search(&v).is_ok() == yes,
        }
    }
}

/// A part, and the bits of the prices of a byte and of a second of its link.
type Key = (usize, u64, u64);

/// So many are remembered; then all are forgotten, which changes no answer.
const MOST: usize = 1 << 17;

/// The cheapest selections that were found, whatever was decided.
#[derive(Clone, Debug, Default)]
pub(super) struct Known(Rc<RefCell<Found>>);

#[derive(Debug, Default)]
struct Found {
    all: FxHashMap<Key, Vec<Rc<Cheapest>>>,
    count: usize,
}

impl Known {
    /// The cheapest selection of a part; `find` finds what is kept, what of it is swapped, and what that takes.
    pub fn cheapest(
        &self,
        part: usize,
        prices: Prices<'_>,
        fixed: &Fixed,
        find: impl FnOnce() -> (Vec<ValueId>, Vec<ValueId>, Taken),
    ) -> Rc<Cheapest> {
        let of_part = fixed.iter().filter(|((n, ..), _)| *n == part);
        let decided: Decisions = of_part.map(|(&(_, v, question), &yes)| ((v, question), yes)).collect();
        let key = (part, prices.byte.to_bits(), prices.link[part].to_bits());
        let holds = |found: &Found| found.all.get(&key)?.iter().find(|c| c.holds(&decided)).cloned();
        let known = holds(&self.0.borrow());
        known.unwrap_or_else(|| {
            let (kept, swapped, taken) = find();
            let cheapest = Rc::new(Cheapest { decided, kept, swapped, taken });
            self.0.borrow_mut().remember(key, cheapest.clone());
            cheapest
        })
    }
}

impl Found {
    fn remember(&mut self, key: Key, cheapest: Rc<Cheapest>) {
        if self.count == MOST {
            *self = Found::default();
        }
        self.count += 1;
        self.all.entry(key).or_default().push(cheapest);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// It is the cheapest where all that was decided for it still is, and all else that is decided is so in it.
    #[test]
    fn what_agrees_with_more_decisions_holds() {
        let [one, two, three] = [0, 1, 2].map(ValueId);
        let (there, swapped) = (Question::There, Question::Swapped);
        let taken = Taken { bytes: 0.0, again: 0.0, link: 0.0 };
        let decided = vec![((one, there), true)];
        let cheapest = Cheapest { decided, kept: vec![one, two], swapped: vec![two], taken };
        let holds = |more: &[((ValueId, Question), bool)]| cheapest.holds(&[&[((one, there), true)], more].concat());
        for more in [((two, there), true), ((three, there), false), ((two, swapped), true), ((one, swapped), false)] {
            assert!(holds(&[more]), "{more:?}");
            let (question, yes) = more;
            assert!(!holds(&[(question, !yes)]), "not {more:?}");
        }
        // What is not there is not swapped either.
        assert!(holds(&[]) && holds(&[((three, swapped), true)]) && holds(&[((three, swapped), false)]));
        assert!(!cheapest.holds(&vec![((two, there), true)]), "there may be a cheaper one without the first value");
    }

    /// A long search does not take more and more memory.
    #[test]
    fn no_more_are_remembered_than_said() {
        let taken = Taken { bytes: 0.0, again: 0.0, link: 0.0 };
        let (known, mut asked) = (Known::default(), 0);
        let mut ask = |byte: usize| {
            let prices = Prices { byte: byte as f64, link: &[0.0] };
            known.cheapest(0, prices, &Fixed::default(), || {
                asked += 1;
                (vec![], vec![], taken)
            });
        };
        (0..MOST).for_each(&mut ask);
        ask(0);
        // One more, and the first is forgotten.
        ask(MOST);
        ask(0);
        assert_eq!(asked, MOST + 2);
        let remembered: usize = known.0.borrow().all.values().map(Vec::len).sum();
        assert_eq!(remembered, 2);
    }
}
