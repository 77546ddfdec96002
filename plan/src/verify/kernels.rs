//! One instruction: its operands, and what its kind of kernel demands.

use super::footprint::{Footprint, distinct};
use super::place::{Place, quoted};
use super::rules::{Findings, Rule};
use super::{MAX_GROUPS, MAX_RANK, attention, comm, linear, region};
use crate::kernel::*;
use crate::operands::{Operand, RaggedRows, reach};
use crate::print::json_name;
use crate::schema::*;

/// The instruction that is being checked.
pub(super) struct Cx<'a> {
    pub program: &'a Program,
    pub at: usize,
    pub findings: &'a mut Findings,
}

impl<'a> Cx<'a> {
    pub fn ensure(&mut self, holds: bool, rule: Rule, message: impl FnOnce() -> String) -> bool {
        self.findings.ensure(holds, rule, Place::Instruction(self.program, self.at), message)
    }

    pub fn buffer(&self, id: BufferId) -> &'a Buffer {
        &self.program.buffers[id as usize]
    }

    fn slot(&self, id: BufferId) -> &'a Slot {
        &self.program.slots[self.buffer(id).slot as usize]
    }

    /// Sizes of loops.
    pub fn loops(&mut self, sizes: impl IntoIterator<Item = u64>) {
        let mut total = Some(1u64);
        let mut least = u64::MAX;
        for size in sizes {
            total = total.and_then(|n| n.checked_mul(size));
            least = least.min(size);
        }
        self.ensure(least > 0, Rule::Sizes, || "a size is 0".into());
        self.ensure(total.is_some(), Rule::Sizes, || "the sizes multiply to more than a u64 holds".into());
    }

    /// A result's dimensions.
    pub fn apart(&mut self, dims: &[(u64, u64)]) {
        self.ensure(distinct(dims), Rule::Distinct, || "two elements of the result may land in one place".into());
    }
}

pub(super) fn check(program: &Program, at: usize, findings: &mut Findings) {
    let before = findings.count();
    let mut cx = Cx { program, at, findings };
    let kernel = &program.instructions[at].kernel;
    sizes(&mut cx, kernel);
    let operands = kernel.operands();
    for operand in &operands {
        exists(&mut cx, operand);
    }
    // Everything from here on looks into buffers and multiplies sizes.
    if cx.findings.count() > before {
        return;
    }
    for operand in &operands {
        inside(&mut cx, operand);
        access(&mut cx, operand);
        space(&mut cx, operand);
    }
    form(&mut cx, kernel, &operands);
    if cx.findings.count() == before {
        alias(&mut cx, kernel, &operands);
    }
}

