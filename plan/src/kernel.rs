//! The kernels that instructions run. All indices are element strides over buffers of the program; all loops are explicit, so
//! that a runtime needs to know neither axes nor the graph.

mod attention;
mod buffers;
mod comm;
mod linear;

pub use attention::*;
pub use comm::*;
pub use linear::*;

use crate::mesh::Affine;
use crate::schema::DType;
use serde::{Deserialize, Serialize};

/// A buffer of the program.
pub type BufferId = u32;

/// A kernel with its operands.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Kernel {
    /// Matrix products.
    Matmul(Matmul),
    /// Elementwise and row-reduction work.
    Region(Region),
    /// Attention: scores, softmax and values in one.
    Attention(Attention),
    /// The gradients of an attention.
    AttentionBackward(AttentionBackward),
    /// Attention without a softmax.
    LinearAttention(LinearAttention),
    /// A reduction over any dimensions.
    Reduce(Reduce),
    /// A running sum.
    Scan(Scan),
    /// `out[o] = x[… index[o] …]`.
    Gather(Gather),
    /// `out[… index[v] …] += v`, in the order of v's elements.
    ScatterAdd(ScatterAdd),
    /// Positions of the largest elements.
    TopK(TopK),
    /// Stable counting sort of element numbers by value.
    Group(Group),
    /// Group starts.
    Offsets(Offsets),
    /// The inverse permutation.
    Invert(Invert),
    /// For each row of a ragged dimension the group it belongs to.
    RowGroups(RowGroups),
    /// Uniform random values.
    Random(Random),
    /// `[seed, step, layer, first row of the micro-batch]` as i32, from the call and the phase's scalars.
    RandomKey {
        /// `i32[4]`
        out: BufferId,
        /// Rows of a micro-batch on this rank.
        rows: u64,
        /// Rows of a micro-batch on all ranks that share it out; `rows` when there is one.
        per_micro_batch: u64,
        /// The first row is `micro-batch · per_micro_batch` plus this; 0 for one rank.
        first_row: Affine,
    },
    /// Dense collectives.
    Exchange(Exchange),
    /// Rows to and from the owners of experts.
    AllToAllV(AllToAllV),
    /// A function of the rank's coordinates.
    Coordinate(Coordinate),
    /// An array to another rank.
    Send(Message),
    /// An array from another rank.
    Recv(Message),
}

/// An array seen through strides: element (i₀, i₁, …) is at `offset + Σ iⱼ·strides[j]`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct View {
    /// Which buffer.
    pub buffer: BufferId,
    /// Elements from its start.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub offset: u64,
    /// One stride, in elements, for each dimension of the iteration space. 0 repeats.
    pub strides: Vec<u64>,
}

fn is_zero(n: &u64) -> bool {
    *n == 0
}

/// `C[batch, m, n] (+)= Σₖ A[batch, m, k] · B[batch, k, n]`; f32 accumulation for f32 and bf16, f64 for f64; all three of one dtype.
///
/// Every element is summed in an order that depends on k alone, never on m, n, batch, groups or threads. An element is rounded to
/// the dtype once, after the addition of what was there (for `accumulate`).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Matmul {
    /// Element type of A, B and C.
    pub dtype: DType,
    /// The left matrix.
    pub a: BufferId,
    /// The right matrix.
    pub b: BufferId,
    /// The result.
    pub c: BufferId,
    /// Elements from the start of (A, B, C).
    pub offsets: [u64; 3],
    /// Independent products: size and strides in A, B, C (0 where it lacks the dimension).
    pub batch: Vec<BatchDim>,
    /// Rows: size, stride in A, stride in C.
    pub m: MatDim,
    /// Columns: size, stride in B, stride in C.
    pub n: MatDim,
    /// Summed, innermost: size, stride in A, stride in B.
    pub k: MatDim,
    /// Further summed dimensions, outermost first: size, stride in A, stride in B.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub k_outer: Vec<MatDim>,
    /// Ragged groups.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub groups: Option<Groups>,
    /// Add to what is in C instead of replacing it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub accumulate: bool,
    /// Elementwise work on each block of C as soon as it is complete, while it is in the cache: over `[rows, columns]` of C, whose rows then lie side
    /// by side without gaps. It sees C through a view of its own strides alone, and may store over it in place; rows of no group are left as they are.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub epilogue: Option<Box<Region>>,
}

