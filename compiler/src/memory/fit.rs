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
use super::early;
use super::recompute::keep;
use super::swap::{is_starts, starts_of};
use super::table::{self, StageMemory};
use super::windows::windows;
use crate::autodiff::Differentiated;
use crate::rewrite::Profile;
use crate::schedule::{EarlyLayers, Frames, Segments, Usage};
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

    /// Seconds of a training step; here [`one_after_another`].
    ///
    /// # Errors
    /// When the plan cannot be timed.
    fn step(&self, plan: &plan::Plan) -> Result<f64, String> {
        one_after_another(self, plan)
    }

    /// Seconds to copy a value to the host's memory, or from there: of a ragged one the rows that come. None where nothing is known of that, and nothing is swapped.
    fn copy_seconds(&self, _graph: &Graph, _value: ValueId) -> Option<f64> {
        None
    }

    /// Does the vector unit work beside the matrix unit? None where the device is not known.
    fn vector_beside_cube(&self) -> Option<bool> {
        None
    }

    /// Is the device known, so that prices of programs and steps say what runs beside what?
    fn knows_device(&self) -> bool {
        self.vector_beside_cube().is_some()
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

/// Seconds of a plan's training step when its programs run one after another, on the stage that takes longest.
///
/// # Errors
/// When the plan cannot be timed.
pub fn one_after_another(price: &(impl Price + ?Sized), plan: &plan::Plan) -> Result<f64, String> {
    let programs = price.programs(plan)?;
    let stages = plan.roles.iter().map(|role| {
        let calls = role.phases.iter().filter(|phase| phase.name == "train").flat_map(|phase| &phase.calls);
        calls.map(|call| programs[call.program as usize]).sum::<f64>()
    });
    Ok(stages.fold(0.0, f64::max))
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
            enough(*least),
            enough(least - budget),
            Size(*budget),
            Size(*persistent)
        )
    }
}

/// Bytes for people, to three digits: `1.53 GiB`; few of them as they are.
struct Size(u64);

impl Size {
    /// The number, its digits behind the point, and the unit.
    fn parts(&self) -> (f64, usize, &'static str) {
        let units = ["KiB", "MiB", "GiB", "TiB", "PiB"];
        let power = (1..=units.len()).rev().find(|p| self.0 >> (10 * p) > 0);
        let Some(power) = power else { return (self.0 as f64, 0, "B") };
        let value = self.0 as f64 / (1u64 << (10 * power)) as f64;
        let digits = if value < 10.0 { 2 } else { usize::from(value < 100.0) };
        (value, digits, units[power - 1])
    }
}

impl fmt::Display for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (value, digits, unit) = self.parts();
        write!(f, "{value:.digits$} {unit}")
    }
}

/// Bytes for people, to three digits, rounded up: whoever gives so many gives enough.
pub fn enough(bytes: u64) -> String {
    let (value, digits, unit) = Size(bytes).parts();
    let parts = 10f64.powi(digits as i32);
    format!("{:.digits$} {unit}", (value * parts).ceil() / parts)
}

