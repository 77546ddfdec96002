//! A simulated step, summed up.

use crate::allocator::REGAIN_S;
use crate::framework::Framework;
use crate::kind::{ByKind, Kind};
use crate::links::{Link, links};
use crate::log::Log;
use crate::lower::{Lane, Op, Recompute, RoleOps, lower};
use crate::memory::{StageMemory, memory};
use crate::phases::Phase;
use crate::price::{Action, Priced, Pricer};
use crate::replay::{Host, Machine, Outcome, Straggler, Stuck, replay, replay_logged};
use crate::routes::Routes;
use crate::sent::sent;
use crate::steps::{Fidelity, Order, Step, Timed, timed};
use forebay_cost::{Cluster, Precision};
use forebay_plan::{CallEvent, Plan, Space};
use serde::Serialize;

/// What is simulated beside plan and cluster.
#[derive(Clone, Debug, PartialEq)]
pub struct Options {
    /// The system that runs the plan.
    pub framework: Framework,
    /// Type of the inputs of products.
    pub precision: Precision,
    /// Rows of the busiest expert rank, as a multiple of the mean.
    pub imbalance: f64,
    /// What is computed again in the backward pass.
    pub recompute: Recompute,
    /// How finely programs are replayed.
    pub fidelity: Fidelity,
    /// Simulate the step again without each kind of work, to see what it costs.
    pub without: bool,
    /// Stages whose allocator stops the device for each micro-batch to get memory back, for what is simulated beside a [`Report`] that tells of them ([`Report::crowded_stages`]): [`simulate`]
    /// finds them itself.
    pub crowded: Vec<u32>,
    /// A device that is slower than the others.
    pub straggler: Option<Straggler>,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            framework: Framework::default(),
            precision: Precision::Bf16,
            imbalance: 1.0,
            recompute: Recompute::default(),
            fidelity: Fidelity::Calls,
            without: true,
            crowded: vec![],
            straggler: None,
        }
    }
}

/// Seconds or bytes of communication by the degree that it belongs to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Communication {
    /// Experts.
    pub ep: f64,
    /// Tensors.
    pub tp: f64,
    /// Context.
    pub cp: f64,
    /// Pipeline.
    pub pp: f64,
    /// Data.
    pub dp: f64,
}

impl Communication {
    fn of(by_kind: &ByKind) -> Communication {
        let at = |kind: Kind| by_kind[kind.number()];
        Communication { ep: at(Kind::Ep), tp: at(Kind::Tp), cp: at(Kind::Cp), pp: at(Kind::Pp), dp: at(Kind::Dp) }
    }
}

/// Something that costs time.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Cost {
    /// What.
    pub what: &'static str,
    /// All its seconds, hidden or not, mean of roles: those of [`Report::by_kind`].
    pub seconds: f64,
    /// Seconds that the step would be shorter if it took none.
    pub gives_back: f64,
}

/// A part of a step's time.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Part {
    /// What.
    pub what: &'static str,
    /// Seconds.
    pub seconds: f64,
}

/// A simulated step. Times are those of the role that ends last, where a role is meant.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Report {
    /// Seconds of a step.
    pub step_time_s: f64,
    /// Tokens that a device takes in a second.
    pub tokens_per_s_per_device: f64,
    /// FLOPs that the model needs (3 × forward, causal attention at half, nothing computed again) over the peak of all devices in bf16.
    pub mfu: f64,
    /// FLOPs of products and attention that are done, what is computed again included, over the same.
    pub hfu: f64,
    /// The part of all roles' time in which they wait for other stages.
    pub bubble_fraction: f64,
    /// The part of all roles' time in which they wait for the host, an allocator's stops among it; for another stage's, where that is why its message is late.
    pub host_bound_fraction: f64,
    /// Of that for their own, which is then not ahead of its device.
    #[serde(skip)]
    pub own_host_fraction: f64,
    /// How often a host waits for its device in a step, mean of roles: for numbers of rows, where a framework needs them, before an allocator's stop, and before the commit.
    pub host_syncs: f64,
    /// Communication that computation waits for, mean of roles.
    pub exposed_comm_s: Communication,
    /// All communication, mean of roles.
    pub total_comm_s: Communication,
    /// Bytes that a rank sends while computation waits for them: of all that it sends the part that its exposed seconds are of all, mean of roles.
    pub exposed_comm_bytes: Communication,
    /// All bytes that a rank sends, mean of roles.
    pub total_comm_bytes: Communication,
    /// Seconds of communication for each tier of the network.
    pub comm_by_link: Vec<Link>,
    /// The phases of a pipelined step; filled in from a [`Timeline`](crate::Timeline::phases).
    pub phases: Vec<Phase>,
    /// For each stage. (How far hosts are ahead, on which it depends, is that of a step without an allocator's stops.)
    pub memory_bytes: Vec<StageMemory>,
    /// What costs most.
    pub costs: Vec<Cost>,
    /// What the main stream does with its time, mean of roles: together a step. Of communication this is the part that is not hidden.
    pub time_s: Vec<Part>,
    /// All seconds of each kind, hidden or not, mean of roles.
    pub by_kind: Vec<(Kind, f64)>,
    /// Devices.
    pub devices: u64,
}

