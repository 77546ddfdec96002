//! What a strategy leaves to be found: the order of a pipeline's work (`schedule=search`), which layers its parts have (`stages=auto`), and before these the way
//! of experts' rows and the number of pieces (`dispatch=auto`, [`crate::overlap::exchange`]; `pieces=auto`, [`crate::overlap::pieces`]).
//! Parts are cut for the best of the published orders, and for each of them by itself.
//! Where the device is known and has one unit for elementwise work and products, `overlap=all` is without `vector`, whose orders for two units are slower there; with pieces both are priced.
//!
//! ```text
//! a step of one stage ──price──► F, I, W, B of each layer ──cut──► of each part ──search──► an order for each stage
//!                                            ▲                                      │
//!                                            └── single layers move while it helps ─┘
//! ```
//!
//! Requires: a model that can be sharded. Keeps: everything else of the strategy; what is found depends on prices and nodes alone, so that every process of a
//! run finds the same. Costs: compiling the training step once more, for a pipeline of one stage, whose programs are priced; and the search. What
//! parameters that are gathered with each micro-batch take, and what a memory budget makes again, is not in the prices. Pairs have the price of the program that
//! runs both works ([`crate::overlap`]); where they hide something the search makes pairs of its own.

use crate::memory::Price;
use crate::overlap::exchange::{self, Ways};
use crate::overlap::pieces::{self, Cuts, Pieces};
use crate::overlap::{Pass, Priced};
use crate::pipeline::{CompileOptions, compile_training};
use crate::schedule::{crossing, ends, one_by_one, orders, published};
use crate::shard::{Cut, Given, Order, ShardedModel, Strategy, StrategyError, searched, shard_model};
use forebay_dsl::model::{CheckedModel, Layer};
use forebay_ir::OutputRole;
use forebay_pipeline::bound::lower_bound;
use forebay_pipeline::layers::{self, LayerCosts, fitted, refine};
use forebay_pipeline::search::{Progress, Request, default_nodes, search};
use forebay_pipeline::{Costs, Kind, Layout, Placement, Schedule, ScheduleError, Size, Ticks, replay, verify};
use forebay_plan::Plan;
use std::sync::Arc;

/// Seconds of a tick.
pub const TICK: f64 = 1e-9;
/// Replays that moving layers may take once a search has found an order.
const REFINED: usize = 2000;

/// A strategy with nothing left to be found.
#[derive(Clone, Debug)]
pub struct Settled {
    /// The strategy: its schedule is published or given, its stages are even or given.
    pub strategy: Strategy,
    /// What was found of the pipeline, if anything was looked for.
    pub found: Option<Found>,
    /// What a step's programs take on each way of experts' rows, if one was to be found.
    pub ways: Option<Ways>,
    /// The same in so many pieces.
    pub cuts: Option<Cuts>,
}

/// What was found. Times are those of a step's forward and backward passes by the costs of layers, in seconds.
#[derive(Clone, Debug, PartialEq)]
pub struct Found {
    /// The published schedule that it is: the one that was named, or one that nothing beats.
    pub kind: Option<Kind>,
    /// From the first pass to the end of the last.
    pub seconds: f64,
    /// What no order of the parts on these stages beats, under the cap.
    pub bound: f64,
    /// The best published schedule for the same parts, under the cap; none may keep to it.
    pub published: Option<(Kind, f64)>,
    /// The most activations, of a part and a micro-batch each, that a stage holds.
    pub peak: u32,
    /// Schedules that the search replayed; 0 when only layers were cut.
    pub nodes: u64,
}

