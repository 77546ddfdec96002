//! Attention, from the projections of queries, keys and values to the projection of the result.

use super::masks;
use super::parts;
use super::writer::{Call, Rng, Spelling, Writer, group, is_name};

/// What kind of attention.
#[derive(Clone, Copy)]
pub struct Kind {
    grouped: bool,
    pub window: bool,
    sinks: bool,
    pub packed: bool,
    /// Values have heads of another size than keys.
    own_value_size: bool,
    /// Keys and values are repeated for the query heads of a group.
    repeated: bool,
    /// The sink is one more column of the scores, dropped after the softmax.
    column: bool,
}

const PLAIN: Kind = Kind {
    grouped: false,
    window: false,
    sinks: false,
    packed: false,
    own_value_size: false,
    repeated: false,
    column: false,
};

pub fn causal(rng: &mut Rng) -> Spelling {
    attention(rng, PLAIN)
}

pub fn windowed(rng: &mut Rng) -> Spelling {
    attention(rng, Kind { window: true, ..PLAIN })
}

pub fn grouped(rng: &mut Rng) -> Spelling {
    attention(rng, Kind { grouped: true, ..PLAIN })
}

pub fn sinks(rng: &mut Rng) -> Spelling {
    attention(rng, Kind { grouped: true, sinks: true, ..PLAIN })
}

pub fn packed(rng: &mut Rng) -> Spelling {
    attention(rng, Kind { packed: true, ..PLAIN })
}

pub fn all(rng: &mut Rng) -> Spelling {
    attention(rng, Kind { grouped: true, window: true, sinks: true, packed: true, ..PLAIN })
}

pub fn value_size(rng: &mut Rng) -> Spelling {
    attention(rng, Kind { own_value_size: true, ..PLAIN })
}

pub fn repeated_keys(rng: &mut Rng) -> Spelling {
    attention(rng, Kind { grouped: true, repeated: true, ..PLAIN })
}

pub fn sink_column(rng: &mut Rng) -> Spelling {
    attention(rng, Kind { grouped: true, sinks: true, column: true, ..PLAIN })
}

