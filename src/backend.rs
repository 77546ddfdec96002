//! `--backend`: what runs a plan.

use crate::cluster;
use crate::failure::Failure;
use crate::memory::{Budget, budget};
use crate::on_cluster::use_devices;
use crate::output::counted;
use crate::strategy::StrategyArg;
use clap::{Args, ValueEnum};
use forebay_compiler::shard::Strategy;
use forebay_cost::{Cluster, Precision};
use forebay_plan::{DType, Plan};
use forebay_runtime::backend::emulated::{Emulated, Machine};
use forebay_runtime::comm::ranks;
use forebay_runtime::exec::ExecOptions;
use forebay_sim::framework::Framework;
use forebay_sim::report::Options;
use std::path::PathBuf;

/// The cluster whose devices are emulated when none is named.
const CLUSTER: &str = "atlas-800t-a2";

/// What runs a plan.
#[derive(Clone, Debug, Default, Args)]
#[command(next_help_heading = "Backend")]
pub struct BackendArgs {
    /// What runs the plan [default: cpu]
    #[arg(long, value_enum)]
    backend: Option<Name>,
    /// The cluster whose devices are emulated [default: atlas-800t-a2], or by whose times `train --memory-budget` chooses: a file, or the name of one that is built in
    #[arg(long, value_name = "CLUSTER")]
    cluster: Option<String>,
    /// How many devices there are; what the strategy leaves is data parallel [default: as many as ranks]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..), requires = "backend")]
    devices: Option<u32>,
    /// Memory of an emulated device, a size such as 58GiB [default: all that programs may use of it, memory_gb less context_gb]
    #[arg(long, value_name = "SIZE", value_parser = budget, requires = "backend")]
    device_memory: Option<Budget>,
}

/// A backend.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Name {
    /// This machine: ranks are threads or processes.
    Cpu,
    /// Devices that are not there: real numbers, every access checked, and the clock of a cluster.
    NpuEmulated,
}

/// Devices for a plan.
pub struct Devices {
    /// The machine.
    pub backend: Box<Emulated>,
    /// What people call a device.
    pub device: String,
    /// How long the simulator says that a step takes, seconds.
    pub simulated: f64,
}

impl BackendArgs {
    /// Is the plan run on devices?
    pub fn is_emulated(&self) -> bool {
        self.backend == Some(Name::NpuEmulated)
    }

    /// What is read, for messages, and from which file.
    pub fn reads(&self) -> Option<(&'static str, PathBuf)> {
        cluster::file(self.cluster.as_deref()).map(|file| ("the cluster", file))
    }

    /// Options that the CPU has no use for.
    pub fn check(&self) -> Result<(), Failure> {
        let given = [
            ("--cluster", self.cluster.is_some()),
            ("--devices", self.devices.is_some()),
            ("--device-memory", self.device_memory.is_some()),
        ];
        match given.iter().find(|(_, given)| *given && !self.is_emulated()) {
            Some(("--cluster", _)) => Err(Failure::Usage(
                "--cluster is for --backend npu-emulated, and for `train` with --memory-budget".into(),
            )),
            Some((option, _)) => Err(Failure::Usage(format!("{option} is for --backend npu-emulated"))),
            None => Ok(()),
        }
    }

    /// Uses as many devices as there are.
    pub fn use_devices(&self, strategy: &mut Strategy, written: Option<&StrategyArg>) -> Result<(), Failure> {
        use_devices(strategy, self.devices, written)
    }

    /// The cluster whose devices are emulated, when it is not this machine that runs the plan.
    pub fn cluster(&self) -> Result<Option<Cluster>, Failure> {
        self.is_emulated().then(|| cluster::read(self.cluster.as_deref().unwrap_or(CLUSTER))).transpose()
    }

    /// The cluster by whose times a memory budget chooses: that of the emulated devices, or one that is named for this machine (`forebay calibrate --cpu` writes its file).
    /// The backend has no further use for the latter.
    pub fn priced(mut self) -> Result<(Option<Cluster>, BackendArgs), Failure> {
        let cluster = match self.is_emulated() {
            true => self.cluster()?,
            false => self.cluster.take().as_deref().map(cluster::read).transpose()?,
        };
        Ok((cluster, self))
    }

    /// Bytes that each of so many ranks may use on the cluster, or what was asked for instead.
    pub fn device_bytes(&self, cluster: &Cluster, ranks: u64) -> Result<u64, Failure> {
        self.device_memory.unwrap_or(Budget::Device).bytes(Some(cluster.usable_bytes(ranks)))
    }

    /// The devices that run a plan, when it is not this machine.
    pub fn devices(&self, plan: &Plan, options: &ExecOptions) -> Result<Option<Devices>, Failure> {
        let Some(named) = self.cluster()? else { return Ok(None) };
        let needed = ranks(&plan.mesh);
        if let Some(devices) = self.devices.filter(|n| u64::from(*n) != needed) {
            return Err(Failure::Input(format!(
                "the plan is for {}, but there are {}",
                counted(needed, "rank"),
                counted(devices.into(), "device")
            )));
        }
        forebay_plan::verify(plan).map_err(forebay_runtime::exec::ExecError::Invalid)?;
        let options_of_step = step_options(plan, &named);
        let cluster = forebay_sim::shared::settled(plan, &named, &options_of_step).map_err(Failure::Input)?;
        let memory = self.device_bytes(&cluster, needed)?;
        let machine = Machine {
            mesh: plan.mesh.clone(),
            device_bytes: Some(memory),
            table: forebay_sim::table(plan, &cluster, &options_of_step),
            cpu: options.cpu,
            threads: options.threads,
            shuffle: options.shuffle,
        };
        let simulated = forebay_sim::report::step_time(plan, &cluster, &options_of_step).map_err(Failure::Input)?;
        let device = cluster.device.name.clone();
        Ok(Some(Devices { backend: Box::new(Emulated::new(machine)?), device, simulated }))
    }
}

/// The plan as it stands, on a cluster; what `forebay simulate` takes when nothing else is said.
fn step_options(plan: &Plan, cluster: &Cluster) -> Options {
    let precision = match plan.settings.compute {
        DType::Bf16 => Precision::Bf16,
        DType::F64 | DType::F32 | DType::I32 | DType::I16 | DType::Bool => Precision::F32,
    };
    let framework = match &cluster.measured {
        Some(_) => Framework { streams: true, ..Framework::on_machine() },
        None => Framework::default(),
    };
    Options { framework, precision, without: false, ..Options::default() }
}
