//! Positions of the largest elements, and sorting element numbers by small values.

use super::{KernelCx, KernelError, PrepareCx, PrepareError, ScratchBytes, ensure, math};
use forebay_plan::{self as plan, DType, Negative};

/// Up to so many positions are kept in order while the array is searched; more are sorted.
const INSERT: usize = 32;

/// A prepared search for the k largest along n of `[outer, n, inner]`.
#[derive(Debug)]
pub(super) struct TopK {
    dtype: DType,
    outer: usize,
    n: usize,
    inner: usize,
    k: usize,
    input: usize,
    out: usize,
}

/// An element: its value as an integer of the same order, and its position.
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
struct Entry {
    /// Complemented, so that the largest comes first.
    key: i64,
    position: u32,
}

impl TopK {
    pub(super) fn prepare(top: &plan::TopK, cx: &PrepareCx) -> Result<TopK, PrepareError> {
        ensure(top.k <= top.n && top.n <= i32::MAX as u64, || format!("the {} largest of {}", top.k, top.n))?;
        ensure(top.dtype.is_number(), || format!("the largest of {}", top.dtype))?;
        Ok(TopK {
            dtype: top.dtype,
            outer: top.outer as usize,
            n: top.n as usize,
            inner: top.inner as usize,
            k: top.k as usize,
            input: cx.buffer_of(top.input, top.dtype, "the input")?,
            out: cx.buffer_of(top.out, DType::I32, "the output")?,
        })
    }

    pub(super) fn scratch_bytes(&self) -> ScratchBytes {
        ScratchBytes { shared: 0, worker: if self.k > INSERT { self.n * size_of::<Entry>() } else { 0 } }
    }

    pub(super) unsafe fn run(&self, cx: &KernelCx) -> Result<(), KernelError> {
        // Keys: both zeros are equal, NaN is below everything.
        let narrow = |x: f32| {
            let bits = if x == 0.0 { 0 } else { x.to_bits() as i32 };
            if x.is_nan() { i64::MIN } else { i64::from(bits ^ ((bits >> 31) & i32::MAX)) }
        };
        let wide = |x: f64| {
            let bits = if x == 0.0 { 0 } else { x.to_bits() as i64 };
            if x.is_nan() { i64::MIN } else { bits ^ ((bits >> 63) & i64::MAX) }
        };
        // SAFETY: the caller's contract.
        unsafe {
            match self.dtype {
                DType::F32 => self.run_as::<f32>(cx, narrow),
                DType::F64 => self.run_as::<f64>(cx, wide),
                DType::I32 => self.run_as::<i32>(cx, i64::from),
                DType::Bf16 => self.run_as::<u16>(cx, |x| narrow(math::widened(x))),
                DType::I16 | DType::Bool => unreachable!("refused when prepared"),
            }
        }
        Ok(())
    }

    unsafe fn run_as<X: Copy>(&self, cx: &KernelCx, key: impl Fn(X) -> i64 + Sync) {
        let grain = 8192usize.div_ceil(self.n.max(1));
        cx.pool.run_ranges(self.outer * self.inner, grain, &|first, end, worker| {
            for line in first..end {
                let (outer, inner) = (line / self.inner, line % self.inner);
                // SAFETY: both arrays are as large as their dimensions (the caller's contract), lines have outputs of their own.
                let (input, out) = unsafe {
                    let input = cx.buffers[self.input].ptr.cast::<X>().add(outer * self.n * self.inner + inner);
                    let out = cx.buffers[self.out].ptr.cast::<i32>().add(outer * self.k * self.inner + inner);
                    (input, out)
                };
                // SAFETY: as above.
                let entry = |position: usize| unsafe {
                    Entry { key: !key(*input.add(position * self.inner)), position: position as u32 }
                };
                // SAFETY: as above.
                let write = |rank: usize, entry: &Entry| unsafe { *out.add(rank * self.inner) = entry.position as i32 };
                if self.k <= INSERT {
                    let mut best = [Entry::default(); INSERT];
                    self.insert(&mut best[..self.k], entry);
                    best[..self.k].iter().enumerate().for_each(|(rank, e)| write(rank, e));
                } else {
                    // SAFETY: the scratch has an entry for each element.
                    let all =
                        unsafe { std::slice::from_raw_parts_mut(cx.scratch.worker(worker).cast::<Entry>(), self.n) };
                    all.iter_mut().enumerate().for_each(|(position, e)| *e = entry(position));
                    all.sort_unstable();
                    all[..self.k].iter().enumerate().for_each(|(rank, e)| write(rank, e));
                }
            }
        });
    }

