//! The closed form: time and memory of a strategy in microseconds, for searches over many.
//!
//! ```text
//! shard of the layers ──► probe, compiled once ──► table of layers ──┐
//! (tp, cp, ep, rows …)                                              ├──► recurrence of the schedule ──► ends of the stages ──► estimate
//! schedule, stages, chunks, micro-batches ──► order of passes ──────┘    (pipe.rs)                      (ends.rs)
//! ```
//!
//! What is computed once is kept: tables by shard, orders by the size of a pipeline, pipelines by both. Data-parallel ranks, ZeRO and long steps change only
//! sums over parameters. It agrees with the replay ([`crate::simulate`]) within 1 to 2 % of time (docs/accuracy.md), and says where it may not ([`Doubt`]).

mod ends;
mod grown;
mod pipe;
mod shard;

pub use shard::{LayerCost, Shard, ShardKey};

use crate::report::Options;
use crate::routes::Routes;
use ends::{End, Ends, Over, cut};
use forebay_compiler::memory::{Recompute, Swap};
use forebay_compiler::overlap::exchange::Dispatch;
use forebay_compiler::overlap::pieces::Pieces;
use forebay_compiler::overlap::{self, Pass};
use forebay_compiler::shard::{CpAlgo, Cut, EtpGather, Order, Strategy};
use forebay_compiler::shares::Shares;
use forebay_cost::{Cluster, Domains};
use forebay_dsl::model::CheckedModel;
use forebay_pipeline::{Kind, Placement};
use pipe::{PassOrder, Passes, Scratch, Under, UnderWay};
use rustc_hash::FxHashMap;
use std::rc::Rc;

/// Why an estimate may be further off than 1 %.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Doubt {
    /// The host takes nearly as long as the devices: who waits for whom decides.
    Host,
    /// The host waits for numbers of rows or for messages in the middle of the step, or is held by collectives at its end.
    HostWaits,
    /// Stages sum gradients of parameters that several of them have.
    Tied,
    /// Gradients are summed, or parameters gathered, beside layers.
    Beside,
    /// Overlap passes let calls run into each other more than the recurrence knows.
    Overlap,
    /// There are fewer micro-batches than stages: the pipeline is never full, and its ends weigh most.
    Short,
    /// There is one micro-batch: gradients that are no sums are kept as they are computed, which probes, of two, do not show.
    Single,
    /// Of memory: where what backward passes in halves leave lies, which costs 2 to 3 % where it comes and goes in another order; with ZeRO 2 and 3, and where some backward passes are whole
    /// (DualPipeV), what they keep too: 6 to 9 %.
    Halves,
    /// Of memory: the framework's allocator keeps more than is in use.
    Allocator,
}

/// What a strategy comes to.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Estimate {
    /// Seconds of a step.
    pub step_time_s: f64,
    /// The part of all stages' time in which they wait for others.
    pub bubble_fraction: f64,
    /// The host's time to start all kernels of the busiest stage, as a part of the devices' time.
    pub host_fraction: f64,
    /// Seconds from the last backward pass to the end.
    pub end_s: f64,
    /// Bytes of the fullest stage at its peak.
    pub peak_bytes: f64,
    /// Of these what outlives a step: weights, gradients, optimizer.
    pub persistent_bytes: f64,
    /// Why the time may be further off.
    pub doubt: Option<Doubt>,
    /// Why the memory may be.
    pub memory_doubt: Option<Doubt>,
}

/// Loads the model with so many rows of a micro-batch.
pub type Load<'a> = dyn Fn(u32) -> Result<CheckedModel, String> + 'a;

/// Schedule, stages, chunks, micro-batches.
type PipeSize = (Kind, u32, u32, u32);

/// The closed form for one model on one cluster.
pub struct Closed<'a> {
    load: &'a Load<'a>,
    cluster: &'a Cluster,
    options: &'a Options,
    shards: FxHashMap<ShardKey, Result<Rc<Shard>, String>>,
    orders: FxHashMap<PipeSize, Result<Rc<PassOrder>, String>>,
    pipelines: FxHashMap<PipeKey, Rc<Pipe>>,
    over: FxHashMap<(ShardKey, u64, u64), Spread>,
    /// By table, ranks of the outermost dimension and stages.
    routes: FxHashMap<(ShardKey, u64, u32), Way>,
    /// The ways in which stages lie in domains ([`Routes::together`]) that there have been.
    together: Vec<Vec<(u64, u64)>>,
    scratch: Scratch,
}

