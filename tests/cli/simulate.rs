//! `forebay simulate` and `forebay validate`.

use super::{Bench, example};
use serde_json::Value;

fn simulated(bench: &Bench, args: &[&str]) -> Value {
    let fixed = ["simulate", "model.moe", "--cluster", "h100", "--json"];
    let run = bench.run(&[&fixed[..], args].concat()).ok();
    serde_json::from_str(&run.stdout).expect("an object")
}

/// Seconds of a step.
fn step(bench: &Bench, args: &[&str]) -> f64 {
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

const RUNS: &str = "\
id,layers,hidden,ffn_hidden,heads,vocab,seq_len,device,n_devices,tp,pp,dp,mbs,gbs,step_time_s
ours-1,2,256,1024,4,1024,256,H100,2,2,1,1,2,8,0.01
ours-2,2,256,1024,4,1024,256,Abacus,2,2,1,1,2,8,0.01
ours-3,2,256,1024,4,1024,256,H100,2,2,1,1,3,8,0.01
ours-4,2,256,1024,four,1024,256,H100,2,2,1,1,2,8,0.01
";

#[test]
fn runs_are_compared_and_skips_are_named() {
    let bench = Bench::new();
    bench.write("runs.csv", RUNS);
    let run = bench.run(&["validate", "runs.csv", "--json"]).ok();
    let summary: Value = serde_json::from_str(&run.stdout).expect("an object");
    let rows = summary["rows"].as_array().expect("rows");
    assert_eq!(rows.len(), 1);
    let (measured, predicted) = (rows[0]["measured_s"].as_f64().unwrap(), rows[0]["predicted_s"].as_f64().unwrap());
    assert!((rows[0]["error"].as_f64().unwrap() - (predicted / measured - 1.0)).abs() < 1e-12);
    assert_eq!(rows[0]["system"], "ours");
    assert!(summary["by_system"]["ours"]["median_abs_error"].is_number());
    let whys: Vec<&str> = summary["skipped"].as_array().unwrap().iter().map(|s| s["why"].as_str().unwrap()).collect();
    assert_eq!(whys.len(), 3);
    assert!(
        whys[0].contains("`Abacus`") && whys[1].contains("micro-batches") && whys[2].contains("not `four`"),
        "{whys:?}"
    );
    let table = bench.run(&["validate", "runs.csv"]).ok().stdout;
    assert!(table.contains("3 skipped") && table.contains("taken for blanks:"), "{table}");
    assert!(table.contains("cp = 1 (1 run)") && table.contains("recompute = none (1 run)"), "{table}");
    assert!(table.contains("predicted as: eager (ours); `eager` is for systems that"), "{table}");
    // Nothing but runs that did not fit has no errors of times, and pairs of unknown runs have no gains.
    bench.write("pairs.csv", "technique,before,after\nt,ours-1,ours-9\n");
    let table = bench.run(&["validate", "runs.csv", "--pairs", "pairs.csv"]).ok().stdout;
    assert!(table.contains("no pair has predictions of both its runs\n  t: `ours-9`"), "{table}");
    bench.write("runs.csv", RUNS.replace(",0.01", ",OOM"));
    let table = bench.run(&["validate", "runs.csv"]).ok().stdout;
    assert!(table.starts_with("no run has a measured time: 1 ran out of memory, 0 of them"), "{table}");
    let parts = rows[0]["report"]["time_s"].as_array().expect("parts");
    let sum: f64 = parts.iter().map(|p| p["seconds"].as_f64().unwrap()).sum();
    assert!((sum / predicted - 1.0).abs() < 1e-9, "{sum} of {predicted}");
}

/// Words and numbers that mean nothing are named, not taken for something else.
#[test]
fn rows_that_mean_nothing_are_skipped_with_the_reason() {
    let bench = Bench::new();
    let head = "id,layers,hidden,ffn_hidden,heads,kv_heads,vocab,seq_len,device,devices_per_node,n_devices,tp,pp,dp,mbs,gbs,precision,recompute,step_time_s,colour,source";
    let row = |changes: &[(&str, &str)]| {
        let right = "a,2,256,1024,4,4,1024,256,H100,8,2,2,1,1,2,8,bf16,none,0.01,red,Forebay";
        let mut fields: Vec<&str> = right.split(',').collect();
        for (column, value) in changes {
            fields[head.split(',').position(|c| c == *column).expect("a column")] = value;
        }
        fields.join(",")
    };
    let rows = [
        row(&[]),
        row(&[("id", "b"), ("precision", "bf17")]),
        row(&[("id", "c"), ("recompute", "sometimes")]),
        row(&[("id", "d"), ("kv_heads", "3")]),
        row(&[("id", "e"), ("kv_heads", "0")]),
        row(&[("id", "f"), ("pp", "0")]),
        row(&[]),
        row(&[("id", "g"), ("devices_per_node", "1")]),
    ];
    bench.write("runs.csv", format!("{head}\n{}\n", rows.join("\n")));
    let run = bench.run(&["validate", "runs.csv", "--json"]).ok();
    assert!(run.stderr.contains("not used: colour"), "{}", run.stderr);
    let summary: Value = serde_json::from_str(&run.stdout).expect("an object");
    assert_eq!(summary["unknown_columns"][0], "colour");
    let why = |id: &str, part: &str| {
        let skipped = summary["skipped"].as_array().expect("skipped");
        assert!(
            skipped.iter().any(|s| s["id"] == id && s["why"].as_str().unwrap().contains(part)),
            "{id}: `{part}` is not in {skipped:?}"
        );
    };
    why("b", "not `bf17`");
    why("c", "not `sometimes`");
    why("d", "does not divide its 4 `heads`");
    why("e", "`kv_heads` is at least 1");
    why("f", "`pp` is at least 1");
    why("a", "in line 2 too");
    // Ranks of one tensor that are not in one node are joined by the slower tier.
    let rows = summary["rows"].as_array().expect("rows");
    assert!(rows[1]["predicted_s"].as_f64() > rows[0]["predicted_s"].as_f64(), "{rows:?}");
    bench.write("runs.csv", RUNS.replace(',', ";"));
    bench.run(&["validate", "runs.csv"]).fails(&["separated by semicolons"]);
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

#[test]
fn tables_that_cannot_be_read_say_why() {
    let bench = Bench::new();
    let with = |text: &str| {
        bench.write("runs.csv", text);
        bench.run(&["validate", "runs.csv"])
    };
    with("").fails(&["empty"]);
    with("id,layers\na,2\n").fails(&["columns are missing: hidden, heads"]);
    with(RUNS.lines().next().unwrap()).fails(&["has no runs"]);
    with(&RUNS.lines().take(1).chain(RUNS.lines().skip(4)).collect::<Vec<_>>().join("\n"))
        .fails(&["line 2", "not `four`"]);
    with(&RUNS.replace(",step_time_s", ",speed")).fails(&["nothing measured"]);
    bench.run(&["validate", "nowhere.csv"]).fails(&["cannot read `nowhere.csv`"]);
}

/// What a calibration would say of a machine of two cores.
const MEASURED: &str = "[measured]\ncores = 2\n\
    [[measured.product]]\nthreads = 1\ntype = \"f32\"\nm = 256\nn = 256\nk = 256\ngflops = 50\n\
    [[measured.attention]]\nthreads = 1\nbackward = false\nqueries = 256\nhead = 32\ngflops = 20\n\
    [[measured.vector]]\nthreads = 1\nbytes = 1e6\nintensity = 0.1\ngbps = 10\n\
    [[measured.sharing]]\nranks = 4\nfactor = 1.25\n";

/// Runs of ours are predicted as `simulate` has them, on a machine that was measured too, whatever ranks share; a column says what they share.
#[test]
fn our_own_runs_are_as_simulated() {
    let bench = Bench::new();
    let head = "id,source,layers,hidden,heads,kv_heads,ffn_hidden,vocab,seq_len,device,n_devices,dp,tp,gbs,mbs,zero,precision,recompute,step_time_s";
    let row = "a,Forebay,2,256,4,4,1024,1024,256,H100,8,4,2,8,1,1,bf16,none,0.01";
    bench.write("runs.csv", format!("{head}\n{row}\n"));
    let told: Value =
        serde_json::from_str(&bench.run(&["validate", "runs.csv", "--json"]).ok().stdout).expect("an object");
    let report = &told["rows"][0]["report"];
    assert_eq!(told["rows"][0]["framework"], "plan");
    assert!(
        told["rows"][0]["assumed"].as_array().expect("a list").iter().all(|a| !a.as_str().unwrap().starts_with("zero"))
    );
    // What overlaps with us is there: gradients are not all exposed.
    assert!(report["exposed_comm_s"]["dp"].as_f64() < report["total_comm_s"]["dp"].as_f64());
    // A built-in model by its row is what it is by its name, ranks that share a machine's cores included.
    let machine = format!("{}\n{MEASURED}", include_str!("../../examples/clusters/h100.toml"));
    bench.write("own/machine.toml", machine.replace("\"H100\"", "\"this machine\""));
    let shape = "source,layers,hidden,heads,ffn_hidden,moe_ffn_hidden,experts,topk,shared_experts,vocab,seq_len,device,n_devices,gbs,mbs,precision,recompute,step_time_s";
    let rows = "Forebay,4,256,8,512,512,8,2,1,256,256,this machine,1,8,8,fp32,none,0.1\nForebay,4,256,8,512,512,8,2,1,256,256,this machine,4,8,2,fp32,none,0.1\n";
    bench.write("tiny.csv", format!("{shape}\n{rows}"));
    let run = bench.run(&["validate", "tiny.csv", "--cluster-dir", "own", "--json"]).ok();
    let told: Value = serde_json::from_str(&run.stdout).expect("an object");
    for (row, strategy) in told["rows"].as_array().expect("rows").iter().zip(["dp=1", "dp=4"]) {
        let alone =
            ["simulate", "bench-tiny", "--cluster", "own/machine.toml", "--dtype", "f32", "--strategy", strategy];
        let ratio = row["predicted_s"].as_f64().unwrap() / step(&bench, &alone);
        assert!((ratio - 1.0).abs() < 0.01, "{strategy}: {ratio}");
        // (On a machine that was measured hosts take no time beside kernels.)
        assert_eq!(row["report"]["host_bound_fraction"], 0.0, "{strategy}");
    }
    let without = format!("{head}\n{}\n", row.replace(",1,bf16", ",,bf16"));
    bench.write("runs.csv", without);
    let table = bench.run(&["validate", "runs.csv"]).ok().stdout;
    assert!(table.contains("zero = 0 (1 run)"), "{table}");
    // Two measurements of a row are of one step.
    bench.write("runs.csv", format!("{head},tokens_per_s_per_device\n{row},25600\nb{},3\n", &row[1..]));
    let table = bench.run(&["validate", "runs.csv"]).ok().stdout;
    assert!(table.contains("b: line 3: `step_time_s` says 0.0100 s, and `tokens_per_s_per_device` "), "{table}");
    for (blank, why) in [("H100,8,4", ",8,4"), ("H100,8,4", "H100,,4"), (",2,8,1,1,", ",2,,1,1,")] {
        bench.write("runs.csv", format!("{head}\n{}\n", row.replace(blank, why)));
        bench.run(&["validate", "runs.csv"]).fails(&["is not given"]);
    }
}

/// A folder of clusters may say what is different of profiles; what a fit writes there is read again, and predicts what it printed.
#[test]
fn profiles_of_a_folder_count() {
    let bench = Bench::new();
    bench.write("runs.csv", RUNS);
    let error = |args: &[&str]| {
        let run = bench.run(&[&["validate", "runs.csv", "--json"], args].concat()).ok();
        let told: Value = serde_json::from_str(&run.stdout).expect("an object");
        told["rows"][0]["predicted_s"].as_f64().expect("a time")
    };
    let before = error(&[]);
    let fitted = error(&["--fit", "--rounds", "2", "-o", "ours"]);
    assert!(before != fitted);
    let again = error(&["--cluster-dir", "ours"]);
    assert!((again / fitted - 1.0).abs() < 1e-3, "{again} is not {fitted}");
    bench.write(
        "ours/frameworks.toml",
        "[[framework]]\nname = \"eager\"\nvector_passes = 4.9\nmatches = []\nspeed = 1\n",
    );
    bench.run(&["validate", "runs.csv", "--cluster-dir", "ours"]).fails(&["frameworks.toml", "speed"]);
    let file = std::fs::read_dir(bench.path("ours")).expect("a folder").map(|file| file.expect("a file").path());
    let cluster = file.into_iter().find(|file| !file.ends_with("frameworks.toml")).expect("a cluster file");
    let of = |framework: &str| {
        let on = ["--cluster", cluster.to_str().expect("a path"), "--framework", framework, "--json"];
        bench.run(&[&["simulate", "bench-tiny", "--strategy", "dp=8,zero=1"], &on[..]].concat())
    };
    of("eager").fails(&["frameworks.toml", "speed"]);
    let profile = |name: &str, dispatch_us: f64| {
        let text = format!("[[framework]]\nname = \"{name}\"\ndispatch_us = {dispatch_us:?}\nmatches = [\"mine\"]\n");
        bench.write("ours/frameworks.toml", &text);
        let told: Value = serde_json::from_str(&of(name).ok().stdout).expect("an object");
        told["step_time_s"].as_f64().expect("a time")
    };
    // One's own, and one that is built in, both as the file has them.
    for name in ["mine", "eager"] {
        assert!(profile(name, 150.0) > 1.1 * profile(name, 5.0), "{name}");
    }
    of("mine").exits(2, &["there are", "eager"]);
    // What somebody wrote is not written over, and nobody waits for a fit to be told so.
    bench
        .run(&["validate", "runs.csv", "--fit", "-o", "ours"])
        .fails(&["is there, and is not of a fit", "another folder"]);
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

/// What a person sees of rows that are left out: the line, the reason, and what helps, and nothing that a terminal would obey.
#[test]
fn rows_that_are_left_out_have_lines_and_help() {
    let bench = Bench::new();
    let with = |rows: &[&str], args: &[&str]| {
        let head = "id,layers,hidden,heads,vocab,seq_len,device,n_devices,gbs,step_time_s,peak_mem_gb,ffn_hidden";
        bench.write("runs.csv", format!("{head}\n{}\n", rows.join("\n")));
        bench.run(&[&["validate", "runs.csv"], args].concat())
    };
    let (right, blank) = ("a,2,256,4,1024,256,H100,1,8,0.01,1,1024", "b,2,256,4,1024,256,H100,1,8,0.01,1,");
    with(&[blank], &[]).fails(&["b: line 2: `ffn_hidden` is not given\n  = help: dense layers need it"]);
    let unknown = "c\u{1b}[31m,2,256,4,1024,256,TPUv5,1,8,0.01,1,1024";
    let table = with(&[right, blank, unknown], &[]).ok().stdout;
    for part in ["  c\\u{1b}[31m: line 4: no cluster file is called `TPUv5`\n", "= help: there are ", "--cluster-dir"] {
        assert!(table.contains(part), "`{part}` is not in:\n{table}");
    }
    assert!(!table.contains('\u{1b}') && !table.contains("are the units"), "{table}");
    with(&[unknown], &[]).fails(&["c\\u{1b}[31m: line 2"]);
    // One without a name is called by its line.
    with(&[&blank[1..]], &[]).fails(&["\n  line 2: `ffn_hidden` is not given"]);
    with(&[&blank.replace("b,2", ",two")], &[]).fails(&["no run that can be used: line 2: `layers`"]);
    // Milliseconds and megabytes.
    let other = "a,2,256,4,1024,256,H100,1,8,100,9000,1024";
    let table = with(&[other], &[]).ok().stdout;
    assert!(
        table.contains("  time of 1 run: more than 100 times off") && table.contains("  memory of 1 run: "),
        "{table}"
    );
    with(&["a,2,256,4,1024,256,H100,1,8,1e-300,1,1024"], &[]).fails(&["line 2: `step_time_s` is from 1e-9 to 1e9"]);
    // Where no time is compared, there is no error, not one of 0.
    let large = "a,8,4096,32,32000,2048,H100,1,8,0.8,,16384";
    let anchored = with(&[large], &["--anchor", "a"]).ok().stdout;
    assert!(
        anchored.starts_with("there is no other run to predict\n") && anchored.contains("its own error is 0.0 % then"),
        "{anchored}"
    );
    let out_of_memory = large.replace(",0.8,,", ",OOM,,");
    for (row, args) in [(large, &["--json", "--anchor", "a"][..]), (&out_of_memory, &["--json"])] {
        let told: Value = serde_json::from_str(&with(&[row], args).ok().stdout).expect("an object");
        assert!(told["median_abs_error"].is_null() && told["p90_abs_error"].is_null(), "{told}");
    }
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
