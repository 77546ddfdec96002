//! How large messages of a plan are at most: what a peer claims beyond that is not believed, and no memory is taken for it.

use super::frame::{Kind, MOST_WORDS};
use crate::comm::rows::message_bytes;
use forebay_plan::{Kernel, Plan};

/// Bytes of what processes tell each other besides tensors, at least.
const TALK: u64 = 64 << 10;

/// Bytes of a body at most.
#[derive(Clone, Copy, Debug)]
pub(super) struct Limits {
    message: u64,
    part: u64,
    /// Of messages between processes: a rank's part of a tensor, or what is told.
    talk: u64,
}

impl Limits {
    pub fn of(plan: &Plan) -> Limits {
        let mut limits = Limits { message: 0, part: 0, talk: TALK };
        for instruction in plan.programs.iter().flat_map(|p| &p.instructions) {
            match &instruction.kernel {
                Kernel::Send(k) | Kernel::Recv(k) => {
                    limits.message = limits.message.max(k.elements.saturating_mul(k.dtype.bytes()));
                }
                Kernel::Exchange(k) => {
                    let elements = k.dims.iter().fold(1u64, |product, size| product.saturating_mul(*size));
                    limits.part = limits.part.max(elements.saturating_mul(k.dtype.bytes()));
                }
                Kernel::AllToAllV(k) => {
                    let rows = message_bytes(k.experts / k.ranks, k.bound.max(k.tokens), k.row * k.dtype.bytes());
                    limits.part = limits.part.max(rows);
                }
                _ => {}
            }
        }
        let tensors = plan.roles.iter().flat_map(|role| &role.tensors);
        limits.talk = tensors.map(|t| t.bytes()).max().unwrap_or(0).max(TALK);
        limits
    }

    /// Is a body of so many bytes possible? `talk`: between processes.
    pub fn allow(&self, kind: Kind, talk: bool, bytes: u64) -> bool {
        bytes
            <= match kind {
                Kind::Message if talk => self.talk,
                Kind::Message => self.message,
                Kind::Part => self.part,
                Kind::Failed => MOST_WORDS as u64,
                Kind::Bye | Kind::Beat => 0,
            }
    }
}
