//! Chains over tiles: an accumulator of a few vector registers goes through the micro-operations, one tile of columns after the other.
//!
//! Which code an operation takes is found out once for a tile: a jump that processors predict, since every tile takes the same ones.

use super::chain::{Code, From, MOST, Micro};
use crate::kernels::cpu::{Cpu, Level};
use crate::kernels::lanes::{self, Vector};
use crate::kernels::math;

/// Registers of a full tile.
const WIDTH: usize = 4;
/// Rows shorter than this are not worth a tile: each would go through all operations for itself.
pub(super) const LEAST_COLUMNS: usize = 32;

/// Where the operand of a micro-operation is in a block, and how far it is in bytes from one row, and from one column, to the next.
#[derive(Clone, Copy, Debug)]
pub(super) struct Place {
    pub ptr: *mut u8,
    pub row: usize,
    pub column: usize,
}

impl Place {
    pub const NONE: Place = Place { ptr: std::ptr::null_mut(), row: 0, column: 0 };
}

/// A chain in a block.
#[derive(Clone, Copy)]
pub(super) struct Tiles<'a> {
    pub micros: &'a [Micro],
    /// For each micro-operation.
    pub places: &'a [Place; MOST],
    pub rows: usize,
    pub columns: usize,
}

impl Tiles<'_> {
    /// Makes one row of all rows where everything goes on seamlessly.
    pub fn flattened(mut self) -> Self {
        let dense = |p: &Place| p.row == p.column * self.columns;
        if self.places[..self.micros.len()].iter().all(dense) {
            self.columns *= self.rows;
            self.rows = 1;
        }
        self
    }
}

/// Has a CPU level code for tiles?
pub(super) fn runs_on(cpu: Cpu) -> bool {
    cfg!(target_arch = "x86_64") && cpu.level() != Level::Portable
}

