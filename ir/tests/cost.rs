//! Costs of nodes and of models.

use forebay_ir::Graph;
use forebay_ir::cost::{Cost, active_parameters, cost, model_flops};
use forebay_ir::text::{parse, render};

fn read(source: &str) -> Graph {
    parse(source).unwrap_or_else(|e| panic!("{}", render(&e, source, "input")))
}

fn cost_of(source: &str) -> Cost {
    let graph = read(source);
    cost(&graph, graph.values().last().expect("there are nodes"))
}

#[test]
fn a_contraction_counts_every_product_twice() {
    let graph = "graph @g {\n axis t = 3, d = 4, f = 5\n param %x : bf16[t, d]\n param %w : bf16[d, f]\n %y = contract %x, %w over {d} : bf16[t, f]\n}";
    assert_eq!(cost_of(graph), Cost { flops: 120.0, instructions: 120.0, read: 64.0, written: 30.0 });
}

#[test]
fn rows_of_experts_count_at_their_bound_and_their_parent_not_at_all() {
    let graph = "graph @g {\n axis d = 4, e = 3, r = ragged(e, 10), f = 5\n param %x : f32[e, r, d]\n param %w : f32[e, d, f]\n %y = contract %x, %w over {d} : f32[e, r, f]\n}";
    assert_eq!(cost_of(graph), Cost { flops: 400.0, instructions: 400.0, read: 160.0 + 240.0, written: 200.0 });
}

#[test]
fn views_are_free_and_gathers_read_what_they_take() {
    let view = "graph @g {\n axis t = 3, u = 3\n param %x : f32[t]\n %y = rename %x {t -> u} : f32[u]\n}";
    assert_eq!(cost_of(view), Cost::default());
    let gather = "graph @g {\n axis v = 1000, t = 3, d = 2\n param %x : f32[v, d]\n data %i : i32[t]\n %y = gather %x at %i {v} : f32[t, d]\n}";
    assert_eq!(cost_of(gather), Cost { flops: 0.0, instructions: 0.0, read: 24.0 + 12.0, written: 24.0 });
    let square = "graph @g {\n axis t = 3\n param %x : f32[t]\n %y = mul %x, %x : f32[t]\n}";
    assert_eq!(cost_of(square), Cost { flops: 3.0, instructions: 3.0, read: 12.0, written: 12.0 });
}

#[test]
fn functions_are_counted_wherever_they_are() {
    let of = |op: &str| {
        let graph = format!("graph @g {{\n axis t = 3\n param %x : bf16[t]\n %y = {op} : bf16[t]\n}}");
        let cost = cost_of(&graph);
        (cost.flops, cost.instructions)
    };
    assert_eq!(of("tanh %x"), (3.0, 66.0));
    assert_eq!(of("pow %x, %x"), (3.0, 4200.0));
    assert_eq!(of("rsqrt %x"), (3.0, 3.0));
    // Casts there and back, minus, minimum, exp, plus, division.
    assert_eq!(of("sigmoid %x"), (21.0, 57.0));
}

/// Attention whose mask is `mask`; one head of size 4, 8 positions.
fn attention(mask: &str) -> Graph {
    attention_of(mask, "s")
}

fn attention_of(mask: &str, score: &str) -> Graph {
    read(&format!(
        "graph @g {{
          axis t = 8, u = 8, d = 4
          carry %q : f32[t, d]
          carry %k : f32[u, d]
          %s.raw = contract %q, %k over {{d}} : f32[t, u]
          %half = const 0.5 : f32
          %s = mul %s.raw, %half : f32[t, u]
          %t = iota t : i32[t]
          %t2 = iota t : i32[t]
          %tu = rename %t2 {{t -> u}} : i32[u]
          %u = iota u : i32[u]
          %far = sub %t, %u : i32[t, u]
          %three = const 3 : i32
          {mask}
          %inf = const -inf : f32
          %m = select %mask, %{score}, %inf : f32[t, u]
          %top = reduce_max %m over {{u}} : f32[t]
          %less = sub %m, %top : f32[t, u]
          %e = exp %less : f32[t, u]
          %z = sum %e over {{u}} : f32[t]
          %p = div %e, %z : f32[t, u]
          %o = contract %p, %k over {{u}} : f32[t, d]
          return carry o = %o
        }}"
    ))
}

