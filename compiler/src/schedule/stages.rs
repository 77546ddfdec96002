//! Pipeline stages: which layers, tensors and values belong to which, and in which order a stage works.
//!
//! ```text
//! layers       0 1 2 | 3 4 | 5 6 | 7 8 9          pp = 2, vpp = 2
//! stage        0     | 1   | 0   | 1              parts of the model go round the stages,
//!              0     | 1   | 1   | 0              or there and back again
//! chunk        0     | 0   | 1   | 1
//!
//! layers       0 1 2 3 4 | 5 6 7 8 9          pp = 2, both ways at once: each part is on two stages,
//! stage        0         | 1                  and half of the micro-batches take either way
//!              1         | 0
//! ```

use super::flow::Flow;
use super::layers::Half;
use crate::shard::{Cut, Order, Strategy, StrategyError};
use forebay_dsl::model::{CheckedModel, Layer, Source};
use forebay_pipeline::{Costs, Item, Kind, Layout, Op, Placement, Schedule, ScheduleError, Size, Span, replay};
use indexmap::IndexMap;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

/// What one stage of the pipeline has.
#[derive(Clone, Debug)]
pub struct Stage {
    /// Counted from 0.
    pub number: u32,
    /// How many there are.
    pub of: u32,
    /// Its parts of the model, in order.
    pub chunks: Vec<Chunk>,
    /// Parameters of its layers, sorted.
    pub params: Vec<usize>,
    /// States of its layers, sorted.
    pub states: Vec<usize>,
    /// Parameters that other stages have too: for each all stages that have it, sorted. Each keeps it, and has the sum of all their gradients.
    pub tied: BTreeMap<usize, Vec<u32>>,
}

/// A run of layers on a stage.
#[derive(Clone, Debug)]
pub struct Chunk {
    /// Which part of the model it is.
    pub part: usize,
    /// The micro-batches that go through it.
    pub way: Way,
    /// Its layers.
    pub layers: Range<usize>,
    /// The part before.
    pub receives: Option<Link>,
    /// The part after.
    pub sends: Option<Link>,
}

/// Where a part of the model that is next to one is, and what goes between them.
#[derive(Clone, Debug)]
pub struct Link {
    /// The stage that has it.
    pub stage: u32,
    /// Which of the chunks there it is.
    pub chunk: u32,
    /// Values that cross, in order.
    pub carries: Vec<Source>,
}

/// Which micro-batches go through a chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Way {
    /// All of them: each part of the model is there once.
    Only,
    /// The first half, from the first stage to the last.
    Down,
    /// The second half, from the last stage to the first.
    Up,
}

impl Way {
    /// The micro-batches of a step that take it.
    pub fn micros(self, of: u32) -> Range<u32> {
        match self {
            Way::Only => 0..of,
            Way::Down => 0..of / 2,
            Way::Up => of / 2..of,
        }
    }
}

impl Stage {
    /// Is the layer one of its own?
    pub fn has(&self, layer: usize) -> bool {
        self.chunk_with(layer).is_some()
    }

    /// The micro-batches of a step that go through the layer here.
    pub fn micros(&self, layer: usize, of: u32) -> Range<u32> {
        self.chunk_with(layer).map_or(0..0, |chunk| chunk.way.micros(of))
    }

    /// The stages that have the layer as this one does, sorted, where that are several.
    pub fn stages_with(&self, layer: usize) -> Vec<u32> {
        let twice = self.chunk_with(layer).is_some_and(|chunk| chunk.way != Way::Only);
        let mut stages = if twice { vec![self.number, self.of - 1 - self.number] } else { vec![] };
        stages.sort_unstable();
        stages
    }

    /// The stage as all micro-batches go through the model one way: where nothing goes backward no stage waits for another one's gradients.
    pub fn one_way(&self) -> Stage {
        let chunks = self.chunks.iter().filter(|chunk| chunk.way != Way::Up);
        Stage { chunks: chunks.map(|chunk| Chunk { way: Way::Only, ..chunk.clone() }).collect(), ..self.clone() }
    }

    fn chunk_with(&self, layer: usize) -> Option<&Chunk> {
        self.chunks.iter().find(|chunk| chunk.layers.contains(&layer))
    }
}

