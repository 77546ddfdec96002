//! Bytes that a rank sends to others in a step, by what they are for.

use crate::kind::{ByKind, Kind};
use crate::lower::RoleOps;
use crate::price::Priced;

/// Bytes of each kind, mean of roles. `again`: the part of each kind that is done again where a program is made again.
pub(crate) fn sent(priced: &[Vec<Priced>], roles: &[RoleOps], again: &ByKind) -> ByKind {
    let of_program = |priced: &Vec<Priced>| {
        let mut bytes: ByKind = [0.0; Kind::COUNT];
        priced.iter().for_each(|priced| bytes[priced.kind.number()] += priced.sent);
        bytes
    };
    let programs: Vec<ByKind> = priced.iter().map(of_program).collect();
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