/// Schedules are made at most so often for a stage.
const TRIES: u32 = 7;
/// So many choices of few bytes are looked at for the smallest arena.
const ENDS: usize = 3;
/// A choice is looked for with so many minimum cuts at most.
const CUTS: u32 = 400;
/// Bounds of several depths are equal up to this part.
const EQUAL: f64 = 1e-9;
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
    fn make(&mut self, segments: &Segments, of: &Depth, selection: &Selection) -> Segments {
        let mut made = segments.clone();
        made.ahead = of.ahead;
        for (s, (part, kept)) in of.problem.parts.iter().zip(&selection.kept).enumerate() {
            let chosen = &selection.swapped[s];
            let leaves = |v: &ValueId| chosen.contains(v) || made.swapped[s].contains(&part.graph.node(*v).name);
            let leaving: Vec<ValueId> = kept.iter().copied().filter(leaves).collect();
            let mut saved: Vec<ValueId> = kept.iter().copied().chain(starts_of(part.graph, &leaving)).collect();
            saved.retain(|&v| part.graph.node(v).op != Op::Input);
            saved.sort_unstable();
            saved.dedup();
            let mut now = part.wanted.clone();
            now.sort_unstable();
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

/// What a stage's training phase does with room that is left.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Form {
    /// Frames of calls that follow each other lie apart, and more leaves the device or is made again for that.
    pub apart: bool,
    /// What is made again is made before the gradient comes.
    pub early: bool,
    /// Copies to the host are taken to hide in a part of the time that others compute ([`CAREFUL`]), so that fewer are made.
    pub careful: bool,
}

impl Form {
    /// All forms, the usual one first.
    pub const ALL: [Form; 6] = [
        Form { apart: false, early: false, careful: false },
        Form { apart: false, early: true, careful: false },
        Form { apart: true, early: false, careful: false },
        Form { apart: true, early: true, careful: false },
        Form { apart: false, early: false, careful: true },
        Form { apart: true, early: false, careful: true },
    ];
}

/// The forms of a stage that there are; the usual one always.
#[derive(Clone)]
pub struct Fits(Vec<(Form, Fitted)>);

impl Fits {
    /// Is there this form?
    pub fn has(&self, form: Form) -> bool {
        self.0.iter().any(|(known, _)| *known == form)
    }

    /// A stage in this form, or else in what comes nearest: with as much room, if it can be.
    pub fn in_form(mut self, form: Form) -> Fitted {
        let late = Form { early: false, ..form };
        let nearest = [form, late, Form { careful: false, ..late }, Form { apart: false, ..late }, Form::default()];
        let form = nearest.into_iter().find(|&form| self.has(form)).expect("there is the usual one");
        self.0.retain(|(known, _)| *known == form);
        self.0.remove(0).1
    }
}

/// A stage's training phase, and what it keeps.
#[derive(Clone)]
pub struct Fitted {
    /// The phase.
    pub phase: plan::Phase,
    /// The table.
    pub memory: StageMemory,
}

/// What there is to choose when copies have so many steps of the stage in each direction. More steps hide longer copies, and take more memory on the way.
struct Depth<'a> {
    ahead: u32,
    problem: Problem<'a>,
}

/// Steps that copies may have.
const DEPTHS: [u32; 3] = [1, 2, 4];

/// The part of the time that others compute in which a careful choice takes copies to hide: exchanges run beside some of it, and what is beside a copy takes longer.
const CAREFUL: f64 = 0.8;

impl<'p> Depth<'p> {
    /// The same with less time for copies.
    fn carefully(&self) -> Depth<'p> {
        let mut problem = self.problem.clone();
        problem.parts.iter_mut().flat_map(|part| &mut part.windows).for_each(|window| *window *= CAREFUL);
        Depth { ahead: self.ahead, problem }
    }
}

