//! Training a small model, with the time of every kernel.

use crate::args::{Dtype, ModelArgs};
use crate::bench::runner::Runner;
use crate::failure::Failure;
use crate::model::ModelFile;
use forebay_compiler::shard::Strategy;
use forebay_dsl::model::Const;
use forebay_plan::Plan;
use forebay_runtime::exec::{ExecOptions, Roofline, Traced};
use std::collections::BTreeMap;
use std::fmt;

/// Steps before those that are timed, and those that are.
const WARM_UP: u64 = 1;
pub const STEPS: u64 = 5;
/// The same where whole steps are what is asked for.
pub const MANY_STEPS: u64 = 20;

/// A Mixture-of-Experts model of a layer or a few, at some size.
#[derive(Clone, Copy, Debug)]
pub struct Probe {
    layers: i64,
    d: i64,
    heads: i64,
    f: i64,
    experts: i64,
    /// Rows of each rank.
    rows: u32,
    seq: u32,
    dtype: Dtype,
}

/// What a probe came to.
pub struct Ran {
    /// What ran.
    pub plan: Plan,
    /// Seconds of instructions (program, index): of each rank those of each time that it ran.
    pub times: BTreeMap<(usize, usize), Vec<Vec<f64>>>,
    /// Seconds between two kernels, of the rank that was fastest.
    pub between: f64,
    /// Seconds of a step: the median.
    pub step: f64,
    /// What a rank attains at most, times the ranks.
    pub roofline: Roofline,
}

impl Probe {
    /// Sizes from those that stay in a cache to those that do not, the ones that matter most first: two, one of each type, run in any case.
    pub fn all() -> Vec<Probe> {
        let probe =
            |d, heads, f, experts, rows, seq| Probe { layers: 1, d, heads, f, experts, rows, seq, dtype: Dtype::F32 };
        let bf16 = |probe: Probe| Probe { dtype: Dtype::Bf16, ..probe };
        // What one layer keeps for its gradients may stay in a last-level cache.
        let deep = |probe: Probe| Probe { layers: 3, ..probe };
        vec![
            probe(256, 8, 384, 8, 4, 256),
            bf16(probe(256, 8, 384, 8, 4, 256)),
            probe(128, 4, 256, 8, 4, 128),
            probe(512, 8, 1024, 4, 2, 256),
            probe(256, 4, 512, 16, 1, 256),
            probe(384, 6, 256, 8, 8, 128),
            bf16(deep(probe(384, 6, 768, 8, 8, 256))),
            deep(probe(384, 6, 768, 8, 8, 256)),
            // Few rows for many weights, which come from memory each time.
            probe(1024, 16, 1024, 16, 1, 256),
            probe(1024, 16, 1024, 16, 2, 256),
            probe(64, 4, 128, 8, 8, 64),
            bf16(probe(512, 8, 1024, 4, 2, 256)),
            bf16(probe(128, 4, 256, 8, 4, 128)),
        ]
    }

    /// Does it compute in bf16?
    pub fn is_bf16(&self) -> bool {
        self.dtype == Dtype::Bf16
    }

    /// One that takes a moment.
    #[cfg(test)]
    pub fn smallest() -> Probe {
        Probe { layers: 1, d: 32, heads: 2, f: 32, experts: 8, rows: 1, seq: 32, dtype: Dtype::F32 }
    }

    /// The one that many ranks run.
    pub fn shared() -> Probe {
        Probe { layers: 3, d: 256, heads: 8, f: 384, experts: 8, rows: 2, seq: 256, dtype: Dtype::F32 }
    }

    /// Trains on so many data-parallel ranks.
    pub fn run(&self, ranks: u32, cores: u32) -> Result<Ran, Failure> {
        self.run_for(STEPS, ranks, cores)
    }

    /// The same for so many steps.
    pub fn run_for(&self, steps: u64, ranks: u32, cores: u32) -> Result<Ran, Failure> {
        let sizes =
            [("layers", self.layers), ("d", self.d), ("heads", self.heads), ("f", self.f), ("experts", self.experts)];
        let strategy = Strategy { dp: ranks, zero: u32::from(ranks > 1), ..Strategy::default() };
        let args = ModelArgs {
            set: sizes.iter().map(|(name, n)| (name.to_string(), Const::Int(*n))).collect(),
            batch: Some(self.rows * ranks),
            seq: Some(self.seq),
            micro_batches: None,
            dtype: Some(self.dtype),
            strategy: Some(strategy.into()),
        };
        let plan = ModelFile::built_in("bench-tiny").compile(&args.options()?)?;
        let options = ExecOptions { threads: cores as usize, ..ExecOptions::default() };
        let mut runner = Runner::new(&plan, &options)?;
        runner.time(WARM_UP)?;
        runner.trace(steps);
        let steps = runner.time(steps)?;
        let mut times: BTreeMap<(usize, usize), Vec<Vec<f64>>> = BTreeMap::new();
        let mut between = f64::INFINITY;
        for (rank, (_, profile)) in runner.executor().profiles().enumerate() {
            let mut kernels = 0u64;
            for event in profile.events() {
                if let Traced::Instruction { program, index } = event.what {
                    let of_ranks = times.entry((program, index)).or_default();
                    of_ranks.resize(of_ranks.len().max(rank + 1), vec![]);
                    of_ranks[rank].push(event.time.as_secs_f64());
                    kernels += 1;
                }
            }
            between = between.min((profile.seconds() - profile.kernel_seconds()).max(0.0) / kernels.max(1) as f64);
        }
        let roofline = runner.executor().roofline();
        drop(runner);
        Ok(Ran { plan, times, between, step: crate::bench::median(&steps), roofline })
    }
}

impl fmt::Display for Probe {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let dtype = if self.dtype == Dtype::F32 { "f32" } else { "bf16" };
        let Probe { layers, d, experts, rows, seq, .. } = self;
        write!(f, "layers={layers} d={d} f={} experts={experts} {rows}×{seq} tokens {dtype}", self.f)
    }
}
