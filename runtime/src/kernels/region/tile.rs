//! Micro-operations over tiles: an accumulator and a condition, each a few vector registers, go through them, one tile of columns after the other.
//!
//! Which code an operation takes is found out once for a tile: a jump that processors predict, since every tile takes the same ones. What stays from one
//! operation to the next must fit the registers, or each operation waits for a store of the one before: so conditions are bytes in memory, and functions of
//! many instructions, whose constants would be kept in registers as well, are compiled by themselves ([`Functions`]).

use super::chain::{Code, From, Micro, Site};
use super::ops::Arg;
use crate::kernels::cpu::Cpu;
#[cfg(target_arch = "x86_64")]
use crate::kernels::cpu::Vectors;
use crate::kernels::lanes::{self, Lanes, Pair, Vector};
use crate::kernels::math;

/// Values of a tile at most.
const MOST_COLUMNS: usize = 128;
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
            #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma")]
            unsafe fn functions(code: Code, a: &mut Columns, b: &Columns, n: usize) {
                // SAFETY: the caller's contract.
                unsafe { function::<Pair<Pair<Floats>>>(code, a, b, n) }
            }
            // SAFETY: the caller's contract.
            unsafe { all::<Floats, Pair<Pair<Floats>>>(tiles, functions) }
        }
        #[target_feature(enable = "avx2,fma")]
        unsafe fn avx2(tiles: &Tiles) {
            use lanes::avx2::Floats;
            #[target_feature(enable = "avx2,fma")]
            unsafe fn functions(code: Code, a: &mut Columns, b: &Columns, n: usize) {
                // SAFETY: the caller's contract.
                unsafe { function::<Pair<Floats>>(code, a, b, n) }
            }
            // SAFETY: the caller's contract.
            unsafe { all::<Floats, Pair<Floats>>(tiles, functions) }
        }
        match cpu.vectors() {
            // SAFETY: a `Cpu` is never above what the machine has; the rest is the caller's contract.
            Vectors::Avx512 => return unsafe { avx512(tiles) },
            // SAFETY: as above.
            Vectors::Avx2 => return unsafe { avx2(tiles) },
            Vectors::Portable => {}
        }
    }
    let _ = cpu;
    type Portable = Pair<lanes::portable::Floats>;
    // SAFETY: the caller's contract.
    unsafe { all::<lanes::portable::Floats, Portable>(tiles, function::<Portable>) }
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
unsafe fn all<V: Vector, W: Vector>(tiles: &Tiles, functions: Functions) {
    const { assert!(2 * W::LANES <= MOST_COLUMNS) };
    let columns = tiles.columns;
    let mut room = Room {
        conditions: [0; MOST_COLUMNS],
        values: Columns([0.0; MOST_COLUMNS]),
        operand: Columns([0.0; MOST_COLUMNS]),
        functions,
    };
    for row in 0..tiles.rows {
        let mut column = 0;
        // SAFETY: the caller's contract; tiles lie within the row.
        unsafe {
            while column + 2 * W::LANES <= columns {
                tile::<W, 2, false>(tiles, &mut room, row, column, W::LANES);
                column += 2 * W::LANES;
            }
            while column + W::LANES <= columns {
                tile::<W, 1, false>(tiles, &mut room, row, column, W::LANES);
                column += W::LANES;
            }
            // The rest: in single registers where two are enough.
            if column + 2 * V::LANES < columns {
                tile::<W, 1, true>(tiles, &mut room, row, column, columns - column);
                continue;
            }
            while column + V::LANES <= columns {
                tile::<V, 1, false>(tiles, &mut room, row, column, V::LANES);
                column += V::LANES;
            }
            if column < columns {
                tile::<V, 1, true>(tiles, &mut room, row, column, columns - column);
            }
        }
    }
}

/// Numbers for the columns of a tile, in memory.
#[repr(align(64))]
struct Columns([f32; MOST_COLUMNS]);

/// Replaces the first `n` numbers of `a` by what a function of many instructions makes of them and of `b`.
///
/// # Safety
/// The machine has the CPU features.
type Functions = unsafe fn(Code, &mut Columns, &Columns, usize);

