//! What a row says of its model beside its columns: in words.

use super::Latent;
use crate::says::{is_denied, number_of, said, said_any, says, spaced};
use crate::validate::family::Family;
use regex_lite::Regex;
use std::sync::LazyLock;

/// What says that networks have a gate.
const GATED: [&str; 5] = ["swiglu", "geglu", "gated gelu", "gated", "glu"];
/// What says that they have none.
pub const UNGATED: [&str; 4] = ["gelu", "squared relu", "ungated", "non-gated"];

/// Do networks have a gate?
pub fn is_gated(text: &str) -> bool {
    GATED.iter().any(|words| says(text, words))
}

/// What says how many positions attention sees.
pub const WINDOW: [&str; 1] = ["sliding window"];

/// Of how many layers one sees all positions, where a row says so: `in five of six layers`, `sliding_window_pattern=6`.
pub fn full_every(text: &str) -> Option<u64> {
    static OF_LAYERS: LazyLock<Regex> = LazyLock::new(|| {
        Regex::new(r"\bin (\w+) (?:of|out of) (?:every )?(\w+) layers").expect("the pattern is right")
    });
    if let Some(every) = number_of(text, "sliding_window_pattern") {
        return Some(every as u64);
    }
    // (Other things are in some layers, too.)
    let from = WINDOW.iter().filter_map(|words| spaced(text).find(words)).min()?;
    let part = text[from..].split(';').next()?;
    // (`sliding window 4,096, in five of six layers` is one thing, and what is done in some layers after it another.)
    let part = &part[..part.match_indices(", ").nth(1).map_or(part.len(), |(at, _)| at)];
    let other = ["recomput", "checkpoint", "expert", "moe"];
    let part = match part.split_once(", ") {
        Some((first, second)) if other.iter().any(|word| second.contains(word)) => first,
        _ => part,
    };
    if EVERY_OTHER.iter().any(|words| says(part, words)) {
        return Some(2);
    }
    let found = OF_LAYERS.captures(part)?;
    let count = |word: &str| {
        let words = ["one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten"];
        word.parse().ok().or_else(|| Some(words.iter().position(|of| *of == word)? as u64 + 1))
    };
    let (windowed, all): (u64, u64) = (count(&found[1])?, count(&found[2])?);
    (windowed + 1 == all).then_some(all)
}

/// Tokens of a document in the mean, where a row says so: `packed documents of 2,048 tokens`, `document_length=2048`.
pub fn documents(text: &str) -> Option<u64> {
    static TOKENS: LazyLock<Regex> = LazyLock::new(|| {
        let number = r"(\d{1,3}(?:,\d{3})+|\d+)( ?ki?\b)?";
        let named = format!(r"(?:document[-_ ](?:length|tokens)|tokens of a document)[ =:]+{number}(?: tokens)?");
        let pattern = format!(r"\b(?:documents of (?:about )?{number} tokens|{named})(?:$|[ ;,.)])");
        Regex::new(&pattern).expect("the pattern is right")
    });
    let is_mean = |before: &str| {
        let words = before.trim_end_matches([' ', '.']);
        let word = words.rsplit(|c: char| !c.is_alphanumeric()).next().unwrap_or_default();
        !is_denied(before, "") && !["max", "maximum", "longest", "min", "minimum", "median"].contains(&word)
    };
    let found =
        TOKENS.captures_iter(text).find(|found| found.get(0).is_some_and(|all| is_mean(&text[..all.start()])))?;
    let number = found.get(1).or_else(|| found.get(3))?.as_str().replace(',', "");
    let thousands = found.get(2).or_else(|| found.get(4)).is_some();
    let tokens = number.parse::<u64>().ok()?.checked_mul(if thousands { 1024 } else { 1 })?;
    let masks = ["packing", "document mask", "document masking", "reset_attention_mask"];
    let whole = masks.iter().any(|words| said(text, words) == Some(false)) || says(text, "not masked");
    // (Fewer are a number of something else.)
    (tokens >= LEAST_OF_DOCUMENT && !whole).then_some(tokens)
}