impl Depth<'_> {
    /// The choice of least time within so many bytes, of several depths; where none is within, that of fewest bytes.
    fn choose<'d, 'a>(depths: &'d [Depth<'a>], limit: f64) -> (&'d Depth<'a>, Choice) {
        let mut choices = depths.iter().filter_map(|depth| Some((depth, depth.problem.within(limit, CUTS).ok()?)));
        let Some((mut best, mut choice)) = choices.next() else {
            let of = |depth: &'d Depth<'a>| (depth, depth.problem.least_bytes());
            let (least, selection) = depths.iter().map(of).min_by(|a, b| a.1.bytes.total_cmp(&b.1.bytes)).expect("one");
            return (least, Choice { bound: selection.seconds, selection, exact: true });
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
struct Tried<'d, 'a> {
    phase: plan::Phase,
    usage: Usage,
    choice: Choice,
    depth: &'d Depth<'a>,
}

/// Schedules a choice.
type Schedule<'s> = dyn FnMut(&Depth, &Selection) -> (plan::Phase, Usage) + 's;

/// How a choice is scheduled.
#[derive(Default)]
struct Laid {
    frames: Frames,
    early: EarlyLayers,
    /// Bytes of the arena that are enough; 0 when it is to be as small as can be.
    enough: u64,
}

/// Bytes of an arena, and of the saved tensors in it.
#[derive(Clone, Copy)]
struct Bytes {
    peak: u64,
    saved: f64,
}

impl Tried<'_, '_> {
    fn peak(&self) -> u64 {
        self.phase.memory.placed
    }

    fn size(&self) -> Bytes {
        Bytes { peak: self.peak(), saved: self.choice.selection.bytes }
    }

    fn swaps(&self) -> bool {
        self.choice.selection.swapped.iter().any(|of_part| !of_part.is_empty())
    }
}

/// Fits a stage's training phase into memory; `schedule` makes it from segments.
///
/// Beside the usual form there may be others, of which a replay of the whole step has to say whether they pay: what is made again is made before the gradient comes, as far as
/// there is room; and within a budget, where the device is known, frames lie apart.
///
/// # Errors
/// When it does not fit, whatever is made again.
pub fn fit(
    (stage, persistent): (u32, u64),
    (aim, price): (Aim, &dyn Price),
    (segments, forms): (&Segments, &mut Forms),
    schedule: &mut dyn FnMut(&Segments) -> (plan::Phase, Usage),
) -> Result<Fits, Misfit> {
    let (phase, usage) = schedule(segments);
    let unrestricted = phase.memory.placed;
    let depths: Vec<Depth> =
        DEPTHS.map(|ahead| Depth { ahead, problem: problem(segments, &usage, price, ahead) }).into();
    // Where nothing can be swapped they are all the same.
    let swaps = depths.iter().any(|depth| depth.problem.swaps());
    let depths = if swaps { &depths[..] } else { &depths[..1] };
    let problem = &depths[0].problem;
    let everything = problem.keeping(problem.parts.iter().map(|p| p.wanted.clone()).collect());
    let choice = Choice { bound: everything.seconds, selection: everything, exact: true };
    let first = Tried { phase, usage, choice, depth: &depths[0] };
    let mut schedule_as = |depth: &Depth, selection: &Selection, laid: Laid| {
        let mut made = forms.make(segments, depth, selection);
        (made.frames, made.early, made.enough) = (laid.frames, laid.early, laid.enough);
        schedule(&made)
    };
    // While it is looked for, a choice fits or does not; what is taken is placed as well as it can be.
    let enough = if let Aim::Within(budget) = aim { budget } else { 0 };
    let mut usual = |depth: &Depth, selection: &Selection| {
        schedule_as(depth, selection, Laid { frames: Frames::AsRoomAllows, enough, ..Laid::default() })
    };
    let start = first.size();
    let tried = match aim {
        Aim::Fastest => first,
        Aim::Within(budget) if first.peak() <= budget => first,
        Aim::Within(budget) => {
            search(depths, start, budget, &mut usual).map_err(|least| Misfit { stage, budget, least, persistent })?
        }
        Aim::Least => {
            let smallest = smallest(depths, start, &mut usual);
            [smallest, first].into_iter().min_by_key(Tried::peak).expect("there are two")
        }
    };
    let of_careful: Vec<Depth> = depths.iter().map(Depth::carefully).collect();
    let mut others = vec![];
    if let Aim::Within(budget) = aim
        && price.knows_device()
    {
        let careful = tried.swaps().then(|| search(&of_careful, start, budget, &mut usual).ok()).flatten();
        let careful = careful.filter(|careful| careful.phase != tried.phase);
        let mut apart = |depth: &Depth, selection: &Selection| {
            schedule_as(depth, selection, Laid { frames: Frames::Apart, enough, ..Laid::default() })
        };
        for (is_careful, depths, tried) in [(false, depths, Some(&tried)), (true, &of_careful, careful.as_ref())] {
            let Some(tried) = tried else { continue };
            let form = Form { apart: true, careful: is_careful, ..Form::default() };
            others.extend(with_frames_apart(depths, tried, budget, &mut apart).map(|tried| (form, tried)));
        }
        others.extend(careful.map(|tried| (Form { careful: true, ..Form::default() }, tried)));
    }
    let limit = enough.max(tried.peak());
    let mut fits = Fits(vec![]);
    for (form, mut tried) in std::iter::once((Form::default(), tried)).chain(others) {
        let frames = if form.apart { Frames::Apart } else { Frames::AsRoomAllows };
        if tried.peak() > tried.phase.memory.live_peak {
            let laid = Laid { frames, ..Laid::default() };
            let (phase, usage) = schedule_as(tried.depth, &tried.choice.selection, laid);
            if phase.memory.placed <= limit {
                (tried.phase, tried.usage) = (phase, usage);
            }
        }
        let mut schedule_early = |depth: &Depth, selection: &Selection, early| {
            schedule_as(depth, selection, Laid { frames, early, ..Laid::default() })
        };
        let early = (!form.careful).then(|| begun_early(&tried, (limit, persistent), &mut schedule_early)).flatten();
        let Tried { phase, usage, choice, depth } = tried;
        let all = [(false, Some((phase, usage))), (true, early)];
        for (early, (phase, usage)) in all.into_iter().filter_map(|(early, made)| Some((early, made?))) {
            let of_choice = (&depth.problem, segments, &choice);
            let memory = table::stage_memory((stage, persistent, unrestricted), (&phase, &usage, price), of_choice);
            fits.0.push((Form { early, ..form }, Fitted { phase, memory }));
        }
    }
    Ok(fits)
}

/// The choice of least time within a budget when frames that follow each other lie apart, of which at least as much leaves as was chosen without that. None where
/// that changes nothing, or does not fit.
fn with_frames_apart<'d, 'a>(
    depths: &'d [Depth<'a>],
    usual: &Tried<'d, 'a>,
    budget: u64,
    schedule: &mut Schedule,
) -> Option<Tried<'d, 'a>> {
    let (phase, usage) = schedule(usual.depth, &usual.choice.selection);
    if phase == usual.phase {
        return None;
    }
    let first = Tried { phase, usage, choice: usual.choice.clone(), depth: usual.depth };
    if first.peak() <= budget { Some(first) } else { search(depths, first.size(), budget, schedule).ok() }
}

/// Schedules are made at most so often for what is made before gradients come.
const EARLY_TRIES: u32 = 3;

/// The same choice with as much as there is room for made before gradients come; nothing where there is none.
fn begun_early(
    tried: &Tried,
    (limit, persistent): (u64, u64),
    schedule: &mut dyn FnMut(&Depth, &Selection, EarlyLayers) -> (plan::Phase, Usage),
) -> Option<(plan::Phase, Usage)> {
    let mut room = limit - persistent;
    let mut seen = EarlyLayers::default();
    for _ in 0..EARLY_TRIES {
        let early = early::layers(&tried.usage, room);
        if early == seen {
            break;
        }
        seen.clone_from(&early);
        let (phase, usage) = schedule(tried.depth, &tried.choice.selection, early);
        match phase.memory.placed.saturating_sub(limit) {
            0 => return Some((phase, usage)),
            over => room = room.saturating_sub(over),
        }
    }
    None
}

/// The choice with the smallest arena that is found: of those at the end of the front (fewer saved bytes can take larger frames), and of those that a search finds within
/// less than the smallest so far. So within a byte less a search finds nothing.
fn smallest<'d, 'a>(depths: &'d [Depth<'a>], start: Bytes, schedule: &mut Schedule) -> Tried<'d, 'a> {
    let depth = &depths[0];
    let ends = depth.problem.front().into_iter().rev().take(ENDS).map(|selection| {
        let (phase, usage) = schedule(depth, &selection);
        Tried { phase, usage, choice: Choice { bound: selection.seconds, selection, exact: true }, depth }
    });
    let mut smallest = ends.min_by_key(Tried::peak).expect("a front has ends");
    while let Some(smaller) = tries(depths, start, smallest.peak() - 1, schedule) {
        smallest = smaller;
    }
    smallest
}

