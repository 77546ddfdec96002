//! What the user asks for: how many ranks work on what.
//!
//! ```text
//! ranks = dp × cp × tp × pp  (where tokens and heads live)  =  edp × ep × etp × pp  (where experts live)
//! ```
//!
//! Two foldings of the same ranks (arXiv 2504.14960): `edp` follows from the others.

use super::divisors::{divisors, listed};
use super::mesh::Mesh;
use super::order::{Cut, Order};
use crate::autodiff::Keep;
use crate::memory::{Recompute, Swap};
use crate::overlap::exchange::Dispatch;
use crate::overlap::pieces::Pieces;
use crate::overlap::{Pass, Passes};
use crate::shares::Shares;
use forebay_dsl::diagnostics::closest;
use forebay_ir::DType;
use forebay_pipeline::Kind;
use std::fmt;
use std::str::FromStr;

/// A parallel strategy. All degrees are at least 1.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Strategy {
    /// Data parallel: ranks that see different rows.
    pub dp: u32,
    /// Tensor parallel: ranks that share heads, hidden widths and the vocabulary.
    pub tp: u32,
    /// Sequence parallel: outside of attention and networks, `tp` ranks share positions.
    pub sp: bool,
    /// Expert parallel: ranks that share the experts by count.
    pub ep: u32,
    /// Expert tensor parallel: ranks that share the width of each expert.
    pub etp: u32,
    /// Where those ranks put together what they all need of a row.
    pub etp_gather: EtpGather,
    /// Context parallel: ranks that share the positions of a row.
    pub cp: u32,
    /// How attention sees positions of other ranks.
    pub cp_algo: CpAlgo,
    /// Of `cp`, how many ranks have parts of the heads in the hybrid; as near to the square root as divides, when absent.
    pub ulysses: Option<u32>,
    /// Pipeline stages.
    pub pp: u32,
    /// Model chunks of a stage.
    pub vpp: u32,
    /// Micro-batches of a step on each data-parallel rank; what is left of the batch when absent.
    pub micro: Option<u32>,
    /// Rows of a micro-batch; what is left of the batch when absent.
    pub mbs: Option<u32>,
    /// What data-parallel ranks share: nothing (0), optimizer state (1), gradients (2), parameters (3).
    pub zero: u32,
    /// Of `dp`, how many neighbours share it; the others have replicas, and shards are summed over those. All, when absent.
    pub hsdp: Option<u32>,
    /// The order of forward and backward passes in a pipeline.
    pub schedule: Order,
    /// Of a search: the most activations, of a part of the model and a micro-batch each, that a stage may hold.
    pub cap: Option<u32>,
    /// Of a search: how many schedules it may replay; as many as take seconds to a minute, when absent.
    pub nodes: Option<u64>,
    /// Which layers the parts of a pipeline have.
    pub stages: Cut,
    /// What forward passes save although it is cheap to make again.
    pub keep: Keep,
    /// What backward passes may compute again instead of reading it from memory.
    pub recompute: Recompute,
    /// Parts of the tokens of a micro-batch that go to experts, and through networks of several ranks, one after another.
    pub pieces: Pieces,
    /// How the rows of experts travel.
    pub dispatch: Dispatch,
    /// Where the shares of experts are multiplied in.
    pub shares: Shares,
    /// Ranks of a node, which are numbered one after another.
    pub node: Option<u32>,
    /// Which passes let work run beside other work.
    pub overlap: Passes,
    /// Which saved tensors are in the host's memory between the passes.
    pub swap: Swap,
    /// How parameters are kept beside their copies in bf16.
    pub master_weights: MasterWeights,
    /// Which memory the optimizer's state is in.
    pub optimizer: OptimizerMemory,
    /// The type in which moments are kept.
    pub moments: Moments,
    /// Rows of experts that a rank has room for; the worst case, all rows of its group, when absent. A run that needs more stops and says so.
    pub max_tokens_per_rank: Option<u64>,
}

/// Where ranks that share the width of an expert put together the rows that all of them need.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EtpGather {
    /// As tokens, before they go to experts: each of the ranks sends whole rows of all their tokens.
    Before,
    /// Behind the exchange: each sends its part of the width of every row, and parts are gathered where they arrive. 1/`etp` as much goes through the exchange.
    After,
}

