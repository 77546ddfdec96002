//! Routers and experts.

use super::dense;
use super::parts;
use super::writer::{Call, Rng, Spelling, Writer};

pub const CONSTANTS: &str = "d = 6, experts = 5, topk = 2, f = 4, out = 3";

pub fn softmax_router(rng: &mut Rng) -> Spelling {
    router(rng, true)
}

pub fn sigmoid_router(rng: &mut Rng) -> Spelling {
    router(rng, false)
}

pub const SOFTMAX_ROUTER: &str = "param embed[vocab, d] = normal(1.0)
    x = embed[tokens, d]
    share, chosen, score = softmax_router(x, std = 0.5)
    param table[e: experts, out] = normal(1.0)
    w = share[.., k]
    ids = chosen[.., k]
    z[batch, seq, out] = narrow(w) * table[ids, out]";

pub const SIGMOID_ROUTER: &str = "param embed[vocab, d] = normal(1.0)
    x = embed[tokens, d]
    share, chosen, score = sigmoid_router(x, bias_rate = 0.0, std = 0.5)
    param table[e: experts, out] = normal(1.0)
    w = share[.., k]
    ids = chosen[.., k]
    z[batch, seq, out] = narrow(w) * table[ids, out]";

fn router(rng: &mut Rng, softmax: bool) -> Spelling {
    let mut w = Writer::new(rng, "d out experts topk f e embed table router z");
    let dots = if w.inline { w.any(&["..", "batch, seq"]) } else { ".." }.to_string();
    let (d, e, out) = match w.inline {
        true => ("d".to_string(), "e".to_string(), "out".to_string()),
        false => {
            (w.fresh(&["c", "width", "a"]), w.fresh(&["ex", "expert", "n"]), w.fresh(&["result_dim", "o", "columns"]))
        }
    };
    let k = w.fresh(&["k", "best", "slot"]);
    let (x, matrix) = (w.wide("x"), w.wide("router"));
    let (x, matrix) = (w.maybe(x), w.maybe(matrix));
    let logit = w.contract(&format!("{dots}, {e}"), &x, &matrix);
    let logit = w.named(&logit);
    let top = |w: &mut Writer<'_>, of: &str| w.named(&format!("top({of} over {e}, {k}: topk)"));
    let forms: &[&str] = if softmax {
        &["softmax, top, normalised", "top of the logits", "softmax of the chosen", "exponentials of the chosen"]
    } else {
        &["sigmoid, top, normalised", "top of the logits", "sigmoid of the chosen", "top of the detached"]
    };
    let (chosen, share) = match w.choose(forms) {
        "softmax of the chosen" => {
            let of = if w.any(&["logit", "score"]) == "logit" {
                logit.clone()
            } else {
                format!("softmax({logit} over {e})")
            };
            let chosen = top(&mut w, &of);
            let best = w.named(&format!("{logit}[{dots}, {chosen}]"));
            let share = parts::softmax(&mut w, &best, &k, None);
            (chosen, share)
        }
        form => {
            let score = match form {
                "exponentials of the chosen" => parts::exponentials(&mut w, &logit, &e, None).each,
                "sigmoid of the chosen" => logit.clone(),
                _ if softmax => parts::softmax(&mut w, &logit, &e, None),
                _ => parts::sigmoid(&mut w, &logit),
            };
            let score = if score == logit { score } else { w.named(&score) };
            let of = match form {
                "top of the logits" => logit.clone(),
                "top of the detached" => format!("detach({score})"),
                _ => score.clone(),
            };
            let chosen = top(&mut w, &of);
            let mut share = w.named(&format!("{score}[{dots}, {chosen}]"));
            if form == "sigmoid of the chosen" {
                share = parts::sigmoid(&mut w, &share);
                share = w.named(&share);
            }
            let mut sum = format!("sum({share} over {k})");
            if !softmax && w.choose(&["guarded sum", "sum alone"]) == "guarded sum" {
                sum = w.add(&sum, "1e-20");
            }
            let sum = w.maybe(sum);
            (chosen, w.div(&share, &sum))
        }
    };
    let share = w.maybe(share);
    let share = w.narrow(&share);
    let picked = w.maybe(format!("table[{chosen}, {out}]"));
    let z = w.contract(&format!("{dots}, {out}"), &share, &picked);
    let before = [
        "param embed[vocab, d] = normal(1.0), router[d, e: experts] = normal(0.5), table[e, out] = normal(1.0)".into(),
        "x = embed[tokens, d]".to_string(),
    ];
    let parameters = vec![
        (format!("x[.., {d}]"), "x"),
        (format!("router[{d}, {e}]"), "router"),
        (format!("table[{e}, {out}]"), "table"),
    ];
    let call = Call { parameters, constants: &["topk"], results: vec![("y", z)] };
    w.finish(CONSTANTS, &before, call, &["z[batch, seq, out] = y", super::generate::SQUARES])
}

pub fn swiglu_experts(rng: &mut Rng) -> Spelling {
    experts(rng, false)
}

pub fn clamped_experts(rng: &mut Rng) -> Spelling {
    experts(rng, true)
}

pub const SWIGLU_EXPERTS: &str = "param embed[vocab, d] = normal(1.0)
    x = embed[tokens, d]
    shares, ids, score = softmax_router(x, std = 0.5)
    y = swiglu_experts(x, ids, shares, std = 0.5)
    param head[d, out]
    z[batch, seq, out] = y * head";

