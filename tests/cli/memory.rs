//! `forebay memory`, and `--memory-budget`.

use super::{Bench, SMALL, measured_machine};
use serde_json::Value;

const MEMORY: [&str; 4] = ["memory", "model.moe", "--cluster", "h100"];

fn report(bench: &Bench, args: &[&str]) -> Value {
    let run = bench.run(&[&MEMORY[..], &["--json", "--strategy", "pp=2,micro=4"], args].concat()).ok();
    serde_json::from_str(&run.stdout).expect("an object")
}

fn bytes(stage: &Value, key: &str) -> u64 {
    stage[key].as_u64().unwrap_or_else(|| panic!("{key} is a number"))
}

#[test]
fn a_table_a_curve_and_a_front() {
    let bench = Bench::new();
    let report = report(&bench, &["--points", "2", "--svg", "memory.svg"]);
    let stages = report["stages"].as_array().expect("stages");
    assert_eq!(stages.len(), 2);
    let tensors = stages[0]["tensors"].as_array().expect("tensors");
    let names: Vec<&str> = tensors.iter().filter_map(|t| t["name"].as_str()).collect();
    assert!(names.contains(&"attention.o"), "{names:?}");
    for tensor in tensors {
        assert_eq!(bytes(tensor, "bytes") * bytes(tensor, "copies"), bytes(tensor, "total_bytes"));
        assert!(tensor["why"].as_str().is_some_and(|why| !why.is_empty()));
    }
    let live: Vec<u64> = stages[0]["live_bytes"].as_array().unwrap().iter().filter_map(Value::as_u64).collect();
    assert_eq!(live.iter().max(), Some(&bytes(&stages[0], "live_peak_bytes")));
    let front = report["front"].as_array().expect("points");
    assert!((2..=4).contains(&front.len()), "{front:?}");
    let of = |key: &str| front.iter().map(|p| p[key].as_f64().expect("a number")).collect::<Vec<f64>>();
    // No point is worse than another.
    assert!(of("peak_bytes").windows(2).all(|w| w[1] < w[0]), "{front:?}");
    assert!(of("step_time_s").windows(2).all(|w| w[1] > w[0]), "{front:?}");
    let svg = bench.read("memory.svg");
    assert!(svg.starts_with("<svg") && svg.ends_with("</svg>\n") && svg.contains("stage 1"), "{svg}");
    let text =
        bench.run(&[&MEMORY[..], &["--strategy", "pp=2,micro=4", "--points", "1", "--stage", "1"]].concat()).ok();
    assert!(text.stdout.contains("saved tensor") && text.stdout.contains("slower by"), "{}", text.stdout);
}

/// What the strategy swaps is copied, and counted.
#[test]
fn swaps_that_are_named_take_the_link() {
    let bench = Bench::new();
    let of = |swap: &str| {
        let strategy = format!("micro=4,schedule=gpipe{swap}");
        let args = ["--set", "layers=8", "--points", "0", "--json", "--strategy", &strategy];
        let run = bench.run(&[&MEMORY[..], &args].concat()).ok();
        serde_json::from_str::<Value>(&run.stdout).expect("an object")["stages"][0].clone()
    };
    let (none, named) = (of(""), of(",swap=attention.o"));
    assert_eq!(none["swap_s"].as_f64(), Some(0.0));
    let seconds = |of: &Value, key: &str| of[key].as_f64().expect("seconds");
    let tensors = named["tensors"].as_array().expect("tensors");
    let swapped: Vec<&Value> = tensors.iter().filter(|t| t["choice"] == "swap").collect();
    assert!(!swapped.is_empty());
    let each: f64 = swapped.iter().map(|t| seconds(t, "swap_s")).sum();
    assert!(each > 0.0 && (seconds(&named, "swap_s") / each - 1.0).abs() < 1e-9, "{named}");
    let hidden = seconds(&named, "swap_hidden_s");
    assert!((0.0..=each * (1.0 + 1e-9)).contains(&hidden), "{hidden} of {each}");
}

