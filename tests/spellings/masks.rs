//! The masks of attention: which positions see which.

use super::attention::{Axes, Kind};
use super::writer::{Writer, group};

/// Conditions, each with its negation.
fn condition(w: &mut Writer<'_>, of: &[(&str, &str)], q: &str, k: &str) -> (String, String) {
    let (holds, fails) = of[w.choose_index(of.len())];
    let fill = |text: &str| text.replace('Q', q).replace('K', k);
    (fill(holds), fill(fails))
}

const CAUSAL_FORMS: [(&str, &str); 6] = [
    ("K <= Q", "K > Q"),
    ("Q >= K", "Q < K"),
    ("not (K > Q)", "not (K <= Q)"),
    ("not Q < K", "not Q >= K"),
    ("Q - K >= 0", "Q - K < 0"),
    ("K < Q + 1", "K >= Q + 1"),
];
const WINDOW_FORMS: [(&str, &str); 6] = [
    ("Q - K < 3", "Q - K >= 3"),
    ("K > Q - 3", "K <= Q - 3"),
    ("3 > Q - K", "3 <= Q - K"),
    ("not (Q - K >= 3)", "not (Q - K < 3)"),
    ("K + 3 > Q", "K + 3 <= Q"),
    ("Q - K <= 2", "Q - K > 2"),
];
const DOCUMENT_FORMS: [(&str, &str); 3] =
    [("Q == K", "Q != K"), ("K == Q", "K != Q"), ("not (Q != K)", "not (Q == K)")];

/// The scores of the name `s`, masked.
pub fn masked(w: &mut Writer<'_>, s: String, kind: Kind, a: &Axes) -> String {
    let q = w.shared(format!("index({})", a.t));
    let k = w.shared(format!("index({})", a.u));
    let mut conditions = vec![condition(w, &CAUSAL_FORMS, &q, &k)];
    if kind.window {
        conditions.push(condition(w, &WINDOW_FORMS, &q, &k));
    }
    if kind.packed {
        let (name, leading) = if w.inline { ("documents", "batch") } else { ("doc", "..") };
        let k = w.maybe(format!("{name}[{leading}, {}]", a.u));
        conditions.push(condition(w, &DOCUMENT_FORMS, name, &k));
    }
    let conditions = w.shuffled(conditions);
    let join = |w: &mut Writer<'_>, parts: Vec<String>, word: &str| {
        let parts: Vec<String> = parts.iter().map(|p| w.maybe(p)).map(|p| group(&p)).collect();
        let text = parts.join(&format!(" {word} "));
        w.maybe(text)
    };
    let kept = |c: &[(String, String)]| c.iter().map(|(holds, _)| holds.clone()).collect::<Vec<_>>();
    match w.choose(&["nested where", "and", "or of the forbidden", "-inf added"]) {
        "nested where" => conditions.iter().fold(s, |s, (holds, fails)| {
            let s = w.maybe(s);
            match w.any(&["keep", "forbid"]) {
                "keep" => format!("where({holds}, {s}, -inf)"),
                _ => format!("where({fails}, -inf, {s})"),
            }
        }),
        "and" => {
            let all = join(w, kept(&conditions), "and");
            format!("where({all}, {s}, -inf)")
        }
        "or of the forbidden" => {
            let forbidden = conditions.into_iter().map(|(_, fails)| fails).collect();
            let any = join(w, forbidden, "or");
            format!("where({any}, -inf, {s})")
        }
        _ => {
            let masks = if w.any(&["one", "several"]) == "one" {
                vec![join(w, kept(&conditions), "and")]
            } else {
                kept(&conditions)
            };
            masks.iter().fold(s, |s, mask| {
                let mask = w.maybe(format!("where({mask}, 0.0, -inf)"));
                w.add(&s, &mask)
            })
        }
    }
}
