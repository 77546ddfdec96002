//! One rank's end: collectives made of messages.
//!
//! ```text
//! exchange             give each member its piece, packed · take one from each            all-gather, all-to-all, small sums
//! … of one source      give one member the piece · take one from another                   shift
//! … of large sums      give each member its share of the elements · combine the own share · give it to all · take the others'
//! rows                 give each member numbers and rows · take the same
//! ```

use super::frame::Kind;
use super::office::Office;
use crate::comm::groups::{self, Group};
use crate::comm::{CommError, Pieces, Rows, SHARED_OUT, Take, Transport, pieces, share};
use crate::pool::Pool;
use forebay_plan::Plan;
use std::sync::Arc;

/// One rank's end.
#[derive(Debug)]
pub(super) struct Link {
    office: Arc<Office>,
    rank: u32,
    groups: Vec<Group>,
    /// What the members of a group have given, when it is combined: memory that is kept.
    taken: Vec<Vec<u8>>,
    sources: Vec<Pieces>,
}

impl Link {
    pub fn new(plan: &Plan, rank: u32, office: Arc<Office>) -> Link {
        Link { office, rank, groups: groups::of_rank(plan, rank), taken: vec![], sources: vec![] }
    }
}

/// A collective of one group, as one member does it.
struct Round<'a> {
    office: &'a Office,
    group: &'a Group,
    /// The group's number, which is the channel of its parts.
    number: u32,
}

impl<'a> Round<'a> {
    fn new(office: &'a Office, groups: &'a [Group], dims: &[u32]) -> Round<'a> {
        let number = groups.iter().position(|group| group.dims == dims).expect("connected for the groups of the plan");
        Round { office, group: &groups[number], number: number as u32 }
    }

    fn me(&self) -> usize {
        self.group.me
    }

    fn members(&self) -> usize {
        self.group.members.len()
    }

    /// The other members: each begins with the next one, so that not all send to the same.
    fn others(&self) -> impl Iterator<Item = usize> + use<> {
        let (me, members) = (self.me(), self.members());
        (1..members).map(move |i| (me + i) % members)
    }

    fn rank(&self, member: usize) -> u32 {
        self.group.members[member]
    }

    /// Gives elements `range` of a piece to a member.
    ///
    /// # Safety
    /// They are readable.
    unsafe fn give(&self, member: usize, (x, piece): (&Pieces, usize), range: (usize, usize)) {
        let ends = (self.rank(self.me()), self.rank(member));
        self.office.send(ends, (Kind::Part, self.number), |message| {
            message.resize((range.1 - range.0) * x.width(), 0);
            let packed = x.packed(message.as_mut_ptr(), range.0);
            // SAFETY: the caller's contract; the message has room for the range.
            unsafe { pieces::copy(x, piece, &packed, 0, range) };
        });
    }

    /// Waits for what a member gives, which has so many bytes.
    fn take<T>(&self, member: usize, bytes: usize, read: impl FnOnce(&[u8]) -> T) -> Result<T, CommError> {
        let ends = (self.rank(member), self.rank(self.me()));
        let read = |message: &[u8]| if message.len() == bytes { Ok(read(message)) } else { Err(message.len()) };
        let result = self.office.receive(ends, (Kind::Part, self.number), read)?;
        result.map_err(|have| self.office.wrong_length(ends.0, have, bytes))
    }

    /// Takes elements `range` from a member into a piece.
    ///
    /// # Safety
    /// They are writable, and nobody else touches them.
    unsafe fn place(
        &self,
        member: usize,
        (out, piece): (&Pieces, usize),
        range: (usize, usize),
    ) -> Result<(), CommError> {
        self.take(member, (range.1 - range.0) * out.width(), |message| {
            let packed = out.packed(message.as_ptr().cast_mut(), range.0);
            // SAFETY: the message has the range and is only read; the caller's contract.
            unsafe { pieces::copy(&packed, 0, out, piece, range) };
        })
    }
}

