//! Random regions against the interpreter ([`crate::kernels::testing`]); `fuzz/run region` goes on with them.

use crate::kernels::testing::harness::Rng;
use crate::kernels::testing::{check, check_region_of, generator::random_region};
use proptest::prelude::*;

/// A few hundred, or many with `FOREBAY_TEST_ALL=1`.
fn cases() -> u32 {
    if std::env::var_os("FOREBAY_TEST_ALL").is_some() { 3_000 } else { 300 }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: cases(), max_shrink_iters: 300, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn narrow_regions(seed: u64, loads in 1usize..5, steps in 0usize..24) {
        let (region, memory) = random_region(&mut Rng::new(seed), loads, steps, false);
        check(&region, &memory);
    }

    #[test]
    fn wide_regions(seed: u64, loads in 1usize..4, steps in 0usize..16) {
        let (region, memory) = random_region(&mut Rng::new(seed), loads, steps, true);
        check(&region, &memory);
    }

    /// What the fuzz target does.
    #[test]
    fn regions_by_bytes(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        check_region_of(&bytes);
    }
}
