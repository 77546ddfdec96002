//! `--hosts`: ranks in several processes.

use super::{Bench, Run, SMALL};
use std::io::{BufRead, BufReader, Read};
use std::net::TcpListener;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

const SHARED: &[&str] =
    &["--json", "--strategy", "dp=2,tp=2,ep=2,zero=1", "--steps", "4", "--save-every", "2", "--eval-every", "3"];

/// The files of a checkpoint.
fn files(bench: &Bench, folder: &str) -> Vec<(String, Vec<u8>)> {
    let read = |name: String| (name.clone(), std::fs::read(bench.path(folder).join(&name)).expect("a file"));
    bench.names(folder).into_iter().map(read).collect()
}

/// Equal losses and equal checkpoints, to the last bit, in any number of processes; and a run goes on in another number of them.
#[test]
fn processes_do_what_threads_do() {
    let bench = Bench::new();
    let threads = bench.train(&[SHARED, &["--save", "threads"]].concat()).ok();
    let of_threads = files(&bench, "threads/step-000004");
    assert_eq!(of_threads.len(), 4);
    for processes in ["local:2", "local:3"] {
        let run = bench.train(&[SHARED, &["--hosts", processes, "--save", processes]].concat()).ok();
        let steps = |run: &Run| run.stdout.lines().filter(|line| line.contains("val_loss")).count();
        assert_eq!((run.losses(), steps(&run)), (threads.losses(), steps(&threads)), "{processes}");
        assert!(files(&bench, &format!("{processes}/step-000004")) == of_threads, "{processes}");
    }
    let rest = ["--hosts", "local:4", "--resume", "local:2/step-000002", "--save", "rest"];
    let rest = bench.train(&[SHARED, &rest].concat()).ok();
    assert_eq!(rest.losses(), threads.losses()[2..]);
    assert!(files(&bench, "rest/step-000004") == of_threads);
}

/// The processes of a run that are started one by one: what each of them did.
fn by_hand(bench: &Bench, args: [&[&str]; 2]) -> Vec<Run> {
    let ports = [0, 1].map(|_| TcpListener::bind("127.0.0.1:0").expect("a free port"));
    let address = |port: &TcpListener| port.local_addr().expect("an address").to_string();
    bench.write("hosts", format!("{} 1 # the first\n\n{}\t1\n", address(&ports[0]), address(&ports[1])));
    drop(ports);
    let start = |index: usize| {
        let own = ["--hosts", "hosts", "--host-index", ["0", "1"][index], "--join-timeout", "30", "--json"];
        let all = [&["train", "model.moe", "--data", "text.txt"], SMALL, &own, args[index]].concat();
        bench.command(&all).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("the program starts")
    };
    let children = [1, 0].map(start);
    let mut runs: Vec<Run> =
        children.into_iter().map(|child| Run::new(child.wait_with_output().expect("it ends"))).collect();
    runs.reverse();
    runs
}

#[test]
fn hosts_of_a_file_find_each_other() {
    let bench = Bench::new();
    let shared = ["--steps", "3", "--strategy", "pp=2,micro=2"];
    let threads = bench.train(&[&shared[..], &["--json", "--save", "threads"]].concat()).ok();
    let first = [&shared[..], &["--save", "run"]].concat();
    let mut runs = by_hand(&bench, [&first, &shared]).into_iter().map(Run::ok);
    assert_eq!(runs.next().expect("two runs").losses(), threads.losses());
    // The second one says and leaves nothing.
    let second = runs.next().expect("two runs");
    assert_eq!((second.stdout.as_str(), second.stderr.as_str()), ("", ""));
    assert!(!bench.path("forebay-runs").exists());
    // They must be about to do the same.
    let other = [&shared[..], &["--seed", "7"]].concat();
    let mut runs = by_hand(&bench, [&first, &other]).into_iter();
    let advice = "start all processes with the same program, files and options";
    runs.next().expect("two runs").fails(&["process 1 has another --seed than process 0", advice]);
    runs.next().expect("two runs").fails(&["process 0 has another --seed than process 1", advice]);
}

/// A run of two processes that does not end by itself, once it trains; and the process that it has started.
fn endless(bench: &Bench) -> (Child, u32) {
    let endless = ["--strategy", "dp=2", "--steps", "1000000", "--json", "--hosts", "local:2", "--save", "run"];
    let args = [&["train", "model.moe", "--data", "text.txt"], SMALL, &endless].concat();
    let mut command = bench.command(&args);
    let mut run = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("the program starts");
    let mut line = String::new();
    BufReader::new(run.stdout.as_mut().expect("a pipe")).read_line(&mut line).expect("a line");
    assert!(line.starts_with("{\"step\":1,"), "{line}");
    let children = std::fs::read_to_string(format!("/proc/{0}/task/{0}/children", run.id())).expect("Linux says");
    (run, children.trim().parse().expect("one child"))
}

