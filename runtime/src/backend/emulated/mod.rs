//! A machine with devices that is not there: it computes the numbers that a real one would, while a clock of its own runs on a table of prices.
//!
//! ```text
//! host of a device   ──launch──launch──launch──┐        each takes the table's time
//! its streams        ─────────┤ kernel ├───wait┤ kernel ├──       begin: stream free, events there, launched, members come, message arrived
//! ```
//!
//! Every device has memory of its own with a limit, and a unit for each kind of stream. [`engine`] takes what can begin in the order of the clock; whatever begins has
//! its accesses checked ([`shadow`]) and its numbers computed ([`numbers`]) there and then, by the kernels of this machine. So numbers are computed in the order in which
//! the devices work, and not in the plan's.
//!
//! With a seed, durations are drawn and hosts launch everything at once: another order that streams and events permit. Then the times mean nothing, but results must be
//! the same bits.

mod agenda;
mod code;
mod device;
mod engine;
mod numbers;
mod shadow;

use super::{Address, Backend, BindingId, CallSite, EventId, Fault, MemoryId, Ran, Stream, Synchronised, Task, Wrong};
use crate::comm::{coordinates, ranks};
use crate::exec::{Arena, ExecError, HostTraffic};
use crate::kernels::{Buf, Cpu, Scratch};
use crate::pool::Pool;
use agenda::{Agenda, Chance};
use code::Code;
use device::{Command, Device, Work};
use engine::Wires;
use forebay_cost::Table;
use forebay_plan::verify::order::Clock;
use forebay_plan::{MeshDim, Program, Space, StreamKind};
use shadow::Shadow;
use std::io;

/// What is emulated.
#[derive(Clone, Debug)]
pub struct Machine {
    /// The ranks: a device each.
    pub mesh: Vec<MeshDim>,
    /// Bytes of a device's own memory; as many as this machine gives when not said.
    pub device_bytes: Option<u64>,
    /// What instructions take.
    pub table: Table,
    /// The instructions of this machine that compute the numbers.
    pub cpu: Cpu,
    /// Threads of this machine that compute; all that it has when 0.
    pub threads: usize,
    /// Draws durations from this seed, and so another order.
    pub shuffle: Option<u64>,
}

/// An emulated machine.
#[derive(Debug)]
pub struct Emulated {
    machine: Machine,
    pool: Pool,
    code: Code,
    scratch: Scratch,
    memories: Vec<Memory>,
    devices: Vec<Device>,
    /// Since the last synchronisation; the first has this number.
    bindings: Vec<Binding>,
    bound_before: u32,
    events: Vec<Event>,
    wires: Wires,
    agenda: Agenda,
    chance: Chance,
    /// The clock of the devices, seconds.
    now: f64,
    trace: Option<Vec<Ran>>,
    copied: HostTraffic,
    /// Buffers of the kernel that runs.
    buffers: Vec<Buf>,
}

/// Memory of a device or its host.
#[derive(Debug)]
struct Memory {
    device: u32,
    space: Space,
    arena: Arena,
    shadow: Shadow,
    freed: bool,
}

/// A call with its slots.
#[derive(Clone, Debug)]
struct Binding {
    device: u32,
    site: CallSite,
    slots: Vec<Address>,
}

/// An event: which records were asked for and done, and what is known at the last.
#[derive(Clone, Copy, Debug, Default)]
struct Event {
    asked: u64,
    done: u64,
    clock: Clock,
}

impl Emulated {
    /// A machine with a device for each rank. Nothing is loaded or allocated yet.
    ///
    /// # Errors
    /// When the system has no threads for it.
    pub fn new(machine: Machine) -> io::Result<Emulated> {
        let count = ranks(&machine.mesh).min(u64::from(u32::MAX)) as u32;
        let threads = match machine.threads {
            0 => std::thread::available_parallelism().map_or(1, |n| n.get()),
            threads => threads,
        };
        let pool = Pool::new(threads)?;
        Ok(Emulated {
            scratch: Scratch::new(Default::default(), pool.workers()),
            devices: (0..count).map(|rank| Device::new(coordinates(&machine.mesh, rank))).collect(),
            chance: Chance::new(machine.shuffle),
            machine,
            pool,
            code: Code::default(),
            memories: vec![],
            bindings: vec![],
            bound_before: 0,
            events: vec![],
            wires: Wires::default(),
            agenda: Agenda::default(),
            now: 0.0,
            trace: None,
            copied: HostTraffic::default(),
            buffers: vec![],
        })
    }

    fn memory(&self, id: MemoryId) -> &Memory {
        &self.memories[id.0 as usize]
    }

