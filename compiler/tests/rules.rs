//! Each rule of the rewriter by itself: where it applies, where it must not, and that values stay what they were.
//!
//! `rules/<rule>.ir` holds graphs `@fires_…` and `@not_…` (`@fires_loosely_…`: not when numerics are exact); the snapshots beside them show what
//! becomes of them by this rule alone. `RULE=norm cargo test …` looks at the rules whose names start so.

use crate::rules_support;

use forebay_compiler::rewrite::{
    Alternative, Numerics, Options, RuleInfo, Selection, alternatives, fused_ops, rewrite, rules,
};
use forebay_compiler::simplify::simplify;
use forebay_ir::reference::{Mode, Tensor, evaluate, sample};
use forebay_ir::text::{print, print_module};
use forebay_ir::{DType, Graph, Input, InputRole, Op, OutputRole, ReduceKind, Type, ValueId, testing, verify};
use proptest::prelude::*;
use rules_support::{Case, Sizes, cases, round_constants, shuffled};
use rustc_hash::FxHashMap;
use std::path::{Path, PathBuf};

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/rules")
}

fn only(rule: &RuleInfo, numerics: Numerics) -> Options {
    Options { selection: Selection::Only(vec![rule.name.to_string()]), numerics, ..Options::default() }
}

/// How near a value must be to what it was.
#[derive(Clone, Copy, Debug)]
enum Near {
    /// Every bit, in typed semantics.
    Bits,
    /// So near, relatively, in f64.
    Within(f64),
}

/// Where an element changed, if one did.
fn change(old: &Tensor, new: &Tensor, near: Near) -> Option<String> {
    let scale = old.data.iter().filter(|x| x.is_finite()).fold(0.0, |a: f64, x| a.max(x.abs()));
    let same = |a: f64, b: f64| match near {
        Near::Bits => a.to_bits() == b.to_bits() || a.is_nan() && b.is_nan(),
        // What is a difference of large numbers is not asked for more digits than these have.
        Near::Within(far) => a == b || a.is_nan() && b.is_nan() || (a - b).abs() <= far * a.abs().max(1e-3 * scale),
    };
    if old.dims != new.dims {
        return Some(format!("{:?} became {:?}", old.dims, new.dims));
    }
    let at = old.data.iter().zip(&new.data).position(|(a, b)| !same(*a, *b))?;
    Some(format!("element {at} of {:?}: {:?} became {:?}", old.dims, old.data[at], new.data[at]))
}

/// Runs a graph on the inputs of another.
fn run(graph: &Graph, of: &Graph, given: &FxHashMap<ValueId, Tensor>, mode: Mode) -> Vec<Tensor> {
    let inputs = of.inputs.iter().zip(&graph.inputs);
    let moved = inputs.map(|(a, b)| (b.value, given[&a.value].clone())).collect();
    let values = evaluate(graph, &moved, mode);
    graph.outputs.iter().map(|o| values[o.value.index()].clone()).collect()
}

/// Compares every form that the rules find for every value, and what is chosen, with the source.
fn check(case: &Case, graph: &Graph, options: &Options, near: Near, seeds: i32) {
    check_forms(case, graph, &alternatives(graph, options).0, options, near, seeds);
}

fn check_forms(case: &Case, graph: &Graph, forms: &[Alternative], options: &Options, near: Near, seeds: i32) {
    let (chosen, _) = rewrite(graph, options);
    for new in forms.iter().map(|f| &f.graph).chain([&chosen]) {
        verify::verify(new).unwrap_or_else(|v| panic!("{}", verify::render(new, &v)));
    }
    let mode = if let Near::Bits = near { Mode::Typed } else { Mode::F64 };
    for seed in 0..seeds {
        let strange = matches!(near, Near::Bits) && seed % 2 == 1;
        let given = case.inputs(graph, seed, strange);
        let old = evaluate(graph, &given, mode);
        let compare = |new: &Graph, values: &[ValueId]| {
            for (result, value) in run(new, graph, &given, mode).iter().zip(values) {
                if let Some(what) = change(&old[value.index()], result, near) {
                    let name = &graph.node(*value).name;
                    panic!("`{name}`, {near:?}, inputs {seed}: {what}\n{}\n{}", print(graph), print(new));
                }
            }
        };
        for form in forms {
            compare(&form.graph, &[form.value]);
        }
        let outputs: Vec<ValueId> = graph.outputs.iter().map(|o| o.value).collect();
        compare(&chosen, &outputs);
    }
}

/// Does an exact rule apply to the graph only where numerics are not exact?
fn is_loose(case: &Case) -> bool {
    case.graph.name.starts_with("fires_loosely")
}

