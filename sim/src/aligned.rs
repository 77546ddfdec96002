//! Where rows of a product's matrices begin.
//!
//! Matrix units read and write 16 bytes at a time. Where rows begin at multiples of fewer bytes, libraries fall back to kernels that are several times slower: a vocabulary
//! of 50,257 in bf16 makes rows of 100,514 bytes, every second of which begins at a multiple of 2.

use forebay_cost::Product;
use forebay_plan::Matmul;

/// What rows of all matrices of a product begin at multiples of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Alignment {
    /// Bytes, at most [`Product::ALIGNED`].
    pub bytes: u64,
    /// Elements between rows of the matrix that is aligned least.
    pub pitch: u64,
}

impl Alignment {
    /// Of a product's three matrices.
    pub fn of(k: &Matmul) -> Alignment {
        let element = k.dtype.bytes();
        let outer = |matrix: usize| {
            let batch = k.batch.iter().map(move |dim| (dim.0, [dim.1, dim.2, dim.3][matrix]));
            let summed = k.k_outer.iter().map(move |dim| (dim.0, [dim.1, dim.2, 0][matrix]));
            batch.chain(summed)
        };
        let (m, n, depth) = (k.m, k.n, k.k);
        let inner = [[(m.0, m.1), (depth.0, depth.1)], [(n.0, n.1), (depth.0, depth.2)], [(m.0, m.2), (n.0, n.2)]];
        let strides = (0..3).flat_map(|matrix| inner[matrix].into_iter().chain(outer(matrix)));
        // What is side by side, or there once, has no rows.
        let pitches = strides.filter(|(size, stride)| *size > 1 && *stride > 1).map(|(_, stride)| stride);
        let aligned = |pitch: u64| Alignment { bytes: (1 << (pitch * element).trailing_zeros().min(4)), pitch };
        let all = pitches.map(aligned);
        all.min_by_key(|alignment| alignment.bytes).unwrap_or(Alignment { bytes: Product::ALIGNED, pitch: 0 })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_plan::{BatchDim, DType, MatDim};

    /// (m × k) · (k × n), rows side by side, in bf16.
    fn product(m: u64, n: u64, k: u64) -> Matmul {
        Matmul {
            dtype: DType::Bf16,
            a: 0,
            b: 1,
            c: 2,
            offsets: [0; 3],
            batch: vec![],
            m: MatDim(m, k, n),
            n: MatDim(n, 1, 1),
            k: MatDim(k, 1, n),
            k_outer: vec![],
            groups: None,
            accumulate: false,
            epilogue: None,
        }
    }

    #[test]
    fn the_least_aligned_matrix_counts() {
        let of = |k: &Matmul| (Alignment::of(k).bytes, Alignment::of(k).pitch);
        assert_eq!(of(&product(64, 50_304, 2048)).0, 16);
        // The right matrix and the result have rows of n, the left one of k.
        for (n, bytes) in [(50_260, 8), (50_258, 4), (50_257, 2)] {
            assert_eq!(of(&product(64, n, 2048)), (bytes, n));
            assert_eq!(of(&product(64, 2048, n)), (bytes, n));
        }
        // How many rows there are does not matter, nor how long one is that stands alone.
        assert_eq!(of(&product(63, 2048, 2048)).0, 16);
        assert_eq!(of(&product(1, 2048, 2049)), (16, 2048));
        let wide = Matmul { dtype: DType::F32, ..product(64, 50_258, 2048) };
        assert_eq!(of(&wide).0, 8);
        let one_by_one = |strides| Matmul { batch: vec![strides], ..product(64, 2048, 2048) };
        assert_eq!(of(&one_by_one(BatchDim(8, 64 * 2048 + 1, 0, 64 * 2048))), (2, 64 * 2048 + 1));
        assert_eq!(of(&one_by_one(BatchDim(1, 64 * 2048 + 1, 0, 64 * 2048))).0, 16);
        let outer = Matmul { k_outer: vec![MatDim(4, 2048 * 64, 2049)], ..product(64, 2048, 2048) };
        assert_eq!(of(&outer), (2, 2049));
    }
}
