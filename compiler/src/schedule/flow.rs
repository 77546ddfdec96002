//! Which values carry gradients between layers.

use forebay_dsl::model::{CheckedModel, Source};
use forebay_ir::{Graph, InputRole, OutputRole, ValueId};

/// Names of a segment's carries and tensors, in the order that layers bind them.
#[derive(Clone, Debug)]
pub struct Names {
    /// `Carry` inputs.
    pub carry_in: Vec<String>,
    /// `Carry` outputs.
    pub carry_out: Vec<String>,
    /// `Param` inputs.
    pub params: Vec<String>,
    /// `State` inputs of the forward graph.
    pub states: Vec<String>,
    /// `Stat` outputs of the forward graph.
    pub stats: Vec<String>,
}

impl Names {
    /// The names of a segment's forward graph.
    pub fn new(forward: &Graph) -> Names {
        let inputs = |role| input_names(forward, role);
        Names {
            carry_in: inputs(InputRole::Carry),
            carry_out: output_names(forward, OutputRole::Carry),
            params: inputs(InputRole::Param),
            states: inputs(InputRole::State),
            stats: output_names(forward, OutputRole::Stat),
        }
    }
}

/// Names of a graph's inputs of one role, in order.
pub fn input_names(graph: &Graph, role: InputRole) -> Vec<String> {
    graph.inputs.iter().filter(|i| i.role == role).map(|i| graph.node(i.value).name.clone()).collect()
}

/// Names of a graph's outputs of one role, in order.
pub fn output_names(graph: &Graph, role: OutputRole) -> Vec<String> {
    graph.outputs.iter().filter(|o| o.role == role).map(|o| o.name.clone()).collect()
}

/// For each segment which carries have gradients.
#[derive(Clone, Debug)]
pub struct Flow {
    /// For each segment and carry input: is its gradient wanted?
    pub inputs: Vec<Vec<bool>>,
    /// For each segment and carry output: does it get one?
    pub outputs: Vec<Vec<bool>>,
}

impl Flow {
    /// A carry has a gradient when a parameter lies before it and a loss behind it, along floats. Layers of a segment share the answer.
    pub fn new(model: &CheckedModel) -> Flow {
        let graphs: Vec<&Graph> = model.segments.iter().map(|s| &s.forward).collect();
        let outputs: Vec<Vec<ValueId>> = graphs.iter().map(|g| outputs_of(g, OutputRole::Carry)).collect();
        let inputs: Vec<Vec<ValueId>> = graphs.iter().map(|g| inputs_of(g, InputRole::Carry)).collect();
        let edges = edges(model);

        // Forward: which carries depend on a parameter.
        let mut trained = blank(&outputs);
        let mut trained_in = blank(&inputs);
        until_stable(|| {
            let mut changed = false;
            for (s, graph) in graphs.iter().enumerate() {
                let mut from: Vec<ValueId> = inputs_of(graph, InputRole::Param);
                from.extend(inputs[s].iter().zip(&trained_in[s]).filter(|(_, t)| **t).map(|(v, _)| *v));
                let reached = downstream(graph, &from);
                for (o, value) in outputs[s].iter().enumerate() {
                    changed |= set(&mut trained[s][o], reached[value.index()]);
                }
            }
            for &(source, sink) in &edges {
                changed |= set(&mut trained_in[sink.0][sink.1], trained[source.0][source.1]);
            }
            changed
        });

        // Backward: which of them a loss depends on.
        let mut wanted = blank(&outputs);
        let mut wanted_in = blank(&inputs);
        until_stable(|| {
            let mut changed = false;
            for (s, graph) in graphs.iter().enumerate() {
                let mut to: Vec<ValueId> = outputs_of(graph, OutputRole::Loss);
                to.extend(outputs[s].iter().zip(&wanted[s]).filter(|(_, w)| **w).map(|(v, _)| *v));
                let reached = upstream(graph, &to);
                for (i, value) in inputs[s].iter().enumerate() {
                    changed |= set(&mut wanted_in[s][i], reached[value.index()] && trained_in[s][i]);
                }
            }
            for &(source, sink) in &edges {
                let flows = wanted_in[sink.0][sink.1] && trained[source.0][source.1];
                changed |= set(&mut wanted[source.0][source.1], flows);
            }
            changed
        });
        Flow { inputs: wanted_in, outputs: wanted }
    }
}

/// Segment and output feeding segment and input, without repetition.
fn edges(model: &CheckedModel) -> Vec<((usize, usize), (usize, usize))> {
    let mut edges = vec![];
    for layer in &model.layers {
        for (i, Source { layer: from, output }) in layer.carries.iter().enumerate() {
            edges.push(((model.layers[*from].segment, *output), (layer.segment, i)));
        }
    }
    edges.sort_unstable();
    edges.dedup();
    edges
}

fn blank(values: &[Vec<ValueId>]) -> Vec<Vec<bool>> {
    values.iter().map(|v| vec![false; v.len()]).collect()
}

fn set(flag: &mut bool, value: bool) -> bool {
    let changed = value && !*flag;
    *flag |= value;
    changed
}

fn until_stable(mut round: impl FnMut() -> bool) {
    while round() {}
}

fn inputs_of(graph: &Graph, role: InputRole) -> Vec<ValueId> {
    graph.inputs.iter().filter(|i| i.role == role).map(|i| i.value).collect()
}

fn outputs_of(graph: &Graph, role: OutputRole) -> Vec<ValueId> {
    graph.outputs.iter().filter(|o| o.role == role).map(|o| o.value).collect()
}

/// Floats that depend on these values through floats.
fn downstream(graph: &Graph, from: &[ValueId]) -> Vec<bool> {
    let mut reached = vec![false; graph.nodes.len()];
    from.iter().for_each(|v| reached[v.index()] = graph.ty(*v).dtype.is_float());
    for value in graph.values() {
        let node = graph.node(value);
        let any = node.operands.iter().any(|o| reached[o.index()]);
        let stops = matches!(node.op, forebay_ir::Op::Detach);
        reached[value.index()] |= any && !stops && node.ty.dtype.is_float();
    }
    reached
}

/// Floats that these values depend on through floats.
fn upstream(graph: &Graph, to: &[ValueId]) -> Vec<bool> {
    let mut reached = vec![false; graph.nodes.len()];
    to.iter().for_each(|v| reached[v.index()] = graph.ty(*v).dtype.is_float());
    for value in graph.values().rev() {
        let node = graph.node(value);
        if reached[value.index()] && !matches!(node.op, forebay_ir::Op::Detach) {
            for operand in &node.operands {
                reached[operand.index()] |= graph.ty(*operand).dtype.is_float();
            }
        }
    }
    reached
}
