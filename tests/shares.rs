//! Nothing is replicated in secret: what a rank keeps, multiplies and sends, by its plan, against closed formulas.
//!
//! The formulas know nothing of graphs, only the models and the degrees: which parameters are cut by `tp`, which belong to experts, which are whole.
//! Sources: tensor and sequence parallelism, Megatron-LM (arXiv 2104.04473, section 2.3; 2205.05198, section 4.2); ZeRO (1910.02054, sections 5.1 and 7);
//! context parallelism, DeepSpeed-Ulysses (2309.14509) and Llama 3 (2407.21783, section 3.3.2); rows of experts, GShard (2006.16668).
//!
//! Rows of experts have a bound in the plan, which is the worst case: all rows of a group of `ep` ranks go to one of them, `ep` times its share.

use crate::common;

use common::{Example, options};
use forebay_compiler::pipeline::{CompileOptions, compile};
use forebay_compiler::rewrite::{self, Selection};
use forebay_compiler::shard::Strategy;
use forebay_ir::DType;
use forebay_plan::{BufferId, ExchangeKind, Instruction, Kernel, Phase, Plan, Program, Role, Tensor, TensorKind};
use std::collections::{BTreeMap, BTreeSet};

/// Rows of a step, all of them micro-batches of their own.
const ROWS: u64 = 4;
const SEQ: u64 = 16;
/// Bytes of an element: everything is f32.
const F32: u64 = 4;

/// `dp × micro` is always [`ROWS`].
const STRATEGIES: [&str; 21] = [
    "micro=4",
    "dp=2,micro=2",
    "dp=4,micro=1,zero=1",
    "tp=2,micro=4",
    "tp=4,micro=4",
    "dp=2,tp=2,micro=2,zero=1",
    "dp=4,ep=2,micro=1,zero=1",
    "tp=2,ep=2,micro=4",
    "tp=2,etp=2,micro=4",
    "dp=2,tp=2,ep=2,etp=2,micro=2",
    "dp=2,tp=2,ep=2,etp=2,etp_gather=after,micro=2",
    "dp=2,tp=2,ep=4,micro=2,zero=1",
    "cp=2,micro=4",
    "cp=2,cp_algo=gather,micro=4",
    "cp=4,cp_algo=ring,micro=4",
    "cp=4,cp_algo=hybrid,tp=2,micro=4",
    "dp=2,cp=2,tp=2,ep=4,micro=2,zero=1",
    "pp=2,tp=2,ep=2,micro=4",
    "dp=4,micro=1,zero=1,hsdp=2",
    "dp=4,ep=2,micro=1,zero=1,hsdp=2",
    "dp=4,tp=2,ep=2,micro=1,zero=1,hsdp=2",
];

/// The degrees of a strategy.
struct Degrees {
    dp: u64,
    tp: u64,
    ep: u64,
    etp: u64,
    cp: u64,
    micro: u64,
    zero: bool,
    /// Ranks of a stage, one after another, that share parameters with ZeRO.
    block: u64,
}

impl Degrees {
    fn new(text: &str) -> Degrees {
        let s = Strategy::parse(text).unwrap();
        let [dp, tp, ep, etp, cp] = [s.dp, s.tp, s.ep, s.etp, s.cp].map(u64::from);
        let block = u64::from(s.hsdp.unwrap_or(s.dp)) * cp * tp;
        Degrees { dp, tp, ep, etp, cp, micro: s.micro.unwrap().into(), zero: s.zero > 0, block }
    }

    /// Ranks of a pipeline stage.
    fn stage(&self) -> u64 {
        self.dp * self.cp * self.tp
    }

    /// Of the ranks that sum a gradient, as many as share masters and moments: those within a block, of whom as many as there are parts have different ones.
    fn shards(&self, (parts, sums): (u64, u64)) -> u64 {
        if self.zero { (self.block / parts).clamp(1, sums) } else { 1 }
    }

    /// (ranks that have different parts of a parameter, ranks over which its gradient is a sum)
    fn of(&self, name: &str) -> (u64, u64) {
        let experts = self.ep * self.etp;
        match class(name) {
            Class::Inner => (self.tp, self.dp * self.cp),
            Class::Expert => (experts, self.stage() / experts),
            // Every rank has positions of its own (sequence parallelism).
            Class::Whole => (1, self.stage()),
        }
    }
}

