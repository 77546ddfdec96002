//! In which order a pipeline's stages work, and which layers they have: what the user says, and what is left to be found.

use super::strategy::StrategyError;
use forebay_pipeline::{Kind, Placement, Schedule};
use std::fmt;
use std::sync::Arc;

/// The order of a pipeline's work.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Order {
    /// A published schedule.
    Published(Kind),
    /// The best that a search finds for what the layers cost ([`crate::settle`]).
    Search,
    /// This one.
    Given(Given),
}

/// A schedule that was found or read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Given {
    /// What the user wrote: `search`, or the name of a file.
    pub name: String,
    /// The order of each stage.
    pub schedule: Arc<Schedule>,
}

/// How layers become the parts of a pipeline.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Cut {
    /// As many in each part.
    Even,
    /// By what layers cost, so that the slowest stage and the schedule are fast ([`crate::settle`]).
    Auto,
    /// Layers of each part (stage by stage, chunk by chunk), the first and the last of the model not counted.
    Given(Vec<u32>),
}

/// The published schedules that a search looks at: all but those that keep the weights twice.
pub fn searched() -> Vec<Kind> {
    Kind::ALL.into_iter().filter(|kind| kind.placement() != Placement::TwoWay).collect()
}

/// `gpipe, 1f1b or vpp`
fn names() -> String {
    let names: Vec<&str> = Kind::ALL.into_iter().map(Kind::name).chain(["search"]).collect();
    let (last, rest) = names.split_last().expect("there are some");
    format!("{} or {last}", rest.join(", "))
}

impl Order {
    /// Reads the name of a published schedule, or `search`.
    pub(super) fn parse(text: &str) -> Result<Order, StrategyError> {
        if text == "search" {
            return Ok(Order::Search);
        }
        match Kind::ALL.into_iter().find(|kind| kind.name() == text) {
            Some(kind) => Ok(Order::Published(kind)),
            None => Err(StrategyError::new(
                format!("`schedule` is {}, not `{text}`", names()),
                Some("a `.json` file that `forebay schedule --json` wrote is a schedule too".to_string()),
            )),
        }
    }

    /// Which stage has which part of the model. A search may choose, so that it has none yet.
    pub fn placement(&self) -> Option<Placement> {
        match self {
            Order::Published(kind) => Some(kind.placement()),
            Order::Search => None,
            Order::Given(given) => Some(given.schedule.layout().placement),
        }
    }
}

impl fmt::Display for Order {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Order::Published(kind) => kind.name(),
            Order::Search => "search",
            Order::Given(given) => &given.name,
        })
    }
}

impl Cut {
    /// Reads `auto` or `4/5/5/4`.
    pub(super) fn parse(text: &str) -> Option<Cut> {
        if text == "auto" {
            return Some(Cut::Auto);
        }
        text.split('/').map(|n| n.trim().parse().ok()).collect::<Option<_>>().map(Cut::Given)
    }
}

impl fmt::Display for Cut {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Cut::Even => f.write_str("even"),
            Cut::Auto => f.write_str("auto"),
            Cut::Given(layers) => f.write_str(&layers.iter().map(u32::to_string).collect::<Vec<_>>().join("/")),
        }
    }
}
