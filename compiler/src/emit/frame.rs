//! Offsets: buffers that are never live at the same time may share memory.

use super::{ALIGN, align};
use forebay_plan as plan;

/// Something that needs `bytes` of memory from time `start` to time `end`, both included.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Interval {
    /// First moment.
    pub start: u32,
    /// Last moment.
    pub end: u32,
    /// Bytes.
    pub bytes: u64,
}

/// Where intervals were placed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Packing {
    /// For each interval its offset in bytes, a multiple of [`ALIGN`].
    pub offsets: Vec<u64>,
    /// Bytes taken.
    pub bytes: u64,
    /// Maximum over time of the live bytes: the least any packing takes.
    pub live: u64,
}

/// Places intervals so that two that are live at the same time do not overlap.
///
/// Best of three greedy orders (by size, by length of life, by start), each first-fit; the problem is NP-hard (dynamic storage allocation), and on the
/// nested lifetimes of a forward and a backward pass the first order that reaches the bound is taken. O(n²) in the worst case; what is alive all the time costs no more
/// for being many, so that steps of many micro-batches are placed in linear time.
pub fn pack(intervals: &[Interval]) -> Packing {
    let live = max_live(intervals);
    let mut best: Option<Packing> = None;
    type Key = fn(&Interval) -> (u64, u64);
    let orders: [Key; 3] = [
        |i| (u64::MAX - i.bytes, u64::from(i.start)),
        |i| (u64::MAX - u64::from(i.end - i.start), u64::MAX - i.bytes),
        |i| (u64::from(i.start), u64::MAX - i.bytes),
    ];
    for key in orders {
        let mut order: Vec<usize> = (0..intervals.len()).collect();
        order.sort_by_key(|&i| (key(&intervals[i]), i));
        let offsets = first_fit(intervals, &order);
        let bytes = intervals.iter().zip(&offsets).map(|(i, o)| o + align(i.bytes)).max().unwrap_or(0);
        if best.as_ref().is_none_or(|b| bytes < b.bytes) {
            best = Some(Packing { offsets, bytes, live });
        }
        if bytes == live {
            break;
        }
    }
    best.expect("there is an order")
}

fn max_live(intervals: &[Interval]) -> u64 {
    let mut changes: Vec<(u32, bool, u64)> = vec![];
    for i in intervals {
        changes.push((i.start, true, align(i.bytes)));
        changes.push((i.end + 1, false, align(i.bytes)));
    }
    // At one moment what ends goes before what starts: `false < true`.
    changes.sort_unstable();
    let (mut now, mut most) = (0, 0);
    for (_, starts, bytes) in changes {
        if starts {
            now += bytes;
            most = most.max(now);
        } else {
            now -= bytes;
        }
    }
    most
}

/// Each interval in turn at the lowest offset where nothing placed before is in its way.
fn first_fit(intervals: &[Interval], order: &[usize]) -> Vec<u64> {
    let mut offsets = vec![0; intervals.len()];
    let mut placed = Lives::new(intervals);
    let mut always = Ranges::default();
    // What is taken at any time, and the next place to look for room in it: until something is placed that has not been seen here.
    let mut taken: Option<(Ranges, u64)> = None;
    let (mut met, mut blocked) = (vec![], vec![]);
    for (n, &i) in order.iter().enumerate() {
        let this = intervals[i];
        let bytes = align(this.bytes);
        if placed.is_always(this) {
            let (taken, looked_for) = taken.get_or_insert_with(|| {
                let ranges = order[..n].iter().map(|&p| (offsets[p], offsets[p] + align(intervals[p].bytes)));
                (Ranges::of(ranges.collect()), bytes)
            });
            if *looked_for != bytes {
                (taken.next, *looked_for) = (0, bytes);
            }
            offsets[i] = taken.take(bytes);
            always.insert(offsets[i], bytes);
            continue;
        }
        taken = None;
        placed.meeting(this, &mut met);
        blocked.clear();
        blocked.extend(
            met.iter().map(|&p| (offsets[p as usize], offsets[p as usize] + align(intervals[p as usize].bytes))),
        );
        blocked.extend(&always.ranges);
        blocked.sort_unstable();
        let mut offset = 0;
        for &(from, to) in &blocked {
            if from >= offset + bytes {
                break;
            }
            offset = offset.max(to);
        }
        offsets[i] = offset;
        placed.insert(i, this);
    }
    offsets
}

