//! Words with a meaning of their own.

/// Built-in functions and constants. Blocks, constants and variables cannot have these names.
pub const BUILTINS: &[&str] = &[
    "abs",
    "ceil",
    "concat",
    "cos",
    "delta_solve",
    "detach",
    "exp",
    "floor",
    "given",
    "group",
    "index",
    "inf",
    "linear_attention",
    "log",
    "max",
    "mean",
    "min",
    "narrow",
    "pi",
    "random",
    "round",
    "rsqrt",
    "scan",
    "scatter",
    "sign",
    "sin",
    "size",
    "sqrt",
    "stack",
    "sum",
    "tanh",
    "top",
    "where",
    "wide",
];

/// Words that start a statement, for "did you mean".
pub(super) const STATEMENT_WORDS: &[&str] =
    &["input", "const", "param", "state", "stat", "update", "loss", "output", "repeat", "if", "return"];

/// Words that are operators or clauses where the grammar expects them and ordinary names elsewhere.
pub const CONTEXTUAL: &[&str] = &["over", "at", "per", "weight", "scope", "as", "in", "into"];

/// True for names of built-in functions and constants.
pub fn is_builtin(name: &str) -> bool {
    BUILTINS.binary_search(&name).is_ok()
}

/// Functions whose `over` takes several axes. Everywhere else a comma after `over a` ends the argument.
pub(super) fn takes_several_axes(callee: &str) -> bool {
    matches!(callee, "sum" | "mean" | "max" | "min" | "scan" | "scatter")
}
