//! What a phase is fed with: its rank's rows of a batch, and the numbers of a step.

use crate::data::Batch;
use crate::hash;
use forebay_plan::{Phase, Scalar};

/// A name that no batch has.
pub(super) struct Unknown(pub String);

/// Gives `put` the bytes of each input of a phase and where in memory they belong, in the order of the plan; the rank has these coordinates.
///
/// # Errors
/// When the phase wants what no batch has, or `put` fails.
///
/// # Panics
/// When the batch has other rows or another length than the phase.
pub(super) fn feed<E: From<Unknown>>(
    phase: &Phase,
    batch: &Batch,
    coordinates: &[u32],
    (seed, step): (u64, u64),
    mut put: impl FnMut(u64, &[u8]) -> Result<(), E>,
) -> Result<(), E> {
    let (rows, seq) = (batch.rows(), batch.seq());
    assert_eq!((rows as u64, seq as u64), (phase.rows, phase.seq), "a batch is as large as its phase");
    for feed in &phase.feeds {
        let input = batch.input(&feed.input).ok_or_else(|| Unknown(feed.input.clone()))?;
        let first = feed.first_row.at(coordinates) as usize * seq;
        put(feed.offset, bytemuck::cast_slice(&input[first..first + feed.rows as usize * seq]))?;
    }
    for feed in &phase.scalars {
        let value = match feed.scalar {
            Scalar::Step => step as i32,
            Scalar::Seed => hash::folded(seed),
        };
        put(feed.offset, &value.to_ne_bytes())?;
    }
    Ok(())
}
