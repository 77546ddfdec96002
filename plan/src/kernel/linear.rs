//! Attention without a softmax, which a state of fixed size remembers.

use super::View;
use crate::schema::DType;
use serde::{Deserialize, Serialize};

/// Linear attention with decay, or the triangular system of the same scores.
///
/// For every index of the batch, positions t and s have the score `q[t] · k[s]`, times the decay between them: `exp` of the sum of g over the positions after the
/// earlier of the two, the later one's own included. A position reads those before it, or, `backward`, those after it:
///
/// ```text
/// inclusive   out[t] = Σ_s≤t decay[t, s] (q[t] · k[s]) v[s]
/// exclusive   out[t] = Σ_s<t decay[t, s] (q[t] · k[s]) v[s]
/// solve       out[t] = v[t] - Σ_s<t decay[t, s] (q[t] · k[s]) out[s]
/// ```
///
/// Views have a stride for each dimension of the batch, then one for positions, then one for each dimension of keys (q, k) or of values (v, out). Stride 0 along a
/// dimension of the batch means that the array lacks it. bf16 is computed in f32, decays in f64; results are rounded once. A result is summed in an order
/// that depends on its position and on the sizes of keys and positions alone: not on how many problems or values there are.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LinearAttention {
    /// Type of q, k and v: f32, bf16 or f64.
    pub dtype: DType,
    /// What results are rounded to: the type of the values, or f32 for bf16.
    pub result: DType,
    /// What a position reads.
    pub reads: LinearReads,
    /// Do positions read those after them?
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub backward: bool,
    /// Independent problems, outermost first.
    pub batch: Vec<u64>,
    /// Number of positions.
    pub positions: u64,
    /// Dimensions of a query and of a key, outermost first.
    pub keys: Vec<u64>,
    /// Dimensions of a value and of a result, outermost first.
    pub values: Vec<u64>,
    /// The queries `[batch…, positions, keys…]`.
    pub q: View,
    /// The keys `[batch…, positions, keys…]`.
    pub k: View,
    /// The values `[batch…, positions, values…]`.
    pub v: View,
    /// Logarithms of the decay from the position before to this one, `[batch…, positions]`: f64 for f64 and f32 for the others. At most 0 in a sensible model, and
    /// -∞ where nothing is remembered.
    pub g: View,
    /// `[batch…, positions, values…]`.
    pub out: View,
}

/// What a position of linear attention reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LinearReads {
    /// The values of its own and of earlier positions.
    Inclusive,
    /// The values of earlier positions.
    Exclusive,
    /// The results of earlier positions, which are taken from its value.
    Solve,
}
