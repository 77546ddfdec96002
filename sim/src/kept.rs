//! What a framework that differentiates op by op keeps otherwise than a plan of ours.
//!
//! What each product reads is kept by plans too where they are made so (`Keep::Inputs`); here is what of it comes and goes with what is made again, and what else is held.

use crate::kind::Kind;
use forebay_plan::{DType, Direction, ExchangeKind, Kernel, Matmul, Plan, Program, Role};
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
            Kernel::Attention(_) => Kind::Attention,
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

/// Bytes of one gradient, in the type of the weights, for each shape of a layer's weights: Transformer Engine holds them once for all layers, as what automatic differentiation
/// gets where the product itself adds to the gradient in f32 (`get_dummy_wgrad`, 2.3 and later). Experts have one shape.
pub fn stand_ins(plan: &Plan, role: &Role) -> f64 {
    let mut shapes: BTreeMap<(&str, u64), u64> = BTreeMap::new();
    for program in layers(plan, role) {
        for instruction in &program.instructions {
            let Kernel::Matmul(k) = &instruction.kernel else { continue };
            let (weight, name) = named(program, k.b);
            if k.dtype != DType::F32 && name.starts_with(PARAMETER) {
                let each = weight / k.groups.as_ref().map_or(1, |g| g.count.max(1));
                shapes.insert((name, each), each);
            }
        }
    }
    shapes.values().sum::<u64>() as f64
}

/// The programs of layers that a role runs forwards.
fn layers<'a>(plan: &'a Plan, role: &'a Role) -> impl Iterator<Item = &'a Program> {
    let calls = role.phases.iter().filter(|p| p.name == "train").flat_map(|p| &p.calls);
    let programs: BTreeSet<u32> = calls.map(|c| c.program).collect();
    let is_layer = |p: &&Program| p.name.ends_with(".forward") && !p.name.contains("logue.");
    programs.into_iter().map(|p| &plan.programs[p as usize]).filter(is_layer)
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
    frame(program, &[]) - frame(program, &results)
}

/// The result of a product that is then added to a parameter's gradient.
fn gradient(program: &Program, kernel: &Kernel) -> Option<u32> {
    let Kernel::Matmul(Matmul { c, .. }) = kernel else { return None };
    let added = kernel.operands().iter().any(|o| o.usage.writes() && named(program, o.buffer).1.starts_with(GRADIENT));
    (added && named(program, *c).1 == FRAME).then_some(*c)
}

/// The most bytes of the frame that are in use at once, some buffers left out: a buffer lives from the instruction that writes it to the last that reads it.
fn frame(program: &Program, without: &[u32]) -> f64 {
    let mut lives: BTreeMap<u32, (usize, usize)> = BTreeMap::new();
    for (at, instruction) in program.instructions.iter().enumerate() {
        for operand in instruction.kernel.operands() {
            if named(program, operand.buffer).1 == FRAME && !without.contains(&operand.buffer) {
                lives.entry(operand.buffer).and_modify(|life| life.1 = at).or_insert((at, at));
            }
        }
    }
    let mut change = vec![0i64; program.instructions.len() + 1];
    for (buffer, (first, last)) in lives {
        let bytes = program.buffers[buffer as usize].bytes() as i64;
        change[first] += bytes;
        change[last + 1] -= bytes;
    }
    let running = change.iter().scan(0, |now, by| {
        *now += by;
        Some(*now)
    });
    running.max().unwrap_or(0) as f64
}