/// What the time of a pipeline depends on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct PipeKey {
    shard: ShardKey,
    kind: Kind,
    pp: u32,
    vpp: u32,
    micro: u32,
    /// The number of how stages lie in domains, which says where messages leave them, and the ranks of the outermost dimension where layers' parameters go over links.
    together: usize,
    outer: u64,
    /// The ranks of blocks that share parameters, where layers' go over links.
    block: u64,
    zero: u32,
}

/// A pipeline, from its first pass to its last.
#[derive(Clone, Debug)]
struct Pipe {
    /// When each stage ends.
    ends: Vec<f64>,
    /// Seconds of work of each stage.
    work: Vec<f64>,
    /// Kernels' time of each stage's host.
    launches: Vec<f64>,
    /// Bytes that live within the step, of each stage.
    lives: Vec<f64>,
    /// For each stage its layers, chunk by chunk.
    layers: Vec<Vec<(usize, usize)>>,
}

impl<'a> Closed<'a> {
    /// For a model on a cluster.
    ///
    /// # Errors
    /// A measured machine, whose ranks share cores, or a framework that runs calls beside others or computes layers again: their steps are replayed.
    pub fn new(load: &'a Load<'a>, cluster: &'a Cluster, options: &'a Options) -> Result<Closed<'a>, String> {
        let framework = &options.framework;
        if cluster.measured.is_some() {
            return Err("the ranks of a measured machine share its cores: its steps are replayed".into());
        }
        if framework.prefetch || framework.overlap_gradients || framework.overlap_parameters {
            return Err(format!(
                "{} runs collectives of parameters beside layers: its steps are replayed",
                framework.name
            ));
        }
        if options.recompute.is_some() {
            return Err("layers that a framework computes again are replayed; `recompute` of a strategy is not".into());
        }
        Ok(Closed {
            load,
            cluster,
            options,
            shards: FxHashMap::default(),
            orders: FxHashMap::default(),
            pipelines: FxHashMap::default(),
            over: FxHashMap::default(),
            routes: FxHashMap::default(),
            together: vec![],
            scratch: Scratch::default(),
        })
    }

    /// Estimates a strategy; `micro` and `mbs` have to be given. Rows of the busiest expert rank are `imbalance` times the mean.
    ///
    /// # Errors
    /// A strategy that does not fit the model, or that only a replay can judge (named recomputation, cuts by hand): a sentence.
    pub fn estimate(&mut self, strategy: &Strategy, imbalance: f64) -> Result<Estimate, String> {
        let key = key(strategy, imbalance)?;
        let shard = self.shard(key, strategy)?;
        let ranks = u64::from(strategy.dp) * u64::from(strategy.tp) * u64::from(strategy.cp);
        let below: u64 = shard.inner.iter().product();
        if ranks % below != 0 {
            return Err(format!(
                "{} ranks of experts do not divide the {ranks} ranks of a stage",
                strategy.ep * strategy.etp
            ));
        }
        let outer = ranks / below;
        let block = block(strategy, ranks, &shard.inner)?;
        let Spread { over, grown } = self.over(key, &shard, outer, block);
        let (pipe, more) = self.pipe(key, &shard, &over, (strategy, ranks, outer, block))?;
        let held = f64::from(strategy.micro.unwrap_or(1)) / more.share;
        let work: f64 = pipe.work.iter().sum();
        let longer = if work > 0.0 { 1.0 + held * grown / work } else { 1.0 };
        Ok(self.sum(&shard, &over, strategy, (&pipe, More { longer, ..more })))
    }

    fn shard(&mut self, key: ShardKey, strategy: &Strategy) -> Result<Rc<Shard>, String> {
        if let Some(known) = self.shards.get(&key) {
            return known.clone();
        }
        let options = Options { imbalance: f64::from_bits(key.imbalance), ..self.options.clone() };
        let schedule = Order::Published(if key.split { Kind::ZbH1 } else { Kind::OneFOneB });
        let strategy = Strategy { schedule, ..strategy.clone() };
        let made =
            (self.load)(key.mbs).and_then(|model| Shard::new(&model, &strategy, self.cluster, &options)).map(Rc::new);
        self.shards.insert(key, made.clone());
        made
    }

    /// How messages go between so many stages.
    fn way(&mut self, key: ShardKey, shard: &Shard, (outer, pp, ranks): (u64, u32, u64)) -> Way {
        let (cluster, all) = (self.cluster, &mut self.together);
        let make = || {
            let mesh = [&shard.inner[..], &[outer, u64::from(pp)]].concat();
            let routes = Routes::new(cluster, Domains::new(cluster, &mesh), ranks);
            let own = routes.together();
            let together = all.iter().position(|known| *known == own).unwrap_or_else(|| {
                all.push(own);
                all.len() - 1
            });
            Way { routes: Rc::new(routes), together }
        };
        self.routes.entry((key, outer, pp)).or_insert_with(make).clone()
    }

    fn over(&mut self, key: ShardKey, shard: &Shard, outer: u64, block: u64) -> Spread {
        let cluster = self.cluster;
        let make = || {
            let mesh = [&shard.inner[..], &[outer]].concat();
            let strides = mesh.iter().scan(1, |below, size| Some(std::mem::replace(below, *below * size)));
            let dims: Vec<(u64, u64)> = mesh.iter().copied().zip(strides).collect();
            let extents: Vec<u64> = cut(&dims, block).iter().map(|d| d.0).collect();
            let domains = Domains::new(cluster, &extents);
            let below = shard.inner.iter().product();
            let ends = [outer, below, block];
            Spread {
                over: Rc::new(shard.classes.iter().map(|c| Over::new(c, ends, &domains)).collect()),
                grown: shard.grows * (shard.growth.factor(cluster, outer, &shard.inner) - 1.0),
            }
        };
        self.over.entry((key, outer, block)).or_insert_with(make).clone()
    }

    /// The pipeline of a strategy, and what its recurrence leaves out.
    fn pipe(
        &mut self,
        key: ShardKey,
        shard: &Shard,
        over: &[Over],
        (strategy, ranks, outer, block): (&Strategy, u64, u64, u64),
    ) -> Result<(Rc<Pipe>, More), String> {
        let (pp, vpp) = (strategy.pp, if strategy.pp > 1 { strategy.vpp } else { 1 });
        let micro = strategy.micro.ok_or("a strategy that is estimated says how many micro-batches there are")?;
        // Two rounds more than fill the pipeline; the others are like the last.
        let full = pp.saturating_mul(vpp).min(1 << 20).saturating_mul(3).max(4).next_multiple_of(pp);
        // All that goes forward first is kept: no part of it stands for the rest.
        let whole = micro <= full + pp || strategy.schedule == Order::Published(Kind::GPipe) && vpp == 1;
        let held = if whole { micro } else { full + micro % pp };
        if held > MOST_MICRO_BATCHES {
            return Err(format!("{micro} micro-batches go forward before any goes back: such steps are replayed"));
        }
        let Way { routes, together } = self.way(key, shard, (outer, pp, ranks));
        let zero = if strategy.zero > 1 { strategy.zero } else { 0 };
        let kind = match kind_of(strategy)? {
            Kind::OneFOneB if vpp > 1 => Kind::Interleaved,
            kind => kind,
        };
        let key = |micro| PipeKey {
            shard: key,
            kind,
            pp,
            vpp,
            micro,
            together,
            outer: if zero > 0 { outer } else { 0 },
            block: if zero > 0 { block } else { 0 },
            zero,
        };
        let pipe = self.pipeline(key(held), shard, over, &routes)?;
        if held == micro {
            return Ok((pipe, More::default()));
        }
        let shorter = self.pipeline(key(held - pp), shard, over, &routes)?;
        let rounds = f64::from(micro - held) / f64::from(pp);
        let longest = |ends: &[f64]| ends.iter().copied().fold(0.0, f64::max);
        let more = rounds * (longest(&pipe.ends) - longest(&shorter.ends));
        Ok((pipe, More { seconds: more, share: f64::from(micro) / f64::from(held), ..More::default() }))
    }

    fn pipeline(&mut self, key: PipeKey, shard: &Shard, over: &[Over], routes: &Routes) -> Result<Rc<Pipe>, String> {
        if let Some(known) = self.pipelines.get(&key) {
            return Ok(known.clone());
        }
        let size = (key.kind, key.pp, key.vpp, key.micro);
        let order = self
            .orders
            .entry(size)
            .or_insert_with(|| PassOrder::new(key.kind, key.pp, key.vpp, key.micro).map(Rc::new))
            .clone()?;
        let pipe = Rc::new(self.run(&key, shard, over, (&order, routes))?);
        self.pipelines.insert(key, pipe.clone());
        Ok(pipe)
    }

    /// Runs the recurrence of a pipeline with a shard's layers.
    fn run(
        &mut self,
        key: &PipeKey,
        shard: &Shard,
        over: &[Over],
        (order, routes): (&PassOrder, &Routes),
    ) -> Result<Pipe, String> {
        let parts = even_parts(shard.layers.len(), (key.pp * key.vpp) as usize)?;
        // (Of layers, which do not ask how many samples there are.)
        let ends = self.ends(1);
        let (stages, micro) = (key.pp as usize, f64::from(key.micro));
        // On a stream of its own a message is sent behind the work; in line, sending it is work.
        let (inline, sending) = match self.options.framework.streams {
            true => (0.0, shard.message.device),
            false => (shard.message.device, 0.0),
        };
        // Between each part and the next, one way or the other.
        let messages = |[from, to]: [usize; 2], bytes: f64| {
            let between = |pair: &[usize]| routes.seconds(pair[from] as u32, pair[to] as u32, bytes);
            order.stage_of.windows(2).map(|pair| sending + between(pair)).collect()
        };
        let mut passes = Passes {
            ahead: messages([0, 1], shard.messages[0]),
            back: messages([1, 0], shard.messages[1]),
            ..Passes::default()
        };
        let mut pipe = Pipe {
            ends: vec![],
            work: vec![0.0; stages],
            launches: vec![0.0; stages],
            lives: vec![0.0; stages],
            layers: vec![vec![]; stages],
        };
        for (part, &(from, to)) in parts.iter().enumerate() {
            let (mut forward, mut backward, mut weights, mut launches) = (0.0, 0.0, 0.0, 0.0);
            for (l, layer) in shard.layers.iter().enumerate().take(to).skip(from) {
                // The first micro-batch adds to nothing.
                let mean = |first: f64, later: f64| (first + (micro - 1.0) * later) / micro;
                forward += layer.forward.device;
                backward += mean(layer.first.device, layer.backward.device);
                weights += mean(layer.first_weights.device, layer.weights.device);
                launches += layer.forward.launches + layer.backward.launches + layer.weights.launches;
                for (class, over) in shard.classes.iter().zip(over) {
                    let elements = class.before[l + 1] - class.before[l];
                    let (gather, a) = ends.before_layer(over, elements, key.zero);
                    let (sum, b) = ends.behind_layer(over, elements, key.zero);
                    forward += gather;
                    // The half for the inputs and the half for the weights both read parameters.
                    backward += gather + if key.shard.split { 0.0 } else { sum };
                    weights += if key.shard.split { gather + sum } else { 0.0 };
                    launches += 2.0 * a + b;
                }
            }
            let (sends, returns) = (part + 1 < parts.len(), part > 0);
            passes.forward.push(forward + if sends { inline } else { 0.0 });
            passes.backward.push(backward + if returns { inline } else { 0.0 });
            passes.weights.push(weights);
            let stage = order.stage_of[part];
            let messages = 2.0 * (f64::from(u8::from(sends)) + f64::from(u8::from(returns)));
            pipe.work[stage] += micro * (forward + backward + weights);
            pipe.launches[stage] += micro * (launches + messages);
            pipe.layers[stage].push((from, to));
        }
        pipe.ends = order.ends(&passes, &mut self.scratch);
        for (stage, (chunks, under_way)) in pipe.layers.iter().zip(&order.under_way).enumerate() {
            let most = under_way.iter().map(|of| lives(shard, over, chunks, of, key.zero));
            pipe.lives[stage] = most.fold(0.0, f64::max);
        }
        Ok(pipe)
    }

    fn ends(&self, data_ranks: u32) -> Ends<'a> {
        Ends { cluster: self.cluster, framework: &self.options.framework, data_ranks: u64::from(data_ranks) }
    }

    /// All of a strategy: the pipeline, and what stages do at their ends.
    fn sum(&self, shard: &Shard, over: &[Over], strategy: &Strategy, (pipe, more): (&Pipe, More)) -> Estimate {
        let ends = self.ends(strategy.dp * strategy.cp);
        let micro = f64::from(strategy.micro.unwrap_or(1));
        let counted = shard.counts.device * micro;
        let mut meet = [0.0f64; 3];
        let (mut estimate, mut host) = (Estimate::default(), 0.0f64);
        let of_stages = pipe.ends.iter().zip(&pipe.layers).zip(pipe.launches.iter().zip(&pipe.lives));
        for ((end, layers), (launches, lives)) in of_stages {
            let (mut last, mut persistent) = (End::default(), shard.states / pipe.ends.len() as f64);
            let (mut passing, mut part) = (0.0, 0.0f64);
            for (class, over) in shard.classes.iter().zip(over) {
                let elements: f64 = layers.iter().map(|&(from, to)| class.before[to] - class.before[from]).sum();
                let of_layers = layers.iter().flat_map(|&(from, to)| class.before[from..=to].windows(2));
                let by_layer = of_layers.map(|ends| ends[1] - ends[0]).filter(|&of_layer| over.by_layer(of_layer));
                let layered = if strategy.zero > 1 { by_layer.sum() } else { 0.0 };
                ends.add(&mut last, over, elements, layered, strategy.zero);
                persistent += Ends::bytes(over, elements, layered, strategy.zero).iter().sum::<f64>();
                let [sums, largest] = Ends::passing(over, elements, layered, strategy.zero);
                (passing, part) = (passing + sums, part.max(largest));
            }
            meet[0] = meet[0].max(counted + more.end(*end) + last.summed);
            meet[1] = meet[1].max(last.squared);
            meet[2] = meet[2].max(last.updated);
            host = host
                .max(launches * more.share + last.launches + shard.counts.launches * micro + shard.scalars.launches);
            let peak = persistent + shard.inputs * micro + lives.max(passing + part);
            if peak > estimate.peak_bytes {
                (estimate.peak_bytes, estimate.persistent_bytes) = (peak, persistent);
            }
        }
        let device = meet.iter().sum::<f64>() + shard.scalars.device;
        let framework = &self.options.framework;
        host *= framework.launch_s();
        let step = device.max(host);
        let pipeline = more.end(pipe.ends.iter().copied().fold(0.0, f64::max));
        let work = pipe.work.iter().sum::<f64>() * more.share * more.longer / pipe.work.len() as f64;
        estimate.step_time_s = step;
        estimate.host_fraction = host / device;
        estimate.end_s = device - pipeline;
        estimate.bubble_fraction = ((pipeline - work) / step).max(0.0);
        let single = (strategy.micro == Some(1) && over.iter().any(|over| over.ranks == 1)).then_some(Doubt::Single);
        let halves = (kind_of(strategy).is_ok_and(is_split) && strategy.pp > 1).then_some(Doubt::Halves);
        estimate.doubt = self.doubt(shard, strategy, host / device).or(single);
        let caching = self.options.framework.caching_allocator.then_some(Doubt::Allocator);
        estimate.memory_doubt = halves.or(single).or(caching);
        estimate
    }

    fn doubt(&self, shard: &Shard, strategy: &Strategy, host: f64) -> Option<Doubt> {
        let framework = &self.options.framework;
        let waits = shard.host_waits || framework.receive_waits && strategy.pp > 1 || framework.collective_holds;
        match () {
            () if waits => Some(Doubt::HostWaits),
            () if host > 0.8 => Some(Doubt::Host),
            () if strategy.micro.is_some_and(|m| m < strategy.pp) => Some(Doubt::Short),
            () if shard.tied && strategy.pp > 1 => Some(Doubt::Tied),
            () if strategy.zero > 1 && self.options.framework.streams => Some(Doubt::Beside),
            () if strategy.overlap != overlap::Passes::none() && self.options.framework.streams => Some(Doubt::Overlap),
            () => None,
        }
    }
}

