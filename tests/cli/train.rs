//! `forebay train` and `forebay run`.

use super::{Bench, Run, SMALL, example};
use serde_json::Value;
use std::fs;

/// The keys of an object as they stand in the line.
fn keys(line: &str) -> Vec<&str> {
    let inner = line.trim_start_matches("{\"summary\":").trim_matches(['{', '}']);
    inner.split(',').map(|field| field.split(':').next().expect("a key").trim_matches('"')).collect()
}

#[test]
fn json_has_an_object_for_each_step_and_a_summary() {
    let bench = Bench::new();
    let run = bench.train(&["--steps", "3", "--json", "--save", "run"]).ok();
    assert_eq!(run.stderr, "");
    let lines: Vec<&str> = run.stdout.lines().collect();
    assert_eq!(lines.len(), 4);
    for (i, line) in lines[..3].iter().enumerate() {
        assert_eq!(keys(line), ["step", "loss", "tokens_per_s", "grad_norm", "lr"]);
        let value: Value = serde_json::from_str(line).expect("JSON");
        assert_eq!(value["step"], i + 1);
        assert!(value["grad_norm"].as_f64().expect("a number") > 0.0);
    }
    let want = [
        "train_loss",
        "val_loss",
        "val_bits_per_byte",
        "order0_bits_per_byte",
        "tokens_per_s",
        "peak_bytes",
        "device_bytes",
        "host_bytes",
        "params",
        "active_params",
    ];
    assert_eq!(keys(lines[3]), want);
    let summary = &run.lines()[3]["summary"];
    let number = |key: &str| summary[key].as_f64().expect("a number");
    assert!((number("val_loss") / 2f64.ln() - number("val_bits_per_byte")).abs() < 1e-9);
    assert!((3.0..5.0).contains(&number("order0_bits_per_byte")));
    assert!(number("active_params") < number("params"));
    // The first loss is that of knowing nothing.
    let first = f64::from_bits(run.losses()[0].1);
    assert!((first / 256f64.ln() - 1.0).abs() < 0.1, "{first}");
}

#[test]
fn people_see_progress_and_a_summary() {
    let bench = Bench::new();
    let run = bench.train(&["--steps", "4"]).ok();
    for part in [
        "TinyMoE",
        "training loss",
        "validation loss",
        "order-0 entropy",
        "bits/byte",
        "tokens/s",
        "at the peak: weights",
    ] {
        assert!(run.stdout.contains(part), "`{part}` is not in:\n{}", run.stdout);
    }
    for part in ["data text.txt: ", "step 1/4  loss 5.", "step 4/4", "left", "checkpoints go to forebay-runs/TinyMoE"] {
        assert!(run.stderr.contains(part), "`{part}` is not in:\n{}", run.stderr);
    }
    assert_eq!(bench.names("forebay-runs/TinyMoE"), ["latest", "run.json", "step-000004"]);
    // The next run does not touch it.
    bench.train(&["--steps", "1"]).ok();
    assert_eq!(bench.names("forebay-runs"), ["TinyMoE", "TinyMoE-2"]);
}

#[test]
fn the_loss_falls() {
    let bench = Bench::new();
    let run = bench.train(&["--steps", "60", "--json", "--save", "run", "--lr", "1e-2"]).ok();
    let summary = &run.lines()[60]["summary"];
    let ratio = summary["val_bits_per_byte"].as_f64().expect("a number")
        / summary["order0_bits_per_byte"].as_f64().expect("a number");
    assert!(ratio < 0.9, "{ratio}");
}

#[test]
fn the_same_seed_gives_the_same_bits() {
    let bench = Bench::new();
    let losses = |save: &str, args: &[&str]| {
        bench.train(&[&["--steps", "4", "--json", "--save", save], args].concat()).ok().losses()
    };
    let one = losses("a", &[]);
    assert_eq!(one, losses("b", &[]));
    assert_eq!(one, losses("c", &["--seed", "1"]));
    assert_ne!(one, losses("d", &["--seed", "2"]));
    let mut args = vec!["train", "model.moe", "--data", "text.txt"];
    args.extend(SMALL.iter().take(SMALL.len() - 2));
    args.extend(["--threads", "2", "--steps", "4", "--json", "--save", "e"]);
    assert_eq!(one, bench.run(&args).ok().losses());
}

#[test]
fn a_plan_runs_without_its_model() {
    let bench = Bench::new();
    let compiled: Vec<&str> = SMALL.iter().take(SMALL.len() - 2).copied().collect();
    bench.run(&[&["compile", "model.moe", "-o", "plan", "--steps", "4"], &compiled[..]].concat()).ok();
    let trained = bench.train(&["--steps", "4", "--json", "--save", "a"]).ok().losses();
    fs::remove_file(bench.path("model.moe")).expect("the model");
    let run = bench.run(&["run", "plan", "--data", "text.txt", "--json", "--save", "b", "--threads", "1"]).ok();
    assert_eq!(run.losses(), trained);
    let short = bench.run(&["run", "plan", "--data", "text.txt", "--json", "--save", "c", "--steps", "2"]).ok();
    assert_eq!(short.losses(), trained[..2]);
}

