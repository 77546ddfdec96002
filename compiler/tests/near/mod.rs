//! Near misses: graphs of a `.ir` file that differ from it in a line or two.

use crate::oracle::sound;
use forebay_ir::Graph;
use forebay_ir::text::{parse_module, render};
use std::path::Path;

/// A graph of a file with other text in the place of some of it.
pub fn changed(path: &Path, name: &str, changes: &[(&str, String)]) -> Graph {
    let source = std::fs::read_to_string(path).expect("readable");
    let start = source.find(&format!("graph @{name} {{")).expect("the file has the graph");
    let end = start + source[start..].find("\n}").expect("graphs end") + 3;
    let mut text = source[start..end].to_string();
    for (lines, others) in changes {
        assert_eq!(text.matches(lines).count(), 1, "{name}: {lines}");
        text = text.replace(lines, others);
    }
    let mut graphs = parse_module(&text).unwrap_or_else(|e| panic!("{}", render(&e, &text, name)));
    sound(&graphs[0]);
    graphs.swap_remove(0)
}
