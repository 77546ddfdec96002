//! The diagram of the pipeline: a row a stage, a cell a pass.

use super::chart::{Chart, Class, Shown};
use super::text::seconds;
use forebay_sim::passes::Work;
use forebay_sim::timeline::Timeline;

/// Cells that a diagram has at most.
const MAX_CELLS: usize = 60_000;

pub const INTRODUCTION: &str = "One rank of each stage. Letters say what is done and numbers for which micro-batch: F forward, B backward, P forward beside \
the backward pass of another one, I and W backward for inputs and for weights, U sums and update. Where nothing is drawn the stage waits.";

/// The diagram.
pub fn chart(timeline: &Timeline) -> String {
    let most = (MAX_CELLS / timeline.roles.len().max(1)).max(1);
    // What there is no room for is left out at the end of the step, for all stages at once.
    let cut = timeline.roles.iter().filter_map(|r| r.passes.get(most).map(|pass| r.span(pass).0));
    let end = cut.fold(timeline.end, f64::min);
    let used: Vec<Work> = Work::ALL
        .into_iter()
        .filter(|w| timeline.roles.iter().any(|r| r.passes.iter().any(|p| p.work == *w)))
        .collect();
    let classes = used.iter().map(|w| class(*w)).collect();
    let description = format!(
        "{} stages over {}; each cell is one pass of one micro-batch through one part of a stage's layers.{}",
        timeline.roles.len(),
        seconds(end),
        if end < timeline.end { " The rest of the step is left out." } else { "" }
    );
    let mut chart = Chart::new("pipeline", "Pipeline diagram", &description, (0.0, end), classes);
    for role in &timeline.roles {
        chart.row(&format!("stage {}", role.ops.coordinate));
        let chunks = role.passes.iter().any(|p| p.chunk > 0);
        for pass in &role.passes {
            let (begin, end) = role.span(pass);
            let number = if pass.work == Work::Update { String::new() } else { pass.micro_batch.to_string() };
            let label = format!("{}{number}", pass.work.letter());
            let mut tip = pass.work.name().to_string();
            if pass.work != Work::Update {
                tip += &format!(", micro-batch {}", pass.micro_batch);
            }
            if chunks && pass.work != Work::Update {
                tip += &format!(", chunk {}", pass.chunk);
            }
            let class = used.iter().position(|w| *w == pass.work).unwrap_or(0);
            chart.cell((begin, end), Shown { class, label: &label, tip });
        }
    }
    let note = if end < timeline.end {
        format!(
            "<p class=\"note\">Only the first {} of {} are drawn: a diagram has at most {MAX_CELLS} cells.</p>\n",
            seconds(end),
            seconds(timeline.end)
        )
    } else {
        String::new()
    };
    chart.render() + &note
}

/// Forward passes stand high in their row, backward passes low.
fn class(work: Work) -> Class {
    let (name, inset) = match work {
        Work::Forward => ("f", (0.0, 7.0)),
        Work::Pair => ("p", (0.0, 0.0)),
        Work::BackwardInput => ("i", (7.0, 5.0)),
        Work::BackwardWeight => ("w", (12.0, 0.0)),
        Work::Backward => ("b", (7.0, 0.0)),
        Work::Again => ("r", (7.0, 0.0)),
        Work::Update => ("u", (0.0, 0.0)),
    };
    Class { name, meaning: format!("{} {}", work.letter(), work.name()), inset }
}
