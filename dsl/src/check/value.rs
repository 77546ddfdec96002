//! What expressions evaluate to, and what names stand for.

use super::axes::Ax;
use super::constant::Constant;
use crate::ast::{self, Ident, Span};
use crate::diagnostics::SourceId;
use crate::model::Init;
use forebay_ir::{DType, ValueId};
use indexmap::IndexMap;
use rustc_hash::{FxHashMap, FxHashSet};

/// The diagnostic was given; whoever gets this says nothing more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Reported;

/// A result whose error was reported.
pub(super) type Checked<T> = Result<T, Reported>;

/// A tensor of the graph under construction.
#[derive(Clone, Debug)]
pub(super) struct Tensor {
    pub node: ValueId,
    pub dtype: DType,
    pub axes: Vec<Ax>,
}

impl Tensor {
    pub(super) fn has(&self, axis: Ax) -> bool {
        self.axes.contains(&axis)
    }
}

/// The value of an expression.
#[derive(Clone, Debug)]
pub(super) enum Value {
    Const(Constant),
    Tensor(Tensor),
    /// An entry of the graph's table of groups.
    Rows(usize),
    /// An optional tensor that was not passed.
    None,
    /// What a block with several results returns.
    Several(Vec<Value>),
}

/// Something that lives outside of the graph under construction and becomes an input of it when it is used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) enum Outside {
    /// Training data: an index into the declared inputs.
    Data(usize),
    /// A parameter: an index into all parameters so far.
    Param(usize),
    /// A state.
    State(usize),
    /// A statistic.
    Stat(usize),
    /// A value of an earlier layer: an index into the slots.
    Carry(usize),
    /// The step's count of a loss: an index into the counts.
    Count(usize),
    /// The random key.
    Rng,
}

/// What a variable stands for.
#[derive(Clone, Debug)]
pub(super) enum Var {
    /// A value of the graph with this number.
    Here { value: Value, graph: u32 },
    /// Something from outside.
    Outside(Outside),
    /// It cannot be used any more; the text says why.
    Unavailable(&'static str),
    /// Its definition was reported as wrong.
    Poisoned,
}

/// A variable and where it was defined last.
#[derive(Clone, Debug)]
pub(super) struct Variable {
    pub var: Var,
    pub span: Span,
}

/// A constant in scope.
#[derive(Clone, Debug)]
pub(super) struct ConstEntry {
    /// `None`: its expression was reported as wrong.
    pub value: Option<ConstValue>,
    pub span: Span,
    /// The counter of a repeat: as an index it is an element, not an axis.
    pub is_counter: bool,
}

/// What a constant's name stands for.
#[derive(Clone, Debug)]
pub(super) enum ConstValue {
    Plain(Constant),
    /// An initialiser, which a block takes like any other constant: `init = normal(0.02)`.
    Init(InitValue),
}

/// An initialiser whose arguments may depend on the counter of the repeat.
#[derive(Clone, Debug)]
pub(super) struct InitValue {
    pub kind: InitKind,
    pub args: Vec<Constant>,
}

/// The initialisers of the language.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum InitKind {
    Zeros,
    Ones,
    Constant,
    Normal,
    TruncatedNormal,
    Uniform,
}

