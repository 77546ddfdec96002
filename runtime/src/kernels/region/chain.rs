//! Chains: instructions of a pass that follow each other and work on f32, element by element, are done together for one small tile after the other. The
//! value just computed stays in vector registers for the instruction after it; only what others read as well is written to its place.
//!
//! A chain says nothing that its instructions do not say: where a CPU level has no tiles, or rows are too short for them, these are executed one
//! by one, with the same bits.

use super::program::{Class, Home, Instruction, Op, Phase, Program, Slot};
use super::space::{Place, Shape};
use forebay_plan::{DType, StepOp};

/// Micro-operations of a chain at most: their sites are on the stack.
pub(super) const MOST: usize = 96;
/// Micro-operations that an instruction becomes at most: one to load, one to compute, one to store.
const MICROS: usize = 3;
/// Fewer instructions are faster one by one: their loops dispatch once for a block, and pass over the first-level cache few times.
const LEAST: usize = 3;

/// A run of instructions of a pass.
#[derive(Clone, Debug)]
pub(super) struct Chain {
    /// Its instructions: `first..end` of the list.
    pub first: usize,
    pub end: usize,
    pub micros: Vec<Micro>,
}

/// What is done with the tile in registers, the *accumulator*.
#[derive(Clone, Copy, Debug)]
pub(super) struct Micro {
    pub code: Code,
    pub from: From,
    pub site: Site,
}

/// What becomes of the accumulator `a` and the operand `b`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Code {
    /// `b`
    Load,
    /// `a`, which is also stored.
    Store,
    /// `a`, which is also stored as bf16, rounded.
    StoreBf16,
    Neg,
    Abs,
    Exp,
    Log,
    Tanh,
    Sqrt,
    Rsqrt,
    /// `a` rounded to bf16.
    Round,
    Add,
    Sub,
    /// `b - a`
    SubFrom,
    Mul,
    Div,
    /// `b / a`
    DivInto,
    Min,
    /// The smaller of `b` and `a`, in this order.
    MinOf,
    Max,
    /// The larger of `b` and `a`, in this order.
    MaxOf,
}

/// Where the operand is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum From {
    /// It is the accumulator, or there is none.
    Accumulator,
    /// A value for each column.
    Columns,
    /// One for all columns.
    Row,
    /// bf16 for each column.
    Bf16,
}

/// A place that is read or written.
#[derive(Clone, Copy, Debug)]
pub(super) enum Site {
    None,
    Slot(Slot),
    /// Contiguous along rows.
    Access(usize),
}

/// Finds the chains of all passes.
pub(super) fn find(mut program: Program) -> Program {
    for phase in 0..program.phases.len() {
        program.phases[phase].chains = chains_of(&program, phase);
    }
    program
}

fn chains_of(program: &Program, phase: usize) -> Vec<Chain> {
    let list = &program.phases[phase].blocks;
    let mut chains = vec![];
    let mut first = 0;
    while first < list.len() {
        let fit = |i: &&Instruction| is_for_tiles(program, i);
        let end = first + list[first..].iter().take(MOST / MICROS).take_while(fit).count();
        if end - first >= LEAST {
            let mut builder = Builder { program, phase, end, micros: vec![], held: None };
            (first..end).for_each(|at| builder.push(at));
            chains.push(Chain { first, end, micros: builder.micros });
        }
        first = end.max(first + 1);
    }
    chains
}

