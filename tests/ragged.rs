//! Extremes of routing under expert parallelism: all tokens to one expert, experts and ranks without any. The same losses and parameters as on one
//! rank, and each rank multiplies the rows that came to it, no more.

use crate::common;

use common::training::{batch, compare, plan_with, strategy, train};
use common::{Example, options};
use forebay_ir::DType;
use forebay_plan::Plan;
use forebay_runtime::exec::{ExecOptions, Executor};
use forebay_runtime::init;

const BATCH: u64 = 4;
const SEQ: u64 = 8;
const D: u64 = 8;
const F: u64 = 4;
const LAYERS: u64 = 2;
const EXPERTS: usize = 8;

/// Where tokens go.
#[derive(Clone, Copy)]
struct Routing {
    name: &'static str,
    /// Experts of a token.
    topk: u64,
    /// For which experts the router's scores are raised beyond all others; of `e` and the position `t`.
    wanted: &'static str,
    /// Tokens of each expert, of the batch together.
    counts: [u64; EXPERTS],
}

const ALL: u64 = BATCH * SEQ;

const ROUTINGS: [Routing; 5] = [
    // All tokens to one expert: the other ranks of `ep` have no rows.
    Routing { name: "one expert", topk: 1, wanted: "index(e) == 2", counts: [0, 0, ALL, 0, 0, 0, 0, 0] },
    // The last one, so that all groups before it are empty.
    Routing { name: "the last expert", topk: 1, wanted: "index(e) == 7", counts: [0, 0, 0, 0, 0, 0, 0, ALL] },
    // Two of one rank, with ep = 4.
    Routing {
        name: "one rank",
        topk: 2,
        wanted: "index(e) == 2 or index(e) == 3",
        counts: [0, 0, ALL, ALL, 0, 0, 0, 0],
    },
    // Uneven, and one expert with none.
    Routing {
        name: "uneven",
        topk: 1,
        wanted: "index(e) == min(index(t), 6)",
        counts: [BATCH, BATCH, BATCH, BATCH, BATCH, BATCH, 2 * BATCH, 0],
    },
    // With `cp` or sequence parallelism each rank's tokens go to one expert alone.
    Routing {
        name: "by position",
        topk: 1,
        wanted: "index(e) == min(max(index(t) - 3, 0), 1)",
        counts: [ALL / 2, ALL / 2, 0, 0, 0, 0, 0, 0],
    },
];

fn model(routing: &Routing, experts: &str) -> Example {
    let Routing { topk, wanted, .. } = routing;
    let text = format!(
        "model Steered(batch = {BATCH}, seq = {SEQ}, vocab = 16, layers = {LAYERS}, d = {D}) {{
    input tokens: token[batch, seq], labels: token[batch, seq]
    param embed[vocab, d] = normal(0.7), head[d, vocab] = normal(0.3)
    x = embed[tokens, d]
    repeat layers {{
        x = x + steered(rms_norm(x), {EXPERTS}, {topk}, {F})
    }}
    logits[batch, seq, vocab] = x * head
    output logits
    nll = cross_entropy(logits, labels)
    loss ce = sum(nll over batch, seq) per sum(valid(labels) over batch, seq)
}}

block steered(x[.., t, d], experts, topk, f) {{
    param router[d, e: experts] = normal(0.5)
    score = softmax((wide(x) * wide(router))[.., t, e] over e)
    chosen = top(detach(score) + where({wanted}, 10.0, 0.0) over e, k: topk)
    return {experts}(x, chosen, score[.., chosen], experts, f, std = 0.5)
}}

// Products alone, so that all FLOPs of grouped kernels are theirs.
block products(x[.., d], chosen[.., k], share[.., k], experts, f, std) {{
    param up[e: experts, d, f] = normal(std), down[e, f, d] = normal(std)
    rows = group(chosen, e, r)
    xe[e, r, d] = x at rows
    ye[e, r, d] = (xe * up)[e, r, f] * down
    return sum(narrow(share) * (ye at rows) over k)
}}
"
    );
    Example { name: format!("steered to {}", routing.name), text }
}

fn plan(routing: &Routing, experts: &str, text: &str, compute: DType) -> Plan {
    plan_with(&model(routing, experts), &strategy(text), options(compute, vec![]))
        .unwrap_or_else(|e| panic!("{} {text}: {e}", routing.name))
}

const STRATEGIES: [&str; 9] = [
    "dp=2,ep=2,micro=2",
    "dp=2,tp=2,ep=4,micro=2,zero=1",
    "tp=2,ep=2,etp=1,cp=2,micro=4",
    "dp=2,tp=2,ep=2,etp=2,micro=2",
    "dp=2,tp=2,ep=2,etp=2,etp_gather=after,micro=2",
    "pp=2,tp=2,ep=2,micro=4,recompute=full",
    "dp=4,tp=2,ep=8,micro=1,zero=3",
    "dp=2,tp=2,ep=4,micro=2,dispatch=hierarchical,node=2",
    "dp=4,tp=2,ep=8,micro=1,zero=1,dispatch=hierarchical,node=4",
];

#[test]
fn extremes_of_routing_train_as_on_one_rank() {
    for routing in &ROUTINGS {
        let alone = train(routing.name, &plan(routing, "swiglu_experts", "micro=4", DType::F64), 3);
        for text in STRATEGIES {
            let what = format!("{} {text}", routing.name);
            compare(&what, &train(&what, &plan(routing, "swiglu_experts", text, DType::F64), 3), &alone, 1e-10);
        }
    }
}

/// A row of an expert takes two products forward and twice as many backward, of 2 d f FLOPs each; with `etp` each rank has a part of the width.
#[test]
fn ranks_multiply_the_rows_that_came_to_them() {
    for routing in &ROUTINGS {
        for text in STRATEGIES {
            if text.contains("recompute") {
                continue;
            }
            let (plan, strategy) = (plan(routing, "products", text, DType::F32), strategy(text));
            let mut executor = Executor::new(&plan, &ExecOptions::default()).unwrap();
            init::initialise(&mut executor).unwrap();
            let phase = executor.phase_named("train").unwrap();
            executor.start_profile(phase, 0);
            executor.start(phase, &batch(&plan, 1), 1).unwrap();
            executor.commit(phase, 1).unwrap();
            let have: Vec<f64> = executor
                .profiles()
                .map(|(_, profile)| {
                    let rows = profile.rows(&plan);
                    rows.iter().filter(|row| row.kind == "grouped matmul").map(|row| row.flops).sum()
                })
                .collect();
            // Ranks of one `etp` group are side by side, then those of `ep`; what is left is copies, each with the tokens of its own ranks.
            let (etp, ep) = (strategy.etp as usize, strategy.ep as usize);
            let stages = strategy.pp as usize;
            for owner in 0..ep {
                let own = EXPERTS / ep;
                let rows: u64 = routing.counts[owner * own..(owner + 1) * own].iter().sum();
                let want = LAYERS as f64 * 6.0 * rows as f64 * 2.0 * (D * F) as f64;
                let of_owner = |rank: &usize| rank / etp % ep == owner;
                let parts: Vec<f64> = (0..have.len()).filter(of_owner).map(|rank| have[rank]).collect();
                let what = format!("{} {text}: experts of {owner}: {have:?}", routing.name);
                assert_eq!(parts.iter().sum::<f64>(), want, "{what}");
                // Without copies each rank's own share is known: a stage's layers, a part of the width.
                if have.len() == ep * etp * stages {
                    assert!(parts.iter().all(|part| *part == want / (etp * stages) as f64), "{what}");
                }
            }
        }
    }
}