/// How messages go between stages, and the number of how these lie in domains.
#[derive(Clone, Debug)]
struct Way {
    routes: Rc<Routes>,
    together: usize,
}

/// What depends on the number of data-parallel ranks.
#[derive(Clone, Debug)]
struct Spread {
    /// Groups that sum gradients.
    over: Rc<Vec<Over>>,
    /// Seconds that a micro-batch takes longer than in the probe.
    grown: f64,
}

/// What a recurrence leaves out.
#[derive(Clone, Copy, Debug)]
struct More {
    /// Seconds of micro-batches that are not there.
    seconds: f64,
    /// All micro-batches as a multiple of those that are there.
    share: f64,
    /// How much longer all passes take, as a multiple, for more data-parallel ranks than the probe's.
    longer: f64,
}

impl More {
    /// When a stage has done its last pass, seconds, where the recurrence has it at `end`.
    fn end(&self, end: f64) -> f64 {
        (end + self.seconds) * self.longer
    }
}

impl Default for More {
    fn default() -> More {
        More { seconds: 0.0, share: 1.0, longer: 1.0 }
    }
}

/// Micro-batches of a recurrence, at most.
const MOST_MICRO_BATCHES: u32 = 1 << 14;

/// Ranks of a stage, one after another, that share parameters: all of so many without `hsdp`.
fn block(strategy: &Strategy, ranks: u64, inner: &[u64]) -> Result<u64, String> {
    let Some(shards) = strategy.hsdp else { return Ok(ranks) };
    if !strategy.dp.is_multiple_of(shards) {
        return Err(format!("hsdp = {shards} does not divide dp = {}", strategy.dp));
    }
    let block = ranks / u64::from(strategy.dp) * u64::from(shards);
    let mut below = 1;
    for size in inner.iter().copied().chain([ranks / inner.iter().product::<u64>()]) {
        let end = below * size;
        if below < block && block < end && !(block.is_multiple_of(below) && end.is_multiple_of(block)) {
            return Err(format!("blocks of {block} ranks that share parameters cut across the degrees of experts"));
        }
        below = end;
    }
    Ok(block)
}

