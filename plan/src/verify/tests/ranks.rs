//! Rules about several ranks, broken: what is done to the pipeline, and what the verifier says.

use super::*;
use crate::kernel::*;
use crate::schema::*;

type Break = fn(&mut Plan);

/// The kernel of a stage with this name, or the n-th of them.
fn kernel<'p>(plan: &'p mut Plan, stage: usize, name: &str, n: usize) -> &'p mut Kernel {
    let kernels = plan.programs[stage].instructions.iter_mut().map(|i| &mut i.kernel);
    kernels.filter(|k| k.name() == name).nth(n).expect("the pipeline has it")
}

macro_rules! of {
    ($plan:expr, $stage:literal, $name:literal, $n:literal, $kind:ident) => {
        match kernel($plan, $stage, $name, $n) {
            Kernel::$kind(kernel) => kernel,
            other => panic!("a {}", other.name()),
        }
    };
}

fn remove(plan: &mut Plan, stage: usize, name: &str) {
    let program = &mut plan.programs[stage];
    program.instructions.retain(|i| i.kernel.name() != name || i.records.is_some());
}

pub(super) const BROKEN: &[(Rule, &str, Break)] = &[
    (Rule::Group, "no such dimension", |p| of!(p, 0, "exchange", 0, Exchange).group = vec![2]),
    (Rule::Group, "twice", |p| of!(p, 0, "exchange", 2, Exchange).group = vec![1, 1]),
    (Rule::Group, "other ranks", |p| p.mesh[1].size = 3),
    (Rule::Group, "along another dimension", |p| of!(p, 0, "send", 0, Send).dim = 1),
    (Rule::Group, "no such peer", |p| of!(p, 0, "send", 0, Send).peer = 2),
    (Rule::Exchange, "uneven experts", |p| of!(p, 0, "all_to_all_v", 0, AllToAllV).experts = 3),
    (Rule::Sizes, "strides of pieces", |p| of!(p, 0, "exchange", 0, Exchange).x_strides.push(1)),
    (Rule::ViewInside, "pieces of all", |p| of!(p, 0, "exchange", 0, Exchange).x_step = 3),
    (Rule::ViewInside, "rows", |p| of!(p, 0, "all_to_all_v", 0, AllToAllV).bound = 9),
    (Rule::ViewInside, "message", |p| of!(p, 0, "send", 0, Send).elements = 9),
    (Rule::ViewType, "message", |p| of!(p, 0, "send", 0, Send).dtype = DType::I32),
    (Rule::Distinct, "pieces", |p| of!(p, 0, "exchange", 0, Exchange).out_step = 1),
    (Rule::Alias, "exchange in place", |p| of!(p, 0, "exchange", 1, Exchange).out = 1),
    (Rule::GroupStarts, "rows", |p| of!(p, 0, "all_to_all_v", 0, AllToAllV).offsets = 6),
    (Rule::GroupStarts, "rows of pieces", |p| {
        of!(p, 0, "exchange", 2, Exchange).ragged = Some(RaggedLimit { dim: 0, offsets: 3, groups: 3, even: 0 });
    }),
    (Rule::Indexed, "rows of pieces", |p| {
        of!(p, 0, "exchange", 2, Exchange).ragged = Some(RaggedLimit { dim: 1, offsets: 3, groups: 4, even: 0 });
    }),
    (Rule::Coordinates, "coordinate", |p| of!(p, 0, "coordinate", 0, Coordinate).value.base = 1 << 40),
    (Rule::Coordinates, "no such dimension", |p| of!(p, 0, "coordinate", 0, Coordinate).value.terms[0].0 = 2),
    (Rule::Coordinates, "first row", |p| {
        let Kernel::RandomKey { first_row, .. } = kernel(p, 0, "random_key", 0) else { panic!("a key") };
        first_row.terms[0].1 = 3;
    }),
    (Rule::RoleRanks, "two dimensions", |p| {
        let mut last = p.roles[1].clone();
        (p.roles[1].coordinates[1], last.coordinates[1]) = ((0, 1), (1, 2));
        last.name = "stage2".into();
        p.roles.push(last);
    }),
    (Rule::PhaseRoles, "none", |p| p.roles[1].phases.clear()),
    (Rule::TensorUnique, "of several roles", |p| {
        let name = p.roles[0].tensors[0].name.clone();
        p.roles[1].tensors[0].name = name;
        p.roles[1].tensors[0].dtype = DType::I32;
    }),
    (Rule::Lanes, "a group on two streams", |p| {
        p.programs[0].streams.push(StreamKind::IntraNode);
        let found = p.programs[0].instructions.iter_mut().find(|i| i.kernel.name() == "exchange");
        found.expect("the pipeline has it").stream = 1;
    }),
    (Rule::Lanes, "a channel on two streams", |p| {
        let again = p.programs[0].instructions.iter().find(|i| i.kernel.name() == "send").cloned();
        let mut again = again.expect("the pipeline has it");
        p.programs[0].streams.push(StreamKind::InterNode);
        again.stream = 1;
        p.programs[0].instructions.push(again);
    }),
    (Rule::Matched, "elements", |p| of!(p, 0, "send", 0, Send).elements = 7),
    (Rule::Matched, "never received", |p| remove(p, 1, "recv")),
    (Rule::Matched, "other reduction", |p| of!(p, 1, "exchange", 3, Exchange).reduce = Some(ReduceOp::Max)),
    (Rule::Matched, "rows of pieces on one side", |p| {
        of!(p, 1, "exchange", 3, Exchange).ragged = Some(RaggedLimit { dim: 0, offsets: 3, groups: 4, even: 0 });
    }),
    (Rule::Deadlock, "never sent", |p| remove(p, 0, "send")),
    (Rule::Deadlock, "channel", |p| of!(p, 1, "recv", 0, Recv).channel = 7),
    (Rule::Deadlock, "peer", |p| of!(p, 1, "recv", 0, Recv).peer = 1),
    (Rule::Deadlock, "receive before send", |p| {
        let program = &mut p.programs[0];
        let last = program.instructions.iter().position(|i| i.kernel.name() == "recv").expect("it receives");
        let moved = program.instructions.remove(last);
        program.instructions.insert(0, moved);
    }),
    (Rule::Deadlock, "collectives in another order", |p| {
        let kernels = &mut p.programs[1].instructions;
        let last = kernels.len() - 1;
        let (a, b) = (kernels[last].kernel.clone(), kernels[last - 1].kernel.clone());
        (kernels[last].kernel, kernels[last - 1].kernel) = (b, a);
    }),
    (Rule::Deadlock, "over the commit", |p| {
        // Stage 0 sends after the commit, for which all ranks wait.
        let phase = &mut p.roles[1].phases[0];
        phase.commit = 1;
    }),
];

#[test]
fn every_broken_invariant_of_many_ranks_is_found() {
    let (mut messages, mut missed) = (String::new(), String::new());
    for (rule, what, apply) in BROKEN {
        let mut plan = testing::pipeline();
        apply(&mut plan);
        let violations = verify(&plan).err().unwrap_or_default();
        match violations.iter().find(|v| v.rule == *rule) {
            Some(found) => messages += &format!("{rule}, {what}\n    {found}\n"),
            None => missed += &format!("{rule}, {what}: found only\n{}\n", list(&violations)),
        }
    }
    assert!(missed.is_empty(), "{missed}");
    insta::assert_snapshot!(messages);
}
