//! What the processes of a run tell each other besides their ranks' work: numbers that all must know, and parts of tensors.
//!
//! All processes call the same methods in the same order. In a run of one process they come to nothing.

use super::CommError;
use super::tcp::Network;
use std::ops::Range;

/// What something is about that processes say to each other; each has a channel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Say {
    /// Values that all must know.
    Values,
    /// Which tensor is wanted.
    Want,
    /// A rank's part of a tensor.
    Part,
}

/// The processes of a run, as one of them sees it.
#[derive(Debug)]
pub struct Processes {
    /// How the others are reached, when there are any.
    network: Option<Network>,
    /// How many ranks there are.
    ranks: u32,
}

impl Processes {
    /// One process that has all ranks.
    pub(crate) fn one(ranks: u32) -> Processes {
        Processes { network: None, ranks }
    }

    /// Several, one of which is this one.
    pub(crate) fn several(network: Network, ranks: u32) -> Processes {
        Processes { network: Some(network), ranks }
    }

    /// The connections, when there are several.
    pub(crate) fn network(&self) -> Option<&Network> {
        self.network.as_ref()
    }

    /// Which one this is.
    pub fn me(&self) -> u32 {
        self.network.as_ref().map_or(0, Network::process)
    }

    /// How many there are.
    pub fn count(&self) -> u32 {
        self.network.as_ref().map_or(1, Network::processes)
    }

    /// All but this one.
    pub fn others(&self) -> impl Iterator<Item = u32> + use<> {
        let me = self.me();
        (0..self.count()).filter(move |process| *process != me)
    }

    /// The ranks of a process.
    pub fn ranks_of(&self, process: u32) -> Range<u32> {
        self.network.as_ref().map_or(0..self.ranks, |network| network.ranks_of(process))
    }

    /// The ranks of this process.
    pub fn own_ranks(&self) -> Range<u32> {
        self.ranks_of(self.me())
    }

    /// Sends something to another process.
    ///
    /// # Errors
    /// When somebody has given up.
    pub fn tell(&self, to: u32, about: Say, bytes: &[u8]) -> Result<(), CommError> {
        self.network.as_ref().map_or(Ok(()), |network| network.tell(to, about as u32, bytes))
    }

    /// Waits for what another process says, which has as many bytes.
    ///
    /// # Errors
    /// When it does not come.
    pub fn hear(&self, from: u32, about: Say, bytes: &mut [u8]) -> Result<(), CommError> {
        self.network.as_ref().map_or(Ok(()), |network| network.hear(from, about as u32, bytes))
    }

    /// Is this true for some process?
    ///
    /// # Errors
    /// When a process does not say.
    pub fn any(&self, own: bool) -> Result<bool, CommError> {
        self.others().try_for_each(|other| self.tell(other, Say::Values, &[u8::from(own)]))?;
        let mut any = own;
        for other in self.others() {
            let mut theirs = [0];
            self.hear(other, Say::Values, &mut theirs)?;
            any |= theirs != [0];
        }
        Ok(any)
    }

    /// Waits for all, after which nobody needs this process any more.
    ///
    /// # Errors
    /// When a process does not come.
    pub fn part(&self) -> Result<(), CommError> {
        self.any(false)?;
        if let Some(network) = &self.network {
            network.bye();
        }
        Ok(())
    }

    /// This process has given up: ends all waits of all processes.
    pub fn fail(&self, why: &str) {
        if let Some(network) = &self.network {
            network.fail(why);
        }
    }
}
