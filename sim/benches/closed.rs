//! Speed of the closed form over a million strategies, tables and all: `cargo bench -p forebay-sim --bench closed`.
//!
//! No strategy is estimated twice. The goal is 100,000 a second.

use forebay_compiler::pipeline::CompileOptions;
use forebay_compiler::shard::Strategy;
use forebay_cost::known;
use forebay_dsl::model::CheckedModel;
use forebay_ir::DType;
use forebay_sim::closed::Closed;
use forebay_sim::report::Options;
use std::time::Instant;

const MODEL: &str = include_str!("../../examples/models/qwen3-30b-a3b.moe");

fn load(rows: u32) -> Result<CheckedModel, String> {
    let options = CompileOptions { compute: DType::BF16, ..CompileOptions::default() };
    let check = options.check_options(true, Some(u64::from(rows)), 1);
    forebay_dsl::load(MODEL, &check).map(|a| a.model).map_err(|e| e[0].message.clone())
}

/// Pipelines: stages, chunks and schedule.
const PIPELINES: [(u32, u32, &str); 9] = [
    (1, 1, "1f1b"),
    (2, 1, "1f1b"),
    (4, 1, "1f1b"),
    (8, 1, "1f1b"),
    (16, 1, "1f1b"),
    (4, 2, "1f1b"),
    (8, 3, "1f1b"),
    (4, 1, "gpipe"),
    (4, 1, "zb-h1"),
];

/// All strategies of: four layouts of a layer with and without recomputation, the pipelines, every number of data-parallel ranks and of micro-batches (clusters and
/// batches of many sizes), three levels of ZeRO.
fn strategies(each: &mut dyn FnMut(&Strategy)) {
    for (tp, ep) in [(1, 8), (2, 8), (1, 16), (4, 8)] {
        for recompute in ["none", "full"] {
            for (pp, vpp, schedule) in PIPELINES {
                let text = format!(
                    "tp={tp},ep={ep},pp={pp},vpp={vpp},schedule={schedule},recompute={recompute},dp=1,mbs=1,micro=1"
                );
                let strategy = Strategy::parse(&text).expect("a strategy");
                for dp in (1..=64).map(|n| n * 16) {
                    for micro in (1..=80).map(|n| n * pp) {
                        for zero in [0, 1, 2] {
                            each(&Strategy { dp, zero, micro: Some(micro), ..strategy.clone() });
                        }
                    }
                }
            }
        }
    }
}

fn main() {
    let (_, text) = known::FILES.iter().find(|(n, _)| *n == "h100").expect("a cluster");
    let cluster = forebay_cost::Cluster::parse(text).expect("it is right");
    let options = Options::default();
    let mut closed = Closed::new(&load, &cluster, &options).expect("it can be estimated");
    let (mut all, mut refused, mut best) = (0u64, 0u64, (f64::INFINITY, String::new()));
    let began = Instant::now();
    strategies(&mut |strategy| {
        all += 1;
        match closed.estimate(strategy, 1.0) {
            Ok(estimate) => {
                // The cheapest token in device seconds.
                let devices = f64::from(strategy.dp * strategy.tp * strategy.pp);
                let tokens = f64::from(strategy.dp * strategy.micro.unwrap_or(1));
                let cost = estimate.step_time_s * devices / tokens;
                if estimate.peak_bytes < 80e9 && cost < best.0 {
                    best = (cost, strategy.to_string());
                }
            }
            Err(_) => refused += 1,
        }
    });
    let seconds = began.elapsed().as_secs_f64();
    println!(
        "{all} strategies ({refused} refused) in {seconds:.2} s, tables included: {:.0} a second",
        all as f64 / seconds
    );
    println!("best: {}", best.1);
}
