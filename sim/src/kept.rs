//! What a framework that differentiates op by op keeps otherwise than a plan of ours.
//!
//! What each product reads is kept by plans too where they are made so (`Keep::Inputs`); here is what of it comes and goes with what is made again, and what else is held.

use crate::kind::Kind;
use forebay_plan::{
    AttentionInputs, DType, Direction, ExchangeKind, Instruction, Kernel, Matmul, Plan, Program, Role, ScorePair, View,
};
use rustc_hash::FxHashMap;
use std::collections::{BTreeMap, BTreeSet};

const PARAMETER: &str = "param.";
const GRADIENT: &str = "grad.param.";
const FRAME: &str = "frame";
const SAVED: &str = "saved";

/// Bytes that a forward program saves, by the kind of work that makes them: of norms and activations, what products read.
pub fn saved_by_kind(program: &Program) -> Vec<(Kind, f64)> {
    let read = read_by_products(program);
    let mut makers: BTreeMap<u32, Kind> = BTreeMap::new();
    for instruction in &program.instructions {
        let kind = match &instruction.kernel {
            Kernel::Attention(_) | Kernel::LinearAttention(_) => Kind::Attention,
            Kernel::Matmul(k) if k.groups.is_some() => Kind::ExpertProducts,
            Kernel::AllToAllV(_) => Kind::Ep,
            // What is added, turned or split after a product is made again with it.
            _ => Kind::Products,
        };
        let is_formula = match &instruction.kernel {
            Kernel::Region(_) => true,
            Kernel::Matmul(k) => k.epilogue.is_some(),
            _ => false,
        };
        for operand in instruction.kernel.operands() {
            if operand.usage.writes() && named(program, operand.buffer).1 == SAVED {
                let kind = if is_formula && read.contains(&operand.buffer) { Kind::Vector } else { kind };
                makers.entry(operand.buffer).or_insert(kind);
            }
        }
    }
    makers.into_iter().map(|(buffer, kind)| (kind, program.buffers[buffer as usize].bytes() as f64)).collect()
}

/// What products read, as it lies on a rank before it is gathered.
fn read_by_products(program: &Program) -> BTreeSet<u32> {
    let mut pieces: FxHashMap<u32, u32> = FxHashMap::default();
    let mut read = BTreeSet::new();
    for instruction in &program.instructions {
        match &instruction.kernel {
            Kernel::Exchange(k) if k.kind() == ExchangeKind::AllGather => {
                pieces.insert(k.out, k.x);
            }
            Kernel::Matmul(k) => {
                // (A product may be turned over: then its weights come first.)
                read.extend([k.a, k.b].map(|x| pieces.get(&x).copied().unwrap_or(x)));
            }
            _ => {}
        }
    }
    read
}

/// Bytes of experts' rows that come back and are saved, so that the gradients of their weights can be made of them.
pub fn returned(program: &Program) -> f64 {
    let back = program.instructions.iter().filter_map(|i| match &i.kernel {
        Kernel::AllToAllV(k) if k.direction == Direction::Combine => Some(named(program, k.out)),
        _ => None,
    });
    back.filter(|(_, slot)| *slot == SAVED).map(|(bytes, _)| bytes).sum::<u64>() as f64
}

/// Bytes that the products of a forward pass gather from tensor-parallel ranks, and of those the most that one gathers: what a rank had of them itself is not counted.
pub fn gathered(plan: &Plan, program: &Program) -> [f64; 2] {
    let is_tp = |dim: &u32| plan.mesh.get(*dim as usize).is_some_and(|dim| dim.name == "tp");
    let by_each = program.instructions.iter().map(|i| match &i.kernel {
        Kernel::Exchange(k) if k.kind() == ExchangeKind::AllGather && k.group.iter().all(is_tp) => {
            let [(own, slot), (all, _)] = [k.x, k.out].map(|buffer| named(program, buffer));
            if slot.starts_with(PARAMETER) { 0 } else { all.saturating_sub(own) }
        }
        _ => 0,
    });
    let [all, each] = by_each.fold([0, 0], |[all, each], bytes: u64| [all + bytes, each.max(bytes)]);
    [all as f64, each as f64]
}

