//! The formatter on chosen inputs; `properties` has the rest.

use crate::{check, read, tree};
use forebay_dsl::diagnostics::SourceId;
use forebay_dsl::format::{WIDTH, format};
use forebay_dsl::parse::parse;

/// Formats, and asserts what the formatter promises: the same tree, the same comments in the same order, and nothing left
/// to do for a second run.
pub fn check_round_trip(text: &str) -> String {
    let formatted = format(text).unwrap_or_else(|errors| panic!("{text}\n{errors:#?}"));
    let (before, after) = (parse(text, SourceId(0)), parse(&formatted, SourceId(0)));
    assert!(after.diagnostics.is_empty(), "{text}\n=>\n{formatted}\n{:#?}", after.diagnostics);
    let (old, new) = (tree::without_spans(&before.file), tree::without_spans(&after.file));
    assert_eq!(old, new, "\n{text}\n=>\n{formatted}");
    let comments = |text: &str, parsed: &forebay_dsl::parse::Parsed| -> Vec<String> {
        let place = |c: &forebay_dsl::lex::Comment| text[c.span.start as usize..c.span.end as usize].to_string();
        parsed.comments.iter().map(place).collect()
    };
    assert_eq!(comments(text, &before), comments(&formatted, &after), "\n{text}\n=>\n{formatted}");
    let again = format(&formatted).expect("formatted text has no errors");
    assert_eq!(formatted, again, "\n{text}\nis not stable");
    assert!(formatted.lines().all(|line| line.trim_end() == line), "trailing space:\n{formatted}");
    assert!(!formatted.contains("\n\n\n") && !formatted.starts_with('\n') && !formatted.ends_with("\n\n"));
    formatted
}

#[test]
fn layout() {
    insta::glob!("../format", "*.moe", |path| {
        let formatted = check_round_trip(&read(path));
        let code = |line: &'_ str| line.split("//").next().unwrap_or("").trim_end().chars().count();
        let too_wide = formatted.lines().find(|line| code(line) > WIDTH && !line.contains("very_very_long"));
        assert_eq!(too_wide, None);
        check(path, &formatted);
    });
}

#[test]
fn refuses_files_with_errors() {
    assert_eq!(format("model M(d = 1) { x = }").unwrap_err().len(), 1);
}

#[test]
fn empty_files() {
    assert_eq!(check_round_trip(""), "");
    assert_eq!(check_round_trip(" \n\r\n\t"), "");
    assert_eq!(check_round_trip("\n\n// a\n\n\n// b"), "// a\n\n// b\n");
}
