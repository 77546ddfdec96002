//! What refers to the mesh: groups of ranks, peers, functions of coordinates; and how roles share the mesh out.
//!
//! Roles differ along one mesh dimension at most. All ranks with one coordinate along it, a *slab*, then do the same at the same time, and what is
//! between slabs can be followed with one rank for each (`replay`): if that comes to an end, so do all ranks, whatever their speed, because sending
//! never waits and every wait names what it waits for.

use super::place::{Place, quoted};
use super::rules::{Findings, Rule};
use crate::kernel::*;
use crate::print::json_name;
use crate::schema::*;
use std::collections::HashMap;

/// More slabs than this are not followed.
const MAX_SLABS: u32 = 4096;

/// The mesh dimension along which roles differ; `None` when one role is all.
pub(super) fn role_dim(plan: &Plan) -> Option<usize> {
    let part = |dim: &usize| {
        let whole = (0, plan.mesh[*dim].size);
        plan.roles.iter().any(|role| role.coordinates.get(*dim) != Some(&whole))
    };
    (0..plan.mesh.len()).find(part)
}

pub(super) fn check(plan: &Plan, findings: &mut Findings) {
    for program in &plan.programs {
        for (at, instruction) in program.instructions.iter().enumerate() {
            let mut cx = Cx { plan, place: Place::Instruction(program, at), findings };
            cx.kernel(&instruction.kernel);
        }
    }
    lanes(plan, findings);
    roles(plan, findings);
    phases(plan, findings);
}

/// What ranks must do in one order.
#[derive(PartialEq, Eq, Hash)]
enum Lane {
    Group(Vec<u32>),
    Sent { to: u32, channel: u32 },
    Received { from: u32, channel: u32 },
}

/// The same order on all ranks: each rank lists it in one, and units run in order. So following the listed order (`replay`) is enough.
fn lanes(plan: &Plan, findings: &mut Findings) {
    let mut lanes: HashMap<Lane, StreamKind> = HashMap::new();
    for program in &plan.programs {
        for (at, instruction) in program.instructions.iter().enumerate() {
            let lane = match &instruction.kernel {
                Kernel::Exchange(k) => Lane::Group(k.group.clone()),
                Kernel::AllToAllV(k) => Lane::Group(k.group.clone()),
                Kernel::Send(m) => Lane::Sent { to: m.peer, channel: m.channel },
                Kernel::Recv(m) => Lane::Received { from: m.peer, channel: m.channel },
                _ => continue,
            };
            let Some(unit) = program.streams.get(instruction.stream as usize) else { continue };
            let first = *lanes.entry(lane).or_insert(*unit);
            findings.ensure(first == *unit, Rule::Lanes, Place::Instruction(program, at), || {
                let (here, there) = (json_name(unit), json_name(&first));
                format!("it is on stream {here}; others of its group or channel are on {there}")
            });
        }
    }
}

struct Cx<'a, 'p> {
    plan: &'p Plan,
    place: Place<'p>,
    findings: &'a mut Findings,
}

impl Cx<'_, '_> {
    fn kernel(&mut self, kernel: &Kernel) {
        match kernel {
            Kernel::Exchange(k) => self.group(&k.group, k.ranks),
            Kernel::AllToAllV(k) => self.group(&k.group, k.ranks),
            Kernel::Coordinate(k) => self.values(&k.value, i128::from(i32::MIN), i128::from(i32::MAX)),
            Kernel::RandomKey { rows, per_micro_batch, first_row, .. } => {
                self.values(first_row, 0, i128::from(*per_micro_batch) - i128::from(*rows));
            }
            Kernel::Send(k) | Kernel::Recv(k) => self.peer(k),
            _ => {}
        }
    }

    fn group(&mut self, group: &[u32], ranks: u64) {
        let mesh = &self.plan.mesh;
        let distinct = group.iter().enumerate().all(|(i, dim)| !group[..i].contains(dim));
        let size = |n: u64, dim: &u32| mesh.get(*dim as usize).and_then(|d| n.checked_mul(d.size.into()));
        let product = group.iter().take(mesh.len() + 1).try_fold(1u64, size).filter(|_| distinct);
        self.findings.ensure(product == Some(ranks), Rule::Group, self.place, || {
            format!(
                "a group of {ranks} ranks; its mesh dimensions have {}",
                product.map_or("no product".into(), |n| n.to_string())
            )
        });
    }

    /// Are the values of a function on all ranks of the mesh within these?
    fn values(&mut self, affine: &Affine, least: i128, most: i128) {
        let all: Vec<(u32, u32)> = self.plan.mesh.iter().map(|d| (0, d.size)).collect();
        let inside = affine.bounds(&all).is_some_and(|(lo, hi)| least <= lo && hi <= most);
        self.findings.ensure(inside, Rule::Coordinates, self.place, || {
            format!("on some rank the value is not within {least} ..= {most}")
        });
    }

    fn peer(&mut self, message: &Message) {
        let Message { dim, peer, .. } = *message;
        let along = role_dim(self.plan) == Some(dim as usize);
        self.findings.ensure(along, Rule::Group, self.place, || {
            format!("messages go along the mesh dimension in which roles differ, which dimension {dim} is not")
        });
        let exists = self.plan.mesh.get(dim as usize).is_some_and(|d| peer < d.size);
        self.findings.ensure(exists, Rule::Group, self.place, || format!("there is no rank {peer} along it"));
    }
}

/// Every role has the whole of all mesh dimensions but one.
fn roles(plan: &Plan, findings: &mut Findings) {
    let Some(differ) = role_dim(plan) else { return };
    for role in &plan.roles {
        let rest = role.coordinates.iter().zip(&plan.mesh).enumerate().filter(|(dim, _)| *dim != differ);
        let whole = rest.into_iter().all(|(_, (range, dim))| *range == (0, dim.size));
        findings.ensure(whole, Rule::RoleRanks, Place::Role(role), || {
            format!("roles differ along more than {}", quoted(&plan.mesh[differ].name))
        });
    }
    let slabs = plan.mesh[differ].size;
    findings.ensure(slabs <= MAX_SLABS, Rule::RoleRanks, Place::Plan, || {
        format!("{slabs} ranks along the dimension in which roles differ; the most is {MAX_SLABS}")
    });
}

/// The host starts a phase on all ranks at once.
fn phases(plan: &Plan, findings: &mut Findings) {
    let Some((first, others)) = plan.roles.split_first() else { return };
    let form = |role: &Role| role.phases.iter().map(|p| (p.name.clone(), p.rows, p.seq)).collect::<Vec<_>>();
    for role in others {
        findings.ensure(form(role) == form(first), Rule::PhaseRoles, Place::Role(role), || {
            format!("its phases are not those of role {}", quoted(&first.name))
        });
    }
}
