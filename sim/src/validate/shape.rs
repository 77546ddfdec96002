//! The model of a measured run, as a model file: the standard library's blocks with the sizes of its row.

mod words;

use super::family::{Family, Linear};
use super::runs::Run;
use crate::says::{number_of, said_any, says};
pub use words::is_packed;
use words::{UNGATED, WINDOW, documents, experts_every, full_every, is_gated, latent, predicts_further};

/// Sizes of latent attention.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Latent {
    q: u64,
    kv: u64,
    nope: u64,
    rope: u64,
    value: u64,
}

/// What a row says of the model.
#[derive(Clone, Debug, PartialEq)]
pub struct Shape {
    layers: u64,
    dense_layers: u64,
    hidden: u64,
    ffn: u64,
    expert_ffn: u64,
    experts: u64,
    topk: u64,
    shared: u64,
    heads: u64,
    kv_heads: u64,
    head: u64,
    latent: Option<Latent>,
    vocab: u64,
    seq: u64,
    /// GELU, layer norm and learned positions, as GPT-3; SwiGLU, RMS norm and RoPE otherwise.
    gpt: bool,
    tied: bool,
    /// Experts of two matrices, without a gate.
    plain_experts: bool,
    /// Of so many layers the last has experts; all that are not dense at the beginning where it is 0.
    experts_every: u64,
    /// A layer that predicts one token further.
    mtp: bool,
    /// Tokens of a document in the mean, where rows are packed with documents that see only themselves.
    documents: Option<u64>,
    family: Family,
}

impl Shape {
    /// Reads a row; `tp` is how many ranks share heads and vocabulary, which are rounded up to it.
    ///
    /// # Errors
    /// What is missing: a sentence.
    pub fn of(run: &Run, tp: u64) -> Result<Shape, String> {
        let given = |name: &str| run.number(name).filter(|n| *n > 0);
        let need = |name: &str| given(name).ok_or(format!("`{name}` is not given"));
        let need_for = |name: &str, whose: &str, default: Option<u64>| {
            given(name).or(default).ok_or(format!("`{name}` is not given\n  = help: {whose} need it"))
        };
        let (layers, hidden, heads) = (need("layers")?, need("hidden")?, need("heads")?);
        if let Some(kv) = run.number("kv_heads").filter(|kv| !heads.is_multiple_of(*kv)) {
            return Err(format!("`kv_heads` is {kv}, which does not divide its {heads} `heads`"));
        }
        let experts = run.number("experts").unwrap_or(0);
        if let Some(dense) = run.number("dense_layers").filter(|dense| *dense > layers) {
            return Err(format!("`dense_layers` is {dense}, but it has {layers} `layers`"));
        }
        let dense_layers = if experts > 0 { run.number("dense_layers").unwrap_or(0) } else { layers };
        let latent = latent(&run.head)?;
        // A number may have a remark behind it.
        let stated_head = run.head.split_once(" (").map_or(run.head.as_str(), |(number, _)| number);
        let head = match stated_head.parse::<f64>() {
            Ok(head) if head >= 1.0 => head as u64,
            _ if latent.is_some() => 0,
            _ if hidden.is_multiple_of(heads) || !run.head.is_empty() => hidden / heads,
            _ => {
                return Err(format!(
                    "its {heads} `heads` do not divide `hidden`, which is {hidden}\n  = help: `head_dim` says how wide a head is where it is not hidden / heads"
                ));
            }
        };
        // A mixture without dense layers has no use of it; one whose experts nobody counted looks like a dense model.
        let uncounted = experts == 0 && (given("topk").is_some() || given("moe_ffn_hidden").is_some());
        let ffn = if dense_layers > 0 {
            let whose = if uncounted { "dense layers, which this is without `experts`," } else { "dense layers" };
            need_for("ffn_hidden", whose, None)?
        } else {
            given("ffn_hidden").unwrap_or(0)
        };
        let (expert_ffn, topk) = match experts {
            0 => (0, 0),
            _ => (need_for("moe_ffn_hidden", "mixtures", given("ffn_hidden"))?, need_for("topk", "mixtures", None)?),
        };
        let text = run.text.to_lowercase();
        let mut family = Family::of(&run.model);
        if let Some(window) = WINDOW.iter().find_map(|words| number_of(&text, words)) {
            family.window = window as u64;
        }
        if let Some(every) = full_every(&text).filter(|_| family.window > 0) {
            family.full_every = every;
        }
        let mut shape = Shape {
            layers,
            dense_layers,
            hidden,
            ffn,
            expert_ffn,
            experts,
            topk,
            shared: run.number("shared_experts").unwrap_or(0),
            heads: heads.next_multiple_of(tp),
            kv_heads: run.number("kv_heads").filter(|n| *n > 0).unwrap_or(heads),
            head,
            latent,
            vocab: need("vocab")?,
            seq: need("seq_len")?,
            gpt: false,
            tied: false,
            plain_experts: experts > 0 && !is_gated(&text) && UNGATED.iter().any(|words| says(&text, words)),
            experts_every: experts_every(&text, &family),
            mtp: predicts_further(&text),
            documents: documents(&text),
            family,
        };
        shape.share_layers(run)?;
        // Key heads that are fewer than tensor-parallel ranks are there on several of them.
        shape.kv_heads = match shape.kv_heads {
            n if n.is_multiple_of(tp) => n,
            n if tp.is_multiple_of(n) => tp,
            _ => shape.heads,
        };
        if !shape.heads.is_multiple_of(shape.kv_heads) {
            shape.kv_heads = shape.heads;
        }
        if !shape.vocab.is_multiple_of(tp) {
            shape.vocab = shape.vocab.next_multiple_of(128 * tp);
        }
        shape.gpt = shape.is_gpt(&text, run.params_b);
        shape.tied = said_any(&text, &["tied embeddings", "share embeddings and output weights"]).unwrap_or(shape.gpt);
        Ok(shape)
    }

