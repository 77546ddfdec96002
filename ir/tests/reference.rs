//! The oracle's rules, one by one.

use forebay_ir::reference::{Mode, Tensor, evaluate, scalar};
use forebay_ir::text::{parse, render};
use forebay_ir::{BinaryOp, DType, Graph, InputRole, OutputRole, UnaryOp, ValueId};
use rustc_hash::FxHashMap;

fn read(source: &str) -> Graph {
    parse(source).unwrap_or_else(|e| panic!("{}", render(&e, source, "input")))
}

/// The output `y` of a graph, given its inputs in order.
fn run_in(mode: Mode, source: &str, inputs: &[&[f64]]) -> Vec<f64> {
    let graph = read(source);
    let given: FxHashMap<ValueId, Tensor> = graph
        .inputs
        .iter()
        .zip(inputs)
        .map(|(input, data)| {
            let dims: Vec<u64> = graph.dims(&graph.ty(input.value).axes).into_iter().map(|(_, n)| n).collect();
            (input.value, Tensor::new(dims, *data))
        })
        .collect();
    let y = graph.output(OutputRole::Output, "y").expect("the graph returns y");
    evaluate(&graph, &given, mode).swap_remove(y.index()).data
}

fn run(source: &str, inputs: &[&[f64]]) -> Vec<f64> {
    run_in(Mode::Typed, source, inputs)
}

#[test]
fn integers_divide_downwards_and_wrap_around() {
    let int = |op, a: f64, b: f64| scalar::round(scalar::binary(op, a, b, DType::I32), DType::I32);
    for (a, b, quotient, rest) in [
        (7.0, 2.0, 3.0, 1.0),
        (-7.0, 2.0, -4.0, 1.0),
        (7.0, -2.0, -4.0, -1.0),
        (-7.0, -2.0, 3.0, -1.0),
        (5.0, 0.0, 0.0, 0.0),
    ] {
        assert_eq!(int(BinaryOp::Div, a, b), quotient, "{a} / {b}");
        assert_eq!(int(BinaryOp::Rem, a, b), rest, "{a} % {b}");
    }
    let (low, high) = (i32::MIN as f64, i32::MAX as f64);
    assert_eq!(int(BinaryOp::Add, high, 1.0), low);
    assert_eq!(int(BinaryOp::Mul, high, high), 1.0);
    assert_eq!(int(BinaryOp::Div, low, -1.0), low);
}

#[test]
fn floats_follow_the_rules_of_nan_and_sign() {
    let float = |op, a: f64, b: f64| scalar::binary(op, a, b, DType::F32);
    assert!(float(BinaryOp::Max, f64::NAN, 1.0).is_nan() && float(BinaryOp::Max, 1.0, f64::NAN).is_nan());
    assert!(float(BinaryOp::Min, f64::NAN, 1.0).is_nan() && float(BinaryOp::Min, 1.0, f64::NAN).is_nan());
    assert_eq!(float(BinaryOp::Ne, f64::NAN, f64::NAN), 1.0);
    assert_eq!(float(BinaryOp::Rem, -1.0, 3.0), 2.0);
    assert_eq!(float(BinaryOp::Rem, 1.0, -3.0), -2.0);
    assert_eq!(scalar::unary(UnaryOp::Sign, -0.0).to_bits(), (-0.0_f64).to_bits());
    assert!(scalar::unary(UnaryOp::Sign, f64::NAN).is_nan());
}

#[test]
fn casts_truncate_saturate_and_round_to_even() {
    let to_int = |x| scalar::cast(x, DType::F32, DType::I32);
    assert_eq!(
        [to_int(-1.9), to_int(1e20), to_int(-1e20), to_int(f64::NAN)],
        [-1.0, i32::MAX as f64, i32::MIN as f64, 0.0]
    );
    assert_eq!(scalar::cast(0.25, DType::F32, DType::Bool), 1.0);
    let bf16 = |x| scalar::round(x, DType::BF16);
    assert_eq!(bf16(1.0 + 1.0 / 256.0), 1.0, "a tie goes to the even one below");
    assert_eq!(bf16(1.0 + 3.0 / 256.0), 1.0 + 4.0 / 256.0, "a tie goes to the even one above");
    assert_eq!(bf16(1.0 + 1.0 / 256.0 + 1.0 / 65536.0), 1.0 + 2.0 / 256.0);
    assert_eq!(bf16(f64::MAX), f64::INFINITY);
    assert_eq!(bf16(3.4e38), f64::INFINITY, "above the largest bf16");
    assert!(bf16(f64::NAN).is_nan());
}

