//! What a region becomes: instructions over blocks.

use super::chain::Chain;
use super::jit::Native;
use super::space::{Access, Shape, Space};
use forebay_plan::{ReduceOp, StepOp};
use std::ops::Range;

/// What a value is in a register.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Class {
    /// f32 and bf16.
    F32,
    F64,
    /// i32 and i16.
    I32,
    Bool,
}

impl Class {
    pub fn bytes(self) -> usize {
        match self {
            Class::F64 => 8,
            Class::F32 | Class::I32 => 4,
            Class::Bool => 1,
        }
    }
}

/// An operand of instructions: an index into [`Program::operands`].
pub(super) type Slot = usize;

/// Where an operand is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Home {
    /// In the worker's scratch, bytes from its start. Of shape One, Row, Column or Full.
    Register { at: usize },
    /// In the worker's scratch, a whole row of which a block sees its part.
    LongRegister { at: usize },
    /// In memory, as an access says.
    Access(usize),
    /// A constant.
    Constant(usize),
}

/// An operand.
#[derive(Clone, Copy, Debug)]
pub(super) struct Operand {
    pub home: Home,
    pub shape: Shape,
    pub class: Class,
}

/// One loop over a block.
#[derive(Clone, Copy, Debug)]
pub(super) struct Instruction {
    pub op: Op,
    /// What is computed: the destination's shape.
    pub shape: Shape,
    pub to: Slot,
    pub args: [Slot; 3],
}

/// What a loop does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Op {
    /// A function of one operand of a class, to the same class.
    Unary(Class, StepOp),
    /// Of two.
    Binary(Class, StepOp),
    /// A comparison of two of a class, to bool.
    Compare(Class, StepOp),
    /// Of (bool, class, class).
    Select(Class),
    /// From a class to another.
    Convert(Class, Class),
    /// From an operand of any shape to one of a larger shape.
    Copy(Class),
    /// Rounds the destination to bf16 in place.
    Round,
    /// An f32 of (upper half, lower half, mark).
    Join,
    /// The lower half of an f32.
    Lower,
    /// (carrier, x): the carrier with the mark of x.
    Mark,
    /// Reduces rows of the operand; the length of a whole row decides about the order.
    Reduce(Class, ReduceOp),
    /// From an access, converted, to a register.
    Load(usize),
    /// From an operand to an access, converted.
    Store(usize),
    /// From a load through an index straight to the store of an access, of one type.
    Transfer { load: usize, store: usize },
}

/// A pass over the columns of a row.
#[derive(Clone, Debug, Default)]
pub(super) struct Phase {
    /// Values of whole rows, computed before the pass.
    pub before: Vec<Instruction>,
    /// For each block of columns.
    pub blocks: Vec<Instruction>,
    /// Which of those are done together, in order.
    pub runs: Vec<Run>,
}

/// Instructions that are done together.
#[derive(Clone, Debug)]
pub(super) enum Run {
    Chain(Chain),
    Native(Native),
}

impl Run {
    /// Which of the list.
    pub fn range(&self) -> Range<usize> {
        match self {
            Run::Chain(chain) => chain.first..chain.end,
            Run::Native(native) => native.first..native.end,
        }
    }
}

impl Program {
    /// Elements of an access from one row of a block to the next.
    pub fn across(&self, access: usize) -> usize {
        self.space.outer().checked_sub(1).map_or(0, |last| self.accesses[access].strides[last])
    }
}

/// A compiled region.
#[derive(Clone, Debug)]
pub(super) struct Program {
    pub space: Space,
    pub accesses: Vec<Access>,
    pub operands: Vec<Operand>,
    /// Those whose place depends on the block.
    pub moving: Vec<Slot>,
    /// The low bytes of each are the value.
    pub constants: Vec<u64>,
    /// Once for each task.
    pub prologue: Vec<Instruction>,
    /// For each block of rows. One phase when a block has whole rows.
    pub phases: Vec<Phase>,
    /// Rows of a block at most.
    pub block_rows: usize,
    /// Columns of a block at most; all of them when a block has whole rows.
    pub block_columns: usize,
    /// Must one worker see a whole row?
    pub whole_rows: bool,
    /// Are rows reduced? Then even a row without elements has results.
    pub reduces: bool,
    /// Bytes of registers.
    pub register_bytes: usize,
    /// Instructions of a block, to estimate its time.
    pub weight: usize,
}
