//! Small exact clean-ups: common subexpressions, constants, and ops that undo each other.
//!
//! ```text
//! %a = broadcast %s, %b = mul %a, %x                %b = mul %s, %x
//! %c = mul %b, 1, %d = neg (neg %c)         ==>
//! %e = add %y, %d                                   %e = add %y, %b
//! ```
//!
//! Requires: nothing. Keeps: every output bit for bit (signs of NaN apart), names of the values that stay.
//! What is not exact is left alone: `x + 0` (-0 becomes 0), `(x * a) * b`, a sum of copies, functions that a device approximates.
//! Cost: linear in nodes for each round; rounds until nothing changes.

use forebay_ir::reference::scalar;
use forebay_ir::{AxisId, BinaryOp, DType, Graph, Node, Op, Type, UnaryOp, ValueId};
use rustc_hash::FxHashMap;
use std::mem::discriminant;

/// Simplifies and prunes a graph. Returns where each old value went, as [`Graph::prune`] does.
pub fn simplify(graph: &mut Graph) -> Vec<Option<ValueId>> {
    let mut moved: Vec<Option<ValueId>> = graph.values().map(Some).collect();
    loop {
        let mut round = Round::new(graph);
        let step = round.run();
        let mut next = round.new;
        let kept = next.prune();
        let compose = |v: Option<ValueId>| v.and_then(|v: ValueId| kept[step[v.index()].index()]);
        moved.iter_mut().for_each(|v| *v = compose(*v));
        let unchanged = same_nodes(&next, graph);
        *graph = next;
        if unchanged {
            return moved;
        }
    }
}

/// What one look at a node says.
enum Verdict {
    /// An existing value.
    Is(ValueId),
    /// Another op with the same result.
    Becomes(Op, Vec<ValueId>),
    /// Nothing.
    Stays,
}

use Verdict::{Becomes, Is, Stays};

type Key = (std::mem::Discriminant<Op>, Vec<ValueId>, Type);

/// One walk over the nodes, from the old graph into a new one.
struct Round<'g> {
    old: &'g Graph,
    new: Graph,
    seen: FxHashMap<Key, Vec<ValueId>>,
    /// For values of the new graph: is it read by one node only, and not an output?
    single_use: Vec<bool>,
}

