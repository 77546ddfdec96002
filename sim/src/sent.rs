//! Bytes that a rank sends to others in a step, by what they are for.

use crate::kind::{ByKind, Kind};
use crate::lower::RoleOps;
use crate::price::{Priced, Pricer};
use forebay_plan::{ExchangeKind, Kernel, Plan, Program};

/// Bytes of each kind, mean of roles. A sum that all ranks have takes a rank its part of what others are to sum, and of that sum what others are to have: 2 (n − 1)/n of
/// it, as in a ring or by halves. Of rows that go to experts the ranks' own stay. `again`: the part of each kind that is done again where a program is made again.
pub(crate) fn sent(plan: &Plan, pricer: &Pricer, priced: &[Vec<Priced>], roles: &[RoleOps], again: &ByKind) -> ByKind {
    let of_program = |(program, priced): (&Program, &Vec<Priced>)| {
        let mut bytes: ByKind = [0.0; Kind::COUNT];
        for (instruction, priced) in program.instructions.iter().zip(priced) {
            bytes[priced.kind.number()] += of_kernel(pricer, &instruction.kernel);
        }
        bytes
    };
    let programs: Vec<ByKind> = plan.programs.iter().zip(priced).map(of_program).collect();
    let mut all: ByKind = [0.0; Kind::COUNT];
    for op in roles.iter().flat_map(|role| &role.ops) {
        // What is made again is behind the programs.
        let number = op.program as usize;
        let of_program = &programs[number % programs.len()];
        for (k, all) in all.iter_mut().enumerate() {
            let part = if number < programs.len() { 1.0 } else { again[k] };
            *all += part * of_program[k] / roles.len() as f64;
        }
    }
    all
}

fn of_kernel(pricer: &Pricer, kernel: &Kernel) -> f64 {
    let others = |ranks: f64| 1.0 - 1.0 / ranks.max(1.0);
    match kernel {
        Kernel::Exchange(k) => {
            let piece = (k.piece() * k.dtype.bytes()) as f64;
            let (ranks, sent) = (k.ranks as f64, others(k.ranks as f64));
            match k.kind() {
                ExchangeKind::AllGather | ExchangeKind::ReduceScatter | ExchangeKind::AllToAll => piece * ranks * sent,
                ExchangeKind::AllReduce => 2.0 * piece * sent,
                ExchangeKind::Shift => piece,
            }
        }
        Kernel::AllToAllV(k) => {
            pricer.rows(k) * (k.row * k.dtype.bytes()) as f64 * others(pricer.group(&k.group).ranks as f64)
        }
        Kernel::Send(k) => (k.elements * k.dtype.bytes()) as f64,
        _ => 0.0,
    }
}
