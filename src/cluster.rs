//! Cluster files, with diagnostics.

use crate::failure::{Failure, colors};
use crate::files::{SMALL, read_text};
use forebay_cost::{Cluster, ClusterError, known};
use forebay_dsl::ast::Span;
use forebay_dsl::diagnostics::{Diagnostic, Severity, Source, SourceId, render};
use forebay_sim::framework::{Framework, known as known_profiles, known_with};
use std::path::{Path, PathBuf};

/// The file that a cluster's name leads to; none for one that is built in.
pub fn file(name: Option<&str>) -> Option<PathBuf> {
    let is_built_in = |name: &str| known::FILES.iter().any(|(known, _)| known.eq_ignore_ascii_case(name));
    name.filter(|name| !is_built_in(name)).map(PathBuf::from).filter(|path| path.exists())
}

/// Reads a cluster file, or one that is built in: by its name, or what its device is called (`H100`, `h100-sxm`), in upper or lower case.
pub fn read(name: &str) -> Result<Cluster, Failure> {
    let path = Path::new(name);
    let named = |(known, _): &&(&str, &str)| known.eq_ignore_ascii_case(name);
    if let Some((known, text)) = known::FILES.iter().find(named) {
        return parse(known, text);
    }
    if !path.exists()
        && let Some(cluster) = known::clusters().into_iter().find(|c| c.is_called(name))
    {
        return Ok(cluster);
    }
    if !path.exists() {
        let names: Vec<&str> = known::FILES.iter().map(|(known, _)| *known).collect();
        return Err(Failure::Input(format!(
            "there is no cluster file `{name}`\n  = help: built in are {}",
            names.join(", ")
        )));
    }
    parse(name, &read_text(path, SMALL)?)
}

/// All cluster files of a folder, in the order of their names; those that are built in when there is no folder.
pub fn folder(path: Option<&Path>) -> Result<Vec<Cluster>, Failure> {
    let shown = |name: &str| path.map_or(name.to_string(), |folder| folder.join(name).display().to_string());
    files(path)?.iter().map(|(name, text)| parse(&shown(name), text)).collect()
}

/// The file of a folder of clusters that has profiles of frameworks.
pub const PROFILES: &str = "frameworks.toml";

/// The profiles that are built in, with what a folder's [`PROFILES`] say in place of them and beside them.
pub fn profiles(folder: Option<&Path>) -> Result<Vec<Framework>, Failure> {
    let Some(text) = profiles_text(folder)? else { return Ok(known_profiles()) };
    let file = folder.unwrap_or(Path::new("")).join(PROFILES);
    known_with(&text).map_err(|error| Failure::Input(format!("`{}`: {}", file.display(), error.trim_end())))
}

/// What a folder's [`PROFILES`] say, where it has them.
pub fn profiles_text(folder: Option<&Path>) -> Result<Option<String>, Failure> {
    let file = folder.map(|folder| folder.join(PROFILES)).filter(|file| file.exists());
    file.map(|file| read_text(&file, SMALL)).transpose()
}

/// The same, as names (of files, without the folder) and texts.
pub fn files(path: Option<&Path>) -> Result<Vec<(String, String)>, Failure> {
    let Some(path) = path else {
        let built_in = known::FILES.iter().map(|(name, text)| (format!("{name}.toml"), text.to_string()));
        return Ok(built_in.collect());
    };
    let failed = |error: std::io::Error| Failure::Input(format!("cannot read `{}`: {error}", path.display()));
    let mut files = vec![];
    for entry in std::fs::read_dir(path).map_err(failed)? {
        let file = entry.map_err(failed)?.path();
        if file.extension().is_some_and(|e| e == "toml") && file.file_name().is_none_or(|name| name != PROFILES) {
            files.push(file);
        }
    }
    files.sort();
    if files.is_empty() && path.join(PROFILES).exists() {
        return self::files(None);
    }
    if files.is_empty() {
        return Err(Failure::Input(format!("`{}` has no cluster files (.toml)", path.display())));
    }
    let named = |file: &std::path::PathBuf| {
        let name = file.file_name().unwrap_or_default().to_string_lossy().into_owned();
        Ok((name, read_text(file, SMALL)?))
    };
    files.iter().map(named).collect()
}

fn parse(name: &str, text: &str) -> Result<Cluster, Failure> {
    Cluster::parse(text).map_err(|error| Failure::Rendered(rendered(name, text, &error)))
}

fn rendered(name: &str, text: &str, error: &ClusterError) -> String {
    let span = error.span.clone().unwrap_or(0..0);
    let diagnostic = Diagnostic {
        code: "C0001",
        severity: Severity::Error,
        message: error.message.clone(),
        source: SourceId(0),
        span: Span { start: span.start as u32, end: span.end as u32 },
        label: String::new(),
        secondary: vec![],
        related: vec![],
        help: error.help.clone(),
    };
    render(&[diagnostic], &[Source::new(name, text)], colors())
}