#[test]
fn other_types_and_micro_batches() {
    let bench = Bench::new();
    let losses = |save: &str, args: &[&str]| {
        bench.train(&[&["--steps", "3", "--json", "--save", save], args].concat()).ok().losses()
    };
    let values =
        |losses: Vec<(u64, u64)>| losses.into_iter().map(|(_, bits)| f64::from_bits(bits)).collect::<Vec<f64>>();
    let f32 = values(losses("a", &[]));
    let close = |other: Vec<f64>, within: f64| {
        assert_eq!(other.len(), f32.len());
        f32.iter().zip(other).for_each(|(a, b)| assert!((a - b).abs() < within, "{a} {b}"));
    };
    close(values(losses("b", &["--dtype", "f64"])), 2e-3);
    close(values(losses("c", &["--dtype", "bf16"])), 0.1);
    close(values(losses("d", &["--micro-batches", "2"])), 2e-2);
}

#[test]
fn evaluations_and_the_log() {
    let bench = Bench::new();
    let run = bench.train(&["--steps", "5", "--json", "--save", "a", "--eval-every", "2", "--log", "log"]).ok();
    let evaluated: Vec<u64> = run.lines().iter().filter_map(|l| l["eval"]["step"].as_u64()).collect();
    assert_eq!(evaluated, [2, 4]);
    assert_eq!(bench.read("log"), run.stdout);
}

#[test]
fn packed_documents() {
    let bench = Bench::new();
    fs::copy(example("packed-docs"), bench.path("packed.moe")).expect("the model is copied");
    let sizes = [
        "--set",
        "batch=2",
        "seq=32",
        "layers=2",
        "d=64",
        "heads=4",
        "kv_heads=2",
        "dh=16",
        "experts=8",
        "topk=2",
        "f=32",
    ];
    let base = ["train", "packed.moe", "--data", "text.txt", "--steps", "20", "--json", "--save"];
    let losses = |save: &str| bench.run(&[&base[..], &[save], &sizes].concat()).ok().losses();
    let one = losses("a");
    assert_eq!(one, losses("b"));
    assert!(f64::from_bits(one[19].1) < f64::from_bits(one[0].1));
}

/// Nobody reads stdout any more, or the log cannot be written: the run ends, but what was trained is kept.
#[cfg(target_os = "linux")]
#[test]
fn a_run_that_cannot_be_told_of_is_saved() {
    let bench = Bench::new();
    let args =
        [&["train", "model.moe", "--data", "text.txt", "--steps", "50", "--json", "--save", "a"], SMALL].concat();
    let mut command = bench.command(&args);
    let mut child =
        command.stdout(std::process::Stdio::piped()).stderr(std::process::Stdio::piped()).spawn().expect("it starts");
    drop(child.stdout.take());
    let run = Run::new(child.wait_with_output().expect("it ends"));
    run.fails(&["cannot write to stdout: Broken pipe", "the run is saved as `a/step-000001`; `--resume a` goes on"]);
    let run = bench.train(&["--steps", "5", "--save", "b", "--log", "/dev/full"]);
    run.fails(&["cannot write the log `/dev/full`: No space left", "saved as `b/step-000001`"]);
    bench.train(&["--steps", "2", "--resume", "b"]).ok();
}

/// Messages that nobody can read do not end a run.
#[cfg(target_os = "linux")]
#[test]
fn a_run_goes_on_without_stderr() {
    let bench = Bench::new();
    let full = || fs::File::options().write(true).open("/dev/full").expect("Linux has it");
    let args = [&["train", "model.moe", "--data", "text.txt", "--steps", "3", "--save", "a"], SMALL].concat();
    let status = bench.command(&args).stdout(full()).stderr(full()).status().expect("it starts");
    // The summary on stdout could not be written.
    assert_eq!(status.code(), Some(1));
    bench.train(&["--steps", "4", "--resume", "a"]).ok();
    let status = bench.command(&["check", "nowhere.moe"]).stderr(full()).status().expect("it starts");
    assert_eq!(status.code(), Some(1));
}

/// An update that makes parameters something else than numbers is not saved, and a divisor that can be zero is refused.
#[test]
fn what_is_no_number_is_not_saved() {
    let bench = Bench::new();
    let fast = ["--lr", "1e39", "--warmup", "0", "--clip", "0"];
    let run = bench.train(&[&fast[..], &["--steps", "1", "--save", "a"]].concat());
    run.fails(&["after step 1, and is not saved", "there is no checkpoint yet", "a smaller --lr"]);
    assert!(!bench.names("a").iter().any(|name| name.contains("step-")), "{:?}", bench.names("a"));
    bench.train(&["--steps", "1", "--save", "b"]).ok();
    let run = bench.train(&[&fast[..], &["--steps", "2", "--resume", "b"]].concat());
    run.fails(&["after step 2, and is not saved", "the last checkpoint `b/step-000001` is from before"]);
    bench.train(&["--steps", "1", "--save", "c", "--epsilon", "0"]).exits(2, &["it must be above 0"]);
}
