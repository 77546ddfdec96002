//! How names stand in text: bare when plain, else in quotes. And floats, which have one spelling each.

use crate::graph::{Graph, ValueId};
use crate::types::{AxisId, Type};

/// Can a plain name start with this?
pub(super) fn starts_plain(c: char) -> bool {
    c.is_ascii_alphabetic() || c == '_'
}

/// Can a plain name go on with this?
pub(super) fn goes_on_plain(c: char) -> bool {
    c.is_ascii_alphanumeric() || matches!(c, '_' | '.' | '\'' | '#')
}

fn is_plain(name: &str) -> bool {
    name.starts_with(starts_plain) && name.chars().all(goes_on_plain)
}

/// A name, quoted when it is not plain.
pub(super) fn quoted_if_odd(name: &str) -> String {
    if is_plain(name) { name.to_string() } else { quoted(name) }
}

/// A name in quotes. What would break a line or hide text is escaped.
pub(super) fn quoted(name: &str) -> String {
    let mut out = String::from('"');
    for c in name.chars() {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            c if is_invisible(c) => out.extend(c.escape_unicode()),
            c => out.push(c),
        }
    }
    out.push('"');
    out
}

/// Control characters, line separators, and the marks that change the direction of what follows.
pub(super) fn is_invisible(c: char) -> bool {
    c.is_control()
        || matches!(c, '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{feff}')
}

/// `%name`. A number that no value has stands in angle brackets, so that a broken graph can be looked at.
pub(super) fn value(graph: &Graph, value: ValueId) -> String {
    match graph.nodes.get(value.index()) {
        Some(node) => format!("%{}", quoted_if_odd(&node.name)),
        None => format!("%<{}>", value.0),
    }
}

/// The name of a mesh dimension, or its number in angle brackets.
pub(super) fn mesh_dim(graph: &Graph, dim: u32) -> String {
    match graph.mesh.get(dim as usize) {
        Some(dim) => quoted_if_odd(&dim.name),
        None => format!("<{dim}>"),
    }
}

/// The name of an axis, or its number in angle brackets.
pub(super) fn axis(graph: &Graph, axis: AxisId) -> String {
    match graph.axes.get(axis.0 as usize) {
        Some(axis) => quoted_if_odd(&axis.name),
        None => format!("<{}>", axis.0),
    }
}

/// Axes with commas between.
pub(super) fn axes(graph: &Graph, axes: &[AxisId]) -> String {
    axes.iter().map(|&a| axis(graph, a)).collect::<Vec<_>>().join(", ")
}

/// `f32[batch, seq]`, or `f32` for a scalar.
pub(super) fn ty(graph: &Graph, ty: &Type) -> String {
    if ty.axes.is_empty() { ty.dtype.to_string() } else { format!("{}[{}]", ty.dtype, axes(graph, &ty.axes)) }
}

/// The shortest decimal that reads back as the same number; every NaN is `nan`.
pub(super) fn float(value: f64) -> String {
    if value.is_nan() {
        return "nan".to_string();
    }
    let text = format!("{value:?}");
    text.strip_suffix(".0").unwrap_or(&text).to_string()
}
