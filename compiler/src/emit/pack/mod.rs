//! Offsets: buffers that are never live at the same time may share memory.

mod fit;

use super::align;
use fit::{Above, first_fit};
use std::collections::BTreeMap;

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
/// them reaches the bound and is taken. Where none does, the same is tried with what lives briefly at the other end ([`BRIEF`]), and the best orders are repaired ([`Search::repair`]) until one
/// reaches the bound or the work is done. Where more than a hundredth is wasted then, it goes on with what is saved in each order of its sizes ([`by_sizes`]); elsewhere not, since
/// the less room there is, the more frames of neighbouring calls share it, and wait for each other. A greedy order takes O(n·p) very short steps, p being the places that
/// things share one after the other; what is alive all the time costs no more for being many.
pub fn pack(intervals: &[Interval]) -> Packing {
    pack_within(intervals, 0)
}

/// The same, but only until so many bytes are `enough`, which may be fewer than any places take. Where they are some, and fewer than are alive at once, the first
/// order is all that is tried: whoever asks whether something fits knows that it does not.
pub fn pack_within(intervals: &[Interval], enough: u64) -> Packing {
    let mut search = Search::new(intervals, enough);
    search.greedy(WORK);
    if search.wastes() && search.can_be_enough() {
        search.try_all(by_sizes(intervals, search.live), WORK);
    }
    search.best.expect("there is an order")
}

/// The same, `enough` as there, with less of a search: for places that are taken only where they are as good as others that there are already.
pub fn pack_briefly(intervals: &[Interval], enough: u64) -> Packing {
    let mut search = Search { limit: BRIEFLY, ..Search::new(intervals, enough) };
    search.greedy(WORK / 5);
    search.best.expect("there is an order")
}

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

/// An order, and what is placed from above in it.
struct Way {
    order: Vec<usize>,
    above: Option<Above>,
}

/// Greedy ways, those first that are the quickest to reach the bound.
fn ways(intervals: &[Interval], live: u64) -> impl Iterator<Item = Way> {
    let of_order = move |number: usize, above| Way { order: by(intervals, ORDERS[number]), above };
    let from_below = (0..ORDERS.len()).map(move |number| of_order(number, None));
    let both_ends = BRIEF.into_iter().map(move |(number, life)| of_order(number, Some(Above { life, limit: live })));
    from_below.chain(both_ends)
}

/// Lengths of life up to which something is brief where the others are ordered by sizes.
const BRIEF_BESIDE_SIZES: [u64; 3] = [0, 1, 2];
/// So many sizes are put in all orders, the rest are behind.
const SIZES: usize = 3;

/// What is brief from above, the rest in each order of the sizes that take most: which of them should lie at the edge, where frames reach in at times, is not to be seen from
/// the sizes. What is saved has few of them, and those of one size take no more than is alive of it at once.
fn by_sizes(intervals: &[Interval], live: u64) -> impl Iterator<Item = Way> {
    let ways = move |life: u64| {
        let above = Some(Above { life, limit: live });
        let sizes = largest_sizes(intervals, life);
        let ends: [Key; 2] = [|i| (u64::from(i.start), 0), |i| (u64::MAX - u64::from(i.end), 0)];
        let orders = permutations(sizes.len()).into_iter();
        orders.flat_map(move |places| {
            let sizes = sizes.clone();
            ends.map(|end| {
                let class = |i: &Interval| match sizes.iter().position(|size| *size == i.bytes) {
                    _ if i.life() <= life => (0, u64::MAX - i.bytes),
                    Some(size) => (1 + places[size], 0),
                    None => (1 + SIZES, u64::MAX - i.bytes),
                };
                let mut order: Vec<usize> = (0..intervals.len()).collect();
                order.sort_by_cached_key(|&i| (class(&intervals[i]), end(&intervals[i]), i));
                Way { order, above }
            })
        })
    };
    BRIEF_BESIDE_SIZES.into_iter().flat_map(ways)
}

/// Sizes of what lives longer than so many moments, those first that take most at once.
fn largest_sizes(intervals: &[Interval], life: u64) -> Vec<u64> {
    let mut by_size: BTreeMap<u64, Vec<Interval>> = BTreeMap::new();
    for interval in intervals.iter().filter(|i| i.bytes > 0 && i.life() > life) {
        by_size.entry(interval.bytes).or_default().push(*interval);
    }
    let mut sizes: Vec<(u64, u64)> = by_size.into_iter().map(|(size, all)| (max_live(&all), size)).collect();
    sizes.sort_unstable_by_key(|&taken| std::cmp::Reverse(taken));
    sizes.into_iter().map(|(_, size)| size).take(SIZES).collect()
}

/// All orders of so many things.
fn permutations(count: usize) -> Vec<Vec<usize>> {
    let mut orders: Vec<Vec<usize>> = vec![vec![]];
    for n in 0..count {
        let longer = |order: &Vec<usize>| {
            let with = |at: usize| [&order[..at], &[n], &order[at..]].concat();
            (0..=order.len()).map(with).collect::<Vec<_>>()
        };
        orders = orders.iter().flat_map(longer).collect();
    }
    orders
}