/// What a tile has in memory.
struct Room {
    /// The conditions of its columns, as bytes.
    conditions: [u8; MOST_COLUMNS],
    /// Operands of functions.
    values: Columns,
    operand: Columns,
    functions: Functions,
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
unsafe fn tile<V: Vector, const N: usize, const PART: bool>(
    tiles: &Tiles,
    room: &mut Room,
    row: usize,
    column: usize,
    n: usize,
) {
    let c = V::splat;
    let mut a = [c(0.0); N];
    for (micro, place) in tiles.micros.iter().zip(tiles.places) {
        let p = place.ptr.wrapping_add(row * place.row + column * place.column);
        let m = room.conditions.as_mut_ptr();
        // SAFETY: the caller's contract: the place has the columns; the room has those of a tile.
        unsafe {
            let b = match micro.from {
                From::Row => [c(*p.cast::<f32>()); N],
                From::Columns => each!(a, |i| load::<V, PART>(p.cast::<f32>().add(i * V::LANES), n)),
                From::Bf16 => each!(a, |i| load_bf16::<V, PART>(p.cast::<u16>().add(i * V::LANES), n)),
                From::Accumulator | From::Truths | From::Truth => a,
            };
            macro_rules! condition {
                (|$i:ident| $value:expr) => {{
                    let $i = 0;
                    V::store_mask($value, m);
                    if N > 1 {
                        let $i = 1;
                        V::store_mask($value, m.add(V::LANES));
                    }
                }};
            }
            // As above: no closure.
            macro_rules! held {
                ($i:expr) => {
                    V::load_mask(m.add($i * V::LANES))
                };
            }
            macro_rules! call {
                ($a:ident) => {{
                    let values = room.values.0.as_mut_ptr();
                    each!($a, |i| store::<V, false>($a[i], values.add(i * V::LANES), n));
                    (room.functions)(micro.code, &mut room.values, &room.operand, N * V::LANES);
                    let values = room.values.0.as_ptr();
                    each!($a, |i| V::load(values.add(i * V::LANES)))
                }};
            }
            match micro.code {
                Code::Load => a = b,
                Code::Store => a = each!(a, |i| store::<V, PART>(a[i], p.cast::<f32>().add(i * V::LANES), n)),
                Code::StoreBf16 => a = each!(a, |i| store_bf16::<V, PART>(a[i], p.cast::<u16>().add(i * V::LANES), n)),
                Code::Neg => a = each!(a, |i| a[i].neg()),
                Code::Abs => a = each!(a, |i| a[i].abs()),
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
                Code::Min => a = each!(a, |i| a[i].minimum(b[i])),
                Code::MinOf => a = each!(a, |i| b[i].minimum(a[i])),
                Code::Max => a = each!(a, |i| a[i].maximum(b[i])),
                Code::MaxOf => a = each!(a, |i| b[i].maximum(a[i])),
                Code::Exp => a = each!(a, |i| math::exp(a[i])),
                Code::Sign | Code::Log | Code::Tanh | Code::Sin | Code::Cos => a = call!(a),
                Code::Rem | Code::RemInto | Code::Pow | Code::PowOf => {
                    let operand = room.operand.0.as_mut_ptr();
                    each!(b, |i| store::<V, false>(b[i], operand.add(i * V::LANES), n));
                    a = call!(a);
                }
                Code::Eq => condition!(|i| a[i].equal(b[i])),
                Code::Ne => condition!(|i| V::not(a[i].equal(b[i]))),
                Code::Lt => condition!(|i| a[i].lt(b[i])),
                Code::Le => condition!(|i| a[i].le(b[i])),
                Code::Gt => condition!(|i| b[i].lt(a[i])),
                Code::Ge => condition!(|i| b[i].le(a[i])),
                Code::Truth => condition!(|i| V::not(a[i].equal(c(0.0)))),
                Code::LoadTruth => condition!(|i| truths::<V, PART>(held!(i), micro.from, p, i * V::LANES, n)),
                Code::StoreTruth => p.copy_from_nonoverlapping(m, if PART { n } else { N * V::LANES }),
                Code::Not => condition!(|i| V::not(held!(i))),
                Code::And => {
                    condition!(|i| V::both(held!(i), truths::<V, PART>(held!(i), micro.from, p, i * V::LANES, n)))
                }
                Code::Or => {
                    condition!(|i| V::either(held!(i), truths::<V, PART>(held!(i), micro.from, p, i * V::LANES, n)))
                }
                Code::Number => a = each!(a, |i| c(1.0).or(held!(i), c(0.0))),
                Code::Select => a = each!(a, |i| a[i].or(held!(i), b[i])),
                Code::SelectOf => a = each!(a, |i| b[i].or(held!(i), a[i])),
            }
        }
    }
}

/// As [`Functions`] says, with `W` worked on side by side.
///
/// # Safety
/// The machine has the CPU features of `W`.
#[inline(always)]
unsafe fn function<W: Vector>(code: Code, a: &mut Columns, b: &Columns, n: usize) {
    let values = a.0.as_mut_ptr();
    macro_rules! vectors {
        (|$x:ident| $value:expr) => {{
            let mut at = 0;
            while at < n {
                // SAFETY: a tile's columns are whole vectors, of a part of `W` what follows is there as well.
                unsafe {
                    let $x = W::load(values.add(at));
                    ($value).store(values.add(at));
                }
                at += W::LANES;
            }
        }};
    }
    let singles = |a: &mut Columns, f: &dyn Fn(f32, f32) -> f32| {
        a.0[..n].iter_mut().zip(&b.0).for_each(|(a, b)| *a = f(*a, *b));
    };
    match code {
        Code::Sign => vectors!(|x| sign(x)),
        Code::Log => vectors!(|x| math::log(x)),
        Code::Tanh => vectors!(|x| math::tanh(x)),
        Code::Sin => vectors!(|x| periodic(x, math::sin(x), math::sin_any)),
        Code::Cos => vectors!(|x| periodic(x, math::cos(x), math::cos_any)),
        Code::Rem => singles(a, &math::remainder),
        Code::RemInto => singles(a, &|a, b| math::remainder(b, a)),
        Code::Pow => singles(a, &math::pow),
        Code::PowOf => singles(a, &|a, b| math::pow(b, a)),
        code => unreachable!("{code:?} is done in registers"),
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
    unsafe { if PART { V::load_bf16_part(p, n) } else { V::load_bf16(p) } }
}

/// The conditions of an operand from a column of the tile on; `held` where it is the condition itself.
#[inline(always)]
unsafe fn truths<V: Vector, const PART: bool>(
    held: V::Mask,
    from: From,
    p: *const u8,
    column: usize,
    n: usize,
) -> V::Mask {
    // SAFETY: as above.
    unsafe {
        match from {
            From::Truth => V::mask(*p != 0),
            From::Truths if PART => {
                let mut part = [0; MOST_COLUMNS];
                part.as_mut_ptr().copy_from_nonoverlapping(p, n);
                V::load_mask(part.as_ptr())
            }
            From::Truths => V::load_mask(p.add(column)),
            From::Accumulator | From::Columns | From::Row | From::Bf16 => held,
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
    unsafe { if PART { rounded.store_upper_part(p, n) } else { rounded.store_upper(p) } }
    x
}

/// 1 with the sign of a number; zeros and NaN are their own.
#[inline(always)]
pub(super) fn sign<V: Lanes>(a: V) -> V {
    let zero = V::splat(0.0);
    V::splat(1.0).or(zero.lt(a), V::splat(-1.0).or(a.lt(zero), a))
}

/// `y`, the result of the fast function for `x`, or that of the general one where one of the arguments needs it.
#[inline(always)]
unsafe fn periodic<V: Vector>(x: V, y: V, any: fn(f32) -> f32) -> V {
    if !V::any(V::splat(math::TRIG_LIMIT).lt(x.abs())) {
        return y;
    }
    let mut all = [0.0; MOST_COLUMNS];
    // SAFETY: the machine has the type's features, since there is a value of it; there is room for as many.
    unsafe {
        x.store(all.as_mut_ptr());
        all.iter_mut().take(V::LANES).for_each(|x| *x = any(*x));
        V::load(all.as_ptr())
    }
}
