//! `forebay bench`, without PyTorch.

use super::{Bench, SMALL, measured_machine};
use serde_json::Value;

/// bench-tiny at a size at which a step takes a moment.
const REDUCED: &[&str] =
    &["bench", "--batch", "2", "--seq", "32", "--threads", "1", "--set", "layers=2", "d=64", "heads=4", "f=32"];

#[test]
fn numbers_of_a_built_in_model() {
    let bench = Bench::new();
    let run = bench.run(&[REDUCED, &["--steps", "4", "--json"]].concat()).ok();
    assert_eq!(run.stderr, "");
    let lines = run.lines();
    assert_eq!(lines.len(), 1);
    let of = &lines[0]["bench"];
    let number = |key: &str| of[key].as_f64().unwrap_or_else(|| panic!("{key} is no number in {of}"));
    assert_eq!((of["model"].as_str(), of["dtype"].as_str(), number("steps")), (Some("BenchTiny"), Some("f32"), 4.0));
    assert!(number("best_ms") > 0.0 && number("best_ms") <= number("median_ms"));
    let tokens = number("tokens_per_s") * number("median_ms") / 1e3;
    assert!((tokens - 64.0).abs() < 1e-6, "{tokens}");
    let gflop = number("gflop_per_s") * number("median_ms") / 1e3;
    assert!((gflop / number("gflop_per_step") - 1.0).abs() < 1e-6, "{gflop}");
    assert!(number("roofline_share") > 0.0 && number("probe_gflop_per_s") > 0.1);
    assert!((0.0..1.0).contains(&number("dispatch_share")));
    let parts = of["first_step_parts"].as_array().expect("parts");
    let names: Vec<&str> = parts.iter().filter_map(|p| p[0].as_str()).collect();
    assert_eq!(names, ["compile", "verify", "prepare", "allocate", "initialise", "step 1"]);
    let sum: f64 = parts.iter().filter_map(|p| p[1].as_f64()).sum();
    assert!((sum - number("first_step_s")).abs() < 1e-6 && number("start_up_s") < sum, "{sum}");
    assert!(number("first_step_s") > 0.0 && number("planned_bytes") > 1e5);
    assert!(of["peak_rss_bytes"].as_f64().is_none_or(|rss| rss > number("planned_bytes")));
    // Neither checkpoints nor anything else.
    assert_eq!(bench.names("."), ["model.moe", "text.txt"]);
}

#[test]
fn people_see_what_was_measured() {
    let bench = Bench::new();
    let run = bench.run(&[&["bench", "model.moe", "--steps", "2", "--dtype", "bf16"], SMALL].concat()).ok();
    for part in ["TinyMoE", "bf16", "median of 2", "tokens/s", "roofline", "between kernels", "first step", "planned"] {
        assert!(run.stdout.contains(part), "`{part}` is not in:\n{}", run.stdout);
    }
}

/// What is predicted of a machine that was measured is the plan that runs on it, to the byte, and so its memory.
#[test]
fn a_measured_machine_is_predicted_with_the_plan_that_runs() {
    let bench = Bench::new();
    bench.write("this.toml", measured_machine());
    let found = [
        "pp=2,micro=2,stages=auto",
        "pp=2,micro=2,schedule=search",
        "dp=2,ep=2,zero=1,dispatch=auto,node=2,pieces=auto",
    ];
    for strategy in ["micro=2", "dp=2,zero=1", "tp=2", "cp=2", "pp=2,micro=2"].into_iter().chain(found) {
        let model = [&REDUCED[1..], &["--dtype", "f32", "--strategy", strategy]].concat();
        let model: Vec<&str> = model.into_iter().filter(|arg| !["--threads", "1"].contains(arg)).collect();
        let simulate = [&["simulate", "bench-tiny", "--cluster", "this.toml"], &model[..]].concat();
        bench.run(&[&["compile", "bench-tiny", "-o", "run.plan"], &model[..]].concat()).ok();
        bench.run(&[&simulate[..], &["-o", "priced.plan"]].concat()).ok();
        assert!(bench.read("run.plan") == bench.read("priced.plan"), "{strategy}: the plans are not the same");
        let run = bench.run(&[&simulate[..], &["--json"]].concat()).ok();
        let simulated: Value = serde_json::from_str(&run.stdout).expect("an object");
        let stages = simulated["memory_bytes"].as_array().expect("stages");
        let predicted = stages.iter().filter_map(|stage| stage["peak"].as_f64()).fold(0.0, f64::max);
        let plan = bench.read("run.plan");
        let arenas = plan.split("\"device_bytes\":").skip(1).map(|rest| rest.split(',').next().map(str::parse::<f64>));
        let arena = arenas.map(|bytes| bytes.expect("a number").expect("bytes")).fold(0.0, f64::max);
        assert!((predicted / arena - 1.0).abs() < 1e-3, "{strategy}: {predicted} bytes, not {arena}");
    }
}

#[test]
fn comparisons_that_cannot_be_made() {
    let bench = Bench::new();
    let peers = |args: &[&str]| bench.run(&[REDUCED, &["--steps", "1", "--peers"], args].concat());
    let none = peers(&["--python", "no-such-python"]);
    assert_eq!(none.stdout, "", "nothing was timed");
    none.fails(&["cannot start `no-such-python`", "pip install torch"]);
    // An interpreter that fails is one without torch.
    peers(&["--python", "false"]).fails(&["`false` has no usable PyTorch", "pip install torch"]);
    peers(&["--dtype", "f64"]).exits(2, &["f32 and bf16"]);
    let other = [&["bench", "model.moe", "--steps", "1", "--peers"], SMALL].concat();
    bench.run(&other).fails(&["there is no peer for `TinyMoE`", "`layers.0."]);
    bench.run(&["bench", "--rounds", "2"]).exits(2, &["--peers"]);
    bench.run(&["bench", "--curves", "2"]).exits(2, &["--peers"]);
    peers(&["--curves", "2", "--rounds", "2"]).exits(2, &["--rounds"]);
    bench.run(&["bench", "missing.moe"]).fails(&["cannot read `missing.moe`: "]);
}
