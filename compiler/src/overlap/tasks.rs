//! A program as tasks: how long each takes on which unit, what it needs, and the memory that it touches. Frames are taken apart: a buffer of the frame is
//! memory of its own, since it is placed after the order is known.

use super::lanes::Lanes;
use crate::emit::align;
use forebay_plan::verify::ALIGN;
use forebay_plan::verify::order::Intervals;
use forebay_plan::{ExchangeKind, Kernel, Program, StreamKind};
use rustc_hash::FxHashMap;

/// The instructions of a program as tasks.
pub(super) struct Tasks {
    /// Seconds of each.
    pub seconds: Vec<f64>,
    /// The unit of each, by [`StreamKind::number`].
    pub unit: Vec<usize>,
    /// For each those that must have ended, in their given order.
    pub needs: Vec<Vec<u32>>,
    /// For each the buffers of the frame that it touches.
    pub touches: Vec<Vec<u32>>,
    /// Bytes of each buffer in the frame; 0 for others.
    pub bytes: Vec<u64>,
    /// Those that make what is waited for elsewhere or send it, in their given order.
    pub awaited: Vec<u32>,
    /// Seconds lost for each that is hidden.
    pub slowdown: f64,
}

/// An order, timed.
pub(super) struct Timed {
    /// Seconds until all have ended; what runs beside something else slows it down, by [`Tasks::slowdown`] of the time that is hidden.
    pub cost: f64,
    /// Seconds until all have ended.
    pub makespan: f64,
    /// Seconds until what is waited for elsewhere is there, a mean of all that is.
    pub awaited: f64,
    /// For each place in the order the last place that may have begun before it ends.
    pub until: Vec<u32>,
}

/// What is known of a piece of memory.
#[derive(Clone, Default)]
struct Piece {
    writer: Option<u32>,
    readers: Vec<u32>,
}

impl Tasks {
    /// The tasks of a program. Its frame is its last slot; `awaited` are slots whose contents are waited for elsewhere.
    pub fn new((program, awaited): (&Program, &[usize]), lanes: &Lanes) -> Tasks {
        let frame = program.slots.len() as u32 - 1;
        let times = lanes.times();
        let seconds = times.instructions(program, lanes);
        let bytes = program.buffers.iter().map(|b| if b.slot == frame { align(b.bytes()) } else { 0 }).collect();
        let mut slots: Vec<Intervals<Piece>> = vec![Intervals::default(); program.slots.len()];
        let mut frames: Vec<Intervals<Piece>> = vec![Intervals::default(); program.buffers.len()];
        let mut tasks = Tasks {
            seconds: vec![],
            unit: vec![],
            needs: vec![],
            touches: vec![],
            bytes,
            awaited: vec![],
            slowdown: times.slowdown(),
        };
        let (mut attended, mut products) = (None, vec![]);
        // The last message of each channel, sent (true) and received.
        let mut messages: FxHashMap<(bool, u32, u32), u32> = FxHashMap::default();
        let mut met = None;
        for (at, instruction) in (0..).zip(&program.instructions) {
            let kind = lanes.of(&instruction.kernel);
            let seconds = match instruction.kernel {
                // A message is on its way while its stream goes on, and before it is asked for.
                Kernel::Send(_) | Kernel::Recv(_) => 0.0,
                _ => seconds[at as usize],
            };
            tasks.seconds.push(seconds);
            tasks.unit.push(kind.number());
            let (mut needs, mut touches) = (vec![], vec![]);
            let operands = instruction.kernel.operands();
            let mut memory = |id: u32, visit: &mut dyn FnMut(&mut Intervals<Piece>, u64, u64)| {
                let buffer = &program.buffers[id as usize];
                if buffer.slot == frame {
                    visit(&mut frames[id as usize], 0, 1);
                } else {
                    let end = (buffer.offset + buffer.bytes()).div_ceil(ALIGN);
                    visit(&mut slots[buffer.slot as usize], buffer.offset / ALIGN, end);
                }
            };
            for operand in &operands {
                memory(operand.buffer, &mut |pieces, start, end| {
                    pieces.scan(start, end, |_, _, piece| {
                        let Some(piece) = piece else { return };
                        needs.extend(piece.writer);
                        if operand.usage.writes() {
                            needs.extend(&piece.readers);
                        }
                    });
                });
                if program.buffers[operand.buffer as usize].slot == frame {
                    touches.push(operand.buffer);
                }
            }
            // Stages have programs of their own, whose orders are found apart: where they meet, it is as it is written.
            if lanes.is_between_stages(&instruction.kernel) {
                needs.extend(met.replace(at));
            }
            // Keys of a ring travel one part ahead: what travels further needs memory, and is there in time anyway.
            match &instruction.kernel {
                Kernel::Exchange(k) if k.kind() == ExchangeKind::Shift => needs.extend(attended),
                // Messages of a channel keep their order, which the other stage goes by.
                Kernel::Send(m) => needs.extend(messages.insert((true, m.peer, m.channel), at)),
                // A message from another stage is still to come: nothing that is already there waits behind it.
                Kernel::Recv(m) => {
                    needs.extend(&products);
                    needs.extend(messages.insert((false, m.peer, m.channel), at));
                }
                Kernel::Attention(_) | Kernel::AttentionBackward(_) => attended = Some(at),
                _ => {}
            }
            if instruction.kernel.is_product() {
                products.push(at);
            }
            for operand in operands.iter().filter(|o| o.usage.reads()) {
                memory(operand.buffer, &mut |pieces, start, end| {
                    pieces.fill(start, end, &Piece::default());
                    pieces.change(start, end, |piece| piece.readers.push(at));
                });
            }
            for operand in operands.iter().filter(|o| o.usage.writes()) {
                memory(operand.buffer, &mut |pieces, start, end| {
                    pieces.set(start, end, Piece { writer: Some(at), readers: vec![] });
                });
            }
            for list in [&mut needs, &mut touches] {
                list.sort_unstable();
                list.dedup();
            }
            tasks.needs.push(needs);
            tasks.touches.push(touches);
            let is_awaited = |buffer: u32| awaited.contains(&(program.buffers[buffer as usize].slot as usize));
            let sends = matches!(instruction.kernel, Kernel::Send(_));
            if sends || operands.iter().any(|o| o.usage.writes() && is_awaited(o.buffer)) {
                tasks.awaited.push(at);
            }
        }
        tasks
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.seconds.len()
    }

