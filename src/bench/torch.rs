//! PyTorch in a process of its own: it does as many steps as it is asked for, and waits in between.

use crate::failure::Failure;
use serde::{Deserialize, Serialize};
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::Instant;

/// The peer, which an installed program has in it.
const SCRIPT: &str = include_str!("../../benches/torch_peer.py");
const HELP: &str = "the comparison takes an interpreter with a PyTorch that has `grouped_mm` (tried with 2.15), for example:\n    python3 -m venv VENV && VENV/bin/pip install torch\n    forebay bench --peers --python VENV/bin/python";
/// Lines of what the peer wrote to stderr that are shown when it fails.
const SHOWN: usize = 8;

/// The model's sizes and how to train it, as the script takes them.
#[derive(Clone, Debug, Serialize)]
pub struct Spec {
    pub d: u64,
    pub heads: u64,
    pub layers: u64,
    pub experts: u64,
    pub topk: u64,
    pub ffn: u64,
    pub vocab: u64,
    pub seq: u64,
    pub batch: u64,
    pub lr: f64,
    pub beta1: f64,
    pub beta2: f64,
    pub epsilon: f64,
    pub weight_decay: f64,
    pub clip: f64,
    pub threads: usize,
    pub dtype: String,
    pub compile: bool,
    /// Batches that come one after the other, again and again.
    pub batches: u64,
    /// How many rows of each come last instead of first.
    pub turn: u64,
    pub dump: Option<PathBuf>,
}

/// A way to run it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Variant {
    pub name: &'static str,
    pub compile: bool,
    /// Freed memory stays with the process, instead of going back to the system and coming again page by page.
    pub tuned_allocator: bool,
}

/// What a user may reasonably do.
pub const VARIANTS: [Variant; 4] = [
    Variant { name: "eager", compile: false, tuned_allocator: false },
    Variant { name: "eager, tuned allocator", compile: false, tuned_allocator: true },
    Variant { name: "compile", compile: true, tuned_allocator: false },
    Variant { name: "compile, tuned allocator", compile: true, tuned_allocator: true },
];

/// glibc's: nothing from `mmap`, nothing given back.
const ALLOCATOR: [(&str, &str); 2] = [("MALLOC_MMAP_MAX_", "0"), ("MALLOC_TRIM_THRESHOLD_", "1099511627776")];

/// What the script answers.
#[derive(Debug, Deserialize)]
pub struct Answer {
    pub torch: String,
    /// Milliseconds of each step.
    pub ms: Vec<f64>,
    /// Of each step, before its update.
    pub losses: Vec<f64>,
    /// The most memory that the process had so far.
    pub peak_bytes: Option<u64>,
}

/// An interpreter that has torch, and a folder for the script.
pub struct Torch {
    python: PathBuf,
    folder: tempfile::TempDir,
}

impl Torch {
    /// Looks whether there is torch.
    pub fn find(python: &Path) -> Result<Torch, Failure> {
        let name = python.display();
        let check = "import torch.nn.functional as f; f.grouped_mm";
        let output = Command::new(python).args(["-c", check]).output();
        let output = output.map_err(|error| Failure::Input(format!("cannot start `{name}`: {error}\n{HELP}")))?;
        if !output.status.success() {
            let why = String::from_utf8_lossy(&output.stderr);
            let why = why.trim().lines().last().unwrap_or("it failed");
            return Err(Failure::Input(format!("`{name}` has no usable PyTorch ({why})\n{HELP}")));
        }
        let folder = tempfile::tempdir()?;
        fs::write(folder.path().join("peer.py"), SCRIPT)?;
        Ok(Torch { python: python.to_path_buf(), folder })
    }

    /// A file that the peer may write.
    pub fn file(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Starts the peer.
    pub fn start(&self, spec: &Spec, variant: Variant) -> Result<Peer, Failure> {
        let log = self.file("stderr");
        let mut command = Command::new(&self.python);
        command.arg(self.file("peer.py")).arg(serde_json::to_string(spec)?);
        command.env("OMP_NUM_THREADS", spec.threads.to_string());
        if variant.tuned_allocator {
            command.envs(ALLOCATOR);
        }
        let started = Instant::now();
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(fs::File::create(&log)?).spawn()?;
        let (stdin, stdout) = (child.stdin.take().expect("it is piped"), child.stdout.take().expect("it is piped"));
        Ok(Peer { child, stdin, stdout: BufReader::new(stdout), started, log })
    }
}

/// The process.
pub struct Peer {
    child: Child,
    stdin: ChildStdin,
    stdout: BufReader<ChildStdout>,
    /// When it was started.
    pub started: Instant,
    log: PathBuf,
}

impl Peer {
    /// Has it do so many steps.
    pub fn steps(&mut self, steps: u64) -> Result<Answer, Failure> {
        let mut line = String::new();
        let asked = writeln!(self.stdin, "{steps}").and_then(|()| self.stdin.flush());
        let answered = asked.and_then(|()| self.stdout.read_line(&mut line));
        match (answered, serde_json::from_str(&line)) {
            (Ok(_), Ok(answer)) => Ok(answer),
            _ => {
                let log = fs::read(&self.log).unwrap_or_default();
                let log = String::from_utf8_lossy(&log);
                let lines: Vec<&str> = log.trim_end().lines().collect();
                let last = lines[lines.len().saturating_sub(SHOWN)..].join("\n  ");
                Err(Failure::Input(format!("PyTorch's side failed:\n  {last}")))
            }
        }
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        // Whatever it does now is of no use.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
