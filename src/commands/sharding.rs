//! `forebay explain --sharding`: how a strategy lays a model out on ranks, and what they send each other.

use crate::failure::Failure;
use crate::output::{Table, counted, grouped, print, print_json, short};
use forebay_compiler::overlap::exchange::decomposed;
use forebay_compiler::pipeline::{CompileOptions, name_rings};
use forebay_compiler::schedule::{Layout as Memory, Stage, Turn, Way, Work, orders, stages};
use forebay_compiler::shard::{Layout, Note, ParamShard, ShardedModel, shard_model, unbalanced};
use forebay_dsl::model::{CheckedModel, Source, Tensor};
use forebay_ir::{Graph, InputRole, OutputRole, ValueId};
use forebay_pipeline::Placement;
use serde::Serialize;

/// What is printed.
#[derive(Debug, Serialize)]
struct Sharding {
    model: String,
    strategy: String,
    ranks: u64,
    mesh: Vec<Dim>,
    segments: Vec<Segment>,
    /// Empty when only one segment was asked for.
    stages: Vec<StageTotals>,
}

#[derive(Debug, Serialize)]
struct Dim {
    name: String,
    size: u32,
}

#[derive(Debug, Serialize)]
struct Segment {
    segment: String,
    /// How many layers run it.
    layers: usize,
    parameters: Vec<Parameter>,
    carries: Vec<Carry>,
    collectives: Vec<Collective>,
    /// What is not as the strategy says, and why.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    remarks: Vec<String>,
}

#[derive(Debug, Serialize)]
struct Parameter {
    name: String,
    /// (name, size), outermost first.
    axes: Vec<(String, u64)>,
    /// `heads/tp`, or `whole`.
    lies: String,
    /// The mesh dimensions over whose ranks its gradient is summed: `dp × tp`, empty for none.
    gradient_over: String,
    elements: u64,
    /// Of the weights in the compute type.
    bytes_on_a_rank: u64,
}

/// A value between segments.
#[derive(Debug, Serialize)]
struct Carry {
    name: String,
    /// `in` or `out`.
    way: &'static str,
    axes: Vec<(String, u64)>,
    lies: String,
    bytes_on_a_rank: u64,
}

#[derive(Debug, Serialize)]
struct Collective {
    collective: &'static str,
    over: String,
    ranks: u64,
    value: String,
    wanted_by: String,
    before: String,
    after: String,
    /// That a rank sends, forward, a micro-batch, in one layer.
    bytes: u64,
}

#[derive(Debug, Serialize)]
struct StageTotals {
    stage: u32,
    /// Micro-batches that `micro_batch` is of: two where they come from both ends of the pipeline, one each way.
    micro_batches: u64,
    /// Forward, over all layers of the stage.
    micro_batch: Vec<Traffic>,
    /// Once a step: gradients, and with ZeRO parameters.
    step: Vec<Traffic>,
    /// Bytes on a rank, padding included.
    weights: u64,
    gradients: u64,
    optimizer: u64,
}

/// What a rank sends.
#[derive(Debug, Serialize)]
struct Traffic {
    collective: &'static str,
    over: String,
    times: u64,
    bytes: u64,
}

