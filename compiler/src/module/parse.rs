//! Text → checked model, or a list of graphs when there is no header.

use super::print::scope;
use forebay_dsl::model::{CheckedModel, Const, Init, Layer, Loss, Scope, Segment, Source, Tensor};
use forebay_ir::text::{self, ParseError};
use forebay_ir::{Extent, Graph, InputRole, OutputRole, verify};
use indexmap::IndexMap;

/// What a file of textual IR holds.
#[derive(Debug)]
pub enum Module {
    /// A model with its header.
    Model(Box<CheckedModel>),
    /// Graphs alone.
    Graphs(Vec<Graph>),
}

type Result<T> = std::result::Result<T, ParseError>;

/// Reads a file of textual IR. The graphs are verified, and the header is held against them.
///
/// # Errors
/// All syntax errors of the graphs, or the first error of the header.
pub fn parse(source: &str) -> std::result::Result<Module, Vec<ParseError>> {
    let starts = |l: &str| l.trim_start().starts_with("model ");
    let is_blank = |l: &str| l.trim().is_empty() || l.trim_start().starts_with("//");
    let has_header = source.lines().find(|l| !is_blank(l)).is_some_and(starts);
    if !has_header {
        let graphs = text::parse_module(source)?;
        verified(&graphs)?;
        return Ok(Module::Graphs(graphs));
    }
    let end = source
        .lines()
        .position(|l| l.trim() == "}")
        .ok_or_else(|| vec![at(1, "the model's header has no end: `}` on a line")])?;
    let lines: Vec<&str> = source.lines().collect();
    // Blank lines keep the line numbers of the graphs' errors.
    let rest = "\n".repeat(end + 1) + &lines[end + 1..].join("\n");
    let graphs = text::parse_module(&rest)?;
    verified(&graphs)?;
    let mut header = Header::default();
    for (number, line) in lines[..end].iter().enumerate() {
        header.line(number + 1, line).map_err(|e| vec![e])?;
    }
    header.finish(graphs).map(|m| Module::Model(Box::new(m))).map_err(|e| vec![e])
}

fn verified(graphs: &[Graph]) -> std::result::Result<(), Vec<ParseError>> {
    let problems: Vec<ParseError> = graphs
        .iter()
        .filter_map(|g| verify::verify(g).err().map(|v| (g, v)))
        .flat_map(|(g, v)| v.into_iter().map(|v| at(1, &format!("graph @{}: {v}", g.name))).collect::<Vec<_>>())
        .collect();
    if problems.is_empty() { Ok(()) } else { Err(problems) }
}

fn at(line: usize, message: &str) -> ParseError {
    ParseError { line, column: 1, width: 0, message: message.to_string() }
}

#[derive(Default)]
struct Header {
    name: String,
    batch: u64,
    seq: u64,
    constants: IndexMap<String, Const>,
    inputs: Vec<String>,
    params: Vec<Tensor>,
    states: Vec<Tensor>,
    stats: Vec<Tensor>,
    losses: Vec<Loss>,
    counts: bool,
    segments: Vec<(String, bool)>,
    layers: Vec<(usize, Layer)>,
}

impl Header {
    fn line(&mut self, number: usize, line: &str) -> Result<()> {
        let line = line.trim();
        let (word, rest) = line.split_once(' ').unwrap_or((line, ""));
        let fail = |what: &str| at(number, what);
        match word {
            "" => {}
            _ if word.starts_with("//") => {}
            // Of the file as a whole: see `forms`.
            "form" | "dtype" | "micro_batches" => {}
            "model" => self.name = rest.trim_end_matches('{').trim().to_string(),
            "batch" => self.batch = integer(number, rest)?,
            "seq" => self.seq = integer(number, rest)?,
            "constant" => {
                let (name, value) =
                    rest.split_once(" = ").ok_or_else(|| fail("a constant is `constant name = value`"))?;
                self.constants.insert(name.to_string(), constant(number, value)?);
            }
            "input" => self.inputs.push(rest.to_string()),
            "param" => self.params.push(tensor(number, rest)?),
            "state" => self.states.push(tensor(number, rest)?),
            "stat" => self.stats.push(tensor(number, &format!("{rest} constant(0)"))?),
            "loss" => self.losses.push(loss(number, rest)?),
            "counts" => self.counts = true,
            "segment" => {
                let (name, update) = rest.split_once(' ').unwrap_or((rest, ""));
                if !["", "update"].contains(&update) {
                    return Err(fail("a segment is `segment name` or `segment name update`"));
                }
                self.segments.push((name.to_string(), update == "update"));
            }
            "layer" => self.layers.push((number, layer(number, rest)?)),
            _ => return Err(fail(&format!("`{word}` is no word of a model's header"))),
        }
        Ok(())
    }

