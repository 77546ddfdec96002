//! Where long chains of machine code are cut.
//!
//! Vectors side by side go through a chain operation by operation, and each waits for the one before. There are registers for four of them, whose results a processor
//! needs eight of at a time (two units, four cycles). The rest must come from the next four vectors, and a processor that looks a few hundred instructions ahead sees them only
//! where a chain is short. So long ones with functions are several: what goes from one to the next is a block in a cache.

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
        Op::Unary(_, StepOp::Log) => 17,
        // With what looks for arguments that are far away.
        Op::Unary(_, StepOp::Sin) => 19,
        Op::Unary(_, StepOp::Cos) => 21,
        Op::Unary(_, StepOp::Tanh) => 22,
        Op::Unary(_, StepOp::Sqrt | StepOp::Rsqrt) | Op::Binary(_, StepOp::Div) | Op::Round => 5,
        Op::Binary(_, StepOp::Min | StepOp::Max) => 3,
        _ => 1,
    }
}

/// Is it one of the functions that wait for themselves many times?
fn is_function(instruction: &Instruction) -> bool {
    matches!(instruction.op, Op::Unary(_, StepOp::Exp | StepOp::Log | StepOp::Tanh | StepOp::Sin | StepOp::Cos))
}

/// Cuts a list of instructions into as many ranges as it is too long for, of about the same work each; without functions there is one.
pub(super) fn cut(list: &[Instruction]) -> Vec<Range<usize>> {
    let all: usize = list.iter().map(work).sum();
    let most = if list.iter().any(is_function) { list.len() / LEAST_WIDE } else { 1 };
    let pieces = all.div_ceil(LONG).min(most).max(1);
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
        // The last place where enough is left.
        let is_last = left <= behind * LEAST_WIDE + usize::from(list.get(at + 1).is_some_and(|i| i.op == Op::Round));
        if behind > 0 && is_possible && (is_near || is_last) {
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
        assert_eq!(pieces(&[&[Exp][..], &[Abs; 77]].concat()), [18, 30, 30]);
        // What has no function is left as it is.
        assert_eq!(pieces(&[Abs; 90]), [90]);
    }

    #[test]
    fn nothing_is_cut_from_its_rounding() {
        let tanh = Op::Unary(Class::F32, StepOp::Tanh);
        assert_eq!(cut_ops(&[tanh, Op::Round, tanh, Op::Round]), [2, 2]);
        assert_eq!(cut_ops(&[Op::Round, tanh, tanh, Op::Round, Op::Round, Op::Round]), [2, 4]);
        assert_eq!(cut_ops(&[tanh, tanh, Op::Round, tanh, Op::Round]), [3, 2]);
        let abs = Op::Unary(Class::F32, StepOp::Abs);
        assert_eq!(cut_ops(&[abs, abs, tanh, Op::Round, tanh]), [2, 3]);
    }
}
