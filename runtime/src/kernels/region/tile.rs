//! Micro-operations over tiles: an accumulator and a condition, each a few vector registers, go through them, one tile of columns after the other.
//!
//! Which code an operation takes is found out once for a tile: a jump that processors predict, since every tile takes the same ones.

use super::chain::{Code, From, Micro, Site};
use super::ops::Arg;
use crate::kernels::cpu::{Cpu, Level};
use crate::kernels::lanes::{self, Pair, Vector};
use crate::kernels::math;

/// Values of a register at most.
const MOST_LANES: usize = 16;
/// Values of what is worked on side by side at most.
const MOST_SIDE_BY_SIDE: usize = 64;
/// Rows shorter than this are not worth a chain: each would go through all operations for itself.
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

/// Micro-operations in a block.
#[derive(Clone, Copy)]
pub(super) struct Tiles<'a> {
    pub micros: &'a [Micro],
    /// For each micro-operation.
    pub places: &'a [Place],
    pub rows: usize,
    pub columns: usize,
}

impl Tiles<'_> {
    /// Makes one row of all rows where everything goes on seamlessly.
    pub fn flattened(mut self) -> Self {
        let dense = |p: &Place| p.row == p.column * self.columns;
        if self.places.iter().all(dense) {
            self.columns *= self.rows;
            self.rows = 1;
        }
        self
    }
}

/// Runs a chain over a block.
///
/// # Safety
/// Places have the elements of all rows and columns. What two of them share they see in the same way, and what is stored nobody else touches.
pub(super) unsafe fn run(cpu: Cpu, tiles: &Tiles) {
    #[cfg(target_arch = "x86_64")]
    {
        #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma")]
        unsafe fn avx512(tiles: &Tiles) {
            use lanes::avx512::Floats;
            // SAFETY: the caller's contract.
            unsafe { all::<Floats, Pair<Pair<Floats>>>(tiles) }
        }
        #[target_feature(enable = "avx2,fma")]
        unsafe fn avx2(tiles: &Tiles) {
            use lanes::avx2::Floats;
            // SAFETY: the caller's contract.
            unsafe { all::<Floats, Pair<Floats>>(tiles) }
        }
        match cpu.level() {
            // SAFETY: a `Cpu` is never above what the machine has; the rest is the caller's contract.
            Level::Avx512 | Level::Avx512Bf16 => return unsafe { avx512(tiles) },
            // SAFETY: as above.
            Level::Avx2 => return unsafe { avx2(tiles) },
            Level::Portable => {}
        }
    }
    let _ = cpu;
    // SAFETY: the caller's contract.
    unsafe { all::<lanes::portable::Floats, Pair<lanes::portable::Floats>>(tiles) }
}

