//! Offsets: buffers that are never live at the same time may share memory.

use super::align;

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

impl Interval {
    /// Moments.
    fn life(&self) -> u64 {
        u64::from(self.end - self.start) + 1
    }
}

/// Where intervals were placed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Packing {
    /// For each interval its offset in bytes, a multiple of [`ALIGN`](super::ALIGN).
    pub offsets: Vec<u64>,
    /// Bytes taken.
    pub bytes: u64,
    /// Maximum over time of the live bytes: the least any packing takes.
    pub live: u64,
}

/// Places intervals so that two that are live at the same time do not overlap.
///
/// Dynamic storage allocation, which is NP-hard. Greedy orders come first ([`ORDERS`]), each first-fit; on the nested lifetimes of a forward and a backward pass one of
/// them reaches the bound and is taken. Where none does, the same is tried with what lives briefly at the other end ([`BRIEF`]), and the best orders are repaired
/// ([`Search::repair`]) until one reaches the bound or the work is done. A greedy order takes
/// O(n²) in the worst case; what is alive all the time costs no more for being many, so that steps of many micro-batches are placed in linear time.
pub fn pack(intervals: &[Interval]) -> Packing {
    let mut search = Search { intervals, live: max_live(intervals), best: None, work: 0 };
    let mut tried: Vec<(u64, Vec<usize>, Brief)> = vec![];
    for (key, brief) in ways() {
        let order = by(intervals, key);
        tried.push((search.place(&order, brief).bytes, order, brief));
        if search.is_tight() {
            break;
        }
    }
    if !search.is_tight() {
        tried.sort_by_key(|(bytes, ..)| *bytes);
        tried.truncate(REPAIRED);
        for (_, order, brief) in tried {
            search.repair(order, brief, WORK / REPAIRED as u64);
        }
    }
    search.best.expect("there is an order")
}

/// Moments up to which a life is brief, where what lives briefly lies at the upper end.
type Brief = Option<u64>;

/// What places intervals earlier: two numbers, of which the smaller comes first.
type Key = fn(&Interval) -> (u64, u64);

/// By size, those of one size as they begin; the same, those that end last first: what is saved by the last layer comes back first, and lies at the edge of the others;
/// by length of life; by classes of it, each four times as long as the one before; by start; by bytes × life.
const ORDERS: [Key; 6] = [
    |i| (u64::MAX - i.bytes, u64::from(i.start)),
    |i| (u64::MAX - i.bytes, u64::MAX - u64::from(i.end)),
    |i| (u64::MAX - i.life(), u64::MAX - i.bytes),
    |i| (u64::from(i.life().leading_zeros() / 2), u64::MAX - i.bytes),
    |i| (u64::from(i.start), u64::MAX - i.bytes),
    |i| (u64::MAX - i.bytes.saturating_mul(i.life()), 0),
];

/// Numbers of orders in which frames of calls and what goes from call to call are also placed from above, below the bytes that are live at once: what is saved then
/// lies below them as if they were not there.
const BRIEF: [(usize, u64); 9] = [(0, 1), (1, 1), (1, 2), (4, 2), (0, 4), (0, 8), (1, 4), (1, 8), (1, 16)];

/// All greedy ways.
fn ways() -> impl Iterator<Item = (Key, Brief)> {
    let both_ends = BRIEF.into_iter().map(|(key, life)| (ORDERS[key], Some(life)));
    ORDERS.into_iter().map(|key| (key, None)).chain(both_ends)
}

/// Intervals in an order.
fn by(intervals: &[Interval], key: Key) -> Vec<usize> {
    let mut order: Vec<usize> = (0..intervals.len()).collect();
    order.sort_by_key(|&i| (key(&intervals[i]), i));
    order
}

/// Repairs end when so many pairs of intervals were looked at: a fifth of a second, or less.
const WORK: u64 = 4_000_000;
/// So many orders are repaired, each at most [`ROUNDS`] times.
const REPAIRED: usize = 10;
/// An order is repaired at most so often.
const ROUNDS: u64 = 400;

