//! Any bytes as the choices that make a region: compiled, at every CPU level and on 1 to 3 workers, it leaves what the interpreter leaves.
#![no_main]

use forebay_runtime::kernels::testing::check_region_of;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| check_region_of(bytes));
