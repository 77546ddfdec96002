//! Random models of the standard library's blocks, as text.

use super::draw::Draw;
use super::strategies::Drawn;
use std::fmt::Write;

/// A model.
pub struct Model {
    pub text: String,
    /// Layers that are shared out to the stages of a pipeline.
    pub layers: u32,
    /// Has it a statistic over the rows of several data-parallel ranks?
    pub rows_together: bool,
}

/// A size that is mostly a multiple of what it is shared by.
fn shared(draw: &mut Draw, times: &[u32], by: u32) -> u32 {
    let n = draw.of(times);
    if draw.once_in(25) { n } else { n * by }
}

/// A model that the strategy mostly fits.
pub fn model(draw: &mut Draw, strategy: &Drawn) -> Model {
    let parts = strategy.pp * strategy.vpp;
    let layers = parts + draw.of(&[0, 1, 2]);
    let d = draw.of(&[8, 6, 12]);
    let seq = shared(draw, &[4, 2, 3], strategy.cp * strategy.tp);
    let vocab = shared(draw, &[12, 7], strategy.tp);
    let packed = draw.once_in(3);
    let (tied, ahead) = (draw.once_in(3), draw.once_in(4));
    // Layers without experts alone leave `ep` nothing to share.
    let dense_layers =
        if strategy.ep == 1 || draw.once_in(20) { draw.of(&[0, 1, layers]) } else { draw.of(&[0, 1]).min(layers - 1) };
    let norm = draw.of(&["rms_norm", "rms_norm", "layer_norm"]);
    let rate = draw.of(&["", "", "0.25"]);
    let (moe, rows_together) = experts(draw, strategy);
    let attention = attention(draw, strategy, packed);
    let dense = network(draw, strategy);

    let inputs = if packed { "\n    input positions: token[batch, seq], documents: token[batch, seq]" } else { "" };
    let more = if packed { ", positions, documents" } else { "" };
    let taken = if packed { ", pos[.., t], doc[.., t]" } else { "" };
    let (declared, head) = if tied { ("", "embed") } else { (", head[d, vocab] = normal(0.3)", "head") };
    // A row that begins with the same token twice has there the same values twice, and which of them an expert takes is up to the rounding.
    let place = if moe.value.contains("expert_choice") {
        " + narrow(sin(wide(index(seq)) * 1.7 + wide(index(d))))"
    } else {
        ""
    };
    let drop = |x: String| if rate.is_empty() { x } else { format!("dropout({x}, {rate})") };
    let mut text = format!(
        "model Random(batch = {batch}, seq = {seq}, vocab = {vocab}, layers = {layers}, d = {d}) {{
    input tokens: token[batch, seq], labels: token[batch, seq]{inputs}
    param embed[vocab, d] = normal(0.7){declared}
    x = {embedded}{place}
    repeat i in layers {{
        x = layer(x, i < {dense_layers}{more})
    }}
    logits[batch, seq, vocab] = {norm}@norm(x) * {head}
    output logits
    nll = cross_entropy(logits, labels)
    loss ce = sum(nll over batch, seq) per sum(valid(labels) over batch, seq)
",
        batch = strategy.batch(),
        embedded = drop("embed[tokens, d]".into()),
    );
    if draw.once_in(4) {
        text += "    loss z = sum(z_loss(logits, labels) over batch, seq) per sum(valid(labels) over batch, seq) weight 0.01\n";
    }
    if ahead {
        let _ = write!(
            text,
            "    next = embed[max(labels, 0), d]
    guess[batch, seq, vocab] = rms_norm@mtp_norm(layer@mtp(mtp_join(x, next), {dense_layers} == {layers}{more})) * {head}
    later = labels_after(labels)
    loss mtp_ce = sum(cross_entropy(guess, later) over batch, seq) per sum(valid(later) over batch, seq) weight 0.3
"
        );
    }
    let (a, f, m) = (drop(attention), drop(dense), drop(moe.value));
    let _ = write!(
        text,
        "}}

block layer(x[.., t, d], dense{taken}) {{
    n = {norm}@norm1(x)
    x = x + {a}
    h = {norm}@norm2(x)
    if dense {{
        x = x + {f}
    }} else {{
{before}        x = x + {m}
    }}
    return x
}}

block mlp(x[.., d], f) {{
    param up[d, f] = normal(0.4), down[f, d] = normal(0.4)
    return (squared_relu((x * up)[.., f]) * down)[.., d]
}}
",
        before = moe.before,
    );
    Model { text, layers, rows_together }
}

