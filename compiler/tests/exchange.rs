//! How rows of experts travel: which mixtures are decomposed, which are not, and that ranks compute the same.

mod oracle;
mod snapshots;

use forebay_compiler::overlap::exchange::{Dispatch, decompose};
use forebay_ir::reference::Tensor;
use forebay_ir::text::print_module;
use oracle::{given, graphs, outputs, sound};
use snapshots::snapshot_as;

const RANKS: i32 = 4;

fn assert_near(have: &[Vec<Tensor>], want: &[Vec<Tensor>], what: &str) {
    for (have, want) in have.iter().flatten().zip(want.iter().flatten()) {
        assert_eq!(have.dims, want.dims, "{what}");
        for (h, w) in have.data.iter().zip(&want.data) {
            assert!((h - w).abs() <= 1e-12 * w.abs().max(1.0), "{what}: {h} is not {w}");
        }
    }
}

#[test]
fn decomposed_exchanges_give_the_same_values() {
    let ways: [(Dispatch, &[u32]); 3] =
        [(Dispatch::Hierarchical, &[0]), (Dispatch::NodeDedup, &[0]), (Dispatch::RankDedup, &[0, 1])];
    insta::glob!("overlap/hierarchical.ir", |path| {
        for (way, outer) in ways {
            let mut changed = vec![];
            for before in &graphs(path) {
                let mut after = before.clone();
                let done = decompose(&mut after, way, outer);
                sound(&after);
                assert_eq!(done, usize::from(before.name.starts_with("decomposed")), "{} {way}", before.name);
                assert_eq!(after != *before, done > 0, "{} {way}", before.name);
                for seed in 0..5 {
                    let given = given(before, RANKS, seed);
                    let what = format!("{} {way} {seed}", before.name);
                    assert_near(&outputs(&after, &given), &outputs(before, &given), &what);
                }
                changed.extend((done > 0).then_some(after));
            }
            snapshot_as(path, way.name(), &print_module(&changed));
        }
    });
}
