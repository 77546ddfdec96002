//! Ranks and their coordinates.

use serde::{Deserialize, Serialize};

/// One dimension of the mesh of ranks.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MeshDim {
    /// `dp`, `tp`, …
    pub name: String,
    /// Ranks along it.
    pub size: u32,
}

/// `base + Σ factor · coordinate` over mesh dimensions.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Affine {
    /// The constant part.
    pub base: i64,
    /// (index of the mesh dimension, factor).
    pub terms: Vec<(u32, i64)>,
}

impl Affine {
    /// The same for every rank.
    pub fn constant(base: i64) -> Affine {
        Affine { base, terms: vec![] }
    }

    /// `factor · coordinate` of one dimension.
    pub fn along(dim: u32, factor: i64) -> Affine {
        Affine { base: 0, terms: vec![(dim, factor)] }
    }

    /// Its value for a rank; saturates. Dimensions that the mesh lacks count as 0, for plans that are not verified.
    pub fn at(&self, coordinates: &[u32]) -> i64 {
        let term = |&(dim, factor): &(u32, i64)| {
            i128::from(factor) * i128::from(coordinates.get(dim as usize).copied().unwrap_or(0))
        };
        let sum = self.terms.iter().map(term).fold(i128::from(self.base), i128::saturating_add);
        i64::try_from(sum).unwrap_or(if sum < 0 { i64::MIN } else { i64::MAX })
    }

    /// The least and the greatest value for coordinates in half-open ranges that are not empty; `None` when a dimension is not among them.
    pub fn bounds(&self, ranges: &[(u32, u32)]) -> Option<(i128, i128)> {
        let start = (i128::from(self.base), i128::from(self.base));
        self.terms.iter().try_fold(start, |(least, most), &(dim, factor)| {
            let &(lo, hi) = ranges.get(dim as usize)?;
            let ends = [lo, hi.saturating_sub(1)].map(|c| i128::from(c) * i128::from(factor));
            Some((least.checked_add(ends[0].min(ends[1]))?, most.checked_add(ends[0].max(ends[1]))?))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bounds_are_the_extreme_values() {
        let affine = Affine { base: 3, terms: vec![(0, 5), (1, -2), (0, 1)] };
        let ranges = [(1, 4), (0, 3)];
        let all: Vec<i64> = (1..4).flat_map(|a| (0..3).map(move |b| (a, b))).map(|(a, b)| affine.at(&[a, b])).collect();
        let bounds = affine.bounds(&ranges).expect("the dimensions are there");
        assert_eq!(bounds, (i128::from(*all.iter().min().unwrap()), i128::from(*all.iter().max().unwrap())));
        assert_eq!(affine.bounds(&ranges[..1]), None);
        assert_eq!(Affine::along(0, i64::MAX).at(&[3]), i64::MAX);
    }
}