const LEAST_OF_DOCUMENT: u64 = 16;

/// Are rows packed with several documents?
pub fn is_packed(text: &str) -> bool {
    let text = text.to_lowercase();
    let is_option = |part: &str| matches!(part.trim_matches([' ', '-']), "packing" | "packing=1" | "use_packing=1");
    said_any(&text, &PACKED) == Some(true) || text.split([',', ';', '(', ')']).any(is_option)
}

/// What says that they are.
const PACKED: [&str; 9] = [
    "packing true",
    "packing=true",
    "packing: true",
    "sequence packing",
    "sample packing",
    "packed sequences",
    "packed documents",
    "packed rows",
    "packed samples",
];

/// Is there a layer that predicts one token further? Models have one that is not trained with them, so that a name alone does not say it.
pub fn predicts_further(text: &str) -> bool {
    const DEPTHS: [&str; 3] = ["mtp depth", "mtp num layers", "num nextn predict layers"];
    const WITHOUT: [&str; 6] =
        ["no mtp", "without mtp", "mtp disabled", "mtp off", "mtp not trained", "mtp is not trained"];
    let is_there = says(text, "mtp layer included") || DEPTHS.iter().any(|words| number_of(text, words) >= Some(1.0));
    let is_without = |part: &str| WITHOUT.contains(&spaced(part).trim());
    is_there && !text.split([',', ';', '(', ')']).any(is_without)
}

/// Every second one.
const EVERY_OTHER: [&str; 3] = ["every other layer", "every second layer", "alternate layers"];

/// Of how many layers one has experts, where a row or its family says so.
pub fn experts_every(text: &str, family: &Family) -> u64 {
    const STEPS: [&str; 2] = ["moe_layer_freq", "interleave_moe_layer_step"];
    // Other things are done in every other layer as well.
    let is_of_experts = |part: &&str| {
        let has = |words: &[&str]| words.iter().any(|word| part.contains(word));
        has(&["moe", "expert"]) && has(&["layer"]) && !has(&["recomput", "checkpoint"])
    };
    let of_part = |part: &str| {
        let other = EVERY_OTHER.iter().any(|words| says(part, words)).then_some(2);
        other.or_else(|| number_of(part, "every").map(|step| step as u64))
    };
    let stated = STEPS.iter().find_map(|words| number_of(text, words)).map(|step| step as u64);
    let in_words = || text.split([',', ';', '(', ')']).filter(is_of_experts).find_map(of_part);
    stated.or_else(in_words).unwrap_or(family.experts_every)
}

/// `MLA q_lora=1536 kv_lora=512 nope=128 rope=64 v=128`; as configurations call them, and with commas, too.
///
/// # Errors
/// A size that is missing: a sentence.
pub fn latent(text: &str) -> Result<Option<Latent>, String> {
    if !text.to_lowercase().contains("mla") {
        return Ok(None);
    }
    let words = || text.split(|c: char| c.is_whitespace() || matches!(c, ',' | ';' | '(' | ')'));
    let of = |keys: [&str; 2]| {
        let value = |word: &str| keys.iter().find_map(|key| word.strip_prefix(key)?.strip_prefix('=')?.parse().ok());
        words().find_map(value)
    };
    let need = |keys: [&str; 2]| {
        of(keys).ok_or_else(|| {
            format!(
                "`head_dim` is of latent attention, without `{}`\n  = help: as in MLA q_lora=1536 kv_lora=512 nope=128 rope=64 v=128",
                keys[0]
            )
        })
    };
    Ok(Some(Latent {
        q: of(["q_lora", "q_lora_rank"]).unwrap_or(0),
        kv: need(["kv_lora", "kv_lora_rank"])?,
        nope: need(["nope", "qk_nope_head_dim"])?,
        rope: need(["rope", "qk_rope_head_dim"])?,
        value: need(["v", "v_head_dim"])?,
    }))
}
