//! `forebay simulate`.

use super::{Bench, example};
use serde_json::Value;

fn simulated(bench: &Bench, args: &[&str]) -> Value {
    let fixed = ["simulate", "model.moe", "--cluster", "h100", "--json"];
    let run = bench.run(&[&fixed[..], args].concat()).ok();
    serde_json::from_str(&run.stdout).expect("an object")
}

/// Seconds of a step.
pub(super) fn step(bench: &Bench, args: &[&str]) -> f64 {
    let told: Value = serde_json::from_str(&bench.run(&[args, &["--json"]].concat()).ok().stdout).expect("an object");
    told["step_time_s"].as_f64().expect("seconds")
}

#[test]
fn a_step_has_a_time_and_a_memory() {
    let bench = Bench::new();
    let report = simulated(&bench, &["--strategy", "tp=2,ep=4,pp=2,zero=1,mbs=1,micro=4", "--devices", "16"]);
    let number = |key: &str| report[key].as_f64().unwrap_or_else(|| panic!("{key} is a number"));
    assert_eq!(number("host_syncs"), 1.0);
    // A report says of what it is.
    let simulated = |key: &str| report["simulated"][key].as_str().map(str::to_string);
    assert!(simulated("strategy").is_some_and(|s| s.contains("pp=2") && s.contains("mbs=1")), "{report}");
    assert_eq!(simulated("device").as_deref(), Some("H100 SXM 80 GB"));
    assert_eq!(
        (simulated("precision").as_deref(), report["simulated"]["micro_batches"].as_u64()),
        (Some("bf16"), Some(4))
    );
    assert!(number("step_time_s") > 0.0 && number("tokens_per_s_per_device") > 0.0);
    for share in ["mfu", "hfu", "bubble_fraction", "host_bound_fraction"] {
        assert!((0.0..1.0).contains(&number(share)), "{share}");
    }
    for kind in ["ep", "tp", "cp", "pp", "dp"] {
        let of = |key: &str| report[key][kind].as_f64().expect("seconds");
        assert!(of("exposed_comm_s") >= 0.0 && of("total_comm_s") >= 0.0);
    }
    let stages = report["memory_bytes"].as_array().expect("stages");
    assert_eq!(stages.len(), 2);
    for key in ["stage", "weights", "gradients", "optimizer", "activations", "buffers", "peak"] {
        assert!(stages[1][key].is_number(), "{key}");
    }
    assert_eq!(report["costs"].as_array().map(Vec::len), Some(5));
    // One quantity has one value: what a kind takes in all, and of communication no more is exposed than there is.
    let named = |key: &str, name: &str, value: &str| {
        report[key].as_array().unwrap().iter().find(|p| p["what"] == name).and_then(|p| p[value].as_f64())
    };
    let kinds: Vec<(String, f64)> = serde_json::from_value(report["by_kind"].clone()).expect("kinds");
    let of_kind = |kind: &str| kinds.iter().find(|k| k.0 == kind).expect("a kind").1;
    for (kind, name) in [("products", "matrix products"), ("vector", "norms, activations, sorting")] {
        let shown = named("time_s", name, "seconds").unwrap();
        // What the vector unit does beside the cube takes no time of a step.
        let all = if kind == "vector" {
            shown <= of_kind(kind) * (1.0 + 1e-9)
        } else {
            (of_kind(kind) / shown - 1.0).abs() < 1e-9
        };
        assert!(all, "{name}");
        assert!(named("costs", name, "seconds").is_none_or(|s| (s / of_kind(kind) - 1.0).abs() < 1e-9), "{name}");
    }
    for kind in ["ep", "tp", "cp", "pp", "dp"] {
        let of = |key: &str| report[key][kind].as_f64().expect("seconds");
        assert!(of("exposed_comm_s") <= of("total_comm_s") * (1.0 + 1e-9), "{kind}");
        assert!(of("exposed_comm_bytes") <= of("total_comm_bytes") * (1.0 + 1e-9), "{kind}");
    }
    let table = bench.run(&["simulate", "model.moe", "--cluster", "atlas-800t-a2", "--strategy", "mbs=8"]).ok();
    assert!(table.stdout.contains("It fits") && table.stdout.contains("costs most"), "{}", table.stdout);
    let stages =
        |strategy| bench.run(&["simulate", "model.moe", "--cluster", "h100", "--strategy", strategy]).ok().stdout;
    assert!(!stages("mbs=8").contains("on host") && stages("mbs=8,optimizer=host").contains("on host"));
    assert!(stages("pp=2").contains("one micro-batch hardly fills 2 stages"), "{}", stages("pp=2"));
    assert!(!stages("pp=2,mbs=1").contains("hardly"), "{}", stages("pp=2,mbs=1"));
}

