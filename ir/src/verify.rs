//! The verifier: what must hold of every graph, whichever pass it comes from.
//!
//! Of axes:
//! * `axis_names_are_unique`: no two axes have one name.
//! * `ragged_parents_are_fixed`: the parent of a ragged axis is declared before it and is not ragged.
//! * `axis_sizes_fit`: an axis has at most 2^62 elements.
//! * `even_rows_fit_the_bound`: a ragged axis has at most its bound of rows when they are spread evenly.
//!
//! Of each node:
//! * `references_exist`: the axes and values that it names are there.
//! * `operands_come_first`: operands stand before their users.
//! * `value_names_are_unique`: no two nodes have one name.
//! * `type_is_legal`: a type has at most 64 axes, none twice, at most one ragged one, directly after its parent; the value has at most
//!   2^62 bytes with ragged axes at their bound.
//! * `arity_fits`: as many operands as the op takes.
//! * `sums_are_sorted`: sets of summed axes are not empty, sorted, and have no axis twice.
//! * `attributes_fit`: at most 64 axes in attributes (and one more for each operand), and no product or sum of their sizes above 2^62.
//! * `constants_suit_their_type`: constants are scalars; an `i32` constant is a whole number of 32 bits, a `bool` is 0 or 1.
//! * `random_keys_have_four_elements`: the operand of `random` is one axis of four elements.
//! * `types_follow`: the type is what the type rule gives; for ops with a free order in any order of the axes.
//!
//! Of inputs and outputs:
//! * `inputs_are_declared_once`: the declared inputs are exactly the `input` nodes, each once, in their order.
//! * `outputs_exist`: each output is a value of the graph.
//! * `output_names_are_unique`: no two outputs of one role have one name.
//! * `losses_are_scalar_floats`: losses and metrics are scalars of a floating-point type.
//!
//! Of ragged axes:
//! * `group_starts_are_listed_once`: at most one value holds the group starts of an axis, and the axis is ragged.
//! * `group_starts_have_their_type`: group starts are `i32` over one axis, which is one longer than the parent; when they are made
//!   by the op `offsets`, it counts the groups of that parent.
//! * `group_starts_come_first`: an op that has to know where groups end (it sums over a ragged axis, or combines rows with
//!   something that is there once for a group) stands after the group starts. `group` itself does not read them.

use crate::fused::{Fused, FusedKind, scratch};
use crate::graph::{Graph, Node, OutputRole, ValueId};
use crate::infer;
use crate::op::{Arity, Op};
use crate::text::{self, Place};
use crate::types::{AxisId, DType, Extent, Type};
use rustc_hash::{FxHashMap, FxHashSet};
use std::fmt;

/// The largest size of an axis and of a value in bytes: sums of two cannot overflow.
pub const MAX_SIZE: u64 = 1 << 62;

/// The most axes that a type has. Type rules compare axes pairwise.
pub const MAX_RANK: usize = 64;

/// Something that must not be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    /// Where.
    pub place: Place,
    /// The name of the invariant in the list at the top of [`crate::verify`].
    pub invariant: &'static str,
    /// A sentence.
    pub message: String,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({})", self.message, self.invariant)
    }
}

impl std::error::Error for Violation {}

/// Checks all invariants.
///
/// # Errors
/// All violations, but for those that follow from another one at the same node.
pub fn verify(graph: &Graph) -> Result<(), Vec<Violation>> {
    let mut verifier = Verifier { graph, found: Vec::new() };
    axis_sizes_fit(&mut verifier);
    even_rows_fit_the_bound(&mut verifier);
    ragged_parents_are_fixed(&mut verifier);
    // Types cannot be looked at when ragged axes have no parents, nor sizes be added.
    let axes_are_sound = verifier.found.is_empty();
    axis_names_are_unique(&mut verifier);
    value_names_are_unique(&mut verifier);
    let sound = nodes(&mut verifier, axes_are_sound);
    inputs_are_declared_once(&mut verifier);
    outputs_exist(&mut verifier);
    output_names_are_unique(&mut verifier);
    losses_are_scalar_floats(&mut verifier);
    group_starts_are_listed_once(&mut verifier);
    group_starts_have_their_type(&mut verifier, &sound);
    group_starts_come_first(&mut verifier, &sound);
    if verifier.found.is_empty() { Ok(()) } else { Err(verifier.found) }
}

