//! A table of where a run's time went.

use crate::output::{Table, short};
use forebay_runtime::exec::ProfileRow;

/// Rows shown; the others are one row together.
const ROWS: usize = 30;

/// The table, the longest first.
pub fn text(rows: &[ProfileRow]) -> String {
    let total: f64 = rows.iter().map(|r| r.seconds).sum();
    let mut table = Table::new(&["program", "value", "kernel", "runs", "seconds", "share", "FLOP/s", "bytes/s"]);
    let share = |seconds: f64| format!("{:.1} %", 100.0 * seconds / total);
    let rate =
        |amount: f64, seconds: f64| if amount > 0.0 && seconds > 0.0 { short(amount / seconds) } else { String::new() };
    for row in rows.iter().take(ROWS) {
        table.row(vec![
            row.program.clone(),
            row.instruction.clone(),
            row.kernel.to_string(),
            row.runs.to_string(),
            format!("{:.3}", row.seconds),
            share(row.seconds),
            rate(row.flops, row.seconds),
            rate(row.bytes, row.seconds),
        ]);
    }
    let rest = rows.get(ROWS..).unwrap_or(&[]);
    table.rule();
    let sum = |of: fn(&ProfileRow) -> f64| rest.iter().map(of).sum::<f64>();
    if !rest.is_empty() {
        let seconds = sum(|r| r.seconds);
        let mut line = vec![format!("{} others", rest.len()), String::new(), String::new(), String::new()];
        line.extend([format!("{seconds:.3}"), share(seconds), rate(sum(|r| r.flops), seconds)]);
        line.push(rate(sum(|r| r.bytes), seconds));
        table.row(line);
    }
    table.row(vec!["all".into(), String::new(), String::new(), String::new(), format!("{total:.3}")]);
    table.render()
}