#[test]
fn a_budget_is_kept_and_told() {
    let bench = Bench::new();
    let whole = report(&bench, &["--points", "0"]);
    let of = |stage: &Value| (bytes(stage, "peak_bytes"), bytes(stage, "persistent_bytes"));
    let (peak, kept) = of(&whole["stages"][0]);
    // A byte less has frames where the arena is smaller; with a good deal less something goes.
    let closer = report(&bench, &["--points", "0", "--memory-budget", &format!("{}B", peak - 1)]);
    assert!(bytes(&closer["stages"][0], "peak_bytes") < peak);
    let budget = format!("{}B", kept + (peak - kept) * 3 / 4);
    let within = report(&bench, &["--points", "0", "--memory-budget", &budget]);
    assert!(bytes(&within["stages"][0], "peak_bytes") < peak);
    assert_eq!(bytes(&within["stages"][0], "unrestricted_bytes"), peak);
    let choices: Vec<&str> =
        within["stages"][0]["tensors"].as_array().unwrap().iter().filter_map(|t| t["choice"].as_str()).collect();
    assert!(choices.iter().any(|choice| *choice != "keep") && choices.contains(&"keep"), "{choices:?}");
    // What memory shows is what simulate predicts and what compile writes.
    let args = ["--strategy", "pp=2,micro=4", "--memory-budget", &budget];
    let simulated = bench.run(&[&["simulate", "model.moe", "--cluster", "h100", "--json"], &args[..]].concat()).ok();
    let simulated: Value = serde_json::from_str(&simulated.stdout).expect("an object");
    assert_eq!(simulated["memory_bytes"][0]["peak"].as_f64(), Some(bytes(&within["stages"][0], "peak_bytes") as f64));
    assert_eq!(simulated["step_time_s"], within["step_time_s"]);
    bench.run(&[&["compile", "model.moe", "-o", "a.plan", "--dtype", "bf16"], &args[..]].concat()).ok();
}

/// With a cluster that has a link to the host, a plan is what the prediction was of: what does not fit is swapped.
#[test]
fn compiling_for_a_cluster_swaps() {
    let bench = Bench::new();
    let model = ["--set", "layers=8", "--strategy", "micro=4,schedule=gpipe"];
    let memory = |budget: &[&str]| {
        let run = bench.run(&[&MEMORY[..], &["--json", "--points", "0"], &model, budget].concat()).ok();
        serde_json::from_str::<Value>(&run.stdout).expect("an object")["stages"][0].clone()
    };
    let whole = memory(&[]);
    let (all, kept) = (bytes(&whole, "peak_bytes"), bytes(&whole, "persistent_bytes"));
    let budget = format!("{}B", kept + (all - kept) * 3 / 4);
    let within = memory(&["--memory-budget", &budget]);
    assert!(within["swap_s"].as_f64().is_some_and(|seconds| seconds > 0.0), "nothing is swapped");
    let host_bytes = |args: &[&str]| {
        let args = [
            &["compile", "model.moe", "-o", "a.plan", "--dtype", "bf16", "--memory-budget", &budget],
            &model[..],
            args,
        ];
        bench.run(&args.concat()).ok();
        let plan: Value = serde_json::from_str(&bench.read("a.plan")).expect("a plan");
        assert!(plan["roles"][0]["device_bytes"].as_u64().is_some_and(|bytes| bytes <= kept + (all - kept) * 3 / 4));
        plan["roles"][0]["host_bytes"].as_u64().unwrap_or(0)
    };
    assert!(host_bytes(&["--cluster", "h100"]) > 0);
    assert_eq!(host_bytes(&[]), 0);
}

