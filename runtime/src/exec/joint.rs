//! Several processes that run one plan: what each must know of the others.

use super::{ExecError, Executor, PhaseId};
use crate::comm::Say;
use crate::comm::tcp::{Lookout, Network};
use serde::Serialize;
use serde::de::DeserializeOwned;

/// Bytes of something that processes tell each other as text.
const TEXT: usize = 4096;

impl Executor<'_> {
    /// Is this the process that speaks and writes for all?
    pub fn is_first(&self) -> bool {
        self.processes.me() == 0
    }

    /// Is this true for some process?
    ///
    /// # Errors
    /// When a process has given up.
    pub fn any(&self, own: bool) -> Result<bool, ExecError> {
        Ok(self.processes.any(own)?)
    }

    /// Waits until all processes are done. Nothing else can be done with them afterwards.
    ///
    /// # Errors
    /// When a process has given up.
    pub fn part(&self) -> Result<(), ExecError> {
        Ok(self.processes.part()?)
    }

    /// This process has given up, for a reason that is not its ranks': tells all others.
    pub fn fail(&self, why: &str) {
        self.processes.fail(why);
    }

    /// Looks at a run of several processes from outside.
    pub fn lookout(&self) -> Option<Lookout> {
        self.processes.network().map(Network::lookout)
    }

    /// Tells all processes the reports of the ranks here, and hears the others.
    pub(super) fn tell_reports(&mut self, id: PhaseId) -> Result<(), ExecError> {
        if self.processes.count() == 1 {
            return Ok(());
        }
        let (mut told, mut bytes) = (std::mem::take(&mut self.told), std::mem::take(&mut self.telling));
        told.clear();
        told.resize(self.reports(id).count(), f64::NAN);
        bytes.clear();
        for reported in self.reports(id).filter(|r| self.processes.own_ranks().contains(&r.rank)) {
            bytes.extend_from_slice(&self.value(&reported).to_le_bytes());
        }
        self.processes.others().try_for_each(|other| self.processes.tell(other, Say::Values, &bytes))?;
        for other in self.processes.others() {
            let ranks = self.processes.ranks_of(other);
            let theirs = || self.reports(id).filter(|r| ranks.contains(&r.rank));
            bytes.resize(8 * theirs().count(), 0);
            self.processes.hear(other, Say::Values, &mut bytes)?;
            for (reported, value) in theirs().zip(bytes.as_chunks::<8>().0) {
                told[reported.number] = f64::from_le_bytes(*value);
            }
        }
        (self.told, self.telling) = (told, bytes);
        Ok(())
    }

    /// The least of what all processes have found.
    pub(super) fn least<T: Ord + Serialize + DeserializeOwned>(&self, own: Option<T>) -> Result<Option<T>, ExecError> {
        let mut text = serde_json::to_vec(&own).expect("plain data can be written");
        if text.len() > TEXT {
            text = b"null".to_vec();
        }
        text.resize(TEXT, b' ');
        self.processes.others().try_for_each(|other| self.processes.tell(other, Say::Values, &text))?;
        let mut found: Vec<T> = own.into_iter().collect();
        for other in self.processes.others() {
            self.processes.hear(other, Say::Values, &mut text)?;
            // (A process that says something else has found nothing that helps.)
            found.extend(serde_json::from_slice::<Option<T>>(&text).ok().flatten());
        }
        Ok(found.into_iter().min())
    }
}