    /// Layers with and without experts in turn: as many dense ones as that leaves.
    ///
    /// # Errors
    /// No width of dense layers: a sentence.
    fn share_layers(&mut self, run: &Run) -> Result<(), String> {
        if self.experts == 0 || self.experts_every <= 1 {
            self.experts_every = 0;
            return Ok(());
        }
        let dense = self.layers - self.layers / self.experts_every;
        if run.number("dense_layers").is_some_and(|stated| stated != dense && stated != 0) {
            // (A few at the beginning are another thing.)
            self.experts_every = 0;
            return Ok(());
        }
        self.dense_layers = dense;
        self.ffn = run
            .number("ffn_hidden")
            .filter(|n| *n > 0)
            .ok_or("`ffn_hidden` is not given\n  = help: dense layers need it")?;
        Ok(())
    }

    /// Can so many ranks share its heads, and its key heads, so that each has whole ones?
    pub fn has_heads_for(&self, ranks: u64) -> bool {
        // (Latent attention makes keys for each head.)
        self.heads.is_multiple_of(ranks) && (self.latent.is_some() || self.kv_heads.is_multiple_of(ranks))
    }

    /// What its notes say of the model, beside its columns.
    pub fn heard(&self, run: &Run) -> Vec<String> {
        let silent = run.silent();
        let Ok(usual) = Shape::of(&silent, 1) else { return vec![] };
        let switches = [
            (self.gpt, usual.gpt, "gelu"),
            (self.plain_experts, usual.plain_experts, "experts without gates"),
            (self.tied, usual.tied, "tied embeddings"),
            (self.mtp, usual.mtp, "multi-token prediction"),
        ];
        let changed = switches.into_iter().filter(|(is, was, _)| is != was);
        let mut heard: Vec<String> = changed.map(|(is, _, what)| format!("{what} = {is}")).collect();
        let numbers = [
            (self.family.window, usual.family.window, "window"),
            (self.experts_every, usual.experts_every, "layers for one with experts"),
            (self.documents.unwrap_or(0), usual.documents.unwrap_or(0), "tokens of a document"),
        ];
        heard
            .extend(numbers.into_iter().filter(|(is, was, _)| is != was).map(|(is, _, what)| format!("{what} = {is}")));
        heard
    }

    /// Is its attention latent?
    pub fn is_latent(&self) -> bool {
        self.latent.is_some()
    }

    /// What the row says, else what its number of parameters says, else the family.
    fn is_gpt(&self, text: &str, params_b: Option<f64>) -> bool {
        if is_gated(text) {
            return false;
        }
        if says(text, "gelu") {
            return true;
        }
        self.experts == 0 && params_b.and_then(|billions| self.has_two_matrices(billions)).unwrap_or(self.family.gelu)
    }