/// Communication of one degree.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct OfDegree {
    /// As in strategies: `ep`, `tp`, `cp`, `pp`, `dp`.
    pub name: &'static str,
    /// Seconds that computation waits for.
    pub exposed_s: f64,
    /// All its seconds.
    pub total_s: f64,
    /// Bytes that a rank sends meanwhile.
    pub exposed_bytes: f64,
    /// All bytes that it sends.
    pub total_bytes: f64,
}

impl Report {
    /// Communication by the degree that it belongs to.
    pub fn communication(&self) -> [OfDegree; 5] {
        let [exposed_s, total_s, exposed_bytes, total_bytes] =
            [&self.exposed_comm_s, &self.total_comm_s, &self.exposed_comm_bytes, &self.total_comm_bytes]
                .map(|c| [c.ep, c.tp, c.cp, c.pp, c.dp]);
        std::array::from_fn(|n| OfDegree {
            name: ["ep", "tp", "cp", "pp", "dp"][n],
            exposed_s: exposed_s[n],
            total_s: total_s[n],
            exposed_bytes: exposed_bytes[n],
            total_bytes: total_bytes[n],
        })
    }

    /// Bytes that the fullest stage needs.
    pub fn peak_bytes(&self) -> f64 {
        self.memory_bytes.iter().map(|stage| stage.peak).fold(0.0, f64::max)
    }

    /// Bytes that an allocator would like to reserve, where that is more than programs may use, or a stage is crowded.
    pub fn short_of_memory(&self) -> Option<f64> {
        self.memory_bytes.iter().filter_map(|stage| stage.short_bytes).reduce(f64::max)
    }

    /// Stages whose allocator stops the device for each micro-batch to get memory back.
    pub fn crowded_stages(&self) -> Vec<u32> {
        self.memory_bytes.iter().filter(|stage| stage.is_crowded).map(|stage| stage.stage).collect()
    }

    /// The step with more rounds of micro-batches: `shorter` is the same step with one round less, and every further round takes as long as the one between them.
    /// Of memory only that changes which depends on how much of the step the host is waited for.
    pub(crate) fn extended(&self, shorter: &Report, rounds: f64) -> Report {
        let on = |long: f64, short: f64| long + rounds * (long - short);
        // What is a part of the step is made seconds first.
        let step = on(self.step_time_s, shorter.step_time_s);
        let share =
            |part: fn(&Report) -> f64| on(part(self) * self.step_time_s, part(shorter) * shorter.step_time_s) / step;
        let communication = |of: fn(&Report) -> &Communication| {
            let (a, b) = (of(self), of(shorter));
            let [ep, tp, cp, pp, dp] =
                [(a.ep, b.ep), (a.tp, b.tp), (a.cp, b.cp), (a.pp, b.pp), (a.dp, b.dp)].map(|(a, b)| on(a, b));
            Communication { ep, tp, cp, pp, dp }
        };
        let mut long = self.clone();
        long.step_time_s = step;
        long.tokens_per_s_per_device = share(|r| r.tokens_per_s_per_device);
        (long.mfu, long.hfu) = (share(|r| r.mfu), share(|r| r.hfu));
        (long.bubble_fraction, long.host_bound_fraction) =
            (share(|r| r.bubble_fraction), share(|r| r.host_bound_fraction));
        long.own_host_fraction = share(|r| r.own_host_fraction);
        long.memory_bytes.iter_mut().for_each(|stage| stage.settle(long.own_host_fraction));
        long.host_syncs = on(long.host_syncs, shorter.host_syncs);
        long.exposed_comm_s = communication(|r| &r.exposed_comm_s);
        long.total_comm_s = communication(|r| &r.total_comm_s);
        long.exposed_comm_bytes = communication(|r| &r.exposed_comm_bytes);
        long.total_comm_bytes = communication(|r| &r.total_comm_bytes);
        for (long, short) in long.comm_by_link.iter_mut().zip(&shorter.comm_by_link) {
            long.exposed_s = on(long.exposed_s, short.exposed_s);
            long.total_s = on(long.total_s, short.total_s);
        }
        for (long, short) in long.time_s.iter_mut().zip(&shorter.time_s) {
            long.seconds = on(long.seconds, short.seconds);
        }
        for (long, short) in long.by_kind.iter_mut().zip(&shorter.by_kind) {
            long.1 = on(long.1, short.1);
        }
        long
    }
}

