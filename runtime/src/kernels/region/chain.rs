//! Chains: instructions of a pass that follow each other and work on f32 or conditions, element by element, are done together for one small tile after the
//! other. The number just computed stays in vector registers for the instructions after it, and so does the condition; only what others read as well is
//! written to its place.
//!
//! A chain says nothing that its instructions do not say: where rows are too short for tiles, these are executed one by one, with the same bits.

use super::pieces;
use super::program::{Class, Home, Instruction, Op, Phase, Program, Run, Slot};
use super::space::{Place, Shape};
use super::tile;
use super::wide::{self, Wide};
use crate::kernels::cpu::Cpu;
use forebay_plan::{DType, StepOp};
use std::ops::Range;

/// Micro-operations of a chain at most: their sites are on the stack.
pub(super) const MOST: usize = 192;
/// Micro-operations that an instruction becomes at most: two to load, one to compute, one to store.
const MICROS: usize = 4;
/// Fewer instructions are faster one by one: their loops dispatch once for a block, and pass over the first-level cache few times.
const LEAST: usize = 3;
/// The same for machine code, which has no dispatch: a load and a store.
pub(super) const LEAST_WIDE: usize = 2;

/// Blocks where everything is one chain that is machine code are so many times as large: it goes over rows and columns itself, and whatever is done for each block is done
/// less often.
const ENLARGED: usize = 4;

/// A run of instructions of a pass.
#[derive(Clone, Debug)]
pub(super) struct Chain {
    /// Its instructions: `first..end` of the list.
    pub first: usize,
    pub end: usize,
    pub micros: Vec<Micro>,
    /// Its machine code, where there are registers of 512 bits.
    pub wide: Option<Wide>,
}

/// What is done with what is in registers: the *accumulator* `a`, a number for each column, and the *condition* `m`, a truth for each.
#[derive(Clone, Copy, Debug)]
pub(super) struct Micro {
    pub code: Code,
    pub from: From,
    pub site: Site,
}

/// What becomes of the accumulator or condition; `b` and `n` are an operand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Code {
    /// `a = b`
    Load,
    /// Nothing, but `a` is stored.
    Store,
    /// The same, rounded to bf16.
    StoreBf16,
    Neg,
    Abs,
    Sign,
    Exp,
    Log,
    Tanh,
    Sin,
    Cos,
    Sqrt,
    Rsqrt,
    Floor,
    /// `a` rounded to bf16.
    Round,
    Add,
    Sub,
    /// `a = b - a`
    SubFrom,
    Mul,
    Div,
    /// `a = b / a`
    DivInto,
    Rem,
    /// The remainder of `b` by `a`.
    RemInto,
    Pow,
    /// `b` to the power of `a`.
    PowOf,
    Min,
    /// The smaller of `b` and `a`, in this order.
    MinOf,
    Max,
    /// The larger of `b` and `a`, in this order.
    MaxOf,
    /// `m = a == b`
    Eq,
    Ne,
    Lt,
    Le,
    Gt,
    Ge,
    /// `m = a != 0`
    Truth,
    /// `m = n`
    LoadTruth,
    /// Nothing, but `m` is stored, as bytes.
    StoreTruth,
    Not,
    And,
    Or,
    /// `a = m ? 1 : 0`
    Number,
    /// `a = m ? a : b`
    Select,
    /// `a = m ? b : a`
    SelectOf,
}

/// Where the operand is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum From {
    /// It is the accumulator or the condition, or there is none.
    Accumulator,
    /// A value for each column.
    Columns,
    /// One for all columns.
    Row,
    /// bf16 for each column.
    Bf16,
    /// A condition for each column, as bytes.
    Truths,
    /// One for all columns.
    Truth,
}

/// A place that is read or written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Site {
    None,
    Slot(Slot),
    /// Contiguous along rows.
    Access(usize),
}

impl Chain {
    /// Rows that are shorter are executed instruction by instruction.
    pub fn least_columns(&self) -> usize {
        if self.wide.is_some() { wide::LEAST_COLUMNS } else { tile::LEAST_COLUMNS }
    }

