//! What cannot be scheduled, and what could be instead.

use thiserror::Error;

/// A request that no schedule can answer: what is wrong, and what works.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{message}{}", hint.as_ref().map_or(String::new(), |h| format!("\n  = help: {h}")))]
pub struct ScheduleError {
    /// What is wrong.
    pub message: String,
    /// What works instead, where that is known.
    pub hint: Option<String>,
}

impl ScheduleError {
    /// An error with a hint.
    pub fn new(message: impl Into<String>, hint: impl Into<String>) -> ScheduleError {
        ScheduleError { message: message.into(), hint: Some(hint.into()) }
    }

    /// An error that says all there is to say.
    pub fn plain(message: impl Into<String>) -> ScheduleError {
        ScheduleError { message: message.into(), hint: None }
    }
}