impl Matmul {
    /// Rows and columns of C when its rows lie side by side without gaps: what an epilogue runs over.
    pub fn rows_and_columns(&self) -> Option<[u64; 2]> {
        let [rows, columns] = [self.m.0, self.n.0];
        let by_group = match &self.groups {
            Some(Groups { ragged: RaggedDim::N, .. }) => return None,
            Some(Groups { ragged: RaggedDim::K, count, strides, .. }) => Some((*count, strides[2])),
            Some(Groups { ragged: RaggedDim::M, .. }) | None => None,
        };
        let in_line = columns > 0 && (columns == 1 || self.n.2 == 1) && (rows == 1 || self.m.2 == columns);
        // Rows are numbered by the batch, the group and the row.
        let (mut all, mut reach) = (rows, rows.checked_sub(1)?.checked_mul(columns)?);
        for (size, stride) in self.batch.iter().map(|d| (d.0, d.3)).chain(by_group) {
            if size != 1 && stride % columns.max(1) != 0 {
                return None;
            }
            all = all.checked_mul(size)?;
            reach = reach.checked_add(size.checked_sub(1)?.checked_mul(stride)?)?;
        }
        (in_line && reach / columns + 1 == all).then_some([all, columns])
    }

    /// Is this how an epilogue sees C?
    pub fn shows_result(&self, view: &View) -> bool {
        view.buffer == self.c && view.offset == self.offsets[2] && view.strides == [self.n.0, 1]
    }
}

/// Size and two strides.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct MatDim(pub u64, pub u64, pub u64);

/// Size and strides in A, B and C.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct BatchDim(pub u64, pub u64, pub u64, pub u64);

/// Ragged groups of a matrix product: group g has the rows `offsets[g] .. offsets[g + 1]` of the ragged dimension.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Groups {
    /// i32[count + 1], from 0, not decreasing.
    pub offsets: BufferId,
    /// Number of groups.
    pub count: u64,
    /// Rows that there are when experts are chosen evenly, for who counts costs; at most the size of the dimension. Results do not depend on it.
    pub even: u64,
    /// Which dimension is ragged. Its size is the bound of the total.
    pub ragged: RaggedDim,
    /// Strides of the group index in A, B and C.
    pub strides: [u64; 3],
}

/// The ragged dimension of a grouped product.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RaggedDim {
    /// Rows of A and C belong to groups; each group has its own B.
    M,
    /// The summed dimension belongs to groups; each group has its own C. Empty groups give zeros.
    K,
    /// Columns of B and C belong to groups; each group has its own A.
    N,
}

/// Elementwise and row-wise work over an iteration space, in one pass over memory.
///
/// The last `row_dims` dimensions form a *row* of `n` elements. Every step gives one value for each element (or, after a reduction, for each row). The
/// steps run in order over a block of rows at a time; a step sees the results of the steps before it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Region {
    /// The iteration space, outermost first.
    pub dims: Vec<u64>,
    /// How many of the last dimensions form a row; at least 1 when there are dimensions. Without reductions it has no meaning for the result.
    pub row_dims: u32,
    /// When a dimension is ragged: only its first `offsets[last]` elements are computed; the rest of the outputs is left as it is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ragged: Option<RaggedLimit>,
    /// What is read.
    pub loads: Vec<Load>,
    /// What is computed.
    pub steps: Vec<Step>,
    /// What is written. In a region with reductions, a value that is the same along a row (a reduction, a load that does not move along it, what is
    /// computed from such) is stored once for the row through strides that are 0 along its dimensions; through others, for each element.
    pub stores: Vec<Store>,
}

