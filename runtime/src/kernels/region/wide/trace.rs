//! What a chain computes, as a list of operations on vectors of which each is the result of one: the chain's micro-operations, with elementary functions
//! taken apart.
//!
//! Functions are not written here a second time: those of [`crate::kernels::math`] run once on [`Traced`], a number that writes down what is done with it. So code has
//! their operations in their order, and their bits.

use super::super::chain::{Code, From, Micro, Site};
use super::super::program::Slot;
use super::super::tile;
use crate::kernels::lanes::{Lanes, MAGIC};
use crate::kernels::math;
use rustc_hash::FxHashMap;
use std::cell::RefCell;
use std::ops::{Add, Div, Mul, Sub};

/// A result: its number in the list.
pub(super) type Id = usize;

/// A function that comes again and again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Wave {
    Sine,
    Cosine,
}

/// What is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Op {
    /// The same f32 in each lane, by its bits.
    Constant(u32),
    /// f32, bf16 or conditions for each column, from the place of a micro-operation.
    Columns(usize),
    Bf16(usize),
    Truths(usize),
    /// An f32 for all columns.
    Row(usize),
    Add,
    Sub,
    Mul,
    Div,
    Sqrt,
    /// `a·b + c`
    Fused,
    Floor,
    /// `a` where it is less than `b`, else `b`.
    Least,
    /// `a` where it is greater than `b`, else `b`.
    Most,
    Lt,
    /// Not less: also where one is NaN.
    NotLt,
    Le,
    Equal,
    Both,
    Either,
    Not,
    /// (condition, a, b): `a` where it holds, `b` elsewhere.
    Choose,
    IntAdd,
    IntSub,
    And,
    Or,
    Xor,
    /// Bits moved.
    Up(u32),
    Down(u32),
    FromInts,
    /// (a, n, condition): a·2ⁿ where the condition holds, elsewhere zero.
    TimesPower,
    /// The first of [`Lanes::mantissa_and_exponent`].
    Mantissa,
    /// The largest whole number that is no larger than log₂ |a|.
    Exponent,
    /// As [`Lanes::with_sign_of`]; the last operand is the sign's bit.
    WithSign,
    /// (y, x): y, or the waves of x by the general function, where one is beyond [`math::TRIG_LIMIT`].
    Far(Wave),
    /// As [`Lanes::nearest_bf16`].
    Nearest,
    /// (y, x), as [`Lanes::log_ends`].
    LogEnds,
    /// To the place of a micro-operation: f32, the upper halves, conditions as bytes.
    Store(usize),
    StoreUpper(usize),
    StoreTruths(usize),
}

impl Op {
    /// Is the result a condition?
    pub fn is_truth(self) -> bool {
        matches!(self, Op::Truths(_) | Op::Lt | Op::NotLt | Op::Le | Op::Equal | Op::Both | Op::Either | Op::Not)
    }

    /// The micro-operation whose numbers are loaded for each column.
    pub fn load(self) -> Option<usize> {
        if let Op::Columns(micro) | Op::Bf16(micro) = self { Some(micro) } else { None }
    }

    /// Is it done for its effect?
    pub fn stores(self) -> bool {
        matches!(self, Op::Store(_) | Op::StoreUpper(_) | Op::StoreTruths(_))
    }

    /// Is there one value for all columns, which is fetched where it is used?
    pub fn is_uniform(self) -> bool {
        matches!(self, Op::Constant(_) | Op::Row(_))
    }
}

/// An operation and its operands.
#[derive(Clone, Debug)]
pub(super) struct Node {
    pub op: Op,
    pub args: Vec<Id>,
}

/// What is written down, and where results are that are asked for again.
#[derive(Default)]
struct List {
    nodes: Vec<Node>,
    known: FxHashMap<(Op, Vec<Id>), Id>,
}