#[test]
fn sums_are_rounded_once() {
    let graph = "graph @g {\n axis t = 4\n param %x : bf16[t]\n %y = sum %x over {t} : bf16\n return output y = %y\n}";
    assert_eq!(run(graph, &[&[256.0, 1.0, 1.0, 1.0]]), [260.0], "one by one it would stay 256");
    let graph =
        "graph @g {\n axis t = 4\n param %x : bf16[t]\n %y = scan %x {t backward} : bf16[t]\n return output y = %y\n}";
    assert_eq!(run(graph, &[&[256.0, 1.0, 1.0, 1.0]]), [260.0, 3.0, 2.0, 1.0]);
}

/// Two positions and a third that the first is forgotten at, a key of one element: by hand.
#[test]
fn linear_attention_is_as_defined() {
    let run = |op: &str| {
        let graph = format!(
            "graph @g {{\n axis t = 3, k = 1, d = 1\n param %q : f64[t, k]\n param %k : f64[t, k]\n param %v : f64[t, d]\n param %g : f64[t]\n \
             %y = linear_attention %q, %k, %v, %g {{t {op}}} over {{k}} : f64[t, d]\n return output y = %y\n}}"
        );
        let half = f64::ln(0.5);
        run_in(Mode::F64, &graph, &[&[1.0, 2.0, 3.0], &[10.0, 20.0, 30.0], &[1.0, 2.0, 3.0], &[-7.0, half, half]])
    };
    let near = |have: Vec<f64>, want: [f64; 3]| {
        assert!(have.iter().zip(want).all(|(a, b)| (a - b).abs() <= 1e-12 * b.abs().max(1.0)), "{have:?} {want:?}");
    };
    // The score of t and s is q[t] k[s], halved for each step between them.
    near(run("forward inclusive"), [10.0, 2.0 * (5.0 + 40.0), 3.0 * (2.5 + 20.0 + 90.0)]);
    near(run("forward exclusive"), [0.0, 10.0, 3.0 * (2.5 + 20.0)]);
    near(run("backward inclusive"), [10.0 + 20.0 + 22.5, 2.0 * (40.0 + 45.0), 3.0 * 90.0]);
    near(run("backward exclusive"), [20.0 + 22.5, 2.0 * 45.0, 0.0]);
    let second = 2.0 - 10.0;
    near(run("forward solve"), [1.0, second, 3.0 - 3.0 * (2.5 + 10.0 * second)]);
    let second = 2.0 - 2.0 * 45.0;
    near(run("backward solve"), [1.0 - (10.0 * second + 22.5), second, 3.0]);
}

#[test]
fn f64_mode_does_not_round() {
    let graph = "graph @g {\n param %x : f64\n %n = cast %x : bf16\n %y = mul %n, %n : bf16\n return output y = %y\n}";
    assert_eq!(run_in(Mode::F64, graph, &[&[1.01]]), [1.01 * 1.01]);
    let rounded = scalar::round(1.01, DType::BF16);
    assert_eq!(run(graph, &[&[1.01]]), [scalar::round(rounded * rounded, DType::BF16)]);
}

#[test]
fn the_largest_come_first_and_ties_in_order() {
    let graph = "graph @g {\n axis t = 5, k = 4\n param %x : f32[t]\n %y = top_k %x {t -> k} : i32[k]\n return output y = %y\n}";
    assert_eq!(run(graph, &[&[1.0, 3.0, 2.0, 3.0, 1.0]]), [1.0, 3.0, 2.0, 0.0]);
    let (nan, inf) = (f64::NAN, f64::INFINITY);
    assert_eq!(run(graph, &[&[nan, -inf, nan, inf, 0.0]]), [3.0, 4.0, 1.0, 0.0], "NaN is smaller than -inf");
    assert_eq!(run(graph, &[&[0.0, -0.0, 0.0, -0.0, -1.0]]), [0.0, 1.0, 2.0, 3.0], "zeros are equal");
}

/// Eight elements in four groups, of which the second is empty; bound 8.
const GROUPS: &str = "
    axis n = 4, k = 2, e = 4, e_1 = 5, r = ragged(e, 8), d = 2
    offsets r = %starts
    data %chosen : i32[n, k]
    %rows = group %chosen {r} : i32[e, r]
    %starts = offsets %chosen {e -> e_1} : i32[e_1]";

const CHOSEN: [f64; 8] = [3.0, 0.0, 2.0, 0.0, 0.0, 3.0, 2.0, 2.0];

