//! Training a small model, with the time of every kernel.

use crate::args::{Dtype, ModelArgs};
use crate::bench::runner::Runner;
use crate::failure::Failure;
use crate::model::ModelFile;
use forebay_compiler::shard::Strategy;
use forebay_dsl::model::Const;
use forebay_plan::{Kernel, Plan};
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
    /// Seconds of instructions (program, index): of each rank those of each time that it ran; of kernels in the steps whose time is in the middle.
    pub times: BTreeMap<(usize, usize), Vec<Vec<f64>>>,
    /// How many steps these are.
    pub steps: usize,
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
        let kept = middle(&steps);
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
        // (Of what waits for others the fastest of all steps say most.)
        let kernels = times.iter_mut().filter(|((program, index), _)| !is_exchange(&plan, *program, *index));
        for seconds in kernels.flat_map(|(_, of_ranks)| of_ranks) {
            *seconds = of_steps(seconds, steps.len(), &kept);
        }
        let roofline = runner.executor().roofline();
        drop(runner);
        Ok(Ran { plan, times, steps: kept.len(), between, step: crate::bench::median(&steps), roofline })
    }
}

/// Which steps are in the middle by their times, more than half of them: what kernels took in these adds up to a step as it usually is. (The medians of kernels do not where each is
/// held up now and then, and means are off where a step is.)
fn middle(steps: &[f64]) -> Vec<usize> {
    let mut order: Vec<usize> = (0..steps.len()).collect();
    order.sort_by(|a, b| steps[*a].total_cmp(&steps[*b]));
    let apart = steps.len().saturating_sub(1) / 4;
    order.drain(..apart);
    order.truncate(order.len() - apart);
    order.sort_unstable();
    order
}

/// Of what ran equally often in each of so many steps, the times in some of them.
fn of_steps(seconds: &[f64], steps: usize, kept: &[usize]) -> Vec<f64> {
    let each = seconds.len() / steps.max(1);
    kept.iter().flat_map(|step| &seconds[step * each..(step + 1) * each]).copied().collect()
}

impl Ran {
    /// How many ranks ran.
    pub fn ranks(&self) -> usize {
        self.times.values().map(Vec::len).max().unwrap_or(0)
    }

    /// What the slowest rank of each step works, and what the slowest of all steps does, in seconds: the first is more where now one rank is held up and now another.
    pub fn uneven(&self) -> (f64, f64) {
        let mut work = vec![vec![0.0; self.ranks()]; self.steps];
        for (&(program, index), of_ranks) in &self.times {
            if is_exchange(&self.plan, program, index) {
                continue;
            }
            for (rank, seconds) in of_ranks.iter().enumerate() {
                let each = seconds.len().div_ceil(self.steps.max(1)).max(1);
                for (of_step, seconds) in work.iter_mut().zip(seconds.chunks(each)) {
                    of_step[rank] += seconds.iter().sum::<f64>();
                }
            }
        }
        slowest(&work)
    }
}

fn is_exchange(plan: &Plan, program: usize, index: usize) -> bool {
    matches!(plan.programs[program].instructions[index].kernel, Kernel::Exchange(_))
}

/// Of what each rank works in each step, the sum of the most in each, and the most of the sums.
fn slowest(work: &[Vec<f64>]) -> (f64, f64) {
    let of_each = work.iter().map(|ranks| ranks.iter().copied().fold(0.0, f64::max)).sum();
    let ranks = work.first().map_or(0, Vec::len);
    let sums = (0..ranks).map(|rank| work.iter().map(|of_step| of_step[rank]).sum::<f64>());
    (of_each, sums.fold(0.0, f64::max))
}

impl fmt::Display for Probe {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let dtype = if self.dtype == Dtype::F32 { "f32" } else { "bf16" };
        let Probe { layers, d, experts, rows, seq, .. } = self;
        write!(f, "layers={layers} d={d} f={} experts={experts} {rows}×{seq} tokens {dtype}", self.f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Three of five steps, the slowest and the fastest apart, with what ran in them.
    #[test]
    fn kernels_are_those_of_usual_steps() {
        assert_eq!(middle(&[5.0, 1.0, 9.0, 4.0, 6.0]), [0, 3, 4]);
        assert_eq!([middle(&[2.0]), middle(&[2.0, 1.0]), middle(&[])], [vec![0], vec![0, 1], vec![]]);
        assert_eq!(middle(&[1.0; 20]).len(), 12);
        let twice_a_step: Vec<f64> = (0..10).map(f64::from).collect();
        assert_eq!(of_steps(&twice_a_step, 5, &[0, 3, 4]), [0.0, 1.0, 6.0, 7.0, 8.0, 9.0]);
    }

    /// One rank is slow in a step, and another in the next: each step waits for one of them. Where it is always the same one they wait no longer than it takes.
    #[test]
    fn ranks_wait_for_whichever_is_slow() {
        assert_eq!(slowest(&[vec![3.0, 2.0], vec![2.0, 3.0]]), (6.0, 5.0));
        assert_eq!(slowest(&[vec![3.0, 2.0], vec![3.0, 2.0]]), (6.0, 6.0));
        assert_eq!(slowest(&[]), (0.0, 0.0));
    }
}