/// The graph with the violations as comments under the guilty lines.
pub fn render(graph: &Graph, violations: &[Violation]) -> String {
    let notes: Vec<_> = violations.iter().map(|v| (v.place, v.to_string())).collect();
    text::print_with_notes(graph, &notes)
}

struct Verifier<'a> {
    graph: &'a Graph,
    found: Vec<Violation>,
}

impl Verifier<'_> {
    fn ensure(&mut self, holds: bool, place: Place, invariant: &'static str, message: impl FnOnce() -> String) {
        if !holds {
            self.found.push(Violation { place, invariant, message: message() });
        }
    }
}

fn axis_names_are_unique(verifier: &mut Verifier<'_>) {
    let mut names = FxHashSet::default();
    for (i, axis) in verifier.graph.axes.iter().enumerate() {
        verifier.ensure(names.insert(&axis.name), Place::Axis(AxisId(i as u32)), "axis_names_are_unique", || {
            format!("a second axis `{}`", axis.name)
        });
    }
}

fn axis_sizes_fit(verifier: &mut Verifier<'_>) {
    for i in 0..verifier.graph.axes.len() as u32 {
        let fits = verifier.graph.size(AxisId(i)) <= MAX_SIZE;
        verifier
            .ensure(fits, Place::Axis(AxisId(i)), "axis_sizes_fit", || "an axis has at most 2^62 elements".to_string());
    }
}

fn even_rows_fit_the_bound(verifier: &mut Verifier<'_>) {
    for (i, axis) in (0..).zip(verifier.graph.axes.iter()) {
        let Extent::Ragged { bound, even, .. } = axis.extent else { continue };
        verifier.ensure(even <= bound, Place::Axis(AxisId(i)), "even_rows_fit_the_bound", || {
            format!("{even} rows are spread evenly, but there is room for {bound}")
        });
    }
}

fn ragged_parents_are_fixed(verifier: &mut Verifier<'_>) {
    for i in 0..verifier.graph.axes.len() as u32 {
        let Some(parent) = verifier.graph.ragged_parent(AxisId(i)) else { continue };
        let holds = parent.0 < i && !verifier.graph.is_ragged(parent);
        verifier.ensure(holds, Place::Axis(AxisId(i)), "ragged_parents_are_fixed", || {
            "the parent of a ragged axis must be declared before it and not be ragged".to_string()
        });
    }
}

fn value_names_are_unique(verifier: &mut Verifier<'_>) {
    let mut names = FxHashSet::default();
    for (i, node) in verifier.graph.nodes.iter().enumerate() {
        let place = Place::Node(ValueId(i as u32));
        verifier.ensure(names.insert(&node.name), place, "value_names_are_unique", || {
            format!("a second value `%{}`", node.name)
        });
    }
}

/// Checks each node up to its first violation. Returns which values have a type that can be looked at.
fn nodes(verifier: &mut Verifier<'_>, axes_are_sound: bool) -> Vec<bool> {
    let graph = verifier.graph;
    let has_sound_type = |node: &Node| {
        axes_are_sound && axes_exist(graph, &node.ty.axes).is_ok() && type_is_legal(graph, &node.ty).is_ok()
    };
    let sound: Vec<bool> = graph.nodes.iter().map(has_sound_type).collect();
    for value in graph.values() {
        let node = graph.node(value);
        let form = || {
            named("references_exist", references_exist(graph, node))?;
            named("operands_come_first", operands_come_first(graph, value))
        };
        let meaning = || {
            named("type_is_legal", type_is_legal(graph, &node.ty))?;
            let is_sound = node.operands.iter().all(|o| sound[o.index()]);
            if is_sound { check_node(graph, node) } else { Ok(()) }
        };
        let result = form().and_then(|()| if axes_are_sound { meaning() } else { Ok(()) });
        if let Err((invariant, message)) = result {
            verifier.found.push(Violation { place: Place::Node(value), invariant, message });
        }
    }
    sound
}

