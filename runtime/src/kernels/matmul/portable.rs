//! Plain Rust: 4 × 8 values in arrays, which compilers turn into whatever vectors the target has.

use super::tile::{Simd, entry_points};

pub(in crate::kernels) use portable_f32::Flavour as PortableF32;
pub(in crate::kernels) use portable_f64::Flavour as PortableF64;

macro_rules! portable {
    ($module:ident, $t:ty) => {
        mod $module {
            use super::*;

            /// Four lanes in an array.
            #[derive(Clone, Copy)]
            pub struct Flavour;

            impl Simd for Flavour {
                type T = $t;
                type R = [$t; 4];
                const LANES: usize = 4;
                const ROWS: usize = 4;
                const VECTORS: usize = 2;
                const TRANSPOSE: usize = 4;
                const FUSED: bool = cfg!(target_arch = "aarch64");

                #[inline(always)]
                unsafe fn zero() -> [$t; 4] {
                    [0.0; 4]
                }
                #[inline(always)]
                unsafe fn splat(p: *const $t) -> [$t; 4] {
                    // SAFETY: the pointer is good (the trait's contract); so for all methods here.
                    unsafe { [*p; 4] }
                }
                #[inline(always)]
                unsafe fn load(p: *const $t) -> [$t; 4] {
                    // SAFETY: as above.
                    unsafe { p.cast::<[$t; 4]>().read_unaligned() }
                }
                #[inline(always)]
                unsafe fn store(p: *mut $t, v: [$t; 4]) {
                    // SAFETY: as above.
                    unsafe { p.cast::<[$t; 4]>().write_unaligned(v) }
                }
                #[inline(always)]
                unsafe fn load_part(p: *const $t, n: usize) -> [$t; 4] {
                    // SAFETY: as above, for `n` elements.
                    std::array::from_fn(|i| if i < n { unsafe { *p.add(i) } } else { 0.0 })
                }
                #[inline(always)]
                unsafe fn store_part(p: *mut $t, v: [$t; 4], n: usize) {
                    for (i, v) in v.into_iter().enumerate().take(n) {
                        // SAFETY: as above, for `n` elements.
                        unsafe { *p.add(i) = v };
                    }
                }
                #[inline(always)]
                unsafe fn fma(a: [$t; 4], b: [$t; 4], c: [$t; 4]) -> [$t; 4] {
                    // On x86-64 without FMA a fused operation is a function call; aarch64 has the instruction, and then the bits of the other flavours.
                    std::array::from_fn(|i| {
                        if cfg!(target_arch = "aarch64") { a[i].mul_add(b[i], c[i]) } else { a[i] * b[i] + c[i] }
                    })
                }
                #[inline(always)]
                unsafe fn add(a: [$t; 4], b: [$t; 4]) -> [$t; 4] {
                    std::array::from_fn(|i| a[i] + b[i])
                }
                #[inline(always)]
                unsafe fn transpose(src: *const $t, stride: usize, rows: usize, dst: *mut $t, width: usize) {
                    for i in 0..4 {
                        for p in 0..4 {
                            // SAFETY: as above.
                            unsafe {
                                *dst.add(p * width + i) =
                                    if i < rows { src.add(i * stride + p).read_unaligned() } else { 0.0 };
                            }
                        }
                    }
                }
                entry_points!(rows 1 2 3 4, vectors 1 2);
            }
        }
    };
}

portable!(portable_f32, f32);
portable!(portable_f64, f64);
