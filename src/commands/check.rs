//! `forebay check`

use crate::args::ModelArgs;
use crate::failure::Failure;
use crate::model::ModelFile;
use crate::output::{Table, grouped, print, print_json, short};
use forebay_compiler::autodiff::Keep;
use forebay_compiler::pipeline::{CompileOptions, differentiated_segments};
use forebay_compiler::summary::Summary;
use forebay_dsl::model::CheckedModel;
use forebay_ir::{Graph, InputRole, Op, OutputRole, ValueId, cost};
use forebay_runtime::exec::human_bytes;
use indexmap::IndexMap;
use serde::Serialize;
use std::collections::BTreeSet;
use std::path::PathBuf;

/// Check a model's types and shapes, and show what it is made of
///
/// Parameters are counted exactly. FLOPs are those of matrix products (a multiplication and an addition each; causal attention at half), training
/// is three times forward. Activations are what the forward pass of one batch leaves for the backward pass.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  forebay check examples/models/deepseek-v3.moe
  forebay check model.moe --set d=512 layers=8 --batch 16 --json")]
pub struct Args {
    /// The model file, or bench-tiny or bench-small
    #[arg(value_name = "MODEL")]
    model: PathBuf,
    /// Print an object
    #[arg(long)]
    json: bool,
    /// List the parameters with their shapes as well
    #[arg(long)]
    params: bool,
    #[command(flatten)]
    settings: ModelArgs,
}

/// What the instances of a block come to, all layers together.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
struct Block {
    block: String,
    layers: u64,
    params: u64,
    active_params: u64,
    forward_flops_per_token: f64,
    training_flops_per_token: f64,
    activation_bytes: u64,
}

#[derive(Serialize)]
struct Report<'a> {
    model: &'a str,
    batch: u64,
    seq: u64,
    layers: usize,
    params: u64,
    active_params: u64,
    forward_flops_per_token: f64,
    training_flops_per_token: f64,
    activation_bytes: u64,
    blocks: &'a [Block],
    #[serde(skip_serializing_if = "Option::is_none")]
    parameters: Option<Vec<Parameter>>,
}

/// Parameters of one name and shape, of all layers.
#[derive(Serialize)]
struct Parameter {
    name: String,
    layers: u64,
    /// Names of axes and their sizes.
    shape: Vec<(String, u64)>,
}

pub fn check(args: Args) -> Result<(), Failure> {
    let options: CompileOptions = args.settings.options()?;
    let file = ModelFile::read(&args.model)?.with(&args.settings)?;
    let model = file.training(&options)?;
    let blocks = blocks(&model);
    let summary = Summary::new(&model);
    let forward = summary.forward_flops / summary.tokens as f64;
    let report = Report {
        model: &model.name,
        batch: model.batch * u64::from(options.micro_batches),
        seq: model.seq,
        layers: model.layers.iter().filter(|l| !l.name.is_empty()).count(),
        params: summary.params,
        active_params: summary.active_params,
        forward_flops_per_token: forward,
        training_flops_per_token: 3.0 * forward,
        activation_bytes: blocks.iter().map(|b| b.activation_bytes).sum(),
        blocks: &blocks,
        parameters: args.params.then(|| parameters(&model)),
    };
    if args.json {
        return print_json(&report);
    }
    let mut text = table(&report, options.micro_batches);
    if let Some(parameters) = &report.parameters {
        text.push('\n');
        text.push_str(&shapes(parameters));
    }
    print(&text)
}

fn table(report: &Report, micro_batches: u32) -> String {
    let heading = [
        "block",
        "layers",
        "parameters",
        "active per token",
        "forward FLOPs/token",
        "training FLOPs/token",
        "activations",
    ];
    let mut table = Table::new(&heading);
    let cells = |name: &str, layers: String, b: &Block| {
        vec![
            name.to_string(),
            layers,
            grouped(b.params),
            grouped(b.active_params),
            short(b.forward_flops_per_token),
            short(b.training_flops_per_token),
            human_bytes(b.activation_bytes),
        ]
    };
    for block in report.blocks {
        let name = if block.block.is_empty() { "(model)" } else { &block.block };
        table.row(cells(name, block.layers.to_string(), block));
    }
    table.rule();
    let total = Block {
        params: report.params,
        active_params: report.active_params,
        forward_flops_per_token: report.forward_flops_per_token,
        training_flops_per_token: report.training_flops_per_token,
        activation_bytes: report.activation_bytes,
        ..Block::default()
    };
    table.row(cells("total", String::new(), &total));
    let parts = if micro_batches > 1 {
        format!(" in {micro_batches} micro-batches (activations: of one)")
    } else {
        String::new()
    };
    format!("{}: {} × {} tokens{parts}\n\n{}", report.model, report.batch, report.seq, table.render())
}

