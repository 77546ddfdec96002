//! The verifier: each invariant has a graph that breaks it and nothing else.

use forebay_ir::text::{self, Place, parse};
use forebay_ir::verify::{self, verify};
use forebay_ir::{
    Axis, AxisId, DType, Extent, Graph, Input, InputRole, Node, Op, OutputRole, ReduceKind, Type, ValueId, testing,
};
use proptest::prelude::*;
use std::collections::BTreeSet;
use std::path::Path;

/// A legal graph with something of everything that is broken below.
const LEGAL: &str = "\
graph @legal {
  axis t = 6, d = 4, e = 3, e_1 = 4, r = ragged(e, 8), key = 4, big = 4294967296
  offsets r = %starts
  carry %x : f32[t, d]
  data %chosen : i32[t]
  runtime %rng : i32[key]

  %rows = group %chosen {r} : i32[e, r]
  %starts = offsets %chosen {e -> e_1} : i32[e_1]
  %xe = gather %x at %rows {t} : f32[e, r, d]
  %load = sum %xe over {r} : f32[e, d]
  %total = sum %load over {d, e} : f32
  %one = const 1 : i32
  %noise = random %rng {site 0} : f32[t]
  return loss l = %total
  return carry y = %load
}
";

fn legal() -> Graph {
    parse(LEGAL).unwrap_or_else(|e| panic!("{}", text::render(&e, LEGAL, "LEGAL")))
}

fn axis(graph: &Graph, name: &str) -> AxisId {
    graph.axis_named(name).unwrap_or_else(|| panic!("axis {name}"))
}

fn value(graph: &Graph, name: &str) -> ValueId {
    graph.values().find(|v| graph.node(*v).name == name).unwrap_or_else(|| panic!("value {name}"))
}

fn node<'a>(graph: &'a mut Graph, name: &str) -> &'a mut Node {
    let value = value(graph, name);
    &mut graph.nodes[value.index()]
}

fn output(graph: &mut Graph, name: &str, role: OutputRole) {
    let value = value(graph, name);
    graph.add_output("l", value, role);
}

/// Moves the last node to the front of another, without a look at the references, which the caller has thought of.
fn swap(graph: &mut Graph, a: &str, b: &str) {
    let (a, b) = (value(graph, a), value(graph, b));
    graph.nodes.swap(a.index(), b.index());
    let moved = |v: &mut ValueId| {
        *v = if *v == a {
            b
        } else if *v == b {
            a
        } else {
            *v
        }
    };
    graph.nodes.iter_mut().flat_map(|n| &mut n.operands).for_each(moved);
    graph.offsets.iter_mut().for_each(|(_, v)| moved(v));
    graph.inputs.iter_mut().for_each(|i| moved(&mut i.value));
    graph.outputs.iter_mut().for_each(|o| moved(&mut o.value));
}

type Break = fn(&mut Graph);

