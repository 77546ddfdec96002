//! The op table: every operation of the graph, one row each.
//!
//! An op is an enum variant with typed attributes; its row here gives its name, arity and unit. The rest hangs off exhaustive matches, one module a
//! question, so that a new op breaks the build wherever it must be answered for: [`crate::infer`] (type rule), [`crate::cost`] (FLOPs
//! and bytes), [`crate::gradient`] (backward), [`crate::reference`] (meaning), [`crate::text`] (attributes as text).

use crate::collective::Comm;
use crate::fused::{Fused, FusedKind};
use crate::types::{AxisId, DType};

/// Elementwise functions of one operand.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[allow(missing_docs, reason = "the names are the functions")]
pub enum UnaryOp {
    Neg,
    Exp,
    Log,
    Sqrt,
    Rsqrt,
    Tanh,
    Sin,
    Cos,
    Abs,
    Sign,
    Floor,
    Not,
}

/// Elementwise functions of two operands; an operand that lacks an axis is broadcast along it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[allow(missing_docs, reason = "the names are the functions")]
pub enum BinaryOp {
    Add,
    Sub,
    Mul,
    /// Floats: IEEE division. Integers: rounds towards minus infinity.
    Div,
    /// Remainder with the sign of the divisor.
    Rem,
    Pow,
    Min,
    Max,
    Eq,
    Ne,
    Lt,
    Le,
    Gt,
    Ge,
    And,
    Or,
}

/// What a reduction does with the elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[allow(missing_docs, reason = "the names are the functions")]
pub enum ReduceKind {
    Sum,
    Max,
    Min,
}

/// The direction of a scan.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Direction {
    /// From the first element to the last.
    Forward,
    /// From the last element to the first.
    Backward,
}

/// The attributes of [`Op::LinearAttention`].
#[derive(Clone, Debug, PartialEq)]
pub struct LinearAttention {
    /// The positions.
    pub axis: AxisId,
    /// Summed axes of queries and keys, sorted.
    pub over: Vec<AxisId>,
    /// Backward: positions read those after them.
    pub direction: Direction,
    /// What they read.
    pub reads: LinearReads,
    /// What the result is rounded to: the type of the values, or that of the decays.
    pub result: DType,
}

/// What a position of [`Op::LinearAttention`] reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum LinearReads {
    /// The values of its own and of earlier positions: `y[t] = Σ_s≤t score[t, s] v[s]`.
    Inclusive,
    /// The values of earlier positions: `y[t] = Σ_s<t score[t, s] v[s]`.
    Exclusive,
    /// The results of earlier positions, which are taken from its value: `y[t] = v[t] - Σ_s<t score[t, s] y[s]`.
    Solve,
}

