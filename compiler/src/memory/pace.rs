//! How a stage's copies to the host and back keep up with its work: the seconds in which they are hidden, and when memory is given up.
//!
//! ```text
//! memory    ╱‾‾‾‾‾‾‾‾‾‾╲        while the pipeline fills, memory is not full yet: copies may lag until it is,
//!         ╱              ╲      and while it drains it is full no more: they may come back early
//!  steps  fill   │ full │ drain
//! ```
//!
//! Where memory is full a copy has a number of steps, the depth of the choice. In the fill what leaves has its memory until others need the room, so that layers whose copies take
//! longer than their forward pass wait for nothing as long as others take less. The drain is the same from behind.

use super::fit::Price;
use crate::autodiff::Differentiated;
use crate::schedule::{Half, Run, Segments, Span, Usage, leaves};
use forebay_ir::{Graph, Op};
use rustc_hash::FxHashMap;
use std::ops::Range;

/// Steps of copies, by layer and micro-batch: the one after which memory is given up, and the one before which the copy back is listed.
pub type Moves = FxHashMap<(usize, u32), (u32, u32)>;

/// The time of a stage's steps, and where its memory is full.
pub struct Pace {
    /// When each step begins, seconds, and when the last one ends.
    starts: Vec<f64>,
    /// The first step in which memory is full, and the last one.
    full: (u32, u32),
    /// Steps that copies have where it is.
    ahead: u32,
    /// Layers that make something and read it again.
    spans: Vec<Span>,
}

/// Memory is full from this part of the most on.
const FULL: f64 = 0.98;

impl Pace {
    /// For a stage whose memory with everything kept is this. Copies have so many steps where it is full.
    pub fn new(segments: &Segments, usage: &Usage, price: &dyn Price, ahead: u32) -> Pace {
        let taken: Vec<Taken> = segments.list.iter().map(|segment| Taken::new(segment, price)).collect();
        let of_step = |runs: &Vec<Run>| {
            let [computed, sent] =
                [0, 1].map(|unit| runs.iter().map(|run| taken[run.segment].of(run)[unit]).sum::<f64>());
            // What the schedule pairs hides what the links do, or the other way round.
            if runs.len() > 1 { computed.max(sent) } else { computed + sent }
        };
        let mut starts = vec![0.0];
        let mut now = 0.0;
        starts.extend(usage.steps.iter().map(|runs| {
            now += of_step(runs);
            now
        }));
        let most = usage.live.iter().copied().max().unwrap_or(0) as f64;
        let is_full = |call: u32| usage.live[call as usize] as f64 >= FULL * most;
        let calls = || 0..usage.live.len() as u32;
        let (first, last) = (calls().find(|c| is_full(*c)).unwrap_or(0), calls().rfind(|c| is_full(*c)).unwrap_or(0));
        let begun = usage.spans.iter().filter(|span| span.forward <= first).map(|span| span.steps.0).max();
        let left = usage.spans.iter().filter(|span| span.backward >= last).map(|span| span.steps.1).min();
        let full = (begun.unwrap_or(0), left.unwrap_or(0));
        let spans = usage.spans.iter().filter(|span| span.steps.0 < span.steps.1).copied().collect();
        Pace { starts, full, ahead, spans }
    }

    fn seconds(&self, step: usize) -> f64 {
        self.starts[step + 1] - self.starts[step]
    }

