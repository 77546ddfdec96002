//! Textual IR: what is printed parses back, and what does not parse is explained.

use forebay_ir::text::{self, parse, parse_module, print, print_module};
use forebay_ir::{
    BinaryOp, Comm, DType, Direction, Extent, FusedKind, Graph, InputRole, LinearReads, Op, OutputRole, ReduceKind,
    Type, UnaryOp, testing, verify,
};
use proptest::prelude::*;
use std::collections::BTreeSet;
use std::path::Path;

fn read(path: &Path) -> String {
    std::fs::read_to_string(path).expect("test inputs are readable")
}

/// The text from its first graph on: the comment before it says what the file shows.
fn graphs_in(source: &str) -> &str {
    source.find("graph @").map_or("", |start| &source[start..])
}

/// Equal to the last bit, NaN and the sign of zero included, which `==` on floats is not.
fn exact(graph: &Graph) -> String {
    format!(
        "{:?}",
        (&graph.name, &graph.mesh, &graph.axes, &graph.nodes, &graph.inputs, &graph.outputs, &graph.offsets)
    )
}

/// Snapshots lie beside their inputs.
fn snapshot(directory: &str, path: &Path, result: &str) {
    let mut settings = insta::Settings::clone_current();
    settings.set_snapshot_path(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests").join(directory));
    settings.set_prepend_module_to_snapshot(false);
    settings.set_omit_expression(true);
    settings.remove_snapshot_suffix();
    let name = path.file_stem().expect("a file").to_string_lossy().into_owned();
    settings.bind(|| insta::assert_snapshot!(name, result));
}

fn canonical_graphs() -> Vec<Graph> {
    let mut graphs = Vec::new();
    for file in std::fs::read_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/text")).expect("a directory") {
        graphs.extend(parse_module(&read(&file.expect("an entry").path())).expect("canonical texts parse"));
    }
    graphs
}

#[test]
fn canonical_texts_round_trip() {
    insta::glob!("text/*.ir", |path| {
        let source = read(path);
        let graphs = parse_module(&source)
            .unwrap_or_else(|e| panic!("{}", text::render(&e, &source, &path.display().to_string())));
        assert_eq!(print_module(&graphs), graphs_in(&source), "{}", path.display());
        for graph in &graphs {
            verify::verify(graph).unwrap_or_else(|v| panic!("{}", verify::render(graph, &v)));
            assert_eq!(exact(&parse(&print(graph)).expect("printed graphs parse")), exact(graph));
        }
    });
}

#[test]
fn loose_texts_have_a_canonical_form() {
    insta::glob!("text_loose/*.ir", |path| {
        let source = read(path);
        let graphs = parse_module(&source).unwrap_or_else(|e| panic!("{}", text::render(&e, &source, "input")));
        snapshot("text_loose", path, &print_module(&graphs));
    });
}

#[test]
fn errors_are_explained() {
    insta::glob!("text_errors/*.ir", |path| {
        let source = read(path);
        let errors = parse_module(&source).expect_err("the text is wrong");
        let name = path.file_name().expect("a file").to_string_lossy();
        snapshot("text_errors", path, &text::render(&errors, &source, &name));
    });
}

/// The number of an op's variant. No wildcard: a new op must be given the next number and a line in `tests/text`.
fn kind(op: &Op) -> usize {
    match op {
        Op::Input => 0,
        Op::Const(_) => 1,
        Op::Iota(_) => 2,
        Op::Random { .. } => 3,
        Op::Unary(_) => 4,
        Op::Binary(_) => 5,
        Op::Select => 6,
        Op::Cast(_) => 7,
        Op::Detach => 8,
        Op::Broadcast(_) => 9,
        Op::Reorder => 10,
        Op::Contract { .. } => 11,
        Op::Reduce { .. } => 12,
        Op::Scan { .. } => 13,
        Op::Rename { .. } => 14,
        Op::Split { .. } => 15,
        Op::Merge { .. } => 16,
        Op::Take { .. } => 17,
        Op::Slice { .. } => 18,
        Op::Pad { .. } => 19,
        Op::Stack(_) => 20,
        Op::Concat { .. } => 21,
        Op::Gather { .. } => 22,
        Op::ScatterAdd { .. } => 23,
        Op::TopK { .. } => 24,
        Op::Group { .. } => 25,
        Op::Offsets { .. } => 26,
        Op::Invert => 27,
        Op::LinearAttention(_) => 28,
        Op::Fused(_) => FUSED,
        Op::Comm(_) => FUSED + 1,
    }
}

