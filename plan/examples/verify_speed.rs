//! How long writing, reading and verifying a large plan takes: `cargo run --release -p forebay-plan --features testing --example verify_speed`.

use forebay_plan::{Plan, testing, verify};
use std::time::Instant;

fn main() {
    for calls in [2_000, 20_000, 200_000] {
        let plan = testing::large(calls);
        let n: usize = plan.roles[0].phases.iter().map(|p| p.calls.len()).sum();
        let start = Instant::now();
        let bytes = plan.to_bytes();
        let write = start.elapsed();
        let start = Instant::now();
        let read = Plan::parse(&bytes).expect("what was written can be read");
        let parse = start.elapsed();
        let start = Instant::now();
        verify(&read).expect("made-up plans are valid");
        let megabytes = bytes.len() as f64 / 1e6;
        println!("{n} calls, {megabytes:.1} MB: write {write:.1?}, read {parse:.1?}, verify {:.1?}", start.elapsed());
    }
}
