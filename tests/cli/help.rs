//! `--help` and the usage errors.

use super::Bench;

#[test]
fn every_command_explains_itself() {
    let bench = Bench::new();
    let help = bench.run(&["--help"]).ok().stdout;
    for command in [
        "train",
        "run",
        "generate",
        "bench",
        "check",
        "fmt",
        "compile",
        "explain",
        "rules",
        "schedule",
        "plan",
        "simulate",
        "memory",
        "validate",
        "calibrate",
    ] {
        assert!(help.contains(&format!("  {command} ")), "{help}");
        let own = bench.run(&[command, "--help"]).ok().stdout;
        assert!(own.contains("Usage: forebay ") && (command == "plan" || own.contains("Examples:")), "{own}");
    }
    assert!(help.contains("FOREBAY_CPU=amx|avx512bf16|avx512|avx2|portable"), "{help}");
    assert!(help.contains("FOREBAY_JIT=off|auto|on"), "{help}");
    // Predictions are of training in bf16; what runs here is in f32.
    for (command, dtype) in [("train", "f32"), ("compile", "f32"), ("simulate", "bf16"), ("memory", "bf16")] {
        let own = bench.run(&[command, "--help"]).ok().stdout;
        assert!(own.contains(&format!("The compute type [default: {dtype}]")), "{own}");
    }
    let train = bench.run(&["train", "--help"]).ok().stdout;
    let options = [
        "--set",
        "--steps",
        "--seed",
        "--save",
        "--save-every",
        "--resume",
        "--json",
        "--dtype",
        "--batch",
        "--micro-batches",
        "--seq",
        "--lr",
        "--warmup",
        "--lr-schedule",
        "--weight-decay",
        "--decay",
        "--clip",
        "--beta1",
        "--beta2",
        "--epsilon",
        "--log",
        "--threads",
        "--eval-every",
        "--profile",
        "--trace",
        "--hosts",
        "--host-index",
        "--backend",
    ];
    options.iter().for_each(|option| assert!(train.contains(option), "{option} is not in:\n{train}"));
    assert!(bench.run(&["--version"]).ok().stdout.starts_with("forebay "));
}

#[test]
fn wrong_command_lines() {
    let bench = Bench::new();
    bench.run(&[]).exits(2, &["Usage: forebay"]);
    bench.run(&["trian"]).exits(2, &["'trian'", "train"]);
    bench.run(&["train", "model.moe"]).exits(2, &["--data"]);
    bench.run(&["train", "--data", "text.txt"]).exits(2, &["MODEL"]);
    bench.run(&["train", "model.moe", "--data", "text.txt", "--steps", "0"]).exits(2, &["--steps"]);
    bench.run(&["fmt"]).exits(2, &["MODEL"]);
}
