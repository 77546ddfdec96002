//! Any text as a model file: an answer that can be shown, a format that is canonical, and graphs that verify.
#![no_main]

use forebay_dsl::diagnostics::render;
use forebay_dsl::model::{CheckOptions, Limits};
use forebay_dsl::{format, load, std_library};
use forebay_ir::DType;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &str| {
    if let Ok(once) = format::format(text) {
        assert_eq!(format::format(&once).expect("what was printed is a model"), once);
    }
    let options = CheckOptions {
        overrides: vec![],
        narrow: DType::BF16,
        wide: DType::F32,
        training: true,
        micro_batches: 1,
        limits: Limits { nodes: 2_000, layers: 50 },
    };
    match load(text, &options) {
        Ok(accepted) => {
            for graph in accepted.model.segments.iter().flat_map(|s| s.update.iter().chain([&s.forward])) {
                if let Err(violations) = forebay_ir::verify::verify(graph) {
                    panic!("{}", forebay_ir::verify::render(graph, &violations));
                }
            }
        }
        Err(diagnostics) => {
            assert!(!diagnostics.is_empty());
            assert!(!render(&diagnostics, &std_library::sources("fuzz.moe", text), false).is_empty());
        }
    }
});
