//! Runs a region's program: cuts the space into blocks, and for each sets the operands and goes through the instructions.

use super::chain::{self, Chain, Code, Site};
use super::copy::{Move, Rectangle, copy, fill_index};
use super::jit::Native;
use super::lookup::{Table, Wrong};
use super::ops::{self, Arg, Loop};
use super::program::{Class, Home, Instruction, Op, Phase, Program, Run, Slot};
use super::space::{MOST_DIMS, Place, Shape, Through};
use super::tile::{self, Tiles};
use crate::kernels::cpu::Cpu;
use crate::kernels::rows::{Rows, reduce_rows};
use crate::kernels::{KernelCx, KernelError};
use forebay_plan::{DType, StepOp};
use std::mem::MaybeUninit;

/// Element-steps that are worth a task.
const GRAIN: usize = 32 * 1024;

/// Bytes of scratch for a worker: operands, accesses, registers.
pub(super) fn frame_bytes(program: &Program) -> usize {
    tables_bytes(program) + program.register_bytes
}

fn tables_bytes(program: &Program) -> usize {
    let tables = program.operands.len() * size_of::<Arg>() + program.accesses.len() * size_of::<usize>();
    tables.next_multiple_of(64)
}

/// The space of this run, and how it is cut.
#[derive(Clone, Copy)]
struct Extent {
    dims: [usize; MOST_DIMS],
    /// Where a part of two dimensions begins.
    origin: [usize; 2],
    outer: usize,
    /// Elements of a row.
    row: usize,
    /// Size of the last outer dimension, along which a block has its rows.
    last: usize,
    /// Blocks along it.
    row_blocks: usize,
    /// Blocks along a row, when they are dealt out one by one.
    column_blocks: usize,
}

pub(super) unsafe fn run(program: &Program, cpu: Cpu, cx: &KernelCx) -> Result<(), KernelError> {
    let space = &program.space;
    let mut dims = [1; MOST_DIMS];
    dims[..space.dims.len()].copy_from_slice(&space.dims);
    if let Some(ragged) = &space.ragged {
        // SAFETY: the buffer holds the offsets (the caller's contract).
        let offsets = unsafe { crate::kernels::checked_offsets(cx, ragged.buffer, ragged.groups, ragged.bound)? };
        // SAFETY: as above.
        dims[ragged.dim] = unsafe { *offsets.add(ragged.groups) } as usize * ragged.unit;
    }
    let outer = space.outer();
    let row = dims[outer..space.dims.len()].iter().product::<usize>();
    if row == 0 && !program.reduces {
        return Ok(());
    }
    let last = if outer > 0 { dims[outer - 1] } else { 1 };
    let before: usize = dims[..outer.saturating_sub(1)].iter().product();
    let column_blocks = if program.whole_rows { 1 } else { row.div_ceil(program.block_columns) };
    let row_blocks = last.div_ceil(program.block_rows);
    let extent = Extent { dims, origin: [0; 2], outer, row, last, row_blocks, column_blocks };
    let blocks = before * row_blocks * column_blocks;
    let columns = if program.whole_rows { row } else { program.block_columns.min(row) };
    let block_work = program.block_rows.min(last) * columns * program.weight;
    let wrong = Wrong::none();
    cx.pool.run_ranges(blocks, GRAIN.div_ceil(block_work.max(1)), &|first, end, worker| {
        // SAFETY: the caller's contract; blocks write places of their own.
        unsafe {
            let frame = Frame::new(program, cpu, cx, &extent, &wrong, cx.scratch.worker(worker));
            frame.prologue();
            for block in first..end {
                frame.block(block);
            }
        }
    });
    // SAFETY: the caller's contract.
    unsafe { wrong.result(program, cx) }
}

