//! What kernels touch: each operand's buffer, type and reach, and what a kernel costs. Profiles, placement and the verifier all read kernels through
//! this one list, so a new kernel answers here once.

mod attention;
mod comm;
mod linear;
mod ragged;

pub(crate) use attention::LSE;
pub use ragged::Integers;

use crate::kernel::*;
use crate::schema::{Buffer, DType};

/// What a kernel does with an operand.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Usage {
    /// Reads it.
    Read,
    /// Writes it, without reading what was there.
    Write,
    /// Reads and writes it.
    Update,
}

impl Usage {
    /// Does the kernel need what was there?
    pub fn reads(self) -> bool {
        self != Usage::Write
    }

    /// Does the kernel change it?
    pub fn writes(self) -> bool {
        self != Usage::Read
    }
}

/// One array that a kernel touches.
#[derive(Clone, Debug, PartialEq)]
pub struct Operand {
    /// Which buffer.
    pub buffer: BufferId,
    /// Its part in the kernel, for messages: `the left matrix`.
    pub what: &'static str,
    /// What the kernel does with it.
    pub usage: Usage,
    /// The type the kernel needs; `None` when any will do.
    pub dtype: Option<DType>,
    /// Elements from the start of the buffer.
    pub offset: u64,
    /// (size, stride) of each dimension it is walked along; ragged ones at their bound.
    pub dims: Vec<(u64, u64)>,
    /// At most so many elements are visited, when an index chooses among those of `dims`.
    pub visits: Option<u64>,
}

impl Operand {
    /// One past the last element it may touch; `None` when that overflows, 0 when it touches nothing.
    pub fn end(&self) -> Option<u64> {
        reach(self.offset, &self.dims)
    }

    /// How many elements it visits at most, each counted once however often it is repeated (stride 0). Saturates.
    pub fn elements(&self) -> u64 {
        self.positions().min(self.visits.unwrap_or(u64::MAX))
    }

    /// How many elements it may visit: where an index chooses, all that it may choose. Saturates.
    pub(crate) fn positions(&self) -> u64 {
        moving(self.dims.iter().copied())
    }
}

/// How many positions dimensions have, those that repeat (stride 0) counted once. Saturates.
fn moving(dims: impl Iterator<Item = (u64, u64)>) -> u64 {
    dims.filter(|(size, stride)| *stride != 0 || *size == 0).fold(1, |n, (size, _)| n.saturating_mul(size))
}

/// One past the last element of (size, stride) dimensions from an offset on; `None` when that overflows, 0 when there is none.
pub(crate) fn reach(offset: u64, dims: &[(u64, u64)]) -> Option<u64> {
    if dims.iter().any(|(size, _)| *size == 0) {
        return Some(0);
    }
    let step = |at: u64, (size, stride): &(u64, u64)| at.checked_add((size - 1).checked_mul(*stride)?);
    dims.iter().try_fold(offset, step)?.checked_add(1)
}

/// How many rows there are along a ragged dimension, of which a run knows the number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct RaggedRows {
    /// Rows that there is room for.
    pub bound: u64,
    /// Rows of an even choice of experts.
    pub even: u64,
}

impl RaggedRows {
    /// The part of the room that so many times the rows of an even choice take; there is no more than the room.
    pub fn share(&self, times: f64) -> f64 {
        (self.even as f64 * times / self.bound.max(1) as f64).min(1.0)
    }

    /// What the mean rank has of the rows of the busiest one, to which so many times the rows of an even choice come; 1 where an even choice brings none.
    pub fn mean_of_busiest(&self, times: f64) -> f64 {
        if self.even == 0 { 1.0 } else { self.share(1.0) / self.share(times) }
    }
}

/// Bytes that a kernel moves when each element that it touches is moved once, ragged dimensions at their bound. Views of one buffer count as
/// apart, up to the whole buffer. Saturates.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Traffic {
    /// Bytes read.
    pub read: u64,
    /// Bytes written.
    pub written: u64,
}

