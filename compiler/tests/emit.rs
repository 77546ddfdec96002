//! Emission: what runs together as one kernel, in which order. That the programs are right is for the tests that run them; these show how few kernels they are.

use crate::snapshots;

use forebay_compiler::emit::{Joins, standalone};
use forebay_ir::text::{parse_module, render};
use forebay_ir::verify;
use forebay_plan::print;
use snapshots::snapshot;

#[test]
fn graphs_become_programs() {
    insta::glob!("emit/*.ir", |path| {
        let source = std::fs::read_to_string(path).expect("readable");
        let graphs =
            parse_module(&source).unwrap_or_else(|e| panic!("{}", render(&e, &source, &path.display().to_string())));
        let mut programs = String::new();
        for graph in &graphs {
            verify::verify(graph).unwrap_or_else(|v| panic!("{}", verify::render(graph, &v)));
            let plan = standalone(graph, Joins::All);
            forebay_plan::verify(&plan).unwrap_or_else(|v| panic!("{v:?}"));
            programs.push_str(&print::program(&plan.programs[0]));
            programs.push('\n');
        }
        snapshot(path, &programs);
    });
}