/// Prints how a model is shared by the ranks of the strategy; of one segment, when it is named.
pub fn explain(
    model: &CheckedModel,
    options: &CompileOptions,
    block: Option<&str>,
    as_json: bool,
) -> Result<(), Failure> {
    // In a step nobody asks for outputs such as logits.
    let mut model = model.clone();
    for segment in &mut model.segments {
        segment.forward.outputs.retain(|o| o.role != OutputRole::Output);
    }
    let model = &model;
    let refused = |error| Failure::Input(format!("`{}` with --strategy {}: {error}", model.name, options.strategy));
    let sharded = shard_model(model, &options.strategy).map_err(refused)?;
    let mut sharded = decomposed(sharded, options.strategy.dispatch).map_err(refused)?;
    name_rings(&mut sharded, &options.rewrite);
    let of = Explainer { whole: model, sharded: &sharded, options };
    let mut segments: Vec<Segment> = (0..model.segments.len()).map(|s| of.segment(s)).collect();
    let mut all_stages = vec![];
    match block {
        None => {
            let stages = stages(model, &options.strategy).map_err(refused)?;
            let orders = orders(&options.strategy, options.micro_batches).map_err(refused)?;
            all_stages.extend(stages.iter().zip(&orders).map(|(stage, turns)| of.totals(stage, turns)));
        }
        Some(block) => {
            let names: Vec<String> = segments.iter().map(|s| s.segment.clone()).collect();
            segments.retain(|s| s.segment == block);
            if segments.is_empty() {
                return Err(Failure::Input(format!(
                    "no segment of the name `{block}`; the segments are {}",
                    names.join(", ")
                )));
            }
        }
    }
    let mesh = sharded.mesh.dims.iter().map(|d| Dim { name: d.name.clone(), size: d.size });
    let sharding = Sharding {
        model: model.name.clone(),
        strategy: options.strategy.to_string(),
        ranks: options.strategy.ranks(),
        mesh: mesh.collect(),
        segments,
        stages: all_stages,
    };
    if as_json { print_json(&sharding) } else { print(&sharding.to_text()) }
}

struct Explainer<'a> {
    whole: &'a CheckedModel,
    sharded: &'a ShardedModel,
    options: &'a CompileOptions,
}