const SIZES: [Sizes; 6] =
    [Sizes::AsWritten, Sizes::Smallest, Sizes::Random(1), Sizes::Random(2), Sizes::Random(3), Sizes::Random(4)];

fn files() -> Vec<(RuleInfo, Vec<Case>)> {
    let only = std::env::var("RULE").unwrap_or_default();
    let all = rules().into_iter().filter(|r| r.name.starts_with(&only));
    all.map(|rule| (folder().join(format!("{}.ir", rule.name)), rule))
        .filter(|(path, _)| path.exists())
        .map(|(path, rule)| (rule, cases(&path)))
        .collect()
}

#[test]
fn every_rule_has_a_file_and_every_file_a_rule() {
    let mut wanted: Vec<String> = rules().iter().map(|r| format!("{}.ir", r.name)).collect();
    wanted.sort();
    let names = std::fs::read_dir(folder()).expect("a folder");
    let mut found: Vec<String> = names
        .map(|f| f.expect("readable").file_name().to_string_lossy().into_owned())
        .filter(|f| f.ends_with(".ir"))
        .collect();
    found.sort();
    assert_eq!(found, wanted);
    for (rule, cases) in files() {
        let count = |prefix: &str| cases.iter().filter(|c| c.graph.name.starts_with(prefix)).count();
        let (fires, misses) = (count("fires"), count("not_"));
        assert!(fires > 0 && misses > 0 && fires + misses == cases.len(), "`{}`: {fires} and {misses}", rule.name);
    }
}

/// Runs a check on each graph of each rule, and reports all that fail.
fn on_every_graph(check: impl Fn(&RuleInfo, &Case) + std::panic::RefUnwindSafe) {
    let mut failed = vec![];
    for (rule, cases) in files() {
        for case in &cases {
            let quiet = std::panic::AssertUnwindSafe(|| check(&rule, case));
            if std::panic::catch_unwind(quiet).is_err() {
                failed.push(format!("{}, @{}", rule.name, case.graph.name));
            }
        }
    }
    assert!(failed.is_empty(), "{} of the graphs fail:\n{}", failed.len(), failed.join("\n"));
}

#[test]
fn rules_apply_where_they_should_and_nowhere_else() {
    on_every_graph(|rule, case| {
        let fires = case.graph.name.starts_with("fires");
        // A near miss may be a hit in other sizes: two axes of one element are alike.
        let sizes = if fires { &SIZES[..] } else { &SIZES[..1] };
        for &sizes in sizes {
            let graph = case.sized(sizes);
            let (_, report) = rewrite(&graph, &only(rule, Numerics::default()));
            let found = report.uses.contains_key(rule.name);
            assert_eq!(found, fires, "`{}` on\n{}", rule.name, print(&graph));
            // What makes a fused op has to prove it, for which the body of another fused op is not looked into.
            if fires && rule.numerics == Numerics::Exact && rule.name != "norm.rms-cast" {
                let (_, report) = rewrite(&graph, &only(rule, Numerics::Exact));
                assert_ne!(
                    report.uses.contains_key(rule.name),
                    is_loose(case),
                    "exactly, `{}` on\n{}",
                    rule.name,
                    print(&graph)
                );
            }
            assert_ne!(report.stop, "term limit", "`{}` on\n{}", rule.name, print(&graph));
        }
    });
}

#[test]
fn rules_keep_values() {
    on_every_graph(|rule, case| {
        let default = only(rule, Numerics::default());
        let others = [DType::BF16, DType::F64].map(|d| case.in_dtype(d));
        for case in [Some(case)].into_iter().chain(others.iter().map(Option::as_ref)).flatten() {
            for sizes in SIZES {
                let graph = case.sized(sizes);
                check(case, &graph, &default, Near::Within(1e-9), 8);
                check(case, &graph, &only(rule, Numerics::Exact), Near::Bits, 8);
                // A rule of sums and products is exact where these are spelled as it says.
                if rule.numerics == Numerics::Exact && !is_loose(case) {
                    check(case, &graph, &default, Near::Bits, 8);
                }
            }
        }
    });
}

