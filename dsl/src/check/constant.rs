//! Constant arithmetic, and constants that remember how they depend on the counter of a repeat.
//!
//! The layers of a top-level `repeat` share a segment when every constant that shaped the graph has the same value in both. So a
//! constant that depends on the counter carries the expression it came from, and whoever *uses* its value (a condition, a
//! size, a number in the graph) notes that expression down. Re-evaluating the notes of an earlier iteration tells whether its
//! graph fits, at the cost of a few additions; see [`super::memo`].

use crate::ast::{BinaryOp, UnaryOp};
use crate::model::Const;
use std::rc::Rc;

/// An operation on constants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Function {
    Unary(UnaryOp),
    Binary(BinaryOp),
    Sqrt,
    Exp,
    Log,
    Floor,
    Ceil,
    Round,
    Min,
    Max,
    Abs,
}

impl Function {
    /// The constant function of this name and number of arguments.
    pub(super) fn named(name: &str, arity: usize) -> Option<Function> {
        Some(match (name, arity) {
            ("sqrt", 1) => Function::Sqrt,
            ("exp", 1) => Function::Exp,
            ("log", 1) => Function::Log,
            ("floor", 1) => Function::Floor,
            ("ceil", 1) => Function::Ceil,
            ("round", 1) => Function::Round,
            ("abs", 1) => Function::Abs,
            ("min", 2) => Function::Min,
            ("max", 2) => Function::Max,
            _ => return None,
        })
    }
}

/// How a constant depends on the counter of the top-level repeat.
#[derive(Debug)]
pub(super) struct Symbol {
    kind: SymbolKind,
    /// Number of nodes if it were a tree: bounds the work of evaluating it.
    size: usize,
}

#[derive(Debug)]
enum SymbolKind {
    Counter,
    Known(Const),
    Apply(Function, Vec<Rc<Symbol>>),
}

/// Expressions larger than this are not remembered as one; their parts are noted down instead.
const MAX_SYMBOL: usize = 256;

impl Symbol {
    /// The value when the counter is `counter`.
    pub(super) fn value(&self, counter: i64) -> Result<Const, String> {
        match &self.kind {
            SymbolKind::Counter => Ok(Const::Int(counter)),
            SymbolKind::Known(value) => Ok(value.clone()),
            SymbolKind::Apply(function, args) => {
                let args = args.iter().map(|a| a.value(counter)).collect::<Result<Vec<_>, _>>()?;
                apply(*function, &args)
            }
        }
    }
}

/// A constant: its value, and where that depends on the counter of the top-level repeat, how.
#[derive(Clone, Debug)]
pub(super) struct Constant {
    value: Const,
    symbol: Option<Rc<Symbol>>,
}

impl Constant {
    /// A constant that depends on nothing.
    pub(super) fn fixed(value: Const) -> Constant {
        Constant { value, symbol: None }
    }

    /// The counter itself.
    pub(super) fn counter(value: i64) -> Constant {
        Constant { value: Const::Int(value), symbol: Some(Rc::new(Symbol { kind: SymbolKind::Counter, size: 1 })) }
    }

    /// The value. Reading it makes the reader depend on it: note [`Constant::symbol`] down where that matters.
    pub(super) fn value(&self) -> &Const {
        &self.value
    }

    /// How it depends on the counter, if it does.
    pub(super) fn symbol(&self) -> Option<&Rc<Symbol>> {
        self.symbol.as_ref()
    }

    /// Would the result of a function of these be too large to remember as one expression?
    pub(super) fn too_large(args: &[Constant]) -> bool {
        args.iter().filter_map(|a| a.symbol.as_ref()).map(|s| s.size).sum::<usize>() >= MAX_SYMBOL
    }

    /// A function of constants.
    pub(super) fn apply(function: Function, args: &[Constant]) -> Result<Constant, String> {
        let values: Vec<Const> = args.iter().map(|a| a.value.clone()).collect();
        let value = apply(function, &values)?;
        if args.iter().all(|a| a.symbol.is_none()) {
            return Ok(Constant::fixed(value));
        }
        let parts: Vec<Rc<Symbol>> = args.iter().map(Constant::to_symbol).collect();
        let size = 1 + parts.iter().map(|p| p.size).sum::<usize>();
        Ok(Constant { value, symbol: Some(Rc::new(Symbol { kind: SymbolKind::Apply(function, parts), size })) })
    }

