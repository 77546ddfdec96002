//! Shares of experts before the down projection: which mixtures are changed, which are not, and that values and gradients stay.

use crate::autodiff_support;
use crate::oracle;
use crate::snapshots;

use autodiff_support::{Values, against_differences, output_gradients, run_all};
use forebay_compiler::autodiff::{Options, differentiate};
use forebay_compiler::pipeline::fused_gradients;
use forebay_compiler::rewrite;
use forebay_compiler::shares::{Shares, weigh_before};
use forebay_ir::reference::{Mode, Tensor, sample};
use forebay_ir::text::print_module;
use forebay_ir::{Graph, OutputRole};
use oracle::{given, graphs, outputs, sound};
use snapshots::snapshot;

fn changed(before: &Graph) -> (Graph, usize) {
    let mut after = before.clone();
    let done = weigh_before(&mut after);
    sound(&after);
    (after, done)
}

fn assert_near(have: &Tensor, want: &Tensor, what: &str) {
    assert_eq!(have.dims, want.dims, "{what}");
    for (h, w) in have.data.iter().zip(&want.data) {
        assert!((h - w).abs() <= 1e-12 * w.abs().max(1.0), "{what}: {h} is not {w}");
    }
}

/// The inputs of a graph, for another that has the same.
fn of_other(from: &Graph, values: &Values, to: &Graph) -> Values {
    from.inputs.iter().zip(&to.inputs).map(|(a, b)| (b.value, values[&a.value].clone())).collect()
}

#[test]
fn changed_mixtures_give_the_same_values_and_gradients() {
    insta::glob!("shares/hits.ir", |path| {
        let all = graphs(path);
        let changes: Vec<Graph> = all
            .iter()
            .map(|before| {
                let (after, done) = changed(before);
                assert_eq!(done, 1, "{}", before.name);
                for seed in 0..5 {
                    let given = given(before, 1, seed);
                    for (have, want) in outputs(&after, &given)[0].iter().zip(&outputs(before, &given)[0]) {
                        assert_near(have, want, &before.name);
                    }
                }
                after
            })
            .collect();
        for (before, after) in all.iter().zip(&changes) {
            let options = Options::all_floats(before);
            let [old, new] = [before, after].map(|g| differentiate(g, &options));
            for seed in 0..3 {
                let given = sample::inputs(before, seed, &(-2.0..2.0));
                let grads = output_gradients(before, &options, seed + 1000);
                let of_new = of_other(before, &given, after);
                let want = run_all(&old, before, &given, &grads, Mode::F64);
                let have = run_all(&new, after, &of_new, &grads, Mode::F64);
                assert_eq!(have.len(), want.len(), "{}", before.name);
                for ((name, have), (_, want)) in have.iter().zip(&want) {
                    assert_near(have, want, &format!("{}: {name}", before.name));
                }
                against_differences(&new, (after, &of_new), (&have, &grads), (seed, true));
            }
        }
        snapshot(path, &print_module(&changes));
    });
}

#[test]
fn what_cannot_be_changed_stays_as_it_is() {
    insta::glob!("shares/misses.ir", |path| {
        for before in graphs(path) {
            let (after, done) = changed(&before);
            assert_eq!((done, &after), (0, &before), "{}", before.name);
        }
    });
}

/// After rewriting and differentiation no result of an expert is saved, and rules do not move shares back.
#[test]
fn no_result_of_an_expert_is_saved() {
    insta::glob!("shares/hits.ir", |path| {
        let rewriting = rewrite::Options { shares: Shares::Before, ..rewrite::Options::default() };
        for before in graphs(path).iter().filter(|g| g.name != "of_choices") {
            let saved = |graph: &Graph, rewriting: &rewrite::Options| -> Vec<String> {
                let (d, _) = fused_gradients(graph, &Options::all_floats(graph), rewriting, &Default::default());
                d.forward.outputs.iter().filter(|o| o.role == OutputRole::Saved).map(|o| o.name.clone()).collect()
            };
            let is_result = |name: &String| ["yd", "ye", "biased"].contains(&name.as_str());
            let old = saved(before, &rewrite::Options::default());
            assert!(old.iter().any(is_result), "{}: {old:?}", before.name);
            let new = saved(&changed(before).0, &rewriting);
            assert!(!new.iter().any(is_result), "{}: {new:?}", before.name);
        }
    });
}