/// Expressions that are rounded once are nearer to what they stand for: in bf16, against f64.
#[test]
fn wide_expressions_are_nearer() {
    let rule = rules().into_iter().find(|r| r.name == "joint.wide-expression").expect("the rule is there");
    for case in cases(&folder().join("joint.wide-expression.ir")) {
        let graph = case.sized(Sizes::AsWritten);
        let (wide, _) = rewrite(&graph, &only(&rule, Numerics::default()));
        let mut errors = [0.0; 2];
        for seed in 0..200 {
            let given = case.inputs(&graph, seed, false);
            let exact = run(&graph, &graph, &given, Mode::F64);
            for (new, error) in [&graph, &wide].into_iter().zip(&mut errors) {
                let results = run(new, &graph, &given, Mode::Typed);
                let elements = results.iter().zip(&exact).flat_map(|(a, b)| a.data.iter().zip(&b.data));
                *error += elements.map(|(a, b)| (a - b).abs()).sum::<f64>();
            }
        }
        let [before, after] = errors;
        let nearer = if case.graph.name.starts_with("fires") { after < 0.95 * before } else { after == before };
        assert!(nearer, "@{}: {before:e} and {after:e}", case.graph.name);
    }
}

/// The graphs of all rules, and some of none, with all rules at once.
#[test]
fn rules_keep_values_together() {
    let others = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/rules_together/orders.ir");
    let all = files().into_iter().flat_map(|(_, cases)| cases).chain(cases(&others));
    let exact = Options { numerics: Numerics::Exact, ..Options::default() };
    for case in all {
        for sizes in [Sizes::AsWritten, Sizes::Smallest, Sizes::Random(1)] {
            let graph = case.sized(sizes);
            // A new constant is rounded to f32, what it stands for was not.
            check_forms(&case, &graph, &[], &Options::default(), Near::Within(1e-6), 4);
            check_forms(&case, &graph, &[], &exact, Near::Bits, 8);
        }
    }
}

#[test]
fn results_are_as_they_were() {
    for (rule, cases) in files() {
        let options = only(&rule, Numerics::default());
        let results: Vec<Graph> = cases.iter().map(|c| rewrite(&c.graph, &options).0).collect();
        snapshot(rule.name, &print_module(&results));
    }
}

/// Snapshots lie beside their inputs.
fn snapshot(name: &str, result: &str) {
    let mut settings = insta::Settings::clone_current();
    settings.set_snapshot_path(folder());
    settings.set_prepend_module_to_snapshot(false);
    settings.set_omit_expression(true);
    settings.remove_snapshot_suffix();
    settings.bind(|| insta::assert_snapshot!(name, result));
}

#[test]
fn rewriting_depends_on_the_graph_alone() {
    on_every_graph(|_, case| {
        let options = Options::default();
        let (first, report) = rewrite(&case.graph, &options);
        let (second, _) = rewrite(&case.graph, &options);
        assert_eq!(print(&first), print(&second));
        for seed in 0..3 {
            let other = shuffled(&case.graph, seed);
            let (third, other_report) = rewrite(&other, &options);
            let (a, b) = (fused_ops(&first), fused_ops(&third));
            assert_eq!(a, b, "{}\n{}\n{}\n{}", print(&case.graph), print(&first), print(&other), print(&third));
            assert_eq!(report.stop, other_report.stop);
        }
    });
}

/// The graph with every float value multiplied with an input.
fn disturbed(graph: &Graph) -> (Graph, Vec<ValueId>) {
    let mut new = graph.like(graph.name.clone());
    let (mut moved, mut noise): (Vec<ValueId>, Vec<ValueId>) = (vec![], vec![]);
    for value in graph.values() {
        let node = graph.node(value);
        let operands = node.operands.iter().map(|o| moved[o.index()]).collect();
        let mut copy = new.push(node.op.clone(), operands, node.ty.clone(), &node.name);
        if node.ty.dtype.is_float() && !matches!(node.op, Op::Const(_)) {
            let factor = new.push(Op::Input, vec![], node.ty.clone(), "noise");
            noise.push(factor);
            let op = Op::Binary(forebay_ir::BinaryOp::Mul);
            copy = new.push(op, vec![copy, factor], node.ty.clone(), "noisy");
        }
        moved.push(copy);
    }
    let copied = |i: &Input| Input { value: named(&new, &graph.node(i.value).name), role: i.role };
    let disturbing = noise.iter().map(|&value| Input { value, role: InputRole::Data });
    new.inputs = graph.inputs.iter().map(copied).chain(disturbing).collect();
    for output in &graph.outputs {
        new.add_output(output.name.clone(), moved[output.value.index()], OutputRole::Output);
    }
    new.offsets = graph.offsets.iter().map(|&(axis, v)| (axis, moved[v.index()])).collect();
    (new, noise)
}

fn named(graph: &Graph, name: &str) -> ValueId {
    graph.values().find(|v| graph.node(*v).name == name).expect("it is there")
}

fn small_inputs(graph: &Graph, range: std::ops::Range<f64>) -> FxHashMap<ValueId, Tensor> {
    let mut given = sample::inputs(graph, 1, &range);
    for (value, tensor) in &mut given {
        if graph.ty(*value).dtype == DType::I32 {
            tensor.data.iter_mut().for_each(|x| *x = x.min(testing::MAX_INPUT as f64));
        }
    }
    given
}

