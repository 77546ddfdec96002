//! What a reader of a plan's numbers should know.

use crate::output::grouped;
use crate::say::say;
use forebay_plan::{Kernel, Plan};

/// That `max_tokens_per_rank` is less than what comes to the busiest rank, with so many times the rows of an even routing.
pub fn few_rows(plan: &Plan, imbalance: f64) -> Option<String> {
    let exchanged = plan.programs.iter().flat_map(|p| &p.instructions).filter_map(|i| match &i.kernel {
        Kernel::AllToAllV(k) => Some((k.bound, (k.even as f64 * imbalance).ceil() as u64)),
        _ => None,
    });
    let (bound, rows) = exchanged.filter(|(bound, rows)| bound < rows).max_by_key(|(_, rows)| *rows)?;
    let how = if imbalance > 1.0 { "this routing" } else { "an even routing" };
    Some(format!(
        "max_tokens_per_rank leaves room for {} rows, but {how} brings {} to the busiest rank: such a step cannot run",
        grouped(bound),
        grouped(rows)
    ))
}

/// Prints a note on stderr.
pub fn print(note: Option<String>) {
    if let Some(note) = note {
        say!("note: {note}");
    }
}