impl EtpGather {
    const ALL: [EtpGather; 2] = [EtpGather::Before, EtpGather::After];

    fn name(self) -> &'static str {
        match self {
            EtpGather::Before => "before",
            EtpGather::After => "after",
        }
    }
}

/// How parameters are kept beside the copies in bf16 that programs read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MasterWeights {
    /// In f32: six bytes a parameter with its copy.
    Whole,
    /// The half that the copy lacks: four bytes, and the same training bit for bit (after Split-SGD, arXiv 2005.04680, but rounded to nearest).
    Split,
}

impl MasterWeights {
    const ALL: [MasterWeights; 2] = [MasterWeights::Whole, MasterWeights::Split];

    fn name(self) -> &'static str {
        match self {
            MasterWeights::Whole => "whole",
            MasterWeights::Split => "split",
        }
    }
}

/// The type in which AdamW's moments are kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Moments {
    /// That of the masters.
    Full,
    /// Rounded to bf16 after each step: half the bytes, and other numbers.
    Bf16,
}

impl Moments {
    const ALL: [Moments; 2] = [Moments::Full, Moments::Bf16];

    fn name(self) -> &'static str {
        match self {
            Moments::Full => "full",
            Moments::Bf16 => "bf16",
        }
    }

    /// The type, beside masters of type `wide`.
    pub fn dtype(self, wide: DType) -> DType {
        match self {
            Moments::Full => wide,
            Moments::Bf16 => DType::BF16,
        }
    }
}

/// Which memory the optimizer's state is in: moments, and masters that programs read copies of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OptimizerMemory {
    /// The device's.
    Device,
    /// The host's: it comes to the device in chunks when it is updated.
    Host,
}

impl OptimizerMemory {
    const ALL: [OptimizerMemory; 2] = [OptimizerMemory::Device, OptimizerMemory::Host];

    fn name(self) -> &'static str {
        match self {
            OptimizerMemory::Device => "device",
            OptimizerMemory::Host => "host",
        }
    }
}

/// How attention works when ranks share the positions of a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CpAlgo {
    /// All-to-all: positions for heads and back (arXiv 2309.14509).
    Ulysses,
    /// Keys and values of all positions are gathered on each rank (Llama 3, arXiv 2407.21783, section 3.3.2).
    Gather,
    /// Keys and values travel from rank to rank while queries stay (arXiv 2310.01889), positions lying so that all have as much to do.
    Ring,
    /// Heads for positions among neighbours, and rings across them (arXiv 2405.07719).
    Hybrid,
}

impl CpAlgo {
    const ALL: [CpAlgo; 4] = [CpAlgo::Ulysses, CpAlgo::Gather, CpAlgo::Ring, CpAlgo::Hybrid];

    /// Its name in a strategy.
    pub fn name(self) -> &'static str {
        match self {
            CpAlgo::Ulysses => "ulysses",
            CpAlgo::Gather => "gather",
            CpAlgo::Ring => "ring",
            CpAlgo::Hybrid => "hybrid",
        }
    }
}

impl Default for Strategy {
    fn default() -> Strategy {
        Strategy {
            dp: 1,
            tp: 1,
            sp: true,
            ep: 1,
            etp: 1,
            etp_gather: EtpGather::Before,
            cp: 1,
            cp_algo: CpAlgo::Ulysses,
            ulysses: None,
            pp: 1,
            vpp: 1,
            micro: None,
            mbs: None,
            zero: 0,
            hsdp: None,
            schedule: Order::Published(Kind::OneFOneB),
            cap: None,
            nodes: None,
            stages: Cut::Even,
            keep: Keep::Fewest,
            recompute: Recompute::Nothing,
            pieces: Pieces::Number(1),
            dispatch: Dispatch::Flat,
            shares: Shares::After,
            node: None,
            overlap: Passes::default(),
            swap: Swap::default(),
            master_weights: MasterWeights::Whole,
            optimizer: OptimizerMemory::Device,
            moments: Moments::Full,
            max_tokens_per_rank: None,
        }
    }
}

/// Why a strategy cannot be: a sentence, and what would work.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StrategyError {
    /// What is wrong.
    pub message: String,
    /// What would work, where that is known.
    pub help: Option<String>,
}

impl StrategyError {
    pub(crate) fn new(message: impl Into<String>, help: impl Into<Option<String>>) -> StrategyError {
        StrategyError { message: message.into(), help: help.into() }
    }
}