/// An operation with its attributes. Operand and result types are in [`crate::infer`].
#[derive(Clone, Debug, PartialEq)]
pub enum Op {
    /// A value from outside; declared in [`crate::Graph::inputs`].
    Input,
    /// A scalar constant.
    Const(f64),
    /// The position along an axis.
    Iota(AxisId),
    /// Uniform in [0, 1) from a counter hash of the operand `[seed, step, instance, batch offset]`, `site` and the logical element.
    /// Element numbers are mixed-radix over the result's axes in order; when `batch` is given it is the first axis and its index is
    /// offset, so that a value does not depend on how the batch is cut.
    Random {
        /// Which random op of the layer this is.
        site: u32,
        /// The axis that the batch offset applies to.
        batch: Option<AxisId>,
    },
    /// Elementwise, one operand.
    Unary(UnaryOp),
    /// Elementwise, two operands.
    Binary(BinaryOp),
    /// `(condition, a, b)`: a where the condition holds, else b.
    Select,
    /// Conversion to a dtype. Float to i32 truncates; bf16 rounds to nearest even.
    Cast(DType),
    /// The value, with no gradient through it.
    Detach,
    /// The value copied along further axes (elementwise ops broadcast by themselves).
    Broadcast(Vec<AxisId>),
    /// The same value in another physical order.
    Reorder,
    /// Product of two operands, summed over a sorted set of axes that both have. Accumulates in f32 (f64 for f64).
    Contract {
        /// Summed axes, sorted.
        over: Vec<AxisId>,
    },
    /// Reduction over a sorted set of axes.
    Reduce {
        /// Sum, max or min.
        kind: ReduceKind,
        /// Reduced axes, sorted.
        over: Vec<AxisId>,
    },
    /// Running sum along an axis, including the element itself.
    Scan {
        /// Along which axis.
        axis: AxisId,
        /// From which end.
        direction: Direction,
    },
    /// `(q, k, v, g)`: attention without a softmax over positions of an axis, `score[t, s] = decay[t, s] Σ_over q[t] k[s]`, where the decay is `exp` of the sum of g
    /// over the positions after the earlier of t and s, the later one's own included. A state of keys × values remembers all that was read, so that the cost is linear
    /// in positions. With [`LinearReads::Solve`] it is the triangular system of the delta rule. All have the axis, q and k what is summed, v and the result at least
    /// one axis of their own; any may lack the others. g is wide; states are.
    ///
    /// Sources: linear attention arXiv 2006.16236, decay by a scalar arXiv 2405.21060 (Mamba-2), the delta rule arXiv 2406.06484, with decay arXiv 2412.06464.
    LinearAttention(Box<LinearAttention>),
    /// One axis under another name of the same size.
    Rename {
        /// Before.
        from: AxisId,
        /// After.
        to: AxisId,
    },
    /// One axis as several, major first; the product of the sizes is the axis' size.
    Split {
        /// Before.
        from: AxisId,
        /// After, major first.
        into: Vec<AxisId>,
    },
    /// Several adjacent axes as one.
    Merge {
        /// Before, adjacent and in order.
        from: Vec<AxisId>,
        /// After.
        into: AxisId,
    },
    /// One element of an axis; the axis is gone.
    Take {
        /// The axis.
        axis: AxisId,
        /// Which element.
        index: u64,
    },
    /// A contiguous part of an axis, as another axis.
    Slice {
        /// Before.
        from: AxisId,
        /// After; its size is the length.
        into: AxisId,
        /// First element.
        start: u64,
    },
    /// The opposite of [`Op::Slice`]: zeros before and after.
    Pad {
        /// Before.
        from: AxisId,
        /// After.
        into: AxisId,
        /// Where the operand's first element lands.
        start: u64,
    },
    /// The operands along a new outermost axis.
    Stack(AxisId),
    /// The operands one after another along an axis.
    Concat {
        /// The joined axis of each operand.
        from: Vec<AxisId>,
        /// The axis of the result, as long as all together.
        into: AxisId,
    },
    /// `(x, index: i32)`: element `index` of `axis` of x. The index's axes take the axis' place, except those that x has too, which are aligned.
    /// Gathering from a ragged axis removes its parent as well; indices are rows counted from the first row of the first group, and -1 where elements were
    /// left out of groups gives 0.
    Gather {
        /// The axis of x that is looked up.
        axis: AxisId,
    },
    /// `(v, index: i32)`: zeros with v added at `index` of the new axis, summed over axes that both have, in the order of their elements.
    /// The new axis stands first (with its parent before it, when ragged). What goes to -1 of rows that elements were left out of goes nowhere.
    ScatterAdd {
        /// The new axis.
        axis: AxisId,
        /// Axes of v and index that are summed, sorted.
        over: Vec<AxisId>,
    },
    /// Positions (i32) of the largest elements along an axis, largest first, ties to the lowest position. NaN counts as smallest.
    TopK {
        /// The axis searched.
        axis: AxisId,
        /// The axis of the ranks; takes the axis' place.
        into: AxisId,
    },
    /// `(chosen: i32)`: all elements of `chosen`, as row-major element numbers, sorted stably by value: `i32[parent, ragged]`. With a ragged axis that
    /// has fewer rows when spread evenly than at most, elements with negative values are left out, and rows that there are not are -1.
    Group {
        /// The ragged axis; its parent's size bounds the values.
        ragged: AxisId,
    },
    /// `(chosen: i32)`: where each group of [`Op::Group`] starts: `i32[into]`, one more element than the parent axis has.
    Offsets {
        /// The parent axis of the ragged axis.
        parent: AxisId,
        /// Axis of parent size + 1.
        into: AxisId,
    },
    /// `(rows: i32[parent, ragged])`: for each element number its row: the inverse of [`Op::Group`], over the result's axes. -1 for elements that were left out.
    Invert,
    /// Several primitive ops under one name; only rewriting makes them.
    Fused(Box<Fused>),
    /// A collective between the ranks of a mesh; only sharding makes them.
    Comm(Box<Comm>),
}

