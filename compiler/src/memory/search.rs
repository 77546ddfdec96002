//! The search for a choice whose arena fits.
//!
//! ```text
//! schedule everything kept ──► peak ──fits──► done
//!                               │
//!                  bytes to save ──► choose ──► splice ──► schedule ──► peak      again with what the peak says
//! ```

use super::choose::{Away, Choice, Part, Problem, Selection};
use super::price::Price;
use super::swap::is_starts;
use super::windows::windows;
use crate::autodiff::Differentiated;
use crate::schedule::{Segments, Usage};
use forebay_ir::{InputRole, Op, OutputRole, ValueId};
use forebay_plan as plan;

/// A search within some bytes makes at most so many schedules.
const TRIES: u32 = 7;
/// So many choices of few bytes are looked at for the smallest arena.
const ENDS: usize = 3;
/// Parts of an arena by which a smaller one is looked for, the first and the last before a byte. (By a byte alone, a search of a large model went on hundreds of times.)
const FIRST_STEP: f64 = 1.0 / 16.0;
const LAST_STEP: f64 = 1.0 / 1024.0;
/// A choice is looked for with so many minimum cuts at most.
const CUTS: u32 = 400;
/// Bounds of several depths are equal up to this part.
const EQUAL: f64 = 1e-9;
/// What is still free is good enough below this part of the budget.
const SLACK: f64 = 0.005;

/// What there is to choose when copies have so many steps of the stage in each direction. More steps hide longer copies, and take more memory on the way.
pub(super) struct Depth<'a> {
    pub ahead: u32,
    pub problem: Problem<'a>,
}

/// Steps that copies may have.
const DEPTHS: [u32; 3] = [1, 2, 4];

/// The part of the time that others compute in which a careful choice takes copies to hide: exchanges run beside some of it, and what is beside a copy takes longer.
const CAREFUL: f64 = 0.8;

impl<'p> Depth<'p> {
    /// The same with less time for copies.
    pub fn carefully(&self) -> Depth<'p> {
        let narrower = |windows: &[f64]| windows.iter().map(|window| CAREFUL * window).collect();
        Depth { ahead: self.ahead, problem: self.problem.with_windows(narrower) }
    }
}

impl Depth<'_> {
    /// The choice of least time within so many bytes, of several depths; where none is within, that of fewest bytes.
    fn choose<'d, 'a>(depths: &'d [Depth<'a>], limit: f64) -> (&'d Depth<'a>, Choice) {
        let mut choices = depths.iter().filter_map(|depth| Some((depth, depth.problem.within(limit, CUTS).ok()?)));
        let Some((mut best, mut choice)) = choices.next() else {
            let of = |depth: &'d Depth<'a>| (depth, depth.problem.least_bytes());
            let (least, selection) = depths.iter().map(of).min_by(|a, b| a.1.bytes.total_cmp(&b.1.bytes)).expect("one");
            let exact = !least.problem.swaps();
            return (least, Choice { bound: if exact { selection.seconds } else { 0.0 }, selection, exact });
        };
        for (depth, other) in choices {
            let bound = choice.bound.min(other.bound);
            if other.selection.seconds < choice.selection.seconds {
                (best, choice) = (depth, other);
            }
            choice.bound = bound;
            choice.exact &= choice.selection.seconds <= bound * (1.0 + EQUAL);
        }
        (best, choice)
    }
}

/// A choice that was scheduled.
pub(super) struct Tried<'d, 'a> {
    pub phase: plan::Phase,
    pub usage: Usage,
    pub choice: Choice,
    pub depth: &'d Depth<'a>,
}

/// What the arena of a choice is to be.
#[derive(Clone, Copy)]
pub(super) enum Goal {
    /// No larger than that, if it can be.
    Within(u64),
    /// As small as it can be.
    Smallest,
}

/// Schedules a choice.
pub(super) type Schedule<'s> = dyn FnMut(&Depth, &Selection, Goal) -> (plan::Phase, Usage) + 's;

/// Bytes of an arena, and of the saved tensors in it.
#[derive(Clone, Copy)]
pub(super) struct Bytes {
    pub peak: u64,
    pub saved: f64,
}

impl Tried<'_, '_> {
    pub fn peak(&self) -> u64 {
        self.phase.memory.placed
    }

    pub fn size(&self) -> Bytes {
        Bytes { peak: self.peak(), saved: self.choice.selection.bytes }
    }

    pub fn swaps(&self) -> bool {
        self.choice.selection.swapped.iter().any(|of_part| !of_part.is_empty())
    }
}

