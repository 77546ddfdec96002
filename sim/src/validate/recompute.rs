//! What a measured run computes again in its backward passes.

mod policies;

use super::runs::Run;
use crate::kind::{ByKind, Kind};
use crate::lower::Recompute;
use crate::says::{number_of, said_any, says};
use regex_lite::Regex;
use std::collections::BTreeSet;
use std::sync::LazyLock;

/// What may be computed again: what the row says; nothing, everything between products, or all where it does not. With the words that say what was taken.
///
/// # Errors
/// As [`recompute`].
pub fn recomputes(run: &Run) -> Result<Vec<(Recompute, Option<String>)>, String> {
    if recompute_is_stated(run) {
        return Ok(vec![(recompute(run)?, None)]);
    }
    let text = run.text.to_lowercase();
    if let Some(of_options) = policies::of_notes(run, &text).or_else(|| of_options(&text)) {
        return Ok(vec![(of_options, None)]);
    }
    let elementwise = Recompute { parts: parts_of(&[(Kind::Vector, ELEMENTWISE)]), layers: vec![] };
    let ways = [(Recompute::default(), "none"), (elementwise, "norm, act"), (Recompute::full(), "full")];
    Ok(ways.map(|(way, name)| (way, Some(format!("recompute = {name}")))).to_vec())
}

/// What is computed again; nothing where the row does not say.
///
/// # Errors
/// Words that name nothing which could be: a sentence.
pub fn recompute(run: &Run) -> Result<Recompute, String> {
    let text = run.recompute.to_lowercase();
    let value = text.strip_prefix("recompute").map(str::trim_start).and_then(|rest| rest.strip_prefix(['=', ':']));
    let text = value.map_or(text.as_str(), str::trim_start);
    let begin = first_words(text);
    if let Some(policy) = policies::of_column(run, text) {
        return Ok(policy);
    }
    // What PyTorch calls selective is as torchtitan has it (`op`, below), where nothing is named.
    if SELECTIVE.contains(&begin.as_str()) {
        let by_op = || Recompute { parts: parts_of(&BY_OP), layers: vec![] };
        return Ok(stated_recompute(run, text).unwrap_or_else(by_op));
    }
    let checkpointed =
        CHECKPOINTED.captures(text).and_then(|found| found.iter().flatten().nth(1)?.as_str().parse().ok());
    if let Some(layers) = checkpointed {
        let of_stage = u32::div_ceil(layers, run.degree("pp") as u32);
        return Ok(Recompute { layers: vec![of_stage], ..Recompute::full() });
    }
    if let Some(options) = ["checkpointing", "grad_checkpoint", "granularity", "remat_policy", "recompute-activations"]
        .iter()
        .any(|words| text.contains(words))
        .then(|| of_options(text))
        .flatten()
    {
        return Ok(options);
    }
    let begins = |words: &[&str]| words.iter().any(|word| begin.starts_with(word));
    if !recompute_is_stated(run) || begins(&["none", "swap"]) || NONE.contains(&begin.as_str()) {
        return Ok(Recompute::default());
    }
    let stated = stated_recompute(run, text);
    if stated.is_some() || text.trim() == "selective" {
        // Megatron-Core's `selective` alone is its core attention.
        let attention = || Recompute { parts: parts_of(&[(Kind::Attention, 1.0)]), layers: vec![] };
        return Ok(stated.unwrap_or_else(attention));
    }
    let shown: String = run.recompute.chars().take(60).collect();
    Err(format!(
        "`recompute` is none, full (`full, 16 of 32 layers`, `full: block 4`, `all but attention`), or `selective:` with names such as core_attn, layernorm, act, mlp, moe (also true, false, `full AC`, `selective AC`), not `{shown}`"
    ))
}

fn parts_of(parts: &[(Kind, f64)]) -> ByKind {
    let mut all = [0.0; Kind::COUNT];
    for (kind, part) in parts {
        let at = &mut all[kind.number()];
        *at = f64::min(*at + part, 1.0);
    }
    all
}

/// Do these words of a row's notes say what is computed again?
pub fn is_option(words: &str) -> bool {
    let words = words.to_lowercase();
    of_options(&words).is_some() || policies::is_named(&words)
}