/// Sizes of the kernel's loops, and one stride for each in every view.
fn sizes(cx: &mut Cx, kernel: &Kernel) {
    match kernel {
        Kernel::Matmul(k) => {
            let batch = || k.batch.iter().map(|d| d.0);
            let sums = || k.k_outer.iter().map(|d| d.0);
            rank(cx, k.batch.len());
            rank(cx, k.k_outer.len());
            // Elements of each matrix are counted; how often they are multiplied is a number of operations, which is no u64. Groups share the rows.
            cx.loops(batch().chain([k.m.0, k.n.0]));
            cx.loops(batch().chain(sums()).chain([k.m.0, k.k.0]));
            cx.loops(batch().chain(sums()).chain([k.n.0, k.k.0]).chain(k.groups.iter().map(|g| g.count)));
            k.epilogue.iter().for_each(|epilogue| region_sizes(cx, epilogue));
        }
        Kernel::Region(k) => region_sizes(cx, k),
        Kernel::Attention(Attention { inputs, .. }) | Kernel::AttentionBackward(AttentionBackward { inputs, .. }) => {
            attention::sizes(cx, inputs);
            attention::strides(cx, kernel);
        }
        Kernel::LinearAttention(k) => linear::sizes(cx, k),
        Kernel::Reduce(k) => {
            space_of(cx, &k.dims, [&k.input]);
            let kept = k.out.strides.len();
            cx.ensure(kept == k.kept as usize, Rule::Sizes, || {
                format!("{kept} strides for {} kept dimensions", k.kept)
            });
            cx.loops(k.ragged.iter().map(|r| r.groups));
        }
        Kernel::Scan(k) => cx.loops([k.outer, k.n, k.inner]),
        Kernel::Gather(k) => {
            space_of(cx, &k.dims, [&k.x, &k.index]);
            cx.loops([k.axis_size]);
            cx.loops(k.ragged.iter().map(|r| r.groups));
        }
        Kernel::ScatterAdd(k) => {
            space_of(cx, &k.dims, [&k.v, &k.index, &k.out]);
            cx.loops([k.axis_size]);
            cx.loops([k.out_elements]);
            cx.loops(k.ragged.iter().map(|r| r.groups));
        }
        Kernel::TopK(k) => {
            cx.loops([k.outer, k.n, k.inner]);
            cx.loops([k.outer, k.k, k.inner]);
        }
        Kernel::Group(k) => cx.loops([k.elements, k.rows()]),
        Kernel::Offsets(k) => cx.loops([k.elements]),
        Kernel::Invert(k) => cx.loops([k.elements, k.rows()]),
        Kernel::RowGroups(k) => cx.loops([k.groups, k.rows]),
        Kernel::Random(k) => space_of(cx, &k.dims, [&k.out]),
        Kernel::RandomKey { rows, per_micro_batch, .. } => cx.loops([*rows, *per_micro_batch]),
        Kernel::Exchange(k) => {
            rank(cx, k.dims.len() + 1);
            cx.loops(k.dims.iter().copied().chain([k.ranks]));
            cx.loops(k.ragged.iter().map(|r| r.groups));
            for strides in [&k.x_strides, &k.out_strides] {
                let n = strides.len();
                cx.ensure(n == k.dims.len(), Rule::Sizes, || format!("{n} strides for {} dimensions", k.dims.len()));
            }
        }
        Kernel::AllToAllV(k) => {
            cx.loops([k.ranks, k.experts]);
            cx.loops([k.bound, k.row]);
            cx.loops([k.tokens, k.row]);
        }
        Kernel::Coordinate(_) => {}
        Kernel::Send(k) | Kernel::Recv(k) => cx.loops([k.elements]),
    }
}

fn region_sizes(cx: &mut Cx, k: &Region) {
    let lookups = || k.loads.iter().filter_map(|l| l.through.as_ref());
    let loads = k.loads.iter().map(|l| &l.view).chain(lookups().map(|l| &l.index));
    space_of(cx, &k.dims, loads.chain(k.stores.iter().map(|s| &s.view)));
    region::limits(cx, k);
    cx.loops(k.ragged.iter().map(|r| r.groups));
    lookups().for_each(|l| cx.loops([l.axis_size, l.divide]));
}

fn space_of<'v>(cx: &mut Cx, dims: &[u64], views: impl IntoIterator<Item = &'v View>) {
    rank(cx, dims.len());
    cx.loops(dims.iter().copied());
    for view in views {
        let n = view.strides.len();
        cx.ensure(n == dims.len(), Rule::Sizes, || format!("{n} strides for {} dimensions", dims.len()));
    }
}

fn rank(cx: &mut Cx, dims: usize) {
    cx.ensure(dims <= MAX_RANK, Rule::Sizes, || format!("{dims} dimensions; the most is {MAX_RANK}"));
}

fn exists(cx: &mut Cx, operand: &Operand) {
    let exists = (operand.buffer as usize) < cx.program.buffers.len();
    cx.ensure(exists, Rule::BufferExists, || format!("{}: there is no buffer {}", operand.what, operand.buffer));
}

fn inside(cx: &mut Cx, operand: &Operand) {
    let &Buffer { ref name, elements, dtype, .. } = cx.buffer(operand.buffer);
    let end = operand.end();
    cx.ensure(end.is_some_and(|end| end <= elements), Rule::ViewInside, || {
        let last = end.map_or("more than a u64 holds".into(), |end| (end - 1).to_string());
        format!("{}: element {last} of buffer {} is touched, which has {elements}", operand.what, quoted(name))
    });
    cx.ensure(operand.dtype.is_none_or(|d| d == dtype), Rule::ViewType, || {
        let wanted = operand.dtype.unwrap_or(dtype);
        format!("{}: {wanted} is needed, buffer {} is {dtype}", operand.what, quoted(name))
    });
}

