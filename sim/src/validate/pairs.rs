//! What a technique gains: pairs of runs that differ in one thing, the gain that was measured against the one that is predicted.
//!
//! A pair is right in its sign when both gains are on the same side of 0, and right in its size when the predicted gain is within a third of the measured one. Errors
//! that both runs of a pair share cancel, so that this says something that the errors of single runs do not.

use super::Row;
use super::lines::{closed, line, unreadable};
use super::runs::RunsError;
use rustc_hash::FxHashMap;
use serde::Serialize;

/// Two runs by name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pair {
    /// What differs.
    pub technique: String,
    /// The run without it.
    pub before: String,
    /// The run with it.
    pub after: String,
}

/// A pair and what it gains.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Gain {
    /// What differs.
    pub technique: String,
    /// The run without it.
    pub before: String,
    /// The run with it.
    pub after: String,
    /// Tokens a second and device: with it over without − 1.
    pub measured: f64,
    /// The same, predicted.
    pub predicted: f64,
    /// Does it gain, or lose, in both?
    pub sign: bool,
    /// Is the prediction within a third of what was measured?
    pub size: bool,
    /// Peak memory with it over without − 1, measured and predicted, where both runs have it.
    pub memory: Option<(f64, f64)>,
}

/// All pairs.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Gains {
    /// Those whose runs both have predictions.
    pub gains: Vec<Gain>,
    /// Those that have not: technique, and the run that is missing.
    pub missing: Vec<(String, String)>,
}

/// Largest part of a measured gain that a prediction of the right size may be wrong by.
const SIZE: f64 = 1.0 / 3.0;
/// Gains that are smaller than this have no sign that a measurement could show.
const NOTHING: f64 = 0.005;

/// Reads a table of pairs: columns `technique`, `before` and `after`, the latter two names of runs.
///
/// # Errors
/// Columns that are missing, rows of another length, a blank name.
pub fn read(text: &str) -> Result<Vec<Pair>, RunsError> {
    closed(text)?;
    let mut reader = csv::ReaderBuilder::new().trim(csv::Trim::All).from_reader(text.as_bytes());
    let header = reader.headers().map_err(|e| RunsError(format!("the first line cannot be read: {e}")))?.clone();
    let column = |name: &str| {
        let missing = || format!("the column `{name}` is missing\n  = help: the first line is technique,before,after");
        header.iter().position(|h| h.eq_ignore_ascii_case(name)).ok_or_else(|| RunsError(missing()))
    };
    let [technique, before, after] = [column("technique")?, column("before")?, column("after")?];
    let mut pairs = vec![];
    for record in reader.records() {
        let record = record.map_err(|error| unreadable(text, &error))?;
        let line = line(text, record.position());
        let [technique, before, after] = [technique, before, after].map(|i| record.get(i).unwrap_or("").to_string());
        if before.is_empty() || after.is_empty() {
            return Err(RunsError(format!("line {line}: `before` and `after` are names of runs, and one is blank")));
        }
        pairs.push(Pair { technique, before, after });
    }
    Ok(pairs)
}

/// The gains of pairs among runs that were predicted.
pub fn gains(pairs: &[Pair], rows: &[Row]) -> Gains {
    let by_id: FxHashMap<&str, &Row> = rows.iter().map(|row| (row.id.as_str(), row)).collect();
    let mut all = Gains::default();
    for pair in pairs {
        match (by_id.get(pair.before.as_str()), by_id.get(pair.after.as_str())) {
            (Some(before), Some(after)) => all.gains.push(gain(pair, before, after)),
            (None, _) => all.missing.push((pair.technique.clone(), pair.before.clone())),
            _ => all.missing.push((pair.technique.clone(), pair.after.clone())),
        }
    }
    all
}

fn gain(pair: &Pair, before: &Row, after: &Row) -> Gain {
    let tokens = |row: &Row| row.report.tokens_per_s_per_device * row.predicted_s;
    let more = tokens(after) / tokens(before);
    let measured = more * before.measured_s / after.measured_s - 1.0;
    let predicted = more * before.predicted_s / after.predicted_s - 1.0;
    let of_memory = |row: &Row| row.measured_mem_gb.map(|measured| (measured, row.predicted_mem_gb));
    Gain {
        technique: pair.technique.clone(),
        before: pair.before.clone(),
        after: pair.after.clone(),
        measured,
        predicted,
        sign: measured * predicted > 0.0 || measured.abs().max(predicted.abs()) < NOTHING,
        size: (predicted - measured).abs() <= SIZE * measured.abs(),
        memory: of_memory(before).zip(of_memory(after)).map(|(b, a)| (a.0 / b.0 - 1.0, a.1 / b.1 - 1.0)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::validate::{predict, runs};
    use forebay_cost::known::clusters;

    /// Sequence parallelism with selective recomputation instead of full recomputation (arXiv 2205.05198, table 5).
    #[test]
    fn published_gains_are_predicted() {
        let read_runs = runs::read(include_str!("../../tests/published.csv")).expect("a table").runs;
        let pairs = read(include_str!("../../tests/published_pairs.csv")).expect("pairs");
        let all = gains(&pairs, &predict(&read_runs, &clusters(), 2).rows);
        assert!(all.gains.len() == pairs.len() && all.missing.is_empty(), "{:?}", all.missing);
        for gain in &all.gains {
            assert!(gain.sign && gain.size, "{gain:?}");
        }
        // The other way round it is a loss.
        let back: Vec<Pair> = pairs
            .into_iter()
            .map(|Pair { technique, before, after }| Pair { technique, before: after, after: before })
            .collect();
        let rows = predict(&read_runs, &clusters(), 2).rows;
        assert!(gains(&back, &rows).gains.iter().all(|g| g.measured < 0.0 && g.sign));
        // No gain at all is none of either sign.
        let [one, other] = ["korthikanti-001", "korthikanti-002"]
            .map(|id| rows.iter().find(|r| r.id == id).expect("it is there").clone());
        let same = [one.clone(), Row { predicted_s: one.predicted_s, report: one.report.clone(), ..other }];
        let pair = Pair { technique: "t".into(), before: one.id.clone(), after: "korthikanti-002".into() };
        let gain = &gains(&[pair], &same).gains[0];
        assert!(gain.predicted == 0.0 && gain.measured > 0.1 && !gain.sign && !gain.size, "{gain:?}");
        let nobody = [Pair { technique: "t".into(), before: "nobody".into(), after: "korthikanti-001".into() }];
        assert_eq!(gains(&nobody, &rows).missing, [("t".to_string(), "nobody".to_string())]);
    }

    #[test]
    fn mistakes_are_said() {
        assert!(read("technique,before\n").expect_err("no column").0.contains("`after` is missing"));
        assert!(read("technique,before,after\nt,a,\n").expect_err("a blank").0.contains("line 2"));
        assert!(read("technique,before,after\r\nt,a,b\r\nt,a,\r\n").expect_err("a blank").0.starts_with("line 3"));
        assert!(read("technique,before,after\nt,a\n").is_err());
        assert!(read("technique,before,after\n\"t,a,b\n").expect_err("it is open").0.contains("quote of line 2"));
        assert!(read("Technique,BEFORE, After \nt,a,b\n").is_ok_and(|pairs| pairs.len() == 1));
        assert!(read("technique,before,after\n").expect("no pairs").is_empty());
    }
}