/// Which unit of a device executes an op.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Unit {
    /// Nothing is executed: another view of the same data.
    None,
    /// Matrix unit.
    Cube,
    /// Vector unit.
    Vector,
    /// Data movement by index.
    Copy,
    /// Links between ranks.
    Link,
}

/// How many operands an op takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arity {
    /// Exactly so many.
    Exactly(usize),
    /// One or more.
    Variadic,
}

/// What is common to all instances of an op.
#[derive(Clone, Copy, Debug)]
pub struct OpRow {
    /// The name in textual IR.
    pub name: &'static str,
    /// Number of operands.
    pub arity: Arity,
    /// Who executes it.
    pub unit: Unit,
    /// May the result's axes stand in any order (else the order is the type rule's)?
    pub free_order: bool,
}

const fn row(name: &'static str, arity: usize, unit: Unit, free_order: bool) -> OpRow {
    OpRow { name, arity: Arity::Exactly(arity), unit, free_order }
}

impl Op {
    /// The op's row.
    pub fn row(&self) -> OpRow {
        use Unit::{Copy, Cube, Link, None, Vector};
        match self {
            Op::Input => row("input", 0, None, true),
            Op::Const(_) => row("const", 0, Vector, false),
            Op::Iota(_) => row("iota", 0, Vector, false),
            Op::Random { .. } => row("random", 1, Vector, true),
            Op::Unary(op) => row(op.name(), 1, Vector, true),
            Op::Binary(op) => row(op.name(), 2, Vector, true),
            Op::Select => row("select", 3, Vector, true),
            Op::Cast(_) => row("cast", 1, Vector, true),
            Op::Detach => row("detach", 1, None, false),
            Op::Broadcast(_) => row("broadcast", 1, Vector, true),
            Op::Reorder => row("reorder", 1, Copy, true),
            Op::Contract { .. } => row("contract", 2, Cube, true),
            Op::Reduce { kind: ReduceKind::Sum, .. } => row("sum", 1, Vector, false),
            Op::Reduce { kind: ReduceKind::Max, .. } => row("reduce_max", 1, Vector, false),
            Op::Reduce { kind: ReduceKind::Min, .. } => row("reduce_min", 1, Vector, false),
            Op::Scan { .. } => row("scan", 1, Vector, false),
            Op::LinearAttention(_) => row("linear_attention", 4, Cube, true),
            Op::Rename { .. } => row("rename", 1, None, false),
            Op::Split { .. } => row("split", 1, None, false),
            Op::Merge { .. } => row("merge", 1, None, false),
            Op::Take { .. } => row("take", 1, Copy, false),
            Op::Slice { .. } => row("slice", 1, Copy, false),
            Op::Pad { .. } => row("pad", 1, Copy, false),
            Op::Stack(_) => OpRow { arity: Arity::Variadic, ..row("stack", 0, Copy, true) },
            Op::Concat { .. } => OpRow { arity: Arity::Variadic, ..row("concat", 0, Copy, false) },
            Op::Gather { .. } => row("gather", 2, Copy, false),
            Op::ScatterAdd { .. } => row("scatter_add", 2, Copy, false),
            Op::TopK { .. } => row("top_k", 1, Vector, false),
            Op::Group { .. } => row("group", 1, Vector, false),
            Op::Offsets { .. } => row("offsets", 1, Vector, false),
            Op::Invert => row("invert", 1, Copy, true),
            Op::Comm(comm) => {
                let unit = if comm.sends() { Link } else { Copy };
                row(comm.name(), comm.arity(), unit, false)
            }
            Op::Fused(fused) => {
                let unit = match fused.kind {
                    FusedKind::Attention | FusedKind::AttentionLse | FusedKind::AttentionGrad => Cube,
                    FusedKind::Permute
                    | FusedKind::PermuteDx
                    | FusedKind::Unpermute
                    | FusedKind::UnpermuteDrows
                    | FusedKind::UnpermuteDshare => Copy,
                    _ => Vector,
                };
                OpRow { arity: Arity::Variadic, ..row(fused.kind.row().name, 0, unit, true) }
            }
        }
    }