/// What is sent once for several experts comes at most once, however uneven the choice is: such a step runs, and exchanges grow by less than rows of experts do.
#[test]
fn tokens_that_are_sent_once_come_once() {
    let bench = Bench::new();
    let tiny = example("tiny-moe");
    let tiny = tiny.to_str().expect("a name in UTF-8");
    let bytes = |dispatch: &str, load: &str| {
        let strategy = format!("tp=4,ep=4,micro=8,mbs=1,dispatch={dispatch}");
        let args = ["simulate", tiny, "--batch", "8", "--seq", "256", "--cluster", "h100", "--strategy", &strategy];
        let run = bench.run(&[&args[..], &["--tokens-per-expert", load, "--json"]].concat()).ok();
        let report: Value = serde_json::from_str(&run.stdout).expect("an object");
        report["total_comm_bytes"]["ep"].as_f64().expect("bytes")
    };
    // Both experts that all tokens choose are on one rank, where each token brings two rows.
    bench.write("load.txt", "900 900 0 0 0 0 0 0\n");
    let grows = |dispatch: &str| bytes(dispatch, "load.txt") / bytes(dispatch, "zipf=0");
    let (once, each) = (grows("rank-dedup"), grows("flat"));
    // Room that is given is room for rows of experts, not for what is sent once.
    bytes("rank-dedup,max_tokens_per_rank=512", "load.txt");
    assert!(once > 1.0 && once < 0.9 * each, "{once} {each}");
}

/// Our own plan by its name is our own plan, and what a system fills up does not depend on how tokens fall.
#[test]
fn systems_are_as_their_profiles_say() {
    let bench = Bench::new();
    for zero in ["zero=2", "zero=3"] {
        let strategy = format!("ep=4,dp=4,mbs=2,{zero}");
        let [unnamed, plan] = [&[][..], &["--framework", "plan"]].map(|args| {
            simulated(&bench, &[&["--strategy", &strategy], args].concat())["step_time_s"].as_f64().expect("seconds")
        });
        assert_eq!(plan, unnamed, "{zero}");
    }
    let with = |framework: &str, load: &str| {
        let strategy = ["--strategy", "ep=4,dp=4,mbs=2", "--framework", framework, "--tokens-per-expert", load];
        simulated(&bench, &strategy)["total_comm_s"]["ep"].as_f64().expect("seconds")
    };
    assert_eq!(with("nemo-mixtures", "zipf=1"), with("nemo-mixtures", "zipf=0"));
    let told = bench.run(
        &[
            &["simulate", "model.moe", "--cluster", "h100", "--framework", "nemo-mixtures"][..],
            &["--strategy", "ep=4,dp=4,mbs=2", "--tokens-per-expert", "zipf=1"],
        ]
        .concat(),
    );
    let told = told.ok().stdout;
    for part in
        ["experts compute 1.00 times the mean of their rows, used or not", "room for the rows of an even routing"]
    {
        assert!(told.contains(part), "`{part}` is not in:\n{told}");
    }
    assert!(!told.contains("fall on experts evenly"), "{told}");
    assert!(with("megatron-core", "zipf=1") > with("megatron-core", "zipf=0"));
}

