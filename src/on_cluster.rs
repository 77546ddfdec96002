//! A model under a strategy on the devices of a cluster: what predictions of time and memory begin with.

use crate::args::{Dtype, ModelArgs};
use crate::cluster;
use crate::failure::Failure;
use crate::memory::{Budget, budget};
use crate::model::ModelFile;
use crate::strategy::{self, StrategyArg};
use forebay_compiler::memory::Price;
use forebay_compiler::pipeline::CompileOptions;
use forebay_compiler::rewrite::Profile;
use forebay_compiler::shard::Strategy;
use forebay_cost::{Cluster, Precision};
use forebay_ir::DType;
use forebay_sim::ValuePricer;
use std::path::PathBuf;

/// The model, the cluster, and how the one is on the other.
#[derive(Clone, Debug, clap::Args)]
#[command(mut_arg("dtype", |arg| arg.help("The compute type [default: bf16]")))]
pub struct OnCluster {
    /// The model file, or bench-tiny or bench-small
    #[arg(value_name = "MODEL")]
    model: PathBuf,
    /// The cluster: a file, or the name of one that is built in
    #[arg(long, value_name = "CLUSTER")]
    cluster: String,
    /// How many devices there are; what the strategy leaves is data parallel
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    devices: Option<u32>,
    /// Memory of a device, a size such as 58GiB, or `device` for all that programs may use of it (memory_gb less context_gb): what does not fit is made again in the backward pass, or swapped to the host
    #[arg(long, value_name = "SIZE", value_parser = budget)]
    memory_budget: Option<Budget>,
    #[command(flatten)]
    settings: ModelArgs,
}

/// What has been read.
pub struct SetUp {
    /// The cluster.
    pub cluster: Cluster,
    /// The model.
    pub file: ModelFile,
    /// How it is compiled.
    pub options: CompileOptions,
    /// Bytes of memory that a device may use.
    pub budget: Option<u64>,
    /// The type of products' inputs that goes with the compute type.
    pub precision: Precision,
}

impl OnCluster {
    /// What is read, for messages, and from which file.
    pub fn reads(&self) -> Vec<(&'static str, PathBuf)> {
        let mut files = vec![("the model", self.model.clone()), ("the cluster", PathBuf::from(&self.cluster))];
        files.extend(self.settings.strategy.iter().flat_map(StrategyArg::files));
        files
    }

    /// The folder of the cluster's file; none of one that is built in.
    pub fn folder(&self) -> Option<PathBuf> {
        cluster::file(Some(&self.cluster)).and_then(|file| file.parent().map(PathBuf::from))
    }

    /// Reads it all.
    pub fn set_up(&self) -> Result<SetUp, Failure> {
        let cluster = cluster::read(&self.cluster)?;
        let mut settings = self.settings.clone();
        settings.dtype.get_or_insert(Dtype::Bf16);
        let mut options = settings.options()?;
        use_devices(&mut options.strategy, self.devices, settings.strategy.as_ref())?;
        has_as_many(&cluster, options.strategy.ranks())?;
        let cluster = cluster.with_slice(options.strategy.ranks());
        let budget =
            self.memory_budget.map(|b| b.bytes(Some(cluster.usable_bytes(options.strategy.ranks())))).transpose()?;
        let file = ModelFile::read(&self.model)?.with(&self.settings)?;
        let precision = precision_of(options.compute);
        options.clock = forebay_sim::clock(&cluster, precision);
        Ok(SetUp { cluster, file, options, budget, precision })
    }
}

/// The prices that a plan is made with: the cluster's, or the usual ones where it is a machine that was measured and there is no budget. Then the plan is the one that `train` makes,
/// which has no cluster; with a budget `train` reads its prices from a cluster file too.
pub fn plan_prices<'a>(
    on_cluster: &'a ValuePricer,
    cluster: &Cluster,
    budget: Option<u64>,
    usual: &'a Profile,
) -> &'a dyn Price {
    if cluster.measured.is_some() && budget.is_none() { usual } else { on_cluster }
}

/// Has the cluster so many devices? Its last tier may end somewhere.
fn has_as_many(cluster: &Cluster, ranks: u64) -> Result<(), Failure> {
    match cluster.tiers.last().and_then(|tier| Some((&tier.name, u64::from(tier.devices?.0)))) {
        Some((tier, devices)) if ranks > devices => Err(Failure::Input(format!(
            "the strategy makes {ranks} ranks, and the cluster ends with {devices} devices, of tier `{tier}`\n  = help: a last tier without `devices` has no end"
        ))),
        _ => Ok(()),
    }
}

/// The type of products' inputs that goes with a compute type.
pub fn precision_of(compute: DType) -> Precision {
    if compute == DType::BF16 { Precision::Bf16 } else { Precision::F32 }
}

/// Uses so many devices: what the strategy leaves is data parallel, where it does not say how many ranks are.
pub fn use_devices(
    strategy: &mut Strategy,
    devices: Option<u32>,
    written: Option<&StrategyArg>,
) -> Result<(), Failure> {
    let Some(devices) = devices else { return Ok(()) };
    let model = strategy.ranks() / u64::from(strategy.dp);
    let is_open = !written.map_or(Ok(false), |written| written.says("dp"))?;
    if is_open && u64::from(devices) % model == 0 {
        strategy.dp = devices / model as u32;
    }
    strategy::uses(strategy, devices.into())
}
