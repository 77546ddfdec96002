//! The persistent region of each role: which tensors, which parts of them, and where.

use super::ALIGN;
use super::place::{Place, quoted};
use super::rules::{Findings, Rule};
use crate::schema::*;
use std::collections::{HashMap, HashSet};

/// A range of memory, in units of [`ALIGN`] bytes.
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

/// A place in a persistent region: that of one tensor, or a shard, which several tensors may share.
#[derive(Clone, Copy, Debug)]
pub(super) struct Home {
    pub space: Space,
    pub span: Span,
    /// The first tensor that lives there, by number.
    pub tensor: u32,
}

/// Checks the tensors of all roles; gives their places, for each role, when all are known.
pub(super) fn check(plan: &Plan, findings: &mut Findings) -> Option<Vec<Vec<Home>>> {
    let homes: Vec<Option<Vec<Home>>> = plan.roles.iter().map(|role| Cx { role }.check(findings)).collect();
    let homes = homes.into_iter().collect::<Option<Vec<_>>>()?;
    let agree = findings.none_since(|findings| same_everywhere(plan, findings));
    let covered = agree && findings.none_since(|findings| covered(plan, findings));
    covered.then_some(homes)
}

/// Bytes of contiguous elements; every size at least 1.
pub(super) fn bytes_of(dims: impl IntoIterator<Item = u64>, dtype: DType) -> Option<u64> {
    let elements = dims.into_iter().try_fold(1u64, u64::checked_mul)?;
    elements.checked_mul(dtype.bytes()).filter(|n| *n > 0)
}

struct Cx<'a> {
    role: &'a Role,
}

impl<'a> Cx<'a> {
    fn place(&self, tensor: &'a Tensor) -> Place<'a> {
        Place::Tensor(self.role, tensor)
    }

    fn check(&self, findings: &mut Findings) -> Option<Vec<Home>> {
        let mut spans = Vec::with_capacity(self.role.tensors.len());
        let whole = findings.none_since(|findings| {
            for tensor in &self.role.tensors {
                self.init(tensor, findings);
                if self.cuts(tensor, findings) {
                    spans.extend(self.shape(tensor, findings));
                }
            }
            self.unique(findings);
        });
        if !whole {
            return None;
        }
        let mut homes = None;
        let fits = findings.none_since(|findings| {
            self.kinds(findings);
            homes = Some(self.homes(&spans, findings));
        });
        homes.filter(|_| fits)
    }

    fn shape(&self, tensor: &'a Tensor, findings: &mut Findings) -> Option<Span> {
        let place = self.place(tensor);
        let whole = bytes_of(tensor.dims.iter().copied(), tensor.dtype);
        let here = match &tensor.range {
            None => bytes_of(tensor.local_dims(), tensor.place_dtype()),
            Some(range) => bytes_of([range.shard], tensor.place_dtype()),
        };
        let end = whole.and(here).and_then(|bytes| tensor.offset.checked_add(bytes));
        findings.ensure(end.is_some(), Rule::TensorShape, place, || "a size is 0, or the sizes are too large".into());
        findings.ensure(tensor.offset.is_multiple_of(ALIGN), Rule::TensorShape, place, || {
            format!("the place {} is not a multiple of {ALIGN}", tensor.offset)
        });
        // The margin makes rounding up safe.
        let end = end.filter(|end| *end <= u64::MAX - ALIGN)?;
        Some(Span::new(tensor.offset, end - tensor.offset))
    }

    /// Are the parts within the whole on every rank?
    fn cuts(&self, tensor: &'a Tensor, findings: &mut Findings) -> bool {
        let place = self.place(tensor);
        let mut dims = HashSet::new();
        findings.none_since(|findings| {
            for cut in &tensor.block {
                let new = dims.insert(cut.dim);
                findings.ensure(new, Rule::TensorPart, place, || format!("dimension {} is cut twice", cut.dim));
                let inside = tensor.dims.get(cut.dim as usize).zip(cut.first.bounds(&self.role.coordinates));
                let inside = inside.is_some_and(|(size, (least, most))| {
                    cut.size > 0 && least >= 0 && most + i128::from(cut.size) <= i128::from(*size)
                });
                findings.ensure(inside, Rule::TensorPart, place, || {
                    format!("on some rank the cut along dimension {} is not within it", cut.dim)
                });
            }
            let Some(FlatRange { start, shard, index }) = &tensor.range else { return };
            let inside = index.bounds(&self.role.coordinates).is_some_and(|(least, most)| {
                let end = u64::try_from(most + 1).ok().and_then(|n| n.checked_mul(*shard));
                least >= 0 && end.is_some() && start.checked_add(tensor.local_elements()).is_some()
            });
            findings.ensure(inside && *shard > 0, Rule::TensorPart, place, || {
                "the shards are none, or more than can be counted".into()
            });
        })
    }

    fn init(&self, tensor: &'a Tensor, findings: &mut Findings) {
        let deviation = |d: f64| d.is_finite() && d >= 0.0;
        let holds = match tensor.init {
            Init::Constant(value) => !value.is_nan(),
            Init::Normal(d) | Init::TruncatedNormal(d) => deviation(d),
            Init::Uniform(lo, hi) => lo.is_finite() && hi.is_finite() && lo <= hi,
            Init::FromParam => true,
        };
        findings.ensure(holds, Rule::TensorInit, self.place(tensor), || format!("{:?} has no meaning", tensor.init));
    }

    fn unique(&self, findings: &mut Findings) {
        let mut seen = HashMap::with_capacity(self.role.tensors.len());
        for (i, tensor) in self.role.tensors.iter().enumerate() {
            if let Some(first) = seen.insert((&tensor.name, tensor.kind), i) {
                findings.push(Rule::TensorUnique, self.place(tensor), format!("tensors {first} and {i} are the same"));
            }
        }
    }

    fn kinds(&self, findings: &mut Findings) {
        let params = self.role.tensors.iter().filter(|t| t.kind == TensorKind::Param);
        let params: HashMap<&str, &Tensor> = params.map(|t| (t.name.as_str(), t)).collect();
        for tensor in &self.role.tensors {
            let place = self.place(tensor);
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
                None => {
                    findings.push(Rule::TensorKind, place, format!("there is no parameter {}", quoted(&tensor.name)));
                }
                Some(param) if param.dims != tensor.dims => {
                    findings.push(Rule::TensorKind, place, "its sizes are not those of its parameter");
                }
                Some(_) => {}
            }
        }
        self.halves(findings);
    }