impl Transport for Link {
    unsafe fn exchange(
        &mut self,
        group: &[u32],
        x: &Pieces,
        out: &Pieces,
        take: Take,
        pool: &Pool,
    ) -> Result<(), CommError> {
        self.office.watch.check()?;
        let round = Round::new(&self.office, &self.groups, group);
        let (me, members, elements) = (round.me(), round.members(), out.elements());
        let all = (0, elements);
        let op = match take {
            // SAFETY: the caller's contract: pieces lie in this rank's memory, and only this rank touches it.
            Take::Each => unsafe {
                round.others().for_each(|member| round.give(member, (x, member), all));
                pieces::copy(x, me, out, me, all);
                return round.others().try_for_each(|member| round.place(member, (out, member), all));
            },
            // SAFETY: as above.
            Take::Shifted(by) => unsafe {
                round.give((me + by) % members, (x, 0), all);
                return round.place((me + members - by) % members, (out, 0), all);
            },
            Take::Combined(op) => op,
        };
        let shared_out = x.step == 0 && members > 1 && elements >= SHARED_OUT;
        let part = |member: usize| if shared_out { share(elements, member, members) } else { all };
        // SAFETY: as above.
        round.others().for_each(|member| unsafe { round.give(member, (x, member), part(member)) });
        let own = part(me);
        self.taken.resize_with(members, Vec::new);
        self.sources.clear();
        for (member, taken) in self.taken.iter_mut().enumerate() {
            if member == me {
                self.sources.push(*x);
                continue;
            }
            round.take(member, (own.1 - own.0) * out.width(), |message| {
                taken.clear();
                taken.extend_from_slice(message);
            })?;
            self.sources.push(out.packed(taken.as_mut_ptr(), own.0));
        }
        // SAFETY: each source has its piece in those elements (that of others is their only one), and `out` is this rank's own.
        unsafe { pieces::reduce(pool, op, &self.sources, me, out, own) };
        if shared_out {
            // SAFETY: as above.
            unsafe {
                round.others().for_each(|member| round.give(member, (out, 0), own));
                round.others().try_for_each(|member| round.place(member, (out, 0), part(member)))?;
            }
        }
        Ok(())
    }

    unsafe fn rows(&mut self, group: &[u32], rows: &Rows, _pool: &Pool) -> Result<(), CommError> {
        self.office.watch.check()?;
        let round = Round::new(&self.office, &self.groups, group);
        // SAFETY: the caller's contract.
        unsafe { rows.check() }?;
        let me = round.me();
        for member in round.others().chain([me]) {
            let ends = (round.rank(me), round.rank(member));
            // SAFETY: the arrays were checked.
            self.office.send(ends, (Kind::Part, round.number), |message| unsafe { rows.pack(member, message) });
        }
        for member in round.others().chain([me]) {
            let ends = (round.rank(member), round.rank(me));
            // SAFETY: the arrays were checked, and the result is this rank's own.
            let read = |message: &[u8]| unsafe { rows.unpack(me, member, message) };
            if !self.office.receive(ends, (Kind::Part, round.number), read)?? {
                return Err(self.office.wrong(ends.0, "rows that are not as many as it says"));
            }
        }
        Ok(())
    }

    fn send(&mut self, to: u32, channel: u32, bytes: &[u8]) -> Result<(), CommError> {
        self.office.watch.check()?;
        self.office.send((self.rank, to), (Kind::Message, channel), |message| {
            message.clear();
            message.extend_from_slice(bytes);
        });
        Ok(())
    }

    fn recv(&mut self, from: u32, channel: u32, bytes: &mut [u8]) -> Result<(), CommError> {
        let have = self.office.receive((from, self.rank), (Kind::Message, channel), |message| {
            if message.len() == bytes.len() {
                bytes.copy_from_slice(message);
            }
            message.len()
        })?;
        if have == bytes.len() { Ok(()) } else { Err(self.office.wrong_length(from, have, bytes.len())) }
    }

    fn fail(&self, why: &str) {
        self.office.fail(self.rank, why);
    }
}
