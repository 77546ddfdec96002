//! Plans on devices behind [`Backend`]: what the executor does instead of running kernels itself.
//!
//! ```text
//! start    batch and scalars ──► devices · calls before the commit, stream by stream, events between them · reports ──► host · wait
//! commit   the other calls, likewise
//! ```
//!
//! One thread gives all devices their work, which does not wait; the devices run it at the same time. What the host knows of a device's memory goes through staging memory of
//! the host space, in copies on the streams for copies.

use super::feeds::{Unknown, feed};
use super::halves::Holds;
use super::{ExecError, HostTraffic, PhaseId, element};
use crate::backend::{
    Address, Backend, CallSite, EventId, Fault, KINDS, MemoryId, Ran, Spot, Stream, Synchronised, Task, Wrong,
};
use crate::comm::{groups, rank_at};
use crate::data::Batch;
use crate::pool::Pool;
use forebay_plan::verify::ALIGN;
use forebay_plan::{Call, Kernel, Phase, Plan, Report, Role, Space, StreamKind, Tensor};
use std::borrow::Cow;
use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Bytes that are staged at a time.
const PIECE: u64 = 16 << 20;

/// A step as devices did it.
#[derive(Clone, Debug, PartialEq)]
pub struct DeviceStep {
    /// Which, counted from 1.
    pub step: u64,
    /// When it began, seconds by the clock of the devices.
    pub begin: f64,
    /// How long it took: from when the batch was there until all devices were done.
    pub seconds: f64,
    /// What all devices copied to their hosts' memory and back.
    pub copied: HostTraffic,
    /// All that ran, in the order in which it began; nothing when that was not asked for.
    pub ran: Vec<Ran>,
}

/// The devices of a plan.
#[derive(Debug)]
pub(super) struct Fleet<'p> {
    pub plan: &'p Plan,
    /// (What only looks must copy from devices, too.)
    backend: Mutex<Box<dyn Backend>>,
    members: Vec<Member<'p>>,
    /// Of the host, for what it fills.
    pub pool: Pool,
    seed: u64,
    /// The last step of training.
    last: Option<DeviceStep>,
    begun: f64,
    /// What was copied before the step.
    copied: HostTraffic,
    /// Steps whose events are kept, and how many more are to be.
    traced: Vec<DeviceStep>,
    to_trace: u64,
    broken: bool,
}

/// A rank's device.
#[derive(Debug)]
struct Member<'p> {
    role: &'p Role,
    number: u32,
    coordinates: Vec<u32>,
    device: MemoryId,
    host: MemoryId,
    /// Memory of the host that the devices read and write, and how much of it there is.
    staging: MemoryId,
    staged: u64,
    /// What the persistent region of each memory holds: tensors and what lies between them.
    values: [Vec<(u64, u64)>; 2],
    /// Groups by the mesh dimensions that name them.
    groups: HashMap<Vec<u32>, Vec<u32>>,
    /// By phase, call and event of its program.
    events: HashMap<(usize, u32, u32), EventId>,
    /// For each kind of stream the end of a part.
    ends: [EventId; StreamKind::COUNT],
    /// For each phase its reports, as far as they are known.
    reports: Vec<Vec<f64>>,
}

impl<'p> Fleet<'p> {
    /// Loads a plan, and allocates what its ranks need.
    pub fn new(
        plan: &'p Plan,
        ranks: Vec<(u32, Vec<u32>, &'p Role)>,
        mut backend: Box<dyn Backend>,
        pool: Pool,
        seed: u64,
    ) -> Result<Fleet<'p>, ExecError> {
        if u64::from(backend.devices()) != ranks.len() as u64 {
            return Err(ExecError::Devices { devices: backend.devices(), ranks: ranks.len() });
        }
        backend.load(&plan.programs)?;
        let member = |(number, coordinates, role)| {
            Member::new(plan, number, coordinates, role, backend.as_mut()).map_err(|fault| located(role, fault, 0))
        };
        let members = ranks.into_iter().map(member).collect::<Result<_, _>>()?;
        Ok(Fleet {
            plan,
            backend: Mutex::new(backend),
            members,
            pool,
            seed,
            last: None,
            begun: 0.0,
            copied: HostTraffic::default(),
            traced: vec![],
            to_trace: 0,
            broken: false,
        })
    }

