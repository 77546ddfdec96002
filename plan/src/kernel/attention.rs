//! Attention that never writes its scores to memory.

use super::{View, is_zero};
use crate::schema::DType;
use serde::{Deserialize, Serialize};

/// What is attended with: the operands of a forward and of a backward kernel alike.
///
/// For every index of the batch and every query t the scores are `s[u] = scale · Σ_pairs Σ_d q[t, d]·k[u, d]`. A key u is *visible* to the query t when all
/// of this holds; the scores of other keys are -∞:
/// - its position is not after that of the query, when `causal`;
/// - it is less than `window` positions before that of the query (in signed numbers), when the window is not 0;
/// - `documents.queries[t] = documents.keys[u]`, when there are documents.
///
/// The views have a stride for each dimension of the batch, then one for positions, then one for the elements of a head. Stride 0 along a dimension of the batch
/// means that the array lacks it: heads that share their keys, for instance. Positions and elements are never shared.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AttentionInputs {
    /// Type of queries, keys, values, sink, results and gradients: f32, bf16 or f64.
    pub dtype: DType,
    /// Independent problems, outermost first: batch, heads, groups of heads.
    pub batch: Vec<u64>,
    /// Number of queries.
    pub queries: u64,
    /// Number of keys.
    pub keys: u64,
    /// Products whose sum are the scores; at least one.
    pub pairs: Vec<ScorePair>,
    /// The values `[batch…, keys, value_size]`.
    pub v: View,
    /// Elements of a value.
    pub value_size: u64,
    /// Factor of the scores.
    #[serde(with = "crate::float")]
    pub scale: f64,
    /// Is a key visible only to its own and later positions?
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub causal: bool,
    /// How many positions back keys are visible, the query's own counted; 0 for all.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub window: u64,
    /// Documents that see only themselves.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub documents: Option<Marks>,
    /// The positions of queries and keys, where they are parts of a row; both count from 0 when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub positions: Option<Marks>,
    /// One more score for each index of the batch, which takes part in the sum of the softmax and has no value. Strides of the batch alone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sink: Option<View>,
}

/// One product of queries and keys.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ScorePair {
    /// Elements of a query and of a key.
    pub size: u64,
    /// The queries `[batch…, queries, size]`.
    pub q: View,
    /// The keys `[batch…, keys, size]`.
    pub k: View,
}

/// An i32 for each query and each key; strides of the batch, then of queries or keys.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Marks {
    /// Of the queries.
    pub queries: View,
    /// Of the keys.
    pub keys: View,
}

/// `out[t] = Σ_u p[u]·v[u]` with `p = exp(s - lse)` and `lse = log(Σ_u exp(s[u]) + exp(sink))`, the sums over all keys.
///
/// A query that sees no key at all has the result 0; without a sink its lse is -∞. bf16 is computed in f32, results are rounded once; p may be rounded to bf16
/// before it is multiplied with values. A result is summed in an order that depends on the positions of query and keys and on nothing else: not on how
/// many queries or problems there are.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Attention {
    /// What is attended with.
    pub inputs: AttentionInputs,
    /// `[batch…, queries, value_size]`.
    pub out: View,
    /// `[batch…, queries]`, f64 for f64 and f32 for the others.
    pub lse: View,
}

/// The gradients of an [`Attention`]. With p as there, `delta[t] = Σ_e d_out[t, e]·out[t, e]` and `ds[t, u] = p[t, u]·(Σ_e d_out[t, e]·v[u, e] - delta[t])·scale`:
///
/// ```text
/// d_q[t] = Σ_u ds[t, u]·k[u]     d_k[u] = Σ_t ds[t, u]·q[t]     d_v[u] = Σ_t p[t, u]·d_out[t]     d_sink = -Σ_t exp(sink - lse[t])·delta[t]
/// ```
///
/// A gradient is summed, in row-major order, over the dimensions of the batch along which its stride is 0, is rounded once, and overwrites what was there.
/// Its order depends on the positions of queries and keys and on the sizes of the summed dimensions alone.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AttentionBackward {
    /// What was attended with.
    pub inputs: AttentionInputs,
    /// The result, as [`Attention::out`].
    pub out: View,
    /// As [`Attention::lse`].
    pub lse: View,
    /// Gradient of the result.
    pub d_out: View,
    /// For each pair the gradient of its queries, if wanted.
    pub d_q: Vec<Option<View>>,
    /// For each pair the gradient of its keys, if wanted.
    pub d_k: Vec<Option<View>>,
    /// Gradient of the values, if wanted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub d_v: Option<View>,
    /// Gradient of the sink, if wanted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub d_sink: Option<View>,
}
