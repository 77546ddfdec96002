//! Two hosts, made of network namespaces, with a link between them that is as slow as wished: what an exchange of experts' rows takes there, in bytes and seconds.
//!
//! `cargo test --release --test all two_hosts -- --ignored --nocapture`, as root, with `ip` and `tc`.

use super::{Bench, Run};
use serde_json::Value;
use std::process::{Child, Command, Stdio};

const HOSTS: [&str; 2] = ["10.77.0.1", "10.77.0.2"];

/// Ranks as two nodes of four; experts of eight choices a token are on all of them.
const STRATEGY: &str = "dp=8,ep=8,micro=1,node=4";
const SIZES: &[&str] = &[
    "--set",
    "layers=2",
    "d=256",
    "f=64",
    "heads=4",
    "experts=16",
    "topk=8",
    "--batch",
    "8",
    "--seq",
    "256",
    "--threads",
    "1",
];
const STEPS: &str = "4";

/// Two namespaces and the link between them, gone when it is dropped.
struct Hosts {
    names: [String; 2],
}

fn run(program: &str, args: &[&str]) -> Result<String, String> {
    let output = Command::new(program).args(args).output().map_err(|e| format!("{program}: {e}"))?;
    let error = String::from_utf8_lossy(&output.stderr);
    match output.status.success() {
        true => Ok(String::from_utf8_lossy(&output.stdout).into_owned()),
        false => Err(format!("{program} {}: {error}", args.join(" "))),
    }
}

impl Hosts {
    /// The link passes `rate` of each direction, in the words of `tc`; all that it can without.
    fn new(rate: Option<&str>) -> Result<Hosts, String> {
        let id = std::process::id();
        let hosts = Hosts { names: ["a", "b"].map(|end| format!("forebay-{id}-{end}")) };
        hosts.names.iter().try_for_each(|name| run("ip", &["netns", "add", name]).map(drop))?;
        let [a, b] = &hosts.names;
        let pair = ["link", "add", "link0", "netns", a, "type", "veth", "peer", "name", "link0", "netns", b];
        run("ip", &pair)?;
        for (name, address) in hosts.names.iter().zip(HOSTS) {
            run("ip", &["-n", name, "addr", "add", &format!("{address}/24"), "dev", "link0"])?;
            run("ip", &["-n", name, "link", "set", "link0", "up"])?;
            run("ip", &["-n", name, "link", "set", "lo", "up"])?;
            if let Some(rate) = rate {
                let limit = ["root", "tbf", "rate", rate, "burst", "128kb", "latency", "200ms"];
                run("tc", &[&["-n", name, "qdisc", "add", "dev", "link0"], &limit[..]].concat())?;
            }
        }
        Ok(hosts)
    }

    /// Bytes that both have sent over the link.
    fn sent(&self) -> u64 {
        let of = |name: &String| {
            let file = "/sys/class/net/link0/statistics/tx_bytes";
            let text = run("ip", &["netns", "exec", name, "cat", file]).expect("the link counts");
            text.trim().parse::<u64>().expect("a number")
        };
        self.names.iter().map(of).sum()
    }

    /// Trains on both: the lines of the first, and the bytes that went over the link.
    fn train(&self, bench: &Bench, dispatch: &str) -> (Run, u64) {
        bench.write("hosts", HOSTS.map(|host| format!("{host}:7000 4\n")).concat());
        let before = self.sent();
        let start = |index: usize| -> Child {
            let strategy = format!("{STRATEGY},dispatch={dispatch}");
            let own = ["--hosts", "hosts", "--host-index", ["0", "1"][index], "--strategy", &strategy];
            let shared = ["train", "model.moe", "--data", "text.txt", "--json", "--steps", STEPS];
            let mut command = Command::new("ip");
            command.args(["netns", "exec", &self.names[index], env!("CARGO_BIN_EXE_forebay")]);
            command.args([&shared, SIZES, &own].concat()).current_dir(bench.path("."));
            command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("the program starts")
        };
        let [first, second] = [0, 1].map(start);
        let runs = [first, second].map(|child| Run::new(child.wait_with_output().expect("it ends")));
        let [first, second] = runs;
        second.ok();
        (first.ok(), self.sent() - before)
    }
}

impl Drop for Hosts {
    fn drop(&mut self) {
        for name in &self.names {
            // One that was never made cannot be taken away.
            let _ = run("ip", &["netns", "del", name]);
        }
    }
}

