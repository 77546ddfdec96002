//! Experts and networks in pieces: some of the tokens travel while ranks work on others.
//!
//! ```text
//! %xe = dispatch %x                        %xe0 = dispatch %x[first half]
//! %ye = experts %xe                  ──►   %xe1 = dispatch %x[second half]     // beside the experts of the first
//! %y  = combine %ye                        %y0 = combine (experts %xe0) · %y1 = combine (experts %xe1)
//!                                          %y = concat %y0, %y1
//! ```
//!
//! On the graph of a rank, before differentiation, so that backward passes come in pieces as well. What is repeated for each piece is all that follows from the
//! choice of experts until a token has its result (rows, counts, exchanges, products), or what tensor-parallel ranks compute from an all-gather to their reduce-scatter, or, where
//! each has all tokens, to their all-reduce; where that is not possible, the product before such a sum.
//! Nothing there looks from one token to another. The region grows upwards, as far as attention, while that hides more (`grow.rs`).
//! This is what hides exchanges where no second micro-batch can: without a pipeline, and while one fills and drains (MindSpeed's and Tutel's pipelining of
//! all-to-all with experts, arXiv 2206.03382, section 3.3).
//!
//! Requires: a sharded graph of primitive ops. Keeps: values of the forward pass bit for bit; gradients of parameters are sums over pieces, in another order of
//! terms. Costs: weights are read, and kernels started, once for each piece. Each piece has its share of the room for rows from other ranks.
//! What is found is left as it is when the tokens do not divide, something looks from one to another, or something else reads what lies in between.

mod choose;
mod find;
mod grow;
mod repeat;

use super::lanes::Lanes;
use crate::shard::StrategyError;
pub use choose::{Cuts, settle};
pub(super) use find::{Region, choices_of, mixture};
use find::{gain, is_start, network, projection};
use forebay_ir::{AxisId, Graph, ValueId};
use grow::{grown, joined};
use repeat::Cut;
use std::fmt;

/// How many pieces.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pieces {
    /// So many, everywhere.
    Number(u32),
    /// As many as hide more than they cost, by the rates that orders are found with; often none. Where the device is known, what is fastest is found ([`crate::settle`]).
    Auto,
}

impl fmt::Display for Pieces {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Pieces::Number(n) => n.fmt(f),
            Pieces::Auto => f.write_str("auto"),
        }
    }
}

/// What `auto` tries.
const TRIED: [u64; 2] = [2, 4];

/// Cuts everything that can be cut; how much was.
pub fn cut(graph: &mut Graph, pieces: Pieces, lanes: &Lanes) -> usize {
    if pieces == Pieces::Number(1) {
        return 0;
    }
    let mut done = 0;
    // The axes of pieces' tokens: pieces are not cut again.
    let mut cut: Vec<AxisId> = vec![];
    while let Some((n, region)) = next(graph, pieces, lanes, &cut) {
        let (new, own) = Cut::new(graph, &region, n).run();
        *graph = new;
        cut.extend(own);
        done += 1;
    }
    done
}

/// What is cut next, and into how many pieces: mixtures with what leads to them, then networks, then projections.
fn next(graph: &Graph, pieces: Pieces, lanes: &Lanes, cut: &[AxisId]) -> Option<(u64, Region)> {
    let starts: Vec<ValueId> = graph.values().filter(|&v| is_start(graph, v)).collect();
    let of_piece = |v: ValueId| graph.ty(v).axes.iter().any(|a| cut.contains(a));
    let is_new = |region: &Region| !graph.values().any(|v| region.repeated[v.index()] && of_piece(v));
    // Where somebody says how many, it may cost what it wants.
    let worth = |region: &Region, n: u64| {
        let gain = gain(graph, region, n, lanes);
        if pieces == Pieces::Auto { gain.hidden - gain.cost } else { gain.hidden }
    };
    let networks = |n: u64| {
        let found = starts.iter().filter_map(move |&v| network(graph, v, n)).filter(is_new);
        found.filter(move |region| pieces != Pieces::Auto || worth(region, n) > 0.0)
    };
    let best = |of: &dyn Fn(u64) -> Option<(Region, f64)>| {
        let (numbers, least) = match pieces {
            Pieces::Number(n) => (vec![u64::from(n)], f64::NEG_INFINITY),
            Pieces::Auto => (TRIED.to_vec(), 0.0),
        };
        let found = numbers.into_iter().filter_map(|n| of(n).map(|(region, worth)| (n, region, worth)));
        let best = found.filter(|(.., worth)| *worth > least).max_by(|a, b| a.2.total_cmp(&b.2));
        best.map(|(n, region, _)| (n, region))
    };
    let of_mixture = |&start: &ValueId| {
        best(&|n| {
            let region = mixture(graph, start, n).filter(is_new)?;
            let others = networks(n).filter(|other| other.tokens == region.tokens).collect();
            Some(grown(graph, joined(graph, region, others), &|region| worth(region, n)))
        })
    };
    let of = |find: fn(&Graph, ValueId, u64) -> Option<Region>, at: ValueId| {
        best(&|n| {
            let region = find(graph, at, n).filter(is_new)?;
            Some(grown(graph, region, &|region| worth(region, n)))
        })
    };
    let of_networks = || starts.iter().find_map(|&start| of(network, start));
    // From the last on, so that what leads to one is part of it.
    let of_projections = || graph.values().rev().find_map(|sum| of(projection, sum));
    starts.iter().find_map(of_mixture).or_else(of_networks).or_else(of_projections)
}

/// Why nothing was cut.
pub fn nothing_to_cut(pieces: Pieces) -> StrategyError {
    let help = "pieces are of tokens that go to experts of several ranks (ep), or whose products several ranks sum (tp), and divide the rows of a micro-batch or the positions of a rank";
    StrategyError::new(
        format!("pieces = {pieces}: nothing can be cut into so many parts"),
        Some(format!("{help}; `pieces=auto` cuts what is worth it")),
    )
}
