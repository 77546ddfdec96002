//! Graph → e-graph, and the chosen terms → graph.

use super::Options;
use super::extract::Choice;
use super::term::{Egraph, Term, World, behind_parents, can_have_order, key_of, needed_order};
use egg::{EGraph, Id};
use forebay_ir::{AxisId, Graph, Op, Type, ValueId};
use rustc_hash::FxHashMap;

/// The e-graph of a graph, and the class of each value.
pub(super) fn to_egraph(graph: &Graph, options: &Options) -> (Egraph, Vec<Id>) {
    fill(EGraph::new(World::new(graph, options)), graph)
}

/// The same, in an e-graph that remembers why classes are equal, and the number of each value's own term.
pub(super) fn to_egraph_with_proofs(graph: &Graph, options: &Options) -> (Egraph, Vec<Id>) {
    fill(EGraph::new(World::new(graph, options)).with_explanations_enabled(), graph)
}

fn fill(mut egraph: Egraph, graph: &Graph) -> (Egraph, Vec<Id>) {
    let mut classes: Vec<Id> = Vec::with_capacity(graph.nodes.len());
    for value in graph.values() {
        let node = graph.node(value);
        if node.op == Op::Reorder {
            classes.push(classes[node.operands[0].index()]);
            continue;
        }
        let mut args: Vec<Id> = node.operands.iter().map(|o| classes[o.index()]).collect();
        let key = key_of(graph, value);
        if egraph.analysis.commutes(&key.op) {
            args.sort_unstable();
        }
        let head = egraph.analysis.head(key);
        classes.push(egraph.add(Term { head, args }));
    }
    egraph.rebuild();
    (egraph, classes)
}

/// Unions give classes other numbers: what commutes is sorted anew, so that equal terms are found to be equal.
pub(super) fn sort_operands(egraph: &mut Egraph) {
    loop {
        let mut unsorted: Vec<(Id, Term)> = vec![];
        for class in egraph.classes() {
            for term in &class.nodes {
                if term.args.len() == 2
                    && term.args[0] > term.args[1]
                    && egraph.analysis.commutes(egraph.analysis.op(term))
                {
                    unsorted.push((class.id, Term { head: term.head, args: vec![term.args[1], term.args[0]] }));
                }
            }
        }
        unsorted.sort();
        let mut changed = false;
        for (class, term) in unsorted {
            let sorted = egraph.add(term);
            if egraph.find(class) != egraph.find(sorted) {
                egraph.union_trusted(class, sorted, "commutes");
                changed = true;
            }
        }
        if !changed {
            return;
        }
        egraph.rebuild();
    }
}

/// The graph of the chosen terms.
pub(super) fn to_graph(old: &Graph, egraph: &mut Egraph, classes: &[Id], choice: &Choice) -> Graph {
    to_graph_with_origins(old, egraph, classes, choice).0
}

/// The graph of the chosen terms, and the class of each of its values.
pub(super) fn to_graph_with_origins(
    old: &Graph,
    egraph: &mut Egraph,
    classes: &[Id],
    choice: &Choice,
) -> (Graph, Vec<(ValueId, Id)>) {
    let mut originals: FxHashMap<Id, Vec<ValueId>> = FxHashMap::default();
    for value in old.values() {
        originals.entry(egraph.find(classes[value.index()])).or_default().push(value);
    }
    // Rules may have made axes.
    let new = egraph.analysis.scratch.like(old.name.clone());
    let mut builder = Builder { old, egraph, choice, classes, originals, new, built: FxHashMap::default() };
    builder.inputs();
    // Values in the order of the old graph, so that what was computed early still is.
    for value in old.values() {
        let class = builder.egraph.find(classes[value.index()]);
        if builder.choice.needs(class) {
            builder.value(class);
        }
    }
    for output in &old.outputs {
        let class = builder.egraph.find(classes[output.value.index()]);
        let value = builder.value(class);
        let axes = old.ty(output.value).axes.clone();
        let value = builder.reordered(value, &axes);
        builder.new.add_output(output.name.clone(), value, output.role);
    }
    for &(axis, value) in &old.offsets {
        let class = builder.egraph.find(classes[value.index()]);
        let value = builder.value(class);
        builder.new.offsets.push((axis, value));
    }
    let mut origins: Vec<(ValueId, Id)> = builder.built.iter().map(|(&class, &value)| (value, class)).collect();
    origins.sort();
    (builder.new, origins)
}

