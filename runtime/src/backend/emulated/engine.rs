//! The clock of an emulated machine: what can begin begins, at the time of the last thing that it waits for.
//!
//! Work of `s` seconds begins when its unit has ended the work before, its events are recorded, its host has launched it, and then, for a collective, when all members
//! have come, for a received message, when it has arrived. Work and communication of a device that run at the same time take longer ([`contention`]).

use super::Emulated;
use super::code::{Touch, touches};
use super::device::{Command, Load, Queued, Running, Work};
use super::numbers::InRun;
use super::shadow::{Op, Origin, Owner, Shadow, Through, Trouble};
use crate::backend::{Access, Address, Fault, KINDS, Ran, Spot, Stream, Task, Wrong};
use forebay_cost::{Price, contention};
use forebay_plan::verify::ALIGN;
use forebay_plan::{Access as SlotAccess, Kernel, StreamKind};
use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

/// What is under way between devices.
#[derive(Debug, Default)]
pub(super) struct Wires {
    /// For each group of members the unit on which each has come to a collective.
    meetings: HashMap<Arc<[u32]>, Vec<Option<usize>>>,
    /// By sender, receiver and channel: when each message arrives, and its bytes.
    pub mail: HashMap<(u32, u32, u32), VecDeque<Letter>>,
}

/// When a message arrives, and its bytes.
type Letter = (f64, Vec<u8>);

/// Where work touches memory, through what, and whether it reads and writes it.
type Touched = (Address, Through, bool, bool);

impl Wires {
    /// A group, by its members.
    pub fn group(&mut self, members: &[u32]) -> Arc<[u32]> {
        if let Some((group, _)) = self.meetings.get_key_value(members) {
            return Arc::clone(group);
        }
        let group: Arc<[u32]> = members.into();
        self.meetings.insert(Arc::clone(&group), vec![None; members.len()]);
        group
    }

    /// A member has come: the units of all, when it was the last.
    fn come(&mut self, group: &[u32], device: u32, unit: usize) -> Option<Vec<usize>> {
        let here = self.meetings.get_mut(group)?;
        let me = group.iter().position(|member| *member == device)?;
        here[me] = Some(unit);
        let all: Vec<usize> = here.iter().copied().collect::<Option<_>>()?;
        here.fill(None);
        Some(all)
    }
}

impl Emulated {
    /// Runs until nothing is left.
    pub(super) fn run(&mut self) -> Result<(), Fault> {
        for device in 0..self.devices.len() as u32 {
            self.pump(device);
            self.agenda.add(self.now, device, &mut self.chance);
        }
        while let Some((time, device)) = self.agenda.next() {
            self.now = self.now.max(time);
            self.visit(device)?;
        }
        match self.stuck() {
            Some(fault) => Err(fault),
            None => Ok(()),
        }
    }

    /// A host launches what it has, until it waits for something.
    fn pump(&mut self, number: u32) {
        let launch = if self.chance.is_used() { 0.0 } else { self.machine.table.launch };
        while !self.devices[number as usize].host.blocked {
            let Some((stream, command)) = self.devices[number as usize].host.queue.pop_front() else { return };
            let unit = self.unit_of(stream);
            let price = match &command {
                Command::Work(work) => self.price(work),
                Command::Wait(..) | Command::Record(..) => Price::default(),
            };
            let device = &mut self.devices[number as usize];
            let before = device.host.at;
            device.host.at += price.launches * launch;
            // It begins with the first launch; the others go on while it runs.
            let launched = before + price.launches.min(1.0) * launch;
            let (held, host_waits) = (device.host.at, price.host_waits);
            device.host.blocked = host_waits;
            let load = Load::of(&price);
            let queued = Queued { command, launched, held, host_waits, stream, load, awaited: false, arrived: false };
            device.units[unit].queue.push_back(queued);
        }
    }

    /// The unit that does the work of a stream.
    fn unit_of(&self, stream: usize) -> usize {
        let shared = stream == StreamKind::Vector.number() && !self.machine.table.vector_beside_cube;
        if shared { StreamKind::Cube.number() } else { stream }
    }

    /// What work costs. Copies that the host asks for beside the plan are free.
    fn price(&self, work: &Work) -> Price {
        let Some(task) = work.task() else { return Price::default() };
        let program = self.binding(task.binding).site.program;
        let prices = self.machine.table.programs.get(program as usize);
        prices.and_then(|p| p.get(task.instruction as usize)).copied().unwrap_or_default()
    }

