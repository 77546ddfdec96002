//! Releases of software: kernels of devices that are new gain by them.

use crate::cluster::{Calibrated, Cluster, Share};
use serde::de::Error as _;
use serde::{Deserialize, Deserializer};
use std::fmt;

/// A release of software by its year and month, as `26.02` is February 2026.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Release {
    /// Of this century.
    pub year: u32,
    /// 1 to 12.
    pub month: u32,
}

impl Release {
    /// Two digits, a point and two digits; what stands behind another point is a lesser release.
    pub fn parse(text: &str) -> Option<Release> {
        let mut parts = text.split('.');
        let (year, month) = (parts.next()?, parts.next()?);
        let is_whole = |part: &str| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit());
        let two = |part: &str| Some(part).filter(|p| p.len() == 2 && is_whole(p)).and_then(|p| p.parse().ok());
        let release = Release { year: two(year)?, month: two(month).filter(|month| (1..=12).contains(month))? };
        parts.all(is_whole).then_some(release)
    }

    /// Years from another one to it.
    pub fn years_since(self, other: Release) -> f64 {
        let months = |of: Release| f64::from(12 * of.year + of.month);
        (months(self) - months(other)) / 12.0
    }
}

impl fmt::Display for Release {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:02}.{:02}", self.year, self.month)
    }
}

impl<'de> Deserialize<'de> for Release {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        Release::parse(&text)
            .ok_or_else(|| D::Error::custom(format!("this must be a year and a month like \"26.02\", not {text:?}")))
    }
}

impl Calibrated {
    /// What kernels reach of the device, so many times as much; never more than all of it.
    pub fn scale(&mut self, factor: f64) {
        for share in [&mut self.product_efficiency, &mut self.attention_efficiency, &mut self.memory_efficiency] {
            *share = Share((share.0 * factor).min(1.0));
        }
    }
}

impl Cluster {
    /// The cluster with kernels of a release: of a device whose kernels become faster, products, attention and what streams through memory reach more of it the later the release is.
    #[must_use]
    pub fn of_release(mut self, release: Release) -> Cluster {
        let calibrated = &mut self.calibrated;
        let Some(since) = calibrated.release else { return self };
        let factor = (1.0 + calibrated.yearly_gain.0).powf(release.years_since(since));
        calibrated.scale(factor);
        calibrated.release = Some(release);
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster::tests::SMALL;

    /// A fifth more each year: a year later a fifth more, half a year earlier as much less, and never more than all; without a gain, or without a release to count from, nothing.
    #[test]
    fn kernels_become_faster_by_the_release() {
        let with = |gain: &str| {
            let text = SMALL.replacen("product_efficiency = 1.0", "product_efficiency = 0.5", 1);
            let text = text.replacen("overlap_slowdown = 0", &format!("overlap_slowdown = 0\n{gain}"), 1);
            Cluster::parse(&text).expect("it is right")
        };
        let of = |gain: &str, release: &str| {
            let cluster = with(gain).of_release(Release::parse(release).expect("a release"));
            let Calibrated { product_efficiency, attention_efficiency, memory_efficiency, link_efficiency, .. } =
                cluster.calibrated;
            [product_efficiency, attention_efficiency, memory_efficiency, link_efficiency].map(|share| share.0)
        };
        let gain = "yearly_gain = 0.2\nrelease = \"25.08\"";
        let close = |found: [f64; 4], want: [f64; 4]| found.iter().zip(want).all(|(a, b)| (a - b).abs() < 1e-9);
        assert!(close(of(gain, "26.08"), [0.6, 0.6, 1.0, 1.0]), "{:?}", of(gain, "26.08"));
        let half = 1.2f64.powf(-0.5);
        assert!(close(of(gain, "25.02"), [0.5 * half, 0.5 * half, half, 1.0]));
        assert!(close(of(gain, "25.08.01"), [0.5, 0.5, 1.0, 1.0]) && close(of("", "26.08"), [0.5, 0.5, 1.0, 1.0]));
        // What is counted from is where it stands.
        let twice = |first: &str| {
            let [first, second] = [first, "26.08"].map(|text| Release::parse(text).expect("a release"));
            with(gain).of_release(first).of_release(second).calibrated.product_efficiency.0
        };
        assert!((twice("26.02") - 0.6).abs() < 1e-9);
    }
}
