//! The loops of a run: over the rows of a block, and over its columns, four at a time and then one by one.

use super::super::ops::Arg;
use super::super::program::{Class, Home, Instruction, Op, Program, Slot};
use super::super::space::{Place, Shape};
use super::engine::PARAMETERS;
use super::memory::memory;
use super::values::{Columns, Lower, Val};
use crate::kernels::Buf;
use cranelift_codegen::ir::condcodes::IntCC;
use cranelift_codegen::ir::{Block, Function, InstBuilder, Value, types};
use cranelift_frontend::{FunctionBuilder, FunctionBuilderContext};
use forebay_plan::DType;
use rustc_hash::FxHashMap as Map;
use std::mem::offset_of;

/// Where memory is that instructions read or write.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Site {
    /// Of an operand.
    Slot(Slot),
    /// Of an access that is loaded or stored.
    Access(usize),
}

/// How a site is walked.
#[derive(Clone, Copy)]
struct Walk {
    /// The address of the block's first element; of an index its value.
    base: Value,
    /// Bytes from one row to the next; of an index elements.
    row: Value,
    /// The same from one column to the next.
    column: i64,
}

/// A site in a row.
#[derive(Clone, Copy)]
struct InRow {
    start: Value,
    column: i64,
}

/// Columns are gone through in the first, as long as there are as many, and then in the others.
type Widths = [Columns; 3];

/// Rows below this length have fewer registers side by side: the next row is there to hide latencies.
const SHORT: usize = 64;

fn widths(program: &Program, list: &[Instruction]) -> Widths {
    let is_double = |slot: &Slot| program.operands[*slot].class == Class::F64;
    let doubles = list.iter().any(|i| is_double(&i.to) || i.args.iter().any(is_double));
    // What has too many registers keeps them in memory.
    let n = if doubles || program.space.row() < SHORT { 2 } else { 4 };
    [Columns::Vectors(n), Columns::Vectors(1), Columns::One]
}

/// Makes the function of a run.
pub(super) fn build(function: &mut Function, program: &Program, list: &[Instruction], kept: &[Slot]) {
    let mut context = FunctionBuilderContext::new();
    let mut b = FunctionBuilder::new(function, &mut context);
    let entry = b.create_block();
    b.append_block_params_for_function_params(entry);
    b.switch_to_block(entry);
    let parameters: [Value; PARAMETERS] = b.block_params(entry).try_into().expect("the signature of an entry");
    let mut run = Run { program, list, kept, widths: widths(program, list), walks: Map::default() };
    run.find_sites(&mut b, parameters);
    let [.., rows, columns] = parameters;
    let zero = b.ins().iconst(types::I64, 0);
    counted(&mut b, zero, rows, 1, |b, row| {
        let row = run.row(b, row);
        let zero = b.ins().iconst(types::I64, 0);
        run.widths.iter().fold(zero, |done, &width| {
            counted(b, done, columns, width.count() as i64, |b, column| row.columns(b, width, column))
        });
    });
    b.ins().return_(&[]);
    b.seal_all_blocks();
    b.finalize();
}

/// `for i in (first..).step_by(step)`, while a whole step lies below `end`; gives the first `i` that was left out. Goes on in the block behind the loop.
fn counted(
    b: &mut FunctionBuilder,
    first: Value,
    end: Value,
    step: i64,
    body: impl FnOnce(&mut FunctionBuilder, Value),
) -> Value {
    let [head, inside, after] = [(); 3].map(|()| b.create_block());
    let i = b.append_block_param(head, types::I64);
    jump(b, head, first);
    b.switch_to_block(head);
    let next = b.ins().iadd_imm(i, step);
    let fits = b.ins().icmp(IntCC::UnsignedLessThanOrEqual, next, end);
    b.ins().brif(fits, inside, &[], after, &[]);
    b.switch_to_block(inside);
    body(b, i);
    jump(b, head, next);
    b.switch_to_block(after);
    i
}

fn jump(b: &mut FunctionBuilder, to: Block, value: Value) {
    b.ins().jump(to, &[value.into()]);
}

struct Run<'p> {
    program: &'p Program,
    list: &'p [Instruction],
    kept: &'p [Slot],
    widths: Widths,
    walks: Map<Site, Walk>,
}

/// What a class is in memory that only programs see.
fn dtype_of(class: Class) -> DType {
    match class {
        Class::F32 => DType::F32,
        Class::F64 => DType::F64,
        Class::I32 => DType::I32,
        Class::Bool => DType::Bool,
    }
}

fn is_wide(shape: Shape) -> bool {
    matches!(shape, Shape::Column | Shape::Full)
}

/// Operands that an instruction reads.
pub(super) fn reads(instruction: &Instruction) -> &[Slot] {
    match instruction.op {
        Op::Load(_) | Op::Transfer { .. } => &[],
        Op::Store(_) => &instruction.args[..1],
        _ => &instruction.args,
    }
}