    /// What a parameter in halves lacks is in tensors beside it, of the same elements: in a copy of all of them, and in the second moment.
    fn halves(&self, findings: &mut Findings) {
        let halves: Vec<&Tensor> = self.role.tensors.iter().filter(|t| t.form == Form::LowerHalf).collect();
        if halves.is_empty() {
            return;
        }
        let others = self.role.tensors.iter().map(|t| ((t.name.as_str(), t.kind), t));
        let others: HashMap<(&str, TensorKind), &Tensor> = others.collect();
        for half in halves {
            let is_param = half.kind == TensorKind::Param && half.dtype == DType::F32;
            let other = |kind, dtype| {
                let there = others.get(&(half.name.as_str(), kind));
                there.filter(|t| t.dtype == dtype && t.block == half.block && t.form == Form::Whole)
            };
            let copy = other(TensorKind::ComputeCopy, DType::Bf16);
            let copy = copy.is_some_and(|t| t.range.is_none() || t.range == half.range);
            let moment = other(TensorKind::SecondMoment, DType::F32).is_some_and(|t| t.range == half.range);
            findings.ensure(is_param && copy && moment, Rule::TensorKind, self.place(half), || {
                "only the half of an f32 parameter is there, and a bf16 copy and an f32 second moment of the same elements have the rest".into()
            });
        }
    }

    /// The places, each once: they do not overlap, and tensors share one only as parts of one array.
    fn homes(&self, spans: &[Span], findings: &mut Findings) -> Vec<Home> {
        let tensors = &self.role.tensors;
        // To the byte: the host writes tensors whole.
        for space in Space::ALL {
            let there = tensors.iter().filter(|t| t.space == space);
            let end = there.map(|t| t.offset + t.place_bytes()).max().unwrap_or(0);
            let kept = self.role.persistent(space);
            findings.ensure(end <= kept, Rule::TensorPlace, Place::Role(self.role), || {
                format!("tensors end at byte {end}, the persistent region has {kept}")
            });
        }
        let start = |i: usize| (tensors[i].space, spans[i].start, tensors[i].range.as_ref().map_or(0, |r| r.start));
        let mut order: Vec<usize> = (0..spans.len()).collect();
        order.sort_by_key(|&i| start(i));
        let mut homes: Vec<Home> = vec![];
        let mut before: Option<usize> = None;
        for i in order {
            let tensor = &tensors[i];
            let other = before.replace(i).map(|b| &tensors[b]);
            let meets = |home: &Home| home.space == tensor.space && spans[i].start < home.span.end;
            let Some((other, home)) = other.zip(homes.last()).filter(|(_, home)| meets(home)) else {
                homes.push(Home { space: tensor.space, span: spans[i], tensor: i as u32 });
                continue;
            };
            let begins = || {
                let (at, other) = (spans[i].start * ALIGN, self.place(other));
                format!("it begins at byte {at}, where {other} still is")
            };
            let shared = share(other, tensor);
            findings.ensure(shared && spans[i].start == home.span.start, Rule::TensorPlace, self.place(tensor), begins);
        }
        homes
    }
}

