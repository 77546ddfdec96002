//! What kernels touch in a run, where the plan knows a bound: ragged dimensions as long as the rows that came, tables as far as they are looked up.

use crate::kernel::{AllToAllV, BufferId, Kernel, Matmul, RaggedDim, RaggedLimit, Region, View};
use std::ops::Range;

/// The numbers that a run has put into an i32 buffer of the program.
pub trait Integers {
    /// Some elements of a buffer, of which there are as many.
    fn integers(&self, buffer: BufferId, elements: Range<u64>) -> Vec<i32>;
}

impl Kernel {
    /// The kernel as it is in a run, with its bounds replaced by what there is; nothing where it has no bounds. Never more than the bounds, whatever the numbers are.
    /// A table that an index chooses from counts up to the last row that is chosen.
    pub fn in_run(&self, there: &dyn Integers) -> Option<Kernel> {
        let mut kernel = self.clone();
        let changed = match &mut kernel {
            Kernel::Matmul(k) => matmul(k, there),
            Kernel::Region(k) => region(k, there),
            Kernel::Reduce(k) => k
                .ragged
                .as_ref()
                .map(|r| total(there, r.offsets, r.groups))
                .is_some_and(|rows| k.dims.get_mut(k.kept as usize).is_some_and(|dim| shorten(dim, rows))),
            Kernel::Gather(k) => {
                let ragged = limit(&mut k.dims, k.ragged.as_ref(), there);
                let chosen = chosen(&k.index, &k.dims, there);
                shorten(&mut k.axis_size, chosen) | ragged
            }
            Kernel::ScatterAdd(k) => limit(&mut k.dims, k.ragged.as_ref(), there),
            Kernel::Exchange(k) => limit(&mut k.dims, k.ragged.as_ref(), there),
            Kernel::AllToAllV(k) => rows(k, there),
            _ => false,
        };
        changed.then_some(kernel)
    }
}

/// How many rows group starts say there are.
fn total(there: &dyn Integers, offsets: BufferId, groups: u64) -> u64 {
    there.integers(offsets, groups..groups + 1).first().map_or(0, |n| u64::from(n.max(&0).unsigned_abs()))
}

/// Makes a size no larger than that; has it changed?
fn shorten(size: &mut u64, to: u64) -> bool {
    let changed = to < *size;
    *size = to.min(*size);
    changed
}

fn limit(dims: &mut [u64], ragged: Option<&RaggedLimit>, there: &dyn Integers) -> bool {
    let Some(RaggedLimit { dim, offsets, groups, .. }) = ragged else { return false };
    dims.get_mut(*dim as usize).is_some_and(|dim| shorten(dim, total(there, *offsets, *groups)))
}

/// One past the last row that an index over `dims` chooses.
fn chosen(index: &View, dims: &[u64], there: &dyn Integers) -> u64 {
    let mut places = vec![index.offset];
    for (&size, &stride) in dims.iter().zip(&index.strides) {
        match (size, stride) {
            (0, _) => return 0,
            (_, 0) => {}
            _ => places = places.iter().flat_map(|at| (0..size).map(move |i| at + i * stride)).collect(),
        }
    }
    let last = places.iter().max().copied().unwrap_or(0);
    let numbers = there.integers(index.buffer, 0..last + 1);
    let all = places.iter().filter_map(|at| numbers.get(*at as usize));
    all.max().map_or(0, |n| u64::try_from(i64::from(*n) + 1).unwrap_or(0))
}

fn matmul(k: &mut Matmul, there: &dyn Integers) -> bool {
    let Some(groups) = &k.groups else { return false };
    let rows = total(there, groups.offsets, groups.count);
    match groups.ragged {
        RaggedDim::N => shorten(&mut k.n.0, rows),
        RaggedDim::K => shorten(&mut k.k.0, rows),
        RaggedDim::M => {
            // Rows of no group are left as they are by what follows the product, too.
            if let Some(epilogue) = k.epilogue.as_mut().filter(|_| k.batch.iter().all(|dim| dim.0 == 1)) {
                epilogue.dims.first_mut().map(|dim| shorten(dim, rows));
            }
            shorten(&mut k.m.0, rows)
        }
    }
}

fn region(k: &mut Region, there: &dyn Integers) -> bool {
    let mut changed = limit(&mut k.dims, k.ragged.as_ref(), there);
    for lookup in k.loads.iter_mut().filter_map(|load| load.through.as_mut()) {
        changed |= shorten(&mut lookup.axis_size, chosen(&lookup.index, &k.dims, there));
    }
    changed
}

fn rows(k: &mut AllToAllV, there: &dyn Integers) -> bool {
    let source = total(there, k.offsets, k.experts);
    let counts = there.integers(k.counts, 0..k.ranks * k.own());
    let owner = counts.iter().map(|n| u64::from(n.max(&0).unsigned_abs())).sum();
    shorten(&mut k.tokens, source) | shorten(&mut k.bound, owner)
}
