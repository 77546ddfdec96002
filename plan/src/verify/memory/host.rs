//! What the host does with memory: before the first call, at the commit, and after the last call.

use super::{Piece, Walk, What, nested};
use crate::schema::*;
use crate::verify::ALIGN;
use crate::verify::clock::Clock;
use crate::verify::intervals::overlaps;
use crate::verify::place::{Place, quoted};
use crate::verify::roles::feed_bytes;
use crate::verify::rules::{Findings, Rule};
use crate::verify::tensors::{Home, Span, bytes_of};

impl Walk<'_> {
    /// What is there before the first call.
    pub(super) fn host_writes(&mut self) {
        for home in self.homes {
            self.begin(What::Tensor(home.tensor), home.space, home.span);
        }
        // What lies between the tensors is kept as well: padding that an optimizer walks over. Behind the padding of what ranks sum may be where a rank keeps its part of other sums: they are
        // told apart by where slots that write there begin and end.
        for space in Space::ALL {
            let mut holes = vec![];
            let end = self.role.persistent(space).div_ceil(ALIGN);
            self.memory(space).scan(0, end, |start, end, piece| {
                holes.extend(piece.is_none().then_some(Span { start, end }));
            });
            let borders = if holes.is_empty() { vec![] } else { self.borders(space) };
            for hole in holes {
                let inside = borders.partition_point(|b| *b <= hole.start)..borders.partition_point(|b| *b < hole.end);
                let ends = borders[inside].iter().copied().chain([hole.end]);
                let mut start = hole.start;
                for end in ends {
                    self.begin(What::Padding, space, Span { start, end });
                    start = end;
                }
            }
        }
        for (i, feed) in (0..).zip(&self.phase.feeds) {
            let bytes = feed_bytes(feed, self.phase.seq).expect("checked with the roles");
            self.begin(What::Feed(i), Space::Device, Span::new(feed.offset, bytes));
        }
        for scalar in &self.phase.scalars {
            self.begin(What::Scalar, Space::Device, Span::new(scalar.offset, 4));
        }
    }

    /// Where slots that the phase's calls write to begin and end in what outlives a step, in order.
    fn borders(&self, space: Space) -> Vec<u64> {
        let end = self.role.persistent(space).div_ceil(ALIGN);
        let slots = (0..self.phase.calls.len())
            .flat_map(|at| self.slots(at))
            .filter(|b| b.slot.space == space && matches!(b.slot.access, Access::Write | Access::Update));
        let mut borders: Vec<u64> = slots.flat_map(|b| [b.extent.start, b.extent.end]).filter(|at| *at < end).collect();
        borders.sort_unstable();
        borders.dedup();
        borders
    }

    fn begin(&mut self, what: What, space: Space, extent: Span) {
        let value = self.value(what, extent);
        let piece = Piece { value: Some(value), writes: Clock::default(), reads: Clock::default() };
        self.memory(space).set(extent.start, extent.end, piece);
    }

    /// The commit is the first call that changes a saved tensor, and only training has one.
    pub(super) fn commit(&self, saved: &[Vec<(u64, u64)>; 2], findings: &mut Findings) {
        let changes = |at: &usize| {
            self.slots(*at).any(|b| {
                let mut written = b.writes().chain((b.slot.access == Access::Scratch).then_some(b.extent));
                written.any(|span| overlaps(&saved[b.slot.space.number()], span.start, span.end))
            })
        };
        let first = (0..self.phase.calls.len()).find(changes).unwrap_or(self.phase.calls.len());
        let place = Place::Phase(self.role, self.phase);
        findings.ensure(first == self.phase.commit as usize, Rule::Commit, place, || {
            format!(
                "the commit is call {}, but call {first} is the first that changes a saved tensor (of {})",
                self.phase.commit,
                self.phase.calls.len()
            )
        });
        let may = self.phase.name == "train" || first == self.phase.calls.len();
        findings.ensure(may, Rule::Commit, place, || format!("call {first} changes a saved tensor"));
    }

    pub(super) fn reports(&mut self, before_commit: bool, findings: &mut Findings) {
        for report in self.phase.reports.iter().filter(|r| r.before_commit == before_commit) {
            let start = report.offset / ALIGN * ALIGN;
            let span = Span::new(start, report.offset - start + report.dtype.bytes());
            self.host_reads(span, &format!("report {}", quoted(&report.name)), findings);
        }
    }

    pub(super) fn outputs(&mut self, findings: &mut Findings) {
        for output in &self.phase.outputs {
            let bytes = bytes_of(output.dims.iter().copied(), output.dtype).expect("checked with the roles");
            self.host_reads(Span::new(output.offset, bytes), &format!("output {}", quoted(&output.name)), findings);
        }
    }

    fn host_reads(&mut self, span: Span, what: &str, findings: &mut Findings) {
        let pieces = self.pieces(Space::Device, span);
        self.whole(&pieces, span, span, Place::Phase(self.role, self.phase), &|| what.to_string(), findings);
    }

    pub(super) fn tensors_kept(&mut self, findings: &mut Findings) {
        for &Home { space, tensor, span } in self.homes {
            let tensor = &self.role.tensors[tensor as usize];
            if tensor.kind == TensorKind::Gradient || findings.is_full() {
                continue;
            }
            let pieces = self.pieces(space, span);
            let lost = pieces.iter().any(|(_, _, piece)| {
                let value = piece.and_then(|p| p.value).map(|v| &self.values[v as usize]);
                value.is_none_or(|v| v.ended_by.is_some() || !nested(span, v.extent))
            });
            findings.ensure(!lost, Rule::TensorKept, Place::Phase(self.role, self.phase), || {
                format!("{} is not whole after the last call", Place::Tensor(self.role, tensor))
            });
        }
    }
}