impl Traffic {
    /// Both.
    pub fn bytes(self) -> u64 {
        self.read.saturating_add(self.written)
    }
}

/// How often a region has a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Extent {
    /// The same everywhere: constants.
    Constant,
    /// Once for each row: reductions and what is computed from them and constants alone.
    Row,
    /// For each element, but the same along a row: loads that do not move along it, and what is computed from such.
    Repeated,
    /// For each element.
    Element,
}

impl Region {
    /// Elements of a row; 1 without dimensions. Saturates.
    pub fn row_elements(&self) -> u64 {
        self.dims.iter().skip(self.outer_dims()).fold(1, |n, d| n.saturating_mul(*d))
    }

    /// How many dimensions are outside of the row.
    pub fn outer_dims(&self) -> usize {
        self.dims.len().saturating_sub(self.row_dims as usize)
    }

    /// How often the result of each step is there.
    pub fn extents(&self) -> Vec<Extent> {
        let mut extents = Vec::with_capacity(self.steps.len());
        for step in &self.steps {
            let extent = match step.op {
                op if op.is_row_reduction() => Extent::Row,
                StepOp::Index(dim) if (dim as usize) < self.outer_dims() => Extent::Repeated,
                StepOp::Index(_) => Extent::Element,
                _ => step.args.iter().map(|a| self.extent(*a, &extents)).max().unwrap_or(Extent::Element),
            };
            extents.push(extent);
        }
        extents
    }

    /// How often a value is there, given [`Region::extents`].
    pub fn extent(&self, value: Arg, steps: &[Extent]) -> Extent {
        let moves = |view: &View| view.strides.iter().skip(self.outer_dims()).any(|s| *s != 0);
        let along_row = |load: &Load| moves(&load.view) || load.through.as_ref().is_some_and(|l| moves(&l.index));
        match value {
            Arg::Const(_) => Extent::Constant,
            Arg::Step(i) => steps.get(i as usize).copied().unwrap_or(Extent::Element),
            Arg::Load(i) if self.loads.get(i as usize).is_some_and(|load| !along_row(load)) => Extent::Repeated,
            Arg::Load(_) => Extent::Element,
        }
    }

    fn flops(&self) -> f64 {
        let elements = product(&self.dims);
        let rows = elements / (self.row_elements() as f64).max(1.0);
        let extents = self.extents();
        let free = |op: StepOp| matches!(op, StepOp::Cast | StepOp::Select | StepOp::Index(_));
        let steps = self.steps.iter().zip(&extents).filter(|(step, _)| !free(step.op));
        steps.map(|(step, e)| if *e == Extent::Row && !step.op.is_row_reduction() { rows } else { elements }).sum()
    }
}

impl Matmul {
    /// Floating-point operations of the product alone, a ragged dimension at its bound: 2 for each multiplication.
    pub fn product_flops(&self) -> f64 {
        let batch: f64 = self.batch.iter().map(|d| d.0 as f64).product();
        let outer: f64 = self.k_outer.iter().map(|d| d.0 as f64).product();
        2.0 * batch * outer * self.m.0 as f64 * self.n.0 as f64 * self.k.0 as f64
    }
}

