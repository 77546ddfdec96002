//! Tables of where the time of training steps went: by kind of kernel, then by instruction.

use crate::output::{Table, short, size};
use forebay_plan::Plan;
use forebay_runtime::exec::{HostTraffic, Laps, Profile, ProfileRow, Roofline};

/// Instructions shown; the others are one row together.
const ROWS: usize = 30;

/// Rows of a table added up.
#[derive(Clone, Copy, Default)]
struct Sum {
    runs: u64,
    seconds: f64,
    flops: f64,
    bytes: f64,
    attainable: f64,
}

impl Sum {
    fn of<'r>(rows: impl IntoIterator<Item = &'r ProfileRow>, roofline: &Roofline) -> Sum {
        rows.into_iter().fold(Sum::default(), |sum, row| Sum {
            runs: sum.runs + row.runs,
            seconds: sum.seconds + row.seconds,
            flops: sum.flops + row.flops,
            bytes: sum.bytes + row.bytes,
            attainable: sum.attainable + row.attainable(roofline),
        })
    }

    /// runs, seconds, share, GFLOP/s, GB/s, roofline
    fn cells(&self, total: f64) -> Vec<String> {
        let giga = |amount: f64| match amount / self.seconds / 1e9 {
            rate if rate.is_finite() && rate > 0.0 => format!("{rate:.2}"),
            _ => String::new(),
        };
        vec![
            self.runs.to_string(),
            format!("{:.3}", self.seconds),
            percent(self.seconds / total),
            giga(self.flops),
            giga(self.bytes),
            percent(self.attainable / self.seconds),
        ]
    }
}

/// The two tables.
pub fn text(profile: &Profile, plan: &Plan, roofline: &Roofline) -> String {
    let rows = profile.rows(plan);
    let (steps, total) = (profile.steps(), profile.seconds());
    if steps == 0 || rows.is_empty() {
        return "no training steps were measured\n".into();
    }
    let mut out = format!(
        "{steps} training steps of {:.3} s; a probe of this machine came to {} (roofline: what the probe's rates allow, as a part of the time taken)\n\n",
        total / steps as f64,
        rates(roofline)
    );
    out.push_str(&host_traffic(profile.copied(), steps as f64));
    out.push_str(&by_kind(&rows, profile, roofline));
    out.push('\n');
    out.push_str(&by_instruction(&rows, total, roofline));
    out
}

/// What was copied to the host's memory and back in so many steps of a rank, if anything was.
pub fn host_traffic(copied: HostTraffic, steps: f64) -> String {
    if copied == HostTraffic::default() {
        return String::new();
    }
    let each = |all: u64| size(all as f64 / steps);
    format!("copied in a step: {} to the host's memory, {} back\n\n", each(copied.out), each(copied.back))
}

/// `250 GFLOP/s and 14.0 GB/s`
pub fn rates(roofline: &Roofline) -> String {
    format!("{}FLOP/s and {}B/s", short(roofline.flops), short(roofline.bytes))
}

/// What a run did before its first step.
pub fn start_up(laps: &Laps) -> String {
    let times: Vec<(&str, f64)> = laps.get().iter().map(|(name, time)| (*name, time.as_secs_f64())).collect();
    format!("start-up of {:.2} s: {}\n", laps.total().as_secs_f64(), parts(&times))
}

/// `compile 0.10, verify 0.00`
pub fn parts(seconds: &[(&str, f64)]) -> String {
    seconds.iter().map(|(name, seconds)| format!("{name} {seconds:.2}")).collect::<Vec<_>>().join(", ")
}

/// The part of the steps' time that their instructions would take at the machine's rates.
pub fn attained(rows: &[ProfileRow], seconds: f64, roofline: &Roofline) -> f64 {
    Sum::of(rows, roofline).attainable / seconds
}

/// A part of 1 as a percentage.
pub fn percent(part: f64) -> String {
    format!("{:.1} %", 100.0 * part)
}

fn by_kind(rows: &[ProfileRow], profile: &Profile, roofline: &Roofline) -> String {
    let total = profile.seconds();
    let mut kinds: Vec<&str> = rows.iter().map(|r| r.kind).collect();
    kinds.sort_unstable();
    kinds.dedup();
    let sum = |kind| Sum::of(rows.iter().filter(|r| r.kind == kind), roofline);
    let mut kinds: Vec<(&str, Sum)> = kinds.into_iter().map(|kind| (kind, sum(kind))).collect();
    kinds.sort_by(|a, b| b.1.seconds.total_cmp(&a.1.seconds));
    let mut table = Table::new(&["kind", "runs", "seconds", "share", "GFLOP/s", "GB/s", "roofline"]);
    for (kind, sum) in &kinds {
        table.row([vec![kind.to_string()], sum.cells(total)].concat());
    }
    let between = total - profile.kernel_seconds();
    let dispatch = [String::new(), format!("{between:.3}"), percent(profile.dispatch_share())];
    table.row([vec!["dispatch, between kernels".to_string()], dispatch.to_vec()].concat());
    table.rule();
    let all = Sum { seconds: total, ..Sum::of(rows, roofline) };
    table.row([vec!["training steps".to_string()], all.cells(total)].concat());
    table.render()
}

fn by_instruction(rows: &[ProfileRow], total: f64, roofline: &Roofline) -> String {
    let mut table =
        Table::new(&["program", "value", "kind", "runs", "seconds", "share", "GFLOP/s", "GB/s", "roofline"]);
    let shown = rows.len().min(ROWS);
    for row in &rows[..shown] {
        let names = vec![row.program.clone(), row.instruction.clone(), row.kind.to_string()];
        table.row([names, Sum::of([row], roofline).cells(total)].concat());
    }
    let rest = &rows[shown..];
    if !rest.is_empty() {
        table.rule();
        let names = vec![format!("{} others", rest.len()), String::new(), String::new()];
        table.row([names, Sum::of(rest, roofline).cells(total)].concat());
    }
    table.render()
}
