//! The layout of what outlives a step on a rank: parameters, gradients and moments in flat groups, states one by one.
//!
//! A group holds the parameters whose gradients are summed over the same ranks and that the optimizer treats alike. With ZeRO (arXiv 1910.02054) the ranks that
//! sum a gradient share masters and moments: each has one of as many equal ranges of the flat group, wherever tensors begin and end.

use crate::emit::align;
use crate::optimizer::{CHUNK, DecayScope, Optimizer};
use super::stages::Stage;
use crate::shard::{Mesh, ParamShard, ShardedModel};
use forebay_dsl::model::{Init, Tensor};
use forebay_ir::DType;
use forebay_plan as plan;
use std::collections::BTreeMap;

/// Elements that every tensor of a group starts at a multiple of: 64 bytes even in bf16.
const LINE: u64 = 32;

/// A run of parameters that the optimizer treats alike, on one rank.
#[derive(Clone, Debug)]
pub struct Group {
    /// Do they decay?
    pub decays: bool,
    /// The mesh dimensions over which their gradients are sums.
    pub sums: Vec<u32>,
    /// The mesh dimensions that cut them.
    pub cut: Vec<u32>,
    /// Pipeline stages that have them.
    pub holders: u64,
    /// Elements, padding included: whole chunks on each rank that shares them.
    pub elements: u64,
    /// Ranks that share masters and moments; 1 without ZeRO.
    pub shards: u64,
    /// Bytes from the start of the arena of each kind. Masters: this rank's range.
    pub params: u64,
    /// What programs read, in the compute type; the same as `params` when that is the master type and nothing is shared.
    pub copies: u64,
    /// Gradients.
    pub gradients: u64,
    /// First moments: this rank's range.
    pub first: u64,
    /// Second moments: this rank's range.
    pub second: u64,
}

impl Group {
    /// Elements of this rank's range.
    pub fn shard(&self) -> u64 {
        self.elements / self.shards
    }

    /// Is what programs read something else than the masters?
    pub fn has_copies(&self) -> bool {
        self.copies != self.params
    }
}

/// Where everything persistent lies.
#[derive(Clone, Debug)]
pub struct Layout {
    /// The groups of parameters that exist.
    pub groups: Vec<Group>,
    /// For each parameter of the stage: (group, element within the group).
    pub params: BTreeMap<usize, (usize, u64)>,
    /// For each state of the stage its place.
    pub states: BTreeMap<usize, u64>,
    /// Bytes in all.
    pub bytes: u64,
    /// As the plan lists them.
    pub tensors: Vec<plan::Tensor>,
    /// Bytes by kind.
    pub memory: plan::MemoryUse,
    wide: DType,
    narrow: DType,
}

/// What parameters of one group have in common: do they decay, over what are gradients sums, what cuts them, which stages have them.
type Alike = (bool, Vec<u32>, Vec<u32>, Vec<u32>);