/// A plan made ready for replays.
pub(crate) struct Prepared<'a> {
    plan: &'a Plan,
    pub(crate) pricer: Pricer<'a>,
    pub(crate) priced: Vec<Vec<Priced>>,
    pub(crate) roles: Vec<RoleOps>,
    waits: Vec<Vec<Vec<CallEvent>>>,
    options: &'a Options,
    slowdown: f64,
    routes: Routes,
    vector_beside_cube: bool,
}

impl Prepared<'_> {
    /// The programs with the seconds of each kind scaled, and behind them what is done of each again.
    fn programs(&self, scale: &ByKind) -> Vec<Timed> {
        let order = match (self.options.framework.streams, self.vector_beside_cube) {
            (false, _) => Order::InLine,
            (true, false) => Order::OneCompute,
            (true, true) => Order::Streams,
        };
        let all = || self.plan.programs.iter().zip(&self.priced);
        let again: ByKind = std::array::from_fn(|k| scale[k] * self.options.recompute.parts[k]);
        let mut programs: Vec<Timed> =
            all().map(|(p, priced)| timed(p, priced, scale, self.options.fidelity, order)).collect();
        if self.options.recompute.is_some() {
            programs.extend(all().map(|(p, priced)| timed(p, priced, &again, self.options.fidelity, order)));
        }
        programs
    }

    /// What the step runs on, the host's seconds scaled.
    fn machine(&self, scale: f64) -> Machine<'_> {
        let host = Host { dispatch: self.options.framework.launch_s() * scale, regain: REGAIN_S * scale };
        Machine { host, slowdown: self.slowdown, routes: &self.routes, straggler: self.options.straggler }
    }

    fn stuck(&self, stuck: Stuck) -> String {
        format!("role `{}` waits for ever", self.plan.roles[stuck.role].name)
    }

    /// Replays a step with the seconds of each kind and the host's scaled.
    pub(crate) fn run(&self, scale: &ByKind, host: f64) -> Result<(f64, Vec<Outcome>), String> {
        let programs = self.programs(scale);
        let outcomes =
            replay(&programs, &self.roles, &self.waits, self.machine(host)).map_err(|stuck| self.stuck(stuck))?;
        let end = outcomes.iter().map(|o| o.end).fold(0.0, f64::max);
        Ok((end, outcomes))
    }

    /// Replays the step and says all that happens.
    pub(crate) fn logged(&self) -> Result<(Vec<Timed>, Vec<Log>), String> {
        let programs = self.programs(&[1.0; Kind::COUNT]);
        let logs =
            replay_logged(&programs, &self.roles, &self.waits, self.machine(1.0)).map_err(|stuck| self.stuck(stuck))?;
        Ok((programs, logs.into_iter().map(|(_, log)| log).collect()))
    }
}

/// Simulates a training step of a plan on a cluster.
///
/// # Errors
/// A plan that has no training phase, or whose roles wait for each other (no verified plan does).
pub fn simulate(plan: &Plan, cluster: &Cluster, options: &Options) -> Result<Report, String> {
    where_crowded(options, |options| simulate_once(plan, cluster, options))
}

/// What `simulate` makes, and makes again where stages turn out to be crowded: the memory is that of the first time.
pub(crate) fn where_crowded(
    options: &Options,
    simulate: impl Fn(&Options) -> Result<Report, String>,
) -> Result<Report, String> {
    let first = simulate(&Options { crowded: vec![], ..options.clone() })?;
    let crowded = first.crowded_stages();
    if crowded.is_empty() {
        return Ok(first);
    }
    let slower = simulate(&Options { crowded, ..options.clone() })?;
    Ok(Report { memory_bytes: first.memory_bytes, ..slower })
}

