//! Speed of the replay: `cargo bench -p forebay-sim`.

use divan::{Bencher, Divan};
use forebay_sim::replay::{Host, Machine, replay};
use forebay_sim::routes::Routes;

#[path = "../tests/pipelines/mod.rs"]
mod pipelines;

fn main() {
    Divan::from_args().main();
}

/// 16 stages of 4 chunks, 512 micro-batches: the goal is 100 ms.
#[divan::bench]
fn pp16_vpp4_512(bencher: Bencher) {
    let (programs, roles) = pipelines::interleaved(16, 4, 512);
    let waits = vec![vec![]; roles.len()];
    let routes = Routes::alike(1e-5, 0.0);
    let machine =
        Machine { host: Host { dispatch: 5e-6, regain: 0.0 }, slowdown: 0.0, routes: &routes, straggler: None };
    bencher.bench_local(|| replay(&programs, &roles, &waits, machine));
}
