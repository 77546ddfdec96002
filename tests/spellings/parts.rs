//! The forms of what blocks are made of: sigmoids, softmaxes, norms.

use super::writer::{Writer, group, neg};

/// `1 / (1 + exp(-x))` of a name.
pub fn sigmoid(w: &mut Writer<'_>, x: &str) -> String {
    let forms = ["std sigmoid", "guarded sigmoid", "1 / (1 + exp(-x))", "exp(x) / (1 + exp(x))", "sigmoid by tanh"];
    match w.choose(&forms) {
        "std sigmoid" => format!("sigmoid({x})"),
        "exp(x) / (1 + exp(x))" => {
            let e = w.shared(format!("exp({x})"));
            let sum = w.add("1.0", &e);
            let sum = w.maybe(sum);
            w.div(&e, &sum)
        }
        "sigmoid by tanh" => {
            let half = match w.any(&["half of x", "x / 2"]) {
                "half of x" => w.mul("0.5", x),
                _ => format!("{x} / 2.0"),
            };
            let t = w.maybe(format!("tanh({half})"));
            let sum = w.add("1.0", &t);
            w.mul("0.5", &sum)
        }
        form => {
            let sum = exp_plus_one(w, x, form == "guarded sigmoid");
            match w.any(&["1 / sum", "1 / sum", "sum ^ -1"]) {
                "1 / sum" => format!("1.0 / ({sum})"),
                _ => format!("({sum}) ^ -1.0"),
            }
        }
    }
}

/// `1 + exp(-x)`
fn exp_plus_one(w: &mut Writer<'_>, x: &str, guarded: bool) -> String {
    let e = if guarded {
        let cut = match w.any(&["min of -x", "max of x"]) {
            "min of -x" => w.both("min", &neg(x), "80.0"),
            _ => neg(&w.both("max", x, "-80.0")),
        };
        format!("exp({cut})")
    } else {
        w.exp_neg(x)
    };
    let e = w.maybe(e);
    w.add("1.0", &e)
}

/// `x * sigmoid(x)` times more factors, of names; the sigmoid may be of something else than `x`.
pub fn gated(w: &mut Writer<'_>, x: &str, of: &str, more: &[&str]) -> String {
    let forms = ["product with the sigmoid", "product with the sigmoid", "quotient by 1 + exp(-x)"];
    match w.choose(&forms) {
        "product with the sigmoid" => {
            let s = sigmoid(w, of);
            let s = w.maybe(s);
            let factors: Vec<&str> = [x, &s].into_iter().chain(more.iter().copied()).collect();
            w.product(&factors)
        }
        _ => {
            let sum = exp_plus_one(w, of, false);
            let sum = w.maybe(sum);
            // The quotient first, or the product first.
            if w.any(&["quotient", "product"]) == "quotient" {
                let quotient = w.div(x, &sum);
                let factors: Vec<&str> = [quotient.as_str()].into_iter().chain(more.iter().copied()).collect();
                w.product(&factors)
            } else {
                let factors: Vec<&str> = [x].into_iter().chain(more.iter().copied()).collect();
                let product = w.product(&factors);
                w.div(&product, &sum)
            }
        }
    }
}

/// `silu(x)` times more factors.
pub fn silu(w: &mut Writer<'_>, x: &str, more: &[&str]) -> String {
    if !more.is_empty() && w.choose(&["std silu", "own silu", "own silu"]) == "std silu" {
        let s = w.maybe(format!("silu({x})"));
        let factors: Vec<&str> = [s.as_str()].into_iter().chain(more.iter().copied()).collect();
        return w.product(&factors);
    }
    gated(w, x, x, more)
}

/// The exponentials of wide scores along an axis, and their sum, with one more entry or without.
pub struct Exponentials {
    /// What was subtracted first, if anything was.
    pub top: Option<String>,
    /// The exponentials.
    pub each: String,
    /// Their sum.
    pub sum: String,
}

/// Exponentials of `s`, a name.
pub fn exponentials(w: &mut Writer<'_>, s: &str, over: &str, sink: Option<&str>) -> Exponentials {
    let top = match (w.choose(&["detached maximum", "maximum with its gradient", "no maximum"]), sink) {
        ("no maximum", _) => None,
        (form, sink) => {
            let mut top = format!("max({s} over {over})");
            if let Some(sink) = sink
                && w.choose(&["maximum with the sink", "maximum without the sink"]) == "maximum with the sink"
            {
                top = w.both("max", &top, sink);
            }
            let top = if form == "detached maximum" { format!("detach({top})") } else { top };
            Some(w.shared(top))
        }
    };
    let exp = |w: &mut Writer<'_>, x: &str| match &top {
        None => format!("exp({x})"),
        Some(top) => {
            let shifted = w.sub(x, top);
            let shifted = w.maybe(shifted);
            format!("exp({shifted})")
        }
    };
    let each = exp(w, s);
    let each = w.named(&each);
    let mut sum = format!("sum({each} over {over})");
    if let Some(sink) = sink {
        let more = exp(w, sink);
        sum = w.add(&sum, &more);
    }
    let sum = w.maybe(sum);
    Exponentials { top, each, sum }
}

