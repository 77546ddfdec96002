//! The optimizer as graphs: gradient norm, learning rate and clipping, AdamW.
//!
//! Parameters, gradients and moments lie in flat *groups* (parameters with and without weight decay), each padded to whole chunks, so that the
//! optimizer is three small programs whatever the model. Padding is zero and stays zero.
//!
//! Sources: AdamW, Loshchilov & Hutter, arXiv:1711.05101 (decoupled decay); clipping by the global norm, Pascanu et al., arXiv:1211.5063.

use forebay_ir::{
    AxisId, BinaryOp, Comm, CommKind, DType, Extent, Graph, InputRole, MeshDim, Op, OutputRole, ReduceKind, Type,
    UnaryOp, ValueId,
};

/// Elements of a chunk of a flat group; groups are padded to whole chunks.
pub const CHUNK: u64 = 1024;

/// How the learning rate changes after the warm-up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LrSchedule {
    /// Not at all.
    Constant,
    /// Straight down to the minimum at the last step.
    Linear,
    /// Half a cosine down to the minimum at the last step.
    Cosine,
}

/// Which parameters decay.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DecayScope {
    /// Those with at least two axes: no gains and no biases of one.
    Matrices,
    /// All.
    All,
}

/// The optimizer's settings.
#[derive(Clone, Debug, PartialEq)]
pub struct Optimizer {
    /// Peak learning rate.
    pub lr: f64,
    /// After the warm-up.
    pub schedule: LrSchedule,
    /// Steps over which the learning rate grows linearly to its peak.
    pub warmup: u64,
    /// Steps at whose end the schedule has come down.
    pub steps: u64,
    /// The minimum, as a fraction of the peak.
    pub min_lr: f64,
    /// Decay of the first moment.
    pub beta1: f64,
    /// Decay of the second moment.
    pub beta2: f64,
    /// Added to the root of the second moment.
    pub epsilon: f64,
    /// Decoupled weight decay, times the learning rate.
    pub weight_decay: f64,
    /// What decays.
    pub decay: DecayScope,
    /// Gradients are scaled down to this global norm; none when `None`.
    pub clip: Option<f64>,
}

impl Default for Optimizer {
    fn default() -> Self {
        Optimizer {
            lr: 3e-3,
            schedule: LrSchedule::Cosine,
            warmup: 20,
            steps: 150,
            min_lr: 0.1,
            beta1: 0.9,
            beta2: 0.95,
            epsilon: 1e-8,
            weight_decay: 0.1,
            decay: DecayScope::Matrices,
            clip: Some(1.0),
        }
    }
}

/// A graph in the making, with short names for what scalars need.
struct Scalars {
    graph: Graph,
}

impl Scalars {
    fn new(name: &str) -> Scalars {
        Scalars { graph: Graph::new(name) }
    }

    fn input(&mut self, name: &str, dtype: DType, axes: &[AxisId], role: InputRole) -> ValueId {
        self.graph.add_input(name, Type::new(dtype, axes), role)
    }

    fn constant(&mut self, value: f64) -> ValueId {
        self.graph.constant(value, DType::F64)
    }

    fn op(&mut self, op: Op, operands: &[ValueId], name: &str) -> ValueId {
        self.graph.add(op, operands, name).expect("the optimizer's graphs are well typed")
    }

    fn unary(&mut self, op: UnaryOp, a: ValueId, name: &str) -> ValueId {
        self.op(Op::Unary(op), &[a], name)
    }

    fn binary(&mut self, op: BinaryOp, a: ValueId, b: ValueId, name: &str) -> ValueId {
        self.op(Op::Binary(op), &[a, b], name)
    }

    fn sum(&mut self, a: ValueId, over: AxisId, name: &str) -> ValueId {
        self.op(Op::Reduce { kind: ReduceKind::Sum, over: vec![over] }, &[a], name)
    }

    /// The sum over the ranks of a group.
    fn all_reduced(&mut self, a: ValueId, group: &[u32]) -> ValueId {
        if group.is_empty() {
            return a;
        }
        let name = format!("{}.all", self.graph.node(a).name);
        self.op(
            Op::Comm(Box::new(Comm { group: group.to_vec(), kind: CommKind::AllReduce(ReduceKind::Sum) })),
            &[a],
            &name,
        )
    }