    /// Can it be done as a chain? Rows must be long enough, or go on seamlessly in everything that it touches.
    pub fn has_columns(&self, program: &Program) -> bool {
        program.space.row() >= self.least_columns() || is_seamless(program, &self.micros)
    }
}

/// Does a row follow the one before in everything that a chain touches?
fn is_seamless(program: &Program, micros: &[Micro]) -> bool {
    micros.iter().all(|micro| match micro.site {
        Site::None => true,
        Site::Slot(slot) => is_dense(program, slot),
        Site::Access(access) => program.across(access) == program.space.row(),
    })
}

/// Does an operand's row follow the one before, or is it one number for all?
pub(super) fn is_dense(program: &Program, slot: Slot) -> bool {
    let operand = &program.operands[slot];
    match (operand.home, operand.shape) {
        (_, Shape::One) => true,
        (Home::Access(access), Shape::Full) => program.across(access) == program.space.row(),
        (_, shape) => shape == Shape::Full,
    }
}

/// Finds the chains of all passes.
pub(super) fn find(mut program: Program, cpu: Cpu) -> Program {
    for phase in 0..program.phases.len() {
        let chains = chains_of(&program, phase, cpu).into_iter().map(Run::Chain).collect();
        program.phases[phase].runs = chains;
    }
    if is_only_code(&program) {
        // A block is a part of a row, or some rows.
        let wide = program.block_columns < program.space.row();
        *(if wide { &mut program.block_columns } else { &mut program.block_rows }) *= ENLARGED;
    }
    program
}

/// Is there nothing but one chain, as machine code, over rows that are long enough for it? What only that reads it keeps in registers.
fn is_only_code(program: &Program) -> bool {
    let [Phase { blocks, runs, .. }] = &program.phases[..] else { return false };
    let [Run::Chain(chain)] = &runs[..] else { return false };
    let whole = chain.end - chain.first == blocks.len() && program.space.row() >= chain.least_columns();
    whole && chain.wide.is_some()
}

fn chains_of(program: &Program, phase: usize, cpu: Cpu) -> Vec<Chain> {
    let list = &program.phases[phase].blocks;
    let mut chains = vec![];
    let mut first = 0;
    while first < list.len() {
        let fit = |i: &&Instruction| is_for_tiles(program, i);
        let end = first + list[first..].iter().take(MOST / MICROS).take_while(fit).count();
        let ranges = pieces::cut(&list[first..end]);
        let is_whole = ranges.len() == 1;
        let ranges = ranges.into_iter().map(|r| first + r.start..first + r.end);
        let pieces: Vec<Chain> = ranges.filter_map(|range| chain_of(program, phase, range, cpu)).collect();
        // Only machine code waits for one operation after the other; what has dispatch is better whole.
        if is_whole || pieces.iter().all(|piece| piece.wide.is_some()) {
            chains.extend(pieces);
        } else {
            chains.extend(chain_of(program, phase, first..end, cpu));
        }
        first = end.max(first + 1);
    }
    chains
}

/// The chain of some instructions that can be one; nothing where they are too few.
fn chain_of(program: &Program, phase: usize, range: Range<usize>, cpu: Cpu) -> Option<Chain> {
    if range.len() < LEAST_WIDE {
        return None;
    }
    let mut builder = Builder { program, micros: vec![], number: None, truth: None };
    program.phases[phase].blocks[range.clone()].iter().for_each(|i| builder.push(i));
    let micros = builder.needed(phase, range.clone());
    let outer = |slot: Slot| is_outer(program, slot, phase, range.clone());
    let columns = if is_seamless(program, &micros) { usize::MAX } else { program.space.row() };
    let wide = wide::compile(&micros, &outer, columns, cpu);
    let is_worth = wide.is_some() || range.len() >= LEAST;
    is_worth.then(|| Chain { first: range.start, end: range.end, micros, wide })
}