/// Finds what a strategy leaves open, for the model as it trains. `options` has the number of micro-batches.
///
/// # Errors
/// When the strategy does not fit the model, or nothing keeps to the cap.
pub fn settle(
    model: &CheckedModel,
    options: &CompileOptions,
    price: &dyn Price,
    progress: &mut dyn FnMut(Progress),
) -> Result<Settled, StrategyError> {
    let (mut strategy, ways, cuts) = overlapped(&Priced { model, options, price })?;
    let options = &CompileOptions { strategy: strategy.clone(), ..options.clone() };
    let open = strategy.schedule == Order::Search || strategy.stages == Cut::Auto;
    if !open {
        return Ok(Settled { strategy, found: None, ways, cuts });
    }
    if strategy.pp == 1 && strategy.vpp == 1 {
        // One stage has one order and all layers.
        let usual = Strategy::default();
        (strategy.schedule, strategy.stages, strategy.cap, strategy.nodes) = (usual.schedule, usual.stages, None, None);
        return Ok(Settled { strategy, found: None, ways, cuts });
    }
    let sharded = shard_model(model, &strategy)?;
    let refused = |error: ScheduleError| {
        StrategyError::new(format!("schedule = {}: {}", strategy.schedule, error.message), error.hint)
    };
    let layers = layer_costs(model, options, price)?;
    let seeker = Seeker {
        size: Size::new(strategy.pp, strategy.vpp, options.micro_batches).map_err(refused)?,
        ends: if strategy.stages == Cut::Auto { None } else { Some(ends(model, &strategy)?) },
        p2p: message(model, &sharded, &strategy, price)?,
        pairs: layers.iter().any(|layer| layer.hidden > 0),
        layers,
        strategy: &strategy,
    };
    let choice = match &strategy.schedule {
        Order::Search => seeker.search(progress),
        Order::Published(kind) => seeker.fitted(Some(*kind), seeker.priced(published(*kind, seeker.size)?)),
        Order::Given(given) => {
            orders(&strategy, options.micro_batches)?;
            seeker.fitted(None, seeker.priced((*given.schedule).clone()))
        }
    };
    let choice = choice.map_err(refused)?;
    let found = seeker.found(&choice);
    if strategy.stages == Cut::Auto {
        strategy.stages = Cut::Given(inner_layers(&choice.ends));
    }
    if strategy.schedule == Order::Search {
        let given = Given { name: Order::Search.to_string(), schedule: Arc::new(choice.schedule) };
        (strategy.schedule, strategy.cap, strategy.nodes) = (Order::Given(given), None, None);
    }
    Ok(Settled { strategy, found: Some(found), ways, cuts })
}

/// What is found before the pipeline: the way of experts' rows, the number of pieces, and whether orders are for two units. (What has no price, such as copies to a host that
/// the cluster file does not have, is left as it is.)
fn overlapped(priced: &Priced) -> Result<(Strategy, Option<Ways>, Option<Cuts>), StrategyError> {
    let wanted = &priced.options.strategy.overlap;
    let mut options = priced.options.clone();
    if priced.price.vector_beside_cube() == Some(false) {
        options.strategy.overlap = wanted.unless_named(Pass::Vector);
    }
    let (mut strategy, ways) = exchange::settle(&Priced { options: &options, ..*priced })?;
    let finds_pieces = strategy.pieces == Pieces::Auto && priced.price.knows_device();
    let cuts = if finds_pieces { pieces::settle(priced, &strategy).ok() } else { None };
    if let Some(cuts) = &cuts {
        strategy.pieces = cuts[0].0;
    }
    if strategy.overlap != *wanted && strategy.pieces != Pieces::Number(1) {
        // With pieces an order for two units can be the better one for one unit as well.
        let with = Strategy { overlap: wanted.clone(), ..strategy.clone() };
        let known = cuts.as_ref().map(|cuts| cuts[0].1);
        let without = known.map_or_else(|| priced.seconds(strategy.clone()), Ok);
        if without.is_ok_and(|without| priced.seconds(with.clone()).is_ok_and(|seconds| seconds < without)) {
            strategy = with;
        }
    }
    Ok((strategy, ways, cuts))
}

/// Layers of each part without the first and the last of the model, which belong to the first and the last part anyway.
fn inner_layers(ends: &[usize]) -> Vec<u32> {
    let last = ends.len() - 1;
    let mut start = 1;
    let sizes = ends.iter().enumerate().map(|(part, end)| {
        let end = if part == last { end - 1 } else { *end };
        (end - std::mem::replace(&mut start, end)) as u32
    });
    sizes.collect()
}

