//! The syntax tree of a `.moe` file. Every node carries the byte range of its source text.

/// A half-open range of bytes in the source text.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default, PartialOrd, Ord)]
pub struct Span {
    /// First byte.
    pub start: u32,
    /// One past the last byte.
    pub end: u32,
}

impl Span {
    /// The smallest span that covers both.
    pub fn to(self, other: Span) -> Span {
        Span { start: self.start.min(other.start), end: self.end.max(other.end) }
    }
}

/// A name and where it stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ident {
    /// The text.
    pub name: String,
    /// Where.
    pub span: Span,
}

/// A parsed file: models and blocks in source order.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct File {
    /// Items in source order.
    pub items: Vec<Item>,
}

/// A top-level item.
#[derive(Clone, Debug, PartialEq)]
pub enum Item {
    /// `model Name(constants) { … }`
    Model(Model),
    /// `block name(parameters) { … }`
    Block(Block),
}

/// `model Name(a = 1, b = 2) { … }`
#[derive(Clone, Debug, PartialEq)]
pub struct Model {
    /// The model's name.
    pub name: Ident,
    /// Constants with their defaults, in order.
    pub constants: Vec<ConstParam>,
    /// The statements.
    pub body: Body,
    /// The whole item.
    pub span: Span,
}

/// `name = value` in a model's or block's header.
#[derive(Clone, Debug, PartialEq)]
pub struct ConstParam {
    /// The constant's name.
    pub name: Ident,
    /// Its default; required for models, optional for blocks.
    pub default: Option<Expr>,
}

/// `block name(x[.., d], experts, eps = 1e-6) { … }`
#[derive(Clone, Debug, PartialEq)]
pub struct Block {
    /// The block's name.
    pub name: Ident,
    /// Parameters in order.
    pub params: Vec<BlockParam>,
    /// The statements.
    pub body: Body,
    /// The whole item.
    pub span: Span,
}

/// A parameter of a block.
#[derive(Clone, Debug, PartialEq)]
pub enum BlockParam {
    /// `x[.., d]`, optionally `= none`.
    Tensor {
        /// The parameter's name.
        name: Ident,
        /// The pattern; at most one `Rest`.
        pattern: Vec<PatternAxis>,
        /// True for `= none`.
        optional: bool,
    },
    /// `eps = 1e-6`, `heads`.
    Const(ConstParam),
}

/// One entry of a tensor parameter's pattern.
#[derive(Clone, Debug, PartialEq)]
pub enum PatternAxis {
    /// `..`
    Rest(Span),
    /// `d`
    Name(Ident),
}

/// The statements between braces.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Body {
    /// In source order.
    pub statements: Vec<Statement>,
    /// From `{` to `}`.
    pub span: Span,
}

/// A statement.
#[derive(Clone, Debug, PartialEq)]
pub struct Statement {
    /// What it is.
    pub kind: StatementKind,
    /// Its text.
    pub span: Span,
}

/// What a statement is.
#[derive(Clone, Debug, PartialEq)]
pub enum StatementKind {
    /// `input tokens: token[batch, seq], …`
    Input(Vec<InputDecl>),
    /// `const a = expr`
    Const {
        /// The constant's name.
        name: Ident,
        /// Its value.
        value: Expr,
    },
    /// `param w[d, f] = normal(0.02), …`
    Param(Vec<TensorDecl>),
    /// `state bias[e: experts] = zeros, …`
    State(Vec<TensorDecl>),
    /// `stat load[e] = expr`
    Stat {
        /// Name and optional indices.
        target: Target,
        /// The value of one micro-batch.
        value: Expr,
    },
    /// `update bias = expr`
    Update {
        /// The state.
        name: Ident,
        /// Its next value.
        value: Expr,
    },
    /// `a[i, j] = expr`, `a, b = call(…)`
    Define {
        /// One or more targets.
        targets: Vec<Target>,
        /// The value.
        value: Expr,
    },
    /// `loss name = expr per expr weight expr scope micro`
    Loss {
        /// The loss's name.
        name: Ident,
        /// Its value (the sum, when `per` is there).
        value: Expr,
        /// The count.
        per: Option<Expr>,
        /// Constant factor in the total.
        weight: Option<Expr>,
        /// `micro`, `sequence`, `group` or `global`.
        scope: Option<Ident>,
    },
    /// `output a, b`
    Output(Vec<Ident>),
    /// `repeat [i in] count { … }`
    Repeat {
        /// The counter.
        counter: Option<Ident>,
        /// How often; constant.
        count: Expr,
        /// What.
        body: Body,
    },
    /// `if c { … } else if … else { … }`
    If {
        /// Condition and body of each branch, in order.
        branches: Vec<(Expr, Body)>,
        /// The `else` body.
        otherwise: Option<Body>,
    },
    /// `return a, b`
    Return(Vec<Expr>),
    /// A statement the parser could not read; a diagnostic was given.
    Error,
}

/// `tokens: token[batch, seq]`
#[derive(Clone, Debug, PartialEq)]
pub struct InputDecl {
    /// The input's name, which also says its meaning.
    pub name: Ident,
    /// The element kind: `token`.
    pub kind: Ident,
    /// Its axes.
    pub axes: Vec<AxisDecl>,
    /// From the name to the closing bracket.
    pub span: Span,
}

/// `w[d, e: experts] = init(…)`
#[derive(Clone, Debug, PartialEq)]
pub struct TensorDecl {
    /// The name.
    pub name: Ident,
    /// Its axes; empty for a scalar, `param s[]`.
    pub axes: Vec<AxisDecl>,
    /// The initialiser.
    pub init: Option<Initializer>,
    /// The name and its axes.
    pub span: Span,
}

