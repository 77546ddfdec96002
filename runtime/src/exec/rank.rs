//! One rank: its memory, its threads, its end of the transport. Prepared kernels are shared by all ranks.

use super::copies::HostCopy;
use super::feeds::feed;
use super::profile::flops_of_rows;
use super::{Arena, ExecError, ExecOptions, PhaseId, Place, Profile, element, pool};
use crate::comm::{CommError, Pieces, Rows, Take, Transport, rank_at};
use crate::data::Batch;
use crate::hash;
use crate::kernels::{self, Buf, KernelCx, Prepared, RandomKeyArgs, Scratch, ScratchBytes};
use crate::pool::Pool;
use forebay_plan::{AllToAllV, Call, Exchange, Kernel, Message, Phase, Plan, Program, Report, Role, Space, Tensor};
use std::sync::Arc;
use std::time::Instant;

/// The prepared instructions of every program.
#[derive(Debug, Default)]
pub(crate) struct Programs {
    pub ready: Vec<Vec<Ready>>,
    /// For each the instructions that copy between the memories.
    pub copies: Vec<Vec<Option<HostCopy>>>,
    pub scratch: ScratchBytes,
    /// Buffers of the largest program.
    pub buffers: usize,
}

/// An instruction that is ready to run.
#[derive(Debug)]
pub(crate) enum Ready {
    Kernel(Prepared),
    /// With other ranks, as the plan says.
    Comm,
}

/// One rank with its memory.
#[derive(Debug)]
pub(super) struct Rank<'p> {
    pub plan: &'p Plan,
    pub role: &'p Role,
    pub number: u32,
    pub coordinates: Vec<u32>,
    pub device: Arena,
    pub host: Arena,
    /// Has no byte of either been written since they were made, zeroed?
    pub untouched: bool,
    programs: Arc<Programs>,
    /// The buffers of the program that runs; as long as the largest program needs.
    pub buffers: Vec<Buf>,
    scratch: Scratch,
    pub pool: Pool,
    pub link: Box<dyn Transport>,
    seed: u64,
    pub profile: Option<Profile>,
    /// For each phase another order of its two parts: calls and instructions. Empty when the plan's own is run.
    pub orders: Vec<[Vec<(u32, u32)>; 2]>,
    /// What became of the last job.
    pub outcome: Result<(), ExecError>,
}