/// The choice with the smallest arena that is found: of those at the end of the front (fewer saved bytes can take larger frames), and of those that a search finds within
/// less than the smallest so far, in steps that grow shorter: so within a byte less a search finds nothing.
pub(super) fn smallest<'d, 'a>(depths: &'d [Depth<'a>], start: Bytes, schedule: &mut Schedule) -> Tried<'d, 'a> {
    let depth = &depths[0];
    let ends = depth.problem.front().into_iter().rev().take(ENDS).map(|selection| {
        let (phase, usage) = schedule(depth, &selection, Goal::Smallest);
        // (Corners are those of copies of which nothing is hidden.)
        let exact = !depth.problem.swaps();
        Tried {
            phase,
            usage,
            choice: Choice { bound: if exact { selection.seconds } else { 0.0 }, selection, exact },
            depth,
        }
    });
    let mut smallest = ends.min_by_key(Tried::peak).expect("a front has ends");
    let mut step = FIRST_STEP;
    loop {
        let less = if step < LAST_STEP { 1 } else { ((smallest.peak() as f64 * step) as u64).max(1) };
        match tries(depths, start, smallest.peak().saturating_sub(less), schedule) {
            Some(smaller) => smallest = smaller,
            None if less > 1 => step /= 4.0,
            None => return smallest,
        }
    }
}

/// The choice of least time of those that were tried and fit.
pub(super) fn tries<'d, 'a>(
    depths: &'d [Depth<'a>],
    start: Bytes,
    budget: u64,
    schedule: &mut Schedule,
) -> Option<Tried<'d, 'a>> {
    let over = |size: Bytes| size.peak as f64 - budget as f64;
    // Bytes of saved tensors that are too many, and bytes that are known to fit.
    let (mut upper, mut lower) = (start.saved, f64::NEG_INFINITY);
    let mut limit = upper - over(start);
    let mut seen: Vec<Selection> = vec![];
    let mut best: Option<Tried> = None;
    for _ in 0..TRIES {
        let (depth, choice) = Depth::choose(depths, limit);
        if seen.contains(&choice.selection) {
            break;
        }
        seen.push(choice.selection.clone());
        let (phase, usage) = schedule(depth, &choice.selection, Goal::Within(budget));
        let tried = Tried { phase, usage, choice, depth };
        let (bytes, over) = (tried.choice.selection.bytes, over(tried.size()));
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
    best
}

/// What there is to choose, with as many steps for copies as may be of use: where nothing can be swapped they are all the same.
pub(super) fn depths<'a>(segments: &'a Segments, usage: &Usage, price: &dyn Price) -> Vec<Depth<'a>> {
    let mut depths: Vec<Depth> =
        DEPTHS.map(|ahead| Depth { ahead, problem: problem(segments, usage, price, ahead) }).into();
    if !depths.iter().any(|depth| depth.problem.swaps()) {
        depths.truncate(1);
    }
    depths
}

/// The saved tensors of all segments, as many times as a stage has them at its peak.
fn problem<'a>(segments: &'a Segments, usage: &Usage, price: &dyn Price, ahead: u32) -> Problem<'a> {
    let peak = usage.live.iter().enumerate().max_by_key(|(call, live)| (**live, usize::MAX - call));
    let peak = peak.map_or(0, |(call, _)| call as u32);
    let mut windows = windows(segments, usage, price, ahead);
    let parts = segments.list.iter().enumerate().map(|(s, segment)| {
        let windows = std::mem::take(&mut windows[s]);
        let graph = &segment.forward;
        let of_segment = || usage.spans.iter().filter(|span| span.segment == s);
        let alive = of_segment().filter(|span| span.forward <= peak && peak <= span.backward).count() as f64;
        // Of the layer at hand what is made again is there, for a while: half of it, let us say.
        let alive = (alive - 0.5).max(0.0);
        // Both halves of a backward pass make it.
        let halves = usage.halves;
        let runs = of_segment().count() as f64 * f64::from(halves);
        let wanted = graph.outputs.iter().filter(|o| o.role == OutputRole::Saved).map(|o| o.value).collect();
        // Of what is swapped, the layer at hand has some, and others are on their way; the user's names are swapped in any case.
        let on_its_way = alive.min(f64::from(1 + ahead));
        let named = |v: ValueId| segments.swapped[s].contains(&graph.node(v).name);
        let bytes = |v: ValueId| match is_there(segment, v) {
            true => 0.0,
            false if named(v) => graph.bytes(v) as f64 * on_its_way,
            false => graph.bytes(v) as f64 * alive,
        };
        let passes = windows.len() as f64;
        let away = |v: ValueId| {
            let stays = matches!(graph.node(v).op, Op::Input | Op::Const(_)) || is_starts(graph, v);
            let can = !stays && !named(v) && alive > on_its_way && passes > 0.0;
            let bytes = graph.bytes(v) as f64;
            let seconds = price.copy_seconds(graph, v).filter(|_| can)?;
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
            windows,
        }
    });
    Problem::new(parts.collect())
}

/// Is a value an input that lives as long in any case?
fn is_there(segment: &Differentiated, value: ValueId) -> bool {
    let graph = &segment.forward;
    let Some(input) = graph.inputs.iter().find(|i| i.value == value) else { return false };
    // What earlier layers carry here would go after the forward pass if no backward graph read it.
    let name = &graph.node(value).name;
    input.role != InputRole::Carry || segment.backward.input(InputRole::Carry, name).is_some()
}
