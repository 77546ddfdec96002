//! Pulls a graph out of a larger one: what some outputs need, with some values given from outside.

use forebay_ir::{Graph, InputRole, Op, Output, ValueId};

/// Which of the larger graph's inputs the smaller one declares.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Needs {
    /// All but gradients, in order: callers bind them by position.
    AllInputs,
    /// Those that are read.
    UsedInputs,
}

/// Everything a node reads: operands, and the group starts of all ragged axes around.
pub(super) fn reads(graph: &Graph, value: ValueId) -> Vec<ValueId> {
    let node = graph.node(value);
    let mut reads = node.operands.clone();
    for ty in node.operands.iter().map(|&o| graph.ty(o)).chain([&node.ty]) {
        for offsets in ty.axes.iter().filter_map(|&a| graph.offsets_of(a)) {
            if offsets != value && !reads.contains(&offsets) {
                reads.push(offsets);
            }
        }
    }
    reads
}

/// The values that `wanted` depend on, and themselves, in order. Values of `given` are taken without what they depend on.
pub(super) fn needed(graph: &Graph, wanted: &[ValueId], given: &[ValueId]) -> Vec<ValueId> {
    let mut seen = vec![false; graph.nodes.len()];
    let mut stack = wanted.to_vec();
    while let Some(value) = stack.pop() {
        if std::mem::replace(&mut seen[value.index()], true) || given.contains(&value) {
            continue;
        }
        stack.extend(reads(graph, value));
    }
    graph.values().filter(|v| seen[v.index()]).collect()
}

/// `needed` with each value that is `late` moved to where it is read first: what is computed again should not lie around long.
fn ordered(graph: &Graph, needed: &[ValueId], given: &[ValueId], late: &dyn Fn(ValueId) -> bool) -> Vec<ValueId> {
    let mut done = vec![false; graph.nodes.len()];
    let mut order = Vec::with_capacity(needed.len());
    // Late values that nothing has read by the end are outputs.
    for &root in needed.iter().filter(|v| !late(**v)).chain(needed) {
        let mut stack = vec![(root, false)];
        while let Some((value, is_ready)) = stack.pop() {
            if done[value.index()] {
                continue;
            }
            if is_ready {
                done[value.index()] = true;
                order.push(value);
                continue;
            }
            stack.push((value, true));
            if !given.contains(&value) {
                stack.extend(reads(graph, value).into_iter().rev().map(|r| (r, false)));
            }
        }
    }
    order
}

/// The part of `graph` that computes `outputs` from the inputs and from `given`, which become `Saved` inputs. Values that are `late` come only
/// when they are read.
pub(super) fn extract(
    graph: &Graph,
    name: &str,
    outputs: &[Output],
    given: &[ValueId],
    needs: Needs,
    late: &dyn Fn(ValueId) -> bool,
) -> Graph {
    let wanted: Vec<ValueId> = outputs.iter().map(|o| o.value).collect();
    let needed = needed(graph, &wanted, given);
    let mut part = graph.like(name);
    let mut moved: Vec<Option<ValueId>> = vec![None; graph.nodes.len()];
    let declare = |part: &mut Graph, moved: &mut Vec<Option<ValueId>>, value: ValueId, role| {
        moved[value.index()] = Some(part.add_input(&graph.node(value).name, graph.ty(value).clone(), role));
    };

    let is_used = |v: &ValueId| needed.binary_search(v).is_ok();
    let (grads, others): (Vec<_>, Vec<_>) = graph.inputs.iter().partition(|i| i.role == InputRole::Grad);
    for input in others.iter().filter(|i| needs == Needs::AllInputs || is_used(&i.value)) {
        declare(&mut part, &mut moved, input.value, input.role);
    }
    // A ragged tensor comes after the starts of its groups.
    let starts = |v: &ValueId| graph.offsets.iter().any(|(_, o)| o == v);
    for &value in given.iter().filter(|v| starts(v)).chain(given.iter().filter(|v| !starts(v))) {
        if is_used(&value) {
            declare(&mut part, &mut moved, value, InputRole::Saved);
        }
    }
    for input in grads.iter().filter(|i| is_used(&i.value)) {
        declare(&mut part, &mut moved, input.value, input.role);
    }

    for value in ordered(graph, &needed, given, late) {
        let node = graph.node(value);
        if moved[value.index()].is_none() {
            debug_assert_ne!(node.op, Op::Input, "inputs are declared above");
            let operands = node.operands.iter().map(|o| moved[o.index()].expect("operands come first")).collect();
            moved[value.index()] = Some(part.push(node.op.clone(), operands, node.ty.clone(), &node.name));
        }
    }
    for output in outputs {
        let value = moved[output.value.index()].expect("outputs are needed");
        part.add_output(output.name.clone(), value, output.role);
    }
    part.offsets = graph.offsets.iter().filter_map(|&(a, v)| moved[v.index()].map(|v| (a, v))).collect();
    part
}