/// A dimension of which only a run-time part is there.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RaggedLimit {
    /// Which dimension of the iteration space (of an exchange: of a piece); never one of the row's when rows are reduced.
    pub dim: u32,
    /// i32[groups + 1]
    pub offsets: BufferId,
    /// Number of groups.
    pub groups: u64,
    /// Rows that there are when experts are chosen evenly, for who counts costs; at most the size of the dimension. Results do not depend on it.
    pub even: u64,
}

/// A value within a region.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Arg {
    /// The element of `loads[i]`.
    #[serde(rename = "l")]
    Load(u32),
    /// The result of `steps[i]`.
    #[serde(rename = "s")]
    Step(u32),
    /// A constant of the type the step needs.
    #[serde(rename = "c")]
    Const(#[serde(with = "crate::float")] f64),
}

/// A load of a region: element (i₀, i₁, …) is at `offset + Σ iⱼ·strides[j]`, and when it goes through an index, `⌊index[…] / divide⌋ · axis_stride` further on.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Load {
    /// Where. Through an index: where the looked-up axis begins; strides are 0 along dimensions that come from the index alone.
    pub view: View,
    /// The index, if it goes through one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub through: Option<Lookup>,
}

impl From<View> for Load {
    fn from(view: View) -> Load {
        Load { view, through: None }
    }
}

/// The index that a load goes through: one position along an axis for each element of the iteration space.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Lookup {
    /// i32, seen over the iteration space; 0 along dimensions that the index lacks.
    pub index: View,
    /// The index is divided by this, rounding down: copies of a row that are numbered one after another look up the same row.
    #[serde(default = "one", skip_serializing_if = "is_one")]
    pub divide: u64,
    /// Stride of the looked-up axis.
    pub axis_stride: u64,
    /// Its size. A divided index outside is a run-time error that names the instruction.
    pub axis_size: u64,
    /// How many of its rows there are when experts are chosen evenly, for who counts costs; all where nothing is said. Results do not depend on it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub axis_even: Option<u64>,
    /// What a negative index is.
    #[serde(default, skip_serializing_if = "Negative::is_wrong")]
    pub negative: Negative,
}

/// What a negative number of a group, or of a row, means.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Negative {
    /// A run-time error, as every number outside.
    #[default]
    Wrong,
    /// There is no such row: the element is in no group, what is looked up is 0, what would be added there is not added.
    Nothing,
}

impl Negative {
    fn is_wrong(&self) -> bool {
        *self == Negative::Wrong
    }
}

fn one() -> u64 {
    1
}

fn is_one(n: &u64) -> bool {
    *n == 1
}

/// A store of a region.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Store {
    /// What.
    pub value: Arg,
    /// Where; no two elements of the iteration space (rows, for row values) land in one place. Its buffer may be the buffer of a load only if both
    /// have the same offset and strides (in place); never the buffer of a load through an index, or of its index.
    pub view: View,
}

/// One operation of a region. The result is rounded to `dtype`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Step {
    /// What.
    pub op: StepOp,
    /// Type of the result.
    pub dtype: DType,
    /// To what.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub args: Vec<Arg>,
}

/// Operations of a region. Arithmetic on bf16 is done in f32 and rounded to bf16.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[allow(missing_docs, reason = "the names are the functions; semantics are those of the graph's ops")]
pub enum StepOp {
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
    Add,
    Sub,
    Mul,
    Div,
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
    /// (condition, a, b)
    Select,
    /// Conversion to the step's dtype.
    Cast,
    /// (upper, lower, mark): the f32 whose rounding to bf16 is `upper` and whose lower 16 bits are `lower`. Where `mark` has a sign, rounding changed the upper
    /// half: to the next number, or of a NaN bit 22.
    Join,
    /// The lower 16 bits of an f32, as an i16.
    Lower,
    /// (carrier, x): the magnitude of `carrier`, with a sign where rounding x to bf16 (to nearest, ties to even; a NaN gets bit 22) changes its upper half.
    Mark,
    /// The index along a dimension of the iteration space, i32.
    Index(u32),
    /// Sum over the row, in an order that depends on the row's length alone.
    RowSum,
    /// Maximum over the row.
    RowMax,
    /// Minimum over the row.
    RowMin,
}

