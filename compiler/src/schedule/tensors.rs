//! The layout of what outlives a step on a rank: parameters, gradients and moments in flat groups, states one by one.
//!
//! A group holds the parameters whose gradients are summed over the same ranks and kept in the same type, and that the optimizer treats alike. With ZeRO (arXiv 1910.02054) the ranks that
//! sum a gradient share masters and moments: each has one of as many equal ranges of a flat array, wherever tensors begin and end.
//!
//! ```text
//! zero = 1    one unit for the group: summed at the end of the step, copies gathered after the optimizer; with the overlap pass `units` one for each layer of what
//!             decays, summed behind its last backward pass
//! zero = 2    one unit for each layer: gradients are there until the layer's backward pass has summed them into the rank's range
//! zero = 3    and copies from when they are gathered, before a layer, until the layer is done
//! ```
//!
//! With `hsdp` it is not all of them that share, but neighbours: each block of ranks has all ranges (HSDP, arXiv 2304.11277, section 3.2.2), gradients are summed within blocks first, and
//! the ranges of sums then over the blocks, once a step. Experts whose copies are in different blocks are not shared.
//!
//! What a layer has of a group goes by itself only where each rank has a chunk of it or more ([`goes_by_layer`]). Gains and routers of large meshes have less: on 1,024 ranks a gather of them takes
//! milliseconds, all of it latency, for each layer and micro-batch. They stay whole and are summed once a step, as with zero = 1; DeepSpeed has `stage3_param_persistence_threshold` for them.

use super::gradients::written_once;
use super::stages::Stage;
use crate::emit::align;
use crate::optimizer::{CHUNK, DecayScope, Optimizer};
use crate::overlap::Pass;
use crate::shard::{MasterWeights, Mesh, OptimizerMemory, ParamShard, ShardedModel, Strategy};
use forebay_dsl::model::{Init, Tensor};
use forebay_ir::DType;
use forebay_plan as plan;
use std::collections::BTreeMap;

/// Elements that every tensor of a group starts at a multiple of: 64 bytes even in bf16.
pub(super) const LINE: u64 = 32;

/// Parameters that the optimizer treats alike, on one rank: a flat array of units.
#[derive(Clone, Debug)]
pub struct Group {
    /// Do they decay?
    pub decays: bool,
    /// The mesh dimensions over which their gradients are sums.
    pub sums: Vec<u32>,
    /// Of these, the ones whose ranks share masters and moments: none without ZeRO.
    pub shared: Vec<u32>,
    /// Those whose ranks have the same masters as others that share them: none where nothing is shared.
    pub replicas: Vec<u32>,
    /// The mesh dimensions that cut them.
    pub cut: Vec<u32>,
    /// Pipeline stages that have them, sorted, where that are several.
    pub holders: Vec<u32>,
    /// Ranks that share masters and moments; 1 without ZeRO.
    pub shards: u64,
    /// The type of their gradients.
    pub gradient: DType,
    /// Are masters only the halves that copies lack?
    pub split: bool,
    /// The parts that are gathered and summed together, one after another.
    pub units: Vec<Unit>,
    /// The memory of the moments.
    pub moments_in: plan::Space,
    /// That of the masters.
    pub masters_in: plan::Space,
    /// Bytes from the start of the arena of each kind. Masters: this rank's ranges of all units.
    pub params: u64,
    /// First moments, likewise.
    pub first: u64,
    /// Second moments, likewise.
    pub second: u64,
    /// This rank's ranges of the gradients' sums, where they are kept.
    pub gradient_shards: Option<u64>,
}

/// Parameters of a group that go over links together: all of it, or those of one layer.
#[derive(Clone, Debug)]
pub struct Unit {
    /// The one layer that uses them, when they go over links layer by layer.
    pub layer: Option<usize>,
    /// Elements, padding included: whole chunks on each rank that shares them.
    pub elements: u64,
    /// Elements of this rank's ranges of the units before.
    pub shard_start: u64,
    /// What programs read, in the compute type; the masters when that is their type and nothing is shared, `None` when gathered for each use.
    pub copies: Option<u64>,
    /// Gradients; `None` when they are there only until they are summed.
    pub gradients: Option<u64>,
}

