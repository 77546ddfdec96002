//! Uniform random values from a counter hash, so that a value depends on its place and on nothing else; and the keys.
//!
//! Element number `n` with key `[seed, step, instance, offset]` and site `s` is word `n mod 4` of
//!
//! ```text
//! Philox4x32-10(counter = [n / 4 mod 2³², n / 4 / 2³², s, instance], key = [seed, step])
//! ```
//!
//! (Salmon, Moraes, Dror, Shaw: Parallel random numbers: as easy as 1, 2, 3; SC 2011), shifted right by 8 and divided by 2²⁴. The
//! number is row-major over the logical dimensions; when batched, `offset` is added to the first index.

use super::cpu::{Cpu, by_cpu};
use super::walk::{Dims, Walk};
use super::{KernelCx, KernelError, PrepareCx, PrepareError, ensure};
use forebay_plan::{self as plan, DType};

/// Elements made at once.
const BLOCK: usize = 1024;

/// A prepared random array.
#[derive(Debug)]
pub(super) struct Random {
    cpu: Cpu,
    key: usize,
    site: u32,
    out: (usize, usize),
    /// Logical dimensions with the strides of the output.
    dims: Dims<1>,
    /// Elements of the first dimension's index, when it is offset.
    row: usize,
}

impl Random {
    pub(super) fn prepare(random: &plan::Random, cx: &PrepareCx) -> Result<Random, PrepareError> {
        let strides = &random.out.strides;
        ensure(strides.len() == random.dims.len(), || "the strides do not fit the dimensions".into())?;
        ensure(!random.batched || !random.dims.is_empty(), || "there is no first dimension".into())?;
        let mut dims = Dims::NONE;
        for (&size, &stride) in random.dims.iter().zip(strides) {
            dims.push_joined(size as usize, [stride as usize])?;
        }
        Ok(Random {
            cpu: cx.cpu,
            key: cx.buffer_of(random.key, DType::I32, "the key")?,
            site: random.site,
            out: (cx.buffer_of(random.out.buffer, DType::F32, "the output")?, random.out.offset as usize),
            dims,
            row: if random.batched { random.dims[1..].iter().product::<u64>() as usize } else { 0 },
        })
    }

    pub(super) unsafe fn run(&self, cx: &KernelCx) -> Result<(), KernelError> {
        // SAFETY: the key has four elements (the caller's contract).
        let key = unsafe { cx.buffers[self.key].ptr.cast::<[i32; 4]>().read() }.map(|k| k as u32);
        let offset = key[3] as i32 as i64 as u64;
        let first = offset.wrapping_mul(self.row as u64);
        let count = self.dims.count();
        cx.pool.run_ranges(count.div_ceil(BLOCK), 8, &|begin, end, _| {
            for block in begin..end {
                let from = block * BLOCK;
                let mut values = [0.0; BLOCK];
                let values = &mut values[..BLOCK.min(count - from)];
                // SAFETY: a `Cpu` is never above the machine; places lie in the output and belong to this block.
                unsafe {
                    uniform(self.cpu, [key[0], key[1], key[2]], self.site, first.wrapping_add(from as u64), values);
                    let mut walk = Walk::new(&self.dims, from);
                    for &value in &*values {
                        *cx.buffers[self.out.0].ptr.cast::<f32>().add(self.out.1 + walk.offsets[0]) = value;
                        walk.step();
                    }
                }
            }
        });
        Ok(())
    }
}

/// A prepared random key.
#[derive(Debug)]
pub(super) struct Key {
    pub out: usize,
    /// Rows of a micro-batch on all ranks that share it out.
    pub per_micro_batch: u64,
    /// The rank's first of them.
    pub first_row: plan::Affine,
}

impl Key {
    pub(super) unsafe fn run(&self, cx: &KernelCx) -> Result<(), KernelError> {
        let first_row = u64::from(cx.key.micro_batch).wrapping_mul(self.per_micro_batch);
        let first_row = first_row.wrapping_add_signed(self.first_row.at(cx.coordinates));
        let key = [cx.key.seed, cx.key.step, cx.key.layer as i32, first_row as i32];
        // SAFETY: the key has four elements (the caller's contract).
        unsafe { cx.buffers[self.out].ptr.cast::<[i32; 4]>().write(key) };
        Ok(())
    }
}

/// Four words from a counter and a key.
#[inline(always)]
fn philox(counter: [u32; 4], key: [u32; 2]) -> [u32; 4] {
    let ([mut c0, mut c1, mut c2, mut c3], [mut k0, mut k1]) = (counter, key);
    for _ in 0..10 {
        let (p0, p1) = (0xd251_1f53_u64 * u64::from(c0), 0xcd9e_8d57_u64 * u64::from(c2));
        (c0, c1, c2, c3) = ((p1 >> 32) as u32 ^ c1 ^ k0, p1 as u32, (p0 >> 32) as u32 ^ c3 ^ k1, p0 as u32);
        (k0, k1) = (k0.wrapping_add(0x9e37_79b9), k1.wrapping_add(0xbb67_ae85));
    }
    [c0, c1, c2, c3]
}

/// The elements from number `first` on.
#[inline(always)]
unsafe fn uniform_body(key: [u32; 3], site: u32, first: u64, out: &mut [f32]) {
    let unit = |word: u32| (word >> 8) as f32 * (1.0 / 16_777_216.0);
    let block = |number: u64| philox([number as u32, (number >> 32) as u32, site, key[2]], [key[0], key[1]]);
    // Up to a whole block of four; then blocks in groups that fit vectors; then the rest.
    let head = ((4 - first % 4) % 4).min(out.len() as u64) as usize;
    let (head, rest) = out.split_at_mut(head);
    for (i, value) in head.iter_mut().enumerate() {
        let number = first.wrapping_add(i as u64);
        *value = unit(block(number / 4)[(number % 4) as usize]);
    }
    let mut number = first.wrapping_add(head.len() as u64) / 4;
    let mut groups = rest.chunks_exact_mut(64);
    for group in &mut groups {
        let words: [[u32; 4]; 16] = std::array::from_fn(|i| block(number + i as u64));
        for (four, words) in group.chunks_exact_mut(4).zip(&words) {
            four.iter_mut().zip(words).for_each(|(value, &word)| *value = unit(word));
        }
        number += 16;
    }
    for (i, value) in groups.into_remainder().iter_mut().enumerate() {
        *value = unit(block(number + i as u64 / 4)[i % 4]);
    }
}

by_cpu!(unsafe fn uniform / uniform_body(key: [u32; 3], site: u32, first: u64, out: &mut [f32]));

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
    fn runs_start_anywhere() {
        let single = |number: u64| {
            let words = philox([(number / 4) as u32, ((number / 4) >> 32) as u32, 7, 3], [1, 2]);
            (words[(number % 4) as usize] >> 8) as f32 / (1 << 24) as f32
        };
        for first in [0, 1, 2, 3, 5, 1021, (1 << 34) - 1] {
            for length in [0, 1, 3, 64, 65, 200] {
                let mut out = vec![0.0; length];
                // SAFETY: the level is this machine's.
                unsafe { uniform(Cpu::detect(), [1, 2, 3], 7, first, &mut out) };
                let want: Vec<f32> = (0..length as u64).map(|i| single(first + i)).collect();
                assert_eq!(out, want);
            }
        }
    }
}
