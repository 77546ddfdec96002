//! Diagrams of schedules.

mod svg;
mod text;

pub use svg::svg;
pub use text::text;
