//! Before and after the statements: the model's constants, `--set`, checks of the whole model.

use super::Checker;
use super::constant::{Constant, kind, show};
use super::value::{ConstEntry, ConstValue};
use crate::ast::{Ident, Item, Span};
use crate::diagnostics::{Diagnostic, SourceId, closest, quote};
use crate::model::Const;
use rustc_hash::FxHashMap;

/// Constants that every model has.
const DEFAULTS: [(&str, i64); 2] = [("batch", 8), ("seq", 256)];
/// Beyond all integers, 2⁶³.
const TOO_LARGE: f64 = -(i64::MIN as f64);

impl<'a> Checker<'a> {
    /// Blocks of the file: no name twice. The library's own mistakes are found by its tests.
    pub(super) fn check_blocks(&mut self) {
        let mut seen: FxHashMap<&str, Span> = FxHashMap::default();
        let blocks: Vec<&'a Ident> = self.file_blocks();
        for name in blocks {
            if let Some(&first) = seen.get(name.name.as_str()) {
                let message = format!("there are two blocks {}", quote(&name.name));
                let diagnostic = self.error("E0303", name.span, message).secondary(first, "the first one");
                self.report(diagnostic);
            }
            seen.insert(&name.name, name.span);
        }
    }

    fn file_blocks(&self) -> Vec<&'a Ident> {
        let items = self.file.items.iter();
        items
            .filter_map(|item| match item {
                Item::Block(block) => Some(&block.name),
                Item::Model(_) => None,
            })
            .collect()
    }

    /// The model's constants: `--set`, else the default, which may use those before it.
    pub(super) fn model_constants(&mut self) {
        self.check_overrides();
        for constant in &self.model.constants {
            let name = &constant.name;
            if self.constants.contains_key(&name.name) {
                let diagnostic =
                    self.error("E0303", name.span, format!("the constant {} is listed twice", quote(&name.name)));
                self.report(diagnostic);
                continue;
            }
            if self.refuse_builtin(name) {
                continue;
            }
            let default = match &constant.default {
                Some(default) => self.eval_const(default).ok().map(|c| c.value().clone()),
                None => {
                    let message = format!("the constant {} has no value", quote(&name.name));
                    let diagnostic = self.error("E0401", name.span, message).help(format!("write `{} = …`", name.name));
                    self.report(diagnostic);
                    None
                }
            };
            self.set_constant(&name.name, default, name.span);
        }
        for (name, default) in DEFAULTS {
            if !self.model.constants.iter().any(|c| c.name.name == name) {
                self.set_constant(name, Some(Const::Int(default)), self.model.name.span);
            }
        }
        self.batch = self.row_constant("batch");
        self.seq = self.row_constant("seq");
    }

    /// Binds a model constant, overridden where `--set` says so.
    fn set_constant(&mut self, name: &str, default: Option<Const>, span: Span) {
        let given = self.options.overrides.iter().rev().find(|(n, _)| n == name).map(|(_, value)| value.clone());
        let value = match (given, default) {
            (None, default) => default,
            (Some(given), None) => Some(given),
            (Some(given), Some(default)) => self.fitting(name, given, &default, span),
        };
        if let Some(value) = &value {
            self.constants.insert(name.to_string(), value.clone());
        }
        let value = value.map(|v| ConstValue::Plain(Constant::fixed(v)));
        self.frame_mut().define_const(name, ConstEntry { value, span, is_counter: false });
    }

    /// A value from `--set` must be of the default's kind; an integer will do for a float.
    fn fitting(&mut self, name: &str, given: Const, default: &Const, span: Span) -> Option<Const> {
        match (&given, default) {
            (Const::Int(_), Const::Int(_)) | (Const::Bool(_), Const::Bool(_)) | (Const::Str(_), Const::Str(_)) => {
                Some(given)
            }
            (Const::Float(_) | Const::Int(_), Const::Float(_)) => Some(given),
            _ => {
                let not = match (&given, default) {
                    // What is beyond all integers has been read as a float.
                    (Const::Float(x), Const::Int(_)) if x.abs() >= TOO_LARGE => {
                        format!("from {} to {}", i64::MIN, i64::MAX)
                    }
                    _ => format!("not {}", kind(&given)),
                };
                let message = format!("--set {name}={}: the constant is {}, {not}", show(&given), kind(default));
                let diagnostic = self.error("E0407", span, message).label(format!("its default is {}", show(default)));
                self.report(diagnostic);
                None
            }
        }
    }

    /// Names given with `--set` must be constants of the model.
    fn check_overrides(&mut self) {
        let names: Vec<&'a str> = self.model.constants.iter().map(|c| c.name.name.as_str()).collect();
        for (name, _) in &self.options.overrides {
            if names.contains(&name.as_str()) || DEFAULTS.iter().any(|(d, _)| d == name) {
                continue;
            }
            let message =
                format!("--set {}: the model {} has no such constant", quote(name), quote(&self.model.name.name));
            let help = match closest(name, names.iter().copied()) {
                Some(near) => format!("did you mean `{near}`?"),
                None => format!("its constants are {}", names.join(", ")),
            };
            let diagnostic = Diagnostic::error("E0406", SourceId(0), self.model.name.span, message).help(help);
            self.report(diagnostic);
        }
    }

    /// The value of `batch` or `seq`.
    fn row_constant(&mut self, name: &str) -> u64 {
        match self.constants.get(name) {
            Some(Const::Int(n)) if *n > 0 => *n as u64,
            None => 1,
            Some(other) => {
                let message = format!("the constant {} must be a positive integer, it is {}", quote(name), show(other));
                let diagnostic = Diagnostic::error("E0403", SourceId(0), self.model.name.span, message);
                self.report(diagnostic);
                1
            }
        }
    }

    /// A model that is trained needs something to minimise.
    pub(super) fn check_losses(&mut self) {
        if !self.options.training || self.losses.iter().any(|k| k.loss.main) {
            return;
        }
        let name = &self.model.name;
        let message = if self.losses.is_empty() {
            format!("the model {} has no loss", quote(&name.name))
        } else {
            format!("the model {} has no main loss", quote(&name.name))
        };
        let diagnostic = self
            .error("E0505", name.span, message)
            .label("training needs a loss with `per`")
            .help("write `loss ce = sum(nll over batch, seq) per sum(valid(labels) over batch, seq)`");
        self.report(diagnostic);
    }
}
