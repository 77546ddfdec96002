//! Which unit does what.

use crate::shard::{Dense, Mesh};
use forebay_plan::{Access, Kernel, Program, Space, StreamKind};

/// Gives every instruction the stream of its unit. Messages of one channel and collectives of one group stay on one stream, which keeps them in order.
pub(super) fn assign(program: &mut Program, mesh: &Mesh) {
    program.streams.clear();
    let copies = copies(program);
    for instruction in &mut program.instructions {
        let kind = copies.unwrap_or_else(|| unit(&instruction.kernel, mesh));
        let known = program.streams.iter().position(|k| *k == kind);
        instruction.stream = known.unwrap_or_else(|| {
            program.streams.push(kind);
            program.streams.len() - 1
        }) as u32;
    }
}

/// The stream of a program that copies to the host, or from it.
fn copies(program: &Program) -> Option<StreamKind> {
    let host = program.slots.iter().find(|slot| slot.space == Space::Host)?;
    Some(if host.access == Access::Read { StreamKind::CopyIn } else { StreamKind::CopyOut })
}

/// Ranks of one pipeline stage that share rows and parameters (tensor and context parallel) are nearest to each other, so that
/// their collectives stay within a node; data-parallel ranks and other stages are further away.
fn unit(kernel: &Kernel, mesh: &Mesh) -> StreamKind {
    let group = match kernel {
        Kernel::Send(_) | Kernel::Recv(_) => return StreamKind::InterNode,
        Kernel::Exchange(k) => &k.group,
        Kernel::AllToAllV(k) => &k.group,
        _ => return StreamKind::Cube,
    };
    let far = |dim: &u32| matches!(mesh.kinds[*dim as usize].0, Dense::Dp | Dense::Pp);
    if group.iter().any(far) { StreamKind::InterNode } else { StreamKind::IntraNode }
}
