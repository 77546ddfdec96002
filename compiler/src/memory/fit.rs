//! A pipeline stage within its memory: the choice that is taken, in the forms of which the whole step decides.
//!
//! [`choose`](super::choose) counts bytes of saved tensors alone; frames, gradients and what placing wastes follow from the programs. So each choice
//! is scheduled and placed as it will run ([`search`](super::search)). The peak that counts is the plan's.

use super::aim::{Aim, Misfit};
use super::choose::{Choice, Selection};
use super::early;
use super::price::Price;
use super::recompute::keep;
use super::search::{Bytes, Depth, Goal, Schedule, Tried, depths, smallest, tries};
use super::swap::starts_of;
use super::table::{self, StageMemory};
use crate::schedule::{EarlyLayers, Frames, Segments, Usage};
use forebay_ir::{Op, ValueId};
use forebay_plan as plan;

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
        for (s, (part, kept)) in of.problem.parts().iter().zip(&selection.kept).enumerate() {
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
    /// Copies to the host are taken to hide in a part of the time that others compute (four fifths), so that fewer are made.
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

/// How a choice is scheduled.
#[derive(Default)]
struct Laid {
    frames: Frames,
    early: EarlyLayers,
    /// Bytes of the arena that are enough; 0 when it is to be as small as can be.
    enough: u64,
}

impl Laid {
    fn usual(goal: Goal) -> Laid {
        match goal {
            Goal::Within(enough) => Laid { frames: Frames::AsRoomAllows, enough, ..Laid::default() },
            Goal::Smallest => Laid { frames: Frames::Anywhere, ..Laid::default() },
        }
    }

    fn apart(goal: Goal) -> Laid {
        Laid { frames: Frames::Apart, ..Laid::usual(goal) }
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
    let depths = &depths(segments, &usage, price)[..];
    let problem = &depths[0].problem;
    let everything = problem.keeping(problem.parts().iter().map(|p| p.wanted.clone()).collect());
    let choice = Choice { bound: everything.seconds, selection: everything, exact: true };
    let first = Tried { phase, usage, choice, depth: &depths[0] };
    let mut schedule_as = |depth: &Depth, selection: &Selection, laid: Laid| {
        let mut made = forms.make(segments, depth, selection);
        (made.frames, made.early, made.enough) = (laid.frames, laid.early, laid.enough);
        schedule(&made)
    };
    let start = first.size();
    let everything = first.choice.clone();
    // While it is looked for, a choice fits or does not; what is taken is placed as well as it can be.
    let mut usual = |depth: &Depth, of: &Selection, goal: Goal| schedule_as(depth, of, Laid::usual(goal));
    let tried = match aim {
        Aim::Fastest => first,
        Aim::Within(budget) | Aim::InSomeWay(budget) if first.peak() <= budget => first,
        Aim::Within(budget) | Aim::InSomeWay(budget) => {
            let all = (first.phase.memory.live_peak <= budget)
                .then(|| kept(depths, &everything, Goal::Within(budget), &mut usual));
            let found = all.filter(|all| all.peak() <= budget).or_else(|| tries(depths, start, budget, &mut usual));
            match found {
                Some(found) => found,
                None => {
                    let least = least(depths, (start, &everything), persistent, &mut schedule_as);
                    if least.peak() > budget {
                        return Err(Misfit { stage, budget, least: least.peak(), persistent });
                    }
                    least
                }
            }
        }
        Aim::Least => least(depths, (start, &everything), persistent, &mut schedule_as),
    };
    let mut usual = |depth: &Depth, of: &Selection, goal: Goal| schedule_as(depth, of, Laid::usual(goal));
    let of_careful: Vec<Depth> = depths.iter().filter(|_| tried.swaps()).map(Depth::carefully).collect();
    let mut others = vec![];
    if let Aim::Within(budget) = aim
        && price.knows_device()
    {
        let careful = tried.swaps().then(|| tries(&of_careful, start, budget, &mut usual)).flatten();
        let careful = careful.filter(|careful| careful.phase != tried.phase);
        let mut apart =
            |depth: &Depth, selection: &Selection, goal: Goal| schedule_as(depth, selection, Laid::apart(goal));
        for (is_careful, depths, tried) in [(false, depths, Some(&tried)), (true, &of_careful, careful.as_ref())] {
            let Some(tried) = tried else { continue };
            let form = Form { apart: true, careful: is_careful, ..Form::default() };
            others.extend(with_frames_apart(depths, tried, budget, &mut apart).map(|tried| (form, tried)));
        }
        others.extend(careful.map(|tried| (Form { careful: true, ..Form::default() }, tried)));
    }
    let limit = aim.budget().unwrap_or(0).max(tried.peak());
    let mut fits = Fits(vec![]);
    for (form, mut tried) in std::iter::once((Form::default(), tried)).chain(others) {
        let frames = if form.apart { Frames::Apart } else { Frames::AsRoomAllows };
        // (Without a budget it was.)
        if aim.budget().is_some() && tried.peak() > tried.phase.memory.live_peak {
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

/// Everything kept. (Frames lie apart where there is room without a budget.)
fn kept<'d, 'a>(depths: &'d [Depth<'a>], everything: &Choice, goal: Goal, schedule: &mut Schedule) -> Tried<'d, 'a> {
    let (phase, usage) = schedule(&depths[0], &everything.selection, goal);
    Tried { phase, usage, choice: everything.clone(), depth: &depths[0] }
}

/// The smallest arena that is found: what is made again can take larger frames than it saves, and takes less where it is made before the gradient comes.
fn least<'d, 'a>(
    depths: &'d [Depth<'a>],
    (start, everything): (Bytes, &Choice),
    persistent: u64,
    schedule_as: &mut dyn FnMut(&Depth, &Selection, Laid) -> (plan::Phase, Usage),
) -> Tried<'d, 'a> {
    let mut usual = |depth: &Depth, of: &Selection, goal: Goal| schedule_as(depth, of, Laid::usual(goal));
    let all = kept(depths, everything, Goal::Smallest, &mut usual);
    let smallest = smallest(depths, start, &mut usual);
    let mut least = [smallest, all].into_iter().min_by_key(Tried::peak).expect("there are two");
    loop {
        let limit = least.peak();
        let mut early =
            |depth: &Depth, of: &Selection, early| schedule_as(depth, of, Laid { early, ..Laid::default() });
        let made = begun_early(&least, (limit, persistent), &mut early);
        let Some((phase, usage)) = made.filter(|(phase, _)| phase.memory.placed < limit) else { break };
        (least.phase, least.usage) = (phase, usage);
        let mut usual = |depth: &Depth, of: &Selection, goal: Goal| schedule_as(depth, of, Laid::usual(goal));
        let Some(smaller) = tries(depths, start, least.peak() - 1, &mut usual) else { break };
        least = smaller;
    }
    least
}

/// The choice of least time within a budget when frames that follow each other lie apart, of which at least as much leaves as was chosen without that. None where
/// that changes nothing, or does not fit.
fn with_frames_apart<'d, 'a>(
    depths: &'d [Depth<'a>],
    usual: &Tried<'d, 'a>,
    budget: u64,
    schedule: &mut Schedule,
) -> Option<Tried<'d, 'a>> {
    let (phase, usage) = schedule(usual.depth, &usual.choice.selection, Goal::Within(budget));
    if phase == usual.phase {
        return None;
    }
    let first = Tried { phase, usage, choice: usual.choice.clone(), depth: usual.depth };
    if first.peak() <= budget { Some(first) } else { tries(depths, first.size(), budget, schedule) }
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
