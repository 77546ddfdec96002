//! A simulated step, summed up.

use crate::framework::Framework;
use crate::kind::{ByKind, Kind};
use crate::links::{Link, links};
use crate::log::Log;
use crate::lower::{Recompute, RoleOps, lower};
use crate::memory::{StageMemory, memory};
use crate::price::{Priced, Pricer};
use crate::replay::{Host, Outcome, Stuck, replay, replay_logged};
use crate::steps::{Fidelity, Order, Timed, timed};
use forebay_cost::{Cluster, Precision};
use forebay_plan::{CallEvent, Plan};
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
        }
    }
}

/// Seconds of communication by the degree that it belongs to.
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
    /// Seconds of the busiest role.
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
    /// The part of all roles' time in which they wait for the host.
    pub host_bound_fraction: f64,
    /// Communication that computation waits for, mean of roles.
    pub exposed_comm_s: Communication,
    /// All communication, mean of roles.
    pub total_comm_s: Communication,
    /// The same for each tier of the network.
    pub comm_by_link: Vec<Link>,
    /// For each stage.
    pub memory_bytes: Vec<StageMemory>,
    /// What costs most.
    pub costs: Vec<Cost>,
    /// What the main stream does with its time, mean of roles: together a step.
    pub time_s: Vec<Part>,
    /// Seconds of work of each kind, mean of roles.
    pub by_kind: Vec<(Kind, f64)>,
    /// Devices.
    pub devices: u64,
}

/// A plan made ready for replays.
pub(crate) struct Prepared<'a> {
    plan: &'a Plan,
    pricer: Pricer<'a>,
    pub(crate) priced: Vec<Vec<Priced>>,
    pub(crate) roles: Vec<RoleOps>,
    waits: Vec<Vec<Vec<CallEvent>>>,
    options: &'a Options,
    slowdown: f64,
}

impl Prepared<'_> {
    /// The programs with the seconds of each kind scaled, and behind them what is done of each again.
    fn programs(&self, scale: &ByKind) -> Vec<Timed> {
        let order = if self.options.framework.streams { Order::Streams } else { Order::InLine };
        let all = || self.plan.programs.iter().zip(&self.priced);
        let again: ByKind = std::array::from_fn(|k| scale[k] * self.options.recompute.parts[k]);
        let mut programs: Vec<Timed> =
            all().map(|(p, priced)| timed(p, priced, scale, self.options.fidelity, order)).collect();
        if self.options.recompute.is_some() {
            programs.extend(all().map(|(p, priced)| timed(p, priced, &again, self.options.fidelity, order)));
        }
        programs
    }

    /// The host, its seconds scaled.
    fn host(&self, scale: f64) -> Host {
        Host { dispatch: self.options.framework.launch_s() * scale }
    }

    fn stuck(&self, stuck: Stuck) -> String {
        format!("role `{}` waits for ever", self.plan.roles[stuck.role].name)
    }

    /// Replays a step with the seconds of each kind and the host's scaled.
    pub(crate) fn run(&self, scale: &ByKind, host: f64) -> Result<(f64, Vec<Outcome>), String> {
        let programs = self.programs(scale);
        let outcomes = replay(&programs, &self.roles, &self.waits, self.host(host), self.slowdown)
            .map_err(|stuck| self.stuck(stuck))?;
        let end = outcomes.iter().map(|o| o.end).fold(0.0, f64::max);
        Ok((end, outcomes))
    }

    /// Replays the step and says all that happens.
    pub(crate) fn logged(&self) -> Result<(Vec<Timed>, Vec<Log>), String> {
        let programs = self.programs(&[1.0; Kind::COUNT]);
        let logs = replay_logged(&programs, &self.roles, &self.waits, self.host(1.0), self.slowdown)
            .map_err(|stuck| self.stuck(stuck))?;
        Ok((programs, logs.into_iter().map(|(_, log)| log).collect()))
    }
}

