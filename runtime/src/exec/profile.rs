//! Where the time of training steps goes: seconds, FLOPs and bytes of each instruction, and what happened when.
//!
//! ```text
//! step      ├───────────────────────────────────┤      from the first byte of the batch to the last report
//! calls      ├──────────┤├─────────────────────┤
//! kernels    ├──┤├────┤   ├──────┤├───┤├──────┤       what lies between them is dispatch
//! ```

use super::{HostTraffic, PhaseId, Roofline};
use forebay_plan::{Call, Kernel, Plan, Program, RaggedDim, Role, Space};
use std::time::{Duration, Instant};

/// Programs of the optimizer have names that begin so.
const OPTIMIZER: &str = "optimizer.";

/// What the instructions of a phase took so far. Other phases, such as evaluation, do not count.
#[derive(Clone, Debug)]
pub struct Profile {
    phase: PhaseId,
    begun: Instant,
    /// When the part of a step began that runs; nothing outside of the phase.
    since: Option<Instant>,
    /// For each program and instruction.
    spent: Vec<Vec<Spent>>,
    /// What was copied to the host's memory and back.
    copied: HostTraffic,
    /// The last step that was seen.
    step: Option<u64>,
    steps: u64,
    step_time: Duration,
    /// What happened, of the first steps only.
    events: Vec<Event>,
    traced_steps: u64,
}

/// How often an instruction ran, how long that took, and its FLOPs.
#[derive(Clone, Copy, Debug, Default)]
struct Spent {
    runs: u64,
    time: Duration,
    flops: f64,
}

/// What happened, and when.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Event {
    /// What.
    pub what: Traced,
    /// From the begin of the profile.
    pub start: Duration,
    /// How long it took.
    pub time: Duration,
}

/// Something that takes time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Traced {
    /// Part of a step: the calls before the commit, or those from there on.
    Step(u64),
    /// A program for a layer and micro-batch: indices of the plan.
    Call {
        /// Which program.
        program: usize,
        /// Which layer.
        layer: usize,
    },
    /// An instruction of a program.
    Instruction {
        /// Which program.
        program: usize,
        /// Which of its instructions.
        index: usize,
    },
}

/// An instruction of a program, over all the calls of it.
#[derive(Clone, Debug, PartialEq)]
pub struct ProfileRow {
    /// The program.
    pub program: String,
    /// The instruction: the value that it makes.
    pub instruction: String,
    /// What it does: `grouped matmul`, `region`, `optimizer`, …
    pub kind: &'static str,
    /// How often it ran.
    pub runs: u64,
    /// All of its runs together.
    pub seconds: f64,
    /// All of its runs together: grouped products of the rows that there were, what else is ragged at its planned bound.
    pub flops: f64,
    /// Bytes read and written, each operand once; all of its runs together.
    pub bytes: f64,
}

impl ProfileRow {
    /// The least that its runs can take on a machine, in seconds: the longer of its arithmetic and its traffic, nothing of it from a cache.
    pub fn attainable(&self, roofline: &Roofline) -> f64 {
        (self.flops / roofline.flops).max(self.bytes / roofline.bytes)
    }
}

impl Profile {
    /// Nothing yet. Events are kept of so many steps.
    pub(super) fn new(plan: &Plan, role: &Role, phase: PhaseId, traced_steps: u64) -> Profile {
        let spent = plan.programs.iter().map(|p| vec![Spent::default(); p.instructions.len()]).collect();
        let calls = &role.phases[phase.0].calls;
        let instructions = |c: &Call| plan.programs[c.program as usize].instructions.len();
        let of_a_step = 2 + calls.iter().map(|c| 1 + instructions(c)).sum::<usize>();
        Profile {
            phase,
            begun: Instant::now(),
            since: None,
            spent,
            copied: HostTraffic::default(),
            step: None,
            steps: 0,
            step_time: Duration::ZERO,
            events: Vec::with_capacity(of_a_step * traced_steps as usize),
            traced_steps,
        }
    }

    /// A part of a step of a phase begins.
    pub(super) fn enter(&mut self, phase: PhaseId, step: u64) {
        if phase == self.phase {
            self.steps += u64::from(self.step != Some(step));
            self.step = Some(step);
            self.since = Some(Instant::now());
        }
    }

    /// It ends.
    pub(super) fn leave(&mut self) {
        if let (Some(since), Some(step)) = (self.since.take(), self.step) {
            let time = since.elapsed();
            self.step_time += time;
            self.event(Traced::Step(step), since, time);
        }
    }

    /// A call has ended.
    pub(super) fn call(&mut self, call: &Call, start: Instant) {
        if self.since.is_some() {
            let what = Traced::Call { program: call.program as usize, layer: call.layer as usize };
            self.event(what, start, start.elapsed());
        }
    }

