//! Operands and attributes of each op as text: what stands between `=` and `:`. Printing and parsing side by side.

use super::lex::{Cursor, Fault, Result, shown};
use super::names;
use super::scope::Scope;
use crate::collective::{Comm, CommKind};
use crate::fused::{AxisCount, Fused, FusedKind};
use crate::graph::{Graph, Node, ValueId};
use crate::op::{BinaryOp, Direction, LinearAttention, LinearReads, Op, ReduceKind, UnaryOp};
use crate::types::{AxisId, DType};

/// `contract %x, %w over {d}`.
pub(super) fn print(graph: &Graph, node: &Node) -> String {
    let axis = |a: &AxisId| names::axis(graph, *a);
    let axes = |a: &[AxisId]| names::axes(graph, a);
    let values = |v: &[ValueId]| v.iter().map(|&v| names::value(graph, v)).collect::<Vec<_>>();
    let attributes = match &node.op {
        Op::Input | Op::Unary(_) | Op::Binary(_) | Op::Select | Op::Cast(_) | Op::Detach | Op::Reorder | Op::Invert => {
            String::new()
        }
        Op::Const(value) => names::float(*value),
        Op::Iota(of) => axis(of),
        Op::Random { site, batch: None } => format!("{{site {site}}}"),
        Op::Random { site, batch: Some(batch) } => format!("{{site {site}, offset {}}}", axis(batch)),
        Op::Broadcast(along) => format!("along {{{}}}", axes(along)),
        Op::Contract { over } | Op::Reduce { kind: _, over } => format!("over {{{}}}", axes(over)),
        Op::Scan { axis: along, direction } => format!("{{{} {}}}", axis(along), direction_name(*direction)),
        Op::LinearAttention(op) => {
            let (direction, reads) = (direction_name(op.direction), op.reads.name());
            format!("{{{} {direction} {reads}}} over {{{}}}", axis(&op.axis), axes(&op.over))
        }
        Op::Rename { from, to } => format!("{{{} -> {}}}", axis(from), axis(to)),
        Op::Split { from, into } => format!("{{{} -> {}}}", axis(from), axes(into)),
        Op::Merge { from, into } | Op::Concat { from, into } => format!("{{{} -> {}}}", axes(from), axis(into)),
        Op::Take { axis: of, index } => format!("{{{}: {index}}}", axis(of)),
        Op::Slice { from, into, start } | Op::Pad { from, into, start } => {
            format!("{{{} -> {}: {start}}}", axis(from), axis(into))
        }
        Op::Stack(new) => format!("{{{}}}", axis(new)),
        Op::Gather { axis: of } => format!("{{{}}}", axis(of)),
        Op::ScatterAdd { axis: new, over } => format!("{{{}}} over {{{}}}", axis(new), axes(over)),
        Op::TopK { axis: of, into } => format!("{{{} -> {}}}", axis(of), axis(into)),
        Op::Group { ragged } => format!("{{{}}}", axis(ragged)),
        Op::Offsets { parent, into } => format!("{{{} -> {}}}", axis(parent), axis(into)),
        Op::Fused(fused) => print_fused(graph, fused),
        Op::Comm(comm) => print_comm(graph, comm),
    };
    // An index stands after `at`: the two operands of a look-up are not interchangeable.
    let operands = match (&node.op, node.operands.as_slice()) {
        (Op::Gather { .. } | Op::ScatterAdd { .. }, [x, index]) => values(&[*x, *index]).join(" at "),
        (_, operands) => values(operands).join(", "),
    };
    let parts = [node.op.row().name.to_string(), operands, attributes];
    parts.into_iter().filter(|p| !p.is_empty()).collect::<Vec<_>>().join(" ")
}

