//! Running the graphs of a differentiated segment, and its derivatives by differences.
#![allow(dead_code, reason = "each test uses its part")]

use forebay_compiler::autodiff::{Differentiated, Early, Options, early, grad_input_name};
use forebay_ir::reference::{Mode, Tensor, evaluate, sample};
use forebay_ir::text::print;
use forebay_ir::{Graph, InputRole, OutputRole, ValueId, verify};
use rustc_hash::FxHashMap;

pub type Values = FxHashMap<ValueId, Tensor>;

/// Half the distance of the points of a difference: so small that few elements of a squared ReLU pass its corner.
pub const STEP: f64 = 1e-5;

/// What comes out of a run, by role and name.
pub type Results = FxHashMap<(OutputRole, String), Tensor>;

pub fn check_legal(graph: &Graph) {
    verify::verify(graph).unwrap_or_else(|v| panic!("{}", verify::render(graph, &v)));
}

pub fn graphs(d: &Differentiated) -> [&Graph; 4] {
    [&d.forward, &d.backward, &d.backward_input, &d.backward_weight]
}

pub fn run(graph: &Graph, given: &Values, mode: Mode) -> Results {
    let values = evaluate(graph, given, mode);
    let result = |o: &forebay_ir::Output| ((o.role, o.name.clone()), values[o.value.index()].clone());
    graph.outputs.iter().map(result).collect()
}

/// A run's inputs: those of F by role and name, what earlier graphs saved, gradients of carries.
pub fn bind(
    graph: &Graph,
    forward: (&Graph, &Values),
    saved: &[&Results],
    grads: &FxHashMap<String, Tensor>,
) -> Values {
    let value_of = |input: &forebay_ir::Input| {
        let name = &graph.node(input.value).name;
        let found = match input.role {
            InputRole::Saved => saved.iter().find_map(|r| r.get(&(OutputRole::Saved, name.clone()))),
            InputRole::Grad => grads.get(name),
            role => forward.0.input(role, name).and_then(|v| forward.1.get(&v)),
        };
        (input.value, found.unwrap_or_else(|| panic!("nothing for `{name}`")).clone())
    };
    graph.inputs.iter().map(value_of).collect()
}

fn gradients(results: &Results) -> Vec<(String, Tensor)> {
    let mut grads: Vec<(String, Tensor)> =
        results.iter().filter(|((r, _), _)| *r == OutputRole::Grad).map(|((_, n), t)| (n.clone(), t.clone())).collect();
    grads.sort_by(|a, b| a.0.cmp(&b.0));
    grads
}

pub fn dot(a: &Tensor, b: &Tensor) -> f64 {
    a.data.iter().zip(&b.data).map(|(a, b)| a * b).sum()
}

/// Random gradients for the carry outputs.
pub fn output_gradients(forward: &Graph, options: &Options, seed: i32) -> FxHashMap<String, Tensor> {
    let mut sampler = sample::Sampler::new(seed);
    let carry = |name: &String| forward.output(OutputRole::Carry, name).expect("it exists");
    options.carry_outputs.iter().map(|n| (grad_input_name(n), sampler.input(forward, carry(n), &(-1.0..1.0)))).collect()
}

/// Losses, and carries weighted with the gradients that will come from later segments.
pub fn objective(forward: &Graph, given: &Values, grads: &FxHashMap<String, Tensor>) -> f64 {
    let results = run(forward, given, Mode::F64);
    let terms = results.iter().map(|((role, name), tensor)| match role {
        OutputRole::Loss => tensor.data[0],
        OutputRole::Carry => grads.get(&grad_input_name(name)).map_or(0.0, |g| dot(g, tensor)),
        _ => 0.0,
    });
    terms.sum()
}