/// Bytes of one gradient, in the type of the weights, for each shape of a layer's weights and of the head's: Transformer Engine holds them once for all layers, as what automatic differentiation
/// gets where the product itself adds to the gradient in f32 (`get_dummy_wgrad`, 2.3 and later; Megatron-Core's own linear layers use it too). Experts have one shape, which may be that
/// of shared ones.
pub fn stand_ins(plan: &Plan, role: &Role) -> f64 {
    let mut shapes: BTreeMap<(&str, u64), u64> = BTreeMap::new();
    for program in forwards(plan, role) {
        for instruction in &program.instructions {
            let Kernel::Matmul(k) = &instruction.kernel else { continue };
            let (weight, name) = named(program, k.b);
            if k.dtype != DType::F32 && name.starts_with(PARAMETER) {
                let each = weight / k.groups.as_ref().map_or(1, |g| g.count.max(1));
                // Gates and what they gate are one matrix there, as queries, keys and values are: of one shape are those whose names end alike (`moe.up`, `moe.shared.up`), as those of
                // `std` and of tables of runs do.
                shapes.insert((name.rsplit('.').next().unwrap_or(name), each), each);
            }
        }
    }
    shapes.values().sum::<u64>() as f64
}

/// The programs that a role runs forwards.
fn forwards<'a>(plan: &'a Plan, role: &'a Role) -> impl Iterator<Item = &'a Program> {
    programs(plan, role).filter(|p| p.name.ends_with(".forward"))
}

/// The programs of a role's training step.
fn programs<'a>(plan: &'a Plan, role: &'a Role) -> impl Iterator<Item = &'a Program> {
    let calls = role.phases.iter().filter(|p| p.name == "train").flat_map(|p| &p.calls);
    let programs: BTreeSet<u32> = calls.map(|c| c.program).collect();
    programs.into_iter().map(|p| &plan.programs[p as usize])
}

/// Does a role run grouped products of experts?
pub fn has_experts(plan: &Plan, role: &Role) -> bool {
    let is_grouped = |i: &Instruction| matches!(&i.kernel, Kernel::Matmul(k) if k.groups.is_some());
    programs(plan, role).flat_map(|program| &program.instructions).any(is_grouped)
}

/// Bytes of the largest array that a role sends to another stage, which are those of the gradient that a name holds: of a stage's input, which was sent, or on the first stage of its output,
/// which came. 0 where there is one stage.
pub fn message(plan: &Plan, role: &Role) -> f64 {
    let instructions = programs(plan, role).flat_map(|program| &program.instructions);
    let sent = instructions.filter_map(|i| match &i.kernel {
        Kernel::Send(k) => Some(k.elements * k.dtype.bytes()),
        _ => None,
    });
    sent.max().unwrap_or(0) as f64
}

/// Bytes of keys that a forward program's attention reads as if each head had its own: the rotated part of keys of multi-head latent attention is one for all heads (arXiv 2405.04434, section 2.1.3),
/// and is copied to each beside the part that heads have of their own where attention takes one array of keys.
pub fn copied_keys(program: &Program) -> f64 {
    let of_attention = |i: &Instruction| match &i.kernel {
        Kernel::Attention(k) => Some(copies_of_keys(&k.inputs)),
        _ => None,
    };
    program.instructions.iter().filter_map(of_attention).sum::<u64>() as f64
}

fn copies_of_keys(inputs: &AttentionInputs) -> u64 {
    let is_own = |view: &View, dim: usize| view.strides.get(dim).is_some_and(|stride| *stride != 0);
    // The problems that have keys of their own in some pair.
    let own = |dim: usize| inputs.pairs.iter().any(|pair| is_own(&pair.k, dim));
    let copied = |pair: &ScorePair| (0..inputs.batch.len()).any(|dim| own(dim) && !is_own(&pair.k, dim));
    let problems: u64 = inputs.batch.iter().enumerate().filter(|(dim, _)| own(*dim)).map(|(_, n)| n).product();
    let size: u64 = inputs.pairs.iter().filter(|pair| copied(pair)).map(|pair| pair.size).sum();
    problems * inputs.keys * size * inputs.dtype.bytes()
}

