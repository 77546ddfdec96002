//! `--strategy`: keys and values, or a file of them, with the place of every mistake.

use crate::failure::{Failure, colors};
use crate::files::{LARGE, SMALL, read_text};
use crate::output::counted;
use forebay_compiler::shard::{Given, Order, Strategy, StrategyError};
use forebay_dsl::ast::Span;
use forebay_dsl::diagnostics::{Diagnostic, Source, SourceId, render};
use forebay_pipeline::Schedule;
use serde::Deserialize;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use toml::{Spanned, Value};

/// What stands behind `--strategy`.
#[derive(Clone, Debug)]
pub enum StrategyArg {
    /// `dp=2,tp=2`, with the keys that are written.
    Keys(Box<Strategy>, Vec<String>),
    /// A schedule of a file has to be read for it.
    Reading(Vec<(String, String)>),
    /// A `.toml` file.
    File(PathBuf),
}

/// `dp=2,tp=2`, or a file.
pub fn strategy_arg(text: &str) -> Result<StrategyArg, String> {
    if text.ends_with(".toml") {
        return Ok(StrategyArg::File(text.into()));
    }
    let told = |error: StrategyError| error.to_string();
    let pairs = Strategy::pairs(text).map_err(told)?;
    if pairs.iter().any(|(key, value)| schedule_file(key, value).is_some()) {
        return Ok(StrategyArg::Reading(pairs.iter().map(|(k, v)| (k.to_string(), v.to_string())).collect()));
    }
    let keys = pairs.iter().map(|(key, _)| key.to_string()).collect();
    Strategy::parse(text).map(|strategy| StrategyArg::Keys(Box::new(strategy), keys)).map_err(told)
}

/// The file of `schedule=FILE.json`.
fn schedule_file<'a>(key: &str, value: &'a str) -> Option<&'a Path> {
    (key == "schedule" && value.ends_with(".json")).then(|| Path::new(value))
}

impl StrategyArg {
    /// The strategy, read from its files.
    pub fn strategy(&self) -> Result<Strategy, Failure> {
        match self {
            StrategyArg::Keys(strategy, _) => Ok((**strategy).clone()),
            StrategyArg::Reading(pairs) => {
                let mut strategy = Strategy::default();
                for (key, value) in pairs {
                    set(&mut strategy, key, value)?;
                }
                strategy.check().map_err(wrong)?;
                Ok(strategy)
            }
            StrategyArg::File(path) => of_file(path),
        }
    }

    /// The file that it is in.
    pub fn file(&self) -> Option<&Path> {
        match self {
            StrategyArg::File(path) => Some(path),
            StrategyArg::Keys(..) | StrategyArg::Reading(_) => None,
        }
    }

    /// All files that are read for it, and what they are: the strategy, and the schedule that it may name.
    pub fn files(&self) -> Vec<(&'static str, PathBuf)> {
        let schedule = |path: PathBuf| ("the schedule", path);
        match self {
            StrategyArg::Keys(..) => vec![],
            StrategyArg::Reading(pairs) => {
                pairs.iter().filter_map(|(key, value)| schedule_file(key, value)).map(|p| schedule(p.into())).collect()
            }
            StrategyArg::File(path) => {
                // What is wrong with the file is said when it is read as a strategy.
                let table: toml::Table = read_text(path, SMALL).ok().and_then(|t| t.parse().ok()).unwrap_or_default();
                let named =
                    table.get("schedule").and_then(Value::as_str).and_then(|name| schedule_file("schedule", name));
                let named = named.map(|name| schedule(beside(path, name)));
                [("the strategy", path.clone())].into_iter().chain(named).collect()
            }
        }
    }

    /// Is a key written, whatever its value?
    pub fn says(&self, key: &str) -> Result<bool, Failure> {
        Ok(match self {
            StrategyArg::Keys(_, keys) => keys.iter().any(|known| known == key),
            StrategyArg::Reading(pairs) => pairs.iter().any(|(known, _)| known == key),
            // What else is wrong with the file is said when it is read as a strategy.
            StrategyArg::File(path) => {
                read_text(path, SMALL)?.parse::<toml::Table>().is_ok_and(|table| table.contains_key(key))
            }
        })
    }
}

/// A strategy that is known, as if it had been written.
impl From<Strategy> for StrategyArg {
    fn from(strategy: Strategy) -> StrategyArg {
        StrategyArg::Keys(Box::new(strategy), vec![])
    }
}

fn wrong(error: StrategyError) -> Failure {
    Failure::Input(format!("--strategy: {error}"))
}

/// Sets a key, reading the schedule that it may name.
fn set(strategy: &mut Strategy, key: &str, value: &str) -> Result<(), Failure> {
    match schedule_file(key, value) {
        Some(path) => strategy.schedule = read_schedule(path)?,
        None => strategy.set(key, value).map_err(wrong)?,
    }
    Ok(())
}

/// What `forebay schedule --json` writes, as far as it is needed.
#[derive(Deserialize)]
struct Written {
    orders: Vec<String>,
}