/// The losses are those of a run without a budget, bit for bit.
#[test]
fn training_within_a_budget_is_the_same() {
    let bench = Bench::new();
    let train = |args: &[&str]| bench.train(&[&["--json", "--steps", "3"], args].concat()).ok();
    let whole = train(&["--save", "a"]);
    let summary = whole.lines().pop().expect("a summary");
    let peak = summary["summary"]["peak_bytes"].as_u64().expect("bytes");
    let within = train(&["--save", "b", "--memory-budget", &format!("{}B", peak - 20_000)]);
    let used = within.lines().pop().expect("a summary")["summary"]["peak_bytes"].as_u64().expect("bytes");
    assert!(used <= peak - 20_000, "{used} of {peak}");
    assert_eq!(within.losses(), whole.losses());
    // By the times of a cluster that has a link to the host.
    let layers = ["--set", "layers=8", "--strategy", "micro=4,schedule=gpipe"];
    let whole = train(&layers);
    let peak = whole.lines().pop().expect("a summary")["summary"]["peak_bytes"].as_u64().expect("bytes");
    let budget = format!("{}B", peak * 9 / 10);
    let cluster = ["--memory-budget", &budget, "--cluster", "h100"];
    let swapped = train(&[&layers[..], &cluster, &["--profile"]].concat());
    assert_eq!(swapped.losses(), whole.losses());
    assert!(swapped.stderr.contains("to the host's memory"), "{}", swapped.stderr);
}

#[test]
fn what_cannot_be_is_said() {
    let bench = Bench::new();
    let compile = |args: &[&str]| bench.run(&[&["compile", "model.moe", "-o", "x.plan"], &SMALL[..9], args].concat());
    compile(&["--memory-budget", "10kB"]).fails(&[
        "it does not fit: stage 0 has ",
        "of parameters, gradients and optimizer state alone",
        "more than the 9.77 KiB allowed",
        "none of these fits",
    ]);
    let refused = bench.run(&["compile", "model.moe", "-o", "x.plan", "--memory-budget", "1kB"]).stderr;
    assert_eq!(refused.matches("stage 0 has ").count(), 1, "{refused}");
    compile(&["--memory-budget", "ten"]).exits(2, &["such as 58GiB"]);
    compile(&["--memory-budget", "58"]).exits(2, &["is it 58GiB?"]);
    compile(&["--memory-budget", "device"]).exits(2, &["there is no cluster here"]);
    bench.run(&[&MEMORY[..], &["--stage", "7", "--points", "0"]].concat()).exits(2, &["there is stage 0 alone"]);
}

/// The least bytes that are said to be needed: those of a budget that the parameters fit into, and nothing else.
fn least(refused: impl Fn(&str) -> String) -> u64 {
    let alone = refused("1kB");
    let words = alone.split(" has ").nth(1).expect("how much parameters take").split(' ').take(2);
    let needed = refused(&words.collect::<Vec<_>>().join(""));
    let bytes = needed.split(" bytes) in the smallest form").next().and_then(|text| text.rsplit('(').next());
    bytes.expect("how much it needs").parse().expect("bytes")
}

/// A change that is named was tried: with it, it fits.
#[test]
fn what_would_fit_does() {
    let bench = Bench::new();
    let run = |budget: &str, strategy: &str| {
        let args = ["compile", "model.moe", "-o", "x.plan", "--batch", "16", "--strategy", strategy];
        bench.run(&[&args[..], &["--memory-budget", budget]].concat())
    };
    let least = least(|budget| run(budget, "micro=1").stderr);
    // As much as that is enough.
    run(&format!("{least}B"), "micro=1").ok();
    let budget = format!("{}B", least - 1);
    let refused = run(&budget, "micro=1");
    assert!(refused.stderr.contains("what fits: micro=2 (takes "), "{}", refused.stderr);
    run(&budget, "micro=2").ok();
}

