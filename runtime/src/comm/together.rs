//! Collectives of ranks whose memory one thread can reach: all members at once, with the bits of [`super::shared`].

use super::pieces;
use super::rows;
use super::{CommError, Pieces, Rows, Take};
use crate::pool::Pool;

/// Are the pieces of all members of one shape, on both sides?
pub(crate) fn agree_on_pieces(given: &[Pieces], taken: &[Pieces]) -> bool {
    let same = |p: &Pieces| p.same_shape(&given[0]) && (p.step == 0) == (given[0].step == 0);
    given.len() == taken.len() && given.iter().all(same) && taken.iter().all(|p| p.same_shape(&given[0]))
}

/// Does every member give and take rows of the same size, to or from as many experts?
pub(crate) fn agree_on_rows(all: &[Rows]) -> bool {
    let shape = |r: &Rows| (r.row, r.ranks, r.experts, r.direction);
    all.iter().all(|r| shape(r) == shape(&all[0]) && r.ranks == all.len())
}

/// An exchange: what each member gives, and where it takes to. See [`forebay_plan::Exchange`].
///
/// # Safety
/// The members [agree](agree_on_pieces), `given` is readable, `taken` writable, nothing of `taken` overlaps anything else, and nobody else touches it.
pub(crate) unsafe fn exchange_together(given: &[Pieces], taken: &[Pieces], take: Take, pool: &Pool) {
    let members = given.len();
    for (me, out) in taken.iter().enumerate() {
        // SAFETY: the caller's contract.
        unsafe {
            match take {
                Take::Shifted(by) => pieces::copy_all(pool, out, 1, &|_| (given[(me + members - by) % members], 0)),
                Take::Each => pieces::copy_all(pool, out, members, &|member| (given[member], me)),
                // Everyone gets the same: it is computed once.
                Take::Combined(_) if given[0].step == 0 && me > 0 => {
                    pieces::copy_all(pool, out, 1, &|_| (taken[0], 0));
                }
                Take::Combined(op) => pieces::reduce(pool, op, given, me, out, (0, out.elements())),
            }
        }
    }
}

/// Rows to the owners of their experts, or back. See [`forebay_plan::AllToAllV`].
///
/// # Errors
/// Counts and offsets that do not fit, and the member that has them.
///
/// # Safety
/// The members [agree](agree_on_rows), their arrays have the sizes that they say, and nobody else touches the results, which overlap nothing.
pub(crate) unsafe fn rows_together(all: &[Rows], pool: &Pool) -> Result<(), (usize, CommError)> {
    let fault = |me| move |error| (me, CommError::Data(error));
    for (me, rows) in all.iter().enumerate() {
        // SAFETY: the caller's contract.
        unsafe { rows.check() }.map_err(fault(me))?;
    }
    for me in 0..all.len() {
        // SAFETY: all members were checked.
        unsafe { rows::take(all, me, pool) }.map_err(fault(me))?;
    }
    Ok(())
}
