//! The trace event format that chrome://tracing and ui.perfetto.dev read: an object with `traceEvents`, times in µs.
//!
//! [`profile`] writes what a run did, [`device`] what emulated devices did, [`simulated`] what a simulated step would do.

pub mod device;
pub mod profile;
pub mod simulated;

use serde_json::{Value, json};

/// Where an event stands: the process, a rank or role, and a thread of it.
#[derive(Clone, Copy, Debug)]
struct Track {
    pid: u64,
    tid: u64,
}

/// A file as it grows: events are text at once, so that a long trace takes no more memory than its file.
struct Writer {
    text: String,
    events: usize,
}

impl Writer {
    fn new() -> Writer {
        Writer { text: r#"{"displayTimeUnit":"ms","traceEvents":["#.into(), events: 0 }
    }

    fn event(&mut self, event: &Value) {
        if self.events > 0 {
            self.text.push(',');
        }
        self.text += &event.to_string();
        self.events += 1;
    }

    fn process_name(&mut self, pid: u64, name: &str) {
        self.metadata("process_name", Track { pid, tid: 0 }, name);
    }

    fn thread_name(&mut self, track: Track, name: &str) {
        self.metadata("thread_name", track, name);
    }

    fn metadata(&mut self, what: &str, Track { pid, tid }: Track, name: &str) {
        self.event(&json!({ "ph": "M", "pid": pid, "tid": tid, "name": what, "args": { "name": name } }));
    }

    /// Something that takes time; begin and duration in µs. The kind is its category as well.
    fn slice(&mut self, Track { pid, tid }: Track, name: &str, (ts, dur): (f64, f64), args: Value) {
        self.event(&json!({
            "ph": "X", "pid": pid, "tid": tid, "name": name, "cat": args["kind"], "ts": ts, "dur": dur, "args": args,
        }));
    }

    /// A number from a time (µs) on.
    fn counter(&mut self, pid: u64, name: &str, ts: f64, values: Value) {
        self.event(&json!({ "ph": "C", "pid": pid, "name": name, "ts": ts, "args": values }));
    }

    /// An arrow from the slice around one place and time (µs) to that around another.
    fn arrow(&mut self, id: usize, name: &str, from: (Track, f64), to: (Track, f64)) {
        let mut end = |ph: &str, (Track { pid, tid }, ts): (Track, f64)| {
            self.event(&json!({
                "ph": ph, "bp": "e", "id": id, "cat": "message", "name": name, "pid": pid, "tid": tid, "ts": ts,
            }));
        };
        end("s", from);
        end("f", to);
    }

    /// The file; `about` is for its reader.
    fn finish(mut self, about: &str) -> String {
        self.text += &format!(r#"],"otherData":{}}}"#, json!({ "about": about }));
        self.text
    }
}