/// A search for a good order.
struct Search<'a> {
    intervals: &'a [Interval],
    live: u64,
    best: Option<Packing>,
    /// Pairs of intervals that were looked at.
    work: u64,
}

impl Search<'_> {
    /// Places in an order, and remembers the best places.
    fn place(&mut self, order: &[usize], brief: Brief) -> Packing {
        let (offsets, looked_at) = first_fit(self.intervals, order, brief.map(|life| (life, self.live)));
        self.work += looked_at;
        let bytes = self.intervals.iter().zip(&offsets).map(|(i, o)| o + align(i.bytes)).max().unwrap_or(0);
        let packing = Packing { offsets, bytes, live: self.live };
        if self.best.as_ref().is_none_or(|best| bytes < best.bytes) {
            self.best = Some(packing.clone());
        }
        packing
    }

    fn is_tight(&self) -> bool {
        self.best.as_ref().is_some_and(|best| best.bytes == self.live)
    }

    /// Moves what sticks out above the bound forward in the order, places again, and so on ("squeaky wheel" optimization, Joslin and Clements, 1999). In turns it
    /// moves before all that it can be in conflict with, and by a distance that is drawn, without which the search runs in circles. The draws are always the same.
    fn repair(&mut self, mut order: Vec<usize>, brief: Brief, work: u64) {
        let until = self.work + work;
        let mut draws = Draws(1);
        let mut rank = vec![0.0; order.len()];
        for round in 0..ROUNDS {
            if self.is_tight() || self.work >= until {
                return;
            }
            let offsets = self.place(&order, brief).offsets;
            order.iter().enumerate().for_each(|(place, &i)| rank[i] = place as f64);
            let (intervals, live) = (self.intervals, self.live);
            let sticks_out = |i: usize| offsets[i] + align(intervals[i].bytes) > live;
            for i in (0..order.len()).filter(|&i| sticks_out(i)) {
                rank[i] = match round % 2 {
                    0 => self.first_met(&order, i) as f64 - 0.5,
                    _ => rank[i] - draws.next(order.len()) as f64 - 0.5,
                };
            }
            order.sort_by(|&a, &b| rank[a].total_cmp(&rank[b]));
        }
    }

    /// The first place of the order that has an interval which meets this one, or is this one.
    fn first_met(&mut self, order: &[usize], i: usize) -> usize {
        let this = self.intervals[i];
        let meets = |&p: &usize| self.intervals[p].start <= this.end && this.start <= self.intervals[p].end;
        let first = order.iter().position(meets).expect("it meets itself");
        self.work += first as u64;
        first
    }
}

/// Numbers that look random: a linear congruential generator (Knuth's MMIX).
struct Draws(u64);

impl Draws {
    /// Less than `n`, which is not 0.
    fn next(&mut self, n: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        ((self.0 >> 33) % n as u64) as usize
    }
}