    /// Ends what is over by now, and begins what can.
    fn visit(&mut self, device: u32) -> Result<(), Fault> {
        for unit in 0..StreamKind::COUNT {
            let running = &mut self.devices[device as usize].units[unit].running;
            if let Some(over) = running.take_if(|r| r.end <= self.now) {
                self.end(device, over);
            }
        }
        let first = self.chance.below(StreamKind::COUNT as u64).unwrap_or(0) as usize;
        let mut moved = true;
        while moved {
            moved = false;
            for unit in (0..StreamKind::COUNT).map(|u| (first + u) % StreamKind::COUNT) {
                while self.advance(device, unit)? {
                    moved = true;
                }
            }
        }
        Ok(())
    }

    fn end(&mut self, number: u32, over: Running) {
        let device = &mut self.devices[number as usize];
        device.done = device.done.max(over.end);
        if over.host_waits {
            device.host.at = device.host.at.max(over.end);
            device.host.blocked = false;
        }
        let work = over.work.task().map(|task| (self.binding(task.binding).site, task.instruction));
        let stream = Stream { device: number, kind: KINDS[over.stream] };
        if let Some(trace) = &mut self.trace {
            trace.push(Ran { stream, work, launched: over.launched, begin: over.begin, end: over.end });
        }
        if over.host_waits {
            self.pump(number);
        }
    }

    /// Does the next thing of a unit, if it can be done now.
    fn advance(&mut self, device: u32, unit: usize) -> Result<bool, Fault> {
        let here = &mut self.devices[device as usize].units[unit];
        if here.running.is_some() {
            return Ok(false);
        }
        let Some(head) = here.queue.front_mut() else { return Ok(false) };
        if head.launched > self.now {
            let at = head.launched;
            if !std::mem::replace(&mut head.awaited, true) {
                self.agenda.add(at, device, &mut self.chance);
            }
            return Ok(false);
        }
        match &head.command {
            Command::Wait(event, number) => {
                let event = &self.events[event.0 as usize];
                if event.done < *number {
                    return Ok(false);
                }
                let (stream, clock) = (head.stream, event.clock);
                here.queue.pop_front();
                self.devices[device as usize].units[stream].clock.join(&clock);
                Ok(true)
            }
            Command::Record(event, number) => {
                let (stream, event, number) = (head.stream, event.0 as usize, *number);
                here.queue.pop_front();
                let event = &mut self.events[event];
                (event.done, event.clock) = (number, self.devices[device as usize].units[stream].clock);
                Ok(true)
            }
            Command::Work(Work::Receive(task, from)) => {
                let (task, from) = (*task, *from);
                let way = self.way(task, from, device);
                // (Whoever sends looks at the receiver when it arrives.)
                match self.wires.mail.get(&way).and_then(VecDeque::front) {
                    Some((arrival, _)) if *arrival <= self.now => self.begin(&[(device, unit)]),
                    _ => Ok(false),
                }
            }
            Command::Work(Work::Collective(_, members)) => {
                if std::mem::replace(&mut head.arrived, true) {
                    return Ok(false);
                }
                let members = Arc::clone(members);
                match self.wires.come(&members, device, unit) {
                    None => Ok(false),
                    Some(units) => {
                        let all: Vec<(u32, usize)> = members.iter().copied().zip(units).collect();
                        self.begin(&all)
                    }
                }
            }
            Command::Work(_) => self.begin(&[(device, unit)]),
        }
    }

    /// The way of a message.
    pub(super) fn way(&self, task: Task, from: u32, to: u32) -> (u32, u32, u32) {
        let program = self.binding(task.binding).site.program;
        let channel = match self.code.kernel(program, task.instruction) {
            Kernel::Send(m) | Kernel::Recv(m) => m.channel,
            _ => 0,
        };
        (from, to, channel)
    }

