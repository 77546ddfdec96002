//! The seconds of a stage's work that can hide copies to the host's memory and back.

use super::price::Price;
use crate::autodiff::Differentiated;
use crate::schedule::{Half, Run, Segments, Usage, leaves};
use forebay_ir::{Graph, Op};
use std::ops::Range;

/// The steps that a copy in one direction has, of the steps in which something is made and read.
type StepsOfCopy = fn((u32, u32), u32) -> Range<usize>;

/// For each segment, and each of its layers with swapped tensors, the seconds of the stage's work that can hide the layer's copies: the smaller of the windows of
/// copies out and copies back, each shared among the copies that are on their way at once. Ascending.
pub(super) fn windows(segments: &Segments, usage: &Usage, price: &dyn Price, ahead: u32) -> Vec<Vec<f64>> {
    let taken: Vec<Taken> = segments.list.iter().map(|segment| Taken::new(segment, price)).collect();
    let of_step = |runs: &Vec<Run>| {
        let [computed, sent] = [0, 1].map(|unit| runs.iter().map(|run| taken[run.segment].of(run)[unit]).sum::<f64>());
        // What the schedule pairs hides what the links do, or the other way round.
        if runs.len() > 1 { computed.max(sent) } else { computed + sent }
    };
    let seconds: Vec<f64> = usage.steps.iter().map(of_step).collect();
    let leaving = || usage.spans.iter().filter(|span| leaves(span.steps, ahead));
    let ways: [StepsOfCopy; 2] = [
        |(made, _), ahead| made as usize + 1..(made + ahead) as usize + 1,
        |(_, read), ahead| (read - ahead) as usize..read as usize,
    ];
    let [out, back] = ways.map(|steps_of| {
        let mut copies = vec![0u32; seconds.len()];
        leaving().for_each(|span| copies[steps_of(span.steps, ahead)].iter_mut().for_each(|n| *n += 1));
        let part = |step: usize| seconds[step] / f64::from(copies[step]);
        leaving().map(|span| steps_of(span.steps, ahead).map(part).sum::<f64>()).collect::<Vec<f64>>()
    });
    let mut windows = vec![vec![]; segments.list.len()];
    for (span, (out, back)) in leaving().zip(out.into_iter().zip(back)) {
        windows[span.segment].push(out.min(back));
    }
    windows.iter_mut().for_each(|of_segment: &mut Vec<f64>| of_segment.sort_by(f64::total_cmp));
    windows
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
