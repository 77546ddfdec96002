//! What the plan was compiled for: sizes that everything else is measured by.

use super::MAX_RANK;
use super::place::{Place, quoted};
use super::rules::{Findings, Rule};
use crate::file::FORMAT;
use crate::schema::*;
use std::collections::HashSet;

pub(super) fn check(plan: &Plan, findings: &mut Findings) {
    header(plan, findings);
    settings(&plan.settings, findings);
    mesh(&plan.mesh, findings);
}

fn header(plan: &Plan, findings: &mut Findings) {
    findings.ensure(plan.format == FORMAT, Rule::Header, Place::Plan, || {
        format!("the format is {}, not `{FORMAT}`", quoted(&plan.format))
    });
    findings.ensure(plan.version == VERSION, Rule::Header, Place::Plan, || {
        format!("the version is {}, not {VERSION}", plan.version)
    });
}

fn settings(s: &Settings, findings: &mut Findings) {
    let mut ensure = |holds, message: String| findings.ensure(holds, Rule::Settings, "the settings", || message);
    ensure(s.compute.is_float(), format!("the compute type {} is not a float type", s.compute));
    for (what, n) in [("batch", s.batch), ("micro_batches", s.micro_batches.into()), ("seq", s.seq), ("vocab", s.vocab)]
    {
        ensure(n >= 1, format!("`{what}` is 0"));
    }
    ensure(s.batch.checked_mul(s.seq).is_some(), format!("{} rows of {} tokens are too many", s.batch, s.seq));
    ensure(s.vocab <= 1 << 31, format!("token ids below {} do not fit an i32", s.vocab));
    let divides = s.micro_batches == 0 || s.batch.is_multiple_of(u64::from(s.micro_batches));
    ensure(divides, format!("{} rows cannot be cut into {} micro-batches", s.batch, s.micro_batches));
    let active = s.active_params <= s.params;
    ensure(active, format!("{} of {} parameters take part in a token", s.active_params, s.params));
    let flops = s.flops_per_step.is_finite() && s.flops_per_step >= 0.0;
    ensure(flops, format!("{} FLOPs a step", s.flops_per_step));
}

fn mesh(mesh: &[MeshDim], findings: &mut Findings) {
    findings.ensure(mesh.len() <= MAX_RANK, Rule::Mesh, "the mesh", || {
        format!("{} dimensions; the most is {MAX_RANK}", mesh.len())
    });
    let mut names = HashSet::new();
    for dim in mesh {
        let new = names.insert(dim.name.as_str());
        findings.ensure(new, Rule::Mesh, "the mesh", || format!("two dimensions are called {}", quoted(&dim.name)));
        findings.ensure(dim.size >= 1, Rule::Mesh, "the mesh", || format!("{} has no ranks", quoted(&dim.name)));
    }
    findings.ensure(ranks(mesh).is_some(), Rule::Mesh, "the mesh", || "more ranks than a u64 can count".into());
}

/// How many ranks a mesh has.
pub(super) fn ranks(mesh: &[MeshDim]) -> Option<u64> {
    mesh.iter().try_fold(1u64, |n, dim| n.checked_mul(dim.size.into()))
}
