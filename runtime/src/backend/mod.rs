//! What the executor needs of a machine with devices: the interface that the driver of an NPU implements.
//!
//! ```text
//! load            programs become kernels, once
//! allocate, free  memory in a named space of a device
//! bind            the argument table of a call: where each slot of its program lies
//! launch, collective, send, receive, copy       work for a stream, none of which waits
//! record, wait    events between streams of a device
//! synchronise     the host waits for all devices
//! ```
//!
//! Devices are the ranks of a plan, in their order. A stream is named by its device and the kind of unit that does its work, since a plan has at most one of each.
//! Work is given to streams in the order of the plan, and runs when streams and events permit. Memory is named by a handle and an offset: nothing here is
//! a pointer of the host, knows its threads, or says where a device computes. Bytes of the host cross in [`Backend::write`] and [`Backend::read`] alone, by value
//! and into memory of the host space; from there [`Backend::copy`] takes them to a device.
//!
//! **Captured regions.** An instruction may be marked to be launched with the one before it on its stream ([`forebay_plan::Instruction::captured`]). The executor hands over all of
//! them, one by one; a driver with graphs records such a run when it first comes, with the kernels' places read from the argument table of the binding, and from then on starts it with its
//! first instruction. Nothing comes between them on their stream: no wait, no record, no other work.
//!
//! [`emulated`] is a machine that is not there: it computes the numbers of a real one while a clock of its own runs, and checks every access.

pub mod emulated;
mod fault;

pub use fault::{Access, Fault, Spot, Wrong};

use crate::exec::{ExecError, HostTraffic};
use forebay_plan::{Program, Space, StreamKind};
use std::fmt;

/// All kinds of streams, by number.
pub(crate) const KINDS: [StreamKind; StreamKind::COUNT] = [
    StreamKind::Cube,
    StreamKind::Vector,
    StreamKind::IntraNode,
    StreamKind::InterNode,
    StreamKind::CopyIn,
    StreamKind::CopyOut,
    StreamKind::Host,
];

/// Memory that was allocated.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct MemoryId(pub u32);

/// An event of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct EventId(pub u32);

/// The argument table of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct BindingId(pub u32);

/// A place in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Address {
    /// Which memory.
    pub memory: MemoryId,
    /// Bytes from its start.
    pub offset: u64,
}

/// A stream of a device: the unit that does its work, in order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Stream {
    /// The device: a rank.
    pub device: u32,
    /// Its unit.
    pub kind: StreamKind,
}

/// An instruction of a bound call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Task {
    /// The call.
    pub binding: BindingId,
    /// Index of the instruction in the call's program.
    pub instruction: u32,
}

/// A run of a program, as kernels need to know it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CallSite {
    /// Index of the call in its phase.
    pub call: u32,
    /// The program, of those that were loaded.
    pub program: u32,
    /// Which layer of the role.
    pub layer: u32,
    /// Which micro-batch.
    pub micro_batch: u32,
    /// The run's seed.
    pub seed: u64,
    /// The step, counted from 1.
    pub step: u64,
}

/// What a device did, by the clock of the devices.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Ran {
    /// On which stream.
    pub stream: Stream,
    /// Which call and instruction; none for copies that the host asked for.
    pub work: Option<(CallSite, u32)>,
    /// When the host had launched it, seconds.
    pub launched: f64,
    /// When it began, seconds.
    pub begin: f64,
    /// When it ended, seconds.
    pub end: f64,
}

/// A machine with a device for each rank.
pub trait Backend: fmt::Debug + Send {
    /// What people call it, as `--backend` names it.
    fn name(&self) -> &str;

    /// How many devices there are.
    fn devices(&self) -> u32;

    /// Makes the instructions of programs ready to run. Tasks name them by index from here on.
    ///
    /// # Errors
    /// When an instruction has no meaning for the devices.
    fn load(&mut self, programs: &[Program]) -> Result<(), ExecError>;

    /// Allocates memory of a device, or of its host: zeros.
    ///
    /// # Errors
    /// When there is not so much left.
    fn allocate(&mut self, device: u32, space: Space, bytes: u64) -> Result<MemoryId, Fault>;

    /// Gives memory back. Nothing uses it any more.
    ///
    /// # Errors
    /// When it was given back before.
    fn free(&mut self, memory: MemoryId) -> Result<(), Fault>;

    /// Says what is in memory, where nothing is under way: values at these (offset, bytes), and nothing anywhere else. For devices that check accesses; others need
    /// not look at it.
    fn declare(&mut self, _memory: MemoryId, _values: &[(u64, u64)]) {}

    /// Makes the argument table of a call: the places of its program's slots. It lasts until the next [`Backend::synchronise`].
    ///
    /// # Errors
    /// When a slot reaches beyond its memory.
    fn bind(&mut self, device: u32, call: &CallSite, slots: &[Address]) -> Result<BindingId, Fault>;

    /// Launches a kernel of this device alone.
    ///
    /// # Errors
    /// When it names memory that the stream's unit cannot reach.
    fn launch(&mut self, on: Stream, task: Task) -> Result<(), Fault>;

    /// Launches this device's part of a collective of `members`, in the order of the group. It begins when all of them have come to it.
    ///
    /// # Errors
    /// As [`Backend::launch`].
    fn collective(&mut self, on: Stream, task: Task, members: &[u32]) -> Result<(), Fault>;

    /// Sends an array to another device. It does not wait for the receiver.
    ///
    /// # Errors
    /// As [`Backend::launch`].
    fn send(&mut self, on: Stream, task: Task, to: u32) -> Result<(), Fault>;

    /// Receives the next array that another device sends here on the task's channel.
    ///
    /// # Errors
    /// As [`Backend::launch`].
    fn receive(&mut self, on: Stream, task: Task, from: u32) -> Result<(), Fault>;

    /// A new event of a device.
    fn event(&mut self, device: u32) -> EventId;

    /// Records an event when all work that the stream has so far is done.
    fn record(&mut self, on: Stream, event: EventId);

    /// Lets what the stream gets from here on wait for the last record of an event so far; for nothing when there is none.
    fn wait(&mut self, on: Stream, event: EventId);

    /// Copies between two memories of a device, its host's included.
    ///
    /// # Errors
    /// When one is too short, or of another device.
    fn copy(&mut self, on: Stream, from: Address, to: Address, bytes: u64) -> Result<(), Fault>;

    /// Puts bytes into memory of the host space, where nothing is under way.
    ///
    /// # Errors
    /// When the memory is too short, or a device's own.
    fn write(&mut self, to: Address, bytes: &[u8]) -> Result<(), Fault>;

    /// Gets bytes from memory of the host space, where nothing is under way.
    ///
    /// # Errors
    /// As [`Backend::write`].
    fn read(&mut self, from: Address, bytes: &mut [u8]) -> Result<(), Fault>;

    /// Waits until all devices have done all their work. All hosts go on at the same time.
    ///
    /// # Errors
    /// What went wrong in any work; the devices are then in the middle of something, and of no use any more.
    fn synchronise(&mut self) -> Result<Synchronised, Fault>;

    /// Bytes that programs of all devices have copied between devices' and hosts' memories so far; copies that the host asked for are not among them.
    fn copied(&self) -> HostTraffic;

    /// Begins or ends the notes of what devices do.
    fn trace(&mut self, on: bool);

    /// Takes the notes so far, in the order in which work began.
    fn take_trace(&mut self) -> Vec<Ran>;
}

/// Times by the clock of the devices, seconds.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Synchronised {
    /// When the last of the work was done.
    pub done: f64,
    /// When hosts go on.
    pub now: f64,
}