/// Tries choices until one fits, and the memory is used. `Err` is the least peak that was seen.
fn search<'d, 'a>(
    depths: &'d [Depth<'a>],
    start: Bytes,
    budget: u64,
    schedule: &mut Schedule,
) -> Result<Tried<'d, 'a>, u64> {
    if let Some(best) = tries(depths, start, budget, schedule) {
        return Ok(best);
    }
    let smallest = smallest(depths, start, schedule);
    if smallest.peak() <= budget { Ok(smallest) } else { Err(smallest.peak()) }
}

/// The choice of least time of those that were tried and fit.
fn tries<'d, 'a>(depths: &'d [Depth<'a>], start: Bytes, budget: u64, schedule: &mut Schedule) -> Option<Tried<'d, 'a>> {
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
        let (phase, usage) = schedule(depth, &choice.selection);
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
    Problem { parts: parts.collect() }
}

/// Is a value an input that lives as long in any case?
fn is_there(segment: &Differentiated, value: ValueId) -> bool {
    let graph = &segment.forward;
    let Some(input) = graph.inputs.iter().find(|i| i.value == value) else { return false };
    // What earlier layers carry here would go after the forward pass if no backward graph read it.
    let name = &graph.node(value).name;
    input.role != InputRole::Carry || segment.backward.input(InputRole::Carry, name).is_some()
}
