//! The gradient of each op, against differences, and as text.

use forebay_ir::gradient::gradient;
use forebay_ir::reference::{Mode, Tensor, evaluate, sample};
use forebay_ir::text::{parse_module, print, render};
use forebay_ir::{Graph, InputRole, Op, OutputRole, ValueId, verify};
use rustc_hash::FxHashMap;
use std::ops::Range;
use std::path::Path;

const STEP: f64 = 1e-5;

/// `// domain 0.1 2` before a graph says where its functions are smooth.
fn domain(source: &str, graph: &str) -> Range<f64> {
    let before = source.split(&format!("graph @{graph} ")).next().expect("the graph is in the source");
    let numbers = before.trim_end().lines().last().and_then(|l| l.strip_prefix("// domain "));
    let numbers: Vec<f64> =
        numbers.map_or(vec![-1.0, 1.0], |l| l.split(' ').map(|n| n.parse().expect("a number")).collect());
    numbers[0]..numbers[1]
}

fn dot(a: &Tensor, b: &Tensor) -> f64 {
    a.data.iter().zip(&b.data).map(|(a, b)| a * b).sum()
}

fn moved(x: &Tensor, along: &Tensor, by: f64) -> Tensor {
    let data: Vec<f64> = x.data.iter().zip(&along.data).map(|(x, u)| x + by * u).collect();
    Tensor::new(x.dims.clone(), data)
}

/// Appends the gradient of `y` in each float parameter that it reads; they become outputs.
fn differentiate(graph: &mut Graph, y: ValueId) -> ValueId {
    let ty = graph.ty(y).clone();
    let g = graph.add_input("g", ty, InputRole::Grad);
    for (i, operand) in graph.node(y).operands.clone().into_iter().enumerate() {
        let value = gradient(graph, y, i, g).expect("legal");
        assert!(value.is_none() || graph.ty(value.expect("some")) == graph.ty(operand), "the type of the operand");
        if let Some(value) = value {
            graph.add_output(format!("{i}"), value, OutputRole::Grad);
        }
    }
    graph.prune();
    graph.input(InputRole::Grad, "g").expect("just added")
}

/// The sum of gradients in one value, by its operand positions.
fn directional(graph: &Graph, y: ValueId, x: ValueId, along: &Tensor, values: &[Tensor]) -> f64 {
    let positions = graph.node(y).operands.iter().enumerate().filter(|(_, o)| **o == x).map(|(i, _)| i);
    let grads = positions.filter_map(|i| graph.output(OutputRole::Grad, &i.to_string()));
    grads.map(|v| dot(&values[v.index()], along)).sum()
}

fn check(graph: &Graph, y: ValueId, g: ValueId, range: &Range<f64>) {
    for seed in 0..3 {
        let given: FxHashMap<ValueId, Tensor> = sample::inputs(graph, seed, range);
        let values = evaluate(graph, &given, Mode::F64);
        let mut sampler = sample::Sampler::new(seed + 100);
        let params = graph.inputs.iter().filter(|i| i.role == InputRole::Param && graph.ty(i.value).dtype.is_float());
        for x in params.map(|i| i.value) {
            let along = sampler.input(graph, x, &(-1.0..1.0));
            let objective = |by: f64| {
                let mut given = given.clone();
                given.insert(x, moved(&given[&x], &along, by));
                dot(&evaluate(graph, &given, Mode::F64)[y.index()], &given[&g])
            };
            let difference = (objective(STEP) - objective(-STEP)) / (2.0 * STEP);
            let gradient = directional(graph, y, x, &along, &values);
            let scale = difference.abs().max(gradient.abs()).max(1e-2);
            assert!(
                (difference - gradient).abs() <= 1e-6 * scale,
                "@{}: d.{} is {gradient}, the difference {difference}\n{}",
                graph.name,
                graph.node(x).name,
                print(graph)
            );
        }
    }
}

#[test]
fn gradients_equal_differences() {
    insta::glob!("gradient/*.ir", |path| {
        let source = std::fs::read_to_string(path).expect("readable");
        let graphs =
            parse_module(&source).unwrap_or_else(|e| panic!("{}", render(&e, &source, &path.display().to_string())));
        let mut text = String::new();
        for mut graph in graphs {
            verify::verify(&graph).unwrap_or_else(|v| panic!("{}", verify::render(&graph, &v)));
            let y = graph.output(OutputRole::Output, "y").expect("every case returns y");
            let g = differentiate(&mut graph, y);
            verify::verify(&graph).unwrap_or_else(|v| panic!("{}", verify::render(&graph, &v)));
            let float = graph.ty(graph.output(OutputRole::Output, "y").expect("kept")).dtype.is_float();
            let steps = graph.nodes.iter().any(|n| matches!(n.op, Op::Detach));
            if float && !steps {
                let y = graph.output(OutputRole::Output, "y").expect("kept");
                check(&graph, y, g, &domain(&source, &graph.name));
            }
            text += &format!("{}\n", print(&graph));
        }
        snapshot(path, &text);
    });
}

/// Snapshots lie beside their inputs.
fn snapshot(path: &Path, result: &str) {
    let mut settings = insta::Settings::clone_current();
    settings.set_snapshot_path(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/gradient"));
    settings.set_prepend_module_to_snapshot(false);
    settings.set_omit_expression(true);
    settings.remove_snapshot_suffix();
    let name = path.file_stem().expect("a file").to_string_lossy().into_owned();
    settings.bind(|| insta::assert_snapshot!(name, result));
}
