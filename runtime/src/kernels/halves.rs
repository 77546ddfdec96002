//! An f32 in two halves of 16 bits, so that a parameter and its copy in bf16 take four bytes together instead of six.
//!
//! ```text
//! x      = [ upper 16 bits | lower 16 bits ]
//! copy   =   x rounded to bf16, to nearest, ties to even: the upper bits, or the next number
//! lower  =   the lower 16 bits of x
//! mark   =   did rounding change the upper bits?
//! ```
//!
//! Truncating instead of rounding would need no mark (Split-SGD, arXiv 2005.04680), but train otherwise than two copies do. With rounding, 65,537 numbers have one
//! even bf16 number as their copy, which 16 bits cannot tell apart: one bit more is kept, as the sign of AdamW's second moment. That is a sum of squares, so
//! its sign is free. Every bit pattern comes back: rounding a NaN sets its bit 22 at most, and says so in the mark.

use super::math::round_to_bf16;

/// Where the sign of an f32 is.
const SIGN: u32 = 1 << 31;

/// The f32 of the copy's bits (a bf16, widened), the lower half and a number whose sign is the mark.
#[inline(always)]
pub(crate) fn join(copy: u32, lower: i32, mark: u32) -> u32 {
    let is_nan = copy & !SIGN > 0x7f80_0000;
    let changed = (mark >> 31) << if is_nan { 22 } else { 16 };
    copy.wrapping_sub(changed) | (lower as u32 & 0xffff)
}

/// The lower half of an f32, widened.
#[inline(always)]
pub(crate) fn lower(x: u32) -> i32 {
    i32::from(x as u16 as i16)
}

/// The bits of a carrier's magnitude with the mark of x as its sign.
#[inline(always)]
pub(crate) fn mark(carrier: f32, x: f32) -> u32 {
    let changed = (round_to_bf16(x).to_bits() ^ x.to_bits()) >> 16 != 0;
    (carrier.to_bits() & !SIGN) | u32::from(changed) << 31
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What two copies are, as the standard says, without this module's arithmetic.
    fn nearest(x: f32) -> u32 {
        u32::from(half::bf16::from_f32(x).to_bits()) << 16
    }

    /// Does a number come back from its halves, and is the copy what two copies would have?
    fn check(bits: u32) {
        let x = f32::from_bits(bits);
        let copy = round_to_bf16(x).to_bits();
        let (lower, carrier) = (lower(bits), mark(0.0, x));
        assert!((-32_768..=32_767).contains(&lower) && carrier & !SIGN == 0, "{bits:#010x}");
        assert_eq!(copy, nearest(x), "the copy of {bits:#010x}");
        assert_eq!(join(copy, lower, carrier), bits, "{bits:#010x}");
    }

    /// NaNs, infinities and zeros with their neighbours, ties, and the ends of binades.
    #[test]
    fn special_numbers_come_back() {
        let nans = (0..=0xffffu32)
            .flat_map(|low| [0x7f80_0001 | low, 0x7fbf_0000 | low, 0x7fc0_0000 | low, 0x7fff_0000 | low]);
        let around = |centre: u32| (0..=0x1_0002u32).map(move |d| centre.wrapping_sub(0x8001).wrapping_add(d));
        let infinite = around(0x7f80_0000);
        let subnormal = (0..=0x1_8000u32).chain(around(0x0080_0000));
        let ties = (0..=0xffffu32).map(|upper| upper << 16 | 0x8000);
        let binades = (0..=254u32).flat_map(|exponent| around(exponent << 23).step_by(97));
        let all = nans.chain(infinite).chain(subnormal).chain(ties).chain(binades);
        all.for_each(|bits| [bits, bits | SIGN].into_iter().for_each(check));
    }

    /// Every bit pattern in a run of all tests; else each exponent and sign with a lattice of mantissas, and both sides of it.
    #[test]
    fn all_numbers_come_back() {
        if std::env::var_os("FOREBAY_TEST_ALL").is_none() {
            (0..=u32::MAX).step_by(4099).for_each(check);
            return;
        }
        let threads = std::thread::available_parallelism().map_or(1, |n| n.get()) as u64;
        let piece = (1u64 << 32).div_ceil(threads);
        std::thread::scope(|scope| {
            for first in (0..threads).map(|thread| thread * piece) {
                scope.spawn(move || (first..(first + piece).min(1 << 32)).for_each(|bits| check(bits as u32)));
            }
        });
    }

    /// 65,537 numbers have an even number as their copy, 65,535 an odd one; lower half and mark tell them apart.
    #[test]
    fn what_one_copy_stands_for() {
        for (copy, count) in [(0x3f80u32, 65_537), (0x3f81, 65_535)] {
            let near = (copy - 1 << 16)..=(copy + 1 << 16);
            let same = near.filter(|bits| round_to_bf16(f32::from_bits(*bits)).to_bits() == copy << 16);
            let mut halves: Vec<(i32, u32)> = same.map(|bits| (lower(bits), mark(0.0, f32::from_bits(bits)))).collect();
            assert_eq!(halves.len(), count);
            halves.sort_unstable();
            halves.dedup();
            assert_eq!(halves.len(), count);
        }
    }

    #[test]
    fn a_carrier_keeps_its_magnitude() {
        for carrier in [0.0f32, 1.5e-40, 3.25, f32::INFINITY] {
            for x in [1.0f32, f32::from_bits(0x3f80_8001)] {
                assert_eq!(mark(carrier, x) & !SIGN, carrier.to_bits());
                assert_eq!(mark(-carrier, x) & !SIGN, carrier.to_bits());
            }
        }
    }
}