/// Bytes that a forward program uses more of its frame where experts' rows stay, as they were sent and as they came, until it ends. (What products of experts read is another array: rows sorted by
/// expert.)
pub fn held_rows(program: &Program) -> f64 {
    let end = program.instructions.len().saturating_sub(1);
    let mut lives = lives(program, &[]);
    let before = most(lives.values(), end);
    let mut came = vec![];
    for (at, instruction) in program.instructions.iter().enumerate() {
        if let Kernel::AllToAllV(k) = &instruction.kernel
            && k.direction == Direction::Dispatch
        {
            lives.entry(k.x).and_modify(|life| life.last = end);
            came.push(Life { first: at, last: end, bytes: named(program, k.out).0 });
        }
    }
    most(lives.values().chain(&came), end) - before
}

fn named(program: &Program, buffer: u32) -> (u64, &str) {
    let buffer = &program.buffers[buffer as usize];
    (buffer.bytes(), program.slots[buffer.slot as usize].name.as_str())
}

/// Bytes that a program uses less of its frame where gradients of weights are added up by their products, without a result of their own.
pub fn without_gradients(program: &Program) -> f64 {
    let results: Vec<u32> = program.instructions.iter().filter_map(|i| gradient(program, &i.kernel)).collect();
    if results.is_empty() {
        return 0.0;
    }
    let end = program.instructions.len().saturating_sub(1);
    most(lives(program, &[]).values(), end) - most(lives(program, &results).values(), end)
}

/// The result of a product that is then added to a parameter's gradient.
fn gradient(program: &Program, kernel: &Kernel) -> Option<u32> {
    let Kernel::Matmul(Matmul { c, .. }) = kernel else { return None };
    let added = kernel.operands().iter().any(|o| o.usage.writes() && named(program, o.buffer).1.starts_with(GRADIENT));
    (added && named(program, *c).1 == FRAME).then_some(*c)
}

/// How long an array of a frame is needed: from one instruction to another.
struct Life {
    first: usize,
    last: usize,
    bytes: u64,
}

/// Arrays of the frame by number, some left out: each lives from the instruction that writes it to the last that reads it.
fn lives(program: &Program, without: &[u32]) -> BTreeMap<u32, Life> {
    let mut lives: BTreeMap<u32, Life> = BTreeMap::new();
    for (at, instruction) in program.instructions.iter().enumerate() {
        for operand in instruction.kernel.operands() {
            let (bytes, slot) = named(program, operand.buffer);
            if slot == FRAME && !without.contains(&operand.buffer) {
                let life = Life { first: at, last: at, bytes };
                lives.entry(operand.buffer).and_modify(|life| life.last = at).or_insert(life);
            }
        }
    }
    lives
}

