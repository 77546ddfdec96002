//! Pipeline schedules as data.
//!
//! A [`Schedule`] says, for each stage of a pipeline, in which order it does its work: the forward **F**, the backward for the input **I** and the
//! backward for the weights **W** (or both, **B**) of each layer group and micro-batch. It has no times. [`replay`] gives it times for any
//! [`Costs`]; [`verify`] checks it whoever made it; [`generators`] make the published ones; [`search`] looks for a better one under a memory cap,
//! and [`bound`] says how much better there can be. [`layers`] cuts a model's layers into the groups.
//!
//! ```
//! use forebay_pipeline::{Costs, Kind, Size, replay, verify};
//!
//! let schedule = Kind::ZbV.generate(Size::new(4, 2, 8)?)?;
//! verify(&schedule, None).expect("a valid schedule");
//! let costs = Costs::equal(schedule.layout().groups(), 10, 12, 8).with_p2p(2);
//! assert_eq!(replay(&schedule, &costs)?.makespan, 542);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

pub mod bound;
mod costs;
pub mod draw;
mod error;
pub mod generators;
mod item;
pub mod layers;
mod layout;
mod replay;
mod schedule;
pub mod search;
mod verify;

pub use costs::{Costs, Decimal, Ticks, shown};
pub use error::ScheduleError;
pub use generators::Kind;
pub use item::{Item, Op, Work};
pub use layout::{Layout, MAX_WORK, Placement, Size};
pub use replay::{Span, Stuck, Timeline, replay};
pub use schedule::Schedule;
pub use verify::{Problem, verify};