impl Kernel {
    /// Its name in plans: `matmul`, `region`, …
    pub fn name(&self) -> &'static str {
        match self {
            Kernel::Matmul(_) => "matmul",
            Kernel::Region(_) => "region",
            Kernel::Attention(_) => "attention",
            Kernel::AttentionBackward(_) => "attention_backward",
            Kernel::LinearAttention(_) => "linear_attention",
            Kernel::Reduce(_) => "reduce",
            Kernel::Scan(_) => "scan",
            Kernel::Gather(_) => "gather",
            Kernel::ScatterAdd(_) => "scatter_add",
            Kernel::TopK(_) => "top_k",
            Kernel::Group(_) => "group",
            Kernel::Offsets(_) => "offsets",
            Kernel::Invert(_) => "invert",
            Kernel::RowGroups(_) => "row_groups",
            Kernel::Random(_) => "random",
            Kernel::RandomKey { .. } => "random_key",
            Kernel::Exchange(_) => "exchange",
            Kernel::AllToAllV(_) => "all_to_all_v",
            Kernel::Coordinate(_) => "coordinate",
            Kernel::Send(_) => "send",
            Kernel::Recv(_) => "recv",
        }
    }

    /// Is it made of products, which the matrix unit does?
    pub fn is_product(&self) -> bool {
        use Kernel::{Attention, AttentionBackward, LinearAttention, Matmul};
        matches!(self, Matmul(_) | Attention(_) | AttentionBackward(_) | LinearAttention(_))
    }

    /// Buffers whose contents it needs, as often as it names them.
    pub fn reads(&self) -> impl Iterator<Item = BufferId> + use<> {
        self.operands().into_iter().filter(|o| o.usage.reads()).map(|o| o.buffer)
    }

    /// Buffers that it changes, as often as it names them.
    pub fn writes(&self) -> impl Iterator<Item = BufferId> + use<> {
        self.operands().into_iter().filter(|o| o.usage.writes()).map(|o| o.buffer)
    }

    /// Floating-point operations, ragged dimensions at their bound: 2 for each product of a matrix product (in attention: of visible keys), 1 for each arithmetic step and element.
    pub fn flops(&self) -> f64 {
        match self {
            Kernel::Matmul(k) => {
                let epilogue = k.epilogue.as_ref().map_or(0.0, |e| e.flops());
                k.product_flops() + epilogue
            }
            Kernel::Region(k) => k.flops(),
            Kernel::Attention(k) => k.flops(),
            Kernel::AttentionBackward(k) => k.flops(),
            Kernel::LinearAttention(k) => k.flops(),
            Kernel::Reduce(k) => product(&k.dims),
            Kernel::Scan(k) => product(&[k.outer, k.n, k.inner]),
            Kernel::ScatterAdd(k) => product(&k.dims),
            Kernel::Gather(_) | Kernel::TopK(_) | Kernel::Group(_) | Kernel::Offsets(_) => 0.0,
            Kernel::Invert(_) | Kernel::RowGroups(_) | Kernel::Random(_) | Kernel::RandomKey { .. } => 0.0,
            Kernel::Exchange(k) => k.flops(),
            Kernel::Coordinate(_) => 0.0,
            Kernel::AllToAllV(_) | Kernel::Send(_) | Kernel::Recv(_) => 0.0,
        }
    }

    /// The rows of its ragged dimension, if it has one.
    pub fn ragged_rows(&self) -> Option<RaggedRows> {
        let (limit, dims) = match self {
            Kernel::Matmul(k) => {
                let of = |groups: &Groups| match groups.ragged {
                    RaggedDim::M => RaggedRows { bound: k.m.0, even: groups.even },
                    RaggedDim::N => RaggedRows { bound: k.n.0, even: groups.even },
                    RaggedDim::K => RaggedRows { bound: k.k.0, even: groups.even },
                };
                return k.groups.as_ref().map(of);
            }
            Kernel::Reduce(k) => {
                let (bound, ragged) = (k.dims.get(k.kept as usize)?, k.ragged.as_ref()?);
                return Some(RaggedRows { bound: *bound, even: ragged.even });
            }
            Kernel::Region(k) => (k.ragged.as_ref()?, &k.dims),
            Kernel::Gather(k) => (k.ragged.as_ref()?, &k.dims),
            Kernel::ScatterAdd(k) => (k.ragged.as_ref()?, &k.dims),
            Kernel::Exchange(k) => (k.ragged.as_ref()?, &k.dims),
            _ => return None,
        };
        dims.get(limit.dim as usize).map(|bound| RaggedRows { bound: *bound, even: limit.even })
    }

    /// The bytes it must move; `buffers` are those of the program.
    pub fn traffic(&self, buffers: &[Buffer]) -> Traffic {
        let operands = self.operands();
        let bytes = |touches: fn(Usage) -> bool| {
            let mut elements = vec![0u64; buffers.len()];
            for operand in operands.iter().filter(|o| touches(o.usage)) {
                if let (Some(n), Some(buffer)) =
                    (elements.get_mut(operand.buffer as usize), buffers.get(operand.buffer as usize))
                {
                    *n = n.saturating_add(operand.elements()).min(buffer.elements);
                }
            }
            let one = |(n, buffer): (u64, &Buffer)| n.saturating_mul(buffer.dtype.bytes());
            elements.into_iter().zip(buffers).map(one).fold(0, u64::saturating_add)
        };
        Traffic { read: bytes(Usage::reads), written: bytes(Usage::writes) }
    }

    /// The bytes that it moves when a run brings so many times the rows of an even choice.
    pub fn expected_bytes(&self, buffers: &[Buffer], times: f64) -> f64 {
        let there = self.ragged_rows().map_or(1.0, |rows| rows.share(times));
        let all = self.traffic(buffers).bytes() as f64 * there;
        let absent = self.tables_with_gaps().into_iter().map(|(table, rows)| {
            let bytes = buffers.get(table as usize).map_or(0.0, |buffer| buffer.bytes() as f64);
            bytes * (1.0 - rows.share(times))
        });
        (all - absent.sum::<f64>()).max(0.0)
    }

    /// Tables in which not every row is there.
    pub(crate) fn tables_with_gaps(&self) -> Vec<(BufferId, RaggedRows)> {
        let rows = |bound, even: Option<u64>| even.map(|even| RaggedRows { bound, even });
        let mut tables: Vec<(BufferId, RaggedRows)> = match self {
            Kernel::Region(k) => {
                let through = k.loads.iter().filter_map(|l| Some((l.view.buffer, l.through.as_ref()?)));
                through.filter_map(|(buffer, l)| Some((buffer, rows(l.axis_size, l.axis_even)?))).collect()
            }
            Kernel::Gather(k) => rows(k.axis_size, k.axis_even).map(|rows| (k.x.buffer, rows)).into_iter().collect(),
            _ => vec![],
        };
        tables.sort_unstable();
        tables.dedup();
        tables
    }

    /// Everything it touches: what it reads, then what it writes.
    pub fn operands(&self) -> Vec<Operand> {
        match self {
            Kernel::Matmul(k) => matmul(k),
            Kernel::Region(k) => region(k),
            Kernel::Attention(k) => k.operands(),
            Kernel::AttentionBackward(k) => k.operands(),
            Kernel::LinearAttention(k) => k.operands(),
            Kernel::Reduce(k) => reduce(k),
            Kernel::Scan(k) => {
                let dims = [k.outer, k.n, k.inner];
                let input = Operand::contiguous(k.input, "the input", Usage::Read, k.dtype, &dims);
                vec![input, Operand::contiguous(k.out, "the result", Usage::Write, k.dtype, &dims)]
            }
            Kernel::Gather(k) => gather(k),
            Kernel::ScatterAdd(k) => scatter_add(k),
            Kernel::TopK(k) => {
                let dims = [k.outer, k.n, k.inner];
                let input = Operand::contiguous(k.input, "the input", Usage::Read, k.dtype, &dims);
                vec![input, integers(k.out, "the result", Usage::Write, &[k.outer, k.k, k.inner])]
            }
            Kernel::Group(k) => vec![
                integers(k.chosen, "the values", Usage::Read, &[k.elements]),
                integers(k.rows, "the result", Usage::Write, &[k.rows()]),
            ],
            Kernel::Offsets(k) => vec![
                integers(k.chosen, "the values", Usage::Read, &[k.elements]),
                integers(k.out, "the result", Usage::Write, &[k.groups.saturating_add(1)]),
            ],
            Kernel::Invert(k) => vec![
                integers(k.rows, "the permutation", Usage::Read, &[k.rows()]),
                integers(k.out, "the result", Usage::Write, &[k.elements]),
            ],
            Kernel::RowGroups(k) => {
                vec![group_starts(k.offsets, k.groups), integers(k.out, "the result", Usage::Write, &[k.rows])]
            }
            Kernel::Random(k) => vec![
                integers(k.key, "the key", Usage::Read, &[4]),
                Operand::view(&k.out, "the result", Usage::Write, Some(DType::F32), &k.dims),
            ],
            Kernel::RandomKey { out, .. } => vec![integers(*out, "the result", Usage::Write, &[4])],
            Kernel::Exchange(k) => k.operands(),
            Kernel::AllToAllV(k) => k.operands(),
            Kernel::Coordinate(k) => vec![integers(k.out, "the result", Usage::Write, &[1])],
            Kernel::Send(k) => vec![Operand::contiguous(k.buffer, "the array", Usage::Read, k.dtype, &[k.elements])],
            Kernel::Recv(k) => vec![Operand::contiguous(k.buffer, "the array", Usage::Write, k.dtype, &[k.elements])],
        }
    }
}

