//! Attention, forward and backward, in blocks: scores live in the workspace of a worker, never in memory.
//!
//! Queries are taken [`QUERIES`] at a time, keys [`KEYS`] at a time. A block of scores is kept *transposed*, keys by queries. So
//! softmax works on vectors of queries without looking across lanes, and all products find their operands as they are:
//!
//! ```text
//! Sᵀ[u, t]  = Σ_d k[u, d]·q[t, d]       rows of K        × Qᵀ, turned once for a block of queries
//! dPᵀ[u, t] = Σ_e v[u, e]·dO[t, e]      rows of V        × dOᵀ
//! O[t, e]   = Σ_u P[t, u]·v[u, e]       columns of Pᵀ    × V
//! dV[u, e]  = Σ_t P[t, u]·dO[t, e]      rows of Pᵀ       × dO
//! dK[u, d]  = Σ_t dS[t, u]·q[t, d]      rows of dSᵀ      × Q
//! dQ[t, d]  = Σ_u dS[t, u]·k[u, d]      columns of dSᵀ   × K
//! ```
//!
//! **Pairs of bf16.** Where the machine multiplies pairs (see [`crate::kernels::matmul`]), all six products of bf16 do. Queries, keys, values and dO are bf16 as they are. P is rounded
//! to bf16, to nearest even, forward relative to the largest score so far and before it is divided by its sum, and so is dS, before the factor of scores. The sums of
//! softmax are of what is not rounded yet, dS is made of it too, and all sums are f32. Elsewhere nothing is rounded but results. Where the machine multiplies tiles of pairs, the same
//! is rounded.
//!
//! **Order of sums.** Blocks begin at multiples of their size from position 0. Within a block a sum is one chain of fused multiply-adds (of pairs: with half the links), and blocks are added in
//! order. What is not visible adds zeros, and is skipped in steps of [`LANES`] positions. So an element depends on its own position and on
//! operands that it sees, not on how many queries or heads there are, on workers or on vectors. (Tiles sum thirty-two products at a time from the first position that is not
//! skipped on: there a window has other bits when it is given by positions, which skip nothing, than when it is counted.)
//!
//! **Cutting.** Forward, a task is one index of the batch, or some blocks of its queries where there are few. Backward, a task is one index of
//! the batch: its gradients of keys and values are summed in the worker's workspace. Gradients that several indices share are put together afterwards,
//! see [`sums`].
//!
//! **Copies.** Keys and values are copied to the workspace when the first query sees them, and what is read next is fetched while products run.

mod arrays;
mod backward;
mod block;
mod forward;
mod marks;
mod operand;
mod problem;
mod rows;
mod softmax;
mod sums;

pub(super) use backward::Backward;
pub(super) use forward::Forward;

use forebay_plan::DType;

/// Queries of a block: a full tile's columns for every flavour of vectors (AMX has registers of sixteen columns: one and a half tiles).
const QUERIES: usize = 48;
/// Keys of a block.
const KEYS: usize = 64;
/// Positions that are taken together: blocks are cut at multiples of this. Divides both sizes.
const LANES: usize = 16;
/// Problems below this many multiply-adds run on the calling thread: waking another costs as much.
const SERIAL: usize = 1 << 18;

/// Bytes of what sums are kept in.
fn wide_bytes(dtype: DType) -> usize {
    if dtype == DType::F64 { 8 } else { 4 }
}