fn access(cx: &mut Cx, operand: &Operand) {
    let slot = cx.slot(operand.buffer);
    let allowed = !operand.usage.writes() || slot.access != Access::Read;
    cx.ensure(allowed, Rule::Access, || {
        format!("{}: it is written, but slot {} is only read", operand.what, quoted(&slot.name))
    });
}

fn space(cx: &mut Cx, operand: &Operand) {
    let stream = cx.program.streams[cx.program.instructions[cx.at].stream as usize];
    let space = cx.slot(operand.buffer).space;
    let reachable = match stream {
        StreamKind::Cube | StreamKind::Vector => space == Space::Device,
        StreamKind::Host => space == Space::Host,
        StreamKind::IntraNode | StreamKind::InterNode | StreamKind::CopyIn | StreamKind::CopyOut => true,
    };
    cx.ensure(reachable, Rule::Spaces, || {
        format!("{}: it is in {} memory, the stream is {}", operand.what, json_name(&space), json_name(&stream))
    });
}

/// Ragged dimensions and groups.
fn group_starts(cx: &mut Cx, kernel: &Kernel) {
    let limit = |ragged: &Option<RaggedLimit>| ragged.as_ref().map(|r| (r.offsets, r.groups));
    let starts = match kernel {
        Kernel::Matmul(k) => k.groups.as_ref().map(|g| (g.offsets, g.count)),
        Kernel::Region(k) => limit(&k.ragged),
        Kernel::Reduce(k) => k.ragged.as_ref().map(|r| (r.offsets, r.groups)),
        Kernel::Gather(k) => limit(&k.ragged),
        Kernel::ScatterAdd(k) => limit(&k.ragged),
        Kernel::RowGroups(k) => Some((k.offsets, k.groups)),
        Kernel::Offsets(k) => Some((k.out, k.groups)),
        Kernel::Attention(_) | Kernel::AttentionBackward(_) | Kernel::LinearAttention(_) => None,
        Kernel::Scan(_) | Kernel::TopK(_) | Kernel::Group(_) | Kernel::Invert(_) => None,
        Kernel::Random(_) | Kernel::RandomKey { .. } => None,
        Kernel::AllToAllV(k) => Some((k.offsets, k.experts)),
        Kernel::Exchange(k) => limit(&k.ragged),
        Kernel::Coordinate(_) | Kernel::Send(_) | Kernel::Recv(_) => None,
    };
    let Some((buffer, groups)) = starts else { return };
    let Buffer { name, elements, .. } = cx.buffer(buffer);
    cx.ensure(groups.checked_add(1) == Some(*elements), Rule::GroupStarts, || {
        format!("{groups} groups have one start more, but buffer {} has {elements}", quoted(name))
    });
    group_count(cx, groups);
}

/// What the kind of kernel demands.
fn form(cx: &mut Cx, kernel: &Kernel, operands: &[Operand]) {
    group_starts(cx, kernel);
    even_rows(cx, kernel);
    match kernel {
        Kernel::Matmul(k) => matmul(cx, k),
        Kernel::Region(k) => region::check(cx, k),
        Kernel::Attention(_) | Kernel::AttentionBackward(_) => attention::check(cx, kernel, operands),
        Kernel::LinearAttention(k) => linear::check(cx, k, operands),
        Kernel::Reduce(k) => reduce(cx, k),
        Kernel::Scan(k) => numbers(cx, k.dtype, Rule::Reduce),
        Kernel::Gather(k) => ragged_dim(cx, &k.ragged, k.dims.len()),
        Kernel::ScatterAdd(k) => scatter_add(cx, k),
        Kernel::TopK(k) => {
            cx.ensure(k.k <= k.n, Rule::Sorting, || format!("the {} largest of {} elements", k.k, k.n));
            positions(cx, k.n);
            numbers(cx, k.dtype, Rule::Sorting);
        }
        Kernel::Group(k) => {
            positions(cx, k.elements);
            group_count(cx, k.groups);
            room(cx, k.room, k.elements, k.negative);
        }
        Kernel::Offsets(k) => {
            positions(cx, k.elements);
            group_count(cx, k.groups);
        }
        Kernel::Invert(k) => {
            positions(cx, k.elements);
            room(cx, k.room, k.elements, k.negative);
        }
        Kernel::RowGroups(k) => positions(cx, k.rows),
        Kernel::Random(k) => {
            let counted = !k.batched || !k.dims.is_empty();
            cx.ensure(counted, Rule::Sizes, || "there is no first dimension to count rows by".into());
            cx.apart(&pairs(&k.dims, &k.out));
        }
        Kernel::RandomKey { .. } => {}
        Kernel::Exchange(k) => comm::exchange(cx, k),
        Kernel::AllToAllV(k) => comm::all_to_all_v(cx, k),
        Kernel::Coordinate(_) => {}
        Kernel::Send(_) | Kernel::Recv(_) => {}
    }
}

