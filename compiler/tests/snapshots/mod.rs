//! Snapshots of what becomes of textual graphs.

use std::path::Path;

/// Snapshots lie beside their inputs.
pub fn snapshot(path: &Path, result: &str) {
    let mut settings = insta::Settings::clone_current();
    settings.set_snapshot_path(path.parent().expect("files lie in a directory"));
    settings.set_prepend_module_to_snapshot(false);
    settings.set_omit_expression(true);
    settings.remove_snapshot_suffix();
    let name = path.file_stem().expect("a file").to_string_lossy().into_owned();
    settings.bind(|| insta::assert_snapshot!(name, result));
}
