//! Who has given up, and who waits for whom.

use super::CommError;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

/// What the ranks of a process know of each other's state.
#[derive(Debug)]
pub(super) struct Watch {
    /// Why all is over, once it is: what came first.
    reason: OnceLock<CommError>,
    /// The first rank of this process, and for each whether it waits for others.
    first: u32,
    waiting: Vec<AtomicBool>,
    stall: Duration,
}

/// Locks; a rank that panics has failed, which everybody looks at before anything else.
pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Watch {
    /// Of these ranks. A wait that takes longer than `stall` is an error.
    pub fn new(ranks: Range<u32>, stall: Duration) -> Watch {
        let first = ranks.start;
        Watch { reason: OnceLock::new(), first, waiting: ranks.map(|_| AtomicBool::new(false)).collect(), stall }
    }

    /// Why all is over, if it is.
    pub fn check(&self) -> Result<(), CommError> {
        self.reason.get().map_or(Ok(()), |reason| Err(reason.clone()))
    }

    /// All is over, for the first reason that is given. Whoever calls it rings all bells then.
    pub fn end(&self, reason: CommError) {
        let _ = self.reason.set(reason);
    }

    fn flag(&self, rank: u32) -> Option<&AtomicBool> {
        self.waiting.get(rank.checked_sub(self.first)? as usize)
    }

    /// Is it known to wait for others?
    fn waits(&self, rank: u32) -> bool {
        self.flag(rank).is_some_and(|flag| flag.load(Ordering::SeqCst))
    }

    /// A rank (or another end, which nobody waits for) sleeps until something `happens` to what a lock guards, or everything ends.
    pub fn wait<'a, T>(
        &self,
        end: u32,
        guard: MutexGuard<'a, T>,
        bell: &Condvar,
        happens: impl Fn(&T) -> bool,
        missing: impl Fn(&T) -> Vec<u32>,
    ) -> Result<MutexGuard<'a, T>, CommError> {
        if happens(&guard) {
            return Ok(guard);
        }
        let tell = |waits| self.flag(end).map_or((), |flag| flag.store(waits, Ordering::SeqCst));
        tell(true);
        let result = self.sleep(guard, bell, happens, missing);
        tell(false);
        result
    }

    fn sleep<'a, T>(
        &self,
        mut guard: MutexGuard<'a, T>,
        bell: &Condvar,
        happens: impl Fn(&T) -> bool,
        missing: impl Fn(&T) -> Vec<u32>,
    ) -> Result<MutexGuard<'a, T>, CommError> {
        let mut begun = None;
        while !happens(&guard) {
            self.check()?;
            let waited = begun.get_or_insert_with(Instant::now).elapsed();
            let Some(left) = self.stall.checked_sub(waited) else {
                let missing = self.to_blame(missing(&guard));
                return Err(CommError::Stalled { limit: self.stall, missing });
            };
            guard = bell.wait_timeout(guard, left).unwrap_or_else(PoisonError::into_inner).0;
        }
        Ok(guard)
    }

    /// Whom a rank waits for may itself wait for another: to blame is who does not wait.
    fn to_blame(&self, missing: Vec<u32>) -> Vec<u32> {
        let awake = |ranks: &mut dyn Iterator<Item = u32>| ranks.filter(|rank| !self.waits(*rank)).collect::<Vec<_>>();
        let mut known = self.first..self.first + self.waiting.len() as u32;
        let guesses = [awake(&mut missing.iter().copied()), awake(&mut known)];
        guesses.into_iter().find(|ranks| !ranks.is_empty()).unwrap_or(missing)
    }
}