/// Runs a chain over a block.
///
/// # Safety
/// The level [has tiles](runs_on). Places have the elements of all rows and columns. What two of them share they see in the same way, and what is
/// stored nobody else touches.
pub(super) unsafe fn run(cpu: Cpu, tiles: &Tiles) {
    #[cfg(target_arch = "x86_64")]
    {
        #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2")]
        unsafe fn avx512(tiles: &Tiles) {
            // SAFETY: the caller's contract.
            unsafe { all::<lanes::avx512::Floats>(tiles) }
        }
        #[target_feature(enable = "avx2")]
        unsafe fn avx2(tiles: &Tiles) {
            // SAFETY: the caller's contract.
            unsafe { all::<lanes::avx2::Floats>(tiles) }
        }
        match cpu.level() {
            // SAFETY: a `Cpu` is never above what the machine has; the rest is the caller's contract.
            Level::Avx512 | Level::Avx512Bf16 => unsafe { avx512(tiles) },
            // SAFETY: as above.
            Level::Avx2 => unsafe { avx2(tiles) },
            Level::Portable => unreachable!("there are no tiles"),
        }
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = (cpu, tiles);
}

#[inline(always)]
unsafe fn all<V: Vector>(tiles: &Tiles) {
    let (rows, columns) = (tiles.rows, tiles.columns);
    let width = WIDTH * V::LANES;
    for row in 0..rows {
        let mut column = 0;
        // SAFETY: the caller's contract; tiles lie within the row.
        unsafe {
            while column + width <= columns {
                tile::<V, WIDTH, false>(tiles, row, column, V::LANES);
                column += width;
            }
            while column < columns {
                tile::<V, 1, true>(tiles, row, column, V::LANES.min(columns - column));
                column += V::LANES;
            }
        }
    }
}

/// An array like the accumulator, by an expression for each of its `N ≤ WIDTH` registers. Spelt out, so that all are registers indeed: a closure would
/// be compiled without the CPU features, and a loop that is not unrolled would want them in memory.
macro_rules! each {
    ($like:ident, |$i:ident| $value:expr) => {{
        let mut all = $like;
        each!(@one all, $like, $i, $value, 0);
        each!(@one all, $like, $i, $value, 1);
        each!(@one all, $like, $i, $value, 2);
        each!(@one all, $like, $i, $value, 3);
        all
    }};
    (@one $all:ident, $like:ident, $i:ident, $value:expr, $at:literal) => {
        if $at < $like.len() {
            let $i = $at;
            $all[$i] = $value;
        }
    };
}

/// `N` registers, or, in a part, the first `n` values of one.
#[inline(always)]
unsafe fn tile<V: Vector, const N: usize, const PART: bool>(tiles: &Tiles, row: usize, column: usize, n: usize) {
    let mut a = [V::splat(0.0); N];
    for (micro, place) in tiles.micros.iter().zip(tiles.places) {
        let p = place.ptr.wrapping_add(row * place.row + column * place.column);
        // SAFETY: the caller's contract: the place has the columns.
        unsafe {
            let b = match micro.from {
                From::Accumulator => a,
                From::Row => [V::splat(*p.cast::<f32>()); N],
                From::Columns => each!(a, |i| {
                    let p = p.cast::<f32>().add(i * V::LANES);
                    if PART { V::load_part(p, n) } else { V::load(p) }
                }),
                From::Bf16 => each!(a, |i| {
                    let p = p.cast::<u16>().add(i * V::LANES);
                    if PART {
                        let mut part = [0; 16];
                        part.as_mut_ptr().copy_from_nonoverlapping(p, n);
                        V::load_bf16(part.as_ptr())
                    } else {
                        V::load_bf16(p)
                    }
                }),
            };
            a = match micro.code {
                Code::Load => b,
                Code::Store => each!(a, |i| {
                    let p = p.cast::<f32>().add(i * V::LANES);
                    if PART {
                        a[i].store_part(p, n)
                    } else {
                        a[i].store(p)
                    }
                    a[i]
                }),
                Code::StoreBf16 => each!(a, |i| {
                    let (p, x) = (p.cast::<u16>().add(i * V::LANES), math::round_to_bf16(a[i]));
                    if PART {
                        let mut part = [0; 16];
                        x.store_upper(part.as_mut_ptr());
                        p.copy_from_nonoverlapping(part.as_ptr(), n);
                    } else {
                        x.store_upper(p);
                    }
                    a[i]
                }),
                Code::Neg => each!(a, |i| a[i].neg()),
                Code::Abs => each!(a, |i| a[i].abs()),
                Code::Exp => each!(a, |i| math::exp(a[i])),
                Code::Log => each!(a, |i| math::log(a[i])),
                Code::Tanh => each!(a, |i| math::tanh(a[i])),
                Code::Sqrt => each!(a, |i| a[i].sqrt()),
                Code::Rsqrt => each!(a, |i| V::splat(1.0) / a[i].sqrt()),
                Code::Round => each!(a, |i| math::round_to_bf16(a[i])),
                Code::Add => each!(a, |i| a[i] + b[i]),
                Code::Sub => each!(a, |i| a[i] - b[i]),
                Code::SubFrom => each!(a, |i| b[i] - a[i]),
                Code::Mul => each!(a, |i| a[i] * b[i]),
                Code::Div => each!(a, |i| a[i] / b[i]),
                Code::DivInto => each!(a, |i| b[i] / a[i]),
                Code::Min => each!(a, |i| least(a[i], b[i])),
                Code::MinOf => each!(a, |i| least(b[i], a[i])),
                Code::Max => each!(a, |i| most(a[i], b[i])),
                Code::MaxOf => each!(a, |i| most(b[i], a[i])),
            };
        }
    }
}

/// As [`math::min`].
#[inline(always)]
fn least<V: Vector>(a: V, b: V) -> V {
    a.least(b).or(a.le(a), a)
}

/// As [`math::max`].
#[inline(always)]
fn most<V: Vector>(a: V, b: V) -> V {
    a.most(b).or(a.le(a), a)
}
