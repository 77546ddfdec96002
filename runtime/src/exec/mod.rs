//! Runs plans: one arena for everything, every kernel prepared once, and then nothing but kernels.
//!
//! ```text
//! new:    verify · prepare all kernels · is there enough memory? · memory and workspace · threads
//! start:  write feeds and scalars · the calls before the commit        nothing that a checkpoint holds has changed: the host may look and give up
//! commit: the calls from the commit on
//! ```
//!
//! The order is the one that the plan gives: the calls of a phase one by one, the instructions of a program as they stand. That is a
//! legal order for any number of streams, so events need no waiting here; the verifier proves that they are right.

mod arena;
mod diagnose;
mod error;
mod fill;
mod laps;
mod memory;
mod profile;
mod roofline;
#[cfg(test)]
mod tests;

pub use arena::Arena;
pub use diagnose::{Cause, Suspect};
pub use error::{ExecError, Place, human_bytes};
pub use laps::Laps;
pub use memory::{available_memory, memory_by_kind};
pub use profile::{Event, Profile, ProfileRow, Traced, kind};
pub use roofline::Roofline;

use crate::data::Batch;
use crate::kernels::{self, Buf, Cpu, KernelCx, Prepared, RandomKeyArgs, Scratch, ScratchBytes};
use crate::pool::Pool;
use forebay_plan::{Call, DType, OutputTensor, Phase, Plan, Report, Role, Scalar, Space, Tensor, TensorKind};
use std::time::Instant;

/// How to run a plan.
#[derive(Clone, Copy, Debug)]
pub struct ExecOptions {
    /// Threads that compute; all that the machine has when 0. Results do not depend on it.
    pub threads: usize,
    /// The seed of random operations, and of the first values of parameters.
    pub seed: u64,
    /// The CPU instructions to use.
    pub cpu: Cpu,
    /// What will be run: memory is needed for this alone.
    pub purpose: Purpose,
}

impl Default for ExecOptions {
    fn default() -> Self {
        ExecOptions { threads: 0, seed: 0, cpu: Cpu::detect(), purpose: Purpose::Train }
    }
}

/// Which phases will be run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// All of them.
    Train,
    /// Those that leave gradients and the optimizer's state alone.
    Generate,
}

/// A phase of the plan that an [`Executor`] was made for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PhaseId(usize);

/// A plan with its memory, ready to run.
#[derive(Debug)]
pub struct Executor<'p> {
    plan: &'p Plan,
    role: &'p Role,
    device: Arena,
    host: Arena,
    /// Has no byte of `device` been written since it was made, zeroed?
    untouched: bool,
    /// For each program its instructions.
    programs: Vec<Vec<Prepared>>,
    /// The buffers of the program that runs; as long as the largest program needs.
    buffers: Vec<Buf>,
    scratch: Scratch,
    pool: Pool,
    seed: u64,
    cpu: Cpu,
    profile: Option<Profile>,
    made_in: Laps,
}

impl<'p> Executor<'p> {
    /// Verifies a plan and makes everything that running it takes. The tensors are zero: [`crate::init`] or a checkpoint fills them.
    ///
    /// # Errors
    /// When the plan is invalid or for several ranks, or there is not enough memory.
    pub fn new(plan: &'p Plan, options: &ExecOptions) -> Result<Executor<'p>, ExecError> {
        let mut made_in = Laps::since(Instant::now());
        forebay_plan::verify(plan).map_err(ExecError::Invalid)?;
        made_in.lap("verify");
        let ranks = plan.mesh.iter().map(|d| u64::from(d.size)).product();
        let role = match plan.roles.as_slice() {
            [role] if ranks == 1 => role,
            _ => return Err(ExecError::Ranks(ranks)),
        };
        let threads = match options.threads {
            0 => std::thread::available_parallelism().map_or(1, |n| n.get()),
            threads => threads,
        };
        let (programs, scratch) = prepare(plan, options.cpu)?;
        made_in.lap("prepare");
        let (device, host) = memory::arenas(role, options.purpose, scratch.of_workers(threads), threads)?;
        let scratch = Scratch::new(scratch, threads);
        let most_buffers = plan.programs.iter().map(|p| p.buffers.len()).max().unwrap_or(0);
        let pool = Pool::new(threads);
        made_in.lap("allocate");
        Ok(Executor {
            plan,
            role,
            device,
            host,
            untouched: true,
            programs,
            buffers: Vec::with_capacity(most_buffers),
            scratch,
            pool,
            seed: options.seed,
            cpu: options.cpu,
            profile: None,
            made_in,
        })
    }

    /// The plan.
    pub fn plan(&self) -> &'p Plan {
        self.plan
    }

