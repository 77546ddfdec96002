//! Which bytes a view touches, and when strides alone show that two elements, or two views, are apart.

/// Bytes walked by strides from a start.
#[derive(Clone, Debug)]
pub(super) struct Footprint {
    /// The first byte, from the start of the slot.
    pub start: u64,
    /// (size, bytes of a step), sizes above 1.
    pub dims: Vec<(u64, u64)>,
    /// Bytes of an element.
    pub width: u64,
}

impl Footprint {
    /// A view of `width`-byte elements. The caller has shown that it lies inside of its buffer, so nothing here overflows.
    pub fn new(start: u64, dims: &[(u64, u64)], width: u64) -> Footprint {
        let dims = dims.iter().filter(|(size, _)| *size > 1).map(|&(size, stride)| (size, stride * width)).collect();
        Footprint { start, dims, width }
    }

    /// Do the views share no byte? `false` when that cannot be seen cheaply.
    ///
    /// For some step s: walk the strides below s within a window, the others are multiples of their greatest common divisor g. When both windows,
    /// seen modulo g, are apart, so are the views. (Halves of a row, for instance: g is the length of the row.) n log n in the dimensions.
    pub fn disjoint(&self, other: &Footprint) -> bool {
        let (first, second) = if self.start <= other.start { (self, other) } else { (other, self) };
        let gap = second.start - first.start;
        // (stride, how far the first goes along it, how far the second)
        let mut dims: Vec<(u64, u64, u64)> = vec![];
        dims.extend(first.dims.iter().filter(|d| d.1 > 0).map(|&(size, stride)| (stride, (size - 1) * stride, 0)));
        dims.extend(second.dims.iter().filter(|d| d.1 > 0).map(|&(size, stride)| (stride, 0, (size - 1) * stride)));
        // Longest strides first: the windows start as the whole views and shrink while the period comes to divide more.
        dims.sort_unstable_by_key(|dim| std::cmp::Reverse(dim.0));
        let mut windows = (first.width - 1, second.width - 1);
        dims.iter().for_each(|dim| windows = (windows.0 + dim.1, windows.1 + dim.2));
        if gap > windows.0 {
            return true;
        }
        let mut period = 0;
        dims.iter().any(|&(stride, one, two)| {
            period = gcd(period, stride);
            windows = (windows.0 - one, windows.1 - two);
            let apart = gap % period;
            apart > windows.0 && apart + windows.1 < period
        })
    }
}

fn gcd(a: u64, b: u64) -> u64 {
    if b == 0 { a } else { gcd(b, a % b) }
}

/// Do no two positions of the dimensions meet? `true` only when each stride is larger than what all smaller ones reach together, as the digits of a
/// number; enough for every layout that has no holes shared between dimensions.
pub(super) fn distinct(dims: &[(u64, u64)]) -> bool {
    let mut dims: Vec<(u64, u64)> = dims.iter().copied().filter(|(size, _)| *size > 1).collect();
    dims.sort_unstable_by_key(|(_, stride)| *stride);
    let mut reach = 0u64;
    dims.iter().all(|&(size, stride)| {
        let fits = stride > reach;
        reach = reach.saturating_add((size - 1).saturating_mul(stride));
        fits
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::HashSet;

    fn bytes(view: &Footprint) -> Vec<u64> {
        let walk = |places: Vec<u64>, (size, stride): &(u64, u64)| -> Vec<u64> {
            places.iter().flat_map(|p| (0..*size).map(move |i| p + i * stride)).collect()
        };
        let elements = view.dims.iter().fold(vec![view.start], walk);
        elements.iter().flat_map(|e| (0..view.width).map(move |b| e + b)).collect()
    }

    fn dims() -> impl Strategy<Value = Vec<(u64, u64)>> {
        let stride = prop_oneof![0..20u64, Just(24), Just(32), Just(64)];
        prop::collection::vec((1..5u64, stride), 0..4)
    }

    #[test]
    fn parts_of_a_row_are_apart() {
        let part = |start, n| Footprint::new(start, &[(16, 10), (n, 1)], 4);
        assert!(part(0, 5).disjoint(&part(20, 5)));
        assert!(part(20, 5).disjoint(&part(0, 5)));
        assert!(!part(0, 6).disjoint(&part(20, 5)));
        assert!(!part(0, 5).disjoint(&part(20, 6)), "the second runs into the next row of the first");
    }

    proptest! {
        #[test]
        fn distinct_is_right(dims in dims()) {
            let all = bytes(&Footprint::new(0, &dims, 1));
            let different: HashSet<u64> = all.iter().copied().collect();
            prop_assert!(!distinct(&dims) || different.len() == all.len());
        }

        #[test]
        fn disjoint_is_right(a in dims(), b in dims(), start in 0..80u64, widths in (1..5u64, 1..5u64)) {
            let (a, b) = (Footprint::new(30, &a, widths.0), Footprint::new(start, &b, widths.1));
            let touched: HashSet<u64> = bytes(&a).into_iter().collect();
            let meet = bytes(&b).iter().any(|p| touched.contains(p));
            prop_assert!(!(a.disjoint(&b) && meet));
            prop_assert_eq!(a.disjoint(&b), b.disjoint(&a));
        }
    }
}
