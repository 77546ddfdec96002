//! Files, items and statements.

use super::comments::{Breaks, Printer};
use super::doc::{Doc, docs};
use super::place::Place;
use crate::ast::{
    BlockParam, Body, ConstParam, Expr, File, Ident, Initializer, InputDecl, Item, PatternAxis, Span, Statement,
    StatementKind, Target, TensorDecl,
};

impl<'a> Printer<'a> {
    pub fn file(&mut self, file: &'a File) -> Doc<'a> {
        let mut docs = Vec::new();
        for (i, item) in file.items.iter().enumerate() {
            let (span, printed): (Span, fn(&mut Self, &'a Item) -> Doc<'a>) = match item {
                Item::Model(model) => (model.span, Self::item),
                Item::Block(block) => (block.span, Self::item),
            };
            // One empty line between items, above the comments of the second.
            let mut separated = i == 0;
            while let Some(comment) = self.take_comment(span.start) {
                if comment.own_line {
                    let blank = !std::mem::replace(&mut separated, true) || self.blank_before(comment.span.start);
                    docs.push(if blank { Doc::BlankLine } else { Doc::HardLine });
                }
                docs.push(self.comment(comment));
            }
            let blank = !separated || self.blank_before(span.start);
            docs.push(if blank { Doc::BlankLine } else { Doc::HardLine });
            docs.push(printed(self, item));
        }
        docs.push(self.comment_lines(u32::MAX, true));
        Doc::Concat(docs)
    }

    fn item(&mut self, item: &'a Item) -> Doc<'a> {
        match item {
            Item::Model(model) => {
                let name = self.ident(&model.name);
                let end = model.body.span.start;
                let constants = self.list(("(", ")"), end, Breaks::Keep, &model.constants, Self::const_param);
                docs![Doc::Text("model "), name, constants, Doc::Text(" "), self.body(&model.body)]
            }
            Item::Block(block) => {
                let name = self.ident(&block.name);
                let end = block.body.span.start;
                let params = self.list(("(", ")"), end, Breaks::Keep, &block.params, Self::block_param);
                docs![Doc::Text("block "), name, params, Doc::Text(" "), self.body(&block.body)]
            }
        }
    }

    fn const_param(&mut self, param: &'a ConstParam) -> Doc<'a> {
        let name = self.ident(&param.name);
        match &param.default {
            Some(value) => docs![name, self.equals(value)],
            None => name,
        }
    }

    fn block_param(&mut self, param: &'a BlockParam) -> Doc<'a> {
        match param {
            BlockParam::Const(param) => self.const_param(param),
            BlockParam::Tensor { name, pattern, optional } => {
                let end = pattern.last().map_or(name.span.end, |axis| axis.span().end);
                let name = self.ident(name);
                let print = |p: &mut Self, axis: &'a PatternAxis| p.token(axis.span());
                let pattern = self.list(("[", "]"), end, Breaks::Reflow, pattern, print);
                docs![name, pattern, Doc::Text(if *optional { " = none" } else { "" })]
            }
        }
    }

    /// Comments before `at`, each on its own line unless it ends one, with the empty lines between them.
    fn comment_lines(&mut self, at: u32, mut blank_allowed: bool) -> Doc<'a> {
        let mut docs = Vec::new();
        while let Some(comment) = self.take_comment(at) {
            if comment.own_line {
                let blank = blank_allowed && self.blank_before(comment.span.start);
                docs.push(if blank { Doc::BlankLine } else { Doc::HardLine });
                blank_allowed = true;
            }
            docs.push(self.comment(comment));
        }
        if docs.is_empty() { Doc::Nil } else { Doc::Concat(docs) }
    }

    fn body(&mut self, body: &'a Body) -> Doc<'a> {
        let mut docs = Vec::new();
        for (i, statement) in body.statements.iter().enumerate() {
            let comments = self.comment_lines(statement.span.start, i > 0);
            let blank_allowed = i > 0 || !comments.is_nil();
            docs.push(comments);
            let blank = blank_allowed && self.blank_before(statement.span.start);
            docs.push(if blank { Doc::BlankLine } else { Doc::HardLine });
            docs.push(self.statement(statement));
        }
        docs.push(self.comment_lines(body.span.end - 1, !body.statements.is_empty()));
        let inner = Doc::Concat(docs);
        if inner.is_nil() {
            return Doc::Text("{}");
        }
        docs![Doc::Text("{"), Doc::indent(inner), Doc::HardLine, Doc::Text("}")]
    }

    fn statement(&mut self, statement: &'a Statement) -> Doc<'a> {
        match &statement.kind {
            StatementKind::Input(decls) => self.declarations("input ", decls, Self::input_decl),
            StatementKind::Const { name, value } => self.assignment("const ", name, value),
            StatementKind::Param(decls) => self.declarations("param ", decls, Self::tensor_decl),
            StatementKind::State(decls) => self.declarations("state ", decls, Self::tensor_decl),
            StatementKind::Stat { target, value } => {
                docs![Doc::Text("stat "), self.target(target), self.equals(value)]
            }
            StatementKind::Update { name, value } => self.assignment("update ", name, value),
            StatementKind::Define { targets, value } => {
                let targets = self.fill(None, Breaks::Reflow, targets, Self::target);
                docs![Doc::group(Doc::indent(targets)), self.equals(value)]
            }
            StatementKind::Loss { name, value, per, weight, scope } => {
                self.loss(name, value, per.as_ref(), weight.as_ref(), scope.as_ref())
            }
            StatementKind::Output(names) => self.declarations("output ", names, Self::name),
            StatementKind::Repeat { counter, count, body } => {
                let counter = match counter {
                    Some(counter) => docs![self.ident(counter), Doc::Text(" in ")],
                    None => Doc::Nil,
                };
                let count = self.expr(count);
                let head = Doc::group(docs![Doc::Text("repeat "), counter, count, Doc::Line]);
                docs![head, self.body(body)]
            }
            StatementKind::If { branches, otherwise } => self.if_chain(branches, otherwise.as_ref()),
            StatementKind::Return(values) => self.declarations("return ", values, Self::expr),
            // Files with errors are not formatted.
            StatementKind::Error => self.token(statement.span),
        }
    }

    fn declarations<T: Place>(
        &mut self,
        keyword: &'static str,
        items: &'a [T],
        print: impl FnMut(&mut Self, &'a T) -> Doc<'a>,
    ) -> Doc<'a> {
        let items = self.fill(None, Breaks::Keep, items, print);
        Doc::group(docs![Doc::Text(keyword), Doc::indent(items)])
    }

    fn name(&mut self, name: &'a Ident) -> Doc<'a> {
        self.ident(name)
    }

    fn assignment(&mut self, keyword: &'static str, name: &'a Ident, value: &'a Expr) -> Doc<'a> {
        docs![Doc::Text(keyword), self.ident(name), self.equals(value)]
    }

    fn target(&mut self, target: &'a Target) -> Doc<'a> {
        let name = self.ident(&target.name);
        match &target.axes {
            Some(axes) => docs![name, self.indices(axes, target.span.end - 1)],
            None => name,
        }
    }

    fn input_decl(&mut self, decl: &'a InputDecl) -> Doc<'a> {
        let name = self.ident(&decl.name);
        let kind = self.ident(&decl.kind);
        let end = decl.span.end - 1;
        let axes = self.list(("[", "]"), end, Breaks::Reflow, &decl.axes, Self::axis_decl);
        docs![name, Doc::Text(": "), kind, axes]
    }

    fn tensor_decl(&mut self, decl: &'a TensorDecl) -> Doc<'a> {
        let name = self.ident(&decl.name);
        let end = decl.span.end - 1;
        let axes = self.list(("[", "]"), end, Breaks::Reflow, &decl.axes, Self::axis_decl);
        match &decl.init {
            Some(init) => docs![name, axes, Doc::Text(" = "), self.initializer(init)],
            None => docs![name, axes],
        }
    }

    fn initializer(&mut self, init: &'a Initializer) -> Doc<'a> {
        let name = self.ident(&init.name);
        // `zeros()` is `zeros`.
        if init.args.is_empty() {
            return name;
        }
        let end = init.span.end - 1;
        docs![name, self.list(("(", ")"), end, Breaks::Reflow, &init.args, Self::expr)]
    }

    fn loss(
        &mut self,
        name: &'a Ident,
        value: &'a Expr,
        per: Option<&'a Expr>,
        weight: Option<&'a Expr>,
        scope: Option<&'a Ident>,
    ) -> Doc<'a> {
        let head = docs![Doc::Text("loss "), self.ident(name), self.equals(value)];
        // Printed in one order, but comments are taken in the order of the source.
        let mut clauses: Vec<(u32, usize, Clause<'a>)> = Vec::new();
        clauses.extend(per.map(|e| (e.span.start, 0, Clause::Expr("per ", e))));
        clauses.extend(weight.map(|e| (e.span.start, 1, Clause::Expr("weight ", e))));
        clauses.extend(scope.map(|name| (name.span.start, 2, Clause::Name("scope ", name))));
        clauses.sort_by_key(|(start, ..)| *start);
        let mut printed: Vec<(usize, Doc<'a>)> = clauses
            .into_iter()
            .map(|(start, order, clause)| {
                let doc = match clause {
                    Clause::Expr(word, expr) => self.clause(word, start, |p| p.expr(expr)),
                    Clause::Name(word, name) => self.clause(word, start, |p| p.ident(name)),
                };
                (order, doc)
            })
            .collect();
        printed.sort_by_key(|(order, _)| *order);
        let clauses = Doc::Concat(printed.into_iter().map(|(_, doc)| doc).collect());
        Doc::group(docs![head, Doc::indent(clauses)])
    }

    fn if_chain(&mut self, branches: &'a [(Expr, Body)], otherwise: Option<&'a Body>) -> Doc<'a> {
        let mut docs = Vec::new();
        for (i, (condition, body)) in branches.iter().enumerate() {
            if i > 0 {
                docs.push(self.before_else(condition.span.start));
                docs.push(Doc::Text("else "));
            }
            // Below a broken condition the brace has a line of its own, so that the body is seen to start there.
            docs.push(Doc::group(docs![Doc::Text("if "), self.expr(condition), Doc::Line]));
            docs.push(self.body(body));
        }
        if let Some(body) = otherwise {
            docs.push(self.before_else(body.span.start));
            docs.push(Doc::Text("else "));
            docs.push(self.body(body));
        }
        Doc::Concat(docs)
    }

    /// A space, or the comments between `}` and `else`, which then starts a line.
    fn before_else(&mut self, at: u32) -> Doc<'a> {
        let comments = self.flush(at);
        if comments.is_nil() { Doc::Text(" ") } else { docs![comments, Doc::HardLine] }
    }
}

enum Clause<'a> {
    Expr(&'static str, &'a Expr),
    Name(&'static str, &'a Ident),
}
