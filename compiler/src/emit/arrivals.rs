//! Which exchanges work waits for, and which work an exchange waits for.
//!
//! ```text
//! %share = ...                              both %share and %grad in one kernel: %all would wait
//! %all   = all_gather %share                until the other exchange has ended
//! %grad  = mul %share, %arrived             // %arrived: from another exchange
//! ```
//!
//! Kernels that share an iteration space become one where that saves memory traffic. But what an exchange sends must not wait, in such a kernel, for another
//! exchange that it does not need: neither could then be beside the work of the other.

use forebay_ir::{Graph, Op, ValueId};

/// Exchanges that something waits for, directly or not: one bit for each exchange of the graph.
#[derive(Clone, Default)]
pub(super) struct Arrivals {
    exchanges: Vec<u64>,
    /// Does an exchange send it, with nothing but work of regions between?
    sent: bool,
}

impl Arrivals {
    /// For each value of a graph. What regions do is said by `joins`.
    pub fn of(graph: &Graph, joins: impl Fn(ValueId) -> bool) -> Vec<Arrivals> {
        let moves = |v: ValueId| matches!(&graph.node(v).op, Op::Comm(comm) if comm.sends());
        let number = graph.values().filter(|&v| moves(v)).count();
        let mut all: Vec<Arrivals> = Vec::with_capacity(graph.nodes.len());
        let mut next = 0;
        for value in graph.values() {
            let mut own = Arrivals { exchanges: vec![0; number.div_ceil(64)], sent: false };
            graph.node(value).operands.iter().for_each(|o| own.wait_for(&all[o.index()]));
            if moves(value) {
                own.exchanges[next / 64] |= 1 << (next % 64);
                next += 1;
            }
            all.push(own);
        }
        for value in graph.values().rev() {
            if moves(value) || (all[value.index()].sent && joins(value)) {
                graph.node(value).operands.iter().for_each(|o| all[o.index()].sent = true);
            }
        }
        all
    }

    /// May one kernel do both, without holding up what one of them sends?
    pub fn fit(&self, other: &Arrivals) -> bool {
        (!self.sent || other.within(self)) && (!other.sent || self.within(other))
    }

    /// One kernel does both.
    pub fn join(&mut self, other: &Arrivals) {
        self.wait_for(other);
        self.sent |= other.sent;
    }

    fn wait_for(&mut self, other: &Arrivals) {
        self.exchanges.resize(self.exchanges.len().max(other.exchanges.len()), 0);
        self.exchanges.iter_mut().zip(&other.exchanges).for_each(|(a, b)| *a |= b);
    }

    fn within(&self, other: &Arrivals) -> bool {
        let of_other = other.exchanges.iter().copied().chain(std::iter::repeat(0));
        self.exchanges.iter().zip(of_other).all(|(a, b)| a & !b == 0)
    }
}
