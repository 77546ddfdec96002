//! Tables of where the time of emulated devices went: by stream, then by kind of kernel.

use crate::output::{Table, counted, percent, seconds};
use crate::profile::host_traffic;
use forebay_plan::{Plan, StreamKind};
use forebay_runtime::backend::Ran;
use forebay_runtime::exec::{DeviceStep, HostTraffic, kind};
use std::collections::BTreeMap;

/// The two tables, of all ranks together.
pub fn text(steps: &[DeviceStep], plan: &Plan) -> String {
    if steps.is_empty() {
        return "no training steps were measured\n".into();
    }
    let ranks = plan.mesh.iter().map(|d| f64::from(d.size)).product::<f64>().max(1.0);
    let total: f64 = steps.iter().map(|s| s.seconds).sum();
    let (n, each) = (steps.len(), total / steps.len() as f64);
    let mut out = format!(
        "{} of {} by the clock of {}; means of devices and steps\n\n",
        counted(n as u64, "training step"),
        seconds(each),
        counted(ranks as u64, "device")
    );
    let copied = steps.iter().fold(HostTraffic::default(), |mut all, step| {
        all += step.copied;
        all
    });
    let per_step = ranks * n as f64;
    out += &host_traffic(copied, per_step);
    let all = || steps.iter().flat_map(|s| &s.ran);
    let mut streams: BTreeMap<usize, (StreamKind, Sum)> = BTreeMap::new();
    let mut kinds: BTreeMap<&str, Sum> = BTreeMap::new();
    for ran in all() {
        streams.entry(ran.stream.kind.number()).or_insert((ran.stream.kind, Sum::default())).1.add(ran);
        if let Some((site, instruction)) = ran.work {
            let program = &plan.programs[site.program as usize];
            let kernel = &program.instructions[instruction as usize].kernel;
            kinds.entry(kind(program, kernel)).or_default().add(ran);
        }
    }
    let rows = |table: &mut Table, name: String, sum: &Sum| {
        let busy = sum.seconds / per_step;
        table.row(vec![name, format!("{:.0}", sum.runs as f64 / per_step), seconds(busy), percent(busy / each)]);
    };
    let mut table = Table::new(&["stream", "operations", "busy", "of the step"]);
    streams.values().for_each(|(kind, sum)| rows(&mut table, kind.name().to_string(), sum));
    out += &table.render();
    let mut sorted: Vec<(&str, Sum)> = kinds.into_iter().collect();
    sorted.sort_by(|a, b| b.1.seconds.total_cmp(&a.1.seconds));
    let mut table = Table::new(&["kernel", "operations", "takes", "of the step"]);
    sorted.iter().for_each(|(name, sum)| rows(&mut table, name.to_string(), sum));
    out + "\n" + &table.render()
}

/// Operations added up.
#[derive(Clone, Copy, Default)]
struct Sum {
    runs: u64,
    seconds: f64,
}

impl Sum {
    fn add(&mut self, ran: &Ran) {
        self.runs += 1;
        self.seconds += ran.end - ran.begin;
    }
}
