//! How long schedules take to make and to replay: `cargo bench -p forebay-pipeline`.

use divan::{Bencher, black_box};
use forebay_pipeline::search::{Request, search};
use forebay_pipeline::{Costs, Kind, Placement, Size, replay};

fn main() {
    divan::main();
}

/// Generates and replays with 16 stages and 512 micro-batches.
#[divan::bench(args = [(Kind::OneFOneB, 1), (Kind::Interleaved, 4), (Kind::InterleavedZb, 4), (Kind::ZbV, 2), (Kind::VHalf, 2), (Kind::DualPipeV, 2)])]
fn generate_and_replay(bencher: Bencher, (kind, chunks): (Kind, u32)) {
    let size = Size::new(16, chunks, 512).expect("a size");
    let costs = Costs::equal(16 * chunks, 10, 12, 8).with_p2p(2);
    bencher.bench(|| replay(&kind.generate(black_box(size)).expect("a schedule"), &costs));
}

/// A thousand nodes of a search over 8 stages of two chunks and 16 micro-batches.
#[divan::bench]
fn a_thousand_nodes(bencher: Bencher) {
    let costs = Costs::equal(16, 10, 12, 8).with_p2p(2);
    let size = Size::new(8, 2, 16).expect("a size");
    let placements = &[Placement::Wave];
    let request = Request { size, costs: &costs, cap: Some(16), placements, nodes: Some(1000) };
    bencher.bench(|| search(black_box(&request), &mut |_| ()));
}
