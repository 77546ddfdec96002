//! What is better as machine code. Measured: docs/performance.md, "Machine code".

use super::super::chain::{Chain, Code, Micro, Site};
use super::super::program::{Class, Instruction, Op, Program, Slot};
use super::super::space::Shape;
use super::super::tile::LEAST_COLUMNS;
use crate::kernels::cpu::Vectors;
use forebay_plan::DType;

/// Operations for each array that is read or written, up to which 128 bits keep up with 512: beyond, arithmetic takes longer than memory and dispatch.
const MOST_OPERATIONS: usize = 3;

/// Is a chain faster as it is than compiled?
///
/// Code has no dispatch and waits for memory less, but registers of 128 bits. So it is slower where there is much arithmetic: functions, which would also cut it in
/// two, and rounding to bf16 (eight instructions a step); of 512-bit registers wherever there are many operations for each array.
pub(super) fn keeps(program: &Program, chain: &Chain, vectors: Vectors) -> bool {
    if vectors == Vectors::Portable || !chain.has_columns(program) {
        return false;
    }
    if chain.wide.is_some() {
        return true;
    }
    let operations = chain.micros.iter().filter(|micro| is_operation(micro.code)).count();
    let wide = vectors >= Vectors::Avx512;
    chain.micros.iter().any(|micro| is_long(micro.code))
        || (wide && operations > MOST_OPERATIONS * arrays(program, &chain.micros))
}

/// Are instructions compiled that are in no chain that [`keeps`] what it has?
///
/// What only moves is as fast in loops. Conditions for others are packed four at a time, where loops have whole registers of them. And beside 512 bits, long
/// rows of a single operation, or of roundings, are as fast in loops.
pub(super) fn compiles(program: &Program, run: &[Instruction], kept: &[Slot], vectors: Vectors) -> bool {
    let computes = |i: &&Instruction| !matches!(i.op, Op::Load(_) | Op::Store(_) | Op::Copy(_));
    let operations = run.iter().filter(computes).count();
    let is_bf16 = |access: usize| program.accesses[access].dtype == DType::Bf16;
    let rounds = run.iter().any(|i| match i.op {
        Op::Round => true,
        Op::Store(access) => is_bf16(access),
        _ => false,
    });
    let packs = kept.iter().any(|&slot| program.operands[slot].class == Class::Bool);
    let loops_are_wide = vectors >= Vectors::Avx512 && program.space.row() >= LEAST_COLUMNS;
    operations > 0 && !packs && !(loops_are_wide && (rounds || operations == 1))
}

fn is_operation(code: Code) -> bool {
    !matches!(code, Code::Load | Code::LoadTruth | Code::Store | Code::StoreTruth)
}

/// Many instructions of 128 bits, or a function that code would have to leave to others.
fn is_long(code: Code) -> bool {
    use Code::*;
    matches!(code, Exp | Log | Tanh | Sin | Cos | Rem | RemInto | Pow | PowOf | Round | StoreBf16)
}

/// Arrays with an element for each of the block that are read or written.
fn arrays(program: &Program, micros: &[Micro]) -> usize {
    let mut sites: Vec<Site> = vec![];
    for micro in micros {
        let is_array = match micro.site {
            Site::None => false,
            Site::Slot(slot) => program.operands[slot].shape == Shape::Full,
            Site::Access(_) => true,
        };
        if is_array && !sites.contains(&micro.site) {
            sites.push(micro.site);
        }
    }
    sites.len()
}