    /// A value of type `of` in the type `wide`.
    fn widened(&mut self, a: ValueId, (of, wide): (DType, DType), name: &str) -> ValueId {
        if of == wide { a } else { self.op(Op::Cast(wide), &[a], name) }
    }

    /// `a op constant`
    fn with(&mut self, op: BinaryOp, a: ValueId, constant: f64, name: &str) -> ValueId {
        let c = self.constant(constant);
        self.binary(op, a, c, name)
    }
}

/// The sum of the squares of a flat group of gradients: input `gradients: of[chunk, lane]`, squared in the type `wide`; output `squares: f64`.
pub fn squares(chunks: u64, of: DType, wide: DType) -> Graph {
    let mut g = Scalars::new("optimizer.squares");
    let chunk = g.graph.add_axis("chunk", Extent::Fixed(chunks), None);
    let lane = g.graph.add_axis("lane", Extent::Fixed(CHUNK), None);
    let gradients = g.input("gradients", of, &[chunk, lane], InputRole::Grad);
    let gradients = g.widened(gradients, (of, wide), "gradients.wide");
    let square = g.binary(BinaryOp::Mul, gradients, gradients, "square");
    let of_chunk = g.sum(square, lane, "of_chunk");
    let of_chunk = g.op(Op::Cast(DType::F64), &[of_chunk], "of_chunk.f64");
    let squares = g.sum(of_chunk, chunk, "squares");
    g.graph.add_output("squares", squares, OutputRole::Metric);
    g.graph
}

/// The scalars of one step: inputs `step: i32` and `squares.<i>: f64`, each of which as many ranks have alike as `replicas` says; outputs `grad_norm`, `lr`, `scale` (of the gradients), `rate` (lr / bias
/// correction of the first moment), `root` (1 / root of the bias correction of the second), `keep` (1 - lr · decay), all f64.
pub fn scalars(optimizer: &Optimizer, replicas: &[u64], mesh: &[MeshDim]) -> Graph {
    let mut g = Scalars::new("optimizer.scalars");
    g.graph.mesh = mesh.to_vec();
    let step = g.input("step", DType::I32, &[], InputRole::Runtime);
    let squares: Vec<ValueId> = replicas
        .iter()
        .enumerate()
        .map(|(i, &n)| {
            let sum = g.input(&format!("squares.{i}"), DType::F64, &[], InputRole::Carry);
            if n == 1 { sum } else { g.with(BinaryOp::Mul, sum, 1.0 / n as f64, "share") }
        })
        .collect();
    let step = g.op(Op::Cast(DType::F64), &[step], "step.f64");

    let total = squares.into_iter().reduce(|a, b| g.binary(BinaryOp::Add, a, b, "total"));
    let total = total.unwrap_or_else(|| g.constant(0.0));
    let total = g.all_reduced(total, &(0..mesh.len() as u32).collect::<Vec<_>>());
    let norm = g.unary(UnaryOp::Sqrt, total, "grad_norm");
    let scale = match optimizer.clip {
        Some(clip) => {
            // The small constant is PyTorch's, so that runs can be compared.
            let guarded = g.with(BinaryOp::Add, norm, 1e-6, "guarded");
            let clip = g.constant(clip);
            let ratio = g.binary(BinaryOp::Div, clip, guarded, "ratio");
            g.with(BinaryOp::Min, ratio, 1.0, "scale")
        }
        None => {
            let zero = g.with(BinaryOp::Mul, step, 0.0, "zero");
            g.with(BinaryOp::Add, zero, 1.0, "scale")
        }
    };
    let lr = learning_rate(&mut g, optimizer, step);

    let correction = |g: &mut Scalars, beta: f64, name: &str| {
        let base = g.constant(beta);
        let power = g.binary(BinaryOp::Pow, base, step, name);
        let one = g.constant(1.0);
        g.binary(BinaryOp::Sub, one, power, name)
    };
    let first = correction(&mut g, optimizer.beta1, "bias1");
    let second = correction(&mut g, optimizer.beta2, "bias2");
    let rate = g.binary(BinaryOp::Div, lr, first, "rate");
    let root = g.unary(UnaryOp::Sqrt, second, "root2");
    let one = g.constant(1.0);
    let root = g.binary(BinaryOp::Div, one, root, "root");
    let decay = g.with(BinaryOp::Mul, lr, optimizer.weight_decay, "decay");
    let one = g.constant(1.0);
    let keep = g.binary(BinaryOp::Sub, one, decay, "keep");
    for (name, value) in
        [("grad_norm", norm), ("lr", lr), ("scale", scale), ("rate", rate), ("root", root), ("keep", keep)]
    {
        g.graph.add_output(name, value, OutputRole::Metric);
    }
    g.graph
}

