//! The numbers of an emulated machine: kernels of this machine on the memories of the devices, copies and messages as real copies.

use super::device::Work;
use super::{Binding, Emulated};
use crate::backend::{Address, Fault, Stream, Task, Wrong};
use crate::comm::{self, CommError, Rows};
use crate::exec::{HostTraffic, Ready, exchange_pieces, rows_of};
use crate::hash;
use crate::kernels::{self, Buf, KernelCx, KernelError, RandomKeyArgs};
use forebay_plan::{BufferId, Integers, Kernel, Message};
use std::ops::Range;

/// The numbers that a call finds in its buffers.
pub(super) struct InRun<'a> {
    pub machine: &'a Emulated,
    pub binding: &'a Binding,
}

impl Integers for InRun<'_> {
    fn integers(&self, buffer: BufferId, elements: Range<u64>) -> Vec<i32> {
        let buffer = &self.machine.code.programs[self.binding.site.program as usize].buffers[buffer as usize];
        let at = self.binding.slots[buffer.slot as usize];
        let start = at.offset + buffer.offset + 4 * elements.start;
        let bytes = self.machine.memory(at.memory).arena.bytes(start, 4 * (elements.end - elements.start));
        bytes.chunks_exact(4).map(|four| i32::from_ne_bytes(four.try_into().expect("an i32 has four bytes"))).collect()
    }
}

impl Emulated {
    /// Computes what work comes to: of one device, or of all members of a collective.
    pub(super) fn compute(&mut self, works: &[(Stream, Work)]) -> Result<(), Fault> {
        let (on, work) = &works[0];
        let result = match work {
            Work::Kernel(task) => self.kernel(*task).map_err(Wrong::Data),
            Work::Copy { from, to, bytes } => {
                self.copy_bytes(*from, *to, *bytes);
                Ok(())
            }
            Work::Send(task, to) => {
                self.post(*on, *task, *to);
                Ok(())
            }
            Work::Receive(task, from) => self.take(*on, *task, *from),
            Work::Collective(..) => return self.together(works),
        };
        result.map_err(|wrong| Fault { at: Some(Box::new(self.spot(*on, work))), rank: on.device, wrong })
    }

    /// Where a buffer of a call is.
    fn buffer(&self, binding: &Binding, id: u32) -> *mut u8 {
        let buffer = &self.code.programs[binding.site.program as usize].buffers[id as usize];
        let at = binding.slots[buffer.slot as usize];
        self.memory(at.memory).arena.at(at.offset + buffer.offset)
    }

    fn kernel(&mut self, task: Task) -> Result<(), KernelError> {
        let mut buffers = std::mem::take(&mut self.buffers);
        buffers.clear();
        let binding = self.binding(task.binding);
        let site = binding.site;
        let program = &self.code.programs[site.program as usize];
        buffers.extend((0..).zip(&program.buffers).map(|(id, buffer)| Buf {
            ptr: self.buffer(binding, id),
            dtype: buffer.dtype,
            elements: buffer.elements as usize,
        }));
        let Ready::Kernel(kernel) = &self.code.prepared.ready[site.program as usize][task.instruction as usize] else {
            unreachable!("what talks to other ranks is launched as a collective or message")
        };
        let cx = KernelCx {
            pool: &self.pool,
            scratch: &self.scratch,
            buffers: &buffers,
            key: RandomKeyArgs {
                seed: hash::folded(site.seed),
                step: site.step as i32,
                layer: site.layer,
                micro_batch: site.micro_batch,
            },
            coordinates: &self.devices[binding.device as usize].coordinates,
        };
        // SAFETY: the buffers are those of the instruction's program; slots lie within their memories (`bind` has checked it), buffers within slots and views
        // within buffers (the verifier's static rules, which every plan passes that gets here). Memories are aligned as plans assume. This machine runs one
        // kernel at a time, with workspace for every kernel, and nothing else touches its memories.
        let result = unsafe { kernels::run(kernel, &cx) };
        self.buffers = buffers;
        self.copied += self.host_traffic(task);
        result
    }

    /// What an instruction copies between a device's memory and its host's.
    fn host_traffic(&self, task: Task) -> HostTraffic {
        let binding = self.binding(task.binding);
        let program = binding.site.program as usize;
        let Some(copy) = &self.code.prepared.copies[program][task.instruction as usize] else {
            return HostTraffic::default();
        };
        let rows = copy.rows.as_ref().map_or(0, |rows| {
            let total = InRun { machine: self, binding }.integers(rows.offsets, rows.groups..rows.groups + 1)[0];
            total.max(0) as u64
        });
        copy.traffic(rows)
    }