impl<'p> Run<'p> {
    /// Is a result written to memory?
    fn is_stored(&self, slot: Slot) -> bool {
        match self.program.operands[slot].home {
            Home::Register { .. } => self.kept.contains(&slot),
            _ => true,
        }
    }

    fn find_sites(&mut self, b: &mut FunctionBuilder, parameters: [Value; PARAMETERS]) {
        for instruction in self.list {
            for &slot in reads(instruction) {
                self.add_slot(b, parameters, slot);
            }
            match instruction.op {
                Op::Load(access) | Op::Store(access) => self.add_access(b, parameters, access),
                _ => {}
            }
            if !matches!(instruction.op, Op::Store(_)) && self.is_stored(instruction.to) {
                self.add_slot(b, parameters, instruction.to);
            }
        }
    }

    fn add_slot(&mut self, b: &mut FunctionBuilder, [operands, ..]: [Value; PARAMETERS], slot: Slot) {
        let operand = &self.program.operands[slot];
        if matches!(operand.home, Home::Constant(_)) || self.walks.contains_key(&Site::Slot(slot)) {
            return;
        }
        let bytes = operand.class.bytes() as i64;
        let at = |field: usize| (slot * size_of::<Arg>() + field) as i32;
        let base = b.ins().load(types::I64, memory(), operands, at(offset_of!(Arg, ptr)));
        let row = b.ins().load(types::I64, memory(), operands, at(offset_of!(Arg, row)));
        let row = b.ins().imul_imm(row, bytes);
        let column = if is_wide(operand.shape) { bytes } else { 0 };
        self.walks.insert(Site::Slot(slot), Walk { base, row, column });
    }

    fn add_access(&mut self, b: &mut FunctionBuilder, parameters: [Value; PARAMETERS], access: usize) {
        let [_, starts, buffers, first_column, ..] = parameters;
        if self.walks.contains_key(&Site::Access(access)) {
            return;
        }
        let (space, a) = (&self.program.space, &self.program.accesses[access]);
        let (outer, inner) = a.strides.split_at(space.outer());
        let (across, along) = (outer.last().map_or(0, |&s| s as i64), inner[0] as i64);
        let start = b.ins().load(types::I64, memory(), starts, (access * size_of::<usize>()) as i32);
        let skipped = b.ins().imul_imm(first_column, along);
        let element = b.ins().iadd(start, skipped);
        let (base, bytes) = match a.place {
            Place::Index => (element, 1),
            Place::Buffer { buffer, .. } => {
                let bytes = a.dtype.bytes() as i64;
                let at = (buffer * size_of::<Buf>() + offset_of!(Buf, ptr)) as i32;
                let ptr = b.ins().load(types::I64, memory(), buffers, at);
                let skipped = b.ins().imul_imm(element, bytes);
                (b.ins().iadd(ptr, skipped), bytes)
            }
        };
        let row = b.ins().iconst(types::I64, across * bytes);
        self.walks.insert(Site::Access(access), Walk { base, row, column: along * bytes });
    }

    /// Sites in a row, and what is the same for all of its columns.
    fn row(&self, b: &mut FunctionBuilder, row: Value) -> Row<'_> {
        let mut sites = Map::default();
        let mut all: Vec<_> = self.walks.iter().collect();
        // In order of their making, so that code does not depend on hashes.
        all.sort_unstable_by_key(|(_, walk)| walk.base);
        for &(&site, walk) in &all {
            let skipped = b.ins().imul(row, walk.row);
            let start = b.ins().iadd(walk.base, skipped);
            sites.insert(site, InRow { start, column: walk.column });
        }
        let mut same = Map::default();
        for &(&site, _) in &all {
            let Site::Slot(slot) = site else { continue };
            let operand = &self.program.operands[slot];
            if is_wide(operand.shape) {
                continue;
            }
            let at = sites[&site].start;
            let one = Lower { b, columns: Columns::One }.load(dtype_of(operand.class), at).scalar();
            let values = self.widths.map(|columns| Lower { b, columns }.splat(one, operand.class));
            same.insert(slot, values);
        }
        Row { run: self, sites, same }
    }
}

/// A row of a block.
struct Row<'r> {
    run: &'r Run<'r>,
    sites: Map<Site, InRow>,
    /// Values for columns of each width.
    same: Map<Slot, [Val; 3]>,
}

impl Row<'_> {
    /// All instructions for the columns from one on.
    fn columns(&self, b: &mut FunctionBuilder, columns: Columns, column: Value) {
        let mut at = Here { row: self, lower: Lower { b, columns }, column, values: Map::default() };
        self.run.list.iter().for_each(|instruction| at.instruction(instruction));
    }
}

