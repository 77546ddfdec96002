//! The persistent region.

use super::ALIGN;
use super::place::{Place, quoted};
use super::rules::{Findings, Rule};
use crate::schema::*;
use std::collections::HashMap;

/// Where a tensor lies, in units of [`ALIGN`] bytes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Span {
    pub start: u64,
    pub end: u64,
}

impl Span {
    /// A range of bytes that starts at a multiple of [`ALIGN`].
    pub fn new(offset: u64, bytes: u64) -> Span {
        Span { start: offset / ALIGN, end: (offset + bytes).div_ceil(ALIGN) }
    }
}

/// Checks tensors; gives their places when all are known.
pub(super) fn check(plan: &Plan, findings: &mut Findings) -> Option<Vec<Span>> {
    let mut spans = Vec::with_capacity(plan.tensors.len());
    let whole = findings.none_since(|findings| {
        for tensor in &plan.tensors {
            spans.extend(shape(tensor, findings));
            init(tensor, findings);
        }
        unique(plan, findings);
    });
    if !whole {
        return None;
    }
    let fits = findings.none_since(|findings| {
        kinds(plan, findings);
        places(plan, &spans, findings);
    });
    fits.then_some(spans)
}

/// Bytes of contiguous elements; every size at least 1.
pub(super) fn bytes_of(dims: &[u64], dtype: DType) -> Option<u64> {
    let elements = dims.iter().try_fold(1u64, |n, d| n.checked_mul(*d))?;
    elements.checked_mul(dtype.bytes()).filter(|n| *n > 0)
}

fn shape(tensor: &Tensor, findings: &mut Findings) -> Option<Span> {
    let place = Place::Tensor(tensor);
    let end = bytes_of(&tensor.dims, tensor.dtype).and_then(|bytes| tensor.offset.checked_add(bytes));
    findings.ensure(end.is_some(), Rule::TensorShape, place, || "a size is 0, or the sizes are too large".into());
    findings.ensure(tensor.offset.is_multiple_of(ALIGN), Rule::TensorShape, place, || {
        format!("the place {} is not a multiple of {ALIGN}", tensor.offset)
    });
    // The margin makes rounding up safe.
    let end = end.filter(|end| *end <= u64::MAX - ALIGN)?;
    Some(Span::new(tensor.offset, end - tensor.offset))
}

fn init(tensor: &Tensor, findings: &mut Findings) {
    let deviation = |d: f64| d.is_finite() && d >= 0.0;
    let holds = match tensor.init {
        Init::Constant(value) => !value.is_nan(),
        Init::Normal(d) | Init::TruncatedNormal(d) => deviation(d),
        Init::Uniform(lo, hi) => lo.is_finite() && hi.is_finite() && lo <= hi,
        Init::FromParam => true,
    };
    findings.ensure(holds, Rule::TensorInit, Place::Tensor(tensor), || format!("{:?} has no meaning", tensor.init));
}

fn unique(plan: &Plan, findings: &mut Findings) {
    let mut seen = HashMap::with_capacity(plan.tensors.len());
    for (i, tensor) in plan.tensors.iter().enumerate() {
        if let Some(first) = seen.insert((&tensor.name, tensor.kind), i) {
            findings.push(Rule::TensorUnique, Place::Tensor(tensor), format!("tensors {first} and {i} are the same"));
        }
    }
}

fn kinds(plan: &Plan, findings: &mut Findings) {
    let params: HashMap<&str, &Tensor> =
        plan.tensors.iter().filter(|t| t.kind == TensorKind::Param).map(|t| (t.name.as_str(), t)).collect();
    for tensor in &plan.tensors {
        let place = Place::Tensor(tensor);
        let is_copy = tensor.kind == TensorKind::ComputeCopy;
        findings.ensure(is_copy == (tensor.init == Init::FromParam), Rule::TensorKind, place, || {
            "copies, and only copies, are initialised from their parameter".into()
        });
        if tensor.kind == TensorKind::State {
            continue;
        }
        findings.ensure(tensor.dtype.is_float(), Rule::TensorKind, place, || {
            format!("{} is not a float type", tensor.dtype)
        });
        match params.get(tensor.name.as_str()) {
            None => findings.push(Rule::TensorKind, place, format!("there is no parameter {}", quoted(&tensor.name))),
            Some(param) if param.dims != tensor.dims => {
                findings.push(Rule::TensorKind, place, "its sizes are not those of its parameter");
            }
            Some(_) => {}
        }
    }
}

fn places(plan: &Plan, spans: &[Span], findings: &mut Findings) {
    // To the byte: the host writes tensors whole.
    let end = plan.tensors.iter().map(|t| t.offset + t.bytes()).max().unwrap_or(0);
    for role in &plan.roles {
        findings.ensure(end <= role.persistent_bytes, Rule::TensorPlace, Place::Role(role), || {
            format!("tensors end at byte {end}, the persistent region has {}", role.persistent_bytes)
        });
    }
    let mut order: Vec<usize> = (0..spans.len()).collect();
    order.sort_unstable_by_key(|&i| spans[i].start);
    for pair in order.windows(2) {
        let (first, second) = (pair[0], pair[1]);
        findings.ensure(
            spans[first].end <= spans[second].start,
            Rule::TensorPlace,
            Place::Tensor(&plan.tensors[second]),
            || {
                let other = Place::Tensor(&plan.tensors[first]);
                format!("it begins at byte {}, where {other} still is", spans[second].start * ALIGN)
            },
        );
    }
}
