//! Norms, activations, feed-forward networks and the loss.

use super::parts;
use super::writer::{Call, Rng, Spelling, Writer, neg};

pub const CONSTANTS: &str = "d = 6, f = 5, out = 3";
const TAIL: [&str; 2] = ["z[batch, seq, out] = y * head", super::generate::SQUARES];

/// The names that the statements are made of: all leading axes, and the last.
fn axes(w: &mut Writer<'_>) -> (String, String) {
    if w.inline {
        (w.any(&["..", "batch, seq"]).to_string(), "d".to_string())
    } else {
        ("..".to_string(), w.fresh(&["d", "c", "width", "model_dim", "a"]))
    }
}

/// What a parameter of the model is called in the block.
fn parameter(w: &mut Writer<'_>, name: &'static str, pool: &[&str]) -> String {
    if w.inline { name.to_string() } else { w.fresh(pool) }
}

pub fn rms_norm(rng: &mut Rng) -> Spelling {
    let mut w = Writer::new(rng, "d f out embed gain head z");
    let (dots, d) = axes(&mut w);
    let gain = parameter(&mut w, "gain", &["g", "weights", "gamma"]);
    let y = parts::rms_norm(&mut w, "x", &gain, &dots, &d);
    let before = [
        "param embed[vocab, d] = normal(1.0), gain[d] = ones, head[d, out]".to_string(),
        "x = embed[tokens, d]".to_string(),
    ];
    let parameters = vec![(format!("x[.., {d}]"), "x"), (format!("{gain}[{d}]"), "gain")];
    let call = Call { parameters, constants: &[], results: vec![("y", y)] };
    w.finish(CONSTANTS, &before, call, &TAIL)
}

pub const RMS_NORM: &str = "param embed[vocab, d] = normal(1.0)
    x = embed[tokens, d]
    y = rms_norm(x)
    param head[d, out]
    z[batch, seq, out] = y * head";

pub fn add_rms_norm(rng: &mut Rng) -> Spelling {
    let mut w = Writer::new(rng, "d f out embed other gain head z b sum_of_both");
    let (dots, d) = axes(&mut w);
    let gain = parameter(&mut w, "gain", &["g", "weights", "gamma"]);
    let sum = w.add("x", "b");
    let sum = w.named(&sum);
    let y = parts::rms_norm(&mut w, &sum, &gain, &dots, &d);
    let before = [
        "param embed[vocab, d] = normal(1.0), other[vocab, d] = normal(1.0), gain[d] = ones, head[d, out]".to_string(),
        "x = embed[tokens, d]".to_string(),
        "b = other[tokens, d]".to_string(),
    ];
    let parameters = vec![(format!("x[.., {d}]"), "x"), (format!("b[.., {d}]"), "b"), (format!("{gain}[{d}]"), "gain")];
    let results = vec![("sum_of_both", sum), ("y", y)];
    let after = [
        "z[batch, seq, out] = y * head",
        "loss of_sum = mean(wide(sum_of_both) * wide(sum_of_both) over batch, seq, d) weight 0.1",
        super::generate::SQUARES,
    ];
    w.finish(CONSTANTS, &before, Call { parameters, constants: &[], results }, &after)
}

pub const ADD_RMS_NORM: &str = "param embed[vocab, d] = normal(1.0), other[vocab, d] = normal(1.0)
    x = embed[tokens, d] + other[tokens, d]
    y = rms_norm(x)
    param head[d, out]
    z[batch, seq, out] = y * head
    loss of_sum = mean(wide(x) * wide(x) over batch, seq, d) weight 0.1";

pub fn silu(rng: &mut Rng) -> Spelling {
    let mut w = Writer::new(rng, "d f out embed head z");
    let y = parts::silu(&mut w, "x", &[]);
    let before = ["param embed[vocab, d] = normal(1.0), head[d, out]".to_string(), "x = embed[tokens, d]".to_string()];
    let call = Call { parameters: vec![("x[..]".to_string(), "x")], constants: &[], results: vec![("y", y)] };
    w.finish(CONSTANTS, &before, call, &TAIL)
}

pub const SILU: &str = "param embed[vocab, d] = normal(1.0), head[d, out]
    x = embed[tokens, d]
    y = silu(x)
    z[batch, seq, out] = y * head";