/// What options of launch scripts have computed again (`--recompute-granularity full --recompute-method block --recompute-num-layers 4`, `gradient_checkpointing=True`), in a row's notes or in its column.
fn of_options(text: &str) -> Option<Recompute> {
    let layers = number_of(text, "recompute num layers").map(|n| n as u32);
    let is_block = says(text, "recompute method block") || says(text, "recompute_method=block");
    let full = ["recompute granularity full", "recompute_granularity=full", "remat_policy=full", "remat_policy: full"];
    let all = ["gradient checkpointing", "grad checkpoint", "activation checkpointing"];
    let selective = ["recompute granularity selective", "recompute_granularity=selective", "recompute activations"];
    if let Some(by_op) = said_any(text, &["selective activation checkpointing", "selective checkpointing"]) {
        let parts = parts_of(if by_op { &BY_OP } else { &[] });
        return Some(Recompute { parts, layers: vec![] });
    }
    if full.iter().any(|words| says(text, words)) {
        return Some(Recompute { layers: layers.filter(|_| is_block).into_iter().collect(), ..Recompute::full() });
    }
    match said_any(text, &all) {
        Some(true) => Some(Recompute::full()),
        Some(false) => Some(Recompute::default()),
        None if selective.iter().any(|words| says(text, words)) => {
            Some(Recompute { parts: parts_of(&[(Kind::Attention, 1.0)]), layers: vec![] })
        }
        None => None,
    }
}

/// torchtitan: every second product and all elementwise work.
const BY_OP: [(Kind, f64); 2] = [(Kind::Products, 0.5), (Kind::Vector, 0.8)];

/// `activation checkpointing: 10 layers`, `num-ckpt-layers 5`, `AC: 12 layers of 32`: so many layers of all.
static CHECKPOINTED: LazyLock<Regex> = LazyLock::new(|| {
    let pattern = r"^(?:(?:activation |gradient )?checkpointing|ac|(?:grad[- ])?ckpt)[ :=]+(\d+) layers|^num[-_ ]ckpt[-_ ]layers[ :=]+(\d+)$";
    Regex::new(pattern).expect("the pattern is right")
});

/// What PyTorch's selective checkpointing is called.
const SELECTIVE: [&str; 4] = ["selective ac", "sac", "selective activation checkpointing", "selective checkpointing"];

/// What is computed again by words that are not blank; nothing when they say nothing.
fn stated_recompute(run: &Run, text: &str) -> Option<Recompute> {
    let layers = numbers(text);
    if text.starts_with("select [") {
        // MindFormers' select_recompute: activations and multiplications between products.
        return Some(Recompute { layers, parts: parts_of(&[(Kind::Vector, 0.5)]) });
    }
    let partial = || text.starts_with("partial list").then(|| layers.clone());
    if let Some(layers) = of_stages(run, text).or_else(partial) {
        return Some(Recompute { layers, ..Recompute::full() });
    }
    if ["but attention", "except attention"].iter().any(|words| text.contains(words)) {
        let mut all = Recompute::full();
        all.parts[Kind::Attention.number()] = 0.0;
        return Some(all);
    }
    let begin = first_words(text);
    if begin.starts_with("full") || ALL.contains(&begin.as_str()) {
        let layers = match (text.contains("block"), part_of_layers(text)) {
            (true, _) if !layers.is_empty() => layers[..1].to_vec(),
            (_, Some(some)) => vec![some.div_ceil(run.degree("pp") as u32)],
            _ => vec![],
        };
        return Some(Recompute { layers, ..Recompute::full() });
    }
    if text.contains("every 2nd layer") {
        let half = run.degree("layers").div_ceil(2) / run.degree("pp");
        return Some(Recompute { layers: vec![half as u32], ..Recompute::full() });
    }
    let mut parts = vec![];
    let mut add = |kind: Kind, part: f64| parts.push((kind, part));
    // What Megatron-Core calls these modules; the parts are shares of a layer's work of that kind.
    let mut words: BTreeSet<&str> = text.split(|c: char| !c.is_alphanumeric() && c != '_').collect();
    // As MindSpeed's option calls the activation, and PyTorch its own policy.
    let called = [("recompute activation function", "act"), ("compute intensive ops", "op")];
    words.extend(called.iter().filter(|(phrase, _)| says(text, phrase)).map(|(_, word)| word));
    for word in words {
        match word {
            "attention" | "core_attn" => add(Kind::Attention, 1.0),
            "layernorm" | "norm" | "rmsnorm" | "rms_norm" => add(Kind::Vector, 0.35),
            "act" | "moe_act" => add(Kind::Vector, 0.25),
            "mla_up_proj" => add(Kind::Products, 0.3),
            // Of a mixture only the dense layers have one.
            "mlp" if run.number("experts").unwrap_or(0) > 0 => {
                let dense = run.number("dense_layers").unwrap_or(0) as f64 / run.degree("layers") as f64;
                add(Kind::Products, 0.3 * dense.min(1.0));
            }
            "mlp" => add(Kind::Products, policies::part_of_mlp(run)),
            "shared_expert" => add(Kind::Products, 0.3),
            "moe" => {
                add(Kind::ExpertProducts, 1.0);
                add(Kind::Ep, 1.0);
                add(Kind::Vector, 0.4);
            }
            "op" => BY_OP.iter().for_each(|(kind, part)| add(*kind, *part)),
            _ => {}
        }
    }
    (!parts.is_empty()).then(|| Recompute { parts: parts_of(&parts), layers: vec![] })
}