#[test]
fn uneven_experts_exchange_for_longer() {
    let bench = Bench::new();
    let strategy = ["--strategy", "ep=4,dp=4,mbs=2"];
    let exchange = |args: &[&str]| {
        let report = simulated(&bench, &[&strategy[..], args].concat());
        report["total_comm_s"]["ep"].as_f64().expect("seconds")
    };
    bench.write("load.txt", "900 10 10 10 10 10 10 10\n");
    let even = exchange(&[]);
    assert!(exchange(&["--tokens-per-expert", "zipf=1.1"]) > even);
    assert!(exchange(&["--tokens-per-expert", "load.txt"]) > exchange(&["--tokens-per-expert", "zipf=1.1"]));
    bench.write("short.txt", "1 2\n");
    let simulate = |load: &str| {
        bench.run(&[
            "simulate",
            "model.moe",
            "--cluster",
            "h100",
            "--strategy",
            "ep=4,dp=4,mbs=2",
            "--tokens-per-expert",
            load,
        ])
    };
    simulate("short.txt").fails(&["2 numbers", "8 experts", "short.txt:1:3", "help: the file has a number for each"]);
    bench.write("long.txt", "1 1 1 1\n1 1 1 1\n7 1\n");
    simulate("long.txt").fails(&["10 numbers", "long.txt:3:1"]);
    bench.write("words.txt", "many few\n");
    simulate("words.txt").fails(&["not `many`", "words.txt:1:1", "help: "]);
    bench.write("marked.txt", "\u{feff}900, 10, 10, 10, 10, 10, 10, 10\r\n");
    simulate("marked.txt").ok();
    bench.write("marked.txt", "\u{feff}900 x\n");
    simulate("marked.txt").fails(&["marked.txt:1:5"]);
    // Experts that choose are as busy as each other.
    let choosing = example("expert-choice");
    let choosing = choosing.to_str().expect("a name in UTF-8");
    let zipf = ["simulate", choosing, "--cluster", "h100", "--tokens-per-expert", "zipf=1.1"];
    bench.run(&zipf).fails(&["experts that choose their tokens have an even one"]);
    simulate("nowhere.txt").fails(&["cannot read `nowhere.txt`"]);
}

#[test]
fn cluster_files_are_diagnosed() {
    let bench = Bench::new();
    let with = |cluster: &str| bench.run(&["simulate", "model.moe", "--cluster", cluster, "--strategy", "mbs=8"]);
    with("nowhere").fails(&["no cluster file `nowhere`", "built in are"]);
    let right = include_str!("../../examples/clusters/h100.toml");
    bench.write("c.toml", right);
    with("c.toml").ok();
    bench.write("c.toml", right.replace("memory_gb = ", "memory_gb = -"));
    with("c.toml").fails(&["above 0", "c.toml:9", "memory_gb = -85.02"]);
    bench.write("c.toml", right.replace("cores", "coers"));
    with("c.toml").fails(&["unknown field `coers`", "c.toml:"]);
    bench.write("c.toml", "");
    with("c.toml").fails(&["missing field"]);
    let devices = ["simulate", "model.moe", "--cluster", "h100", "--strategy", "tp=2,dp=2", "--devices", "5"];
    bench.run(&devices).fails(&["makes 4 ranks", "5 devices"]);
    // A last tier may end somewhere.
    bench.write("c.toml", &right[..right.rfind("[[tier]]").expect("two tiers")]);
    let ranks = |ranks: &str| bench.run(&["simulate", "model.moe", "--cluster", "c.toml", "--strategy", ranks]);
    ranks("dp=8,mbs=1").ok();
    ranks("dp=16,mbs=1").fails(&["16 ranks", "ends with 8 devices, of tier `node`"]);
}