fn ticks(seconds: f64) -> Ticks {
    (seconds / TICK).round() as Ticks
}

/// One stage and five micro-batches, in which everything is priced in its steady state: micro-batch 1 has a whole backward pass, 2 its two halves, the last two a pair.
const SAMPLE: &str = "F0:0 B0:0 F0:1 B0:1 F0:2 I0:2 W0:2 F0:3 F0:4&B0:3 B0:4";

/// What each layer costs on a rank: the programs that run it, in a step of one stage.
fn layer_costs(
    model: &CheckedModel,
    options: &CompileOptions,
    price: &dyn Price,
) -> Result<Vec<LayerCosts>, StrategyError> {
    let schedule = Schedule::infer(&[SAMPLE]).expect("a valid order");
    let micros = schedule.layout().size.micros;
    let given = Given { name: "a sample".into(), schedule: Arc::new(schedule) };
    let usual = Strategy { schedule: Order::Given(given), cap: None, nodes: None, ..Strategy::default() };
    let strategy = Strategy {
        pp: usual.pp,
        vpp: usual.vpp,
        schedule: usual.schedule,
        cap: usual.cap,
        nodes: usual.nodes,
        stages: usual.stages,
        ..options.strategy.clone()
    };
    let options = CompileOptions { strategy, ..options.clone() };
    let plan = compile_training(model, &options, &[micros])?.pop().expect("a plan for each number of micro-batches");
    let seconds = price.programs(&plan).map_err(|error| StrategyError::new(error, None))?;
    let mut costs = vec![[0.0; 4]; model.layers.len()];
    let phases = plan.roles.iter().flat_map(|role| &role.phases).filter(|phase| phase.name == "train");
    for call in phases.flat_map(|phase| &phase.calls) {
        let name = &plan.programs[call.program as usize].name;
        if let (Some(pass), Some(costs)) = (pass(name, call.micro_batch), costs.get_mut(call.layer as usize)) {
            costs[pass] += seconds[call.program as usize];
        }
    }
    let of = |(costs, layer): (&[f64; 4], &Layer)| {
        let [forward, input, weight, whole] = costs.map(ticks);
        let pair = pair_of(&plan, &model.segments[layer.segment].name).map(|pair| ticks(seconds[pair]));
        let hidden = pair.map_or(0, |pair| (forward + whole).saturating_sub(pair).min(forward).min(whole));
        LayerCosts { forward, input, weight, whole, hidden }
    };
    Ok(costs.iter().zip(&model.layers).map(of).collect())
}

/// The program that runs two layers of a segment together, forward and backward, where there is one.
fn pair_of(plan: &Plan, segment: &str) -> Option<usize> {
    plan.programs.iter().position(|program| {
        let both = program.name.split_once('&');
        both.is_some_and(|(forward, backward)| {
            forward.starts_with(&format!("train.{segment}.forward"))
                && backward.starts_with(&format!("{segment}.backward"))
        })
    })
}

/// Which pass of [`SAMPLE`] counts for what, by the name of its program: F, I, W, B.
fn pass(program: &str, micro: u32) -> Option<usize> {
    let stem = program.split('[').next().unwrap_or_default();
    let is = |pass: &str| stem.split('.').any(|word| word == pass);
    match micro {
        1 if is("forward") => Some(0),
        2 if is("backward_input") => Some(1),
        2 if is("backward_weight") => Some(2),
        1 if is("backward") => Some(3),
        _ => None,
    }
}