/// A list of layers, one number for each stage (MindFormers' `recompute: [3, 0]`).
fn of_stages(run: &Run, text: &str) -> Option<Vec<u32>> {
    static LIST: LazyLock<Regex> =
        LazyLock::new(|| Regex::new(r"^(?:recompute )?\[ *\d+(?: *, *\d+)* *\]").expect("the pattern is right"));
    let layers = numbers(LIST.find(text)?.as_str());
    let all: u64 = layers.iter().map(|n| u64::from(*n)).sum();
    (layers.len() as u64 == run.degree("pp") && all <= run.degree("layers")).then_some(layers)
}

/// The part of the work between products that norms and activations are.
const ELEMENTWISE: f64 = 0.6;

/// What stands before a remark, without quotes and in words.
fn first_words(text: &str) -> String {
    let words = text.split(['(', ',', ';', ':']).next().unwrap_or_default();
    words.trim_matches(|c: char| c.is_whitespace() || c == '"').replace(['_', '-'], " ")
}

/// Words by which nothing is computed again, and all.
const NONE: [&str; 19] = [
    "no",
    "off",
    "false",
    "0",
    "disabled",
    "no recompute",
    "no checkpointing",
    "full=false",
    "no ac",
    "ac off",
    "ac none",
    "ac mode none",
    "no sac",
    "no selective ac",
    "no selective activation checkpointing",
    "no ckpt",
    "ckpt off",
    "ckpt none",
    "grad ckpt off",
];
const ALL: [&str; 15] = [
    "true",
    "yes",
    "on",
    "1",
    "all",
    "enabled",
    "checkpoint activations",
    "all layers",
    "uniform",
    "ac",
    "ac on",
    "ckpt",
    "ckpt on",
    "grad ckpt",
    "grad ckpt on",
];
/// Words by which nothing is known.
const UNKNOWN: [&str; 7] = ["", "unknown", "not stated", "not given", "unstated", "?", "n/a"];

/// `16 of 32 layers`, `16 layers of 32`: the 16.
fn part_of_layers(text: &str) -> Option<u32> {
    PART.captures(text)?[1].parse().ok()
}

static PART: LazyLock<Regex> =
    LazyLock::new(|| Regex::new(r"(\d+) (?:of \d+ layers|layers of \d+)").expect("the pattern is right"));

fn numbers(text: &str) -> Vec<u32> {
    text.split(|c: char| !c.is_ascii_digit()).filter_map(|n| n.parse().ok()).collect()
}