fn learning_rate(g: &mut Scalars, optimizer: &Optimizer, step: ValueId) -> ValueId {
    let warmup = optimizer.warmup as f64;
    let falling = (optimizer.steps.saturating_sub(optimizer.warmup)).max(1) as f64;
    let rising = g.with(BinaryOp::Div, step, warmup.max(1.0), "rising");
    let rising = g.with(BinaryOp::Min, rising, 1.0, "rising");
    let past = g.with(BinaryOp::Sub, step, warmup, "past");
    let progress = g.with(BinaryOp::Div, past, falling, "progress");
    let progress = g.with(BinaryOp::Max, progress, 0.0, "progress");
    let progress = g.with(BinaryOp::Min, progress, 1.0, "progress");
    let height = match optimizer.schedule {
        LrSchedule::Constant => None,
        LrSchedule::Linear => {
            let one = g.constant(1.0);
            Some(g.binary(BinaryOp::Sub, one, progress, "height"))
        }
        LrSchedule::Cosine => {
            let angle = g.with(BinaryOp::Mul, progress, std::f64::consts::PI, "angle");
            let cosine = g.unary(UnaryOp::Cos, angle, "cosine");
            let raised = g.with(BinaryOp::Add, cosine, 1.0, "raised");
            Some(g.with(BinaryOp::Mul, raised, 0.5, "height"))
        }
    };
    let peak = g.with(BinaryOp::Mul, rising, optimizer.lr, "peak");
    let Some(height) = height else { return peak };
    let span = g.with(BinaryOp::Mul, height, 1.0 - optimizer.min_lr, "span");
    let factor = g.with(BinaryOp::Add, span, optimizer.min_lr, "factor");
    g.binary(BinaryOp::Mul, peak, factor, "lr")
}

/// Types of what the optimizer keeps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Types {
    /// Masters, and what the optimizer reckons in.
    pub wide: DType,
    /// Copies that programs read.
    pub narrow: DType,
    /// Gradients.
    pub gradients: DType,
    /// Moments.
    pub moments: DType,
}