/// Runs F, B, I and W, and B in the parts without and with gradients; the graphs must agree. Returns B's gradients.
pub fn run_all(
    d: &Differentiated,
    original: &Graph,
    given: &Values,
    grads: &FxHashMap<String, Tensor>,
    mode: Mode,
) -> Vec<(String, Tensor)> {
    let before = (original, given);
    let forward = run(&d.forward, &bind(&d.forward, before, &[], grads), mode);
    // In f64 mode constants are rounded where they are folded, and nowhere else.
    if mode == Mode::Typed {
        for (key, tensor) in run(original, given, mode) {
            assert!(forward[&key].same_bits(&tensor), "{key:?} changed");
        }
    }
    let b = run(&d.backward, &bind(&d.backward, before, &[&forward], grads), mode);
    let i = run(&d.backward_input, &bind(&d.backward_input, before, &[&forward], grads), mode);
    let handed = i.keys().filter(|(role, _)| *role == OutputRole::Saved);
    handed.for_each(|key| assert!(!forward.contains_key(key), "{} comes from F and from I", key.1));
    let w = run(&d.backward_weight, &bind(&d.backward_weight, before, &[&forward, &i], grads), mode);
    let apart: Vec<(String, Tensor)> = [gradients(&i), gradients(&w)].concat();
    let together = gradients(&b);
    assert_eq!(together.len(), apart.len(), "every gradient comes from I or from W");
    for (name, tensor) in &together {
        let (_, other) = apart.iter().find(|(n, _)| n == name).expect("I or W has it");
        assert!(tensor.same_bits(other), "{name} of B differs from that of I and W");
    }
    if let Some(Early { makes, rest }) = early(&d.backward) {
        [&makes, &rest].into_iter().for_each(check_legal);
        assert!(makes.inputs.iter().all(|i| i.role != InputRole::Grad), "a gradient is read early");
        let made = run(&makes, &bind(&makes, before, &[&forward], grads), mode);
        let parts = gradients(&run(&rest, &bind(&rest, before, &[&forward, &made], grads), mode));
        assert_eq!(parts.len(), together.len(), "every gradient comes from the rest");
        for ((name, tensor), (_, other)) in together.iter().zip(&parts) {
            assert!(tensor.same_bits(other), "{name} of B differs from that of its parts");
        }
    }
    together
}

/// Choices are not differentiated: ints and bools stay what they are at the point of the derivative.
pub fn frozen(forward: &Graph, given: &Values) -> Values {
    let values = evaluate(forward, given, Mode::F64);
    let choices = forward.values().filter(|&v| !forward.ty(v).dtype.is_float());
    choices.map(|v| (v, values[v.index()].clone())).collect()
}

/// A value that a gradient is of, and the gradient.
pub fn input_of(forward: &Graph, name: &str) -> ValueId {
    let (role, input) = match name.strip_prefix("carry.") {
        Some(carry) => (InputRole::Carry, carry),
        None => (InputRole::Param, name.strip_prefix("param.").expect("gradients have a prefix")),
    };
    forward.input(role, input).expect("gradients are of inputs")
}

/// Each gradient along a random direction against differences of the objective; `strict` as in [`judge`].
pub fn against_differences(
    d: &Differentiated,
    (original, given): (&Graph, &Values),
    (gradients, grads): (&[(String, Tensor)], &FxHashMap<String, Tensor>),
    (seed, strict): (i32, bool),
) {
    let forward = &d.forward;
    let mut given = bind(forward, (original, given), &[], grads);
    given.extend(frozen(forward, &given));
    let mut sampler = sample::Sampler::new(seed + 2000);
    for (name, gradient) in gradients {
        let x = input_of(forward, name);
        let along = sampler.input(forward, x, &(-1.0..1.0));
        let at = |by: f64| {
            let mut moved = given.clone();
            let data = &mut moved.get_mut(&x).expect("inputs are given").data;
            data.iter_mut().zip(&along.data).for_each(|(x, u)| *x += by * u);
            objective(forward, &moved, grads)
        };
        judge(&format!("@{}: {name}", forward.name), d, dot(gradient, &along), strict, &at);
    }
}

/// Compares a derivative with differences of the objective, which `at` gives at a distance: of two widths, extrapolated to width 0. Where the
/// two are far apart, or the objective too large, there can be no judgement, which only random graphs may be.
pub fn judge(what: &str, d: &Differentiated, derivative: f64, strict: bool, at: &dyn Fn(f64) -> f64) {
    let narrow = (at(STEP) - at(-STEP)) / (2.0 * STEP);
    let wide = (at(2.0 * STEP) - at(-2.0 * STEP)) / (4.0 * STEP);
    let difference = (4.0 * narrow - wide) / 3.0;
    let scale = difference.abs().max(derivative.abs()).max(1e-2);
    let noise = at(0.0).abs() * f64::EPSILON / STEP;
    if !(difference.is_finite() && (narrow - wide).abs() <= 3e-4 * scale && noise <= 1e-7 * scale) {
        assert!(!strict, "{what} cannot be judged: {narrow}, {wide} with a noise of {noise}");
        return;
    }
    assert!(
        (difference - derivative).abs() <= 1e-6 * scale,
        "{what} is {derivative}, the difference {difference}\n{}\n{}",
        print(&d.forward),
        print(&d.backward)
    );
}