/// Does a row say what is computed again? Where it says that the source does not, it is as blank as where it says nothing.
pub fn recompute_is_stated(run: &Run) -> bool {
    let begin = first_words(&run.recompute.to_lowercase());
    !begin.starts_with("per recipe") && !UNKNOWN.contains(&begin.trim())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Of a dense layer the MLP is most; what is named twice is made again once.
    #[test]
    fn mlps_are_as_large_as_they_are() {
        let part = |words: &str| {
            let columns =
                "layers,hidden,heads,kv_heads,ffn_hidden,vocab,seq_len,device,n_devices,gbs,step_time_s,recompute";
            let table = format!("{columns}\n1,8192,64,8,28672,1,1,H100,1,1,1,\"{words}\"\n");
            let run = super::super::runs::read(&table).expect("a table").runs.remove(0);
            recompute(&run).expect("it is known").parts[Kind::Products.number()]
        };
        assert!((0.82..0.83).contains(&part("selective: mlp")));
        assert_eq!(part("selective: mlp mlp"), part("selective: mlp"));
        // Products that policies of MaxText keep are not made again.
        let policies = ["minimal_flash", "save_dot_with_context_except_mlp", "save_out_proj", "remat_policy: full"];
        let [none, mlp, but_out, all] = policies.map(part);
        assert_eq!((none, mlp, all), (0.0, part("selective: mlp"), 1.0));
        assert!((1.0 - but_out - 1.0 / 12.75).abs() < 1e-9, "{but_out}");
        assert_eq!(part("remat_policy=save_out_proj"), but_out);
        let none = ["none; no remat_policy=minimal", "none (remat_policy=save_out_proj only in ablation)"];
        assert_eq!((none.map(part), part("full, not remat_policy=minimal")), ([0.0; 2], 1.0));
    }

    /// What words say of a run of 32 layers in four stages; none where they say nothing.
    fn of(words: &str) -> Option<Result<Recompute, String>> {
        let columns = "layers,hidden,heads,vocab,seq_len,device,n_devices,pp,gbs,step_time_s,recompute";
        let table = format!("{columns}\n32,8,8,1,1,H100,4,4,1,1,\"{words}\"\n");
        let run = super::super::runs::read(&table).expect("a table").runs.remove(0);
        recompute_is_stated(&run).then(|| recompute(&run))
    }

    fn known(words: &str) -> Recompute {
        of(words).unwrap_or_else(|| panic!("`{words}` is blank")).expect("it is known")
    }

    #[test]
    fn words_of_recomputation_are_read() {
        for words in [
            "full",
            "True",
            "yes",
            "activation checkpointing",
            "gradient_checkpointing",
            "grad_checkpoint=True",
            "full (by layer)",
        ] {
            assert_eq!(known(words), Recompute::full(), "{words}");
        }
        for words in [
            "gradient checkpointing: off",
            "No activation checkpointing",
            "none",
            "no",
            "False",
            "off",
            "0",
            "none (not enabled)",
            "swap-attention",
        ] {
            assert_eq!(known(words), Recompute::default(), "{words}");
        }
        assert_eq!(
            ["", "unknown", "not stated", "per recipe (not in table)"].map(|words| of(words).is_none()),
            [true; 4]
        );
        // So many layers of all are a quarter of them on each of four stages; `block` says it of a stage.
        assert_eq!(known("full, 12 layers of 32").layers, vec![3]);
        assert_eq!(known("full except attention"), known("all but attention"));
        assert_eq!((known("full, 16 of 32 layers").layers, known("full: block 3").layers), (vec![4], vec![3]));
        let parts = known("all but attention").parts;
        assert_eq!((parts[Kind::Attention.number()], parts[Kind::Products.number()]), (0.0, 1.0));
        let flags = "--recompute-granularity full --recompute-method block --recompute-num-layers 4";
        assert_eq!(
            (known(flags).layers, known("--recompute-granularity full --recompute-method uniform")),
            (vec![4], Recompute::full())
        );
        assert_eq!(known("--recompute-activations").parts[Kind::Attention.number()], 1.0);
        assert_eq!(
            [
                "gradient_checkpointing=true",
                "gradient_checkpointing: false",
                "no selective activation checkpointing",
                "x"
            ]
            .map(of_options),
            [Some(Recompute::full()), Some(Recompute::default()), Some(Recompute::default()), None]
        );
    }

    #[test]
    fn systems_have_words_of_their_own() {
        for (words, as_much_as) in [
            ("recompute=True", "full"),
            ("recompute: none", "none"),
            ("AC off", "none"),
            ("No AC", "none"),
            ("full AC", "full"),
            ("grad-ckpt on", "full"),
            ("SAC", "selective (op)"),
            ("selective activation checkpointing", "selective (op)"),
            ("selective AC", "selective (op)"),
            ("num-ckpt-layers 5", "full, 5 of 32 layers"),
            ("activation checkpointing: 10 layers", "full, 10 of 32 layers"),
            ("AC: 12 layers of 32", "full, 12 layers of 32"),
            ("none; no SAC", "none"),
            ("none (AC only in ablation)", "none"),
            ("No SAC", "none"),
            ("no selective activation checkpointing", "none"),
            ("ckpt off", "none"),
            ("full AC, 12 of 32 layers", "full, 12 of 32 layers"),
            ("full AC: block 2", "full: block 2"),
            ("AC: all but attention", "all but attention"),
            ("selective AC: core_attn", "selective: core_attn"),
            ("selective (AC: attention, norm)", "selective: attention, norm"),
            ("selective AC, every 2nd layer", "selective: every 2nd layer"),
            ("selective: RMSNorm", "selective: layernorm"),
            ("recompute-activation-function", "selective: act"),
            ("selective: compute-intensive ops saved", "selective (op)"),
            ("recompute [3, 0, 1, 2] (layers of 4 stages)", "partial list [3, 0, 1, 2]"),
            ("[core_attn, norm]", "selective: core_attn, norm"),
            ("selective: act, recompute-activation-function", "selective: act"),
        ] {
            assert_eq!(known(words), known(as_much_as), "{words}");
        }
        for words in ["sometimes", "[1, 2]", "[99, 0, 0, 0]", "[none]", "no recompute-activation-function"] {
            assert!(of(words).expect("it says something").is_err(), "{words}");
        }
    }
}