/// The most bytes that are in use at once, up to the last instruction.
fn most<'a>(lives: impl Iterator<Item = &'a Life>, end: usize) -> f64 {
    let mut change = vec![0i64; end + 2];
    for Life { first, last, bytes } in lives {
        change[*first] += *bytes as i64;
        change[last + 1] -= *bytes as i64;
    }
    let running = change.iter().scan(0, |now, by| {
        *now += by;
        Some(*now)
    });
    running.max().unwrap_or(0) as f64
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_compiler::pipeline::{CompileOptions, Models, compile};
    use forebay_compiler::shard::Strategy;
    use forebay_dsl::model::Const;

    const TINY: &str = include_str!("../../examples/models/bench-tiny.moe");

    /// The plan of a model in bf16, with some sizes of its own.
    fn plan(model: &str, sizes: &[(&str, i64)], strategy: &str) -> Plan {
        let strategy = Strategy::parse(strategy).expect("a strategy");
        let micro_batches = strategy.micro.unwrap_or(1);
        let rows = 8 / u64::from(micro_batches * strategy.dp);
        let options = CompileOptions {
            compute: forebay_ir::DType::BF16,
            overrides: sizes.iter().map(|(name, n)| (name.to_string(), Const::Int(*n))).collect(),
            micro_batches,
            strategy,
            ..CompileOptions::default()
        };
        let check = options.check_options(true, (model == TINY).then_some(rows), micro_batches);
        let train = forebay_dsl::load(model, &check).expect("the model is right").model;
        let models = Models { eval: train.clone(), generate: train.clone(), train };
        compile(&models, &options).expect("a plan")
    }

    /// The most of what a plan's forward programs have of something.
    fn most_of(plan: &Plan, of: impl Fn(&Program) -> f64) -> f64 {
        plan.programs.iter().filter(|p| p.name.ends_with(".forward")).map(of).fold(0.0, f64::max)
    }

    /// Shared experts have the shape of the others here; keys and values have one too, but are one matrix with the queries in systems that hold stand-ins. The router computes in f32.
    #[test]
    fn experts_of_one_shape_share_a_stand_in() {
        let plan = plan(TINY, &[], "dp=1");
        let (attention, experts, head) = (4 * 256 * 256, 3 * 256 * 512, 256 * 256);
        assert_eq!(stand_ins(&plan, &plan.roles[0]), f64::from(2 * (attention + experts + head)));
    }

    /// Each of four heads gets a copy of eight rotated elements a position; keys that heads have of their own, or share in groups, stay as they are.
    #[test]
    fn the_rotated_part_of_latent_keys_is_copied_to_each_head() {
        // Each model says how small it can be.
        let copied = |model: &str| {
            let (_, line) = model.split_once("// reduced: --set ").expect("sizes");
            let sizes = line.lines().next().unwrap_or("").split(' ').filter_map(|set| set.split_once('='));
            let sizes: Vec<(&str, i64)> = sizes.map(|(k, v)| (k, v.parse().expect("a number"))).collect();
            most_of(&plan(model, &sizes, "dp=1"), copied_keys)
        };
        // Two rows of 32 positions.
        let latent = copied(include_str!("../../examples/models/deepseek-v3.moe"));
        assert_eq!(latent, f64::from(2 * 32 * 4 * 8 * 2));
        assert_eq!(copied(include_str!("../../examples/models/qwen3-30b-a3b.moe")), 0.0);
    }

    /// What linear attention gives is attention's: what it writes and what it reads. Two rows of 16 positions and two heads of eight elements, in bf16.
    #[test]
    fn what_is_remembered_is_saved_as_attention() {
        let text = "model M(batch = 2, seq = 16, d = 8, vocab = 8) {
            input tokens: token[batch, seq], labels: token[batch, seq]
            param embed[vocab, d] = normal(0.02), head[d, vocab] = normal(0.02)
            x = embed[tokens, d]
            repeat 2 { x = x + gated_delta_net(rms_norm(x), 2, 2, 8, 8) }
            logits[batch, seq, vocab] = x * head
            loss ce = sum(cross_entropy(logits, labels) over batch, seq) per sum(valid(labels) over batch, seq)
        }";
        let of_attention = |program: &Program| {
            saved_by_kind(program).iter().filter(|(kind, _)| *kind == Kind::Attention).map(|(_, bytes)| bytes).sum()
        };
        assert_eq!(most_of(&plan(text, &[], "dp=1"), of_attention), f64::from(2 * (2 * 16 * 2 * 8 * 2)));
    }

    /// Rows that are sent to experts on other ranks stay, and those that come: of what is not in the frame at its most anyway.
    #[test]
    fn rows_stay_that_go_to_other_ranks() {
        assert_eq!(most_of(&plan(TINY, &[], "dp=2"), held_rows), 0.0);
        let plan = plan(TINY, &[], "dp=2,ep=2,max_tokens_per_rank=2048");
        // Four rows of 256 tokens, each with two experts, 256 wide; as many may come.
        let rows = f64::from(4 * 256 * 2 * 256 * 2);
        let held = most_of(&plan, held_rows);
        assert!(held > rows && held <= 2.0 * rows, "{held} bytes of {rows} either way");
    }

    #[test]
    fn what_goes_to_another_stage_is_a_micro_batch() {
        let message = |strategy: &str| {
            let plan = plan(TINY, &[], strategy);
            plan.roles.iter().map(|role| message(&plan, role)).fold(0.0, f64::max)
        };
        assert_eq!(message("dp=1"), 0.0);
        assert_eq!(message("pp=2,micro=4"), f64::from(2 * 256 * 256 * 2));
    }
}