/// What a framework's allocator would reserve, where that is a little more than programs may use, or nearly as much: it fits, and says that it is short.
#[test]
fn an_allocator_that_is_short_of_memory_is_told_of() {
    let bench = Bench::new();
    let sizes = ["--set", "d=1024", "seq=1024", "heads=16", "f=1024"];
    let on = [&["--strategy", "tp=4,mbs=64", "--batch", "64", "--framework", "nanotron"], &sizes[..]].concat();
    let wanted = simulated(&bench, &on)["memory_bytes"][0]["peak"].as_f64().expect("bytes") / 1e9;
    let file = include_str!("../../examples/clusters/h100.toml");
    let note = |gb: f64| {
        let of = |line: &str| match line.split(' ').next() {
            Some("memory_gb") => format!("memory_gb = {:.9}\n", gb + 2.0),
            _ => format!("{line}\n"),
        };
        bench.write("this.toml", file.lines().map(of).collect::<String>());
        let told = bench.run(&[&["simulate", "model.moe", "--cluster", "this.toml"], &on[..]].concat()).ok().stdout;
        let notes = ["would reserve ", "stops the device for each micro-batch to get memory back, 1.1 s"];
        let [reserves, stops] = notes.map(|note| told.contains(&format!("note: the allocator of nanotron {note}")));
        (told.contains("It fits"), reserves, stops)
    };
    let told = [1.2, 1.01, 0.98, 0.5].map(|part| note(part * wanted));
    let [free, crowded] = [(true, false, false), (true, true, true)];
    assert_eq!(told, [free, crowded, crowded, (false, false, true)]);
}

#[test]
fn what_cannot_be_meant_is_said() {
    let bench = Bench::new();
    let with = |args: &[&str]| bench.run(&[&["simulate", "model.moe", "--cluster"], args].concat());
    // Names of devices are known in upper and lower case.
    with(&["H100", "--strategy", "mbs=8"]).ok();
    with(&["ascend 910b3", "--strategy", "mbs=8"]).ok();
    let note = with(&["a100-80g", "--strategy", "mbs=8", "--precision", "fp8"]).ok().stdout;
    assert!(note.contains("note: A100 SXM 80 GB has no fp8 products"), "{note}");
    let few = "max_tokens_per_rank leaves room for 64 rows";
    with(&["h100", "--strategy", "ep=4,dp=4,mbs=2,max_tokens_per_rank=64"]).fails(&[few, "such a step cannot run"]);
    let estimate =
        ["mi300x", "h100"].map(|name| with(&[name, "--strategy", "mbs=8"]).ok().stdout.contains("is an estimate"));
    assert_eq!(estimate, [true, false]);
    let note = with(&["h100", "--strategy", "mbs=8", "--dtype", "f64"]).ok().stdout;
    assert!(note.contains("note: cluster files have no rate of f64"), "{note}");
    let bounded = ["--strategy", "ep=4,dp=4,mbs=2,max_tokens_per_rank=64"];
    let compile = ["compile", "model.moe", "-o", "a.plan"];
    let memory = ["memory", "model.moe", "--cluster", "h100", "--points", "0"];
    for command in [&compile[..], &memory] {
        let stderr = bench.run(&[command, &bounded].concat()).ok().stderr;
        assert!(stderr.contains(few), "{stderr}");
    }
    // A degree that is written is not another one.
    with(&["h100", "--strategy", "dp=1,mbs=8", "--devices", "16"]).fails(&["makes 1 rank ", "16 devices", "dp = 16"]);
    with(&["h100", "--strategy", "mbs=1", "--devices", "8"]).ok();
    with(&["h100", "--strategy", "mbs=8", "--framework", "x"])
        .exits(2, &["there are eager, hai-llm, llm-foundry, maxtext, megatron-2022, "]);
    bench.write("load.txt", "1e308 1e308 1 1 1 1 1 1\n");
    with(&["h100", "--strategy", "ep=4,dp=4,mbs=2", "--tokens-per-expert", "load.txt"]).fails(&["too many"]);
    let one = ["h100", "--strategy", "mbs=8", "--trace", "x.json", "--html", "./x.json"];
    with(&one).exits(2, &["--html ./x.json: this is the file of --trace"]);
    with(&["h100", "--strategy", "mbs=8", "--html", "model.moe"]).exits(2, &["this is the file of the model"]);
    // Nor is a strategy or its schedule written over, and what stdout is for is one thing.
    bench.write("f/s.toml", "mbs = 8\nschedule = \"order.json\"\n");
    for option in ["--html", "--trace", "-o"] {
        let over = |strategy: &str, file: &str| with(&["h100", "--strategy", strategy, option, file]);
        over("f/s.toml", "f/./s.toml").exits(2, &["f/./s.toml: this is the file of the strategy"]);
        over("f/s.toml", "f/order.json").exits(2, &["f/order.json: this is the file of the schedule"]);
        over("mbs=8,schedule=order.json", "order.json").exits(2, &["this is the file of the schedule"]);
    }
    let strategy = ["h100", "--strategy", "mbs=8"];
    with(&[&strategy[..], &["--html", "-", "--trace", "-"]].concat())
        .exits(2, &["--html -: this is the file of --trace"]);
    for (option, begin) in [("--html", "<!"), ("--trace", "{")] {
        let run = with(&[&strategy[..], &[option, "-"]].concat()).ok();
        assert!(run.stdout.starts_with(begin) && !run.stdout.contains("costs most  "), "{}", run.stdout);
        assert!(!run.stderr.contains("browser") && !bench.path("-").exists(), "{}", run.stderr);
    }
}