pub const CLAMPED_EXPERTS: &str = "param embed[vocab, d] = normal(1.0)
    x = embed[tokens, d]
    shares, ids, score = softmax_router(x, std = 0.5)
    y = clamped_swiglu_experts(x, ids, shares, limit = 1.0, std = 0.5)
    param head[d, out]
    z[batch, seq, out] = y * head";

fn experts(rng: &mut Rng, clamped: bool) -> Spelling {
    let taken = "d out experts topk f e embed gate up down gate_bias up_bias down_bias head z shares ids score";
    let mut w = Writer::new(rng, taken);
    let k = w.fresh(&["k", "best", "slot"]);
    let (dots, d, e, f, chosen, share) = if w.inline {
        let dots = w.any(&["..", "batch, seq"]).to_string();
        let chosen = w.named(&format!("ids[{dots}, {k}]"));
        let share = w.named(&format!("shares[{dots}, {k}]"));
        (dots, "d".to_string(), "e".to_string(), "f".to_string(), chosen, share)
    } else {
        let (d, e) = (w.fresh(&["c", "width", "a"]), w.fresh(&["ex", "expert", "n"]));
        let f = w.fresh(&["hidden", "ff", "m"]);
        let (chosen, share) = (w.fresh(&["chosen", "which", "to"]), w.fresh(&["share", "weights", "p"]));
        ("..".to_string(), d, e, f, chosen, share)
    };
    let r = w.fresh(&["r", "rows_of_e", "member"]);
    let in_group = match w.any(&["axis", "size"]) {
        "axis" => format!("group({chosen}, {e}, {r})"),
        _ => format!("group({chosen}, {e}: experts, {r})"),
    };
    let rows = w.fresh(&["rows", "slots", "table"]);
    w.line(format!("{rows} = {in_group}"));
    let xe = if w.any(&["indexed", "plain"]) == "indexed" {
        let name = w.fresh(&["xe", "sent", "dispatched"]);
        w.line(format!("{name}[{e}, {r}, {d}] = x at {rows}"));
        name
    } else {
        w.named(&format!("x at {rows}"))
    };
    let narrow = w.narrow(&share);
    let inner = format!("{e}, {r}, {f}");
    let g = w.contract(&inner, &xe, "gate");
    let u = w.contract(&inner, &xe, "up");
    let mut h = if clamped {
        let (g, u) = (w.add(&g, "gate_bias"), w.add(&u, "up_bias"));
        let (g, u) = (w.named(&g), w.named(&u));
        dense::clamped_gate(&mut w, &g, &u)
    } else {
        let (g, u) = (w.named(&g), w.maybe(u));
        parts::silu(&mut w, &g, &[&u])
    };
    let places: &[&str] = if clamped {
        &["share after the combine", "share of the rows", "combined by a contraction"]
    } else {
        &["share after the combine", "share of the rows", "combined by a contraction", "share before down"]
    };
    let place = w.choose(places);
    let of_rows = format!("({narrow} at {rows})");
    if place == "share before down" {
        let of_rows = if w.any(&["named", "inline"]) == "named" { w.named(&of_rows) } else { of_rows.clone() };
        h = w.mul(&h, &of_rows);
    }
    let h = w.maybe(h);
    let mut ye = w.contract(&format!("{e}, {r}, {d}"), &h, "down");
    if clamped {
        ye = w.add(&ye, "down_bias");
    }
    if place == "share of the rows" {
        ye = w.maybe(ye);
        ye = w.mul(&ye, &of_rows);
    }
    let ye = w.named(&ye);
    let back = w.maybe(format!("({ye} at {rows})"));
    let y = match place {
        "combined by a contraction" => w.contract(&format!("{dots}, {d}"), &narrow, &back),
        "share after the combine" => {
            let product = w.mul(&narrow, &back);
            format!("sum({product} over {k})")
        }
        _ => format!("sum({back} over {k})"),
    };
    let mut before = vec![
        "param embed[vocab, d] = normal(1.0)".to_string(),
        "x = embed[tokens, d]".to_string(),
        "shares, ids, score = softmax_router(x, std = 0.5)".to_string(),
        "param gate[e: experts, d, f] = normal(0.5), up[e, d, f] = normal(0.5), down[e, f, d] = normal(0.5)"
            .to_string(),
        "param head[d, out]".to_string(),
    ];
    let mut parameters = vec![
        (format!("x[.., {d}]"), "x"),
        (format!("{chosen}[.., {k}]"), "ids"),
        (format!("{share}[.., {k}]"), "shares"),
        (format!("gate[{e}, {d}, {f}]"), "gate"),
        (format!("up[{e}, {d}, {f}]"), "up"),
        (format!("down[{e}, {f}, {d}]"), "down"),
    ];
    if clamped {
        let biases = "param gate_bias[e, f] = zeros, up_bias[e, f] = zeros, down_bias[e, d] = zeros";
        before.push(biases.to_string());
        parameters.push((format!("gate_bias[{e}, {f}]"), "gate_bias"));
        parameters.push((format!("up_bias[{e}, {f}]"), "up_bias"));
        parameters.push((format!("down_bias[{e}, {d}]"), "down_bias"));
    }
    let call = Call { parameters, constants: &["experts"], results: vec![("y", y)] };
    w.finish(CONSTANTS, &before, call, &["z[batch, seq, out] = y * head", super::generate::SQUARES])
}
