//! Vector clocks over the units of a rank: how many instructions of each unit are known to have ended.

use crate::schema::StreamKind;

/// For each unit how many of its instructions have ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Clock(pub [u64; StreamKind::COUNT]);

impl Clock {
    /// What either knows.
    pub fn join(&mut self, other: &Clock) {
        for (mine, theirs) in self.0.iter_mut().zip(&other.0) {
            *mine = (*mine).max(*theirs);
        }
    }

    /// Does it know everything that the other does?
    pub fn covers(&self, other: &Clock) -> bool {
        self.0.iter().zip(&other.0).all(|(mine, theirs)| mine >= theirs)
    }

    /// The same, counted from the start of the phase instead of the start of a call: units that are not known to have done anything stay so.
    pub fn after(&self, base: &Clock) -> Clock {
        let mut shifted = *self;
        for (mine, base) in shifted.0.iter_mut().zip(&base.0) {
            *mine += if *mine > 0 { *base } else { 0 };
        }
        shifted
    }
}