/// Is there a micro-operation for an instruction?
fn is_for_tiles(program: &Program, instruction: &Instruction) -> bool {
    instruction.shape == Shape::Full
        && match instruction.op {
            Op::Unary(Class::F32, _) | Op::Binary(Class::F32, _) | Op::Compare(Class::F32, _) => true,
            Op::Unary(Class::Bool, _) | Op::Binary(Class::Bool, _) | Op::Select(Class::F32) | Op::Round => true,
            Op::Convert(from, to) => [from, to].iter().all(|c| matches!(c, Class::F32 | Class::Bool)),
            Op::Load(access) => runs_along(program, access) && program.accesses[access].dtype == DType::Bf16,
            Op::Store(access) => {
                runs_along(program, access)
                    && matches!(program.operands[instruction.to].class, Class::F32 | Class::Bool)
            }
            _ => false,
        }
}

/// Is an access to a buffer whose elements lie side by side along rows, where no index picks them?
fn runs_along(program: &Program, access: usize) -> bool {
    let (space, access) = (&program.space, &program.accesses[access]);
    let picked = access.place == Place::Index || access.through.is_some();
    !picked && space.row_dims == 1 && access.strides[space.outer()..] == [1]
}

struct Builder<'p> {
    program: &'p Program,
    micros: Vec<Micro>,
    /// What the accumulator holds.
    number: Option<Slot>,
    /// What the condition holds.
    truth: Option<Slot>,
}

impl Builder<'_> {
    /// Adds an instruction. What it computes is stored, needed or not.
    fn push(&mut self, instruction: &Instruction) {
        let [a, b, c] = instruction.args;
        match instruction.op {
            Op::Unary(Class::F32, op) => self.unary(unary(op), a),
            Op::Round => self.unary(Code::Round, a),
            Op::Binary(Class::F32, op) => self.binary(binary(op), a, b),
            Op::Compare(_, op) => self.binary(comparison(op), a, b),
            Op::Unary(_, _) => self.unary(Code::Not, a),
            Op::Binary(_, op) => {
                let code = if op == StepOp::And { Code::And } else { Code::Or };
                self.binary((code, code), a, b);
            }
            Op::Select(_) => {
                self.hold(a);
                self.binary((Code::Select, Code::SelectOf), b, c);
            }
            Op::Convert(Class::F32, Class::Bool) => self.unary(Code::Truth, a),
            Op::Convert(Class::Bool, Class::F32) => self.unary(Code::Number, a),
            Op::Convert(..) => self.hold(a),
            Op::Load(access) => self.add(Code::Load, From::Bf16, Site::Access(access)),
            Op::Store(access) => {
                self.hold(a);
                let code = match self.program.accesses[access].dtype {
                    DType::Bf16 => Code::StoreBf16,
                    DType::Bool => Code::StoreTruth,
                    _ => Code::Store,
                };
                return self.add(code, From::Accumulator, Site::Access(access));
            }
            op => unreachable!("{op:?} is not for tiles"),
        }
        let to = instruction.to;
        *self.held(to) = Some(to);
        let code = if self.is_truth(to) { Code::StoreTruth } else { Code::Store };
        self.add(code, From::Accumulator, Site::Slot(to));
    }

    fn is_truth(&self, slot: Slot) -> bool {
        self.program.operands[slot].class == Class::Bool
    }

    /// What the registers hold in which an operand would be.
    fn held(&mut self, slot: Slot) -> &mut Option<Slot> {
        if self.is_truth(slot) { &mut self.truth } else { &mut self.number }
    }

    fn add(&mut self, code: Code, from: From, site: Site) {
        self.micros.push(Micro { code, from, site });
    }

    fn operand(&mut self, code: Code, slot: Slot) {
        let wide = matches!(self.program.operands[slot].shape, Shape::Column | Shape::Full);
        let from = match (self.is_truth(slot), wide) {
            (false, true) => From::Columns,
            (false, false) => From::Row,
            (true, true) => From::Truths,
            (true, false) => From::Truth,
        };
        self.add(code, from, Site::Slot(slot));
    }

    fn hold(&mut self, slot: Slot) {
        if *self.held(slot) != Some(slot) {
            let code = if self.is_truth(slot) { Code::LoadTruth } else { Code::Load };
            self.operand(code, slot);
            *self.held(slot) = Some(slot);
        }
    }

    fn unary(&mut self, code: Code, a: Slot) {
        self.hold(a);
        self.add(code, From::Accumulator, Site::None);
    }

    /// The code for `a op b`, and that for `b op a`.
    fn binary(&mut self, (code, turned): (Code, Code), a: Slot, b: Slot) {
        if *self.held(b) == Some(b) && a != b {
            return self.operand(turned, a);
        }
        self.hold(a);
        if a == b {
            self.add(code, From::Accumulator, Site::None);
        } else {
            self.operand(code, b);
        }
    }

    /// The micro-operations without stores that nobody needs: of registers that are read neither in the chain, before the next store there, nor
    /// outside of it.
    fn needed(self, phase: usize, chain: Range<usize>) -> Vec<Micro> {
        let Builder { program, micros, .. } = self;
        let read_outside = |slot: Slot| is_outer(program, slot, phase, chain.clone());
        let stores = |micro: &Micro| matches!(micro.code, Code::Store | Code::StoreTruth);
        let is_needed = |at: usize| {
            let Micro { site: Site::Slot(slot), .. } = micros[at] else { return true };
            if !stores(&micros[at]) || !matches!(program.operands[slot].home, Home::Register { .. }) {
                return true;
            }
            let next = micros[at + 1..].iter().find(|m| matches!(m.site, Site::Slot(other) if other == slot));
            next.map_or_else(|| read_outside(slot), |next| !stores(next))
        };
        (0..micros.len()).filter(|&at| is_needed(at)).map(|at| micros[at]).collect()
    }
}

