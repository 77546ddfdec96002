//! How long a pipeline takes, by the recurrence of its schedule: a pass begins when its stage is free and what it needs has come.
//!
//! The order of passes is laid out once for each (schedule, stages, chunks, micro-batches), so that a pipeline costs two maxima and an addition for each pass.
//! Once a pipeline is full every round of as many micro-batches as there are stages takes as long as the one before: longer steps are a round's time more for
//! each round.

use forebay_compiler::schedule::{Half, Work, orders};
use forebay_compiler::shard::Strategy;
use forebay_pipeline::{Kind, Placement};

/// What a stage does next.
#[derive(Clone, Copy, Debug)]
struct Item {
    stage: u32,
    part: u32,
    micro: u32,
    op: Op,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Op {
    Forward,
    /// Backward, whole.
    Backward,
    /// The half of it that others wait for.
    Input,
    /// The other half.
    Weights,
}

/// The passes of all stages, each behind those that it needs.
#[derive(Clone, Debug)]
pub struct PassOrder {
    items: Vec<Item>,
    stages: usize,
    parts: usize,
    micro: usize,
    /// For each stage what is under way in its passes.
    pub under_way: Vec<Vec<UnderWay>>,
    /// For each part the stage that has it.
    pub stage_of: Vec<usize>,
}

/// Micro-batches under way while a stage does a pass: gone forward, its own included, and not all of the way back.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnderWay {
    /// The chunk that the pass is of.
    pub chunk: usize,
    /// What it does.
    pub pass: Under,
    /// For each chunk, how many.
    pub micro_batches: Vec<u32>,
    /// Of these, how many have gone back but for the half that nobody waits for.
    pub halved: Vec<u32>,
}

/// A pass of which something is under way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Under {
    /// Forward or backward, where backward passes are whole.
    Whole,
    /// Forward.
    Forward,
    /// The half of a backward pass that others wait for.
    Input,
    /// The other half; its own micro-batch is among those that have gone back so far.
    Weights,
}

/// Seconds of one micro-batch through each part of the model, and of messages.
#[derive(Clone, Debug, Default)]
pub struct Passes {
    /// Forward.
    pub forward: Vec<f64>,
    /// Backward, or the half of it that others wait for.
    pub backward: Vec<f64>,
    /// The other half; 0 where there is one alone.
    pub weights: Vec<f64>,
    /// A message from each part to the next.
    pub ahead: Vec<f64>,
    /// A message back to each part from the next.
    pub back: Vec<f64>,
}

/// Memory of a recurrence, kept between pipelines.
#[derive(Debug, Default)]
pub struct Scratch {
    forward: Vec<f64>,
    backward: Vec<f64>,
}

impl PassOrder {
    /// Lays out a schedule.
    ///
    /// # Errors
    /// When the schedule does not exist at that size: a sentence.
    pub fn new(kind: Kind, stages: u32, chunks: u32, micro: u32) -> Result<PassOrder, String> {
        let schedule = forebay_compiler::shard::Order::Published(kind);
        let strategy = Strategy { pp: stages, vpp: chunks, schedule, ..Strategy::default() };
        let of_stages = orders(&strategy, micro).map_err(|error| error.to_string())?;
        // Pairs are replayed: here are schedules without.
        let of_stages: Vec<Vec<Work>> =
            of_stages.iter().map(|order| order.iter().flat_map(|turn| turn.works()).collect()).collect();
        let wave = kind.placement() == Placement::Wave;
        let part =
            |stage: u32, chunk: u32| chunk * stages + if wave && chunk % 2 == 1 { stages - 1 - stage } else { stage };
        let parts = (stages * chunks) as usize;
        let mut stage_of = vec![0; parts];
        for stage in 0..stages {
            (0..chunks).for_each(|chunk| stage_of[part(stage, chunk) as usize] = stage as usize);
        }
        let size = parts * micro as usize;
        let (mut forward, mut backward) = (vec![false; size], vec![false; size]);
        let (mut items, mut next) = (vec![], vec![0; stages as usize]);
        loop {
            let mut moved = false;
            for (stage, order) in (0..stages).zip(&of_stages) {
                while let Some(work) = order.get(next[stage as usize]) {
                    let (micro_batch, chunk, op) = match *work {
                        Work::Forward(m, c) => (m, c, Op::Forward),
                        Work::Backward(m, c, Half::Weights) => (m, c, Op::Weights),
                        Work::Backward(m, c, Half::Input) => (m, c, Op::Input),
                        Work::Backward(m, c, Half::Whole) => (m, c, Op::Backward),
                    };
                    let part = part(stage, chunk) as usize;
                    let place = |part: usize| part * micro as usize + micro_batch as usize;
                    let ready = match op {
                        Op::Forward => part == 0 || forward[place(part - 1)],
                        Op::Backward | Op::Input if part + 1 == parts => forward[place(part)],
                        Op::Backward | Op::Input => backward[place(part + 1)],
                        Op::Weights => true,
                    };
                    if !ready {
                        break;
                    }
                    match op {
                        Op::Forward => forward[place(part)] = true,
                        Op::Backward | Op::Input => backward[place(part)] = true,
                        Op::Weights => {}
                    }
                    items.push(Item { stage, part: part as u32, micro: micro_batch, op });
                    next[stage as usize] += 1;
                    moved = true;
                }
            }
            if !moved {
                break;
            }
        }
        if next.iter().zip(&of_stages).any(|(n, order)| *n < order.len()) {
            return Err(format!("{} waits for itself with {stages} stages and {micro} micro-batches", kind.name()));
        }
        let under_way = of_stages.iter().map(|order| most_under_way(order, chunks)).collect();
        Ok(PassOrder { items, stages: stages as usize, parts, micro: micro as usize, under_way, stage_of })
    }

