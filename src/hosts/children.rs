//! Processes of this machine that a run starts by itself.
//!
//! A child does what its parent does, and is told which process of the run it is. It reads its standard input, on which nothing comes: when that ends, the parent has
//! ended, in whatever way, and so does the child.

use crate::failure::Failure;
use std::ffi::OsString;
use std::io::{self, Read};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// How long children may take to end by themselves, and when they have been asked to.
const PATIENCE: Duration = Duration::from_secs(3);
const INSISTENCE: Duration = Duration::from_secs(1);
const PAUSE: Duration = Duration::from_millis(10);
/// Bytes of what a child says that are kept.
const MOST_WORDS: usize = 16 << 10;

/// Running children; none is left when this is dropped.
#[derive(Debug, Default)]
pub struct Children {
    all: Vec<Running>,
}

#[derive(Debug)]
struct Running {
    process: u32,
    child: Child,
    /// Reads what it says.
    words: Option<JoinHandle<String>>,
}

impl Children {
    /// Starts processes 1 … n−1 of a run: this program with the same arguments, and where process 0 is.
    pub fn start(processes: u32, rendezvous: &str) -> Result<Children, Failure> {
        let failed = |error: io::Error| Failure::Input(format!("cannot start another process of the run: {error}"));
        let program = std::env::current_exe().map_err(failed)?;
        let mut args = std::env::args_os().skip(1);
        let command: Vec<OsString> = args.by_ref().take(1).collect();
        let rest: Vec<OsString> = args.collect();
        let mut children = Children::default();
        for process in 1..processes {
            let mut started = Command::new(&program)
                .args(&command)
                .args(["--host-index", &process.to_string(), "--rendezvous", rendezvous])
                .args(&rest)
                .stdin(Stdio::piped())
                .stdout(Stdio::null())
                .stderr(Stdio::piped())
                .spawn()
                .map_err(failed)?;
            let words = started.stderr.take().map(|from| std::thread::spawn(move || first_words(from)));
            children.all.push(Running { process, child: started, words });
        }
        Ok(children)
    }

    /// A child that has ended, which none should while the run goes on: who, how, and what it said.
    pub fn ended(&mut self) -> Option<String> {
        self.all.iter_mut().find_map(|running| {
            let status = running.child.try_wait().ok()??;
            Some(running.obituary(status))
        })
    }

    /// After a run that has failed: waits a moment, and ends those that have not done so themselves. Returns what others can say nothing of: who was
    /// killed, who panicked, who had to be ended.
    pub fn fallen(&mut self) -> Vec<String> {
        self.wait(INSISTENCE);
        let fallen = |running: &mut Running| match running.child.try_wait().ok()? {
            Some(status) => status.code().is_none_or(|code| code > 100).then(|| running.obituary(status)),
            None => {
                running.end();
                Some(format!("process {} did not end by itself", running.process))
            }
        };
        self.all.iter_mut().filter_map(fallen).collect()
    }

    /// Waits until all have ended, but not for long.
    fn wait(&mut self, limit: Duration) {
        let deadline = Instant::now() + limit;
        while Instant::now() < deadline && !self.all_ended() {
            std::thread::sleep(PAUSE);
        }
    }

    fn all_ended(&mut self) -> bool {
        self.all.iter_mut().all(|running| !matches!(running.child.try_wait(), Ok(None)))
    }
}

impl Running {
    /// (Nothing happens to one that has ended.)
    fn end(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    fn obituary(&mut self, status: ExitStatus) -> String {
        let words = self.words.take().and_then(|thread| thread.join().ok()).unwrap_or_default();
        let words = words.trim();
        let said = if words.is_empty() { String::new() } else { format!(":\n{words}") };
        format!("process {} has ended ({status}){said}", self.process)
    }
}

impl Drop for Children {
    fn drop(&mut self) {
        self.wait(PATIENCE);
        self.all.iter_mut().for_each(|running| drop(running.child.stdin.take()));
        self.wait(INSISTENCE);
        self.all.iter_mut().for_each(Running::end);
    }
}

/// Reads all, and keeps the beginning.
fn first_words(mut from: impl Read) -> String {
    let mut words = vec![];
    let _ = from.by_ref().take(MOST_WORDS as u64).read_to_end(&mut words);
    let _ = io::copy(&mut from, &mut io::sink());
    String::from_utf8_lossy(&words).into_owned()
}

/// In a child: ends with the parent.
pub fn end_with_parent() {
    std::thread::spawn(|| {
        let _ = io::copy(&mut io::stdin().lock(), &mut io::sink());
        std::process::exit(1);
    });
}