    /// A range of memory, when it is there.
    fn range(&self, at: Address, bytes: u64, what: &dyn Fn() -> String) -> Result<(), Fault> {
        let memory = self.memory(at.memory);
        let fault = |wrong| Err(Fault { at: None, rank: memory.device, wrong });
        if memory.freed {
            return fault(Wrong::Freed { what: what() });
        }
        match at.offset.checked_add(bytes) {
            Some(end) if end <= memory.arena.len() => Ok(()),
            end => {
                let end = end.unwrap_or(u64::MAX);
                fault(Wrong::Outside { what: what(), end, bytes: memory.arena.len() })
            }
        }
    }

    /// Puts something into a host's queue.
    fn submit(&mut self, on: Stream, command: Command) {
        let device = &mut self.devices[on.device as usize];
        device.given[on.kind.number()] = match &command {
            Command::Work(work) => work.task(),
            Command::Wait(..) | Command::Record(..) => None,
        };
        device.host.queue.push_back((on.kind.number(), command));
    }

    /// The same, of an instruction whose memory the unit must reach.
    fn submit_task(&mut self, on: Stream, task: Task, work: Work) -> Result<(), Fault> {
        let binding = self.binding(task.binding);
        let program = &self.code.programs[binding.site.program as usize];
        for touch in self.code.touches(binding.site.program, task.instruction) {
            let buffer = &program.buffers[touch.buffer as usize];
            let space = self.memory(binding.slots[buffer.slot as usize].memory).space;
            let reaches = match on.kind {
                StreamKind::Cube | StreamKind::Vector => space == Space::Device,
                StreamKind::Host => space == Space::Host,
                StreamKind::IntraNode | StreamKind::InterNode | StreamKind::CopyIn | StreamKind::CopyOut => true,
            };
            if !reaches {
                let wrong = Wrong::Space { buffer: buffer.name.clone(), space };
                return Err(Fault { at: Some(Box::new(self.spot(on, &work))), rank: on.device, wrong });
            }
        }
        // A region is launched as one: what is in it must be all that comes between its ends.
        let before = self.devices[on.device as usize].given[on.kind.number()];
        let follows = || before.is_some_and(|before| before.binding == task.binding);
        if program.instructions[task.instruction as usize].captured && !follows() {
            return Err(Fault { at: Some(Box::new(self.spot(on, &work))), rank: on.device, wrong: Wrong::Captured });
        }
        self.submit(on, Command::Work(work));
        Ok(())
    }

    fn binding(&self, id: BindingId) -> &Binding {
        &self.bindings[(id.0 - self.bound_before) as usize]
    }
}

impl Backend for Emulated {
    fn name(&self) -> &str {
        "npu-emulated"
    }

    fn devices(&self) -> u32 {
        self.devices.len() as u32
    }

    fn load(&mut self, programs: &[Program]) -> Result<(), ExecError> {
        self.code = Code::new(programs, self.machine.cpu)?;
        self.scratch = Scratch::new(self.code.prepared.scratch, self.pool.workers());
        self.buffers = Vec::with_capacity(self.code.prepared.buffers);
        Ok(())
    }

    fn allocate(&mut self, device: u32, space: Space, bytes: u64) -> Result<MemoryId, Fault> {
        let capacity = self.machine.device_bytes.filter(|_| space == Space::Device);
        let used = &mut self.devices[device as usize].used[usize::from(space == Space::Host)];
        let all = used.checked_add(bytes).filter(|all| capacity.is_none_or(|capacity| *all <= capacity));
        let arena = all.and_then(|_| Arena::new(bytes));
        let (Some(all), Some(arena)) = (all, arena) else {
            let wrong = Wrong::Memory { space, wanted: bytes, used: *used, capacity };
            return Err(Fault { at: None, rank: device, wrong });
        };
        *used = all;
        self.memories.push(Memory { device, space, arena, shadow: Shadow::default(), freed: false });
        Ok(MemoryId(self.memories.len() as u32 - 1))
    }

    fn free(&mut self, memory: MemoryId) -> Result<(), Fault> {
        let at = Address { memory, offset: 0 };
        self.range(at, 0, &|| "memory that is to be given back".into())?;
        let memory = &mut self.memories[memory.0 as usize];
        memory.freed = true;
        let used = &mut self.devices[memory.device as usize].used[usize::from(memory.space == Space::Host)];
        *used -= memory.arena.len();
        Ok(())
    }

    fn declare(&mut self, memory: MemoryId, values: &[(u64, u64)]) {
        self.memories[memory.0 as usize].shadow.declare(values);
    }

