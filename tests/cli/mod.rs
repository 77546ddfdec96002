//! The command line, end to end: what a user types, sees and finds on disk.

mod bad_input;
mod bench;
mod check;
mod compile;
mod explain;
mod fmt;
mod generate;
mod help;
mod hosts;
mod memory;
mod npu;
mod profile;
mod resume;
mod schedule;
mod simulate;
mod strategy;
mod timeline;
mod train;
mod two_hosts;
mod validate;
mod written;

use serde_json::Value;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use tempfile::TempDir;

/// Sizes at which a step takes a moment.
const SMALL: &[&str] =
    &["--set", "layers=2", "d=32", "f=32", "experts=4", "--batch", "4", "--seq", "32", "--threads", "1"];

/// A cluster file of a machine that was measured, of two cores and with a sample of each kind.
fn measured_machine() -> String {
    let device = fs::read_to_string(example("tiny-moe").with_file_name("../clusters/h100.toml")).expect("a cluster");
    let sample = "\n[measured]\ncores = 2\n[[measured.product]]\nthreads = 1\ntype = \"f32\"\nm = 64\nn = 256\nk = 256\ngflops = 20\n\
                  [[measured.attention]]\nthreads = 1\nbackward = false\nqueries = 256\nhead = 32\ngflops = 10\n\
                  [[measured.vector]]\nthreads = 2\nbytes = 1e6\nintensity = 0.1\ngbps = 20\n\
                  [[measured.sharing]]\nranks = 4\nfactor = 1.25\n";
    device + sample
}

/// A folder to work in, with a corpus and a model.
struct Bench {
    folder: TempDir,
}

impl Bench {
    fn new() -> Bench {
        let bench = Bench { folder: tempfile::tempdir().expect("a temporary folder") };
        fs::copy(example("tiny-moe"), bench.path("model.moe")).expect("the model is copied");
        bench.write("text.txt", corpus());
        bench
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn write(&self, name: &str, text: impl AsRef<[u8]>) {
        let path = self.path(name);
        fs::create_dir_all(path.parent().expect("it is in the folder")).expect("a folder");
        fs::write(path, text).expect("a file");
    }

    fn read(&self, name: &str) -> String {
        fs::read_to_string(self.path(name)).expect("a text file")
    }

    /// The command, in the folder.
    fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_forebay"));
        command.current_dir(self.folder.path()).args(args).env_remove("RUST_BACKTRACE");
        command
    }

    fn run(&self, args: &[&str]) -> Run {
        Run::new(self.command(args).output().expect("the program starts"))
    }

    /// `train model.moe --data text.txt` at a small size.
    fn train(&self, args: &[&str]) -> Run {
        self.run(&[&["train", "model.moe", "--data", "text.txt"], SMALL, args].concat())
    }

    fn names(&self, folder: &str) -> Vec<String> {
        let entries = fs::read_dir(self.path(folder)).expect("a folder").flatten();
        let mut names: Vec<String> = entries.map(|e| e.file_name().to_string_lossy().into_owned()).collect();
        names.sort();
        names
    }
}

fn example(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("examples/models").join(format!("{name}.moe"))
}

/// Twenty kilobytes in which there is something to learn.
fn corpus() -> String {
    let words = ["the", "router", "sends", "each", "token", "to", "an", "expert", "that", "knows", "about", "it"];
    let mut text = String::new();
    let mut state = 1u64;
    while text.len() < 20_000 {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        text.push_str(words[(state >> 33) as usize % words.len()]);
        text.push_str(if state >> 40 & 15 == 0 { ".\n\n" } else { " " });
    }
    text
}

/// What the program did.
#[derive(Debug)]
struct Run {
    code: Option<i32>,
    stdout: String,
    stderr: String,
}

impl Run {
    fn new(output: Output) -> Run {
        let text = |bytes| String::from_utf8_lossy(bytes).into_owned();
        Run { code: output.status.code(), stdout: text(&output.stdout), stderr: text(&output.stderr) }
    }

    #[track_caller]
    fn ok(self) -> Run {
        assert_eq!(self.code, Some(0), "{}", self.stderr);
        self
    }

    /// It refused its input, and said these things.
    #[track_caller]
    fn fails(self, parts: &[&str]) {
        self.exits(1, parts);
    }

    #[track_caller]
    fn exits(self, code: i32, parts: &[&str]) {
        for part in parts {
            assert!(self.stderr.contains(part), "`{part}` is not in:\n{}", self.stderr);
        }
        assert_eq!(self.code, Some(code), "{}", self.stderr);
    }

    /// The lines of JSON.
    #[track_caller]
    fn lines(&self) -> Vec<Value> {
        self.stdout.lines().map(|l| serde_json::from_str(l).unwrap_or_else(|e| panic!("{e}: {l}"))).collect()
    }

    /// The losses by step, to the last bit.
    #[track_caller]
    fn losses(&self) -> Vec<(u64, u64)> {
        let lines = self.lines();
        let steps = lines.iter().filter_map(|l| Some((l["step"].as_u64()?, l["loss"].as_f64()?.to_bits())));
        steps.collect()
    }
}