enum Class {
    /// Heads, hidden widths, the vocabulary.
    Inner,
    /// The routed experts.
    Expert,
    /// Gains, routers, the projections into latents.
    Whole,
}

fn class(name: &str) -> Class {
    let parts: Vec<&str> = name.split('.').collect();
    let (block, own) = (parts.iter().rev().nth(1).copied().unwrap_or(""), parts[parts.len() - 1]);
    match (block, own) {
        (_, "gain" | "router" | "q_down" | "kv_down" | "k_rope") => Class::Whole,
        ("moe" | "swiglu_experts", "gate" | "up" | "down") => Class::Expert,
        _ => Class::Inner,
    }
}

/// The plan of an example at reduced size, every product as a kernel of its own.
fn plan(example: &Example, text: &str) -> Plan {
    plan_with(example, text, rewrite::Options { selection: Selection::Off, ..rewrite::Options::default() })
}

fn plan_with(example: &Example, text: &str, rewrite: rewrite::Options) -> Plan {
    let strategy = Strategy::parse(text).unwrap();
    let micro_batches = strategy.micro.unwrap();
    let overrides = example.reduced_to(ROWS as i64, SEQ as i64);
    let options = CompileOptions { micro_batches, strategy, rewrite, ..options(DType::F32, overrides) };
    compile(&example.models(&options), &options).unwrap_or_else(|e| panic!("{} {text}: {e}", example.name))
}

/// Every strategy with a model that has latents and a dense layer, and one without.
fn each(mut check: impl FnMut(&str, &Plan, &Plan, &Degrees)) {
    for name in ["tiny-moe", "kimi-k2"] {
        let example = Example::named(name);
        let alone = plan(&example, "micro=4");
        for text in STRATEGIES {
            check(&format!("{name} {text}"), &plan(&example, text), &alone, &Degrees::new(text));
        }
    }
}

/// The coordinates of all ranks of a role.
fn ranks(role: &Role) -> Vec<Vec<u32>> {
    role.coordinates.iter().fold(vec![vec![]], |all, &(from, to)| {
        let along = |r: Vec<u32>| (from..to).map(move |c| [r.clone(), vec![c]].concat());
        all.into_iter().flat_map(along).collect()
    })
}

fn train(role: &Role) -> &Phase {
    role.phases.iter().find(|p| p.name == "train").expect("a plan trains")
}

fn of_kind(role: &Role, kind: TensorKind) -> impl Iterator<Item = &Tensor> {
    role.tensors.iter().filter(move |t| t.kind == kind)
}

/// Weights and gradients are cut as often as they can be, and masters and moments are there as often as the strategy says: once in all with ZeRO.
#[test]
fn ranks_keep_their_share_of_every_parameter() {
    each(|what, plan, alone, degrees| {
        let mut seen = BTreeSet::new();
        for role in &plan.roles {
            for tensor in of_kind(role, TensorKind::Gradient) {
                let (parts, _) = degrees.of(&tensor.name);
                assert_eq!(tensor.local_elements() * parts, tensor.elements(), "{what}: {}", tensor.name);
                assert!(seen.insert(tensor.name.clone()), "{what}: {} is on one stage", tensor.name);
            }
            for kind in [TensorKind::Param, TensorKind::FirstMoment, TensorKind::SecondMoment] {
                for tensor in of_kind(role, kind) {
                    let (parts, sums) = degrees.of(&tensor.name);
                    let all = ranks(role);
                    let held: u64 = all.iter().map(|rank| tensor.held(rank)).map(|h| h.to - h.from).sum();
                    let copies = degrees.stage() / parts / degrees.shards((parts, sums));
                    assert_eq!(held, tensor.elements() * copies, "{what}: {} {kind:?}", tensor.name);
                }
            }
        }
        let all: BTreeSet<String> =
            alone.roles.iter().flat_map(|r| of_kind(r, TensorKind::Gradient)).map(|t| t.name.clone()).collect();
        assert_eq!(seen, all, "{what}");
    });
}

/// A flat group: parameters that decay or not, with as many parts, whose gradients as many ranks sum.
struct Flat {
    sums: u64,
    shards: u64,
    elements: u64,
}