/// Values that a value is made of, with itself.
fn made_of(graph: &Graph, value: ValueId) -> Vec<ValueId> {
    let mut needed = vec![false; graph.nodes.len()];
    let mut stack = vec![value];
    stack.extend(graph.offsets.iter().map(|o| o.1));
    while let Some(v) = stack.pop() {
        if !std::mem::replace(&mut needed[v.index()], true) {
            stack.extend(&graph.node(v).operands);
        }
    }
    graph.values().filter(|v| needed[v.index()]).collect()
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn exact_rules_keep_every_bit_of_random_graphs(tape in proptest::collection::vec(any::<u32>(), 0..300)) {
        let before = testing::graph(&tape);
        let options = Options { numerics: Numerics::Exact, ..Options::default() };
        let (after, _) = rewrite(&before, &options);
        verify::verify(&after).unwrap_or_else(|v| panic!("{}", verify::render(&after, &v)));
        let given = small_inputs(&before, -3.0..3.0);
        let old = run(&before, &before, &given, Mode::Typed);
        for (i, new) in run(&after, &before, &given, Mode::Typed).iter().enumerate() {
            let output = &before.outputs[i];
            // A sum over several axes adds in the order in which they lie, which is no part of a term: its last digits are not compared.
            let is_sum = |v: &ValueId| {
                let float = before.ty(*v).dtype.is_float();
                matches!(&before.node(*v).op, Op::Reduce { kind: ReduceKind::Sum, over } if over.len() > 1 && float)
            };
            if made_of(&before, output.value).iter().any(|v| *v != output.value && is_sum(v)) {
                continue;
            }
            let near = if is_sum(&output.value) { Near::Within(1e-9) } else { Near::Bits };
            if let Some(what) = change(&old[i], new, near) {
                panic!("`{}`: {what}\n{}\n{}", output.name, print(&before), print(&after));
            }
        }
    }

    // What is not finite on its way, or hangs on the last digits (a difference of equal numbers, a floor of 1), may change. How much a value hangs on
    // them is measured: every float of the source is disturbed a little.
    #[test]
    fn rules_keep_values_of_random_graphs(tape in proptest::collection::vec(any::<u32>(), 0..300)) {
        let mut before = testing::graph(&tape);
        // Constants that are folded are rounded to their type, also in f64.
        simplify(&mut before);
        round_constants(&mut before);
        let (after, _) = rewrite(&before, &Options::default());
        verify::verify(&after).unwrap_or_else(|v| panic!("{}", verify::render(&after, &v)));
        let given = small_inputs(&before, 0.5..2.0);
        let old = evaluate(&before, &given, Mode::F64);
        let new = run(&after, &before, &given, Mode::F64);
        let (noisy, factors) = disturbed(&before);
        let others: Vec<Vec<Tensor>> = (0..4)
            .map(|seed| {
                let mut all: FxHashMap<ValueId, Tensor> =
                    before.inputs.iter().zip(&noisy.inputs).map(|(a, b)| (b.value, given[&a.value].clone())).collect();
                let range = 1.0 - 1e-9..1.0 + 1e-9;
                let mut sampler = sample::Sampler::new(seed);
                for &factor in &factors {
                    let ty = Type::new(DType::F64, noisy.ty(factor).axes.clone());
                    let tensor = sampler.input(&noisy, factor, &range);
                    let data: Vec<f64> = tensor.data.iter().map(|_| sampler.uniform(&range)).collect();
                    assert_eq!(noisy.numel(&ty), data.len() as u64);
                    all.insert(factor, Tensor::new(tensor.dims, data));
                }
                let values = evaluate(&noisy, &all, Mode::F64);
                noisy.outputs.iter().map(|o| values[o.value.index()].clone()).collect()
            })
            .collect();
        for (i, output) in before.outputs.iter().enumerate() {
            let way = made_of(&before, output.value);
            let finite = way.iter().all(|v| old[v.index()].data.iter().all(|x| x.is_finite()));
            if !finite {
                continue;
            }
            for (at, (&a, &b)) in old[output.value.index()].data.iter().zip(&new[i].data).enumerate() {
                let hangs = others.iter().map(|o| (o[i].data[at] - a).abs()).fold(0.0, f64::max);
                let limit = 1e-6 * a.abs() + hangs;
                assert!(
                    (a - b).abs() <= limit || hangs.is_nan(),
                    "`{}`, element {at}: {a} became {b}\n{}\n{}", output.name, print(&before), print(&after)
                );
            }
        }
    }
}
