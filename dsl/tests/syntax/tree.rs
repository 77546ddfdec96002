//! Trees as text: compact for snapshots, and without places for comparison.

use forebay_dsl::ast::*;
use std::fmt::Write;

/// The tree without the places of its nodes. Equal texts are equal trees.
pub fn without_spans(file: &File) -> String {
    let debug = format!("{file:?}");
    let mut out = String::with_capacity(debug.len());
    let mut rest = &debug[..];
    while let Some(start) = rest.find("Span {") {
        out.push_str(&rest[..start]);
        let end = rest[start..].find('}').expect("a span is printed in braces");
        rest = &rest[start + end + 1..];
    }
    out.push_str(rest);
    out
}

/// One line a statement, expressions as `(+ a (* b c))`.
pub fn dump(file: &File) -> String {
    let mut out = String::new();
    for item in &file.items {
        match item {
            Item::Model(model) => {
                let constants: Vec<String> = model.constants.iter().map(constant).collect();
                writeln!(out, "model {} ({})", model.name.name, constants.join(", ")).unwrap();
                body(&mut out, &model.body, 1);
            }
            Item::Block(block) => {
                let params: Vec<String> = block.params.iter().map(block_param).collect();
                writeln!(out, "block {} ({})", block.name.name, params.join(", ")).unwrap();
                body(&mut out, &block.body, 1);
            }
        }
    }
    out
}

fn join<T>(items: &[T], print: impl Fn(&T) -> String) -> String {
    items.iter().map(print).collect::<Vec<_>>().join(" ")
}

fn constant(param: &ConstParam) -> String {
    match &param.default {
        Some(value) => format!("{}={}", param.name.name, expr(value)),
        None => param.name.name.clone(),
    }
}

fn block_param(param: &BlockParam) -> String {
    match param {
        BlockParam::Const(param) => constant(param),
        BlockParam::Tensor { name, pattern, optional } => {
            let axes = join(pattern, |axis| match axis {
                PatternAxis::Rest(_) => "..".into(),
                PatternAxis::Name(name) => name.name.clone(),
            });
            format!("{}[{axes}]{}", name.name, if *optional { "?" } else { "" })
        }
    }
}

fn body(out: &mut String, body: &Body, depth: usize) {
    for item in &body.statements {
        write!(out, "{:width$}", "", width = 4 * depth).unwrap();
        statement(out, &item.kind, depth);
    }
}

fn statement(out: &mut String, kind: &StatementKind, depth: usize) {
    let line = match kind {
        StatementKind::Input(decls) => {
            format!(
                "input {}",
                join(decls, |d| format!("{}:{}[{}]", d.name.name, d.kind.name, join(&d.axes, axis_decl)))
            )
        }
        StatementKind::Const { name, value } => format!("const {} {}", name.name, expr(value)),
        StatementKind::Param(decls) => format!("param {}", join(decls, tensor_decl)),
        StatementKind::State(decls) => format!("state {}", join(decls, tensor_decl)),
        StatementKind::Stat { target: t, value } => format!("stat {} {}", target(t), expr(value)),
        StatementKind::Update { name, value } => format!("update {} {}", name.name, expr(value)),
        StatementKind::Define { targets, value } => format!("let {} {}", join(targets, target), expr(value)),
        StatementKind::Loss { name, value, per, weight, scope } => {
            let mut line = format!("loss {} {}", name.name, expr(value));
            for (word, clause) in [("per", per), ("weight", weight)] {
                line.extend(clause.iter().map(|e| format!(" {word} {}", expr(e))));
            }
            line.extend(scope.iter().map(|name| format!(" scope {}", name.name)));
            line
        }
        StatementKind::Output(names) => format!("output {}", join(names, |n| n.name.clone())),
        StatementKind::Return(values) => format!("return {}", join(values, expr)),
        StatementKind::Error => "error".into(),
        StatementKind::Repeat { counter, count, body: inner } => {
            let counter = counter.iter().map(|c| format!("{} in ", c.name)).collect::<String>();
            writeln!(out, "repeat {counter}{}", expr(count)).unwrap();
            return body(out, inner, depth + 1);
        }
        StatementKind::If { branches, otherwise } => {
            for (i, (condition, inner)) in branches.iter().enumerate() {
                let indent = if i > 0 { 4 * depth } else { 0 };
                writeln!(out, "{:indent$}{} {}", "", ["if", "elif"][usize::from(i > 0)], expr(condition)).unwrap();
                body(out, inner, depth + 1);
            }
            if let Some(inner) = otherwise {
                writeln!(out, "{:indent$}else", "", indent = 4 * depth).unwrap();
                body(out, inner, depth + 1);
            }
            return;
        }
    };
    writeln!(out, "{line}").unwrap();
}