impl<'p> Rank<'p> {
    pub fn new(
        plan: &'p Plan,
        (number, coordinates): (u32, Vec<u32>),
        role: &'p Role,
        (device, host): (Arena, Arena),
        programs: Arc<Programs>,
        link: Box<dyn Transport>,
        options: &ExecOptions,
    ) -> Result<Rank<'p>, ExecError> {
        let pool = pool(options.threads)?;
        let scratch = Scratch::new(programs.scratch, pool.workers());
        let buffers = Vec::with_capacity(programs.buffers);
        let (seed, profile, outcome) = (options.seed, None, Ok(()));
        Ok(Rank {
            plan,
            role,
            number,
            coordinates,
            device,
            host,
            untouched: true,
            programs,
            buffers,
            scratch,
            pool,
            link,
            seed,
            profile,
            orders: vec![],
            outcome,
        })
    }

    pub fn phase(&self, id: PhaseId) -> &'p Phase {
        &self.role.phases[id.0]
    }

    /// See [`super::Executor::start`].
    pub fn start(&mut self, id: PhaseId, batch: &Batch, step: u64) -> Result<(), ExecError> {
        self.measured(id, step, |rank| {
            rank.write_inputs(id, batch, step)?;
            rank.part(id, 0, step)
        })
    }

    /// See [`super::Executor::commit`].
    pub fn commit(&mut self, id: PhaseId, step: u64) -> Result<(), ExecError> {
        self.measured(id, step, |rank| rank.part(id, 1, step))
    }

    /// The calls before (0) or from the commit on (1).
    fn part(&mut self, id: PhaseId, part: usize, step: u64) -> Result<(), ExecError> {
        let phase = self.phase(id);
        if self.orders.is_empty() {
            let (before, after) = phase.calls.split_at(phase.commit as usize);
            return [before, after][part].iter().try_for_each(|call| self.call(call, step));
        }
        let mut bound = None;
        for i in 0..self.orders[id.0][part].len() {
            let (number, instruction) = self.orders[id.0][part][i];
            let call = &phase.calls[number as usize];
            if bound.replace(number) != Some(number) {
                self.bind(call);
            }
            self.instruction(call, instruction as usize, step)?;
        }
        Ok(())
    }

    /// Does a part of a step, and tells the profile.
    fn measured(
        &mut self,
        id: PhaseId,
        step: u64,
        part: impl FnOnce(&mut Self) -> Result<(), ExecError>,
    ) -> Result<(), ExecError> {
        if let Some(profile) = &mut self.profile {
            profile.enter(id, step);
        }
        let result = part(self);
        if let Some(profile) = &mut self.profile {
            profile.leave();
        }
        result
    }

    pub fn report(&self, report: &Report) -> f64 {
        let bytes = self.device.bytes(report.offset, report.dtype.bytes());
        element(report.dtype, bytes, 0)
    }

    /// Where what it has of a tensor lies: offset and length in bytes.
    pub fn place_of(&self, tensor: &Tensor) -> (u64, u64) {
        let held = tensor.held(&self.coordinates);
        (held.offset, (held.to - held.from) * tensor.place_dtype().bytes())
    }

    /// What it has of a tensor, as it lies there.
    pub fn tensor(&self, tensor: &Tensor) -> &[u8] {
        let (offset, len) = self.place_of(tensor);
        self.arena(tensor.space).bytes(offset, len)
    }

    pub fn tensor_mut(&mut self, tensor: &Tensor) -> &mut [u8] {
        self.untouched = false;
        let (offset, len) = self.place_of(tensor);
        match tensor.space {
            Space::Device => self.device.bytes_mut(offset, len),
            Space::Host => self.host.bytes_mut(offset, len),
        }
    }

    fn arena(&self, space: Space) -> &Arena {
        match space {
            Space::Device => &self.device,
            Space::Host => &self.host,
        }
    }

    pub fn write_inputs(&mut self, id: PhaseId, batch: &Batch, step: u64) -> Result<(), ExecError> {
        self.untouched = false;
        let (phase, device) = (self.phase(id), &mut self.device);
        feed(phase, batch, &self.coordinates, (self.seed, step), |offset, bytes| {
            device.bytes_mut(offset, bytes.len() as u64).copy_from_slice(bytes);
            Ok(())
        })
    }

    fn call(&mut self, call: &Call, step: u64) -> Result<(), ExecError> {
        let start = self.profile.as_ref().map(|_| Instant::now());
        self.bind(call);
        let instructions = self.programs.ready[call.program as usize].len();
        (0..instructions).try_for_each(|i| self.instruction(call, i, step))?;
        if let (Some(profile), Some(start)) = (&mut self.profile, start) {
            profile.call(call, start);
        }
        Ok(())
    }

    /// Resolves the buffers of a call's program.
    pub fn bind(&mut self, call: &Call) {
        self.untouched = false;
        let program = &self.plan.programs[call.program as usize];
        self.buffers.clear();
        let (device, host) = (&self.device, &self.host);
        self.buffers.extend(program.buffers.iter().map(|buffer| {
            let space = match program.slots[buffer.slot as usize].space {
                Space::Device => device,
                Space::Host => host,
            };
            let ptr = space.at(call.slots[buffer.slot as usize] + buffer.offset);
            Buf { ptr, dtype: buffer.dtype, elements: buffer.elements as usize }
        }));
    }

    /// Runs an instruction of the bound program.
    pub fn instruction(&mut self, call: &Call, index: usize, step: u64) -> Result<(), ExecError> {
        let start = self.profile.as_ref().map(|_| Instant::now());
        let result = match &self.programs.ready[call.program as usize][index] {
            Ready::Kernel(kernel) => self.kernel(kernel, call, step).map_err(CommError::Data),
            Ready::Comm => self.comm(&self.plan.programs[call.program as usize].instructions[index].kernel),
        };
        if let Some(start) = start {
            let kernel = &self.plan.programs[call.program as usize].instructions[index].kernel;
            let flops = flops_of_rows(kernel, self.ragged_rows(call, index));
            let copy = &self.programs.copies[call.program as usize][index];
            let copied = copy.as_ref().map(|copy| {
                let rows = copy.rows.as_ref().map_or(0, |rows| self.rows_of(call, rows.offsets, rows.groups));
                copy.traffic(rows)
            });
            if let Some(profile) = &mut self.profile {
                profile.instruction(call.program as usize, index, start, (flops, copied.unwrap_or_default()));
            }
        }
        result.map_err(|error| {
            let place = Box::new(self.place(call, index));
            match error {
                CommError::Data(error) => ExecError::Kernel { step, place, error },
                error => ExecError::Comm { step, place, error },
            }
        })
    }

    /// The rows that the groups of a product have together.
    fn ragged_rows(&self, call: &Call, index: usize) -> Option<u64> {
        let program = &self.plan.programs[call.program as usize];
        let Kernel::Matmul(k) = &program.instructions[index].kernel else { return None };
        let groups = k.groups.as_ref()?;
        Some(self.rows_of(call, groups.offsets, groups.count))
    }

    /// The rows of so many groups, by their starts.
    fn rows_of(&self, call: &Call, starts: u32, groups: u64) -> u64 {
        let starts = &self.plan.programs[call.program as usize].buffers[starts as usize];
        let last = call.slots[starts.slot as usize] + starts.offset + 4 * groups;
        let bytes = self.device.bytes(last, 4).try_into().expect("an i32 has four bytes");
        i32::from_ne_bytes(bytes).max(0) as u64
    }

    fn kernel(&self, kernel: &Prepared, call: &Call, step: u64) -> Result<(), kernels::KernelError> {
        let key = RandomKeyArgs {
            seed: hash::folded(self.seed),
            step: step as i32,
            layer: call.layer,
            micro_batch: call.micro_batch,
        };
        let cx = KernelCx {
            pool: &self.pool,
            scratch: &self.scratch,
            buffers: &self.buffers,
            key,
            coordinates: &self.coordinates,
        };
        // SAFETY: the buffers are those of the instruction's program. The verifier has proved that buffers lie within their slots, slots within the
        // arena and views within buffers, that offsets are multiples of 64 (as the arena's start is), and that conflicting accesses
        // are ordered. Whoever runs a rank has it alone, other ranks read its memory only while it is in `comm` itself, and one kernel runs
        // at a time, with workspace for every kernel.
        unsafe { kernels::run(kernel, &cx) }
    }

    fn comm(&mut self, kernel: &Kernel) -> Result<(), CommError> {
        match kernel {
            Kernel::Exchange(k) => self.exchange(k),
            Kernel::AllToAllV(k) => self.rows(k),
            Kernel::Send(k) => {
                let (to, len) = (self.peer(k), k.elements * k.dtype.bytes());
                // SAFETY: the buffer has as many bytes (the verifier), which nobody writes meanwhile.
                let bytes = unsafe { std::slice::from_raw_parts(self.buffers[k.buffer as usize].ptr, len as usize) };
                self.link.send(to, k.channel, bytes)
            }
            Kernel::Recv(k) => {
                let (from, len) = (self.peer(k), k.elements * k.dtype.bytes());
                // SAFETY: the buffer has as many bytes (the verifier), which nobody else touches meanwhile.
                let bytes =
                    unsafe { std::slice::from_raw_parts_mut(self.buffers[k.buffer as usize].ptr, len as usize) };
                self.link.recv(from, k.channel, bytes)
            }
            _ => unreachable!("prepared as a kernel of this rank alone"),
        }
    }

    fn peer(&self, message: &Message) -> u32 {
        rank_at(&self.plan.mesh, &self.coordinates, message.dim, message.peer)
    }

    fn exchange(&mut self, k: &Exchange) -> Result<(), CommError> {
        let (x, out, take) = exchange_pieces(k, |id| self.buffers[id as usize].ptr)?;
        // SAFETY: the verifier has proved that all pieces lie within their buffers, which are apart, and that members agree, but for the rows that each has,
        // which transports compare; this rank touches nothing else meanwhile.
        unsafe { self.link.exchange(&k.group, &x, &out, take, &self.pool) }
    }

    fn rows(&mut self, k: &AllToAllV) -> Result<(), CommError> {
        let rows = rows_of(k, |id| self.buffers[id as usize].ptr);
        // SAFETY: as in `exchange`.
        unsafe { self.link.rows(&k.group, &rows, &self.pool) }
    }

    pub fn place(&self, call: &Call, index: usize) -> Place {
        let program = &self.plan.programs[call.program as usize];
        let instruction = &program.instructions[index];
        Place {
            op: instruction.kernel.name().to_string(),
            instruction: instruction.name.clone(),
            layer: self.role.layers.get(call.layer as usize).cloned().unwrap_or_default(),
            program: program.name.clone(),
        }
    }
}

