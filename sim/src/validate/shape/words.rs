//! What a row says of its model beside its columns: in words.

use super::Latent;
use crate::says::{number_of, said_any, says, spaced};
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
    static OF_TOKENS: LazyLock<Regex> = LazyLock::new(|| {
        Regex::new(r"\bdocuments of (?:about )?(\d{1,3}(?:,\d{3})+|\d+)(k?) tokens").expect("the pattern is right")
    });
    let named = DOCUMENTS.iter().find_map(|words| number_of(text, words)).map(|tokens| tokens as u64);
    let described = || {
        let found = OF_TOKENS.captures(text)?;
        let number: u64 = found[1].replace(',', "").parse().ok()?;
        number.checked_mul(if found[2].is_empty() { 1 } else { 1024 })
    };
    named.or_else(described).filter(|tokens| *tokens > 0)
}

/// What is called so is how many tokens a document has in the mean.
const DOCUMENTS: [&str; 3] = ["document length", "document tokens", "tokens of a document"];

/// Are rows packed with several documents?
pub fn is_packed(text: &str) -> bool {
    said_any(&text.to_lowercase(), &PACKED) == Some(true)
}

/// What says that they are.
const PACKED: [&str; 5] = ["packing", "packed sequences", "packed documents", "packed rows", "packed samples"];

/// Is there a layer that predicts one token further? Models have one that is not trained with them, so that a name alone does not say it.
pub fn predicts_further(text: &str) -> bool {
    const DEPTHS: [&str; 3] = ["mtp depth", "mtp num layers", "num nextn predict layers"];
    says(text, "mtp layer included") || DEPTHS.iter().any(|words| number_of(text, words) == Some(1.0))
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