    /// For each segment and each of its layers whose tensors leave, the seconds in which copies out and copies back may be on their way while the stage works,
    /// whichever are fewer, the least first. Where memory is full those of the steps that copies have, of which each that is on its way has its part; in the fill and in the drain
    /// a part of all of it, by what there is to copy: `whole` seconds of each segment.
    pub fn windows(&self, whole: &[f64]) -> Vec<Vec<f64>> {
        let spans: Vec<&Span> = self.spans.iter().filter(|span| leaves(span.steps, self.ahead)).collect();
        let [out, back] = [Way::Out, Way::Back].map(|way| {
            let mut copies = vec![0u32; self.starts.len()];
            let steps = |span: &Span| self.steps(span, way);
            let steady = spans.iter().filter(|span| !self.is_free(span, way));
            steady.for_each(|span| copies[steps(span)].iter_mut().for_each(|n| *n += 1));
            let part = |step: usize| self.seconds(step) / f64::from(copies[step]);
            let of_free = |span: &Span| self.is_free(span, way).then(|| whole[span.segment]);
            let all: f64 = spans.iter().filter_map(|span| of_free(span)).sum();
            let free = match way {
                Way::Out => self.starts[self.full.0 as usize],
                Way::Back => self.starts[self.starts.len() - 1] - self.starts[self.full.1 as usize],
            };
            let window = |span: &&Span| match of_free(span) {
                Some(seconds) if all > 0.0 => free * seconds / all,
                Some(_) => 0.0,
                None => steps(span).map(part).sum::<f64>(),
            };
            spans.iter().map(window).collect::<Vec<f64>>()
        });
        let mut windows = vec![vec![]; whole.len()];
        for (span, (out, back)) in spans.iter().zip(out.into_iter().zip(back)) {
            windows[span.segment].push(out.min(back));
        }
        windows.iter_mut().for_each(|of_segment: &mut Vec<f64>| of_segment.sort_by(f64::total_cmp));
        windows
    }

    /// Is memory not full yet when a copy leaves, or full no more when it comes back?
    fn is_free(&self, span: &Span, way: Way) -> bool {
        match way {
            Way::Out => span.steps.0 + self.ahead < self.full.0,
            Way::Back => span.steps.1 > self.full.1 + self.ahead,
        }
    }

    /// The steps of a copy where memory is full.
    fn steps(&self, span: &Span, way: Way) -> Range<usize> {
        let (made, read) = span.steps;
        match way {
            Way::Out => made as usize + 1..(made + self.ahead) as usize + 1,
            Way::Back => (read - self.ahead) as usize..read as usize,
        }
    }

    /// When layers whose tensors leave give up their memory, and when copies back are listed: for each segment the bytes of what stays and of what leaves.
    pub fn moves(&self, stays: &[u64], leaves: &[u64]) -> Moves {
        let last = self.starts.len() as u32;
        let lives = |way: Way| {
            let life = |span: &Span| match way {
                Way::Out => span.steps,
                Way::Back => (last - span.steps.1, last - span.steps.0),
            };
            let full = if way == Way::Out { self.full.0 } else { last - self.full.1 };
            let lives =
                self.spans.iter().map(|s| Life { steps: life(s), bytes: [stays[s.segment], leaves[s.segment]] });
            given_up(&lives.collect::<Vec<Life>>(), full)
        };
        let (out, back) = (lives(Way::Out), lives(Way::Back));
        let mut moves = Moves::default();
        for (span, (out, back)) in self.spans.iter().zip(out.into_iter().zip(back)) {
            let (made, read) = span.steps;
            if leaves[span.segment] > 0 && crate::schedule::leaves(span.steps, self.ahead) {
                // (Something is gained between the two.)
                let until = out.min(read - self.ahead - 2).max(made + self.ahead);
                let list = (last - back).min(read - self.ahead).max(until + 2);
                moves.insert((span.layer, span.micro_batch), (until, list));
            }
        }
        moves
    }
}

/// The tensors of a layer on a micro-batch.
struct Life {
    /// The steps in which it makes them and reads them.
    steps: (u32, u32),
    /// Bytes of what stays, and of what leaves.
    bytes: [u64; 2],
}