/// The layer of a parameter: the embedding is one, and so is what comes behind the last.
fn layer(name: &str) -> &str {
    match name.match_indices('.').nth(1) {
        Some((end, _)) if name.starts_with("layers.") => &name[..end],
        _ if name.starts_with("embed") => "embed",
        _ => "",
    }
}

/// Padding: a tensor starts at a multiple of 32 elements, a group (with ZeRO, of what decays, the part of it in a layer that has a chunk or more for each rank) is whole chunks of 1024 for each
/// rank that sums it.
fn groups(role: &Role, degrees: &Degrees) -> Vec<Flat> {
    let mut layers: BTreeMap<(bool, u64, u64, &str), u64> = BTreeMap::new();
    for tensor in of_kind(role, TensorKind::Param) {
        let (parts, sums) = degrees.of(&tensor.name);
        let decays = tensor.dims.len() >= 2;
        let unit = if degrees.zero && decays { layer(&tensor.name) } else { "" };
        *layers.entry((decays, parts, sums, unit)).or_default() += (tensor.elements() / parts).next_multiple_of(32);
    }
    let mut groups: BTreeMap<(bool, u64, u64, &str), u64> = BTreeMap::new();
    for ((decays, parts, sums, unit), elements) in layers {
        let unit = if elements < 1024 * sums { "" } else { unit };
        *groups.entry((decays, parts, sums, unit)).or_default() += elements;
    }
    let flat = |((_, parts, sums, _), elements): (_, u64)| Flat {
        sums,
        shards: degrees.shards((parts, sums)),
        elements: elements.next_multiple_of(1024 * sums),
    };
    groups.into_iter().map(flat).collect()
}

/// ZeRO-1 (arXiv 1910.02054, section 5.1): gradients Ψ, optimizer state (2 moments, and the masters) of Ψ / n on each of the n ranks that sum them.
#[test]
fn bytes_by_kind_are_the_sums_of_shares() {
    each(|what, plan, _, degrees| {
        for role in &plan.roles {
            let memory = &train(role).memory;
            let (mut weights, mut gradients, mut optimizer) = (0, 0, 0);
            for group in groups(role, degrees) {
                let shards = group.shards;
                let bytes = group.elements * F32;
                // Without shards programs read the masters.
                weights += bytes / shards + if shards > 1 { bytes } else { 0 };
                gradients += bytes;
                optimizer += 2 * bytes / shards;
            }
            assert_eq!(
                (memory.weights, memory.gradients, memory.optimizer),
                (weights, gradients, optimizer),
                "{what} {}",
                role.name
            );
        }
    });
}

/// The kernels that a phase runs, as often as it runs them, with the names of their programs.
fn kernels<'p>(plan: &'p Plan, role: &'p Role) -> impl Iterator<Item = (&'p str, &'p Kernel)> {
    let programs = train(role).calls.iter().map(|call| &plan.programs[call.program as usize]);
    programs.flat_map(|p| p.instructions.iter().map(|i| (p.name.as_str(), &i.kernel)))
}

/// Products of a step on one rank of each stage: (of all tokens, of the rows of experts at their bound).
fn products(plan: &Plan) -> (u64, u64) {
    let (mut dense, mut ragged) = (0, 0);
    for (_, kernel) in plan.roles.iter().flat_map(|role| kernels(plan, role)) {
        let Kernel::Matmul(m) = kernel else { continue };
        let outer: u64 = m.batch.iter().map(|d| d.0).chain(m.k_outer.iter().map(|d| d.0)).product();
        *if m.groups.is_some() { &mut ragged } else { &mut dense } += outer * m.m.0 * m.n.0 * m.k.0;
    }
    (dense, ragged)
}

/// Forward and backward. No product is done twice, attention, router and vocabulary included.
#[test]
fn ranks_multiply_their_share() {
    each(|what, plan, alone, degrees| {
        let ((dense, ragged), (all_dense, all_ragged)) = (products(plan), products(alone));
        assert_eq!(dense * degrees.stage(), all_dense, "{what}");
        assert_eq!(ragged * degrees.stage(), all_ragged * degrees.ep, "{what}: the rows of experts, at their bound");
    });
}

