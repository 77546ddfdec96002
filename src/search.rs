//! A search for a schedule while it goes on, and what it found.

use crate::output::{grouped, seconds};
use crate::say::say;
use forebay_compiler::settle::{Found, Settled, TICK};
use forebay_compiler::shard::Order;
use forebay_pipeline::Ticks;
use forebay_pipeline::search::Progress;
use indicatif::{ProgressBar, ProgressStyle};
use std::cell::Cell;
use std::fmt::Display;
use std::io::IsTerminal;
use std::time::{Duration, Instant};

/// Between lines of progress where there is no terminal.
const PAUSE: Duration = Duration::from_secs(5);

/// How far a search is, on stderr: a bar for people, lines where nobody sees a bar move.
pub struct Bar<'a> {
    bar: ProgressBar,
    /// When the next line is due.
    line: Option<Cell<Instant>>,
    /// Times as people read them.
    shown: &'a dyn Fn(Ticks) -> String,
}

impl<'a> Bar<'a> {
    /// One that shows times so; nothing when `quiet`.
    pub fn new(shown: &'a dyn Fn(Ticks) -> String, quiet: bool) -> Bar<'a> {
        let terminal = std::io::stderr().is_terminal();
        let bar = if terminal && !quiet { ProgressBar::new(1) } else { ProgressBar::hidden() };
        let style =
            ProgressStyle::with_template("{bar:24.cyan/dim} {pos}/{len} nodes  {msg}").expect("a valid template");
        bar.set_style(style.progress_chars("━╸─"));
        bar.enable_steady_tick(Duration::from_millis(500));
        let line = (!terminal && !quiet).then(|| Cell::new(Instant::now() + PAUSE));
        Bar { bar, line, shown }
    }

    /// Shows how far it is.
    pub fn show(&self, Progress { nodes, of, best, bound }: Progress) {
        let message = format!("best {}, bound {}", (self.shown)(best), (self.shown)(bound));
        match &self.line {
            Some(due) if Instant::now() >= due.get() => {
                say!("searched {} of {} nodes: {message}", grouped(nodes), grouped(of));
                due.set(Instant::now() + PAUSE);
            }
            Some(_) => {}
            None => {
                self.bar.set_length(of);
                self.bar.set_position(nodes);
                self.bar.set_message(message);
            }
        }
    }

    /// Takes the bar away.
    pub fn finish(&self) {
        self.bar.finish_and_clear();
    }
}

/// Ticks of the compiler's searches as people read them.
pub fn time(ticks: Ticks) -> String {
    seconds(ticks as f64 * TICK)
}

/// Which value of a strategy's key is the fastest, and what the others take: programs one after another, which a step runs beside each other where it can.
pub fn told_ways<T: Display>(key: &str, ways: &[(T, f64)]) -> String {
    let others = ways[1..].iter().map(|(way, time)| format!(", {} with {way}", seconds(*time)));
    let (best, time) = &ways[0];
    let others: String = others.collect();
    format!("{key}={best}: one after another, the programs of a step take {}{others}", seconds(*time))
}

/// What was found, in a sentence. Its times are sums of layers' own times: a step can take less, where the end of a layer runs beside the start of the next.
pub fn told(settled: &Settled, found: &Found) -> String {
    let mut text = match (&settled.strategy.schedule, found.kind) {
        (Order::Given(given), Some(kind)) => {
            // Where pairs hide nothing by these prices, their works are as well off one after the other.
            let apart = kind.has_pairs() && !given.schedule.has_pairs();
            let apart = if apart { " with its pairs one after the other" } else { "" };
            format!("nothing beats schedule={}{apart}", kind.name())
        }
        (order, _) => format!("schedule={order}"),
    };
    text += &format!(
        ", stages={}: by the time of each layer alone, passes take {}",
        settled.strategy.stages,
        seconds(found.seconds)
    );
    if let (Some((kind, best)), None) = (found.published, found.kind) {
        text += &format!(", {} with {}", seconds(best), kind.name());
    }
    text += &format!(
        "; by these no order of these stages takes less than {}; {} activations at most",
        seconds(found.bound),
        found.peak
    );
    match found.nodes {
        0 => text,
        nodes => text + &format!("; {} nodes", grouped(nodes)),
    }
}
