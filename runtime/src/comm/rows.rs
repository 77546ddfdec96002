//! Rows to the owners of their experts and back, as many as the buffers say.
//!
//! ```text
//! source s     rows of expert e:  offsets_s[e] .. offsets_s[e+1]
//! owner d      rows of own expert j from source s:  behind those of all earlier (j', s') in order of (j', s')
//! ```
//! Each rank checks its own offsets and counts before others see them; whoever copies checks that those of both sides agree. Where memory is not shared, a message has the numbers of rows of each of the owner's experts, `i32[experts/ranks]`,
//! and then these rows.

use crate::kernels::KernelError;
use crate::pool::Pool;
use forebay_plan::Direction;

/// One rank's arrays.
#[derive(Clone, Copy, Debug)]
pub struct Rows {
    /// What it gives.
    pub x: *mut u8,
    /// What it gets.
    pub out: *mut u8,
    /// `i32[experts + 1]`
    pub offsets: *const i32,
    /// `i32[ranks, experts/ranks]`
    pub counts: *const i32,
    /// Bytes of a row.
    pub row: usize,
    /// Members of the group.
    pub ranks: usize,
    /// Experts of the group.
    pub experts: usize,
    /// There or back?
    pub direction: Direction,
    /// Rows of room where experts are owned.
    pub bound: usize,
    /// Rows of room at a source.
    pub tokens: usize,
}

// SAFETY: plain data; whoever follows the pointers answers for it ([`Transport`](super::Transport)'s contract).
unsafe impl Send for Rows {}
// SAFETY: as above.
unsafe impl Sync for Rows {}

impl Rows {
    fn own(&self) -> usize {
        self.experts / self.ranks
    }

    /// Where an expert's rows start on this rank as a source.
    unsafe fn offset(&self, expert: usize) -> i32 {
        // SAFETY: there are `experts + 1` (the caller's contract).
        unsafe { *self.offsets.add(expert) }
    }

    /// Rows of an own expert from a source.
    unsafe fn count(&self, source: usize, own: usize) -> i32 {
        // SAFETY: there are `ranks · experts/ranks` (the caller's contract).
        unsafe { *self.counts.add(source * self.own() + own) }
    }

    /// Where the rows of (own expert, source) start on this rank as an owner.
    unsafe fn received(&self, source: usize, own: usize) -> usize {
        // SAFETY: the caller's contract.
        let rows = |j: usize, sources: usize| (0..sources).map(|s| unsafe { self.count(s, j) } as usize).sum::<usize>();
        (0..own).map(|j| rows(j, self.ranks)).sum::<usize>() + rows(own, source)
    }

    /// Are offsets and counts what they should be, and is there room?
    ///
    /// # Safety
    /// The arrays have the sizes that this says.
    pub(super) unsafe fn check(&self) -> Result<(), KernelError> {
        let (mut least, limit) = (0, self.tokens as u64);
        for element in 0..=self.experts {
            // SAFETY: the caller's contract.
            let value = unsafe { self.offset(element) };
            if value < least || value as u64 > limit {
                let (value, least, element) = (value.into(), least.into(), element as u64);
                return Err(KernelError::Offsets { value, element, least, limit });
            }
            least = value;
        }
        let (mut rows, bound) = (0u64, self.bound as u64);
        for element in 0..self.experts {
            // SAFETY: as above.
            let value = unsafe { *self.counts.add(element) };
            if value < 0 {
                return Err(KernelError::Count { value: value.into(), element: element as u64 });
            }
            rows += value as u64;
        }
        if rows > bound { Err(KernelError::Rows { rows, bound }) } else { Ok(()) }
    }
}

/// What a rank gives to another one, and takes from it, as a message.
impl Rows {
    /// Writes what this rank gives to member `to` over a message.
    ///
    /// # Safety
    /// The arrays are checked ([`Rows::check`]) and readable.
    pub(super) unsafe fn pack(&self, to: usize, message: &mut Vec<u8>) {
        message.clear();
        // SAFETY: the caller's contract; all rows lie within the arrays, which were checked.
        unsafe {
            let given = |j| match self.direction {
                Direction::Dispatch => (self.offset(to * self.own() + j) as usize, self.sent(to, j)),
                Direction::Combine => (self.received(to, j), self.count(to, j)),
            };
            (0..self.own()).for_each(|j| message.extend_from_slice(&given(j).1.to_le_bytes()));
            for (first, rows) in (0..self.own()).map(given) {
                let rows = std::slice::from_raw_parts(self.x.add(first * self.row), rows as usize * self.row);
                message.extend_from_slice(rows);
            }
        }
    }

