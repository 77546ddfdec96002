//! The state of one device: its host's queue, and the queues of its units.

use crate::backend::{Address, EventId, Task};
use forebay_cost::{Class, Price};
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
    /// What it is to what runs at the same time.
    pub load: Load,
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
    /// When it would end if nothing else began beside it.
    pub alone: f64,
    /// When it ends, as far as is known.
    pub end: f64,
    /// When the host is done with it.
    pub held: f64,
    pub stream: usize,
    pub load: Load,
    pub host_waits: bool,
}

/// What an operation is to what runs at the same time ([`Price::load`]).
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Load {
    /// It takes longer beside communication.
    Work,
    /// It slows work down, for this part of what links carry.
    Communication(f64),
    /// Neither.
    None,
}

impl Load {
    pub fn of(price: &Price) -> Load {
        match price.class {
            Class::Copy => Load::None,
            Class::Work => Load::Work,
            Class::Communication => Load::Communication(price.load),
        }
    }
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
    }
}