    /// Has a dense network two matrices, not three with a gate? So many billions of parameters say it where they are within 3 % of one and 10 % off the other, with embeddings that are
    /// tied or not.
    fn has_two_matrices(&self, billions: f64) -> Option<bool> {
        if self.latent.is_some() {
            return None;
        }
        let attention = 2.0 * (self.hidden * self.head * (self.heads + self.kv_heads)) as f64;
        let off = |matrices: f64| {
            let layers = self.layers as f64 * (attention + matrices * (self.hidden * self.ffn) as f64);
            let with = |embeddings: f64| layers + embeddings * (self.vocab * self.hidden) as f64;
            [1.0, 2.0].map(|n| (with(n) / (billions * 1e9) - 1.0).abs()).into_iter().fold(f64::INFINITY, f64::min)
        };
        match (off(2.0), off(3.0)) {
            (two, three) if two < 0.03 && three > 0.1 => Some(true),
            (two, three) if three < 0.03 && two > 0.1 => Some(false),
            _ => None,
        }
    }

    /// Layers of the model that are repeated, without the one of multi-token prediction.
    pub fn layers(&self) -> u64 {
        self.layers
    }

    /// The head's products as a multiple of a layer's (attention scores left out).
    pub fn head_in_layers(&self) -> f64 {
        let inner = if self.gpt { 2 } else { 3 };
        let attention = 2 * (self.heads + self.kv_heads) * self.head.max(1);
        let latent = self.latent.as_ref().map_or(0, |l| self.heads * (l.nope + 2 * l.value));
        let network = match self.experts {
            0 => self.ffn,
            _ => (self.topk + self.shared) * self.expert_ffn,
        };
        self.vocab as f64 / (attention + latent + inner * network) as f64
    }

    /// What is behind the last layer: the head, and a layer and a head again where another token is predicted.
    pub fn tail_in_layers(&self) -> f64 {
        let head = self.head_in_layers();
        if self.mtp { 2.0 * head + 1.0 } else { head }
    }

    /// Experts of a layer; 0 for dense models.
    pub fn experts(&self) -> u64 {
        self.experts
    }

    /// Experts of a token.
    pub fn topk(&self) -> u64 {
        self.topk
    }

    /// Tokens of a row.
    pub fn seq(&self) -> u64 {
        self.seq
    }

    /// Tokens of a document in the mean, where attention stays within the documents that fill a row and the row says how long they are.
    pub fn documents(&self) -> Option<u64> {
        self.documents
    }

    /// Attention of a layer: the lines that add it to `x`, in one way or, where only some layers have a window or linear attention, in two.
    fn attention(&self, norm: &str, theta: &str) -> String {
        let Shape { heads, kv_heads, head, .. } = *self;
        let call = |other: bool| match (self.latent.as_ref(), self.family.linear.filter(|_| other)) {
            (None, Some(Linear { key_heads, value_heads, head })) => {
                format!("gated_delta_net({norm}@norm1(x), {key_heads}, {value_heads}, {head}, {head})")
            }
            (None, None) => {
                let more = self.family.attention(other);
                format!("attention({norm}@norm1(x), {heads}, {kv_heads}, {head}, theta = {theta}{more})")
            }
            (Some(l), _) => {
                format!("mla({norm}@norm1(x), {heads}, {}, {}, {}, {}, {})", l.q, l.kv, l.nope, l.rope, l.value)
            }
        };
        if self.latent.is_none() && self.family.alternates() {
            let [other, full] = [true, false].map(call);
            return format!(
                "    if full {{\n        x = x + {full}\n    }} else {{\n        x = x + {other}\n    }}\n"
            );
        }
        format!("    x = x + {}\n", call(self.family.window > 0 || self.family.linear.is_some()))
    }