impl Layout {
    /// Lays out the tensors of a stage. `zero` is the level of ZeRO.
    pub fn new(sharded: &ShardedModel, stage: &Stage, optimizer: &Optimizer, zero: u32, types: (DType, DType)) -> Layout {
        let (wide, narrow) = types;
        let model = &sharded.model;
        let mut layout = Layout {
            groups: vec![],
            params: BTreeMap::new(),
            states: BTreeMap::new(),
            bytes: 0,
            tensors: vec![],
            memory: plan::MemoryUse::default(),
            wide,
            narrow,
        };
        let alike = |i: usize| -> Alike {
            let shard = &sharded.params[i];
            let mut cut = shard.dims();
            cut.sort_unstable();
            let holders = stage.tied.get(&i).cloned().unwrap_or_default();
            (optimizer.decay == DecayScope::All || model.params[i].axes.len() >= 2, shard.sums.clone(), cut, holders)
        };
        let mut kinds: Vec<Alike> = vec![];
        for kind in stage.params.iter().map(|&i| alike(i)) {
            if !kinds.contains(&kind) {
                kinds.push(kind);
            }
        }
        // What decays comes first; else in the order of the parameters.
        kinds.sort_by_key(|(decays, ..)| !decays);
        for kind in kinds {
            let members: Vec<usize> = stage.params.iter().copied().filter(|&i| alike(i) == kind).collect();
            layout.add_group(sharded, kind, &members, zero);
        }
        for &i in &stage.params {
            layout.list_param(i, &model.params[i], &sharded.params[i], &sharded.mesh);
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

    fn reserve(&mut self, bytes: u64) -> u64 {
        let offset = self.bytes;
        self.bytes += align(bytes);
        offset
    }

    fn add_group(&mut self, sharded: &ShardedModel, (decays, sums, cut, holders): Alike, members: &[usize], zero: u32) {
        let mut elements = 0;
        for &i in members {
            self.params.insert(i, (self.groups.len(), elements));
            elements += local_elements(&sharded.model.params[i], &sharded.params[i], &sharded.mesh).div_ceil(LINE) * LINE;
        }
        if elements == 0 {
            return;
        }
        let ranks = sharded.mesh.ranks(&sums);
        let shards = if zero > 0 { ranks } else { 1 };
        // Gradients are summed in as many parts as there are ranks, ZeRO or not.
        let elements = elements.div_ceil(CHUNK * ranks) * CHUNK * ranks;
        let (wide, narrow) = (elements * self.wide.bytes(), elements * self.narrow.bytes());
        let shard = wide / shards;
        let params = self.reserve(shard);
        let has_copies = self.wide != self.narrow || shards > 1;
        let copies = if has_copies { self.reserve(narrow) } else { params };
        let gradients = self.reserve(wide);
        let first = self.reserve(shard);
        let second = self.reserve(shard);
        self.memory.weights += shard + if has_copies { narrow } else { 0 };
        self.memory.gradients += wide;
        self.memory.optimizer += 2 * shard;
        let holders = holders.len().max(1) as u64;
        self.groups.push(Group { decays, sums, cut, holders, elements, shards, params, copies, gradients, first, second });
    }

    fn list_param(&mut self, i: usize, param: &Tensor, shard: &ParamShard, mesh: &Mesh) {
        use plan::TensorKind as K;
        let (g, element) = self.params[&i];
        let group = self.groups[g].clone();
        let (wide, zero) = (self.wide, plan::Init::Constant(0.0));
        let block: Vec<plan::Cut> = shard.cuts.iter().map(|(axis, dims)| cut(param, *axis, dims, mesh)).collect();
        let at = |base: u64| base + element * wide.bytes();
        let whole = |kind, dtype, offset, init| plan::Tensor { block: block.clone(), ..tensor(param, kind, dtype, offset, init) };
        // A range of a group is where the group's shard is, wherever the tensor starts in it.
        let shared = |kind, base: u64, init| match group.shards {
            1 => whole(kind, wide, at(base), init),
            _ => plan::Tensor {
                range: Some(plan::FlatRange { start: element, shard: group.shard(), index: number(&group.sums, mesh) }),
                ..whole(kind, wide, base, init)
            },
        };
        let mut tensors = vec![shared(K::Param, group.params, init(param.init))];
        if group.has_copies() {
            let offset = group.copies + element * self.narrow.bytes();
            tensors.push(whole(K::ComputeCopy, self.narrow, offset, plan::Init::FromParam));
        }
        tensors.push(whole(K::Gradient, wide, at(group.gradients), zero));
        tensors.push(shared(K::FirstMoment, group.first, zero));
        tensors.push(shared(K::SecondMoment, group.second, zero));
        self.tensors.extend(tensors);
    }

    /// Where programs read a parameter, in the compute type.
    pub fn param(&self, i: usize) -> u64 {
        let (g, element) = self.params[&i];
        self.groups[g].copies + element * self.narrow.bytes()
    }

    /// Where a parameter's gradient is summed up, in the wide type.
    pub fn gradient(&self, i: usize) -> u64 {
        let (g, element) = self.params[&i];
        self.groups[g].gradients + element * self.wide.bytes()
    }
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
        offset,
        init,
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
