//! `--backend npu-emulated`.

use super::Bench;
use serde_json::Value;

const NPU: [&str; 2] = ["--backend", "npu-emulated"];

#[test]
fn the_losses_are_those_of_the_cpu() {
    let bench = Bench::new();
    let common = ["--steps", "3", "--json", "--strategy", "dp=2,ep=2", "--seed", "4"];
    let cpu = bench.train(&[&common[..], &["--save", "cpu"]].concat()).ok();
    assert!(cpu.lines().iter().all(|l| l.get("device_s").is_none()));
    let npu = bench.train(&[&common[..], &NPU, &["--save", "npu"]].concat()).ok();
    assert_eq!(npu.losses(), cpu.losses());
    let last = |run: &super::Run| run.lines().last().expect("a summary")["summary"]["val_loss"].clone();
    assert_eq!(last(&npu), last(&cpu));
    let took: Vec<f64> = npu.lines().iter().filter_map(|l| l["device_s"].as_f64()).collect();
    assert!(took.len() == 3 && took[0] > 0.0 && (took[1] / took[2] - 1.0).abs() < 1e-9, "{took:?}");
    // Another interleaving; from another's checkpoint.
    let shuffled = bench.train(&[&common[..], &NPU, &["--save", "other", "--shuffle", "7"]].concat()).ok();
    assert_eq!(shuffled.losses(), cpu.losses());
    assert!(shuffled.lines().iter().all(|l| l.get("device_s").is_none()), "drawn durations are no times");
    let resume = ["--data", "text.txt", "--resume", "cpu", "--steps", "4", "--json"];
    let on_npu = bench.run(&[&["train"][..], &resume, &NPU, &["--save", "r1"]].concat()).ok();
    let on_cpu = bench.run(&[&["train"][..], &resume, &["--save", "r2"]].concat()).ok();
    assert_eq!(on_npu.losses(), on_cpu.losses());
}

#[test]
fn what_devices_did() {
    let bench = Bench::new();
    let args = ["--steps", "2", "--save", "a", "--strategy", "pp=2,micro=2", "--trace", "trace.json", "--profile"];
    let run = bench.train(&[&args[..], &NPU, &["--cluster", "h100"]].concat()).ok();
    for part in ["2 training steps of ", " by the clock of 2 devices", "\ncube ", "\ncommunication "] {
        assert!(run.stderr.contains(part), "`{part}` is not in:\n{}", run.stderr);
    }
    let line = run.stdout.lines().find(|l| l.starts_with("devices ")).expect("a line about the devices");
    assert!(line.contains(" a step on ") && line.contains("simulated "), "{line}");
    let trace: Value = serde_json::from_str(&bench.read("trace.json")).expect("JSON");
    let all = trace["traceEvents"].as_array().expect("events");
    let slices = |tid: u64, pid: u64| -> Vec<(f64, f64)> {
        let own = all.iter().filter(|e| e["ph"] == "X" && e["tid"] == tid && e["pid"] == pid);
        own.map(|e| (e["ts"].as_f64().expect("a time"), e["dur"].as_f64().expect("a time"))).collect()
    };
    for pid in [1, 2] {
        assert_eq!(slices(0, pid).len(), 2, "steps of rank {}", pid - 1);
        let cube = slices(1, pid);
        assert!(cube.len() > 50, "{}", cube.len());
        assert!(cube.windows(2).all(|w| w[0].0 + w[0].1 <= w[1].0 + 1e-3), "a unit does one thing at a time");
        let steps = slices(0, pid);
        let inside = |at: &(f64, f64)| steps.iter().any(|s| s.0 <= at.0 + 1e-3 && at.0 + at.1 <= s.0 + s.1 + 1e-3);
        assert!(cube.iter().all(inside), "work is within steps");
    }
    assert!(all.iter().any(|e| e["ph"] == "s" && e["name"] == "message"));
}

