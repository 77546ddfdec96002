//! Elementwise work right behind a matrix product is done on each block of its result while that is in the cache: biases, residuals, activations,
//! casts, whatever it is.
//!
//! ```text
//!   matmul  h  [4096,256]·[256,512]
//!   region  y  [4096,512]  2 → 1: …        ==>        matmul  y  [4096,256]·[256,512], then [4096,512]  2 → 1: …
//! ```
//!
//! On instructions, before memory is given out. Keeps: every bit; each element is computed as before. A product that nothing else reads is made where a result
//! of the region goes, so that it takes no memory of its own. Costs: instructions times their distance.

use forebay_plan::{
    Arg, Buffer, BufferId, Instruction, Kernel, Matmul, Operand, RaggedDim, Region, StepOp, Usage, View,
};

/// The buffers of a program. Those of the frame have no place yet, so that no two share memory.
struct Memory<'a> {
    buffers: &'a [Buffer],
    frame: u32,
}

/// Joins regions with the products before them; `frame` is the slot of values that live within the program.
pub(super) fn join(instructions: &mut Vec<Instruction>, buffers: &mut Vec<Buffer>, frame: u32) {
    let memory = Memory { buffers, frame };
    let mut at = 0;
    while at < instructions.len() {
        match joined(instructions, &memory, at) {
            Some((product, position, matmul)) => {
                let name = instructions[at].name.clone();
                instructions.remove(at);
                instructions[product].name = name;
                instructions[product].kernel = Kernel::Matmul(matmul);
                if position != product {
                    let instruction = instructions.remove(product);
                    instructions.insert(position - 1, instruction);
                }
                in_place(instructions, &memory, position.min(at - 1));
            }
            None => at += 1,
        }
    }
    drop_unused(instructions, buffers);
}

/// The product that the region `at` can be joined with, where the two then stand, and both as one kernel.
fn joined(instructions: &[Instruction], memory: &Memory, at: usize) -> Option<(usize, usize, Matmul)> {
    let Kernel::Region(region) = &instructions[at].kernel else { return None };
    (0..at).rev().find_map(|product| {
        let Kernel::Matmul(matmul) = &instructions[product].kernel else { return None };
        if matmul.epilogue.is_some() || matmul.accumulate || !region.loads.iter().any(|l| l.view.buffer == matmul.c) {
            return None;
        }
        let region = over_result(region, matmul)?;
        let own = [matmul.a, matmul.b];
        let clobbers = region.stores.iter().any(|s| own.iter().any(|&o| memory.shares(s.view.buffer, o)));
        let overlaps = |view: &View| view.buffer != matmul.c && memory.shares(view.buffer, matmul.c);
        if clobbers || region.loads.iter().any(|l| overlaps(&l.view)) {
            return None;
        }
        let between = &instructions[product + 1..at];
        let free = |moved: &Kernel| between.iter().all(|i| memory.apart(moved, &i.kernel));
        // The region goes up to the product, or the product down to the region.
        let position = if free(&instructions[at].kernel) {
            product
        } else if free(&instructions[product].kernel) {
            at
        } else {
            return None;
        };
        Some((product, position, Matmul { epilogue: Some(Box::new(region)), ..matmul.clone() }))
    })
}

impl Memory<'_> {
    /// Can two kernels change places? What either writes, the other does not touch.
    fn apart(&self, a: &Kernel, b: &Kernel) -> bool {
        let (a, b) = (a.operands(), b.operands());
        let pair = |x: &Operand, y: &Operand| {
            let read_only = x.usage == Usage::Read && y.usage == Usage::Read;
            read_only || !self.shares(x.buffer, y.buffer)
        };
        a.iter().all(|x| b.iter().all(|y| pair(x, y)))
    }

    fn shares(&self, a: BufferId, b: BufferId) -> bool {
        let (x, y) = (&self.buffers[a as usize], &self.buffers[b as usize]);
        let meet = x.offset < y.offset + y.bytes() && y.offset < x.offset + x.bytes();
        a == b || x.slot == y.slot && x.slot != self.frame && meet
    }
}