impl Explainer<'_> {
    fn segment(&self, s: usize) -> Segment {
        let segment = &self.whole.segments[s];
        let mut layers = self.whole.layers.iter().filter(|l| l.segment == s);
        let first = layers.next();
        let inputs = segment.forward.inputs.iter().filter(|i| i.role == InputRole::Param);
        let params = inputs.zip(first.iter().flat_map(|l| &l.params));
        let parameter = |(input, &p): (&forebay_ir::Input, &usize)| {
            let name = &segment.forward.node(input.value).name;
            self.parameter(name, &self.whole.params[p], &self.sharded.params[p])
        };
        let (inputs, outputs) = &self.sharded.layouts[s];
        let carry = |way, name: &str, value, layout| self.carry(&segment.forward, way, name, value, layout);
        let ins = segment.forward.inputs.iter().zip(inputs).filter(|(i, _)| i.role == InputRole::Carry);
        let ins = ins.map(|(i, layout)| carry("in", &segment.forward.node(i.value).name, i.value, layout));
        let outs = segment.forward.outputs.iter().zip(outputs).filter(|(o, _)| o.role == OutputRole::Carry);
        let outs = outs.map(|(o, layout)| carry("out", &o.name, o.value, layout));
        Segment {
            segment: segment.name.clone(),
            layers: usize::from(first.is_some()) + layers.count(),
            parameters: params.map(parameter).collect(),
            carries: ins.chain(outs).collect(),
            collectives: self.sharded.notes[s].iter().map(|n| self.collective(n)).collect(),
            remarks: self.remarks(s),
        }
    }

    /// Where keys travel in another way than was asked for.
    fn remarks(&self, s: usize) -> Vec<String> {
        let mesh = &self.sharded.mesh;
        let rings: Vec<&Note> = self.sharded.notes[s].iter().filter(|n| n.collective == "ring").collect();
        let mut remarks = vec![];
        let ranks = mesh.ranks(&mesh.ring());
        if let (false, Some((axis, n))) = (rings.is_empty(), unbalanced(&self.whole.segments[s].forward, mesh)) {
            remarks.push(format!(
                "`{axis}` has {n} positions, which do not divide into 2 × {ranks} chunks: parts of it follow on each other, and under a causal mask \
                 ranks with later ones have more to do"
            ));
        }
        if let Some(ring) = rings.iter().find(|note| mesh.ranks(&note.group) > ranks) {
            let heads = mesh.ranks(&mesh.heads()) * u64::from(self.options.strategy.tp);
            remarks.push(format!(
                "heads do not divide over ulysses × tp = {heads}: no ranks share them, and keys travel round all {} ranks of {}",
                mesh.ranks(&ring.group),
                mesh.describe(&ring.group)
            ));
        }
        remarks
    }

    fn parameter(&self, name: &str, param: &Tensor, shard: &ParamShard) -> Parameter {
        let mesh = &self.sharded.mesh;
        let cut = |(axis, dims): &(usize, Vec<u32>)| format!("{}/{}", param.axes[*axis].0, mesh.describe(dims));
        let cuts: Vec<String> = shard.cuts.iter().map(cut).collect();
        Parameter {
            name: name.to_string(),
            axes: param.axes.iter().map(|(name, _, n)| (name.clone(), *n)).collect(),
            lies: if cuts.is_empty() { "whole".to_string() } else { cuts.join(", ") },
            gradient_over: self.gradient_over(shard),
            elements: param.numel(),
            bytes_on_a_rank: param.numel() / mesh.ranks(&shard.dims()) * self.options.compute.bytes(),
        }
    }

    /// The dimensions over which gradients are summed; with parts of the model that are on two stages each, those too.
    fn gradient_over(&self, shard: &ParamShard) -> String {
        let over = self.sharded.mesh.describe(&shard.sums);
        let twice = self.options.strategy.schedule.placement() == Some(Placement::TwoWay);
        match (twice, over.is_empty()) {
            (false, _) => over,
            (true, true) => "two stages".to_string(),
            (true, false) => format!("{over}, two stages"),
        }
    }

    fn carry(&self, graph: &Graph, way: &'static str, name: &str, value: ValueId, layout: &Layout) -> Carry {
        let axes = graph.dims(&graph.ty(value).axes);
        Carry {
            name: name.to_string(),
            way,
            axes: axes.into_iter().map(|(axis, n)| (graph.axis(axis).name.clone(), n)).collect(),
            lies: layout.describe(graph, &self.sharded.mesh),
            bytes_on_a_rank: graph.bytes(value) / self.sharded.mesh.ranks(&layout.dims()),
        }
    }

    fn collective(&self, note: &Note) -> Collective {
        Collective {
            collective: name(note),
            over: self.sharded.mesh.describe(&note.group),
            ranks: self.sharded.mesh.ranks(&note.group),
            value: note.value.clone(),
            wanted_by: note.wanted_by.clone(),
            before: note.layouts.0.clone(),
            after: note.layouts.1.clone(),
            bytes: note.bytes,
        }
    }

    fn totals(&self, stage: &Stage, turns: &[Turn]) -> StageTotals {
        let (mesh, options) = (&self.sharded.mesh, self.options);
        let mut micro_batch = vec![];
        for layer in stage.chunks.iter().flat_map(|c| &self.whole.layers[c.layers.clone()]) {
            for note in &self.sharded.notes[layer.segment] {
                count(&mut micro_batch, name(note), mesh.describe(&note.group), note.bytes);
            }
        }
        for &source in stage.chunks.iter().filter_map(|c| c.sends.as_ref()).flat_map(|link| &link.carries) {
            count(&mut micro_batch, "send", "pp".to_string(), self.carried(source));
        }
        // Each of as many micro-batches takes another way through the stage.
        let ways = if stage.chunks.iter().any(|chunk| chunk.way != Way::Only) { 2 } else { 1 };
        let types = options.types(options.micro_batches);
        let memory = Memory::new(self.sharded, stage, &options.optimizer, &options.strategy, types);
        let mut step = vec![];
        for group in memory.groups.iter().filter(|g| !g.sums.is_empty()) {
            let (shards, over) = match group.shards {
                1 => (mesh.ranks(&group.sums), mesh.describe(&group.sums)),
                shards => (shards, mesh.describe(&group.shared)),
            };
            let others = |bytes: u64| bytes - bytes / shards;
            // Masters that ranks share come back as what programs read; else the sums do.
            let gathered = if group.shards > 1 { types.narrow } else { types.wide };
            for unit in &group.units {
                // What goes layer by layer goes with each micro-batch: gradients once, parameters that are not kept with each pass, of which there are three where backward passes are cut in halves.
                let micro_batches = u64::from(options.micro_batches) / ways;
                let sums = if unit.gradients.is_none() { micro_batches } else { 1 };
                let gathers = match unit.layer.filter(|_| unit.copies.is_none()) {
                    Some(layer) => passes(stage, turns, layer),
                    None => 1,
                };
                count(&mut step, "reduce_scatter", over.clone(), sums * others(unit.elements * group.gradient.bytes()));
                count(&mut step, "all_gather", over.clone(), gathers * others(unit.elements * gathered.bytes()));
                if !group.replicas.is_empty() {
                    // A range's sum over replicas, in parts that are gathered again.
                    let bytes = unit.elements / shards * types.wide.bytes();
                    let bytes = bytes - bytes / mesh.ranks(&group.replicas);
                    let over = mesh.describe(&group.replicas);
                    count(&mut step, "reduce_scatter", over.clone(), bytes);
                    count(&mut step, "all_gather", over, bytes);
                }
            }
        }
        for group in memory.groups.iter().filter(|g| g.holders.len() > 1) {
            // Of more than two stages the first tells the others their sums.
            let others = if group.holders[0] == stage.number { group.holders.len() - 1 } else { 1 };
            for unit in group.units.iter().flat_map(|unit| std::iter::repeat_n(unit, others)) {
                let bytes = unit.elements / group.shards * group.gradient.bytes();
                count(&mut step, "send", "pp".to_string(), bytes);
            }
        }
        // What states follow, such as loads of experts, is summed over both stages too.
        let layers = stage.chunks.iter().flat_map(|c| c.layers.clone()).filter(|l| stage.stages_with(*l).len() > 1);
        for layer in layers.map(|l| &self.whole.layers[l]) {
            let graph = &self.sharded.model.segments[layer.segment].forward;
            let updated = self.whole.segments[layer.segment].update.is_some();
            for stat in graph.outputs.iter().filter(|o| updated && o.role == OutputRole::Stat) {
                count(&mut step, "send", "pp".to_string(), graph.bytes(stat.value));
            }
        }
        StageTotals {
            stage: stage.number,
            micro_batches: ways,
            micro_batch,
            step,
            weights: memory.memory.weights,
            gradients: memory.memory.gradients,
            optimizer: memory.memory.optimizer,
        }
    }

    /// Bytes of a carry on a rank.
    fn carried(&self, source: Source) -> u64 {
        let segment = self.whole.layers[source.layer].segment;
        let graph = &self.sharded.model.segments[segment].forward;
        let mut carries = graph.outputs.iter().filter(|o| o.role == OutputRole::Carry);
        graph.bytes(carries.nth(source.output).expect("a carry of the layer").value)
    }
}