/// Fused ops and collectives come last: random graphs have none.
const FUSED: usize = 29;
const KINDS: usize = FUSED + 2;

#[test]
fn every_op_round_trips() {
    let graphs = canonical_graphs();
    let ops: Vec<&Op> = graphs.iter().flat_map(|g| &g.nodes).map(|n| &n.op).collect();
    let kinds: BTreeSet<usize> = ops.iter().map(|op| kind(op)).collect();
    assert_eq!(kinds, (0..KINDS).collect(), "an op has no line in tests/text");
    let has = |op: Op| assert!(ops.contains(&&op), "{op:?} has no line in tests/text");
    UnaryOp::ALL.into_iter().for_each(|op| has(Op::Unary(op)));
    BinaryOp::ALL.into_iter().for_each(|op| has(Op::Binary(op)));
    for kind in FusedKind::ALL {
        let is = |op: &&&Op| matches!(op, Op::Fused(fused) if fused.kind == kind);
        assert!(ops.iter().any(|op| is(&op)), "{kind:?} has no line in tests/text");
    }
    for name in Comm::NAMES {
        let is = |op: &&&Op| matches!(op, Op::Comm(comm) if comm.name() == name);
        assert!(ops.iter().any(|op| is(&op)), "`{name}` has no line in tests/text");
    }
    [DType::F64, DType::F32, DType::BF16, DType::Bool].into_iter().for_each(|dtype| has(Op::Cast(dtype)));
    for kind in [ReduceKind::Sum, ReduceKind::Max, ReduceKind::Min] {
        assert!(ops.iter().any(|op| matches!(op, Op::Reduce { kind: k, .. } if *k == kind)), "{kind:?}");
    }
    for direction in [Direction::Forward, Direction::Backward] {
        assert!(ops.iter().any(|op| matches!(op, Op::Scan { direction: d, .. } if *d == direction)), "{direction:?}");
    }
    for reads in LinearReads::ALL {
        assert!(ops.iter().any(|op| matches!(op, Op::LinearAttention(op) if op.reads == reads)), "{reads:?}");
    }
}

#[test]
fn every_role_round_trips() {
    let graphs = canonical_graphs();
    let inputs: BTreeSet<InputRole> = graphs.iter().flat_map(|g| &g.inputs).map(|i| i.role).collect();
    let outputs: BTreeSet<OutputRole> = graphs.iter().flat_map(|g| &g.outputs).map(|o| o.role).collect();
    assert_eq!(inputs, InputRole::ALL.into());
    assert_eq!(outputs, OutputRole::ALL.into());
}

#[test]
fn one_graph_means_one() {
    assert_eq!(parse("").unwrap_err()[0].to_string(), "1:1: there is no graph in the text");
    assert_eq!(
        parse("graph @a {\n}\ngraph @b {\n}").unwrap_err()[0].to_string(),
        "3:1: there is more than one graph in the text"
    );
}

