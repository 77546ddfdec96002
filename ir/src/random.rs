//! The random numbers of [`crate::Op::Random`]: a counter hash, so that a value depends on its place and on nothing else.
//!
//! Element number `n` of a `random` with key `[seed, step, instance, offset]` (the operand) and site `s` is word `n % 4` of
//!
//! ```text
//! Philox4x32-10(counter = [n / 4 mod 2^32, n / 4 / 2^32, s, instance], key = [seed, step])
//! ```
//!
//! (Salmon, Moraes, Dror, Shaw: Parallel random numbers: as easy as 1, 2, 3; SC 2011), shifted right by 8 and divided by 2^24: a multiple of 2^-24
//! in [0, 1), exact in f32. The element number is row-major over the result's axes in order; with a batch axis, which is the
//! first, `offset` is added to the index along it. Ints of the key are taken as their 32 bits.

/// Four words from a counter and a key.
pub fn philox(counter: [u32; 4], key: [u32; 2]) -> [u32; 4] {
    let ([mut c0, mut c1, mut c2, mut c3], [mut k0, mut k1]) = (counter, key);
    for _ in 0..10 {
        let (p0, p1) = (0xd251_1f53_u64 * c0 as u64, 0xcd9e_8d57_u64 * c2 as u64);
        (c0, c1, c2, c3) = ((p1 >> 32) as u32 ^ c1 ^ k0, p1 as u32, (p0 >> 32) as u32 ^ c3 ^ k1, p0 as u32);
        (k0, k1) = (k0.wrapping_add(0x9e37_79b9), k1.wrapping_add(0xbb67_ae85));
    }
    [c0, c1, c2, c3]
}

/// The uniform number in [0, 1) of one element. `key` is `[seed, step, instance]`; the batch offset is in `element` already.
pub fn uniform(key: [i32; 3], site: u32, element: u64) -> f32 {
    let [seed, step, instance] = key.map(|k| k as u32);
    let block = element / 4;
    let words = philox([block as u32, (block >> 32) as u32, site, instance], [seed, step]);
    (words[(element % 4) as usize] >> 8) as f32 / (1 << 24) as f32
}

#[cfg(test)]
mod tests {
    use super::*;

    /// From the authors' test vectors (Random123, `kat_vectors`).
    #[test]
    fn philox_gives_the_published_words() {
        assert_eq!(philox([0; 4], [0; 2]), [0x6627_e8d5, 0xe169_c58d, 0xbc57_ac4c, 0x9b00_dbd8]);
        assert_eq!(philox([u32::MAX; 4], [u32::MAX; 2]), [0x408f_276d, 0x41c8_3b0e, 0xa20b_c7c6, 0x6d54_51fd]);
        let (counter, key) = ([0x243f_6a88, 0x85a3_08d3, 0x1319_8a2e, 0x0370_7344], [0xa409_3822, 0x299f_31d0]);
        assert_eq!(philox(counter, key), [0xd16c_fe09, 0x94fd_cceb, 0x5001_e420, 0x2412_6ea1]);
    }

    #[test]
    fn uniform_numbers_are_in_range_and_all_over_it() {
        let numbers: Vec<f32> = (0..4096).map(|n| uniform([1, 2, 3], 4, n)).collect();
        assert!(numbers.iter().all(|x| (0.0..1.0).contains(x)));
        let mean = numbers.iter().sum::<f32>() / 4096.0;
        assert!((mean - 0.5).abs() < 0.02, "{mean}");
    }

    #[test]
    fn every_part_of_the_place_matters() {
        let all = [
            uniform([0, 0, 0], 0, 0),
            uniform([1, 0, 0], 0, 0),
            uniform([0, 1, 0], 0, 0),
            uniform([0, 0, 1], 0, 0),
            uniform([0, 0, 0], 1, 0),
            uniform([0, 0, 0], 0, 1),
            uniform([0, 0, 0], 0, 1 << 34),
        ];
        for (i, a) in all.iter().enumerate() {
            assert!(all[..i].iter().all(|b| a != b), "{all:?}");
        }
    }
}