pub fn swiglu(rng: &mut Rng) -> Spelling {
    let mut w = Writer::new(rng, "d f out embed gate up down head z");
    let (dots, d) = axes(&mut w);
    let gate = parameter(&mut w, "gate", &["w1", "gate_w"]);
    let up = parameter(&mut w, "up", &["w3", "up_w"]);
    let down = parameter(&mut w, "down", &["w2", "down_w"]);
    let f = w.fresh(&["f", "hidden", "ff", "m"]);
    let inner = format!("{dots}, {f}");
    let g = w.contract(&inner, "x", &gate);
    let g = w.named(&g);
    let u = w.contract(&inner, "x", &up);
    let u = w.maybe(u);
    let h = parts::silu(&mut w, &g, &[&u]);
    let h = w.maybe(h);
    let y = w.contract(&format!("{dots}, {d}"), &h, &down);
    let declared = if w.inline { format!("{f}: f") } else { "f".to_string() };
    let again = if w.inline { f.as_str() } else { "f" };
    let before = [
        format!("param embed[vocab, d] = normal(1.0), gate[d, {declared}] = normal(0.5)"),
        format!("param up[d, {again}] = normal(0.5), down[{again}, d] = normal(0.5), head[d, out]"),
        "x = embed[tokens, d]".to_string(),
    ];
    let parameters = vec![
        (format!("x[.., {d}]"), "x"),
        (format!("{gate}[{d}, {f}]"), "gate"),
        (format!("{up}[{d}, {f}]"), "up"),
        (format!("{down}[{f}, {d}]"), "down"),
    ];
    let call = Call { parameters, constants: &[], results: vec![("y", y)] };
    w.finish(CONSTANTS, &before, call, &TAIL)
}

pub const SWIGLU: &str = "param embed[vocab, d] = normal(1.0)
    x = embed[tokens, d]
    y = swiglu(x, f, std = 0.5)
    param head[d, out]
    z[batch, seq, out] = y * head";

/// `x` cut to [-limit, limit].
pub fn clamped(w: &mut Writer<'_>, x: &str, limit: &str) -> String {
    match w.choose(&["min(max)", "max(min)", "std clamp", "clamp by where"]) {
        "min(max)" => {
            let low = w.both("max", x, &neg(limit));
            w.both("min", &low, limit)
        }
        "max(min)" => {
            let high = w.both("min", x, limit);
            w.both("max", &high, &neg(limit))
        }
        "std clamp" => format!("clamp({x}, -{limit}, {limit})"),
        _ => format!("where({x} > {limit}, {limit}, where({x} < -{limit}, -{limit}, {x}))"),
    }
}

/// The activation of gpt-oss, of the names of the gate's and the linear half's products with bias.
pub fn clamped_gate(w: &mut Writer<'_>, gate: &str, up: &str) -> String {
    let a = match w.any(&["min", "min", "where"]) {
        "min" => w.both("min", gate, "1.0"),
        _ => format!("where({gate} < 1.0, {gate}, 1.0)"),
    };
    let a = w.named(&a);
    let b = clamped(w, up, "1.0");
    let b = w.maybe(b);
    let b = w.add(&b, "1.0");
    let b = w.maybe(b);
    let steep = w.mul("1.702", &a);
    let steep = w.named(&steep);
    parts::gated(w, &a, &steep, &[&b])
}

pub fn clamped_swiglu(rng: &mut Rng) -> Spelling {
    let mut w = Writer::new(rng, "d f out embed gate up down gate_bias up_bias down_bias head z");
    let (dots, d) = axes(&mut w);
    let f = if w.inline { "f".to_string() } else { w.fresh(&["f", "hidden", "ff", "m"]) };
    let inner = format!("{dots}, {f}");
    let g = w.contract(&inner, "x", "gate");
    let g = w.add(&g, "gate_bias");
    let g = w.named(&g);
    let u = w.contract(&inner, "x", "up");
    let u = w.add(&u, "up_bias");
    let u = w.named(&u);
    let h = clamped_gate(&mut w, &g, &u);
    let h = w.maybe(h);
    let y = w.contract(&format!("{dots}, {d}"), &h, "down");
    let y = w.add(&y, "down_bias");
    let before = [
        "param embed[vocab, d] = normal(1.0), gate[d, f] = normal(0.5), up[d, f] = normal(0.5)".to_string(),
        "param down[f, d] = normal(0.5), gate_bias[f] = zeros, up_bias[f] = zeros, down_bias[d] = zeros".to_string(),
        "param head[d, out]".to_string(),
        "x = embed[tokens, d]".to_string(),
    ];
    let parameters = vec![
        (format!("x[.., {d}]"), "x"),
        (format!("gate[{d}, {f}]"), "gate"),
        (format!("gate_bias[{f}]"), "gate_bias"),
        (format!("up[{d}, {f}]"), "up"),
        (format!("up_bias[{f}]"), "up_bias"),
        (format!("down[{f}, {d}]"), "down"),
        (format!("down_bias[{d}]"), "down_bias"),
    ];
    let call = Call { parameters, constants: &[], results: vec![("y", y)] };
    w.finish(CONSTANTS, &before, call, &TAIL)
}