    fn to_symbol(&self) -> Rc<Symbol> {
        match &self.symbol {
            Some(symbol) => symbol.clone(),
            None => Rc::new(Symbol { kind: SymbolKind::Known(self.value.clone()), size: 1 }),
        }
    }
}

/// What kind of constant it is, for messages.
pub(super) fn kind(value: &Const) -> &'static str {
    match value {
        Const::Int(_) => "an integer",
        Const::Float(_) => "a float",
        Const::Bool(_) => "a bool",
        Const::Str(_) => "a string",
    }
}

/// The constant as it would be written.
pub(super) fn show(value: &Const) -> String {
    match value {
        Const::Int(n) => n.to_string(),
        Const::Float(x) => format!("{x:?}"),
        Const::Bool(b) => b.to_string(),
        Const::Str(s) => format!("\"{s}\""),
    }
}

/// The number as a float, when it is a number.
pub(super) fn number(value: &Const) -> Option<f64> {
    match value {
        Const::Int(n) => Some(*n as f64),
        Const::Float(x) => Some(*x),
        Const::Bool(_) | Const::Str(_) => None,
    }
}

/// A function of constants; the error is a sentence for the user.
pub(super) fn apply(function: Function, args: &[Const]) -> Result<Const, String> {
    match (function, args) {
        (Function::Unary(UnaryOp::Not), [Const::Bool(b)]) => Ok(Const::Bool(!b)),
        (Function::Unary(UnaryOp::Not), [other]) => Err(format!("`not` takes a bool, not {}", kind(other))),
        (Function::Unary(UnaryOp::Neg), [Const::Int(n)]) => n.checked_neg().map(Const::Int).ok_or_else(overflow),
        (Function::Abs, [Const::Int(n)]) => n.checked_abs().map(Const::Int).ok_or_else(overflow),
        (Function::Floor | Function::Ceil | Function::Round, [Const::Int(n)]) => Ok(Const::Int(*n)),
        (Function::Min, [Const::Int(a), Const::Int(b)]) => Ok(Const::Int(*a.min(b))),
        (Function::Max, [Const::Int(a), Const::Int(b)]) => Ok(Const::Int(*a.max(b))),
        (Function::Binary(op), [a, b]) => binary(op, a, b),
        (_, [a]) => float_function(function, numeric(a)?),
        (Function::Min, [a, b]) => float(numeric(a)?.min(numeric(b)?)),
        (Function::Max, [a, b]) => float(numeric(a)?.max(numeric(b)?)),
        _ => Err("wrong number of arguments".into()),
    }
}

fn overflow() -> String {
    "the result does not fit into 64 bits".into()
}

fn numeric(value: &Const) -> Result<f64, String> {
    number(value).ok_or_else(|| format!("a number is needed here, not {}", kind(value)))
}

fn float(x: f64) -> Result<Const, String> {
    if x.is_nan() { Err("the result is not a number".into()) } else { Ok(Const::Float(x)) }
}

/// Functions of one float. Rounding gives an integer where it fits into one.
fn float_function(function: Function, x: f64) -> Result<Const, String> {
    let rounded = match function {
        Function::Unary(UnaryOp::Neg) => return float(-x),
        Function::Abs => return float(x.abs()),
        Function::Sqrt if x < 0.0 => return Err(format!("the square root of {x:?}")),
        Function::Sqrt => return float(x.sqrt()),
        Function::Exp => return float(x.exp()),
        Function::Log if x <= 0.0 => return Err(format!("the logarithm of {x:?}")),
        Function::Log => return float(x.ln()),
        Function::Floor => x.floor(),
        Function::Ceil => x.ceil(),
        Function::Round => x.round(),
        Function::Unary(UnaryOp::Not) | Function::Binary(_) | Function::Min | Function::Max => {
            return Err("wrong number of arguments".into());
        }
    };
    // 2^63 itself is a float but not an i64.
    if rounded.abs() < 9.2e18 { Ok(Const::Int(rounded as i64)) } else { Err(overflow()) }
}