type Named = Result<(), (&'static str, String)>;

fn named(invariant: &'static str, result: Result<(), String>) -> Named {
    result.map_err(|message| (invariant, message))
}

/// The invariants of a node whose references and types are sound.
fn check_node(graph: &Graph, node: &Node) -> Named {
    named("arity_fits", arity_fits(node))?;
    named("sums_are_sorted", sums_are_sorted(node))?;
    named("attributes_fit", attributes_fit(graph, node))?;
    named("constants_suit_their_type", constants_suit_their_type(node))?;
    named("random_keys_have_four_elements", random_keys_have_four_elements(graph, node))?;
    named("types_follow", types_follow(graph, node))
}

/// What the parser asks of a node before it takes it in.
pub(crate) fn node_is_legal(graph: &Graph, node: &Node) -> Result<(), String> {
    check_node(graph, node).map_err(|(_, message)| message)
}

fn ensure(holds: bool, message: impl FnOnce() -> String) -> Result<(), String> {
    if holds { Ok(()) } else { Err(message()) }
}

fn axes_exist(graph: &Graph, axes: &[AxisId]) -> Result<(), String> {
    match axes.iter().find(|a| a.0 as usize >= graph.axes.len()) {
        None => Ok(()),
        Some(axis) => Err(format!("there is no axis number {}", axis.0)),
    }
}

fn references_exist(graph: &Graph, node: &Node) -> Result<(), String> {
    axes_exist(graph, &node.ty.axes)?;
    axes_exist(graph, &attribute_axes(&node.op))?;
    match node.operands.iter().find(|o| o.index() >= graph.nodes.len()) {
        None => Ok(()),
        Some(operand) => Err(format!("there is no value number {}", operand.0)),
    }
}

fn operands_come_first(graph: &Graph, value: ValueId) -> Result<(), String> {
    match graph.node(value).operands.iter().find(|o| **o >= value) {
        None => Ok(()),
        Some(operand) => Err(format!("operand `%{}` does not stand above", graph.node(*operand).name)),
    }
}

/// The part of [`types_follow`] that needs no operands: for declared types and before any type rule is asked.
pub(crate) fn type_is_legal(graph: &Graph, ty: &Type) -> Result<(), String> {
    ensure(ty.axes.len() <= MAX_RANK, || format!("a type has at most {MAX_RANK} axes, not {}", ty.axes.len()))?;
    for (i, &axis) in ty.axes.iter().enumerate() {
        ensure(!ty.axes[..i].contains(&axis), || format!("axis `{}` twice", graph.axis(axis).name))?;
        let Some(parent) = graph.ragged_parent(axis) else { continue };
        ensure(i > 0 && ty.axes[i - 1] == parent, || {
            let (axis, parent) = (&graph.axis(axis).name, &graph.axis(parent).name);
            format!("ragged axis `{axis}` must stand directly after `{parent}`")
        })?;
    }
    crate::infer::one_ragged_axis(graph, &ty.axes).map_err(|e| e.0)?;
    let dims: Vec<u64> = graph.dims(&ty.axes).iter().map(|(_, n)| *n).chain([ty.dtype.bytes()]).collect();
    ensure(product_fits(&dims), || "a value has at most 2^62 bytes".to_string())
}

/// Zeros count as ones: a product must fit whatever the order of the factors.
fn product_fits(factors: &[u64]) -> bool {
    factors.iter().try_fold(1_u64, |n, f| n.checked_mul((*f).max(1)).filter(|n| *n <= MAX_SIZE)).is_some()
}

fn arity_fits(node: &Node) -> Result<(), String> {
    let (row, n) = (node.op.row(), node.operands.len());
    let (fits, takes) = match row.arity {
        Arity::Exactly(0) => (n == 0, "no operand".to_string()),
        Arity::Exactly(1) => (n == 1, "one operand".to_string()),
        Arity::Exactly(k) => (n == k, format!("{k} operands")),
        Arity::Variadic => (n >= 1, "one operand or more".to_string()),
    };
    ensure(fits, || format!("`{}` takes {takes}, not {n}", row.name))
}

/// The axes that an op sums over.
fn summed(op: &Op) -> Option<&[AxisId]> {
    match op {
        Op::Contract { over } | Op::Reduce { over, .. } | Op::ScatterAdd { over, .. } => Some(over),
        Op::LinearAttention(op) => Some(&op.over),
        Op::Input
        | Op::Const(_)
        | Op::Iota(_)
        | Op::Random { .. }
        | Op::Unary(_)
        | Op::Binary(_)
        | Op::Select
        | Op::Cast(_)
        | Op::Detach
        | Op::Broadcast(_)
        | Op::Reorder
        | Op::Scan { .. }
        | Op::Rename { .. }
        | Op::Split { .. }
        | Op::Merge { .. }
        | Op::Take { .. }
        | Op::Slice { .. }
        | Op::Pad { .. }
        | Op::Stack(_)
        | Op::Concat { .. }
        | Op::Gather { .. }
        | Op::TopK { .. }
        | Op::Group { .. }
        | Op::Offsets { .. }
        | Op::Invert
        | Op::Fused(_)
        | Op::Comm(_) => None,
    }
}

fn sums_are_sorted(node: &Node) -> Result<(), String> {
    let Some(over) = summed(&node.op) else { return Ok(()) };
    ensure(!over.is_empty(), || "no axis to sum over".to_string())?;
    ensure(over.windows(2).all(|w| w[0] < w[1]), || "the summed axes are not a sorted set".to_string())
}

/// All axes in an op's attributes.
fn attribute_axes(op: &Op) -> Vec<AxisId> {
    match op {
        Op::Input
        | Op::Const(_)
        | Op::Random { batch: None, .. }
        | Op::Unary(_)
        | Op::Binary(_)
        | Op::Select
        | Op::Cast(_)
        | Op::Detach
        | Op::Reorder
        | Op::Invert => vec![],
        Op::Iota(axis)
        | Op::Random { batch: Some(axis), .. }
        | Op::Scan { axis, .. }
        | Op::Take { axis, .. }
        | Op::Stack(axis)
        | Op::Gather { axis }
        | Op::Group { ragged: axis } => vec![*axis],
        Op::Broadcast(axes) | Op::Contract { over: axes } | Op::Reduce { over: axes, .. } => axes.clone(),
        Op::Rename { from, to: into }
        | Op::Slice { from, into, .. }
        | Op::Pad { from, into, .. }
        | Op::TopK { axis: from, into }
        | Op::Offsets { parent: from, into } => vec![*from, *into],
        Op::Fused(fused) => fused.axes.clone(),
        Op::Comm(comm) => comm.axes(),
        Op::LinearAttention(op) => op.over.iter().chain([&op.axis]).copied().collect(),
        Op::Split { from: one, into: many }
        | Op::Merge { from: many, into: one }
        | Op::Concat { from: many, into: one }
        | Op::ScatterAdd { over: many, axis: one } => many.iter().chain([one]).copied().collect(),
    }
}

fn attributes_fit(graph: &Graph, node: &Node) -> Result<(), String> {
    let sizes = |axes: &[AxisId]| axes.iter().map(|&a| graph.size(a)).collect::<Vec<_>>();
    // `concat` names an axis of each operand.
    let (n, most) = (attribute_axes(&node.op).len(), MAX_RANK + node.operands.len());
    ensure(n <= most, || format!("`{}` names {n} axes, at most {most} are allowed", node.op.row().name))?;
    if let Op::Split { into: parts, .. } | Op::Merge { from: parts, .. } = &node.op {
        ensure(product_fits(&sizes(parts)), || "the product of the sizes is above 2^62".to_string())?;
    }
    if let Op::Fused(fused) = &node.op {
        body_fits(graph, node, fused)?;
    }
    if let Op::Invert = node.op {
        // The parents of ragged axes are factors as well until the type rule has found that there are none.
        let fits = product_fits(&sizes(&node.ty.axes));
        ensure(fits, || "the product of the sizes is above 2^62".to_string())?;
    }
    if let Op::Concat { from, .. } = &node.op {
        let sum = sizes(from).iter().try_fold(0_u64, |sum, n| sum.checked_add(*n).filter(|n| *n <= MAX_SIZE));
        ensure(sum.is_some(), || "the sum of the sizes is above 2^62".to_string())?;
    }
    Ok(())
}

/// The values in the body of a fused op are values like others. Axes that it merges or splits are multiplied before their types are known.
fn body_fits(graph: &Graph, node: &Node, fused: &Fused) -> Result<(), String> {
    let too_large = || "a value in the body of the fused op has more than 2^62 elements".to_string();
    let sizes = |axes: &[AxisId]| axes.iter().map(|&a| graph.size(a)).collect::<Vec<_>>();
    let merged: &[AxisId] = match fused.kind {
        FusedKind::Rope | FusedKind::Permute => fused.axes.get(1..).unwrap_or(&[]),
        FusedKind::UnpermuteDrows if fused.axes.len() == 3 => &fused.axes[1..],
        FusedKind::UnpermuteDrows => fused.axes.get(2..).unwrap_or(&[]),
        FusedKind::RouterChoice => fused.axes.get(2..4).unwrap_or(&[]),
        _ => &[],
    };
    ensure(product_fits(&sizes(merged)), too_large)?;
    // No value of a body has axes that neither an operand nor the attributes have: where the product of all their sizes fits, every value does, and the body need not
    // be written out.
    let operands = node.operands.iter().flat_map(|&o| &graph.ty(o).axes);
    let mut all: Vec<AxisId> = operands.chain(&fused.axes).copied().collect();
    all.sort_unstable();
    all.dedup();
    if product_fits(&sizes(&all)) {
        return Ok(());
    }
    // What does not fit the op at all is the type rule's to say.
    let Ok((body, _)) = scratch(graph, fused, &node.operands) else { return Ok(()) };
    ensure(body.nodes.iter().all(|n| product_fits(&sizes(&n.ty.axes))), too_large)
}

fn constants_suit_their_type(node: &Node) -> Result<(), String> {
    let Op::Const(value) = node.op else { return Ok(()) };
    ensure(node.ty.axes.is_empty(), || "a constant is a scalar".to_string())?;
    let is_whole = value.fract() == 0.0 && (f64::from(i32::MIN)..=f64::from(i32::MAX)).contains(&value);
    match node.ty.dtype {
        DType::F64 | DType::F32 | DType::BF16 => Ok(()),
        DType::I32 => ensure(is_whole, || format!("{value:?} is no 32-bit integer")),
        DType::Bool => ensure(value == 0.0 || value == 1.0, || format!("{value:?} is neither 0 nor 1")),
    }
}

fn random_keys_have_four_elements(graph: &Graph, node: &Node) -> Result<(), String> {
    let Op::Random { .. } = node.op else { return Ok(()) };
    let axes = &graph.ty(node.operands[0]).axes;
    let fits = axes.len() == 1 && graph.axis(axes[0]).extent == Extent::Fixed(4);
    ensure(fits, || "the key of `random` has four elements".to_string())
}

fn types_follow(graph: &Graph, node: &Node) -> Result<(), String> {
    if matches!(node.op, Op::Input | Op::Const(_)) {
        return Ok(());
    }
    let ty = infer::infer_ordered(graph, &node.op, &node.operands, &node.ty.axes).map_err(|e| e.0)?;
    ensure(ty == node.ty, || format!("the result is {}, not {}", ty.dtype, node.ty.dtype))
}

fn inputs_are_declared_once(verifier: &mut Verifier<'_>) {
    const NAME: &str = "inputs_are_declared_once";
    let graph = verifier.graph;
    let mut declared = FxHashSet::default();
    let mut last = None;
    for input in &graph.inputs {
        let Some(node) = graph.nodes.get(input.value.index()) else {
            verifier.ensure(false, Place::Graph, NAME, || format!("an input is value number {}", input.value.0));
            continue;
        };
        let place = Place::Node(input.value);
        verifier.ensure(node.op == Op::Input, place, NAME, || "declared as an input, which it is not".to_string());
        let is_new = declared.insert(input.value);
        verifier.ensure(is_new, place, NAME, || "declared as an input twice".to_string());
        verifier.ensure(!is_new || last < Some(input.value), place, NAME, || {
            "declared after an input that stands below".to_string()
        });
        last = last.max(Some(input.value));
    }
    for value in graph.values().filter(|v| graph.node(*v).op == Op::Input) {
        verifier.ensure(declared.contains(&value), Place::Node(value), NAME, || {
            "the input is not declared: nothing says what it stands for".to_string()
        });
    }
}

fn outputs_exist(verifier: &mut Verifier<'_>) {
    let graph = verifier.graph;
    for (i, output) in graph.outputs.iter().enumerate() {
        let exists = output.value.index() < graph.nodes.len();
        verifier.ensure(exists, Place::Output(i), "outputs_exist", || {
            format!("there is no value number {}", output.value.0)
        });
    }
}

fn output_names_are_unique(verifier: &mut Verifier<'_>) {
    let mut names = FxHashSet::default();
    for (i, output) in verifier.graph.outputs.iter().enumerate() {
        let is_new = names.insert((output.role, &output.name));
        verifier.ensure(is_new, Place::Output(i), "output_names_are_unique", || {
            format!("a second {} `{}`", output.role.name(), output.name)
        });
    }
}

fn losses_are_scalar_floats(verifier: &mut Verifier<'_>) {
    let graph = verifier.graph;
    for (i, output) in graph.outputs.iter().enumerate() {
        let is_loss = matches!(output.role, OutputRole::Loss | OutputRole::Metric);
        let Some(node) = graph.nodes.get(output.value.index()).filter(|_| is_loss) else { continue };
        let holds = node.ty.axes.is_empty() && node.ty.dtype.is_float();
        verifier.ensure(holds, Place::Output(i), "losses_are_scalar_floats", || {
            format!("a {} is a scalar of a floating-point type", output.role.name())
        });
    }
}

fn group_starts_are_listed_once(verifier: &mut Verifier<'_>) {
    const NAME: &str = "group_starts_are_listed_once";
    let graph = verifier.graph;
    let mut listed = FxHashSet::default();
    for (i, (axis, starts)) in graph.offsets.iter().enumerate() {
        let place = Place::Offsets(i);
        verifier.ensure(starts.index() < graph.nodes.len(), place, NAME, || {
            format!("there is no value number {}", starts.0)
        });
        let is_ragged = (axis.0 as usize) < graph.axes.len() && graph.is_ragged(*axis);
        verifier.ensure(is_ragged, place, NAME, || "only ragged axes have group starts".to_string());
        verifier.ensure(listed.insert(*axis), place, NAME, || "the axis has group starts already".to_string());
    }
}

fn group_starts_have_their_type(verifier: &mut Verifier<'_>, sound: &[bool]) {
    let graph = verifier.graph;
    for (i, (axis, starts)) in graph.offsets.iter().enumerate() {
        let parent = graph.axes.get(axis.0 as usize).and_then(|_| graph.ragged_parent(*axis));
        let (Some(parent), Some(true)) = (parent, sound.get(starts.index())) else { continue };
        let node = graph.node(*starts);
        let of_parent = !matches!(node.op, Op::Offsets { parent: p, .. } if p != parent);
        let length = graph.size(parent) + 1;
        let fits = match node.ty.axes.as_slice() {
            [axis] => graph.axis(*axis).extent == Extent::Fixed(length) && node.ty.dtype == DType::I32,
            _ => false,
        };
        verifier.ensure(fits && of_parent, Place::Offsets(i), "group_starts_have_their_type", || {
            format!("group starts are {length} elements of i32, of the groups of `{}`", graph.axis(parent).name)
        });
    }
}

/// The ragged axes of which a node has to know where the groups end.
fn needed_lengths(graph: &Graph, node: &Node) -> Vec<AxisId> {
    if let Op::Group { .. } | Op::Offsets { .. } = node.op {
        return vec![];
    }
    let types = || node.operands.iter().map(|o| graph.ty(*o));
    let ragged = types().chain([&node.ty]).flat_map(|t| &t.axes).copied().filter(|a| graph.is_ragged(*a));
    let is_summed = |axis: AxisId| summed(&node.op).is_some_and(|over| over.contains(&axis));
    let is_per_group = |axis: AxisId| {
        let parent = graph.ragged_parent(axis).expect("ragged axes have parents");
        types().any(|t| t.has(parent) && !t.has(axis))
    };
    let mut needed: Vec<AxisId> = ragged.filter(|a| is_summed(*a) || is_per_group(*a)).collect();
    needed.sort_unstable();
    needed.dedup();
    needed
}

fn group_starts_come_first(verifier: &mut Verifier<'_>, sound: &[bool]) {
    let graph = verifier.graph;
    let starts: FxHashMap<AxisId, ValueId> = graph.offsets.iter().copied().collect();
    for value in graph.values() {
        let node = graph.node(value);
        let is_sound = sound[value.index()] && node.operands.iter().all(|o| sound.get(o.index()) == Some(&true));
        for axis in if is_sound { needed_lengths(graph, node) } else { vec![] } {
            let name = &graph.axis(axis).name;
            let place = Place::Node(value);
            let message = match starts.get(&axis) {
                None => format!("the group starts of `{name}` are needed, but nothing holds them"),
                Some(starts) if *starts >= value => format!("the group starts of `{name}` stand below"),
                Some(_) => continue,
            };
            verifier.ensure(false, place, "group_starts_come_first", || message);
        }
    }
}