/// Runs the part of a space of two dimensions that begins at `origin`, on the calling thread.
///
/// # Safety
/// The buffers hold the region, the part lies within its space, `scratch` has [`frame_bytes`], and nothing is looked up.
pub(super) unsafe fn run_part(
    program: &Program,
    cpu: Cpu,
    cx: &KernelCx,
    scratch: *mut u8,
    origin: [usize; 2],
    [rows, columns]: [usize; 2],
) {
    let mut dims = [1; MOST_DIMS];
    dims[..2].copy_from_slice(&[rows, columns]);
    let row_blocks = rows.div_ceil(program.block_rows);
    let column_blocks = if program.whole_rows { 1 } else { columns.div_ceil(program.block_columns) };
    let extent = Extent { dims, origin, outer: 1, row: columns, last: rows, row_blocks, column_blocks };
    let wrong = Wrong::none();
    // SAFETY: the caller's contract.
    unsafe {
        let frame = Frame::new(program, cpu, cx, &extent, &wrong, scratch);
        frame.prologue();
        (0..row_blocks * column_blocks).for_each(|block| frame.block(block));
    }
}

/// A worker's view of a run: its tables and registers lie in the scratch.
struct Frame<'a> {
    program: &'a Program,
    cpu: Cpu,
    cx: &'a KernelCx<'a>,
    extent: &'a Extent,
    wrong: &'a Wrong,
    /// For each operand where it is in this block.
    operands: *mut Arg,
    /// For each access the element of the block's first row, at the row's start.
    starts: *mut usize,
    registers: *mut u8,
}

/// The part of the space that instructions work on.
#[derive(Clone, Copy)]
struct Block {
    rows: usize,
    first_column: usize,
    columns: usize,
}