impl Operand {
    fn view(view: &View, what: &'static str, usage: Usage, dtype: Option<DType>, dims: &[u64]) -> Operand {
        let dims = dims.iter().copied().zip(view.strides.iter().copied()).collect();
        Operand { buffer: view.buffer, what, usage, dtype, offset: view.offset, dims, visits: None }
    }

    /// An array of which an index over `dims` chooses along an axis of (size, stride): the elements that may be visited are those along the axis.
    fn looked_up(
        view: &View,
        what: &'static str,
        dtype: Option<DType>,
        dims: &[u64],
        index: &View,
        axis: (u64, u64),
    ) -> Operand {
        let mut table = Operand::view(view, what, Usage::Read, dtype, dims);
        // One for each index and each element beside the axis.
        let strides = view.strides.iter().zip(&index.strides).map(|(a, b)| a | b);
        table.visits = Some(moving(dims.iter().copied().zip(strides)));
        table.dims.push(axis);
        table
    }

    fn contiguous(buffer: BufferId, what: &'static str, usage: Usage, dtype: DType, dims: &[u64]) -> Operand {
        let mut stride = 1u64;
        let mut walked: Vec<(u64, u64)> = Vec::with_capacity(dims.len());
        for &size in dims.iter().rev() {
            walked.push((size, stride));
            stride = stride.saturating_mul(size);
        }
        walked.reverse();
        Operand { buffer, what, usage, dtype: Some(dtype), offset: 0, dims: walked, visits: None }
    }
}

