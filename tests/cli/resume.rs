//! Runs that are killed, stopped and gone on with.

use super::{Bench, SMALL};
use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};

/// Starts a run and waits until it has printed so many lines.
fn start(bench: &Bench, args: &[&str], lines: usize) -> (Child, BufReader<std::process::ChildStdout>) {
    let all = [&["train", "model.moe", "--data", "text.txt", "--json"], SMALL, args].concat();
    let mut child = bench.command(&all).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("it starts");
    let mut out = BufReader::new(child.stdout.take().expect("a pipe"));
    for _ in 0..lines {
        let mut line = String::new();
        assert!(out.read_line(&mut line).expect("a line") > 0, "the run ended early");
    }
    (child, out)
}

fn kill_at(bench: &Bench, args: &[&str], lines: usize) {
    let (mut child, _out) = start(bench, args, lines);
    // SIGKILL: nothing can be tidied up.
    child.kill().expect("it runs");
    child.wait().expect("it ended");
}

#[test]
fn a_killed_run_goes_on_bit_for_bit() {
    let bench = Bench::new();
    let steps = ["--steps", "16", "--save-every", "3"];
    let whole = bench.train(&[&steps[..], &["--save", "whole", "--json"]].concat()).ok();
    // Killed at several moments, always the same run.
    for (i, lines) in [4, 3, 5].into_iter().enumerate() {
        let place = ["--save", "killed", "--resume", "killed"];
        kill_at(&bench, &[&steps[..], &place[if i == 0 { 0 } else { 2 }..][..2]].concat(), lines);
        let names = bench.names("killed");
        assert!(names.iter().filter(|n| n.starts_with("step-")).count() >= 1, "{names:?}");
    }
    let rest = bench.train(&[&steps[..], &["--resume", "killed", "--json"]].concat()).ok();
    let (rest, all) = (rest.losses(), whole.losses());
    assert!(rest.len() < 16 && !rest.is_empty());
    assert_eq!(rest, all[16 - rest.len()..]);
    assert_eq!(bench.names("killed"), ["latest", "run.json", "step-000015", "step-000016"]);
    let read = |run: &str, file: &str| std::fs::read(bench.path(&format!("{run}/step-000016/{file}"))).expect("a file");
    for file in ["model.safetensors", "optimizer.safetensors", "index.json", "plan.json"] {
        assert!(read("whole", file) == read("killed", file), "{file} is the same");
    }
}

#[test]
fn a_run_killed_before_its_first_checkpoint_starts_over() {
    let bench = Bench::new();
    let steps = ["--steps", "6", "--seed", "9"];
    let whole = bench.train(&[&steps[..], &["--save", "whole", "--json"]].concat()).ok();
    kill_at(&bench, &[&steps[..], &["--save", "killed"]].concat(), 2);
    assert_eq!(bench.names("killed"), ["run.json"]);
    // Without the seed, which the run knows.
    let rest = bench.train(&["--steps", "6", "--resume", "killed", "--json"]).ok();
    assert_eq!(rest.losses(), whole.losses());
    assert!(rest.stderr.contains("has no checkpoint yet: it starts over"), "{}", rest.stderr);
    kill_at(&bench, &[&steps[..], &["--save", "again"]].concat(), 2);
    let refused = bench.run(&["train", "--data", "text.txt", "--resume", "again"]);
    assert!(!refused.stderr.contains("it starts over"), "{}", refused.stderr);
    refused.fails(&["has no checkpoint yet: give the model file to start over"]);
    bench
        .run(&["train", "--data", "text.txt", "--resume", "missing"])
        .fails(&["cannot read the checkpoint: `missing`"]);
}

#[test]
fn without_the_model() {
    let bench = Bench::new();
    let whole = bench.train(&["--steps", "5", "--save", "whole", "--json"]).ok();
    bench.train(&["--steps", "5", "--save", "part", "--save-every", "2", "--json"]).ok();
    std::fs::remove_file(bench.path("model.moe")).expect("the model");
    let rest = bench.run(&["train", "--data", "text.txt", "--resume", "whole/step-000005", "--json"]).ok();
    assert_eq!(rest.losses(), []);
    assert_eq!(rest.lines()[0]["summary"]["val_loss"], whole.lines()[5]["summary"]["val_loss"]);
    assert_eq!(rest.lines()[0]["summary"]["train_loss"], whole.lines()[5]["summary"]["train_loss"]);
    let rest =
        bench.run(&["train", "--data", "text.txt", "--resume", "part/step-000004", "--save", "new", "--json"]).ok();
    assert_eq!(rest.losses(), whole.losses()[4..]);
    assert_eq!(bench.names("new"), ["latest", "run.json", "step-000005"]);
    bench
        .run(&["train", "--data", "text.txt", "--resume", "part", "--lr", "1"])
        .exits(2, &["without a model file the plan in the checkpoint is used"]);
}