/// Intervals in an order.
fn by(intervals: &[Interval], key: Key) -> Vec<usize> {
    let mut order: Vec<usize> = (0..intervals.len()).collect();
    order.sort_by_key(|&i| (key(&intervals[i]), i));
    order
}

/// Repairs of one list of ways end when so many places were looked at: some hundredths of a second, or less.
const WORK: u64 = 10_000_000;
/// A brief search tries no more ways, and repairs none, when so many places were looked at: a tenth of a second. (A step of 512 micro-batches has 30,000 intervals, and each way looks at eight million.)
const BRIEFLY: u64 = 40_000_000;
/// So many orders are repaired, each at most [`ROUNDS`] times.
const REPAIRED: usize = 10;
/// An order is repaired at most so often.
const ROUNDS: u64 = 400;

/// A search for a good order.
struct Search<'a> {
    intervals: &'a [Interval],
    live: u64,
    /// Bytes at which the search ends; below those that are alive at once it ends at these.
    enough: u64,
    best: Option<Packing>,
    /// Places that were looked at.
    work: u64,
    /// No more ways are tried or repaired when this is reached.
    limit: u64,
}

impl Search<'_> {
    fn new(intervals: &[Interval], enough: u64) -> Search<'_> {
        let live = max_live(intervals);
        Search { intervals, live, enough, best: None, work: 0, limit: u64::MAX }
    }

    /// False where something is said to be enough that is less than what is alive at once.
    fn can_be_enough(&self) -> bool {
        self.enough == 0 || self.enough >= self.live
    }

    /// The greedy ways, and repairs of them for so much work.
    fn greedy(&mut self, work: u64) {
        let ways = ways(self.intervals, self.live);
        if self.can_be_enough() {
            self.try_all(ways, work);
        } else {
            ways.take(1).for_each(|way| drop(self.place(&way)));
        }
    }

    /// Places in an order, and remembers the best places.
    fn place(&mut self, way: &Way) -> Packing {
        let (offsets, looked_at) = first_fit(self.intervals, &way.order, way.above);
        self.work += looked_at;
        let bytes = self.intervals.iter().zip(&offsets).map(|(i, o)| o + align(i.bytes)).max().unwrap_or(0);
        let packing = Packing { offsets, bytes, live: self.live };
        if self.best.as_ref().is_none_or(|best| bytes < best.bytes) {
            self.best = Some(packing.clone());
        }
        packing
    }

    /// Places in all ways, and repairs the best of them for so much work, until the bound is reached.
    fn try_all(&mut self, ways: impl Iterator<Item = Way>, work: u64) {
        let mut tried: Vec<(u64, Way)> = vec![];
        for way in ways {
            tried.push((self.place(&way).bytes, way));
            if self.is_enough() {
                return;
            }
            if self.work >= self.limit {
                break;
            }
        }
        tried.sort_by_key(|(bytes, _)| *bytes);
        tried.truncate(REPAIRED);
        for (_, way) in tried {
            if self.work >= self.limit {
                return;
            }
            self.repair(way, work / REPAIRED as u64);
        }
    }

    /// Is more than a hundredth of the live bytes wasted?
    fn wastes(&self) -> bool {
        self.best.as_ref().is_some_and(|best| best.bytes > self.enough.max(self.live + self.live / 100))
    }

    fn is_enough(&self) -> bool {
        self.best.as_ref().is_some_and(|best| best.bytes <= self.enough.max(self.live))
    }

    /// Moves what sticks out above the bound forward in the order, places again, and so on ("squeaky wheel" optimization, Joslin and Clements, 1999). In turns it
    /// moves before all that it can be in conflict with, and by a distance that is drawn, without which the search runs in circles. The draws are always the same.
    fn repair(&mut self, mut way: Way, work: u64) {
        let until = self.work + work;
        let mut draws = Draws(1);
        let mut rank = vec![0.0; way.order.len()];
        for round in 0..ROUNDS {
            if self.is_enough() || self.work >= until {
                return;
            }
            let offsets = self.place(&way).offsets;
            let order = &mut way.order;
            order.iter().enumerate().for_each(|(place, &i)| rank[i] = place as f64);
            let (intervals, live) = (self.intervals, self.live);
            let sticks_out = |i: usize| offsets[i] + align(intervals[i].bytes) > live;
            for i in (0..order.len()).filter(|&i| sticks_out(i)) {
                rank[i] = match round % 2 {
                    0 => self.first_met(order, i) as f64 - 0.5,
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

#[cfg(test)]
mod tests {
    use super::super::ALIGN;
    use super::*;

    /// First fit by its definition: of the places where something begins to fit the lowest, or, for what lives briefly, the highest below the limit.
    fn naive(intervals: &[Interval], order: &[usize], above: Option<Above>) -> Vec<u64> {
        let mut offsets = vec![0; intervals.len()];
        for (n, &i) in order.iter().enumerate() {
            let (this, bytes) = (intervals[i], align(intervals[i].bytes));
            let meets = |p: &&usize| intervals[**p].start <= this.end && this.start <= intervals[**p].end;
            let range = |&p: &usize| (offsets[p], offsets[p] + align(intervals[p].bytes));
            let met: Vec<(u64, u64)> = order[..n].iter().filter(meets).map(range).collect();
            let is_free = |at: &u64| met.iter().all(|(from, to)| at + bytes <= *from || at >= to);
            let highest = above.filter(|above| bytes > 0 && this.life() <= above.life).and_then(|above| {
                let ends = met.iter().map(|(from, _)| *from).chain([above.limit]).filter(|end| *end <= above.limit);
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
            for above in [None, Some(Above { life: 1 + random(3), limit: random(20) * ALIGN })] {
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

    /// The frame of a backward pass (gpt-oss at reduced size).
    const BACKWARD: &str = "0,1,64 1,4,128 2,8,64 3,9,64 5,7,1 6,7,1 7,9,8 7,9,8 10,18,144 14,15,128 15,16,64 16,17,64 17,26,128 18,39,72 \
         19,20,2 20,21,2 21,22,2 23,25,8 28,29,64 30,31,128 31,32,128 32,33,128 33,37,64 34,35,32 35,36,128 36,37,64";

    /// The frame of a backward pass: a sixth is wasted by the best of the greedy orders, and nothing by the search.
    #[test]
    fn what_no_greedy_order_places_is_repaired() {
        let intervals = of(BACKWARD);
        let mut greedy = Search::new(&intervals, 0);
        ways(&intervals, greedy.live).for_each(|way| {
            greedy.place(&way);
        });
        let (before, packing) = (greedy.best.expect("placed").bytes, pack(&intervals));
        assert!(before * 10 > packing.live * 11, "{before} of {} bytes", packing.live);
        assert_eq!(packing.bytes, packing.live);
        check(&intervals, &packing);
        assert_eq!(pack(&intervals), packing, "the search is always the same");
    }

    /// A search that may look at little tries one way, and repairs nothing.
    #[test]
    fn a_search_ends_at_its_limit() {
        let intervals = of(BACKWARD);
        let searched = |limit: u64| {
            let mut search = Search { limit, ..Search::new(&intervals, 0) };
            search.greedy(WORK);
            (search.work, search.best.expect("placed").bytes)
        };
        let (whole, brief) = (searched(u64::MAX), searched(1));
        let first = Search::new(&intervals, 0).place(&ways(&intervals, max_live(&intervals)).next().expect("a way"));
        assert!(brief.0 < whole.0 / 10 && brief.1 == first.bytes && brief.1 > whole.1, "{whole:?} {brief:?}");
    }

    /// Places are looked for until enough is reached, and not at all where it cannot be.
    #[test]
    fn what_is_enough_ends_the_search() {
        let intervals = of(BACKWARD);
        let best = pack(&intervals);
        let loose = pack_within(&intervals, u64::MAX);
        assert!(loose.bytes > best.bytes, "the first order is not the best");
        for enough in [best.bytes, (best.bytes + loose.bytes) / 2, loose.bytes] {
            let packing = pack_within(&intervals, enough);
            check(&intervals, &packing);
            assert!(packing.bytes <= enough, "{} of {enough} bytes", packing.bytes);
        }
        let greedy = pack_within(&intervals, best.live - 1);
        check(&intervals, &greedy);
        assert!(greedy.bytes > best.bytes, "nothing is repaired for what does not fit");
    }

    /// What is there for a moment lies above what stays, which then lies where it would without that.
    #[test]
    fn what_lives_briefly_is_placed_from_above() {
        let intervals = of("4,4,2 2,2,5 2,4,3 4,8,4");
        let best_of = |from_above: bool| {
            let mut greedy = Search::new(&intervals, 0);
            let ways = ways(&intervals, greedy.live).filter(|way| way.above.is_some() == from_above);
            ways.for_each(|way| {
                greedy.place(&way);
            });
            greedy.best.expect("placed")
        };
        let (below, both) = (best_of(false), best_of(true));
        assert!(below.bytes > below.live, "{below:?}");
        assert_eq!(both.bytes, both.live);
        check(&intervals, &both);
    }

    /// What is left of the last calls of a stage of Pangu Ultra MoE: the frame of a backward pass alone is larger than those of pairs and reaches to where something large was,
    /// but only where that lies at the edge. Orders by size put what is small there.
    #[test]
    fn which_size_lies_beside_the_frames_is_tried() {
        let intervals = of("0,3,53 1,5,53 2,7,1 3,3,93 3,7,1 4,8,1 5,8,53 6,6,145");
        let live = max_live(&intervals);
        let best = |ways: &mut dyn Iterator<Item = Way>| {
            let mut greedy = Search::new(&intervals, 0);
            ways.for_each(|way| {
                greedy.place(&way);
            });
            greedy.best.expect("placed").bytes
        };
        let others = ORDERS.len() + BRIEF.len();
        assert!(best(&mut ways(&intervals, live).take(others)) > live);
        assert_eq!(best(&mut by_sizes(&intervals, live)), live);
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