impl StepOp {
    /// Does it make one value of a row?
    pub fn is_row_reduction(self) -> bool {
        matches!(self, StepOp::RowSum | StepOp::RowMax | StepOp::RowMin)
    }
}

/// What a reduction does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ReduceOp {
    /// Sum.
    Sum,
    /// Maximum.
    Max,
    /// Minimum.
    Min,
}

/// `out[kept] = reduce over the others of input`. The order of the sum depends on the reduced sizes alone.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Reduce {
    /// What.
    pub op: ReduceOp,
    /// Type of input and output; bf16 is summed in f32 and rounded once.
    pub dtype: DType,
    /// Kept dimensions, then reduced dimensions, each outermost first.
    pub dims: Vec<u64>,
    /// How many are kept.
    pub kept: u32,
    /// Strides over all dimensions.
    pub input: View,
    /// Strides over the kept dimensions.
    pub out: View,
    /// When the *first* reduced dimension is ragged: either the whole of it (`per_group: false`) or a result for each group (`true`; then the first
    /// kept dimension counts groups and its input stride is 0).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ragged: Option<RaggedReduce>,
    /// Add to what is there (sums only).
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub accumulate: bool,
}

/// A reduction over a ragged dimension.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RaggedReduce {
    /// i32[groups + 1]
    pub offsets: BufferId,
    /// Number of groups.
    pub groups: u64,
    /// One result for each group?
    pub per_group: bool,
    /// Rows that there are when experts are chosen evenly, for who counts costs; at most the size of the dimension. Results do not depend on it.
    pub even: u64,
}

/// Running sums over contiguous arrays `[outer, n, inner]`, along n.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Scan {
    /// Type of input and output; the running sum is kept in f32 for bf16.
    pub dtype: DType,
    /// Product of the dimensions before.
    pub outer: u64,
    /// Length of the scanned dimension.
    pub n: u64,
    /// Product of the dimensions after.
    pub inner: u64,
    /// From the last element to the first?
    pub backward: bool,
    /// Contiguous.
    pub input: BufferId,
    /// Contiguous.
    pub out: BufferId,
}

/// `out[o] = x[Σ o·x.strides + index[Σ o·index.strides] · axis_stride]` for all o in dims; out is contiguous.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Gather {
    /// Type of x and out.
    pub dtype: DType,
    /// Dimensions of out.
    pub dims: Vec<u64>,
    /// Strides in x; 0 for dimensions that come from the index alone.
    pub x: View,
    /// Strides in the index; 0 for dimensions of x alone.
    pub index: View,
    /// Stride in x of the looked-up axis.
    pub axis_stride: u64,
    /// Its size. An index outside is a run-time error that names the instruction.
    pub axis_size: u64,
    /// How many of its rows there are when experts are chosen evenly, for who counts costs; all where nothing is said. Results do not depend on it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub axis_even: Option<u64>,
    /// What a negative index is.
    #[serde(default, skip_serializing_if = "Negative::is_wrong")]
    pub negative: Negative,
    /// The result.
    pub out: BufferId,
    /// When a dimension of out is ragged: only its first `offsets[last]` elements are made.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ragged: Option<RaggedLimit>,
}

/// `out = 0 (unless accumulate); out[Σ v·out.strides + index[v] · axis_stride] += v` for all v in dims, in row-major order for each element of out.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ScatterAdd {
    /// Type of v and out; bf16 is summed in f32 and rounded once.
    pub dtype: DType,
    /// Dimensions of v.
    pub dims: Vec<u64>,
    /// Strides in v.
    pub v: View,
    /// Strides in the index; 0 for dimensions it lacks.
    pub index: View,
    /// Strides in out; 0 for summed dimensions.
    pub out: View,
    /// Stride in out of the axis that is written by index.
    pub axis_stride: u64,
    /// Its size. An index outside is a run-time error.
    pub axis_size: u64,
    /// What a negative index is.
    #[serde(default, skip_serializing_if = "Negative::is_wrong")]
    pub negative: Negative,
    /// Elements of out, contiguous from the start of its buffer: what is zeroed.
    pub out_elements: u64,
    /// When a dimension of v is ragged: only its first `offsets[last]` elements are read.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ragged: Option<RaggedLimit>,
    /// Add to what is there.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub accumulate: bool,
}

