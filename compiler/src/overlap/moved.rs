//! Graphs that are made of others: values that stay as they are, and where they are then.

use forebay_ir::{Graph, Input, ValueId};

/// Where the values of a graph are in one that is made of it.
pub(super) struct Moved(Vec<ValueId>);

impl Moved {
    /// Nothing is anywhere yet.
    pub fn of(old: &Graph) -> Moved {
        Moved(vec![ValueId(0); old.nodes.len()])
    }

    /// Where a value is.
    pub fn at(&self, value: ValueId) -> ValueId {
        self.0[value.index()]
    }

    /// Another value stands for it.
    pub fn set(&mut self, value: ValueId, new: ValueId) {
        self.0[value.index()] = new;
    }

    /// A value that stays as it is.
    pub fn keep(&mut self, old: &Graph, value: ValueId, new: &mut Graph) {
        let node = old.node(value);
        let operands = node.operands.iter().map(|&o| self.at(o)).collect();
        self.set(value, new.push(node.op.clone(), operands, node.ty.clone(), &node.name));
    }

    /// Inputs and outputs as they were.
    pub fn interface(&self, old: &Graph, new: &mut Graph) {
        new.inputs = old.inputs.iter().map(|i| Input { value: self.at(i.value), role: i.role }).collect();
        for output in &old.outputs {
            new.add_output(output.name.clone(), self.at(output.value), output.role);
        }
    }
}
