//! What the generator of random graphs promises to other tests: its graphs can be executed.

use forebay_ir::reference::{Mode, Tensor, evaluate};
use forebay_ir::{DType, Graph, Op, UnaryOp, ValueId, testing};
use proptest::prelude::*;
use rustc_hash::FxHashMap;

/// Values of inputs: integers take all that they may be, one after the other.
fn given(graph: &Graph) -> FxHashMap<ValueId, Tensor> {
    let input = |value: ValueId| {
        let ty = graph.ty(value);
        let dims: Vec<u64> = graph.dims(&ty.axes).into_iter().map(|(_, n)| n).collect();
        let element = |i: u64| match ty.dtype {
            DType::F64 | DType::F32 | DType::BF16 => i as f64 * 0.25 - 1.0,
            DType::I32 => ((i + u64::from(value.0)) % (testing::MAX_INPUT as u64 + 1)) as f64,
            DType::Bool => (i % 2) as f64,
        };
        (value, Tensor::new(dims, (0..graph.numel(ty)).map(element).collect::<Vec<f64>>()))
    };
    graph.inputs.iter().map(|i| input(i.value)).collect()
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn random_graphs_execute(tape in proptest::collection::vec(any::<u32>(), 0..300)) {
        let graph = testing::graph(&tape);
        let values = evaluate(&graph, &given(&graph), Mode::Typed);
        prop_assert_eq!(values.len(), graph.nodes.len());
    }

    #[test]
    fn the_filter_keeps_ops_out(tape in proptest::collection::vec(any::<u32>(), 0..300)) {
        let is_log = |op: &Op| *op == Op::Unary(UnaryOp::Log);
        let graph = testing::graph_where(&tape, |_, op| !is_log(op));
        prop_assert!(!graph.nodes.iter().any(|n| is_log(&n.op)));
    }
}
