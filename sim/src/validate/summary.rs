//! How good predictions are: errors by system, and whether they put the runs of a sweep in order.

use super::{Compared, OutOfMemory, Row, Skipped};
use indexmap::IndexMap;
use serde::Serialize;

/// Errors of some rows: |predicted / measured − 1|.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Errors {
    /// How many rows.
    pub rows: usize,
    /// Half of them are below.
    pub median_abs_error: f64,
    /// Nine tenths of them are below.
    pub p90_abs_error: f64,
    /// The median with its sign: above 0 when predictions are too slow.
    pub bias: f64,
    /// Kendall's tau-b within sweeps of at least three runs, mean over sweeps.
    pub rank: Option<f64>,
    /// Peak memory: median and 90th percentile of the same error.
    pub memory: Option<(f64, f64)>,
}

/// All of it.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Summary {
    /// Each run.
    pub rows: Vec<Row>,
    /// By system.
    pub by_system: IndexMap<String, Errors>,
    /// Dense models and mixtures.
    pub by_kind: IndexMap<String, Errors>,
    /// By devices.
    pub by_size: IndexMap<String, Errors>,
    /// Half of all errors are below; none where there are no rows.
    pub median_abs_error: Option<f64>,
    /// Nine tenths of all errors are below.
    pub p90_abs_error: Option<f64>,
    /// Runs that did not fit into memory.
    pub out_of_memory: Vec<OutOfMemory>,
    /// Whether predictions tell them from those that ran, where the table has any.
    pub fits: Option<Fits>,
    /// Runs without a prediction.
    pub skipped: Vec<Skipped>,
}

/// Fitting into memory or not, predicted and as it was: a run is predicted to fit when its peak is at most what the device has.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Fits {
    /// Runs that fitted, and how many of them were predicted to.
    pub ran: (usize, usize),
    /// Runs that did not, and how many of them were predicted not to.
    pub out_of_memory: (usize, usize),
    /// The mean of both shares.
    pub balanced_accuracy: f64,
    /// The same of the runs whose predicted peak is between 0.75 and 1.375 of what programs may use of the device (62 to 114 of 83 GB), where there are some of both.
    pub near: Option<f64>,
}

impl Fits {
    /// None unless there are runs of both kinds.
    fn of(rows: &[Row], out_of_memory: &[OutOfMemory]) -> Option<Fits> {
        let ran: Vec<f64> = rows.iter().map(|r| r.needed_mem_gb / r.device_mem_gb).collect();
        let did_not: Vec<f64> = out_of_memory.iter().map(|r| r.needed_mem_gb / r.device_mem_gb).collect();
        let count = |of: &[f64], right: &dyn Fn(f64) -> bool| (of.len(), of.iter().filter(|p| right(**p)).count());
        let balanced = |ran: (usize, usize), did_not: (usize, usize)| {
            let share = |(all, right): (usize, usize)| right as f64 / all as f64;
            (ran.0 > 0 && did_not.0 > 0).then(|| (share(ran) + share(did_not)) / 2.0)
        };
        let of = |ran: &[f64], did_not: &[f64]| (count(ran, &|p| p <= 1.0), count(did_not, &|p| p > 1.0));
        let near = |of: &[f64]| of.iter().copied().filter(|p| (0.75..=1.375).contains(p)).collect::<Vec<f64>>();
        let ((of_ran, of_others), close) = (of(&ran, &did_not), of(&near(&ran), &near(&did_not)));
        let balanced_accuracy = balanced(of_ran, of_others)?;
        Some(Fits { ran: of_ran, out_of_memory: of_others, balanced_accuracy, near: balanced(close.0, close.1) })
    }
}

impl Summary {
    /// Of rows.
    pub fn new(Compared { rows, out_of_memory, skipped }: Compared) -> Summary {
        let by = |key: &dyn Fn(&Row) -> String| {
            let mut groups: IndexMap<String, Vec<&Row>> = IndexMap::new();
            for row in &rows {
                groups.entry(key(row)).or_default().push(row);
            }
            groups.sort_keys();
            groups.into_iter().map(|(key, rows)| (key, Errors::of(&rows))).collect()
        };
        let all = (!rows.is_empty()).then(|| Errors::of(&rows.iter().collect::<Vec<_>>()));
        Summary {
            by_system: by(&|r| r.system.clone()),
            by_kind: by(&|r| r.kind.to_string()),
            by_size: of_sizes(&rows),
            median_abs_error: all.as_ref().map(|errors| errors.median_abs_error),
            p90_abs_error: all.as_ref().map(|errors| errors.p90_abs_error),
            fits: Fits::of(&rows, &out_of_memory),
            rows,
            out_of_memory,
            skipped,
        }
    }
}