/// A training step of which the options say which stages are crowded.
pub(crate) fn simulate_once(plan: &Plan, cluster: &Cluster, options: &Options) -> Result<Report, String> {
    let prepared = prepare(plan, cluster, options)?;
    let one = [1.0; Kind::COUNT];
    let (step, outcomes) = prepared.run(&one, 1.0)?;
    let devices = plan.mesh.iter().map(|d| u64::from(d.size)).product::<u64>().max(1);
    let roles = outcomes.len() as f64;
    let mean = |f: &dyn Fn(&Outcome) -> f64| outcomes.iter().map(f).sum::<f64>() / roles;
    let by_kind = |f: &dyn Fn(&Outcome) -> ByKind| -> ByKind {
        std::array::from_fn(|k| outcomes.iter().map(|o| f(o)[k]).sum::<f64>() / roles)
    };
    let exposed = by_kind(&|o| std::array::from_fn(|k| o.busy[k] + o.waited[k]));
    let total = by_kind(&|o| o.total);
    let sent = sent(&prepared.priced, &prepared.roles, &options.recompute.parts);
    let sent_exposed: ByKind =
        std::array::from_fn(|k| if total[k] > 0.0 { sent[k] * (exposed[k] / total[k]) } else { 0.0 });
    let settings = &plan.settings;
    let tokens = (settings.batch * settings.seq) as f64;
    let peak = devices as f64 * cluster.peak(Precision::Bf16);
    let per_role = devices as f64 / roles;
    let own_host = (mean(&|o| o.own_host) / step).max(0.0);
    let device_bytes = cluster.device.usable_bytes();
    Ok(Report {
        step_time_s: step,
        tokens_per_s_per_device: tokens / step / devices as f64,
        mfu: settings.flops_per_step / step / peak,
        hfu: outcomes.iter().map(|o| o.flops * per_role).sum::<f64>() / step / peak,
        bubble_fraction: mean(&|o| o.bubble + (step - o.end).max(0.0)) / step,
        host_bound_fraction: (mean(&|o| o.host) / step).max(0.0),
        own_host_fraction: own_host,
        host_syncs: mean(&|o| f64::from(o.host_syncs)),
        exposed_comm_s: Communication::of(&exposed),
        total_comm_s: Communication::of(&total),
        exposed_comm_bytes: Communication::of(&sent_exposed),
        total_comm_bytes: Communication::of(&sent),
        comm_by_link: links(
            plan,
            cluster,
            &prepared.pricer,
            &prepared.priced,
            &prepared.roles.iter().zip(&outcomes).collect::<Vec<_>>(),
        ),
        phases: vec![],
        memory_bytes: plan
            .roles
            .iter()
            .zip(&prepared.roles)
            .map(|(r, ops)| {
                let mut memory = memory(plan, r, ops, &options.recompute, &options.framework, device_bytes);
                memory.settle(own_host);
                memory
            })
            .collect(),
        costs: if options.without { costs(&prepared, step, &total, mean(&|o| o.host))? } else { vec![] },
        time_s: Kind::ALL
            .into_iter()
            .map(|k| Part { what: k.name(), seconds: exposed[k.number()] })
            .chain([
                Part { what: CONTENTION, seconds: mean(&|o| o.contention) },
                Part {
                    what: "waiting for other stages (bubble)",
                    seconds: mean(&|o| o.bubble + (step - o.end).max(0.0)),
                },
                Part { what: "waiting for the host", seconds: mean(&|o| o.host) },
            ])
            .collect(),
        by_kind: Kind::ALL.into_iter().map(|k| (k, total[k.number()])).collect(),
        devices,
    })
}

/// The time of a step alone, seconds; the options say which stages are crowded.
///
/// # Errors
/// As [`simulate`].
pub fn step_time(plan: &Plan, cluster: &Cluster, options: &Options) -> Result<f64, String> {
    Ok(prepare(plan, cluster, options)?.run(&[1.0; Kind::COUNT], 1.0)?.0)
}

/// Runs of a program by which its time is taken: what the first take longer is none of it.
const RUNS: [usize; 2] = [4, 12];