fn pairs(dims: &[u64], view: &View) -> Vec<(u64, u64)> {
    dims.iter().copied().zip(view.strides.iter().copied()).collect()
}

/// Less room than elements is for rows of which some are left out.
fn room(cx: &mut Cx, room: Option<u64>, elements: u64, negative: Negative) {
    let fits = room.is_none_or(|room| room < elements && negative == Negative::Nothing);
    cx.ensure(fits, Rule::Sorting, || {
        format!("room for {} rows of {elements} elements: it is less where elements are left out", room.unwrap_or(0))
    });
}

pub(super) fn positions(cx: &mut Cx, elements: u64) {
    let fit = elements <= i32::MAX as u64;
    cx.ensure(fit, Rule::Sorting, || format!("the positions of {elements} elements do not fit an i32"));
}

pub(super) fn group_count(cx: &mut Cx, groups: u64) {
    let fits = (1..=MAX_GROUPS).contains(&groups);
    cx.ensure(fits, Rule::Sorting, || format!("{groups} groups; between 1 and {MAX_GROUPS} are possible"));
}

fn even_rows(cx: &mut Cx, kernel: &Kernel) {
    let of_tables = kernel.tables_with_gaps().into_iter().map(|(_, rows)| rows);
    for RaggedRows { bound, even } in kernel.ragged_rows().into_iter().chain(of_tables) {
        cx.ensure(even <= bound, Rule::EvenRows, || format!("{even} rows of an even choice, and room for {bound}"));
    }
}

pub(super) fn numbers(cx: &mut Cx, dtype: DType, rule: Rule) {
    cx.ensure(dtype.is_number(), rule, || format!("{dtype} is no type of numbers"));
}

pub(super) fn ragged_dim(cx: &mut Cx, ragged: &Option<RaggedLimit>, dims: usize) {
    let exists = ragged.as_ref().is_none_or(|r| (r.dim as usize) < dims);
    cx.ensure(exists, Rule::Indexed, || format!("the ragged dimension is not one of {dims}"));
}

fn matmul(cx: &mut Cx, k: &Matmul) {
    cx.ensure(k.dtype.is_float(), Rule::Matmul, || format!("a matrix product of {}", k.dtype));
    let mut result: Vec<(u64, u64)> = k.batch.iter().map(|d| (d.0, d.3)).collect();
    result.extend([(k.m.0, k.m.2), (k.n.0, k.n.2)]);
    if let Some(groups) = &k.groups {
        match groups.ragged {
            RaggedDim::K => result.push((groups.count, groups.strides[2])),
            RaggedDim::M | RaggedDim::N => {
                let shared = groups.strides[2] == 0;
                cx.ensure(shared, Rule::Matmul, || {
                    "groups of rows or columns have no place of their own in the result".into()
                });
            }
        }
    }
    cx.apart(&result);
    if let Some(region) = &k.epilogue {
        epilogue(cx, k, region);
    }
}

/// The work on a product's blocks: elementwise, over the rows and columns of C, of which it sees each element where it is.
fn epilogue(cx: &mut Cx, k: &Matmul, region: &Region) {
    let plain = !k.accumulate && region.row_dims == 1 && region.ragged.is_none();
    let elementwise = !region.steps.iter().any(|s| s.op.is_row_reduction());
    let direct = region.loads.iter().all(|l| l.through.is_none());
    cx.ensure(plain && elementwise && direct, Rule::Epilogue, || {
        "more than elementwise work on what the product has made".into()
    });
    let over = k.rows_and_columns().is_some_and(|size| region.dims == size);
    cx.ensure(over, Rule::Epilogue, || "not over the rows and columns of the result, side by side".into());
    let views = region.loads.iter().map(|l| &l.view).chain(region.stores.iter().map(|s| &s.view));
    let own = views.filter(|v| v.buffer == k.c).all(|v| k.shows_result(v));
    cx.ensure(own, Rule::Epilogue, || "the result is seen otherwise than it is made".into());
    region::check(cx, region);
}

