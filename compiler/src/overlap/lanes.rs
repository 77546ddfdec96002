//! Which unit does what.

use super::passes::{Pass, Passes};
use super::times::{Clock, Times};
use crate::shard::{Dense, Mesh};
use forebay_plan::{Access, Kernel, MeshDim, Program, Space, StreamKind};

/// The units of a rank, and which mesh dimensions are between nodes.
#[derive(Clone, Debug, Default)]
pub struct Lanes {
    /// For each mesh dimension: do its ranks meet over links between nodes?
    far: Vec<bool>,
    /// For each mesh dimension: do ranks along it run other programs, those of other stages?
    stages: Vec<bool>,
    /// Does the vector unit work beside the matrix unit?
    vector: bool,
    /// The mesh dimensions of a plan for these ranks, outermost first.
    pub mesh: Vec<MeshDim>,
    clock: Clock,
}

impl Lanes {
    /// Ranks of one pipeline stage that share rows and parameters (tensor and context parallel) are nearest to each other, so that
    /// their collectives stay within a node; data-parallel ranks and other stages are further away. Where the strategy says how large a node is, that decides.
    pub fn new(mesh: &Mesh, passes: &Passes, clock: Clock) -> Lanes {
        let far = |(dim, (dense, _)): (usize, &(Dense, _))| match mesh.node {
            Some(_) => mesh.is_between_nodes(dim as u32),
            None => matches!(dense, Dense::Dp | Dense::Pp),
        };
        let far = mesh.kinds.iter().enumerate().map(far).collect();
        let stages = mesh.kinds.iter().map(|(dense, _)| *dense == Dense::Pp).collect();
        // A plan for one rank has one stream, but for copies to the host.
        let vector = passes.has(Pass::Vector) && !mesh.dims.is_empty();
        let dim = |d: &forebay_ir::MeshDim| MeshDim { name: d.name.clone(), size: d.size };
        Lanes { far, stages, vector, mesh: mesh.dims.iter().map(dim).collect(), clock }
    }

    /// How long instructions take.
    pub(super) fn times(&self) -> &dyn Times {
        self.clock.times()
    }

    /// Is there one rank, which has one stream?
    pub fn is_one_rank(&self) -> bool {
        self.far.is_empty()
    }

    /// Whose work a kernel is.
    pub fn of(&self, kernel: &Kernel) -> StreamKind {
        let group = match kernel {
            Kernel::Send(_) | Kernel::Recv(_) => return StreamKind::InterNode,
            Kernel::Exchange(k) => &k.group,
            Kernel::AllToAllV(k) => &k.group,
            kernel if kernel.is_product() => return StreamKind::Cube,
            _ if self.vector => return StreamKind::Vector,
            _ => return StreamKind::Cube,
        };
        self.of_group(group)
    }

    /// Over which links ranks along some mesh dimensions meet.
    pub fn of_group(&self, group: &[u32]) -> StreamKind {
        if group.iter().any(|dim| self.far.get(*dim as usize).is_some_and(|far| *far)) {
            StreamKind::InterNode
        } else {
            StreamKind::IntraNode
        }
    }

    /// Do ranks of several stages meet in it, each of which has programs of its own?
    pub(super) fn is_between_stages(&self, kernel: &Kernel) -> bool {
        let group = match kernel {
            Kernel::Exchange(k) => &k.group,
            Kernel::AllToAllV(k) => &k.group,
            _ => return false,
        };
        group.iter().any(|dim| self.stages.get(*dim as usize).is_some_and(|stages| *stages))
    }

    /// Gives every instruction the stream of its unit. Messages of one channel and collectives of one group stay on one stream, which keeps them in order.
    pub(super) fn assign(&self, program: &mut Program) {
        program.streams.clear();
        let copies = copies(program);
        for instruction in &mut program.instructions {
            let kind = copies.unwrap_or_else(|| self.of(&instruction.kernel));
            let known = program.streams.iter().position(|k| *k == kind);
            instruction.stream = known.unwrap_or_else(|| {
                program.streams.push(kind);
                program.streams.len() - 1
            }) as u32;
        }
    }
}

/// The stream of a program that copies to the host, or from it.
fn copies(program: &Program) -> Option<StreamKind> {
    let host = program.slots.iter().find(|slot| slot.space == Space::Host)?;
    Some(if host.access == Access::Read { StreamKind::CopyIn } else { StreamKind::CopyOut })
}