/// The table that a strategy needs.
fn key(strategy: &Strategy, imbalance: f64) -> Result<ShardKey, String> {
    let recompute = match &strategy.recompute {
        Recompute::Nothing => false,
        Recompute::Full => true,
        Recompute::Named(_) => return Err("values that are computed again by their names are replayed".into()),
    };
    if strategy.stages != Cut::Even {
        return Err("stages that were cut by hand or by cost are replayed".into());
    }
    if strategy.dispatch != Dispatch::Flat {
        return Err("exchanges that are taken apart are replayed".into());
    }
    if strategy.pieces != Pieces::Number(1) {
        return Err("experts in pieces are replayed".into());
    }
    if strategy.swap != Swap::default() {
        return Err("tensors that are swapped to the host are replayed".into());
    }
    let usual = Strategy::default();
    let optimizer = |s: &Strategy| (s.moments, s.master_weights, s.optimizer);
    if optimizer(strategy) != optimizer(&usual) {
        return Err("an optimizer whose state is in other types or places is replayed".into());
    }
    let kind = kind_of(strategy)?;
    if kind.placement() == Placement::TwoWay {
        return Err(format!("{}: a model that is there twice is replayed", kind.name()));
    }
    let has_pairs = matches!(kind, Kind::InterleavedOverlap | Kind::DualPipeV);
    if has_pairs && strategy.pp > 1 && strategy.overlap.has(Pass::Across) {
        return Err(format!("{}: what a pair of passes hides is replayed", kind.name()));
    }
    let algorithm = match strategy.cp_algo {
        CpAlgo::Ulysses => 0,
        CpAlgo::Gather => 1,
        CpAlgo::Ring => 2,
        CpAlgo::Hybrid => 3,
    };
    Ok(ShardKey {
        tp: strategy.tp,
        cp: strategy.cp,
        ep: strategy.ep,
        etp: strategy.etp,
        rows: (strategy.etp_gather == EtpGather::After, strategy.shares == Shares::Before),
        mbs: strategy.mbs.ok_or("a strategy that is estimated says how many rows a micro-batch has")?,
        algorithm: (if strategy.cp > 1 { algorithm } else { 0 }, strategy.ulysses.unwrap_or(0)),
        sp: strategy.sp || strategy.tp == 1,
        split: is_split(kind) && strategy.pp > 1,
        recompute,
        keep: strategy.keep,
        overlap: (strategy.overlap.has(Pass::Vector), strategy.overlap.has(Pass::Within)),
        room: strategy.max_tokens_per_rank.unwrap_or(0),
        imbalance: imbalance.to_bits(),
    })
}

