//! Messages that wait for whom they are for.

use super::CommError;
use super::watch::{Watch, lock};
use std::collections::VecDeque;
use std::sync::{Condvar, Mutex};

/// Messages for one receiver.
#[derive(Debug, Default)]
pub(super) struct Inbox {
    channels: Mutex<Vec<Channel>>,
    bell: Condvar,
}

/// Messages from one sender for one purpose.
#[derive(Debug)]
struct Channel {
    from: u32,
    number: u64,
    waiting: VecDeque<Vec<u8>>,
    /// Memory of messages that were read.
    free: Vec<Vec<u8>>,
}

impl Inbox {
    /// Memory for a message, in which there may be another one.
    pub fn memory(&self, from: u32, number: u64) -> Vec<u8> {
        find(&mut lock(&self.channels), from, number).free.pop().unwrap_or_default()
    }

    /// Delivers a message.
    pub fn put(&self, from: u32, number: u64, message: Vec<u8>) {
        find(&mut lock(&self.channels), from, number).waiting.push_back(message);
        self.bell.notify_all();
    }

    /// Waits for the next message of a sender and channel for `end`, whose inbox this is. `None` when there is none and the sender is `gone`.
    pub fn take(
        &self,
        watch: &Watch,
        end: u32,
        (from, number): (u32, u64),
        gone: impl Fn() -> bool,
    ) -> Result<Option<Vec<u8>>, CommError> {
        let mut channels = lock(&self.channels);
        find(&mut channels, from, number);
        let here = |channels: &Vec<Channel>| {
            channels.iter().any(|c| (c.from, c.number) == (from, number) && !c.waiting.is_empty()) || gone()
        };
        let mut channels = watch.wait(end, channels, &self.bell, here, |_| vec![from])?;
        Ok(find(&mut channels, from, number).waiting.pop_front())
    }

    /// Takes back the memory of a message that was read.
    pub fn recycle(&self, from: u32, number: u64, message: Vec<u8>) {
        find(&mut lock(&self.channels), from, number).free.push(message);
    }

    /// Wakes who waits, to look at what has changed elsewhere.
    pub fn ring(&self) {
        // Whoever looked before holds the lock until it sleeps, so nobody misses the bell.
        drop(lock(&self.channels));
        self.bell.notify_all();
    }
}

/// A channel, which is made when it is used for the first time.
fn find(channels: &mut Vec<Channel>, from: u32, number: u64) -> &mut Channel {
    let known = channels.iter().position(|c| (c.from, c.number) == (from, number));
    let at = known.unwrap_or_else(|| {
        channels.push(Channel { from, number, waiting: VecDeque::new(), free: vec![] });
        channels.len() - 1
    });
    &mut channels[at]
}