/// The stages of a model.
///
/// # Errors
/// When there are more parts than layers, or given stages do not add up.
pub fn stages(model: &CheckedModel, strategy: &Strategy) -> Result<Vec<Stage>, StrategyError> {
    let of = strategy.pp;
    if of == 1 && strategy.vpp > 1 {
        return Err(StrategyError::new(
            format!("vpp = {} cuts the stages of a pipeline, but there is one stage", strategy.vpp),
            Some("use vpp = 1, or pp = 2 or more".to_string()),
        ));
    }
    let mut start = 0;
    let parts: Vec<Range<usize>> =
        ends(model, strategy)?.into_iter().map(|end| std::mem::replace(&mut start, end)..end).collect();
    let places = places(strategy)?;
    let holders = holders(model, &parts, &places);
    let link = |(way, part): (Way, usize), boundary: usize| {
        let at = &places[&(way, part)];
        Link { stage: at.0, chunk: at.1, carries: crossing(model, boundary) }
    };
    let chunk = |(way, part): (Way, usize)| Chunk {
        part,
        way,
        layers: parts[part].clone(),
        receives: (part > 0).then(|| link((way, part - 1), parts[part].start)),
        sends: (part + 1 < parts.len()).then(|| link((way, part + 1), parts[part].end)),
    };
    let stage = |number: u32| {
        let chunks = places.iter().filter(|(_, (stage, _))| *stage == number);
        let chunks: Vec<Chunk> = chunks.map(|(&at, _)| chunk(at)).collect();
        let layers = || chunks.iter().flat_map(|c| &model.layers[c.layers.clone()]);
        let mut params: BTreeSet<usize> = layers().flat_map(|l| l.params.clone()).collect();
        let mut states: BTreeSet<usize> = layers().flat_map(states_of).collect();
        if number == 0 {
            // What no layer uses has to be somewhere.
            let used: BTreeSet<usize> = model.layers.iter().flat_map(|l| l.params.clone()).collect();
            params.extend((0..model.params.len()).filter(|p| !used.contains(p)));
            let used: BTreeSet<usize> = model.layers.iter().flat_map(states_of).collect();
            states.extend((0..model.states.len()).filter(|s| !used.contains(s)));
        }
        let shared = |p: &&usize| holders.get(*p).is_some_and(|h| h.len() > 1);
        let tied = params.iter().filter(shared).map(|&p| (p, holders[&p].clone())).collect();
        let (params, states) = (params.into_iter().collect(), states.into_iter().collect());
        Stage { number, of, chunks, params, states, tied }
    };
    Ok((0..of).map(stage).collect())
}

/// The stage that has a part of the model, and its number among the chunks there; for each way that micro-batches take.
type Places = IndexMap<(Way, usize), (u32, u32)>;

/// Where the parts of the model are, those of a stage in the order of its chunks.
fn places(strategy: &Strategy) -> Result<Places, StrategyError> {
    let placement = placement(strategy)?;
    let ways: &[Way] = if placement == Placement::TwoWay { &[Way::Down, Way::Up] } else { &[Way::Only] };
    // Of two micro-batches one takes either way.
    let layout = Layout { size: size(strategy, 2)?, placement };
    let mut chunks = vec![0; strategy.pp as usize];
    let mut places = Places::default();
    for (way, part) in ways.iter().flat_map(|&way| (0..strategy.pp * strategy.vpp).map(move |part| (way, part))) {
        let stage = layout.stage_of(part, way.micros(2).start);
        let chunk = &mut chunks[stage as usize];
        places.insert((way, part as usize), (stage, *chunk));
        *chunk += 1;
    }
    Ok(places)
}

/// Which stage has which part of the model: one after another round the stages, or there and back again. With one part a stage that is the same.
fn placement(strategy: &Strategy) -> Result<Placement, StrategyError> {
    match strategy.schedule.placement() {
        Some(Placement::Blocked) => Ok(Placement::Interleaved),
        Some(placement) => Ok(placement),
        None => Err(unsettled(&strategy.schedule)),
    }
}