fn of_sizes(rows: &[Row]) -> IndexMap<String, Errors> {
    let of = |(at, (_, name)): (usize, &(u64, &str))| {
        let rows: Vec<&Row> = rows.iter().filter(|row| size(row.devices) == at).collect();
        (!rows.is_empty()).then(|| (name.to_string(), Errors::of(&rows)))
    };
    SIZES.iter().enumerate().filter_map(of).collect()
}

/// Sizes of runs, in order.
const SIZES: [(u64, &str); 4] =
    [(8, "up to 8 devices"), (64, "9 to 64 devices"), (512, "65 to 512 devices"), (u64::MAX, "more than 512")];

/// Which of [`SIZES`] so many devices are.
fn size(devices: u64) -> usize {
    SIZES.iter().position(|(most, _)| devices <= *most).unwrap_or(0)
}

impl Errors {
    fn of(rows: &[&Row]) -> Errors {
        let signed: Vec<f64> = rows.iter().map(|r| r.error).collect();
        let errors: Vec<f64> = signed.iter().map(|e| e.abs()).collect();
        let memory: Vec<f64> =
            rows.iter().filter_map(|r| r.measured_mem_gb.map(|m| (r.predicted_mem_gb / m - 1.0).abs())).collect();
        Errors {
            rows: rows.len(),
            median_abs_error: quantile(&errors, 0.5),
            p90_abs_error: quantile(&errors, 0.9),
            bias: quantile(&signed, 0.5),
            rank: rank(rows),
            memory: (!memory.is_empty()).then(|| (quantile(&memory, 0.5), quantile(&memory, 0.9))),
        }
    }
}

/// The value that a part of the values is at or below, between neighbours in proportion; 0 of none.
pub fn quantile(values: &[f64], part: f64) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let Some(last) = sorted.len().checked_sub(1) else { return 0.0 };
    let at = part * last as f64;
    let (low, high) = (sorted[at.floor() as usize], sorted[at.ceil() as usize]);
    low + (high - low) * at.fract()
}

fn rank(rows: &[&Row]) -> Option<f64> {
    let mut sweeps: IndexMap<&str, Vec<(f64, f64)>> = IndexMap::new();
    for row in rows {
        sweeps.entry(&row.sweep).or_default().push((row.measured_s, row.predicted_s));
    }
    let taus: Vec<f64> = sweeps.values().filter(|s| s.len() >= 3).filter_map(|s| kendall(s)).collect();
    (!taus.is_empty()).then(|| taus.iter().sum::<f64>() / taus.len() as f64)
}

/// Kendall's tau-b of pairs; `None` when one side is all the same.
pub fn kendall(pairs: &[(f64, f64)]) -> Option<f64> {
    let (mut agree, mut left, mut right) = (0.0, 0.0, 0.0);
    for (i, a) in pairs.iter().enumerate() {
        for b in &pairs[i + 1..] {
            let sign = |x: f64| if x == 0.0 { 0.0 } else { x.signum() };
            let (x, y) = (sign(a.0 - b.0), sign(a.1 - b.1));
            agree += x * y;
            left += x * x;
            right += y * y;
        }
    }
    (left > 0.0 && right > 0.0).then(|| agree / f64::sqrt(left * right))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn order_is_measured() {
        assert_eq!(kendall(&[(1.0, 2.0), (2.0, 3.0), (3.0, 9.0)]), Some(1.0));
        assert_eq!(kendall(&[(1.0, 3.0), (2.0, 2.0), (3.0, 1.0)]), Some(-1.0));
        // One of three pairs is turned round.
        assert!((kendall(&[(1.0, 1.0), (2.0, 3.0), (3.0, 2.0)]).unwrap() - 1.0 / 3.0).abs() < 1e-12);
        assert_eq!(kendall(&[(1.0, 1.0), (1.0, 2.0)]), None);
    }

    #[test]
    fn quantiles_lie_between_neighbours() {
        assert_eq!(quantile(&[4.0, 1.0, 2.0, 3.0], 0.5), 2.5);
        assert_eq!((quantile(&[], 0.5), quantile(&[7.0], 0.9)), (0.0, 7.0));
    }
}