/// A row for each block of each kind of layer, in the order of execution.
fn blocks(model: &CheckedModel) -> Vec<Block> {
    let mut rows = Rows::new(model);
    let tokens = model.batch * model.seq;
    let differentiated = differentiated_segments(model, Keep::Fewest);
    let segments = model.segments.iter().zip(&differentiated);
    let segments: Vec<SegmentCosts> =
        segments.map(|(s, d)| SegmentCosts::new(&s.forward, &d.forward, &d.backward, tokens)).collect();
    let mut active: IndexMap<usize, f64> = IndexMap::new();
    let mut counted = vec![false; model.params.len()];
    for layer in &model.layers {
        let (label, segment) = (without_numbers(&layer.name), &segments[layer.segment]);
        let mut seen = BTreeSet::new();
        for (param, (inner, of_token)) in layer.params.iter().zip(&segment.params) {
            // A parameter that several layers share is counted once, where it is declared.
            if !std::mem::replace(&mut counted[*param], true) {
                rows.owner(&model.params[*param].name).params += model.params[*param].numel();
            }
            if model.params[*param].name == joined(&layer.name, inner) {
                seen.insert(rows.of(&label, inner).block.clone());
            }
            let most = active.entry(*param).or_default();
            *most = most.max(*of_token);
        }
        for (path, flops) in &segment.flops {
            let block = rows.of(&label, path);
            block.forward_flops_per_token += flops / tokens as f64;
            seen.insert(block.block.clone());
        }
        for (path, bytes) in &segment.activations {
            let block = rows.of(&label, path);
            block.activation_bytes += bytes;
            seen.insert(block.block.clone());
        }
        seen.iter().for_each(|name| rows.blocks[name].layers += 1);
    }
    for (param, of_token) in active {
        rows.owner(&model.params[param].name).active_params += of_token.round() as u64;
    }
    for state in &model.states {
        let block = rows.owner(&state.name);
        block.params += state.numel();
        block.active_params += state.numel();
    }
    let mut rows: Vec<Block> = rows.blocks.into_values().collect();
    rows.iter_mut().for_each(|r| r.training_flops_per_token = 3.0 * r.forward_flops_per_token);
    rows
}

/// Blocks by kind of layer and name.
struct Rows {
    /// For each kind of layer the path that all of its tensors begin with: `layer` when there are `layers.3.layer.attention.wq` and the like only.
    wrappers: IndexMap<String, String>,
    blocks: IndexMap<String, Block>,
}

impl Rows {
    fn new(model: &CheckedModel) -> Rows {
        let mut wrappers: IndexMap<String, String> = IndexMap::new();
        for tensor in model.params.iter().chain(&model.states) {
            let (prefix, inner) = split_instance(&tensor.name);
            let folder = inner.rsplit_once('.').map_or("", |(folder, _)| folder);
            let label = without_numbers(prefix);
            match wrappers.get_mut(&label) {
                Some(wrapper) => *wrapper = common(wrapper, folder),
                // What is not in a repeat is named as it is.
                None => drop(
                    wrappers.insert(label.clone(), if label.is_empty() { String::new() } else { folder.to_string() }),
                ),
            }
        }
        Rows { wrappers, blocks: IndexMap::new() }
    }

    /// The block that a path within a kind of layer leads to.
    fn of(&mut self, label: &str, path: &str) -> &mut Block {
        let wrapper = self.wrappers.get(label).map_or("", String::as_str);
        let rest =
            path.strip_prefix(wrapper).filter(|rest| rest.is_empty() || wrapper.is_empty() || rest.starts_with('.'));
        let name = match rest {
            Some("") => label.to_string(),
            Some(rest) => joined(label, &joined(wrapper, first(rest.trim_start_matches('.')))),
            None => joined(label, first(path)),
        };
        self.blocks.entry(name.clone()).or_insert_with(|| Block { block: name, ..Block::default() })
    }

    /// The block of a tensor by its instance name: `layers.3.attention.wq` is of `layers.attention`.
    fn owner(&mut self, tensor: &str) -> &mut Block {
        let (prefix, inner) = split_instance(tensor);
        self.of(&without_numbers(prefix), inner)
    }
}

/// What two paths begin with alike.
fn common(a: &str, b: &str) -> String {
    let parts = a.split('.').zip(b.split('.')).take_while(|(a, b)| a == b);
    parts.map(|(a, _)| a).collect::<Vec<_>>().join(".")
}

/// What a layer of a segment costs, by path within it.
struct SegmentCosts {
    /// For each parameter its path within the layer, and how many of its elements a token meets.
    params: Vec<(String, f64)>,
    flops: IndexMap<String, f64>,
    activations: IndexMap<String, u64>,
}