fn integers(buffer: BufferId, what: &'static str, usage: Usage, dims: &[u64]) -> Operand {
    Operand::contiguous(buffer, what, usage, DType::I32, dims)
}

fn group_starts(buffer: BufferId, groups: u64) -> Operand {
    integers(buffer, "the group starts", Usage::Read, &[groups.saturating_add(1)])
}

fn result_usage(accumulate: bool) -> Usage {
    if accumulate { Usage::Update } else { Usage::Write }
}

fn matmul(k: &Matmul) -> Vec<Operand> {
    let mut operands = Vec::with_capacity(4);
    let group = |matrix: usize| k.groups.as_ref().map(|g| (g.count, g.strides[matrix]));
    let mut push = |buffer, what, usage, matrix: usize, dims: Vec<(u64, u64)>| {
        let dims = dims.into_iter().chain(group(matrix)).collect();
        operands.push(Operand {
            buffer,
            what,
            usage,
            dtype: Some(k.dtype),
            offset: k.offsets[matrix],
            dims,
            visits: None,
        });
    };
    let batch = |f: fn(&BatchDim) -> u64| k.batch.iter().map(move |d| (d.0, f(d)));
    let outer = |f: fn(&MatDim) -> u64| k.k_outer.iter().map(move |d| (d.0, f(d)));
    let a = batch(|d| d.1).chain(outer(|d| d.1)).chain([(k.m.0, k.m.1), (k.k.0, k.k.1)]).collect();
    let b = batch(|d| d.2).chain(outer(|d| d.2)).chain([(k.k.0, k.k.2), (k.n.0, k.n.1)]).collect();
    let c = batch(|d| d.3).chain([(k.m.0, k.m.2), (k.n.0, k.n.2)]).collect();
    push(k.a, "the left matrix", Usage::Read, 0, a);
    push(k.b, "the right matrix", Usage::Read, 1, b);
    push(k.c, "the result", result_usage(k.accumulate), 2, c);
    if let Some(groups) = &k.groups {
        operands.insert(2, group_starts(groups.offsets, groups.count));
    }
    // What the epilogue sees of the result, and stores over it, is the result.
    let epilogue = k.epilogue.iter().flat_map(|region| self::region(region));
    operands.extend(epilogue.filter(|o| o.buffer != k.c));
    operands
}

