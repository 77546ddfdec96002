//! Experts in pieces: which mixtures are cut, which are not, and that results stay the same, bit for bit.

use crate::near;
use crate::oracle;
use crate::snapshots;

use forebay_compiler::overlap::pieces::{Pieces, cut};
use forebay_compiler::overlap::{Clock, Lanes, Passes, Times};
use forebay_compiler::shard::Strategy;
use forebay_ir::text::print_module;
use forebay_ir::{Graph, ValueId};
use forebay_plan::Program;
use near::changed;
use oracle::{given, graphs, outputs, sound};
use snapshots::snapshot;
use std::path::{Path, PathBuf};

fn file(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("tests/overlap/{name}.ir"))
}

#[test]
fn pieces_give_the_same_bits() {
    insta::glob!("overlap/{pieces,reduced}.ir", |path| {
        let mut changed = vec![];
        for before in &graphs(path) {
            let mut after = before.clone();
            let done = cut(&mut after, Pieces::Number(2), &Lanes::default());
            sound(&after);
            assert_eq!(done, usize::from(before.name.starts_with("cut")), "{}", before.name);
            assert_eq!(after != *before, done > 0, "{}", before.name);
            for seed in 0..5 {
                let ranks = before.mesh.iter().map(|dim| dim.size as i32).product();
                let given = given(before, ranks, seed);
                assert_eq!(outputs(before, &given), outputs(&after, &given), "{} {seed}", before.name);
            }
            changed.push(after);
        }
        snapshot(path, &print_module(&changed));
    });
}

/// What experts made of each token's rows, by token.
const OWN: &str = "%own = gather %back at %slots {r} : f64[t, k, d]";

/// The same with more made of it.
fn own(then: &str) -> String {
    format!("%row = gather %back at %slots {{r}} : f64[t, k, d]\n{then}")
}

/// Each a line or two away from what is cut: illegal, since a piece would not see the other tokens.
#[test]
fn what_looks_at_other_tokens_stays_whole() {
    let axes = ("axis t = 4 \"seq\", d = 3", "axis t = 4 \"seq\", u = 4, n = 8, d = 3".to_string());
    let sum = own("%sum = sum %row over {t} : f64[k, d]\n%own = sub %row, %sum : f64[t, k, d]");
    let before = own("%own = scan %row {t forward} : f64[t, k, d]");
    let others = own("%flat = merge %row {t, k -> n} : f64[n, d]\n%own = gather %flat at %slots {n} : f64[t, k, d]");
    let all = own("%other = rename %row {t -> u} : f64[u, k, d]\n\
         %seen = contract %row, %other over {d} : f64[t, k, u]\n\
         %own = contract %seen, %other over {u} : f64[t, k, d]");
    let odd = ("t_tp = 4 \"seq\", t = 8", "t_tp = 3 \"seq\", t = 6".to_string());
    for (name, changes, why) in [
        ("cut_tokens", vec![(OWN, sum)], "a sum over tokens"),
        ("cut_tokens", vec![(OWN, before)], "sums over the tokens before"),
        ("cut_tokens", vec![axes.clone(), (OWN, others)], "rows of other tokens"),
        ("cut_tokens", vec![axes, (OWN, all)], "each token looks at all others"),
        ("cut_network", vec![odd], "three tokens are no two halves"),
    ] {
        let before = changed(&file("pieces"), name, &changes);
        let mut graph = before.clone();
        assert_eq!(cut(&mut graph, Pieces::Number(2), &Lanes::default()), 0, "{name}: {why}");
        assert_eq!(graph, before, "{name}: {why}");
    }
}

/// What leads to a mixture is cut with it as far as tokens do not look at each other, and no further.
#[test]
fn what_looks_at_tokens_before_a_mixture_is_there_once() {
    let input = "carry %in : f64[t, d]\nparam %embed : f64[d, f]\nparam %project : f64[f, d]".to_string();
    let score = "%score = contract %x, ";
    for (last, is_whole) in [("neg %p", false), ("scan %p {t forward}", true)] {
        let leads = format!(
            "%h.in = contract %in, %embed over {{d}} : f64[t, f]\n\
             %p = contract %h.in, %project over {{f}} : f64[t, d]\n\
             %x = {last} : f64[t, d]\n{score}"
        );
        let changes = [("carry %x : f64[t, d]", input.clone()), (score, leads)];
        let before = changed(&file("pieces"), "cut_tokens", &changes);
        let mut after = before.clone();
        assert_eq!(cut(&mut after, Pieces::Number(2), &Lanes::default()), 1, "{last}");
        sound(&after);
        assert_eq!(after.nodes.iter().any(|node| node.name == "p"), is_whole, "{last}");
        let given = given(&before, 2, 1);
        assert_eq!(outputs(&before, &given), outputs(&after, &given), "{last}");
    }
}

/// Whoever does not say how many pieces there are has them where they hide more than they cost.
#[test]
fn pieces_are_made_where_they_pay() {
    for mut graph in graphs(&file("auto")) {
        let done = cut(&mut graph, Pieces::Auto, &Lanes::default());
        sound(&graph);
        assert_eq!(done, usize::from(graph.name.starts_with("cut")), "{}", graph.name);
    }
}

/// A device on which each product and exchange takes a second, once it has started.
#[derive(Debug)]
struct StartsAfter(f64);

impl Times for StartsAfter {
    fn instructions(&self, program: &Program, _: &Lanes) -> Vec<f64> {
        vec![1.0; program.instructions.len()]
    }

    fn value(&self, _: &Graph, _: ValueId, _: &Lanes) -> f64 {
        1.0
    }

    fn start(&self) -> f64 {
        self.0
    }

    fn memory_rate(&self) -> f64 {
        1e15
    }

    fn slowdown(&self) -> f64 {
        0.0
    }
}

/// How many there are depends on the device: what is small is cut where kernels start at once, and nothing is where they take as long as what is hidden.
#[test]
fn pieces_are_for_a_device() {
    let mesh = Strategy::default().mesh().expect("of one rank");
    for mut graph in graphs(&file("auto")).into_iter().flat_map(|graph| [(graph.clone(), 0.0), (graph, 1.0)]) {
        let lanes = Lanes::new(&mesh, &Passes::default(), Clock::new(StartsAfter(graph.1)));
        let done = cut(&mut graph.0, Pieces::Auto, &lanes);
        assert_eq!(done, usize::from(graph.1 == 0.0), "{}: kernels start after {} s", graph.0.name, graph.1);
    }
}