/// From one stage to the next: the most that goes over a boundary, a whole stage of ranks away.
fn message(
    model: &CheckedModel,
    sharded: &ShardedModel,
    strategy: &Strategy,
    price: &dyn Price,
) -> Result<Ticks, StrategyError> {
    let boundaries = match strategy.stages {
        Cut::Auto => (1..model.layers.len()).collect(),
        Cut::Even | Cut::Given(_) => ends(model, strategy)?,
    };
    let bytes = |boundary: usize| -> u64 {
        let carried = crossing(model, boundary).into_iter().map(|source| {
            let graph = &sharded.model.segments[model.layers[source.layer].segment].forward;
            let mut carries = graph.outputs.iter().filter(|o| o.role == OutputRole::Carry);
            graph.bytes(carries.nth(source.output).expect("a carry of the layer").value)
        });
        carried.sum()
    };
    let most = boundaries.into_iter().map(bytes).max().unwrap_or(0);
    let stage = strategy.ranks() / u64::from(strategy.pp);
    Ok(if most == 0 { 0 } else { ticks(price.message((strategy.pp, stage), most as f64)) })
}

/// An order, and the parts of the model that it is for.
struct Choice {
    /// The published schedule that it is.
    kind: Option<Kind>,
    schedule: Schedule,
    costs: Costs,
    ends: Vec<usize>,
    makespan: Ticks,
    /// Schedules that were replayed to find it.
    replayed: u64,
}

/// What is known before anything is looked for.
struct Seeker<'a> {
    strategy: &'a Strategy,
    size: Size,
    layers: Vec<LayerCosts>,
    /// Where parts end, if that is not left open.
    ends: Option<Vec<usize>>,
    p2p: Ticks,
    /// Is anything hidden in pairs?
    pairs: bool,
}