    /// Is each element of the result a function of the elements of the operands at the same place?
    pub fn is_elementwise(&self) -> bool {
        match self {
            Op::Unary(_) | Op::Binary(_) | Op::Select | Op::Cast(_) | Op::Broadcast(_) | Op::Reorder | Op::Detach => {
                true
            }
            Op::Const(_) | Op::Iota(_) => true,
            Op::Input
            | Op::Random { .. }
            | Op::Contract { .. }
            | Op::Reduce { .. }
            | Op::Scan { .. }
            | Op::LinearAttention(_)
            | Op::Rename { .. }
            | Op::Split { .. }
            | Op::Merge { .. }
            | Op::Take { .. }
            | Op::Slice { .. }
            | Op::Pad { .. }
            | Op::Stack(_)
            | Op::Concat { .. }
            | Op::Gather { .. }
            | Op::ScatterAdd { .. }
            | Op::TopK { .. }
            | Op::Group { .. }
            | Op::Offsets { .. }
            | Op::Invert
            | Op::Fused(_)
            | Op::Comm(_) => false,
        }
    }
}

impl LinearReads {
    /// All of them.
    pub const ALL: [LinearReads; 3] = [LinearReads::Inclusive, LinearReads::Exclusive, LinearReads::Solve];

    /// The name in textual IR.
    pub fn name(self) -> &'static str {
        match self {
            LinearReads::Inclusive => "inclusive",
            LinearReads::Exclusive => "exclusive",
            LinearReads::Solve => "solve",
        }
    }
}

impl Direction {
    /// The other one.
    pub fn opposite(self) -> Direction {
        match self {
            Direction::Forward => Direction::Backward,
            Direction::Backward => Direction::Forward,
        }
    }
}

impl UnaryOp {
    /// All of them.
    pub const ALL: [UnaryOp; 12] = [
        UnaryOp::Neg,
        UnaryOp::Exp,
        UnaryOp::Log,
        UnaryOp::Sqrt,
        UnaryOp::Rsqrt,
        UnaryOp::Tanh,
        UnaryOp::Sin,
        UnaryOp::Cos,
        UnaryOp::Abs,
        UnaryOp::Sign,
        UnaryOp::Floor,
        UnaryOp::Not,
    ];

    /// The name in textual IR.
    pub fn name(self) -> &'static str {
        match self {
            UnaryOp::Neg => "neg",
            UnaryOp::Exp => "exp",
            UnaryOp::Log => "log",
            UnaryOp::Sqrt => "sqrt",
            UnaryOp::Rsqrt => "rsqrt",
            UnaryOp::Tanh => "tanh",
            UnaryOp::Sin => "sin",
            UnaryOp::Cos => "cos",
            UnaryOp::Abs => "abs",
            UnaryOp::Sign => "sign",
            UnaryOp::Floor => "floor",
            UnaryOp::Not => "not",
        }
    }
}

impl BinaryOp {
    /// All of them.
    pub const ALL: [BinaryOp; 16] = [
        BinaryOp::Add,
        BinaryOp::Sub,
        BinaryOp::Mul,
        BinaryOp::Div,
        BinaryOp::Rem,
        BinaryOp::Pow,
        BinaryOp::Min,
        BinaryOp::Max,
        BinaryOp::Eq,
        BinaryOp::Ne,
        BinaryOp::Lt,
        BinaryOp::Le,
        BinaryOp::Gt,
        BinaryOp::Ge,
        BinaryOp::And,
        BinaryOp::Or,
    ];

    /// The name in textual IR.
    pub fn name(self) -> &'static str {
        match self {
            BinaryOp::Add => "add",
            BinaryOp::Sub => "sub",
            BinaryOp::Mul => "mul",
            BinaryOp::Div => "div",
            BinaryOp::Rem => "rem",
            BinaryOp::Pow => "pow",
            BinaryOp::Min => "min",
            BinaryOp::Max => "max",
            BinaryOp::Eq => "eq",
            BinaryOp::Ne => "ne",
            BinaryOp::Lt => "lt",
            BinaryOp::Le => "le",
            BinaryOp::Gt => "gt",
            BinaryOp::Ge => "ge",
            BinaryOp::And => "and",
            BinaryOp::Or => "or",
        }
    }

    /// Does it compare, giving a bool?
    pub fn is_comparison(self) -> bool {
        matches!(self, BinaryOp::Eq | BinaryOp::Ne | BinaryOp::Lt | BinaryOp::Le | BinaryOp::Gt | BinaryOp::Ge)
    }

    /// Does it take bools?
    pub fn is_logical(self) -> bool {
        matches!(self, BinaryOp::And | BinaryOp::Or)
    }
}
