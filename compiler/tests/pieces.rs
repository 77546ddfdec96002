//! Experts in pieces: which mixtures are cut, which are not, and that results stay the same, bit for bit.

mod oracle;
mod snapshots;

use forebay_compiler::overlap::Lanes;
use forebay_compiler::overlap::pieces::{Pieces, cut};
use forebay_ir::text::print_module;
use oracle::{given, graphs, outputs, sound};
use snapshots::snapshot;

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