    /// Keeps all that happens in so many steps of training from here on.
    pub fn start_trace(&mut self, steps: u64) {
        self.to_trace = steps;
        self.machine().trace(steps > 0);
    }

    /// The last step of training.
    pub fn last_step(&self) -> Option<&DeviceStep> {
        self.last.as_ref()
    }

    /// Steps with all that happened in them.
    pub fn traced(&self) -> &[DeviceStep] {
        &self.traced
    }

    fn machine(&mut self) -> &mut dyn Backend {
        self.backend.get_mut().unwrap_or_else(PoisonError::into_inner).as_mut()
    }

    fn shared(&self) -> MutexGuard<'_, Box<dyn Backend>> {
        self.backend.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// See [`super::Executor::start`].
    pub fn start(&mut self, id: PhaseId, batch: &Batch, step: u64) -> Result<(), ExecError> {
        self.usable()?;
        let result = self.start_usable(id, batch, step);
        self.broken |= matches!(result, Err(ExecError::Device { .. }));
        result
    }

    fn start_usable(&mut self, id: PhaseId, batch: &Batch, step: u64) -> Result<(), ExecError> {
        let machine = self.backend.get_mut().unwrap_or_else(PoisonError::into_inner).as_mut();
        for member in &mut self.members {
            member.begin(id, batch, (self.seed, step), machine).map_err(|wrong| match wrong {
                Unfed::Input(name) => ExecError::Input(name),
                Unfed::Fault(fault) => located(member.role, fault, step),
            })?;
        }
        let times = self.wait(step)?;
        self.begun = times.now;
        self.copied = self.machine().copied();
        // What was before the step is not part of it.
        self.machine().take_trace();
        self.part(id, 0, step)?;
        Ok(())
    }

    /// See [`super::Executor::commit`].
    pub fn commit(&mut self, id: PhaseId, step: u64) -> Result<(), ExecError> {
        self.usable()?;
        let result = self.part(id, 1, step);
        self.broken |= result.is_err();
        let times = result?;
        let trains = self.members[0].phase(id).name == "train";
        let ran = self.machine().take_trace();
        if trains {
            let seconds = times.done - self.begun;
            let copied = self.machine().copied() - self.copied;
            let done = DeviceStep { step, begin: self.begun, seconds, copied, ran };
            if self.to_trace > 0 {
                self.to_trace -= 1;
                let on = self.to_trace > 0;
                self.machine().trace(on);
                self.traced.push(done.clone());
            }
            self.last = Some(DeviceStep { ran: vec![], ..done });
        }
        Ok(())
    }

    fn usable(&self) -> Result<(), ExecError> {
        if self.broken { Err(ExecError::Broken) } else { Ok(()) }
    }

    /// The calls before (0) or from the commit on (1), on all devices.
    fn part(&mut self, id: PhaseId, part: usize, step: u64) -> Result<Synchronised, ExecError> {
        let machine = self.backend.get_mut().unwrap_or_else(PoisonError::into_inner).as_mut();
        for member in &mut self.members {
            let submitted = member.submit(self.plan, id, part, (self.seed, step), machine);
            submitted.map_err(|fault| located(member.role, fault, step))?;
        }
        let times = self.wait(step)?;
        let machine = self.backend.get_mut().unwrap_or_else(PoisonError::into_inner).as_mut();
        for member in &mut self.members {
            member.hear_reports(id, machine).map_err(|fault| located(member.role, fault, step))?;
        }
        Ok(times)
    }

    fn wait(&mut self, step: u64) -> Result<Synchronised, ExecError> {
        let result = self.machine().synchronise();
        result.map_err(|fault| located(self.members[fault.rank as usize].role, fault, step))
    }

    /// A report of a rank.
    pub fn report(&self, rank: u32, report: &Report) -> f64 {
        let member = &self.members[rank as usize];
        let all = member.role.phases.iter().zip(&member.reports);
        let mut all = all.flat_map(|(phase, values)| phase.reports.iter().zip(values));
        all.find(|(r, _)| std::ptr::eq(*r, report)).map_or(f64::NAN, |(_, value)| *value)
    }

