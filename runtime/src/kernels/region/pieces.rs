//! Where long chains of machine code are cut.
//!
//! Vectors side by side go through a chain operation by operation, and each waits for the one before. There are registers for four of them, whose results a processor
//! needs eight of at a time (two units, four cycles). The rest must come from the next four vectors, and a processor that looks a few hundred instructions ahead sees them only
//! where a chain is short. So long ones are several: what goes from one to the next is a block in the first-level cache.

use super::chain::LEAST_WIDE;
use super::program::{Instruction, Op};
use forebay_plan::StepOp;
use std::ops::Range;

/// Vector instructions of a piece, about, at most. Longer chains were 1.1 to 1.25 times as fast in two of half their length, shorter ones as fast or slower
/// (`docs/performance.md`).
const LONG: usize = 40;

/// Vector instructions that an instruction becomes by AVX-512, about; a division keeps its unit as long as some others take.
fn work(instruction: &Instruction) -> usize {
    match instruction.op {
        Op::Unary(_, StepOp::Exp) => 13,
        Op::Unary(_, StepOp::Log) => 16,
        Op::Unary(_, StepOp::Tanh) => 21,
        Op::Binary(_, StepOp::Div) | Op::Round => 5,
        _ => 1,
    }
}

/// Cuts a list of instructions into as many ranges as it is too long for, of about the same work each.
pub(super) fn cut(list: &[Instruction]) -> Vec<Range<usize>> {
    let all: usize = list.iter().map(work).sum();
    let pieces = all.div_ceil(LONG).min(list.len() / LEAST_WIDE).max(1);
    let mut ranges = vec![];
    let (mut first, mut done) = (0, 0);
    for (at, instruction) in list.iter().enumerate() {
        let work = work(instruction);
        // A piece ends where that is nearest to its share, and leaves enough instructions for those behind it.
        let (share, behind) = (all * (ranges.len() + 1), pieces - ranges.len() - 1);
        let is_near = (2 * done + work) * pieces >= 2 * share;
        let left = list.len() - at;
        // What is rounded is rounded where it is made.
        let is_possible = at - first >= LEAST_WIDE && left >= behind * LEAST_WIDE && instruction.op != Op::Round;
        if behind > 0 && is_possible && (is_near || left == behind * LEAST_WIDE) {
            ranges.push(first..at);
            first = at;
        }
        done += work;
    }
    ranges.push(first..list.len());
    ranges
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernels::region::program::Class;
    use crate::kernels::region::space::Shape;

    /// How long the pieces are, which follow each other.
    fn cut_ops(ops: &[Op]) -> Vec<usize> {
        let list: Vec<_> = ops.iter().map(|&op| Instruction { op, to: 0, args: [0; 3], shape: Shape::Full }).collect();
        let ranges = cut(&list);
        let ends: Vec<_> = ranges.iter().map(|range| range.end).collect();
        assert!(
            ranges[0].start == 0
                && ranges[1..].iter().map(|range| range.start).eq(ends[..ends.len() - 1].iter().copied())
        );
        ranges.iter().map(Range::len).collect()
    }

    fn pieces(ops: &[StepOp]) -> Vec<usize> {
        cut_ops(&ops.iter().map(|&op| Op::Unary(Class::F32, op)).collect::<Vec<_>>())
    }

    #[test]
    fn pieces_have_about_the_same_work() {
        use StepOp::{Abs, Exp, Log, Tanh};
        assert_eq!(pieces(&[]), [0]);
        assert_eq!(pieces(&[Exp, Abs, Exp, Abs]), [4]);
        assert_eq!(pieces(&[Exp, Log, Tanh, Abs]), [2, 2]);
        assert_eq!(pieces(&[Tanh, Abs, Abs, Tanh]), [2, 2]);
        // Two instructions are the least.
        assert_eq!(pieces(&[Tanh, Tanh, Tanh]), [3]);
        assert_eq!(pieces(&[Abs, Abs, Abs, Tanh, Tanh]), [3, 2]);
        assert_eq!(pieces(&[Tanh; 8]), [2, 2, 2, 2]);
        assert_eq!(pieces(&[Abs; 90]), [30, 30, 30]);
    }

    #[test]
    fn nothing_is_cut_from_its_rounding() {
        let tanh = Op::Unary(Class::F32, StepOp::Tanh);
        assert_eq!(cut_ops(&[tanh, Op::Round, tanh, Op::Round]), [2, 2]);
        assert_eq!(cut_ops(&[Op::Round, tanh, tanh, Op::Round, Op::Round, Op::Round]), [2, 4]);
        assert_eq!(cut_ops(&[tanh, tanh, Op::Round, tanh, Op::Round]), [3, 2]);
    }
}