/// Positions of the k largest along n of a contiguous array `[outer, n, inner]` → i32 `[outer, k, inner]`, largest first, ties to the lowest position, NaN last.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TopK {
    /// Type of the input.
    pub dtype: DType,
    /// Product of the dimensions before.
    pub outer: u64,
    /// Length of the searched dimension.
    pub n: u64,
    /// Product of the dimensions after.
    pub inner: u64,
    /// How many.
    pub k: u64,
    /// Contiguous.
    pub input: BufferId,
    /// Contiguous, i32.
    pub out: BufferId,
}

/// Element numbers `0..elements` of a contiguous i32 array, sorted stably by value (`0..groups`; a value outside is a run-time error). With
/// [`Negative::Nothing`] elements with negative values are left out, and -1 stands behind the others, as far as there is room; more rows than that are a
/// run-time error.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Group {
    /// i32, contiguous.
    pub chosen: BufferId,
    /// How many.
    pub elements: u64,
    /// Values are below this.
    pub groups: u64,
    /// What a negative value is.
    #[serde(default, skip_serializing_if = "Negative::is_wrong")]
    pub negative: Negative,
    /// How many rows there is room for, where that is less than `elements`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub room: Option<u64>,
    /// `i32[room]`
    pub rows: BufferId,
}

impl Group {
    /// Rows that there is room for.
    pub fn rows(&self) -> u64 {
        self.room.unwrap_or(self.elements)
    }
}

/// Where each value's run starts in the sorted order: i32[groups + 1].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Offsets {
    /// i32, contiguous.
    pub chosen: BufferId,
    /// How many.
    pub elements: u64,
    /// Values are below this.
    pub groups: u64,
    /// What a negative value is.
    #[serde(default, skip_serializing_if = "Negative::is_wrong")]
    pub negative: Negative,
    /// i32[groups + 1]
    pub out: BufferId,
}

/// `out[rows[i]] = i`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Invert {
    /// `i32[room]`: a permutation of `0..elements`, or of some of them with negative ones behind.
    pub rows: BufferId,
    /// How many.
    pub elements: u64,
    /// What a negative row is. With [`Negative::Nothing`] the place of an element without a row is -1.
    #[serde(default, skip_serializing_if = "Negative::is_wrong")]
    pub negative: Negative,
    /// How many rows there is room for, where that is less than `elements`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub room: Option<u64>,
    /// `i32[elements]`
    pub out: BufferId,
}

impl Invert {
    /// Rows that there is room for.
    pub fn rows(&self) -> u64 {
        self.room.unwrap_or(self.elements)
    }
}

/// `out[i] = g` for `offsets[g] <= i < offsets[g + 1]`; 0 for rows past the last offset.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RowGroups {
    /// i32[groups + 1]
    pub offsets: BufferId,
    /// Number of groups.
    pub groups: u64,
    /// Bound of the number of rows.
    pub rows: u64,
    /// `i32[rows]`
    pub out: BufferId,
}

/// Uniform f32 values in [0, 1) from the counter hash of (key, site, element).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Random {
    /// `i32[4]`: seed, step, instance, batch offset.
    pub key: BufferId,
    /// Which random op of the layer.
    pub site: u32,
    /// Logical dimensions, outermost first: element numbers are mixed-radix over them.
    pub dims: Vec<u64>,
    /// Is the first dimension's index offset by the batch offset?
    pub batched: bool,
    /// f32, with one stride for each dimension.
    pub out: View,
}