/// What a rank gives and takes in an exchange; `ptr` says where a buffer begins.
///
/// # Errors
/// When group starts say that there are more rows than there is room for.
pub(crate) fn exchange_pieces(
    k: &Exchange,
    ptr: impl Fn(u32) -> *mut u8,
) -> Result<(Pieces, Pieces, Take), kernels::KernelError> {
    let mut came = None;
    if let Some(ragged) = &k.ragged {
        let (dim, limit) = (ragged.dim as usize, k.dims[ragged.dim as usize]);
        // SAFETY: the buffer has one element more than there are groups (the verifier), aligned as all buffers are, which nobody writes meanwhile.
        let value = unsafe { ptr(ragged.offsets).cast::<i32>().add(ragged.groups as usize).read() };
        let fits = u64::try_from(value).ok().filter(|rows| *rows <= limit);
        let error = kernels::KernelError::Offsets { value: value.into(), element: ragged.groups, least: 0, limit };
        came = Some((dim, fits.ok_or(error)?));
    }
    let side = |buffer: u32, places: [u64; 2], strides: &[u64]| {
        let sizes = k.dims.iter().enumerate().map(|(d, size)| came.filter(|(dim, _)| *dim == d).map_or(*size, |c| c.1));
        Pieces::new(ptr(buffer), k.dtype, places, sizes, strides)
    };
    let x = side(k.x, [k.x_offset, k.x_step], &k.x_strides);
    let out = side(k.out, [k.out_offset, k.out_step], &k.out_strides);
    let (x, out) = x.zip(out).expect("tried when it was prepared");
    let take = match (k.shift, k.reduce) {
        (0, None) => Take::Each,
        (0, Some(op)) => Take::Combined(op),
        (by, _) => Take::Shifted(by as usize),
    };
    Ok((x, out, take))
}

