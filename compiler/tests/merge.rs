//! Horizontal merges happen when the cost says so, and not when it says no; the values stay bit for bit.

use forebay_compiler::rewrite::{Options, Selection, rewrite};
use forebay_ir::reference::{Mode, evaluate, sample};
use forebay_ir::{Graph, Op};

fn projections(tokens: u64, d: u64, widths: &[u64]) -> Graph {
    let mut text = format!("graph @projections {{\n  axis t = {tokens}, d = {d}");
    widths.iter().enumerate().for_each(|(i, n)| text += &format!(", h{i} = 2, n{i} = {n}"));
    text += "\n  carry %x : f32[t, d]\n";
    widths.iter().enumerate().for_each(|(i, _)| text += &format!("  param %w{i} : f32[d, h{i}, n{i}]\n"));
    text += "\n";
    widths
        .iter()
        .enumerate()
        .for_each(|(i, _)| text += &format!("  %y{i} = contract %x, %w{i} over {{d}} : f32[t, h{i}, n{i}]\n"));
    widths.iter().enumerate().for_each(|(i, _)| text += &format!("  return carry y{i} = %y{i}\n"));
    forebay_ir::text::parse(&(text + "}\n")).unwrap_or_else(|e| panic!("{e:?}"))
}

fn contractions(graph: &Graph) -> usize {
    graph.nodes.iter().filter(|n| matches!(n.op, Op::Contract { .. })).count()
}

#[test]
fn narrow_projections_of_a_long_value_are_one() {
    let graph = projections(1 << 16, 64, &[2, 2, 3]);
    let (merged, _) = rewrite(&graph, &Options::default());
    assert_eq!(contractions(&merged), 1, "{}", forebay_ir::text::print(&merged));
    forebay_ir::verify::verify(&merged).unwrap_or_else(|v| panic!("{}", forebay_ir::verify::render(&merged, &v)));
}

#[test]
fn wide_projections_stay_apart() {
    let graph = projections(512, 1024, &[512, 512, 512]);
    let (same, _) = rewrite(&graph, &Options::default());
    assert_eq!(contractions(&same), 3);
    let graph = projections(4, 1024, &[32, 32]);
    let (same, _) = rewrite(&graph, &Options::default());
    assert_eq!(contractions(&same), 2, "few tokens: writing the joined weight costs more than reading x twice");
}

#[test]
fn values_stay_bit_for_bit() {
    // As long as above, and merged; few enough to be computed by hand.
    let mut options = Options::default();
    options.profile.launch = 1.0;
    let graph = projections(5, 7, &[2, 3, 1]);
    let (merged, _) = rewrite(&graph, &options);
    assert_eq!(contractions(&merged), 1);
    let off = Options { selection: Selection::Off, ..options };
    assert_eq!(contractions(&rewrite(&graph, &off).0), 3);
    for seed in 0..4 {
        let before = evaluate(&graph, &sample::inputs(&graph, seed, &(-1.0..1.0)), Mode::Typed);
        let after = evaluate(&merged, &sample::inputs(&merged, seed, &(-1.0..1.0)), Mode::Typed);
        for (a, b) in graph.outputs.iter().zip(&merged.outputs) {
            assert!(before[a.value.index()].same_bits(&after[b.value.index()]), "{}", a.name);
        }
    }
}
