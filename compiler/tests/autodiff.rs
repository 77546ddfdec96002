//! Differentiated segments: gradients against differences, agreement of the graphs with each other, and what is saved.

use crate::autodiff_support;
use crate::snapshots;

use autodiff_support::{Values, against_differences, check_legal, graphs, output_gradients, run_all};
use forebay_compiler::autodiff::{Differentiated, Keep, Options, differentiate, early};
use forebay_compiler::memory::choose::{Part, Problem};
use forebay_compiler::memory::{Recompute, keep, recompute};
use forebay_ir::cost::cost;
use forebay_ir::reference::{Mode, sample};
use forebay_ir::text::{parse, print, print_module, render};
use forebay_ir::{BinaryOp, DType, Graph, InputRole, Op, OutputRole, ReduceKind, UnaryOp, ValueId, testing};
use proptest::prelude::*;
use snapshots::snapshot;

fn read(source: &str) -> Graph {
    let graph = parse(source).unwrap_or_else(|e| panic!("{}", render(&e, source, "input")));
    check_legal(&graph);
    graph
}

fn check_against_differences(original: &Graph, options: &Options, d: &Differentiated, given: &Values, seed: i32) {
    let strict = original.name != "random";
    let grads = output_gradients(original, options, seed + 1000);
    let results = run_all(d, original, given, &grads, Mode::F64);
    run_all(d, original, given, &grads, Mode::Typed);
    against_differences(d, (original, given), (&results, &grads), (seed, strict));
}

/// The value of `// key: value` in the head of a file.
fn directive<'s>(source: &'s str, key: &str) -> Option<&'s str> {
    source.lines().find_map(|l| l.strip_prefix("// ")?.strip_prefix(key)?.strip_prefix(": "))
}

/// The differentiated segment, with what the head of the file says of keeping and of computing again.
fn differentiated(source: &str, forward: &Graph, options: &Options) -> Differentiated {
    let named = |name: &str| Keep::ALL.into_iter().find(|keep| keep.name() == name).expect("fewest or inputs");
    let keep = directive(source, "keep").map_or(Keep::Fewest, named);
    let mut d = differentiate(forward, &options.clone().keeping(keep));
    let again = directive(source, "recompute").map_or(Recompute::Nothing, |l| Recompute::parse(l).expect(l));
    recompute(&mut d, &again, keep);
    if let Some(bytes) = directive(source, "within") {
        keep_within(&mut d, bytes.parse().expect("bytes"), |graph, value| cost(graph, value).flops);
    }
    d
}

/// Keeps so many bytes at most, or as few as can be, at the least price of what is made again.
fn keep_within(d: &mut Differentiated, bytes: f64, price: impl Fn(&Graph, ValueId) -> f64) {
    let graph = &d.forward;
    let is_input = |v: ValueId| graph.node(v).op == Op::Input;
    let part = Part {
        graph,
        wanted: graph.outputs.iter().filter(|o| o.role == OutputRole::Saved).map(|o| o.value).collect(),
        bytes: graph.values().map(|v| if is_input(v) { 0.0 } else { graph.bytes(v) as f64 }).collect(),
        seconds: graph.values().map(|v| if is_input(v) { 0.0 } else { price(graph, v) }).collect(),
        away: vec![],
        windows: vec![],
    };
    let problem = Problem::new(vec![part]);
    let selection = problem.within(bytes, u32::MAX).map_or_else(|least| least, |choice| choice.selection);
    let kept = selection.kept[0].clone();
    keep(d, &kept);
}

/// Inputs and outputs of a graph.
fn interface(graph: &Graph) -> String {
    let text = print(graph);
    let is_input = |l: &&str| graph.inputs.iter().any(|i| l.starts_with(&format!("  {} ", i.role.name())));
    let lines =
        text.lines().filter(|l| l.starts_with("graph") || l.starts_with("  return") || *l == "}" || is_input(l));
    lines.fold(String::new(), |all, line| all + line + "\n")
}

#[test]
fn segments_are_differentiated() {
    insta::glob!("autodiff/*.ir", |path| {
        let source = std::fs::read_to_string(path).expect("readable");
        let forward = read(&source);
        let options = Options::all_floats(&forward);
        let d = differentiated(&source, &forward, &options);
        graphs(&d).into_iter().for_each(check_legal);
        for seed in 0..3 {
            check_against_differences(&forward, &options, &d, &sample::inputs(&forward, seed, &(-1.0..1.0)), seed);
        }
        let parts = early(&d.backward).map(|early| [early.makes, early.rest]);
        let all: Vec<Graph> = graphs(&d).into_iter().chain(parts.iter().flatten()).cloned().collect();
        let text = match directive(&source, "show") {
            Some("all") => print_module(&all),
            _ => all.iter().map(interface).collect::<Vec<_>>().join("\n"),
        };
        snapshot(path, &text);
    });
}

