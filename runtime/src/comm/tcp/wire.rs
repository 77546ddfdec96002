//! One connection: a queue that a thread sends from, and a thread that receives.

use super::frame::{Header, Kind};
use super::office::Office;
use crate::comm::watch::lock;
use std::collections::VecDeque;
use std::io::{self, BufReader, BufWriter, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::sync::{Condvar, Mutex, PoisonError};
use std::time::Duration;

/// How often a connection carries something, if only a sign of life.
pub(super) const BEAT: Duration = Duration::from_millis(500);
/// A process that sends nothing for so long, or takes nothing, is gone.
pub(super) const SILENCE: Duration = Duration::from_secs(5);
/// Bytes that are read and written at once.
const AT_ONCE: usize = 64 << 10;
/// How many messages' memory is kept for the next ones, and the largest that is: beside sending a larger one, allocating it takes no time.
const KEPT: usize = 64;
const KEPT_BYTES: usize = 16 << 20;

/// What waits to be sent.
#[derive(Debug, Default)]
pub(super) struct Wire {
    out: Mutex<Out>,
    bell: Condvar,
}

#[derive(Debug, Default)]
struct Out {
    queue: VecDeque<(Header, Vec<u8>)>,
    /// Memory of messages that were sent.
    free: Vec<Vec<u8>>,
    /// Nothing will be posted any more.
    closing: bool,
    /// Nothing can be sent any more.
    broken: bool,
}

impl Wire {
    /// Memory for a message, in which there may be another one.
    pub fn memory(&self) -> Vec<u8> {
        lock(&self.out).free.pop().unwrap_or_default()
    }

    /// Queues a frame: never waits.
    pub fn post(&self, header: Header, body: Vec<u8>) {
        let mut out = lock(&self.out);
        if !out.broken && !out.closing {
            out.queue.push_back((header, body));
            self.bell.notify_one();
        }
    }

    /// What is queued is the last.
    pub fn close(&self) {
        lock(&self.out).closing = true;
        self.bell.notify_one();
    }

    /// The next frame; a sign of life when there is none for a while; `None` at the end.
    fn next(&self, sent: Option<Vec<u8>>) -> Option<(Header, Vec<u8>)> {
        let mut out = lock(&self.out);
        if let Some(memory) = sent.filter(|memory| out.free.len() < KEPT && memory.capacity() <= KEPT_BYTES) {
            out.free.push(memory);
        }
        if out.queue.is_empty() && !out.closing {
            out = self.bell.wait_timeout(out, BEAT).unwrap_or_else(PoisonError::into_inner).0;
        }
        match out.queue.pop_front() {
            None if out.closing => None,
            None => Some((Header::sign(Kind::Beat), vec![])),
            frame => frame,
        }
    }

    fn is_idle(&self) -> bool {
        lock(&self.out).queue.is_empty()
    }
}

/// Sends to a process until the wire is closed.
pub(super) fn send(office: &Office, process: u32, stream: &TcpStream) {
    let wire = office.wire(process);
    if let Err(error) = write_frames(wire, stream) {
        let mut out = lock(&wire.out);
        out.broken = true;
        out.queue.clear();
        drop(out);
        office.disconnected(process, &described(&error));
    }
    // The other end reads what is under way, and then that it was the last.
    let _ = stream.shutdown(Shutdown::Write);
}

fn write_frames(wire: &Wire, stream: &TcpStream) -> io::Result<()> {
    let mut to = BufWriter::with_capacity(AT_ONCE, stream);
    let mut sent = None;
    while let Some((header, body)) = wire.next(sent.take()) {
        to.write_all(&header.encode())?;
        to.write_all(&body)?;
        if wire.is_idle() {
            to.flush()?;
        }
        sent = Some(body);
    }
    to.flush()
}

/// Receives from a process until it has no more.
pub(super) fn receive(office: &Office, process: u32, stream: &TcpStream) {
    if let Err(error) = read_frames(office, process, stream) {
        office.disconnected(process, &described(&error));
        // Whatever still comes is not looked at; but what was sent to it must not be lost because something here is unread.
        let _ = io::copy(&mut &*stream, &mut io::sink());
    }
}

fn read_frames(office: &Office, process: u32, stream: &TcpStream) -> io::Result<()> {
    let mut from = BufReader::with_capacity(AT_ONCE, stream);
    loop {
        let header = Header::read(&mut from)?;
        let wrong = |why| io::Error::new(io::ErrorKind::InvalidData, why);
        let mut body = office.accept(process, &header).map_err(wrong)?;
        from.read_exact(&mut body)?;
        office.deliver(process, &header, body);
    }
}

fn described(error: &io::Error) -> String {
    use io::ErrorKind::{BrokenPipe, ConnectionAborted, ConnectionReset, TimedOut, UnexpectedEof, WouldBlock};
    match error.kind() {
        WouldBlock | TimedOut => format!("nothing was heard of it for {} s", SILENCE.as_secs()),
        UnexpectedEof | ConnectionReset | ConnectionAborted | BrokenPipe => "its connection was closed".into(),
        _ => error.to_string(),
    }
}
