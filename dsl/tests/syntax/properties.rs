//! Whatever the input: no panic, places within the text, an error if and only if the tree is incomplete. For correct
//! programs: the promises of the formatter.

use crate::format::check_round_trip;
use crate::{generate, read, tree};
use forebay_dsl::ast::Span;
use forebay_dsl::diagnostics::{Source, SourceId, render};
use forebay_dsl::format::format;
use forebay_dsl::parse::{parse, parse_const_expr, parse_program};
use proptest::prelude::*;

/// What holds for every text.
fn check_any(text: &str) {
    let parsed = parse(text, SourceId(0));
    let in_text = |span: Span| {
        let (start, end) = (span.start as usize, span.end as usize);
        start <= end && text.is_char_boundary(start) && text.is_char_boundary(end)
    };
    for diagnostic in &parsed.diagnostics {
        assert!(in_text(diagnostic.span), "{text:?}: {diagnostic:?}");
        assert!(diagnostic.secondary.iter().all(|(span, _)| in_text(*span)), "{text:?}: {diagnostic:?}");
        assert!(!diagnostic.message.is_empty() && !diagnostic.message.ends_with('.'), "{diagnostic:?}");
    }
    let places: Vec<u32> = parsed.diagnostics.iter().map(|d| d.span.start).collect();
    assert!(places.is_sorted());
    render(&parsed.diagnostics, &[Source::new("any.moe", text)], false);
    let complete = !tree::without_spans(&parsed.file).contains("kind: Error");
    assert!(complete || !parsed.diagnostics.is_empty(), "{text:?} has an error without a message");
    assert_eq!(format(text).is_ok(), parsed.diagnostics.is_empty());
    if parsed.diagnostics.is_empty() {
        check_round_trip(text);
    }
    let _ = (parse_program(text, SourceId(0)), parse_const_expr(text, SourceId(0)));
}

const TOKENS: &[&str] = &[
    "(", ")", "[", "]", "{", "}", ",", ":", "..", "@", "+", "-", "*", "/", "%", "^", "=", "==", "!=", "<", "<=", ">",
    ">=", "model", "block", "input", "const", "param", "state", "stat", "update", "loss", "output", "repeat", "if",
    "else", "return", "and", "or", "not", "none", "true", "false", "over", "at", "per", "weight", "scope", "as", "in",
    "into", "x", "y", "sum", "12", "1.5", "1e-6", "\"s\"", "\"", "// c\n", "\n", ";", "$", "é", "1x", ".",
];

fn token() -> impl Strategy<Value = &'static str> {
    prop::sample::select(TOKENS)
}

/// Correct programs to start mutations from.
fn programs() -> Vec<String> {
    let root = concat!(env!("CARGO_MANIFEST_DIR"), "/tests");
    let mut programs = Vec::new();
    for directory in ["parse", "format"] {
        let entries = std::fs::read_dir(format!("{root}/{directory}")).expect("the inputs are there");
        let mut paths: Vec<_> = entries.map(|entry| entry.expect("readable").path()).collect();
        paths.retain(|path| path.extension().is_some_and(|extension| extension == "moe"));
        paths.sort();
        programs.extend(paths.iter().map(|path| read(path)));
    }
    programs
}

/// One edit: at a place, given as a share of the text, remove some bytes and insert something.
type Edit = (f64, usize, String);

fn edit() -> impl Strategy<Value = Edit> {
    let insert = prop_oneof![
        2 => Just(String::new()),
        4 => token().prop_map(String::from),
        1 => token().prop_map(|token| format!(" {token} ")),
        1 => any::<char>().prop_map(String::from),
    ];
    (0.0..1.0, prop_oneof![Just(0usize), 0..4usize, 0..60usize], insert)
}

fn mutate(program: &str, edits: &[Edit]) -> String {
    let mut text: Vec<char> = program.chars().collect();
    for (place, removed, inserted) in edits {
        let start = (place * text.len() as f64) as usize;
        let end = (start + removed).min(text.len());
        text.splice(start..end, inserted.chars());
    }
    text.into_iter().collect()
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn correct_programs(text in generate::program()) {
        check_round_trip(&text);
    }

    #[test]
    fn bytes(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
        check_any(&String::from_utf8_lossy(&bytes));
    }

    #[test]
    fn text(text in "\\PC{0,200}") {
        check_any(&text);
    }

    #[test]
    fn token_soup(tokens in prop::collection::vec(token(), 0..120), spaced in any::<bool>()) {
        let text = tokens.join(if spaced { " " } else { "" });
        check_any(&text);
        check_any(&format!("model M(batch = 8) {{\n{text}\n}}\nblock b(x[.., d]) {{ return x }}"));
    }

    #[test]
    fn mutated_programs(
        program in prop::sample::select(programs()),
        edits in prop::collection::vec(edit(), 1..6),
    ) {
        check_any(&mutate(&program, &edits));
    }

    #[test]
    fn truncated_programs(program in generate::program(), share in 0.0..1.0) {
        check_any(&mutate(&program, &[(share, usize::MAX / 2, String::new())]));
    }
}