/// How often a step goes through a layer of a stage: forward, backward, and in halves of that.
fn passes(stage: &Stage, turns: &[Turn], layer: usize) -> u64 {
    let has = |work: &Work| match work {
        Work::Forward(_, chunk) | Work::Backward(_, chunk, _) => stage.chunks[*chunk as usize].layers.contains(&layer),
    };
    turns.iter().flat_map(|turn| turn.works()).filter(has).count() as u64
}

/// Both ways to join parts are the same message; they differ in their gradients, which the graph shows (`compile --emit sharded`).
fn name(note: &Note) -> &'static str {
    if note.collective == "unshard" { "all_gather" } else { note.collective }
}

fn count(all: &mut Vec<Traffic>, collective: &'static str, over: String, bytes: u64) {
    match all.iter_mut().find(|t| t.collective == collective && t.over == over) {
        Some(traffic) => {
            traffic.times += 1;
            traffic.bytes += bytes;
        }
        None => all.push(Traffic { collective, over, times: 1, bytes }),
    }
}

impl Sharding {
    fn to_text(&self) -> String {
        let dims: Vec<String> = self.mesh.iter().map(|d| format!("{} = {}", d.name, d.size)).collect();
        let ranks = counted(self.ranks, "rank");
        let mesh = if dims.is_empty() { String::new() } else { format!(", a mesh of {}", dims.join(" × ")) };
        let mut text = format!("{} with {}: {ranks}{mesh}\n", self.model, self.strategy);
        self.segments.iter().for_each(|s| text += &s.to_text());
        self.stages.iter().for_each(|s| text += &s.to_text(self.stages.len() > 1));
        text
    }
}