impl Group {
    /// Elements from the start of a group that ranks do not share.
    pub fn element(&self, home: Home) -> u64 {
        self.units[home.unit].shard_start + home.element
    }

    /// Elements of this rank's ranges.
    pub fn shard(&self) -> u64 {
        self.units.iter().map(|u| u.elements).sum::<u64>() / self.shards
    }

    /// The mesh dimensions over which gradients are summed at once, one sum after another.
    pub fn sums_over(&self) -> impl Iterator<Item = &[u32]> {
        let first = if self.shards > 1 { &self.shared } else { &self.sums };
        [first, &self.replicas].into_iter().filter(|dims| !dims.is_empty()).map(Vec::as_slice)
    }
}

/// Do so many elements of a layer, that so many ranks share, go over links by themselves?
pub fn goes_by_layer(elements: u64, ranks: u64) -> bool {
    elements >= CHUNK * ranks
}

/// Where a parameter stands: its group, its unit, and its first element in the unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Home {
    /// Index into [`Layout::groups`].
    pub group: usize,
    /// Index into [`Group::units`].
    pub unit: usize,
    /// Elements from the start of the unit.
    pub element: u64,
}

/// Where everything persistent lies.
#[derive(Clone, Debug)]
pub struct Layout {
    /// The groups of parameters that exist.
    pub groups: Vec<Group>,
    /// For each parameter of the stage its place.
    pub params: BTreeMap<usize, Home>,
    /// For each state of the stage its place.
    pub states: BTreeMap<usize, u64>,
    /// Bytes of the device in all.
    pub bytes: u64,
    /// Bytes of the host's memory in all.
    pub host_bytes: u64,
    /// As the plan lists them.
    pub tensors: Vec<plan::Tensor>,
    /// Bytes by kind.
    pub memory: plan::MemoryUse,
    /// The level of ZeRO.
    zero: u32,
    /// Do units go over links while layers run?
    beside: bool,
    masters: MasterWeights,
    optimizer: OptimizerMemory,
    /// The type of the moments.
    pub moments: DType,
    wide: DType,
    narrow: DType,
}

/// Float types of what a plan keeps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Types {
    /// Masters, and gradients that are sums.
    pub wide: DType,
    /// What programs read and compute.
    pub narrow: DType,
    /// Gradients that are no sums: of parameters that a step uses once, in one micro-batch, on ranks that do not share the work.
    pub single: DType,
}

/// What parameters of one group have in common.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Alike {
    /// Do they decay?
    decays: bool,
    /// Over which mesh dimensions are their gradients sums?
    sums: Vec<u32>,
    /// Which mesh dimensions cut them?
    cut: Vec<u32>,
    /// Stages that have them, where that are several.
    holders: Vec<u32>,
    /// The type of their gradients.
    gradient: DType,
}

