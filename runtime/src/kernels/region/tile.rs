//! Chains over tiles: an accumulator of a few vector registers goes through the micro-operations, one tile of columns after the other.
//!
//! Which code an operation takes is found out once for a tile: a jump that processors predict, since every tile takes the same ones.

use super::chain::{Code, From, MOST, Micro};
use crate::kernels::cpu::{Cpu, Level};
use crate::kernels::lanes::{self, Pair, Vector};
use crate::kernels::math;

/// A full tile: registers that are worked on side by side.
type Tile<V> = Pair<Pair<V>>;
/// Values of a register at most.
const MOST_LANES: usize = 16;
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
    let columns = tiles.columns;
    for row in 0..tiles.rows {
        let mut column = 0;
        // SAFETY: the caller's contract; tiles lie within the row.
        unsafe {
            while column + Tile::<V>::LANES <= columns {
                tile::<Tile<V>, false>(tiles, row, column, Tile::<V>::LANES);
                column += Tile::<V>::LANES;
            }
            while column < columns {
                tile::<V, true>(tiles, row, column, V::LANES.min(columns - column));
                column += V::LANES;
            }
        }
    }
}

/// One tile; of a part only the first `n` values exist.
#[inline(always)]
unsafe fn tile<V: Vector, const PART: bool>(tiles: &Tiles, row: usize, column: usize, n: usize) {
    let mut a = V::splat(0.0);
    for (micro, place) in tiles.micros.iter().zip(tiles.places) {
        let p = place.ptr.wrapping_add(row * place.row + column * place.column);
        // SAFETY: the caller's contract: the place has the columns.
        unsafe {
            let b = match micro.from {
                From::Accumulator => a,
                From::Row => V::splat(*p.cast::<f32>()),
                From::Columns if PART => V::load_part(p.cast::<f32>(), n),
                From::Columns => V::load(p.cast::<f32>()),
                From::Bf16 if PART => {
                    let mut part = [0; MOST_LANES];
                    part.as_mut_ptr().copy_from_nonoverlapping(p.cast::<u16>(), n);
                    V::load_bf16(part.as_ptr())
                }
                From::Bf16 => V::load_bf16(p.cast::<u16>()),
            };
            a = match micro.code {
                Code::Load => b,
                Code::Store => {
                    if PART {
                        a.store_part(p.cast::<f32>(), n);
                    } else {
                        a.store(p.cast::<f32>());
                    }
                    a
                }
                Code::StoreBf16 => {
                    let rounded = math::round_to_bf16(a);
                    if PART {
                        let mut part = [0; MOST_LANES];
                        rounded.store_upper(part.as_mut_ptr());
                        p.cast::<u16>().copy_from_nonoverlapping(part.as_ptr(), n);
                    } else {
                        rounded.store_upper(p.cast::<u16>());
                    }
                    a
                }
                Code::Neg => a.neg(),
                Code::Abs => a.abs(),
                Code::Exp => math::exp(a),
                Code::Log => math::log(a),
                Code::Tanh => math::tanh(a),
                Code::Sqrt => a.sqrt(),
                Code::Rsqrt => V::splat(1.0) / a.sqrt(),
                Code::Round => math::round_to_bf16(a),
                Code::Add => a + b,
                Code::Sub => a - b,
                Code::SubFrom => b - a,
                Code::Mul => a * b,
                Code::Div => a / b,
                Code::DivInto => b / a,
                Code::Min => least(a, b),
                Code::MinOf => least(b, a),
                Code::Max => most(a, b),
                Code::MaxOf => most(b, a),
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