impl InitKind {
    pub(super) const NAMES: [(&'static str, InitKind, usize); 6] = [
        ("zeros", InitKind::Zeros, 0),
        ("ones", InitKind::Ones, 0),
        ("constant", InitKind::Constant, 1),
        ("normal", InitKind::Normal, 1),
        ("truncated_normal", InitKind::TruncatedNormal, 1),
        ("uniform", InitKind::Uniform, 2),
    ];

    /// The initialiser of this name and how many arguments it takes.
    pub(super) fn named(name: &str) -> Option<(InitKind, usize)> {
        Self::NAMES.iter().find(|(n, _, _)| *n == name).map(|(_, kind, arity)| (*kind, *arity))
    }

    /// The initialiser with its arguments, as many as it takes.
    pub(super) fn with(self, args: &[f64]) -> Init {
        match self {
            InitKind::Zeros => Init::Constant(0.0),
            InitKind::Ones => Init::Constant(1.0),
            InitKind::Constant => Init::Constant(args[0]),
            InitKind::Normal => Init::Normal(args[0]),
            InitKind::TruncatedNormal => Init::TruncatedNormal(args[0]),
            InitKind::Uniform => Init::Uniform(args[0], args[1]),
        }
    }
}

/// The names of one scope: a model's body or an instance of a block.
#[derive(Clone, Debug, Default)]
pub(super) struct Names {
    pub vars: IndexMap<String, Variable>,
    pub consts: FxHashMap<String, ConstEntry>,
    pub axes: IndexMap<String, Ax>,
    /// Names that a statement would have given to axes had it not been wrong.
    pub poisoned_axes: FxHashSet<String>,
}

/// A scope that is being checked.
#[derive(Debug)]
pub(super) struct Frame<'a> {
    /// Where its statements stand.
    pub source: SourceId,
    /// The block; `None` for the model.
    pub block: Option<&'a ast::Block>,
    /// The call that made it.
    pub call: Option<(SourceId, Span)>,
    /// Path of its parameters within the layer, ending in a dot unless empty.
    pub path: String,
    pub names: Names,
    /// What `..` may stand for on the left of a definition.
    pub rest: Vec<Ax>,
    /// The axes of `..` in the first tensor parameter, when it has a `..`.
    pub first_rest: Option<Vec<Ax>>,
    /// Names of instances and repeats in use, with the number that the next one of the name gets.
    pub components: FxHashMap<String, u32>,
    /// Tensors declared with `param`, `state`, `stat` and `loss`, by path: none may be declared twice.
    pub declared: FxHashSet<String>,
    /// The constants defined in the scope itself, then those in each repeat that is being unrolled: none may be defined twice.
    pub scopes: Vec<FxHashSet<String>>,
    /// The results, once there was a `return`.
    pub returned: Option<Checked<Value>>,
}

impl<'a> Frame<'a> {
    pub(super) fn new(source: SourceId, block: Option<&'a ast::Block>, path: String) -> Frame<'a> {
        Frame {
            source,
            block,
            call: None,
            path,
            names: Names::default(),
            rest: Vec::new(),
            first_rest: None,
            components: FxHashMap::default(),
            declared: FxHashSet::default(),
            scopes: vec![FxHashSet::default()],
            returned: None,
        }
    }

    /// Gives a constant its value.
    pub(super) fn define_const(&mut self, name: &str, entry: ConstEntry) {
        if let Some(scope) = self.scopes.last_mut() {
            scope.insert(name.to_string());
        }
        self.names.consts.insert(name.to_string(), entry);
    }

    /// A path component that is free: `name`, `name_2`, ….
    pub(super) fn component(&mut self, name: &str) -> String {
        if !self.components.contains_key(name) {
            self.components.insert(name.to_string(), 2);
            return name.to_string();
        }
        loop {
            let next = self.components.get_mut(name).expect("looked up above");
            let candidate = format!("{name}_{next}");
            *next += 1;
            if !self.components.contains_key(&candidate) {
                self.components.insert(candidate.clone(), 2);
                return candidate;
            }
        }
    }
}

/// A parameter, state or statistic of one layer.
#[derive(Clone, Debug)]
pub(super) struct Declared {
    /// Path within the layer.
    pub path: String,
    /// The layer's prefix.
    pub layer: String,
    pub axes: Vec<Ax>,
    pub init: InitValue,
    pub source: SourceId,
    pub span: Span,
}

impl Declared {
    /// The name in the model.
    pub(super) fn name(&self) -> String {
        if self.layer.is_empty() { self.path.clone() } else { format!("{}.{}", self.layer, self.path) }
    }
}

/// A declared input.
#[derive(Clone, Debug)]
pub(super) struct DataInput {
    pub name: Ident,
    pub axes: Vec<Ax>,
}