    fn finish(self, graphs: Vec<Graph>) -> Result<CheckedModel> {
        let wanted = usize::from(self.counts) + self.segments.iter().map(|(_, u)| 1 + usize::from(*u)).sum::<usize>();
        if graphs.len() != wanted {
            return Err(at(1, &format!("the header announces {wanted} graphs, the file has {}", graphs.len())));
        }
        let mut graphs = graphs.into_iter();
        let counts = self.counts.then(|| graphs.next().expect("counted"));
        let mut segments = vec![];
        for (name, update) in self.segments {
            let forward = graphs.next().expect("counted");
            segments.push(Segment { name, forward, update: update.then(|| graphs.next().expect("counted")) });
        }
        let mut layers = vec![];
        for (number, layer) in self.layers {
            let tensors = (&self.params[..], &self.states[..], &self.stats[..]);
            check_layer(number, layers.len(), &layer, &segments, &layers, tensors)?;
            layers.push(layer);
        }
        let model = CheckedModel {
            name: self.name,
            constants: self.constants,
            batch: self.batch,
            seq: self.seq,
            inputs: self.inputs,
            params: self.params,
            states: self.states,
            stats: self.stats,
            segments,
            layers,
            losses: self.losses,
            counts,
        };
        match model.update_order() {
            Ok(_) => Ok(model),
            Err(_) => Err(at(1, "layers update states that they read from each other")),
        }
    }
}

fn integer<T: std::str::FromStr>(number: usize, text: &str) -> Result<T> {
    text.trim().parse().map_err(|_| at(number, &format!("`{}` is not a number that fits here", text.trim())))
}

fn float(number: usize, text: &str) -> Result<f64> {
    text.trim().parse().map_err(|_| at(number, &format!("`{}` is not a number", text.trim())))
}

fn constant(number: usize, text: &str) -> Result<Const> {
    let quoted = text.strip_prefix('"').and_then(|t| t.strip_suffix('"'));
    Ok(match (text, quoted) {
        (_, Some(string)) => Const::Str(string.to_string()),
        ("true", _) => Const::Bool(true),
        ("false", _) => Const::Bool(false),
        _ => match text.parse::<i64>() {
            Ok(int) => Const::Int(int),
            Err(_) => Const::Float(float(number, text)?),
        },
    })
}

/// `name [a = 8 of label, b = 4] normal(0.02)`
fn tensor(number: usize, text: &str) -> Result<Tensor> {
    let shape = || at(number, "a tensor is `name [axis = size of label, …] initialiser`");
    let (name, rest) = text.split_once(" [").ok_or_else(shape)?;
    let (axes, init) = rest.split_once("] ").ok_or_else(shape)?;
    let mut list = vec![];
    let mut numel = 1u64;
    for axis in axes.split(", ").filter(|a| !a.is_empty()) {
        let (name, size) = axis.split_once(" = ").ok_or_else(shape)?;
        let (size, label) = match size.split_once(" of ") {
            Some((size, label)) => (size, Some(label.to_string())),
            None => (size, None),
        };
        let size: u64 = integer(number, size)?;
        numel =
            numel.checked_mul(size).filter(|n| *n < 1 << 56).ok_or_else(|| at(number, "the tensor is too large"))?;
        list.push((name.to_string(), label, size));
    }
    Ok(Tensor { name: name.to_string(), axes: list, init: initialiser(number, init)? })
}

fn initialiser(number: usize, text: &str) -> Result<Init> {
    let call = text.trim().strip_suffix(')').and_then(|t| t.split_once('('));
    let (name, args) = call.ok_or_else(|| at(number, "an initialiser is `name(numbers)`"))?;
    let args = args.split(", ").map(|a| float(number, a)).collect::<Result<Vec<_>>>()?;
    match (name, args[..].len()) {
        ("constant", 1) => Ok(Init::Constant(args[0])),
        ("normal", 1) => Ok(Init::Normal(args[0])),
        ("truncated_normal", 1) => Ok(Init::TruncatedNormal(args[0])),
        ("uniform", 2) => Ok(Init::Uniform(args[0], args[1])),
        _ => Err(at(number, &format!("there is no initialiser `{text}`"))),
    }
}

fn loss(number: usize, text: &str) -> Result<Loss> {
    let words: Vec<&str> = text.split(' ').collect();
    let [name, weight, of, main @ ..] = &words[..] else {
        return Err(at(number, "a loss is `loss name weight scope`"));
    };
    let all = [Scope::Step, Scope::Micro, Scope::Sequence, Scope::Group, Scope::Global];
    let known = all.into_iter().find(|s| scope(*s) == *of);
    let scope = known.ok_or_else(|| at(number, &format!("there is no scope `{of}`")))?;
    Ok(Loss { name: name.to_string(), weight: float(number, weight)?, scope, main: main == ["main"] })
}

