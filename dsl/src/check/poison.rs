//! After a mistake: the axes that a statement would have made are not complained about where they are used.

use super::Checker;
use crate::ast::{Arg, AxisDecl, Body, Call, Expr, ExprKind, Index, Statement, StatementKind};

impl<'a> Checker<'a> {
    /// Notes down the names of axes that a statement introduces and that are unknown so far.
    pub(super) fn poison_axes(&mut self, statement: &'a Statement) {
        let mut names = Introduced(Vec::new());
        names.statement(&statement.kind);
        let frame = self.frame_mut();
        for name in names.0 {
            if !frame.names.axes.contains_key(name) && !frame.names.vars.contains_key(name) {
                frame.names.poisoned_axes.insert(name.to_string());
            }
        }
    }
}

/// Collects the names in places where an axis can come into being.
struct Introduced<'a>(Vec<&'a str>);

impl<'a> Introduced<'a> {
    fn statement(&mut self, kind: &'a StatementKind) {
        match kind {
            StatementKind::Input(decls) => decls.iter().for_each(|d| self.decls(&d.axes)),
            StatementKind::Param(decls) | StatementKind::State(decls) => decls.iter().for_each(|d| self.decls(&d.axes)),
            StatementKind::Const { value, .. } | StatementKind::Update { value, .. } => self.expr(value),
            StatementKind::Stat { target, value } => {
                self.indices(target.axes.as_deref().unwrap_or_default());
                self.expr(value);
            }
            StatementKind::Define { targets, value } => {
                targets.iter().for_each(|t| self.indices(t.axes.as_deref().unwrap_or_default()));
                self.expr(value);
            }
            StatementKind::Loss { value, per, weight, .. } => {
                self.expr(value);
                per.iter().chain(weight).for_each(|e| self.expr(e));
            }
            StatementKind::Return(values) => values.iter().for_each(|v| self.expr(v)),
            StatementKind::Repeat { body, .. } => self.body(body),
            StatementKind::If { branches, otherwise } => {
                branches.iter().map(|(_, body)| body).chain(otherwise).for_each(|body| self.body(body));
            }
            StatementKind::Output(_) | StatementKind::Error => {}
        }
    }

    fn body(&mut self, body: &'a Body) {
        body.statements.iter().for_each(|s| self.statement(&s.kind));
    }

    fn expr(&mut self, expr: &'a Expr) {
        match &expr.kind {
            ExprKind::Unary(_, a) | ExprKind::Paren(a) => self.expr(a),
            ExprKind::Binary(_, a, b) | ExprKind::At { value: a, rows: b } => {
                self.expr(a);
                self.expr(b);
            }
            ExprKind::Read(a, indices) | ExprKind::Shape(a, indices) => {
                self.expr(a);
                self.indices(indices);
            }
            ExprKind::Call(call) => self.call(call),
            ExprKind::Int(_)
            | ExprKind::Float(_)
            | ExprKind::Str(_)
            | ExprKind::Bool(_)
            | ExprKind::None
            | ExprKind::Name(_)
            | ExprKind::Rest
            | ExprKind::Error => {}
        }
    }

    fn call(&mut self, call: &'a Call) {
        for Arg { value, size, into, renamed, .. } in &call.args {
            self.expr(value);
            if size.is_some() || matches!(call.name.name.as_str(), "group" | "top") {
                self.name(value);
            }
            into.iter().for_each(|decl| self.0.push(&decl.name.name));
            renamed.iter().for_each(|name| self.0.push(&name.name));
        }
    }

    fn name(&mut self, expr: &'a Expr) {
        if let ExprKind::Name(name) = &expr.kind {
            self.0.push(name);
        }
    }

    fn decls(&mut self, decls: &'a [AxisDecl]) {
        self.0.extend(decls.iter().map(|d| d.name.name.as_str()));
    }

    fn indices(&mut self, indices: &'a [Index]) {
        for index in indices {
            match index {
                Index::Split { parts, .. } => self.decls(parts),
                Index::Merge { name, .. } | Index::MergeRest { name, .. } | Index::Slice { name, .. } => {
                    self.0.push(&name.name);
                }
                Index::Expr(expr) => self.name(expr),
                Index::Rest(_) | Index::SplitRest(_) => {}
            }
        }
    }
}
