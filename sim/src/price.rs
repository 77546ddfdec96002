//! The time of each instruction of a plan, in seconds.
//!
//! FLOPs and bytes come from the kernel's operands. Ragged dimensions have bounds in the plan; the rows that a run brings are those of an even routing, times the
//! imbalance. Where a plan has room for the worst case (all rows of all ranks on one), that is far less.

use crate::framework::Framework;
use crate::gradients::Gradients;
use crate::kind::Kind;
use crate::loss::Loss;
use crate::routes::{Routes, domains};
use crate::sums;
use forebay_cost::{
    Attended, AttentionKernel, Cluster, Collective, Copies, Domains, Group, Precision, Product, Remembered,
};
use forebay_plan::{
    AllToAllV, DType, Direction, Exchange, ExchangeKind, Instruction, Kernel, MeshDim, Plan, Program, Space,
};
use rustc_hash::FxHashMap;
use std::cell::RefCell;

mod attention;
mod experts;
mod products;

/// What an instruction costs, and what it does to others.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Priced {
    /// What it is for.
    pub kind: Kind,
    /// How long it takes once it runs.
    pub seconds: f64,
    /// How long it runs beyond that, beside work that it does not hold up, if there is work enough in its program ([`crate::steps::timed`]).
    pub hidden: f64,
    /// Floating-point operations of products and attention.
    pub flops: f64,
    /// Bytes that a rank sends to others.
    pub sent: f64,
    /// Of the bytes per second that a device's links in the first tier carry, the part that goes through it.
    pub load: f64,
    /// What it does to other ranks.
    pub action: Action,
    /// How many kernels' time the host takes to start it.
    pub launches: f64,
    /// Must the host know its result before it goes on?
    pub host_waits: bool,
    /// Does it use links between nodes?
    pub leaves_node: bool,
}

impl Priced {
    /// Work of a rank by itself that the host starts as one kernel.
    fn work(kind: Kind, seconds: f64, flops: f64) -> Priced {
        Priced {
            kind,
            seconds,
            hidden: 0.0,
            flops,
            sent: 0.0,
            load: 0.0,
            action: Action::Work,
            launches: 1.0,
            host_waits: false,
            leaves_node: false,
        }
    }
}

/// What an instruction has to do with ranks of other roles.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Action {
    /// Nothing.
    Work,
    /// A message to the role at a coordinate.
    Send {
        /// The coordinate along the mesh dimension in which roles differ.
        peer: u32,
        /// The channel.
        channel: u32,
        /// Its size.
        bytes: f64,
        /// How much of its time counts: less than 1 where somebody asks what would be without messages.
        part: f64,
    },
    /// Waits for a message.
    Receive {
        /// As for sending.
        peer: u32,
        /// The channel.
        channel: u32,
    },
    /// All roles meet.
    Meet,
}

/// What the time of an instruction depends on.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Shape {
    /// Matrix products.
    Product(Product),
    /// Attention.
    Attention(Attended, AttentionKernel),
    /// Linear attention.
    Linear(Remembered),
    /// What streams through memory.
    Streamed {
        /// Floating-point operations.
        flops: f64,
        /// Bytes.
        bytes: f64,
    },
}

/// Prices the instructions of one plan.
pub struct Pricer<'a> {
    mesh: &'a [MeshDim],
    cluster: &'a Cluster,
    framework: &'a Framework,
    precision: Precision,
    /// Rows of the busiest rank, as a multiple of the mean.
    imbalance: f64,
    /// Ranks between neighbours along each mesh dimension.
    strides: Vec<u64>,
    /// The mesh dimension in which roles differ.
    stage_dim: Option<u32>,
    domains: Domains,
    groups: RefCell<FxHashMap<Vec<u32>, Group>>,
    /// Experts of a token: the most that any router chooses.
    topk: f64,
    /// Do ranks share experts, so that not all rows that there is room for come?
    shares_experts: bool,
    /// The loss of the whole plan; of a program by itself nothing is known.
    loss: Loss,
    calls: sums::Calls,
    gradients: Gradients,
}