/// Bytes that are taken, as ranges in order. What is alive all the time (the data of each micro-batch) is in the way of everything: such intervals are many and
/// stand in a row, so that they are looked at as one.
#[derive(Default)]
struct Ranges {
    ranges: Vec<(u64, u64)>,
    /// Nothing of the size that was looked for last is free before this range.
    next: usize,
}

impl Ranges {
    /// The union of ranges, those without bytes left out.
    fn of(mut parts: Vec<(u64, u64)>) -> Ranges {
        parts.sort_unstable();
        let mut ranges: Vec<(u64, u64)> = vec![];
        for (from, to) in parts.into_iter().filter(|(from, to)| from < to) {
            match ranges.last_mut() {
                Some(last) if last.1 >= from => last.1 = last.1.max(to),
                _ => ranges.push((from, to)),
            }
        }
        Ranges { ranges, next: 0 }
    }

    /// Takes the first free bytes, and returns where they are.
    fn take(&mut self, bytes: u64) -> u64 {
        if bytes == 0 {
            return 0;
        }
        let end = |ranges: &[(u64, u64)], n: usize| n.checked_sub(1).map_or(0, |before| ranges[before].1);
        while self.ranges.get(self.next).is_some_and(|r| r.0 < end(&self.ranges, self.next) + bytes) {
            self.next += 1;
        }
        let offset = end(&self.ranges, self.next);
        match self.next.checked_sub(1) {
            Some(before) => self.ranges[before].1 += bytes,
            None => {
                self.ranges.insert(0, (0, bytes));
                self.next = 1;
            }
        }
        offset
    }

    /// Takes bytes that are free.
    fn insert(&mut self, offset: u64, bytes: u64) {
        let at = self.ranges.partition_point(|r| r.0 < offset);
        match at.checked_sub(1) {
            _ if bytes == 0 => {}
            Some(before) if self.ranges[before].1 == offset => self.ranges[before].1 += bytes,
            _ => self.ranges.insert(at, (offset, offset + bytes)),
        }
    }
}

/// Intervals by the time of their lives: finds those that meet another without looking at all of them.
///
/// Those that are alive at a moment are on the path to it in a segment tree; those that begin later are listed by their begin.
struct Lives {
    /// The moments at which intervals start, sorted: what lies between two of them makes no difference.
    moments: Vec<u32>,
    beginning: Lists,
    tree: Lists,
}

/// Many short lists in two arrays: a step of many micro-batches has tens of thousands, and most have one entry.
struct Lists {
    /// For each list where its last entry is; [`NONE`] if it is empty.
    last: Vec<u32>,
    /// Entries: a number, and where the entry before it is.
    entries: Vec<(u32, u32)>,
}

const NONE: u32 = u32::MAX;

impl Lists {
    fn new(count: usize) -> Lists {
        Lists { last: vec![NONE; count], entries: vec![] }
    }

    fn push(&mut self, list: usize, number: u32) {
        let at = self.entries.len() as u32;
        self.entries.push((number, std::mem::replace(&mut self.last[list], at)));
    }

    /// Adds all of a list to `found`.
    fn extend(&self, list: usize, found: &mut Vec<u32>) {
        let mut at = self.last[list];
        while at != NONE {
            let (number, before) = self.entries[at as usize];
            found.push(number);
            at = before;
        }
    }
}

impl Lives {
    fn new(intervals: &[Interval]) -> Lives {
        let mut moments: Vec<u32> = intervals.iter().map(|i| i.start).collect();
        moments.sort_unstable();
        moments.dedup();
        let n = moments.len();
        Lives { moments, beginning: Lists::new(n), tree: Lists::new(2 * n.max(1)) }
    }

    /// The moments of a life, half-open.
    fn span(&self, life: Interval) -> (usize, usize) {
        (self.moments.partition_point(|&m| m < life.start), self.moments.partition_point(|&m| m <= life.end))
    }

    /// Does a life meet all others?
    fn is_always(&self, life: Interval) -> bool {
        self.span(life) == (0, self.moments.len())
    }

    fn insert(&mut self, number: usize, life: Interval) {
        let (from, to) = self.span(life);
        self.beginning.push(from, number as u32);
        let (mut low, mut high) = (from + self.moments.len(), to + self.moments.len());
        while low < high {
            if low % 2 == 1 {
                self.tree.push(low, number as u32);
                low += 1;
            }
            if high % 2 == 1 {
                high -= 1;
                self.tree.push(high, number as u32);
            }
            (low, high) = (low / 2, high / 2);
        }
    }

