//! Who is where, and the delivery of messages.
//!
//! *Ends* send and receive: all ranks of the run, by number, and behind them one for each process, for what it does besides its ranks' work.

use super::frame::{Header, Kind, MOST_WORDS, lane};
use super::limits::Limits;
use super::wire::Wire;
use crate::comm::inbox::Inbox;
use crate::comm::watch::Watch;
use crate::comm::{CommError, Who};
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// What all ends of a process share.
#[derive(Debug)]
pub(super) struct Office {
    /// This process.
    pub me: u32,
    /// For each process its first rank, and last the number of ranks.
    firsts: Vec<u32>,
    pub watch: Watch,
    /// Of the ranks of this process, and last of itself.
    inboxes: Vec<Inbox>,
    /// To each process; not to this one.
    wires: Vec<Option<Wire>>,
    /// For each process: has it done its work?
    left: Vec<AtomicBool>,
    /// This process has done its work: what happens to the others does not matter to it.
    pub closing: AtomicBool,
    /// The others know that an end of this process has given up.
    told: AtomicBool,
    limits: Limits,
}

impl Office {
    /// Of process `me` of processes with so many ranks.
    pub fn new(me: u32, ranks: &[u32], limits: Limits, stall: Duration) -> Office {
        let mut firsts = vec![0];
        ranks.iter().for_each(|n| firsts.push(firsts[firsts.len() - 1] + n));
        let own = firsts[me as usize]..firsts[me as usize + 1];
        Office {
            me,
            watch: Watch::new(own.clone(), stall),
            inboxes: (own.start..=own.end).map(|_| Inbox::default()).collect(),
            wires: (0..ranks.len() as u32).map(|p| (p != me).then(Wire::default)).collect(),
            left: ranks.iter().map(|_| AtomicBool::new(false)).collect(),
            closing: AtomicBool::new(false),
            told: AtomicBool::new(false),
            firsts,
            limits,
        }
    }

    pub fn processes(&self) -> u32 {
        self.wires.len() as u32
    }

    /// The ranks of a process.
    pub fn ranks_of(&self, process: u32) -> Range<u32> {
        self.firsts[process as usize]..self.firsts[process as usize + 1]
    }

    /// The end of a process.
    pub fn end_of(&self, process: u32) -> u32 {
        self.firsts[self.firsts.len() - 1] + process
    }

    /// Where an end is; `None` when there is no such end.
    pub fn process_of(&self, end: u32) -> Option<u32> {
        let ranks = self.end_of(0);
        match end.checked_sub(ranks) {
            Some(process) => (process < self.processes()).then_some(process),
            None => Some(self.firsts.partition_point(|first| *first <= end) as u32 - 1),
        }
    }

    fn who(&self, end: u32) -> Who {
        end.checked_sub(self.end_of(0)).map_or(Who::Rank(end), Who::Process)
    }

    pub fn wire(&self, process: u32) -> &Wire {
        self.wires[process as usize].as_ref().expect("no process has a wire to itself")
    }

    pub fn wires(&self) -> impl Iterator<Item = &Wire> {
        self.wires.iter().flatten()
    }

    /// The inbox of an end of this process.
    fn inbox(&self, end: u32) -> Option<&Inbox> {
        let own = self.ranks_of(self.me);
        if end == self.end_of(self.me) {
            return self.inboxes.last();
        }
        own.contains(&end).then(|| &self.inboxes[(end - own.start) as usize])
    }

    /// Sends what `write` writes into a message that may hold an old one.
    pub fn send(&self, (from, to): (u32, u32), (kind, channel): (Kind, u32), write: impl FnOnce(&mut Vec<u8>)) {
        if let Some(inbox) = self.inbox(to) {
            let number = lane(kind, channel);
            let mut message = inbox.memory(from, number);
            write(&mut message);
            return inbox.put(from, number, message);
        }
        let process = self.process_of(to).expect("messages go to ends that there are");
        let wire = self.wire(process);
        let mut message = wire.memory();
        write(&mut message);
        wire.post(Header { kind, to, from, channel, bytes: message.len() as u64 }, message);
    }

    /// Waits for the next message, and lets `read` see it.
    pub fn receive<T>(
        &self,
        (from, to): (u32, u32),
        (kind, channel): (Kind, u32),
        read: impl FnOnce(&[u8]) -> T,
    ) -> Result<T, CommError> {
        let inbox = self.inbox(to).expect("ends receive in their own process");
        let process = self.process_of(from).expect("messages come from ends that there are");
        let (number, left) = (lane(kind, channel), &self.left[process as usize]);
        let message = inbox.take(&self.watch, to, (from, number), || left.load(Ordering::SeqCst))?;
        let Some(message) = message else { return Err(self.lost(process, "it has done its work")) };
        let result = read(&message);
        // What processes tell each other is seldom or large.
        if to < self.end_of(0) {
            inbox.recycle(from, number, message);
        }
        Ok(result)
    }

    /// A message of another length than is due.
    pub fn wrong_length(&self, from: u32, have: usize, due: usize) -> CommError {
        self.wrong(from, &format!("{have} bytes where {due} are due"))
    }

