//! Choices of a pipeline stage until its arena fits.
//!
//! ```text
//! schedule everything kept ──► peak ──fits──► done
//!                               │
//!                  bytes to save ──► choose ──► splice ──► schedule ──► peak      again with what the peak says
//! ```
//!
//! [`choose`](super::choose) counts bytes of saved tensors alone; frames, gradients and what placing wastes follow from the programs. So each choice
//! is scheduled and placed as it will run, and the number of bytes to save is corrected by what came out. The peak that counts is the plan's.

use super::choose::{Away, Choice, Part, Problem, Selection};
use super::recompute::keep;
use super::table::{self, StageMemory};
use crate::rewrite::Profile;
use crate::schedule::{Segments, Usage};
use forebay_ir::{Graph, InputRole, Op, OutputRole, ValueId};
use forebay_plan as plan;
use std::fmt;

/// What it costs to make a value.
pub trait Price {
    /// Seconds, when its operands are in memory.
    fn seconds(&self, graph: &Graph, value: ValueId) -> f64;

    /// Seconds until so many bytes are on the rank that is `apart` ranks away.
    fn message(&self, apart: u64, bytes: f64) -> f64;

    /// Seconds of each program of a plan, while programs like it run before and after it.
    ///
    /// # Errors
    /// When the plan cannot be timed.
    fn programs(&self, plan: &plan::Plan) -> Result<Vec<f64>, String>;

    /// Seconds to copy bytes to the host's memory, or from there; none where nothing is known of that, and nothing is swapped.
    fn copy_seconds(&self, _bytes: f64) -> Option<f64> {
        None
    }

    /// Ranks of a node, where it is known how they are connected.
    fn node(&self) -> Option<u32> {
        None
    }
}

impl Price for Profile {
    fn seconds(&self, graph: &Graph, value: ValueId) -> f64 {
        Profile::seconds(self, graph, value)
    }

    /// Read and written once: ranks of one machine.
    fn message(&self, _: u64, bytes: f64) -> f64 {
        self.launch + 2.0 * bytes / self.bandwidth
    }

    /// The sum over their kernels, each as long as its FLOPs or its bytes take.
    fn programs(&self, plan: &plan::Plan) -> Result<Vec<f64>, String> {
        let of_program = |program: &plan::Program| {
            let kernels = program.instructions.iter().map(|i| &i.kernel);
            kernels.map(|kernel| self.kernel(kernel, kernel.traffic(&program.buffers).bytes() as f64)).sum()
        };
        Ok(plan.programs.iter().map(of_program).collect())
    }
}

/// How much memory a device's arena may take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Aim {
    /// As much as there is to keep.
    Fastest,
    /// At most so many bytes.
    Within(u64),
    /// As little as can be.
    Least,
}

/// A stage that does not fit, whatever is made again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Misfit {
    /// The stage.
    pub stage: u32,
    /// Bytes that were allowed.
    pub budget: u64,
    /// The least that it takes in any form that was tried.
    pub least: u64,
    /// Bytes of that which outlive a step: parameters, gradients, optimizer state.
    pub persistent: u64,
}

impl fmt::Display for Misfit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Misfit { stage, budget, least, persistent } = self;
        write!(
            f,
            "stage {stage} needs {} in the smallest form that was found, {} more than the {} allowed; {} of them are parameters, gradients and \
             optimizer state",
            Size(*least),
            Size(least - budget),
            Size(*budget),
            Size(*persistent)
        )
    }
}

/// Bytes for people, to three digits: `1.53 GiB`; few of them as they are.
struct Size(u64);

impl fmt::Display for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let units = ["KiB", "MiB", "GiB", "TiB", "PiB"];
        let power = (1..=units.len()).rev().find(|p| self.0 >> (10 * p) > 0);
        let Some(power) = power else { return write!(f, "{} B", self.0) };
        let value = self.0 as f64 / (1u64 << (10 * power)) as f64;
        let digits = if value < 10.0 { 2 } else { usize::from(value < 100.0) };
        write!(f, "{value:.digits$} {}", units[power - 1])
    }
}

/// Schedules are made at most so often for a stage.
const TRIES: u32 = 7;
/// So many choices of few bytes are looked at for the smallest arena.
const ENDS: usize = 3;
/// A choice is looked for with so many minimum cuts at most.
const CUTS: u32 = 400;
/// What is still free is good enough below this part of the budget.
const SLACK: f64 = 0.005;

/// Forms of segments that were made, so that stages which choose the same share programs.
#[derive(Debug, Default)]
pub struct Forms {
    known: Vec<(usize, Vec<ValueId>, Vec<String>)>,
}