    /// When each stage has done its last pass, seconds.
    pub fn ends(&self, passes: &Passes, scratch: &mut Scratch) -> Vec<f64> {
        let size = self.parts * self.micro;
        scratch.forward.resize(size.max(scratch.forward.len()), 0.0);
        scratch.backward.resize(size.max(scratch.backward.len()), 0.0);
        let (forward, backward) = (&mut scratch.forward[..size], &mut scratch.backward[..size]);
        let mut free = vec![0.0f64; self.stages];
        for item in &self.items {
            let (stage, part) = (item.stage as usize, item.part as usize);
            let place = part * self.micro + item.micro as usize;
            let now = free[stage];
            // A part and the next one on the same stage need no message.
            let from =
                |other: usize, done: f64, way: f64| if self.stage_of[other] == stage { done } else { done + way };
            free[stage] = match item.op {
                Op::Forward => {
                    let come = match part.checked_sub(1) {
                        Some(before) => from(before, forward[place - self.micro], passes.ahead[before]),
                        None => 0.0,
                    };
                    forward[place] = now.max(come) + passes.forward[part];
                    forward[place]
                }
                Op::Backward | Op::Input => {
                    let come = if part + 1 == self.parts {
                        forward[place]
                    } else {
                        from(part + 1, backward[place + self.micro], passes.back[part])
                    };
                    // (The half for the weights takes no time where no backward pass is in halves.)
                    let weights = if matches!(item.op, Op::Backward) { passes.weights[part] } else { 0.0 };
                    backward[place] = now.max(come) + passes.backward[part] + weights;
                    backward[place]
                }
                Op::Weights => now + passes.weights[part],
            };
        }
        free
    }
}

/// What is under way in the passes of a stage, without those of a chunk in which another of the same chunk has as much of everything.
fn most_under_way(order: &[Work], chunks: u32) -> Vec<UnderWay> {
    let split = order.iter().any(|work| matches!(work, Work::Backward(_, _, Half::Weights)));
    let none = vec![0u32; chunks as usize];
    let mut now = UnderWay { chunk: 0, pass: Under::Whole, micro_batches: none.clone(), halved: none };
    let mut most: Vec<UnderWay> = vec![];
    for work in order {
        // (A schedule with halves may have whole backward passes as well.)
        let (chunk, pass, ends) = match *work {
            Work::Forward(_, c) => (c as usize, Under::Forward, false),
            Work::Backward(_, c, Half::Whole) => (c as usize, Under::Whole, true),
            Work::Backward(_, c, Half::Input) => (c as usize, Under::Input, false),
            Work::Backward(_, c, Half::Weights) => (c as usize, Under::Weights, true),
        };
        now.micro_batches[chunk] += u32::from(pass == Under::Forward);
        (now.chunk, now.pass) = (chunk, if split { pass } else { Under::Whole });
        if !most.iter().any(|of| now.is_within(of)) {
            most.retain(|of| !of.is_within(&now));
            most.push(now.clone());
        }
        now.micro_batches[chunk] -= u32::from(ends);
        match pass {
            Under::Input => now.halved[chunk] += 1,
            Under::Weights => now.halved[chunk] -= 1,
            Under::Whole | Under::Forward => {}
        }
    }
    most
}