/// `{d} (eps 1e-6)`: the axes, and the numbers by name.
fn print_fused(graph: &Graph, fused: &Fused) -> String {
    let numbers = fused.kind.row().numbers.iter().zip(&fused.numbers);
    let numbers: Vec<String> = numbers.map(|(name, number)| format!("{name} {}", names::float(*number))).collect();
    let axes = if fused.axes.is_empty() { String::new() } else { format!("{{{}}}", names::axes(graph, &fused.axes)) };
    let numbers = if numbers.is_empty() { String::new() } else { format!("({})", numbers.join(", ")) };
    [axes, numbers].into_iter().filter(|p| !p.is_empty()).collect::<Vec<_>>().join(" ")
}

/// `{seq_1 -> seq} on tp`: the axes, and the mesh dimensions of the group.
fn print_comm(graph: &Graph, comm: &Comm) -> String {
    let axis = |a: AxisId| names::axis(graph, a);
    let pairs = |a: (AxisId, AxisId), b: (AxisId, AxisId)| {
        format!("{{{} -> {}, {} -> {}}} ", axis(a.0), axis(a.1), axis(b.0), axis(b.1))
    };
    let axes = match comm.kind {
        CommKind::Coordinate | CommKind::Vary | CommKind::AllReduce(_) => String::new(),
        CommKind::AllGather { from, into }
        | CommKind::ReduceScatter { from, into }
        | CommKind::Shard { from, into }
        | CommKind::Unshard { from, into } => format!("{{{} -> {}}} ", axis(from), axis(into)),
        CommKind::Rotate { by } => format!("by {by} "),
        CommKind::AllToAll { split, join } => pairs(split, join),
        CommKind::Dispatch { from, into } | CommKind::Combine { from, into } => {
            pairs((from.0, into.0), (from.1, into.1))
        }
    };
    let group: Vec<String> = comm.group.iter().map(|&d| names::mesh_dim(graph, d)).collect();
    format!("{axes}on {}", group.join(", "))
}

/// The collective of a name.
fn parse_comm(word: &str, scope: &Scope, cursor: &mut Cursor<'_>) -> Result<Comm> {
    let pair = |cursor: &mut Cursor<'_>| -> Result<(AxisId, AxisId)> {
        let from = scope.axis(cursor)?;
        cursor.expect("->")?;
        Ok((from, scope.axis(cursor)?))
    };
    let one = |cursor: &mut Cursor<'_>| braced(cursor, pair);
    let two = |cursor: &mut Cursor<'_>| {
        braced(cursor, |cursor| {
            let first = pair(cursor)?;
            cursor.expect(",")?;
            Ok((first, pair(cursor)?))
        })
    };
    let kind = match word {
        "coordinate" => CommKind::Coordinate,
        "vary" => CommKind::Vary,
        "all_reduce" => CommKind::AllReduce(ReduceKind::Sum),
        "all_reduce_max" => CommKind::AllReduce(ReduceKind::Max),
        "all_reduce_min" => CommKind::AllReduce(ReduceKind::Min),
        "all_gather" => one(cursor).map(|(from, into)| CommKind::AllGather { from, into })?,
        "reduce_scatter" => one(cursor).map(|(from, into)| CommKind::ReduceScatter { from, into })?,
        "shard" => one(cursor).map(|(from, into)| CommKind::Shard { from, into })?,
        "unshard" => one(cursor).map(|(from, into)| CommKind::Unshard { from, into })?,
        "rotate" => {
            keyword(cursor, "by")?;
            CommKind::Rotate { by: cursor.number("a number of places")? }
        }
        "all_to_all" => two(cursor).map(|(split, join)| CommKind::AllToAll { split, join })?,
        "dispatch" => two(cursor).map(|(e, r)| CommKind::Dispatch { from: (e.0, r.0), into: (e.1, r.1) })?,
        _ => two(cursor).map(|(e, r)| CommKind::Combine { from: (e.0, r.0), into: (e.1, r.1) })?,
    };
    keyword(cursor, "on")?;
    Ok(Comm { group: scope.mesh_dims(cursor)?, kind })
}

