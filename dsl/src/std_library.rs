//! The standard library: blocks written in the language, embedded in the compiler.

use crate::diagnostics::{Source, SourceId};
use crate::parse::{Parsed, parse};
use std::sync::OnceLock;

macro_rules! files {
    ($($name:literal),* $(,)?) => {
        /// Names and texts, sorted by name.
        pub const FILES: &[(&str, &str)] = &[$(($name, include_str!(concat!("../std/", $name)))),*];
    };
}

files![
    "activation.moe",
    "attention.moe",
    "dropout.moe",
    "embedding.moe",
    "experts.moe",
    "linear.moe",
    "loss.moe",
    "mla.moe",
    "mtp.moe",
    "norm.moe",
    "position.moe",
    "router.moe",
    "softmax.moe",
];

/// The library's files as syntax trees. Their sources are numbered from 1 on; 0 is the user's file.
pub fn parsed() -> &'static [Parsed] {
    static PARSED: OnceLock<Vec<Parsed>> = OnceLock::new();
    PARSED.get_or_init(|| FILES.iter().enumerate().map(|(i, (_, text))| parse(text, SourceId(i as u32 + 1))).collect())
}

/// All texts that diagnostics of a file can point into: the file itself and the library.
pub fn sources<'a>(name: &'a str, text: &'a str) -> Vec<Source<'a>> {
    let library = FILES.iter().map(|(name, text)| Source::new(format!("<std>/{name}"), *text));
    std::iter::once(Source::new(name, text)).chain(library).collect()
}