/// AdamW over a flat group of `elements`: inputs `param`, `gradient`, `first`, `second` and the scalars of [`scalars`]; outputs `param`, `first`, `second`,
/// and `copy`, the parameters in the compute type, when that is another one. All is reckoned in `types.wide`: gradients and moments that are kept in a narrower type are widened first,
/// and moments rounded to nearest again after the update has read them.
pub fn adamw(optimizer: &Optimizer, elements: u64, decays: bool, types: Types) -> Graph {
    let Types { wide, narrow, gradients, moments } = types;
    let mut g = Scalars::new(if decays { "optimizer.adamw" } else { "optimizer.adamw_no_decay" });
    let n = g.graph.add_axis("n", Extent::Fixed(elements), None);
    let param = g.input("param", wide, &[n], InputRole::State);
    let gradient = g.input("gradient", gradients, &[n], InputRole::Grad);
    let gradient = g.widened(gradient, (gradients, wide), "gradient.wide");
    let moment = |g: &mut Scalars, name: &str| {
        let value = g.input(name, moments, &[n], InputRole::State);
        g.widened(value, (moments, wide), &format!("{name}.wide"))
    };
    let first = moment(&mut g, "first");
    let second = moment(&mut g, "second");
    let scalar = |g: &mut Scalars, name: &str| {
        let value = g.input(name, DType::F64, &[], InputRole::Carry);
        if wide == DType::F64 { value } else { g.op(Op::Cast(wide), &[value], name) }
    };
    let scale = scalar(&mut g, "scale");
    let rate = scalar(&mut g, "rate");
    let root = scalar(&mut g, "root");
    let keep = decays.then(|| scalar(&mut g, "keep"));
    let c = |g: &mut Scalars, value: f64| g.graph.constant(value, wide);

    let scaled = g.binary(BinaryOp::Mul, gradient, scale, "scaled");
    let (b1, r1) = (c(&mut g, optimizer.beta1), c(&mut g, 1.0 - optimizer.beta1));
    let old = g.binary(BinaryOp::Mul, first, b1, "first.old");
    let new = g.binary(BinaryOp::Mul, scaled, r1, "first.new");
    let first = g.binary(BinaryOp::Add, old, new, "first.next");
    let (b2, r2) = (c(&mut g, optimizer.beta2), c(&mut g, 1.0 - optimizer.beta2));
    let square = g.binary(BinaryOp::Mul, scaled, scaled, "square");
    let old = g.binary(BinaryOp::Mul, second, b2, "second.old");
    let new = g.binary(BinaryOp::Mul, square, r2, "second.new");
    let second = g.binary(BinaryOp::Add, old, new, "second.next");

    let deviation = g.unary(UnaryOp::Sqrt, second, "deviation");
    let corrected = g.binary(BinaryOp::Mul, deviation, root, "corrected");
    let epsilon = c(&mut g, optimizer.epsilon);
    let divisor = g.binary(BinaryOp::Add, corrected, epsilon, "divisor");
    let direction = g.binary(BinaryOp::Div, first, divisor, "direction");
    let change = g.binary(BinaryOp::Mul, direction, rate, "change");
    let kept = match keep {
        Some(keep) => g.binary(BinaryOp::Mul, param, keep, "kept"),
        None => param,
    };
    let next = g.binary(BinaryOp::Sub, kept, change, "param.next");
    g.graph.add_output("param", next, OutputRole::State);
    for (name, next) in [("first", first), ("second", second)] {
        let kept = if moments == wide { next } else { g.op(Op::Cast(moments), &[next], &format!("{name}.kept")) };
        g.graph.add_output(name, kept, OutputRole::State);
    }
    if narrow != wide {
        let copy = g.op(Op::Cast(narrow), &[next], "copy");
        g.graph.add_output("copy", copy, OutputRole::State);
    }
    g.graph
}

/// The gradients of a flat array, summed over the ranks of `group`: input `gradients`, output `sum` — all of them on each rank, in place; or each rank's
/// range of them, in place of what was there or added to it.
pub fn summed(elements: u64, group: &[u32], keep: Keep, mesh: &[MeshDim], wide: DType) -> Graph {
    let mut g = Scalars::new("optimizer.sum");
    g.graph.mesh = mesh.to_vec();
    let ranks: u64 = group.iter().map(|&d| u64::from(mesh[d as usize].size)).product();
    let n = g.graph.add_axis("n", Extent::Fixed(elements), None);
    let part = g.graph.add_axis("part", Extent::Fixed(elements / ranks), None);
    // In place when all is kept; else the sum is apart from its terms.
    let (name, role) = if keep == Keep::Whole { ("sum", InputRole::State) } else { ("gradients", InputRole::Carry) };
    let gradients = g.input(name, wide, &[n], role);
    let comm = |kind| Op::Comm(Box::new(Comm { group: group.to_vec(), kind }));
    let shard = g.op(comm(CommKind::ReduceScatter { from: n, into: part }), &[gradients], "shard");
    let sum = match keep {
        Keep::Shard => shard,
        Keep::Add => {
            let before = g.input("sum", wide, &[part], InputRole::State);
            g.binary(BinaryOp::Add, before, shard, "added")
        }
        Keep::Whole => g.op(comm(CommKind::Unshard { from: part, into: n }), &[shard], "whole"),
    };
    g.graph.add_output("sum", sum, OutputRole::State);
    g.graph
}

/// What another stage has of a gradient, added to one's own: input and output `gradients`, input `received`.
pub fn added(elements: u64, wide: DType) -> Graph {
    let mut g = Scalars::new("optimizer.add");
    let n = g.graph.add_axis("n", Extent::Fixed(elements), None);
    let own = g.input("gradients", wide, &[n], InputRole::State);
    let received = g.input("received", wide, &[n], InputRole::Carry);
    let sum = g.binary(BinaryOp::Add, own, received, "sum");
    g.graph.add_output("gradients", sum, OutputRole::State);
    g.graph
}

/// What a rank keeps of a sum.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Keep {
    /// All of it.
    Whole,
    /// Its own range.
    Shard,
    /// Its own range, added to what is there.
    Add,
}

