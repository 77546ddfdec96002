//! Emission: what runs together as one kernel, in which order. That the programs are right is for the tests that run them; these show how few kernels they are.

use forebay_compiler::emit::standalone;
use forebay_ir::text::{parse_module, render};
use forebay_ir::verify;
use forebay_plan::print;
use std::path::Path;

#[test]
fn graphs_become_programs() {
    insta::glob!("emit/*.ir", |path| {
        let source = std::fs::read_to_string(path).expect("readable");
        let graphs =
            parse_module(&source).unwrap_or_else(|e| panic!("{}", render(&e, &source, &path.display().to_string())));
        let mut programs = String::new();
        for graph in &graphs {
            verify::verify(graph).unwrap_or_else(|v| panic!("{}", verify::render(graph, &v)));
            let plan = standalone(graph);
            forebay_plan::verify(&plan).unwrap_or_else(|v| panic!("{v:?}"));
            programs.push_str(&print::program(&plan.programs[0]));
            programs.push('\n');
        }
        snapshot(path, &programs);
    });
}

/// Snapshots lie beside their inputs.
fn snapshot(path: &Path, result: &str) {
    let mut settings = insta::Settings::clone_current();
    settings.set_snapshot_path(path.parent().expect("files lie in a directory"));
    settings.set_prepend_module_to_snapshot(false);
    settings.set_omit_expression(true);
    settings.remove_snapshot_suffix();
    let name = path.file_stem().expect("a file").to_string_lossy().into_owned();
    settings.bind(|| insta::assert_snapshot!(name, result));
}
