//! How rows of experts travel: which mixtures are decomposed, which are not, and that ranks compute the same.

use crate::near;
use crate::oracle;
use crate::snapshots;

use forebay_compiler::overlap::exchange::{Dispatch, decompose};
use forebay_ir::reference::Tensor;
use forebay_ir::text::print_module;
use near::changed;
use oracle::{given, graphs, outputs, sound};
use snapshots::snapshot_as;
use std::path::Path;

const RANKS: i32 = 4;

/// Each way, and the mesh dimensions that tokens are sent over.
const WAYS: [(Dispatch, &[u32]); 3] =
    [(Dispatch::Hierarchical, &[0]), (Dispatch::NodeDedup, &[0]), (Dispatch::RankDedup, &[0, 1])];

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
    insta::glob!("overlap/hierarchical.ir", |path| {
        for (way, outer) in WAYS {
            let mut taken_apart = vec![];
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
                // What travels so does already.
                assert_eq!(decompose(&mut after.clone(), way, outer), 0, "{} {way}: once more", before.name);
                taken_apart.extend((done > 0).then_some(after));
            }
            snapshot_as(path, way.name(), &print_module(&taken_apart));
        }
    });
}

/// Each a line away from what is taken apart.
#[test]
fn near_misses_are_left() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/overlap/hierarchical.ir");
    for (line, others, why) in [
        (
            "%received = sum %counts over {source}",
            "%again = all_to_all %to_send {e -> e_own, one -> source} on nodes, ranks : i32[source, e_own]\n\
             %received = sum %again over {source}",
            "counts are exchanged twice",
        ),
        (
            "%a = tanh %h : f64[e_own, r_own, f]",
            "%most = all_reduce_max %h on nodes, ranks : f64[e_own, r_own, f]\n\
             %a = tanh %most : f64[e_own, r_own, f]",
            "ranks with experts tell each other something over the links that would be taken apart",
        ),
        (
            "%xd = dispatch %xe, ",
            "%numbers = iota t : i32[t]\n\
             %table = cast %numbers : f64[t]\n\
             %weight = gather %table at %token {t} : f64[e, r]\n\
             %heavy = mul %xe, %weight : f64[e, r, d]\n\
             %xd = dispatch %heavy, ",
            "numbers of tokens look up in what is no token's",
        ),
    ] {
        let before = changed(&path, "decomposed_mixture", &[(line, others.to_string())]);
        for (way, outer) in WAYS {
            let mut graph = before.clone();
            assert_eq!(decompose(&mut graph, way, outer), 0, "{way}: {why}");
            assert_eq!(graph, before, "{way}: {why}");
        }
    }
}

/// Each node is one rank: nothing is left to be exchanged within it, so tokens go to ranks or not at all.
#[test]
fn nodes_of_one_rank_are_left() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/overlap/hierarchical.ir");
    let graph = graphs(&path).into_iter().find(|g| g.name == "decomposed_mixture").expect("it is there");
    for (way, outer) in [(Dispatch::Hierarchical, [0, 1]), (Dispatch::NodeDedup, [0, 1])] {
        let mut after = graph.clone();
        assert_eq!(decompose(&mut after, way, &outer), 0, "{way}");
        assert_eq!(after, graph, "{way}");
    }
    for outer in [&[0][..], &[]] {
        let mut after = graph.clone();
        assert_eq!(decompose(&mut after, Dispatch::RankDedup, outer), 0, "not all ranks are targets: {outer:?}");
        assert_eq!(after, graph);
    }
}