/// The most forwards, stages × parts × micro-batches, of a plan: it lists every call with its memory, some kB each.
const MOST_FORWARDS: u64 = 1 << 17;

fn size(strategy: &Strategy, micro_batches: u32) -> Result<Size, StrategyError> {
    let two_way = strategy.schedule.placement() == Some(Placement::TwoWay);
    if two_way && !strategy.pp.is_multiple_of(2) {
        return Err(StrategyError::new(
            format!("schedule = {}: each part of the model is on two of an even number of stages", strategy.schedule),
            Some(format!("use pp = {}", strategy.pp + 1)),
        ));
    }
    if two_way && strategy.vpp > 1 {
        return Err(StrategyError::new(
            format!(
                "schedule = {}: a stage has one part of the model each way, not {}",
                strategy.schedule, strategy.vpp
            ),
            Some("use vpp = 1, or schedule = dualpipev with vpp = 2".to_string()),
        ));
    }
    let chunks = if two_way { 2 } else { strategy.vpp };
    let size = Size::new(strategy.pp, chunks, micro_batches).map_err(|e| refused(&strategy.schedule, e))?;
    let forwards = u64::from(size.stages) * u64::from(size.chunks) * u64::from(size.micros);
    if forwards > MOST_FORWARDS {
        return Err(StrategyError::new(
            format!(
                "{} stages × {} parts × {micro_batches} micro-batches are {forwards} forwards in a step; a plan lists at most {MOST_FORWARDS}",
                size.stages, size.chunks
            ),
            Some("more rows a micro-batch (mbs) or more data-parallel ranks (dp) make it fewer; the steady state repeats".to_string()),
        ));
    }
    Ok(size)
}

fn refused(order: &Order, error: ScheduleError) -> StrategyError {
    StrategyError::new(format!("schedule = {order}: {}", error.message), error.hint)
}

fn unsettled(order: &Order) -> StrategyError {
    StrategyError::new(
        format!("schedule = {order} is found for what a step costs, and this needs it before"),
        Some("name a schedule".to_string()),
    )
}

fn states_of(layer: &Layer) -> Vec<usize> {
    [&layer.states[..], &layer.update_states, &layer.update_outputs].concat()
}

/// Where each part ends: the layers in between divided evenly or as the strategy says, the first and the last layer with the first and the last part.
///
/// # Errors
/// When there are more parts than layers, given stages do not add up, or they are left to be found.
pub fn ends(model: &CheckedModel, strategy: &Strategy) -> Result<Vec<usize>, StrategyError> {
    let (parts, n) = ((strategy.pp * strategy.vpp) as usize, model.layers.len());
    let inner = n.saturating_sub(2);
    if parts == 1 && !matches!(strategy.stages, Cut::Given(_)) {
        return Ok(vec![n]);
    }
    let sizes: Vec<usize> = match &strategy.stages {
        Cut::Given(sizes) => sizes.iter().map(|s| *s as usize).collect(),
        Cut::Even => (0..parts).map(|s| inner / parts + usize::from(s < inner % parts)).collect(),
        Cut::Auto => {
            return Err(StrategyError::new(
                "stages = auto is found for what layers cost, and this needs them before",
                Some("give the layers of each part, such as 4/5/5/4".to_string()),
            ));
        }
    };
    if sizes.len() != parts || sizes.iter().sum::<usize>() != inner {
        return Err(StrategyError::new(
            format!(
                "`stages` has {} layers in {} parts; between its first and last part the model has {inner}, for pp × vpp = {parts}",
                sizes.iter().sum::<usize>(),
                sizes.len()
            ),
            Some("an even cut needs no `stages`".to_string()),
        ));
    }
    match &strategy.stages {
        Cut::Even if sizes.contains(&0) => {
            return Err(StrategyError::new(
                format!("{inner} layers do not fill the {parts} parts of a pipeline (pp × vpp)"),
                Some(format!("use pp × vpp = {} or less", inner.max(1))),
            ));
        }
        // The first and the last part have the embedding and the losses in any case.
        Cut::Given(_) if parts > 1 && sizes[1..parts - 1].contains(&0) => {
            return Err(StrategyError::new(
                "`stages` leaves a part without layers".to_string(),
                Some("the first and the last part can do without, which have the embedding and the losses".to_string()),
            ));
        }
        _ => {}
    }
    let mut end = 1;
    let mut ends: Vec<usize> = sizes
        .into_iter()
        .map(|size| {
            end += size;
            end
        })
        .collect();
    *ends.last_mut().expect("at least one part") = n;
    Ok(ends)
}