impl Seeker<'_> {
    /// A schedule as it runs: with the works of a pair one after the other where that hides as much.
    fn priced(&self, schedule: Schedule) -> Schedule {
        if self.pairs { schedule } else { one_by_one(&schedule) }
    }

    fn linked(&self, costs: Costs) -> Costs {
        costs.with_p2p(self.p2p)
    }

    /// The parts for which a schedule is fast.
    fn fitted(&self, kind: Option<Kind>, schedule: Schedule) -> Result<Choice, ScheduleError> {
        let makespan = |costs: &Costs| Some(replay(&schedule, costs).ok()?.makespan);
        let (costs, ends) = self.parts(schedule.layout(), makespan)?;
        let makespan = replay(&schedule, &costs).map_err(|stuck| ScheduleError::plain(stuck.to_string()))?.makespan;
        Ok(Choice { kind, schedule, costs, ends, makespan, replayed: 0 })
    }

    /// The parts of a layout, and what they cost: those that are given, or those that make `makespan` small.
    fn parts(
        &self,
        layout: Layout,
        makespan: impl Fn(&Costs) -> Option<Ticks>,
    ) -> Result<(Costs, Vec<usize>), ScheduleError> {
        match &self.ends {
            Some(ends) => {
                let cut = layers::Cut { ends: ends.clone(), exact: false };
                Ok((self.linked(cut.costs(&self.layers)), ends.clone()))
            }
            None => {
                let (costs, cut) = fitted(&self.layers, layout, |costs| self.linked(costs), makespan)?;
                Ok((costs, cut.ends))
            }
        }
    }

    /// The best order of the best placement: one that was searched for, or a published one that nothing beats.
    fn search(&self, progress: &mut dyn FnMut(Progress)) -> Result<Choice, ScheduleError> {
        let placements: &[Placement] = match self.size.chunks {
            // With one part a stage they are the same.
            1 => &[Placement::Blocked],
            _ => &[Placement::Wave, Placement::Interleaved],
        };
        let nodes = self.strategy.nodes.unwrap_or_else(|| default_nodes(self.size));
        let nodes = Some(nodes.div_ceil(placements.len() as u64));
        let (mut choices, mut replayed) = (vec![], 0);
        for &placement in placements {
            let layout = Layout { size: self.size, placement };
            let best =
                |costs: &Costs| self.published(placement, costs).into_iter().map(|(.., makespan)| makespan).min();
            let (costs, ends) = self.parts(layout, best)?;
            let request =
                Request { size: self.size, costs: &costs, cap: self.strategy.cap, placements: &[placement], nodes };
            let found = search(&request, progress)?;
            replayed += found.nodes;
            let refined = self.refined(Choice {
                kind: None,
                schedule: self.priced(found.schedule),
                makespan: found.makespan,
                costs,
                ends,
                replayed: 0,
            });
            choices.extend(self.alternatives(&refined));
            choices.extend(self.by_themselves(placement)?);
            choices.push(refined);
        }
        // Of equal ones the first, so that what has a name is called by it.
        let best = choices.into_iter().min_by_key(|choice| choice.makespan).expect("at least one placement");
        verify(&best.schedule, self.strategy.cap).map_err(|problems| ScheduleError::plain(problems[0].to_string()))?;
        Ok(Choice { replayed, ..best })
    }

    /// Moves layers while the order that was found gets faster.
    fn refined(&self, choice: Choice) -> Choice {
        if self.ends.is_some() {
            return choice;
        }
        let makespan = |costs: &Costs| replay(&choice.schedule, costs).map_or(Ticks::MAX, |t| t.makespan);
        let costs = |cut: &layers::Cut| self.linked(cut.costs(&self.layers));
        let start = layers::Cut { ends: choice.ends.clone(), exact: false };
        let cut = refine(start, REFINED, |cut| makespan(&costs(cut)));
        let (makespan, costs) = (makespan(&costs(&cut)), costs(&cut));
        Choice { costs, makespan, ends: cut.ends, ..choice }
    }

    /// The published schedules, each on the parts that are best for it, where parts are left open.
    fn by_themselves(&self, placement: Placement) -> Result<Vec<Choice>, ScheduleError> {
        let open = searched().into_iter().filter(|_| self.ends.is_none());
        let kept = open.filter_map(|kind| Some((kind, self.kept(kind, placement)?)));
        kept.map(|(kind, schedule)| self.fitted(Some(kind), schedule)).collect()
    }

    /// The published schedules on the same parts.
    fn alternatives(&self, choice: &Choice) -> Vec<Choice> {
        let published = self.published(choice.schedule.layout().placement, &choice.costs).into_iter();
        let on_them = |(kind, schedule, makespan)| Choice {
            kind: Some(kind),
            schedule,
            makespan,
            costs: choice.costs.clone(),
            ends: choice.ends.clone(),
            replayed: 0,
        };
        published.map(on_them).collect()
    }

    /// The published schedules that lie so and keep to the cap, with their makespans.
    fn published(&self, placement: Placement, costs: &Costs) -> Vec<(Kind, Schedule, Ticks)> {
        let timed = |kind| {
            let schedule = self.kept(kind, placement)?;
            let makespan = replay(&schedule, costs).ok()?.makespan;
            Some((kind, schedule, makespan))
        };
        searched().into_iter().filter_map(timed).collect()
    }

    /// A published schedule, if it lies so and keeps to the cap.
    fn kept(&self, kind: Kind, placement: Placement) -> Option<Schedule> {
        let schedule = self.priced(published(kind, self.size).ok()?);
        let lies_so = schedule.layout().placement == placement || self.size.chunks == 1;
        let within = self.strategy.cap.is_none_or(|cap| schedule.peaks().iter().all(|peak| *peak <= cap));
        (lies_so && within).then_some(schedule)
    }

    /// What is told of a choice.
    fn found(&self, choice: &Choice) -> Found {
        let seconds = |ticks: Ticks| ticks as f64 * TICK;
        let layout = choice.schedule.layout();
        let best = self.published(layout.placement, &choice.costs).into_iter().min_by_key(|(.., makespan)| *makespan);
        Found {
            kind: choice.kind,
            seconds: seconds(choice.makespan),
            bound: seconds(lower_bound(layout, &choice.costs, self.strategy.cap)),
            published: best.map(|(kind, _, makespan)| (kind, seconds(makespan))),
            peak: choice.schedule.peaks().into_iter().max().unwrap_or(0),
            nodes: choice.replayed,
        }
    }
}