impl List {
    fn add(&mut self, op: Op, args: &[Id]) -> Id {
        let id = self.nodes.len();
        let first = if op.stores() { id } else { *self.known.entry((op, args.to_vec())).or_insert(id) };
        if first == id {
            self.nodes.push(Node { op, args: args.to_vec() });
        }
        first
    }
}

thread_local! {
    static LIST: RefCell<List> = RefCell::default();
}

fn add(op: Op, args: &[Id]) -> Id {
    LIST.with_borrow_mut(|list| list.add(op, args))
}

/// A number that writes down what is done with it.
#[derive(Clone, Copy)]
pub(super) struct Traced(Id);

/// A condition.
#[derive(Clone, Copy)]
pub(super) struct Truth(Id);

/// An integer.
#[derive(Clone, Copy)]
pub(super) struct Int(Id);

macro_rules! operators {
    ($t:ident, $($trait:ident $method:ident $op:expr),*) => {
        $(impl $trait for $t {
            type Output = $t;
            fn $method(self, other: $t) -> $t {
                $t(add($op, &[self.0, other.0]))
            }
        })*
    };
}
operators!(Traced, Add add Op::Add, Sub sub Op::Sub, Mul mul Op::Mul, Div div Op::Div);
operators!(Int, Add add Op::IntAdd, Sub sub Op::IntSub);

impl Lanes for Traced {
    type Mask = Truth;
    type Ints = Int;

    fn splat(x: f32) -> Traced {
        Traced(add(Op::Constant(x.to_bits()), &[]))
    }
    fn sqrt(self) -> Traced {
        Traced(add(Op::Sqrt, &[self.0]))
    }
    fn fused(self, factor: Traced, summand: Traced) -> Traced {
        Traced(add(Op::Fused, &[self.0, factor.0, summand.0]))
    }
    fn floor(self) -> Traced {
        Traced(add(Op::Floor, &[self.0]))
    }
    fn least(self, other: Traced) -> Traced {
        Traced(add(Op::Least, &[self.0, other.0]))
    }
    fn most(self, other: Traced) -> Traced {
        Traced(add(Op::Most, &[self.0, other.0]))
    }
    fn lt(self, other: Traced) -> Truth {
        Truth(add(Op::Lt, &[self.0, other.0]))
    }
    fn le(self, other: Traced) -> Truth {
        Truth(add(Op::Le, &[self.0, other.0]))
    }
    fn equal(self, other: Traced) -> Truth {
        Truth(add(Op::Equal, &[self.0, other.0]))
    }
    fn both(a: Truth, b: Truth) -> Truth {
        Truth(add(Op::Both, &[a.0, b.0]))
    }
    fn either(a: Truth, b: Truth) -> Truth {
        Truth(add(Op::Either, &[a.0, b.0]))
    }
    fn not(a: Truth) -> Truth {
        let Node { op, args } = LIST.with_borrow(|list| list.nodes[a.0].clone());
        Truth(if op == Op::Lt { add(Op::NotLt, &args) } else { add(Op::Not, &[a.0]) })
    }
    fn mask(_: bool) -> Truth {
        unreachable!("conditions of rows are not compiled")
    }
    fn any(_: Truth) -> bool {
        unreachable!("nothing is decided by values")
    }
    fn or(self, mask: Truth, other: Traced) -> Traced {
        Traced(add(Op::Choose, &[mask.0, self.0, other.0]))
    }
    fn bits(self) -> Int {
        Int(self.0)
    }
    fn from_bits(bits: Int) -> Traced {
        Traced(bits.0)
    }
    fn int(x: i32) -> Int {
        Int(add(Op::Constant(x as u32), &[]))
    }
    fn bit_and(a: Int, b: Int) -> Int {
        Int(add(Op::And, &[a.0, b.0]))
    }
    fn bit_or(a: Int, b: Int) -> Int {
        Int(add(Op::Or, &[a.0, b.0]))
    }
    fn bit_xor(a: Int, b: Int) -> Int {
        Int(add(Op::Xor, &[a.0, b.0]))
    }
    fn up<const N: u32>(a: Int) -> Int {
        Int(add(Op::Up(N), &[a.0]))
    }
    fn down<const N: u32>(a: Int) -> Int {
        Int(add(Op::Down(N), &[a.0]))
    }
    fn from_ints(a: Int) -> Traced {
        Traced(add(Op::FromInts, &[a.0]))
    }
    fn times_power(self, shifted: Traced, zero: Truth) -> Traced {
        let n = shifted - Traced::splat(MAGIC);
        Traced(add(Op::TimesPower, &[self.0, n.0, Traced::not(zero).0]))
    }
    fn mantissa_and_exponent(self) -> (Traced, Traced) {
        let mantissa = Traced(add(Op::Mantissa, &[self.0]));
        let [all, own] = [self, mantissa].map(|x| Traced(add(Op::Exponent, &[x.0])));
        (mantissa, all - own)
    }
    fn with_sign_of(self, other: Traced) -> Traced {
        Traced(add(Op::WithSign, &[self.0, other.0, Traced::splat(-0.0).0]))
    }
    fn nearest_bf16(self) -> Traced {
        Traced(add(Op::Nearest, &[self.0]))
    }
    fn log_ends(self, x: Traced) -> Traced {
        Traced(add(Op::LogEnds, &[self.0, x.0]))
    }
}