    /// All that are alive at some moment of a life.
    fn meeting(&self, life: Interval, met: &mut Vec<u32>) {
        met.clear();
        let (from, to) = self.span(life);
        let mut node = from + self.moments.len();
        while node > 0 {
            self.tree.extend(node, met);
            node /= 2;
        }
        for list in from + 1..to {
            self.beginning.extend(list, met);
        }
    }
}

/// What placing the frame's buffers gave.
pub struct FrameLayout {
    /// Bytes of the frame.
    pub bytes: u64,
    /// Maximum live bytes.
    pub live: u64,
}

/// Gives the buffers in slot `frame` their offsets, from their first to their last use. `until` says for each instruction the last one that may run before it
/// has ended: its own number where one follows the other.
pub fn place(
    buffers: &mut [plan::Buffer],
    instructions: &[plan::Instruction],
    frame: u32,
    until: impl Fn(usize) -> u32,
) -> FrameLayout {
    let mut life: Vec<Option<(u32, u32)>> = vec![None; buffers.len()];
    for (time, instruction) in instructions.iter().enumerate() {
        for buffer in instruction.kernel.reads().chain(instruction.kernel.writes()) {
            let (_, end) = life[buffer as usize].get_or_insert((time as u32, time as u32));
            *end = (*end).max(until(time));
        }
    }
    let here: Vec<usize> = (0..buffers.len()).filter(|&b| buffers[b].slot == frame && life[b].is_some()).collect();
    let intervals: Vec<Interval> = here
        .iter()
        .map(|&b| {
            let (start, end) = life[b].expect("filtered");
            Interval { start, end, bytes: buffers[b].elements * buffers[b].dtype.bytes() }
        })
        .collect();
    let packing = pack(&intervals);
    for (&b, &offset) in here.iter().zip(&packing.offsets) {
        buffers[b].offset = offset;
    }
    debug_assert!(packing.offsets.iter().all(|o| o % ALIGN == 0));
    FrameLayout { bytes: packing.bytes, live: packing.live }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// First fit by its definition.
    fn naive(intervals: &[Interval], order: &[usize]) -> Vec<u64> {
        let mut offsets = vec![0; intervals.len()];
        for (n, &i) in order.iter().enumerate() {
            let this = intervals[i];
            let meets = |p: &&usize| intervals[**p].start <= this.end && this.start <= intervals[**p].end;
            let mut met: Vec<(u64, u64)> = order[..n]
                .iter()
                .filter(meets)
                .map(|&p| (offsets[p], offsets[p] + align(intervals[p].bytes)))
                .collect();
            met.sort_unstable();
            let mut offset = 0;
            for (from, to) in met {
                if from >= offset + align(this.bytes) {
                    break;
                }
                offset = offset.max(to);
            }
            offsets[i] = offset;
        }
        offsets
    }

    #[test]
    fn places_are_those_of_first_fit_by_its_definition() {
        let mut state = 1u64;
        let mut random = |n: u64| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) % n
        };
        for _ in 0..300 {
            let n = 1 + random(40) as usize;
            let one = |random: &mut dyn FnMut(u64) -> u64| {
                let start = random(12) as u32;
                let bytes = random(5) * ALIGN;
                match random(3) {
                    0 => Interval { start: 0, end: u32::MAX - 1, bytes },
                    _ => Interval { start, end: start + random(6) as u32, bytes },
                }
            };
            let intervals: Vec<Interval> = (0..n).map(|_| one(&mut random)).collect();
            let mut order: Vec<usize> = (0..n).collect();
            (1..n).for_each(|i| order.swap(i, random(i as u64 + 1) as usize));
            assert_eq!(first_fit(&intervals, &order), naive(&intervals, &order), "{intervals:?} in order {order:?}");
        }
    }

    /// The data of 40,000 micro-batches and what each works with: by looking at all that are alive this would take minutes.
    #[test]
    fn what_is_alive_all_the_time_costs_no_more_for_being_many() {
        let data = Interval { start: 0, end: u32::MAX - 1, bytes: 3 * ALIGN };
        let work = |n: u32| Interval { start: n, end: n + 1, bytes: u64::from(1 + n % 7) * ALIGN };
        let intervals: Vec<Interval> = (0..40_000).flat_map(|n| [data, work(n)]).collect();
        let began = std::time::Instant::now();
        let packing = pack(&intervals);
        assert_eq!(packing.bytes, packing.live);
        assert!(began.elapsed().as_secs() < 20, "{:?}", began.elapsed());
    }
}