/// The region over rows and columns of the product's result, if it can be seen so: elementwise, walking every view as the product walks its result.
fn over_result(region: &Region, matmul: &Matmul) -> Option<Region> {
    let [rows, columns] = matmul.rows_and_columns()?;
    let plain = |op: StepOp| !op.is_row_reduction() && !matches!(op, StepOp::Index(_));
    let elementwise = region.steps.iter().all(|s| plain(s.op)) && region.loads.iter().all(|l| l.through.is_none());
    // Ragged rows are those of the groups.
    let starts = matmul.groups.as_ref().filter(|g| g.ragged == RaggedDim::M).map(|g| g.offsets);
    if !elementwise || region.ragged.as_ref().map(|r| r.offsets) != starts {
        return None;
    }
    let dims: Vec<u64> = region.dims.iter().copied().filter(|d| *d != 1).collect();
    let view = |view: &View| {
        let strides = region.dims.iter().zip(&view.strides).filter(|(d, _)| **d != 1).map(|(_, s)| *s);
        let strides = two_strides(&dims, &strides.collect::<Vec<_>>(), [rows, columns])?;
        Some(View { strides, ..view.clone() })
    };
    let mut new = Region { dims: vec![rows, columns], row_dims: 1, ragged: None, ..region.clone() };
    for load in &mut new.loads {
        load.view = view(&load.view)?;
        if load.view.buffer == matmul.c && !matmul.shows_result(&load.view) {
            return None;
        }
    }
    for store in &mut new.stores {
        store.view = view(&store.view)?;
    }
    // Constants are there without a product.
    new.stores.iter().all(|s| !matches!(s.value, Arg::Const(_))).then_some(new)
}

/// The strides over rows and columns of what `strides` walk over `dims`, when that is the same walk.
fn two_strides(dims: &[u64], strides: &[u64], [rows, columns]: [u64; 2]) -> Option<Vec<u64>> {
    let mut all: Vec<(u64, u64)> = dims.iter().copied().zip(strides.iter().copied()).collect();
    let total: u64 = dims.iter().product();
    if total != rows * columns {
        return None;
    }
    let inner = split_off(&mut all, columns)?;
    Some(vec![one_stride(&all)?, one_stride(&inner)?])
}

/// Takes the last dimensions off, those of `size` elements together; one may have to be cut in two.
fn split_off(dims: &mut Vec<(u64, u64)>, size: u64) -> Option<Vec<(u64, u64)>> {
    let (mut inner, mut left) = (vec![], size);
    while left > 1 {
        let (dim, stride) = dims.pop()?;
        if dim > left {
            (dim % left == 0).then(|| dims.push((dim / left, stride * left)))?;
            inner.insert(0, (left, stride));
            return Some(inner);
        }
        (left % dim == 0).then(|| inner.insert(0, (dim, stride)))?;
        left /= dim;
    }
    Some(inner)
}

/// The stride of dimensions that are walked as one; 0 for none.
fn one_stride(dims: &[(u64, u64)]) -> Option<u64> {
    let as_one = dims.windows(2).all(|w| w[0].1 == w[1].1 * w[1].0);
    as_one.then(|| dims.last().map_or(0, |d| d.1))
}

/// Makes a product that only its epilogue reads where a result of the epilogue goes.
fn in_place(instructions: &mut [Instruction], memory: &Memory, at: usize) {
    let Kernel::Matmul(matmul) = &instructions[at].kernel else { return };
    let Some(region) = &matmul.epilogue else { return };
    let c = matmul.c;
    let elsewhere = |(i, instruction): (usize, &Instruction)| {
        i != at && instruction.kernel.operands().iter().any(|o| o.buffer == c)
    };
    let stored = region.stores.iter().any(|s| s.view.buffer == c);
    if memory.buffers[c as usize].slot != memory.frame || stored || instructions.iter().enumerate().any(elsewhere) {
        return;
    }
    let fits = |view: &View| {
        let reads = instructions[at].kernel.operands();
        let free = reads.iter().filter(|o| o.usage.reads()).all(|o| !memory.shares(o.buffer, view.buffer));
        let once = region.stores.iter().filter(|s| memory.shares(s.view.buffer, view.buffer)).count() == 1;
        free && once && view.strides == [matmul.n.0, 1] && memory.buffers[view.buffer as usize].dtype == matmul.dtype
    };
    let Some(home) = region.stores.iter().map(|s| &s.view).find(|v| fits(v)).cloned() else { return };
    let Kernel::Matmul(matmul) = &mut instructions[at].kernel else { return };
    matmul.c = home.buffer;
    matmul.offsets[2] = home.offset;
    let loads = matmul.epilogue.iter_mut().flat_map(|region| &mut region.loads);
    loads.filter(|l| l.view.buffer == c).for_each(|l| l.view = home.clone());
}

/// Leaves out buffers that no instruction names.
fn drop_unused(instructions: &mut [Instruction], buffers: &mut Vec<Buffer>) {
    let mut used = vec![false; buffers.len()];
    for instruction in instructions.iter_mut() {
        instruction.kernel.buffers_mut().into_iter().for_each(|b| used[*b as usize] = true);
    }
    let mut moved = vec![0; buffers.len()];
    let mut next = 0;
    for (old, used) in used.iter().enumerate() {
        moved[old] = next;
        next += u32::from(*used);
    }
    let mut kept = used.iter();
    buffers.retain(|_| *kept.next().expect("one for each buffer"));
    for instruction in instructions {
        instruction.kernel.buffers_mut().into_iter().for_each(|b| *b = moved[*b as usize]);
    }
}