fn axis_decl(axis: &AxisDecl) -> String {
    match &axis.size {
        Some(size) => format!("{}:{}", axis.name.name, expr(size)),
        None => axis.name.name.clone(),
    }
}

fn tensor_decl(decl: &TensorDecl) -> String {
    let init = match &decl.init {
        Some(init) => format!("=({} {})", init.name.name, join(&init.args, expr)),
        None => String::new(),
    };
    format!("{}[{}]{init}", decl.name.name, join(&decl.axes, axis_decl))
}

fn target(target: &Target) -> String {
    match &target.axes {
        Some(axes) => format!("{}[{}]", target.name.name, join(axes, index)),
        None => target.name.name.clone(),
    }
}

fn index(index: &Index) -> String {
    match index {
        Index::Rest(_) => "..".into(),
        Index::Split { parts, .. } => format!("split({})", join(parts, axis_decl)),
        Index::SplitRest(_) => "split(..)".into(),
        Index::Merge { name, parts, .. } => format!("{}:merge({})", name.name, join(parts, |p| p.name.clone())),
        Index::MergeRest { name, .. } => format!("{}:merge(..)", name.name),
        Index::Slice { name, from, to } => format!("{}:slice({} {})", name.name, expr(from), expr(to)),
        Index::Expr(value) => expr(value),
    }
}

fn expr(value: &Expr) -> String {
    match &value.kind {
        ExprKind::Int(value) => value.to_string(),
        ExprKind::Float(value) => format!("{value:?}"),
        ExprKind::Str(text) => format!("{text:?}"),
        ExprKind::Bool(value) => value.to_string(),
        ExprKind::None => "none".into(),
        ExprKind::Name(name) => name.clone(),
        ExprKind::Unary(UnaryOp::Neg, value) => format!("(- {})", expr(value)),
        ExprKind::Unary(UnaryOp::Not, value) => format!("(not {})", expr(value)),
        ExprKind::Binary(op, left, right) => format!("({op:?} {} {})", expr(left), expr(right)),
        ExprKind::At { value, rows } => format!("(at {} {})", expr(value), expr(rows)),
        ExprKind::Read(value, indices) => format!("(read {} {})", expr(value), join(indices, index)),
        ExprKind::Shape(value, indices) => format!("(shape {} {})", expr(value), join(indices, index)),
        ExprKind::Paren(value) => format!("<{}>", expr(value)),
        ExprKind::Call(call) => {
            let label = call.label.iter().map(|l| format!("@{}", l.name)).collect::<String>();
            format!("{}{label}({})", call.name.name, call.args.iter().map(arg).collect::<Vec<_>>().join(", "))
        }
        ExprKind::Rest => "..".into(),
        ExprKind::Error => "error".into(),
    }
}

fn arg(arg: &Arg) -> String {
    let mut out = arg.name.iter().map(|n| format!("{}=", n.name)).collect::<String>();
    out += &expr(&arg.value);
    out.extend(arg.size.iter().map(|size| format!(":{}", expr(size))));
    if !arg.over.is_empty() {
        out += " over[";
        out += &join(&arg.over, |axis| match axis {
            OverAxis::Rest(_) => "..".into(),
            OverAxis::Name(name) => name.name.clone(),
        });
        out += "]";
    }
    out.extend(arg.into.iter().map(|axis| format!(" into {}", axis_decl(axis))));
    out.extend(arg.renamed.iter().map(|name| format!(" as {}", name.name)));
    out
}