impl fmt::Display for StrategyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)?;
        self.help.as_ref().map_or(Ok(()), |help| write!(f, "\n  = help: {help}"))
    }
}

impl std::error::Error for StrategyError {}

/// All keys, as `--strategy` takes them.
const KEYS: [&str; 31] = [
    "dp",
    "tp",
    "sp",
    "ep",
    "etp",
    "etp_gather",
    "cp",
    "cp_algo",
    "ulysses",
    "pp",
    "vpp",
    "micro",
    "mbs",
    "zero",
    "hsdp",
    "schedule",
    "cap",
    "nodes",
    "stages",
    "keep",
    "recompute",
    "pieces",
    "dispatch",
    "shares",
    "node",
    "overlap",
    "swap",
    "master_weights",
    "optimizer",
    "moments",
    "max_tokens_per_rank",
];

impl Strategy {
    /// All keys.
    pub fn keys() -> &'static [&'static str] {
        &KEYS
    }

    /// Reads `dp=2,tp=2,ep=4,zero=1`. Stages are separated by `/`: `stages=4/5/5/4`.
    ///
    /// # Errors
    /// No key, an unknown or repeated one, or a value that is none.
    pub fn parse(text: &str) -> Result<Strategy, StrategyError> {
        let mut strategy = Strategy::default();
        Strategy::pairs(text)?.into_iter().try_for_each(|(key, value)| strategy.set(key, value))?;
        strategy.check()?;
        Ok(strategy)
    }

    /// The keys and values of a text, each key once.
    ///
    /// # Errors
    /// Something between two commas that is not `key=value`, or a key that is there twice.
    pub fn pairs(text: &str) -> Result<Vec<(&str, &str)>, StrategyError> {
        let such = || Some("a strategy is written dp=2,tp=2".to_string());
        if text.trim().is_empty() {
            return Err(StrategyError::new("the strategy is empty", such()));
        }
        let mut pairs: Vec<(&str, &str)> = vec![];
        for pair in text.split(',').map(str::trim) {
            if pair.is_empty() {
                return Err(StrategyError::new(
                    format!("`{text}` has a comma with no `key=value` beside it"),
                    Some("leave the comma out".to_string()),
                ));
            }
            let (key, value) = pair
                .split_once('=')
                .ok_or_else(|| StrategyError::new(format!("`{pair}` is not `key=value`"), such()))?;
            let (key, value) = (key.trim(), value.trim());
            if pairs.iter().any(|(known, _)| *known == key) {
                return Err(StrategyError::new(format!("`{key}` is given twice"), None));
            }
            pairs.push((key, value));
        }
        Ok(pairs)
    }

    /// What keys say of each other.
    ///
    /// # Errors
    /// A key that the others give no meaning.
    pub fn check(&self) -> Result<(), StrategyError> {
        if self.etp_gather == EtpGather::After && (self.etp == 1 || self.ep == 1) {
            return Err(StrategyError::new(
                format!(
                    "etp_gather = after is for rows that go to experts in parts, but ep = {} and etp = {}",
                    self.ep, self.etp
                ),
                Some("give both ep and etp, or leave `etp_gather` out".to_string()),
            ));
        }
        if let Some(shards) = self.hsdp.filter(|_| self.zero == 0) {
            return Err(StrategyError::new(
                format!("hsdp = {shards} says how many ranks share what `zero` has them share, but zero = 0"),
                Some("add zero=1, 2 or 3, or leave `hsdp` out".to_string()),
            ));
        }
        let of_search = [("cap", self.cap.is_some()), ("nodes", self.nodes.is_some())];
        match of_search.iter().find(|(_, given)| *given) {
            Some((key, _)) if self.schedule != Order::Search => Err(StrategyError::new(
                format!("`{key}` is for schedule = search, but the schedule is {}", self.schedule),
                Some(format!("add schedule=search, or leave `{key}` out")),
            )),
            _ => Ok(()),
        }
    }

    /// The strategy with another value of a degree.
    pub(super) fn with(&self, key: &str, value: u32) -> Result<Strategy, StrategyError> {
        let mut changed = self.clone();
        changed.set(key, &value.to_string())?;
        Ok(changed)
    }

    /// Sets a key.
    ///
    /// # Errors
    /// An unknown key, or a value that it does not take.
    pub fn set(&mut self, key: &str, value: &str) -> Result<(), StrategyError> {
        let wrong = |what: &str| Err(StrategyError::new(format!("`{key}` is {what}, not `{value}`"), None));
        let degree = || positive(key, value, u32::MAX);
        match key {
            "dp" => self.dp = degree()?,
            "tp" => self.tp = degree()?,
            "ep" => self.ep = degree()?,
            "etp" => self.etp = degree()?,
            "etp_gather" => match EtpGather::ALL.into_iter().find(|place| place.name() == value) {
                Some(place) => self.etp_gather = place,
                None => return wrong("before or after"),
            },
            "cp" => self.cp = degree()?,
            "pp" => self.pp = degree()?,
            "vpp" => self.vpp = degree()?,
            "micro" => self.micro = Some(degree()?),
            "mbs" => self.mbs = Some(degree()?),
            "max_tokens_per_rank" => self.max_tokens_per_rank = Some(degree()?.into()),
            "sp" => match value {
                "0" | "false" => self.sp = false,
                "1" | "true" => self.sp = true,
                _ => return wrong("0 or 1"),
            },
            "zero" => match value.parse() {
                Ok(level) if level <= 3 => self.zero = level,
                _ => return wrong("0, 1, 2 or 3"),
            },
            "hsdp" => self.hsdp = Some(degree()?),
            "cp_algo" => match CpAlgo::ALL.into_iter().find(|algo| algo.name() == value) {
                Some(algo) => self.cp_algo = algo,
                None => return wrong("ulysses, ring, hybrid or gather"),
            },
            "ulysses" => self.ulysses = Some(degree()?),
            "schedule" => self.schedule = Order::parse(value)?,
            "cap" => self.cap = Some(degree()?),
            "nodes" => self.nodes = Some(positive(key, value, u64::MAX)?),
            "stages" => match Cut::parse(value) {
                Some(cut) => self.stages = cut,
                None => return wrong("auto, or numbers of layers such as 4/5/5/4"),
            },
            "keep" => match Keep::ALL.into_iter().find(|what| what.name() == value) {
                Some(what) => self.keep = what,
                None => return wrong("fewest or inputs"),
            },
            "recompute" => match Recompute::parse(value) {
                Some(what) => self.recompute = what,
                None => return wrong("none, full, or names such as swiglu/rms_norm"),
            },
            "pieces" if value == "auto" => self.pieces = Pieces::Auto,
            "pieces" => self.pieces = Pieces::Number(degree()?),
            "dispatch" => match Dispatch::named(value) {
                Some(way) => self.dispatch = way,
                None => return wrong("flat, hierarchical, node-dedup, rank-dedup or auto"),
            },
            "shares" => match Shares::ALL.into_iter().find(|place| place.name() == value) {
                Some(place) => self.shares = place,
                None => return wrong("after, before or auto"),
            },
            "node" => self.node = Some(degree()?),
            "overlap" => match Passes::parse(value) {
                Some(passes) => self.overlap = passes,
                None => return wrong(&format!("all, none, or some of {}", Pass::ALL.map(Pass::name).join("/"))),
            },
            "swap" => match Swap::parse(value) {
                Some(what) => self.swap = what,
                None => return wrong("none, or names of saved tensors such as attention.o"),
            },
            "master_weights" => match MasterWeights::ALL.into_iter().find(|how| how.name() == value) {
                Some(how) => self.master_weights = how,
                None => return wrong("whole or split"),
            },
            "optimizer" => match OptimizerMemory::ALL.into_iter().find(|memory| memory.name() == value) {
                Some(memory) => self.optimizer = memory,
                None => return wrong("device or host"),
            },
            "moments" => match Moments::ALL.into_iter().find(|kind| kind.name() == value) {
                Some(kind) => self.moments = kind,
                None => return wrong("full or bf16"),
            },
            _ => {
                let near = closest(key, KEYS);
                let help =
                    near.map_or_else(|| format!("keys are {}", KEYS.join(", ")), |k| format!("did you mean `{k}`?"));
                return Err(StrategyError::new(format!("there is no strategy key `{key}`"), help));
            }
        }
        Ok(())
    }

    /// Ranks in all. Saturates.
    pub fn ranks(&self) -> u64 {
        [self.dp, self.cp, self.tp, self.pp].iter().fold(1, |all, &n| u64::saturating_mul(all, n.into()))
    }

    /// `cp` as (ranks round which keys travel, ranks that share heads or gather keys).
    pub(super) fn rings(&self) -> Result<(u32, u32), StrategyError> {
        let cp = self.cp;
        if self.cp_algo != CpAlgo::Hybrid && self.ulysses.is_some() {
            return Err(StrategyError::new(
                "ulysses says how cp_algo = hybrid cuts cp",
                "add cp_algo=hybrid".to_string(),
            ));
        }
        match self.cp_algo {
            CpAlgo::Ulysses | CpAlgo::Gather => Ok((1, cp)),
            CpAlgo::Ring => Ok((cp, 1)),
            CpAlgo::Hybrid => {
                let most = (1..=cp).filter(|n| cp.is_multiple_of(*n) && u64::from(*n) * u64::from(*n) <= u64::from(cp));
                let inner = self.ulysses.unwrap_or_else(|| most.max().unwrap_or(1));
                if !cp.is_multiple_of(inner) {
                    return Err(StrategyError::new(
                        format!("ulysses = {inner} does not divide cp = {cp}"),
                        Some(format!("use ulysses = {}", listed(&divisors(u64::from(cp))))),
                    ));
                }
                Ok((cp / inner, inner))
            }
        }
    }

    /// Ranks of a stage, one after another, among whom parameters are shared: all of them without `hsdp`.
    ///
    /// # Errors
    /// When `hsdp` does not divide `dp`.
    pub(super) fn sharing_block(&self) -> Result<u64, StrategyError> {
        let shards = self.hsdp.unwrap_or(self.dp);
        if !self.dp.is_multiple_of(shards) {
            return Err(StrategyError::new(
                format!("hsdp = {shards} does not divide dp = {}", self.dp),
                Some(format!("use hsdp = {}", listed(&divisors(u64::from(self.dp))))),
            ));
        }
        Ok([shards, self.cp, self.tp].iter().map(|&n| u64::from(n)).product())
    }

    /// Where the ranks of experts (`ep` × `etp` of them) are cut in nodes, if they have to be.
    ///
    /// # Errors
    /// When exchanges are to be decomposed, but nobody says how large a node is, or there is only one. Where the way is still to be found, that is no mistake.
    pub(super) fn node_of_experts(&self, experts: u64) -> Result<Option<u64>, StrategyError> {
        // Ranks are what they are, however many a node has.
        if matches!(self.dispatch, Dispatch::Flat | Dispatch::RankDedup) {
            return Ok(None);
        }
        let Some(node) = self.node.map(u64::from) else {
            return Err(StrategyError::new(
                format!("dispatch = {} needs to know how many ranks a node has", self.dispatch),
                Some("add node=8, or as many as it has".to_string()),
            ));
        };
        let is_open = self.dispatch == Dispatch::Auto;
        let refused = |why: String| {
            if is_open {
                return Ok(None);
            }
            let help = "leave `dispatch` out: rows go to all ranks alike".to_string();
            Err(StrategyError::new(format!("dispatch = {} with node = {node}: {why}", self.dispatch), Some(help)))
        };
        if node >= experts {
            return refused(format!("all {experts} ranks of an expert group (ep × etp) are on one node"));
        }
        if node <= u64::from(self.etp) {
            return refused(format!("no two ranks of ep = {} are on one node", self.ep));
        }
        Ok(Some(node))
    }

    /// Can parameters be kept so, with programs that read `narrow`?
    ///
    /// # Errors
    /// When there are no copies beside them.
    pub fn check_master_weights(&self, narrow: DType) -> Result<(), StrategyError> {
        let refused = |why: &str, help: &str| {
            Err(StrategyError::new(format!("master_weights = split: {why}"), Some(help.to_string())))
        };
        match self.master_weights {
            MasterWeights::Whole => Ok(()),
            MasterWeights::Split if narrow != DType::BF16 => refused(
                &format!("in {narrow} there are no copies in bf16 that have a half of them"),
                "add --dtype bf16, or leave it out",
            ),
            MasterWeights::Split if self.zero == 3 => refused(
                "with zero = 3 copies are gathered for each use and not kept, so there is nothing to save",
                "use zero=2, or leave it out",
            ),
            MasterWeights::Split if self.moments != Moments::Full => refused(
                "it has a bit in the second moment's sign, which moments = bf16 would round with it",
                "leave one of the two out",
            ),
            MasterWeights::Split => Ok(()),
        }
    }

    /// The mesh of its ranks.
    ///
    /// # Errors
    /// When the two foldings do not fit each other.
    pub fn mesh(&self) -> Result<Mesh, StrategyError> {
        Mesh::new(self)
    }
}

