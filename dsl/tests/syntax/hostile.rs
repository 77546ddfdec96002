//! Inputs made to overflow the stack or to take quadratic time. Each runs on a thread with 2 MiB of stack, and everything
//! a caller does with a tree (clone, compare, print, drop) is done there too.

use forebay_dsl::diagnostics::{Source, SourceId, render};
use forebay_dsl::format::format;
use forebay_dsl::lex::{MAX_DIAGNOSTICS, MAX_SOURCE};
use forebay_dsl::parse::{MAX_BODIES, MAX_DEPTH, MAX_HEIGHT, Parsed, parse};
use std::time::{Duration, Instant};

const N: usize = 100_000;
/// Generous: these take some 10 ms on an idle machine, and minutes where something is quadratic.
const LIMIT: Duration = Duration::from_secs(20);

/// Does all that can be done with a source. Returns the codes of its diagnostics.
fn survive(name: &str, source: String) -> Vec<&'static str> {
    let thread = std::thread::Builder::new().stack_size(2 << 20).name(name.into());
    let run = move || {
        let started = Instant::now();
        let parsed = parse(&source, SourceId(0));
        let shown = render(&parsed.diagnostics, &[Source::new("hostile.moe", &source)], false);
        assert!(shown.len() < 1 << 20, "{} bytes of messages", shown.len());
        let copy = parsed.file.clone();
        assert_eq!(copy, parsed.file);
        drop(copy);
        assert_eq!(format(&source).is_ok(), parsed.diagnostics.is_empty());
        if source.len() < 1 << 16 {
            assert!(!format!("{:?}", parsed.file).is_empty());
        }
        let codes = codes(&parsed);
        drop(parsed);
        assert!(started.elapsed() < LIMIT, "took {:?}", started.elapsed());
        codes
    };
    let name = name.to_string();
    thread.spawn(run).expect("threads can be started").join().unwrap_or_else(|_| panic!("{name} failed"))
}

fn codes(parsed: &Parsed) -> Vec<&'static str> {
    parsed.diagnostics.iter().map(|d| d.code).collect()
}

fn model(body: &str) -> String {
    format!("model M(batch = 8) {{\n{body}\n}}\n")
}

#[test]
fn deep_expressions() {
    let n = N;
    let cases = [
        ("parentheses", format!("x = {}a{}", "(".repeat(n), ")".repeat(n))),
        ("open parentheses", format!("x = {}", "(".repeat(n))),
        ("calls", format!("x = {}a{}", "f(".repeat(n), ")".repeat(n))),
        ("named arguments", format!("x = {}a{}", "f(a = ".repeat(n), ")".repeat(n))),
        ("indices", format!("x = {}a{}", "a[".repeat(n), "]".repeat(n))),
        ("targets", format!("{}a{} = 3", "a[".repeat(n), "]".repeat(n))),
        ("minus", format!("x = {}a", "-".repeat(n))),
        ("not", format!("x = {}a", "not ".repeat(n))),
        ("powers", format!("x = {}a", "a^".repeat(n))),
        ("sums", format!("x = {}a", "a + ".repeat(n))),
        ("readings", format!("x = a{}", "[i]".repeat(n))),
        ("definitions", format!("x = (a){}", "[i]".repeat(n))),
        ("sizes", format!("param w[a: {}", "f(a: ".repeat(n))),
        ("initialisers", format!("param w[] = normal({}", "(".repeat(n))),
        ("conditions", format!("if {}a {{ x = 1 }}", "(".repeat(n))),
        ("rows", format!("x = {}", "(a at ".repeat(n))),
        ("slices", format!("x = {}", "a[s: 1..a[".repeat(n))),
    ];
    for (name, body) in cases {
        let codes = survive(name, model(&body));
        assert!(codes.contains(&"E0104") && codes.len() <= 2, "{name}: {codes:?}");
    }
}

#[test]
fn deep_bodies() {
    let n = N;
    let cases = [
        ("repeats", format!("{}{}", "repeat a {".repeat(n), "}".repeat(n))),
        ("open repeats", "repeat a {".repeat(n)),
        ("open ifs", "if a {\n".repeat(n)),
        ("elses", format!("{}{}", "if a { } else { ".repeat(n), "}".repeat(n))),
        ("unknown", format!("{}{}", "rpeat a {".repeat(n), "}".repeat(n))),
    ];
    for (name, body) in cases {
        let codes = survive(name, model(&body));
        assert!(codes.contains(&"E0104") && codes.len() <= 2 + MAX_BODIES as usize, "{name}: {codes:?}");
    }
}

#[test]
fn brackets_that_do_not_match() {
    let n = N;
    let cases = [
        ("mixed", "([{".repeat(n)),
        ("wrong", format!("{}{}", "(".repeat(n), "]".repeat(n))),
        ("crossed", format!("{}{}", "([".repeat(n), ")".repeat(n))),
        ("crossed back", format!("{}{}", "([".repeat(n), "])".repeat(n))),
        ("split", format!("x = {}{}", "a[(i, j: ".repeat(n), "]".repeat(n))),
        ("braces", "{".repeat(n)),
        ("closing", "}".repeat(n)),
        ("opening lines", "x = (a\n".repeat(n)),
        ("blocks", "block f(x) {".repeat(n)),
        ("models", "model ".repeat(n)),
        ("lists", "x = f(a b, [c d, ".repeat(n)),
    ];
    for (name, body) in cases {
        assert!(!survive(name, model(&body)).is_empty(), "{name}");
        assert!(!survive(name, body).is_empty(), "{name}");
    }
}