/// A random segment: inputs are carries and parameters in turn, all results are carried on, and one is a loss.
fn segment(tape: &[u32], allows: impl Fn(&Graph, &Op) -> bool) -> Graph {
    let mut graph = testing::graph_where(tape, allows);
    let floats: Vec<bool> = graph.inputs.iter().map(|i| graph.ty(i.value).dtype.is_float()).collect();
    for (n, input) in graph.inputs.iter_mut().enumerate() {
        input.role = match floats[n] {
            true if n % 2 == 0 => InputRole::Carry,
            true => InputRole::Param,
            false => InputRole::Data,
        };
    }
    let values: Vec<ValueId> = graph.outputs.drain(..).map(|o| o.value).collect();
    for (n, value) in values.iter().enumerate() {
        graph.add_output(format!("y{n}"), *value, OutputRole::Carry);
    }
    if let Some(&value) = values.iter().find(|v| graph.ty(**v).dtype.is_float()) {
        let loss = testing::sum_of_all(&mut graph, value, "loss");
        graph.add_output("loss", loss, OutputRole::Loss);
    }
    graph
}

fn random_inputs(graph: &Graph, seed: i32) -> Values {
    let mut sampler = sample::Sampler::new(seed);
    let mut given = sample::inputs(graph, seed, &(-1.0..1.0));
    for (value, tensor) in &mut given {
        if graph.ty(*value).dtype == DType::I32 {
            tensor.data.iter_mut().for_each(|x| *x = sampler.below(testing::MAX_INPUT as u64 + 1) as f64);
        }
    }
    given
}

/// Has it a derivative almost everywhere, which differences find?
fn is_smooth(op: &Op) -> bool {
    match op {
        Op::Unary(UnaryOp::Log | UnaryOp::Sqrt | UnaryOp::Rsqrt | UnaryOp::Floor | UnaryOp::Sign | UnaryOp::Abs) => {
            false
        }
        Op::Binary(BinaryOp::Div | BinaryOp::Pow | BinaryOp::Rem | BinaryOp::Min | BinaryOp::Max) => false,
        Op::Reduce { kind, .. } => *kind == ReduceKind::Sum,
        op => *op != Op::Detach,
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn random_segments_stay_legal_and_agree(
        tape in proptest::collection::vec(any::<u32>(), 0..250),
        again: bool,
        keep in proptest::sample::select(&Keep::ALL),
    ) {
        let forward = segment(&tape, |_, _| true);
        let options = Options::all_floats(&forward).keeping(keep);
        let mut d = differentiate(&forward, &options);
        let is_block = !options.carry_inputs.is_empty() && !options.carry_outputs.is_empty();
        if again {
            recompute(&mut d, &Recompute::Full, keep);
        } else {
            recompute(&mut d, &Recompute::Named(vec!["contract".to_string(), "mul".to_string()]), keep);
        }
        graphs(&d).into_iter().for_each(check_legal);
        let grads = output_gradients(&forward, &options, 7);
        let given = random_inputs(&forward, 1);
        run_all(&d, &forward, &given, &grads, Mode::Typed);
        if again && is_block {
            prop_assert!(d.forward.outputs.iter().all(|o| o.role != OutputRole::Saved));
        }
    }

    /// Whatever is kept and whatever made again: the same bits.
    #[test]
    fn random_choices_agree(
        tape in proptest::collection::vec(any::<u32>(), 0..250),
        prices in proptest::collection::vec(0_u8..100, 32),
        share in 0.0..1.0,
    ) {
        let forward = segment(&tape, |_, _| true);
        let options = Options::all_floats(&forward);
        let mut d = differentiate(&forward, &options);
        let saved = |d: &Differentiated| -> u64 {
            d.forward.outputs.iter().filter(|o| o.role == OutputRole::Saved).map(|o| d.forward.bytes(o.value)).sum()
        };
        let before = saved(&d);
        let limit = before as f64 * share;
        keep_within(&mut d, limit, |_, v| f64::from(prices[v.index() % prices.len()]));
        graphs(&d).into_iter().for_each(check_legal);
        prop_assert!(saved(&d) <= before);
        let grads = output_gradients(&forward, &options, 7);
        run_all(&d, &forward, &random_inputs(&forward, 1), &grads, Mode::Typed);
    }

    #[test]
    fn random_segments_have_the_right_gradients(tape in proptest::collection::vec(any::<u32>(), 0..250)) {
        let forward = segment(&tape, |_, op| is_smooth(op));
        let options = Options::all_floats(&forward);
        let d = differentiate(&forward, &options);
        check_against_differences(&forward, &options, &d, &random_inputs(&forward, 2), 3);
    }
}