/// Simulates a training step of a plan on a cluster.
///
/// # Errors
/// A plan that has no training phase, or whose roles wait for each other (no verified plan does).
pub fn simulate(plan: &Plan, cluster: &Cluster, options: &Options) -> Result<Report, String> {
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
    let settings = &plan.settings;
    let tokens = (settings.batch * settings.seq) as f64;
    let peak = devices as f64 * cluster.peak(Precision::Bf16);
    let per_role = devices as f64 / roles;
    Ok(Report {
        step_time_s: step,
        tokens_per_s_per_device: tokens / step / devices as f64,
        mfu: settings.flops_per_step / step / peak,
        hfu: outcomes.iter().map(|o| o.flops * per_role).sum::<f64>() / step / peak,
        bubble_fraction: mean(&|o| o.bubble + (step - o.end).max(0.0)) / step,
        host_bound_fraction: mean(&|o| o.host) / step,
        exposed_comm_s: Communication::of(&exposed),
        total_comm_s: Communication::of(&total),
        comm_by_link: links(
            plan,
            cluster,
            &prepared.pricer,
            &prepared.priced,
            &prepared.roles.iter().zip(&outcomes).collect::<Vec<_>>(),
        ),
        memory_bytes: plan
            .roles
            .iter()
            .zip(&prepared.roles)
            .map(|(r, ops)| memory(plan, r, ops, &options.recompute, &options.framework))
            .collect(),
        costs: if options.without { costs(&prepared, step, &outcomes)? } else { vec![] },
        time_s: Kind::ALL
            .into_iter()
            .map(|k| Part { what: k.name(), seconds: exposed[k.number()] })
            .chain([
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

/// The time of a step alone, seconds.
///
/// # Errors
/// As [`simulate`].
pub fn step_time(plan: &Plan, cluster: &Cluster, options: &Options) -> Result<f64, String> {
    Ok(prepare(plan, cluster, options)?.run(&[1.0; Kind::COUNT], 1.0)?.0)
}

pub(crate) fn prepare<'a>(plan: &'a Plan, cluster: &'a Cluster, options: &'a Options) -> Result<Prepared<'a>, String> {
    if plan.roles.iter().all(|r| r.phases.iter().all(|p| p.name != "train")) {
        return Err("the plan has no training phase".into());
    }
    let pricer = Pricer::new(plan, cluster, &options.framework, options.precision, options.imbalance);
    let of_program = |p: &forebay_plan::Program| {
        // Programs of other phases are not run.
        let runs = !p.name.starts_with("eval.") && !p.name.starts_with("generate.");
        if runs { p.instructions.iter().map(|i| pricer.instruction(p, i)).collect() } else { vec![] }
    };
    let roles = plan.roles.iter().map(|r| lower(plan, r, &options.framework, &options.recompute)).collect();
    let waits = plan.roles.iter().map(|r| {
        let phase = r.phases.iter().find(|p| p.name == "train");
        let phase = phase.filter(|_| options.framework.streams);
        phase.map_or(vec![], |p| p.calls.iter().map(|c| c.waits.clone()).collect())
    });
    let priced = plan.programs.iter().map(of_program).collect();
    Ok(Prepared {
        plan,
        pricer,
        priced,
        roles,
        waits: waits.collect(),
        options,
        slowdown: cluster.calibrated.overlap_slowdown.0,
    })
}

/// The five things that cost most, each simulated again without it.
fn costs(prepared: &Prepared, step: f64, outcomes: &[Outcome]) -> Result<Vec<Cost>, String> {
    let most = |f: &dyn Fn(&Outcome) -> f64| outcomes.iter().map(f).fold(0.0, f64::max);
    let mut costs = vec![];
    for kind in Kind::ALL {
        let seconds = most(&|o| {
            o.total[kind.number()] + o.waited[kind.number()].min(if kind == Kind::Pp { f64::MAX } else { 0.0 })
        });
        if seconds > 0.0 {
            let mut scale = [1.0; Kind::COUNT];
            scale[kind.number()] = 0.0;
            let (without, _) = prepared.run(&scale, 1.0)?;
            costs.push(Cost { what: kind.name(), seconds, gives_back: step - without });
        }
    }
    let host = most(&|o| o.host);
    if host > 0.0 {
        let (without, _) = prepared.run(&[1.0; Kind::COUNT], 0.0)?;
        costs.push(Cost { what: "the host", seconds: host, gives_back: step - without });
    }
    costs.sort_by(|a, b| b.gives_back.total_cmp(&a.gives_back));
    costs.truncate(5);
    Ok(costs)
}