    /// How long it took to verify the plan, to prepare its kernels, and to allocate its memory and start its threads.
    pub fn made_in(&self) -> &Laps {
        &self.made_in
    }

    /// The seed.
    pub fn seed(&self) -> u64 {
        self.seed
    }

    /// From here on measures the time of every instruction of a phase, which costs two readings of the clock for each, and keeps what happened in the
    /// phase's first `traced_steps` steps.
    pub fn start_profile(&mut self, id: PhaseId, traced_steps: u64) {
        self.profile = Some(Profile::new(self.plan, id, traced_steps));
    }

    /// Where the time went so far, when it is measured.
    pub fn profile(&self) -> Option<&Profile> {
        self.profile.as_ref()
    }

    /// What this machine attains at most with the threads, instructions and compute type of the plan: a probe of a few tenths of a second.
    pub fn roofline(&self) -> Roofline {
        Roofline::probe(&self.pool, self.cpu, self.plan.settings.compute)
    }

    /// The CPU instructions that it uses.
    pub fn cpu(&self) -> Cpu {
        self.cpu
    }

    /// How many threads compute.
    pub fn threads(&self) -> usize {
        self.pool.workers()
    }

    /// A phase by name.
    ///
    /// # Errors
    /// When the plan does not have it.
    pub fn phase_named(&self, name: &str) -> Result<PhaseId, ExecError> {
        let phases = &self.role.phases;
        phases.iter().position(|p| p.name == name).map(PhaseId).ok_or_else(|| ExecError::Phase {
            phase: name.to_string(),
            known: phases.iter().map(|p| p.name.clone()).collect(),
        })
    }