/// The logarithm of the sum of exponentials of `s`, a name.
pub fn log_sum_exp(w: &mut Writer<'_>, s: &str, over: &str) -> String {
    if w.choose(&["std log_sum_exp", "own log_sum_exp", "own log_sum_exp"]) == "std log_sum_exp" {
        return format!("log_sum_exp({s} over {over})");
    }
    let e = exponentials(w, s, over, None);
    match &e.top {
        None => format!("log({})", e.sum),
        Some(top) => w.add(&format!("log({})", e.sum), top),
    }
}

/// Softmax of `s`, a name of something wide.
pub fn softmax(w: &mut Writer<'_>, s: &str, over: &str, sink: Option<&str>) -> String {
    let forms = ["std softmax", "exponentials over their sum", "exponentials over their sum", "exp(x - lse)"];
    match (w.choose(&forms), sink) {
        ("std softmax", None) => format!("softmax({s} over {over})"),
        ("std softmax", Some(sink)) => format!("softmax_with_sink({s} over {over}, sink = {sink})"),
        ("exp(x - lse)", None) => {
            let lse = log_sum_exp(w, s, over);
            let lse = w.maybe(lse);
            let shifted = w.sub(s, &lse);
            format!("exp({shifted})")
        }
        _ => {
            let e = exponentials(w, s, over, sink);
            w.div(&e.each, &e.sum)
        }
    }
}

/// The mean of squares of `v` over an axis; `dots` are the others.
fn mean_square(w: &mut Writer<'_>, v: &str, dots: &str, d: &str) -> String {
    let size = w.constant(&format!("size({d})"));
    let forms =
        ["mean", "sum / size", "sum * (1 / size)", "contraction / size", "contraction * (1 / size)", "sum of x / n"];
    let form = w.choose(&forms);
    let sum = match form {
        "contraction / size" | "contraction * (1 / size)" => w.define(dots, &format!("{v} * {v}")),
        _ => {
            let square = w.square(v);
            let square = w.maybe(square);
            match form {
                "mean" => return format!("mean({square} over {d})"),
                "sum of x / n" => {
                    let scaled = match w.any(&["divided", "multiplied"]) {
                        "divided" => format!("{} / {size}", group(&square)),
                        _ => w.mul(&square, &format!("(1.0 / {size})")),
                    };
                    return format!("sum({scaled} over {d})");
                }
                _ => format!("sum({square} over {d})"),
            }
        }
    };
    let sum = w.maybe(sum);
    if form.ends_with(" / size") { format!("{sum} / {size}") } else { w.mul(&sum, &format!("(1.0 / {size})")) }
}

/// `x / rms(x) * gain` over `d`.
pub fn rms_norm(w: &mut Writer<'_>, x: &str, gain: &str, dots: &str, d: &str) -> String {
    let wide = w.wide(x);
    let v = w.shared(wide);
    let mean = mean_square(w, &v, dots, d);
    let mean = w.maybe(mean);
    let mean = w.add(&mean, "1e-6");
    let mean = w.maybe(mean);
    let m = group(&mean);
    let forms = ["rsqrt", "1 / sqrt", "x / sqrt", "^ -0.5", "1 / x ^ 0.5", "x / x ^ 0.5"];
    let form = w.choose(&forms);
    let (root, divides) = match form {
        "rsqrt" => (format!("rsqrt({mean})"), false),
        "1 / sqrt" => (format!("1.0 / sqrt({mean})"), false),
        "x / sqrt" => (format!("sqrt({mean})"), true),
        "^ -0.5" => (w.any(&["M ^ -0.5", "M ^ (-0.5)"]).replace('M', &m), false),
        "1 / x ^ 0.5" => (format!("1.0 / {m} ^ 0.5"), false),
        _ => (format!("{m} ^ 0.5"), true),
    };
    let root = w.maybe(root);
    if w.plain && w.choose(&["gain last", "gain anywhere"]) == "gain anywhere" {
        return if divides {
            let product = w.mul(&v, gain);
            w.div(&product, &root)
        } else {
            w.product(&[&v, gain, &root])
        };
    }
    let normal = if divides { w.div(&v, &root) } else { w.mul(&v, &root) };
    let normal = w.maybe(normal);
    let normal = w.narrow(&normal);
    let normal = w.maybe(normal);
    w.mul(&normal, gain)
}
