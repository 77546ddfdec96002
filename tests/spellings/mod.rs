//! The same blocks in other words: random equal spellings of the standard blocks, as users write them, have the losses
//! and gradients of the library's own.
//!
//! More spellings, of another seed: `FOREBAY_TEST_ALL=1 FOREBAY_SEED=7 cargo test --test all spellings::`.

use crate::common;

mod attention;
mod dense;
mod experts;
mod generate;
mod masks;
mod parts;
mod rope;
mod writer;

use common::oracle::{Oracle, data};
use common::{Example, Numbers, all_cases, options};
use forebay_compiler::pipeline::compile;
use forebay_compiler::rewrite::{Options, rewrite};
use forebay_dsl::model::CheckedModel;
use forebay_ir::DType;
use forebay_ir::reference::Tensor;
use forebay_plan::TensorKind;
use forebay_runtime::data::Batch;
use forebay_runtime::exec::{ExecOptions, Executor};
use forebay_runtime::init;
use generate::{Block, blocks, distant, spellings};
use rustc_hash::FxHashMap;
use std::collections::{BTreeMap, BTreeSet};

/// How many spellings of each block, and of which seed.
fn amount() -> (usize, u64) {
    let seed = std::env::var("FOREBAY_SEED").ok().and_then(|s| s.parse().ok()).unwrap_or(1);
    let n = if all_cases() { 200 } else { 24 };
    (n, seed)
}

/// A checked model, of a text that has no diagnostics at all.
fn check(name: &str, text: &str, compute: DType) -> Result<CheckedModel, String> {
    let options = options(compute, vec![]).check_options(true, None, 1);
    let sources = || forebay_dsl::std_library::sources(name, text);
    match forebay_dsl::load(text, &options) {
        Ok(accepted) if accepted.warnings.is_empty() => Ok(accepted.model),
        Ok(accepted) => Err(forebay_dsl::diagnostics::render(&accepted.warnings, &sources(), false)),
        Err(mistakes) => Err(forebay_dsl::diagnostics::render(&mistakes, &sources(), false)),
    }
}

/// What a training step of a model gives: its main loss, and the gradients of parameters by name.
struct Step {
    loss: f64,
    gradients: FxHashMap<String, Vec<f64>>,
}

/// The oracle of a model. Parameters have values by their names, which are those of the spellings.
fn oracle<'m>(model: &'m CheckedModel, renamed: &[(&str, &str)]) -> Oracle<'m> {
    let mut oracle = Oracle::new(model, 0, batch(model));
    for (param, tensor) in model.params.iter().zip(&mut oracle.params) {
        let seed = name(param, renamed).bytes().fold(17, |seed: u64, b| seed.wrapping_mul(31).wrapping_add(b.into()));
        let mut numbers = Numbers::new(seed);
        tensor.data.iter_mut().for_each(|v| *v = 0.6 * numbers.normal());
    }
    oracle
}

