//! Within a program: orders in which nothing holds up what is waited for elsewhere.
//!
//! ```text
//! cube   experts ┐               ┌ attention F'         experts ┌ attention F'
//! links  ·········· dispatch F' ── combine · send ──►   ······· └ combine · send · dispatch F'
//! ```
//!
//! A list begins whatever can begin, and what has begun is not broken off: an exchange that nobody waits for goes out on idle links a moment before the one that
//! another stage needs. Here what is waited for is placed first, as if it were alone, and everything else into the gaps that it leaves, each at the first one that is long enough
//! (the insertion policy of HEFT: Topcuoglu, Hariri and Wu 2002).
//!
//! Keeps: what needs something comes behind it. Costs: instructions × gaps. Memory is not looked at here; who takes the order does.

use super::tasks::Tasks;
use forebay_plan::StreamKind;

/// An order in which tasks that are `late` fill the gaps of the others, the most urgent first.
pub(super) fn inserted(tasks: &Tasks, users: &[Vec<u32>], urgency: &[f64], late: &[bool]) -> Vec<u32> {
    let n = tasks.len();
    let mut waiting: Vec<usize> = tasks.needs.iter().map(Vec::len).collect();
    let (mut starts, mut ends) = (vec![0.0f64; n], vec![0.0f64; n]);
    let mut busy: [Vec<(f64, f64)>; StreamKind::COUNT] = Default::default();
    let mut ready: Vec<usize> = (0..n).filter(|&at| waiting[at] == 0).collect();
    // What others wait for needs nothing that is late, so all of it comes before the first that is.
    let first = |a: usize, b: usize| late[b].cmp(&late[a]).then(urgency[a].total_cmp(&urgency[b])).then(b.cmp(&a));
    while let Some(place) = (0..ready.len()).max_by(|&a, &b| first(ready[a], ready[b])) {
        let at = ready.swap_remove(place);
        let from = tasks.needs[at].iter().map(|&need| ends[need as usize]).fold(0.0, f64::max);
        starts[at] = put(&mut busy[tasks.unit[at]], from, tasks.seconds[at]);
        ends[at] = starts[at] + tasks.seconds[at];
        for &user in &users[at] {
            waiting[user as usize] -= 1;
            if waiting[user as usize] == 0 {
                ready.push(user as usize);
            }
        }
    }
    let mut order: Vec<u32> = (0..n as u32).collect();
    // What takes no time goes before what begins then and does. The given order is one in which they may run.
    let by = |times: &[f64], a: u32, b: u32| times[a as usize].total_cmp(&times[b as usize]);
    order.sort_by(|&a, &b| by(&starts, a, b).then(by(&ends, a, b)).then(a.cmp(&b)));
    order
}

/// Takes the first gap of a unit from a time on that is long enough; when it begins.
fn put(busy: &mut Vec<(f64, f64)>, from: f64, seconds: f64) -> f64 {
    let mut start = from;
    let mut place = busy.partition_point(|(_, end)| *end <= from);
    while let Some(&(begin, end)) = busy.get(place) {
        if start + seconds <= begin {
            break;
        }
        start = start.max(end);
        place += 1;
    }
    busy.insert(place, (start, start + seconds));
    start
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const CUBE: StreamKind = StreamKind::Cube;
    const LINKS: StreamKind = StreamKind::InterNode;

    /// Tasks of so many seconds, each with what it needs.
    fn tasks(list: &[(StreamKind, f64, &[u32])]) -> Tasks {
        Tasks {
            seconds: list.iter().map(|task| task.1).collect(),
            unit: list.iter().map(|task| task.0.number()).collect(),
            needs: list.iter().map(|task| task.2.to_vec()).collect(),
            touches: vec![vec![]; list.len()],
            bytes: vec![],
            awaited: vec![],
            slowdown: 0.0,
        }
    }

    fn order(tasks: &Tasks, late: &[bool]) -> Vec<u32> {
        let urgency: Vec<f64> = (0..tasks.len()).rev().map(|n| n as f64).collect();
        inserted(tasks, &tasks.users(), &urgency, late)
    }

    /// The exchange that nobody waits for could begin first, while experts work; it comes behind the one that is waited for.
    #[test]
    fn what_is_late_holds_nothing_up() {
        let all = tasks(&[(LINKS, 5.0, &[]), (CUBE, 3.0, &[]), (LINKS, 4.0, &[1]), (CUBE, 2.0, &[0])]);
        assert_eq!(order(&all, &[true, false, false, true]), [1, 2, 0, 3]);
        // With nothing late it goes out at once.
        assert_eq!(order(&all, &[false; 4]), [1, 0, 3, 2]);
    }

    /// A gap takes what is no longer than it is, and what takes no time at any place.
    #[test]
    fn gaps_are_filled_by_what_is_short_enough() {
        let gap = tasks(&[
            (CUBE, 3.0, &[]),
            (LINKS, 4.0, &[0]),
            (LINKS, 3.5, &[]),
            (LINKS, 3.0, &[]),
            (LINKS, 0.0, &[0]),
            (CUBE, 1.0, &[4]),
        ]);
        let order = order(&gap, &[false, false, true, true, true, true]);
        assert_eq!(order, [0, 3, 4, 5, 1, 2]);
        assert_eq!(gap.timed(&order).makespan, 10.5);
    }

    proptest! {
        /// Whatever is late, what is needed comes first, and what is waited for ends when it would alone.
        #[test]
        fn what_is_needed_comes_first(
            list in prop::collection::vec((any::<bool>(), 0..5u32, prop::collection::vec(0..6u32, 32)), 2..32),
            awaited in any::<prop::sample::Index>(),
        ) {
            let needs: Vec<Vec<u32>> =
                (0..).zip(&list).map(|(at, (.., of))| (0..at).filter(|&n| of[n as usize] == 0).collect()).collect();
            let units = list.iter().map(|(links, ..)| if *links { LINKS } else { CUBE });
            let timed = units.zip(list.iter().map(|(_, seconds, _)| f64::from(*seconds)));
            let list: Vec<_> = timed.zip(&needs).map(|((unit, seconds), needs)| (unit, seconds, &needs[..])).collect();
            let mut all = tasks(&list);
            all.awaited = vec![awaited.index(list.len()) as u32];
            let late = all.unawaited();
            let order = order(&all, &late);
            let place = |at: u32| order.iter().position(|&other| other == at).expect("each is there");
            for (at, needs) in (0..).zip(&all.needs) {
                prop_assert!(needs.iter().all(|&need| place(need) < place(at)), "{order:?}");
            }
            let alone: Vec<u32> = order.iter().copied().filter(|&at| !late[at as usize]).collect();
            prop_assert_eq!(all.timed(&order).awaited, all.timed(&alone).awaited, "{:?}", order);
        }
    }
}
