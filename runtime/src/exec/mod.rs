//! Runs plans: one arena for everything, every kernel prepared once, and then nothing but kernels.
//!
//! ```text
//! new:    verify · prepare all kernels · is there enough memory? · memory and workspace · threads
//! start:  write feeds and scalars · the calls before the commit        nothing that a checkpoint holds has changed: the host may look and give up
//! commit: the calls from the commit on
//! ```
//!
//! Every rank of the plan is a thread with an arena and workers of its own (`rank.rs`), of this process or of one of several that run the same plan (`joint.rs`);
//! they meet in [`crate::comm`]. A plan for one rank runs on the caller's thread.
//!
//! The order is the one that the plan gives: the calls of a phase one by one, the instructions of a program as they stand. That is a
//! legal order for any number of streams, so events need no waiting here; the verifier proves that they are right, and `shuffle.rs` runs others.
//!
//! On devices behind [`Backend`] the same plan is given to streams and events as it stands (`fleet.rs`).

mod arena;
mod copies;
mod diagnose;
mod error;
mod feeds;
mod fill;
mod fleet;
mod halves;
mod joint;
mod laps;
mod memory;
mod parts;
mod profile;
mod rank;
mod roofline;
mod shuffle;
#[cfg(test)]
mod tests;

pub use arena::Arena;
pub use copies::HostTraffic;
pub use diagnose::{Cause, Suspect};
pub use error::{ExecError, Place, human_bytes};
pub use fleet::DeviceStep;
pub use laps::Laps;
pub use memory::{available_memory, memory_by_kind};
pub use profile::{Event, Profile, ProfileRow, Traced, kind};
pub(crate) use rank::{Programs, Ready, exchange_pieces, prepare, rows_of};
pub use roofline::Roofline;

use crate::backend::Backend;
use crate::comm::tcp::Network;
use crate::comm::{CommError, Crew, Processes, Transport, Who, coordinates, ranks, shared};
use crate::data::Batch;
use crate::kernels::Cpu;
use crate::pool::Pool;
use fleet::Fleet;
use forebay_plan::verify::Rule;
use forebay_plan::{DType, MemoryUse, OutputTensor, Phase, Plan, Report, Role, Space, Tensor, TensorKind};
use memory::Need;
use rank::Rank;
use std::borrow::Cow;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How to run a plan.
#[derive(Clone, Copy, Debug)]
pub struct ExecOptions {
    /// Threads that compute, shared out to the ranks, at least one each; all that the machine has when 0. Results do not depend on it.
    pub threads: usize,
    /// The seed of random operations, and of the first values of parameters.
    pub seed: u64,
    /// The CPU instructions to use.
    pub cpu: Cpu,
    /// What will be run: memory is needed for this alone.
    pub purpose: Purpose,
    /// Runs another order that streams and events permit, drawn from this seed: a test of the plan, since values do not depend on it.
    pub shuffle: Option<u64>,
    /// How long a rank waits for others before it says who is missing: longer than any step takes.
    pub stall: Duration,
}