    /// Insertion sort of those that belong to the best.
    fn insert(&self, best: &mut [Entry], entry: impl Fn(usize) -> Entry) {
        let Some(last) = best.len().checked_sub(1) else { return };
        for position in 0..self.n {
            let new = entry(position);
            // Positions rise, so an equal key stays behind those that have it already.
            let mut at = position.min(last);
            if position > last && new.key >= best[last].key {
                continue;
            }
            while at > 0 && new.key < best[at - 1].key {
                best[at] = best[at - 1];
                at -= 1;
            }
            best[at] = new;
        }
    }
}

/// What grouping and counting share: values of elements.
#[derive(Clone, Copy, Debug)]
struct Chosen {
    buffer: usize,
    elements: usize,
    groups: usize,
    negative: Negative,
}

impl Chosen {
    fn prepare(
        chosen: u32,
        elements: u64,
        groups: u64,
        negative: Negative,
        cx: &PrepareCx,
    ) -> Result<Chosen, PrepareError> {
        ensure(elements <= i32::MAX as u64, || format!("{elements} elements do not have i32 numbers"))?;
        let buffer = cx.buffer_of(chosen, DType::I32, "what is grouped")?;
        Ok(Chosen { buffer, elements: elements as usize, groups: groups as usize, negative })
    }

    unsafe fn values<'a>(&self, cx: &KernelCx<'a>) -> &'a [i32] {
        // SAFETY: the buffer has the elements (the caller's contract).
        unsafe { std::slice::from_raw_parts(cx.buffers[self.buffer].ptr.cast::<i32>(), self.elements) }
    }

    /// Is an element with this value in no group?
    fn is_left_out(&self, value: i32) -> bool {
        value < 0 && self.negative == Negative::Nothing
    }

    /// `starts[g]` becomes the number of elements whose value is below g; `starts` has one more place than there are groups.
    fn count(&self, values: &[i32], starts: &mut [i32]) -> Result<(), KernelError> {
        starts.fill(0);
        for (element, &value) in values.iter().enumerate() {
            if self.is_left_out(value) {
                continue;
            }
            if value < 0 || value as usize >= self.groups {
                let (value, limit, element) = (value.into(), self.groups as u64, element as u64);
                return Err(KernelError::Index { value, limit, element });
            }
            starts[value as usize + 1] += 1;
        }
        for group in 0..self.groups {
            starts[group + 1] += starts[group];
        }
        Ok(())
    }
}

/// A prepared counting sort.
#[derive(Debug)]
pub(super) struct Group {
    chosen: Chosen,
    rows: usize,
    room: usize,
}

impl Group {
    pub(super) fn prepare(group: &plan::Group, cx: &PrepareCx) -> Result<Group, PrepareError> {
        let chosen = Chosen::prepare(group.chosen, group.elements, group.groups, group.negative, cx)?;
        let room = group.rows() as usize;
        ensure(room == chosen.elements || room < chosen.elements && group.negative == Negative::Nothing, || {
            format!("room for {room} rows of {} elements", chosen.elements)
        })?;
        Ok(Group { chosen, rows: cx.buffer_of(group.rows, DType::I32, "the rows")?, room })
    }

    pub(super) fn scratch_bytes(&self) -> ScratchBytes {
        ScratchBytes { shared: (self.chosen.groups + 1) * 4, worker: 0 }
    }

    pub(super) unsafe fn run(&self, cx: &KernelCx) -> Result<(), KernelError> {
        // SAFETY: the scratch has a place for each group and one more.
        let starts =
            unsafe { std::slice::from_raw_parts_mut(cx.scratch.shared().cast::<i32>(), self.chosen.groups + 1) };
        // SAFETY: the caller's contract.
        let values = unsafe { self.chosen.values(cx) };
        self.chosen.count(values, starts)?;
        let rows = cx.buffers[self.rows].ptr.cast::<i32>();
        let grouped = starts[self.chosen.groups] as usize;
        if grouped > self.room {
            return Err(KernelError::Rows { rows: grouped as u64, bound: self.room as u64 });
        }
        // SAFETY: there are `room` rows, of which `grouped` are in groups.
        unsafe { std::slice::from_raw_parts_mut(rows, self.room)[grouped..].fill(-1) };
        for (element, &value) in values.iter().enumerate() {
            if self.chosen.is_left_out(value) {
                continue;
            }
            let next = &mut starts[value as usize];
            // SAFETY: no more rows than there is room for; each value's run ends where the next begins, so `next` stays below the count.
            unsafe { *rows.add(*next as usize) = element as i32 };
            *next += 1;
        }
        Ok(())
    }
}