/// The published schedule of a strategy.
fn kind_of(strategy: &Strategy) -> Result<Kind, String> {
    match &strategy.schedule {
        Order::Published(kind) => Ok(*kind),
        other => Err(format!("schedule = {other}: orders that are found or given are replayed")),
    }
}

/// Does a schedule cut backward passes in half?
fn is_split(kind: Kind) -> bool {
    !matches!(kind, Kind::GPipe | Kind::OneFOneB | Kind::Interleaved | Kind::InterleavedOverlap)
}

/// The layers of each part: those in the middle evenly, the first and the last with the ends.
fn even_parts(layers: usize, parts: usize) -> Result<Vec<(usize, usize)>, String> {
    if parts == 1 {
        return Ok(vec![(0, layers)]);
    }
    let inner = layers.saturating_sub(2);
    if inner < parts {
        return Err(format!("{inner} layers do not fill the {parts} parts of a pipeline (pp × vpp)"));
    }
    let mut from = 0;
    let part = |part: usize| {
        let mut to = from + inner / parts + usize::from(part < inner % parts) + usize::from(part == 0);
        if part + 1 == parts {
            to = layers;
        }
        (std::mem::replace(&mut from, to), to)
    };
    Ok((0..parts).map(part).collect())
}

/// Bytes that live on a stage during a pass, at their most: what micro-batches under way have left, and what the pass needs.
fn lives(shard: &Shard, over: &[Over], chunks: &[(usize, usize)], under_way: &UnderWay, zero: u32) -> f64 {
    let last = shard.layers.len();
    let received = |from: usize| if from > 0 { shard.messages[0] } else { 0.0 };
    let sent = |to: usize| if to < last { shard.messages[0] } else { 0.0 };
    let sum =
        |(from, to): (usize, usize), of: fn(&LayerCost) -> f64| shard.layers[from..to].iter().map(of).sum::<f64>();
    // Of a micro-batch: what it left going forward, and beside that going back but for the half that nobody waits for.
    let kept = |(from, to)| sum((from, to), |l| l.kept) + received(from) - sent(to);
    let handed = |chunk| sum(chunk, |l| l.handed);
    let of_chunk = |(&chunk, (&all, &halved)): (&(usize, usize), (&u32, &u32))| {
        f64::from(all) * kept(chunk).max(0.0) + f64::from(halved) * handed(chunk)
    };
    let counts = under_way.micro_batches.iter().zip(&under_way.halved);
    let held: f64 = chunks.iter().zip(counts).map(of_chunk).sum();
    let (from, to) = chunks[under_way.chunk];
    let (forward, backward) = match under_way.pass {
        Under::Whole => (true, true),
        Under::Forward => (true, false),
        Under::Input | Under::Weights => (false, true),
    };
    // One micro-batch is only as far as the layer at hand.
    let own = kept((from, to)).max(0.0) + if under_way.pass == Under::Weights { handed((from, to)) } else { 0.0 };
    let (mut so_far, mut most) = (received(from) - own, 0.0f64);
    for (l, layer) in shard.layers.iter().enumerate().take(to).skip(from) {
        let passing = |bytes: f64| -> f64 {
            let of_class = |(class, over): (&shard::Class, &Over)| {
                let elements = class.before[l + 1] - class.before[l];
                if over.by_layer(elements) { bytes * elements } else { 0.0 }
            };
            shard.classes.iter().zip(over).map(of_class).sum()
        };
        let copies = if zero > 2 { passing(2.0) } else { 0.0 };
        let gradients = if zero > 1 { passing(4.0) } else { 0.0 };
        if forward {
            most = most.max(held + so_far + layer.forward_room + copies);
        }
        so_far += layer.kept;
        if backward {
            // (Later layers have been gone through: of the first half something is left, and nothing of the second.)
            let (own, gradients) = match under_way.pass {
                Under::Input => (handed((l + 1, to)) + sum((l + 1, to), |l| l.kept) + layer.backward_room, 0.0),
                Under::Weights => (handed((from, l + 1)) + layer.weights_room, gradients),
                _ => (layer.backward_room, gradients),
            };
            most = most.max(held + so_far + own + copies + gradients);
        }
    }
    most.max(held)
}