impl SegmentCosts {
    fn new(graph: &Graph, forward: &Graph, backward: &Graph, tokens: u64) -> SegmentCosts {
        let active = cost::active_parameters(graph, tokens).into_iter();
        let params = active.map(|(v, n)| (graph.node(v).name.clone(), n)).collect();
        let mut flops = IndexMap::new();
        for (value, n) in cost::model_flops_by_node(graph) {
            *flops.entry(path_of(graph, value)).or_default() += n;
        }
        let mut activations = IndexMap::new();
        for output in forward.outputs.iter().filter(|o| o.role == OutputRole::Saved) {
            *activations.entry(path_of(forward, output.value)).or_default() += forward.bytes(output.value);
        }
        // What came from earlier layers and is read again.
        for input in backward.inputs.iter().filter(|i| i.role == InputRole::Carry) {
            *activations.entry(String::new()).or_default() += backward.bytes(input.value);
        }
        SegmentCosts { params, flops, activations }
    }
}

/// Where a value belongs: the block that names it, or the parameter that it is a product with.
fn path_of(graph: &Graph, value: ValueId) -> String {
    if let Some((folder, _)) = graph.node(value).name.rsplit_once('.') {
        return folder.to_string();
    }
    let mut params = graph.node(value).operands.iter().filter_map(|o| parameter(graph, *o));
    params.next().unwrap_or("").to_string()
}

/// The parameter that a value is a view or a conversion of.
fn parameter(graph: &Graph, value: ValueId) -> Option<&str> {
    let node = graph.node(value);
    match node.op {
        Op::Input => {
            let input = graph.inputs.iter().find(|i| i.value == value)?;
            (input.role == InputRole::Param).then_some(node.name.as_str())
        }
        Op::Cast(_) | Op::Rename { .. } | Op::Split { .. } | Op::Merge { .. } | Op::Reorder | Op::Slice { .. } => {
            parameter(graph, node.operands[0])
        }
        _ => None,
    }
}

fn first(path: &str) -> &str {
    path.split('.').next().unwrap_or(path)
}

fn joined(prefix: &str, name: &str) -> String {
    match (prefix, name) {
        ("", "") => String::new(),
        ("", name) => name.into(),
        (prefix, "") => prefix.into(),
        (prefix, name) => format!("{prefix}.{name}"),
    }
}

fn without_numbers(path: &str) -> String {
    path.split('.').filter(|part| part.parse::<u64>().is_err()).collect::<Vec<_>>().join(".")
}

/// `layers.3.attention.wq` → (`layers.3`, `attention.wq`)
fn split_instance(name: &str) -> (&str, &str) {
    let mut parts = name.match_indices('.');
    if let (Some((a, _)), Some((b, _))) = (parts.next(), parts.next())
        && name[a + 1..b].parse::<u64>().is_ok()
    {
        return (&name[..b], &name[b + 1..]);
    }
    ("", name)
}

/// Parameters and states with their shapes, layers of one kind together.
fn parameters(model: &CheckedModel) -> Vec<Parameter> {
    let mut counts: IndexMap<(String, Vec<(String, u64)>), u64> = IndexMap::new();
    for tensor in model.params.iter().chain(&model.states) {
        let (prefix, inner) = split_instance(&tensor.name);
        let shape = tensor.axes.iter().map(|(name, _, n)| (name.clone(), *n)).collect();
        *counts.entry((joined(&without_numbers(prefix), inner), shape)).or_default() += 1;
    }
    counts.into_iter().map(|((name, shape), layers)| Parameter { name, layers, shape }).collect()
}

fn shapes(parameters: &[Parameter]) -> String {
    let mut table = Table::new(&["parameter", "layers", "shape"]);
    for Parameter { name, layers, shape } in parameters {
        let axes: Vec<String> = shape.iter().map(|(name, n)| format!("{name}: {n}")).collect();
        table.row(vec![name.clone(), layers.to_string(), format!("[{}]", axes.join(", "))]);
    }
    table.render()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names() {
        assert_eq!(split_instance("layers.3.attention.wq"), ("layers.3", "attention.wq"));
        assert_eq!(split_instance("embed"), ("", "embed"));
        assert_eq!(split_instance("norm.gain"), ("", "norm.gain"));
        assert_eq!(without_numbers("layers.3"), "layers");
        assert_eq!(joined("layers", "attention"), "layers.attention");
        assert_eq!(joined("layers", ""), "layers");
        assert_eq!(common("layer.attention", "layer.moe.shared"), "layer");
        assert_eq!(common("attention", ""), "");
    }
}
