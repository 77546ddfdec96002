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

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_ir::text::parse_module;

    #[test]
    fn what_is_sent_does_not_wait_for_another_exchange() {
        let text = "graph @g {\n  mesh tp = 2\n  axis a = 4\n  carry %x : f32[a]\n  carry %y : f32[a]\n  %sent = mul %x, %x : f32[a]\n  \
                    %all = all_reduce %sent on tp : f32[a]\n  %came = all_reduce %y on tp : f32[a]\n  %grad = mul %came, %x : f32[a]\n  \
                    %free = mul %x, %y : f32[a]\n  %end = add %all, %grad : f32[a]\n  return carry x = %end, carry y = %free\n}\n";
        let graphs = parse_module(text).unwrap_or_else(|e| panic!("{}", forebay_ir::text::render(&e, text, "g")));
        let graph = &graphs[0];
        let arrivals = Arrivals::of(graph, |v| graph.node(v).op.is_elementwise());
        let of = |name: &str| {
            let value = graph.values().find(|v| graph.node(*v).name == name).expect("a value of the graph");
            &arrivals[value.index()]
        };
        assert!(!of("sent").fit(of("grad")) && !of("grad").fit(of("sent")), "it would wait for what has to come");
        assert!(of("sent").fit(of("free")), "nothing has to come");
        assert!(of("grad").fit(of("end")) && of("end").fit(of("grad")), "nothing is sent");
        let mut both = of("sent").clone();
        both.join(of("free"));
        assert!(!both.fit(of("grad")), "a kernel of both is sent as well");
    }
}