impl Default for ExecOptions {
    fn default() -> Self {
        ExecOptions {
            threads: 0,
            seed: 0,
            cpu: Cpu::detect(),
            purpose: Purpose::Train,
            shuffle: None,
            stall: Duration::from_secs(600),
        }
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

/// Who proves that a plan may be run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Proof {
    /// The verifier, every rule.
    Verifier,
    /// The verifier, but for the rules about order, life and reach of memory ([`WATCHED`]), which the devices watch over while they run it: for tests of
    /// plans, and of devices. A plan that breaks them is stopped where it does.
    Devices,
}

/// Rules that devices which check accesses enforce themselves.
pub const WATCHED: [Rule; 14] = [
    Rule::Ordered,
    Rule::CallOrdered,
    Rule::Defined,
    Rule::CallDefined,
    Rule::Overwritten,
    Rule::CallOverwritten,
    Rule::CallWhole,
    Rule::SlotWritten,
    Rule::TensorKept,
    Rule::Spaces,
    Rule::Captured,
    Rule::Lanes,
    Rule::Matched,
    Rule::Deadlock,
];

/// A phase of the plan that an [`Executor`] was made for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PhaseId(usize);

/// A plan with its memory, ready to run: all ranks of it, or those of this process of several that were joined. Of several, all call the same methods in the
/// same order, but for those that only look.
#[derive(Debug)]
pub struct Executor<'p> {
    plan: &'p Plan,
    /// Those of this process; none when devices run the plan.
    ranks: Vec<Rank<'p>>,
    /// The devices that run it.
    fleet: Option<Fleet<'p>>,
    /// Of every rank of the plan.
    roles: Vec<&'p Role>,
    /// The distinct roles, each with its first rank, in the order of these.
    speakers: Vec<(u32, &'p Role)>,
    processes: Processes,
    /// Reports of a phase as all processes know them, and memory to tell them; not used by one process.
    told: Vec<f64>,
    telling: Vec<u8>,
    /// Threads of the ranks, when there are several.
    crew: Option<Crew>,
    seed: u64,
    cpu: Cpu,
    /// Are orders, and the durations of devices, drawn?
    shuffled: bool,
    /// Has a rank given up? Then the others are somewhere in the middle.
    broken: bool,
    made_in: Laps,
}

impl<'p> Executor<'p> {
    /// Verifies a plan and makes everything that running it takes. The tensors are zero: [`crate::init`] or a checkpoint fills them.
    ///
    /// # Errors
    /// When the plan is invalid or for more ranks than fit into a process, or there is not enough memory.
    pub fn new(plan: &'p Plan, options: &ExecOptions) -> Result<Executor<'p>, ExecError> {
        Executor::made(plan, options, None)
    }

    /// The same of the ranks that belong to this process of several: memory and threads are made for these alone.
    ///
    /// # Errors
    /// As [`Executor::new`]; the other processes are told.
    pub fn joined(plan: &'p Plan, options: &ExecOptions, network: Network) -> Result<Executor<'p>, ExecError> {
        Executor::made(plan, options, Some(network))
    }

    /// The same on devices, one for each rank. The options' threads are those of the host, which fills tensors; how kernels run is the devices' to know.
    ///
    /// # Errors
    /// As [`Executor::new`]; when there are not as many devices as ranks, or a device has not enough memory.
    pub fn on_devices(
        plan: &'p Plan,
        options: &ExecOptions,
        backend: Box<dyn Backend>,
        proof: Proof,
    ) -> Result<Executor<'p>, ExecError> {
        let mut made_in = Laps::since(Instant::now());
        let excused = |rule: &Rule| proof == Proof::Devices && WATCHED.contains(rule);
        if let Err(mut violations) = forebay_plan::verify(plan) {
            violations.retain(|v| !excused(&v.rule));
            if !violations.is_empty() {
                return Err(ExecError::Invalid(violations));
            }
        }
        made_in.lap("verify");
        let count = ranks(&plan.mesh);
        if count > MOST_RANKS {
            return Err(ExecError::Ranks(count));
        }
        let count = count as u32;
        let (roles, speakers) = cast(plan, count);
        let needs: Vec<Need> = roles.iter().map(|role| Need::of_memory(role)).collect();
        let pool = pool(workers(options.threads))?;
        let places = (0..count).map(|rank| (rank, coordinates(&plan.mesh, rank), roles[rank as usize])).collect();
        let fleet = Fleet::new(plan, places, backend, pool, options.seed)?;
        // (After the devices have said what fits on them: their memory is not touched before it is used.)
        memory::enough(&needs, options.purpose).map(drop)?;
        made_in.lap("allocate");
        Ok(Executor {
            plan,
            ranks: vec![],
            fleet: Some(fleet),
            roles,
            speakers,
            processes: Processes::one(count),
            told: vec![],
            telling: vec![],
            crew: None,
            seed: options.seed,
            cpu: options.cpu,
            shuffled: options.shuffle.is_some(),
            broken: false,
            made_in,
        })
    }

    fn made(plan: &'p Plan, options: &ExecOptions, network: Option<Network>) -> Result<Executor<'p>, ExecError> {
        let mut made_in = Laps::since(Instant::now());
        forebay_plan::verify(plan).map_err(ExecError::Invalid)?;
        made_in.lap("verify");
        let count = ranks(&plan.mesh);
        if count > MOST_RANKS {
            return Err(ExecError::Ranks(count));
        }
        let count = count as u32;
        let (roles, speakers) = cast(plan, count);
        let processes = match network {
            Some(network) => Processes::several(network, count),
            None => Processes::one(count),
        };
        let own = processes.own_ranks();
        let here = own.len();
        let programs = Arc::new(rank::prepare(&plan.programs, options.cpu)?);
        made_in.lap("prepare");
        let threads = workers(options.threads);
        let share = |at: usize| (threads / here + usize::from(at < threads % here)).max(1);
        let of_rank = |(at, rank): (usize, u32)| Need::new(roles[rank as usize], &programs, share(at));
        let needs: Vec<Need> = own.clone().enumerate().map(of_rank).collect();
        let arenas = memory::arenas(&needs, options.purpose).inspect_err(|error| processes.fail(&error.to_string()))?;
        let mut ranks = Vec::with_capacity(here);
        for (at, ((rank, arenas), link)) in own.zip(arenas).zip(links(plan, &processes, options.stall)).enumerate() {
            let options = ExecOptions { threads: share(at), ..*options };
            let programs = Arc::clone(&programs);
            let number = (rank, coordinates(&plan.mesh, rank));
            ranks.push(Rank::new(plan, number, roles[rank as usize], arenas, programs, link, &options)?);
        }
        if let Some(seed) = options.shuffle {
            for phase in 0..roles[0].phases.len() {
                let phases: Vec<&Phase> = roles.iter().map(|role| &role.phases[phase]).collect();
                let orders = shuffle::shuffled(plan, &phases, seed).expect("a verified plan has an order");
                let first = processes.own_ranks().start as usize;
                ranks.iter_mut().zip(orders.into_iter().skip(first)).for_each(|(rank, order)| rank.orders.push(order));
            }
        }
        let crew = (count > 1).then(|| Crew::new(here)).transpose().map_err(|error| ExecError::Threads(here, error))?;
        made_in.lap("allocate");
        Ok(Executor {
            plan,
            ranks,
            fleet: None,
            roles,
            speakers,
            processes,
            told: vec![],
            telling: vec![],
            crew,
            seed: options.seed,
            cpu: options.cpu,
            shuffled: options.shuffle.is_some(),
            broken: false,
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

    /// How many ranks there are, in all processes.
    pub fn ranks(&self) -> usize {
        self.roles.len()
    }

    /// From here on measures the time of every instruction of a phase, which costs two readings of the clock for each, and keeps what happened in the
    /// phase's first `traced_steps` steps.
    pub fn start_profile(&mut self, id: PhaseId, traced_steps: u64) {
        for rank in &mut self.ranks {
            rank.profile = Some(Profile::new(self.plan, rank.role, id, traced_steps));
        }
        if let Some(fleet) = &mut self.fleet {
            fleet.start_trace(traced_steps);
        }
    }

    /// Is the plan run by devices, and not by the threads of this process?
    pub fn is_on_devices(&self) -> bool {
        self.fleet.is_some()
    }

    /// The last step of training, by the clock of the devices.
    pub fn device_step(&self) -> Option<&DeviceStep> {
        self.fleet.as_ref()?.last_step()
    }

    /// How long the last step of training took by the clock of the devices, seconds; none where durations are drawn, which say nothing.
    pub fn device_seconds(&self) -> Option<f64> {
        self.device_step().filter(|_| !self.shuffled).map(|step| step.seconds)
    }

    /// Steps of training that were profiled, with all that devices did in them.
    pub fn device_steps(&self) -> &[DeviceStep] {
        self.fleet.as_ref().map_or(&[], Fleet::traced)
    }

    /// Where the time of the first rank here went so far, when it is measured.
    pub fn profile(&self) -> Option<&Profile> {
        self.ranks.first()?.profile.as_ref()
    }

    /// The same of every rank of this process, with its role.
    pub fn profiles(&self) -> impl Iterator<Item = (&Role, &Profile)> {
        self.ranks.iter().filter_map(|rank| Some((rank.role, rank.profile.as_ref()?)))
    }

    /// What this machine attains at most with the threads of the first rank, the instructions and the compute type of the plan: a probe of a few tenths of a second.
    pub fn roofline(&self) -> Roofline {
        Roofline::probe(self.pool(), self.cpu, self.plan.settings.compute)
    }

    /// The threads of the first rank, or of the host of devices.
    fn pool(&self) -> &Pool {
        match &self.fleet {
            Some(fleet) => &fleet.pool,
            None => &self.ranks[0].pool,
        }
    }

    /// The CPU instructions that it uses.
    pub fn cpu(&self) -> Cpu {
        self.cpu
    }

    /// How many threads compute, on all ranks of this process together.
    pub fn threads(&self) -> usize {
        let of_devices = self.fleet.iter().map(|fleet| fleet.pool.workers());
        self.ranks.iter().map(|rank| rank.pool.workers()).chain(of_devices).sum()
    }

    /// A phase by name.
    ///
    /// # Errors
    /// When the plan does not have it.
    pub fn phase_named(&self, name: &str) -> Result<PhaseId, ExecError> {
        let phases = &self.roles[0].phases;
        phases.iter().position(|p| p.name == name).map(PhaseId).ok_or_else(|| ExecError::Phase {
            phase: name.to_string(),
            known: phases.iter().map(|p| p.name.clone()).collect(),
        })
    }

    /// A phase, as the first rank does it; name, rows and tokens are the same for all.
    pub fn phase(&self, id: PhaseId) -> &'p Phase {
        &self.roles[0].phases[id.0]
    }

    /// Writes the batch and the scalars and runs the calls before the commit: nothing that a checkpoint holds changes. `step` counts from 1.
    ///
    /// # Errors
    /// When the batch lacks an input, or data make a kernel stop.
    ///
    /// # Panics
    /// When the batch has another size than the phase.
    pub fn start(&mut self, id: PhaseId, batch: &Batch, step: u64) -> Result<(), ExecError> {
        if let Some(fleet) = &mut self.fleet {
            return fleet.start(id, batch, step);
        }
        self.on_all(&|rank| rank.start(id, batch, step))?;
        self.tell_reports(id)
    }

    /// Runs the calls from the commit on, after [`Executor::start`] of the same step.
    ///
    /// # Errors
    /// When data make a kernel stop.
    pub fn commit(&mut self, id: PhaseId, step: u64) -> Result<(), ExecError> {
        if let Some(fleet) = &mut self.fleet {
            return fleet.commit(id, step);
        }
        self.on_all(&|rank| rank.commit(id, step))?;
        self.tell_reports(id)
    }

    /// Does something on all ranks of this process at the same time.
    fn on_all(&mut self, job: &(dyn Fn(&mut Rank<'p>) -> Result<(), ExecError> + Sync)) -> Result<(), ExecError> {
        // (There are none here where devices run the plan.)
        let Some(crew) = &self.crew else { return self.ranks.first_mut().map_or(Ok(()), job) };
        if self.broken {
            return Err(ExecError::Broken);
        }
        crew.run(&mut self.ranks, &|rank| {
            // After a panic the rank is not used again.
            rank.outcome = catch_unwind(AssertUnwindSafe(|| job(rank))).unwrap_or_else(|panic| {
                let text = panic.downcast_ref::<String>().map(String::as_str);
                let message = text.or(panic.downcast_ref::<&str>().copied()).unwrap_or("no message");
                Err(ExecError::Panic(message.to_string()))
            });
            if let Err(error) = &rank.outcome {
                rank.link.fail(&error.to_string());
            }
        });
        self.outcome()
    }

    /// What became of a job on all ranks: the error of the rank that gave up for a reason of its own, and who waited for it.
    fn outcome(&mut self) -> Result<(), ExecError> {
        if self.ranks.iter().all(|rank| rank.outcome.is_ok()) {
            return Ok(());
        }
        self.broken = true;
        let (mut cause, mut waiting, mut elsewhere) = (None, vec![], None);
        for rank in &mut self.ranks {
            match std::mem::replace(&mut rank.outcome, Ok(())) {
                Ok(()) => {}
                Err(ExecError::Comm { place, error: CommError::Failed { who, why }, .. }) => {
                    elsewhere = Some((who, ExecError::Elsewhere(why)));
                    waiting.push((rank.number, *place))
                }
                Err(error) => {
                    // Who stalled is the least of reasons.
                    let stalled = |e: &ExecError| matches!(e, ExecError::Comm { .. });
                    if cause.as_ref().is_none_or(|(_, known)| stalled(known) && !stalled(&error)) {
                        cause = Some((Who::Rank(rank.number), error));
                    }
                }
            }
        }
        let (who, error) = cause.or(elsewhere).expect("someone gave up first");
        Err(ExecError::GaveUp { who, error: Box::new(error), waiting })
    }

    /// What the host may ask for after a phase: each report once, from the first rank that has it.
    pub fn reports(&self, id: PhaseId) -> impl Iterator<Item = Reported<'p>> {
        let of_role = move |role: &'p Role| role.phases[id.0].reports.iter();
        let all = self.speakers.iter().enumerate();
        let all = all.flat_map(move |(i, (rank, role))| of_role(role).map(move |report| (i, *rank, report)));
        // (A handful of reports: looking at those before is quick, and needs no memory.)
        let firsts = all.filter(move |(i, _, report)| {
            let mut before = self.speakers[..*i].iter().flat_map(move |(_, role)| of_role(role));
            before.all(|r| r.name != report.name)
        });
        firsts.enumerate().map(|(number, (_, rank, report))| Reported { rank, number, report })
    }

    /// A report's value, once it is known.
    pub fn value(&self, reported: &Reported) -> f64 {
        match (&self.fleet, self.ranks.iter().find(|rank| rank.number == reported.rank)) {
            (Some(fleet), _) => fleet.report(reported.rank, reported.report),
            (None, Some(rank)) => rank.report(reported.report),
            (None, None) => self.told[reported.number],
        }
    }

    /// A report by name; NaN when the phase does not have it.
    pub fn report_named(&self, id: PhaseId, name: &str) -> f64 {
        self.reports(id).find(|r| r.report.name == name).map_or(f64::NAN, |r| self.value(&r))
    }

    /// A scalar that the first rank's phase reports, once it is known.
    pub fn report(&self, report: &Report) -> f64 {
        match &self.fleet {
            Some(fleet) => fleet.report(0, report),
            None => self.ranks[0].report(report),
        }
    }

    /// An output of a phase by name, and the first rank that has it.
    pub fn output_named(&self, id: PhaseId, name: &str) -> Option<(usize, &'p OutputTensor)> {
        let of = |role: &'p Role| role.phases[id.0].outputs.iter().find(|o| o.name == name);
        let mut here = self.processes.own_ranks().enumerate();
        here.find_map(|(number, rank)| Some((number, of(self.roles[rank as usize])?)))
    }

    /// A tensor that a rank's phase leaves for the host.
    ///
    /// # Panics
    /// When a device is broken.
    pub fn output(&self, (rank, output): (usize, &OutputTensor)) -> Cow<'_, [u8]> {
        let bytes = output.dims.iter().product::<u64>() * output.dtype.bytes();
        match &self.fleet {
            Some(fleet) => {
                Cow::Owned(fleet.read(rank as u32, (Space::Device, output.offset), bytes).expect("the phase is done"))
            }
            None => Cow::Borrowed(self.ranks[rank].device.bytes(output.offset, bytes)),
        }
    }

    /// The bytes that the first rank has of one of its tensors, as they lie there: all of it in a plan for one rank, but for a parameter in halves, of which
    /// [`Executor::whole`] puts the numbers together. Devices' memory is not at hand, but for
    /// that.
    pub fn tensor(&self, tensor: &Tensor) -> &[u8] {
        self.ranks[0].tensor(tensor)
    }

    /// The same, to change. Call [`crate::init::refresh_copies`] after changing parameters.
    pub fn tensor_mut(&mut self, tensor: &Tensor) -> &mut [u8] {
        self.ranks[0].tensor_mut(tensor)
    }
}

/// The ends of this process's ranks.
fn links(plan: &Plan, processes: &Processes, stall: Duration) -> Vec<Box<dyn Transport>> {
    match processes.network() {
        None => shared::connect(plan, stall).into_iter().map(|link| -> Box<dyn Transport> { Box::new(link) }).collect(),
        Some(network) => network.links(plan),
    }
}

/// More ranks than this are not run.
const MOST_RANKS: u64 = 1024;

/// A report of some rank.
#[derive(Clone, Copy, Debug)]
pub struct Reported<'p> {
    rank: u32,
    /// Counts the reports of a phase.
    number: usize,
    /// What it is.
    pub report: &'p Report,
}

/// The role of each of so many ranks; and each role once, with its first rank.
fn cast(plan: &Plan, count: u32) -> (Vec<&Role>, Vec<(u32, &Role)>) {
    let roles: Vec<&Role> = (0..count).map(|rank| role_at(plan, &coordinates(&plan.mesh, rank))).collect();
    let mut speakers: Vec<(u32, &Role)> = vec![];
    for (rank, role) in (0..).zip(&roles) {
        if !speakers.iter().any(|(_, known)| std::ptr::eq(*known, *role)) {
            speakers.push((rank, role));
        }
    }
    (roles, speakers)
}

/// Threads that compute when so many are asked for: all that the machine has for 0.
fn workers(threads: usize) -> usize {
    match threads {
        0 => std::thread::available_parallelism().map_or(1, |n| n.get()),
        threads => threads,
    }
}

/// A pool of so many workers, or why there is none.
fn pool(workers: usize) -> Result<Pool, ExecError> {
    Pool::new(workers).map_err(|error| ExecError::Threads(workers, error))
}

/// The role of a rank.
fn role_at<'p>(plan: &'p Plan, coordinates: &[u32]) -> &'p Role {
    let has = |role: &&Role| role.coordinates.iter().zip(coordinates).all(|((lo, hi), at)| (lo..hi).contains(&at));
    plan.roles.iter().find(has).expect("every rank has a role: the verifier has checked it")
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
        DType::I16 => f64::from(i16::from_ne_bytes(part(bytes, index))),
        DType::Bool => f64::from(bytes[index]),
    }
}

impl Executor<'_> {
    /// What all ranks take at most.
    pub fn peak_memory(&self) -> PeakMemory {
        let roles = self.roles.iter().copied();
        PeakMemory {
            device_bytes: roles.clone().map(|role| role.device_bytes).sum(),
            largest_device_bytes: roles.clone().map(|role| role.device_bytes).max().unwrap_or(0),
            host_bytes: roles.clone().map(|role| role.host_bytes).sum(),
            by_kind: roles.map(memory_by_kind).fold(MemoryUse::default(), memory::total),
        }
    }
}

/// What all ranks of a plan take at most, bytes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PeakMemory {
    /// In the arenas of devices.
    pub device_bytes: u64,
    /// Of these in the largest one.
    pub largest_device_bytes: u64,
    /// In those of hosts: what is swapped, and optimizer state that lives there.
    pub host_bytes: u64,
    /// Where the bytes of devices go.
    pub by_kind: MemoryUse,
}

impl PeakMemory {
    /// Both together.
    pub fn bytes(&self) -> u64 {
        self.device_bytes + self.host_bytes
    }
}
