//! Checked model → text.

use forebay_dsl::model::{CheckedModel, Const, Init, Layer, Scope, Tensor};
use forebay_ir::{Graph, text};
use std::fmt::Write;

/// The model as text.
pub fn print(model: &CheckedModel) -> String {
    let mut out = String::new();
    header(&mut out, model).expect("writing to a string does not fail");
    for graph in graphs(model) {
        out.push('\n');
        out.push_str(&text::print(graph));
    }
    out
}

/// The graphs in the order of the header.
fn graphs(model: &CheckedModel) -> impl Iterator<Item = &Graph> {
    let segments = model.segments.iter().flat_map(|s| [Some(&s.forward), s.update.as_ref()]).flatten();
    model.counts.iter().chain(segments)
}

fn header(out: &mut String, model: &CheckedModel) -> std::fmt::Result {
    writeln!(out, "model {} {{", model.name)?;
    writeln!(out, "  batch {}\n  seq {}", model.batch, model.seq)?;
    for (name, value) in &model.constants {
        writeln!(out, "  constant {name} = {}", constant(value))?;
    }
    for input in &model.inputs {
        writeln!(out, "  input {input}")?;
    }
    for param in &model.params {
        writeln!(out, "  param {} {}", tensor(param), init(param.init))?;
    }
    for state in &model.states {
        writeln!(out, "  state {} {}", tensor(state), init(state.init))?;
    }
    for stat in &model.stats {
        writeln!(out, "  stat {}", tensor(stat))?;
    }
    for loss in &model.losses {
        let main = if loss.main { " main" } else { "" };
        writeln!(out, "  loss {} {:?} {}{main}", loss.name, loss.weight, scope(loss.scope))?;
    }
    if model.counts.is_some() {
        writeln!(out, "  counts")?;
    }
    for segment in &model.segments {
        writeln!(out, "  segment {}{}", segment.name, if segment.update.is_some() { " update" } else { "" })?;
    }
    for item in &model.layers {
        writeln!(out, "  {}", layer(item))?;
    }
    writeln!(out, "}}")
}

fn constant(value: &Const) -> String {
    match value {
        Const::Int(n) => n.to_string(),
        Const::Float(x) => format!("{x:?}"),
        Const::Bool(b) => b.to_string(),
        Const::Str(s) => format!("{s:?}"),
    }
}

fn tensor(tensor: &Tensor) -> String {
    let axes = tensor.axes.iter().map(|(name, label, n)| match label {
        Some(label) => format!("{name} = {n} of {label}"),
        None => format!("{name} = {n}"),
    });
    format!("{} [{}]", tensor.name, axes.collect::<Vec<_>>().join(", "))
}

fn init(init: Init) -> String {
    match init {
        Init::Constant(c) => format!("constant({c:?})"),
        Init::Normal(std) => format!("normal({std:?})"),
        Init::TruncatedNormal(std) => format!("truncated_normal({std:?})"),
        Init::Uniform(lo, hi) => format!("uniform({lo:?}, {hi:?})"),
    }
}

/// The word for a scope.
pub(super) fn scope(scope: Scope) -> &'static str {
    match scope {
        Scope::Step => "step",
        Scope::Micro => "micro",
        Scope::Sequence => "sequence",
        Scope::Group => "group",
        Scope::Global => "global",
    }
}

fn layer(layer: &Layer) -> String {
    // The prologue and the like have no name of their own.
    let mut line = format!("layer {} = {}", if layer.name.is_empty() { "_" } else { &layer.name }, layer.segment);
    let mut list = |word: &str, items: Vec<String>| {
        if !items.is_empty() {
            line.push_str(&format!(" {word} {}", items.join(" ")));
        }
    };
    let numbers = |n: &[usize]| n.iter().map(|n| n.to_string()).collect::<Vec<_>>();
    list("params", numbers(&layer.params));
    list("states", numbers(&layer.states));
    list("stats", numbers(&layer.stats));
    list("carries", layer.carries.iter().map(|s| format!("{}.{}", s.layer, s.output)).collect());
    list("update_states", numbers(&layer.update_states));
    list("update_stats", numbers(&layer.update_stats));
    list("update_outputs", numbers(&layer.update_outputs));
    line
}