struct Builder<'a> {
    old: &'a Graph,
    egraph: &'a mut Egraph,
    choice: &'a Choice,
    /// The class of each value of the old graph, as it was added.
    classes: &'a [Id],
    /// The values of the old graph in each class.
    originals: FxHashMap<Id, Vec<ValueId>>,
    new: Graph,
    built: FxHashMap<Id, ValueId>,
}

impl Builder<'_> {
    fn inputs(&mut self) {
        for input in &self.old.inputs {
            let node = self.old.node(input.value);
            let value = self.new.add_input(&node.name, node.ty.clone(), input.role);
            let key = key_of(self.old, input.value);
            let head = self.egraph.analysis.head(key);
            let class = self.egraph.lookup(Term { head, args: vec![] }).expect("inputs are terms");
            self.built.insert(self.egraph.find(class), value);
        }
    }

    /// The value of a class: built when it is first asked for, operands first.
    fn value(&mut self, class: Id) -> ValueId {
        let mut stack = vec![class];
        while let Some(&top) = stack.last() {
            if self.built.contains_key(&top) {
                stack.pop();
                continue;
            }
            let term = self.choice.term(top).clone();
            let missing: Vec<Id> =
                term.args.iter().map(|&a| self.egraph.find(a)).filter(|a| !self.built.contains_key(a)).collect();
            if missing.is_empty() {
                let value = self.node(top, &term);
                self.built.insert(top, value);
                stack.pop();
            } else {
                stack.extend(missing.into_iter().rev());
            }
        }
        self.built[&class]
    }

    fn node(&mut self, class: Id, term: &Term) -> ValueId {
        let key = self.egraph.analysis.keys[term.head as usize].clone();
        let mut args: Vec<Id> = term.args.iter().map(|&a| self.egraph.find(a)).collect();
        let same = self.same_node(class, &key.op, &mut args);
        let mut operands: Vec<ValueId> = args.iter().map(|a| self.built[a]).collect();
        // What is stacked stands in one order.
        let common = matches!(key.op, Op::Stack(_)).then(|| self.new.ty(operands[0]).axes.clone());
        for (i, operand) in operands.iter_mut().enumerate() {
            let have = self.new.ty(*operand).axes.clone();
            let want = match (&key.orders, same) {
                (Some(orders), _) => orders[i].clone(),
                // In the order in which the old graph adds them up.
                (None, Some(old)) if !key.op.is_elementwise() => {
                    self.old.ty(self.old.node(old).operands[i]).axes.clone()
                }
                (None, _) => common.clone().unwrap_or_else(|| needed_order(&self.new, &key.op, &have)),
            };
            *operand = self.reordered(*operand, &want);
        }
        let original = same.or_else(|| self.originals.get(&class).and_then(|v| v.last().copied()));
        let name = original.map_or_else(|| key.op.row().name.to_string(), |v| self.old.node(v).name.clone());
        if let Some(ty) = &key.ty {
            return self.new.push(key.op, operands, ty.clone(), &name);
        }
        let wanted = original.map(|v| self.old.ty(v).axes.clone());
        if let Some(axes) = wanted.filter(|axes| can_have_order(&self.new, &key.op, &operands, axes)) {
            return self.new.add_ordered(key.op, &operands, &axes, &name).expect("just asked");
        }
        let default = forebay_ir::infer::infer(&self.new, &key.op, &operands).expect("rules keep types");
        let axes = behind_parents(&self.new, &default.axes);
        self.new.push(key.op, operands, Type::new(default.dtype, axes), &name)
    }

    /// The node of the old graph that the term is, if it is one; its operands stand as they did there.
    fn same_node(&self, class: Id, op: &Op, args: &mut Vec<Id>) -> Option<ValueId> {
        let mut sorted = args.clone();
        sorted.sort_unstable();
        let own = self.originals.get(&class)?;
        own.iter().copied().find(|&v| {
            let node = self.old.node(v);
            let there: Vec<Id> = node.operands.iter().map(|o| self.egraph.find(self.classes[o.index()])).collect();
            let mut set = there.clone();
            set.sort_unstable();
            let same = node.op == *op && (there == *args || self.egraph.analysis.commutes(op) && set == sorted);
            if same {
                args.clone_from(&there);
            }
            same
        })
    }

    fn reordered(&mut self, value: ValueId, axes: &[AxisId]) -> ValueId {
        if self.new.ty(value).axes == axes {
            return value;
        }
        let name = format!("{}.reorder", self.new.node(value).name);
        self.new.add_ordered(Op::Reorder, &[value], axes, &name).expect("the same axes in another order")
    }
}