impl UnderWay {
    /// Has another pass of the same kind and chunk as much of everything under way?
    fn is_within(&self, other: &UnderWay) -> bool {
        let within = |a: &[u32], b: &[u32]| a.iter().zip(b).all(|(a, b)| a <= b);
        (self.chunk, self.pass) == (other.chunk, other.pass)
            && within(&self.micro_batches, &other.micro_batches)
            && within(&self.halved, &other.halved)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn longest(kind: Kind, (stages, chunks, micro): (u32, u32, u32), passes: &Passes) -> f64 {
        let order = PassOrder::new(kind, stages, chunks, micro).expect("it exists");
        order.ends(passes, &mut Scratch::default()).into_iter().fold(0.0, f64::max)
    }

    fn even(parts: usize) -> Passes {
        Passes {
            forward: vec![3.0; parts],
            backward: vec![5.0; parts],
            weights: vec![0.0; parts],
            ahead: vec![0.0; parts],
            back: vec![0.0; parts],
        }
    }

    /// (p − 1)(F + B) of bubble whatever the number of chunks, and no less for GPipe.
    #[test]
    fn bubbles_are_those_of_the_papers() {
        for (p, m) in [(1, 1), (2, 2), (4, 8), (8, 24)] {
            let want = f64::from(m + p - 1) * 8.0;
            assert_eq!(longest(Kind::OneFOneB, (p, 1, m), &even(p as usize)), want);
            assert_eq!(longest(Kind::GPipe, (p, 1, m), &even(p as usize)), want);
        }
        assert_eq!(longest(Kind::Interleaved, (4, 2, 8), &even(8)), f64::from(16 + 3) * 8.0);
    }

    /// Two stages, two micro-batches, messages of 1: F F B B, and each way waits.
    #[test]
    fn messages_are_waited_for() {
        let passes = Passes { ahead: vec![1.0], back: vec![1.0], ..even(2) };
        let slower = Passes { ahead: vec![2.0], back: vec![4.0], ..even(2) };
        // Stage 1 begins at 4, has B0 at 12 and B1 at 20; stage 0 has B1 at 26.
        assert_eq!(longest(Kind::OneFOneB, (2, 1, 2), &passes), 26.0);
        // The same with one second more ahead and three more back.
        assert_eq!(longest(Kind::OneFOneB, (2, 1, 2), &slower), 30.0);
        // Three stages, of which the last is far: the first micro-batch passes each boundary once each way.
        let far = Passes { ahead: vec![1.0, 10.0], back: vec![2.0, 20.0], ..even(3) };
        assert_eq!(longest(Kind::OneFOneB, (3, 1, 1), &far), 3.0 * 8.0 + 33.0);
    }

    #[test]
    fn micro_batches_under_way_are_counted() {
        let counts = |kind, (stages, chunks, micro)| -> Vec<Vec<(usize, Vec<u32>)>> {
            let order = PassOrder::new(kind, stages, chunks, micro).expect("it exists");
            let of_stage = |of: &Vec<UnderWay>| of.iter().map(|u| (u.chunk, u.micro_batches.clone())).collect();
            order.under_way.iter().map(of_stage).collect()
        };
        let single = |most: [u32; 4]| most.map(|n| vec![(0, vec![n])]);
        assert_eq!(counts(Kind::OneFOneB, (4, 1, 8)), single([4, 3, 2, 1]));
        assert_eq!(counts(Kind::GPipe, (2, 1, 8)), [vec![(0, vec![8])], vec![(0, vec![8])]]);
        // F0 F1 | F0' B0' | F1' B1' | F2 B0 | F3 B1 | …: while the last stage does a pass of its first chunk, nothing is under way in its second one.
        let of_last = counts(Kind::Interleaved, (2, 2, 8)).pop().expect("two stages");
        assert_eq!(of_last, [(1, vec![2, 1]), (0, vec![3, 0])]);
    }
}