#[test]
fn masks_count_by_what_they_let_through() {
    let full = 2.0 * 2.0 * 8.0 * 8.0 * 4.0;
    let causal = "%mask = le %u, %t : bool[u, t]";
    assert_eq!(model_flops(&attention(causal)), full / 2.0);
    let renamed = "%mask = ge %t, %tu : bool[t, u]";
    assert_eq!(model_flops(&attention(renamed)), full / 2.0);
    let distance = "%zero = const 0 : i32\n %mask = ge %far, %zero : bool[t, u]";
    assert_eq!(model_flops(&attention(distance)), full / 2.0);
    let window = format!(
        "{} %near = lt %far, %three : bool[t, u]\n %mask = and %near, %causal : bool[t, u]",
        causal.replace("%mask", "%causal") + "\n"
    );
    assert_eq!(model_flops(&attention(&window)), full * 3.0 / 8.0);
    let nested = "%near = lt %far, %three : bool[t, u]
        %no = const -inf : f32
        %s.near = select %near, %s, %no : f32[t, u]
        %mask = le %u, %t : bool[u, t]";
    let nested = attention_of(nested, "s.near");
    assert_eq!(model_flops(&nested), full * 3.0 / 8.0, "a mask over a mask");
    let near = format!(
        "{} %end = add %u, %three : i32[u]\n %near = le %t, %end : bool[t, u]\n %mask = and %causal, %near : bool[t, u]",
        causal.replace("%mask", "%causal") + "\n"
    );
    assert_eq!(model_flops(&attention(&near)), full / 2.0, "four of eight keys are no less than half");
    let no_mask = "%mask = lt %far, %three : bool[t, u]";
    assert_eq!(model_flops(&attention(no_mask)), full, "a window that looks ahead");
    let strange = "%mask = le %t, %three : bool[t]";
    assert_eq!(model_flops(&attention(strange)), full);
}

#[test]
fn a_score_that_is_used_elsewhere_counts_whole() {
    let mut graph = attention("%mask = le %u, %t : bool[u, t]");
    let score = graph.values().find(|&v| graph.node(v).name == "s").expect("it is there");
    graph.add_output("s", score, forebay_ir::OutputRole::Output);
    assert_eq!(model_flops(&graph), 2.0 * 8.0 * 8.0 * 4.0 * 1.5);
}

/// A layer and the head of the small benchmark model.
fn layer(b: u64, s: u64, d: u64, h: u64, experts: u64, k: u64, f: u64) -> Graph {
    let (dh, n, slots) = (d / h, b * s, b * s * k);
    read(&format!(
        "graph @layer {{
          axis b = {b}, t = {s}, u = {s}, d = {d}, h = {h}, dh = {dh}, e = {experts}, e_1 = {}, k = {k}, n = {n}, f = {f}
          axis r = ragged(e, {slots})
          offsets r = %starts
          carry %x : f32[b, t, d]
          param %wq : f32[d, h, dh]
          param %wk : f32[d, h, dh]
          param %wv : f32[d, h, dh]
          param %wo : f32[h, dh, d]
          param %gain : f32[d]
          param %router : f32[d, e]
          param %gate : f32[e, d, f]
          param %up : f32[e, d, f]
          param %down : f32[e, f, d]
          param %shared.gate : f32[d, f]
          param %shared.up : f32[d, f]
          param %shared.down : f32[f, d]
          %x.normal = mul %x, %gain : f32[b, t, d]
          %q = contract %x.normal, %wq over {{d}} : f32[b, t, h, dh]
          %k = contract %x.normal, %wk over {{d}} : f32[b, t, h, dh]
          %v = contract %x.normal, %wv over {{d}} : f32[b, t, h, dh]
          %k.u = rename %k {{t -> u}} : f32[b, u, h, dh]
          %v.u = rename %v {{t -> u}} : f32[b, u, h, dh]
          %s = contract %q, %k.u over {{dh}} : f32[b, h, t, u]
          %t = iota t : i32[t]
          %u = iota u : i32[u]
          %mask = ge %t, %u : bool[t, u]
          %inf = const -inf : f32
          %masked = select %mask, %s, %inf : f32[b, h, t, u]
          %e = exp %masked : f32[b, h, t, u]
          %z = sum %e over {{u}} : f32[b, h, t]
          %p = div %e, %z : f32[b, h, t, u]
          %mixed = contract %p, %v.u over {{u}} : f32[b, t, h, dh]
          %o = contract %mixed, %wo over {{h, dh}} : f32[b, t, d]
          %score = contract %o, %router over {{d}} : f32[b, t, e]
          %chosen = top_k %score {{e -> k}} : i32[b, t, k]
          %rows = group %chosen {{r}} : i32[e, r]
          %starts = offsets %chosen {{e -> e_1}} : i32[e_1]
          %per = const {k} : i32
          %token = div %rows, %per : i32[e, r]
          %tokens = merge %o {{b, t -> n}} : f32[n, d]
          %xe = gather %tokens at %token {{n}} : f32[e, r, d]
          %g = contract %xe, %gate over {{d}} : f32[e, r, f]
          %w = contract %xe, %up over {{d}} : f32[e, r, f]
          %act = mul %g, %w : f32[e, r, f]
          %ye = contract %act, %down over {{f}} : f32[e, r, d]
          %slot = invert %rows : i32[b, t, k]
          %back = gather %ye at %slot {{r}} : f32[b, t, k, d]
          %routed = sum %back over {{k}} : f32[b, t, d]
          %sg = contract %o, %shared.gate over {{d}} : f32[b, t, f]
          %sw = contract %o, %shared.up over {{d}} : f32[b, t, f]
          %sact = mul %sg, %sw : f32[b, t, f]
          %sy = contract %sact, %shared.down over {{f}} : f32[b, t, d]
          %y = add %routed, %sy : f32[b, t, d]
          return carry y = %y
        }}",
        experts + 1
    ))
}

