//! Axes and tensor types.

use std::fmt;

/// An axis of one graph: an index into [`crate::Graph::axes`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct AxisId(pub u32);

/// A named axis.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Axis {
    /// Unique within the graph.
    pub name: String,
    /// How long it is.
    pub extent: Extent,
    /// The constant its size came from (`experts` for `e: experts`): what a sharding strategy calls it.
    pub label: Option<String>,
}

/// The length of an axis.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Extent {
    /// Known at compile time, in elements.
    Fixed(u64),
    /// One run of rows for each element of `parent`, back to back; the lengths are known at run time only.
    /// `parent` and the ragged axis stand side by side in a type and share one physical dimension of `bound` rows.
    Ragged {
        /// The axis whose elements own the rows (experts).
        parent: AxisId,
        /// Planned maximum of the total number of rows.
        bound: u64,
        /// Rows that there are when elements are spread evenly over all groups: what costs are counted with. Where [`crate::Op::Group`] makes them and
        /// this is less than `bound`, elements with negative values are in no group, and there may be more elements than `bound`; more rows are an error of the run.
        even: u64,
    },
}

/// Element types.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum DType {
    /// 64-bit float.
    F64,
    /// 32-bit float.
    F32,
    /// 16-bit brain float; values between ops are rounded to nearest even, accumulation is in f32.
    BF16,
    /// 32-bit signed integer.
    I32,
    /// One byte, 0 or 1.
    Bool,
}

impl DType {
    /// Bytes of one element.
    pub fn bytes(self) -> u64 {
        match self {
            DType::F64 => 8,
            DType::F32 | DType::I32 => 4,
            DType::BF16 => 2,
            DType::Bool => 1,
        }
    }

    /// Is this a floating-point type?
    pub fn is_float(self) -> bool {
        match self {
            DType::F64 | DType::F32 | DType::BF16 => true,
            DType::I32 | DType::Bool => false,
        }
    }

    /// The name in textual IR.
    pub fn name(self) -> &'static str {
        match self {
            DType::F64 => "f64",
            DType::F32 => "f32",
            DType::BF16 => "bf16",
            DType::I32 => "i32",
            DType::Bool => "bool",
        }
    }

    /// The type of a name in textual IR.
    pub fn from_name(name: &str) -> Option<DType> {
        [DType::F64, DType::F32, DType::BF16, DType::I32, DType::Bool].into_iter().find(|d| d.name() == name)
    }
}

impl fmt::Display for DType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// The type of a value: element type and axes in physical order, outermost first.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Type {
    /// Element type.
    pub dtype: DType,
    /// Axes, outermost first; no axis twice; a ragged axis directly after its parent.
    pub axes: Vec<AxisId>,
}

impl Type {
    /// A type from its parts.
    pub fn new(dtype: DType, axes: impl Into<Vec<AxisId>>) -> Type {
        Type { dtype, axes: axes.into() }
    }

    /// Does the type have this axis?
    pub fn has(&self, axis: AxisId) -> bool {
        self.axes.contains(&axis)
    }

    /// Where the axis stands.
    pub fn position(&self, axis: AxisId) -> Option<usize> {
        self.axes.iter().position(|&a| a == axis)
    }
}
