//! Runs of instructions compiled to machine code, by Cranelift.
//!
//! A *run* is a part of a pass's list that is compiled as one function: loops over the block's rows and columns, in which values stay in registers from one instruction
//! to the next. What stays outside (functions of many instructions, reductions of rows, look-ups) is done by the loops and tiles, before and after a run, on a block that is in the
//! first-level cache. Operations are those of the loops and tiles, and so are the bits.

mod engine;
mod loops;
mod memory;
mod rule;
mod values;

#[cfg(test)]
mod tests;

use super::chain::is_dense;
use super::ops::Arg;
use super::program::{Class, Home, Instruction, Op, Phase, Program, Run, Slot};
use super::space::Shape;
use crate::kernels::Buf;
use crate::kernels::cpu::{Cpu, Jit};
use cranelift_codegen::isa::OwnedTargetIsa;
pub(super) use engine::Code;
#[cfg(target_arch = "x86_64")]
pub(super) use engine::publish;
use forebay_plan::StepOp;
use std::sync::Arc;
use std::time::Duration;

/// A run of instructions of a pass.
#[derive(Clone, Debug)]
pub(super) struct Native {
    /// Its instructions: `first..end` of the list.
    pub first: usize,
    pub end: usize,
    /// Do rows follow each other in all that it touches?
    pub dense: bool,
    code: Arc<Code>,
}

impl Native {
    /// Runs it on the rows and columns of a block.
    ///
    /// # Safety
    /// The tables are those of a frame of the program, set for the block.
    pub unsafe fn run(
        &self,
        operands: *const Arg,
        starts: *const usize,
        buffers: *const Buf,
        first_column: usize,
        [rows, columns]: [usize; 2],
    ) {
        // SAFETY: the caller's contract.
        unsafe { self.code.call(operands, starts, buffers, [first_column, rows, columns]) }
    }
}

/// How many functions this process has compiled, and the time for all of them.
pub(in crate::kernels) fn compiled() -> (u64, Duration) {
    engine::compiled()
}

/// Compiles what is faster so ([`rule`]), or all that can be.
pub(super) fn find(mut program: Program, cpu: Cpu) -> Program {
    let jit = cpu.jit();
    let Some(isa) = (jit != Jit::Off).then(|| engine::target(cpu)).flatten() else { return program };
    for phase in 0..program.phases.len() {
        let (chains, others) = program.phases[phase].runs.iter().cloned().partition::<Vec<_>, _>(
            |run| matches!(run, Run::Chain(chain) if jit == Jit::Auto && rule::keeps(&program, chain, cpu.vectors())),
        );
        let natives = natives_of(&program, phase, isa, &chains, cpu);
        // Without machine code, loops and chains are as they were.
        let taken = |run: &Run| natives.iter().any(|n| n.first < run.range().end && run.range().start < n.end);
        let rest: Vec<Run> = others.into_iter().filter(|run| !taken(run)).collect();
        let mut runs: Vec<Run> = natives.into_iter().map(Run::Native).chain(chains).chain(rest).collect();
        runs.sort_by_key(|run| run.range().start);
        program.phases[phase].runs = runs;
    }
    program
}

/// Machine code for what the chains leave.
fn natives_of(program: &Program, phase: usize, isa: &'static OwnedTargetIsa, chains: &[Run], cpu: Cpu) -> Vec<Native> {
    let list = &program.phases[phase].blocks;
    let free = |at: usize| !chains.iter().any(|run| run.range().contains(&at)) && is_for_runs(program, &list[at]);
    let mut natives = vec![];
    let mut first = 0;
    while first < list.len() {
        let end = (first..list.len()).find(|&at| !free(at)).unwrap_or(list.len());
        let kept = kept(program, phase, first, end);
        if (cpu.jit() == Jit::On && first < end) || rule::compiles(program, &list[first..end], &kept, cpu.vectors()) {
            let code = engine::compile(isa, |function| loops::build(function, program, &list[first..end], &kept));
            let dense = list[first..end].iter().all(|i| is_seamless(program, i));
            natives.extend(code.map(|code| Native { first, end, dense, code }));
        }
        first = end.max(first + 1);
    }
    natives
}

/// Do rows follow each other in all that an instruction touches?
fn is_seamless(program: &Program, instruction: &Instruction) -> bool {
    let row = program.space.row();
    let memory = match instruction.op {
        Op::Load(access) | Op::Store(access) => {
            // Along a row there is one stride, which goes on in the next one.
            let along = program.accesses[access].strides[program.space.outer()];
            program.across(access) == row * along
        }
        _ => true,
    };
    let result = (!matches!(instruction.op, Op::Store(_))).then_some(&instruction.to);
    memory && loops::reads(instruction).iter().chain(result).all(|&slot| is_dense(program, slot))
}

/// Is an instruction one that a run may have?
fn is_for_runs(program: &Program, instruction: &Instruction) -> bool {
    use StepOp::*;
    let direct = |access: usize| program.space.row_dims == 1 && program.accesses[access].through.is_none();
    instruction.shape == Shape::Full
        && match instruction.op {
            Op::Unary(Class::F32 | Class::F64, op) => matches!(op, Neg | Abs | Sign | Sqrt | Rsqrt | Floor),
            Op::Binary(Class::F32 | Class::F64, op) => !matches!(op, Rem | Pow),
            Op::Load(access) | Op::Store(access) => direct(access),
            Op::Reduce(..) | Op::Transfer { .. } => false,
            _ => true,
        }
}

/// Registers that a run writes and others read.
fn kept(program: &Program, phase: usize, first: usize, end: usize) -> Vec<Slot> {
    let is_read = |slot: Slot| {
        let reads = |i: &Instruction| loops::reads(i).contains(&slot);
        let others = |(number, other): (usize, &Phase)| {
            let blocks = if number == phase { &other.blocks[end..] } else { &other.blocks[..] };
            other.before.iter().chain(blocks).any(reads)
        };
        program.phases.iter().enumerate().any(others)
    };
    let list = &program.phases[phase].blocks[first..end];
    let registers = list.iter().filter(|i| !matches!(i.op, Op::Store(_))).map(|i| i.to);
    registers.filter(|&slot| matches!(program.operands[slot].home, Home::Register { .. }) && is_read(slot)).collect()
}