/// For each parameter the stages whose layers use it, sorted.
fn holders(model: &CheckedModel, parts: &[Range<usize>], places: &Places) -> BTreeMap<usize, Vec<u32>> {
    let mut holders: BTreeMap<usize, BTreeSet<u32>> = BTreeMap::new();
    for ((_, part), (stage, _)) in places {
        for &param in model.layers[parts[*part].clone()].iter().flat_map(|l| &l.params) {
            holders.entry(param).or_default().insert(*stage);
        }
    }
    holders.into_iter().map(|(param, stages)| (param, stages.into_iter().collect())).collect()
}

/// What layers before a boundary make and layers behind it read.
pub fn crossing(model: &CheckedModel, boundary: usize) -> Vec<Source> {
    let behind = model.layers.get(boundary..).unwrap_or_default();
    let sources: BTreeSet<(usize, usize)> =
        behind.iter().flat_map(|l| &l.carries).filter(|s| s.layer < boundary).map(|s| (s.layer, s.output)).collect();
    sources.into_iter().map(|(layer, output)| Source { layer, output }).collect()
}

/// Does a gradient flow along it?
pub fn has_gradient(model: &CheckedModel, flow: &Flow, source: Source) -> bool {
    flow.outputs[model.layers[source.layer].segment][source.output]
}

/// A piece of a stage's step: one micro-batch through the layers of one chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Work {
    /// Forward: micro-batch, chunk.
    Forward(u32, u32),
    /// Backward, or a half of it: micro-batch, chunk.
    Backward(u32, u32, Half),
}

/// What a stage does next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Turn {
    /// One piece of work.
    One(Work),
    /// Two that need nothing of each other, at the same time.
    Pair(Work, Work),
}

impl Turn {
    /// Its one or two works.
    pub fn works(self) -> impl Iterator<Item = Work> {
        let (first, second) = match self {
            Turn::One(work) => (work, None),
            Turn::Pair(first, second) => (first, Some(second)),
        };
        std::iter::once(first).chain(second)
    }
}

/// The orders in which the stages work, one for each.
///
/// ```text
/// 1F1B, stage 1 of 3, 4 micro-batches     F0 F1 B0 F2 B1 F3 B2 B3
/// ```
///
/// With several chunks 1F1B is interleaved (arXiv 2104.04473, section 2.2), and all that goes forward first in the same order is GPipe.
///
/// # Errors
/// When the schedule does not exist at that size, or is none that training can run.
pub fn orders(strategy: &Strategy, micro_batches: u32) -> Result<Vec<Vec<Turn>>, StrategyError> {
    let schedule = schedule(strategy, micro_batches)?;
    let (stages, two_way) = (strategy.pp, schedule.layout().placement == Placement::TwoWay);
    let work = |work: forebay_pipeline::Work| {
        // Parts of the model go round the stages, or there and back: a stage's chunk is the round. Or it is the way that the micro-batch takes.
        let up = Way::Up.micros(micro_batches).contains(&work.micro);
        let (micro_batch, chunk) = (work.micro, if two_way { u32::from(up) } else { work.group / stages });
        match work.op {
            Op::F => Work::Forward(micro_batch, chunk),
            Op::I => Work::Backward(micro_batch, chunk, Half::Input),
            Op::W => Work::Backward(micro_batch, chunk, Half::Weights),
            Op::B => Work::Backward(micro_batch, chunk, Half::Whole),
        }
    };
    let turn = |item: &Item| match *item {
        Item::One(one) => Turn::One(work(one)),
        Item::Pair(first, second) => Turn::Pair(work(first), work(second)),
    };
    Ok(schedule.orders().iter().map(|order| order.iter().map(turn).collect()).collect())
}

