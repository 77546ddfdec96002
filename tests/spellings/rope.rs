//! Rotary embedding of queries and keys.

use super::writer::{Call, Rng, Spelling, Writer, neg};

pub const CONSTANTS: &str = "d = 6, heads = 2, dh = 6, theta = 50.0";

pub fn half(rng: &mut Rng) -> Spelling {
    rope(rng, false)
}

pub fn interleaved(rng: &mut Rng) -> Spelling {
    rope(rng, true)
}

pub const HALF: &str =
    "param embed[vocab, d] = normal(1.0), wq[d, h: heads, dh] = normal(0.3), wk[d, h, dh] = normal(0.3)
    x = embed[tokens, d]
    q[batch, seq, h, dh] = x * wq
    k[batch, seq, h, dh] = x * wk
    angle = rope_angle(index(seq), dh, theta)
    q = rotate(q, angle)
    k = rotate(k, angle)
    z[batch, h, seq, u] = wide(q) * wide(k[batch, u, h, dh])";

pub const INTERLEAVED: &str =
    "param embed[vocab, d] = normal(1.0), wq[d, h: heads, dh] = normal(0.3), wk[d, h, dh] = normal(0.3)
    x = embed[tokens, d]
    q[batch, seq, h, dh] = x * wq
    k[batch, seq, h, dh] = x * wk
    angle = rope_angle(index(seq), dh, theta)
    q = rotate(q, angle, interleaved = true)
    k = rotate(k, angle, interleaved = true)
    z[batch, h, seq, u] = wide(q) * wide(k[batch, u, h, dh])";

fn rope(rng: &mut Rng, interleaved: bool) -> Spelling {
    let mut w = Writer::new(rng, "d heads dh theta h embed wq wk q k qr kr z u");
    let results = if w.inline {
        let around = Around { dots: "batch".into(), t: "seq".into(), h: "h".into(), a: "dh".into() };
        let q = turned(&mut w, "q", &around, interleaved);
        vec![("qr", q), ("kr", turned(&mut w, "k", &around, interleaved))]
    } else {
        let t = w.fresh(&["t", "pos", "n", "i"]);
        let h = w.fresh(&["h", "head", "g"]);
        let a = w.fresh(&["a", "dh", "e", "head_dim"]);
        let around = Around { dots: "..".into(), t, h, a };
        let q = turned(&mut w, "x", &around, interleaved);
        vec![("qr", q.clone()), ("pattern", format!("x[.., {}, {}, {}]", around.t, around.h, around.a))]
    };
    let before = [
        "param embed[vocab, d] = normal(1.0), wq[d, h: heads, dh] = normal(0.3), wk[d, h, dh] = normal(0.3)".into(),
        "x = embed[tokens, d]".to_string(),
        "q[batch, seq, h, dh] = x * wq".to_string(),
        "k[batch, seq, h, dh] = x * wk".to_string(),
    ];
    let scores = "z[batch, h, seq, u] = wide(qr) * wide(kr[batch, u, h, dh])";
    if w.inline {
        let call = Call { parameters: vec![], constants: &[], results };
        return w.finish(CONSTANTS, &before, call, &[scores, super::generate::SCORES]);
    }
    // One block, called for both.
    let [(_, y), (_, pattern)] = <[_; 2]>::try_from(results).unwrap_or_else(|_| unreachable!());
    let call = Call { parameters: vec![(pattern, "q")], constants: &["theta"], results: vec![("qr", y)] };
    let spelling = w.finish(CONSTANTS, &before, call, &["kr = AGAIN", scores, super::generate::SCORES]);
    let call = spelling.source.lines().find_map(|l| l.trim().strip_prefix("qr = ")).unwrap().replace("(q", "(k");
    Spelling { source: spelling.source.replace("AGAIN", &call), choices: spelling.choices }
}

/// The axes of what is turned.
struct Around {
    dots: String,
    t: String,
    h: String,
    a: String,
}

/// How far a pair turns from one position to the next: `theta ^ (-2 i / dim)`.
fn frequency(w: &mut Writer<'_>, i: &str, dim: &str) -> String {
    let forms = ["theta ^ (-2 i / n)", "exp(-log(theta) * 2 i / n)", "1 / theta ^ (2 i / n)", "(theta ^ (-2 / n)) ^ i"];
    match w.choose(&forms) {
        "theta ^ (-2 i / n)" => {
            let share = match w.any(&["constant first", "index first"]) {
                "constant first" => w.mul(i, &format!("(-2.0 / {dim})")),
                _ => format!("-2.0 * {i} / {dim}"),
            };
            format!("theta ^ ({share})")
        }
        "exp(-log(theta) * 2 i / n)" => {
            let exponent = match w.any(&["product", "constant", "quotient"]) {
                "product" => w.product(&["(-log(theta))", &format!("(2.0 * {i} / {dim})")]),
                "constant" => w.mul(i, &format!("(-2.0 * log(theta) / {dim})")),
                _ => format!("-(2.0 * {i} / {dim}) * log(theta)"),
            };
            let exponent = w.maybe(exponent);
            format!("exp({exponent})")
        }
        "1 / theta ^ (2 i / n)" => format!("1.0 / theta ^ (2.0 * {i} / {dim})"),
        _ => format!("(theta ^ (-2.0 / {dim})) ^ {i}"),
    }
}