/// A prepared count.
#[derive(Debug)]
pub(super) struct Offsets {
    chosen: Chosen,
    out: usize,
}

impl Offsets {
    pub(super) fn prepare(offsets: &plan::Offsets, cx: &PrepareCx) -> Result<Offsets, PrepareError> {
        let chosen = Chosen::prepare(offsets.chosen, offsets.elements, offsets.groups, offsets.negative, cx)?;
        Ok(Offsets { chosen, out: cx.buffer_of(offsets.out, DType::I32, "the offsets")? })
    }

    pub(super) fn scratch_bytes(&self) -> ScratchBytes {
        ScratchBytes::default()
    }

    pub(super) unsafe fn run(&self, cx: &KernelCx) -> Result<(), KernelError> {
        let out = cx.buffers[self.out].ptr.cast::<i32>();
        // SAFETY: the buffers have the elements and do not overlap (the caller's contract).
        let (values, starts) =
            unsafe { (self.chosen.values(cx), std::slice::from_raw_parts_mut(out, self.chosen.groups + 1)) };
        self.chosen.count(values, starts)
    }
}

/// A prepared inversion.
#[derive(Debug)]
pub(super) struct Invert {
    rows: usize,
    room: usize,
    elements: usize,
    negative: Negative,
    out: usize,
}

impl Invert {
    pub(super) fn prepare(invert: &plan::Invert, cx: &PrepareCx) -> Result<Invert, PrepareError> {
        ensure(invert.elements <= i32::MAX as u64, || format!("{} elements do not have i32 numbers", invert.elements))?;
        Ok(Invert {
            rows: cx.buffer_of(invert.rows, DType::I32, "the rows")?,
            room: invert.rows() as usize,
            elements: invert.elements as usize,
            negative: invert.negative,
            out: cx.buffer_of(invert.out, DType::I32, "the output")?,
        })
    }

    pub(super) unsafe fn run(&self, cx: &KernelCx) -> Result<(), KernelError> {
        let (rows, out) = (cx.buffers[self.rows].ptr.cast::<i32>(), cx.buffers[self.out].ptr.cast::<i32>());
        if self.negative == Negative::Nothing {
            // SAFETY: there are `elements` of them (the caller's contract).
            unsafe { std::slice::from_raw_parts_mut(out, self.elements) }.fill(-1);
        }
        for element in 0..self.room {
            // SAFETY: there are `room` rows and `elements` places (the caller's contract), and the row is checked.
            unsafe {
                let row = *rows.add(element);
                if row < 0 && self.negative == Negative::Nothing {
                    continue;
                }
                if row < 0 || row as usize >= self.elements {
                    let (value, limit, element) = (row.into(), self.elements as u64, element as u64);
                    return Err(KernelError::Index { value, limit, element });
                }
                *out.add(row as usize) = element as i32;
            }
        }
        Ok(())
    }
}

/// A prepared list of the groups of rows.
#[derive(Debug)]
pub(super) struct RowGroups {
    offsets: usize,
    groups: usize,
    rows: usize,
    out: usize,
}

impl RowGroups {
    pub(super) fn prepare(rows: &plan::RowGroups, cx: &PrepareCx) -> Result<RowGroups, PrepareError> {
        ensure(rows.groups <= i32::MAX as u64, || format!("{} groups do not have i32 numbers", rows.groups))?;
        Ok(RowGroups {
            offsets: cx.buffer_of(rows.offsets, DType::I32, "the offsets")?,
            groups: rows.groups as usize,
            rows: rows.rows as usize,
            out: cx.buffer_of(rows.out, DType::I32, "the output")?,
        })
    }

    pub(super) unsafe fn run(&self, cx: &KernelCx) -> Result<(), KernelError> {
        // SAFETY: the buffers have the elements and do not overlap (the caller's contract).
        let (offsets, out) = unsafe {
            let offsets = super::checked_offsets(cx, self.offsets, self.groups, self.rows as u64)?;
            let out = std::slice::from_raw_parts_mut(cx.buffers[self.out].ptr.cast::<i32>(), self.rows);
            (std::slice::from_raw_parts(offsets, self.groups + 1), out)
        };
        out[..offsets[0] as usize].fill(0);
        for (group, ends) in offsets.windows(2).enumerate() {
            out[ends[0] as usize..ends[1] as usize].fill(group as i32);
        }
        out[offsets[self.groups] as usize..].fill(0);
        Ok(())
    }
}
