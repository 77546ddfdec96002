//! Chains over tiles: an accumulator of a few vector registers goes through the micro-operations, one tile of columns after the other.
//!
//! Which code an operation takes is found out once for a tile: a jump that processors predict, since every tile takes the same ones.

use super::chain::{Code, From, MOST, Micro};
use crate::kernels::cpu::{Cpu, Level};
use crate::kernels::lanes::{self, Pair, Vector};
use crate::kernels::math;

/// Values of a register at most.
const MOST_LANES: usize = 16;
/// Rows shorter than this are not worth a tile: each would go through all operations for itself.
pub(super) const LEAST_COLUMNS: usize = 64;

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
            use lanes::avx512::Floats;
            // SAFETY: the caller's contract.
            unsafe { all::<Floats, Pair<Pair<Floats>>>(tiles) }
        }
        #[target_feature(enable = "avx2")]
        unsafe fn avx2(tiles: &Tiles) {
            use lanes::avx2::Floats;
            // SAFETY: the caller's contract.
            unsafe { all::<Floats, Pair<Floats>>(tiles) }
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

/// Full tiles are two times as many registers as are worked on side by side, `W`: so a jump does more, and no function runs out of registers.
#[inline(always)]
unsafe fn all<V: Vector, W: Vector>(tiles: &Tiles) {
    let columns = tiles.columns;
    for row in 0..tiles.rows {
        let mut column = 0;
        // SAFETY: the caller's contract; tiles lie within the row.
        unsafe {
            while column + 2 * W::LANES <= columns {
                tile::<W, 2, false>(tiles, row, column, W::LANES);
                column += 2 * W::LANES;
            }
            while column + W::LANES <= columns {
                tile::<W, 1, false>(tiles, row, column, W::LANES);
                column += W::LANES;
            }
            while column < columns {
                tile::<V, 1, true>(tiles, row, column, V::LANES.min(columns - column));
                column += V::LANES;
            }
        }
    }
}

/// An array like the accumulator, by an expression for each of its one or two elements. Spelt out, so that all are registers indeed: a closure would be
/// compiled without the CPU features, and a loop that is not unrolled would want them in memory.
macro_rules! each {
    ($like:ident, |$i:ident| $value:expr) => {{
        let mut all = $like;
        let $i = 0;
        all[$i] = $value;
        if $like.len() > 1 {
            let $i = 1;
            all[$i] = $value;
        }
        all
    }};
}

/// One tile; of a part only the first `n` values exist.
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
                From::Columns => each!(a, |i| load::<V, PART>(p.cast::<f32>().add(i * V::LANES), n)),
                From::Bf16 => each!(a, |i| load_bf16::<V, PART>(p.cast::<u16>().add(i * V::LANES), n)),
            };
            a = match micro.code {
                Code::Load => b,
                Code::Store => each!(a, |i| store::<V, PART>(a[i], p.cast::<f32>().add(i * V::LANES), n)),
                Code::StoreBf16 => each!(a, |i| store_bf16::<V, PART>(a[i], p.cast::<u16>().add(i * V::LANES), n)),
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

#[inline(always)]
unsafe fn load<V: Vector, const PART: bool>(p: *const f32, n: usize) -> V {
    // SAFETY: the callers' contract; so below.
    unsafe { if PART { V::load_part(p, n) } else { V::load(p) } }
}

#[inline(always)]
unsafe fn load_bf16<V: Vector, const PART: bool>(p: *const u16, n: usize) -> V {
    // SAFETY: as above.
    unsafe {
        if PART {
            let mut part = [0; MOST_LANES];
            part.as_mut_ptr().copy_from_nonoverlapping(p, n);
            V::load_bf16(part.as_ptr())
        } else {
            V::load_bf16(p)
        }
    }
}

/// Stores values, and gives them back.
#[inline(always)]
unsafe fn store<V: Vector, const PART: bool>(x: V, p: *mut f32, n: usize) -> V {
    // SAFETY: as above.
    unsafe {
        if PART {
            x.store_part(p, n);
        } else {
            x.store(p);
        }
    }
    x
}

/// The same, rounded.
#[inline(always)]
unsafe fn store_bf16<V: Vector, const PART: bool>(x: V, p: *mut u16, n: usize) -> V {
    let rounded = math::round_to_bf16(x);
    // SAFETY: as above.
    unsafe {
        if PART {
            let mut part = [0; MOST_LANES];
            rounded.store_upper(part.as_mut_ptr());
            p.copy_from_nonoverlapping(part.as_ptr(), n);
        } else {
            rounded.store_upper(p);
        }
    }
    x
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