impl Layout {
    /// Lays out the tensors of a stage.
    pub fn new(
        sharded: &ShardedModel,
        stage: &Stage,
        optimizer: &Optimizer,
        strategy: &Strategy,
        Types { wide, narrow, single }: Types,
    ) -> Layout {
        let model = &sharded.model;
        let once = written_once(model);
        let mut layout = Layout {
            groups: vec![],
            params: BTreeMap::new(),
            states: BTreeMap::new(),
            bytes: 0,
            host_bytes: 0,
            tensors: vec![],
            memory: plan::MemoryUse::default(),
            zero: strategy.zero,
            beside: strategy.overlap.has(Pass::Units),
            masters: strategy.master_weights,
            optimizer: strategy.optimizer,
            moments: strategy.moments.dtype(wide),
            wide,
            narrow,
        };
        let alike = |i: usize| -> Alike {
            let shard = &sharded.params[i];
            let mut cut = shard.dims();
            cut.sort_unstable();
            Alike {
                decays: optimizer.decay == DecayScope::All || model.params[i].axes.len() >= 2,
                sums: shard.sums.clone(),
                cut,
                holders: stage.tied.get(&i).cloned().unwrap_or_default(),
                gradient: if once[i] && shard.sums.is_empty() && !stage.tied.contains_key(&i) { single } else { wide },
            }
        };
        let mut kinds: Vec<Alike> = vec![];
        for kind in stage.params.iter().map(|&i| alike(i)) {
            if !kinds.contains(&kind) {
                kinds.push(kind);
            }
        }
        // What decays comes first; else in the order of the parameters.
        kinds.sort_by_key(|kind| !kind.decays);
        for kind in kinds {
            let members: Vec<usize> = stage.params.iter().copied().filter(|&i| alike(i) == kind).collect();
            layout.add_group(sharded, stage, kind, &members);
        }
        for &i in &stage.params {
            layout.list_param(&model.params[i], &sharded.params[i], layout.params[&i], &sharded.mesh);
        }
        for &i in &stage.states {
            let state = &model.states[i];
            let offset = layout.reserve(state.numel() * wide.bytes());
            layout.states.insert(i, offset);
            layout.memory.other += align(state.numel() * wide.bytes());
            layout.tensors.push(tensor(state, plan::TensorKind::State, wide, offset, init(state.init)));
        }
        layout
    }

    /// Bytes of a parameter besides its copy.
    pub(super) fn master_bytes(&self) -> u64 {
        match self.masters {
            MasterWeights::Whole => self.wide.bytes(),
            MasterWeights::Split => plan::DType::I16.bytes(),
        }
    }

    fn reserve(&mut self, bytes: u64) -> u64 {
        self.reserve_in(plan::Space::Device, bytes)
    }

    fn reserve_in(&mut self, space: plan::Space, bytes: u64) -> u64 {
        let end = match space {
            plan::Space::Device => &mut self.bytes,
            plan::Space::Host => &mut self.host_bytes,
        };
        let offset = *end;
        *end += align(bytes);
        offset
    }

    /// The memories of a group's moments and masters. Masters that programs read, or that are gathered from for each use, stay on the device.
    fn memories(&self, units: &[Unit], has_copies: bool) -> (plan::Space, plan::Space) {
        let gathered = units.iter().any(|u| u.layer.is_some() && self.zero > 2);
        match self.optimizer {
            OptimizerMemory::Device => (plan::Space::Device, plan::Space::Device),
            OptimizerMemory::Host if has_copies && !gathered => (plan::Space::Host, plan::Space::Host),
            OptimizerMemory::Host => (plan::Space::Host, plan::Space::Device),
        }
    }