fn read_schedule(path: &Path) -> Result<Order, Failure> {
    let name = path.display().to_string();
    let text = read_text(path, LARGE)?;
    let hint = "`forebay schedule --kind … --json` writes one";
    let Written { orders } = serde_json::from_str(&text)
        .map_err(|error| Failure::Input(format!("`{name}` is not a schedule: {error}\n  = help: {hint}")))?;
    let schedule = Schedule::infer(&orders).map_err(|error| Failure::Input(format!("`{name}`: {error}")))?;
    Ok(Order::Given(Given { name, schedule: Arc::new(schedule) }))
}

/// A strategy file in which mistakes are shown.
struct File<'a> {
    name: String,
    text: &'a str,
}

impl File<'_> {
    fn wrong(&self, span: std::ops::Range<usize>, error: &StrategyError) -> Failure {
        let span = Span { start: span.start as u32, end: span.end as u32 };
        let mut diagnostic = Diagnostic::error("S0001", SourceId(0), span, error.message.clone());
        diagnostic.help.clone_from(&error.help);
        Failure::Rendered(render(&[diagnostic], &[Source::new(&self.name, self.text)], colors()))
    }
}

/// A name in a file is seen from the file.
fn beside(file: &Path, name: &Path) -> PathBuf {
    file.parent().unwrap_or(Path::new("")).join(name)
}

fn of_file(path: &Path) -> Result<Strategy, Failure> {
    let text = read_text(path, SMALL)?;
    let file = File { name: path.display().to_string(), text: &text };
    let such = || Some("a line is a key and a value: tp = 2".to_string());
    let wrong = |message: String, help| StrategyError { message, help };
    let entries: BTreeMap<Spanned<String>, Spanned<Value>> = toml::from_str(&text).map_err(|error| {
        let message = error.message().lines().next().unwrap_or("this is not a strategy").to_string();
        file.wrong(error.span().unwrap_or(0..0), &wrong(message, such()))
    })?;
    if entries.is_empty() {
        return Err(file.wrong(0..0, &wrong("the strategy is empty".into(), such())));
    }
    let mut entries: Vec<_> = entries.into_iter().collect();
    entries.sort_by_key(|(key, _)| key.span().start);
    let mut strategy = Strategy::default();
    for (key, value) in &entries {
        let Some(text) = scalar(value.get_ref()) else {
            let message = format!("`{}` is no number, truth value, word or list of numbers", key.get_ref());
            return Err(file.wrong(value.span(), &wrong(message, such())));
        };
        if let Some(schedule) = schedule_file(key.get_ref(), &text) {
            strategy.schedule = read_schedule(&beside(path, schedule))?;
            continue;
        }
        strategy.set(key.get_ref(), &text).map_err(|error| {
            let known = Strategy::keys().contains(&key.get_ref().as_str());
            file.wrong(if known { value.span() } else { key.span() }, &error)
        })?;
    }
    strategy.check().map_err(|error| {
        let about = entries.iter().find(|(key, _)| error.message.starts_with(&format!("`{}`", key.get_ref())));
        file.wrong(about.map_or(0..0, |(key, _)| key.span()), &error)
    })?;
    Ok(strategy)
}

/// The lines of a strategy file whose keys a message names, as it writes them: `dp = 3`, `swap: …`.
pub fn places(path: &Path, message: &str) -> String {
    let names = |key: &str| {
        message.match_indices(key).any(|(at, _)| {
            let begins = !message[..at].ends_with(|c: char| c.is_alphanumeric() || c == '_');
            let rest = &message[at + key.len()..];
            begins && (rest.starts_with(" = ") || rest.starts_with(": ") || rest.starts_with('`'))
        })
    };
    let text = read_text(path, SMALL).unwrap_or_default();
    let lines =
        text.lines().zip(1..).filter(|(line, _)| line.split_once('=').is_some_and(|(key, _)| names(key.trim())));
    lines.map(|(line, number)| format!("\n  --> {}:{number}: {}", path.display(), line.trim())).collect()
}

/// A value of a strategy file as `--strategy` would write it.
fn scalar(value: &Value) -> Option<String> {
    match value {
        Value::String(text) => Some(text.clone()),
        Value::Integer(n) => Some(n.to_string()),
        Value::Boolean(b) => Some(b.to_string()),
        Value::Array(list) => Some(list.iter().map(scalar).collect::<Option<Vec<_>>>()?.join("/")),
        Value::Float(_) | Value::Datetime(_) | Value::Table(_) => None,
    }
}

/// That a strategy makes as many ranks as there are devices.
pub fn uses(strategy: &Strategy, devices: u64) -> Result<(), Failure> {
    let ranks = strategy.ranks();
    if ranks == devices {
        return Ok(());
    }
    let model = ranks / u64::from(strategy.dp);
    let help = if devices.is_multiple_of(model) {
        format!("use dp = {}, or --devices {ranks}", devices / model)
    } else {
        format!("use --devices {ranks}, or another multiple of cp × tp × pp = {model} with its dp")
    };
    Err(Failure::Input(format!(
        "{strategy} makes {} (dp × cp × tp × pp), but there are {}\n  = help: {help}",
        counted(ranks, "rank"),
        counted(devices, "device")
    )))
}