/// Another system has its own ways to hide communication; passes of ours are no part of them, paired programs least of all.
#[test]
fn a_framework_has_none_of_our_overlap_passes() {
    let bench = Bench::new();
    let with = |passes: &str, framework: &[&str]| {
        let strategy = format!("dp=2,pp=2,vpp=2,micro=4,zero=1,schedule=vpp-overlap,overlap={passes}");
        let args = ["simulate", "model.moe", "--cluster", "h100", "--strategy", &strategy, "--json"];
        let told: Value = serde_json::from_str(&bench.run(&[&args[..], framework].concat()).ok().stdout).expect("JSON");
        told
    };
    let megatron = ["--framework", "megatron-core"];
    let (all, none) = (with("all", &megatron), with("none", &megatron));
    assert_eq!(all["step_time_s"], none["step_time_s"]);
    assert_eq!(all["exposed_comm_s"], none["exposed_comm_s"]);
    assert_ne!(with("all", &[])["step_time_s"], with("none", &[])["step_time_s"], "the passes do something");
    assert!(all["notes"].to_string().contains("our overlap passes are off"), "{all}");
    // What it keeps is its own too, and is said where that is not what the strategy says.
    let kept = with("none,keep=inputs", &megatron);
    assert_eq!(kept["step_time_s"], none["step_time_s"]);
    let notes = [&none, &kept].map(|told| told["notes"].to_string().contains("made with keep=inputs"));
    assert_eq!(notes, [true, false]);
}

/// Other systems gather parameters a layer ahead, keep them whole beneath pipelines where they do, and allocate the rows that come to their experts; their names are known in any case.
#[test]
fn a_framework_shares_as_it_does() {
    let bench = Bench::new();
    let with = |strategy: &str, framework: &str| -> Value {
        let args =
            ["simulate", "model.moe", "--cluster", "h100", "--strategy", strategy, "--framework", framework, "--json"];
        serde_json::from_str(&bench.run(&args).ok().stdout).expect("JSON")
    };
    let notes = |told: &Value| told["notes"].to_string();
    let strategy = |told: &Value| told["simulated"]["strategy"].as_str().expect("a strategy").to_string();
    let whole = with("pp=2,dp=2,micro=4,zero=3", "TorchTitan-Compile");
    assert!(strategy(&whole).contains("zero=1") && notes(&whole).contains("zero=3 is zero=1 there"), "{whole}");
    let steps = ["1", "2", "3"].map(|zero| with(&format!("pp=2,dp=2,micro=4,zero={zero}"), "torchtitan-compile"));
    assert!(steps[1]["step_time_s"] == steps[2]["step_time_s"], "{steps:?}");
    let gathered = with("dp=2,micro=4,zero=3", "torchtitan-compile");
    assert!(strategy(&gathered).contains("zero=3") && !notes(&gathered).contains("zero=1"), "{gathered}");
    // What is gathered ahead is not all waited for.
    let ahead = with("dp=8,micro=1,zero=3", "megatron-core");
    let dp = |key: &str| ahead[key]["dp"].as_f64().expect("seconds");
    assert!(dp("exposed_comm_s") < 0.9 * dp("total_comm_s"), "{ahead}");
    assert!(notes(&ahead).contains("taken to gather parameters a layer ahead"), "{ahead}");
    // A rank has room for what comes, which a bound that is given is not overruled by.
    let experts = with("dp=4,ep=4,micro=1", "megatron-core");
    assert!(notes(&experts).contains("allocates what comes to a rank's experts: max_tokens_per_rank="), "{experts}");
    let given = with("dp=4,ep=4,micro=1,max_tokens_per_rank=100000", "megatron-core");
    assert!(strategy(&given).contains("max_tokens_per_rank=100000") && !notes(&given).contains("allocates"), "{given}");
    // A budget is for what comes, and not for the worst case.
    let needs = |strategy: &str, more: &[&str]| -> f64 {
        let args = ["simulate", "model.moe", "--cluster", "h100", "--json", "--strategy", strategy];
        let told: Value = serde_json::from_str(&bench.run(&[&args[..], more].concat()).ok().stdout).expect("JSON");
        told["memory_bytes"][0]["peak"].as_f64().expect("bytes")
    };
    let megatron = ["--framework", "megatron-core"];
    let comes = needs("dp=4,ep=4,micro=1", &megatron);
    let worst = needs("dp=4,ep=4,micro=1,max_tokens_per_rank=100000", &megatron);
    assert!(comes < worst, "{comes} of {worst}");
    // What is written is run with any routing.
    let args = ["simulate", "model.moe", "--cluster", "h100", "--strategy", "dp=4,ep=4,micro=1", "-o", "written.plan"];
    bench.run(&[&args[..], &megatron].concat()).ok();
    bench.run(&["run", "written.plan", "--data", "text.txt", "--steps", "2"]).ok();
}

