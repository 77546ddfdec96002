//! The state of one device: its host's queue, and the queues of its units.

use crate::backend::{Address, EventId, Task};
use forebay_cost::Class;
use forebay_plan::StreamKind;
use forebay_plan::verify::order::Clock;
use std::collections::VecDeque;
use std::sync::Arc;

/// Something that takes time on a unit.
#[derive(Clone, Debug)]
pub(super) enum Work {
    Kernel(Task),
    Collective(Task, Arc<[u32]>),
    Send(Task, u32),
    Receive(Task, u32),
    Copy { from: Address, to: Address, bytes: u64 },
}

impl Work {
    /// The instruction; none for copies that the host asked for.
    pub fn task(&self) -> Option<Task> {
        match self {
            Work::Kernel(task) | Work::Collective(task, _) | Work::Send(task, _) | Work::Receive(task, _) => {
                Some(*task)
            }
            Work::Copy { .. } => None,
        }
    }
}

/// What a stream is told.
#[derive(Clone, Debug)]
pub(super) enum Command {
    Work(Work),
    /// Wait for the record with this number.
    Wait(EventId, u64),
    Record(EventId, u64),
}

/// A command that the host has launched.
#[derive(Clone, Debug)]
pub(super) struct Queued {
    pub command: Command,
    /// When the unit may begin it, and when the host is done with it, seconds.
    pub launched: f64,
    pub held: f64,
    /// Does the host wait for its end?
    pub host_waits: bool,
    /// Number of its stream's kind: the unit that it runs on may do the work of several.
    pub stream: usize,
    /// Which of the device's launches it is, and which one slows it down.
    pub number: usize,
    pub beside: Option<usize>,
    /// Is the machine to look at it when it is launched?
    pub awaited: bool,
    /// Has it come to its meeting?
    pub arrived: bool,
}

/// Work that has begun and not ended.
#[derive(Clone, Debug)]
pub(super) struct Running {
    pub work: Work,
    pub launched: f64,
    pub begin: f64,
    /// When it would end with nothing beside it.
    pub alone: f64,
    /// When it ends, as far as is known.
    pub end: f64,
    /// When the host is done with it.
    pub held: f64,
    pub stream: usize,
    pub number: usize,
    pub beside: Option<usize>,
    pub host_waits: bool,
}

/// A unit with what it is to do, and a stream with what it knows, of one number.
#[derive(Debug, Default)]
pub(super) struct Unit {
    pub queue: VecDeque<Queued>,
    pub running: Option<Running>,
    /// How many operations of each unit are known to have ended when its next one begins; of its own, how many have begun.
    pub clock: Clock,
}

/// The host of a device: it launches one thing after another.
#[derive(Debug, Default)]
pub(super) struct Host {
    /// Until when it is busy, seconds.
    pub at: f64,
    /// Does it wait for the end of something?
    pub blocked: bool,
    pub queue: VecDeque<(usize, Command)>,
}

/// A device.
#[derive(Debug)]
pub(super) struct Device {
    /// Of the rank.
    pub coordinates: Vec<u32>,
    /// Bytes in use of its own memory, and of its host's.
    pub used: [u64; 2],
    pub host: Host,
    pub units: [Unit; StreamKind::COUNT],
    /// For each stream the instruction that it was given last, if nothing came behind it.
    pub given: [Option<Task>; StreamKind::COUNT],
    /// When its last work was done, seconds.
    pub done: f64,
    pub launches: Launches,
}

/// What a host has launched since it last waited for everything.
#[derive(Debug, Default)]
pub(super) struct Launches {
    /// When each began and ended, seconds; [`NEVER`] as long as it has not begun.
    spans: Vec<(f64, f64)>,
    /// The last work and the last communication that was not for the cube's stream.
    last: [Option<usize>; 2],
}

/// Not yet.
const NEVER: (f64, f64) = (f64::INFINITY, f64::INFINITY);

impl Launches {
    /// Something is launched: its number, and that of what slows it down ([`Class`]).
    pub fn add(&mut self, unit: usize, class: Class) -> (usize, Option<usize>) {
        let number = self.spans.len();
        self.spans.push(NEVER);
        let (mine, other) = match class {
            Class::Copy => return (number, None),
            Class::Work => (0, 1),
            Class::Communication => (1, 0),
        };
        let beside = self.last[other];
        if unit != StreamKind::Cube.number() {
            self.last[mine] = Some(number);
        }
        (number, beside)
    }

    /// When one ran, as far as is known.
    pub fn span(&self, number: Option<usize>) -> (f64, f64) {
        number.map_or(NEVER, |number| self.spans[number])
    }

    /// One runs from a time to another.
    pub fn ran(&mut self, number: usize, begin: f64, end: f64) {
        self.spans[number] = (begin, end);
    }
}

impl Device {
    pub fn new(coordinates: Vec<u32>) -> Device {
        Device {
            coordinates,
            used: [0; 2],
            host: Host::default(),
            units: Default::default(),
            given: [None; StreamKind::COUNT],
            done: 0.0,
            launches: Launches::default(),
        }
    }

    /// Is there nothing left to do?
    pub fn is_idle(&self) -> bool {
        self.host.queue.is_empty() && self.units.iter().all(|u| u.queue.is_empty() && u.running.is_none())
    }

    /// From here on, all units know of all that was done.
    pub fn join(&mut self) {
        let mut all = Clock::default();
        self.units.iter().for_each(|unit| all.join(&unit.clock));
        self.units.iter_mut().for_each(|unit| unit.clock = all);
        self.launches = Launches::default();
    }
}