fn kill(process: u32) {
    signal(process, "-9");
}

fn signal(process: u32, signal: &str) {
    assert!(Command::new("kill").args([signal, &process.to_string()]).status().expect("kill runs").success());
}

/// Waits until something is so.
fn soon(what: &str, mut is_so: impl FnMut() -> bool) {
    let start = Instant::now();
    while !is_so() {
        assert!(start.elapsed() < Duration::from_secs(15), "{what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
#[cfg(target_os = "linux")]
fn a_killed_process_ends_the_run() {
    let bench = Bench::new();
    let (mut run, child) = endless(&bench);
    kill(child);
    soon("the run ends", || run.try_wait().expect("it can be waited for").is_some());
    let mut stderr = String::new();
    run.stderr.take().expect("a pipe").read_to_string(&mut stderr).expect("text");
    for part in ["process 1, which has rank 1, is gone", "process 1 has ended (signal: 9"] {
        assert!(stderr.contains(part), "`{part}` is not in:\n{stderr}");
    }
    assert_eq!(run.wait().expect("it has ended").code(), Some(1));
}

/// One that stands still is alive to the system, but gives no sign of life.
#[test]
#[cfg(target_os = "linux")]
fn a_process_that_stands_still_ends_the_run() {
    let bench = Bench::new();
    let (mut run, child) = endless(&bench);
    signal(child, "-STOP");
    // (The first process ends those that it has started, even those that stand still.)
    soon("the run ends", || run.try_wait().expect("it can be waited for").is_some());
    let mut stderr = String::new();
    run.stderr.take().expect("a pipe").read_to_string(&mut stderr).expect("text");
    assert!(stderr.contains("nothing was heard of it for 5 s"), "{stderr}");
    assert_eq!(run.wait().expect("it has ended").code(), Some(1));
}

#[test]
#[cfg(target_os = "linux")]
fn nobody_outlives_the_first_process() {
    let bench = Bench::new();
    let (mut run, child) = endless(&bench);
    run.kill().expect("it runs");
    run.wait().expect("it has ended");
    let ended = || match std::fs::read_to_string(format!("/proc/{child}/stat")) {
        // (Ended, but not waited for by whoever adopted it.)
        Ok(stat) => stat.rsplit(')').next().is_some_and(|rest| rest.trim_start().starts_with('Z')),
        Err(_) => true,
    };
    soon("the child ends", ended);
}

#[test]
fn hosts_that_cannot_be() {
    let bench = Bench::new();
    let shared = ["--strategy", "dp=2", "--steps", "1"];
    let train = |args: &[&str]| bench.train(&[&shared[..], args].concat());
    train(&["--hosts", "local:3"]).fails(&["local:3 wants more processes than the plan has ranks, which is 2"]);
    train(&["--hosts", "local:none"]).exits(2, &["a number of processes"]);
    train(&["--hosts", "local:2", "--host-index", "1"]).exits(2, &["--host-index goes with a hosts file"]);
    train(&["--host-index", "1"]).exits(2, &["--hosts"]);
    train(&["--hosts", "nowhere"]).fails(&["cannot read `nowhere`"]);
    bench.write("bad", "127.0.0.1:7000 1\n127.0.0.1 1\n");
    train(&["--hosts", "bad"]).fails(&["--> bad:2:1", "is not an address with a port", "^^^^^^^^^"]);
    bench.write("few", "127.0.0.1:7000 1\n");
    train(&["--hosts", "few", "--host-index", "0"]).fails(&["the hosts have 1 ranks, the plan has 2", "--> few:1:16"]);
    bench.write("two", "127.0.0.1:1 1\n127.0.0.1:2 1\n");
    train(&["--hosts", "two"]).exits(2, &["--host-index says which host this is: 0 to 1"]);
    train(&["--hosts", "two", "--host-index", "2"]).exits(2, &["--host-index 2 is none of the hosts"]);
    let free = TcpListener::bind("127.0.0.1:0").expect("a free port").local_addr().expect("an address");
    bench.write("alone", format!("{free} 1\n127.0.0.1:9 1\n"));
    train(&["--hosts", "alone", "--host-index", "0", "--join-timeout", "1"])
        .fails(&["after 1 s 1 of 2 processes are missing: 1"]);
}
