//! The segments of the example models, at sizes that the oracle can run: gradients against differences.

use crate::autodiff_support;
use crate::example_models;

use autodiff_support::{bind, check_legal, dot, frozen, graphs, input_of, judge, objective, output_gradients, run_all};
use example_models::reduced;
use forebay_compiler::autodiff::{Options, differentiate};
use forebay_ir::reference::{Mode, Tensor, sample};
use forebay_ir::{Graph, InputRole, ValueId};
use rustc_hash::FxHashMap;

/// Activations of the size of 1, parameters small enough that no softmax saturates.
fn inputs(graph: &Graph, seed: i32) -> FxHashMap<ValueId, Tensor> {
    let mut sampler = sample::Sampler::new(seed);
    let value = |input: &forebay_ir::Input| match input.role {
        InputRole::Param => sampler.input(graph, input.value, &(-0.2..0.2)),
        InputRole::Count => Tensor::scalar(7.0),
        _ => sampler.input(graph, input.value, &(-1.0..1.0)),
    };
    graph.inputs.iter().map(value).zip(&graph.inputs).map(|(tensor, input)| (input.value, tensor)).collect()
}

/// All inputs move together, along a random direction: four runs instead of four for each input.
fn check_segment(what: &str, original: &Graph) {
    let options = Options::all_floats(original);
    let d = differentiate(original, &options);
    graphs(&d).into_iter().for_each(check_legal);
    let given = inputs(original, 1);
    let grads = output_gradients(original, &options, 2);
    let results = run_all(&d, original, &given, &grads, Mode::F64);
    let forward = &d.forward;
    let mut given = bind(forward, (original, &given), &[], &grads);
    given.extend(frozen(forward, &given));
    let mut sampler = sample::Sampler::new(3);
    let directions: Vec<(ValueId, Tensor, f64)> = results
        .iter()
        .map(|(name, gradient)| {
            let x = input_of(forward, name);
            let along = sampler.input(forward, x, &(-1.0..1.0));
            let slope = dot(gradient, &along);
            (x, along, slope)
        })
        .collect();
    let at = |by: f64| {
        let mut moved = given.clone();
        for (x, along, _) in &directions {
            let data = &mut moved.get_mut(x).expect("inputs are given").data;
            data.iter_mut().zip(&along.data).for_each(|(x, u)| *x += by * u);
        }
        objective(forward, &moved, &grads)
    };
    judge(what, &d, directions.iter().map(|(_, _, slope)| slope).sum(), true, &at);
}

#[test]
fn example_models_have_the_right_gradients() {
    insta::glob!("../../examples/models", "*.moe", |path| {
        let model = reduced(&std::fs::read_to_string(path).expect("readable"));
        for segment in &model.segments {
            check_segment(&format!("{}, {}", path.display(), segment.name), &segment.forward);
        }
    });
}