/// Without sequence parallelism ranks of `tp` do alike what is not cut: of the products, that is the router's, forward and for both its gradients.
#[test]
fn without_sequence_parallelism_only_the_router_is_replicated() {
    let example = Example::named("tiny-moe");
    let ((dense, _), (all_dense, _)) =
        (products(&plan(&example, "tp=4,sp=0,micro=4")), products(&plan(&example, "micro=4")));
    let (layers, h, experts) = (2, 64, 8);
    let router = 3 * layers * ROWS * SEQ * h * experts;
    assert_eq!(4 * dense, all_dense + 3 * router);
}

/// Bytes that a rank sends in a kernel: by rings for what all get, and of the rows of experts on even routing.
fn sent(kernel: &Kernel) -> u64 {
    match kernel {
        Kernel::Exchange(k) => {
            let piece = k.piece() * k.dtype.bytes();
            match k.kind() {
                ExchangeKind::AllReduce => 2 * piece * (k.ranks - 1) / k.ranks,
                ExchangeKind::Shift => piece,
                _ => piece * (k.ranks - 1),
            }
        }
        Kernel::AllToAllV(k) => k.tokens * k.row * k.dtype.bytes() * (k.ranks - 1) / k.ranks,
        Kernel::Send(k) => k.elements * k.dtype.bytes(),
        _ => 0,
    }
}

fn sent_by(plan: &Plan, role: &Role, of: impl Fn(&str, &Kernel) -> bool) -> u64 {
    kernels(plan, role).filter(|(name, kernel)| of(name, kernel)).map(|(_, kernel)| sent(kernel)).sum()
}

/// An all-reduce of Ψ elements over n ranks sends 2 (n-1)/n Ψ, whether each keeps all of it or, with ZeRO-1, a part that comes back as parameters
/// (arXiv 1910.02054, section 7.2.1). Where the n ranks are r replicas of h that share, the part is summed over replicas as well (2304.11277, section 3.2.2).
#[test]
fn gradients_are_sent_once_there_and_once_back() {
    each(|what, plan, _, degrees| {
        for role in &plan.roles {
            let have =
                sent_by(plan, role, |name, _| name.starts_with("optimizer.") && !name.starts_with("optimizer.scalars"));
            let all_reduce = |elements: u64, ranks: u64| 2 * (elements / ranks * (ranks - 1)) * F32;
            let want: u64 = groups(role, degrees)
                .iter()
                .map(|g| all_reduce(g.elements, g.shards) + all_reduce(g.elements / g.shards, g.sums / g.shards))
                .sum();
            assert_eq!(have, want, "{what} {}", role.name);
        }
    });
}

/// The layers of the tiny model, forward and over all micro-batches: L layers, h wide, s positions of one row, k experts a token.
#[test]
fn layers_send_what_the_papers_say() {
    let example = Example::named("tiny-moe");
    let constant = |name: &str| match example.reduced().into_iter().find(|(n, _)| n == name) {
        Some((_, forebay_dsl::model::Const::Int(n))) => n as u64,
        _ => panic!("{name} is set"),
    };
    let (layers, h, k) = (constant("layers"), constant("d"), constant("topk"));
    for text in STRATEGIES {
        let (plan, d) = (plan(&example, text), Degrees::new(text));
        let all =
            |of: &dyn Fn(&str, &Kernel) -> bool| plan.roles.iter().map(|role| sent_by(&plan, role, of)).sum::<u64>();
        let forward = |name: &str| name.starts_with("train.layers.forward");
        let plain = all(&|name, kernel| forward(name) && matches!(kernel, Kernel::Exchange(x) if x.dtype.is_float()));
        let rows = all(&|name, kernel| name.starts_with("train.layers.") && matches!(kernel, Kernel::AllToAllV(_)));
        let times = layers * d.micro * F32;
        let positions = SEQ / d.cp;
        // Attention and the shared expert: an all-gather and a reduce-scatter each.
        let tensor = 4 * positions * h * (d.tp - 1) / d.tp;
        // Queries, keys, values and results for heads and back; or keys and values of all positions, at once or one part after another.
        let (rings, heads) = match text.split("cp_algo=").nth(1).and_then(|rest| rest.split(',').next()) {
            Some("hybrid") => (2, d.cp / 2),
            Some(_) => (d.cp, 1),
            None => (1, d.cp),
        };
        let part = positions * (h / d.tp);
        let context = 4 * part * (heads - 1) / heads + 2 * part * (rings - 1);
        // Ranks that share an expert's width all have its rows. With etp = tp these are whole already for the shared expert, and the terms of both are
        // added before they are scattered; only the experts' shares are gathered besides.
        assert!(d.etp == 1 || d.etp == d.tp, "{text}");
        let width = k * (positions / d.tp) * (d.etp - 1);
        let tokens = positions * d.etp / d.tp;
        // Or each sends its part of every row: positions for widths and back, and behind the exchange an all-gather of rows and a reduce-scatter of results.
        let (parts, exchanged) = match text.contains("etp_gather=after") {
            true => (
                d.etp,
                2 * positions / d.tp * h * (d.etp - 1) / d.etp + 2 * d.ep * k * tokens * h / d.etp * (d.etp - 1),
            ),
            false => (1, 0),
        };
        assert_eq!(plain, times * (tensor + context + width + exchanged), "{text}");
        // There and back, forward and backward.
        assert_eq!(rows, 4 * times * k * tokens * (h / parts) * (d.ep - 1) / d.ep, "{text}: rows of experts");
    }
}