/// `all` has the passes that are of use: orders for two units are slower where there is one.
#[test]
fn passes_are_those_of_the_device() {
    let bench = Bench::new();
    let with_passes = |cluster: &str, passes: &str| {
        let strategy = format!("dp=2,tp=2,pp=2,micro=4,overlap={passes}");
        step(&bench, &["simulate", "model.moe", "--cluster", cluster, "--strategy", &strategy])
    };
    let (with, without) =
        ("vector/within/across/borders/units/early/capture", "within/across/borders/units/early/capture");
    for (cluster, same, other) in [("h100", without, with), ("atlas-800t-a2", with, without)] {
        let [all, same, other] = ["all", same, other].map(|passes| with_passes(cluster, passes));
        assert_eq!(all, same, "{cluster}");
        assert_ne!(all, other, "{cluster}: the pass does something");
    }
}

/// What is made again is made while gradients are waited for where that is faster, and never where it is slower.
#[test]
fn what_is_made_again_early_pays() {
    let bench = Bench::new();
    let model = concat!(env!("CARGO_MANIFEST_DIR"), "/examples/models/llama-3-70b.moe");
    let with_passes = |strategy: &str, passes: &str| {
        let strategy = format!("{strategy},mbs=1,recompute=full,overlap={passes}");
        let sizes =
            ["--devices", "4", "--batch", "4", "--seq", "2048", "--set", "layers=8", "--memory-budget", "500GiB"];
        step(&bench, &[&["simulate", model, "--cluster", "h100", "--strategy", &strategy][..], &sizes].concat())
    };
    for (strategy, pays) in [("pp=4", true), ("pp=2,vpp=2,tp=2", false), ("pp=4,zero=1", true)] {
        let early = with_passes(strategy, "all");
        let late = with_passes(strategy, "within/across/borders/units/capture");
        assert!(early <= late, "{strategy}: {early} s, {late} s without");
        assert!(!pays || early < 0.97 * late, "{strategy}: {early} s, {late} s without");
    }
}