fn grouped(rest: &str) -> String {
    format!("graph @g {{{GROUPS}\n{rest}\nreturn output y = %y\n}}")
}

#[test]
fn groups_are_stable_and_inverted() {
    let rows = "graph @g {".to_string() + GROUPS + "\nreturn output y = %rows\n}";
    assert_eq!(run(&rows, &[&CHOSEN]), [1.0, 3.0, 4.0, 2.0, 6.0, 7.0, 0.0, 5.0]);
    let starts = "graph @g {".to_string() + GROUPS + "\nreturn output y = %starts\n}";
    assert_eq!(run(&starts, &[&CHOSEN]), [0.0, 3.0, 3.0, 6.0, 8.0]);
    let inverse = grouped("%y = invert %rows : i32[n, k]");
    assert_eq!(run(&inverse, &[&CHOSEN]), [6.0, 0.0, 3.0, 1.0, 2.0, 7.0, 4.0, 5.0]);
}

#[test]
fn reductions_of_empty_groups_have_neutral_values() {
    let x = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0];
    let sum = grouped("param %x : f32[e, r]\n%y = sum %x over {r} : f32[e]");
    assert_eq!(run(&sum, &[&CHOSEN, &x]), [6.0, 0.0, 15.0, 15.0]);
    let max = grouped("param %x : f32[e, r]\n%y = reduce_max %x over {r} : f32[e]");
    assert_eq!(run(&max, &[&CHOSEN, &x]), [3.0, f64::NEG_INFINITY, 6.0, 8.0]);
    let min = grouped("%y = reduce_min %rows over {r} : i32[e]");
    assert_eq!(run(&min, &[&CHOSEN]), [1.0, i32::MAX as f64, 2.0, 0.0]);
    let nan =
        "graph @g {\n axis t = 3\n param %x : f32[t]\n %y = reduce_max %x over {t} : f32\n return output y = %y\n}";
    assert!(run(nan, &[&[1.0, f64::NAN, 2.0]])[0].is_nan());
}

#[test]
fn rows_find_their_group() {
    let weighted = grouped("param %w : f32[e]\nparam %x : f32[e, r]\n%y = mul %x, %w : f32[e, r]");
    let y = run(&weighted, &[&CHOSEN, &[10.0, 20.0, 30.0, 40.0], &[1.0; 8]]);
    assert_eq!(y, [10.0, 10.0, 10.0, 30.0, 30.0, 30.0, 40.0, 40.0]);
    let product = grouped("param %w : f32[e, d]\nparam %x : f32[e, r, d]\n%y = contract %x, %w over {d} : f32[e, r]");
    let w = [1.0, 0.0, 9.0, 9.0, 0.0, 1.0, 1.0, 1.0];
    let x: Vec<f64> = (0..16).map(f64::from).collect();
    assert_eq!(run(&product, &[&CHOSEN, &w, &x]), [0.0, 2.0, 4.0, 7.0, 9.0, 11.0, 25.0, 29.0]);
}

#[test]
fn dispatch_and_combine_are_inverse() {
    let there_and_back = grouped(
        "param %x : f32[n, d]
         %two = const 2 : i32
         %from = div %rows, %two : i32[e, r]
         %xe = gather %x at %from {n} : f32[e, r, d]
         %slot = invert %rows : i32[n, k]
         %copies = gather %xe at %slot {r} : f32[n, k, d]
         %y = take %copies {k: 1} : f32[n, d]",
    );
    let x: Vec<f64> = (0..8).map(f64::from).collect();
    assert_eq!(run(&there_and_back, &[&CHOSEN, &x]), x);
}

#[test]
fn rows_behind_the_last_group_are_zero() {
    let graph = "graph @g {
        axis n = 3, e = 2, e_1 = 3, r = ragged(e, 5)
        offsets r = %starts
        data %chosen : i32[n]
        %rows = group %chosen {r} : i32[e, r]
        %starts = offsets %chosen {e -> e_1} : i32[e_1]
        %one = const 1 : i32
        %y = add %rows, %one : i32[e, r]
        return output y = %y
    }";
    assert_eq!(run(graph, &[&[1.0, 0.0, 1.0]]), [2.0, 1.0, 3.0, 0.0, 0.0]);
}