/// The angle of each position and pair `i`.
fn angle(w: &mut Writer<'_>, i: &str, around: &Around) -> String {
    let dim = w.constant(&format!("size({})", around.a));
    let f = frequency(w, i, &dim);
    let f = w.maybe(f);
    let pos = format!("index({})", around.t);
    let pos = if w.any(&["wide", "int"]) == "wide" { w.wide(&pos) } else { pos };
    let pos = w.maybe(pos);
    let angle = w.mul(&pos, &f);
    w.named(&angle)
}

/// The value of the name `x`, turned.
fn turned(w: &mut Writer<'_>, x: &str, around: &Around, interleaved: bool) -> String {
    let Around { dots, t, h, a } = around;
    let all = format!("{dots}, {t}, {h}");
    let r = w.fresh(&["r", "pairs", "m", "p"]);
    // The two of each pair.
    let slices = !interleaved && w.choose(&["pairs by split", "pairs by slices"]) == "pairs by slices";
    let (lo, hi) = if slices {
        let half = w.fresh(&["half", "n_half", "middle"]);
        w.line(format!("const {half} = size({a}) / 2"));
        let lo = w.named(&format!("{x}[{all}, {r}: 0..{half}]"));
        (lo, w.named(&format!("{x}[{all}, {r}: {half}..size({a})]")))
    } else {
        let two = w.fresh(&["two", "side", "w"]);
        let pair = if interleaved { format!("({r}, {two}: 2)") } else { format!("({two}: 2, {r})") };
        let pair = w.named(&format!("{x}[{all}, {pair}]"));
        let at =
            |n: u32| if interleaved { format!("{pair}[{all}, {r}, {n}]") } else { format!("{pair}[{all}, {n}, {r}]") };
        (w.named(&at(0)), w.named(&at(1)))
    };
    let index = if w.any(&["wide", "int"]) == "wide" { w.wide(&format!("index({r})")) } else { format!("index({r})") };
    let two = w.fresh(&["two", "side", "w"]);
    let merged = if interleaved { format!("{a}: ({r}, {two})") } else { format!("{a}: ({two}, {r})") };
    if w.choose(&["pair by pair", "rotate half"]) == "pair by pair" {
        let i = w.maybe(index);
        let angle = angle(w, &i, around);
        let cos = w.shared(format!("cos({angle})"));
        let sin = w.shared(format!("sin({angle})"));
        let (c, s) = (w.mul(&lo, &cos), w.mul(&hi, &sin));
        let first = w.sub(&c, &s);
        let first = w.maybe(first);
        let (c, s) = (w.mul(&hi, &cos), w.mul(&lo, &sin));
        let second = w.add(&c, &s);
        let second = w.maybe(second);
        return join(w, &first, &second, &all, &r, &two, &merged, around, interleaved);
    }
    // x * cos + rotate_half(x) * sin, with the angles of all elements.
    let (cos, sin) = match w.choose(&["angle of each element", "doubled angle", "doubled cos and sin"]) {
        "angle of each element" => {
            let half = format!("(size({a}) / 2)");
            let i = if interleaved { format!("floor(index({a}) / 2)") } else { format!("index({a}) % {half}") };
            let i = w.named(&i);
            let angle = angle(w, &i, around);
            (format!("cos({angle})"), format!("sin({angle})"))
        }
        form => {
            let i = w.maybe(index);
            let angle = angle(w, &i, around);
            let double = |w: &mut Writer<'_>, v: &str| {
                if !interleaved && w.any(&["concat", "stack"]) == "concat" {
                    return w.named(&format!("concat({v}, {v} over {r} as {a})"));
                }
                let name = w.fresh(&["both", "twofold", "full"]);
                w.line(format!("{name}[{t}, {merged}] = stack({v}, {v} as {two})"));
                name
            };
            if form == "doubled angle" {
                let angle = double(w, &angle);
                (format!("cos({angle})"), format!("sin({angle})"))
            } else {
                (double(w, &format!("cos({angle})")), double(w, &format!("sin({angle})")))
            }
        }
    };
    let (cos, sin) = (w.maybe(cos), w.maybe(sin));
    let rotated = if !interleaved && w.any(&["concat", "stack"]) == "concat" {
        w.named(&format!("concat({}, {lo} over {r} as {a})", neg(&hi)))
    } else {
        let name = w.fresh(&["rotated", "swapped"]);
        w.line(format!("{name}[{all}, {merged}] = stack({}, {lo} as {two})", neg(&hi)));
        name
    };
    let (c, s) = (w.mul(x, &cos), w.mul(&rotated, &sin));
    let (c, s) = (w.maybe(c), w.maybe(s));
    let sum = w.add(&c, &s);
    w.narrow(&sum)
}

/// The two halves of the result as one axis.
#[allow(clippy::too_many_arguments, reason = "names of the statements so far")]
fn join(
    w: &mut Writer<'_>,
    first: &str,
    second: &str,
    all: &str,
    r: &str,
    two: &str,
    merged: &str,
    around: &Around,
    interleaved: bool,
) -> String {
    if !interleaved && w.choose(&["joined by concat", "joined by stack"]) == "joined by concat" {
        let joined = w.maybe(format!("concat({first}, {second} over {r} as {})", around.a));
        return w.narrow(&joined);
    }
    let stacked = w.maybe(format!("stack({first}, {second} as {two})"));
    let stacked = w.narrow(&stacked);
    w.define(&format!("{all}, {merged}"), &stacked)
}