/// What is priced, what is compiled and what runs is one plan, byte by byte, where the cluster decides what the strategy leaves open and what does not stay in memory.
#[test]
fn the_plan_that_is_priced_runs() {
    let strategy = "pp=2,vpp=2,ep=2,dp=2,zero=1,micro=4,schedule=vpp-overlap,overlap=all,pieces=auto,dispatch=auto";
    let cluster = ["--cluster", "atlas-800t-a2"];
    let mut budget = vec![];
    for within in [false, true] {
        let bench = Bench::new();
        let on_cluster = |own: &[&str]| {
            let model = ["model.moe", "--dtype", "f32", "--set", "layers=4", "--strategy", strategy];
            let budget: Vec<&str> = budget.iter().map(String::as_str).collect();
            bench.run(&[own, &model, &cluster, &budget].concat()).ok()
        };
        let report: Value =
            serde_json::from_str(&on_cluster(&["simulate", "--json", "-o", "priced.plan"]).stdout).expect("a report");
        on_cluster(&["compile", "-o", "compiled.plan"]);
        assert!(bench.read("priced.plan") == bench.read("compiled.plan"), "two plans");
        let steps = ["--data", "text.txt", "--steps", "2", "--json"];
        let of_plan = |save: &[&str]| bench.run(&[&["run", "priced.plan", "--save"], save, &steps].concat()).ok();
        let on_cpu = of_plan(&["cpu"]);
        let ran = of_plan(&[&["npu"], &NPU[..], &cluster].concat());
        let trained = on_cluster(&[&["train", "--save", "trained"], &steps[..], &NPU].concat());
        let seconds = |run: &super::Run| run.lines().iter().find_map(|l| l["device_s"].as_f64()).expect("seconds");
        let priced = report["step_time_s"].as_f64().expect("seconds");
        assert!((seconds(&ran) / priced - 1.0).abs() < 0.01, "{} s, priced {priced} s", seconds(&ran));
        assert_eq!(seconds(&ran), seconds(&trained), "one plan");
        assert_eq!(ran.losses(), on_cpu.losses());
        assert_eq!(bench.read("priced.plan").contains("\"swap.out."), within);
        let peak = report["memory_bytes"][0]["peak"].as_f64().expect("bytes");
        budget = vec!["--memory-budget".to_string(), format!("{}B", (0.8 * peak) as u64)];
    }
}

#[test]
fn what_does_not_fit_is_refused() {
    let bench = Bench::new();
    let with = |args: &[&str]| bench.train(&[&["--steps", "1", "--save", "a"], args].concat());
    let small = with(&[&NPU[..], &["--device-memory", "100kB"]].concat());
    small.fails(&["rank 0: ", "bytes of device memory are wanted", "there are 100000 [out of memory]", "activations "]);
    with(&[&NPU[..], &["--strategy", "tp=2", "--devices", "3"]].concat()).fails(&["2 ranks", "3 devices"]);
    with(&[&NPU[..], &["--cluster", "h1000"]].concat()).fails(&["there is no cluster file `h1000`", "built in are"]);
    with(&["--backend", "cpu", "--cluster", "h100"]).exits(2, &["--cluster is for --backend npu-emulated"]);
    with(&["--cluster", "h100"]).exits(2, &["--backend"]);
    with(&[&NPU[..], &["--strategy", "tp=2", "--hosts", "local:2"]].concat())
        .exits(2, &["--hosts is for --backend cpu"]);
    // What a device has is a budget too, and its link to the host is known.
    let budget = [&NPU[..], &["--memory-budget", "device", "--cluster", "h100"]].concat();
    with(&[&budget[..], &["--device-memory", "100kB"]].concat()).fails(&["the 97.7 KiB allowed"]);
    with(&budget).ok();
    with(&["--backend", "tpu"]).exits(2, &["npu-emulated"]);
    bench.run(&["compile", "model.moe", "-o", "m.plan", "--strategy", "tp=2"]).ok();
    let run = ["run", "m.plan", "--data", "text.txt", "--steps", "1", "--save", "b", "--devices", "4"];
    bench.run(&[&run[..], &NPU].concat()).fails(&["the plan is for 2 ranks, but there are 4 devices"]);
}