#[test]
fn long_tokens() {
    let long = "a".repeat(5_000_000);
    let digits = "1".repeat(5_000_000);
    assert!(survive("name", model(&format!("x = {long}"))).is_empty());
    assert_eq!(survive("names", model(&format!("{long} = ? 1"))), ["E0002"]);
    assert_eq!(survive("integer", model(&format!("x = {digits}"))), ["E0005"]);
    assert_eq!(survive("float", model(&format!("x = {digits}.5"))), ["E0005"]);
    assert_eq!(survive("underscores", model(&format!("x = 1{}", "_1".repeat(2_500_000)))), ["E0005"]);
    assert_eq!(survive("bad number", model(&format!("x = 1{long}"))), ["E0004"]);
    assert!(survive("string", model(&format!("x = \"{long}\""))).is_empty());
    assert_eq!(survive("open string", model(&format!("x = \"{long}"))), ["E0003"]);
    assert_eq!(survive("foreign", model(&"é".repeat(2_500_000))), ["E0002"]);
    assert!(survive("comment", format!("//{long}")).is_empty());
    assert_eq!(survive("unknown name", format!("{long} {long}").split_off(2_500_000)), ["E0105"]);
}

#[test]
fn many_of_everything() {
    let n = N;
    assert!(survive("comments", "// a\n".repeat(n)).is_empty());
    assert!(survive("lines", "\n".repeat(5_000_000)).is_empty());
    assert!(survive("blocks", "block f(x) { }\n".repeat(n)).is_empty());
    assert!(survive("statements", model(&"x = a\n".repeat(n))).is_empty());
    assert!(survive("arguments", model(&format!("x = f({}a)", "a, ".repeat(n)))).is_empty());
    assert!(survive("targets", model(&format!("{}a = f(x)", "a, ".repeat(n)))).is_empty());
    assert!(survive("params", model(&format!("param {}w[]", "w[d], ".repeat(n)))).is_empty());
    assert!(survive("branches", model(&format!("if a {{ }}{}", " else if a { }".repeat(n)))).is_empty());
    assert!(survive("comments in a list", model(&format!("x = f({}a)", "a, // b\n".repeat(n)))).is_empty());
}

#[test]
fn many_errors() {
    let n = N;
    let cases = [
        ("characters", "$ ".repeat(n)),
        ("values", "x = )\n".repeat(n)),
        ("commas", format!("x = f({})", ",".repeat(n))),
        ("arguments", format!("x = f({})", "a b, ".repeat(n))),
        ("indented", format!("{}a b\n", " ".repeat(1000)).repeat(4000)),
    ];
    for (name, body) in cases {
        let codes = survive(name, model(&body));
        assert_eq!((codes.len(), codes.last()), (MAX_DIAGNOSTICS + 1, Some(&"E0199")), "{name}");
    }
}

#[test]
fn too_long() {
    assert_eq!(survive("too long", " ".repeat(MAX_SOURCE + 1)), ["E0001"]);
}

/// What is permitted must survive too.
#[test]
fn as_deep_as_permitted() {
    let depth = MAX_DEPTH as usize - 1;
    let height = MAX_HEIGHT as usize - 1;
    let levels = MAX_BODIES as usize - 1;
    // `-(`, `not (` are two levels.
    let nest = |open: &str, close: &str| {
        let n = if open.len() > 1 && open.ends_with('(') && !open.starts_with('f') { depth / 2 } else { depth };
        format!("x = {}a{}\n", open.repeat(n), close.repeat(n))
    };
    let mut body: String =
        [("(", ")"), ("f(", ")"), ("a[", "]"), ("f(a over b, k: ", ")"), ("-(", ")^2"), ("not (", ")")]
            .map(|(open, close)| nest(open, close))
            .concat();
    body += &format!("x = {}a\n", "-".repeat(depth));
    body += &format!("x = {}a\n", "not ".repeat(depth));
    body += &format!("x = {}a\n", "a^".repeat(depth));
    body += &format!("x = {}a\n", "a + ".repeat(height));
    body += &format!("x = a{}\n", "[i]".repeat(height));
    // Depth and height together: a chain below as many brackets as it leaves room for.
    let (open, close) = ("(".repeat(depth - 1), ")".repeat(depth - 1));
    body += &format!("x = {open}a{}{close}\n", " + a".repeat(height - depth));
    for line in body.lines() {
        assert_eq!(survive(&line[..20], model(line)), [""; 0], "{line}");
    }
    let nested = format!("{}\n{body}{}", "repeat 3 {\n".repeat(levels), "}\n".repeat(levels));
    assert_eq!(survive("as deep as permitted", model(&nested)), [""; 0]);
}