pub const CLAMPED_SWIGLU: &str = "param embed[vocab, d] = normal(1.0), gate[d, f] = normal(0.5), up[d, f] = normal(0.5)
    param down[f, d] = normal(0.5), gate_bias[f] = zeros, up_bias[f] = zeros, down_bias[d] = zeros
    param head[d, out]
    x = embed[tokens, d]
    a = min((x * gate)[.., f] + gate_bias, 1.0)
    b = clamp((x * up)[.., f] + up_bias, -1.0, 1.0)
    h = a * sigmoid(1.702 * a) * (b + 1.0)
    y = (h * down)[.., d] + down_bias
    z[batch, seq, out] = y * head";

pub fn cross_entropy(rng: &mut Rng) -> Spelling {
    nll(rng, false)
}

pub fn cross_entropy_one_hot(rng: &mut Rng) -> Spelling {
    nll(rng, true)
}

/// The label's element is looked up, or picked out of all by a sum.
fn nll(rng: &mut Rng, one_hot: bool) -> Spelling {
    let mut w = Writer::new(rng, "d f out embed head logits nll");
    let v = if w.inline { "vocab".to_string() } else { w.fresh(&["v", "c", "words", "classes"]) };
    let labels = if w.inline { "labels" } else { "target" };
    let label = match w.choose(&["label by max", "label by where"]) {
        "label by max" => w.both("max", labels, "0"),
        _ => format!("where({labels} >= 0, {labels}, 0)"),
    };
    let label = w.named(&label);
    let wide = w.wide("logits");
    let z = w.named(&wide);
    let at = |w: &mut Writer<'_>, of: &str| {
        if one_hot {
            let mask = w.maybe(format!("index({v}) == {label}"));
            format!("sum(where({mask}, {of}, 0.0) over {v})")
        } else {
            format!("{of}[.., {label}]")
        }
    };
    let forms =
        ["lse - logit", "-(x - lse)[label]", "-log(softmax)[label]", "-log(softmax[label])", "shifted by the maximum"];
    let nll = match w.choose(&forms) {
        "lse - logit" => {
            let lse = parts::log_sum_exp(&mut w, &z, &v);
            let lse = w.maybe(lse);
            let logit = at(&mut w, &z);
            w.sub(&lse, &logit)
        }
        "-(x - lse)[label]" => {
            let lse = parts::log_sum_exp(&mut w, &z, &v);
            let shifted = w.sub(&z, &lse);
            let shifted = w.named(&shifted);
            neg(&at(&mut w, &shifted))
        }
        "-log(softmax)[label]" => {
            let p = parts::softmax(&mut w, &z, &v, None);
            let p = w.maybe(p);
            let log = w.named(&format!("log({p})"));
            neg(&at(&mut w, &log))
        }
        "-log(softmax[label])" => {
            let p = parts::softmax(&mut w, &z, &v, None);
            let p = w.named(&p);
            format!("-log({})", at(&mut w, &p))
        }
        _ => {
            let top = w.any(&["detach(max(Z over V))", "max(Z over V)"]).replace('Z', &z).replace('V', &v);
            let shifted = w.sub(&z, &top);
            let shifted = w.named(&shifted);
            let logit = at(&mut w, &shifted);
            w.sub(&format!("log(sum(exp({shifted}) over {v}))"), &logit)
        }
    };
    let nll = w.maybe(nll);
    let nll = match w.choose(&["where labelled", "where not labelled", "times 1 where labelled"]) {
        "where labelled" => format!("where({labels} >= 0, {nll}, 0.0)"),
        "where not labelled" => format!("where({labels} < 0, 0.0, {nll})"),
        _ => {
            let mask = w.maybe(format!("where({labels} >= 0, 1.0, 0.0)"));
            w.mul(&nll, &mask)
        }
    };
    let before = [
        "param embed[vocab, d] = normal(1.0), head[d, vocab] = normal(1.0)".to_string(),
        "x = embed[tokens, d]".to_string(),
        "logits[batch, seq, vocab] = x * head".to_string(),
    ];
    let parameters = vec![(format!("logits[.., {v}]"), "logits"), (format!("{labels}[..]"), "labels")];
    let call = Call { parameters, constants: &[], results: vec![("nll", nll)] };
    w.finish(CONSTANTS, &before, call, &[super::generate::NLL])
}

pub const CROSS_ENTROPY: &str = "param embed[vocab, d] = normal(1.0), head[d, vocab] = normal(1.0)
    x = embed[tokens, d]
    logits[batch, seq, vocab] = x * head
    nll = cross_entropy(logits, labels)";