/// `d` or `e: experts`
#[derive(Clone, Debug, PartialEq)]
pub struct AxisDecl {
    /// The axis.
    pub name: Ident,
    /// Its size, when given.
    pub size: Option<Expr>,
}

/// `normal(0.02)`, `zeros`
#[derive(Clone, Debug, PartialEq)]
pub struct Initializer {
    /// `zeros`, `ones`, `constant`, `normal`, `truncated_normal`, `uniform`.
    pub name: Ident,
    /// Constant arguments.
    pub args: Vec<Expr>,
    /// The name and its arguments.
    pub span: Span,
}

/// The left side of a definition: `y` or `y[.., m: (h, dh)]`.
#[derive(Clone, Debug, PartialEq)]
pub struct Target {
    /// The name.
    pub name: Ident,
    /// The axes, when written: `Rest`, `Merge`, `MergeRest` and `Expr` of kind `Name` only.
    pub axes: Option<Vec<Index>>,
    /// The name and its brackets.
    pub span: Span,
}

/// One position between square brackets.
#[derive(Clone, Debug, PartialEq)]
pub enum Index {
    /// `..`
    Rest(Span),
    /// `(i, two: 2)` when reading: a split.
    Split {
        /// The parts, major first.
        parts: Vec<AxisDecl>,
        /// The parentheses.
        span: Span,
    },
    /// `(..)` when reading.
    SplitRest(Span),
    /// `m: (h, dh)` when defining: a merge.
    Merge {
        /// The new axis.
        name: Ident,
        /// The merged axes, major first.
        parts: Vec<Ident>,
        /// From the name to the closing parenthesis.
        span: Span,
    },
    /// `n: (..)` when defining.
    MergeRest {
        /// The new axis.
        name: Ident,
        /// The `(..)`.
        span: Span,
    },
    /// `s: 1..seq`
    Slice {
        /// The new axis.
        name: Ident,
        /// First element.
        from: Expr,
        /// One past the last.
        to: Expr,
    },
    /// An axis name, a constant, or an integer tensor: told apart by what the name means.
    /// An axis name is `Expr` of kind `Name`.
    Expr(Expr),
}

/// An expression.
#[derive(Clone, Debug, PartialEq)]
pub struct Expr {
    /// What it is.
    pub kind: ExprKind,
    /// Its text.
    pub span: Span,
}

/// What an expression is.
#[derive(Clone, Debug, PartialEq)]
pub enum ExprKind {
    /// `12`
    Int(i64),
    /// `1e-6`
    Float(f64),
    /// `"yarn"`; there are no escapes.
    Str(String),
    /// `true`
    Bool(bool),
    /// `none`
    None,
    /// A variable, constant or axis.
    Name(String),
    /// `-x`, `not x`
    Unary(UnaryOp, Box<Expr>),
    /// `a + b`
    Binary(BinaryOp, Box<Expr>, Box<Expr>),
    /// `x at rows`
    At {
        /// What is dispatched or combined.
        value: Box<Expr>,
        /// The rows.
        rows: Box<Expr>,
    },
    /// `T[i, j, ..]` on a name or a call: reading by position.
    Read(Box<Expr>, Vec<Index>),
    /// `(e)[i, j]`: a definition without a name.
    Shape(Box<Expr>, Vec<Index>),
    /// `(e)`: kept, for the formatter and because `(e)[…]` differs from `e[…]`.
    Paren(Box<Expr>),
    /// `f(a, b over k, name = c)`, `block@label(…)`
    Call(Call),
    /// `..` as the argument of `size(..)`.
    Rest,
    /// Something the parser could not read; a diagnostic was given.
    Error,
}

/// A call of a block or of a built-in function.
#[derive(Clone, Debug, PartialEq)]
pub struct Call {
    /// The callee.
    pub name: Ident,
    /// The instance label after `@`.
    pub label: Option<Ident>,
    /// The arguments.
    pub args: Vec<Arg>,
}

/// An argument: `x`, `name = x`, `x over a, b`, `v at idx over a into e: n`, `k: n` (a new axis with its size), `a as b`.
#[derive(Clone, Debug, PartialEq)]
pub struct Arg {
    /// `name = …`
    pub name: Option<Ident>,
    /// The value. For `k: n` it is the `Name` k.
    pub value: Expr,
    /// `k: n`: the size.
    pub size: Option<Expr>,
    /// `over a, b` / `over ..`. A comma after `over` continues the list of axes as long as a bare name follows that is itself
    /// followed by `,`, `)`, `as` or `into`, and (in `sum mean max min scatter scan`) always; in `top(e over a, k: n)` the `k: n`
    /// is an argument because of the colon; in `group(c, e, r)` there is no `over`.
    pub over: Vec<OverAxis>,
    /// `into e: n` (scatter).
    pub into: Option<AxisDecl>,
    /// `as two` (stack, concat).
    pub renamed: Option<Ident>,
    /// The whole argument.
    pub span: Span,
}

/// An axis of an `over` list.
#[derive(Clone, Debug, PartialEq)]
pub enum OverAxis {
    /// `..`
    Rest(Span),
    /// `d`
    Name(Ident),
}

/// Prefix operators.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UnaryOp {
    /// `-`
    Neg,
    /// `not`
    Not,
}

/// Infix operators.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum BinaryOp {
    /// `+`
    Add,
    /// `-`
    Sub,
    /// `*`
    Mul,
    /// `/`
    Div,
    /// `%`
    Rem,
    /// `^`
    Pow,
    /// `==`
    Eq,
    /// `!=`
    Ne,
    /// `<`
    Lt,
    /// `<=`
    Le,
    /// `>`
    Gt,
    /// `>=`
    Ge,
    /// `and`
    And,
    /// `or`
    Or,
}