    fn bind(&mut self, device: u32, call: &CallSite, slots: &[Address]) -> Result<BindingId, Fault> {
        let program = &self.code.programs[call.program as usize];
        for (slot, at) in program.slots.iter().zip(slots) {
            self.range(*at, slot.bytes, &|| format!("slot `{}` of call {} ({})", slot.name, call.call, program.name))?;
        }
        self.bindings.push(Binding { device, site: *call, slots: slots.to_vec() });
        Ok(BindingId(self.bound_before + self.bindings.len() as u32 - 1))
    }

    fn launch(&mut self, on: Stream, task: Task) -> Result<(), Fault> {
        self.submit_task(on, task, Work::Kernel(task))
    }

    fn collective(&mut self, on: Stream, task: Task, members: &[u32]) -> Result<(), Fault> {
        let members = self.wires.group(members);
        self.submit_task(on, task, Work::Collective(task, members))
    }

    fn send(&mut self, on: Stream, task: Task, to: u32) -> Result<(), Fault> {
        self.submit_task(on, task, Work::Send(task, to))
    }

    fn receive(&mut self, on: Stream, task: Task, from: u32) -> Result<(), Fault> {
        self.submit_task(on, task, Work::Receive(task, from))
    }

    fn event(&mut self, _device: u32) -> EventId {
        self.events.push(Event::default());
        EventId(self.events.len() as u32 - 1)
    }

    fn record(&mut self, on: Stream, event: EventId) {
        let asked = &mut self.events[event.0 as usize].asked;
        *asked += 1;
        let number = *asked;
        self.submit(on, Command::Record(event, number));
    }

    fn wait(&mut self, on: Stream, event: EventId) {
        let number = self.events[event.0 as usize].asked;
        self.submit(on, Command::Wait(event, number));
    }

    fn copy(&mut self, on: Stream, from: Address, to: Address, bytes: u64) -> Result<(), Fault> {
        self.range(from, bytes, &|| "what is copied".into())?;
        self.range(to, bytes, &|| "where it is copied to".into())?;
        if [from, to].iter().any(|at| self.memory(at.memory).device != on.device) {
            return Err(Fault { at: None, rank: on.device, wrong: Wrong::Mismatch });
        }
        self.submit(on, Command::Work(Work::Copy { from, to, bytes }));
        Ok(())
    }

    fn write(&mut self, to: Address, bytes: &[u8]) -> Result<(), Fault> {
        self.host_range(to, bytes.len() as u64)?;
        let memory = &mut self.memories[to.memory.0 as usize];
        memory.arena.bytes_mut(to.offset, bytes.len() as u64).copy_from_slice(bytes);
        Ok(())
    }

    fn read(&mut self, from: Address, bytes: &mut [u8]) -> Result<(), Fault> {
        self.host_range(from, bytes.len() as u64)?;
        bytes.copy_from_slice(self.memory(from.memory).arena.bytes(from.offset, bytes.len() as u64));
        Ok(())
    }

    fn synchronise(&mut self) -> Result<Synchronised, Fault> {
        let busy = self.devices.iter().any(|device| !device.is_idle());
        self.run()?;
        let done = self.devices.iter().map(|d| d.done).fold(0.0, f64::max);
        let hosts = self.devices.iter().map(|d| d.host.at).fold(self.now.max(done), f64::max);
        // To wait and go on costs a host as much as a launch.
        self.now = if busy { hosts + self.machine.table.launch } else { hosts };
        for device in &mut self.devices {
            device.host.at = self.now;
            device.join();
        }
        self.bound_before += self.bindings.len() as u32;
        self.bindings.clear();
        Ok(Synchronised { done, now: self.now })
    }

    fn copied(&self) -> HostTraffic {
        self.copied
    }

    fn trace(&mut self, on: bool) {
        self.trace = on.then(Vec::new);
    }

    fn take_trace(&mut self) -> Vec<Ran> {
        let mut ran = self.trace.as_mut().map(std::mem::take).unwrap_or_default();
        ran.sort_by(|a, b| a.begin.total_cmp(&b.begin).then(a.stream.device.cmp(&b.stream.device)));
        ran
    }
}

impl Emulated {
    /// A range of a host's memory, which alone the host can look into.
    fn host_range(&self, at: Address, bytes: u64) -> Result<(), Fault> {
        self.range(at, bytes, &|| "what the host looks at".into())?;
        let memory = self.memory(at.memory);
        match memory.space {
            Space::Host => Ok(()),
            space => {
                let wrong = Wrong::Space { buffer: "what the host looks at".into(), space };
                Err(Fault { at: None, rank: memory.device, wrong })
            }
        }
    }
}