/// The library's attention, with more inputs and more arguments.
macro_rules! reference {
    ($inputs:literal, $arguments:literal) => {
        concat!(
            $inputs,
            "param embed[vocab, d] = normal(1.0)
    x = embed[tokens, d]
    y = attention(x, heads, kv_heads, dh, theta = 0.0, std = 0.5",
            $arguments,
            ")
    param head[d, out]
    z[batch, seq, out] = y * head"
        )
    };
}

pub const CAUSAL: &str = reference!("", "");
pub const WINDOWED: &str = reference!("", ", window = 3");
pub const SINKS: &str = reference!("", ", sinks = true");
pub const PACKED: &str = reference!("input documents: token[batch, seq]\n    ", ", doc = documents");
pub const ALL: &str =
    reference!("input documents: token[batch, seq]\n    ", ", doc = documents, window = 3, sinks = true");

/// The library's attention has one size for both.
pub const VALUE_SIZE: &str = "param embed[vocab, d] = normal(1.0)
    param wq[d, h: heads, dh] = normal(0.5), wk[d, h, dh] = normal(0.5)
    param wv[d, h, dv] = normal(0.5), wo[h, dv, d] = normal(0.5), head[d, out]
    x = embed[tokens, d]
    q[batch, seq, h, dh] = x * wq
    k[batch, seq, h, dh] = x * wk
    v[batch, seq, h, dv] = x * wv
    s[batch, h, seq, u] = wide(q) * wide(k[batch, u, h, dh])
    p = softmax(where(index(u) <= index(seq), s / sqrt(dh), -inf) over u)
    o[batch, seq, h, dv] = narrow(p) * v[batch, u, h, dv]
    y[batch, seq, d] = o * wo
    z[batch, seq, out] = y * head";

/// The axes by the names that one scope has for them.
pub struct Axes {
    pub dots: String,
    pub t: String,
    pub u: String,
    d: String,
    /// Of a query head; the last is the one within a group.
    heads: Vec<String>,
    dh: String,
    dv: String,
    /// The heads of a merged parameter, if it is merged: of queries, of keys, of the result.
    merged: [String; 3],
}

impl Axes {
    fn new(w: &mut Writer<'_>, kind: Kind) -> Axes {
        let (dots, t, d) = match w.inline {
            true => ("batch".to_string(), "seq".to_string(), "d".to_string()),
            false => ("..".into(), w.fresh(&["t", "i", "row", "n"]), w.fresh(&["d", "c", "width"])),
        };
        let dh = w.fresh(&["dh", "e", "head_dim"]);
        let dv = if kind.own_value_size { w.fresh(&["dv", "f", "value_dim"]) } else { dh.clone() };
        let mut heads = vec![w.fresh(&["h", "kv", "hh"])];
        if kind.grouped {
            heads.push(w.fresh(&["g", "rep", "share"]));
        }
        let merged = [w.fresh(&["m", "hq", "all"]), w.fresh(&["mk", "hk"]), w.fresh(&["mo", "ho"])];
        Axes { dots, t, u: w.fresh(&["u", "j", "s_pos"]), d, heads, dh, dv, merged }
    }

    fn heads(&self) -> String {
        self.heads.join(", ")
    }
}

/// The patterns of the four matrices. Merged, the parameters of multi-head attention have one axis for heads and their
/// elements, and those of grouped attention one axis for all query heads.
fn patterns(a: &Axes, kind: Kind, merged: bool) -> [String; 4] {
    let Axes { d, heads, dh, dv, merged: [m, mk, mo], .. } = a;
    match (merged, kind.grouped) {
        (false, _) => {
            let all = a.heads();
            let h = &heads[0];
            [
                format!("wq[{d}, {all}, {dh}]"),
                format!("wk[{d}, {h}, {dh}]"),
                format!("wv[{d}, {h}, {dv}]"),
                format!("wo[{all}, {dv}, {d}]"),
            ]
        }
        (true, true) => {
            let h = &heads[0];
            [
                format!("wq[{d}, {m}, {dh}]"),
                format!("wk[{d}, {h}, {dh}]"),
                format!("wv[{d}, {h}, {dv}]"),
                format!("wo[{m}, {dv}, {d}]"),
            ]
        }
        (true, false) => {
            [format!("wq[{d}, {m}]"), format!("wk[{d}, {mk}]"), format!("wv[{d}, {mo}]"), format!("wo[{mo}, {d}]")]
        }
    }
}

/// The declarations of the same.
fn declarations(a: &Axes, kind: Kind, merged: bool) -> Vec<String> {
    let size = |axis: &str| match axis {
        n if n == a.heads[0] => "kv_heads",
        n if n == a.dh => "dh",
        n if n == a.dv => "dv",
        n if n == a.merged[0] && kind.grouped => "heads",
        n if n == a.merged[0] || n == a.merged[1] => "heads * dh",
        n if n == a.merged[2] => "heads * dv",
        n if a.heads.get(1).is_some_and(|g| n == g) => "heads / kv_heads",
        n => panic!("axis {n}"),
    };
    let mut known = vec!["d".to_string()];
    let mut declare = |pattern: &String| {
        let (name, axes) = pattern.trim_end_matches(']').split_once('[').unwrap();
        let mut texts = vec![];
        for axis in axes.split(", ") {
            let axis = if axis == a.d { "d" } else { axis };
            let new = !known.iter().any(|k| k == axis);
            texts.push(if new { format!("{axis}: {}", size(axis)) } else { axis.to_string() });
            known.push(axis.to_string());
        }
        format!("param {name}[{}] = normal(0.5)", texts.join(", "))
    };
    patterns(a, kind, merged).iter().map(&mut declare).collect()
}

/// The value times the scale, or times its root.
fn scaled(w: &mut Writer<'_>, value: &str, a: &Axes, root: bool) -> String {
    let size = format!("size({})", a.dh);
    let forms = ["divided by the root of the size", "times 1 / sqrt", "times ^ -0.5"];
    match (w.choose(&forms), root) {
        ("divided by the root of the size", false) => format!("{} / sqrt({size})", group(value)),
        ("divided by the root of the size", true) => format!("{} / sqrt(sqrt({size}))", group(value)),
        (form, _) => {
            let scale = match (form, root) {
                ("times 1 / sqrt", false) => format!("1.0 / sqrt({size})"),
                ("times 1 / sqrt", true) => format!("1.0 / sqrt(sqrt({size}))"),
                (_, false) => format!("{size} ^ -0.5"),
                (_, true) => format!("{size} ^ -0.25"),
            };
            let scale = w.constant(&scale);
            w.mul(value, &scale)
        }
    }
}

fn attention(rng: &mut Rng, kind: Kind) -> Spelling {
    let taken = "embed head wq wk wv wo sink d dh dv heads kv_heads out documents z doc";
    let mut w = Writer::new(rng, taken);
    let forms = ["heads apart", "heads apart", "heads merged in the parameters"];
    let merged = kind.repeated || w.choose(&forms).contains("merged");
    let a = Axes::new(&mut w, kind);
    let y = body(&mut w, &a, kind, merged);
    let mut before = declarations(&a, kind, merged);
    before.insert(0, "param embed[vocab, d] = normal(1.0), head[d, out]".to_string());
    let mut parameters = vec![(format!("x[.., {}, {}]", a.t, a.d), "x")];
    parameters.extend(patterns(&a, kind, merged).into_iter().zip(["wq", "wk", "wv", "wo"]));
    if kind.sinks {
        let heads = if merged { a.merged[0].clone() } else { a.heads() };
        before.push(format!("param sink[{heads}] = normal(0.5)"));
        parameters.push((format!("sink[{heads}]"), "sink"));
    }
    if kind.packed {
        before.insert(0, "input documents: token[batch, seq]".to_string());
        parameters.push((format!("doc[.., {}]", a.t), "documents"));
    }
    before.push("x = embed[tokens, d]".to_string());
    let constants = constants(kind);
    let call = Call { parameters, constants: &["heads", "kv_heads"], results: vec![("y", y)] };
    w.finish(constants, &before, call, &["z[batch, seq, out] = y * head", super::generate::SQUARES])
}

fn constants(kind: Kind) -> &'static str {
    match (kind.grouped, kind.own_value_size) {
        (true, _) => GROUPED,
        (_, true) => TWO_SIZES,
        _ => EQUAL,
    }
}

