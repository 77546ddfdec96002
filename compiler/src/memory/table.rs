//! What a stage saves between forward and backward passes, tensor by tensor.

use super::choose::{Choice, Part, Problem};
use super::price::Price;
use crate::autodiff::Differentiated;
use crate::schedule::{Segments, Span, Usage};
use forebay_ir::{Graph, InputRole, Op, OutputRole, ValueId};
use forebay_plan as plan;

/// The memory of a pipeline stage in a training step.
#[derive(Clone, Debug, PartialEq)]
pub struct StageMemory {
    /// The stage.
    pub stage: u32,
    /// Bytes that outlive a step.
    pub persistent: u64,
    /// Bytes of the arena: all that a device of the stage allocates.
    pub peak: u64,
    /// The same when everything is kept that the strategy does not name for recomputation.
    pub unrestricted: u64,
    /// Maximum live bytes: the least that any placement takes.
    pub live_peak: u64,
    /// For each call the live bytes, persistent ones included.
    pub live: Vec<u64>,
    /// For each call the bytes of saved tensors and of layers' inputs among them.
    pub saved: Vec<u64>,
    /// What is made again takes so many seconds of each step.
    pub seconds: f64,
    /// Copies to the host, of what was chosen and of what the strategy names, take so many seconds of its link in each step, and as many back; so many of them
    /// computation hides.
    pub copies: (f64, f64),
    /// No choice with as few bytes of saved tensors takes so many seconds less, by the same estimates (copies that computation hides count a little).
    pub gap: f64,
    /// Was it proven that none takes less at all?
    pub exact: bool,
    /// The tensors, those of most bytes first.
    pub tensors: Vec<SavedTensor>,
}

/// A tensor that the backward pass reads and the forward pass makes.
#[derive(Clone, Debug, PartialEq)]
pub struct SavedTensor {
    /// The segment of its layers.
    pub segment: String,
    /// Its name.
    pub name: String,
    /// The op that makes it; none for what a layer is given.
    pub op: Option<&'static str>,
    /// Bytes of one.
    pub bytes: u64,
    /// Layers of the stage that have it.
    pub layers: u32,
    /// How many there are at the stage's peak, over layers and micro-batches in flight; or would be.
    pub copies: u32,
    /// The calls that make it and read it last, of the layer where that takes longest.
    pub life: (u32, u32),
    /// Is it kept, on the device or in the host's memory?
    pub kept: bool,
    /// Is it in the host's memory between the passes?
    pub swapped: bool,
    /// Does the strategy say so?
    pub named: bool,
    /// What copying it to the host takes, seconds of each step; none where it is not swapped, or not known.
    pub copy_seconds: Option<f64>,
    /// What making it again from what is kept takes, seconds of each step; none for what cannot be.
    pub seconds: Option<f64>,
    /// The ops that make it again from what is kept, in order.
    pub made_by: Vec<&'static str>,
}

pub(super) fn stage_memory(
    (stage, persistent, unrestricted): (u32, u64, u64),
    (phase, usage, price): (&plan::Phase, &Usage, &dyn Price),
    (problem, segments, choice): (&Problem, &Segments, &Choice),
) -> StageMemory {
    let live: Vec<u64> = usage.live.iter().map(|bytes| persistent + bytes).collect();
    let peak_call = live.iter().enumerate().max_by_key(|(call, live)| (**live, usize::MAX - call)).map_or(0, |p| p.0);
    let (mut tensors, mut again) = (vec![], choice.selection.again);
    let mut links = choice.selection.link.clone();
    let mut change = vec![0i64; live.len() + 1];
    for (s, (part, kept)) in problem.parts().iter().zip(&choice.selection.kept).enumerate() {
        let spans: Vec<Span> = usage.spans.iter().filter(|span| span.segment == s).copied().collect();
        if spans.is_empty() {
            continue;
        }
        let away = &choice.selection.swapped[s];
        let swapped = |v: ValueId| away.contains(&v) || segments.swapped[s].contains(&part.graph.node(v).name);
        // What the strategy names is copied in any case; no choice counts it.
        let link = |v: ValueId| match part.away[v.index()] {
            Some(away) => Some(away.link),
            None => price.copy_seconds(part.graph, v).map(|seconds| seconds * part.windows.len() as f64),
        };
        links[s] += kept.iter().filter(|v| swapped(**v) && !away.contains(v)).filter_map(|v| link(*v)).sum::<f64>();
        let of_segment = tensors_of(
            part,
            kept,
            Away { swapped: &swapped, chosen: &|v| away.contains(&v), link: &link },
            (&spans, peak_call as u32),
        );
        let inputs = carried(&segments.list[s], &spans, peak_call as u32);
        let all: u64 = of_segment.iter().chain(&inputs).filter(|t| t.kept && !t.swapped).map(|t| t.bytes).sum();
        for span in &spans {
            change[span.forward as usize] += all as i64;
            change[span.backward as usize + 1] -= all as i64;
        }
        if let Some(graph) = segments.unnamed.get(s) {
            let runs = spans.len() as f64 * f64::from(usage.halves);
            let (named, seconds) = named(graph, &segments.list[s], (price, runs), (&spans, peak_call as u32));
            again += seconds;
            tensors.extend(named);
        }
        tensors.extend(of_segment.into_iter().chain(inputs));
    }
    let mut now = 0;
    let at = |change: &i64| {
        now += change;
        now as u64
    };
    let saved = change[..live.len()].iter().map(at).collect();
    tensors.sort_by_key(|t| std::cmp::Reverse(t.bytes * u64::from(t.copies)));
    StageMemory {
        stage,
        persistent,
        peak: phase.memory.placed,
        unrestricted,
        live_peak: phase.memory.live_peak,
        live,
        saved,
        seconds: again,
        copies: (links.iter().sum(), links.iter().sum::<f64>() - problem.beyond(&links)),
        gap: (choice.selection.seconds - choice.bound).max(0.0),
        exact: choice.exact,
        tensors,
    }
}