impl<'a> Frame<'a> {
    unsafe fn new(
        program: &'a Program,
        cpu: Cpu,
        cx: &'a KernelCx<'a>,
        extent: &'a Extent,
        wrong: &'a Wrong,
        base: *mut u8,
    ) -> Frame<'a> {
        // SAFETY: the scratch has `frame_bytes` for each worker.
        unsafe {
            let operands = base.cast::<Arg>();
            let starts = base.add(program.operands.len() * size_of::<Arg>()).cast::<usize>();
            let registers = base.add(tables_bytes(program));
            let frame = Frame { program, cpu, cx, extent, wrong, operands, starts, registers };
            for (slot, operand) in program.operands.iter().enumerate() {
                let (row, column) = match operand.shape {
                    Shape::One => (0, 0),
                    Shape::Row => (1, 0),
                    Shape::Column => (0, 1),
                    Shape::Full => (if program.block_rows == 1 { program.block_columns } else { extent.row }, 1),
                };
                let ptr = match operand.home {
                    Home::Register { at } | Home::LongRegister { at } => registers.add(at),
                    Home::Constant(i) => (&raw const program.constants[i]).cast::<u8>().cast_mut(),
                    Home::Access(_) => std::ptr::null_mut(),
                };
                operands.add(slot).write(Arg { ptr, row, column });
            }
            frame
        }
    }

    /// What is computed once for all blocks.
    unsafe fn prologue(&self) {
        let block = Block { rows: 1, first_column: 0, columns: self.program.block_columns.min(self.extent.row) };
        // SAFETY: only accesses without outer dimensions are read here, so that it does not matter which row is set.
        unsafe {
            self.set_rows(&[0; MOST_DIMS]);
            self.set_columns(0);
            self.execute(&self.program.prologue, block);
        }
    }

    unsafe fn block(&self, number: usize) {
        let (extent, program) = (self.extent, self.program);
        let (rest, column_block) = (number / extent.column_blocks, number % extent.column_blocks);
        let (mut rest, row_block) = (rest / extent.row_blocks, rest % extent.row_blocks);
        let first_row = row_block * program.block_rows;
        let rows = program.block_rows.min(extent.last - first_row);
        let mut at = [0; MOST_DIMS];
        if extent.outer > 0 {
            at[extent.outer - 1] = first_row;
            for dim in (0..extent.outer - 1).rev() {
                at[dim] = rest % extent.dims[dim];
                rest /= extent.dims[dim];
            }
        }
        // SAFETY: the block lies within the space.
        unsafe {
            self.set_rows(&at);
            if extent.column_blocks > 1 {
                // Columns of a row are dealt out: there is one pass, and what it needs of the row is computed for each block again.
                self.set_columns(0);
                self.execute(&program.phases[0].before, Block { rows, first_column: 0, columns: extent.row });
                let first_column = column_block * program.block_columns;
                let columns = program.block_columns.min(extent.row - first_column);
                self.columns(&program.phases[0], Block { rows, first_column, columns });
                return;
            }
            for phase in &program.phases {
                let whole = Block { rows, first_column: 0, columns: extent.row };
                if !phase.before.is_empty() {
                    self.set_columns(0);
                    self.execute(&phase.before, whole);
                }
                if phase.blocks.is_empty() {
                    continue;
                }
                if extent.row <= program.block_columns {
                    self.columns(phase, whole);
                    continue;
                }
                for first_column in (0..extent.row).step_by(program.block_columns) {
                    let columns = program.block_columns.min(extent.row - first_column);
                    self.columns(phase, Block { rows, first_column, columns });
                }
            }
        }
    }

    /// The pass over a block of columns.
    unsafe fn columns(&self, phase: &Phase, block: Block) {
        // SAFETY: the caller's contract.
        unsafe {
            self.set_columns(block.first_column);
            let mut done = 0;
            for run in &phase.runs {
                let range = run.range();
                self.execute(&phase.blocks[done..range.start], block);
                match run {
                    Run::Chain(chain) if self.chain(chain, block) => {}
                    Run::Chain(_) => self.execute(&phase.blocks[range.clone()], block),
                    Run::Native(native) => self.native(native, block),
                }
                done = range.end;
            }
            self.execute(&phase.blocks[done..], block);
        }
    }

    /// Runs machine code.
    unsafe fn native(&self, native: &Native, block: Block) {
        let Block { rows, first_column, columns } = block;
        let seamless = native.dense && columns == self.program.space.row();
        let size = if seamless { [1, rows * columns] } else { [rows, columns] };
        // SAFETY: the tables are those of the program that the code was made from, and were set for the block.
        unsafe { native.run(self.operands, self.starts, self.cx.buffers.as_ptr(), first_column, size) }
    }

    /// Runs a chain tile by tile; false when it is to be executed instead.
    unsafe fn chain(&self, chain: &Chain, block: Block) -> bool {
        // Only those of the chain are written: clearing them all would take longer than a micro-operation.
        let mut places = [const { MaybeUninit::<tile::Place>::uninit() }; chain::MOST];
        for (place, micro) in places.iter_mut().zip(&chain.micros) {
            // SAFETY: the tables have a place for each operand and access, and were set for the block.
            place.write(unsafe {
                match micro.site {
                    Site::None => tile::Place::NONE,
                    Site::Slot(slot) => {
                        let (arg, bytes) = (self.arg(slot), self.program.operands[slot].class.bytes());
                        tile::Place { ptr: arg.ptr, row: bytes * arg.row, column: bytes * arg.column }
                    }
                    Site::Access(access) => self.run_of(access, block),
                }
            });
        }
        let micros = &chain.micros[..];
        // SAFETY: as many have just been written.
        let places = unsafe { std::slice::from_raw_parts_mut(places.as_mut_ptr().cast::<tile::Place>(), micros.len()) };
        let tiles = Tiles { micros, places, rows: block.rows, columns: block.columns }.flattened();
        let (rows, columns) = (tiles.rows, tiles.columns);
        if columns < chain.least_columns() {
            return false;
        }
        // SAFETY: as above; the compiler made sure that places are stored after all that read them.
        match &chain.wide {
            Some(wide) if rows > 0 => unsafe { wide.run(places, rows, columns) },
            _ => unsafe { tile::run(self.cpu, &Tiles { micros, places, rows, columns }) },
        }
        true
    }

    /// The block's part of an access whose elements lie side by side.
    unsafe fn run_of(&self, access: usize, block: Block) -> tile::Place {
        let a = &self.program.accesses[access];
        let Place::Buffer { buffer, .. } = a.place else { unreachable!("an index has no memory") };
        let (outer, bytes) = (self.extent.outer, a.dtype.bytes() as usize);
        let across = if outer > 0 { a.strides[outer - 1] } else { 0 };
        // SAFETY: the table has a place for each access; the element lies in the buffer.
        unsafe {
            let element = *self.starts.add(access) + block.first_column;
            tile::Place { ptr: self.cx.buffers[buffer].ptr.add(element * bytes), row: across * bytes, column: bytes }
        }
    }

    /// Where accesses begin for the rows from `at` on.
    unsafe fn set_rows(&self, at: &[usize; MOST_DIMS]) {
        let outer = self.extent.outer;
        for (i, access) in self.program.accesses.iter().enumerate() {
            let base = match access.place {
                Place::Buffer { offset, .. } => offset,
                Place::Index => 0,
            };
            let mut along: usize = access.strides[..outer].iter().zip(at).map(|(s, i)| s * i).sum();
            if self.extent.origin != [0; 2] {
                along += access.strides.iter().zip(self.extent.origin).map(|(s, i)| s * i).sum::<usize>();
            }
            // SAFETY: the table has a place for each access.
            unsafe { *self.starts.add(i) = base + along };
        }
    }

    /// Sets the operands that depend on the block.
    unsafe fn set_columns(&self, first_column: usize) {
        let outer = self.extent.outer;
        for &slot in &self.program.moving {
            let operand = &self.program.operands[slot];
            // SAFETY: the tables have a place for each operand and access; operands that are used where they are lie within their buffers.
            unsafe {
                match operand.home {
                    Home::Access(i) => {
                        let access = &self.program.accesses[i];
                        let Place::Buffer { buffer, .. } = access.place else {
                            unreachable!("an index is in a register")
                        };
                        let across = if outer > 0 { access.strides[outer - 1] } else { 0 };
                        let columns = matches!(operand.shape, Shape::Column | Shape::Full);
                        let element = *self.starts.add(i) + if columns { first_column } else { 0 };
                        let ptr = self.cx.buffers[buffer].ptr.add(element * access.dtype.bytes() as usize);
                        *self.operands.add(slot) = Arg { ptr, row: across, column: columns as usize };
                    }
                    Home::LongRegister { at } => {
                        (*self.operands.add(slot)).ptr = self.registers.add(at + first_column * operand.class.bytes());
                    }
                    Home::Register { .. } | Home::Constant(_) => unreachable!("it stays where it is"),
                }
            }
        }
    }

    unsafe fn arg(&self, slot: Slot) -> Arg {
        // SAFETY: the table has a place for each operand.
        unsafe { *self.operands.add(slot) }
    }

    unsafe fn execute(&self, list: &[Instruction], block: Block) {
        for instruction in list {
            // SAFETY: the caller's contract: operands are set for the block; the compiler made sure that shapes and classes fit, and that
            // no destination is an operand.
            unsafe {
                match instruction.op {
                    Op::Load(access) => self.load(access, self.arg(instruction.to), instruction.shape, block),
                    Op::Store(access) => self.store(access, instruction, block),
                    Op::Transfer { load, store } => self.transfer(load, store, block),
                    Op::Reduce(class, op) => {
                        let rows = self.rows(instruction, block);
                        match class {
                            Class::F32 => reduce_rows::<f32>(self.cpu, op, &rows),
                            Class::F64 => reduce_rows::<f64>(self.cpu, op, &rows),
                            Class::I32 => reduce_rows::<i32>(self.cpu, op, &rows),
                            Class::Bool => unreachable!("a reduction of bools"),
                        }
                    }
                    op => self.compute(op, &self.shaped(instruction, block)),
                }
            }
        }
    }

    /// The rows that an instruction reduces.
    unsafe fn rows(&self, instruction: &Instruction, block: Block) -> Rows {
        // SAFETY: as above.
        let (from, to) = unsafe { (self.arg(instruction.args[0]), self.arg(instruction.to)) };
        Rows {
            from: from.ptr,
            stride: from.row,
            to: to.ptr,
            rows: block.rows,
            columns: block.columns,
            length: self.extent.row,
            resume: block.first_column > 0,
        }
    }

    /// The loop of an instruction.
    unsafe fn shaped(&self, instruction: &Instruction, block: Block) -> Loop {
        // SAFETY: as above.
        let (to, args) = unsafe { (self.arg(instruction.to), instruction.args.map(|a| self.arg(a))) };
        match instruction.shape {
            Shape::Full => Loop { rows: block.rows, columns: block.columns, to, args }.flattened(),
            Shape::Column => Loop { rows: 1, columns: block.columns, to, args },
            // Rows side by side are like columns.
            Shape::Row => {
                let turned = |a: Arg| Arg { ptr: a.ptr, row: 0, column: a.row.min(1) };
                Loop { rows: 1, columns: block.rows, to: turned(to), args: args.map(turned) }
            }
            Shape::One => Loop { rows: 1, columns: 1, to, args },
        }
    }

    unsafe fn compute(&self, op: Op, l: &Loop) {
        let cpu = self.cpu;
        // SAFETY: as above.
        unsafe {
            match op {
                Op::Unary(Class::F32, op) => tile::one(cpu, chain::unary(op), &l.to, &l.args[..1], l.rows, l.columns),
                Op::Unary(Class::F64, op) => ops::unary_f64(cpu, op, l),
                Op::Unary(Class::I32, op) => ops::unary_i32(cpu, op, l),
                Op::Unary(Class::Bool, StepOp::Not) => ops::not(cpu, l),
                Op::Binary(Class::F32, op) => {
                    tile::one(cpu, chain::binary(op).0, &l.to, &l.args[..2], l.rows, l.columns)
                }
                Op::Binary(Class::F64, op) => ops::binary_f64(cpu, op, l),
                Op::Binary(Class::I32, op) => ops::binary_i32(cpu, op, l),
                Op::Binary(Class::Bool, op) => ops::binary_bool(cpu, op, l),
                Op::Compare(class, op) => ops::compare(cpu, class, op, l),
                Op::Select(class) => ops::select(cpu, class, l),
                Op::Convert(from, to) => ops::convert(cpu, from, to, l),
                Op::Copy(class) => ops::convert(cpu, class, class, l),
                Op::Join => ops::join(cpu, l),
                Op::Lower => ops::lower(cpu, l),
                Op::Mark => ops::mark(cpu, l),
                Op::Round => tile::one(cpu, Code::Round, &l.to, &l.args[..1], l.rows, l.columns),
                op => unreachable!("{op:?} is not a loop over elements"),
            }
        }
    }

    unsafe fn load(&self, access: usize, to: Arg, shape: Shape, block: Block) {
        let strides = [if shape == Shape::Row { 1 } else { to.row }, 1];
        let a = &self.program.accesses[access];
        let at = |column: usize| to.ptr.wrapping_add(column * bytes_of(a.dtype));
        // SAFETY: the register has room for the block; accesses lie within their buffers.
        unsafe {
            match a.through {
                None => self.segments([access], shape, block, &|[element], [along], column, rows, columns| {
                    let from = self.memory(access, element);
                    let (to, to_strides) = (at(column), strides);
                    let r = Rectangle { from, from_strides: along, to, to_strides, rows, columns };
                    match (a.place, a.dtype) {
                        (Place::Index, _) => fill_index(self.cpu, from as usize, &r),
                        (_, dtype) => copy(self.cpu, loading(dtype), &r),
                    }
                }),
                Some(through) => {
                    let (table, index) = self.table(access, loading(a.dtype), &through);
                    let both = [access, through.index];
                    self.segments(both, shape, block, &|elements, along, column, rows, columns| {
                        let first_wrong = table.look_up(index, elements, along, at(column), strides, [rows, columns]);
                        self.wrong.add(access, first_wrong);
                    });
                }
            }
        }
    }

    /// What a load looks up, and its index.
    unsafe fn table(&self, access: usize, how: Move, through: &Through) -> (Table, *const i32) {
        // SAFETY: accesses lie within their buffers.
        let (data, index) = unsafe { (self.memory(access, 0), self.memory(through.index, 0).cast::<i32>()) };
        (Table::new(self.cpu, how, data, self.program.accesses[access].dtype, through), index)
    }

    unsafe fn transfer(&self, load: usize, store: usize, block: Block) {
        let a = &self.program.accesses[load];
        let through = a.through.expect("only what is looked up is transferred");
        // SAFETY: as for loads and stores; no store shares memory with what is looked up.
        unsafe {
            let (table, index) = self.table(load, plain(a.dtype), &through);
            let all = [load, through.index, store];
            self.segments(all, Shape::Full, block, &|[from, at, to],
                                                     [of_table, of_index, of_store],
                                                     _,
                                                     rows,
                                                     columns| {
                let to = self.memory(store, to).cast_mut();
                let size = [rows, columns];
                let first_wrong = table.look_up(index, [from, at], [of_table, of_index], to, of_store, size);
                self.wrong.add(load, first_wrong);
            });
        }
    }

    unsafe fn store(&self, access: usize, instruction: &Instruction, block: Block) {
        // SAFETY: as above.
        let from = unsafe { self.arg(instruction.to) };
        let dtype = self.program.accesses[access].dtype;
        let from_strides = [from.row, from.column];
        // SAFETY: the access lies within its buffer.
        unsafe {
            self.segments([access], instruction.shape, block, &|[element], [along], column, rows, columns| {
                let to = self.memory(access, element).cast_mut();
                let from = from.ptr.add(column * from_strides[1] * bytes_of(dtype));
                let r = Rectangle { from, from_strides, to, to_strides: along, rows, columns };
                copy(self.cpu, storing(dtype), &r);
            });
        }
    }

    /// An element of an access in memory; for an index its value.
    unsafe fn memory(&self, access: usize, element: usize) -> *const u8 {
        let a = &self.program.accesses[access];
        match a.place {
            Place::Index => std::ptr::without_provenance(element),
            // SAFETY: the element lies in the buffer (the caller's contract).
            Place::Buffer { buffer, .. } => unsafe {
                self.cx.buffers[buffer].ptr.add(element * a.dtype.bytes() as usize).cast_const()
            },
        }
    }

    /// Calls `each(first elements, strides of rows and columns, first column of the block, rows, columns)` for segments that cover the block's part
    /// of accesses. For an index, the first element is the first value.
    unsafe fn segments<const N: usize>(
        &self,
        accesses: [usize; N],
        shape: Shape,
        block: Block,
        each: &dyn Fn([usize; N], [[usize; 2]; N], usize, usize, usize),
    ) {
        let outer = self.extent.outer;
        let strides = accesses.map(|a| &self.program.accesses[a].strides[..]);
        let across = strides.map(|s| if outer > 0 { s[outer - 1] } else { 0 });
        // SAFETY: the table has a place for each access.
        let start = accesses.map(|a| unsafe { *self.starts.add(a) });
        match shape {
            Shape::One => each(start, [[0, 0]; N], 0, 1, 1),
            Shape::Row => each(start, across.map(|a| [a, 0]), 0, block.rows, 1),
            Shape::Column | Shape::Full => {
                let rows = if shape == Shape::Full { block.rows } else { 1 };
                let dims = &self.extent.dims[outer..self.program.space.dims.len()];
                let inner_dim = dims.len() - 1;
                let run = dims[inner_dim];
                let along = std::array::from_fn(|i| [across[i], strides[i][outer + inner_dim]]);
                let end = block.first_column + block.columns;
                let mut column = block.first_column;
                while column < end {
                    // The run of the innermost dimension that the column is in.
                    let (mut rest, inner) = (column / run, column % run);
                    let mut elements: [usize; N] = std::array::from_fn(|i| start[i] + inner * along[i][1]);
                    for dim in (0..inner_dim).rev() {
                        let at = rest % dims[dim];
                        (0..N).for_each(|i| elements[i] += at * strides[i][outer + dim]);
                        rest /= dims[dim];
                    }
                    let length = (run - inner).min(end - column);
                    each(elements, along, column - block.first_column, rows, length);
                    column += length;
                }
            }
        }
    }
}

/// Bytes of an element in a register.
fn bytes_of(dtype: DType) -> usize {
    super::compile::class(dtype).bytes()
}

/// From memory to a register.
fn loading(dtype: DType) -> Move {
    match dtype {
        DType::Bf16 => Move::Widen,
        DType::I16 => Move::WidenInt,
        dtype => plain(dtype),
    }
}

/// From a register to memory.
fn storing(dtype: DType) -> Move {
    match dtype {
        DType::Bf16 => Move::Narrow,
        DType::I16 => Move::NarrowInt,
        dtype => plain(dtype),
    }
}

fn plain(dtype: DType) -> Move {
    match dtype.bytes() {
        1 => Move::Bytes1,
        2 => Move::Bytes2,
        4 => Move::Bytes4,
        _ => Move::Bytes8,
    }
}