fn head(b: u64, s: u64, d: u64, v: u64) -> Graph {
    read(&format!(
        "graph @head {{
          axis b = {b}, t = {s}, d = {d}, v = {v}
          carry %x : f32[b, t, d]
          param %head : f32[d, v]
          %logits = contract %x, %head over {{d}} : f32[b, t, v]
          return output logits = %logits
        }}"
    ))
}

/// A step is three forward passes: per token and layer 8 d^2 for projections, 2 S d for causal attention, 2 d E for the router, 6 d f for each
/// expert it meets.
#[test]
fn model_flops_are_those_of_the_formula() {
    for (b, s, d, h, layers, experts, k, f, v) in
        [(8, 256, 256, 8, 4, 8, 2, 512, 256), (4, 512, 768, 12, 8, 16, 2, 1024, 8192)]
    {
        let counted =
            3.0 * (layers as f64 * model_flops(&layer(b, s, d, h, experts, k, f)) + model_flops(&head(b, s, d, v)));
        let per_layer = 8 * d * d + 2 * s * d + 2 * d * experts + (k + 1) * 6 * d * f;
        assert_eq!(counted, (3 * (layers * per_layer + 2 * d * v) * s * b) as f64);
    }
    let tiny = 3.0 * (4.0 * model_flops(&layer(8, 256, 256, 8, 8, 2, 512)) + model_flops(&head(8, 256, 256, 256)));
    assert_eq!((tiny / 1e8).round() / 10.0, 75.0);
}

#[test]
fn a_token_meets_the_experts_it_is_sent_to() {
    let graph = layer(8, 256, 256, 8, 8, 2, 512);
    let active = active_parameters(&graph, 8 * 256);
    let of = |name: &str| active.iter().find(|(v, _)| graph.node(*v).name == name).expect("a parameter").1;
    assert_eq!(of("wq"), 256.0 * 256.0);
    assert_eq!(of("gain"), 256.0);
    assert_eq!(of("router"), 256.0 * 8.0);
    assert_eq!(of("gate"), 2.0 * 256.0 * 512.0);
    assert_eq!(of("shared.gate"), 256.0 * 512.0);
}

#[test]
fn joined_parameters_share_what_is_counted() {
    let graph = read(
        "graph @g {
          axis t = 5, d = 4, s = 2, f = 3
          carry %x : f32[t, d]
          param %a : bf16[d, f]
          param %b : f32[d, f]
          param %c : f32[d]
          %wide = cast %a : f32[d, f]
          %both = stack %wide, %b {s} : f32[s, d, f]
          %y = contract %x, %both over {d} : f32[t, s, f]
          return carry y = %y
        }",
    );
    let active: Vec<f64> = active_parameters(&graph, 10).into_iter().map(|(_, n)| n).collect();
    assert_eq!(active, [6.0, 6.0, 4.0], "5 rows for 10 tokens: each token meets half");
}