/// What keeps this test from running.
fn missing() -> Option<String> {
    match run("id", &["-u"]).as_deref().map(str::trim) {
        Ok("0") => {}
        _ => return Some("it takes root to make network namespaces".to_string()),
    }
    let tools = [("ip", "-V"), ("tc", "-V")];
    tools.into_iter().find_map(|(tool, flag)| run(tool, &[flag]).err())
}

/// Seconds of the fastest step, and the losses.
fn measured(run: &Run) -> (f64, Vec<f64>) {
    let number = |line: &Value, key: &str| line[key].as_f64();
    let lines: Vec<Value> = run.lines();
    let tokens = 8.0 * 256.0;
    let speeds = lines.iter().filter_map(|line| number(line, "tokens_per_s").filter(|_| line["step"].is_u64()));
    let losses = lines.iter().filter_map(|line| number(line, "loss")).collect();
    (tokens / speeds.fold(0.0, f64::max), losses)
}

/// Seconds of a step by the simulator, on two nodes with such links.
fn predicted(bench: &Bench, dispatch: &str, gbps: f64) -> f64 {
    let cluster = format!(
        "name = \"two hosts\"\n[device]\nname = \"core\"\ncores = 1\nvector_tflops = 0.02\nmemory_gb = 8\nmemory_gbps = 5\ncache_mb = 1\nsource = \"a guess\"\n\
         [device.cube]\nf32 = 0.03\nbf16 = 0.03\n[calibrated]\nproduct_efficiency = 0.8\nproduct_depth = 64\nattention_efficiency = 0.5\nmemory_efficiency = 0.8\nkernel_us = 20\n\
         link_efficiency = 0.9\nnetwork_efficiency = 0.9\noverlap_slowdown = 0.25\n\
         [[tier]]\nname = \"host\"\ndevices = 4\ngbps = 2\nlatency_us = 50\nsource = \"a guess\"\n\
         [[tier]]\nname = \"link\"\ngbps = {gbps}\nlatency_us = 200\nsource = \"tc\"\n"
    );
    bench.write("hosts.toml", cluster);
    let strategy = format!("{STRATEGY},dispatch={dispatch}");
    let sizes = &SIZES[..SIZES.len() - 2];
    let args =
        ["simulate", "model.moe", "--cluster", "hosts.toml", "--json", "--dtype", "f32", "--strategy", &strategy];
    let run = bench.run(&[&args[..], sizes].concat()).ok();
    let report: Value = serde_json::from_str(&run.stdout).expect("a report");
    report["step_time_s"].as_f64().expect("the seconds of a step")
}

/// Over a link of 200 Mbit/s, which four ranks share, tokens that cross it once are faster than rows that cross it for each expert: by the clock, by the bytes, and by the simulator. Without a limit the
/// rows are faster, by the clock and the simulator.
#[test]
#[ignore = "needs root, `ip` and `tc`, and minutes"]
fn two_hosts_exchange_less_with_tokens_once_to_each_node() {
    if let Some(why) = missing() {
        panic!("it cannot be run here: {why}");
    }
    let bench = Bench::new();
    for (rate, gbps) in [(Some("200mbit"), 0.025 / 4.0), (None, 2.0)] {
        let hosts = Hosts::new(rate).unwrap_or_else(|e| panic!("{e}"));
        let [(flat, flat_bytes), (apart, apart_bytes)] = ["flat", "hierarchical"].map(|way| hosts.train(&bench, way));
        let [flat_by_model, apart_by_model] = ["flat", "hierarchical"].map(|way| predicted(&bench, way, gbps));
        let ((flat_s, flat_losses), (apart_s, apart_losses)) = (measured(&flat), measured(&apart));
        eprintln!(
            "link {}: flat {flat_s:.3} s, {flat_bytes} bytes (simulated {flat_by_model:.3} s); hierarchical {apart_s:.3} s, {apart_bytes} bytes (simulated {apart_by_model:.3} s)",
            rate.unwrap_or("unlimited"),
        );
        assert_eq!(flat_losses.len(), apart_losses.len());
        assert!(flat_losses.iter().zip(&apart_losses).all(|(a, b)| (a - b).abs() < 1e-3 * a.abs()));
        assert!(apart_bytes < flat_bytes, "{apart_bytes} of {flat_bytes} bytes");
        match rate {
            Some(_) => assert!(apart_s < flat_s && apart_by_model < flat_by_model, "{apart_s} s against {flat_s} s"),
            None => assert!(flat_s < apart_s && flat_by_model < apart_by_model, "{flat_s} s against {apart_s} s"),
        }
    }
}
