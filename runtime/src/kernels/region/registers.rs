//! Places for registers in the worker's scratch, given out by life time.

use super::program::{Home, Instruction, Op, Phase, Program, Run, Slot};
use super::space::Shape;
use std::ops::Range;

/// Blocks are often exactly a page long. Registers at equal places in their pages would fall into the same cache sets, and a load would seem to
/// depend on a store to the same place of another page.
const STAGGER: usize = 128;

/// Gives every register a place.
pub(super) fn assign(mut program: Program) -> Program {
    let lives = lives(&program);
    let mut end = 0;
    // Values that outlive their list come first.
    for (slot, life) in lives.iter().enumerate() {
        if *life == Life::Always {
            place(&mut program, slot, end);
            end += bytes(&program, slot);
        }
    }
    let mut most = end;
    for phase in 0..program.phases.len() {
        let list = program.phases[phase].blocks.clone();
        let chained = chained(&program.phases[phase]);
        let mut active: Vec<(usize, usize, usize)> = vec![];
        for (at, instruction) in list.iter().enumerate() {
            active.retain(|&(_, _, last)| last >= chained[at].start);
            let slot = instruction.to;
            let Life::Within { phase: p, first, last } = lives[slot] else { continue };
            if p != phase || first != at {
                continue;
            }
            let size = bytes(&program, slot);
            // The lowest gap that is large enough.
            active.sort_unstable();
            let mut begin = end;
            for &(from, to, _) in &active {
                if from >= begin + size {
                    break;
                }
                begin = begin.max(to);
            }
            place(&mut program, slot, begin);
            active.push((begin, begin + size, last));
            most = most.max(begin + size);
        }
    }
    program.register_bytes = most;
    program
}

/// For each instruction of a pass those that run with it: a chain takes all of its own from tile to tile, machine code from column to column, so that none of their registers may
/// have another's place.
fn chained(phase: &Phase) -> Vec<Range<usize>> {
    let mut all: Vec<Range<usize>> = (0..phase.blocks.len()).map(|at| at..at + 1).collect();
    for run in phase.runs.iter().map(Run::range) {
        all[run.clone()].fill(run);
    }
    all
}

/// When a register holds a value that is needed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Life {
    /// It is no register, or never used.
    Never,
    /// From one instruction of a pass over blocks to another.
    Within { phase: usize, first: usize, last: usize },
    /// Across passes or blocks.
    Always,
}

fn lives(program: &Program) -> Vec<Life> {
    let mut lives = vec![Life::Never; program.operands.len()];
    let wide = program.block_columns < program.space.row();
    let mut touch = |slot: Slot, at: Option<(usize, usize)>| {
        let operand = &program.operands[slot];
        let block_sized = operand.shape == Shape::Full || (operand.shape == Shape::Row && !wide);
        let home = matches!(operand.home, Home::Register { .. });
        let Some((phase, at)) = at.filter(|_| block_sized && home) else {
            lives[slot] = Life::Always;
            return;
        };
        lives[slot] = match lives[slot] {
            Life::Never => Life::Within { phase, first: at, last: at },
            Life::Within { phase: p, first, .. } if p == phase => Life::Within { phase, first, last: at },
            _ => Life::Always,
        };
    };
    let mut visit = |list: &[Instruction], phase: Option<usize>| {
        for (at, instruction) in list.iter().enumerate() {
            let place = phase.map(|p| (p, at));
            touch(instruction.to, place);
            if !matches!(instruction.op, Op::Load(_)) {
                instruction.args.iter().for_each(|&slot| touch(slot, place));
            }
        }
    };
    visit(&program.prologue, None);
    for (number, phase) in program.phases.iter().enumerate() {
        visit(&phase.before, None);
        visit(&phase.blocks, Some(number));
    }
    lives
}

fn place(program: &mut Program, slot: Slot, begin: usize) {
    match &mut program.operands[slot].home {
        Home::Register { at } | Home::LongRegister { at } => *at = begin,
        Home::Access(_) | Home::Constant(_) => {}
    }
}

fn bytes(program: &Program, slot: Slot) -> usize {
    let operand = &program.operands[slot];
    let elements = match (operand.home, operand.shape) {
        (Home::Access(_) | Home::Constant(_), _) => return 0,
        (Home::LongRegister { .. }, _) => program.space.row(),
        (_, Shape::One) => 1,
        (_, Shape::Row) => program.block_rows,
        (_, Shape::Column) => program.block_columns,
        (_, Shape::Full) => program.block_rows * program.block_columns,
    };
    (elements * operand.class.bytes()).next_multiple_of(64) + STAGGER
}
