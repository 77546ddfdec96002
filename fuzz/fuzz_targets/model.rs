//! Any text as a model file: an answer that can be shown, a format that is canonical, and graphs that verify.
#![no_main]

use forebay_dsl::diagnostics::render;
use forebay_dsl::model::{CheckOptions, Limits};
use forebay_dsl::{format, load, std_library};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &str| {
    if let Ok(once) = format::format(text) {
        assert_eq!(format::format(&once).expect("what was printed is a model"), once);
    }
    let options = CheckOptions { limits: Limits { nodes: 2_000, layers: 50 }, ..CheckOptions::default() };
    match load(text, &options) {
        Ok(accepted) => {
            for segment in &accepted.model.segments {
                if let Err(violations) = forebay_ir::verify::verify(&segment.graph) {
                    panic!("{}", forebay_ir::verify::render(&segment.graph, &violations));
                }
            }
        }
        Err(diagnostics) => {
            assert!(!diagnostics.is_empty());
            assert!(!render(&diagnostics, &std_library::sources("fuzz.moe", text), false).is_empty());
        }
    }
});
