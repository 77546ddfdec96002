//! Which layers of a repeat share a segment.
//!
//! Building a graph notes down every constant that depended on the counter and was used, in order: expression and value.
//! Evaluation is deterministic, so two iterations whose first n notes agree make the same note next. The notes of the graphs
//! built so far therefore form a trie: a node is an expression, its branches are values, its leaves are segments. Looking an
//! iteration up costs one evaluation for each note of one graph, however many graphs there are.

use super::constant::Symbol;
use crate::model::Const;
use std::rc::Rc;

/// A constant that shaped a graph.
pub(super) type Note = (Rc<Symbol>, Const);

/// The trie. `T` is what was made of an iteration.
#[derive(Debug)]
pub(super) struct Memo<T> {
    nodes: Vec<Node<T>>,
}

#[derive(Debug)]
struct Node<T> {
    test: Option<Rc<Symbol>>,
    branches: Vec<(Const, usize)>,
    leaf: Option<T>,
}

impl<T> Node<T> {
    fn new() -> Node<T> {
        Node { test: None, branches: Vec::new(), leaf: None }
    }
}

impl<T> Memo<T> {
    /// Nothing built so far.
    pub(super) fn new() -> Memo<T> {
        Memo { nodes: vec![Node::new()] }
    }

    /// What an earlier iteration made that this one would make as well. `steps` counts the notes that were looked at.
    pub(super) fn find(&self, counter: i64, steps: &mut usize) -> Option<&T> {
        let mut at = 0;
        while let Some(test) = &self.nodes[at].test {
            *steps += 1 + self.nodes[at].branches.len() / 16;
            let value = test.value(counter).ok()?;
            at = self.nodes[at].branches.iter().find(|(v, _)| same(v, &value))?.1;
        }
        self.nodes[at].leaf.as_ref()
    }

    /// Remembers what an iteration made under its notes.
    pub(super) fn insert(&mut self, notes: &[Note], made: T) {
        let mut at = 0;
        for (symbol, value) in notes {
            self.nodes[at].test.get_or_insert_with(|| symbol.clone());
            at = match self.nodes[at].branches.iter().find(|(v, _)| same(v, value)) {
                Some((_, next)) => *next,
                None => {
                    let next = self.nodes.len();
                    self.nodes.push(Node::new());
                    self.nodes[at].branches.push((value.clone(), next));
                    next
                }
            };
        }
        self.nodes[at].leaf = Some(made);
    }
}

/// Equality by kind and bits: an integer and a float of the same value can make different graphs.
fn same(a: &Const, b: &Const) -> bool {
    match (a, b) {
        (Const::Float(a), Const::Float(b)) => a.to_bits() == b.to_bits(),
        _ => a == b,
    }
}