/// Ways to break a graph, by the invariant that each breaks.
const BREAKS: &[(&str, &[Break])] = &[
    (
        "axis_names_are_unique",
        &[|g| {
            g.push_axis(Axis { name: "t".into(), extent: Extent::Fixed(1), label: None });
        }],
    ),
    (
        "ragged_parents_are_fixed",
        &[
            |g| {
                g.add_axis("rr", Extent::Ragged { parent: axis(g, "r"), bound: 1, even: 1 }, None);
            },
            |g| {
                g.add_axis("self", Extent::Ragged { parent: AxisId(g.axes.len() as u32), bound: 1, even: 1 }, None);
            },
            |g| {
                g.add_axis("none", Extent::Ragged { parent: AxisId(u32::MAX), bound: 1, even: 1 }, None);
            },
        ],
    ),
    (
        "even_rows_fit_the_bound",
        &[|g| {
            g.add_axis("rr", Extent::Ragged { parent: axis(g, "e"), bound: 7, even: 8 }, None);
        }],
    ),
    (
        "axis_sizes_fit",
        &[
            |g| {
                g.add_axis("huge", Extent::Fixed(u64::MAX), None);
            },
            |g| {
                g.add_axis(
                    "huge",
                    Extent::Ragged { parent: axis(g, "e"), bound: verify::MAX_SIZE + 1, even: verify::MAX_SIZE + 1 },
                    None,
                );
            },
            |g| {
                // One more than this does not exist.
                let (chosen, e_1) = (value(g, "chosen"), axis(g, "e_1"));
                let parent = g.add_axis("huge", Extent::Fixed(u64::MAX), None);
                let ty = Type::new(DType::I32, [e_1]);
                let starts = g.push(Op::Offsets { parent, into: e_1 }, vec![chosen], ty, "more");
                let rows = g.add_axis("r2", Extent::Ragged { parent, bound: 1, even: 1 }, None);
                g.offsets.push((rows, starts));
            },
        ],
    ),
    (
        "references_exist",
        &[
            |g| node(g, "total").operands = vec![ValueId(1000)],
            |g| node(g, "noise").op = Op::Random { site: 0, batch: Some(AxisId(1000)) },
            |g| node(g, "noise").ty.axes = vec![AxisId(u32::MAX)],
        ],
    ),
    (
        "operands_come_first",
        &[|g| {
            let noise = value(g, "noise");
            node(g, "noise").operands = vec![noise];
        }],
    ),
    ("value_names_are_unique", &[|g| node(g, "noise").name = "x".into()]),
    (
        "type_is_legal",
        &[
            |g| node(g, "noise").ty.axes = vec![axis(&legal(), "t"); 2],
            |g| node(g, "rng").ty.axes = vec![axis(&legal(), "e"), axis(&legal(), "key"), axis(&legal(), "r")],
            |g| {
                let (e, r, t) = (axis(g, "e"), axis(g, "r"), axis(g, "t"));
                let r2 = g.add_axis("r2", Extent::Ragged { parent: t, bound: 1, even: 1 }, None);
                g.add_input("two_ragged", Type::new(DType::F32, [e, r, t, r2]), InputRole::Data);
            },
            |g| {
                let big = axis(g, "big");
                let other = g.add_axis("other", Extent::Fixed(1 << 31), None);
                g.add_input("too_large", Type::new(DType::BF16, [big, other]), InputRole::Data);
            },
            |g| {
                let axes: Vec<AxisId> = (0..65).map(|_| g.add_axis("one", Extent::Fixed(1), None)).collect();
                g.add_input("too_many", Type::new(DType::F32, axes), InputRole::Data);
            },
        ],
    ),
    (
        "arity_fits",
        &[
            |g| node(g, "total").operands.clear(),
            |g| {
                let x = value(g, "x");
                node(g, "one").operands.push(x);
            },
            |g| {
                let (key, ty) = (axis(g, "key"), Type::new(DType::F32, []));
                g.push(Op::Stack(key), vec![], ty, "nothing");
            },
        ],
    ),
    (
        "sums_are_sorted",
        &[
            |g| {
                let Op::Reduce { over, .. } = &mut node(g, "total").op else { panic!("a sum") };
                over.reverse();
            },
            |g| {
                let Op::Reduce { over, .. } = &mut node(g, "load").op else { panic!("a sum") };
                over.push(over[0]);
            },
            |g| {
                let Op::Reduce { over, .. } = &mut node(g, "load").op else { panic!("a sum") };
                over.clear();
            },
        ],
    ),
    (
        "attributes_fit",
        &[
            |g| {
                let (x, key, big) = (value(g, "rng"), axis(g, "key"), axis(g, "big"));
                g.push(Op::Split { from: key, into: vec![big, big] }, vec![x], Type::new(DType::I32, [key]), "split");
            },
            |g| {
                let (x, key, big) = (value(g, "rng"), axis(g, "key"), axis(g, "big"));
                g.push(Op::Merge { from: vec![big, big], into: key }, vec![x], Type::new(DType::I32, [key]), "merge");
            },
            |g| {
                let (x, key) = (value(g, "rng"), axis(g, "key"));
                let huge = g.add_axis("huge", Extent::Fixed(verify::MAX_SIZE), None);
                let op = Op::Concat { from: vec![huge; 4], into: key };
                g.push(op, vec![x; 4], Type::new(DType::I32, [key]), "concat");
            },
            |g| {
                // The value is not too large: the parent takes no room in it.
                let (x, big) = (value(g, "rows"), axis(g, "big"));
                let f = g.add_axis("f", Extent::Fixed(1 << 25), None);
                let parent = g.add_axis("p", Extent::Fixed(8), None);
                let rows = g.add_axis("r2", Extent::Ragged { parent, bound: 8, even: 8 }, None);
                g.push(Op::Invert, vec![x], Type::new(DType::I32, [f, big, parent, rows]), "inverse");
            },
            |g| {
                let (x, key) = (value(g, "rng"), axis(g, "key"));
                g.push(Op::Broadcast(vec![key; 66]), vec![x], Type::new(DType::I32, [key]), "broadcast");
            },
        ],
    ),
    (
        "constants_suit_their_type",
        &[
            |g| node(g, "one").op = Op::Const(0.5),
            |g| node(g, "one").op = Op::Const(2_147_483_648.0),
            |g| node(g, "one").op = Op::Const(f64::NAN),
            |g| *node(g, "one") = Node { op: Op::Const(2.0), ty: Type::new(DType::Bool, []), ..node(g, "one").clone() },
            |g| node(g, "one").ty.axes = vec![axis(&legal(), "t")],
        ],
    ),
    (
        "random_keys_have_four_elements",
        &[|g| {
            let chosen = value(g, "chosen");
            node(g, "noise").operands = vec![chosen];
        }],
    ),
    (
        "types_follow",
        &[
            |g| node(g, "noise").ty.dtype = DType::F64,
            |g| node(g, "load").ty.axes.push(axis(&legal(), "t")),
            |g| {
                // The order of a sum's axes is not free.
                let (xe, e, d) = (value(g, "xe"), axis(g, "e"), axis(g, "d"));
                let op = Op::Reduce { kind: ReduceKind::Sum, over: vec![axis(g, "r")] };
                g.push(op, vec![xe], Type::new(DType::F32, [d, e]), "turned");
            },
            |g| {
                let rng = value(g, "rng");
                node(g, "xe").operands[1] = rng;
            },
        ],
    ),
    (
        "inputs_are_declared_once",
        &[
            |g| g.inputs.truncate(2),
            |g| g.inputs.push(g.inputs[0].clone()),
            |g| g.inputs.reverse(),
            |g| {
                let value = value(g, "noise");
                g.inputs.push(Input { value, role: InputRole::Data });
            },
            |g| g.inputs.push(Input { value: ValueId(1000), role: InputRole::Data }),
        ],
    ),
    ("outputs_exist", &[|g| g.add_output("m", ValueId(1000), OutputRole::Metric)]),
    ("output_names_are_unique", &[|g| output(g, "total", OutputRole::Loss)]),
    (
        "losses_are_scalar_floats",
        &[|g| output(g, "load", OutputRole::Metric), |g| output(g, "one", OutputRole::Metric)],
    ),
    (
        "group_starts_are_listed_once",
        &[
            |g| g.offsets.push(g.offsets[0]),
            |g| {
                let entry = (axis(g, "t"), value(g, "starts"));
                g.offsets.push(entry);
            },
            |g| g.offsets.push((AxisId(1000), value(&legal(), "starts"))),
            |g| {
                let rows = g.add_axis("r2", Extent::Ragged { parent: axis(g, "t"), bound: 6, even: 6 }, None);
                g.offsets.push((rows, ValueId(1000)));
            },
        ],
    ),
    (
        "group_starts_have_their_type",
        &[
            |g| g.offsets[0].1 = value(g, "chosen"),
            |g| g.offsets[0].1 = value(g, "x"),
            |g| {
                // As long as the right ones, of other groups.
                let (chosen, into) = (value(g, "chosen"), axis(g, "e_1"));
                let parent = g.add_axis("other", Extent::Fixed(3), None);
                let rows = g.add_axis("r2", Extent::Ragged { parent, bound: 8, even: 8 }, None);
                let op = Op::Offsets { parent: axis(g, "e"), into };
                let starts = g.add(op, &[chosen], "other_starts").expect("legal");
                g.offsets.push((rows, starts));
            },
        ],
    ),
    (
        "group_starts_come_first",
        &[
            |g| g.offsets.clear(),
            |g| {
                let (starts, e_1) = (value(g, "starts"), axis(g, "e_1"));
                let ty = Type::new(DType::I32, [e_1]);
                g.offsets[0].1 = g.push(Op::Detach, vec![starts], ty, "late");
            },
            |g| {
                // One value for each group, combined with rows.
                let (t, e) = (axis(g, "t"), axis(g, "e"));
                let rows = g.add_axis("r2", Extent::Ragged { parent: e, bound: 8, even: 8 }, None);
                let per_row = g.add_input("per_row", Type::new(DType::F32, [e, rows]), InputRole::Saved);
                let per_group = g.add_input("per_group", Type::new(DType::F32, [e, t]), InputRole::Saved);
                let add = Op::Binary(forebay_ir::BinaryOp::Add);
                g.add_ordered(add, &[per_row, per_group], &[e, rows, t], "sum").expect("legal");
            },
        ],
    ),
];