/// For each stage and turn: may the stage have nothing to do before it? That is so behind its last forward pass, and where it waits for a quarter of a forward pass or longer
/// when all parts of the model are alike, with layers that are made again: a backward pass takes as long as three forward passes.
///
/// # Errors
/// As [`orders`].
pub fn waits(strategy: &Strategy, micro_batches: u32) -> Result<Vec<Vec<bool>>, StrategyError> {
    let schedule = schedule(strategy, micro_batches)?;
    let forward = 4;
    let costs = Costs::equal(schedule.layout().groups(), forward, 2 * forward, forward);
    let times = replay(&schedule, &costs).map_err(|stuck| StrategyError::new(stuck.to_string(), None))?;
    let of_stage = |(spans, order): (&Vec<Span>, &Vec<Item>)| {
        let ends = std::iter::once(0).chain(spans.iter().map(|span| span.end));
        let waits = spans.iter().zip(ends).map(|(span, before)| span.start - before >= forward / 4);
        let last = order.iter().rposition(|item| item.works().any(|work| work.op == Op::F)).unwrap_or(0);
        waits.enumerate().map(|(turn, waits)| waits || turn > last).collect()
    };
    Ok(times.spans.iter().zip(schedule.orders()).map(of_stage).collect())
}

/// The schedule that a strategy names.
fn schedule(strategy: &Strategy, micro_batches: u32) -> Result<Schedule, StrategyError> {
    Ok(match &strategy.schedule {
        Order::Published(kind) => published(*kind, size(strategy, micro_batches)?)?,
        Order::Search => return Err(unsettled(&strategy.schedule)),
        Order::Given(given) => {
            let (have, want) = (given.schedule.layout().size, size(strategy, micro_batches)?);
            let two_way = given.schedule.layout().placement == Placement::TwoWay;
            if two_way && have.chunks > 2 {
                return Err(StrategyError::new(
                    format!(
                        "schedule = {}: a stage has {} parts of the model each way",
                        strategy.schedule,
                        have.chunks / 2
                    ),
                    Some("training runs one part each way: make a stage's groups of a way one".to_string()),
                ));
            }
            if have != want {
                let ways = if two_way { 2 } else { 1 };
                let shown =
                    |s: Size| format!("{} stages × {} parts, {} micro-batches", s.stages, s.chunks / ways, s.micros);
                return Err(StrategyError::new(
                    format!("schedule = {}: it is for {}, not {}", strategy.schedule, shown(have), shown(want)),
                    Some(format!("use pp={},vpp={},micro={}", have.stages, have.chunks / ways, have.micros)),
                ));
            }
            if have.chunks > 1 && given.schedule.layout().placement == Placement::Blocked {
                return Err(StrategyError::new(
                    format!(
                        "schedule = {}: the {} parts of a stage follow on each other",
                        strategy.schedule, have.chunks
                    ),
                    Some("make it one part, or let parts go round the stages".to_string()),
                ));
            }
            (*given.schedule).clone()
        }
    })
}

/// A published schedule as training runs it.
///
/// # Errors
/// When it does not exist at that size, or is none that training can run.
pub fn published(kind: Kind, size: Size) -> Result<Schedule, StrategyError> {
    let refused = |e| refused(&Order::Published(kind), e);
    let several = size.chunks > 1;
    match kind {
        Kind::OneFOneB if several => Kind::Interleaved.generate(size).map_err(refused),
        Kind::GPipe if several => Kind::Interleaved.generate(size).map(forwards_first).map_err(refused),
        kind if several && kind.placement() == Placement::Blocked => Err(StrategyError::new(
            format!("schedule = {}: it has one part of the model on a stage, not {}", kind.name(), size.chunks),
            Some("use vpp = 1, or schedule = zb-vpp".to_string()),
        )),
        kind => kind.generate(size).map_err(refused),
    }
}

/// A schedule with the works of a pair one after the other.
pub fn one_by_one(schedule: &Schedule) -> Schedule {
    let orders = schedule.orders().iter().map(|order| order.iter().flat_map(Item::works).map(Item::One).collect());
    Schedule::new(schedule.layout(), orders.collect())
}