/// For each the last step in which there is room for what leaves, when memory is full from a step on: until then the newest stay.
fn given_up(lives: &[Life], full: u32) -> Vec<u32> {
    let mut until: Vec<u32> = lives.iter().map(|life| life.steps.0).collect();
    let staying = |step: u32| {
        let alive = lives.iter().filter(|life| life.steps.0 <= step && step <= life.steps.1);
        alive.map(|life| life.bytes[0]).sum::<u64>()
    };
    let most = staying(full);
    let mut order: Vec<usize> = (0..lives.len()).filter(|&i| lives[i].steps.0 <= full).collect();
    order.sort_by_key(|&i| lives[i].steps);
    for step in 0..full {
        let mut room = most.saturating_sub(staying(step));
        let made = order.partition_point(|&i| lives[i].steps.0 <= step);
        for &i in order[..made].iter().rev() {
            // What has been given up is gone.
            if until[i] + 1 < step || lives[i].steps.1 < step {
                continue;
            }
            let Some(left) = room.checked_sub(lives[i].bytes[1]) else { break };
            room = left;
            until[i] = step;
        }
    }
    until
}

/// To the host's memory, or from there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    Out,
    Back,
}

/// Seconds of a layer, of compute units and of links.
struct Taken {
    forward: [f64; 2],
    /// All of it, the half that others wait for, and the other half.
    backward: [[f64; 2]; 3],
}

impl Taken {
    fn new(segment: &Differentiated, price: &dyn Price) -> Taken {
        let of = |graph: &Graph| {
            let mut seconds = [0.0; 2];
            for value in graph.values() {
                seconds[usize::from(matches!(graph.node(value).op, Op::Comm(_)))] += price.seconds(graph, value);
            }
            seconds
        };
        let backward = [&segment.backward, &segment.backward_input, &segment.backward_weight];
        Taken { forward: of(&segment.forward), backward: backward.map(of) }
    }

    fn of(&self, run: &Run) -> [f64; 2] {
        match run.backward {
            None => self.forward,
            Some(Half::Whole) => self.backward[0],
            Some(Half::Input) => self.backward[1],
            Some(Half::Weights) => self.backward[2],
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Eight layers one after another, then backward in the same order: memory is full once the last is there.
    #[test]
    fn the_newest_stay_while_there_is_room() {
        let lives = |bytes| (0..8).map(|i| Life { steps: (i, 20 + i), bytes }).collect::<Vec<Life>>();
        // In step s there is room for 7 - s that stay: the newest have it.
        assert_eq!(given_up(&lives([1, 1]), 7), [3, 3, 4, 4, 5, 5, 6, 7]);
        assert_eq!(given_up(&lives([3, 4]), 7), [2, 3, 3, 4, 4, 5, 6, 7]);
        // Where nothing stays there is no room to speak of, and what is too large for it never waits.
        assert_eq!(given_up(&lives([0, 1]), 7), [0, 1, 2, 3, 4, 5, 6, 7]);
        assert_eq!(given_up(&lives([1, 9]), 7), [0, 1, 2, 3, 4, 5, 6, 7]);
        // Memory that is full at once has no fill.
        assert_eq!(given_up(&lives([1, 1]), 0), [0, 1, 2, 3, 4, 5, 6, 7]);
    }

    #[test]
    fn room_is_never_exceeded() {
        let mut seed = 7u64;
        let mut draw = |n: u64| {
            seed = seed.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            (seed >> 33) % n
        };
        for _ in 0..200 {
            let full = 4 + draw(12) as u32;
            let life = |i: u32, draw: &mut dyn FnMut(u64) -> u64| Life {
                steps: (i, i + 1 + draw(30) as u32),
                bytes: [draw(5), draw(5)],
            };
            let lives: Vec<Life> = (0..full + 4).map(|i| life(i, &mut draw)).collect();
            let until = given_up(&lives, full);
            let at = |step: u32, lagging: bool| {
                let of_life = |(life, until): (&Life, &u32)| {
                    let (made, read) = life.steps;
                    let stays = if made <= step && step <= read { life.bytes[0] } else { 0 };
                    let lags = lagging && made < step && step <= *until;
                    stays + if lags { life.bytes[1] } else { 0 }
                };
                lives.iter().zip(&until).map(of_life).sum::<u64>()
            };
            let most = at(full, false);
            assert!((0..full).all(|step| at(step, true) <= most.max(at(step, false))));
        }
    }
}
