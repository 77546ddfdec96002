//! Snapshots of what becomes of textual graphs.

use std::path::Path;

/// Snapshots lie beside their inputs.
#[allow(dead_code, reason = "each test uses a part of this module")]
pub fn snapshot(path: &Path, result: &str) {
    let name = path.file_stem().expect("a file").to_string_lossy().into_owned();
    snapshot_as(path, &name, result);
}

/// One of several that are made of one input.
pub fn snapshot_as(path: &Path, name: &str, result: &str) {
    let mut settings = insta::Settings::clone_current();
    settings.set_snapshot_path(path.parent().expect("files lie in a directory"));
    settings.set_prepend_module_to_snapshot(false);
    settings.set_omit_expression(true);
    settings.remove_snapshot_suffix();
    settings.bind(|| insta::assert_snapshot!(name, result));
}
