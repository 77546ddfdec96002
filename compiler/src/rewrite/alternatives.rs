//! All that rules found, not only the cheapest: what a test has to look at.

use super::term::Egraph;
use super::{Options, Report, build, extract, saturate};
use forebay_ir::{Graph, ValueId};
use rustc_hash::FxHashSet;

/// One of the forms of a value.
#[derive(Clone, Debug)]
pub struct Alternative {
    /// The value in the source.
    pub value: ValueId,
    /// The same inputs, and the value in this form as the only output.
    pub graph: Graph,
}

/// For each value of a graph, one graph for each term that is equal to it by the rules, with the cheapest of everything below. The report is that
/// of the search for equalities; nothing is chosen.
pub fn alternatives(graph: &Graph, options: &Options) -> (Vec<Alternative>, Report) {
    let mut report = Report::new(graph, options);
    let (mut egraph, classes): (Egraph, _) = build::to_egraph(graph, options);
    saturate(&mut egraph, options, &mut report);
    let (mut found, mut seen) = (vec![], FxHashSet::default());
    for value in graph.values() {
        if !seen.insert(egraph.find(classes[value.index()])) {
            continue;
        }
        let mut alone = graph.clone();
        alone.outputs.clear();
        let name = graph.node(value).name.clone();
        alone.add_output(name, value, forebay_ir::OutputRole::Output);
        for choice in extract::each(&egraph, &alone, &classes, value, options) {
            let graph = build::to_graph(&alone, &mut egraph, &classes, &choice);
            found.push(Alternative { value, graph });
        }
    }
    (found, report)
}