/// Attention of `n`.
fn attention(draw: &mut Draw, strategy: &Drawn, packed: bool) -> String {
    let mut options = String::new();
    let doc = if packed { ", doc = doc" } else { "" };
    let at = if packed { "pos" } else { "index(t)" };
    if draw.once_in(3) {
        let heads = shared(draw, &[1, 2], strategy.tp * strategy.cp);
        let (q_lora, kv_lora) = (draw.of(&[4, 0, 6]), draw.of(&[4, 6]));
        let (nope, rope, v) = (draw.of(&[4, 2]), draw.of(&[2, 4]), draw.of(&[4, 2, 6]));
        if packed || draw.once_in(3) {
            let _ = write!(options, ", angle = rope_angle({at}, {rope}, 100.0)");
        }
        if draw.once_in(3) {
            options += ", interleaved = false";
        }
        return format!("mla(n, {heads}, {q_lora}, {kv_lora}, {nope}, {rope}, {v}{options}{doc}, std = 0.5)");
    }
    let by = if draw.once_in(2) { strategy.tp } else { strategy.tp * strategy.cp };
    let kv = shared(draw, &[1, 2], by);
    let (groups, dh) = (draw.of(&[1, 2, 3]), draw.of(&[4, 2, 6]));
    match draw.below(4) {
        0 if !packed => {}
        1 => options += ", theta = 0.0",
        2 => options += ", angle = rope_angle(index(t), 2, 50.0, \"linear\", factor = 2.0), interleaved = true",
        _ => {
            let _ = write!(options, ", angle = rope_angle({at}, {dh})");
        }
    }
    for option in
        ["sinks = true", "qk_norm = true", "qkv_bias = true", "out_bias = true", "window = 3", "causal = false"]
    {
        if draw.once_in(5) {
            let _ = write!(options, ", {option}");
        }
    }
    format!("attention(n, {}, {kv}, {dh}{options}{doc}, std = 0.5)", kv * groups)
}

/// A dense network of `h`.
fn network(draw: &mut Draw, strategy: &Drawn) -> String {
    let f = shared(draw, &[4, 6], strategy.tp);
    let name = draw.of(&["swiglu", "mlp"]);
    format!("{name}(h, {f}{})", if name == "swiglu" { ", 0.4" } else { "" })
}

/// A mixture of experts: statements, and the value.
struct Experts {
    before: String,
    value: String,
}

fn experts(draw: &mut Draw, strategy: &Drawn) -> (Experts, bool) {
    let experts = shared(draw, &[2, 3, 4], strategy.ep);
    let topk = draw.of(&[1, 2, 3]).min(experts);
    let f = shared(draw, &[4, 3], strategy.etp);
    let shared_experts = draw.of(&[0, 1, 2]);
    let mut value = String::new();
    let mut before = String::new();
    let mut rows_together = false;
    let chooses = [1, strategy.tp].contains(&strategy.ep) || draw.once_in(10);
    match draw.below(6) {
        // Experts that choose tokens are shared by `tp`.
        5 if chooses => value = format!("expert_choice(h, {experts}, {topk}, {f}, std = 0.4)"),
        n => {
            if n % 2 == 0 {
                let mut options = String::new();
                for option in ["normalize = false", "scale = 1.5", "bias = true", "z = 0.01"] {
                    if draw.once_in(4) {
                        let _ = write!(options, ", {option}");
                    }
                }
                before += &format!(
                    "        share, chosen, score = softmax_router(h, {experts}, {topk}{options}, std = 0.5)\n"
                );
            } else {
                let mut options = String::new();
                for option in ["normalize = false", "scale = 2.5", "bias_rate = 0.0"] {
                    if draw.once_in(4) {
                        let _ = write!(options, ", {option}");
                    }
                }
                let groups = draw.of(&[1, 2, 3]);
                let members = experts / groups;
                if groups > 1 && experts.is_multiple_of(groups) && members >= 2 && topk <= members {
                    let _ =
                        write!(options, ", groups = {groups}, topk_groups = {}", 1 + draw.below(groups as usize - 1));
                }
                before += &format!(
                    "        share, chosen, score = sigmoid_router(h, {experts}, {topk}{options}, std = 0.5)\n"
                );
            }
            let scope = draw.of(&["", "", " scope sequence", " scope global", " scope group"]);
            let scope = if scope.ends_with("group") && !strategy.group_is_all_or_one() { "" } else { scope };
            rows_together = (scope.ends_with("global") && strategy.dp > 1)
                || (scope.ends_with("group") && strategy.group_spans_rows());
            match (scope, draw.below(3)) {
                (_, 0) => rows_together = false,
                (" scope sequence", _) => {
                    before += "        loss balance = sequence_balance(score, chosen) weight 0.1 scope sequence\n";
                }
                _ => {
                    let _ = writeln!(
                        before,
                        "        loss balance = load_balance(score, chosen, normalize = true) weight 0.1{scope}"
                    );
                }
            }
            let kind = draw.of(&["swiglu_experts", "swiglu_experts", "clamped_swiglu_experts"]);
            value += &format!("{kind}(h, chosen, share, {experts}, {f}, std = 0.4)");
        }
    }
    if shared_experts > 0 {
        let f = shared(draw, &[2, 3], strategy.tp);
        value = format!("({value} + swiglu@shared(h, {}, 0.4))", shared_experts * f);
    }
    (Experts { before, value }, rows_together)
}
