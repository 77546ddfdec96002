//! `forebay validate`.

use super::Bench;
use super::simulate::step;
use serde_json::Value;

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
    for part in [
        "  c\\u{1b}[31m: line 4: no cluster file is called `TPUv5`\n",
        "= help: did you mean `TPU",
        "there are ",
        "--cluster-dir",
    ] {
        assert!(table.contains(part), "`{part}` is not in:\n{table}");
    }
    assert!(!table.contains('\u{1b}') && !table.contains("are the units"), "{table}");
    with(&[unknown], &[]).fails(&["c\\u{1b}[31m: line 2"]);
    let near = "d,2,256,4,1024,256,MI350,1,8,0.01,1,1024";
    with(&[near], &[]).fails(&["`MI350`\n  = help: did you mean `MI350X`? there are "]);
    // A device that does more than it can, and what a whole job does, of which no more is said.
    let of_many = |seconds: f64| format!("f,8,4096,32,32000,2048,H100,32,32,{seconds},,16384");
    let told: Value = serde_json::from_str(&with(&[&of_many(1.0)], &["--json"]).ok().stdout).expect("an object");
    let predicted = told["rows"][0]["predicted_s"].as_f64().expect("seconds");
    let table = with(&[&of_many(predicted / 32.0)], &[]).ok().stdout;
    assert!(table.contains("as many times off as there are devices") && !table.contains("more FLOPs"), "{table}");
    let faster = "e,8,4096,32,32000,2048,H100,1,8,0.02,,16384";
    let table = with(&[faster], &[]).ok().stdout;
    assert!(table.contains("  time of 1 run: more FLOPs a second than the device has"), "{table}");
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