/// What the layers of a segment have alike.
struct Lives {
    layers: u32,
    copies: u32,
    life: (u32, u32),
}

impl Lives {
    fn new(spans: &[Span], peak: u32) -> Lives {
        let mut layers: Vec<usize> = spans.iter().map(|s| s.layer).collect();
        layers.sort_unstable();
        layers.dedup();
        let longest = spans.iter().max_by_key(|s| (s.backward - s.forward, u32::MAX - s.forward));
        Lives {
            layers: layers.len() as u32,
            copies: spans.iter().filter(|s| s.forward <= peak && peak <= s.backward).count() as u32,
            life: longest.map_or((0, 0), |s| (s.forward, s.backward)),
        }
    }

    fn tensor(&self, graph: &Graph, value: ValueId) -> SavedTensor {
        let node = graph.node(value);
        SavedTensor {
            segment: String::new(),
            name: node.name.clone(),
            op: (node.op != Op::Input).then(|| node.op.row().name),
            bytes: graph.bytes(value),
            layers: self.layers,
            copies: self.copies,
            life: self.life,
            kept: true,
            swapped: false,
            named: false,
            copy_seconds: None,
            seconds: None,
            made_by: vec![],
        }
    }
}

/// What is in the host's memory between the passes.
#[derive(Clone, Copy)]
struct Away<'a> {
    /// Is a value there?
    swapped: &'a dyn Fn(ValueId) -> bool,
    /// Was it chosen to be, which what the strategy names was not?
    chosen: &'a dyn Fn(ValueId) -> bool,
    /// Seconds of the link that its copies take one way, where they are known.
    link: &'a dyn Fn(ValueId) -> Option<f64>,
}

/// What is kept or was wanted of a segment.
fn tensors_of(
    part: &Part,
    kept: &[ValueId],
    Away { swapped, chosen, link }: Away,
    (spans, peak): (&[Span], u32),
) -> Vec<SavedTensor> {
    let lives = Lives::new(spans, peak);
    let mut values: Vec<ValueId> = part.wanted.iter().chain(kept).copied().collect();
    values.sort_unstable();
    values.dedup();
    let tensor = |value: ValueId| {
        let others: Vec<ValueId> = kept.iter().copied().filter(|k| *k != value).collect();
        let alone = Part { wanted: vec![value], ..part.clone() };
        let again = alone.made_again(&others);
        let is_input = part.graph.node(value).op == Op::Input;
        SavedTensor {
            segment: segment_name(part.graph),
            kept: kept.contains(&value),
            swapped: kept.contains(&value) && swapped(value),
            named: swapped(value) && !chosen(value),
            copy_seconds: link(value).filter(|_| kept.contains(&value) && swapped(value)),
            seconds: (!is_input).then(|| again.iter().map(|v| part.seconds[v.index()]).sum()),
            made_by: again.iter().map(|v| part.graph.node(*v).op.row().name).collect(),
            ..lives.tensor(part.graph, value)
        }
    };
    values.into_iter().map(tensor).collect()
}

/// What the strategy names to be made again and would be saved otherwise, and the seconds of a step for all of it. `graph`: the forward graph as it would be.
fn named(
    graph: &Graph,
    segment: &Differentiated,
    (price, runs): (&dyn Price, f64),
    (spans, peak): (&[Span], u32),
) -> (Vec<SavedTensor>, f64) {
    let is_saved = |of: &Graph, v: ValueId| of.output(OutputRole::Saved, &graph.node(v).name).is_some();
    let saved = graph.outputs.iter().filter(|o| o.role == OutputRole::Saved).map(|o| o.value);
    let wanted: Vec<ValueId> = saved.filter(|&v| !is_saved(&segment.forward, v)).collect();
    let kept: Vec<ValueId> = graph.values().filter(|&v| is_saved(&segment.forward, v)).collect();
    let seconds =
        graph.values().map(|v| if graph.node(v).op == Op::Input { 0.0 } else { price.seconds(graph, v) * runs });
    let all = Part { graph, wanted, bytes: vec![], seconds: seconds.collect(), away: vec![], windows: vec![] };
    let takes = |again: &[ValueId]| again.iter().map(|v| all.seconds[v.index()]).sum::<f64>();
    let lives = Lives::new(spans, peak);
    let tensor = |value: ValueId| {
        let again = Part { wanted: vec![value], ..all.clone() }.made_again(&kept);
        SavedTensor {
            segment: segment_name(graph),
            kept: false,
            named: true,
            seconds: Some(takes(&again)),
            made_by: again.iter().map(|v| graph.node(*v).op.row().name).collect(),
            ..lives.tensor(graph, value)
        }
    };
    (all.wanted.iter().map(|&v| tensor(v)).collect(), takes(&all.made_again(&kept)))
}

/// What layers of a segment are given by others and read backward as well.
fn carried(segment: &Differentiated, spans: &[Span], peak: u32) -> Vec<SavedTensor> {
    let (graph, lives) = (&segment.forward, Lives::new(spans, peak));
    let read = |v: ValueId| segment.backward.input(InputRole::Carry, &graph.node(v).name).is_some();
    let carries = graph.inputs.iter().filter(|i| i.role == InputRole::Carry && read(i.value));
    carries.map(|i| SavedTensor { segment: segment_name(graph), ..lives.tensor(graph, i.value) }).collect()
}

/// `layers` of `layers.forward`.
fn segment_name(graph: &Graph) -> String {
    graph.name.strip_suffix(".forward").unwrap_or(&graph.name).to_string()
}