/// Is what a chain of a pass writes there also elsewhere: in memory, or read by others?
fn is_outer(program: &Program, slot: Slot, phase: usize, chain: Range<usize>) -> bool {
    let reads = |i: &Instruction| !matches!(i.op, Op::Load(_)) && i.args.contains(&slot);
    let read_outside = program.phases.iter().enumerate().any(|(number, other)| {
        let (before, after) = match number == phase {
            true => (&other.blocks[..chain.start], &other.blocks[chain.end..]),
            false => (&other.blocks[..], &[][..]),
        };
        other.before.iter().chain(before).chain(after).any(reads)
    });
    read_outside || !matches!(program.operands[slot].home, Home::Register { .. })
}

/// The code for a function of one number.
pub(super) fn unary(op: StepOp) -> Code {
    match op {
        StepOp::Neg => Code::Neg,
        StepOp::Abs => Code::Abs,
        StepOp::Sign => Code::Sign,
        StepOp::Exp => Code::Exp,
        StepOp::Log => Code::Log,
        StepOp::Tanh => Code::Tanh,
        StepOp::Sin => Code::Sin,
        StepOp::Cos => Code::Cos,
        StepOp::Sqrt => Code::Sqrt,
        StepOp::Rsqrt => Code::Rsqrt,
        StepOp::Floor => Code::Floor,
        op => unreachable!("{op:?} of one f32"),
    }
}

/// The code for `a op b` of numbers, and that for `b op a`.
pub(super) fn binary(op: StepOp) -> (Code, Code) {
    match op {
        StepOp::Add => (Code::Add, Code::Add),
        StepOp::Sub => (Code::Sub, Code::SubFrom),
        StepOp::Mul => (Code::Mul, Code::Mul),
        StepOp::Div => (Code::Div, Code::DivInto),
        StepOp::Rem => (Code::Rem, Code::RemInto),
        StepOp::Pow => (Code::Pow, Code::PowOf),
        StepOp::Min => (Code::Min, Code::MinOf),
        StepOp::Max => (Code::Max, Code::MaxOf),
        op => unreachable!("{op:?} of two f32"),
    }
}

/// The same for a comparison.
fn comparison(op: StepOp) -> (Code, Code) {
    match op {
        StepOp::Eq => (Code::Eq, Code::Eq),
        StepOp::Ne => (Code::Ne, Code::Ne),
        StepOp::Lt => (Code::Lt, Code::Gt),
        StepOp::Le => (Code::Le, Code::Ge),
        StepOp::Gt => (Code::Gt, Code::Lt),
        StepOp::Ge => (Code::Ge, Code::Le),
        op => unreachable!("{op:?} is no comparison"),
    }
}