#[test]
fn the_legal_graph_is_legal() {
    assert_eq!(verify(&legal()), Ok(()));
}

/// Group starts may stand below the group, as long as they stand above what needs them.
#[test]
fn groups_and_their_starts_stand_in_any_order() {
    let mut graph = legal();
    swap(&mut graph, "rows", "starts");
    assert_eq!(verify(&graph), Ok(()));
}

#[test]
fn each_invariant_is_checked() {
    let mut wrong = String::new();
    for (name, breaks) in BREAKS {
        let mut shown = String::new();
        for break_it in *breaks {
            let mut graph = legal();
            break_it(&mut graph);
            let violations = verify(&graph).expect_err(name);
            let invariants: BTreeSet<&str> = violations.iter().map(|v| v.invariant).collect();
            if invariants != BTreeSet::from([*name]) {
                wrong.push_str(&format!("{name}:\n{}\n", guilty_lines(&verify::render(&graph, &violations))));
            }
            shown.push_str(&verify::render(&graph, &violations));
            shown.push('\n');
        }
        let mut settings = insta::Settings::clone_current();
        settings.set_snapshot_path(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/verify"));
        settings.set_prepend_module_to_snapshot(false);
        settings.set_omit_expression(true);
        settings.bind(|| insta::assert_snapshot!(*name, guilty_lines(&shown)));
    }
    assert!(wrong.is_empty(), "more or less is broken than should be:\n{wrong}");
}

/// The lines with notes under them, and the notes.
fn guilty_lines(shown: &str) -> String {
    let lines: Vec<&str> = shown.lines().collect();
    let is_note = |i: usize| lines.get(i).is_some_and(|l| l.trim_start().starts_with("// ^"));
    let mut out = String::new();
    for (i, line) in lines.iter().enumerate().filter(|(i, _)| is_note(*i) || is_note(i + 1)) {
        let line: String = line.chars().take(160).collect();
        out.push_str(&format!("{line}\n"));
        if is_note(i) && !is_note(i + 1) {
            out.push('\n');
        }
    }
    out
}

/// The list in the module's documentation is the list of invariants, and each has a test.
#[test]
fn the_documented_invariants_are_those_tested() {
    let source = include_str!("../src/verify.rs");
    let bullets = source.lines().filter_map(|l| l.strip_prefix("//! * `")?.split_once('`')).map(|(name, _)| name);
    let documented: BTreeSet<&str> = bullets.collect();
    let tested: BTreeSet<&str> = BREAKS.iter().map(|(name, _)| *name).collect();
    assert_eq!(documented, tested);
    for name in documented {
        assert!(source.contains(&format!("fn {name}(")), "{name} is no function");
    }
}

#[test]
fn all_violations_are_collected() {
    let mut graph = legal();
    node(&mut graph, "noise").ty.dtype = DType::BF16;
    node(&mut graph, "one").op = Op::Const(0.5);
    graph.offsets.clear();
    output(&mut graph, "load", OutputRole::Loss);
    let violations = verify(&graph).expect_err("broken");
    insta::assert_snapshot!(verify::render(&graph, &violations), @r"
    graph @legal {
      axis t = 6, d = 4, e = 3, e_1 = 4, r = ragged(e, 8), key = 4, big = 4294967296
      carry %x : f32[t, d]
      data %chosen : i32[t]
      runtime %rng : i32[key]

      %rows = group %chosen {r} : i32[e, r]
      %starts = offsets %chosen {e -> e_1} : i32[e_1]
      %xe = gather %x at %rows {t} : f32[e, r, d]
      %load = sum %xe over {r} : f32[e, d]
      // ^ the group starts of `r` are needed, but nothing holds them (group_starts_come_first)
      %total = sum %load over {d, e} : f32
      %one = const 0.5 : i32
      // ^ 0.5 is no 32-bit integer (constants_suit_their_type)
      %noise = random %rng {site 0} : bf16[t]
      // ^ the result is f32, not bf16 (types_follow)
      return loss l = %total
      return carry y = %load
      return loss l = %load
      // ^ a second loss `l` (output_names_are_unique)
      // ^ a loss is a scalar of a floating-point type (losses_are_scalar_floats)
    }
    ");
}

/// Notes are comments: the graph with them still parses, whatever is in a name.
#[test]
fn notes_are_comments() {
    let mut graph = legal();
    node(&mut graph, "x").name = "a\nb\u{2028}c".into();
    let notes: Vec<(Place, String)> =
        graph.values().map(|v| (Place::Node(v), format!("about {}", graph.node(v).name))).collect();
    assert_eq!(parse(&text::print_with_notes(&graph, &notes)).expect("comments are no errors"), graph);
}

/// A reference replaced by another number, somewhere.
fn corrupt(graph: &mut Graph, choice: usize, number: u32) {
    let value = ValueId(number);
    let axis = AxisId(number);
    let n = graph.nodes.len();
    let node = &mut graph.nodes[choice / 16 % n];
    match choice % 16 {
        0 => node.operands.push(value),
        1 => drop(node.operands.pop()),
        2 => node.operands.iter_mut().for_each(|o| *o = value),
        3 => node.ty.axes.push(axis),
        4 => drop(node.ty.axes.pop()),
        5 => node.ty.axes.reverse(),
        6 => node.ty.dtype = DType::I32,
        7 => node.op = Op::Stack(axis),
        8 => node.op = Op::Concat { from: vec![axis, axis], into: axis },
        9 => node.op = Op::Gather { axis },
        10 => node.op = Op::Offsets { parent: axis, into: axis },
        11 => graph.offsets.push((axis, value)),
        12 => graph.inputs.push(Input { value, role: InputRole::Data }),
        13 => graph.add_output("o", value, OutputRole::Loss),
        14 => {
            let extent = Extent::Ragged { parent: axis, bound: 9, even: 9 };
            graph.push_axis(Axis { name: "r".into(), extent, label: None });
        }
        _ => {
            let extent = Extent::Fixed(u64::from(number) << 33);
            graph.push_axis(Axis { name: "h".into(), extent, label: None });
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    /// Broken graphs get answers and can be shown; what the verifier lets pass can be printed and parsed.
    #[test]
    fn broken_graphs_are_answered(
        tape in proptest::collection::vec(any::<u32>(), 0..200),
        changes in proptest::collection::vec((any::<usize>(), prop_oneof![0..40_u32, Just(u32::MAX)]), 1..6),
    ) {
        let mut graph = testing::graph(&tape);
        changes.iter().for_each(|(choice, number)| corrupt(&mut graph, *choice, *number));
        match verify(&graph) {
            Ok(()) => prop_assert_eq!(text::print(&parse(&text::print(&graph)).expect("legal")), text::print(&graph)),
            Err(violations) => prop_assert!(verify::render(&graph, &violations).contains("// ^ ")),
        }
    }
}