    fn copy_bytes(&mut self, from: Address, to: Address, bytes: u64) {
        let (a, b) = (from.memory.0 as usize, to.memory.0 as usize);
        match self.memories.get_disjoint_mut([a, b]) {
            Ok([source, target]) => {
                let source = source.arena.bytes(from.offset, bytes);
                target.arena.bytes_mut(to.offset, bytes).copy_from_slice(source);
            }
            // Within one memory.
            Err(_) => {
                let arena = &mut self.memories[a].arena;
                let all = arena.len();
                let (first, end) = (from.offset as usize, (from.offset + bytes) as usize);
                arena.bytes_mut(0, all).copy_within(first..end, to.offset as usize);
            }
        }
    }

    /// The array of a message: where it is, and its bytes.
    fn array(&self, task: Task) -> (Address, u64) {
        let binding = self.binding(task.binding);
        let (Kernel::Send(message) | Kernel::Recv(message)) = self.code.kernel(binding.site.program, task.instruction)
        else {
            unreachable!("it was launched as a message")
        };
        let Message { buffer, elements, dtype, .. } = message;
        let buffer = &self.code.programs[binding.site.program as usize].buffers[*buffer as usize];
        let slot = binding.slots[buffer.slot as usize];
        (Address { offset: slot.offset + buffer.offset, ..slot }, elements * dtype.bytes())
    }

    /// Puts a message on its way; when it arrives is said later.
    fn post(&mut self, on: Stream, task: Task, to: u32) {
        let (at, bytes) = self.array(task);
        let message = self.memory(at.memory).arena.bytes(at.offset, bytes).to_vec();
        let way = self.way(task, on.device, to);
        self.wires.mail.entry(way).or_default().push_back((f64::INFINITY, message));
    }

    fn take(&mut self, on: Stream, task: Task, from: u32) -> Result<(), Wrong> {
        let (at, bytes) = self.array(task);
        let way = self.way(task, from, on.device);
        let message = self.wires.mail.get_mut(&way).and_then(std::collections::VecDeque::pop_front);
        let (_, message) = message.expect("it has arrived");
        if message.len() as u64 != bytes {
            return Err(Wrong::Mismatch);
        }
        self.memories[at.memory.0 as usize].arena.bytes_mut(at.offset, bytes).copy_from_slice(&message);
        Ok(())
    }

    /// A collective, of all its members.
    fn together(&mut self, works: &[(Stream, Work)]) -> Result<(), Fault> {
        let fault = |member: usize, wrong| {
            let (on, work) = &works[member];
            Err(Fault { at: Some(Box::new(self.spot(*on, work))), rank: on.device, wrong })
        };
        let (mut given, mut taken, mut takes) = (vec![], vec![], vec![]);
        let mut rows: Vec<Rows> = vec![];
        for (_, work) in works {
            let task = work.task().expect("a collective is an instruction");
            let binding = self.binding(task.binding);
            match self.code.kernel(binding.site.program, task.instruction) {
                Kernel::Exchange(k) => {
                    let pieces = exchange_pieces(k, |id| self.buffer(binding, id));
                    let (x, out, take) = match pieces {
                        Ok(pieces) => pieces,
                        Err(error) => return fault(given.len(), Wrong::Data(error)),
                    };
                    given.push(x);
                    taken.push(out);
                    takes.push(take);
                }
                Kernel::AllToAllV(k) => rows.push(rows_of(k, |id| self.buffer(binding, id))),
                _ => unreachable!("it was launched as a collective"),
            }
        }
        if !rows.is_empty() {
            if rows.len() != works.len() || !comm::agree_on_rows(&rows) {
                return fault(rows.len().min(works.len() - 1), Wrong::Mismatch);
            }
            // SAFETY: the arrays have the sizes that their instructions say, as the verifier has checked; nothing else touches the memories meanwhile.
            return match unsafe { comm::rows_together(&rows, &self.pool) } {
                Ok(()) => Ok(()),
                Err((member, CommError::Data(error))) => fault(member, Wrong::Data(error)),
                Err((member, _)) => fault(member, Wrong::Mismatch),
            };
        }
        let odd = (1..takes.len()).find(|i| takes[*i] != takes[0]);
        if let Some(odd) = odd {
            return fault(odd, Wrong::Mismatch);
        }
        if !comm::agree_on_pieces(&given, &taken) {
            return fault(0, Wrong::Mismatch);
        }
        // SAFETY: as above; pieces of all members have one shape.
        unsafe { comm::exchange_together(&given, &taken, takes[0], &self.pool) };
        Ok(())
    }
}