impl Forms {
    fn tag(&mut self, form: (usize, Vec<ValueId>, Vec<String>)) -> String {
        let known = self.known.iter().position(|known| *known == form);
        let number = known.unwrap_or_else(|| {
            self.known.push(form);
            self.known.len() - 1
        });
        format!(".again{}", number + 1)
    }

    /// The segments with these values saved, and swapped.
    fn make(&mut self, segments: &Segments, problem: &Problem, selection: &Selection) -> Segments {
        let mut made = segments.clone();
        for (s, (part, kept)) in problem.parts.iter().zip(&selection.kept).enumerate() {
            let mut saved: Vec<ValueId> = kept.clone();
            saved.retain(|&v| part.graph.node(v).op != Op::Input);
            let mut now = part.wanted.clone();
            now.sort_unstable();
            let chosen = &selection.swapped[s];
            if saved != now || !chosen.is_empty() {
                keep(&mut made.list[s], &saved);
                // What the user names stays swapped.
                let name = |v: &ValueId| part.graph.node(*v).name.clone();
                made.swapped[s].retain(|n| saved.iter().any(|v| name(v) == *n));
                let more: Vec<String> = chosen.iter().map(name).filter(|n| !made.swapped[s].contains(n)).collect();
                made.swapped[s].extend(more);
                made.tags[s] = self.tag((s, saved, made.swapped[s].clone()));
            }
        }
        made
    }
}

/// A stage's training phase, and what it keeps.
pub struct Fitted {
    /// The phase.
    pub phase: plan::Phase,
    /// The table.
    pub memory: StageMemory,
}

/// A choice that was scheduled.
struct Tried {
    phase: plan::Phase,
    usage: Usage,
    choice: Choice,
}

impl Tried {
    fn peak(&self) -> u64 {
        self.phase.memory.placed
    }
}

/// Fits a stage's training phase into memory; `schedule` makes it from segments.
///
/// # Errors
/// When it does not fit, whatever is made again.
pub fn fit(
    (stage, persistent): (u32, u64),
    (aim, price): (Aim, &dyn Price),
    (segments, forms): (&Segments, &mut Forms),
    schedule: &mut dyn FnMut(&Segments) -> (plan::Phase, Usage),
) -> Result<Fitted, Misfit> {
    let (phase, usage) = schedule(segments);
    let unrestricted = phase.memory.placed;
    let problem = problem(segments, &usage, price);
    let everything = problem.keeping(problem.parts.iter().map(|p| p.wanted.clone()).collect());
    let choice = Choice { bound: everything.seconds, selection: everything, exact: true };
    let first = Tried { phase, usage, choice };
    let tried = match aim {
        Aim::Fastest => first,
        Aim::Within(budget) if first.peak() <= budget => first,
        Aim::Within(budget) => {
            search(&problem, first, budget, &mut |selection| schedule(&forms.make(segments, &problem, selection)))
                .map_err(|least| Misfit { stage, budget, least, persistent })?
        }
        Aim::Least => {
            let smallest = smallest(&problem, &mut |selection| schedule(&forms.make(segments, &problem, selection)));
            smallest.into_iter().chain([first]).min_by_key(Tried::peak).expect("the first is one")
        }
    };
    let Tried { phase, usage, choice } = tried;
    let memory = table::stage_memory((stage, persistent, unrestricted), &phase, &usage, (&problem, segments, &choice));
    Ok(Fitted { phase, memory })
}

/// Schedules the choices at the end of the front: fewer saved bytes can take larger frames.
fn smallest(problem: &Problem, schedule: &mut dyn FnMut(&Selection) -> (plan::Phase, Usage)) -> Vec<Tried> {
    let last = problem.front().into_iter().rev().take(ENDS);
    let tried = last.map(|selection| {
        let (phase, usage) = schedule(&selection);
        Tried { phase, usage, choice: Choice { bound: selection.seconds, selection, exact: true } }
    });
    tried.collect()
}

