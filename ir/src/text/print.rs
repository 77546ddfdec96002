//! The printer: one line per node, so that two graphs can be compared by `diff`.

use super::{Place, attributes, names};
use crate::graph::{Graph, InputRole, ValueId};
use crate::op::Op;
use crate::types::{Axis, AxisId, Extent};
use rustc_hash::FxHashMap;
use std::fmt;

/// Axis declarations are wrapped to this many columns.
const WIDTH: usize = 100;

/// The graph as text.
pub fn print(graph: &Graph) -> String {
    print_with_notes(graph, &[])
}

/// Several graphs as text, a blank line between them.
pub fn print_module(graphs: &[Graph]) -> String {
    graphs.iter().map(print).collect::<Vec<_>>().join("\n")
}

/// The graph as text, with notes as comments under the lines that they are about.
pub fn print_with_notes(graph: &Graph, notes: &[(Place, String)]) -> String {
    let mut notes_of: FxHashMap<Place, Vec<&str>> = FxHashMap::default();
    for (place, note) in notes {
        notes_of.entry(*place).or_default().push(note);
    }
    let mut out = String::new();
    for line in lines(graph) {
        out.push_str(&line.text);
        out.push('\n');
        for note in line.places.iter().filter_map(|p| notes_of.get(p)).flatten() {
            // A name inside a note may hold a line break, which must not end the comment.
            let note: String = note.chars().map(|c| if names::is_invisible(c) { ' ' } else { c }).collect();
            out.push_str(&format!("  // ^ {note}\n"));
        }
    }
    out
}

impl fmt::Display for Graph {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&print(self))
    }
}

/// A printed line and what it shows.
struct Line {
    text: String,
    places: Vec<Place>,
}

fn lines(graph: &Graph) -> Vec<Line> {
    let mut lines =
        vec![Line { text: format!("graph @{} {{", names::quoted_if_odd(&graph.name)), places: vec![Place::Graph] }];
    if !graph.mesh.is_empty() {
        let dims = graph.mesh.iter().map(|d| format!("{} = {}", names::quoted_if_odd(&d.name), d.size));
        let text = format!("  mesh {}", dims.collect::<Vec<_>>().join(", "));
        lines.push(Line { text, places: vec![] });
    }
    lines.extend(axis_lines(graph));
    for (i, (ragged, starts)) in graph.offsets.iter().enumerate() {
        let text = format!("  offsets {} = {}", names::axis(graph, *ragged), names::value(graph, *starts));
        lines.push(Line { text, places: vec![Place::Offsets(i)] });
    }
    lines.extend(node_lines(graph));
    for (i, output) in graph.outputs.iter().enumerate() {
        let (name, value) = (names::quoted_if_odd(&output.name), names::value(graph, output.value));
        let text = format!("  return {} {name} = {value}", output.role.name());
        lines.push(Line { text, places: vec![Place::Output(i)] });
    }
    lines.push(Line { text: "}".to_string(), places: vec![] });
    lines
}

fn axis_lines(graph: &Graph) -> Vec<Line> {
    let mut lines: Vec<Line> = Vec::new();
    for (i, axis) in graph.axes.iter().enumerate() {
        let (text, place) = (declaration(graph, axis), Place::Axis(AxisId(i as u32)));
        match lines.last_mut() {
            Some(line) if line.text.chars().count() + 2 + text.chars().count() <= WIDTH => {
                line.text.push_str(", ");
                line.text.push_str(&text);
                line.places.push(place);
            }
            _ => lines.push(Line { text: format!("  axis {text}"), places: vec![place] }),
        }
    }
    lines
}

fn declaration(graph: &Graph, axis: &Axis) -> String {
    let extent = match axis.extent {
        Extent::Fixed(n) => n.to_string(),
        Extent::Ragged { parent, bound, even } if even == bound => {
            format!("ragged({}, {bound})", names::axis(graph, parent))
        }
        Extent::Ragged { parent, bound, even } => format!("ragged({}, {bound}, {even})", names::axis(graph, parent)),
    };
    let label = axis.label.as_deref().map(|l| format!(" {}", names::quoted(l))).unwrap_or_default();
    format!("{} = {extent}{label}", names::quoted_if_odd(&axis.name))
}

fn node_lines(graph: &Graph) -> Vec<Line> {
    let roles: FxHashMap<ValueId, InputRole> = graph.inputs.iter().rev().map(|i| (i.value, i.role)).collect();
    let computes = |v: &ValueId| graph.node(*v).op != Op::Input;
    // The declarations at the top and the work below are set apart by one blank line.
    let first = graph.values().find(computes).filter(|v| v.0 > 0 || !graph.axes.is_empty());
    let mut lines = Vec::new();
    for value in graph.values() {
        let node = graph.node(value);
        if first == Some(value) {
            lines.push(Line { text: String::new(), places: vec![] });
        }
        let (name, ty) = (names::value(graph, value), names::ty(graph, &node.ty));
        let text = match roles.get(&value).filter(|_| node.op == Op::Input) {
            Some(role) => format!("  {} {name} : {ty}", role.name()),
            None => format!("  {name} = {} : {ty}", attributes::print(graph, node)),
        };
        lines.push(Line { text, places: vec![Place::Node(value)] });
    }
    lines
}