    /// The model file.
    pub fn text(&self) -> String {
        let Shape { layers, dense_layers, hidden, ffn, expert_ffn, experts, topk, shared, .. } = *self;
        let Shape { vocab, seq, gpt, tied, mtp, .. } = *self;
        let norm = if gpt { "layer_norm" } else { "rms_norm" };
        let theta = if gpt { "0.0" } else { "10000.0" };
        let attention = self.attention(norm, theta);
        let dense = if gpt { format!("gelu_network(h, {ffn})") } else { format!("swiglu(h, {ffn})") };
        let clamped = self.family.clamped_experts && experts > 0 && shared == 0;
        let moe = match (clamped, self.plain_experts) {
            (true, _) => format!("clamped(h, {experts}, {topk}, {expert_ffn})"),
            (_, true) => format!("plain(h, {experts}, {topk}, {expert_ffn})"),
            _ => format!("moe(h, {experts}, {topk}, {expert_ffn}, shared = {shared}, aux = 0.001)"),
        };
        let moe = if self.plain_experts && shared > 0 {
            format!("{moe} + gelu_network@shared(h, {})", shared * expert_ffn)
        } else {
            moe
        };
        let network = match (experts, dense_layers) {
            (0, _) => format!("        x = x + {dense}\n"),
            (_, 0) => format!("        x = x + {moe}\n"),
            _ => format!(
                "        if dense {{\n            x = x + {dense}\n        }} else {{\n            x = x + {moe}\n        }}\n"
            ),
        };
        let positions = if gpt { ", position[seq, d] = normal(0.02)" } else { "" };
        let embedded = if gpt { "embed[tokens, d] + position" } else { "embed[tokens, d]" };
        let head_param = if tied { "" } else { ", head[d, vocab] = normal(0.02)" };
        let logits = |x: &str, n: &str| {
            format!("[batch, seq, vocab] = {norm}@{n}({x}) * {}", if tied { "embed" } else { "head" })
        };
        // Layers of two kinds are told which they are.
        let (full, full_of_last, parameter) = match self.latent.is_none() && self.family.alternates() {
            true => (format!(", full = (i + 1) % {} == 0", self.family.full_every), ", full = true", ", full"),
            false => (String::new(), "", ""),
        };
        let is_dense = match self.experts_every {
            0 => format!("i < {dense_layers}"),
            every => format!("(i + 1) % {every} != 0"),
        };
        let mut text = format!(
            "model Run(batch = 1, seq = {seq}, layers = {layers}, d = {hidden}, vocab = {vocab}) {{\n    \
             input tokens: token[batch, seq], labels: token[batch, seq]\n    \
             param embed[vocab, d] = normal(0.02){head_param}{positions}\n    \
             x = {embedded}\n    repeat i in layers {{\n        x = layer(x, dense = {is_dense}{full})\n    }}\n    \
             logits{}\n    nll = cross_entropy(logits, labels)\n    \
             loss ce = sum(nll over batch, seq) per sum(valid(labels) over batch, seq)\n",
            logits("x", "norm")
        );
        if mtp {
            text += &format!(
                "    next = embed[max(labels, 0), d]\n    ahead = layer@mtp(mtp_join(x, next), dense = false{full_of_last})\n    \
                 guess{}\n    later = labels_after(labels)\n    miss = cross_entropy(guess, later)\n    \
                 loss mtp_ce = sum(miss over batch, seq) per sum(valid(later) over batch, seq) weight 0.3\n",
                logits("ahead", "mtp_norm")
            );
        }
        text += &format!(
            "}}\n\nblock layer(x[.., t, d], dense{parameter}) {{\n{attention}    h = {norm}@norm2(x)\n{}    return x\n}}\n",
            network.replace("        ", "    ")
        );
        if clamped {
            text += "\nblock clamped(h[.., d], experts, topk, f) {\n    share, chosen, score = softmax_router(h, experts, topk, bias = true)\n    \
                     loss balance = load_balance(score, chosen) weight 0.001\n    \
                     return clamped_swiglu_experts(h, chosen, share, experts, f)\n}\n";
        }
        if self.plain_experts {
            text += "\nblock plain(h[.., d], experts, topk, f) {\n    share, chosen, score = softmax_router(h, experts, topk)\n    \
                     loss balance = load_balance(score, chosen) weight 0.001\n    return plain_experts(h, chosen, share, experts, f)\n}\n\n\
                     block plain_experts(x[.., d], chosen[.., k], share[.., k], experts, f) {\n    \
                     param up[e: experts, d, f] = normal(0.02), down[e, f, d] = normal(0.02)\n    rows = group(chosen, e, r)\n    \
                     xe[e, r, d] = x at rows\n    h = gelu((xe * up)[e, r, f])\n    ye[e, r, d] = h * down\n    \
                     return sum(narrow(share) * (ye at rows) over k)\n}\n";
        }
        if gpt || self.plain_experts {
            text += "\nblock gelu_network(x[.., d], f) {\n    param up[d, f] = normal(0.02), down[f, d] = normal(0.02)\n    \
                     h = gelu((x * up)[.., f])\n    return (h * down)[.., d]\n}\n";
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::validate::runs;
    use forebay_compiler::pipeline::CompileOptions;
    use forebay_dsl::model::CheckedModel;

    fn shape(name: &str, experts: u32) -> Shape {
        let table = format!(
            "id,model,layers,hidden,ffn_hidden,moe_ffn_hidden,experts,topk,heads,kv_heads,head_dim,vocab,seq_len,device,n_devices,mbs,gbs,step_time_s\n\
             a,{name},4,64,64,64,{experts},2,4,2,16,256,32,H100,1,1,1,1\n"
        );
        Shape::of(&runs::read(&table).expect("a table").runs[0], 1).expect("a shape")
    }

    fn model(name: &str, experts: u32) -> CheckedModel {
        let shape = shape(name, experts);
        let loaded = forebay_dsl::load(&shape.text(), &CompileOptions::default().check_options(true, Some(1), 1));
        loaded.unwrap_or_else(|_| panic!("{name} is no model")).model
    }

    /// How many parameters have such an end.
    fn count(model: &CheckedModel, end: &str) -> usize {
        model.params.iter().filter(|p| p.name.ends_with(end)).count()
    }

    /// A network of two matrices or of three has so many parameters; where that says nothing, the family does.
    #[test]
    fn parameters_say_whether_networks_have_gates() {
        let gate = |model: &str, params_b: &str, notes: &str| {
            let table = format!(
                "id,model,params_b,layers,hidden,ffn_hidden,heads,head_dim,vocab,seq_len,device,n_devices,mbs,gbs,notes_config,step_time_s\n\
                 a,{model},{params_b},48,6144,24576,24,256,32000,2048,TPU v4,1,1,1,{notes},1\n"
            );
            !Shape::of(&runs::read(&table).expect("a table").runs[0], 1).expect("a shape").gpt
        };
        // 48 (4 · 6144 · 6144 + n · 6144 · 24576) and embeddings: 22 billion with two, 29 with three.
        assert!(!gate("MaxText", "21.9", "") && !gate("MaxText", "22.1", ""));
        assert!(gate("MaxText", "29.2", "") && gate("GPT", "29.2", ""));
        // The row's own words come first; a number that fits neither says nothing.
        assert!(gate("MaxText", "21.9", "SwiGLU") && !gate("MaxText", "29.2", "GELU"));
        assert!(gate("MaxText", "25", "") && !gate("GPT", "25", "") && gate("MaxText", "", ""));
    }

    /// Sizes that no model has are refused, and what is missing is said with who needs it.
    #[test]
    fn sizes_that_cannot_be() {
        const HEAD: &str = "layers,dense_layers,hidden,ffn_hidden,moe_ffn_hidden,experts,topk,heads,head_dim,vocab,seq_len,device,n_devices,gbs,step_time_s";
        let of = |row: &str| {
            let table = runs::read(&format!("{HEAD}\n{row},256,32,H100,1,1,1\n")).expect("a table");
            Shape::of(&table.runs[0], 1).map(|shape| (shape.ffn, shape.expert_ffn, shape.head))
        };
        let refused = |row: &str, part: &str| {
            let why = of(row).expect_err(row);
            assert!(why.contains(part), "{why}");
        };
        refused("4,5,64,128,64,4,2,4,", "`dense_layers` is 5, but it has 4 `layers`");
        refused("4,0,64,128,,,,6,", "6 `heads` do not divide `hidden`, which is 64\n  = help: `head_dim`");
        refused("4,0,64,,,,,4,", "`ffn_hidden` is not given\n  = help: dense layers");
        refused("4,1,64,,64,4,2,4,", "`ffn_hidden` is not given\n  = help: dense layers");
        refused("4,0,64,,,,2,4,", "`ffn_hidden` is not given\n  = help: dense layers, which this is without `experts`");
        refused("4,0,64,,,4,2,4,", "`moe_ffn_hidden` is not given\n  = help: mixtures");
        refused("4,0,64,,64,4,,4,", "`topk` is not given\n  = help: mixtures");
        assert_eq!(of("4,0,64,128,,,,6,16"), Ok((128, 0, 16)));
        assert_eq!(of("4,4,64,128,32,4,2,4,"), Ok((128, 32, 16)));
        assert_eq!(of("4,0,64,128,,4,2,4,"), Ok((128, 128, 16)));
    }

    #[test]
    fn families_have_what_no_column_says() {
        let usual = model("Mixtral-8x7B", 4);
        for end in ["_norm.gain", ".sink", ".bq", "_bias"] {
            assert_eq!(count(&usual, end), 0, "{end}");
        }
        let qwen = [model("Qwen3-30B-A3B", 4), model("Qwen2-7B", 0)];
        assert_eq!(qwen.each_ref().map(|m| count(m, "q_norm.gain")), [4, 0]);
        assert_eq!(qwen.each_ref().map(|m| count(m, ".bq")), [0, 4]);
        let oss = model("GPT OSS 120B", 4);
        for end in [".sink", ".bq", ".router_bias", ".down_bias", ".gate_bias"] {
            assert_eq!(count(&oss, end), 4, "{end}");
        }
        let shape = Shape { family: Family::of("GPT OSS"), ..shape("Mixtral", 4) };
        assert!(shape.text().contains(", window = 128)") && shape.text().contains("out_bias = true, sinks = true)"));
        // Layers with and without a window are segments of their own.
        assert_eq!(oss.segments.len(), usual.segments.len() + 1);
    }

    fn of_row(columns: &str, values: &str, notes: &str) -> Result<Shape, String> {
        of_model("x", columns, values, notes)
    }

    fn of_model(model: &str, columns: &str, values: &str, notes: &str) -> Result<Shape, String> {
        let table = format!(
            "model,layers,hidden,ffn_hidden,moe_ffn_hidden,topk,heads,vocab,seq_len,device,n_devices,mbs,gbs,step_time_s,notes_config,{columns}\n\
             {model},4,64,128,32,2,4,256,512,H100,1,1,1,1,\"{notes}\",{values}\n"
        );
        Shape::of(&runs::read(&table).expect("a table").runs[0], 1)
    }

    fn loaded(shape: &Shape) -> CheckedModel {
        let loaded = forebay_dsl::load(&shape.text(), &CompileOptions::default().check_options(true, Some(1), 1));
        loaded.unwrap_or_else(|_| panic!("no model:\n{}", shape.text())).model
    }

    /// Experts without gates have two matrices, shared ones as well.
    #[test]
    fn experts_may_have_no_gate() {
        let experts = |notes: &str, shared: &str| {
            loaded(&of_row("experts,shared_experts", &format!("8,{shared}"), notes).expect("a shape"))
        };
        assert_eq!(["GELU", "squared ReLU", ""].map(|notes| count(&experts(notes, "0"), ".gate")), [0, 0, 4]);
        assert_eq!(["GELU", "GeGLU", "gated GELU"].map(|notes| count(&experts(notes, "0"), ".up")), [4, 4, 4]);
        assert_eq!(count(&experts("GELU; layer norm", "1"), ".up"), 8);
    }

    /// Every other layer has experts, where that is said.
    #[test]
    fn layers_with_experts_may_take_turns() {
        let dense = |notes: &str, dense_layers: &str| {
            let shape = of_row("experts,dense_layers", &format!("8,{dense_layers}"), notes).expect("a shape");
            let model = loaded(&shape);
            let routers = model.params.iter().filter(|p| p.name.ends_with(".router"));
            routers.map(|p| p.name.split('.').nth(1).expect("a layer").parse().expect("a number")).collect::<Vec<u32>>()
        };
        assert_eq!((dense("", "2"), dense("MoE every other layer", "")), (vec![2, 3], vec![1, 3]));
        assert_eq!((dense("moe_layer_freq=2", "2"), dense("moe_layer_freq=1", "")), (vec![1, 3], vec![0, 1, 2, 3]));
        assert_eq!(dense("moe_layer_freq=2", "1"), vec![1, 2, 3], "one at the beginning is another thing");
    }

    /// Three of Qwen3-Next's four layers remember positions, the fourth attends to them behind a gate; others of the name do not.
    #[test]
    fn layers_remember_positions_where_the_family_does() {
        let parts = |name: &str| {
            let model = model(name, 4);
            ["a_log", ".wg", "q_norm.gain", ".router"].map(|end| count(&model, end))
        };
        assert_eq!(parts("Qwen3-Next-80B-A3B"), [3, 1, 1, 4]);
        assert_eq!(parts("Qwen3_30B_a3B"), [0, 0, 4, 4]);
    }

    /// Layers that see all positions are as many as is said, or as the family has.
    #[test]
    fn layers_take_turns_with_windows() {
        let every = |model: &str, notes: &str| {
            let shape = of_model(model, "kv_heads", "2", notes).expect("a shape");
            (shape.family.window, shape.family.full_every)
        };
        let notes = [
            "GeGLU, sliding window 512 in five of six layers",
            "sliding_window=512; sliding_window_pattern=6",
            "sliding window 512 in every other layer",
            "sliding window 512; recompute in one of two layers",
            "GELU, sliding window 4,096, in every other layer",
            "sliding window 512, recompute in five of six layers",
            "full recompute in five of six layers",
        ];
        assert_eq!(
            notes.map(|notes| every("Ours", notes)),
            [(512, 6), (512, 6), (512, 2), (512, 0), (4096, 2), (512, 0), (0, 0)]
        );
        assert_eq!([every("Gemma-3-12B", ""), every("gemma2 9b", "")], [(1024, 6), (4096, 2)]);
        assert_eq!(every("GPT OSS", "").1, 2);
    }

    /// Ranks have whole heads, and whole key heads, where these divide; latent attention makes keys for each head.
    #[test]
    fn ranks_have_whole_heads() {
        let few = of_row("kv_heads", "2", "").expect("a shape");
        assert_eq!([1, 2, 3, 4].map(|ranks| few.has_heads_for(ranks)), [true, true, false, false]);
        let latent = of_row("head_dim", "MLA kv_lora=16 nope=8 rope=4 v=8", "").expect("a shape");
        assert_eq!([2, 4, 8].map(|ranks| latent.has_heads_for(ranks)), [true, true, false]);
    }

    #[test]
    fn heads_and_windows_are_read() {
        let sizes = Latent { q: 24, kv: 16, nope: 8, rope: 4, value: 8 };
        for head in [
            "MLA q_lora=24 kv_lora=16 nope=8 rope=4 v=8",
            "MLA q_lora_rank=24, kv_lora_rank=16, qk_nope_head_dim=8, qk_rope_head_dim=4, v_head_dim=8",
        ] {
            assert_eq!(of_row("head_dim", &format!("\"{head}\""), "").expect("a shape").latent, Some(sizes), "{head}");
        }
        let why = of_row("head_dim", "MLA kv_lora=16", "").expect_err("sizes are missing");
        assert!(why.contains("without `nope`") && why.contains("help: as in MLA"), "{why}");
        assert_eq!(of_row("head_dim", "32 (config)", "").expect("a shape").head, 32);
        let windows = ["sliding window 128", "sliding_window=128", "no sliding window", ""];
        let of = |notes: &str| of_row("head_dim", "16", notes).expect("a shape").text().contains("window = 128");
        assert_eq!(windows.map(of), [true, true, false, false]);
    }

    #[test]
    fn what_rows_are_made_of_is_read() {
        let tokens = |notes: &str| of_row("head_dim", "16", notes).expect("a shape").documents();
        for (notes, want) in [
            ("packed documents of 2,048 tokens", Some(2048)),
            ("packing; documents of about 2k tokens", Some(2048)),
            ("document_length=1500", Some(1500)),
            ("mean document length 300; packing", Some(300)),
            ("document length 4 Ki", Some(4096)),
            ("documents of 512 tokens; no padding", Some(512)),
            ("documents of 3 sources", None),
            ("document_length=2e3; document tokens 300B; document length 1_500", None),
            ("maximum document length 2048", None),
            ("max. document length 2048", None),
            ("documents of 512 tokens; attention not masked across documents", None),
            ("no packing; documents of 512 tokens", None),
            ("unlike documents of 512 tokens", None),
            ("documents of 512 tokens without document masking", None),
            ("packing", None),
            ("", None),
        ] {
            assert_eq!(tokens(notes), want, "{notes}");
        }
        let further = |notes: &str| of_row("head_dim", "16", notes).expect("a shape").mtp;
        let words = ["MTP layer included", "MTP depth 1", "mtp_num_layers=1", "MTP depth 1, MTP offloaded"];
        assert_eq!(words.map(further), [true; 4]);
        let words = ["mtp_num_layers=0", "no MTP", "num_nextn_predict_layers=1; MTP not trained", "MTP", ""];
        assert_eq!(words.map(further), [false; 5]);
        let packed = ["packing true", "SFT, packed sequences", "--packing; tp=2", "sequence packing"];
        assert_eq!(packed.map(is_packed), [true; 4]);
        assert_eq!(["no packing", "packing=false", "unpacked", "weight packing"].map(is_packed), [false; 4]);
    }
}
