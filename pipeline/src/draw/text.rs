//! The diagram as characters: a row a stage, time to the right.
//!
//! ```text
//!  0 │00011122233300044411155…
//!  1 │···000111222000…
//! ```

use crate::{Item, Op, Schedule, Ticks, Timeline};

/// A row a stage, at most `columns` characters wide; a letter and digits for each item that has room for them. `None` when a stage has more items than
/// there are columns: nothing could be read.
pub fn text(schedule: &Schedule, timeline: &Timeline, columns: usize) -> Option<String> {
    let makespan = timeline.makespan.max(1);
    let most = schedule.orders().iter().map(Vec::len).max().unwrap_or(0);
    if most * 2 > columns {
        return None;
    }
    let column = |ticks: Ticks| (u128::from(ticks) * columns as u128 / u128::from(makespan)) as usize;
    let digits = schedule.orders().len().saturating_sub(1).to_string().len();
    let mut out = String::new();
    for (stage, (order, spans)) in schedule.orders().iter().zip(&timeline.spans).enumerate() {
        let mut row = vec!['·'; columns];
        for (item, span) in order.iter().zip(spans) {
            write(&mut row[column(span.start)..column(span.end)], item);
        }
        let row: String = row.into_iter().collect();
        out += &format!("{stage:>digits$} │{row}\n");
    }
    Some(out)
}

/// The letter, the micro-batch as far as it fits, and a line to the end.
fn write(cells: &mut [char], item: &Item) {
    let name: Vec<char> = match item {
        Item::One(work) => format!("{}{}", work.op.letter(), work.micro).chars().collect(),
        Item::Pair(first, second) => {
            let letter = if second.op == Op::B { 'X' } else { second.op.letter() };
            format!("{letter}{}", first.micro).chars().collect()
        }
    };
    let name = if name.len() <= cells.len() { &name[..] } else { &name[..1] };
    for (at, cell) in cells.iter_mut().enumerate() {
        *cell = name.get(at).copied().unwrap_or('─');
    }
}