/// A number from 1 to the most that its type holds.
fn positive<N: FromStr + PartialOrd + From<u8> + fmt::Display>(
    key: &str,
    value: &str,
    most: N,
) -> Result<N, StrategyError> {
    match value.parse::<N>() {
        Ok(n) if n >= N::from(1) => Ok(n),
        // (All digits: too many of them.)
        Err(_) if !value.is_empty() && value.bytes().all(|b| b.is_ascii_digit()) => {
            Err(StrategyError::new(format!("`{key}` is at most {most}, not `{value}`"), None))
        }
        _ => Err(StrategyError::new(format!("`{key}` is a number of at least 1, not `{value}`"), None)),
    }
}

/// `dp=2,tp=2`: the keys that are not the default.
impl fmt::Display for Strategy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let default = Strategy::default();
        let mut parts = vec![];
        let degrees = [
            ("dp", self.dp, default.dp),
            ("cp", self.cp, default.cp),
            ("tp", self.tp, default.tp),
            ("pp", self.pp, default.pp),
            ("vpp", self.vpp, default.vpp),
            ("ep", self.ep, default.ep),
            ("etp", self.etp, default.etp),
            ("zero", self.zero, default.zero),
        ];
        parts.extend(degrees.iter().filter(|(_, n, usual)| n != usual).map(|(key, n, _)| format!("{key}={n}")));
        parts.extend(self.hsdp.map(|n| format!("hsdp={n}")));
        let usual = self.etp_gather == default.etp_gather;
        parts.extend((!usual).then(|| format!("etp_gather={}", self.etp_gather.name())));
        parts.extend((!self.sp && self.tp > 1).then(|| "sp=0".to_string()));
        let usual = self.cp == 1 || self.cp_algo == default.cp_algo;
        parts.extend((!usual).then(|| format!("cp_algo={}", self.cp_algo.name())));
        parts.extend(self.ulysses.map(|n| format!("ulysses={n}")));
        parts.extend(self.micro.map(|n| format!("micro={n}")));
        parts.extend(self.mbs.map(|n| format!("mbs={n}")));
        let usual = self.schedule == default.schedule;
        parts.extend((!usual).then(|| format!("schedule={}", self.schedule)));
        parts.extend(self.cap.map(|n| format!("cap={n}")));
        parts.extend(self.nodes.map(|n| format!("nodes={n}")));
        parts.extend((self.keep != default.keep).then(|| format!("keep={}", self.keep)));
        parts.extend((self.recompute != Recompute::Nothing).then(|| format!("recompute={}", self.recompute)));
        parts.extend((self.pieces != default.pieces).then(|| format!("pieces={}", self.pieces)));
        parts.extend((self.dispatch != default.dispatch).then(|| format!("dispatch={}", self.dispatch)));
        parts.extend((self.shares != default.shares).then(|| format!("shares={}", self.shares)));
        parts.extend(self.node.map(|n| format!("node={n}")));
        parts.extend(self.overlap.is_named().then(|| format!("overlap={}", self.overlap)));
        parts.extend((self.swap != Swap::default()).then(|| format!("swap={}", self.swap)));
        let usual = self.master_weights == default.master_weights;
        parts.extend((!usual).then(|| format!("master_weights={}", self.master_weights.name())));
        let usual = self.optimizer == default.optimizer;
        parts.extend((!usual).then(|| format!("optimizer={}", self.optimizer.name())));
        let usual = self.moments == default.moments;
        parts.extend((!usual).then(|| format!("moments={}", self.moments.name())));
        parts.extend(self.max_tokens_per_rank.map(|n| format!("max_tokens_per_rank={n}")));
        parts.extend((self.stages != Cut::Even).then(|| format!("stages={}", self.stages)));
        f.write_str(if parts.is_empty() { "dp=1".to_string() } else { parts.join(",") }.as_str())
    }
}
