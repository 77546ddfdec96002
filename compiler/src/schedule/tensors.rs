//! The layout of what outlives a step: parameters, gradients and moments in flat groups, states and statistics one by one.

use crate::emit::align;
use crate::optimizer::{CHUNK, DecayScope, Optimizer};
use forebay_dsl::model::{CheckedModel, Init, Tensor};
use forebay_ir::DType;
use forebay_plan as plan;

/// Elements that every tensor of a group starts at a multiple of: 64 bytes even in bf16.
const LINE: u64 = 32;

/// A run of parameters that the optimizer treats alike.
#[derive(Clone, Debug)]
pub struct Group {
    /// Do they decay?
    pub decays: bool,
    /// Elements, padding included: whole chunks.
    pub elements: u64,
    /// Bytes from the start of the arena of each kind.
    pub params: u64,
    /// The copies in the compute type; the same as `params` when that is the master type.
    pub copies: u64,
    /// Gradients.
    pub gradients: u64,
    /// First moments.
    pub first: u64,
    /// Second moments.
    pub second: u64,
}

/// Where everything persistent lies.
#[derive(Clone, Debug)]
pub struct Layout {
    /// The groups of parameters that exist: those that decay, those that do not.
    pub groups: Vec<Group>,
    /// For each parameter: (group, element within the group).
    pub params: Vec<(usize, u64)>,
    /// For each state its place.
    pub states: Vec<u64>,
    /// Bytes in all.
    pub bytes: u64,
    /// As the plan lists them.
    pub tensors: Vec<plan::Tensor>,
    /// Bytes by kind.
    pub memory: plan::MemoryUse,
    wide: DType,
    narrow: DType,
}

impl Layout {
    /// Lays out a model's tensors.
    pub fn new(model: &CheckedModel, optimizer: &Optimizer, wide: DType, narrow: DType) -> Layout {
        let mut layout = Layout {
            groups: vec![],
            params: vec![(0, 0); model.params.len()],
            states: vec![],
            bytes: 0,
            tensors: vec![],
            memory: plan::MemoryUse::default(),
            wide,
            narrow,
        };
        for decays in [true, false] {
            layout.add_group(model, optimizer, decays);
        }
        for (i, param) in model.params.iter().enumerate() {
            layout.list_param(i, param);
        }
        for state in &model.states {
            let offset = layout.reserve(state.numel() * wide.bytes());
            layout.states.push(offset);
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

    fn add_group(&mut self, model: &CheckedModel, optimizer: &Optimizer, decays: bool) {
        let mut elements = 0;
        for (i, param) in model.params.iter().enumerate() {
            let belongs = optimizer.decay == DecayScope::All || param.axes.len() >= 2;
            if belongs == decays {
                self.params[i] = (self.groups.len(), elements);
                elements += param.numel().div_ceil(LINE) * LINE;
            }
        }
        if elements == 0 {
            return;
        }
        let elements = elements.div_ceil(CHUNK) * CHUNK;
        let (wide, narrow) = (elements * self.wide.bytes(), elements * self.narrow.bytes());
        let params = self.reserve(wide);
        let copies = if self.wide == self.narrow { params } else { self.reserve(narrow) };
        let gradients = self.reserve(wide);
        let first = self.reserve(wide);
        let second = self.reserve(wide);
        self.memory.weights += wide + if self.wide == self.narrow { 0 } else { narrow };
        self.memory.gradients += wide;
        self.memory.optimizer += 2 * wide;
        self.groups.push(Group { decays, elements, params, copies, gradients, first, second });
    }

    fn list_param(&mut self, i: usize, param: &Tensor) {
        use plan::TensorKind as K;
        let (g, element) = self.params[i];
        let group = self.groups[g].clone();
        let (wide, zero) = (self.wide, plan::Init::Constant(0.0));
        let at = |base: u64| base + element * wide.bytes();
        self.tensors.push(tensor(param, K::Param, wide, at(group.params), init(param.init)));
        if self.wide != self.narrow {
            let offset = group.copies + element * self.narrow.bytes();
            self.tensors.push(tensor(param, K::ComputeCopy, self.narrow, offset, plan::Init::FromParam));
        }
        self.tensors.push(tensor(param, K::Gradient, wide, at(group.gradients), zero));
        self.tensors.push(tensor(param, K::FirstMoment, wide, at(group.first), zero));
        self.tensors.push(tensor(param, K::SecondMoment, wide, at(group.second), zero));
    }

    /// Where programs read a parameter, in the compute type.
    pub fn param(&self, i: usize) -> u64 {
        let (g, element) = self.params[i];
        self.groups[g].copies + element * self.narrow.bytes()
    }

    /// Where a parameter's gradient is summed up, in the wide type.
    pub fn gradient(&self, i: usize) -> u64 {
        let (g, element) = self.params[i];
        self.groups[g].gradients + element * self.wide.bytes()
    }
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