    /// Begins the work at the head of a unit; of all members, when it is a collective.
    fn begin(&mut self, members: &[(u32, usize)]) -> Result<bool, Fault> {
        let head = |(device, unit): (u32, usize), machine: &mut Emulated| {
            let queued = machine.devices[device as usize].units[unit].queue.pop_front();
            queued.expect("it is the head of its queue")
        };
        let heads: Vec<Queued> = members.iter().map(|member| head(*member, self)).collect();
        let mut works = vec![];
        for (&(device, _), head) in members.iter().zip(&heads) {
            let Command::Work(work) = &head.command else { unreachable!("work begins") };
            let on = Stream { device, kind: KINDS[head.stream] };
            self.check(on, work)?;
            works.push((on, work.clone()));
        }
        self.compute(&works)?;
        // A collective ends for all at once.
        let prices: Vec<Price> = works.iter().map(|(_, work)| self.price(work)).collect();
        let seconds = prices.iter().map(|p| p.seconds).fold(0.0, f64::max);
        let seconds = if works[0].1.task().is_some() { self.chance.duration(seconds) } else { seconds };
        for (((on, work), head), price) in works.into_iter().zip(heads).zip(prices) {
            if let Work::Send(task, to) = &work {
                let (way, to) = (self.way(*task, on.device, *to), *to);
                let transfer = self.chance.duration(price.transfer);
                let arrival = self.now + seconds + transfer;
                let message = self.wires.mail.get_mut(&way).and_then(VecDeque::back_mut);
                message.expect("it was just sent").0 = arrival;
                self.agenda.add(arrival, to, &mut self.chance);
            }
            self.occupy(on, work, &head, seconds);
        }
        Ok(true)
    }

    /// Something keeps its unit busy. Work takes longer for communication that is in flight already, and communication makes work longer that runs already.
    fn occupy(&mut self, on: Stream, work: Work, head: &Queued, seconds: f64) {
        let (begin, slowdown) = (self.now, self.machine.table.slowdown);
        let (stream, unit) = (head.stream, self.unit_of(head.stream));
        let device = &mut self.devices[on.device as usize];
        let mut alone = begin + seconds;
        for other in device.units.iter_mut().filter_map(|unit| unit.running.as_mut()) {
            match (head.load, other.load) {
                (Load::Work, Load::Communication(load)) => {
                    alone += contention(slowdown * load, (begin, begin + seconds), (other.begin, other.alone));
                }
                (Load::Communication(load), Load::Work) => {
                    other.alone += contention(slowdown * load, (other.begin, other.alone), (begin, begin + seconds));
                    other.end = other.alone.max(other.held);
                    self.agenda.add(other.end, on.device, &mut self.chance);
                }
                _ => {}
            }
        }
        let end = alone.max(head.held);
        self.agenda.add(end, on.device, &mut self.chance);
        let (launched, held, host_waits, load) = (head.launched, head.held, head.host_waits, head.load);
        device.units[stream].clock.0[stream] += 1;
        device.units[unit].running =
            Some(Running { work, launched, begin, alone, end, held, stream, load, host_waits });
    }

    /// Checks what work touches, and notes it: order for all that it may touch, life for what it does.
    fn check(&mut self, on: Stream, work: &Work) -> Result<(), Fault> {
        let unit = on.kind.number();
        let clock = self.devices[on.device as usize].units[unit].clock;
        let op = Op { unit, number: clock.0[unit] + 1, of: self.origin(work) };
        let touched = self.touched(work);
        for (at, through, reads, writes) in &touched {
            let shadow = self.shadow(*at);
            let read = if *reads { shadow.reads(&clock, through) } else { Ok(()) };
            let written = if *writes { shadow.writes(&clock, through) } else { Ok(()) };
            let (access, trouble) = match (read, written) {
                (Err(trouble), _) => (Access::Reads, trouble),
                (_, Err(trouble)) => (Access::Writes, trouble),
                (Ok(()), Ok(())) => continue,
            };
            return Err(self.fault(on, work, *at, through, (access, trouble)));
        }
        // (Whatever says how many rows there are has been written by now, or comes to light here.)
        let in_run = self.touched_in_run(work);
        let there = in_run.as_ref().unwrap_or(&touched);
        for (at, through, ..) in there.iter().filter(|t| t.2) {
            if let Err(trouble) = self.shadow(*at).holds(through) {
                return Err(self.fault(on, work, *at, through, (Access::Reads, trouble)));
            }
        }
        for (at, through, ..) in touched.iter().filter(|t| t.2) {
            self.shadow(*at).note_read(op, through);
        }
        for (at, through, ..) in touched.iter().filter(|t| t.3 && in_run.is_some()) {
            self.shadow(*at).note_room(op, through);
        }
        for (at, through, ..) in there.iter().filter(|t| t.3) {
            self.shadow(*at).note_write(op, through);
        }
        Ok(())
    }

    fn shadow(&mut self, at: Address) -> &mut Shadow {
        &mut self.memories[at.memory.0 as usize].shadow
    }

