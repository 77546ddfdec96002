//! A process's connections to all others.

use super::frame::{Header, Kind};
use super::join::Joining;
use super::limits::Limits;
use super::link::Link;
use super::office::Office;
use super::{JoinError, wire};
use crate::comm::{CommError, Transport};
use forebay_plan::Plan;
use std::net::{Shutdown, TcpStream};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak, mpsc};
use std::thread::{Builder, JoinHandle};
use std::time::Duration;

/// How long the others may take to close their ends.
const PARTING: Duration = Duration::from_secs(2);

/// The connections of this process to all others. Dropping it sends what is queued, and closes them.
#[derive(Debug)]
pub struct Network {
    pub(super) office: Arc<Office>,
    streams: Vec<Arc<TcpStream>>,
    senders: Vec<JoinHandle<()>>,
    receivers: Vec<JoinHandle<()>>,
    /// Disconnected when all receivers are done.
    received: mpsc::Receiver<()>,
}

impl Network {
    /// Finds all other processes, which run the same plan. A wait for another rank that takes longer than `stall` is an error.
    ///
    /// # Errors
    /// When not all come, or they are about to do something else.
    pub fn join(plan: &Plan, joining: Joining, stall: Duration) -> Result<Network, JoinError> {
        let (me, ranks) = (joining.process, joining.ranks.to_vec());
        let office = Arc::new(Office::new(me, &ranks, Limits::of(plan), stall));
        let (done, received) = mpsc::channel();
        let mut network = Network { office, streams: vec![], senders: vec![], receivers: vec![], received };
        for (process, stream) in (0..).zip(joining.connect()?) {
            let Some(stream) = stream else { continue };
            let set = stream
                .set_nodelay(true)
                .and_then(|()| stream.set_read_timeout(Some(wire::SILENCE)))
                .and_then(|()| stream.set_write_timeout(Some(wire::SILENCE)));
            set.map_err(JoinError::Socket)?;
            network.serve(process, stream, done.clone())?;
        }
        Ok(network)
    }

    /// Starts the threads of a connection.
    fn serve(&mut self, process: u32, stream: TcpStream, done: mpsc::Sender<()>) -> Result<(), JoinError> {
        let stream = Arc::new(stream);
        let thread = |what: &str| Builder::new().name(format!("forebay-{what}-{process}"));
        let (office, from) = (Arc::clone(&self.office), Arc::clone(&stream));
        let receiver = thread("recv").spawn(move || {
            wire::receive(&office, process, &from);
            drop(done);
        });
        let (office, to) = (Arc::clone(&self.office), Arc::clone(&stream));
        let sender = thread("send").spawn(move || wire::send(&office, process, &to));
        self.streams.push(stream);
        self.receivers.push(receiver.map_err(JoinError::Socket)?);
        self.senders.push(sender.map_err(JoinError::Socket)?);
        Ok(())
    }

    /// Looks at the run from outside, for as long as it goes on.
    pub fn lookout(&self) -> Lookout {
        Lookout(Arc::downgrade(&self.office))
    }

    /// The ends of this process's ranks.
    pub(crate) fn links(&self, plan: &Plan) -> Vec<Box<dyn Transport>> {
        let link = |rank| -> Box<dyn Transport> { Box::new(Link::new(plan, rank, Arc::clone(&self.office))) };
        self.office.ranks_of(self.office.me).map(link).collect()
    }

    /// This process has done its work, as have all others that it needs.
    pub(in crate::comm) fn bye(&self) {
        self.office.closing.store(true, Ordering::SeqCst);
        self.office.wires().for_each(|wire| wire.post(Header::sign(Kind::Bye), vec![]));
    }

    pub(in crate::comm) fn process(&self) -> u32 {
        self.office.me
    }

    pub(in crate::comm) fn processes(&self) -> u32 {
        self.office.processes()
    }

    pub(in crate::comm) fn ranks_of(&self, process: u32) -> std::ops::Range<u32> {
        self.office.ranks_of(process)
    }

    /// Sends something from this process to another one.
    pub(in crate::comm) fn tell(&self, to: u32, channel: u32, bytes: &[u8]) -> Result<(), CommError> {
        self.office.watch.check()?;
        let ends = (self.office.end_of(self.office.me), self.office.end_of(to));
        self.office.send(ends, (Kind::Message, channel), |message| {
            message.clear();
            message.extend_from_slice(bytes);
        });
        Ok(())
    }

    /// Waits for what another process sends to this one, which has as many bytes.
    pub(in crate::comm) fn hear(&self, from: u32, channel: u32, bytes: &mut [u8]) -> Result<(), CommError> {
        let (from, to) = (self.office.end_of(from), self.office.end_of(self.office.me));
        let have = self.office.receive((from, to), (Kind::Message, channel), |message| {
            if message.len() == bytes.len() {
                bytes.copy_from_slice(message);
            }
            message.len()
        })?;
        if have == bytes.len() { Ok(()) } else { Err(self.office.wrong_length(from, have, bytes.len())) }
    }

    /// This process has given up.
    pub(in crate::comm) fn fail(&self, why: &str) {
        self.office.fail(self.office.end_of(self.office.me), why);
    }
}

/// Sees whether a run that has failed comes to its end in this process: a rank that computes for ever hears of nothing.
#[derive(Clone, Debug)]
pub struct Lookout(Weak<Office>);

impl Lookout {
    /// Is the run still there?
    pub fn goes_on(&self) -> bool {
        self.0.strong_count() > 0
    }

    /// Why it has failed, if it has.
    pub fn failure(&self) -> Option<String> {
        self.0.upgrade()?.watch.check().err().map(|error| error.to_string())
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        self.office.closing.store(true, Ordering::SeqCst);
        self.office.wires().for_each(|wire| wire.close());
        self.senders.drain(..).for_each(|thread| drop(thread.join()));
        // Ends that still send are read to the end, so that they get to read what was sent to them.
        let _ = self.received.recv_timeout(PARTING);
        self.streams.iter().for_each(|stream| drop(stream.shutdown(Shutdown::Both)));
        self.receivers.drain(..).for_each(|thread| drop(thread.join()));
    }
}
