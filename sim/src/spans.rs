//! When the units of a rank worked: what of its time is work, communication that nothing hides, the host, and bubble.
//!
//! ```text
//! cube     ████████        ██████
//! vector           ██
//! links       ████████████
//!                    └─ exposed: something is in flight and neither unit works
//! ```
//!
//! What is in flight hides behind work of the cube or the vector unit. Where a unit could work and the host has started nothing, the host is blamed, whatever is in flight. Of several things that
//! are in flight while nothing works, one is blamed: experts before tensors, context, data, messages and copies. The rest is bubble.

use crate::kind::{ByKind, Kind};
use crate::log::{Idle, Why};

/// A time, from and to.
type Span = (f64, f64);

/// What is blamed for exposed time, in this order.
const BLAMED: [Kind; 6] = [Kind::Ep, Kind::Tp, Kind::Cp, Kind::Dp, Kind::Pp, Kind::Swap];

/// When units worked. Spans of one unit are added in their order.
#[derive(Clone, Debug, Default)]
pub(crate) struct Spans {
    main: Vec<Span>,
    vector: Vec<Span>,
    flights: [Vec<Span>; Kind::COUNT],
    host: Vec<Span>,
    others_host: Vec<Span>,
}

/// What the main unit's time was, while it did not work.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Gaps {
    /// The vector unit worked.
    pub vector: f64,
    /// The host was late: the rank's own, or one that it waited for.
    pub host: f64,
    /// Of that its own.
    pub own_host: f64,
    /// Something was in flight.
    pub waited: ByKind,
    /// Nothing of these.
    pub bubble: f64,
    /// The last three, piece by piece, in order.
    pub idle: Vec<Idle>,
}

impl Spans {
    /// The main unit works.
    pub fn work(&mut self, begin: f64, end: f64) {
        add(&mut self.main, begin, end);
    }

    /// The vector unit works.
    pub fn vector(&mut self, begin: f64, end: f64) {
        add(&mut self.vector, begin, end);
    }

    /// Something is in flight.
    pub fn flight(&mut self, kind: Kind, begin: f64, end: f64) {
        add(&mut self.flights[kind.number()], begin, end);
    }

    /// A unit could work, but the host has not started anything.
    pub fn host_late(&mut self, begin: f64, end: f64) {
        add(&mut self.host, begin, end);
    }

    /// A unit waits for what another rank has not sent, whose host was late.
    pub fn others_late(&mut self, begin: f64, end: f64) {
        add(&mut self.others_host, begin, end);
    }

    /// What the time was, up to the end, in which the main unit did not work.
    pub fn gaps(mut self, end: f64) -> Gaps {
        let mut gaps = Gaps::default();
        let (_, mut open) = split(&[(0.0, end)], &mut self.main);
        let mut take = |spans: &mut Vec<Span>, why: Option<Why>| {
            let (taken, left) = split(&open, spans);
            open = left;
            gaps.idle.extend(taken.iter().filter_map(|&(begin, end)| Some(Idle { why: why?, begin, end })));
            length(&taken)
        };
        gaps.vector = take(&mut self.vector, None);
        gaps.own_host = take(&mut self.host, Some(Why::Host));
        for kind in BLAMED {
            gaps.waited[kind.number()] = take(&mut self.flights[kind.number()], Some(Why::Communication(kind)));
        }
        gaps.host = gaps.own_host + take(&mut self.others_host, Some(Why::Host));
        gaps.bubble = take(&mut vec![(0.0, end)], Some(Why::Stage));
        gaps.idle.sort_by(|a, b| a.begin.total_cmp(&b.begin));
        gaps
    }
}

/// Adds a span, as part of the one before where it follows on it.
fn add(spans: &mut Vec<Span>, begin: f64, end: f64) {
    match spans.last_mut() {
        _ if end <= begin => {}
        Some(last) if last.0 <= begin && begin <= last.1 => last.1 = last.1.max(end),
        _ => spans.push((begin, end)),
    }
}

fn length(spans: &[Span]) -> f64 {
    spans.iter().map(|(begin, end)| end - begin).sum()
}

/// What of `open` (sorted, apart) the spans cover, and what they leave.
fn split(open: &[Span], spans: &mut [Span]) -> (Vec<Span>, Vec<Span>) {
    spans.sort_by(|a, b| a.0.total_cmp(&b.0));
    let (mut taken, mut left) = (vec![], vec![]);
    let mut next = 0;
    for &(begin, end) in open {
        let mut at = begin;
        while next < spans.len() && spans[next].1 <= at {
            next += 1;
        }
        let mut n = next;
        while n < spans.len() && spans[n].0 < end {
            let (from, to) = (spans[n].0.max(at), spans[n].1.min(end));
            if from > at {
                left.push((at, from));
            }
            if to > from {
                taken.push((from, to));
            }
            at = at.max(to);
            n += 1;
        }
        if at < end {
            left.push((at, end));
        }
    }
    (taken, left)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_is_shared_out_by_hand() {
        let mut spans = Spans::default();
        spans.work(0.0, 4.0);
        spans.work(10.0, 12.0);
        spans.work(12.0, 13.0);
        spans.vector(3.0, 5.0);
        spans.flight(Kind::Ep, 2.0, 8.0);
        spans.flight(Kind::Tp, 1.0, 1.5);
        spans.flight(Kind::Tp, 7.0, 9.0);
        spans.host_late(8.5, 9.5);
        spans.others_late(9.0, 9.75);
        let gaps = spans.gaps(15.0);
        // 4 to 5 vector, 5 to 8 experts, 8 to 8.5 tensors, 8.5 to 9.5 the own host, to 9.75 another's, 9.75 to 10 and 13 to 15 bubble.
        assert_eq!((gaps.vector, gaps.own_host, gaps.host, gaps.bubble), (1.0, 1.0, 1.25, 2.25));
        assert_eq!((gaps.waited[Kind::Ep.number()], gaps.waited[Kind::Tp.number()]), (3.0, 0.5));
        let begins: Vec<f64> = gaps.idle.iter().map(|idle| idle.begin).collect();
        assert_eq!(begins, [5.0, 8.0, 8.5, 9.5, 9.75, 13.0]);
    }

    /// Messages may arrive in another order than they are asked for, and overlap.
    #[test]
    fn spans_need_not_be_in_order() {
        let mut spans = Spans::default();
        spans.flight(Kind::Pp, 5.0, 7.0);
        spans.flight(Kind::Pp, 1.0, 3.0);
        spans.flight(Kind::Pp, 2.0, 6.0);
        let gaps = spans.gaps(10.0);
        assert_eq!((gaps.waited[Kind::Pp.number()], gaps.bubble), (6.0, 4.0));
    }
}