/// Maximum over time of the live bytes: the least any packing takes.
pub fn max_live(intervals: &[Interval]) -> u64 {
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

/// Each interval in turn at the lowest offset where nothing placed before is in its way, and how many intervals were looked at for that. `above`: those that live so briefly
/// at the highest one below so many bytes, where there is one.
fn first_fit(intervals: &[Interval], order: &[usize], above: Option<(u64, u64)>) -> (Vec<u64>, u64) {
    let mut offsets = vec![0; intervals.len()];
    let mut placed = Lives::new(intervals);
    let mut always = Ranges::default();
    // What is taken at any time, and the next place to look for room in it: until something is placed that has not been seen here.
    let mut taken: Option<(Ranges, u64)> = None;
    let (mut met, mut blocked) = (vec![], vec![]);
    let mut looked_at = 0;
    for (n, &i) in order.iter().enumerate() {
        let this = intervals[i];
        let bytes = align(this.bytes);
        if placed.is_always(this) {
            looked_at += 1;
            let (taken, looked_for) = taken.get_or_insert_with(|| {
                looked_at += n as u64;
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
        looked_at += 1 + (met.len() + always.ranges.len()) as u64;
        blocked.clear();
        blocked.extend(
            met.iter().map(|&p| (offsets[p as usize], offsets[p as usize] + align(intervals[p as usize].bytes))),
        );
        blocked.extend(&always.ranges);
        blocked.sort_unstable();
        let from_above = above
            .filter(|(life, _)| bytes > 0 && this.life() <= *life)
            .and_then(|(_, limit)| highest(&blocked, bytes, limit));
        offsets[i] = from_above.unwrap_or_else(|| lowest(&blocked, bytes));
        placed.insert(i, this);
    }
    (offsets, looked_at)
}

/// The lowest place for so many bytes that is in none of these ranges, which are sorted.
fn lowest(blocked: &[(u64, u64)], bytes: u64) -> u64 {
    let mut offset = 0;
    for &(from, to) in blocked {
        if from >= offset + bytes {
            break;
        }
        offset = offset.max(to);
    }
    offset
}

/// The highest place below a limit for so many bytes that is in none of these ranges, which may overlap.
fn highest(blocked: &[(u64, u64)], bytes: u64, limit: u64) -> Option<u64> {
    let mut ranges: Vec<(u64, u64)> = blocked.to_vec();
    ranges.sort_unstable_by_key(|&(_, to)| std::cmp::Reverse(to));
    let mut end = limit;
    for (from, to) in ranges {
        if to + bytes <= end {
            break;
        }
        end = end.min(from);
    }
    end.checked_sub(bytes)
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

#[cfg(test)]
mod tests {
    use super::super::ALIGN;
    use super::*;

    /// First fit by its definition: of the places where something begins to fit the lowest, or, for what lives briefly, the highest below the limit.
    fn naive(intervals: &[Interval], order: &[usize], above: Option<(u64, u64)>) -> Vec<u64> {
        let mut offsets = vec![0; intervals.len()];
        for (n, &i) in order.iter().enumerate() {
            let (this, bytes) = (intervals[i], align(intervals[i].bytes));
            let meets = |p: &&usize| intervals[**p].start <= this.end && this.start <= intervals[**p].end;
            let range = |&p: &usize| (offsets[p], offsets[p] + align(intervals[p].bytes));
            let met: Vec<(u64, u64)> = order[..n].iter().filter(meets).map(range).collect();
            let is_free = |at: &u64| met.iter().all(|(from, to)| at + bytes <= *from || at >= to);
            // What meets everything lies below.
            let always = intervals.iter().all(|other| (this.start..=this.end).contains(&other.start));
            let highest =
                above.filter(|(life, _)| !always && bytes > 0 && this.life() <= *life).and_then(|(_, limit)| {
                    let ends = met.iter().map(|(from, _)| *from).chain([limit]).filter(|end| *end <= limit);
                    ends.filter_map(|end| end.checked_sub(bytes)).filter(is_free).max()
                });
            let lowest = met.iter().map(|(_, to)| *to).chain([0]).filter(is_free).min();
            offsets[i] = highest.or(lowest).expect("there is room above all");
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
            for above in [None, Some((1 + random(3), random(20) * ALIGN))] {
                let (have, want) = (first_fit(&intervals, &order, above).0, naive(&intervals, &order, above));
                assert_eq!(have, want, "{intervals:?} in order {order:?}, {above:?}");
            }
        }
    }

    /// Intervals from `start,end,lines of memory`.
    fn of(text: &str) -> Vec<Interval> {
        let of_one = |one: &str| {
            let numbers: Vec<u64> = one.split(',').map(|n| n.parse().unwrap()).collect();
            Interval { start: numbers[0] as u32, end: numbers[1] as u32, bytes: numbers[2] * ALIGN }
        };
        text.split_whitespace().map(of_one).collect()
    }

    fn check(intervals: &[Interval], packing: &Packing) {
        for (n, (a, from)) in intervals.iter().zip(&packing.offsets).enumerate() {
            assert!(from + align(a.bytes) <= packing.bytes && from % ALIGN == 0);
            for (b, other) in intervals[..n].iter().zip(&packing.offsets) {
                let meets = a.start <= b.end && b.start <= a.end;
                assert!(!meets || from + align(a.bytes) <= *other || other + align(b.bytes) <= *from, "{a:?} {b:?}");
            }
        }
    }

    /// The fewest bytes: some order gives them.
    fn optimum(intervals: &[Interval], order: &mut Vec<usize>, best: &mut u64) {
        if order.len() == intervals.len() {
            let offsets = naive(intervals, order, None);
            *best = intervals.iter().zip(offsets).map(|(i, o)| o + align(i.bytes)).max().unwrap().min(*best);
        }
        for i in 0..intervals.len() {
            if !order.contains(&i) {
                order.push(i);
                optimum(intervals, order, best);
                order.pop();
            }
        }
    }

    /// The frame of a backward pass (gpt-oss at reduced size): a sixth is wasted by the best of the greedy orders, and nothing by the search.
    #[test]
    fn what_no_greedy_order_places_is_repaired() {
        let intervals = of(
            "0,1,64 1,4,128 2,8,64 3,9,64 5,7,1 6,7,1 7,9,8 7,9,8 10,18,144 14,15,128 15,16,64 16,17,64 17,26,128 18,39,72 \
             19,20,2 20,21,2 21,22,2 23,25,8 28,29,64 30,31,128 31,32,128 32,33,128 33,37,64 34,35,32 35,36,128 36,37,64",
        );
        let mut greedy = Search { intervals: &intervals, live: max_live(&intervals), best: None, work: 0 };
        for (key, brief) in ways() {
            greedy.place(&by(&intervals, key), brief);
        }
        let (before, packing) = (greedy.best.expect("placed").bytes, pack(&intervals));
        assert!(before * 10 > packing.live * 11, "{before} of {} bytes", packing.live);
        assert_eq!(packing.bytes, packing.live);
        check(&intervals, &packing);
        assert_eq!(pack(&intervals), packing, "the search is always the same");
    }

    /// What is there for a moment lies above what stays, which then lies where it would without that.
    #[test]
    fn what_lives_briefly_is_placed_from_above() {
        let intervals = of("4,4,2 2,2,5 2,4,3 4,8,4");
        let best_of = |from_above: bool| {
            let mut greedy = Search { intervals: &intervals, live: max_live(&intervals), best: None, work: 0 };
            for (key, brief) in ways().filter(|(_, brief)| brief.is_some() == from_above) {
                greedy.place(&by(&intervals, key), brief);
            }
            greedy.best.expect("placed")
        };
        let (below, both) = (best_of(false), best_of(true));
        assert!(below.bytes > below.live, "{below:?}");
        assert_eq!(both.bytes, both.live);
        check(&intervals, &both);
    }

    /// All orders of six intervals against the search.
    #[test]
    fn few_intervals_take_the_fewest_bytes() {
        let mut draws = Draws(7);
        for _ in 0..200 {
            let one = |draws: &mut Draws| {
                let start = draws.next(6) as u32;
                Interval { start, end: start + draws.next(4) as u32, bytes: (1 + draws.next(6) as u64) * ALIGN }
            };
            let intervals: Vec<Interval> = (0..6).map(|_| one(&mut draws)).collect();
            let (packing, mut best) = (pack(&intervals), u64::MAX);
            check(&intervals, &packing);
            optimum(&intervals, &mut vec![], &mut best);
            assert_eq!(packing.bytes, best, "{intervals:?}");
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