/// The result of a fast function for x, but for what is far away.
fn far(y: Traced, x: Traced, wave: Wave) -> Traced {
    Traced(add(Op::Far(wave), &[y.0, x.0]))
}

/// What a chain computes; nothing where a micro-operation has no such form. `outer` says which registers others read.
pub(super) fn trace(micros: &[Micro], outer: &dyn Fn(Slot) -> bool) -> Option<Vec<Node>> {
    LIST.set(Default::default());
    let mut chain = Chain { number: None, truth: None, numbers: FxHashMap::default(), truths: FxHashMap::default() };
    let done = micros.iter().enumerate().try_for_each(|(at, micro)| chain.push(at, micro, outer));
    let list = LIST.take();
    done.map(|()| list.nodes)
}

/// What is known on the way through a chain.
struct Chain {
    number: Option<Traced>,
    truth: Option<Truth>,
    /// What registers and memory hold, where that was read or written before.
    numbers: FxHashMap<SiteKey, Traced>,
    truths: FxHashMap<SiteKey, Truth>,
}

/// A place, and whether it is memory.
type SiteKey = (bool, usize);

fn key(site: Site) -> Option<SiteKey> {
    match site {
        Site::None => None,
        Site::Slot(slot) => Some((false, slot)),
        Site::Access(access) => Some((true, access)),
    }
}

