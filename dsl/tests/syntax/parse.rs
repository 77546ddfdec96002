//! Good programs: the tree.

use crate::{check, read, tree};
use forebay_dsl::diagnostics::{Source, SourceId, render};
use forebay_dsl::parse::{parse_const_expr, parse_program};

#[test]
fn trees() {
    insta::glob!("../parse", "*.moe", |path| {
        let text = read(path);
        let parsed = parse_program(&text, SourceId(0));
        let messages = render(&parsed.diagnostics, &[Source::new("input.moe", &text)], false);
        assert!(parsed.diagnostics.is_empty(), "{}\n{messages}", path.display());
        check(path, &tree::dump(&parsed.file));
    });
}

/// The library and the example models are read without a complaint, and are in canonical layout up to width.
#[test]
fn shipped_files() {
    let root = concat!(env!("CARGO_MANIFEST_DIR"), "/");
    for directory in ["std", "../examples/models"] {
        let entries = std::fs::read_dir(format!("{root}{directory}")).expect("a folder of the repository");
        let is_model = |path: &std::path::PathBuf| path.extension().is_some_and(|extension| extension == "moe");
        let paths: Vec<_> = entries.map(|entry| entry.expect("readable").path()).filter(is_model).collect();
        assert!(!paths.is_empty(), "{directory} has no models");
        paths.iter().for_each(|path| drop(crate::format::check_round_trip(&read(path))));
    }
}

#[test]
fn constants_of_the_command_line() {
    let kind = |text: &str| parse_const_expr(text, SourceId(0)).map(|expr| format!("{:?}", expr.kind));
    assert_eq!(kind("12").unwrap(), "Int(12)");
    assert_eq!(kind(" 1e-6 ").unwrap(), "Float(1e-6)");
    assert_eq!(kind("\"yarn\"").unwrap(), "Str(\"yarn\")");
    assert_eq!(kind("yarn").unwrap(), "Name(\"yarn\")");
    assert!(kind("2 * (d + 1)").is_ok());
    for bad in ["", "1 2", "(1", "1)", "x =", "\"a", "1\n2", "99999999999999999999"] {
        assert_eq!(kind(bad).unwrap_err().len(), 1, "{bad:?}");
    }
}