    /// Bytes of a rank's device memory, or of its host's.
    pub fn read(&self, rank: u32, (space, offset): (Space, u64), len: u64) -> Result<Vec<u8>, ExecError> {
        let member = &self.members[rank as usize];
        let mut bytes = vec![0; len as usize];
        let mut machine = self.shared();
        let result = match space {
            Space::Device => member.download(offset, &mut bytes, machine.as_mut()),
            Space::Host => machine.read(member.at(space, offset), &mut bytes),
        };
        drop(machine);
        result.map_err(|fault| located(member.role, fault, 0))?;
        Ok(bytes)
    }

    /// Puts bytes into a rank's device memory, or into its host's.
    fn write(&self, rank: u32, (space, offset): (Space, u64), bytes: &[u8]) -> Result<(), ExecError> {
        let member = &self.members[rank as usize];
        let mut machine = self.shared();
        let result = match space {
            Space::Device => member.upload(offset, bytes, machine.as_mut()),
            Space::Host => machine.write(member.at(space, offset), bytes),
        };
        drop(machine);
        result.map_err(|fault| located(member.role, fault, 0))
    }

    /// The tensors of a rank.
    pub fn on(&self, rank: u32) -> OnDevice<'_, 'p> {
        OnDevice { fleet: self, rank }
    }

    /// Those of all ranks.
    pub fn all(&self) -> impl Iterator<Item = OnDevice<'_, 'p>> {
        (0..self.members.len() as u32).map(|rank| self.on(rank))
    }
}

/// The tensors of a rank, on its device.
pub(super) struct OnDevice<'f, 'p> {
    pub fleet: &'f Fleet<'p>,
    rank: u32,
}

impl<'p> OnDevice<'_, 'p> {
    /// Puts something in the place of a tensor.
    pub fn replace(&self, tensor: &Tensor, bytes: &[u8]) -> Result<(), ExecError> {
        self.fleet.write(self.rank, (tensor.space, tensor.held(self.coordinates()).offset), bytes)
    }

    /// Bytes of a tensor's place.
    pub fn len(&self, tensor: &Tensor) -> u64 {
        let held = tensor.held(self.coordinates());
        (held.to - held.from) * tensor.place_dtype().bytes()
    }
}

impl<'p> Holds<'p> for OnDevice<'_, 'p> {
    fn role(&self) -> &'p Role {
        self.fleet.members[self.rank as usize].role
    }

    fn coordinates(&self) -> &[u32] {
        &self.fleet.members[self.rank as usize].coordinates
    }

    fn bytes(&self, tensor: &Tensor) -> Result<Cow<'_, [u8]>, ExecError> {
        let offset = tensor.held(self.coordinates()).offset;
        Ok(Cow::Owned(self.fleet.read(self.rank, (tensor.space, offset), self.len(tensor))?))
    }

    fn change(&mut self, tensor: &Tensor, change: &mut dyn FnMut(&mut [u8])) -> Result<(), ExecError> {
        let mut bytes = self.bytes(tensor)?.into_owned();
        change(&mut bytes);
        self.replace(tensor, &bytes)
    }
}

/// A fault as an error, with the names of layers.
fn located(role: &Role, mut fault: Fault, step: u64) -> ExecError {
    let named = |spot: &mut Spot| {
        let layer = role.layers.get(spot.layer as usize).filter(|_| spot.call.is_some() && role.layers.len() > 1);
        spot.program = layer.map_or(spot.program.clone(), |layer| format!("{} of {layer}", spot.program));
    };
    fault.at.iter_mut().for_each(|spot| named(spot));
    if let Wrong::BeforeEvent { other, .. } = &mut fault.wrong {
        named(other);
    }
    let phase = role.phases.iter().map(|p| p.memory).max_by_key(|m| m.placed).unwrap_or_default();
    let placed = matches!(fault.wrong, Wrong::Memory { .. }).then_some(Box::new(phase));
    ExecError::Device { step, fault: Box::new(fault), memory: placed }
}

/// Why a phase cannot begin.
enum Unfed {
    Input(String),
    Fault(Fault),
}

impl From<Unknown> for Unfed {
    fn from(Unknown(input): Unknown) -> Unfed {
        Unfed::Input(input)
    }
}

impl From<Fault> for Unfed {
    fn from(fault: Fault) -> Unfed {
        Unfed::Fault(fault)
    }
}