/// Where layers are left open, each published order is tried with those that are best for it alone.
#[test]
fn a_search_knows_the_layers_of_published_orders() {
    let bench = Bench::new();
    // `…, stages=2/2/2/2: by the time of each layer alone, passes take 4.679 ms; …`
    let passes = |schedule: &str| {
        let strategy = format!("pp=2,vpp=2,micro=4,stages=auto,schedule={schedule}");
        let args = ["simulate", "model.moe", "--cluster", "h100", "--batch", "24", "--strategy", &strategy];
        let told = bench.run(&[&args[..], &["--set", "layers=8", "d=64"]].concat()).ok().stderr;
        let (_, time) = told.split_once("passes take ").expect("what was found is said");
        let (number, _) = time.split_once(" ms").expect("milliseconds");
        number.parse::<f64>().expect("a number")
    };
    let (searched, named) = (passes("search,nodes=2000"), passes("dualpipev"));
    assert!(searched <= named, "{searched} ms, {named} ms with dualpipev");
}

/// What `pieces=auto` finds is no slower than any number of them.
#[test]
fn pieces_are_as_many_as_is_fastest() {
    let bench = Bench::new();
    let model = concat!(env!("CARGO_MANIFEST_DIR"), "/examples/models/qwen3-30b-a3b.moe");
    for cluster in ["h100", "atlas-800t-a2"] {
        let in_pieces = |pieces: &str| {
            let strategy = format!("dp=8,ep=8,mbs=1,micro=2,zero=1,pieces={pieces}");
            let sizes = ["--seq", "4096", "--batch", "16", "--set", "layers=6"];
            step(&bench, &[&["simulate", model, "--cluster", cluster, "--strategy", &strategy][..], &sizes].concat())
        };
        let [auto, one, two, four] = ["auto", "1", "2", "4"].map(in_pieces);
        let best = one.min(two).min(four);
        assert!(auto <= 1.005 * best, "{cluster}: {auto} s, with 1, 2, 4 pieces {one}, {two}, {four} s");
    }
}

/// Recipes of another system cut products of dense models up, so that tensor parallelism is hidden in part; those of mixtures do not.
#[test]
fn recipes_for_dense_models_hide_tensor_parallelism() {
    let bench = Bench::new();
    let hidden = |model: &str, sizes: &[&str]| {
        let fixed =
            ["simulate", model, "--cluster", "h100", "--strategy", "tp=2", "--framework", "megatron-core", "--json"];
        let run = bench.run(&[&fixed[..], sizes].concat()).ok();
        let told: Value = serde_json::from_str(&run.stdout).expect("an object");
        let of = |key: &str| told[key]["tp"].as_f64().expect("seconds");
        1.0 - of("exposed_comm_s") / of("total_comm_s")
    };
    let dense = example("llama-3-70b");
    let dense = hidden(dense.to_str().expect("a path"), &["--set", "layers=1", "--batch", "1", "--seq", "1024"]);
    // (What has no work in its program to hide behind is not hidden.)
    assert!((dense - 0.75).abs() < 0.02, "{dense}");
    let mixture = hidden("bench-tiny", &[]);
    assert!(mixture.abs() < 0.01, "{mixture}");
}

/// One slow device makes the step longer for all, and is told of; a stage that is not there is refused.
#[test]
fn a_straggler_is_waited_for() {
    let bench = Bench::new();
    let model = ["simulate", "bench-tiny", "--cluster", "h100", "--strategy", "pp=2,micro=4"];
    let alike = step(&bench, &model);
    let told = |slow: &str| -> Value {
        let run = bench.run(&[&model[..], &["--straggler", slow, "--json"]].concat()).ok();
        serde_json::from_str(&run.stdout).expect("an object")
    };
    let slow = told("2");
    assert!(slow["step_time_s"].as_f64().unwrap() > 1.2 * alike);
    let notes: Vec<&str> = slow["notes"].as_array().unwrap().iter().map(|n| n.as_str().unwrap()).collect();
    assert!(notes.iter().any(|n| n.starts_with("one device of stage ") && n.contains("since all wait")), "{notes:?}");
    assert!((told("1")["step_time_s"].as_f64().unwrap() / alike - 1.0).abs() < 1e-9);
    let named = told("1.5@1");
    assert_eq!(
        (&named["simulated"]["straggler"]["stage"], &named["simulated"]["straggler"]["factor"]),
        (&1.into(), &1.5.into())
    );
    bench.run(&[&model[..], &["--straggler", "2@2"]].concat()).fails(&["the last stage is 1", "counted from 0"]);
}

