//! What rewriting does to real blocks, in numbers: the tables of `docs/rewrites.md`.
//!
//!     cargo run --release --example rewrites                 counts and predictions
//!     cargo run --release --example rewrites -- --measure    also the time of training steps on this machine

use forebay_compiler::autodiff::{Differentiated, Keep};
use forebay_compiler::memory::Recompute;
use forebay_compiler::pipeline::{CompileOptions, Models, compile, fused_segments};
use forebay_compiler::rewrite::{Numerics, Options, Profile, Selection, rules};
use forebay_dsl::model::CheckedModel;
use forebay_ir::cost::cost;
use forebay_ir::{Graph, OutputRole, Unit};
use forebay_runtime::data::Batch;
use forebay_runtime::exec::{ExecOptions, Executor};
use forebay_runtime::init;
use std::collections::BTreeSet;
use std::path::Path;
use std::time::Instant;

const MODELS: [&str; 3] = ["bench-small", "deepseek-v3", "pangu-ultra-moe"];

fn text(name: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("examples/models/{name}.moe"));
    std::fs::read_to_string(path).expect("the example models are there")
}

fn model(name: &str, training: bool, rows: Option<u64>) -> CheckedModel {
    let options = CompileOptions::default().check_options(training, rows, 1);
    forebay_dsl::load(&text(name), &options).unwrap_or_else(|_| panic!("{name} checks")).model
}

/// What a block costs, forward and backward.
#[derive(Clone, Copy, Default)]
struct Totals {
    ops: usize,
    saved: f64,
    moved: f64,
    cpu: f64,
    npu: f64,
}

fn totals(all: &Differentiated) -> Totals {
    let mut sum = Totals::default();
    let (cpu, npu) = (Profile::cpu(), Profile::npu());
    let mut add = |graph: &Graph| {
        for value in graph.values() {
            let node = graph.node(value);
            if node.op.row().unit != Unit::None && !node.operands.is_empty() {
                sum.ops += 1;
            }
            let cost = cost(graph, value);
            sum.moved += cost.read + cost.written;
            sum.cpu += cpu.seconds(graph, value);
            sum.npu += npu.seconds(graph, value);
        }
    };
    add(&all.forward);
    add(&all.backward);
    let saved = all.forward.outputs.iter().filter(|o| o.role == OutputRole::Saved);
    sum.saved = saved.map(|o| all.forward.bytes(o.value) as f64).sum();
    sum
}

fn options(selection: Selection) -> Options {
    Options { selection, ..Options::default() }
}

/// The largest segment of a model: its MoE block.
fn block(model: &CheckedModel, options: &Options) -> (String, Totals, f64) {
    let start = Instant::now();
    let all = fused_segments(model, (Keep::Fewest, &Recompute::Nothing), options);
    let seconds = start.elapsed().as_secs_f64();
    let segment = (0..all.len()).max_by_key(|&i| model.segments[i].forward.nodes.len()).expect("models have segments");
    (model.segments[segment].name.clone(), totals(&all[segment].0), seconds)
}

fn main() {
    for name in MODELS {
        let model = model(name, true, None);
        let (segment, before, _) = block(&model, &options(Selection::Off));
        let (_, after, seconds) = block(&model, &options(Selection::All));
        println!("{name}, block `{segment}`, forward and backward (all segments rewritten in {seconds:.2} s)\n");
        println!("| | before | after | |\n|---|---|---|---|");
        let row = |what: &str, a: f64, b: f64, unit: &str| {
            println!("| {what} | {a:.4} {unit} | {b:.4} {unit} | {:+.1} % |", (b / a - 1.0) * 100.0);
        };
        println!(
            "| ops | {} | {} | {:+.1} % |",
            before.ops,
            after.ops,
            (after.ops as f64 / before.ops as f64 - 1.0) * 100.0
        );
        row("saved tensors", before.saved / 1e9, after.saved / 1e9, "GB");
        row("bytes moved, each op by itself", before.moved / 1e9, after.moved / 1e9, "GB");
        row("predicted, CPU profile", before.cpu * 1e3, after.cpu * 1e3, "ms");
        row("predicted, NPU profile", before.npu * 1e3, after.npu * 1e3, "ms");
        println!(
            "\nLeaving one family of rules out costs:\n\n| family | ops | saved | bytes moved | NPU time |\n|---|---|---|---|---|"
        );
        let families: BTreeSet<&str> = rules().iter().filter_map(|r| r.name.split('.').next()).collect();
        for family in families {
            let (_, without, _) = block(&model, &options(Selection::Without(vec![format!("{family}.")])));
            let more = |a: f64, b: f64| (a / b - 1.0) * 100.0;
            println!(
                "| {family} | {:+} | {:+.1} % | {:+.1} % | {:+.1} % |",
                without.ops as i64 - after.ops as i64,
                more(without.saved, after.saved),
                more(without.moved, after.moved),
                more(without.npu, after.npu)
            );
        }
        println!();
    }
    if std::env::args().any(|a| a == "--measure") {
        measure("bench-small");
    }
}

/// Training steps in turn, without and with rewriting: the medians.
fn measure(name: &str) {
    let variants = [
        ("off", options(Selection::Off)),
        ("exact", Options { numerics: Numerics::Exact, ..options(Selection::All) }),
        ("all", options(Selection::All)),
    ];
    let models = Models {
        train: model(name, true, None),
        eval: model(name, false, None),
        generate: model(name, false, Some(1)),
    };
    let plans: Vec<_> = variants
        .iter()
        .map(|(_, rewrite)| {
            let options = CompileOptions { rewrite: rewrite.clone(), ..CompileOptions::default() };
            compile(&models, &options).expect("one rank takes every model")
        })
        .collect();
    let mut runs: Vec<(Executor, Vec<f64>)> = plans
        .iter()
        .map(|plan| {
            let mut executor = Executor::new(plan, &ExecOptions::default()).unwrap_or_else(|e| panic!("{e}"));
            init::initialise(&mut executor).expect("all ranks are well");
            init::refresh_copies(&mut executor).expect("all ranks are well");
            (executor, vec![])
        })
        .collect();
    for step in 1..=7 {
        for (executor, seconds) in &mut runs {
            let settings = &executor.plan().settings;
            let mut batch = Batch::new(settings.batch, settings.seq);
            let vocab = settings.vocab as i32;
            let ids = batch.tokens.iter_mut().chain(&mut batch.labels).enumerate();
            ids.for_each(|(i, t)| *t = (i as i32 * 7919 + step as i32) % vocab);
            let phase = executor.phase_named("train").unwrap_or_else(|e| panic!("{e}"));
            let start = Instant::now();
            executor
                .start(phase, &batch, step)
                .and_then(|()| executor.commit(phase, step))
                .unwrap_or_else(|e| panic!("{e}"));
            seconds.push(start.elapsed().as_secs_f64());
        }
    }
    println!("{name}: median of 7 training steps on this machine, in turn\n\n| rules | s | memory |\n|---|---|---|");
    for ((executor, seconds), (label, _)) in runs.iter_mut().zip(&variants) {
        seconds.sort_by(f64::total_cmp);
        let bytes = executor.plan().roles[0].device_bytes;
        println!("| {label} | {:.3} | {:.2} GB |", seconds[seconds.len() / 2], bytes as f64 / 1e9);
    }
}
