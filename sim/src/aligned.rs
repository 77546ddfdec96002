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