/// Rows of programs whose names begin so are the optimizer's.
const OPTIMIZER: &str = "optimizer.";
/// And of those that update parameters.
const UPDATE: &str = "optimizer.adamw.";
/// The layer that reads the vocabulary stays in the compute type when others are in fp8 (the recipes of all systems that we know).
pub(crate) const HEAD: &str = "train.epilogue";

impl<'a> Pricer<'a> {
    /// For a plan on a cluster.
    pub fn new(
        plan: &'a Plan,
        cluster: &'a Cluster,
        framework: &'a Framework,
        precision: Precision,
        imbalance: f64,
    ) -> Pricer<'a> {
        let pricer = Pricer::of((&plan.mesh, &of_training(plan)), (cluster, framework, precision), imbalance);
        let calls = sums::Calls::new(plan, framework);
        let gradients = Gradients::new(plan, framework);
        Pricer { topk: topk(&plan.programs), loss: Loss::of(&plan.programs), calls, gradients, ..pricer }
    }

    /// For a training program by itself, of a plan on a mesh, with an even routing.
    pub(crate) fn of_program(
        (mesh, program): (&'a [MeshDim], &Program),
        on: (&'a Cluster, &'a Framework, Precision),
    ) -> Pricer<'a> {
        let pricer = Pricer::of((mesh, &[program]), on, 1.0);
        Pricer { topk: topk(std::slice::from_ref(program)), ..pricer }
    }

    fn of(
        (mesh, programs): (&'a [MeshDim], &[&Program]),
        (cluster, framework, precision): (&'a Cluster, &'a Framework, Precision),
        imbalance: f64,
    ) -> Pricer<'a> {
        Pricer {
            mesh,
            cluster,
            framework,
            precision,
            imbalance,
            strides: strides(mesh),
            stage_dim: stage_dim(mesh),
            domains: domains(cluster, mesh),
            groups: RefCell::default(),
            topk: 1.0,
            shares_experts: shares_experts(programs),
            loss: Loss::default(),
            calls: sums::Calls::default(),
            gradients: Gradients::default(),
        }
    }

    /// The part of a ragged dimension's bound that is there, on the busiest rank.
    fn ragged(&self, kernel: &Kernel) -> f64 {
        kernel.ragged_rows().map_or(1.0, |rows| rows.share(self.imbalance)) * self.beyond(kernel)
    }

    /// How many times the room of a ragged dimension experts fill up: our plan has room for rows that may come, and a capacity may be more than all of them.
    fn beyond(&self, kernel: &Kernel) -> f64 {
        match kernel.ragged_rows() {
            Some(rows) if self.framework.fills_up() => {
                (rows.even as f64 * self.imbalance / rows.bound.max(1) as f64).max(1.0)
            }
            _ => 1.0,
        }
    }

    /// The group of ranks over mesh dimensions.
    pub(crate) fn group(&self, dims: &[u32]) -> Group {
        let mut groups = self.groups.borrow_mut();
        let make = || {
            let dims: Vec<(u64, u64)> =
                dims.iter().map(|&d| (u64::from(self.mesh[d as usize].size), self.strides[d as usize])).collect();
            Group::new(&self.domains, &dims)
        };
        groups.entry(dims.to_vec()).or_insert_with(make).clone()
    }

    /// Ranks between neighbours along a mesh dimension.
    pub(crate) fn stride(&self, dim: u32) -> u64 {
        self.strides.get(dim as usize).copied().unwrap_or(1)
    }

    /// How messages between stages go.
    pub(crate) fn routes(&self) -> Routes {
        Routes::new(self.cluster, self.domains.clone(), self.stage_dim.map_or(1, |dim| self.stride(dim)))
    }

    /// Prices the instructions of a program.
    pub fn program(&self, program: &Program) -> Vec<Priced> {
        program.instructions.iter().map(|instruction| self.instruction(program, instruction)).collect()
    }

    /// Prices an instruction of a program.
    pub fn instruction(&self, program: &Program, instruction: &Instruction) -> Priced {
        let mut priced = self.alone(program, instruction);
        priced.launches *= self.framework.graphs.launches(program, &instruction.kernel);
        priced
    }

    /// Prices an instruction that the host starts.
    fn alone(&self, program: &Program, instruction: &Instruction) -> Priced {
        let optimizer = program.name.starts_with(OPTIMIZER);
        if let Some(bound) = copied(program, instruction) {
            let bytes = bound * self.ragged(&instruction.kernel);
            // (Where the cluster does not say, nothing is simulated.)
            return Priced::work(Kind::Swap, self.cluster.host_copy(bytes).unwrap_or(f64::INFINITY), 0.0);
        }
        match &instruction.kernel {
            Kernel::Matmul(k) => self.matmul(program, k, &instruction.kernel),
            Kernel::Attention(k) => self.attention(program, &k.inputs, &instruction.kernel, AttentionKernel::Forward),
            Kernel::AttentionBackward(k) => {
                self.attention(program, &k.inputs, &instruction.kernel, AttentionKernel::Backward)
            }
            Kernel::LinearAttention(k) => self.linear_attention(program, k, &instruction.kernel),
            Kernel::Exchange(k) => self.exchange(program, k, &instruction.kernel),
            Kernel::AllToAllV(k) => self.rows_exchanged(k),
            Kernel::Send(k) => {
                let bytes = (k.elements * k.dtype.bytes()) as f64;
                let action = Action::Send { peer: k.peer, channel: k.channel, bytes, part: 1.0 };
                Priced { sent: bytes, action, ..Priced::work(Kind::Pp, self.cluster.kernel_start(), 0.0) }
            }
            Kernel::Recv(k) => {
                let action = Action::Receive { peer: k.peer, channel: k.channel };
                Priced { action, host_waits: self.framework.receive_waits, ..Priced::work(Kind::Pp, 0.0, 0.0) }
            }
            kernel => {
                let (flops, bytes) = self.streamed(program, kernel);
                if self.framework.host_optimizer_gbps > 0.0 && program.name.starts_with(UPDATE) {
                    return Priced::work(Kind::Optimizer, self.on_hosts(bytes), 0.0);
                }
                let (kind, passes) = if optimizer {
                    (Kind::Optimizer, self.gradients.passes(&program.name))
                } else {
                    (Kind::Vector, self.loss_passes(program, kernel).unwrap_or(self.framework.vector_passes))
                };
                let apart = self.apart(kernel);
                let priced = Priced::work(kind, self.cluster.vector(flops, bytes * passes) + apart.seconds, 0.0);
                Priced { launches: 1.0 + apart.starts, ..priced }
            }
        }
    }

    /// Seconds of an update that a node's hosts do, for all of its devices at once. (Gradients and parameters go over links that are many times as fast.)
    fn on_hosts(&self, bytes: f64) -> f64 {
        let ranks: f64 = self.mesh.iter().map(|dim| f64::from(dim.size)).product();
        // (A rack whose devices are one domain has many hosts.)
        let in_node = self.cluster.tiers.first().and_then(|tier| tier.devices).map_or(1.0, |n| f64::from(n.0));
        bytes * in_node.min(MOST_OF_HOST).min(ranks) / (self.framework.host_optimizer_gbps * 1e9)
    }

    /// Memory passes of a kernel of the loss, as a multiple of our plan's, where the framework's are known.
    fn loss_passes(&self, program: &Program, kernel: &Kernel) -> Option<f64> {
        let traffic = Some(self.framework.loss_traffic).filter(|traffic| *traffic > 0.0)?;
        if program.name.starts_with(HEAD) { self.loss.passes(kernel, traffic) } else { None }
    }

    /// Operations and bytes of a kernel that streams through memory.
    fn streamed(&self, program: &Program, kernel: &Kernel) -> (f64, f64) {
        let bytes = kernel.expected_bytes(&program.buffers, self.imbalance) * self.beyond(kernel);
        (kernel.flops() * self.ragged(kernel), bytes)
    }

    /// What the time of an instruction depends on, where that is its shape alone.
    pub fn shape(&self, program: &Program, instruction: &Instruction) -> Option<Shape> {
        let kernel = &instruction.kernel;
        match kernel {
            Kernel::Matmul(k) => Some(Shape::Product(self.product_of(program, k, kernel))),
            Kernel::Attention(k) => {
                Some(Shape::Attention(self.attended(program, &k.inputs, kernel), AttentionKernel::Forward))
            }
            Kernel::AttentionBackward(k) => {
                Some(Shape::Attention(self.attended(program, &k.inputs, kernel), AttentionKernel::Backward))
            }
            Kernel::LinearAttention(k) => Some(Shape::Linear(self.remembered(program, k, kernel))),
            Kernel::Exchange(_) | Kernel::AllToAllV(_) | Kernel::Send(_) | Kernel::Recv(_) => None,
            kernel => {
                let (flops, bytes) = self.streamed(program, kernel);
                Some(Shape::Streamed { flops, bytes })
            }
        }
    }

    fn exchange(&self, program: &Program, k: &Exchange, kernel: &Kernel) -> Priced {
        let group = self.group(&k.group);
        let optimizer = program.name.starts_with(OPTIMIZER);
        let among = self.purpose(optimizer, &k.group);
        // Rows of experts are theirs, whoever shares them.
        let kind = if k.ragged.is_some() { Kind::Ep } else { among };
        // A reduce-scatter and an all-gather, in an order that does not depend on the number of ranks, are what our own plan makes of a sum that all ranks have: others call one collective.
        let one_call = program.name.starts_with("optimizer.all_reduce") && !self.framework.streams;
        let element = match k.dtype {
            DType::F32 if kind == Kind::Dp && (k.reduce.is_some() || one_call) && k.piece() > 1024 => {
                self.framework.gradient_bytes
            }
            dtype => dtype.bytes() as f64,
        };
        let halved = kind == Kind::Tp && self.gathers_halves(program, k);
        let there = self.ragged(kernel);
        let piece = k.piece() as f64 * there * if halved { element / 2.0 } else { element };
        let (what, bytes) = collective(k.kind(), piece, k.ranks as f64);
        // A sum that all ranks have takes a rank its part of what others are to sum, and of that sum what others are to have, as in a ring or by halves.
        let others = 1.0 - 1.0 / k.ranks.max(1) as f64;
        let sent = match what {
            Collective::AllReduce => 2.0 * bytes * others,
            Collective::Shift => bytes,
            _ => bytes * others,
        };
        let hidden = match kind {
            Kind::Tp => self.framework.hidden_tp,
            Kind::Cp => self.framework.hidden_cp,
            Kind::Ep if k.ragged.is_some() => self.framework.hidden_ep,
            _ => 0.0,
        };
        let mut seconds = match kind {
            Kind::Dp if one_call => self.summed(Collective::AllReduce, &group, bytes, element) / 2.0,
            Kind::Dp if optimizer => self.summed(what, &group, bytes, element),
            _ => self.cluster.collective(what, &group, bytes),
        };
        let hidden = seconds * hidden;
        seconds -= hidden;
        let mut launches = 1.0;
        let mut waits_for_end = false;
        let dispatch = self.framework.dispatch_us.max(1e-3);
        if optimizer && self.framework.collective_holds {
            launches += self.calls.held(program, &group, self.cluster) * 1e6 / dispatch;
        }
        if among == Kind::Tp {
            launches += self.framework.collective_us / dispatch;
            if self.framework.collective_holds {
                // The host is held for all steps round the ring, and for one before them in which neighbours meet. Those inside of nodes take the device no time beside that.
                let inside = self.cluster.inside_latency(&group);
                let meeting = inside.min(self.cluster.first_latency());
                seconds = (seconds - inside).max(self.cluster.kernel_start());
                launches += (self.cluster.ring_latency(&group) + meeting) * 1e6 / dispatch;
                waits_for_end = group.leaves_node();
            }
        }
        let meets = self.stage_dim.is_some_and(|d| k.group.contains(&d));
        let action = if meets { Action::Meet } else { Action::Work };
        // Rows of each expert are numbers that the host needs, in frameworks that split arrays by them.
        let rows_wait = self.framework.experts_wait && k.dtype == DType::I32 && k.kind() == ExchangeKind::AllToAll;
        let host_waits = waits_for_end || rows_wait;
        let leaves_node = group.leaves_node();
        let load = self.load(sent, seconds + hidden);
        Priced { kind, seconds, hidden, flops: 0.0, sent, load, action, launches, host_waits, leaves_node }
    }

    /// Does a gather of activations take them in fp8?
    fn gathers_halves(&self, program: &Program, k: &Exchange) -> bool {
        self.framework.gathers_fp8
            && matches!(self.precision, Precision::Fp8 | Precision::Mxfp8)
            && k.kind() == ExchangeKind::AllGather
            && k.dtype == DType::Bf16
            && !program.name.starts_with(HEAD)
    }

    /// Seconds of a collective of gradients or parameters.
    fn summed(&self, what: Collective, group: &Group, bytes: f64, element: f64) -> f64 {
        sums::seconds(self.cluster, self.framework, what, group, bytes / element, element)
    }

    /// Which degree a group belongs to.
    fn purpose(&self, optimizer: bool, dims: &[u32]) -> Kind {
        let name = |d: &u32| self.mesh[*d as usize].name.as_str();
        if optimizer || dims.iter().any(|d| name(d) == "pp") {
            return Kind::Dp;
        }
        let any = |of: &str| dims.iter().any(|d| name(d) == of || name(d).starts_with(&format!("{of}.")));
        match (any("dp"), any("cp"), any("tp")) {
            // Sums of losses and of metrics.
            (true, _, _) if !self.shares_experts => Kind::Dp,
            (true, _, _) => Kind::Ep,
            (false, true, _) => Kind::Cp,
            _ => Kind::Tp,
        }
    }

    /// Of what a device's links in the first tier carry, the part of so many bytes in so many seconds.
    fn load(&self, sent: f64, seconds: f64) -> f64 {
        if seconds > 0.0 { (sent / (seconds * self.cluster.link_rate())).min(1.0) } else { 0.0 }
    }

    fn rows_exchanged(&self, k: &AllToAllV) -> Priced {
        let group = self.group(&k.group);
        let element = match k.direction {
            Direction::Dispatch if self.framework.dispatch_fp8 => FP8_WITH_SCALES.min(k.dtype.bytes() as f64),
            _ => k.dtype.bytes() as f64,
        };
        // Tokens that are sent but once for several experts come at most once, however uneven the choice is; what a capacity is filled up with goes to each expert.
        let fills_up = self.framework.fills_up() && !self.framework.deduplicates;
        let room = if fills_up { f64::INFINITY } else { k.bound as f64 };
        let rows = (k.even as f64 * self.imbalance).min(room);
        let bytes = rows * k.row as f64 * element;
        // The rank's own rows stay.
        let sent = bytes * (1.0 - 1.0 / group.ranks.max(1) as f64);
        let copies = if self.framework.deduplicates { self.copies(&group) } else { Copies::ALL };
        let seconds = self.cluster.rows(&group, bytes, copies);
        let hidden = seconds * self.framework.hidden_ep;
        Priced {
            kind: Kind::Ep,
            seconds: seconds - hidden,
            hidden,
            flops: 0.0,
            sent,
            load: self.load(sent, seconds),
            action: Action::Work,
            launches: 1.0,
            host_waits: false,
            leaves_node: group.leaves_node(),
        }
    }

    /// What goes when a token goes once to each rank of its node, and once to each other node, as parts of what goes when it goes to each of its experts: with k experts on n of them,
    /// n (1 − (1 − 1/n)^k) against k. Where routers choose among few nodes, as many others are in their place.
    fn copies(&self, group: &Group) -> Copies {
        let once = |n: f64| n * (1.0 - (1.0 - 1.0 / n).powf(self.topk)) / self.topk;
        let all = group.ranks as f64 / group.members.first().map_or(1.0, |m| *m as f64);
        let nodes = match self.framework.node_limit {
            0 => all,
            most => all.min(f64::from(most)),
        };
        let inside = once((group.ranks as f64 * nodes / all).max(1.0));
        Copies { inside, outside: if all > 1.0 { once(nodes) } else { 1.0 } }
    }
}