fn reduce(cx: &mut Cx, k: &Reduce) {
    numbers(cx, k.dtype, Rule::Reduce);
    let kept = k.kept as usize;
    if !cx.ensure(kept <= k.dims.len(), Rule::Reduce, || format!("{kept} of {} dimensions are kept", k.dims.len())) {
        return;
    }
    let sums = !k.accumulate || k.op == ReduceOp::Sum;
    cx.ensure(sums, Rule::Reduce, || "only sums can add to what is there".into());
    if let Some(ragged) = &k.ragged {
        cx.ensure(kept < k.dims.len(), Rule::Reduce, || "no dimension is reduced that could be ragged".into());
        let by_group = k.dims.first() == Some(&ragged.groups) && kept > 0 && k.input.strides[0] == 0;
        cx.ensure(!ragged.per_group || by_group, Rule::Reduce, || {
            format!(
                "one result for each of {} groups needs them as first dimension, without a stride in the input",
                ragged.groups
            )
        });
    }
    cx.apart(&pairs(&k.dims[..kept], &k.out));
}

fn scatter_add(cx: &mut Cx, k: &ScatterAdd) {
    numbers(cx, k.dtype, Rule::Indexed);
    ragged_dim(cx, &k.ragged, k.dims.len());
    let mut dims = pairs(&k.dims, &k.out);
    dims.push((k.axis_size, k.axis_stride));
    let end = reach(k.out.offset, &dims);
    cx.ensure(end.is_some_and(|end| end <= k.out_elements), Rule::Indexed, || {
        format!("an index may lead outside of the {} elements of the result", k.out_elements)
    });
}

/// Writes against everything else that the kernel touches.
fn alias(cx: &mut Cx, kernel: &Kernel, operands: &[Operand]) {
    for (w, write) in operands.iter().enumerate().filter(|(_, o)| o.usage.writes()) {
        let here = cx.buffer(write.buffer);
        for (o, other) in operands.iter().enumerate() {
            let there = cx.buffer(other.buffer);
            // Pairs of writes once.
            if o == w || (other.usage.writes() && o < w) || !share_memory(here, there) {
                continue;
            }
            let fine = match (other.usage.writes(), here.offset == there.offset) {
                (_, false) => false,
                (true, true) => footprint(here, write).disjoint(&footprint(there, other)),
                // (What is looked up is read along one dimension more than anything is written.)
                (false, true) => in_place(kernel, write, other) && same_view(here, write, there, other),
            };
            cx.ensure(fine, Rule::Alias, || {
                let (first, second) = (quoted(&here.name), quoted(&there.name));
                format!("{} in buffer {first} may overlap {} in buffer {second}", write.what, other.what)
            });
        }
    }
}

/// May a kernel write where it reads this?
fn in_place(kernel: &Kernel, write: &Operand, read: &Operand) -> bool {
    let region = match kernel {
        Kernel::Region(region) => region,
        // Of a product only what its epilogue reads, which by then has not been written over by the product itself.
        Kernel::Matmul(Matmul { a, b, c, epilogue: Some(epilogue), .. })
            if write.buffer != *c && ![*a, *b].contains(&read.buffer) =>
        {
            epilogue
        }
        _ => return false,
    };
    !region.loads.iter().filter_map(|l| l.through.as_ref()).any(|l| l.index.buffer == read.buffer)
}

fn share_memory(a: &Buffer, b: &Buffer) -> bool {
    let end = |b: &Buffer| b.offset + b.elements * b.dtype.bytes();
    a.slot == b.slot && a.offset < end(b) && b.offset < end(a)
}

/// Is each element read exactly where it is written?
fn same_view(here: &Buffer, write: &Operand, there: &Buffer, read: &Operand) -> bool {
    write.offset == read.offset && write.dims == read.dims && here.dtype.bytes() == there.dtype.bytes()
}

fn footprint(buffer: &Buffer, operand: &Operand) -> Footprint {
    let width = buffer.dtype.bytes();
    Footprint::new(buffer.offset + operand.offset * width, &operand.dims, width)
}