fn name<'a>(param: &'a forebay_dsl::model::Tensor, renamed: &[(&str, &'a str)]) -> &'a str {
    renamed.iter().find(|(there, _)| *there == param.name).map_or(param.name.as_str(), |(_, here)| *here)
}

/// Random tokens, some without a label. Where there are documents, each row has two.
fn batch(model: &CheckedModel) -> FxHashMap<String, Tensor> {
    let mut batch = data(model, 3, 7);
    batch.get_mut("labels").unwrap().data.iter_mut().step_by(4).for_each(|label| *label = -1.0);
    let documents = batch.get_mut("documents").unwrap().data.chunks_mut(model.seq as usize);
    documents.for_each(|row| row.iter_mut().enumerate().for_each(|(t, document)| *document = f64::from(t > 1)));
    batch
}

/// A step by the oracle.
fn step(model: &CheckedModel, renamed: &[(&str, &str)]) -> Step {
    let oracle = oracle(model, renamed);
    let gradients = model.params.iter().zip(oracle.gradients());
    let gradients = gradients.map(|(p, g)| (name(p, renamed).to_string(), g.data)).collect();
    Step { loss: oracle.forward(None).losses["main"], gradients }
}

/// A step by the compiled plan.
fn step_of_plan(text: &str, model: &CheckedModel) -> Step {
    let options = options(DType::F64, vec![]);
    let plan =
        compile(&Example { name: "spelled".into(), text: text.into() }.models(&options), &options).expect("one rank");
    let mut executor = Executor::new(&plan, &ExecOptions::default()).unwrap_or_else(|e| panic!("{e}"));
    init::initialise(&mut executor).unwrap();
    let tensor =
        |name: &str, kind: TensorKind| plan.roles[0].tensors.iter().find(|t| t.name == name && t.kind == kind).unwrap();
    for (param, values) in model.params.iter().zip(oracle(model, &[]).params) {
        let bytes: Vec<u8> = values.data.iter().flat_map(|v| v.to_ne_bytes()).collect();
        executor.tensor_mut(tensor(&param.name, TensorKind::Param)).copy_from_slice(&bytes);
    }
    init::refresh_copies(&mut executor).unwrap();
    let batch = batch(model);
    let ints = |name: &str| batch[name].data.iter().map(|v| *v as i32).collect::<Vec<_>>();
    let mut fed = Batch::new(model.batch, model.seq);
    (fed.tokens, fed.labels) = (ints("tokens"), ints("labels"));
    (fed.positions, fed.documents) = (ints("positions"), ints("documents"));
    let phase = executor.phase_named("train").unwrap();
    executor.start(phase, &fed, 1).unwrap();
    let loss = executor.phase(phase).reports.iter().find(|r| r.name == "loss").unwrap();
    let gradients = model.params.iter().map(|param| {
        let bytes = executor.tensor(tensor(&param.name, TensorKind::Gradient));
        let values = bytes.chunks_exact(8).map(|c| f64::from_ne_bytes(c.try_into().unwrap()));
        (param.name.clone(), values.collect())
    });
    let gradients = gradients.collect();
    Step { loss: executor.report(loss), gradients }
}

/// Whether two steps agree up to rounding, and if not, where.
fn same(wanted: &Step, got: &Step) -> Result<(), String> {
    let close = |a: f64, b: f64, size: f64| (a - b).abs() <= 1e-9 * size;
    if !close(wanted.loss, got.loss, wanted.loss.abs()) {
        return Err(format!("the loss is {}, the library's is {}", got.loss, wanted.loss));
    }
    let names = |s: &Step| s.gradients.keys().cloned().collect::<BTreeSet<String>>();
    if names(wanted) != names(got) {
        return Err(format!("parameters {:?}, the library has {:?}", names(got), names(wanted)));
    }
    for (name, wanted) in &wanted.gradients {
        let got = &got.gradients[name];
        if wanted.len() != got.len() {
            return Err(format!("{name} has {} elements, the library's has {}", got.len(), wanted.len()));
        }
        let size = wanted.iter().fold(0.0_f64, |m, v| m.max(v.abs()));
        if let Some(i) = (0..wanted.len()).find(|&i| !close(wanted[i], got[i], size)) {
            return Err(format!("the gradient of {name}[{i}] is {}, the library's is {}", got[i], wanted[i]));
        }
    }
    Ok(())
}

/// The fused ops that a block is expected to become, in all its spellings.
fn fused(block: &Block, model: &CheckedModel) -> Result<(), String> {
    let mut found: BTreeMap<&str, usize> = BTreeMap::new();
    let mut text = String::new();
    for segment in &model.segments {
        let (graph, report) = rewrite(&segment.forward, &Options::default());
        report.fused.iter().for_each(|(name, n)| *found.entry(name).or_default() += n);
        text += &forebay_ir::text::print(&graph);
    }
    let wrong = block.expect.iter().any(|(name, n)| found.get(name) != Some(n));
    if wrong { Err(format!("{:?} instead of {:?}\n{text}", found, block.expect)) } else { Ok(()) }
}

/// The spellings of a block against the library's.
fn test(name: &str) {
    let block: Block = blocks().into_iter().chain(distant()).find(|b| b.name == name).unwrap();
    let (n, seed) = amount();
    let reference =
        check(name, &block.reference(), DType::F64).unwrap_or_else(|e| panic!("{name}: the library's\n{e}"));
    let reference = step(&reference, block.renamed);
    for (param, gradient) in &reference.gradients {
        assert!(gradient.iter().any(|g| g.abs() > 1e-6), "{name}: {param} has a gradient");
    }
    let fuses = blocks().iter().any(|b| b.name == name);
    let mut wrong = vec![];
    let mut structures = BTreeSet::new();
    for (i, spelling) in spellings(&block, n, seed).iter().enumerate() {
        let file = format!("{name} {i}");
        let mut fault = || {
            // In other types, the same text is without diagnostics too.
            check(&file, &spelling.source, DType::F32)?;
            check(&file, &spelling.source, DType::BF16)?;
            let model = check(&file, &spelling.source, DType::F64)?;
            same(&reference, &step(&model, &[]))?;
            // An angle for each element of the axis, each twice, is not seen to be one for each pair.
            if fuses && !spelling.choices.contains(&"angle of each element") {
                fused(&block, &check(&file, &spelling.source, DType::F32)?)?;
            }
            let nodes = model.segments.iter().flat_map(|s| &s.forward.nodes);
            structures.insert(nodes.map(|n| format!("{} {:?}", n.op.row().name, n.operands)).collect::<String>());
            // Of some, the compiled programs as well.
            if all_cases() || i % 4 == 0 { same(&reference, &step_of_plan(&spelling.source, &model)) } else { Ok(()) }
        };
        let fault = fault().err();
        wrong.extend(fault.map(|fault| format!("{fault}\nchoices: {:?}\n{}", spelling.choices, spelling.source)));
    }
    assert!(wrong.is_empty(), "{name}: {} of {n} spellings are wrong:\n{}", wrong.len(), wrong.join("\n"));
    assert!(structures.len() >= 16, "{name}: the spellings make {} different graphs only", structures.len());
}

macro_rules! tests {
    ($($name:ident)*) => {
        $(#[test]
        fn $name() {
            test(stringify!($name));
        })*

        /// No block is left out.
        #[test]
        fn all_blocks_are_tested() {
            assert!(blocks().iter().all(|b| !b.expect.is_empty()));
            let names: Vec<&str> = blocks().iter().chain(&distant()).map(|b| b.name).collect();
            assert_eq!(names, [$(stringify!($name)),*]);
        }
    };
}

tests! {
    rms_norm add_rms_norm silu swiglu clamped_swiglu rope_half rope_interleaved attention_causal attention_windowed
    attention_grouped attention_sinks attention_packed attention_all attention_value_size cross_entropy softmax_router
    sigmoid_router swiglu_experts clamped_swiglu_experts attention_repeated_keys attention_sink_column
    cross_entropy_one_hot
}