/// The same work with all that goes forward first.
fn forwards_first(schedule: Schedule) -> Schedule {
    let is_backward = |item: &Item| item.works().any(|work| work.op != Op::F);
    let mut orders = schedule.orders().to_vec();
    orders.iter_mut().for_each(|order| order.sort_by_key(is_backward));
    Schedule::new(schedule.layout(), orders)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A stage waits for its first gradient, and once it has made its last forward pass for all that are left.
    #[test]
    fn gradients_are_waited_for() {
        let strategy = Strategy { pp: 3, ..Strategy::default() };
        let (orders, waits) = (orders(&strategy, 5).unwrap(), waits(&strategy, 5).unwrap());
        let gradients = |(order, waits): (&Vec<Turn>, &Vec<bool>)| {
            let waited = order.iter().zip(waits).filter(|(_, waits)| **waits).map(|(turn, _)| *turn);
            let micro = waited.filter_map(|turn| match turn {
                Turn::One(Work::Backward(micro, ..)) => Some(micro),
                _ => None,
            });
            micro.collect::<Vec<u32>>()
        };
        let waited: Vec<Vec<u32>> = orders.iter().zip(&waits).map(gradients).collect();
        assert_eq!(waited, [vec![0, 2, 3, 4], vec![0, 3, 4], vec![4]]);
    }

    /// `F0 F1 B0`, and with several chunks `F0.1` for micro-batch 0 through chunk 1.
    fn shown(number: u32, of: u32, chunks: u32, schedule: Kind, micro_batches: u32) -> String {
        let several = chunks > 1;
        let name = |what: &str, m: u32, c: u32| if several { format!("{what}{m}.{c}") } else { format!("{what}{m}") };
        let schedule = Order::Published(schedule);
        let strategy = Strategy { pp: of, vpp: chunks, schedule, ..Strategy::default() };
        let orders = orders(&strategy, micro_batches).unwrap();
        let work = orders[number as usize].iter().flat_map(|turn| turn.works()).map(|w| match w {
            Work::Forward(m, c) => name("F", m, c),
            Work::Backward(m, c, Half::Whole) => name("B", m, c),
            Work::Backward(m, c, Half::Input) => name("I", m, c),
            Work::Backward(m, c, Half::Weights) => name("W", m, c),
        });
        work.collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn one_forward_one_backward() {
        let order = |stage| shown(stage, 3, 1, Kind::OneFOneB, 4);
        assert_eq!(order(0), "F0 F1 F2 B0 F3 B1 B2 B3");
        assert_eq!(order(1), "F0 F1 B0 F2 B1 F3 B2 B3");
        assert_eq!(order(2), "F0 B0 F1 B1 F2 B2 F3 B3");
        assert_eq!(shown(0, 3, 1, Kind::OneFOneB, 1), "F0 B0");
        assert_eq!(shown(0, 2, 1, Kind::GPipe, 2), "F0 F1 B0 B1");
        assert_eq!(shown(0, 2, 1, Kind::ZbH1, 3), "F0 F1 I0 W0 F2 I1 W1 I2 W2");
    }

    /// Figure 4 of arXiv 2104.04473, with two stages.
    #[test]
    fn interleaved() {
        let order = |stage| shown(stage, 2, 2, Kind::OneFOneB, 4);
        assert_eq!(order(1), "F0.0 F1.0 F0.1 B0.1 F1.1 B1.1 F2.0 B0.0 F3.0 B1.0 F2.1 B2.1 F3.1 B3.1 B2.0 B3.0");
        assert!(order(0).starts_with("F0.0 F1.0 F0.1 F1.1 F2.0 B0.1"), "{}", order(0));
    }

    #[test]
    fn micro_batches_that_cannot_be_interleaved_are_refused() {
        let strategy = Strategy { pp: 2, vpp: 2, ..Strategy::default() };
        let error = orders(&strategy, 5).unwrap_err().to_string();
        assert!(error.contains("4 or 6"), "{error}");
    }

    #[test]
    fn schedules_of_one_part_are_refused_for_several() {
        let size = Size::new(2, 2, 4).unwrap();
        for kind in [Kind::ZbH1, Kind::ZbH2] {
            let error = published(kind, size).unwrap_err().to_string();
            assert!(error.contains("one part") && error.contains("zb-vpp"), "{error}");
        }
    }
}