#[cfg(unix)]
#[test]
fn control_c_saves_and_says_how_to_go_on() {
    let bench = Bench::new();
    let steps = ["--steps", "200", "--lr", "1e-3"];
    let (child, mut out) = start(&bench, &[&steps[..], &["--save", "run"]].concat(), 2);
    let status = Command::new("kill").args(["-INT", &child.id().to_string()]).status().expect("the shell's kill");
    assert!(status.success());
    std::io::copy(&mut out, &mut std::io::sink()).expect("the rest of the lines");
    let output = child.wait_with_output().expect("it ends");
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(stderr.contains("stopped after step ") && stderr.contains("`--resume run` goes on"), "{stderr}");
    assert_eq!(output.status.code(), Some(130));
    assert_eq!(bench.names("run").iter().filter(|n| n.starts_with("step-")).count(), 1);
}

#[test]
fn what_makes_it_another_run_is_said() {
    let bench = Bench::new();
    bench.train(&["--steps", "2", "--save", "run"]).ok();
    let run = bench.train(&["--steps", "4", "--resume", "run"]).ok();
    assert!(
        run.stderr.contains("the plan is not the one the checkpoint was made with (steps 4, was 2)"),
        "{}",
        run.stderr
    );
    bench.write("text.txt", super::corpus().replace("expert", "novice"));
    let run = bench.train(&["--steps", "5", "--resume", "run", "--lr", "1e-4"]).ok();
    assert!(run.stderr.contains("the data are not those the checkpoint was trained on"), "{}", run.stderr);
    bench
        .train(&["--steps", "5", "--resume", "run", "--seed", "3"])
        .fails(&["the run was started with --seed 1", "leave --seed out"]);
}

#[test]
fn the_log_goes_on() {
    let bench = Bench::new();
    let whole = bench.train(&["--steps", "6", "--save", "whole", "--json"]).ok().losses();
    bench.train(&["--steps", "6", "--save", "run", "--save-every", "2", "--log", "log"]).ok();
    bench.train(&["--steps", "6", "--resume", "run/step-000004", "--log", "log"]).ok();
    let log = super::Run { code: None, stdout: bench.read("log"), stderr: String::new() };
    assert_eq!(log.losses(), whole);
    assert_eq!(log.lines().len(), 7);
    // A text that is no log is not written over.
    bench.write("diary", "Monday\nTuesday\n");
    bench
        .train(&["--steps", "6", "--resume", "run/step-000004", "--log", "diary"])
        .fails(&["cannot write the log `diary`: line 1 of it is not of a log", "name another file"]);
    assert_eq!(bench.read("diary"), "Monday\nTuesday\n");
}

/// A run that goes on from another checkpoint than its last says so.
#[test]
fn a_checkpoint_that_is_passed_over_is_told() {
    let bench = Bench::new();
    bench.train(&["--steps", "4", "--save-every", "2", "--save", "ck"]).ok();
    let resume = |said: &str| {
        let going_on = bench.train(&["--steps", "2", "--resume", "ck"]).ok().stderr;
        assert!(going_on.contains(&format!("warning: {said}; going on from step 2")), "{going_on}");
        let sample = bench.run(&["generate", "ck", "--bytes", "1"]).ok().stderr;
        assert_eq!(sample, format!("warning: {said}; taking that of step 2\n"));
    };
    std::fs::remove_file(bench.path("ck/step-000004/index.json")).expect("a file");
    resume("`ck/step-000004`, which `latest` names, is not complete");
    std::fs::remove_dir_all(bench.path("ck/step-000004")).expect("a folder");
    resume("`ck/step-000004`, which `latest` names, is not there");
    bench.write("ck/latest", "somewhere");
    resume("`ck/latest` does not name a checkpoint");
    bench.write("ck/latest", "step-000002\n");
    assert_eq!(bench.run(&["generate", "ck", "--bytes", "1"]).ok().stderr, "");
}

/// The plan in a checkpoint is what it is: options that would change it are refused, not ignored.
#[test]
fn options_of_another_plan_are_refused() {
    let bench = Bench::new();
    bench.train(&["--steps", "1", "--save", "run"]).ok();
    for option in [
        &["--memory-budget", "1MiB"][..],
        &["--rewrite", "off"],
        &["--joins", "off"],
        &["--numerics", "exact"],
        &["--device", "npu"],
    ] {
        let args = [&["train", "--data", "text.txt", "--resume", "run", "--steps", "2"], option].concat();
        bench.run(&args).exits(2, &["which cannot be changed any more"]);
    }
    let args = ["--steps", "2", "--resume", "run", "--save", "other", "--strategy", "moments=bf16", "--dtype", "bf16"];
    bench.train(&args).fails(&["does not fit the model", "`moments=` in the strategy must be as it was"]);
}

/// Two runs in one folder would overwrite each other's checkpoints.
#[test]
fn a_folder_is_of_one_run_at_a_time() {
    let bench = Bench::new();
    let (mut first, _out) = start(&bench, &["--steps", "100000", "--save", "run"], 1);
    bench.train(&["--steps", "1", "--save", "run", "--seed", "2"]).fails(&["another run is being saved in `run`"]);
    first.kill().expect("it runs");
    first.wait().expect("it ended");
}