    fn add_group(&mut self, sharded: &ShardedModel, stage: &Stage, alike: Alike, members: &[usize]) {
        let Alike { decays, sums, cut, holders, gradient } = alike;
        let ranks = sharded.mesh.ranks(&sums);
        let (shared, replicas) = sharded.mesh.shared_and_replicas(if self.zero > 0 { &sums } else { &[] });
        let shards = sharded.mesh.ranks(&shared);
        let replicas = if shards > 1 { replicas } else { vec![] };
        // What does not decay (gains) is so small that more collectives would only take longer.
        let by_layer = self.zero > 1 || (self.zero == 1 && self.beside && decays);
        let local = |i: usize| {
            local_elements(&sharded.model.params[i], &sharded.params[i], &sharded.mesh).div_ceil(LINE) * LINE
        };
        let own = |i: usize| (by_layer && ranks > 1).then(|| only_layer(sharded, stage, i)).flatten();
        let mut of_layers: BTreeMap<usize, u64> = BTreeMap::new();
        members
            .iter()
            .filter_map(|&i| Some((own(i)?, local(i))))
            .for_each(|(l, n)| *of_layers.entry(l).or_default() += n);
        let layer = |i: usize| own(i).filter(|l| goes_by_layer(of_layers[l], ranks));
        let mut of_units: BTreeMap<Option<usize>, Vec<usize>> = BTreeMap::new();
        members.iter().for_each(|&i| of_units.entry(layer(i)).or_default().push(i));
        let mut units: Vec<Unit> = vec![];
        let mut shard_start = 0;
        for (layer, members) in of_units {
            let mut elements = 0;
            for i in members {
                self.params.insert(i, Home { group: self.groups.len(), unit: units.len(), element: elements });
                elements += local(i);
            }
            // Gradients are summed in as many parts as there are ranks, ZeRO or not.
            let elements = elements.div_ceil(CHUNK * ranks) * CHUNK * ranks;
            units.push(Unit { layer, elements, shard_start, copies: None, gradients: None });
            shard_start += elements / shards;
        }
        let shard = shard_start * self.wide.bytes();
        let split = self.masters == MasterWeights::Split;
        let masters = shard_start * self.master_bytes();
        let has_copies = self.wide != self.narrow || shards > 1;
        let (moments_in, masters_in) = self.memories(&units, has_copies);
        let on_device = |space, bytes| if space == plan::Space::Device { bytes } else { 0 };
        let params = self.reserve_in(masters_in, masters);
        self.memory.weights += on_device(masters_in, masters);
        match shards {
            1 => self.reserve_whole(&mut units, gradient, (!has_copies).then_some(params)),
            _ => units.iter_mut().for_each(|unit| self.reserve_unit(unit, gradient)),
        }
        let moments = shard_start * self.moments.bytes();
        let first = self.reserve_in(moments_in, moments);
        let second = self.reserve_in(moments_in, moments);
        self.memory.optimizer += on_device(moments_in, 2 * moments);
        let gradient_shards = units.iter().any(|u| u.gradients.is_none()).then(|| {
            self.memory.gradients += shard;
            self.reserve(shard)
        });
        self.groups.push(Group {
            decays,
            sums,
            shared,
            replicas,
            cut,
            holders,
            shards,
            gradient,
            split,
            units,
            moments_in,
            masters_in,
            params,
            first,
            second,
            gradient_shards,
        });
    }

    /// Room for the copies and gradients of units of which every rank has all: they follow on each other, since the optimizer takes them as one. `masters`: where these are, when programs read
    /// them.
    fn reserve_whole(&mut self, units: &mut [Unit], gradient: DType, masters: Option<u64>) {
        let elements: u64 = units.iter().map(|u| u.elements).sum();
        let copied = if masters.is_some() { self.wide } else { self.narrow }.bytes();
        let copies = masters.unwrap_or_else(|| {
            self.memory.weights += elements * copied;
            self.reserve(elements * copied)
        });
        let gradients = self.reserve(elements * gradient.bytes());
        self.memory.gradients += elements * gradient.bytes();
        for unit in units {
            unit.copies = Some(copies + unit.shard_start * copied);
            unit.gradients = Some(gradients + unit.shard_start * gradient.bytes());
        }
    }

    /// Room for what is kept of a unit that ranks share.
    fn reserve_unit(&mut self, unit: &mut Unit, gradient: DType) {
        let passes = unit.layer.is_some() && self.zero > 1;
        let (copy, gradients) = (unit.elements * self.narrow.bytes(), unit.elements * gradient.bytes());
        if !(passes && self.zero > 2) {
            unit.copies = Some(self.reserve(copy));
            self.memory.weights += copy;
        }
        if !passes {
            unit.gradients = Some(self.reserve(gradients));
            self.memory.gradients += gradients;
        }
    }