    /// An instruction has ended, of so many FLOPs, and so many bytes over the link to the host.
    pub(super) fn instruction(
        &mut self,
        program: usize,
        index: usize,
        start: Instant,
        (flops, copied): (f64, HostTraffic),
    ) {
        if self.since.is_some() {
            let time = start.elapsed();
            let spent = &mut self.spent[program][index];
            spent.runs += 1;
            spent.time += time;
            spent.flops += flops;
            self.copied += copied;
            self.event(Traced::Instruction { program, index }, start, time);
        }
    }

    fn event(&mut self, what: Traced, start: Instant, time: Duration) {
        if self.steps <= self.traced_steps {
            self.events.push(Event { what, start: start - self.begun, time });
        }
    }

    /// How many steps it has seen.
    pub fn steps(&self) -> u64 {
        self.steps
    }

    /// Seconds of all its steps together, kernels and what lies between them.
    pub fn seconds(&self) -> f64 {
        self.step_time.as_secs_f64()
    }

    /// Seconds inside kernels.
    pub fn kernel_seconds(&self) -> f64 {
        self.spent.iter().flatten().map(|spent| spent.time.as_secs_f64()).sum()
    }

    /// What its steps have copied to the host's memory and back, together.
    pub fn copied(&self) -> HostTraffic {
        self.copied
    }

    /// The part of its steps' time that is not inside kernels, 0 to 1.
    pub fn dispatch_share(&self) -> f64 {
        if self.steps == 0 { 0.0 } else { (1.0 - self.kernel_seconds() / self.seconds()).max(0.0) }
    }

    /// What happened in the first steps, in the order in which it ended.
    pub fn events(&self) -> &[Event] {
        &self.events
    }

    /// How many steps have events at most.
    pub fn traced_steps(&self) -> u64 {
        self.traced_steps
    }

    /// The instructions that ran, those that took longest first.
    pub fn rows(&self, plan: &Plan) -> Vec<ProfileRow> {
        let mut rows = vec![];
        for (program, spent) in plan.programs.iter().zip(&self.spent) {
            for (instruction, &Spent { runs, time, flops }) in
                program.instructions.iter().zip(spent).filter(|(_, s)| s.runs > 0)
            {
                rows.push(ProfileRow {
                    program: program.name.clone(),
                    instruction: instruction.name.clone(),
                    kind: kind(program, &instruction.kernel),
                    runs,
                    seconds: time.as_secs_f64(),
                    flops,
                    bytes: instruction.kernel.traffic(&program.buffers).bytes() as f64 * runs as f64,
                });
            }
        }
        rows.sort_by(|a, b| b.seconds.total_cmp(&a.seconds));
        rows
    }
}

/// FLOPs of a kernel whose ragged groups have so many rows together, if it has groups.
pub(super) fn flops_of_rows(kernel: &Kernel, rows: Option<u64>) -> f64 {
    let (Kernel::Matmul(k), Some(rows)) = (kernel, rows) else { return kernel.flops() };
    let Some(groups) = &k.groups else { return kernel.flops() };
    let bound = match groups.ragged {
        RaggedDim::M => k.m.0,
        RaggedDim::K => k.k.0,
        RaggedDim::N => k.n.0,
    };
    let share = rows as f64 / bound.max(1) as f64;
    let product = k.product_flops();
    // What follows the product is done for rows of the result: all of them where the ragged dimension is summed.
    let rest = kernel.flops() - product;
    product * share + if groups.ragged == RaggedDim::K { rest } else { rest * share }
}

/// What an instruction counts as in a table by kind.
pub fn kind(program: &Program, kernel: &Kernel) -> &'static str {
    match kernel {
        Kernel::Region(_) if program.slots.iter().any(|s| s.space == Space::Host) => "copy to or from the host",
        Kernel::Region(_) | Kernel::Reduce(_) if program.name.starts_with(OPTIMIZER) => "optimizer",
        Kernel::Matmul(k) if k.groups.is_some() => "grouped matmul",
        Kernel::Matmul(_) => "matmul",
        Kernel::Region(_) => "region",
        Kernel::Attention(_) => "attention forward",
        Kernel::AttentionBackward(_) => "attention backward",
        Kernel::LinearAttention(_) => "linear attention",
        Kernel::Reduce(_) => "reduce",
        Kernel::Scan(_) => "scan",
        Kernel::Gather(_) => "gather",
        Kernel::ScatterAdd(_) => "scatter",
        Kernel::TopK(_) | Kernel::Group(_) | Kernel::Offsets(_) | Kernel::Invert(_) | Kernel::RowGroups(_) => {
            "sort and top-k"
        }
        Kernel::Random(_) | Kernel::RandomKey { .. } => "random",
        Kernel::Exchange(_) | Kernel::AllToAllV(_) | Kernel::Send(_) | Kernel::Recv(_) => "communication",
        Kernel::Coordinate(_) => "sort and top-k",
    }
}
