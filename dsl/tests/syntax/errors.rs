//! Bad programs: the messages.

use crate::{check, read};
use forebay_dsl::ast::Span;
use forebay_dsl::diagnostics::{Diagnostic, MAX_SHOWN, Source, SourceId, closest, render};
use forebay_dsl::parse::parse_program;
use std::collections::BTreeSet;

#[test]
fn messages() {
    insta::glob!("../errors", "*.moe", |path| {
        let text = read(path);
        let parsed = parse_program(&text, SourceId(0));
        assert!(!parsed.diagnostics.is_empty(), "{} has no error", path.display());
        check(path, &render(&parsed.diagnostics, &[Source::new("model.moe", &text)], false));
    });
}

/// Every code of the parser's list is shown by some input, so that each message is looked at.
#[test]
fn every_code_has_an_input() {
    let root = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/errors");
    let mut seen: BTreeSet<&str> = BTreeSet::new();
    for entry in std::fs::read_dir(root).expect("the inputs are there") {
        let path = entry.expect("readable").path();
        if path.extension().is_some_and(|extension| extension == "moe") {
            seen.extend(parse_program(&read(&path), SourceId(0)).diagnostics.iter().map(|d| d.code));
        }
    }
    // E0001 and E0199 need long inputs, see `hostile`.
    let all: BTreeSet<&str> = [
        "E0002", "E0003", "E0004", "E0005", "E0101", "E0102", "E0103", "E0104", "E0105", "E0106", "E0107", "E0108",
        "E0109", "E0110", "E0111", "E0112", "E0113", "E0114", "E0115", "E0116", "E0117",
    ]
    .into();
    assert_eq!(seen, all);
}

#[test]
fn several_sources() {
    let sources = [Source::new("model.moe", "x = moe(y)\n"), Source::new("<std>/moe.moe", "// library\nz = w + 1\n")];
    let diagnostic = Diagnostic::warning("E0900", SourceId(1), Span { start: 15, end: 16 }, "`w` is odd")
        .label("this one")
        .related(SourceId(0), Span { start: 4, end: 10 }, "in this call")
        .help("use another");
    insta::assert_snapshot!(render(&[diagnostic], &sources, false), @r"
    warning[E0900]: `w` is odd
     --> <std>/moe.moe:2:5
      |
    2 | z = w + 1
      |     ^ this one
      |
      = help: use another
    note: in this call
     --> model.moe:1:5
      |
    1 | x = moe(y)
      |     ^^^^^^
    ");
}

#[test]
fn far_apart_places_are_separate_excerpts() {
    let text = format!("a\n{}b\n", "\n".repeat(1000));
    let diagnostic = Diagnostic::error("E0900", SourceId(0), Span { start: 1002, end: 1003 }, "b")
        .secondary(Span { start: 0, end: 1 }, "a");
    insta::assert_snapshot!(render(&[diagnostic], &[Source::new("m", text)], false), @r"
    error[E0900]: b
        --> m:1002:1
         |
    1002 | b
         | ^
         |
        ::: m:1:1
         |
       1 | a
         | - a
    ");
}

#[test]
fn color_adds_only_escapes() {
    let diagnostic = Diagnostic::error("E0900", SourceId(0), Span { start: 0, end: 1 }, "odd").help("so");
    let sources = [Source::new("m", "a\n")];
    let colored = render(std::slice::from_ref(&diagnostic), &sources, true);
    let mut plain = String::new();
    let mut escape = false;
    for character in colored.chars() {
        match character {
            '\x1b' => escape = true,
            'm' if escape => escape = false,
            _ if escape => {}
            _ => plain.push(character),
        }
    }
    assert_ne!(colored, plain);
    assert_eq!(plain, render(&[diagnostic], &sources, false));
}

#[test]
fn long_lines_are_cut() {
    let text = format!("{} y {}", "ä".repeat(1 << 20), "ö".repeat(1 << 20));
    let at = text.find('y').unwrap() as u32;
    let diagnostic = Diagnostic::error("E0900", SourceId(0), Span { start: at, end: at + 1 }, "n".repeat(1 << 20));
    let shown = render(&[diagnostic.label("here")], &[Source::new("m", text)], false);
    assert!(shown.len() < 10_000, "{}", shown.len());
    assert!(shown.contains("m:1:1048578\n") && shown.contains("^ here"), "{shown}");
}

#[test]
fn places_outside_the_source_do_no_harm() {
    let sources = [Source::new("m", "é\n")];
    for (start, end) in [(1, 1), (0, 9), (9, 12), (2, 0), (u32::MAX, u32::MAX)] {
        let diagnostic =
            Diagnostic::error("E0900", SourceId(0), Span { start, end }, "m").secondary(Span { start: end, end }, "");
        assert!(render(&[diagnostic], &sources, false).contains("E0900"));
    }
    let elsewhere = Diagnostic::error("E0900", SourceId(7), Span::default(), "m");
    assert!(render(&[elsewhere], &[], false).contains("E0900"));
}

#[test]
fn only_the_first_are_shown() {
    let diagnostic = Diagnostic::error("E0900", SourceId(0), Span::default(), "odd");
    let shown = render(&vec![diagnostic; MAX_SHOWN + 7], &[Source::new("m", "")], false);
    assert_eq!(shown.matches("E0900").count(), MAX_SHOWN);
    assert!(shown.ends_with("… and 7 more\n"));
}

#[test]
fn spelling() {
    let words = ["param", "repeat", "if"];
    assert_eq!(closest("parma", words), Some("param"));
    assert_eq!(closest("rpeat", words), Some("repeat"));
    assert_eq!(closest("x", words), None);
    assert_eq!(closest("weights", words), None);
    assert_eq!(closest(&"a".repeat(1 << 20), words), None);
}