    fn list_param(&mut self, param: &Tensor, shard: &ParamShard, home: Home, mesh: &Mesh) {
        use plan::TensorKind as K;
        let group = self.groups[home.group].clone();
        let unit = &group.units[home.unit];
        let (wide, zero) = (self.wide, plan::Init::Constant(0.0));
        let block: Vec<plan::Cut> = shard.cuts.iter().map(|(axis, dims)| cut(param, *axis, dims, mesh)).collect();
        let whole = |kind, dtype, offset, init| plan::Tensor {
            block: block.clone(),
            ..tensor(param, kind, dtype, offset, init)
        };
        let form = if group.split { plan::Form::LowerHalf } else { plan::Form::Whole };
        // A range of a unit is where the unit's shard is, wherever the tensor starts in it.
        let shared_of = |(of, bytes): (DType, u64), kind, base: u64, init| {
            let base = base + unit.shard_start * bytes;
            match group.shards {
                1 => whole(kind, of, base + home.element * bytes, init),
                _ => {
                    let (shard, index) = (unit.elements / group.shards, number(&group.shared, mesh));
                    let range = Some(plan::FlatRange { start: home.element, shard, index });
                    plan::Tensor { range, ..whole(kind, of, base, init) }
                }
            }
        };
        let shared = |of: DType, kind, base, init| shared_of((of, of.bytes()), kind, base, init);
        let master = shared_of((wide, self.master_bytes()), K::Param, group.params, init(param.init));
        let mut tensors = vec![plan::Tensor { form, space: group.masters_in, ..master }];
        if let Some(copies) = unit.copies.filter(|_| self.wide != self.narrow || group.shards > 1) {
            let offset = copies + home.element * self.narrow.bytes();
            tensors.push(whole(K::ComputeCopy, self.narrow, offset, plan::Init::FromParam));
        }
        let of = group.gradient;
        tensors.push(match (unit.gradients, group.gradient_shards) {
            (Some(gradients), _) => whole(K::Gradient, of, gradients + home.element * of.bytes(), zero),
            (None, shards) => shared(of, K::Gradient, shards.expect("sums of gradients are kept somewhere"), zero),
        });
        for (kind, base) in [(K::FirstMoment, group.first), (K::SecondMoment, group.second)] {
            tensors.push(plan::Tensor { space: group.moments_in, ..shared(self.moments, kind, base, zero) });
        }
        self.tensors.extend(tensors);
    }
}

/// The layer that uses a parameter, when it is the only one. (Other stages may have the layer as well.)
pub(super) fn only_layer(sharded: &ShardedModel, stage: &Stage, param: usize) -> Option<usize> {
    let layers = sharded.model.layers.iter().enumerate();
    let mut users = layers.filter(|(_, layer)| layer.params.contains(&param)).map(|(l, _)| l);
    let first = users.next()?;
    (users.next().is_none() && stage.has(first)).then_some(first)
}

/// Elements of a parameter on a rank.
pub(super) fn local_elements(param: &Tensor, shard: &ParamShard, mesh: &Mesh) -> u64 {
    param.numel() / mesh.ranks(&shard.dims())
}

/// The rank's number in a group, row-major over its dimensions.
pub(super) fn number(dims: &[u32], mesh: &Mesh) -> plan::Affine {
    scaled_number(dims, mesh, 1)
}

/// The rank's number in a group times a factor.
pub(super) fn scaled_number(dims: &[u32], mesh: &Mesh, mut factor: i64) -> plan::Affine {
    let mut terms = vec![];
    for &dim in dims.iter().rev() {
        terms.push((dim, factor));
        factor *= i64::from(mesh.dims[dim as usize].size);
    }
    terms.sort_unstable();
    plan::Affine { base: 0, terms }
}

fn cut(param: &Tensor, axis: usize, dims: &[u32], mesh: &Mesh) -> plan::Cut {
    let size = param.axes[axis].2 / mesh.ranks(dims);
    plan::Cut { dim: axis as u32, size, first: scaled_number(dims, mesh, size as i64) }
}

fn tensor(t: &Tensor, kind: plan::TensorKind, dtype: DType, offset: u64, init: plan::Init) -> plan::Tensor {
    let dims = t.axes.iter().map(|(_, _, n)| *n).collect();
    plan::Tensor {
        name: t.name.clone(),
        kind,
        dtype: crate::emit::dtype(dtype),
        dims,
        block: vec![],
        range: None,
        space: plan::Space::Device,
        offset,
        init,
        form: plan::Form::Whole,
    }
}

fn init(init: Init) -> plan::Init {
    match init {
        Init::Constant(c) => plan::Init::Constant(c),
        Init::Normal(std) => plan::Init::Normal(std),
        Init::TruncatedNormal(std) => plan::Init::TruncatedNormal(std),
        Init::Uniform(lo, hi) => plan::Init::Uniform(lo, hi),
    }
}