/// Is there a micro-operation for an instruction?
fn is_for_tiles(program: &Program, instruction: &Instruction) -> bool {
    instruction.shape == Shape::Full
        && match instruction.op {
            Op::Unary(Class::F32, op) => unary(op).is_some(),
            Op::Binary(Class::F32, op) => binary(op).is_some(),
            Op::Round => true,
            Op::Load(access) => runs_along(program, access) && program.accesses[access].dtype == DType::Bf16,
            Op::Store(access) => runs_along(program, access) && program.operands[instruction.to].class == Class::F32,
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
    phase: usize,
    /// Of the chain.
    end: usize,
    micros: Vec<Micro>,
    /// What the accumulator holds.
    held: Option<Slot>,
}

impl Builder<'_> {
    /// Adds an instruction.
    fn push(&mut self, at: usize) {
        let instruction = self.program.phases[self.phase].blocks[at];
        let [a, b, _] = instruction.args;
        match instruction.op {
            Op::Unary(_, op) => {
                self.hold(a);
                self.add(unary(op).expect("it is for tiles"), From::Accumulator, Site::None);
            }
            Op::Binary(_, op) => {
                let (code, turned) = binary(op).expect("it is for tiles");
                if self.held == Some(b) && a != b {
                    self.operand(turned, a);
                } else {
                    self.hold(a);
                    if a == b {
                        self.add(code, From::Accumulator, Site::None);
                    } else {
                        self.operand(code, b);
                    }
                }
            }
            Op::Round => {
                self.hold(a);
                self.add(Code::Round, From::Accumulator, Site::None);
            }
            Op::Load(access) => self.add(Code::Load, From::Bf16, Site::Access(access)),
            Op::Store(access) => {
                let narrow = self.program.accesses[access].dtype == DType::Bf16;
                self.hold(a);
                let code = if narrow { Code::StoreBf16 } else { Code::Store };
                return self.add(code, From::Accumulator, Site::Access(access));
            }
            op => unreachable!("{op:?} is not for tiles"),
        }
        self.held = Some(instruction.to);
        if self.is_read_elsewhere(at) {
            self.add(Code::Store, From::Accumulator, Site::Slot(instruction.to));
        }
    }

    fn add(&mut self, code: Code, from: From, site: Site) {
        self.micros.push(Micro { code, from, site });
    }

    fn operand(&mut self, code: Code, slot: Slot) {
        let from = match self.program.operands[slot].shape {
            Shape::One | Shape::Row => From::Row,
            Shape::Column | Shape::Full => From::Columns,
        };
        self.add(code, from, Site::Slot(slot));
    }

    fn hold(&mut self, slot: Slot) {
        if self.held != Some(slot) {
            self.operand(Code::Load, slot);
            self.held = Some(slot);
        }
    }

    /// Does anybody read what an instruction computes, but the next one of the chain, which finds it in the accumulator?
    fn is_read_elsewhere(&self, at: usize) -> bool {
        let list = &self.program.phases[self.phase].blocks;
        let slot = list[at].to;
        if !matches!(self.program.operands[slot].home, Home::Register { .. }) {
            return true;
        }
        // What is rounded in place next is nothing to others before.
        if at + 1 < self.end && list[at + 1].op == Op::Round && list[at + 1].to == slot {
            return false;
        }
        let reads = |i: &Instruction| !matches!(i.op, Op::Load(_)) && i.args.contains(&slot);
        self.program.phases.iter().enumerate().any(|(number, Phase { before, blocks, .. })| {
            // Whatever is before it in this pass runs before it; so does the next of the chain, in its way.
            let skipped = match number == self.phase {
                true => (at + 1 + (at + 1 < self.end) as usize).min(blocks.len()),
                false => 0,
            };
            before.iter().chain(&blocks[skipped..]).any(reads)
        })
    }
}

fn unary(op: StepOp) -> Option<Code> {
    Some(match op {
        StepOp::Neg => Code::Neg,
        StepOp::Abs => Code::Abs,
        StepOp::Exp => Code::Exp,
        StepOp::Log => Code::Log,
        StepOp::Tanh => Code::Tanh,
        StepOp::Sqrt => Code::Sqrt,
        StepOp::Rsqrt => Code::Rsqrt,
        _ => return None,
    })
}

/// The code for `a op b`, and that for `b op a`.
fn binary(op: StepOp) -> Option<(Code, Code)> {
    Some(match op {
        StepOp::Add => (Code::Add, Code::Add),
        StepOp::Sub => (Code::Sub, Code::SubFrom),
        StepOp::Mul => (Code::Mul, Code::Mul),
        StepOp::Div => (Code::Div, Code::DivInto),
        StepOp::Min => (Code::Min, Code::MinOf),
        StepOp::Max => (Code::Max, Code::MaxOf),
        _ => return None,
    })
}