    /// How many rows this rank as a source has for expert `j` of an owner.
    unsafe fn sent(&self, owner: usize, j: usize) -> i32 {
        let expert = owner * self.own() + j;
        // SAFETY: as of `pack`.
        unsafe { self.offset(expert + 1) - self.offset(expert) }
    }

    /// Takes what member `from` has given to member `me`. False when the message is shorter or longer than it says.
    ///
    /// # Safety
    /// The arrays are checked ([`Rows::check`]), and `out` is writable by nobody else.
    pub(super) unsafe fn unpack(&self, me: usize, from: usize, message: &[u8]) -> Result<bool, KernelError> {
        let Some((sizes, mut rows)) = message.split_at_checked(4 * self.own()) else { return Ok(false) };
        for (j, size) in sizes.as_chunks::<4>().0.iter().enumerate() {
            let size = i32::from_le_bytes(*size);
            // SAFETY: the caller's contract; what is written lies within `out`, since as many rows come as were counted, and these were checked.
            unsafe {
                let (first, sent, counted, owner) = match self.direction {
                    Direction::Dispatch => (self.received(from, j), size, self.count(from, j), me),
                    Direction::Combine => (self.offset(from * self.own() + j) as usize, self.sent(from, j), size, from),
                };
                if sent != counted {
                    let expert = (owner * self.own() + j) as u64;
                    return Err(KernelError::Counts { sent: sent.into(), counted: counted.into(), expert });
                }
                let Some((here, rest)) = rows.split_at_checked(size as usize * self.row) else { return Ok(false) };
                std::ptr::copy_nonoverlapping(here.as_ptr(), self.out.add(first * self.row), here.len());
                rows = rest;
            }
        }
        Ok(rows.is_empty())
    }
}

/// Bytes of a message with rows, and with the numbers of those of `own` experts, each of which has `row` bytes.
pub(super) fn message_bytes(own: u64, rows: u64, row: u64) -> u64 {
    rows.saturating_mul(row).saturating_add(own.saturating_mul(4))
}

/// Does member `me`'s part: takes its rows from all members' arrays.
///
/// # Safety
/// All arrays are checked ([`Rows::check`]) and readable, and `out` of `me` is writable by nobody else.
pub(super) unsafe fn take(all: &[Rows], me: usize, pool: &Pool) -> Result<(), KernelError> {
    let mine = &all[me];
    // What is copied for each expert, or refused.
    let work = |expert: usize, move_rows: bool| -> Result<(), KernelError> {
        let (owner, own) = (expert / mine.own(), expert % mine.own());
        let sources = match mine.direction {
            Direction::Dispatch => 0..mine.ranks,
            Direction::Combine => me..me + 1,
        };
        for source in sources {
            let (at_source, at_owner) = (&all[source], &all[owner]);
            // SAFETY: the caller's contract; the rows lie within both arrays, as both ranks have checked their own.
            unsafe {
                let (first, end) = (at_source.offset(expert), at_source.offset(expert + 1));
                let (sent, counted) = (end - first, at_owner.count(source, own));
                if sent != counted {
                    return Err(KernelError::Counts {
                        sent: sent.into(),
                        counted: counted.into(),
                        expert: expert as u64,
                    });
                }
                if !move_rows {
                    continue;
                }
                let (there, here) = (first as usize * mine.row, at_owner.received(source, own) * mine.row);
                let (x, out) = match mine.direction {
                    Direction::Dispatch => (at_source.x.add(there), mine.out.add(here)),
                    Direction::Combine => (at_owner.x.add(here), mine.out.add(there)),
                };
                std::ptr::copy_nonoverlapping(x, out, sent as usize * mine.row);
            }
        }
        Ok(())
    };
    let experts = match mine.direction {
        Direction::Dispatch => me * mine.own()..(me + 1) * mine.own(),
        Direction::Combine => 0..mine.experts,
    };
    experts.clone().try_for_each(|expert| work(expert, false))?;
    pool.run(experts.len(), &|task, _| {
        work(experts.start + task, true).expect("counts were compared before anything was moved");
    });
    Ok(())
}