impl<'g> Round<'g> {
    fn new(old: &'g Graph) -> Round<'g> {
        Round { old, new: old.like(old.name.clone()), seen: FxHashMap::default(), single_use: Vec::new() }
    }

    fn run(&mut self) -> Vec<ValueId> {
        let mut uses: Vec<usize> = self.old.users().iter().map(Vec::len).collect();
        self.old.outputs.iter().for_each(|o| uses[o.value.index()] += 2);
        let mut moved: Vec<ValueId> = Vec::with_capacity(self.old.nodes.len());
        let mut claimed: Vec<bool> = Vec::new();
        for node in &self.old.nodes {
            let operands = node.operands.iter().map(|o| moved[o.index()]).collect();
            let value = match node.op {
                Op::Input => self.new.push(Op::Input, vec![], node.ty.clone(), &node.name),
                _ => self.emit(node.op.clone(), operands, &node.ty, &node.name),
            };
            self.single_use.resize(self.new.nodes.len(), false);
            claimed.resize(self.new.nodes.len(), false);
            // A value that several old ones became counts as used often.
            self.single_use[value.index()] = uses[moved.len()] == 1 && !claimed[value.index()];
            claimed[value.index()] = true;
            moved.push(value);
        }
        self.new.inputs = self.old.inputs.clone();
        self.new.inputs.iter_mut().for_each(|i| i.value = moved[i.value.index()]);
        self.new.outputs = self.old.outputs.clone();
        self.new.outputs.iter_mut().for_each(|o| o.value = moved[o.value.index()]);
        self.new.offsets = self.old.offsets.iter().map(|&(a, v)| (a, moved[v.index()])).collect();
        moved
    }

    /// The value of `op` applied to `operands`: a new node or an old one.
    fn emit(&mut self, mut op: Op, mut operands: Vec<ValueId>, ty: &Type, name: &str) -> ValueId {
        loop {
            match self.look(&op, &operands, ty, name) {
                Is(value) if self.new.ty(value) == ty => return value,
                Becomes(other, of) if self.covers(&other, &of, ty) => (op, operands) = (other, of),
                Is(_) | Becomes(..) | Stays => break,
            }
        }
        let mut sorted = operands.clone();
        if commutes(&op) {
            sorted.sort_unstable();
        }
        let key = (discriminant(&op), sorted, ty.clone());
        let found = self.seen.get(&key).and_then(|l| l.iter().find(|v| same_op(&self.new.node(**v).op, &op)));
        if let Some(&value) = found {
            return value;
        }
        let value = self.new.push(op, operands, ty.clone(), name);
        self.seen.entry(key).or_default().push(value);
        value
    }

    /// An operand that is left out may have been the only one with some axis.
    fn covers(&self, op: &Op, operands: &[ValueId], ty: &Type) -> bool {
        let new: &[AxisId] = if let Op::Broadcast(axes) = op { axes } else { &[] };
        let aligned = matches!(op, Op::Unary(_) | Op::Binary(_) | Op::Select | Op::Cast(_) | Op::Broadcast(_));
        !aligned || ty.axes.iter().all(|a| new.contains(a) || operands.iter().any(|&o| self.new.ty(o).has(*a)))
    }

    fn look(&mut self, op: &Op, operands: &[ValueId], ty: &Type, name: &str) -> Verdict {
        if let Some(constant) = self.fold(op, operands, ty) {
            return Becomes(Op::Const(constant), vec![]);
        }
        match self.look_at_order(op, operands, ty) {
            Stays => {}
            verdict => return verdict,
        }
        match op {
            // What it means; from here on constants are compared by their bits.
            Op::Const(c) if scalar::round(*c, ty.dtype).to_bits() != c.to_bits() && !c.is_nan() => {
                Becomes(Op::Const(scalar::round(*c, ty.dtype)), vec![])
            }
            Op::Unary(op) => self.unary(*op, operands[0]),
            Op::Binary(op) => self.binary(*op, operands[0], operands[1], ty, name),
            Op::Select => self.select(operands[0], operands[1], operands[2]),
            Op::Cast(to) => self.cast(*to, operands[0]),
            Op::Broadcast(axes) => self.broadcast(axes, operands[0]),
            Op::Reorder => self.reorder(operands[0], ty),
            Op::Rename { .. } | Op::Split { .. } | Op::Merge { .. } | Op::Take { .. } | Op::Slice { .. } => {
                self.undone(op, operands[0])
            }
            Op::Input
            | Op::Const(_)
            | Op::Iota(_)
            | Op::Random { .. }
            | Op::Detach
            | Op::Contract { .. }
            | Op::Reduce { .. }
            | Op::Scan { .. }
            | Op::LinearAttention(_)
            | Op::Pad { .. }
            | Op::Stack(_)
            | Op::Concat { .. }
            | Op::Gather { .. }
            | Op::ScatterAdd { .. }
            | Op::TopK { .. }
            | Op::Group { .. }
            | Op::Offsets { .. }
            | Op::Invert
            | Op::Fused(_)
            | Op::Comm(_) => Stays,
        }
    }

    /// The op and operands of a value.
    fn made_by(&self, value: ValueId) -> (&Op, &[ValueId]) {
        let node = self.new.node(value);
        (&node.op, &node.operands)
    }

    fn scalar(&self, value: ValueId) -> Option<f64> {
        let node = self.new.node(value);
        match node.op {
            Op::Const(c) => Some(scalar::round(c, node.ty.dtype)),
            _ => None,
        }
    }

    /// The number that all elements are.
    fn constant(&self, value: ValueId) -> Option<f64> {
        match self.made_by(value) {
            (Op::Broadcast(_), of) => self.scalar(of[0]),
            _ => self.scalar(value),
        }
    }

    /// Scalar constants, by functions that every device rounds correctly.
    fn fold(&self, op: &Op, operands: &[ValueId], ty: &Type) -> Option<f64> {
        if operands.is_empty() || !ty.axes.is_empty() {
            return None;
        }
        let x: Vec<f64> = operands.iter().map(|&o| self.scalar(o)).collect::<Option<_>>()?;
        let from = self.new.ty(operands[0]).dtype;
        let value = match op {
            Op::Unary(op) => match op {
                UnaryOp::Neg | UnaryOp::Sqrt | UnaryOp::Abs | UnaryOp::Sign | UnaryOp::Floor | UnaryOp::Not => {
                    scalar::unary(*op, x[0])
                }
                UnaryOp::Exp | UnaryOp::Log | UnaryOp::Rsqrt | UnaryOp::Tanh | UnaryOp::Sin | UnaryOp::Cos => {
                    return None;
                }
            },
            Op::Binary(BinaryOp::Pow | BinaryOp::Rem) if from.is_float() => return None,
            Op::Binary(op) => scalar::binary(*op, x[0], x[1], from),
            Op::Select => {
                if x[0] != 0.0 {
                    x[1]
                } else {
                    x[2]
                }
            }
            Op::Cast(to) => scalar::cast(x[0], from, *to),
            _ => return None,
        };
        Some(scalar::round(value, ty.dtype))
    }

    /// Elementwise ops align axes by themselves: they need no operand in another order, nor copies along axes that others have.
    fn look_at_order(&self, op: &Op, operands: &[ValueId], ty: &Type) -> Verdict {
        if !matches!(op, Op::Unary(_) | Op::Binary(_) | Op::Select | Op::Cast(_) | Op::Broadcast(_)) {
            return Stays;
        }
        for (i, &operand) in operands.iter().enumerate() {
            let (made, of) = self.made_by(operand);
            if matches!(made, Op::Reorder | Op::Broadcast(_)) {
                let mut fewer = operands.to_vec();
                fewer[i] = of[0];
                if self.covers(op, &fewer, ty) {
                    return Becomes(op.clone(), fewer);
                }
            }
        }
        Stays
    }

    fn unary(&self, op: UnaryOp, x: ValueId) -> Verdict {
        match (op, self.made_by(x)) {
            (UnaryOp::Neg, (Op::Unary(UnaryOp::Neg), of)) => Is(of[0]),
            (UnaryOp::Not, (Op::Unary(UnaryOp::Not), of)) => Is(of[0]),
            (UnaryOp::Abs, (Op::Unary(UnaryOp::Neg | UnaryOp::Abs), of)) => Becomes(Op::Unary(op), of.to_vec()),
            _ => Stays,
        }
    }

    fn negated(&self, value: ValueId) -> Option<ValueId> {
        match self.made_by(value) {
            (Op::Unary(UnaryOp::Neg), of) => Some(of[0]),
            _ => None,
        }
    }

    fn binary(&mut self, op: BinaryOp, a: ValueId, b: ValueId, ty: &Type, name: &str) -> Verdict {
        let dtype = self.new.ty(a).dtype;
        let becomes = |op, a, b| Becomes(Op::Binary(op), vec![a, b]);
        let (ca, cb) = (self.constant(a), self.constant(b));
        let (na, nb) = (self.negated(a), self.negated(b));
        let is_zero =
            |c: Option<f64>, sign: f64| c == Some(0.0) && (!dtype.is_float() || c.map(f64::signum) == Some(sign));
        match op {
            BinaryOp::Add if is_zero(cb, -1.0) => Is(a),
            BinaryOp::Add if is_zero(ca, -1.0) => Is(b),
            BinaryOp::Sub if is_zero(cb, 1.0) => Is(a),
            BinaryOp::Mul | BinaryOp::Div if cb == Some(1.0) => Is(a),
            BinaryOp::Mul if ca == Some(1.0) => Is(b),
            BinaryOp::Mul | BinaryOp::Div if self.scalar(b) == Some(-1.0) => Becomes(Op::Unary(UnaryOp::Neg), vec![a]),
            BinaryOp::Mul if self.scalar(a) == Some(-1.0) => Becomes(Op::Unary(UnaryOp::Neg), vec![b]),
            BinaryOp::Pow if cb == Some(1.0) => Is(a),
            BinaryOp::Div if dtype.is_float() && self.scalar(b).is_some_and(|c| inverts(c, dtype)) => {
                let inverse = self.new_scalar(1.0 / cb.expect("a scalar is constant"), dtype);
                becomes(BinaryOp::Mul, a, inverse)
            }
            BinaryOp::Add if a == b && dtype.is_float() => {
                let two = self.new_scalar(2.0, dtype);
                becomes(BinaryOp::Mul, a, two)
            }
            BinaryOp::Add if nb.is_some() => becomes(BinaryOp::Sub, a, nb.expect("just seen")),
            BinaryOp::Add if na.is_some() => becomes(BinaryOp::Sub, b, na.expect("just seen")),
            BinaryOp::Sub if nb.is_some() => becomes(BinaryOp::Add, a, nb.expect("just seen")),
            BinaryOp::Mul | BinaryOp::Div if na.is_some() && nb.is_some() => {
                becomes(op, na.expect("just seen"), nb.expect("just seen"))
            }
            BinaryOp::Mul if na.is_some() && self.scalar(b).is_some() => {
                let negative = self.new_scalar(-cb.expect("a scalar is constant"), dtype);
                becomes(op, na.expect("just seen"), negative)
            }
            // Signs go outwards, where a sum takes them in.
            BinaryOp::Mul | BinaryOp::Div if dtype.is_float() && (na.is_some() || nb.is_some()) => {
                let positive = vec![na.unwrap_or(a), nb.unwrap_or(b)];
                let positive = self.emit(Op::Binary(op), positive, ty, &format!("{name}.neg"));
                Becomes(Op::Unary(UnaryOp::Neg), vec![positive])
            }
            BinaryOp::And | BinaryOp::Or if a == b => Is(a),
            _ => Stays,
        }
    }

    fn select(&self, condition: ValueId, a: ValueId, b: ValueId) -> Verdict {
        if let (Op::Unary(UnaryOp::Not), of) = self.made_by(condition) {
            return Becomes(Op::Select, vec![of[0], b, a]);
        }
        match self.constant(condition) {
            Some(0.0) => return Is(b),
            Some(_) => return Is(a),
            None if a == b => return Is(a),
            None => {}
        }
        match (self.made_by(a), self.made_by(b)) {
            ((Op::Select, of), _) if of[0] == condition => Becomes(Op::Select, vec![condition, of[1], b]),
            (_, (Op::Select, of)) if of[0] == condition => Becomes(Op::Select, vec![condition, a, of[2]]),
            _ => Stays,
        }
    }

    fn cast(&self, to: DType, x: ValueId) -> Verdict {
        let from = self.new.ty(x).dtype;
        match self.made_by(x) {
            _ if from == to => Is(x),
            // There and back again: nothing was lost on the way.
            (Op::Cast(_), of) if self.new.ty(of[0]).dtype == to && widens(to, from) => Is(of[0]),
            // Two steps in one direction.
            (Op::Cast(_), of) if widens(self.new.ty(of[0]).dtype, from) => Becomes(Op::Cast(to), of.to_vec()),
            _ => Stays,
        }
    }

    fn broadcast(&self, axes: &[AxisId], x: ValueId) -> Verdict {
        match self.made_by(x) {
            _ if axes.is_empty() => Is(x),
            (Op::Broadcast(inner), of) => Becomes(Op::Broadcast([inner, axes].concat()), of.to_vec()),
            _ => Stays,
        }
    }

    fn reorder(&self, x: ValueId, ty: &Type) -> Verdict {
        let (op, of) = self.made_by(x);
        match op {
            _ if self.new.ty(x) == ty => Is(x),
            Op::Reorder | Op::Broadcast(_) => Becomes(op.clone(), of.to_vec()),
            Op::Unary(_) | Op::Binary(_) | Op::Select | Op::Cast(_) | Op::Contract { .. } | Op::LinearAttention(_)
                if self.single_use.get(x.index()) == Some(&true) =>
            {
                Becomes(op.clone(), of.to_vec())
            }
            _ => Stays,
        }
    }

    /// Views that take back the one before.
    fn undone(&self, op: &Op, x: ValueId) -> Verdict {
        let (made, of) = self.made_by(x);
        match (op, made) {
            (Op::Rename { from, to }, Op::Rename { from: first, to: middle }) if from == middle => {
                if first == to {
                    Is(of[0])
                } else {
                    Becomes(Op::Rename { from: *first, to: *to }, of.to_vec())
                }
            }
            (Op::Split { from, into }, Op::Merge { from: parts, into: whole }) if from == whole && into == parts => {
                Is(of[0])
            }
            (Op::Merge { from, into }, Op::Split { from: whole, into: parts }) if from == parts && into == whole => {
                Is(of[0])
            }
            (Op::Slice { from, into, start }, Op::Pad { from: part, into: whole, start: at })
                if from == whole && into == part && start == at =>
            {
                Is(of[0])
            }
            (Op::Take { axis, index }, Op::Stack(stacked)) if axis == stacked => Is(of[*index as usize]),
            (Op::Slice { from, into, start }, Op::Concat { from: parts, into: whole }) if from == whole => {
                let starts = parts.iter().scan(0, |end, &p| {
                    let start = *end;
                    *end += self.new.size(p);
                    Some(start)
                });
                match starts.zip(parts).position(|(s, p)| s == *start && p == into) {
                    Some(i) => Is(of[i]),
                    None => Stays,
                }
            }
            _ => Stays,
        }
    }

    fn new_scalar(&mut self, value: f64, dtype: DType) -> ValueId {
        self.emit(Op::Const(value), vec![], &Type::new(dtype, []), "c")
    }
}

/// Does every number of `narrow` exist in `wide`?
fn widens(narrow: DType, wide: DType) -> bool {
    use DType::{BF16, Bool, F32, F64, I32};
    match wide {
        F64 => true,
        F32 => matches!(narrow, F32 | BF16 | Bool),
        BF16 => matches!(narrow, BF16 | Bool),
        I32 => matches!(narrow, I32 | Bool),
        Bool => narrow == Bool,
    }
}

/// Is multiplying with 1/c the same as dividing by c? Powers of two whose inverse is a normal number.
pub(crate) fn inverts(c: f64, dtype: DType) -> bool {
    let bits = c.to_bits();
    let exponent = ((bits >> 52) & 0x7ff) as i64 - 1023;
    let limit = if dtype == DType::F64 { 1022 } else { 126 };
    bits & ((1 << 52) - 1) == 0 && (-limit..=limit).contains(&exponent)
}

fn commutes(op: &Op) -> bool {
    use BinaryOp::{Add, And, Eq, Mul, Ne, Or};
    matches!(op, Op::Binary(Add | Mul | Eq | Ne | And | Or))
}

/// Are the nodes the same? Simplification changes nothing else by itself.
fn same_nodes(a: &Graph, b: &Graph) -> bool {
    let same = |(a, b): (&Node, &Node)| same_op(&a.op, &b.op) && a.operands == b.operands && a.ty == b.ty;
    a.nodes.len() == b.nodes.len() && a.nodes.iter().zip(&b.nodes).all(same)
}

/// Equal ops; constants by their bits, since NaN is not equal to itself.
fn same_op(a: &Op, b: &Op) -> bool {
    match (a, b) {
        (Op::Const(a), Op::Const(b)) => a.to_bits() == b.to_bits(),
        _ => a == b,
    }
}
