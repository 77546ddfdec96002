//! Text to tree, messages, and text again. Inputs are files in `../parse`, `../errors` and `../format`; each has its
//! snapshot beside it.

mod errors;
mod format;
mod generate;
mod hostile;
mod parse;
mod properties;
mod tree;

use std::path::Path;

/// Compares `output` with the snapshot beside the input file.
fn check(input: &Path, output: &str) {
    let mut settings = insta::Settings::clone_current();
    settings.set_snapshot_path(input.parent().expect("inputs are in a directory"));
    settings.set_prepend_module_to_snapshot(false);
    settings.remove_snapshot_suffix();
    settings.set_omit_expression(true);
    settings.remove_input_file();
    let name = input.file_stem().expect("inputs have names").to_string_lossy().into_owned();
    settings.bind(|| insta::assert_snapshot!(name, output));
}

fn read(path: &Path) -> String {
    std::fs::read_to_string(path).expect("inputs are readable")
}
