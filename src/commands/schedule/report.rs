//! What is said of a schedule.

use super::costs::Prices;
use crate::output::{Table, counted};
use forebay_pipeline::layers::Cut;
use forebay_pipeline::{Costs, Kind, Layout, Placement, Schedule, ScheduleError, Size, Ticks, Timeline, shown};
use serde_json::{Value, json};

/// Columns of the diagram of characters.
const COLUMNS: usize = 150;
/// Items whose orders people may want to see.
const MOST_LISTED: usize = 500;

/// A schedule with its times.
pub struct Report {
    pub name: String,
    pub schedule: Schedule,
    pub timeline: Timeline,
    pub costs: Costs,
    /// What nothing beats: no schedule, and of layers no cut.
    pub bound: Ticks,
    /// How layers were cut, if they were.
    pub cut: Option<CutReport>,
    /// How it was searched for, if it was.
    pub searched: Option<Searched>,
}

/// Layers in groups.
pub struct CutReport {
    pub cut: Cut,
    /// What no schedule of these groups beats.
    pub bound: Ticks,
}

/// What a search says of itself.
pub struct Searched {
    /// The published schedule that it found nothing better than.
    pub published: Option<Kind>,
    /// Replays.
    pub nodes: u64,
}

/// A difference, with a sign.
fn difference(of: Ticks, less: Ticks, decimals: u32) -> String {
    if of >= less { shown(of - less, decimals) } else { format!("-{}", shown(less - of, decimals)) }
}

/// A number of JSON: whole where costs are.
fn number(ticks: i128, decimals: u32) -> Value {
    match (decimals, i64::try_from(ticks)) {
        (0, Ok(whole)) => json!(whole),
        _ => json!(ticks as f64 / 10f64.powi(decimals as i32)),
    }
}

/// What the busiest stage works when nothing runs together.
fn ideal(costs: &Costs, layout: Layout) -> Ticks {
    costs.stage_work(layout).into_iter().max().unwrap_or(0)
}

/// `1 stage`, `2 chunks`, `8 micro-batches`.
fn sizes(stages: u32, chunks: u32, micros: u32) -> [String; 3] {
    let micro_batches = format!("{micros} micro-batch{}", if micros == 1 { "" } else { "es" });
    [counted(stages.into(), "stage"), counted(chunks.into(), "chunk"), micro_batches]
}

fn percent(part: Ticks, of: Ticks) -> String {
    format!("{:.1} %", 100.0 * part as f64 / of.max(1) as f64)
}

impl Report {
    fn ideal(&self) -> Ticks {
        ideal(&self.costs, self.schedule.layout())
    }

    /// In one line.
    pub fn title(&self) -> String {
        let Layout { size: Size { stages, chunks, micros }, placement } = self.schedule.layout();
        let [stages, chunks, micros] = sizes(stages, chunks, micros);
        format!("{}: {stages} × {chunks} ({}), {micros}", self.name, placement.name())
    }

    /// For programs.
    pub fn json(&self, prices: &Prices) -> Value {
        let number = |ticks: Ticks| number(i128::from(ticks), prices.decimals());
        let bubble = i128::from(self.timeline.makespan) - i128::from(self.ideal());
        let mut value = json!({
            "orders": self.schedule.texts(),
            "makespan": number(self.timeline.makespan),
            "bubble": self::number(bubble, prices.decimals()),
            "ideal_busy": number(self.ideal()),
            "peak_inflight": self.schedule.peaks(),
            "lower_bound": number(self.bound),
        });
        if let Some(CutReport { cut, bound }) = &self.cut {
            value["layer_group_ends"] = json!(cut.ends);
            value["lower_bound_of_cut"] = number(*bound);
        }
        if let Some(Searched { published, nodes }) = &self.searched {
            value["published"] = json!(published.map(Kind::name));
            value["placement"] = json!(self.schedule.layout().placement.name());
            value["nodes"] = json!(nodes);
        }
        value
    }

    /// For people.
    pub fn text(&self, prices: &Prices) -> String {
        let shown = |ticks| shown(ticks, prices.decimals());
        let (makespan, ideal) = (self.timeline.makespan, self.ideal());
        let mut out = self.title() + "\n\n";
        out += &format!("makespan       {}\n", shown(makespan));
        let reached = |bound: Ticks, so: &str| match makespan - bound {
            0 => format!(", which it reaches{so}"),
            gap => format!("; the makespan is {} above it", percent(gap, bound)),
        };
        let nothing = ": nothing is faster";
        out += &match &self.cut {
            None => format!("lower bound    {}{}\n", shown(self.bound), reached(self.bound, nothing)),
            Some(cut) => format!(
                "lower bound    {} for any cut of the layers{}\nof this cut    {}{}\n",
                shown(self.bound),
                reached(self.bound, nothing),
                shown(cut.bound),
                reached(cut.bound, ": no other order of it is faster")
            ),
        };
        out += &format!("bubble         {}", difference(makespan, ideal, prices.decimals()));
        out += &match makespan.checked_sub(ideal) {
            Some(bubble) => format!(", {} of the makespan\n", percent(bubble, makespan)),
            None => "; pairs take less time than their parts\n".to_string(),
        };
        out += &format!("busiest stage  {}\n", shown(ideal));
        if let Some(searched) = &self.searched {
            out += &format!("searched       {} nodes\n", crate::output::grouped(searched.nodes));
        }
        out += &format!("\n{}", self.stages(prices));
        if let Some(drawn) = forebay_pipeline::draw::text(&self.schedule, &self.timeline, COLUMNS) {
            out += &format!("\n{drawn}");
        }
        if self.schedule.orders().iter().map(Vec::len).sum::<usize>() <= MOST_LISTED {
            out.push('\n');
            for (stage, order) in self.schedule.texts().iter().enumerate() {
                out += &format!("stage {stage}: {order}\n");
            }
        } else {
            out += "\n--json has the orders, --svg FILE the diagram\n";
        }
        out
    }