fn binary(op: BinaryOp, a: &Const, b: &Const) -> Result<Const, String> {
    match op {
        BinaryOp::And | BinaryOp::Or => logical(op, a, b),
        BinaryOp::Eq => same(a, b).map(Const::Bool),
        BinaryOp::Ne => same(a, b).map(|equal| Const::Bool(!equal)),
        BinaryOp::Lt | BinaryOp::Le | BinaryOp::Gt | BinaryOp::Ge => compare(op, a, b),
        BinaryOp::Add | BinaryOp::Sub | BinaryOp::Mul | BinaryOp::Div | BinaryOp::Rem | BinaryOp::Pow => match (a, b) {
            (Const::Int(a), Const::Int(b)) => integers(op, *a, *b),
            _ => floats(op, numeric(a)?, numeric(b)?),
        },
    }
}

fn logical(op: BinaryOp, a: &Const, b: &Const) -> Result<Const, String> {
    match (a, b) {
        (Const::Bool(a), Const::Bool(b)) => Ok(Const::Bool(if op == BinaryOp::And { *a && *b } else { *a || *b })),
        (Const::Bool(_), other) | (other, _) => Err(format!("`and` and `or` take bools, not {}", kind(other))),
    }
}

fn same(a: &Const, b: &Const) -> Result<bool, String> {
    match (a, b) {
        (Const::Int(a), Const::Int(b)) => Ok(a == b),
        (Const::Bool(a), Const::Bool(b)) => Ok(a == b),
        (Const::Str(a), Const::Str(b)) => Ok(a == b),
        _ => match (number(a), number(b)) {
            (Some(a), Some(b)) => Ok(a == b),
            _ => Err(format!("{} is compared with {}", kind(a), kind(b))),
        },
    }
}

fn compare(op: BinaryOp, a: &Const, b: &Const) -> Result<Const, String> {
    let order = match (a, b) {
        (Const::Int(a), Const::Int(b)) => Some(a.cmp(b)),
        _ => numeric(a)?.partial_cmp(&numeric(b)?),
    };
    let order = order.ok_or("the result is not a number")?;
    Ok(Const::Bool(match op {
        BinaryOp::Lt => order.is_lt(),
        BinaryOp::Le => order.is_le(),
        BinaryOp::Gt => order.is_gt(),
        _ => order.is_ge(),
    }))
}

fn integers(op: BinaryOp, a: i64, b: i64) -> Result<Const, String> {
    let result = match op {
        BinaryOp::Add => a.checked_add(b),
        BinaryOp::Sub => a.checked_sub(b),
        BinaryOp::Mul => a.checked_mul(b),
        BinaryOp::Div | BinaryOp::Rem if b == 0 => return Err(format!("{a} is divided by zero")),
        BinaryOp::Div => match a.checked_rem(b) {
            Some(0) => a.checked_div(b),
            Some(_) => return float(a as f64 / b as f64),
            None => None,
        },
        // The remainder has the sign of the divisor, as in the graph.
        BinaryOp::Rem => a.checked_rem(b).map(|r| if r != 0 && (r < 0) != (b < 0) { r + b } else { r }),
        _ => match u32::try_from(b) {
            Ok(b) => a.checked_pow(b),
            Err(_) if b < 0 => return floats(op, a as f64, b as f64),
            Err(_) => None,
        },
    };
    result.map(Const::Int).ok_or_else(overflow)
}

fn floats(op: BinaryOp, a: f64, b: f64) -> Result<Const, String> {
    if b == 0.0 && matches!(op, BinaryOp::Div | BinaryOp::Rem) {
        return Err(format!("{a:?} is divided by zero"));
    }
    float(match op {
        BinaryOp::Add => a + b,
        BinaryOp::Sub => a - b,
        BinaryOp::Mul => a * b,
        BinaryOp::Div => a / b,
        BinaryOp::Rem => a - (a / b).floor() * b,
        _ => a.powf(b),
    })
}