/// Some columns of a row.
struct Here<'h, 'a, 'b> {
    row: &'h Row<'h>,
    lower: Lower<'a, 'b>,
    column: Value,
    /// What instructions have made so far.
    values: Map<Slot, Val>,
}

impl Here<'_, '_, '_> {
    fn address(&mut self, site: Site) -> Value {
        let InRow { start, column } = self.row.sites[&site];
        let ins = self.lower.b.ins();
        match column {
            0 => start,
            n if n.count_ones() == 1 => {
                let skipped = ins.ishl_imm(self.column, i64::from(n.trailing_zeros()));
                self.lower.b.ins().iadd(start, skipped)
            }
            n => {
                let skipped = ins.imul_imm(self.column, n);
                self.lower.b.ins().iadd(start, skipped)
            }
        }
    }

    fn operand(&mut self, slot: Slot) -> Val {
        if let Some(&value) = self.values.get(&slot) {
            return value;
        }
        let operand = &self.row.run.program.operands[slot];
        let value = match operand.home {
            Home::Constant(i) => self.lower.constant(self.row.run.program.constants[i], operand.class),
            _ => match self.row.same.get(&slot) {
                Some(values) => {
                    let width = self.row.run.widths.iter().position(|&width| width == self.lower.columns);
                    values[width.expect("one of the widths")]
                }
                None => {
                    let at = self.address(Site::Slot(slot));
                    self.lower.load(dtype_of(operand.class), at)
                }
            },
        };
        self.values.insert(slot, value);
        value
    }

    fn instruction(&mut self, instruction: &Instruction) {
        let [a, b, c] = instruction.args;
        let value = match instruction.op {
            Op::Load(access) => self.load(access),
            Op::Store(access) => {
                let value = self.operand(a);
                return self.store(access, value);
            }
            Op::Unary(class, op) => {
                let a = self.operand(a);
                self.lower.unary(class, op, a)
            }
            Op::Binary(class, op) => {
                let (a, b) = (self.operand(a), self.operand(b));
                self.lower.binary(class, op, a, b)
            }
            Op::Compare(class, op) => {
                let (a, b) = (self.operand(a), self.operand(b));
                self.lower.compare(class, op, a, b)
            }
            Op::Select(class) => {
                let (a, b, c) = (self.operand(a), self.operand(b), self.operand(c));
                self.lower.select(class, a, b, c)
            }
            Op::Convert(from, to) => {
                let a = self.operand(a);
                self.lower.convert(from, to, a)
            }
            Op::Copy(_) => self.operand(a),
            Op::Round => {
                let a = self.operand(a);
                self.lower.round(a)
            }
            Op::Join => {
                let (a, b, c) = (self.operand(a), self.operand(b), self.operand(c));
                self.lower.join(a, b, c)
            }
            Op::Lower => {
                let a = self.operand(a);
                self.lower.lower(a)
            }
            Op::Mark => {
                let (a, b) = (self.operand(a), self.operand(b));
                self.lower.mark(a, b)
            }
            op @ (Op::Reduce(..) | Op::Transfer { .. }) => unreachable!("{op:?} is not for a run"),
        };
        let to = instruction.to;
        self.values.insert(to, value);
        if self.row.run.is_stored(to) {
            let at = self.address(Site::Slot(to));
            self.lower.store(dtype_of(self.row.run.program.operands[to].class), value, at);
        }
    }

    fn load(&mut self, access: usize) -> Val {
        let a = &self.row.run.program.accesses[access];
        let (dtype, class) = (a.dtype, super::super::compile::class(a.dtype));
        let InRow { start, column } = self.row.sites[&Site::Access(access)];
        if a.place == Place::Index {
            return self.index(start, column);
        }
        let at = self.address(Site::Access(access));
        if column == 0 {
            let one = self.lower.one().load(dtype, at).scalar();
            return self.lower.splat(one, class);
        }
        if column == dtype.bytes() as i64 || self.lower.columns == Columns::One {
            return self.lower.load(dtype, at);
        }
        self.lower.gather(dtype, at, column)
    }

    /// `start + column·stride` of each column, as i32.
    fn index(&mut self, start: Value, stride: i64) -> Val {
        let skipped = self.lower.b.ins().imul_imm(self.column, stride);
        let first = self.lower.b.ins().iadd(start, skipped);
        let first = self.lower.b.ins().ireduce(types::I32, first);
        self.lower.counting(first, stride as i32)
    }

    fn store(&mut self, access: usize, value: Val) {
        let dtype = self.row.run.program.accesses[access].dtype;
        let column = self.row.sites[&Site::Access(access)].column;
        let at = self.address(Site::Access(access));
        if column == dtype.bytes() as i64 || self.lower.columns == Columns::One {
            return self.lower.store(dtype, value, at);
        }
        self.lower.scatter(dtype, value, at, column);
    }
}