/// Tries choices until one fits, and the memory is used. `Err` is the least peak that was seen.
fn search(
    problem: &Problem,
    first: Tried,
    budget: u64,
    schedule: &mut dyn FnMut(&Selection) -> (plan::Phase, Usage),
) -> Result<Tried, u64> {
    let over = |tried: &Tried| tried.peak() as f64 - budget as f64;
    let mut least = first.peak();
    // Bytes of saved tensors that are too many, and bytes that are known to fit.
    let (mut upper, mut lower) = (first.choice.selection.bytes, f64::NEG_INFINITY);
    let mut limit = upper - over(&first);
    let mut seen: Vec<Selection> = vec![];
    let mut best: Option<Tried> = None;
    for _ in 0..TRIES {
        let choice = problem.within(limit, CUTS).unwrap_or_else(|selection| Choice {
            bound: selection.seconds,
            selection,
            exact: true,
        });
        if seen.contains(&choice.selection) {
            break;
        }
        seen.push(choice.selection.clone());
        let (phase, usage) = schedule(&choice.selection);
        let tried = Tried { phase, usage, choice };
        let (bytes, over) = (tried.choice.selection.bytes, over(&tried));
        least = least.min(tried.peak());
        if over <= 0.0 {
            lower = lower.max(bytes);
            let better = best.as_ref().is_none_or(|b| tried.choice.selection.seconds < b.choice.selection.seconds);
            best = if better { Some(tried) } else { best };
            if -over < SLACK * budget as f64 {
                break;
            }
        } else {
            upper = upper.min(bytes);
        }
        limit = bytes - over;
        if lower.is_finite() && (limit >= upper || limit <= lower) {
            limit = 0.5 * (lower + upper);
        }
    }
    if best.is_none() {
        let ends = smallest(problem, schedule);
        least = ends.iter().map(Tried::peak).fold(least, u64::min);
        let fits = ends.into_iter().filter(|tried| tried.peak() <= budget);
        best = fits.min_by(|a, b| a.choice.selection.seconds.total_cmp(&b.choice.selection.seconds));
    }
    best.ok_or(least)
}

/// The saved tensors of all segments, as many times as a stage has them at its peak.
fn problem<'a>(segments: &'a Segments, usage: &Usage, price: &dyn Price) -> Problem<'a> {
    let peak = usage.live.iter().enumerate().max_by_key(|(call, live)| (**live, usize::MAX - call));
    let peak = peak.map_or(0, |(call, _)| call as u32);
    let parts = segments.list.iter().enumerate().map(|(s, segment)| {
        let graph = &segment.forward;
        let of_segment = || usage.spans.iter().filter(|span| span.segment == s);
        let alive = of_segment().filter(|span| span.forward <= peak && peak <= span.backward).count() as f64;
        // Of the layer at hand what is made again is there, for a while: half of it, let us say.
        let alive = (alive - 0.5).max(0.0);
        // Both halves of a backward pass make it.
        let halves = usage.halves;
        let runs = of_segment().count() as f64 * f64::from(halves);
        let wanted = graph.outputs.iter().filter(|o| o.role == OutputRole::Saved).map(|o| o.value).collect();
        // Of what is swapped, that of two layers is on its way; the user's names are in any case.
        let on_its_way = alive.min(2.0);
        let named = |v: ValueId| segments.swapped[s].contains(&graph.node(v).name);
        let bytes = |v: ValueId| match is_there(segment, v) {
            true => 0.0,
            false if named(v) => graph.bytes(v) as f64 * on_its_way,
            false => graph.bytes(v) as f64 * alive,
        };
        let passes = of_segment().count() as f64;
        let away = |v: ValueId| {
            let can = !matches!(graph.node(v).op, Op::Input | Op::Const(_)) && !named(v) && alive > on_its_way;
            let bytes = graph.bytes(v) as f64;
            let seconds = price.copy_seconds(bytes).filter(|_| can)?;
            Some(Away { bytes: bytes * on_its_way, link: seconds * passes })
        };
        let seconds = |v: ValueId| match graph.node(v).op {
            Op::Input => 0.0,
            _ => price.seconds(graph, v) * runs,
        };
        Part {
            graph,
            wanted,
            bytes: graph.values().map(bytes).collect(),
            seconds: graph.values().map(seconds).collect(),
            away: graph.values().map(away).collect(),
        }
    });
    let parts: Vec<Part> = parts.collect();
    // A layer's copies are hidden by the layer after it: all of them by the forward passes.
    let forward: f64 = parts.iter().flat_map(|p| &p.seconds).sum();
    Problem { parts, hidden: forward / f64::from(usage.halves.max(1)) }
}

/// Is a value an input that lives as long in any case?
fn is_there(segment: &crate::autodiff::Differentiated, value: ValueId) -> bool {
    let graph = &segment.forward;
    let Some(input) = graph.inputs.iter().find(|i| i.value == value) else { return false };
    // What earlier layers carry here would go after the forward pass if no backward graph read it.
    let name = &graph.node(value).name;
    input.role != InputRole::Carry || segment.backward.input(InputRole::Carry, name).is_some()
}