impl Chain {
    fn push(&mut self, at: usize, micro: &Micro, outer: &dyn Fn(Slot) -> bool) -> Option<()> {
        match micro.code {
            Code::Store | Code::StoreBf16 | Code::StoreTruth => return self.store(at, micro, outer),
            Code::LoadTruth | Code::Not | Code::And | Code::Or => return self.logic(at, micro),
            _ => {}
        }
        let b = match micro.from {
            From::Accumulator => self.number,
            From::Truths | From::Truth => return None,
            From::Columns | From::Row | From::Bf16 => Some(self.operand(at, micro)?),
        };
        if micro.code == Code::Load {
            self.number = b;
            return Some(());
        }
        let c = Traced::splat;
        if micro.code == Code::Number {
            self.number = Some(c(1.0).or(self.truth?, c(0.0)));
            return Some(());
        }
        let (a, b) = (self.number?, b?);
        let truth = match micro.code {
            Code::Eq => Some(a.equal(b)),
            Code::Ne => Some(Traced::not(a.equal(b))),
            Code::Lt => Some(a.lt(b)),
            Code::Le => Some(a.le(b)),
            Code::Gt => Some(b.lt(a)),
            Code::Ge => Some(b.le(a)),
            Code::Truth => Some(Traced::not(a.equal(c(0.0)))),
            _ => None,
        };
        if truth.is_some() {
            self.truth = truth;
            return Some(());
        }
        self.number = Some(match micro.code {
            Code::Neg => a.neg(),
            Code::Abs => a.abs(),
            Code::Sign => tile::sign(a),
            Code::Exp => math::exp(a),
            Code::Log => math::log(a),
            Code::Tanh => math::tanh(a),
            Code::Sin => far(math::sin(a), a, Wave::Sine),
            Code::Cos => far(math::cos(a), a, Wave::Cosine),
            Code::Sqrt => a.sqrt(),
            Code::Rsqrt => c(1.0) / a.sqrt(),
            Code::Floor => a.floor(),
            Code::Round => math::round_to_bf16(a),
            Code::Add => a + b,
            Code::Sub => a - b,
            Code::SubFrom => b - a,
            Code::Mul => a * b,
            Code::Div => a / b,
            Code::DivInto => b / a,
            Code::Min => a.minimum(b),
            Code::MinOf => b.minimum(a),
            Code::Max => a.maximum(b),
            Code::MaxOf => b.maximum(a),
            Code::Select => a.or(self.truth?, b),
            Code::SelectOf => b.or(self.truth?, a),
            _ => return None,
        });
        Some(())
    }

    /// An operand from its place, or what is there, where that is known.
    fn operand(&mut self, at: usize, micro: &Micro) -> Option<Traced> {
        let key = key(micro.site)?;
        if let Some(&known) = self.numbers.get(&key) {
            return Some(known);
        }
        let op = match micro.from {
            From::Columns => Op::Columns(at),
            From::Bf16 => Op::Bf16(at),
            _ => Op::Row(at),
        };
        let value = Traced(add(op, &[]));
        self.numbers.insert(key, value);
        Some(value)
    }

    fn condition(&mut self, at: usize, micro: &Micro) -> Option<Truth> {
        match micro.from {
            From::Truths => {
                let key = key(micro.site)?;
                Some(*self.truths.entry(key).or_insert_with(|| Truth(add(Op::Truths(at), &[]))))
            }
            From::Truth => None,
            _ => self.truth,
        }
    }

    fn logic(&mut self, at: usize, micro: &Micro) -> Option<()> {
        let n = self.condition(at, micro);
        self.truth = Some(match micro.code {
            Code::LoadTruth => n?,
            Code::Not => Traced::not(self.truth?),
            Code::And => Traced::both(self.truth?, n?),
            _ => Traced::either(self.truth?, n?),
        });
        Some(())
    }

    fn store(&mut self, at: usize, micro: &Micro, outer: &dyn Fn(Slot) -> bool) -> Option<()> {
        let key = key(micro.site)?;
        let inner = matches!(micro.site, Site::Slot(slot) if !outer(slot));
        if let Site::Access(_) = micro.site {
            // What is in memory may be seen by other names.
            self.numbers.retain(|(memory, _), _| !memory);
            self.truths.retain(|(memory, _), _| !memory);
        }
        match micro.code {
            Code::Store => {
                let a = self.number?;
                if !inner {
                    add(Op::Store(at), &[a.0]);
                }
                if let Site::Slot(_) = micro.site {
                    self.numbers.insert(key, a);
                }
            }
            Code::StoreBf16 => {
                let rounded = math::round_to_bf16(self.number?);
                add(Op::StoreUpper(at), &[rounded.0]);
            }
            _ => {
                let m = self.truth?;
                if !inner {
                    add(Op::StoreTruths(at), &[m.0]);
                }
                if let Site::Slot(_) = micro.site {
                    self.truths.insert(key, m);
                }
            }
        }
        Some(())
    }
}