fn parse_fused(kind: FusedKind, scope: &Scope, cursor: &mut Cursor<'_>) -> Result<Fused> {
    let row = kind.row();
    let axes = if row.axes == AxisCount::Exactly(0) { vec![] } else { braced(cursor, |cursor| scope.axes(cursor))? };
    let mut numbers = Vec::with_capacity(row.numbers.len());
    for (i, name) in row.numbers.iter().enumerate() {
        cursor.expect(if i == 0 { "(" } else { "," })?;
        keyword(cursor, name)?;
        numbers.push(cursor.float()?);
    }
    if !row.numbers.is_empty() {
        cursor.expect(")")?;
    }
    Ok(Fused { kind, axes, numbers })
}

fn direction_name(direction: Direction) -> &'static str {
    match direction {
        Direction::Forward => "forward",
        Direction::Backward => "backward",
    }
}

/// Op and operands. The dtypes of casts and of what linear attention gives are not among the attributes: they stand in the result's type, which the caller reads.
pub(super) fn parse(scope: &Scope, cursor: &mut Cursor<'_>) -> Result<(Op, Vec<ValueId>)> {
    let word = cursor.peek_word();
    let name = cursor.name("an op")?;
    let operands = match word {
        "gather" | "scatter_add" => {
            let x = scope.value(cursor)?;
            keyword(cursor, "at")?;
            vec![x, scope.value(cursor)?]
        }
        _ => scope.values(cursor)?,
    };
    let one = |cursor: &mut Cursor<'_>| scope.axis(cursor);
    let many = |cursor: &mut Cursor<'_>| scope.axes(cursor);
    let numbered = |cursor: &mut Cursor<'_>| {
        let axis = scope.axis(cursor)?;
        cursor.expect(":")?;
        Ok((axis, cursor.number("the number of an element")?))
    };
    let op = match word {
        "const" => Op::Const(cursor.float()?),
        "iota" => Op::Iota(scope.axis(cursor)?),
        "random" => braced(cursor, |cursor| parse_random(scope, cursor))?,
        "select" => Op::Select,
        "cast" => Op::Cast(DType::F32),
        "detach" => Op::Detach,
        "reorder" => Op::Reorder,
        "invert" => Op::Invert,
        "broadcast" => {
            keyword(cursor, "along")?;
            Op::Broadcast(braced(cursor, many)?)
        }
        "contract" => Op::Contract { over: parse_over(scope, cursor)? },
        "sum" => Op::Reduce { kind: ReduceKind::Sum, over: parse_over(scope, cursor)? },
        "reduce_max" => Op::Reduce { kind: ReduceKind::Max, over: parse_over(scope, cursor)? },
        "reduce_min" => Op::Reduce { kind: ReduceKind::Min, over: parse_over(scope, cursor)? },
        "scan" => {
            braced(cursor, |cursor| Ok(Op::Scan { axis: scope.axis(cursor)?, direction: parse_direction(cursor)? }))?
        }
        "linear_attention" => Op::LinearAttention(Box::new(parse_linear(scope, cursor)?)),
        "rename" => {
            let (from, to) = mapped(cursor, one, one)?;
            Op::Rename { from, to }
        }
        "split" => {
            let (from, into) = mapped(cursor, one, many)?;
            Op::Split { from, into }
        }
        "merge" => {
            let (from, into) = mapped(cursor, many, one)?;
            Op::Merge { from, into }
        }
        "take" => {
            let (axis, index) = braced(cursor, numbered)?;
            Op::Take { axis, index }
        }
        "slice" => {
            let (from, (into, start)) = mapped(cursor, one, numbered)?;
            Op::Slice { from, into, start }
        }
        "pad" => {
            let (from, (into, start)) = mapped(cursor, one, numbered)?;
            Op::Pad { from, into, start }
        }
        "stack" => Op::Stack(braced(cursor, one)?),
        "concat" => {
            let (from, into) = mapped(cursor, many, one)?;
            Op::Concat { from, into }
        }
        "gather" => Op::Gather { axis: braced(cursor, one)? },
        "scatter_add" => Op::ScatterAdd { axis: braced(cursor, one)?, over: parse_over(scope, cursor)? },
        "top_k" => {
            let (axis, into) = mapped(cursor, one, one)?;
            Op::TopK { axis, into }
        }
        "group" => Op::Group { ragged: braced(cursor, one)? },
        "offsets" => {
            let (parent, into) = mapped(cursor, one, one)?;
            Op::Offsets { parent, into }
        }
        _ if Comm::NAMES.contains(&word) => Op::Comm(Box::new(parse_comm(word, scope, cursor)?)),
        _ if FusedKind::from_name(word).is_some() => {
            let kind = FusedKind::from_name(word).expect("just seen");
            Op::Fused(Box::new(parse_fused(kind, scope, cursor)?))
        }
        _ => elementwise(word)
            .ok_or_else(|| Fault::new(name.range, format!("there is no op `{}`", shown(&name.text))))?,
    };
    Ok((op, operands))
}

