//! Where the items of lists stand.

use crate::ast::{
    Arg, AxisDecl, BlockParam, ConstParam, Expr, ExprKind, Ident, Index, InputDecl, PatternAxis, Span, Target,
    TensorDecl,
};

/// Something with a place in the source.
pub(super) trait Place {
    /// All of it.
    fn span(&self) -> Span;

    /// Where its first token stands that is not a prefix operator. Comments before that go before the operators, so that
    /// formatting finds them at the same place again.
    fn first_token(&self) -> u32 {
        self.span().start
    }
}

impl Place for Expr {
    fn span(&self) -> Span {
        self.span
    }

    fn first_token(&self) -> u32 {
        match &self.kind {
            ExprKind::Unary(_, value) | ExprKind::At { value, .. } | ExprKind::Binary(_, value, _) => {
                value.first_token()
            }
            _ => self.span.start,
        }
    }
}

impl Place for Arg {
    fn span(&self) -> Span {
        self.span
    }

    fn first_token(&self) -> u32 {
        self.name.as_ref().map_or_else(|| self.value.first_token(), |name| name.span.start)
    }
}

impl Place for Index {
    fn span(&self) -> Span {
        match self {
            Index::Rest(span) | Index::SplitRest(span) => *span,
            Index::Split { span, .. } | Index::Merge { span, .. } | Index::MergeRest { span, .. } => *span,
            Index::Slice { name, to, .. } => name.span.to(to.span),
            Index::Expr(expr) => expr.span,
        }
    }

    fn first_token(&self) -> u32 {
        match self {
            Index::Expr(expr) => expr.first_token(),
            other => other.span().start,
        }
    }
}

impl Place for AxisDecl {
    fn span(&self) -> Span {
        self.size.as_ref().map_or(self.name.span, |size| self.name.span.to(size.span))
    }
}

impl Place for ConstParam {
    fn span(&self) -> Span {
        self.default.as_ref().map_or(self.name.span, |value| self.name.span.to(value.span))
    }
}

impl Place for BlockParam {
    fn span(&self) -> Span {
        match self {
            BlockParam::Const(param) => param.span(),
            BlockParam::Tensor { name, pattern, .. } => {
                pattern.last().map_or(name.span, |axis| name.span.to(axis.span()))
            }
        }
    }
}

impl Place for PatternAxis {
    fn span(&self) -> Span {
        match self {
            PatternAxis::Rest(span) => *span,
            PatternAxis::Name(name) => name.span,
        }
    }
}

impl Place for Ident {
    fn span(&self) -> Span {
        self.span
    }
}

impl Place for InputDecl {
    fn span(&self) -> Span {
        self.span
    }
}

impl Place for TensorDecl {
    fn span(&self) -> Span {
        self.init.as_ref().map_or(self.span, |init| self.span.to(init.span))
    }
}

impl Place for Target {
    fn span(&self) -> Span {
        self.span
    }
}
