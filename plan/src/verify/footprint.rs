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

    /// Bytes from the first of it to the last, inclusive.
    fn reach(&self, below: u64) -> u64 {
        let dims = self.dims.iter().filter(|(_, stride)| *stride < below);
        dims.map(|(size, stride)| (size - 1) * stride).sum::<u64>() + self.width - 1
    }

    /// Do the views share no byte? `false` when that cannot be seen cheaply.
    ///
    /// For some step s: walk the strides below s within a window, the others are multiples of their greatest common divisor g. When both windows,
    /// seen modulo g, are apart, so are the views. (Halves of a row, for instance: g is the length of the row.)
    pub fn disjoint(&self, other: &Footprint) -> bool {
        let (first, second) = if self.start <= other.start { (self, other) } else { (other, self) };
        if first.start + first.reach(u64::MAX) < second.start {
            return true;
        }
        let strides = || first.dims.iter().chain(&second.dims).map(|(_, stride)| *stride).filter(|s| *s > 0);
        strides().any(|step| {
            let period = strides().filter(|s| *s >= step).fold(0, gcd);
            let apart = (second.start - first.start) % period;
            apart > first.reach(step) && apart + second.reach(step) < period
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