/// Are these parts of one array, the first before the second?
fn share(first: &Tensor, second: &Tensor) -> bool {
    let Some((a, b)) = first.range.as_ref().zip(second.range.as_ref()) else { return false };
    let one_array = (first.kind, first.dtype, a.shard, &a.index) == (second.kind, second.dtype, b.shard, &b.index);
    one_array && first.offset == second.offset && a.start + first.local_elements() <= b.start
}

/// A tensor that several roles have is one tensor.
fn same_everywhere(plan: &Plan, findings: &mut Findings) {
    let mut known: HashMap<(&str, TensorKind), &Tensor> = HashMap::new();
    for role in &plan.roles {
        for tensor in &role.tensors {
            let first = *known.entry((&tensor.name, tensor.kind)).or_insert(tensor);
            let same = (&first.dims, first.dtype, first.init) == (&tensor.dims, tensor.dtype, tensor.init);
            findings.ensure(same, Rule::TensorUnique, Place::Tensor(role, tensor), || {
                "another role has a tensor of this name and kind with other sizes, another type or another beginning".into()
            });
        }
    }
}

/// Every element of a saved tensor is on some rank: of one of its roles, as cuts and shards show.
fn covered(plan: &Plan, findings: &mut Findings) {
    let mut whole: HashSet<(&str, TensorKind)> = HashSet::new();
    let tensors = || plan.roles.iter().flat_map(|role| role.tensors.iter().map(move |t| (role, t)));
    whole.extend(tensors().filter(|(role, t)| covers(role, t)).map(|(_, t)| (t.name.as_str(), t.kind)));
    for (role, tensor) in tensors().filter(|(_, t)| t.kind.is_saved()) {
        let held = whole.contains(&(tensor.name.as_str(), tensor.kind));
        findings.ensure(held, Rule::TensorPart, Place::Tensor(role, tensor), || {
            "cuts and shards do not show that the ranks of a role hold all of it".into()
        });
    }
}

/// Do the ranks of a role together hold the whole tensor? `true` only when each mesh dimension serves one cut, or the shards.
fn covers(role: &Role, tensor: &Tensor) -> bool {
    let moves = |dim: u32| role.coordinates.get(dim as usize).is_some_and(|(lo, hi)| hi.saturating_sub(*lo) > 1);
    let affines = tensor.block.iter().map(|cut| &cut.first).chain(tensor.range.iter().map(|r| &r.index));
    let mut used = HashSet::new();
    let terms = affines.flat_map(|a| &a.terms).filter(|(dim, factor)| *factor != 0 && moves(*dim));
    if !terms.into_iter().all(|(dim, _)| used.insert(*dim)) {
        return false;
    }
    let cuts = tensor.block.iter().all(|cut| {
        let all = (0, tensor.dims.get(cut.dim as usize).copied().unwrap_or(0));
        contiguous(&cut.first, cut.size, role).is_some_and(|part| contains(part, all))
    });
    cuts && tensor.range.as_ref().is_none_or(|range| {
        let shards = contiguous(&range.index, 1, role);
        let elements = (range.start, range.start.saturating_add(tensor.local_elements()));
        shards.is_some_and(|(from, to)| {
            contains((from.saturating_mul(range.shard), to.saturating_mul(range.shard)), elements)
        })
    })
}

fn contains(outer: (u64, u64), inner: (u64, u64)) -> bool {
    outer.0 <= inner.0 && inner.1 <= outer.1
}

/// The range that the ranks of a role cover together, each with `size` elements from the value of a function on, when there are no holes in it.
fn contiguous(first: &Affine, size: u64, role: &Role) -> Option<(u64, u64)> {
    let (least, most) = first.bounds(&role.coordinates)?;
    let count =
        |dim: u32| role.coordinates.get(dim as usize).map_or(1, |(lo, hi)| u64::from(hi.saturating_sub(*lo).max(1)));
    let mut steps: Vec<(u64, u64)> = first.terms.iter().map(|(dim, f)| (f.unsigned_abs(), count(*dim))).collect();
    steps.sort_unstable();
    // The digits of a number: each step is no longer than what all smaller ones cover without a hole.
    let mut reach = size;
    for (step, count) in steps {
        if count > 1 && step > reach {
            return None;
        }
        reach = reach.saturating_add(step.saturating_mul(count - 1));
    }
    Some((u64::try_from(least).ok()?, u64::try_from(most).ok()?.saturating_add(size)))
}