/// Where the optimizer's state is most of what there is, the host's memory is proposed, and on a cluster only where the link to it is known.
#[test]
fn the_host_has_room_for_the_optimizer() {
    let bench = Bench::new();
    let run = |command: &[&str], budget: &str, strategy: &str| {
        // (One row: no change of micro-batches helps.)
        let args = ["--batch", "1", "--seq", "8", "--strategy", strategy, "--memory-budget", budget];
        bench.run(&[command, &args].concat())
    };
    let compile = ["compile", "model.moe", "-o", "x.plan"];
    let (here, away) = ("micro=1", "micro=1,optimizer=host");
    let [most, less] = [here, away].map(|strategy| least(|budget| run(&compile, budget, strategy).stderr));
    assert!(10 * less < 7 * most, "{less} and {most} bytes");
    let budget = format!("{}B", (less + most) / 2);
    run(&compile, &budget, here).exits(1, &["optimizer=host (takes "]);
    run(&compile, &budget, away).ok();
    let h100 = include_str!("../../examples/clusters/h100.toml");
    let silent: Vec<&str> = h100.split("\n[").filter(|table| !table.starts_with("host]")).collect();
    bench.write("silent.toml", silent.join("\n["));
    bench.write("known.toml", h100);
    let memory = |cluster| ["memory", "model.moe", "--cluster", cluster, "--points", "0"];
    run(&memory("known.toml"), &budget, here).exits(1, &["optimizer=host (takes "]);
    let refused = run(&memory("silent.toml"), &budget, here);
    assert!(!refused.stderr.contains("optimizer=host"), "{}", refused.stderr);
    // What cannot be priced there is compiled all the same.
    let strategy = "pp=2,micro=2,recompute=full,optimizer=host";
    let again = ["compile", "model.moe", "--cluster", "silent.toml", "-o", "y.plan", "--memory-budget", "1GiB"];
    bench.run(&[&again[..], &["--batch", "2", "--strategy", strategy]].concat()).ok();
}

/// Every collective has a price.
#[test]
fn ranks_of_all_kinds_are_priced() {
    let bench = Bench::new();
    for strategy in ["tp=2,ep=4,dp=2,zero=3,mbs=2", "cp=2,ep=2,mbs=2", "cp=2,cp_algo=gather,tp=2,mbs=4"] {
        let args = ["--strategy", strategy, "--batch", "8", "--points", "1", "--json"];
        let run = bench.run(&[&MEMORY[..], &args].concat()).ok();
        let report: Value = serde_json::from_str(&run.stdout).expect("an object");
        let tensors = report["stages"][0]["tensors"].as_array().expect("tensors");
        let costs: Vec<f64> = tensors.iter().filter_map(|t| t["recompute_s"].as_f64()).collect();
        assert!(!costs.is_empty() && costs.iter().all(|s| s.is_finite() && *s >= 0.0), "{strategy}: {costs:?}");
    }
}

/// On a machine that was measured both commands price a step alike: its ranks share it and its memory, and its kernels wait for nobody.
#[test]
fn memory_and_simulate_agree_on_a_measured_machine() {
    let bench = Bench::new();
    bench.write("this.toml", measured_machine());
    for (strategy, memory) in [("dp=1", 83.02), ("dp=4", 83.02 / 4.0)] {
        let args = ["model.moe", "--cluster", "this.toml", "--dtype", "f32", "--strategy", strategy];
        let told = |command: &str, more: &[&str], key: &str| {
            let run = bench.run(&[&[command], &args[..], &["--json"], more].concat()).ok();
            serde_json::from_str::<Value>(&run.stdout).expect("an object")[key].as_f64().expect("a number")
        };
        let [seconds, bytes] = ["step_time_s", "budget_bytes"];
        assert_eq!(told("memory", &["--points", "0"], seconds), told("simulate", &[], seconds), "{strategy}");
        assert!((told("simulate", &["--memory-budget", "device"], bytes) - 1e9 * memory).abs() < 1.0, "{strategy}");
        let simulated = bench.run(&[&["simulate"], &args[..]].concat()).ok().stdout;
        let room = format!("It fits: programs may use {memory:.1} GB of a device");
        assert!(simulated.contains(&room), "{strategy}: {simulated}");
    }
}

/// A drawing does not take the place of what it was made of.
#[test]
fn what_is_read_is_not_written() {
    let bench = Bench::new();
    bench.write("s.toml", "mbs = 8\n");
    let args = ["--strategy", "s.toml", "--points", "0", "--svg"];
    let model = bench.read("model.moe");
    let draw = |file: &str| bench.run(&[&MEMORY[..], &args, &[file]].concat());
    draw("model.moe").exits(2, &["--svg model.moe: this is the file of the model"]);
    draw("./s.toml").exits(2, &["--svg ./s.toml: this is the file of the strategy"]);
    assert_eq!((bench.read("model.moe"), bench.read("s.toml")), (model, "mbs = 8\n".into()));
    assert!(draw("-").ok().stdout.starts_with("<svg"));
}
