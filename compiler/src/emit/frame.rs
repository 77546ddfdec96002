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
/// nested lifetimes of a forward and a backward pass the first order that reaches the bound is taken. O(n²) in the worst case.
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
    let mut met = vec![];
    for &i in order {
        let this = intervals[i];
        placed.meeting(this, &mut met);
        met.sort_unstable_by_key(|&p| offsets[p as usize]);
        let mut offset = 0;
        for &p in &met {
            let p = p as usize;
            if offsets[p] >= offset + align(this.bytes) {
                break;
            }
            offset = offset.max(offsets[p] + align(intervals[p].bytes));
        }
        offsets[i] = offset;
        placed.insert(i, this);
    }
    offsets
}

/// Intervals by the time of their lives: finds those that meet another without looking at all of them.
///
/// Those that are alive at a moment are on the path to it in a segment tree; those that begin later are listed by their begin.
struct Lives {
    /// The moments at which intervals start, sorted: what lies between two of them makes no difference.
    moments: Vec<u32>,
    beginning: Vec<Vec<u32>>,
    tree: Vec<Vec<u32>>,
}

impl Lives {
    fn new(intervals: &[Interval]) -> Lives {
        let mut moments: Vec<u32> = intervals.iter().map(|i| i.start).collect();
        moments.sort_unstable();
        moments.dedup();
        let n = moments.len();
        Lives { moments, beginning: vec![vec![]; n], tree: vec![vec![]; 2 * n.max(1)] }
    }

    /// The moments of a life, half-open.
    fn span(&self, life: Interval) -> (usize, usize) {
        (self.moments.partition_point(|&m| m < life.start), self.moments.partition_point(|&m| m <= life.end))
    }

    fn insert(&mut self, number: usize, life: Interval) {
        let (from, to) = self.span(life);
        self.beginning[from].push(number as u32);
        let (mut low, mut high) = (from + self.moments.len(), to + self.moments.len());
        while low < high {
            if low % 2 == 1 {
                self.tree[low].push(number as u32);
                low += 1;
            }
            if high % 2 == 1 {
                high -= 1;
                self.tree[high].push(number as u32);
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
            met.extend(&self.tree[node]);
            node /= 2;
        }
        for beginning in &self.beginning[from + 1..to] {
            met.extend(beginning);
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