    /// A message that is not what is due.
    pub fn wrong(&self, from: u32, what: &str) -> CommError {
        let process = self.process_of(from).expect("messages come from ends that there are");
        self.lost(process, &format!("it sent {what}"))
    }

    fn lost(&self, process: u32, why: &str) -> CommError {
        let ranks = self.ranks_of(process);
        CommError::Lost { process, ranks: (ranks.start, ranks.end), why: why.into() }
    }

    /// An end of this process has given up: everybody is told.
    pub fn fail(&self, end: u32, why: &str) {
        if self.closing.load(Ordering::SeqCst) {
            return;
        }
        self.end(CommError::Failed { who: self.who(end), why: why.into() });
        // What another end has said, all have heard; that a connection has broken, perhaps nobody else.
        let heard = matches!(self.watch.check(), Err(CommError::Failed { who, .. }) if who != self.who(end));
        if heard || self.told.swap(true, Ordering::SeqCst) {
            return;
        }
        let cut = (0..=why.len().min(MOST_WORDS)).rfind(|at| why.is_char_boundary(*at)).unwrap_or(0);
        for wire in self.wires() {
            let mut words = wire.memory();
            words.clear();
            words.extend_from_slice(&why.as_bytes()[..cut]);
            wire.post(Header { from: end, bytes: cut as u64, ..Header::sign(Kind::Failed) }, words);
        }
    }

    /// All is over, if it was not before.
    fn end(&self, reason: CommError) {
        self.watch.end(reason);
        self.inboxes.iter().for_each(Inbox::ring);
    }

    /// A connection has ended, or carries what it should not.
    pub fn disconnected(&self, process: u32, why: &str) {
        let expected = self.left[process as usize].load(Ordering::SeqCst) || self.closing.load(Ordering::SeqCst);
        if !expected {
            self.end(self.lost(process, why));
        }
    }

    /// Memory for a frame that comes from a process, or what is wrong with it.
    pub fn accept(&self, process: u32, header: &Header) -> Result<Vec<u8>, String> {
        let talk = header.to >= self.end_of(0);
        let known = match header.kind {
            Kind::Message | Kind::Part => {
                self.inbox(header.to).is_some() && self.process_of(header.from) == Some(process)
            }
            Kind::Failed => self.process_of(header.from) == Some(process),
            Kind::Bye | Kind::Beat => true,
        };
        if !known {
            return Err(format!("it sent a frame from {} to {}", header.from, header.to));
        }
        if !self.limits.allow(header.kind, talk, header.bytes) {
            return Err(format!("it sent a frame of {} bytes, more than the plan has", header.bytes));
        }
        let mut body = match (header.kind, self.inbox(header.to)) {
            (Kind::Message | Kind::Part, Some(inbox)) => inbox.memory(header.from, header.number()),
            _ => vec![],
        };
        body.resize(header.bytes as usize, 0);
        Ok(body)
    }

    /// A frame has come.
    pub fn deliver(&self, process: u32, header: &Header, body: Vec<u8>) {
        match header.kind {
            Kind::Message | Kind::Part => {
                let inbox = self.inbox(header.to).expect("it was accepted");
                inbox.put(header.from, header.number(), body);
            }
            Kind::Failed => {
                let why = String::from_utf8_lossy(&body).into_owned();
                self.end(CommError::Failed { who: self.who(header.from), why });
            }
            Kind::Bye => {
                self.left[process as usize].store(true, Ordering::SeqCst);
                self.inboxes.iter().for_each(Inbox::ring);
            }
            Kind::Beat => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn office() -> Office {
        let limits = Limits::of(&forebay_plan::testing::pipeline());
        Office::new(1, &[1, 2, 1], limits, Duration::from_secs(5))
    }

    #[test]
    fn ends_are_where_they_are() {
        let office = office();
        let places: Vec<Option<u32>> = (0..9).map(|end| office.process_of(end)).collect();
        assert_eq!(places, [Some(0), Some(1), Some(1), Some(2), Some(0), Some(1), Some(2), None, None]);
        assert!((0..8).all(|end| office.inbox(end).is_some() == [1, 2, 5].contains(&end)));
    }

    /// Frames that no plan has are refused before memory is taken for them.
    #[test]
    fn claims_are_not_believed() {
        let office = office();
        let header = |kind, from, to, bytes| Header { from, to, bytes, ..Header::sign(kind) };
        assert!(office.accept(0, &header(Kind::Part, 0, 1, 4)).is_ok());
        for (process, frame) in [
            (0, header(Kind::Part, 0, 1, 1 << 40)),
            (0, header(Kind::Message, 0, 1, u64::MAX)),
            (0, header(Kind::Message, 4, 5, 1 << 40)),
            (0, header(Kind::Failed, 0, 0, 1 << 20)),
            (0, header(Kind::Beat, 0, 0, 1)),
            // Of somebody else, to somebody else, to nobody.
            (0, header(Kind::Part, 3, 1, 4)),
            (0, header(Kind::Part, 0, 3, 4)),
            (0, header(Kind::Part, 0, 99, 4)),
            (2, header(Kind::Failed, 0, 0, 4)),
            (0, header(Kind::Part, 99, 1, 4)),
        ] {
            assert!(office.accept(process, &frame).is_err(), "{frame:?}");
        }
    }
}