fn elementwise(word: &str) -> Option<Op> {
    let unary = UnaryOp::ALL.into_iter().find(|o| o.name() == word).map(Op::Unary);
    unary.or_else(|| BinaryOp::ALL.into_iter().find(|o| o.name() == word).map(Op::Binary))
}

fn keyword(cursor: &mut Cursor<'_>, word: &str) -> Result<()> {
    if cursor.eat_word(word) { Ok(()) } else { Err(cursor.unexpected(&format!("`{word}`"))) }
}

fn braced<T>(cursor: &mut Cursor<'_>, inside: impl FnOnce(&mut Cursor<'_>) -> Result<T>) -> Result<T> {
    cursor.expect("{")?;
    let inside = inside(cursor)?;
    cursor.expect("}")?;
    Ok(inside)
}

/// `{from -> into}`.
fn mapped<A, B>(
    cursor: &mut Cursor<'_>,
    from: impl FnOnce(&mut Cursor<'_>) -> Result<A>,
    into: impl FnOnce(&mut Cursor<'_>) -> Result<B>,
) -> Result<(A, B)> {
    braced(cursor, |cursor| {
        let from = from(cursor)?;
        cursor.expect("->")?;
        Ok((from, into(cursor)?))
    })
}

/// `over {d}`.
fn parse_over(scope: &Scope, cursor: &mut Cursor<'_>) -> Result<Vec<AxisId>> {
    keyword(cursor, "over")?;
    scope.axis_set(cursor)
}

/// `site 3, offset batch`.
fn parse_random(scope: &Scope, cursor: &mut Cursor<'_>) -> Result<Op> {
    keyword(cursor, "site")?;
    let start = cursor.start();
    let site = u32::try_from(cursor.number("a number")?)
        .map_err(|_| Fault::new(start..cursor.end(), "the number of a site must fit into 32 bits"))?;
    let batch = if cursor.eat(",") {
        keyword(cursor, "offset")?;
        Some(scope.axis(cursor)?)
    } else {
        None
    };
    Ok(Op::Random { site, batch })
}

/// `{t forward inclusive} over {d}`.
fn parse_linear(scope: &Scope, cursor: &mut Cursor<'_>) -> Result<LinearAttention> {
    let inside = |cursor: &mut Cursor<'_>| Ok((scope.axis(cursor)?, parse_direction(cursor)?, parse_reads(cursor)?));
    let (axis, direction, reads) = braced(cursor, inside)?;
    Ok(LinearAttention { axis, over: parse_over(scope, cursor)?, direction, reads, result: DType::F32 })
}

fn parse_reads(cursor: &mut Cursor<'_>) -> Result<LinearReads> {
    match LinearReads::ALL.into_iter().find(|r| cursor.eat_word(r.name())) {
        Some(reads) => Ok(reads),
        None => Err(cursor.unexpected("`inclusive`, `exclusive` or `solve`")),
    }
}

fn parse_direction(cursor: &mut Cursor<'_>) -> Result<Direction> {
    let all = [Direction::Forward, Direction::Backward];
    match all.into_iter().find(|d| cursor.eat_word(direction_name(*d))) {
        Some(direction) => Ok(direction),
        None => Err(cursor.unexpected("`forward` or `backward`")),
    }
}