/// `name = segment params 1 2 carries 0.0 …`
fn layer(number: usize, text: &str) -> Result<Layer> {
    let shape = || at(number, "a layer is `layer name = segment params … carries …`");
    let (name, rest) = text.split_once(" = ").ok_or_else(shape)?;
    let mut words = rest.split(' ');
    let segment = integer(number, words.next().unwrap_or(""))?;
    let mut layer = Layer {
        segment,
        name: if name == "_" { String::new() } else { name.to_string() },
        params: vec![],
        states: vec![],
        stats: vec![],
        carries: vec![],
        update_states: vec![],
        update_stats: vec![],
        update_outputs: vec![],
    };
    let mut list = "";
    for word in words {
        if word.starts_with(|c: char| c.is_ascii_alphabetic()) {
            list = word;
            continue;
        }
        match list {
            "params" => layer.params.push(integer(number, word)?),
            "states" => layer.states.push(integer(number, word)?),
            "stats" => layer.stats.push(integer(number, word)?),
            "carries" => {
                let (from, output) = word.split_once('.').ok_or_else(shape)?;
                layer.carries.push(Source { layer: integer(number, from)?, output: integer(number, output)? });
            }
            "update_states" => layer.update_states.push(integer(number, word)?),
            "update_stats" => layer.update_stats.push(integer(number, word)?),
            "update_outputs" => layer.update_outputs.push(integer(number, word)?),
            _ => return Err(shape()),
        }
    }
    Ok(layer)
}

/// Does a layer bind what its segment asks for, with the right sizes?
fn check_layer(
    line: usize,
    number: usize,
    layer: &Layer,
    segments: &[Segment],
    before: &[Layer],
    (params, states, stats): (&[Tensor], &[Tensor], &[Tensor]),
) -> Result<()> {
    let segment = segments.get(layer.segment).ok_or_else(|| at(line, "there is no such segment"))?;
    let forward = &segment.forward;
    let inputs =
        |g: &Graph, role| g.inputs.iter().filter(|i| i.role == role).map(|i| dims(g, i.value)).collect::<Vec<_>>();
    let outputs =
        |g: &Graph, role| g.outputs.iter().filter(|o| o.role == role).map(|o| dims(g, o.value)).collect::<Vec<_>>();
    let bound = |what: &str, wanted: Vec<Vec<u64>>, bound: &[usize], tensors: &[Tensor]| {
        if wanted.len() != bound.len() {
            return Err(at(line, &format!("the segment has {} {what}, the layer binds {}", wanted.len(), bound.len())));
        }
        for (wanted, b) in wanted.iter().zip(bound) {
            let tensor = tensors.get(*b).ok_or_else(|| at(line, &format!("{what}: there is no number {b}")))?;
            let sizes: Vec<u64> = tensor.axes.iter().map(|a| a.2).collect();
            if sizes != *wanted {
                return Err(at(line, &format!("{what}: `{}` is {sizes:?}, the segment wants {wanted:?}", tensor.name)));
            }
        }
        Ok(())
    };
    bound("params", inputs(forward, InputRole::Param), &layer.params, params)?;
    bound("states", inputs(forward, InputRole::State), &layer.states, states)?;
    bound("stats", outputs(forward, OutputRole::Stat), &layer.stats, stats)?;
    if let Some(update) = &segment.update {
        bound("update_states", inputs(update, InputRole::State), &layer.update_states, states)?;
        bound("update_stats", inputs(update, InputRole::Stat), &layer.update_stats, stats)?;
        bound("update_outputs", outputs(update, OutputRole::State), &layer.update_outputs, states)?;
    }
    let carries: Vec<_> = forward.inputs.iter().filter(|i| i.role == InputRole::Carry).collect();
    if carries.len() != layer.carries.len() {
        return Err(at(
            line,
            &format!("the segment has {} carries, the layer binds {}", carries.len(), layer.carries.len()),
        ));
    }
    for (input, source) in carries.iter().zip(&layer.carries) {
        let from = before.get(source.layer).filter(|_| source.layer < number);
        let made = from.and_then(|l| {
            let graph = &segments[l.segment].forward;
            let output = graph.outputs.iter().filter(|o| o.role == OutputRole::Carry).nth(source.output)?;
            Some((dims(graph, output.value), graph.ty(output.value).dtype))
        });
        if made != Some((dims(forward, input.value), forward.ty(input.value).dtype)) {
            let name = &forward.node(input.value).name;
            return Err(at(
                line,
                &format!("carry `{name}`: {}.{} is not a value of its type", source.layer, source.output),
            ));
        }
    }
    Ok(())
}

fn dims(graph: &Graph, value: forebay_ir::ValueId) -> Vec<u64> {
    let axes = &graph.ty(value).axes;
    let fixed = axes.iter().filter(|a| matches!(graph.axis(**a).extent, Extent::Fixed(_)));
    fixed.map(|a| graph.size(*a)).collect()
}