#[test]
fn scatter_adds_and_gather_takes() {
    let scatter = "graph @g {
        axis b = 2, t = 3, v = 3
        param %x : f32[b, t]
        data %i : i32[t]
        %y = scatter_add %x at %i {v} over {t} : f32[v, b]
        return output y = %y
    }";
    assert_eq!(run(scatter, &[&[1.0, 2.0, 3.0, 4.0, 5.0, 6.0], &[2.0, 0.0, 2.0]]), [2.0, 5.0, 0.0, 0.0, 4.0, 10.0]);
    let aligned = "graph @g {
        axis b = 2, v = 3, k = 2
        param %x : f32[b, v]
        data %i : i32[b, k]
        %y = gather %x at %i {v} : f32[b, k]
        return output y = %y
    }";
    assert_eq!(run(aligned, &[&[1.0, 2.0, 3.0, 4.0, 5.0, 6.0], &[2.0, 0.0, 1.0, 1.0]]), [3.0, 1.0, 5.0, 5.0]);
}

#[test]
#[should_panic(expected = "`y`: index 3 is not in 0..3")]
fn an_index_out_of_range_is_a_mistake() {
    let graph = "graph @g {\n axis v = 3\n param %x : f32[v]\n data %i : i32\n %y = gather %x at %i {v} : f32\n return output y = %y\n}";
    run(graph, &[&[1.0, 2.0, 3.0], &[3.0]]);
}

#[test]
fn views_copies_and_pieces() {
    let x: Vec<f64> = (0..6).map(f64::from).collect();
    let with = |rest: &str| {
        format!(
            "graph @g {{\naxis t = 2, d = 3, m = 6, s = 2, p = 5, q = 4, one = 1\nparam %x : f32[t, d]\n{rest}\nreturn output y = %y\n}}"
        )
    };
    assert_eq!(run(&with("%y = reorder %x : f32[d, t]"), &[&x]), [0.0, 3.0, 1.0, 4.0, 2.0, 5.0]);
    assert_eq!(run(&with("%y = merge %x {t, d -> m} : f32[m]"), &[&x]), x);
    assert_eq!(run(&with("%y = take %x {d: 1} : f32[t]"), &[&x]), [1.0, 4.0]);
    assert_eq!(run(&with("%y = slice %x {d -> s: 1} : f32[t, s]"), &[&x]), [1.0, 2.0, 4.0, 5.0]);
    assert_eq!(
        run(&with("%y = pad %x {d -> p: 1} : f32[t, p]"), &[&x]),
        [0.0, 0.0, 1.0, 2.0, 0.0, 0.0, 3.0, 4.0, 5.0, 0.0]
    );
    let stacked = with("%y = stack %x, %x {s} : f32[t, d, s]");
    assert_eq!(run(&stacked, &[&x]), [0.0, 0.0, 1.0, 1.0, 2.0, 2.0, 3.0, 3.0, 4.0, 4.0, 5.0, 5.0]);
    let joined = with("%a = slice %x {d -> one: 2} : f32[t, one]\n%y = concat %a, %x {one, d -> q} : f32[t, q]");
    assert_eq!(run(&joined, &[&x]), [2.0, 0.0, 1.0, 2.0, 5.0, 3.0, 4.0, 5.0]);
    let copied = with("%r = sum %x over {t} : f32[d]\n%y = broadcast %r along {s} : f32[s, d]");
    assert_eq!(run(&copied, &[&x]), [3.0, 5.0, 7.0, 3.0, 5.0, 7.0]);
}

#[test]
fn random_numbers_do_not_depend_on_how_the_batch_is_cut() {
    let random = |rows: usize| {
        format!(
            "graph @g {{\naxis key = 4, b = {rows}, d = 3\nruntime %rng : i32[key]\n%y = random %rng {{site 2, offset b}} : f32[b, d]\nreturn output y = %y\n}}"
        )
    };
    let whole = run(&random(4), &[&[7.0, 1.0, 0.0, 0.0]]);
    let half = run(&random(2), &[&[7.0, 1.0, 0.0, 2.0]]);
    assert_eq!(whole[6..], half);
    assert_ne!(whole, run(&random(4), &[&[7.0, 2.0, 0.0, 0.0]]), "another step");
}

#[test]
fn what_is_given_is_taken() {
    let graph = read("graph @g {\n param %x : f32\n %h = exp %x : f32\n %y = neg %h : f32\n return output y = %y\n}");
    let h = graph.values().nth(1).expect("three nodes");
    let x = graph.input(InputRole::Param, "x").expect("declared");
    let given = FxHashMap::from_iter([(x, Tensor::scalar(1.0)), (h, Tensor::scalar(5.0))]);
    let values = evaluate(&graph, &given, Mode::F64);
    assert_eq!(values.last().expect("three values").data, [-5.0]);
}