    /// Is there work for more than one unit?
    pub fn is_mixed(&self) -> bool {
        self.unit.windows(2).any(|pair| pair[0] != pair[1])
    }

    /// For each those that need it.
    pub fn users(&self) -> Vec<Vec<u32>> {
        let mut users: Vec<Vec<u32>> = vec![vec![]; self.len()];
        for (at, needs) in (0..).zip(&self.needs) {
            needs.iter().for_each(|&need| users[need as usize].push(at));
        }
        users
    }

    /// Seconds that every order takes at least: the work of a unit, or what must come one after the other.
    pub fn least(&self) -> f64 {
        let mut work = [0.0f64; StreamKind::COUNT];
        let mut ends = vec![0.0f64; self.len()];
        for at in 0..self.len() {
            work[self.unit[at]] += self.seconds[at];
            ends[at] = self.needs[at].iter().map(|&n| ends[n as usize]).fold(0.0, f64::max) + self.seconds[at];
        }
        work.into_iter().chain(ends).fold(0.0, f64::max)
    }

    /// An order, timed: units work at the same time, each in its order, as soon as what is needed has ended.
    pub fn timed(&self, order: &[u32]) -> Timed {
        let mut free = [0.0f64; StreamKind::COUNT];
        let mut ends = vec![0.0f64; self.len()];
        let mut spans = Vec::with_capacity(self.len());
        for &at in order {
            let at = at as usize;
            let start = self.needs[at].iter().map(|&n| ends[n as usize]).fold(free[self.unit[at]], f64::max);
            ends[at] = start + self.seconds[at];
            free[self.unit[at]] = ends[at];
            spans.push((start, ends[at]));
        }
        let makespan = free.into_iter().fold(0.0, f64::max);
        let awaited = self.awaited.iter().map(|&at| ends[at as usize]).sum::<f64>() / self.awaited.len().max(1) as f64;
        let work: f64 = self.seconds.iter().sum();
        let cost = makespan + self.slowdown * (work - makespan).max(0.0);
        // What has started before an instruction ends: places in the order by their start, and for each the last place so far.
        let mut starts: Vec<(f64, u32)> = (0..).zip(&spans).map(|(place, span)| (span.0, place)).collect();
        starts.sort_by(|a, b| a.0.total_cmp(&b.0).then(a.1.cmp(&b.1)));
        let mut last = 0;
        for (_, place) in &mut starts {
            last = last.max(*place);
            *place = last;
        }
        let until = |(place, (_, end)): (u32, &(f64, f64))| {
            let begun = starts.partition_point(|(start, _)| start < end);
            begun.checked_sub(1).map_or(place, |at| starts[at].1.max(place))
        };
        Timed { cost, makespan, awaited, until: (0..).zip(&spans).map(until).collect() }
    }

    /// The most bytes of the frame that are alive at once in an order.
    pub fn live(&self, order: &[u32], until: &[u32]) -> u64 {
        let mut lives: Vec<Option<(u32, u32)>> = vec![None; self.bytes.len()];
        for (place, &at) in (0..).zip(order) {
            for &b in &self.touches[at as usize] {
                let (_, end) = lives[b as usize].get_or_insert((place, place));
                *end = (*end).max(until[place as usize]);
            }
        }
        let mut change = vec![0i64; order.len() + 1];
        for (life, bytes) in lives.iter().zip(&self.bytes) {
            if let Some((start, end)) = life {
                change[*start as usize] += *bytes as i64;
                change[*end as usize + 1] -= *bytes as i64;
            }
        }
        let now = change.into_iter().scan(0i64, |now, by| {
            *now += by;
            Some(*now)
        });
        now.max().unwrap_or(0) as u64
    }

    /// For each: does nothing that is waited for elsewhere need it?
    pub fn unawaited(&self) -> Vec<bool> {
        let mut unawaited = vec![true; self.len()];
        self.awaited.iter().for_each(|&at| unawaited[at as usize] = false);
        for at in (0..self.len()).rev().filter(|_| !self.awaited.is_empty()) {
            if !unawaited[at] {
                self.needs[at].iter().for_each(|&need| unawaited[need as usize] = false);
            }
        }
        unawaited
    }

    /// For each buffer how many tasks touch it.
    pub fn uses(&self) -> Vec<u32> {
        let mut uses = vec![0; self.bytes.len()];
        self.touches.iter().flatten().for_each(|&b| uses[b as usize] += 1);
        uses
    }
}