    /// A phase.
    pub fn phase(&self, id: PhaseId) -> &'p Phase {
        &self.role.phases[id.0]
    }

    /// Writes the batch and the scalars and runs the calls before the commit: nothing that a checkpoint holds changes. `step` counts from 1.
    ///
    /// # Errors
    /// When the batch lacks an input, or data make a kernel stop.
    ///
    /// # Panics
    /// When the batch has another size than the phase.
    pub fn start(&mut self, id: PhaseId, batch: &Batch, step: u64) -> Result<(), ExecError> {
        let calls = &self.phase(id).calls[..self.phase(id).commit as usize];
        self.measured(id, step, |executor| {
            executor.write_inputs(id, batch, step)?;
            calls.iter().try_for_each(|call| executor.call(call, step))
        })
    }

    /// Runs the calls from the commit on, after [`Executor::start`] of the same step.
    ///
    /// # Errors
    /// When data make a kernel stop.
    pub fn commit(&mut self, id: PhaseId, step: u64) -> Result<(), ExecError> {
        let calls = &self.phase(id).calls[self.phase(id).commit as usize..];
        self.measured(id, step, |executor| calls.iter().try_for_each(|call| executor.call(call, step)))
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

    /// A scalar that the phase reports, once it is known.
    pub fn report(&self, report: &Report) -> f64 {
        let bytes = self.device.bytes(report.offset, report.dtype.bytes());
        element(report.dtype, bytes, 0)
    }

    /// A tensor that the phase leaves for the host.
    pub fn output(&self, output: &OutputTensor) -> &[u8] {
        self.device.bytes(output.offset, output.dims.iter().product::<u64>() * output.dtype.bytes())
    }

    /// The bytes of a tensor that outlives a step.
    pub fn tensor(&self, tensor: &Tensor) -> &[u8] {
        self.device.bytes(tensor.offset, tensor_bytes(tensor))
    }

    /// The same, to change. Call [`crate::init::refresh_copies`] after changing parameters.
    pub fn tensor_mut(&mut self, tensor: &Tensor) -> &mut [u8] {
        self.untouched = false;
        self.device.bytes_mut(tensor.offset, tensor_bytes(tensor))
    }

    fn write_inputs(&mut self, id: PhaseId, batch: &Batch, step: u64) -> Result<(), ExecError> {
        self.untouched = false;
        let phase = self.phase(id);
        assert_eq!(
            (batch.rows() as u64, batch.seq() as u64),
            (phase.rows, phase.seq),
            "a batch is as large as its phase"
        );
        for feed in &phase.feeds {
            let input = batch.input(&feed.input).ok_or_else(|| ExecError::Input(feed.input.clone()))?;
            // One rank: the coordinates are all 0.
            let first = feed.first_row.base as usize * batch.seq();
            let elements = feed.rows as usize * batch.seq();
            let bytes = bytemuck::cast_slice(&input[first..first + elements]);
            self.device.bytes_mut(feed.offset, bytes.len() as u64).copy_from_slice(bytes);
        }
        for feed in &phase.scalars {
            let value = match feed.scalar {
                Scalar::Step => step as i32,
                Scalar::Seed => self.seed as i32,
            };
            self.device.bytes_mut(feed.offset, 4).copy_from_slice(&value.to_ne_bytes());
        }
        Ok(())
    }

    fn call(&mut self, call: &Call, step: u64) -> Result<(), ExecError> {
        let start = self.profile.as_ref().map(|_| Instant::now());
        self.bind(call);
        (0..self.programs[call.program as usize].len()).try_for_each(|i| self.instruction(call, i, step))?;
        if let (Some(profile), Some(start)) = (&mut self.profile, start) {
            profile.call(call, start);
        }
        Ok(())
    }

    /// Resolves the buffers of a call's program.
    fn bind(&mut self, call: &Call) {
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
    fn instruction(&mut self, call: &Call, index: usize, step: u64) -> Result<(), ExecError> {
        let key = RandomKeyArgs {
            seed: self.seed as i32,
            step: step as i32,
            layer: call.layer,
            micro_batch: call.micro_batch,
        };
        let cx = KernelCx { pool: &self.pool, scratch: &self.scratch, buffers: &self.buffers, key };
        // SAFETY: the buffers are those of the instruction's program. The verifier has proved that buffers lie within their slots, slots within the
        // arena and views within buffers, that offsets are multiples of 64 (as the arena's start is), and that conflicting accesses
        // are ordered. `&mut self` keeps everyone else out, and one kernel runs at a time, with workspace for every kernel.
        let run = || unsafe { kernels::run(&self.programs[call.program as usize][index], &cx) };
        let result = match &mut self.profile {
            None => run(),
            Some(profile) => {
                let start = Instant::now();
                let result = run();
                profile.instruction(call.program as usize, index, start);
                result
            }
        };
        result.map_err(|error| ExecError::Kernel { step, place: Box::new(self.place(call, index)), error })
    }

    fn place(&self, call: &Call, index: usize) -> Place {
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

/// Bytes of a tensor.
pub fn tensor_bytes(tensor: &Tensor) -> u64 {
    tensor.dims.iter().product::<u64>() * tensor.dtype.bytes()
}

/// Is the tensor part of a checkpoint?
pub fn is_saved(kind: TensorKind) -> bool {
    match kind {
        TensorKind::Param | TensorKind::FirstMoment | TensorKind::SecondMoment | TensorKind::State => true,
        TensorKind::ComputeCopy | TensorKind::Gradient => false,
    }
}

/// An element of an array of floats; integers and booleans as floats.
pub fn element(dtype: DType, bytes: &[u8], index: usize) -> f64 {
    fn part<const N: usize>(bytes: &[u8], index: usize) -> [u8; N] {
        bytes[index * N..(index + 1) * N].try_into().expect("a range of N bytes")
    }
    match dtype {
        DType::F64 => f64::from_ne_bytes(part(bytes, index)),
        DType::F32 => f64::from(f32::from_ne_bytes(part(bytes, index))),
        DType::Bf16 => half::bf16::from_ne_bytes(part(bytes, index)).to_f64(),
        DType::I32 => f64::from(i32::from_ne_bytes(part(bytes, index))),
        DType::Bool => f64::from(bytes[index]),
    }
}

fn prepare(plan: &Plan, cpu: Cpu) -> Result<(Vec<Vec<Prepared>>, ScratchBytes), ExecError> {
    let mut need = ScratchBytes::default();
    let mut programs = Vec::with_capacity(plan.programs.len());
    for program in &plan.programs {
        let mut prepared = Vec::with_capacity(program.instructions.len());
        for instruction in &program.instructions {
            let ready = kernels::prepare(&instruction.kernel, &program.buffers, cpu).map_err(|error| {
                let (op, instruction) = (instruction.kernel.name().to_string(), instruction.name.clone());
                let place = Place { op, instruction, layer: String::new(), program: program.name.clone() };
                ExecError::Prepare { place: Box::new(place), error }
            })?;
            need = need.max(kernels::scratch_bytes(&ready));
            prepared.push(ready);
        }
        programs.push(prepared);
    }
    Ok((programs, need))
}