impl<'p> Member<'p> {
    fn new(
        plan: &'p Plan,
        number: u32,
        coordinates: Vec<u32>,
        role: &'p Role,
        machine: &mut dyn Backend,
    ) -> Result<Member<'p>, Fault> {
        let device = machine.allocate(number, Space::Device, role.device_bytes)?;
        let host = machine.allocate(number, Space::Host, role.host_bytes)?;
        // Room for what a phase is fed with, and for its reports.
        let of_phase = |phase: &Phase| {
            let feeds: u64 = phase.feeds.iter().map(|f| (f.rows * phase.seq * 4).next_multiple_of(ALIGN)).sum();
            feeds + ALIGN * (phase.scalars.len() + phase.reports.len()) as u64
        };
        let fed = role.phases.iter().map(of_phase).max().unwrap_or(0);
        let staged = fed.max(role.persistent_bytes.min(PIECE)).max(ALIGN);
        let staging = machine.allocate(number, Space::Host, staged)?;
        let groups = groups::of_rank(plan, number).into_iter().map(|group| (group.dims, group.members)).collect();
        let values = Space::ALL.map(|space| values(role, space));
        for (memory, values) in [device, host].into_iter().zip(&values) {
            machine.declare(memory, values);
        }
        Ok(Member {
            reports: role.phases.iter().map(|phase| vec![f64::NAN; phase.reports.len()]).collect(),
            ends: std::array::from_fn(|_| machine.event(number)),
            events: HashMap::new(),
            role,
            number,
            coordinates,
            device,
            host,
            staging,
            staged,
            values,
            groups,
        })
    }

    fn phase(&self, id: PhaseId) -> &'p Phase {
        &self.role.phases[id.0]
    }

    fn stream(&self, kind: StreamKind) -> Stream {
        Stream { device: self.number, kind }
    }

    fn staged(&self, offset: u64) -> Address {
        Address { memory: self.staging, offset }
    }

    fn on_device(&self, offset: u64) -> Address {
        self.at(Space::Device, offset)
    }

    fn at(&self, space: Space, offset: u64) -> Address {
        let memory = match space {
            Space::Device => self.device,
            Space::Host => self.host,
        };
        Address { memory, offset }
    }

    /// Puts a phase's inputs on their way.
    fn begin(
        &mut self,
        id: PhaseId,
        batch: &Batch,
        seed_and_step: (u64, u64),
        machine: &mut dyn Backend,
    ) -> Result<(), Unfed> {
        for (memory, values) in [self.device, self.host].into_iter().zip(&self.values) {
            machine.declare(memory, values);
        }
        let mut at = 0;
        feed(self.phase(id), batch, &self.coordinates, seed_and_step, |offset, bytes| {
            machine.write(self.staged(at), bytes)?;
            let on = self.stream(StreamKind::CopyIn);
            machine.copy(on, self.staged(at), self.on_device(offset), bytes.len() as u64)?;
            at += (bytes.len() as u64).next_multiple_of(ALIGN);
            Ok(())
        })
    }

    /// Gives the device the calls of a part, and lets it report.
    fn submit(
        &mut self,
        plan: &Plan,
        id: PhaseId,
        part: usize,
        (seed, step): (u64, u64),
        machine: &mut dyn Backend,
    ) -> Result<(), Fault> {
        let phase = self.phase(id);
        let commit = phase.commit as usize;
        let calls = if part == 0 { 0..commit } else { commit..phase.calls.len() };
        for number in calls {
            let call = &phase.calls[number];
            let site = CallSite {
                call: number as u32,
                program: call.program,
                layer: call.layer,
                micro_batch: call.micro_batch,
                seed,
                step,
            };
            self.call(plan, (id, call), &site, machine)?;
        }
        let out = self.stream(StreamKind::CopyOut);
        for kind in KINDS {
            let end = self.ends[kind.number()];
            machine.record(self.stream(kind), end);
            machine.wait(out, end);
        }
        for (report, at) in phase.reports.iter().zip((0..).step_by(ALIGN as usize)) {
            if part == 1 || report.before_commit {
                machine.copy(out, self.on_device(report.offset), self.staged(at), report.dtype.bytes())?;
            }
        }
        Ok(())
    }

    /// Gives the device the instructions of a call, in order, each to its stream.
    fn call(
        &mut self,
        plan: &Plan,
        (id, call): (PhaseId, &Call),
        site: &CallSite,
        machine: &mut dyn Backend,
    ) -> Result<(), Fault> {
        let program = &plan.programs[call.program as usize];
        let place = |(slot, offset): (&forebay_plan::Slot, &u64)| self.at(slot.space, *offset);
        let slots: Vec<Address> = program.slots.iter().zip(&call.slots).map(place).collect();
        let binding = machine.bind(self.number, site, &slots)?;
        let mut begun = [false; StreamKind::COUNT];
        for (number, instruction) in (0..).zip(&program.instructions) {
            let kind = program.streams[instruction.stream as usize];
            let on = self.stream(kind);
            // What the call waits for, each of its streams waits for once.
            if !std::mem::replace(&mut begun[kind.number()], true) {
                for wait in &call.waits {
                    let event = self.event((id.0, wait.call, wait.event), machine);
                    machine.wait(on, event);
                }
            }
            for event in &instruction.waits {
                let event = self.event((id.0, site.call, *event), machine);
                machine.wait(on, event);
            }
            let task = Task { binding, instruction: number };
            let peer = |dim, at| rank_at(&plan.mesh, &self.coordinates, dim, at);
            match &instruction.kernel {
                Kernel::Exchange(k) => machine.collective(on, task, &self.groups[&k.group])?,
                Kernel::AllToAllV(k) => machine.collective(on, task, &self.groups[&k.group])?,
                Kernel::Send(m) => machine.send(on, task, peer(m.dim, m.peer))?,
                Kernel::Recv(m) => machine.receive(on, task, peer(m.dim, m.peer))?,
                _ => machine.launch(on, task)?,
            }
            if let Some(event) = instruction.records {
                let event = self.event((id.0, site.call, event), machine);
                machine.record(on, event);
            }
        }
        Ok(())
    }

    fn event(&mut self, key: (usize, u32, u32), machine: &mut dyn Backend) -> EventId {
        *self.events.entry(key).or_insert_with(|| machine.event(self.number))
    }

    /// Takes the reports that the device has left.
    fn hear_reports(&mut self, id: PhaseId, machine: &mut dyn Backend) -> Result<(), Fault> {
        for (number, report) in self.phase(id).reports.iter().enumerate() {
            let mut bytes = [0; 8];
            let bytes = &mut bytes[..report.dtype.bytes() as usize];
            machine.read(self.staged(number as u64 * ALIGN), bytes)?;
            self.reports[id.0][number] = element(report.dtype, bytes, 0);
        }
        Ok(())
    }

    fn upload(&self, offset: u64, bytes: &[u8], machine: &mut dyn Backend) -> Result<(), Fault> {
        for (piece, at) in bytes.chunks(self.staged as usize).zip((offset..).step_by(self.staged as usize)) {
            machine.write(self.staged(0), piece)?;
            let on = self.stream(StreamKind::CopyIn);
            machine.copy(on, self.staged(0), self.on_device(at), piece.len() as u64)?;
            machine.synchronise()?;
        }
        Ok(())
    }

    fn download(&self, offset: u64, bytes: &mut [u8], machine: &mut dyn Backend) -> Result<(), Fault> {
        for (piece, at) in bytes.chunks_mut(self.staged as usize).zip((offset..).step_by(self.staged as usize)) {
            let on = self.stream(StreamKind::CopyOut);
            machine.copy(on, self.on_device(at), self.staged(0), piece.len() as u64)?;
            machine.synchronise()?;
            machine.read(self.staged(0), piece)?;
        }
        Ok(())
    }
}

/// The values of the persistent region of a memory: tensors, of which those that share a shard are one, and what lies between them. In whole units of [`ALIGN`].
fn values(role: &Role, space: Space) -> Vec<(u64, u64)> {
    let span = |t: &Tensor| (t.offset, (t.offset + t.place_bytes()).next_multiple_of(ALIGN));
    let mut spans: Vec<(u64, u64)> = role.tensors.iter().filter(|t| t.space == space).map(span).collect();
    spans.sort_unstable();
    let (mut values, mut at) = (vec![], 0);
    for (start, end) in spans {
        if start > at {
            values.push((at, start - at));
        }
        if end > at {
            let start = start.max(at);
            values.push((start, end - start));
            at = end;
        }
    }
    let end = role.persistent(space).next_multiple_of(ALIGN).min(role.bytes(space));
    if end > at {
        values.push((at, end - at));
    }
    values
}
