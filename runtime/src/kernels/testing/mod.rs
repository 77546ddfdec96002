//! Kernels against plain references, for tests here and for fuzzing: memory with guards, an interpreter of regions, and random regions.

pub(crate) mod generator;
pub(crate) mod harness;
mod reference;

use forebay_plan::{Kernel, Region};
use harness::{Memory, Rng};

/// Compares a region with the interpreter, bit for bit, at every CPU level and number of workers.
pub(crate) fn check(region: &Region, memory: &Memory) {
    let want = reference::interpret(region, memory);
    let after = memory.done(&Kernel::Region(region.clone()));
    for (buffer, want) in want.iter().enumerate() {
        let have = after.get(buffer as u32);
        for (i, (&have, &want)) in have.iter().zip(want).enumerate() {
            let same = have.to_bits() == want.to_bits() || (have.is_nan() && want.is_nan());
            assert!(same, "buffer {buffer}, element {i}: {have:e} instead of {want:e}: {region:?}");
        }
    }
}

/// Does so with a region that the bytes choose.
///
/// # Panics
/// Results differ.
pub fn check_region_of(bytes: &[u8]) {
    let mut rng = Rng::choosing(bytes);
    let (wide, loads, steps) = (rng.below(8) == 7, 1 + rng.below(4), rng.below(24));
    let (region, memory) = generator::random_region(&mut rng, loads, steps, wide);
    check(&region, &memory);
}