/// The arrays of a rank whose rows go to experts or come back; `ptr` says where a buffer begins.
pub(crate) fn rows_of(k: &AllToAllV, ptr: impl Fn(u32) -> *mut u8) -> Rows {
    Rows {
        x: ptr(k.x),
        out: ptr(k.out),
        offsets: ptr(k.offsets).cast_const().cast(),
        counts: ptr(k.counts).cast_const().cast(),
        row: (k.row * k.dtype.bytes()) as usize,
        ranks: k.ranks as usize,
        experts: k.experts as usize,
        direction: k.direction,
        bound: k.bound as usize,
        tokens: k.tokens as usize,
    }
}

/// Prepares programs.
pub(crate) fn prepare(all: &[Program], cpu: kernels::Cpu) -> Result<Programs, ExecError> {
    let buffers = all.iter().map(|p| p.buffers.len()).max().unwrap_or(0);
    let copies = |p: &Program| p.instructions.iter().map(|i| HostCopy::of(p, i)).collect();
    let copies = all.iter().map(copies).collect();
    let mut programs = Programs { ready: vec![], copies, scratch: ScratchBytes::default(), buffers };
    for program in all {
        let mut prepared = Vec::with_capacity(program.instructions.len());
        for instruction in &program.instructions {
            let ready = ready(&instruction.kernel, &program.buffers, cpu).map_err(|error| {
                let (op, instruction) = (instruction.kernel.name().to_string(), instruction.name.clone());
                let place = Place { op, instruction, layer: String::new(), program: program.name.clone() };
                ExecError::Prepare { place: Box::new(place), error }
            })?;
            if let Ready::Kernel(kernel) = &ready {
                programs.scratch = programs.scratch.max(kernels::scratch_bytes(kernel));
            }
            prepared.push(ready);
        }
        programs.ready.push(prepared);
    }
    Ok(programs)
}

fn ready(kernel: &Kernel, buffers: &[forebay_plan::Buffer], cpu: kernels::Cpu) -> Result<Ready, kernels::PrepareError> {
    match kernel {
        Kernel::Exchange(k) => {
            let pieces =
                |strides: &[u64]| Pieces::new(std::ptr::null_mut(), k.dtype, [0, 0], k.dims.iter().copied(), strides);
            let fits = [&k.x_strides, &k.out_strides].iter().all(|s| pieces(s).is_some());
            let error = || kernels::PrepareError("pieces of an exchange have too many dimensions".into());
            fits.then_some(Ready::Comm).ok_or_else(error)
        }
        Kernel::AllToAllV(_) | Kernel::Send(_) | Kernel::Recv(_) => Ok(Ready::Comm),
        kernel => kernels::prepare(kernel, buffers, cpu).map(Ready::Kernel),
    }
}
