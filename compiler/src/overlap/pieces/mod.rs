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
//! choice of experts until a token has its result (rows, counts, exchanges, products), or from an all-gather of tensor-parallel ranks to their reduce-scatter.
//! Nothing there looks from one token to another.
//! This is what hides exchanges where no second micro-batch can: without a pipeline, and while one fills and drains (MindSpeed's and Tutel's pipelining of
//! all-to-all with experts, arXiv 2206.03382, section 3.3).
//!
//! Requires: a sharded graph of primitive ops. Keeps: values of the forward pass bit for bit; gradients of experts' parameters are sums over pieces, in another order of
//! terms. Costs: experts' weights are read, and kernels started, once for each piece. Each piece has its share of the room for rows from other ranks.
//! What is found is left as it is when the tokens do not divide, or something else reads what lies in between.

mod find;
mod repeat;

use super::lanes::Lanes;
use crate::shard::StrategyError;
pub(super) use find::{Region, choices_of, mixture};
use find::{gain, is_start, network};
use forebay_ir::Graph;
use repeat::Cut;
use std::fmt;

/// How many pieces.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pieces {
    /// So many, everywhere.
    Number(u32),
    /// As many as hide more than they cost, by the rates that orders are found with; often none.
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
    for find in [mixture, network] {
        // Values move with each cut: what is left to look at is found again, behind what was.
        let mut looked_at = 0;
        while let Some(start) = graph.values().filter(|&v| is_start(graph, v)).nth(looked_at) {
            let of = |n: u64| find(graph, start, n).map(|region| (n, region));
            let chosen = match pieces {
                Pieces::Number(n) => of(n.into()),
                Pieces::Auto => {
                    let gains = |(n, region): &(u64, Region)| gain(graph, region, *n, lanes);
                    let found = TRIED.into_iter().filter_map(of).filter(|found| gains(found) > 0.0);
                    found.max_by(|a, b| gains(a).total_cmp(&gains(b)))
                }
            };
            looked_at += 1;
            if let Some((n, region)) = chosen {
                *graph = Cut::new(graph, &region, n).run();
                done += 1;
                looked_at += n as usize - 1;
            }
        }
    }
    done
}

/// Why nothing was cut.
pub fn nothing_to_cut(pieces: Pieces) -> StrategyError {
    let help = "pieces are of tokens that go to experts or networks of several ranks (ep, tp with sp), and divide the rows of a micro-batch or the positions of a rank";
    StrategyError::new(
        format!("pieces = {pieces}: nothing can be cut into so many parts"),
        Some(format!("{help}; `pieces=auto` cuts what is worth it")),
    )
}