pub const EQUAL: &str = "d = 6, heads = 2, kv_heads = 2, dh = 4, dv = 4, out = 3";
pub const GROUPED: &str = "d = 6, heads = 4, kv_heads = 2, dh = 4, dv = 4, out = 3";
pub const TWO_SIZES: &str = "d = 6, heads = 2, kv_heads = 2, dh = 4, dv = 3, out = 3";

/// Statements and the result.
fn body(w: &mut Writer<'_>, a: &Axes, kind: Kind, merged: bool) -> String {
    let Axes { dots, t, u, d, heads, dh, dv, .. } = a;
    let h = &heads[0];
    // The heads that queries have, and those that keys have where they are used.
    let (all, used) = if kind.repeated { (a.merged[0].clone(), &a.merged[0]) } else { (a.heads(), h) };
    // Keys have their own name of the positions from the start, or get it where they are used.
    let early = w.choose(&["keys renamed early", "keys renamed at use", "keys renamed at use"]) == "keys renamed early";
    let (kx, kt) = if early { (w.named(&format!("x[{dots}, {u}, {d}]")), u) } else { ("x".to_string(), t) };

    let [q, k, v] = if merged && !kind.grouped {
        let [m, mk, mo] = &a.merged;
        let q = w.contract(&format!("{dots}, {t}, {m}"), "x", "wq");
        let k = w.contract(&format!("{dots}, {kt}, {mk}"), &kx, "wk");
        let v = w.contract(&format!("{dots}, {kt}, {mo}"), &kx, "wv");
        let mut split = |text: &str, t: &str, e: &str| {
            let name = w.named(text);
            w.named(&format!("{name}[{dots}, {t}, ({h}: heads, {e})]"))
        };
        [split(&q, t, dh), split(&k, kt, dh), split(&v, kt, dv)]
    } else {
        let k = w.contract(&format!("{dots}, {kt}, {h}, {dh}"), &kx, "wk");
        let v = w.contract(&format!("{dots}, {kt}, {h}, {dv}"), &kx, "wv");
        let [mut k, mut v] = [w.named(&k), w.named(&v)];
        if kind.repeated {
            let mut repeat = |x: &str, last: &str| {
                let name = w.fresh(&["repeated", "for_queries"]);
                let g = &heads[1];
                w.line(format!("{name}[{dots}, {kt}, {all}: ({h}, {g}), {last}] = stack({x}, {x} as {g})"));
                name
            };
            (k, v) = (repeat(&k, dh), repeat(&v, dv));
        }
        let q = if merged && !kind.repeated {
            let q = w.contract(&format!("{dots}, {t}, {}, {dh}", a.merged[0]), "x", "wq");
            let q = w.named(&q);
            w.named(&format!("{q}[{dots}, {t}, ({h}: kv_heads, {}), {dh}]", heads[1]))
        } else {
            w.contract(&format!("{dots}, {t}, {all}, {dh}"), "x", "wq")
        };
        [q, k, v]
    };
    let (k, v) = if early {
        (k, v)
    } else {
        let (k, v) = (format!("{k}[{dots}, {u}, {used}, {dh}]"), format!("{v}[{dots}, {u}, {used}, {dv}]"));
        (w.maybe(k), w.maybe(v))
    };
    // An axis has to come into being before a mask can speak of it.
    let has_axis = early || is_name(&k) || is_name(&v);

    let (mut q, mut k) = (w.wide(&q), w.wide(&k));
    let places = [
        "scaled queries",
        "scaled keys",
        "scaled scores",
        "scaled in the product",
        "scaled after the mask",
        "root of the scale on both",
    ];
    let place = w.choose(&places);
    if place == "scaled queries" || place == "root of the scale on both" {
        let scaled = scaled(w, &q, a, place != "scaled queries");
        q = w.maybe(scaled);
    }
    if place == "scaled keys" || place == "root of the scale on both" {
        let scaled = scaled(w, &k, a, place != "scaled keys");
        k = w.maybe(scaled);
    }
    let order = w.any(&["H, T, U", "H, T, U", "T, H, U", "H, U, T"]);
    let scores = order.replace('H', &all).replace('T', t).replace('U', u);
    let s = if place == "scaled in the product" {
        let product = w.mul(&q, &k);
        let scaled = match w.any(&["divided", "multiplied"]) {
            "divided" => format!("{product} / sqrt(size({dh}))"),
            _ => format!("{product} * {}", group(&w.constant(&format!("1.0 / sqrt(size({dh}))")))),
        };
        w.define(&format!("{dots}, {scores}"), &scaled)
    } else {
        w.contract(&format!("{dots}, {scores}"), &q, &k)
    };
    let mut s = if has_axis { w.maybe(s) } else { w.named(&s) };
    if place == "scaled scores" {
        s = scaled(w, &s, a, false);
        s = w.maybe(s);
    }
    s = masks::masked(w, s, kind, a);
    if place == "scaled after the mask" {
        s = w.maybe(s);
        s = scaled(w, &s, a, false);
    }
    let mut s = w.named(&s);
    if kind.column {
        let (one, wide, all_scores) =
            (w.fresh(&["one", "extra"]), w.fresh(&["w", "u1"]), w.fresh(&["wider", "with_sink"]));
        w.line(format!("{all_scores}[{dots}, {scores}] = {s}"));
        let sink = if merged { format!("sink[({h}: kv_heads, {})]", heads[1]) } else { "sink".to_string() };
        let sink = w.wide(&sink);
        let column = w.maybe(format!("stack({sink} as {one})"));
        let joined = w.named(&format!("concat({all_scores} over {u}, {column} over {one} as {wide})"));
        let p = parts::softmax(w, &joined, &wide, None);
        let p = w.named(&p);
        let kept = scores.replace(u.as_str(), &format!("{u}: 0..size({u})"));
        s = w.named(&format!("{p}[{dots}, {kept}]"));
    }

    let order = w.any(&["T, H, E", "T, H, E", "H, T, E"]).replace('T', t).replace('H', &all).replace('E', dv);
    let order = format!("{dots}, {order}");
    let sink = (kind.sinks && !kind.column).then(|| match merged {
        true => w.named(&format!("sink[({h}: kv_heads, {})]", heads[1])),
        false => "sink".to_string(),
    });
    let sink = sink.as_deref();
    let o = if kind.column {
        let p = w.narrow(&s);
        w.contract(&order, &p, &v)
    } else if w.choose(&["normalised before the values", "normalised after the values"]).contains("before") {
        let p = parts::softmax(w, &s, u, sink);
        let p = w.maybe(p);
        let p = w.narrow(&p);
        w.contract(&order, &p, &v)
    } else {
        let e = parts::exponentials(w, &s, u, sink);
        let each = w.narrow(&e.each);
        let o = if w.choose(&["divided later", "divided in the same statement"]) == "divided later" {
            let o = w.contract(&order, &each, &v);
            w.div(&o, &e.sum)
        } else {
            let product = w.mul(&each, &v);
            w.define(&order, &format!("{product} / {}", group(&e.sum)))
        };
        w.narrow(&o)
    };
    if !merged || kind.repeated {
        return w.contract(&format!("{dots}, {t}, {d}"), &o, "wo");
    }
    let (m, last) = if kind.grouped {
        (format!("{}: ({all})", a.merged[0]), format!(", {dv}"))
    } else {
        (format!("{}: ({h}, {dv})", a.merged[2]), String::new())
    };
    let o = w.define(&format!("{dots}, {t}, {m}{last}"), &o);
    w.contract(&format!("{dots}, {t}, {d}"), &o, "wo")
}