impl Segment {
    fn to_text(&self) -> String {
        let layers = counted(self.layers as u64, "layer");
        let mut text = format!("\n{}, {layers}\n\n", self.segment);
        let mut tensors = Table::new(&["parameter", "axes", "lies", "gradient over", "elements", "on a rank"]).left(4);
        for p in &self.parameters {
            tensors.row(vec![
                p.name.clone(),
                axes(&p.axes),
                p.lies.clone(),
                if p.gradient_over.is_empty() { "-".to_string() } else { p.gradient_over.clone() },
                grouped(p.elements),
                bytes(p.bytes_on_a_rank),
            ]);
        }
        for c in &self.carries {
            let elements = c.axes.iter().map(|(_, n)| n).product();
            let name = format!("{} {}", c.way, c.name);
            tensors.row(vec![
                name,
                axes(&c.axes),
                c.lies.clone(),
                String::new(),
                grouped(elements),
                bytes(c.bytes_on_a_rank),
            ]);
        }
        text += &tensors.render();
        if self.collectives.is_empty() {
            return text + "\nnothing is sent\n";
        }
        let mut sent = Table::new(&["collective", "over", "value", "wanted by", "lies", "then", "sends"]).left(6);
        for c in &self.collectives {
            sent.row(vec![
                c.collective.to_string(),
                c.over.clone(),
                c.value.clone(),
                c.wanted_by.clone(),
                c.before.clone(),
                c.after.clone(),
                bytes(c.bytes),
            ]);
        }
        sent.rule();
        let total = self.collectives.iter().map(|c| c.bytes).sum();
        sent.row([&["a layer"][..], &[""; 5], &[&bytes(total)]].concat().iter().map(ToString::to_string).collect());
        text = text + "\n" + &sent.render();
        self.remarks.iter().for_each(|remark| text += &format!("note: {remark}\n"));
        text
    }
}

impl StageTotals {
    fn to_text(&self, numbered: bool) -> String {
        let of = if numbered { format!("a rank of stage {}", self.stage) } else { "a rank".to_string() };
        let mut table = Table::new(&[&format!("{of} sends"), "over", "when", "times", "bytes"]).left(3);
        let forward = if self.micro_batches == 1 { "micro-batch, forward" } else { "micro-batch each way, forward" };
        for (when, traffic) in [(forward, &self.micro_batch), ("step", &self.step)] {
            for t in traffic {
                table.row(vec![
                    t.collective.to_string(),
                    t.over.clone(),
                    when.to_string(),
                    grouped(t.times),
                    bytes(t.bytes),
                ]);
            }
        }
        let kept = [("weights", self.weights), ("gradients", self.gradients), ("optimizer", self.optimizer)];
        let kept: Vec<String> = kept.iter().map(|(what, n)| format!("{what} {}", bytes(*n))).collect();
        let sent = if self.micro_batch.is_empty() && self.step.is_empty() {
            format!("{of} sends nothing\n")
        } else {
            table.render()
        };
        format!("\n{sent}\n{of} keeps {}\n", kept.join(", "))
    }
}

fn axes(axes: &[(String, u64)]) -> String {
    let axes: Vec<String> = axes.iter().map(|(name, n)| format!("{name} {n}")).collect();
    format!("[{}]", axes.join(", "))
}

/// `16.4 kB`
fn bytes(n: u64) -> String {
    let n = short(n as f64);
    if n.ends_with(|c: char| c.is_ascii_digit()) { format!("{n} B") } else { format!("{n}B") }
}