/// Devices of a host, at most.
const MOST_OF_HOST: f64 = 8.0;

/// Bytes of an element in fp8 with its part of an f32 scale for 128 of them.
const FP8_WITH_SCALES: f64 = 1.0 + 4.0 / 128.0;

/// Ranks between neighbours along each mesh dimension.
fn strides(mesh: &[MeshDim]) -> Vec<u64> {
    let mut strides = vec![1; mesh.len()];
    for d in (0..mesh.len().saturating_sub(1)).rev() {
        strides[d] = strides[d + 1] * u64::from(mesh[d + 1].size);
    }
    strides
}

/// The mesh dimension in which roles differ.
pub(crate) fn stage_dim(mesh: &[MeshDim]) -> Option<u32> {
    mesh.iter().position(|d| d.name == "pp").map(|d| d as u32)
}

/// Do programs exchange rows, or choose their own among the tokens of several ranks?
fn shares_experts(programs: &[&Program]) -> bool {
    let mut kernels = programs.iter().flat_map(|p| &p.instructions).map(|i| &i.kernel);
    kernels.any(|k| matches!(k, Kernel::AllToAllV(_)) || k.ragged_rows().is_some_and(|rows| rows.even < rows.bound))
}

/// Experts of a token: the most that any router chooses.
fn topk(programs: &[Program]) -> f64 {
    let chosen = programs.iter().flat_map(|p| &p.instructions).map(|i| match &i.kernel {
        Kernel::TopK(k) => k.k,
        _ => 0,
    });
    chosen.max().unwrap_or(0).max(1) as f64
}

