//! What ran lately on a rank's units and links: what it takes longer for running at the same time.
//!
//! Communication takes cores and memory bandwidth from the work beside it: work loses `overlap_slowdown` of the time that it shares with a collective, times the part of what the device's links
//! in the first tier carry that goes through the device meanwhile. A ring through nodes of eight passes eight adapters' bytes through each device, one that has a rank in each node a single
//! adapter's. Communication loses nothing.
//!
//! Who is placed second finds the time that both share: work that begins beside what is in flight ends later; what begins to fly beside work moves the end of that, and all of the unit that follows
//! on it. What other units and ranks have made of the earlier end stays as it is.

use forebay_cost::contention;
use std::collections::VecDeque;

/// The cube and the vector unit.
pub(crate) const UNITS: usize = 2;

/// What communication goes over: links inside of nodes, between them, and what calls beside the main ones use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Link {
    /// Inside of nodes.
    Inside,
    /// Between nodes.
    Between,
    /// Of calls beside the main ones.
    Beside,
}

/// How many of a unit and of a link are looked at again.
const KEPT: usize = 256;

/// What a unit did: work, or something else that its stream waited for.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Worked {
    /// When it began and ended, seconds.
    pub span: (f64, f64),
    /// The part of it that is work: the rest is communication in line, and time lost already.
    pub work: f64,
    /// The call that it is part of.
    pub op: usize,
    /// The event of that call which its end recorded.
    pub event: Option<usize>,
    /// Where the log has it, if it does.
    pub slice: Option<usize>,
}

/// Work that was moved: as it was, and as it is.
pub(crate) type Moved = (Worked, Worked);

/// What is in flight, and how much goes through the device.
#[derive(Clone, Copy, Debug)]
struct Flight {
    span: (f64, f64),
    load: f64,
}

/// The last of each unit and link, in the order in which they ran.
#[derive(Debug, Default)]
pub(crate) struct Beside {
    units: [VecDeque<Worked>; UNITS],
    links: [VecDeque<Flight>; 3],
}

impl Beside {
    /// Seconds that work of a time loses by what is in flight.
    pub fn lost(&self, slowdown: f64, span: (f64, f64), work: f64) -> f64 {
        let of_link = |flights: &VecDeque<Flight>| -> f64 {
            let meets = flights.iter().rev().take_while(|flight| flight.span.1 > span.0);
            meets.map(|flight| contention(slowdown * flight.load, span, flight.span)).sum()
        };
        work * self.links.iter().map(of_link).sum::<f64>()
    }

    /// A unit has work.
    pub fn works(&mut self, unit: usize, worked: Worked) {
        push(&mut self.units[unit], worked);
    }

    /// Something flies over a link; what that does to each unit's work.
    pub fn flies(&mut self, slowdown: f64, link: Link, span: (f64, f64), load: f64) -> [Vec<Moved>; UNITS] {
        // (Machines that were measured lose nothing so.)
        if slowdown * load <= 0.0 || span.1 <= span.0 {
            return Default::default();
        }
        push(&mut self.links[link as usize], Flight { span, load });
        let moved = |works: &mut VecDeque<Worked>| {
            let meets = works.iter().rev().take_while(|worked| worked.span.1 > span.0).count();
            let first = works.len() - meets;
            let mut free = f64::NEG_INFINITY;
            let moved = works.range_mut(first..).map(|worked| {
                let before = *worked;
                let longer = worked.work * contention(slowdown * load, worked.span, span);
                let later = (free - worked.span.0).max(0.0);
                worked.span = (worked.span.0 + later, worked.span.1 + later + longer);
                free = worked.span.1;
                (before, *worked)
            });
            moved.filter(|(before, after)| before.span != after.span).collect()
        };
        let [main, vector] = &mut self.units;
        [moved(main), moved(vector)]
    }
}

fn push<T>(all: &mut VecDeque<T>, new: T) {
    if all.len() == KEPT {
        all.pop_front();
    }
    all.push_back(new);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn worked(begin: f64, end: f64) -> Worked {
        Worked { span: (begin, end), work: 1.0, op: 0, event: None, slice: None }
    }

    /// Each pair of work and communication counts once, whoever came second, and by what passes through the device.
    #[test]
    fn either_order_loses_the_same() {
        let mut beside = Beside::default();
        assert!(beside.flies(0.5, Link::Inside, (1.0, 5.0), 1.0).iter().all(Vec::is_empty));
        assert!(beside.flies(0.5, Link::Between, (3.0, 9.0), 0.2).iter().all(Vec::is_empty));
        let first = beside.lost(0.5, (0.0, 4.0), 1.0);
        assert!((first - (0.5 * 3.0 + 0.1)).abs() < 1e-12, "{first}");
        assert!((beside.lost(0.5, (0.0, 4.0), 0.5) - first / 2.0).abs() < 1e-12);
        let mut beside = Beside::default();
        beside.works(0, worked(0.0, 4.0));
        let longer = |[main, vector]: [Vec<Moved>; UNITS]| {
            assert!(vector.is_empty());
            main.iter().map(|(before, after)| after.span.1 - before.span.1).sum::<f64>()
        };
        let both = longer(beside.flies(0.5, Link::Inside, (1.0, 5.0), 1.0))
            + longer(beside.flies(0.5, Link::Between, (3.0, 9.0), 0.2));
        // (What the first made longer runs beside the second, too.)
        assert!(both >= first && both < first + 0.1 * 1.5 + 1e-12, "{both}");
    }

    /// What follows moves only as far as nothing is free before it.
    #[test]
    fn gaps_take_delays_up() {
        let mut beside = Beside::default();
        for (begin, end) in [(0.0, 2.0), (2.0, 4.0), (4.5, 6.0), (9.0, 10.0)] {
            beside.works(0, worked(begin, end));
        }
        let [moved, _] = beside.flies(0.5, Link::Beside, (0.0, 3.0), 1.0);
        let spans: Vec<(f64, f64)> = moved.iter().map(|(_, after)| after.span).collect();
        assert_eq!(spans, [(0.0, 3.0), (3.0, 5.5), (5.5, 7.0)]);
        // What was over before is left alone, and so is all that begins behind it.
        assert!(beside.flies(0.5, Link::Beside, (7.0, 9.0), 1.0).iter().all(Vec::is_empty));
    }
}
