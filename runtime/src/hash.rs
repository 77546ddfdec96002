//! Hashing and counter-based randomness: nothing here keeps a state that another place could disturb.
//!
//! A random value is a function of what it is for: `uniform(key, i)` with a key made of the seed and a name. So it does not matter in which order, on which
//! thread or how often values are drawn.

/// The finaliser of SplitMix64 (Steele, Lea, Flood 2014): every input bit changes every output bit with a probability near one half.
#[inline(always)]
pub fn mix(mut z: u64) -> u64 {
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// The `counter`-th value of the stream that `key` names: SplitMix64 started at the key.
#[inline(always)]
pub fn at(key: u64, counter: u64) -> u64 {
    mix(key.wrapping_add(counter.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15)))
}

/// A key for a purpose.
pub fn key(seed: u64, purpose: &str) -> u64 {
    let mut hasher = Hasher::new();
    hasher.update(&seed.to_le_bytes());
    hasher.update(purpose.as_bytes());
    hasher.finish()
}

/// A uniform value in the open interval (0, 1): never an end, so that it can be put through the inverse of a distribution function.
#[inline(always)]
pub fn unit(bits: u64) -> f64 {
    ((bits >> 11) as f64 + 0.5) / (1u64 << 53) as f64
}

/// A uniform integer below `n`, by the upper half of a product; the bias is at most n / 2⁶⁴.
pub fn below(bits: u64, n: u64) -> u64 {
    ((u128::from(bits) * u128::from(n)) >> 64) as u64
}

/// A 64-bit hash of a stream of bytes, eight at a time; how the stream is cut makes no difference. It finds accidents, not forgers.
#[derive(Clone, Debug)]
pub struct Hasher {
    state: u64,
    bytes: u64,
    pending: [u8; 8],
}

impl Default for Hasher {
    fn default() -> Self {
        Hasher::new()
    }
}

impl Hasher {
    /// Of nothing yet.
    pub fn new() -> Hasher {
        Hasher { state: 0x243f_6a88_85a3_08d3, bytes: 0, pending: [0; 8] }
    }

    /// Takes more bytes.
    pub fn update(&mut self, mut bytes: &[u8]) {
        let filled = (self.bytes % 8) as usize;
        self.bytes += bytes.len() as u64;
        if filled > 0 {
            let take = bytes.len().min(8 - filled);
            self.pending[filled..filled + take].copy_from_slice(&bytes[..take]);
            bytes = &bytes[take..];
            if filled + take < 8 {
                return;
            }
            self.word(u64::from_le_bytes(self.pending));
        }
        let (words, rest) = bytes.as_chunks::<8>();
        for word in words {
            self.word(u64::from_le_bytes(*word));
        }
        self.pending[..rest.len()].copy_from_slice(rest);
    }

    /// One multiplication to 128 bits, folded: as in wyhash and its kin.
    fn word(&mut self, word: u64) {
        let product = u128::from(self.state ^ word ^ 0xa076_1d64_78bd_642f) * 0xe703_7ed1_a0b4_28db;
        self.state =
            (product as u64) ^ ((product >> 64) as u64).rotate_left(23) ^ word.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    }

    /// The hash of all bytes so far.
    pub fn finish(&self) -> u64 {
        let filled = (self.bytes % 8) as usize;
        let mut last = [0; 8];
        last[..filled].copy_from_slice(&self.pending[..filled]);
        let mut end = self.clone();
        end.word(u64::from_le_bytes(last));
        end.word(self.bytes);
        mix(end.state)
    }

    /// The hash of some bytes.
    pub fn of(bytes: &[u8]) -> u64 {
        let mut hasher = Hasher::new();
        hasher.update(bytes);
        hasher.finish()
    }
}

/// A hash as it stands in files.
pub fn hex(hash: u64) -> String {
    format!("{hash:016x}")
}

/// The 32 bits of a seed that kernels get: both halves count, and a small seed is itself.
pub(crate) fn folded(seed: u64) -> i32 {
    (seed ^ (seed >> 32)) as i32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_cut_does_not_matter_and_every_byte_does() {
        let bytes: Vec<u8> = (0..100u8).collect();
        let whole = Hasher::of(&bytes);
        for cut in 0..100 {
            let mut hasher = Hasher::new();
            hasher.update(&bytes[..cut]);
            hasher.update(&bytes[cut..]);
            assert_eq!(hasher.finish(), whole);
            let mut changed = bytes.clone();
            changed[cut] ^= 1;
            assert_ne!(Hasher::of(&changed), whole);
            assert_ne!(Hasher::of(&bytes[..cut]), whole);
        }
        assert_ne!(Hasher::of(&[0]), Hasher::of(&[0, 0]));
    }

    #[test]
    fn uniform_values_have_the_moments_of_the_uniform_distribution() {
        let n = 100_000u64;
        let key = key(7, "x");
        let values = || (0..n).map(|i| unit(at(key, i)));
        let mean = values().sum::<f64>() / n as f64;
        let square = values().map(|u| u * u).sum::<f64>() / n as f64;
        assert!((mean - 0.5).abs() < 0.004 && (square - 1.0 / 3.0).abs() < 0.004, "{mean} {square}");
        assert!(values().all(|u| u > 0.0 && u < 1.0));
        assert!((0..1000).all(|i| below(at(key, i), 10) < 10));
        assert_eq!((below(0, 10), below(u64::MAX, 10)), (0, 9));
    }

    #[test]
    fn both_halves_of_a_seed_count() {
        assert_eq!((folded(7), folded(u64::from(u32::MAX))), (7, -1), "a small seed is itself");
        assert_ne!(folded(7), folded(7 | 1 << 32));
    }
}
