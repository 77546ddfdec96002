//! Made-up plans that are valid: for property tests, benchmarks, and as a start for breaking them. Everything is a function of a seed.

mod ops;
mod phases;
mod program;
mod ranks;

pub use ops::Op;
pub use phases::{Shape, plan};
pub use program::ProgramBuilder;
pub use ranks::{RoleScript, exchange, pipeline, ranks};

use crate::schema::Plan;

/// Pseudo-random numbers: splitmix64.
#[derive(Clone, Debug)]
pub struct Rng(u64);

impl Rng {
    /// Numbers of a seed.
    pub fn new(seed: u64) -> Rng {
        Rng(seed)
    }

    /// The next 64 bits.
    pub fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number below `n`.
    pub fn below(&mut self, n: u64) -> u64 {
        self.bits() % n
    }

    /// One of several.
    pub fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.below(from.len() as u64) as usize]
    }
}

/// A small plan with every kind of kernel, on two streams, with training, evaluation and generation.
pub fn tiny() -> Plan {
    plan(&Shape { layers: 2, ops: Op::ALL.to_vec(), ..Shape::default() })
}

/// Any small plan.
pub fn random(seed: u64) -> Plan {
    let mut rng = Rng::new(seed);
    let ops = (0..rng.below(8)).map(|_| rng.pick(Op::ALL)).collect();
    plan(&Shape {
        seed: rng.bits(),
        layers: 1 + rng.below(3) as u32,
        micro_batches: 1 + rng.below(3) as u32,
        streams: 1 + rng.below(3) as usize,
        columns: rng.pick(&[2, 3, 8, 17]),
        ops,
    })
}

/// A plan whose training has about so many calls, and layers as large as real ones in instructions.
pub fn large(calls: u32) -> Plan {
    let ops = Op::ALL.iter().copied().cycle().take(Op::ALL.len() * 3).collect();
    plan(&Shape { layers: (calls / 8).max(1), micro_batches: 4, streams: 1, ops, ..Shape::default() })
}