/// Round a ring of n ranks a part of the keys and values goes n - 1 times forward, as often again backward, and its gradients n times.
#[test]
fn keys_go_round_once() {
    let example = Example::named("tiny-moe");
    for (text, rings, heads) in [("cp=4,cp_algo=ring,micro=4", 4, 1), ("cp=4,cp_algo=hybrid,tp=2,micro=4", 2, 2)] {
        let plan = plan_with(&example, text, rewrite::Options::default());
        let d = Degrees::new(text);
        let part = 2 * SEQ / d.cp * (64 / d.tp) * F32;
        let calls = 2 * d.micro;
        for (pass, rounds) in [("forward", rings - 1), ("backward", 2 * rings - 1)] {
            let own = |name: &str| name.starts_with(&format!("train.layers.{pass}"));
            let travels = |kernel: &Kernel| matches!(kernel, Kernel::Exchange(x) if x.kind() == ExchangeKind::Shift);
            let have = sent_by(&plan, &plan.roles[0], |name, kernel| own(name) && travels(kernel));
            assert_eq!(have, calls * part * rounds, "{text} {pass}");
            let gathers = |kernel: &Kernel| match kernel {
                Kernel::Exchange(x) => x.kind() != ExchangeKind::Shift && x.ranks != heads && x.ranks != d.tp,
                _ => false,
            };
            let besides = sent_by(&plan, &plan.roles[0], |name, kernel| own(name) && gathers(kernel));
            assert_eq!(besides, 0, "{text} {pass}: nothing is gathered besides");
            let most = plan.programs.iter().filter(|p| own(&p.name)).map(most_shifts).max();
            assert_eq!(most, Some(rings as usize - 1), "{text} {pass}");
        }
    }
}

/// How often the same keys are shifted on. They do not travel ahead of their use, so that memory holds what is attended to and what comes next: before
/// the i-th attention (from 0 on) a program shifts nothing more than i + 1 times.
fn most_shifts(program: &Program) -> usize {
    let mut times: BTreeMap<BufferId, usize> = BTreeMap::new();
    let mut attended = 0;
    for Instruction { name, kernel, .. } in &program.instructions {
        match kernel {
            Kernel::Attention(_) | Kernel::AttentionBackward(_) => attended += 1,
            Kernel::Exchange(x) if x.kind() == ExchangeKind::Shift => {
                let shifted = times.get(&x.x).unwrap_or(&0) + 1;
                assert!(shifted <= attended + 1, "{}: {name} travels ahead of {attended} attentions", program.name);
                times.insert(x.out, shifted);
            }
            _ => {}
        }
    }
    times.into_values().max().unwrap_or(0)
}

/// Between two stages goes one activation forward and one gradient back, the rank's own positions of it.
#[test]
fn stages_send_the_ranks_own_positions() {
    let example = Example::named("tiny-moe");
    let plan = plan(&example, "pp=2,tp=2,ep=2,micro=4");
    for role in &plan.roles {
        let have = sent_by(&plan, role, |_, kernel| matches!(kernel, Kernel::Send(_)));
        assert_eq!(have, 4 * SEQ / 2 * 64 * F32, "{}", role.name);
    }
}