    fn origin(&self, work: &Work) -> Option<Origin> {
        let task = work.task()?;
        let site = &self.binding(task.binding).site;
        let (call, program, layer) = (site.call, site.program, site.layer);
        Some(Origin { call, instruction: task.instruction, program, layer })
    }

    /// What work may touch: where, through what, and whether it reads and writes it.
    fn touched(&self, work: &Work) -> Vec<Touched> {
        match work.task() {
            Some(task) => {
                let program = self.binding(task.binding).site.program;
                self.placed(task, self.code.touches(program, task.instruction))
            }
            None => self.copied_bytes(work),
        }
    }

    /// What work does touch, where a run decides how much that is.
    fn touched_in_run(&self, work: &Work) -> Option<Vec<Touched>> {
        let task = work.task()?;
        let binding = self.binding(task.binding);
        let there = InRun { machine: self, binding };
        let kernel = self.code.kernel(binding.site.program, task.instruction).in_run(&there)?;
        Some(self.placed(task, &touches(&self.code.programs[binding.site.program as usize], &kernel)))
    }

    /// What the host's copies touch. What lies in a host's memory is the host's own, and nothing of the plan.
    fn copied_bytes(&self, work: &Work) -> Vec<Touched> {
        let Work::Copy { from, to, bytes } = *work else { unreachable!("all others are tasks") };
        let of = |at: Address, access| {
            let range = (at.offset / ALIGN * ALIGN, (at.offset + bytes).next_multiple_of(ALIGN));
            let through = Through { bytes: range, slot: range, by: Owner::Host, buffer: u32::MAX, access };
            (at, through, access == SlotAccess::Read, access == SlotAccess::Write)
        };
        let both = [of(from, SlotAccess::Read), of(to, SlotAccess::Write)].into_iter();
        both.filter(|t| self.memories[t.0.memory.0 as usize].space == forebay_plan::Space::Device).collect()
    }

    /// Where an instruction touches memory.
    fn placed(&self, task: Task, touches: &[Touch]) -> Vec<Touched> {
        let binding = self.binding(task.binding);
        let site = &binding.site;
        let program = &self.code.programs[site.program as usize];
        let through = |touch: &Touch| {
            let buffer = &program.buffers[touch.buffer as usize];
            let slot = &program.slots[buffer.slot as usize];
            let at = binding.slots[buffer.slot as usize];
            let start = at.offset + buffer.offset;
            let by = Owner::Slot { binding: task.binding.0, call: site.call, program: site.program, slot: buffer.slot };
            let through = Through {
                bytes: (start + touch.bytes.0, start + touch.bytes.1),
                // In whole units, as the plan places values.
                slot: (at.offset, (at.offset + slot.bytes).next_multiple_of(ALIGN)),
                by,
                buffer: touch.buffer,
                access: slot.access,
            };
            (at, through, touch.reads, touch.writes)
        };
        touches.iter().map(through).collect()
    }

    /// What is wrong with an access, in words.
    fn fault(
        &self,
        on: Stream,
        work: &Work,
        at: Address,
        through: &Through,
        (access, trouble): (Access, Trouble),
    ) -> Fault {
        let here = self.spot(on, work);
        let buffer = self.buffer_name(work, through.buffer);
        let before = |at: Spot, access, buffer, other: Spot, others| {
            let rank = at.rank;
            Fault {
                at: Some(Box::new(at)),
                rank,
                wrong: Wrong::BeforeEvent { buffer, access, other: Box::new(other), others },
            }
        };
        if let Trouble::Race { other, others } = trouble {
            let there = self.spot_of(Stream { device: on.device, kind: KINDS[other.unit] }, other.of);
            // Who comes first in the plan should have been waited for, whoever was first here.
            let early = (self.origin(work), other.of);
            return match early {
                (Some(me), Some(other)) if (me.call, me.instruction) < (other.call, other.instruction) => {
                    before(there, others, buffer, here, access)
                }
                _ => before(here, access, buffer, there, others),
            };
        }
        // Whoever writes it may still be on the way.
        if let Some(writer) = self.pending_writer(on, work, at, through) {
            return before(here, access, buffer, writer, Access::Writes);
        }
        let wrong = match trouble {
            Trouble::Unwritten { bytes } => Wrong::Unwritten { buffer, bytes },
            Trouble::Lost { bytes, owner, buffer: of } => {
                Wrong::AfterFree { buffer, bytes, owner: self.owner_name(owner, of) }
            }
            Trouble::Race { .. } => unreachable!("it was looked at before"),
        };
        Fault { at: Some(Box::new(here)), rank: on.device, wrong }
    }