/// Runs one instruction on f32: its code, destination and one or two operands.
///
/// # Safety
/// As [`run`].
pub(super) unsafe fn one(cpu: Cpu, code: Code, to: &Arg, args: &[Arg], rows: usize, columns: usize) {
    const BYTES: usize = size_of::<f32>();
    let place = |arg: &Arg| Place { ptr: arg.ptr, row: BYTES * arg.row, column: BYTES * arg.column };
    let from = |arg: &Arg| if arg.column == 0 { From::Row } else { From::Columns };
    let micro = |code, from| Micro { code, from, site: Site::None };
    let (load, store) = (micro(Code::Load, from(&args[0])), micro(Code::Store, From::Accumulator));
    // SAFETY: the caller's contract.
    unsafe {
        let run = |micros: &[Micro], places: &[Place]| run(cpu, &Tiles { micros, places, rows, columns });
        match args {
            [a] => {
                let operation = micro(code, From::Accumulator);
                run(&[load, operation, store], &[place(a), Place::NONE, place(to)]);
            }
            [a, b] => run(&[load, micro(code, from(b)), store], &[place(a), place(b), place(to)]),
            _ => unreachable!("{} operands", args.len()),
        }
    }
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

/// An array like another, by an expression for each of its one or two elements. Spelt out, so that all are registers indeed: a closure would be
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
    let c = V::splat;
    let mut a = [c(0.0); N];
    let mut m = [V::mask(false); N];
    for (micro, place) in tiles.micros.iter().zip(tiles.places) {
        let p = place.ptr.wrapping_add(row * place.row + column * place.column);
        // SAFETY: the caller's contract: the place has the columns.
        unsafe {
            let b = match micro.from {
                From::Row => [c(*p.cast::<f32>()); N],
                From::Columns => each!(a, |i| load::<V, PART>(p.cast::<f32>().add(i * V::LANES), n)),
                From::Bf16 => each!(a, |i| load_bf16::<V, PART>(p.cast::<u16>().add(i * V::LANES), n)),
                From::Accumulator | From::Truths | From::Truth => a,
            };
            match micro.code {
                Code::Load => a = b,
                Code::Store => a = each!(a, |i| store::<V, PART>(a[i], p.cast::<f32>().add(i * V::LANES), n)),
                Code::StoreBf16 => a = each!(a, |i| store_bf16::<V, PART>(a[i], p.cast::<u16>().add(i * V::LANES), n)),
                Code::Neg => a = each!(a, |i| a[i].neg()),
                Code::Abs => a = each!(a, |i| a[i].abs()),
                Code::Sign => a = each!(a, |i| sign(a[i])),
                Code::Exp => a = each!(a, |i| math::exp(a[i])),
                Code::Log => a = each!(a, |i| math::log(a[i])),
                Code::Tanh => a = each!(a, |i| math::tanh(a[i])),
                Code::Sin => a = each!(a, |i| periodic(a[i], math::sin(a[i]), math::sin_any)),
                Code::Cos => a = each!(a, |i| periodic(a[i], math::cos(a[i]), math::cos_any)),
                Code::Sqrt => a = each!(a, |i| a[i].sqrt()),
                Code::Rsqrt => a = each!(a, |i| c(1.0) / a[i].sqrt()),
                Code::Floor => a = each!(a, |i| a[i].floor()),
                Code::Round => a = each!(a, |i| math::round_to_bf16(a[i])),
                Code::Add => a = each!(a, |i| a[i] + b[i]),
                Code::Sub => a = each!(a, |i| a[i] - b[i]),
                Code::SubFrom => a = each!(a, |i| b[i] - a[i]),
                Code::Mul => a = each!(a, |i| a[i] * b[i]),
                Code::Div => a = each!(a, |i| a[i] / b[i]),
                Code::DivInto => a = each!(a, |i| b[i] / a[i]),
                Code::Rem => a = each!(a, |i| one_by_one(a[i], b[i], math::remainder)),
                Code::RemInto => a = each!(a, |i| one_by_one(b[i], a[i], math::remainder)),
                Code::Pow => a = each!(a, |i| one_by_one(a[i], b[i], math::pow)),
                Code::PowOf => a = each!(a, |i| one_by_one(b[i], a[i], math::pow)),
                Code::Min => a = each!(a, |i| least(a[i], b[i])),
                Code::MinOf => a = each!(a, |i| least(b[i], a[i])),
                Code::Max => a = each!(a, |i| most(a[i], b[i])),
                Code::MaxOf => a = each!(a, |i| most(b[i], a[i])),
                Code::Eq => m = each!(m, |i| a[i].equal(b[i])),
                Code::Ne => m = each!(m, |i| V::not(a[i].equal(b[i]))),
                Code::Lt => m = each!(m, |i| a[i].lt(b[i])),
                Code::Le => m = each!(m, |i| a[i].le(b[i])),
                Code::Gt => m = each!(m, |i| b[i].lt(a[i])),
                Code::Ge => m = each!(m, |i| b[i].le(a[i])),
                Code::Truth => m = each!(m, |i| V::not(a[i].equal(c(0.0)))),
                Code::LoadTruth => m = truths::<V, N, PART>(m, micro.from, p, n),
                Code::StoreTruth => m = each!(m, |i| store_truth::<V, PART>(m[i], p.add(i * V::LANES), n)),
                Code::Not => m = each!(m, |i| V::not(m[i])),
                Code::And => {
                    let other = truths::<V, N, PART>(m, micro.from, p, n);
                    m = each!(m, |i| V::both(m[i], other[i]));
                }
                Code::Or => {
                    let other = truths::<V, N, PART>(m, micro.from, p, n);
                    m = each!(m, |i| V::either(m[i], other[i]));
                }
                Code::Number => a = each!(a, |i| c(1.0).or(m[i], c(0.0))),
                Code::Select => a = each!(a, |i| a[i].or(m[i], b[i])),
                Code::SelectOf => a = each!(a, |i| b[i].or(m[i], a[i])),
            }
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

/// The conditions of an operand.
#[inline(always)]
unsafe fn truths<V: Vector, const N: usize, const PART: bool>(
    m: [V::Mask; N],
    from: From,
    p: *const u8,
    n: usize,
) -> [V::Mask; N] {
    // SAFETY: as above.
    unsafe {
        match from {
            From::Truth => [V::mask(*p != 0); N],
            From::Truths if PART => {
                let mut part = [0; MOST_LANES];
                part.as_mut_ptr().copy_from_nonoverlapping(p, n);
                [V::load_mask(part.as_ptr()); N]
            }
            From::Truths => each!(m, |i| V::load_mask(p.add(i * V::LANES))),
            From::Accumulator | From::Columns | From::Row | From::Bf16 => m,
        }
    }
}

/// Stores values, and gives them back.
#[inline(always)]
unsafe fn store<V: Vector, const PART: bool>(x: V, p: *mut f32, n: usize) -> V {
    // SAFETY: as above.
    unsafe { if PART { x.store_part(p, n) } else { x.store(p) } }
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

/// The same for conditions.
#[inline(always)]
unsafe fn store_truth<V: Vector, const PART: bool>(mask: V::Mask, p: *mut u8, n: usize) -> V::Mask {
    // SAFETY: as above.
    unsafe {
        if PART {
            let mut part = [0; MOST_LANES];
            V::store_mask(mask, part.as_mut_ptr());
            p.copy_from_nonoverlapping(part.as_ptr(), n);
        } else {
            V::store_mask(mask, p);
        }
    }
    mask
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

/// 1 with the sign of a number; zeros and NaN are their own.
#[inline(always)]
fn sign<V: Vector>(a: V) -> V {
    let zero = V::splat(0.0);
    V::splat(1.0).or(zero.lt(a), V::splat(-1.0).or(a.lt(zero), a))
}

/// `y`, the result of the fast function for `x`, or that of the general one where one of the arguments needs it.
#[inline(always)]
unsafe fn periodic<V: Vector>(x: V, y: V, any: fn(f32) -> f32) -> V {
    if V::any(V::splat(math::TRIG_LIMIT).lt(x.abs())) {
        // SAFETY: the machine has the type's features, since there is a value of it.
        unsafe { one_by_one(x, x, |x, _| any(x)) }
    } else {
        y
    }
}

/// What a function of single values gives.
#[inline(always)]
unsafe fn one_by_one<V: Vector>(a: V, b: V, f: impl Fn(f32, f32) -> f32) -> V {
    let mut all = [[0.0; MOST_SIDE_BY_SIDE]; 2];
    let [x, y] = &mut all;
    // SAFETY: as above; there is room for as many.
    unsafe {
        a.store(x.as_mut_ptr());
        b.store(y.as_mut_ptr());
        x.iter_mut().zip(y).take(V::LANES).for_each(|(x, y)| *x = f(*x, *y));
        V::load(x.as_ptr())
    }
}