/// Seconds of each program of a plan on one rank, while it runs again and again. Messages to other stages are not waited for.
///
/// # Errors
/// As [`simulate`].
pub fn program_times(plan: &Plan, cluster: &Cluster, options: &Options) -> Result<Vec<f64>, String> {
    let prepared = prepare(plan, cluster, options)?;
    let is_message = |step: &Step| matches!(step.action, Action::Send { .. } | Action::Receive { .. });
    let mut programs = prepared.programs(&[1.0; Kind::COUNT]);
    let only_messages: Vec<bool> = programs.iter().map(|p| p.steps.iter().all(is_message)).collect();
    for step in programs.iter_mut().flat_map(|p| &mut p.steps).filter(|step| is_message(step)) {
        step.action = Action::Work;
    }
    let end = |program: usize, runs: usize| -> Result<f64, String> {
        let ops = vec![Op { program: program as u32, call: None, lane: Lane::Main, reads: true }; runs];
        let role = RoleOps::plain(0, ops);
        let outcomes = replay(&programs, &[role], &[vec![]], prepared.machine(1.0));
        Ok(outcomes.map_err(|stuck| prepared.stuck(stuck))?[0].end)
    };
    let seconds = |program: usize| -> Result<f64, String> {
        if only_messages[program] {
            return Ok(0.0);
        }
        let [few, many] = RUNS;
        Ok((end(program, many)? - end(program, few)?) / (many - few) as f64)
    };
    (0..plan.programs.len()).map(seconds).collect()
}

pub(crate) fn prepare<'a>(plan: &'a Plan, cluster: &'a Cluster, options: &'a Options) -> Result<Prepared<'a>, String> {
    if plan.roles.iter().all(|r| r.phases.iter().all(|p| p.name != "train")) {
        return Err("the plan has no training phase".into());
    }
    let swaps = plan.programs.iter().flat_map(|p| &p.slots).any(|slot| slot.space == Space::Host);
    if swaps && cluster.host.is_none() {
        return Err(format!(
            "the plan copies tensors to the host's memory, and `{}` does not say how fast that is\n  = help: add a table [host] \
             with gbps, efficiency and source to the cluster file",
            cluster.name
        ));
    }
    let pricer = Pricer::new(plan, cluster, &options.framework, options.precision, options.imbalance);
    let of_program = |p: &forebay_plan::Program| {
        // Programs of other phases are not run.
        let runs = !p.name.starts_with("eval.") && !p.name.starts_with("generate.");
        if runs { pricer.program(p) } else { vec![] }
    };
    let roles =
        plan.roles.iter().map(|r| lower(plan, r, &options.framework, &options.recompute, &options.crowded)).collect();
    let waits = plan.roles.iter().map(|r| {
        let phase = r.phases.iter().find(|p| p.name == "train");
        let phase = phase.filter(|_| options.framework.streams);
        phase.map_or(vec![], |p| p.calls.iter().map(|c| c.waits.clone()).collect())
    });
    let priced = plan.programs.iter().map(of_program).collect();
    Ok(Prepared {
        plan,
        routes: pricer.routes(),
        pricer,
        priced,
        roles,
        waits: waits.collect(),
        options,
        slowdown: cluster.calibrated.overlap_slowdown.0,
        vector_beside_cube: cluster.device.vector_beside_cube,
    })
}

/// What a part of a step's time is called in which work is slower than it would be alone.
pub const CONTENTION: &str = "slower for communication beside it";

/// The five things that cost most, each simulated again without it. `total` are all seconds of each kind, `host` those for which computation waits for it.
fn costs(prepared: &Prepared, step: f64, total: &ByKind, host: f64) -> Result<Vec<Cost>, String> {
    let mut costs = vec![];
    for kind in Kind::ALL {
        let seconds = total[kind.number()];
        if seconds > 0.0 {
            let mut scale = [1.0; Kind::COUNT];
            scale[kind.number()] = 0.0;
            let (without, _) = prepared.run(&scale, 1.0)?;
            costs.push(Cost { what: kind.name(), seconds, gives_back: step - without });
        }
    }
    if host > 0.0 {
        let (without, _) = prepared.run(&[1.0; Kind::COUNT], 0.0)?;
        costs.push(Cost { what: "the host", seconds: host, gives_back: step - without });
    }
    costs.sort_by(|a, b| b.gives_back.total_cmp(&a.gives_back));
    costs.truncate(5);
    Ok(costs)
}
