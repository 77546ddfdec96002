//! Linear attention, score by score.

use super::{Layout, Machine, Node};
use crate::op::{Direction, LinearAttention, LinearReads};
use crate::types::AxisId;

pub(super) fn linear_attention(machine: &mut Machine<'_>, node: &Node, op: &LinearAttention) -> Vec<f64> {
    let LinearAttention { axis, ref over, direction, reads, .. } = *op;
    let mut result = machine.zeros(node);
    let others: Vec<AxisId> = node.ty.axes.iter().copied().filter(|&a| a != axis).collect();
    let (space, summed) = (machine.space(&others), machine.space(over));
    let operands = [0, 1, 2, 3].map(|i| machine.layout(node.operands[i]));
    let own = Layout::new(machine.graph, &node.ty.axes);
    let [own_step, q_step, k_step, v_step, g_step] =
        [&own, &operands[0], &operands[1], &operands[2], &operands[3]].map(|l| l.stride(axis));
    // Where the elements of a key are, from its first one on.
    let mut elements = vec![];
    summed.walk(&[&operands[0], &operands[1]], &mut |at| elements.push((at[0], at[1])));
    let n = machine.graph.size(axis) as usize;
    let [q, k, v, g] = [0, 1, 2, 3].map(|i| machine.data(node.operands[i]));
    space.walk(&[&own, &operands[0], &operands[1], &operands[2], &operands[3]], &mut |at| {
        let score = |t: usize, s: usize| -> f64 {
            let (t, s) = (at[1] + t * q_step, at[2] + s * k_step);
            elements.iter().map(|(in_q, in_k)| q[t + in_q] * k[s + in_k]).sum()
        };
        for step in 0..n {
            let place = |step: usize| if direction == Direction::Forward { step } else { n - 1 - step };
            let (t, mut sum, mut decay) = (place(step), 0.0, 0.0);
            for earlier in (0..=step).rev() {
                let s = place(earlier);
                // The decay from the position before to this one belongs to the later of the two.
                let later = if direction == Direction::Forward { s + 1 } else { s };
                if earlier < step {
                    decay += g[at[4] + later * g_step];
                }
                let value = match reads {
                    LinearReads::Exclusive | LinearReads::Solve if earlier == step => continue,
                    LinearReads::Solve => result[at[0] + s * own_step],
                    LinearReads::Inclusive | LinearReads::Exclusive => v[at[3] + s * v_step],
                };
                sum += f64::exp(decay) * score(t, s) * value;
            }
            let read = if reads == LinearReads::Solve { v[at[3] + t * v_step] - sum } else { sum };
            result[at[0] + t * own_step] = read;
        }
    });
    result
}
