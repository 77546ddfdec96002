//! Any bytes as a plan file. The checksum keeps most of them out, so the verifier and the printer also get what is behind it.
#![no_main]

use forebay_plan::{Plan, print, verify};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let _ = Plan::from_bytes(bytes);
    if let Ok(plan) = serde_json::from_slice::<Plan>(bytes) {
        let _ = print::text(&plan);
        if verify(&plan).is_ok() {
            assert_eq!(Plan::from_bytes(&plan.to_bytes()).expect("it was written"), plan);
        }
    }
});
