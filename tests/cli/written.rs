//! Files that are written must not be files that are read.

use super::{Bench, SMALL};
use std::fs;
use std::path::Path;

/// All files below a folder, with what they hold.
fn files(folder: &Path) -> Vec<(String, Vec<u8>)> {
    let mut found = vec![];
    for entry in fs::read_dir(folder).expect("a folder").flatten() {
        let path = entry.path();
        if path.is_dir() {
            found.extend(files(&path));
        } else {
            found.push((path.display().to_string(), fs::read(&path).expect("a file")));
        }
    }
    found.sort();
    found
}

/// What commands are refused, and whether they left everything as it was.
struct Refused<'a> {
    bench: &'a Bench,
    before: Vec<(String, Vec<u8>)>,
}

impl<'a> Refused<'a> {
    fn new(bench: &'a Bench) -> Refused<'a> {
        Refused { bench, before: files(bench.folder.path()) }
    }

    #[track_caller]
    fn with(&self, args: &[&str], said: &str) {
        self.bench.run(args).exits(2, &[said]);
        assert!(files(self.bench.folder.path()) == self.before, "{args:?} changed something");
    }
}

#[test]
fn a_plan_replaces_nothing_that_it_is_made_from() {
    let bench = Bench::new();
    fs::write(bench.path("c.toml"), include_str!("../../examples/clusters/h100.toml")).expect("a file");
    let order = ["schedule", "--kind", "1f1b", "--stages", "2", "--micro-batches", "2", "--json"];
    bench.write("order.json", bench.run(&order).ok().stdout);
    bench.write("s.toml", "tp = 2\n");
    let graph = bench.run(&["compile", "model.moe", "--emit", "graph"]).ok().stdout;
    bench.write("model.ir", graph);
    let refused = Refused::new(&bench);
    let compile = |args: &[&str], said: &str| refused.with(&[&["compile"], args].concat(), said);
    compile(&["model.moe", "-o", "model.moe"], "--output model.moe: this is the file of the model");
    compile(&["model.moe", "-o", "./model.moe"], "this is the file of the model");
    compile(&["model.ir", "--emit", "graph", "-o", "model.ir"], "this is the file of the model");
    compile(&["model.moe", "--cluster", "c.toml", "-o", "c.toml"], "this is the file of the cluster");
    let given = ["model.moe", "--strategy", "pp=2,micro=2,schedule=order.json", "-o", "order.json"];
    compile(&given, "this is the file of the schedule");
    compile(&["model.moe", "--strategy", "s.toml", "-o", "s.toml"], "this is the file of the strategy");
}

#[cfg(unix)]
#[test]
fn links_lead_to_what_is_read() {
    let bench = Bench::new();
    std::os::unix::fs::symlink("model.moe", bench.path("m")).expect("a link");
    fs::create_dir(bench.path("data")).expect("a folder");
    std::os::unix::fs::symlink("../text.txt", bench.path("data/a.txt")).expect("a link");
    let refused = Refused::new(&bench);
    refused.with(&["compile", "model.moe", "-o", "m"], "--output m: this is the file of the model");
    let train = ["train", "model.moe", "--data", "data", "--log"];
    refused.with(&[&train[..], &["m"]].concat(), "this is the file of the model");
    refused.with(&[&train[..], &["data/a.txt"]].concat(), "this is in the folder of --data");
}

#[test]
fn a_run_replaces_nothing_that_it_reads() {
    let bench = Bench::new();
    bench.write("dir/a.txt", super::corpus());
    bench.write("s.toml", "tp = 2\n");
    bench.write("hosts", "127.0.0.1:1 1\n127.0.0.1:2 1\n");
    fs::write(bench.path("c.toml"), include_str!("../../examples/clusters/h100.toml")).expect("a file");
    bench.run(&[&["compile", "model.moe", "-o", "p.plan"], &SMALL[..SMALL.len() - 2]].concat()).ok();
    let refused = Refused::new(&bench);
    let train = |args: &[&str], said: &str| {
        refused.with(&[&["train", "model.moe", "--steps", "1"], SMALL, args].concat(), said);
    };
    for option in ["--log", "--trace", "--profile"] {
        let over = |path: &str| format!("{option}={path}");
        let data = ["--data", "text.txt"];
        let model = format!("{option} model.moe: this is the file of the model");
        train(&[&data[..], &[&over("model.moe")]].concat(), &model);
        train(&[&data[..], &["--strategy", "dp=2", "--hosts", "local:2", &over("model.moe")]].concat(), &model);
        train(&[&data[..], &["--strategy", "s.toml", &over("s.toml")]].concat(), "this is the file of the strategy");
        train(&[&data[..], &[&over("text.txt")]].concat(), "text.txt: this is the file of --data");
        train(&["--data", "dir", &over("dir")], "dir: this is the folder of --data");
        for file in ["dir/a.txt", "dir/../dir/new.jsonl"] {
            train(&["--data", "dir", &over(file)], "this is in the folder of --data, whose files are trained on");
        }
        let hosts = ["--strategy", "dp=2", "--hosts", "hosts", "--host-index", "0", &over("hosts")];
        train(&[&data[..], &hosts].concat(), "hosts: this is the file of --hosts");
        let devices = ["--backend", "npu-emulated", "--cluster", "c.toml", &over("c.toml")];
        train(&[&data[..], &devices].concat(), "this is the file of the cluster");
        let run = ["run", "p.plan", "--data", "text.txt", &over("p.plan")];
        refused.with(&run, "p.plan: this is the file of the plan");
    }
}

#[test]
fn fitted_files_go_to_another_folder_and_one_thing_is_printed() {
    let bench = Bench::new();
    fs::create_dir(bench.path("clusters")).expect("a folder");
    fs::write(bench.path("clusters/c.toml"), include_str!("../../examples/clusters/h100.toml")).expect("a file");
    bench.write(
        "runs.csv",
        "layers,hidden,heads,vocab,seq_len,device,n_devices,gbs,step_time_s\n1,1,1,1,1,H100,1,1,1\n",
    );
    let refused = Refused::new(&bench);
    let fit = ["validate", "runs.csv", "--cluster-dir", "clusters", "--fit", "-o", "clusters/../clusters"];
    refused.with(&fit, "clusters: this is the folder of --cluster-dir");
    refused.with(&["calibrate", "--cpu", "-o", "-", "--json"], "only one can be");
}

#[test]
fn a_run_keeps_its_checkpoints() {
    let bench = Bench::new();
    // A log may be in the folder of the run, which need not be there yet, and which may be in that of the data.
    bench.write("dir/a.txt", super::corpus());
    let begin = ["train", "model.moe", "--data", "dir", "--steps", "1", "--save", "dir/run", "--log", "dir/run/log"];
    bench.run(&[&begin[..], SMALL].concat()).ok();
    let refused = Refused::new(&bench);
    let resume = ["train", "--data", "dir", "--steps", "2", "--resume"];
    let of_run = "this belongs to the run in `dir/run`";
    for file in ["dir/run/latest", "dir/run/run.json", "dir/run/step-000001/index.json", "dir/run/step-000002"] {
        refused.with(&[&resume[..], &["dir/run", "--trace", file]].concat(), of_run);
        refused.with(&[&resume[..], &["dir/run/step-000001", "--save", "dir/run", "--log", file]].concat(), "this ");
    }
    let checkpoint = ["dir/run/step-000001", "--save", "new", "--log", "dir/run/step-000001/log"];
    refused.with(&[&resume[..], &checkpoint].concat(), "this is in the checkpoint `dir/run/step-000001`");
    let pointer = ["dir/run/step-000001", "--save", "new", "--log", "dir/run/latest"];
    refused.with(&[&resume[..], &pointer].concat(), "latest: this belongs to the run in `");
    bench.run(&[&resume[..], &["dir/run", "--log", "dir/run/log"]].concat()).ok();
    let lines = bench.read("dir/run/log").lines().filter(|line| line.starts_with("{\"step\"")).count();
    assert_eq!(lines, 2, "the log went on");
}

/// Two files of one name would be one file, and stdout is for one thing.
#[test]
fn what_a_run_writes_is_not_written_over() {
    let bench = Bench::new();
    let refused = Refused::new(&bench);
    let train = |args: &[&str], said: &str| {
        refused.with(&[&["train", "model.moe", "--data", "text.txt", "--steps", "1"], SMALL, args].concat(), said);
    };
    train(&["--log", "same.o", "--trace", "./same.o"], "--trace ./same.o: this is the file of --log");
    train(&["--log", "same.o", "--profile=same.o"], "--profile same.o: this is the file of --log");
    train(&["--trace", "same.o", "--profile=same.o"], "--profile same.o: this is the file of --trace");
    train(&["--trace", "-", "--profile=-"], "--profile -: this is the file of --trace");
    train(&["--log", "-"], "--log -: --json prints these lines on stdout");
    for option in ["--trace", "--profile"] {
        let of_json = format!("{option} -: on stdout are the lines of --json");
        train(&[&format!("{option}=-"), "--json"], &of_json);
    }
}

#[test]
fn stdout_has_what_it_is_asked_for() {
    let bench = Bench::new();
    for (option, begin) in [("--trace=-", "{"), ("--profile=-", "start-up of ")] {
        let run = bench.train(&["--steps", "1", option]).ok();
        assert!(run.stdout.starts_with(begin) && !run.stdout.contains("order-0 entropy"), "{}", run.stdout);
    }
    assert!(!bench.path("-").exists());
}