fn region(k: &Region) -> Vec<Operand> {
    let load = |load: &Load| match &load.through {
        None => vec![Operand::view(&load.view, "a load", Usage::Read, None, &k.dims)],
        Some(Lookup { index, axis_stride, axis_size, .. }) => vec![
            Operand::looked_up(&load.view, "a looked-up load", None, &k.dims, index, (*axis_size, *axis_stride)),
            Operand::view(index, "the index of a load", Usage::Read, Some(DType::I32), &k.dims),
        ],
    };
    let store = |store: &Store| Operand::view(&store.view, "a store", Usage::Write, None, &k.dims);
    let starts = k.ragged.iter().map(|r| group_starts(r.offsets, r.groups));
    k.loads.iter().flat_map(load).chain(starts).chain(k.stores.iter().map(store)).collect()
}

fn reduce(k: &Reduce) -> Vec<Operand> {
    let kept = &k.dims[..k.dims.len().min(k.kept as usize)];
    let input = Operand::view(&k.input, "the input", Usage::Read, Some(k.dtype), &k.dims);
    let out = Operand::view(&k.out, "the result", result_usage(k.accumulate), Some(k.dtype), kept);
    let starts = k.ragged.iter().map(|r| group_starts(r.offsets, r.groups));
    [input].into_iter().chain(starts).chain([out]).collect()
}

fn gather(k: &Gather) -> Vec<Operand> {
    let axis = (k.axis_size, k.axis_stride);
    let x = Operand::looked_up(&k.x, "the table", Some(k.dtype), &k.dims, &k.index, axis);
    let index = Operand::view(&k.index, "the index", Usage::Read, Some(DType::I32), &k.dims);
    let starts = k.ragged.iter().map(|r| group_starts(r.offsets, r.groups));
    let out = Operand::contiguous(k.out, "the result", Usage::Write, k.dtype, &k.dims);
    [x, index].into_iter().chain(starts).chain([out]).collect()
}

fn scatter_add(k: &ScatterAdd) -> Vec<Operand> {
    let v = Operand::view(&k.v, "the values", Usage::Read, Some(k.dtype), &k.dims);
    let index = Operand::view(&k.index, "the index", Usage::Read, Some(DType::I32), &k.dims);
    let starts = k.ragged.iter().map(|r| group_starts(r.offsets, r.groups));
    // The whole result: it is zeroed or added to, wherever the index points.
    let usage = result_usage(k.accumulate);
    let out = Operand::contiguous(k.out.buffer, "the result", usage, k.dtype, &[k.out_elements]);
    [v, index].into_iter().chain(starts).chain([out]).collect()
}

fn product(dims: &[u64]) -> f64 {
    dims.iter().map(|d| *d as f64).product()
}

#[cfg(test)]
mod tests {
    use super::RaggedRows;

    #[test]
    fn rows_of_the_busiest_rank_end_at_the_room() {
        let rows = RaggedRows { bound: 100, even: 40 };
        assert_eq!((rows.share(1.0), rows.share(2.0), rows.share(3.0)), (0.4, 0.8, 1.0));
        assert_eq!((rows.mean_of_busiest(2.0), rows.mean_of_busiest(4.0)), (0.5, 0.4));
        // An even choice may bring less than half a row.
        let none = RaggedRows { bound: 1, even: 0 };
        assert_eq!((none.share(2.0), none.mean_of_busiest(2.0)), (0.0, 1.0));
    }
}
