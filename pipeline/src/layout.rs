//! How many stages, chunks and micro-batches there are, and which stage holds which layer group.

use crate::ScheduleError;

/// The most (layer group, micro-batch) pairs a schedule may have: its orders and times then stay within some hundred MB.
pub const MAX_WORK: u64 = 1 << 21;

/// The most stages and the most chunks a stage: far beyond any pipeline, and small enough for what looks at each stage or at pairs of chunks.
const MAX_STAGES: u32 = 4096;
const MAX_CHUNKS: u32 = 64;

/// The size of a schedule.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Size {
    /// Stages of the pipeline (ranks).
    pub stages: u32,
    /// Layer groups that a stage holds.
    pub chunks: u32,
    /// Micro-batches of a step.
    pub micros: u32,
}

impl Size {
    /// A size that can be scheduled.
    ///
    /// # Errors
    /// A number is zero, or there is more work than [`MAX_WORK`], or more than 4,096 stages or 64 chunks a stage.
    pub fn new(stages: u32, chunks: u32, micros: u32) -> Result<Size, ScheduleError> {
        for (name, n) in [("stages", stages), ("chunks", chunks), ("micro-batches", micros)] {
            if n == 0 {
                return Err(ScheduleError::plain(format!("a pipeline needs at least one of {name}, not 0")));
            }
        }
        for (name, n, most) in [("stages", stages, MAX_STAGES), ("chunks", chunks, MAX_CHUNKS)] {
            if n > most {
                return Err(ScheduleError::plain(format!("{n} {name} are too many; a schedule has at most {most}")));
            }
        }
        let work = u128::from(stages) * u128::from(chunks) * u128::from(micros);
        if work > u128::from(MAX_WORK) {
            return Err(ScheduleError::new(
                format!(
                    "{stages} stages × {chunks} chunks × {micros} micro-batches are {work} forwards; a schedule has at most {MAX_WORK}"
                ),
                "the steady state repeats: a smaller number of micro-batches shows the same pattern",
            ));
        }
        Ok(Size { stages, chunks, micros })
    }
}

/// Which stage holds which layer groups.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Placement {
    /// Stage s holds the groups s·v … s·v + v − 1: the model is cut once.
    Blocked,
    /// Stage s holds the groups s, s + p, s + 2p, …: the model goes round the stages v times (Narayanan et al., arXiv 2104.04473).
    Interleaved,
    /// There and back again: stage s holds s, 2p − 1 − s, 2p + s, …; with v = 2 the V of Qi et al. (arXiv 2405.15362).
    Wave,
    /// Both directions at once: stage s holds block s for the first half of the micro-batches and block p − 1 − s for the second half, v/2 groups a
    /// block (DualPipe, arXiv 2412.19437). The weights are there twice.
    TwoWay,
}

impl Placement {
    /// Its name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Placement::Blocked => "plain",
            Placement::Interleaved => "interleaved",
            Placement::Wave => "v",
            Placement::TwoWay => "two-way",
        }
    }
}

/// A size and a placement.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Layout {
    /// How large.
    pub size: Size,
    /// What lies where.
    pub placement: Placement,
}

impl Layout {
    /// Layer groups of the model.
    pub fn groups(&self) -> u32 {
        match self.placement {
            Placement::TwoWay => self.size.stages * (self.size.chunks / 2),
            Placement::Blocked | Placement::Interleaved | Placement::Wave => self.size.stages * self.size.chunks,
        }
    }

    /// The stage that works on a layer group of a micro-batch.
    pub fn stage_of(&self, group: u32, micro: u32) -> u32 {
        let Size { stages, chunks, micros } = self.size;
        match self.placement {
            Placement::Blocked => group / chunks,
            Placement::Interleaved => group % stages,
            Placement::Wave if (group / stages).is_multiple_of(2) => group % stages,
            Placement::Wave => stages - 1 - group % stages,
            Placement::TwoWay => {
                let block = group / (chunks / 2);
                if micro < micros / 2 { block } else { stages - 1 - block }
            }
        }
    }

    /// The groups of which a stage works on some micro-batch, in the order of the model.
    pub fn groups_of(&self, stage: u32) -> Vec<u32> {
        let Size { stages, chunks, .. } = self.size;
        match self.placement {
            Placement::Blocked => (stage * chunks..(stage + 1) * chunks).collect(),
            Placement::Interleaved => (0..chunks).map(|c| c * stages + stage).collect(),
            Placement::Wave => {
                (0..chunks).map(|c| c * stages + if c.is_multiple_of(2) { stage } else { stages - 1 - stage }).collect()
            }
            Placement::TwoWay => {
                let (block, mirror) = (stage.min(stages - 1 - stage), stage.max(stages - 1 - stage));
                let groups = |block: u32| block * (chunks / 2)..(block + 1) * (chunks / 2);
                let mirrored = if block == mirror { 0..0 } else { groups(mirror) };
                groups(block).chain(mirrored).collect()
            }
        }
    }

    /// Micro-batches for which a stage works on a group, out of those that [`Layout::groups_of`] names.
    pub fn micros_of(&self, stage: u32, group: u32) -> u32 {
        match self.placement {
            Placement::TwoWay => {
                let half = self.size.micros / 2;
                half * u32::from(self.stage_of(group, 0) == stage)
                    + (self.size.micros - half) * u32::from(self.stage_of(group, half) == stage)
            }
            Placement::Blocked | Placement::Interleaved | Placement::Wave => self.size.micros,
        }
    }
}