    fn stages(&self, prices: &Prices) -> String {
        let layout = self.schedule.layout();
        let mut heading = vec!["stage", "layer groups", "busy", "idle", "peak"];
        if self.cut.is_some() {
            heading.insert(2, "layers");
        }
        let mut table = Table::new(&heading).left(heading.len() - 3);
        for ((stage, busy), peak) in (0..).zip(&self.timeline.busy).zip(self.schedule.peaks()) {
            let groups = layout.groups_of(stage);
            let shown = |ticks| shown(ticks, prices.decimals());
            let mut row = vec![stage.to_string(), runs(groups.iter().map(|g| (*g, *g)))];
            if let Some(CutReport { cut, .. }) = &self.cut {
                let layers = |g: &u32| {
                    let start = g.checked_sub(1).map_or(0, |before| cut.ends[before as usize]);
                    (start as u32, cut.ends[*g as usize] as u32 - 1)
                };
                row.push(runs(groups.iter().map(layers)));
            }
            row.extend([shown(*busy), shown(self.timeline.makespan - busy), peak.to_string()]);
            table.row(row);
        }
        table.render()
    }
}

/// Numbers from … to, those that touch joined: `0-3 7`.
pub fn runs(ranges: impl Iterator<Item = (u32, u32)>) -> String {
    let mut joined: Vec<(u32, u32)> = vec![];
    for (from, to) in ranges {
        match joined.last_mut() {
            Some((_, end)) if *end + 1 == from => *end = to,
            _ => joined.push((from, to)),
        }
    }
    let run = |(from, to): &(u32, u32)| if from == to { from.to_string() } else { format!("{from}-{to}") };
    joined.iter().map(run).collect::<Vec<_>>().join(" ")
}

/// A kind, and what it is at a size.
pub type Row = (Kind, Result<(Schedule, Timeline, Ticks), ScheduleError>);

/// Does it keep to the cap?
pub fn within(schedule: &Schedule, cap: Option<u32>) -> bool {
    cap.is_none_or(|cap| schedule.peaks().iter().all(|peak| *peak <= cap))
}

/// The table for programs.
pub fn all_json(rows: &[Row], cap: Option<u32>, prices: &Prices) -> Value {
    let row = |(kind, row): &Row| match row {
        Ok((schedule, timeline, bound)) => {
            let ideal = prices.costs(schedule.layout()).map_or(0, |costs| ideal(&costs, schedule.layout()));
            let number = |ticks: i128| number(ticks, prices.decimals());
            json!({
                "kind": kind.name(),
                "placement": schedule.layout().placement.name(),
                "orders": schedule.texts(),
                "makespan": number(timeline.makespan.into()),
                "bubble": number(i128::from(timeline.makespan) - i128::from(ideal)),
                "ideal_busy": number(ideal.into()),
                "peak_inflight": schedule.peaks(),
                "lower_bound": number((*bound).into()),
                "within_cap": within(schedule, cap),
            })
        }
        Err(error) => json!({ "kind": kind.name(), "error": error.message }),
    };
    rows.iter().map(row).collect()
}

/// The table for people.
pub fn all_text(rows: &[Row], size: Size, cap: Option<u32>, prices: &Prices) -> String {
    let Size { stages, chunks, micros } = size;
    let [of_stages, of_chunks, of_micros] = sizes(stages, chunks, micros);
    let mut out = format!("{of_stages} × {of_chunks}, {of_micros}\n\n");
    let mut table = Table::new(&["kind", "placement", "makespan", "bubble", "peak", "bound"]).left(2);
    let mut notes = String::new();
    for (kind, row) in rows {
        match row {
            Ok((schedule, timeline, bound)) => {
                let layout = schedule.layout();
                let ideal = prices.costs(layout).map_or(0, |costs| ideal(&costs, layout));
                let peak = schedule.peaks().into_iter().max().unwrap_or(0);
                let over = if within(schedule, cap) { "" } else { " over the cap" };
                table.row(vec![
                    kind.name().to_string(),
                    layout.placement.name().to_string(),
                    shown(timeline.makespan, prices.decimals()),
                    difference(timeline.makespan, ideal, prices.decimals()),
                    format!("{peak}{over}"),
                    shown(*bound, prices.decimals()),
                ]);
                if kind.placement() == Placement::TwoWay {
                    notes += &format!(
                        "dualpipe holds the weights twice: a stage has {chunks} chunks of each direction (--chunks {} when it is named)\n",
                        2 * chunks
                    );
                }
            }
            Err(error) => notes += &format!("{}\n", error.to_string().replace("\n  = help:", ";")),
        }
    }
    out += &table.render();
    if notes.is_empty() { out } else { out + "\n" + &notes }
}