    /// Work that comes before in the plan, has not begun, and writes what is read.
    fn pending_writer(&self, on: Stream, work: &Work, at: Address, through: &Through) -> Option<Spot> {
        let me = self.origin(work)?;
        let device = &self.devices[on.device as usize];
        let queued = device.units.iter().flat_map(|unit| unit.queue.iter().map(|q| (q.stream, &q.command)));
        let all = queued.chain(device.host.queue.iter().map(|(stream, command)| (*stream, command)));
        let found = all.filter_map(|(stream, command)| match command {
            Command::Work(other) => Some((stream, other, self.origin(other)?)),
            _ => None,
        });
        let mut found = found.filter(|(_, _, of)| (of.call, of.instruction) < (me.call, me.instruction));
        found.find_map(|(stream, other, of)| {
            let writes = self.touched(other).iter().any(|(there, to, _, writes)| {
                *writes && there.memory == at.memory && to.bytes.0 < through.bytes.1 && through.bytes.0 < to.bytes.1
            });
            writes.then(|| self.spot_of(Stream { device: on.device, kind: KINDS[stream] }, Some(of)))
        })
    }

    fn owner_name(&self, owner: Owner, buffer: u32) -> String {
        match owner {
            Owner::Host => "what the host has put there".into(),
            Owner::Slot { call, program, slot, .. } => {
                let program = &self.code.programs[program as usize];
                match program.buffers.get(buffer as usize) {
                    Some(buffer) => format!("`{}` of call {call} ({})", buffer.name, program.name),
                    None => format!("`{}` of call {call} ({})", program.slots[slot as usize].name, program.name),
                }
            }
        }
    }

    fn buffer_name(&self, work: &Work, buffer: u32) -> String {
        let program = work.task().map(|task| self.binding(task.binding).site.program);
        let named = program.and_then(|p| self.code.programs[p as usize].buffers.get(buffer as usize));
        named.map_or("what is copied".into(), |b| b.name.clone())
    }

    /// Work, in words.
    pub(super) fn spot(&self, on: Stream, work: &Work) -> Spot {
        self.spot_of(on, self.origin(work))
    }

    fn spot_of(&self, on: Stream, of: Option<Origin>) -> Spot {
        let (program, kernel, instruction) = match of {
            Some(of) => {
                let program = &self.code.programs[of.program as usize];
                let instruction = &program.instructions[of.instruction as usize];
                (program.name.clone(), instruction.kernel.name().to_string(), instruction.name.clone())
            }
            None => (String::new(), "copy".into(), "that the host asked for".into()),
        };
        let (call, layer) = (of.map(|of| of.call), of.map_or(0, |of| of.layer));
        Spot { rank: on.device, stream: on.kind, call, layer, program, kernel, instruction }
    }

    /// Who waits for ever, when nothing is left that could happen: a collective or message first, since events follow from these.
    fn stuck(&self) -> Option<Fault> {
        let mut waiting: Vec<(u8, Fault)> = vec![];
        for (number, device) in (0..).zip(&self.devices) {
            for of_unit in &device.units {
                let Some(head) = of_unit.queue.front() else { continue };
                let on = Stream { device: number, kind: KINDS[head.stream] };
                let works = of_unit.queue.iter().filter_map(|q| match &q.command {
                    Command::Work(work) => Some(work),
                    _ => None,
                });
                let at = works.map(|work| Box::new(self.spot(on, work))).next();
                let (order, missing) = match &head.command {
                    Command::Work(Work::Receive(_, from)) => (0, format!("rank {from} sends it nothing")),
                    Command::Work(Work::Collective(_, members)) => (1, self.absent(members)),
                    Command::Wait(..) => (2, "an event that it waits for is not recorded".into()),
                    Command::Work(_) | Command::Record(..) => (3, "its unit does nothing".into()),
                };
                waiting.push((order, Fault { at, rank: number, wrong: Wrong::Stuck { missing } }));
            }
        }
        waiting.into_iter().min_by_key(|(order, fault)| (*order, fault.rank)).map(|(_, fault)| fault)
    }

    fn absent(&self, members: &[u32]) -> String {
        let here = self.wires.meetings.get(members);
        let absent = members.iter().enumerate().filter(|(i, _)| here.is_none_or(|here| here[*i].is_none()));
        let absent: Vec<String> = absent.map(|(_, rank)| format!("rank {rank}")).collect();
        format!("{} does not come to the collective", absent.join(", "))
    }
}
