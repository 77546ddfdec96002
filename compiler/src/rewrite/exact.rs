//! Proof that a fused op may stand for a class when everything has to be exact.
//!
//! A rule that matches normal forms does not know how its match is spelled, so it proves nothing about bits. But a fused op is its body: when the body's
//! terms are in the e-graph and their class is the matched one, the bits are the same. None are added: rules would go on with them for ever.

use super::making::Maker;
use super::term::{Egraph, key_of};
use crate::simplify::simplify;
use egg::Id;
use forebay_ir::fused::expand;
use forebay_ir::{Graph, InputRole, Op, OutputRole, ValueId};

/// Is the body of one of the new class's fused terms in `class`?
pub(super) fn is_proven(egraph: &mut Egraph, class: Id, made: Id) -> bool {
    let terms = egraph[egraph.find(made)].nodes.clone();
    terms.iter().any(|term| {
        let Op::Fused(fused) = egraph.analysis.op(term).clone() else { return false };
        let key = egraph.analysis.keys[term.head as usize].clone();
        let types: Vec<_> = term.args.iter().map(|&a| egraph[a].data.ty.clone()).collect();
        let body: Graph = egraph.analysis.with_operands(&key, &types, |scratch, operands| {
            let mut body = scratch.like("body");
            let inputs: Vec<ValueId> = operands
                .iter()
                .enumerate()
                .map(|(i, &o)| body.add_input(&format!("operand.{i}"), scratch.ty(o).clone(), InputRole::Data))
                .collect();
            let result = expand(&mut body, &fused, &inputs, "body").expect("its type has been inferred");
            body.add_output("result", result, OutputRole::Output);
            simplify(&mut body);
            body
        });
        find(egraph, &body, &term.args).is_some_and(|result| egraph.find(result) == egraph.find(class))
    })
}

/// The class of the body's output over the given operands, if all of its terms are there.
fn find(egraph: &mut Egraph, body: &Graph, operands: &[Id]) -> Option<Id> {
    let mut classes: Vec<Id> = Vec::with_capacity(body.nodes.len());
    for value in body.values() {
        let node = body.node(value);
        let args: Vec<Id> = node.operands.iter().map(|o| classes[o.index()]).collect();
        let class = match node.op {
            Op::Input => {
                let number = body.inputs.iter().position(|i| i.value == value).expect("inputs are declared");
                operands[number]
            }
            Op::Reorder => args[0],
            _ => Maker::new(egraph).find(key_of(body, value), &args)?,
        };
        classes.push(class);
    }
    Some(classes[body.outputs[0].value.index()])
}