/// Texts that would take long or much memory if lists were compared pairwise, quotes scanned again and again, or errors kept without end.
#[test]
fn hostile_texts_cost_no_more_than_their_length() {
    const N: usize = 200_000;
    let body = |line: String| format!("graph @g {{\n  axis a = 1, r = ragged(a, 2)\n  data %x : f32[a]\n{line}\n}}\n");
    let texts = [
        "}\n".repeat(N),
        "graph @g {\n".repeat(N),
        body("nonsense\n".repeat(N)),
        body(format!("%y = exp %x : f32[{}]", "a, ".repeat(N))),
        body(format!("%y = exp %x : f32[{}a]", "a, ".repeat(N))),
        body(format!("%y = split %x {{a -> {}a}} : f32[a]", "a, ".repeat(N))),
        body(format!("%y = broadcast %x along {{{}a}} : f32[a]", "a, ".repeat(N))),
        body(format!("%y = sum %x over {{{}a}} : f32[a]", "a, ".repeat(N))),
        body(format!("%y = concat {}%x {{{}a -> a}} : f32[a]", "%x, ".repeat(N), "a, ".repeat(N))),
        body(format!("%y = exp {}%x : f32[a]", "%x, ".repeat(N))),
        body(format!("axis {}b = 1", "b = , ".repeat(N))),
        body(format!("axis {}b = 1", "a = 1, ".repeat(N))),
        body(format!("offsets {}r = %x", "r = %none, ".repeat(N))),
        body(format!("return {}loss a = %none", "loss a = %x, ".repeat(N))),
        body(format!("%y = {} : f32", "\"".repeat(N))),
        body(format!("%y = {} : f32", "\"\\x".repeat(N))),
        body(format!("%y = {} : f32", "{(".repeat(N))),
        body(format!("axis b = {}", "9".repeat(N))),
        body(format!("%y = const {} : f32", "9".repeat(N))),
        body(format!("%y = const 1e{} : f32", "9".repeat(N))),
        format!("graph @g {{\n  axis {} = 1\n", "x".repeat(N)),
    ];
    for text in texts {
        let Err(errors) = parse_module(&text) else { panic!("accepted: {}", &text[..60]) };
        assert!(errors.len() <= 102, "{} errors", errors.len());
        assert!(text::render(&errors, &text, "input").len() < 400_000);
    }
}

fn tape() -> impl Strategy<Value = Vec<u32>> {
    proptest::collection::vec(any::<u32>(), 0..300)
}