/// What programs read of a flat group, from the ranges of its masters on the ranks of `group`: input `param: wide[n/ranks]`, output `copy: narrow[n]`.
pub fn gathered(elements: u64, group: &[u32], mesh: &[MeshDim], wide: DType, narrow: DType) -> Graph {
    let mut g = Scalars::new("optimizer.gather");
    g.graph.mesh = mesh.to_vec();
    let ranks: u64 = group.iter().map(|&d| u64::from(mesh[d as usize].size)).product();
    let n = g.graph.add_axis("n", Extent::Fixed(elements), None);
    let part = g.graph.add_axis("part", Extent::Fixed(elements / ranks), None);
    let param = g.input("param", wide, &[part], InputRole::Carry);
    // What is sent is what is read: half as much in bf16.
    let own = if narrow == wide { param } else { g.op(Op::Cast(narrow), &[param], "narrow") };
    let kind = CommKind::Unshard { from: part, into: n };
    let copy = g.op(Op::Comm(Box::new(Comm { group: group.to_vec(), kind })), &[own], "copy");
    g.graph.add_output("copy", copy, OutputRole::State);
    g.graph
}

/// A rank's own range of what it has all of: input `copy: dtype[n]`, output `own: dtype[n/ranks]`.
pub fn own_range(elements: u64, group: &[u32], mesh: &[MeshDim], dtype: DType) -> Graph {
    let mut g = Scalars::new("optimizer.own");
    g.graph.mesh = mesh.to_vec();
    let ranks: u64 = group.iter().map(|&d| u64::from(mesh[d as usize].size)).product();
    let n = g.graph.add_axis("n", Extent::Fixed(elements), None);
    let part = g.graph.add_axis("part", Extent::Fixed(elements / ranks), None);
    let copy = g.input("copy", dtype, &[n], InputRole::Carry);
    let kind = CommKind::Shard { from: n, into: part };
    let own = g.op(Op::Comm(Box::new(Comm { group: group.to_vec(), kind })), &[copy], "own");
    g.graph.add_output("own", own, OutputRole::State);
    g.graph
}

/// A value summed over the ranks of a group: input and output `sum`, of any sizes.
pub fn all_reduced(dims: &[u64], group: &[u32], mesh: &[MeshDim], dtype: DType) -> Graph {
    let mut g = Scalars::new("sum.ranks");
    g.graph.mesh = mesh.to_vec();
    let axes: Vec<AxisId> = dims.iter().map(|&n| g.graph.add_axis("n", Extent::Fixed(n), None)).collect();
    let own = g.input("own", dtype, &axes, InputRole::Carry);
    let sum = g.all_reduced(own, group);
    g.graph.add_output("sum", sum, OutputRole::Metric);
    g.graph
}

/// The sum of `n` scalars that lie 64 bytes apart, and over the ranks of a group: input `parts: dtype[n, line]`, output `sum`.
pub fn sum_of_scalars(n: u64, group: &[u32], mesh: &[MeshDim], dtype: DType) -> Graph {
    let mut g = Scalars::new("report.sum");
    g.graph.mesh = mesh.to_vec();
    if n == 0 {
        // A stage without a contribution takes part in the sum all the same.
        let zero = g.graph.constant(0.0, dtype);
        let sum = g.all_reduced(zero, group);
        g.graph.add_output("sum", sum, OutputRole::Metric);
        return g.graph;
    }
    let parts = g.graph.add_axis("part", Extent::Fixed(n), None);
    let line = g.graph.add_axis("line", Extent::Fixed(64 / dtype.bytes()), None);
    let all = g.input("parts", dtype, &[parts, line], InputRole::Carry);
    let first = g.op(Op::Take { axis: line, index: 0 }, &[all], "first");
    let sum = g.sum(first, parts, "sum");
    let sum = g.all_reduced(sum, group);
    g.graph.add_output("sum", sum, OutputRole::Metric);
    g.graph
}

/// Zeros of a type, for the gradient of a value that nothing reads.
pub fn zeros(elements: u64, dtype: DType) -> Graph {
    let mut g = Scalars::new("zeros");
    let n = g.graph.add_axis("n", Extent::Fixed(elements), None);
    let zero = g.graph.constant(0.0, dtype);
    let zeros = g.op(Op::Broadcast(vec![n]), &[zero], "zeros");
    g.graph.add_output("zeros", zeros, OutputRole::State);
    g.graph
}
