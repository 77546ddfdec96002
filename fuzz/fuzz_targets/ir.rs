//! Any text as textual IR: graphs print and parse back, modules compile or are refused.
#![no_main]

use forebay_ir::text::{parse_module, print_module, render};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &str| {
    match parse_module(text) {
        Ok(graphs) => {
            let printed = print_module(&graphs);
            let again = parse_module(&printed).unwrap_or_else(|e| panic!("{}", render(&e, &printed, "printed")));
            assert_eq!(print_module(&again), printed);
            graphs.iter().for_each(|graph| drop(forebay_ir::verify::verify(graph)));
        }
        Err(errors) => assert!(!render(&errors, text, "fuzz.ir").is_empty()),
    }
    if let Err(errors) = forebay_compiler::module::parse(text) {
        assert!(!errors.is_empty());
    }
});