/// A change of a text that keeps it near to what parses.
#[derive(Clone, Debug)]
enum Change {
    Remove(usize, usize),
    Insert(usize, &'static str),
    Move(usize, usize, usize),
}

fn change() -> impl Strategy<Value = Change> {
    const PIECES: [&str; 34] = [
        "%",
        "@",
        "{",
        "}",
        "[",
        "]",
        "(",
        ")",
        ",",
        ":",
        "->",
        "=",
        "\"",
        "\\",
        "//",
        "\n",
        " ",
        "0",
        "1",
        "-",
        "9999999999",
        "4611686018427387904",
        "nan",
        "over",
        "at",
        "ragged",
        "axis ",
        "%x",
        "f32",
        "i32",
        "a",
        "e",
        "ü",
        "\u{2028}",
    ];
    prop_oneof![
        (any::<usize>(), 1..9_usize).prop_map(|(at, n)| Change::Remove(at, n)),
        (any::<usize>(), proptest::sample::select(&PIECES[..])).prop_map(|(at, piece)| Change::Insert(at, piece)),
        (any::<usize>(), 1..40_usize, any::<usize>()).prop_map(|(from, n, to)| Change::Move(from, n, to)),
    ]
}

fn apply(text: &str, changes: &[Change]) -> String {
    let mut chars: Vec<char> = text.chars().collect();
    for change in changes {
        let at = |i: usize, chars: &[char]| i % (chars.len() + 1);
        match *change {
            Change::Remove(from, n) => {
                let from = at(from, &chars);
                chars.drain(from..(from + n).min(chars.len()));
            }
            Change::Insert(to, piece) => {
                let to = at(to, &chars);
                chars.splice(to..to, piece.chars());
            }
            Change::Move(from, n, to) => {
                let from = at(from, &chars);
                let part: Vec<char> = chars.drain(from..(from + n).min(chars.len())).collect();
                let to = at(to, &chars);
                chars.splice(to..to, part);
            }
        }
    }
    chars.into_iter().collect()
}

/// Whatever the text: an answer, which can be shown; and a graph that was taken can be checked, printed and parsed again.
fn check_total(source: &str) {
    match parse_module(source) {
        Ok(graphs) => {
            let printed = print_module(&graphs);
            let again = parse_module(&printed)
                .unwrap_or_else(|e| panic!("{printed}\n{}", text::render(&e, &printed, "printed")));
            assert_eq!(again.iter().map(exact).collect::<Vec<_>>(), graphs.iter().map(exact).collect::<Vec<_>>());
            assert_eq!(print_module(&again), printed);
            graphs.iter().for_each(|graph| drop(verify::verify(graph)));
        }
        Err(errors) => {
            assert!(!errors.is_empty());
            assert!(errors.iter().all(|e| !e.message.is_empty()));
            assert!(!text::render(&errors, source, "input").is_empty());
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn random_graphs_round_trip(tape in tape()) {
        let graph = testing::graph(&tape);
        if let Err(violations) = verify::verify(&graph) {
            panic!("{}", verify::render(&graph, &violations));
        }
        let printed = print(&graph);
        let parsed = parse(&printed).unwrap_or_else(|e| panic!("{}", text::render(&e, &printed, "printed")));
        prop_assert_eq!(exact(&parsed), exact(&graph));
        prop_assert_eq!(print(&parsed), printed);
    }

    #[test]
    fn names_round_trip(names in proptest::collection::vec(".{0,12}|[a-z.#'\"\\\\\\n\u{2028}\u{202e}]{0,5}", 1..8), label in ".*") {
        let mut graph = Graph::new(names[0].clone());
        for name in &names {
            let axis = graph.add_axis(name, Extent::Fixed(2), Some(label.clone()));
            let value = graph.add_input(name, Type::new(DType::F32, [axis]), InputRole::Data);
            graph.add_output(format!("{name}{}", value.0), value, OutputRole::Output);
        }
        prop_assert_eq!(verify::verify(&graph), Ok(()));
        prop_assert_eq!(exact(&parse(&print(&graph)).expect("printed graphs parse")), exact(&graph));
    }

    #[test]
    fn floats_round_trip(bits in any::<u64>()) {
        let value = f64::from_bits(bits);
        let mut graph = Graph::new("g");
        graph.constant(value, DType::F64);
        let parsed = parse(&print(&graph)).expect("printed graphs parse");
        let Op::Const(again) = parsed.nodes[0].op else { panic!("a constant") };
        prop_assert!(again.to_bits() == bits || value.is_nan() && again.to_bits() == f64::NAN.to_bits());
    }

    #[test]
    fn random_bytes_are_answered(bytes in proptest::collection::vec(any::<u8>(), 0..400)) {
        let text = String::from_utf8_lossy(&bytes);
        check_total(&text);
        check_total(&format!("graph @g {{\n{text}\n}}\n"));
    }

    #[test]
    fn random_tokens_are_answered(tokens in proptest::collection::vec(
        "[%@]?[a-e]|[{}()\\[\\],:=\"\n]|->|axis|offsets|return loss|f32|exp|add|contract|over|ragged|[0-9]{1,20}|//", 0..120)
    ) {
        check_total(&format!("graph @g {{\n  axis a = 2, e = 3\n  data %a : f32[a]\n{}", tokens.join(" ")));
    }

    #[test]
    fn changed_texts_are_answered(tape in tape(), changes in proptest::collection::vec(change(), 1..6)) {
        check_total(&apply(&print(&testing::graph(&tape)), &changes));
    }

    #[test]
    fn changed_examples_are_answered(which in any::<usize>(), changes in proptest::collection::vec(change(), 1..6)) {
        let graphs = canonical_graphs();
        check_total(&apply(&print(&graphs[which % graphs.len()]), &changes));
    }
}

/// The generator is worth little if some op never comes up.
#[test]
fn random_graphs_have_every_op() {
    let mut seen = BTreeSet::new();
    let mut state = 1_u64;
    for _ in 0..2000 {
        let tape: Vec<u32> = (0..300)
            .map(|_| {
                // Knuth's multiplier: any fixed sequence does.
                state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
                (state >> 33) as u32
            })
            .collect();
        let graph = testing::graph(&tape);
        for node in &graph.nodes {
            seen.insert((kind(&node.op), graph.ragged_axis(&node.ty.axes).is_some(), node.ty.dtype));
        }
    }
    let kinds: BTreeSet<usize> = seen.iter().map(|(kind, _, _)| *kind).collect();
    assert_eq!(kinds, (0..FUSED).collect(), "all primitive ops");
    let ragged: BTreeSet<usize> =
        seen.iter().filter(|(_, is_ragged, _)| *is_ragged).map(|(kind, _, _)| *kind).collect();
    // Elementwise ops, contractions, reductions, gathers from and scatters to rows.
    assert!([4, 5, 6, 11, 12, 22, 23].iter().all(|kind| ragged.contains(kind)), "{ragged:?}");
}
