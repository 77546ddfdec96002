//! Programs as steps: what the replay runs. Instructions that follow each other on one stream, and that nobody waits for in between, are one step.

use crate::kind::{ByKind, Kind};
use crate::launches::Launches;
use crate::price::{Action, Priced};
use forebay_plan::{Program, StreamKind};

/// A run of instructions on one stream.
#[derive(Clone, Debug, PartialEq)]
pub struct Step {
    /// How many instructions it is: those of the program that follow the steps before it.
    pub instructions: u32,
    /// Number of the stream's kind ([`forebay_plan::StreamKind::number`]).
    pub stream: usize,
    /// How long it takes.
    pub seconds: f64,
    /// How many kernels the host starts for it.
    pub launches: f64,
    /// Events of the program that it waits for.
    pub waits: Vec<u32>,
    /// The event that its end records.
    pub records: Option<u32>,
    /// What most of it is for.
    pub kind: Kind,
    /// Seconds of each kind: together [`Step::seconds`].
    pub by_kind: ByKind,
    /// What it does to other roles.
    pub action: Action,
    /// Does the host wait for its end?
    pub host_waits: bool,
    /// The part of its time that is work.
    pub work: f64,
    /// What goes through the device meanwhile, of what its links in the first tier carry ([`Priced::load`]): the mean of its time.
    pub load: f64,
}

/// A program, timed.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Timed {
    /// What runs.
    pub steps: Vec<Step>,
    /// Seconds of each kind.
    pub by_kind: ByKind,
    /// Seconds of each kind beyond these, beside work that they do not hold up.
    pub hidden: ByKind,
    /// Floating-point operations of products and attention.
    pub flops: f64,
    /// Seconds of [`Timed::by_kind`] in which links between nodes are used.
    pub between_nodes: f64,
}

impl Timed {
    /// What goes through the device, of what its links in the first tier carry: the mean of its time.
    pub fn load(&self) -> f64 {
        let all: f64 = self.by_kind.iter().sum();
        let carried: f64 = self.steps.iter().map(|step| step.load * step.seconds).sum();
        if all > 0.0 { carried / all } else { 0.0 }
    }

    /// The part of its time in which it uses links between nodes.
    pub fn on_links(&self) -> f64 {
        let all: f64 = self.by_kind.iter().sum();
        if all > 0.0 { self.between_nodes / all } else { 0.0 }
    }
}

/// Which order instructions keep.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// That of streams and events.
    Streams,
    /// The same, on a device whose cores do matrix products and elementwise work in turn.
    OneCompute,
    /// One after another, as they stand.
    InLine,
}

/// How finely a program is replayed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fidelity {
    /// Runs of instructions together.
    Calls,
    /// Each instruction by itself.
    Instructions,
}

/// Makes the steps of a program. Seconds of each kind are multiplied by `scale`.
pub fn timed(program: &Program, priced: &[Priced], scale: &ByKind, fidelity: Fidelity, order: Order) -> Timed {
    let mut timed = Timed::default();
    let mut launches = Launches::default();
    let beside = hidden_part(priced, scale);
    for (instruction, priced) in program.instructions.iter().zip(priced) {
        let number = priced.kind.number();
        let seconds = (priced.seconds + priced.hidden * (1.0 - beside)) * scale[number];
        timed.by_kind[number] += seconds;
        timed.hidden[number] += priced.hidden * beside * scale[number];
        timed.between_nodes += if priced.leaves_node { seconds } else { 0.0 };
        timed.flops += if scale[number] > 0.0 { priced.flops * scale[number].min(1.0) } else { 0.0 };
        let action = match priced.action {
            Action::Send { peer, channel, bytes, part } => {
                Action::Send { peer, channel, bytes, part: part * scale[number] }
            }
            action => action,
        };
        let mut by_kind = ByKind::default();
        by_kind[number] = seconds;
        let stream = program.streams[instruction.stream as usize];
        let step = Step {
            instructions: 1,
            stream: match (order, stream) {
                (Order::InLine, _) | (Order::OneCompute, StreamKind::Vector) => StreamKind::Cube.number(),
                (_, stream) => stream.number(),
            },
            seconds,
            // Of what is done in part as many kernels less are started.
            launches: match priced.launches * scale[number].min(1.0) {
                // (Systems that run the plan in line launch kernel after kernel.)
                alone if order == Order::InLine => alone,
                alone => launches.of(stream, instruction, alone),
            },
            waits: if order == Order::InLine { vec![] } else { instruction.waits.clone() },
            records: instruction.records.filter(|_| order != Order::InLine),
            kind: priced.kind,
            by_kind,
            action,
            host_waits: priced.host_waits && scale[number] > 0.0,
            work: if priced.kind.is_communication() || priced.kind == Kind::Swap { 0.0 } else { 1.0 },
            load: priced.load,
        };
        match timed.steps.last_mut().filter(|last| fidelity == Fidelity::Calls && joins(last, &step)) {
            Some(last) => {
                if step.seconds > last.seconds {
                    last.kind = step.kind;
                }
                last.instructions += 1;
                let part = step.seconds / (last.seconds + step.seconds).max(f64::MIN_POSITIVE);
                last.work += (step.work - last.work) * part;
                last.load += (step.load - last.load) * part;
                last.seconds += step.seconds;
                last.by_kind[number] += step.seconds;
                last.launches += step.launches;
                last.records = step.records;
                last.host_waits = step.host_waits;
            }
            None => timed.steps.push(step),
        }
    }
    timed
}

/// The part of what a framework hides of a program's communication that there is work in the program to hide behind.
fn hidden_part(priced: &[Priced], scale: &ByKind) -> f64 {
    let hidden: f64 = priced.iter().map(|p| p.hidden * scale[p.kind.number()]).sum();
    let is_work = |p: &&Priced| !p.kind.is_communication();
    let work: f64 = priced.iter().filter(is_work).map(|p| p.seconds * scale[p.kind.number()]).sum();
    if hidden > work { work / hidden } else { 1.0 }
}

/// May a step run as part of the one before it?
fn joins(last: &Step, next: &Step) -> bool {
    let alone = |step: &Step| step.action != Action::Work;
    last.stream == next.stream
        && !alone(last)
        && !alone(next)
        && last.records.is_none()
        && next.waits.is_empty()
        && !last.host_waits
}