/// The programs of training steps. Others have as much room for rows, and fewer that come: generation has one text, a micro-batch may have several.
fn of_training(plan: &Plan) -> Vec<&Program> {
    let phases = plan.roles.iter().flat_map(|role| &role.phases).filter(|phase| phase.name == "train");
    let mut called = vec![false; plan.programs.len()];
    phases.flat_map(|phase| &phase.calls).for_each(|call| called[call.program as usize] = true);
    plan.programs.iter().zip(called).filter(|(_, called)| *called).map(|(program, _)| program).collect()
}

/// The bytes that an instruction copies between the memories, if it does: ragged dimensions at their bound.
pub(crate) fn copied(program: &Program, instruction: &Instruction) -> Option<f64> {
    let operands = instruction.kernel.operands();
    let buffer = |o: &forebay_plan::Operand| &program.buffers[o.buffer as usize];
    let of_host = operands.iter().map(buffer).filter(|b| program.slots[b.slot as usize].space == Space::Host);
    let bytes: u64 = of_host.map(forebay_plan::Buffer::bytes).sum();
    (bytes > 0).then_some(bytes as f64)
}

/// An exchange as a collective, and its bytes, where ranks have pieces of so many bytes.
pub(crate) fn collective(kind: ExchangeKind, piece: f64, ranks: f64) -> (Collective, f64) {
    match kind {
        ExchangeKind::AllGather => (Collective::AllGather, piece * ranks),
        ExchangeKind::ReduceScatter => (Collective::ReduceScatter, piece * ranks),
        ExchangeKind::AllReduce => (Collective::AllReduce, piece),
        ExchangeKind::AllToAll => (Collective::AllToAll, piece * ranks),
        ExchangeKind::Shift => (Collective::Shift, piece),
    }
}

/// What work on a type is priced as, where narrow types are priced as `narrow`.
fn precision_of(dtype: DType, narrow: Precision) -> Precision {
    if matches!(dtype, DType::F32 | DType::F64) { Precision::F32 } else { narrow }
}
