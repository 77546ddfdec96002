//! The groups of a plan's collectives.

use super::{coordinates, rank_of};
use forebay_plan::{Kernel, MeshDim, Plan};
use std::collections::BTreeSet;

/// A group as one of its members sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Group {
    /// The mesh dimensions that name it.
    pub dims: Vec<u32>,
    /// Its ranks in the order of their numbers, which need not be that of the ranks.
    pub members: Vec<u32>,
    /// Which of them this rank is.
    pub me: usize,
}

/// The groups that a rank meets others in: one for each that the plan's kernels name, in an order that is the same on all ranks.
pub(crate) fn of_rank(plan: &Plan, rank: u32) -> Vec<Group> {
    named(plan).into_iter().map(|dims| group(&plan.mesh, dims, rank)).collect()
}

fn named(plan: &Plan) -> BTreeSet<Vec<u32>> {
    let kernels = plan.programs.iter().flat_map(|p| &p.instructions).map(|i| &i.kernel);
    let group = |kernel: &Kernel| match kernel {
        Kernel::Exchange(k) => Some(k.group.clone()),
        Kernel::AllToAllV(k) => Some(k.group.clone()),
        _ => None,
    };
    kernels.filter_map(group).collect()
}

/// The members agree with the rank in all other coordinates, and are numbered row-major over the group's dimensions.
fn group(mesh: &[MeshDim], dims: Vec<u32>, rank: u32) -> Group {
    let mut place = coordinates(mesh, rank);
    let size = |dim: &u32| mesh[*dim as usize].size;
    let count: u32 = dims.iter().map(size).product();
    let me = dims.iter().fold(0, |n, dim| n * size(dim) + place[*dim as usize]) as usize;
    let member = |number: u32| {
        let mut rest = number;
        for dim in dims.iter().rev() {
            place[*dim as usize] = rest % size(dim);
            rest /= size(dim);
        }
        rank_of(mesh, &place)
    };
    let members = (0..count).map(member).collect();
    Group { dims, members, me }
}
