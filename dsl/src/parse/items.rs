//! Models and blocks.

use super::{Parse, Parser};
use crate::ast::{Block, BlockParam, Body, ConstParam, ExprKind, File, Item, Model, PatternAxis};
use crate::diagnostics::{Diagnostic, closest, quote};
use crate::lex::TokenKind;

impl Parser<'_> {
    pub(super) fn file(&mut self) -> File {
        let mut file = File::default();
        // What follows something that is not an item on the next lines belongs to it and is not worth a message each.
        let mut lost = false;
        while !self.full() {
            match self.kind() {
                TokenKind::End => break,
                TokenKind::Newline | TokenKind::Semicolon => {
                    self.bump();
                }
                TokenKind::Model => {
                    file.items.extend(self.model().ok().map(Item::Model));
                    lost = false;
                }
                TokenKind::Block => {
                    file.items.extend(self.block().ok().map(Item::Block));
                    lost = false;
                }
                _ => lost = self.not_an_item(lost),
            }
        }
        file
    }

    /// Reads a line that is not an item, and the body that starts on it, for the mistakes in that. True if there was none:
    /// then the next line may belong to this one.
    fn not_an_item(&mut self, lost: bool) -> bool {
        let meant = self.item_keyword();
        if self.at(TokenKind::CloseBrace) {
            let diagnostic = self.error("E0103", "this `}` closes nothing");
            self.report(diagnostic.label("no `{` is open here"));
            self.bump();
            return false;
        }
        if !lost || meant.is_some() {
            let found = self.found();
            let diagnostic = if self.kind().starts_statement() {
                self.error("E0105", format!("{found} belongs inside a model or a block"))
                    .help("write it between the `{` and `}` of a `model` or `block`")
            } else {
                self.error("E0105", format!("expected `model` or `block`, found {found}"))
            };
            let help = meant.map(|word| format!("did you mean `{word}`?"));
            self.report(Diagnostic { help: help.or(diagnostic.help.clone()), ..diagnostic });
        }
        if !self.at(TokenKind::OpenBrace) {
            self.bump();
        }
        self.skip_statement();
        self.tokens[self.pos - 1].kind != TokenKind::CloseBrace
    }

    /// The keyword that the word here was probably meant to be.
    fn item_keyword(&self) -> Option<&'static str> {
        if !self.at(TokenKind::Ident) || self.nth(1) != TokenKind::Ident {
            return None;
        }
        let word = self.text().to_lowercase();
        match word.as_str() {
            "fn" | "def" | "func" | "function" => Some("block"),
            _ => closest(&word, ["model", "block"]),
        }
    }

    fn model(&mut self) -> Parse<Model> {
        let start = self.bump().span;
        let header = self.model_header();
        let body = self.item_body(header.is_ok())?;
        let (name, constants) = header?;
        Ok(Model { name, constants, body, span: self.span_from(start) })
    }

    fn model_header(&mut self) -> Parse<(crate::ast::Ident, Vec<ConstParam>)> {
        let name = self.name_of("the model")?;
        let mut constants = Vec::new();
        for param in self.header_list("the model's constants: `(d = 128, …)`")? {
            constants.extend(self.model_constant(param));
        }
        Ok((name, constants))
    }

    /// A model's parameters are constants with a value.
    fn model_constant(&mut self, param: BlockParam) -> Option<ConstParam> {
        match param {
            BlockParam::Tensor { name, .. } => {
                let message = format!("`{}` is a tensor; a model takes constants", name.name);
                let diagnostic = Diagnostic::error("E0112", self.id, name.span, message);
                self.report_again(
                    diagnostic.help(format!("write `input {}: token[batch, seq]` in the body", name.name)),
                );
                None
            }
            BlockParam::Const(constant) => {
                if constant.default.is_none() {
                    let message = format!("the model's constant `{}` has no value", constant.name.name);
                    let diagnostic = Diagnostic::error("E0112", self.id, constant.name.span, message);
                    self.report_again(diagnostic.help(format!("write `{} = 1`", constant.name.name)));
                }
                Some(constant)
            }
        }
    }

    fn block(&mut self) -> Parse<Block> {
        let start = self.bump().span;
        let header = self.block_header();
        let body = self.item_body(header.is_ok())?;
        let (name, params) = header?;
        Ok(Block { name, params, body, span: self.span_from(start) })
    }

    fn block_header(&mut self) -> Parse<(crate::ast::Ident, Vec<BlockParam>)> {
        let name = self.defined("the block")?;
        let params = self.header_list("the block's parameters: `(x[.., d], …)`")?;
        Ok((name, params))
    }

    /// The body of an item, after a header that may have failed.
    fn item_body(&mut self, header_ok: bool) -> Parse<Body> {
        if !header_ok {
            self.skip_header();
        }
        self.skip_newlines();
        self.body()
    }

    /// After a mistake in a header: to the `{` on this line or the next.
    fn skip_header(&mut self) {
        while !self.at_statement_end() {
            self.bump();
        }
    }

    fn header_list(&mut self, what: &str) -> Parse<Vec<BlockParam>> {
        if !self.at(TokenKind::OpenParen) {
            return Err(self.expected(what));
        }
        self.list(TokenKind::CloseParen, Self::header_param, |_| None)
    }

    fn header_param(&mut self) -> Parse<BlockParam> {
        let name = self.defined("a parameter")?;
        if self.at(TokenKind::OpenBracket) {
            let pattern = self.list(TokenKind::CloseBracket, Self::pattern_axis, |_| None)?;
            self.one_rest(pattern.iter().filter_map(|axis| match axis {
                PatternAxis::Rest(span) => Some(*span),
                PatternAxis::Name(_) => None,
            }));
            let optional = self.eat(TokenKind::Assign);
            if optional {
                self.none_default(&name.name)?;
            }
            return Ok(BlockParam::Tensor { name, pattern, optional });
        }
        let default = if self.eat(TokenKind::Assign) { Some(self.expr()?) } else { None };
        Ok(BlockParam::Const(ConstParam { name, default }))
    }

    fn none_default(&mut self, name: &str) -> Parse<()> {
        let value = self.expr()?;
        if value.kind != ExprKind::None {
            let message = format!("the only default of a tensor is `none`, which makes {} optional", quote(name));
            self.report_again(Diagnostic::error("E0112", self.id, value.span, message));
        }
        Ok(())
    }

    fn pattern_axis(&mut self) -> Parse<PatternAxis> {
        if self.at(TokenKind::DotDot) {
            return Ok(PatternAxis::Rest(self.bump().span));
        }
        if self.at(TokenKind::Int) {
            let diagnostic = self.error("E0112", "a tensor parameter's brackets list names for its axes");
            return Err(self.report(diagnostic.label("expected a name or `..`")));
        }
        Ok(PatternAxis::Name(self.ident("an axis or `..`")?))
    }
}