/// Kernels of a device that is new are faster in a later release, and it is told of which they are; those of others are as fast in all.
#[test]
fn releases_make_kernels_faster() {
    let bench = Bench::new();
    let told = |cluster: &str, release: &[&str]| -> (f64, String) {
        let model = ["simulate", "bench-small", "--cluster", cluster, "--batch", "8", "--seq", "256", "--json"];
        let run = bench.run(&[&model[..], release].concat()).ok();
        let report: Value = serde_json::from_str(&run.stdout).expect("an object");
        (report["step_time_s"].as_f64().unwrap(), report["notes"].to_string())
    };
    let (file, of_file) = told("gb200-nvl72", &[]);
    let (same, _) = told("gb200-nvl72", &["--release", "26.02"]);
    let (later, of_later) = told("gb200-nvl72", &["--release", "27.02"]);
    assert_eq!(file, same);
    // A tenth a year, of what kernels do beside starting.
    assert!((0.9..0.98).contains(&(later / file)), "{}", later / file);
    assert!(of_file.contains("software of 26.02") && of_later.contains("software of 27.02"), "{of_later}");
    let (h100, _) = told("h100", &[]);
    let (other, none) = told("h100", &["--release", "27.02"]);
    assert_eq!(h100, other);
    assert!(none.contains("--release changes nothing"), "{none}");
    bench.run(&["simulate", "bench-small", "--cluster", "h100", "--release", "2027"]).exits(2, &["a year and a month"]);
}

/// A vocabulary whose rows wide loads cannot read is said to be one, on a device of which it is known what that costs.
#[test]
fn an_odd_vocabulary_is_noted() {
    let bench = Bench::new();
    let told = |vocab: &str, cluster: &str| {
        bench.run(&["simulate", "model.moe", "--set", vocab, "--cluster", cluster, "--batch", "8"]).ok().stdout
    };
    let note = "rows of 257 elements (on a rank) do not begin at multiples of 16 bytes: products of them take up to 5.8 times as long on H100 SXM 80 GB; with 264 they would not";
    assert!(told("vocab=257", "h100").contains(note), "{}", told("vocab=257", "h100"));
    assert!(!told("vocab=264", "h100").contains("do not begin"));
    assert!(!told("vocab=257", "a100-80g").contains("do not begin"));
}

/// Attention within documents takes the less time the shorter they are; a model whose attention sees whole rows has none.
#[test]
fn documents_have_a_length() {
    let bench = Bench::new();
    let packed = example("packed-docs");
    let fixed =
        ["simulate", packed.to_str().expect("a path"), "--cluster", "h100", "--seq", "8192", "--set", "window=0"];
    let of = |more: &[&str]| bench.run(&[&fixed[..], more].concat()).ok().stdout;
    let steps =
        ["512", "4096", "8192"].map(|tokens| step(&bench, &[&fixed[..], &["--document-tokens", tokens]].concat()));
    assert!(steps[0] < steps[1] && steps[1] < steps[2] && steps[2] == step(&bench, &fixed), "{steps:?}");
    assert!(of(&[]).contains("note: attention within documents is priced as if each filled a row"));
    assert!(of(&["--document-tokens", "512"]).contains("attention is within documents of 512 tokens in the mean"));
    let other = of(&["--document-tokens", "512", "--framework", "megatron-deepspeed"]);
    assert!(other.contains("megatron-deepspeed writes all scores of a row to memory"), "{other}");
    // What is written is what runs, whatever the data.
    let written = |more: &[&str]| bench.run(&[&fixed[..], &["-o", "a.plan"], more].concat()).ok();
    let bytes = |more: &[&str]| {
        written(more);
        std::fs::read(bench.path("a.plan")).expect("it was written")
    };
    assert_eq!(bytes(&[]), bytes(&["--document-tokens", "512"]));
    let run = bench.run(&["simulate", "model.moe", "--cluster", "h100", "--document-tokens", "64"]);
    run.fails(&["no causal attention of this model stays within documents", "doc = documents"]);
}
