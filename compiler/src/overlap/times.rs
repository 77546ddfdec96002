//! What orders go by: how long instructions take.

use super::lanes::Lanes;
use super::rates::Rates;
use forebay_ir::{Graph, ValueId};
use forebay_plan::Program;
use std::fmt::Debug;
use std::sync::Arc;

/// Times instructions, for the passes that put them into an order or cut them into pieces.
pub trait Times: Debug + Send + Sync {
    /// Seconds of each instruction of a program, alone on its unit.
    fn instructions(&self, program: &Program, lanes: &Lanes) -> Vec<f64>;

    /// Seconds of a matrix product or an exchange of a graph, with the rows that an even routing brings, beyond those until it starts.
    fn value(&self, graph: &Graph, value: ValueId, lanes: &Lanes) -> f64;

    /// Seconds until a kernel starts.
    fn start(&self) -> f64;

    /// Bytes per second between memory and a kernel.
    fn memory_rate(&self) -> f64;

    /// Seconds lost for each second in which two units work at the same time.
    fn slowdown(&self) -> f64;
}

/// The device whose times orders go by: that of a cluster file, or a rough one ([`Rates`]).
#[derive(Clone, Debug)]
pub struct Clock(Arc<dyn Times>);

impl Clock {
    /// Of some times.
    pub fn new(times: impl Times + 'static) -> Clock {
        Clock(Arc::new(times))
    }

    /// The times.
    pub(super) fn times(&self) -> &dyn Times {
        &*self.0
    }
}

impl Default for Clock {
    fn default() -> Clock {
        Clock::new(Rates)
    }
}
