//! Framework profiles: what a training system does differently from our plan, in switches that its documentation states, and at most three fitted numbers.

use crate::matches::{About, position, unknown_release};
use crate::recorded::{Graphs, RECORDED};
use forebay_compiler::autodiff::Keep;
use forebay_cost::{Cluster, Generation, Scaling};
use serde::{Deserialize, Serialize};

/// A training system, of some release.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub struct Framework {
    /// What people call it.
    pub name: String,
    /// It is meant when one of these is so of a run ([`crate::matches`]); of `a & b` both must.
    pub matches: Vec<String>,
    /// Does automatic differentiation of single ops keep what each product reads, and elementwise work is fused (Transformer Engine, Triton)? Its plans are
    /// made with `keep=inputs`; compilers that cut joint graphs make it again.
    pub keeps_inputs: bool,
    /// Do products add gradients of weights up themselves, with one unused result for each shape that is kept (Transformer Engine)?
    pub adds_in_products: bool,
    /// Are experts' rows multiplied by their weights before they are sent back, so that what comes back is not kept (Megatron-Core 0.12 and later)?
    pub weighs_first: bool,
    /// Do names of its functions hold arrays that nothing needs any more: experts' rows as they were sent and as they came until the layer returns, and what went to the other stage
    /// until the next micro-batch's does (Megatron-Core, `moe_layer.py` and `schedules.py`)?
    pub holds_sent: bool,
    /// GB that libraries and the allocator hold beside tensors: workspaces of products, pages that are not full. None is fitted where the row's peak
    /// is that of what was allocated.
    pub reserved_gb: f64,
    /// Does it run kernels on the plan's streams? If not, one after another.
    pub streams: bool,
    /// Which attention kernels it has: `unfused`, `flash1`, `flash2`, `newest`.
    pub attention: AttentionName,
    /// Do attention kernels multiply in fp8 where products do?
    pub attention_fp8: bool,
    /// Does memory come from a caching allocator beside the libraries' workspaces, with tensors of their own for what our plan fuses (PyTorch)?
    pub caching_allocator: bool,
    /// Bytes that each parameter's gradient takes beside the sum in f32, in the parameter's type, until it is added to it: as it comes, or in buckets
    /// (PyTorch's `DistributedDataParallel`).
    pub half_gradient_bytes: f64,
    /// Are what it calls GB of memory GiB? Predictions for its runs are then in these.
    pub counts_gib: bool,
    /// Is the memory that its runs tell of that of rank 0, so of the first stage? Otherwise it is taken for that of the fullest.
    pub tells_first_stage: bool,
    /// Is it what is allocated (`max_memory_allocated`), not what is reserved? What has to fit is what is reserved.
    pub tells_allocated: bool,
    /// What the allocator reserves for a step beyond what our plan keeps, as a part of it: temporaries, pieces that nothing fits. Fitted to peak memory.
    pub slack: f64,
    /// Is what tensor-parallel products gather free only when the host sees that its stream is done with it? There is the more of it the further the host is ahead.
    pub frees_gathered_late: bool,
    /// Do the allocator's segments keep their sizes (no `expandable_segments`)? Where a stage needs more than nine tenths of the memory it then gives back what is free and gets it again, for each
    /// micro-batch. Of no effect without a caching allocator.
    pub fixed_segments: bool,
    /// Do its runs name flash attention among their options when they use it? If so, one that does not has its scores in memory.
    pub flash_is_stated: bool,
    /// The stage of ZeRO of a run that says nothing of it.
    pub zero: u32,
    /// The highest stage of ZeRO that its users may have switched on.
    pub most_zero: u32,
    /// Do tensor-parallel ranks share activations between products along the sequence in a run that says nothing of it?
    pub sequence_parallel: bool,
    /// Are gradients summed while the last micro-batch goes backward?
    pub overlap_gradients: bool,
    /// Are parameters gathered while the next step's first micro-batch goes forward?
    pub overlap_parameters: bool,
    /// Are a layer's parameters gathered (and its gradients summed) while its neighbours compute (FSDP)?
    pub prefetch: bool,
    /// Are parameters that ranks share whole on each while a pipeline runs: gathered before a step's first micro-batch, their gradients summed behind the last (PyTorch's FSDP beneath pipeline
    /// stages, `reshard_after_forward` as torchtitan has it by default)?
    pub gathers_once: bool,
    /// Bytes of a gradient element when it is summed over ranks.
    pub gradient_bytes: f64,
    /// Bytes that a logit takes more than in our plan where the loss is computed on copies in f32: the copy, log-probabilities, their gradient. Fitted to peak memory.
    pub loss_bytes: f64,
    /// In how many parts of a micro-batch's tokens logits and their gradients are made, so that one part of them is there at a time; 1: all at once.
    pub loss_chunks: f64,
    /// How often a rank's own gradients are gone through once in a step (read, or written): zeros that begin their sums, a norm that shows what is no number.
    pub gradient_passes: f64,
    /// The same where there are other data-parallel ranks: gradients are divided by their number before they are summed.
    pub divide_passes: f64,
    /// Bytes of traffic for each element that a rank updates, in f32, where clipping is a pass of its own (ours is part of the update).
    pub clip_traffic: f64,
    /// MB, in half precision, of gradients that are summed together, and of parameters that are gathered: each such bucket pays the latency of its collective. 0: all at once.
    pub bucket_mb: f64,
    /// Are layers shared out over stages by their work, embedding and head counted, rather than by number?
    pub balances_head: bool,
    /// Do routers choose experts where nobody says what does? (Benchmarks of Megatron-Core and its kin mostly force them to balance.)
    pub real_routing: bool,
    /// May its pipelines be interleaved where nobody says in how many parts stages are (its usual schedule, not one that has to be named)?
    pub interleaves: bool,
    /// The part of tensor-parallel communication that is cut up and hidden behind products.
    pub hidden_tp: f64,
    /// Do its recipes for dense models cut products up so that tensor-parallel communication runs beside them (user buffers)?
    pub cuts_up_dense: bool,
    /// The part of context-parallel communication that is hidden behind attention (rings: arXiv 2310.01889).
    pub hidden_cp: f64,
    /// Do context-parallel ranks have neighbouring positions, so that the last attends to nearly all keys and the first to few? (Else they have positions from both ends.)
    pub uneven_context: bool,
    /// Bytes of traffic for each element of a weight's gradient in each micro-batch, where kernels of their own add it up (bf16 read, f32 read
    /// and written: 10); 0 where the product adds.
    pub accumulate_bytes: f64,
    /// Bytes of traffic for each logit that the loss takes where it is no kernel of its own: copies in f32, maxima, exponentials, sums, quotients, and their gradients. 0: that of our plan.
    pub loss_traffic: f64,
    /// Bytes of traffic for each element of the left input of a product in fp8 ([`forebay_cost::Scaling`]).
    pub cast_bytes: f64,
    /// Do kernels before products of experts write their inputs in fp8?
    pub scales_experts_before: bool,
    /// The part of the rate of products in fp8 that is left where rows have scales of their own.
    pub scaled_rate: f64,
    /// `product_depth` of grouped products of experts; 0: that of the device.
    pub expert_depth: f64,
    /// Are activations gathered over tensor-parallel ranks in fp8, where products are?
    pub gathers_fp8: bool,
    /// GB/s at which the hosts of a node go through what AdamW reads and writes, where it runs there and its state is in their memory (ZeRO-Offload, arXiv 2101.06840); 0: devices do.
    pub host_optimizer_gbps: f64,
    /// µs of the host to start a kernel of one expert, where products of experts and what adds their biases are started one by one; 0 where one kernel does all.
    pub expert_us: f64,
    /// Are limits of what activations of experts read, and their gradients, kernels of their own?
    pub limits_apart: bool,
    /// The part of expert communication that is hidden behind other work.
    pub hidden_ep: f64,
    /// Where do its recipes pair micro-batches, so that expert communication of one runs beside the other's work?
    pub pairs: Pairs,
    /// Does a token go once to each rank of its node, and once to each other node, however many of its experts are there (DeepEP, HybridEP; arXiv 2412.19437, section 3.2.2)?
    pub deduplicates: bool,
    /// Are rows on their way to experts in fp8, with a scale for each 128 elements (the same, section 3.3.3)? They come back in half precision.
    pub dispatch_fp8: bool,
    /// How many nodes a token's experts are on at most (the same, section 2.1.2); any where it is 0.
    pub node_limit: u32,
    /// Do tensor-parallel ranks share the width of experts where a run does not say how many do (`etp`)?
    pub cuts_experts: bool,
    /// Rows that each expert has room for in a run that says nothing of it, as a multiple of those of an even routing, all of which are computed and exchanged, used or not; 0: as many as come.
    pub capacity: f64,
    /// Does the host wait for the number of rows of each expert?
    pub experts_wait: bool,
    /// Does the host wait for each message from another stage (metadata that is read before tensors, or a device that is synchronized)?
    pub receive_waits: bool,
    /// Do collectives hold the host, beside the device's work? Those of tensor-parallel ranks while small arrays go round their ring; those at the end of a step for a step inside of nodes
    /// for each of their ranks.
    pub collective_holds: bool,
    /// MiB of gradients, in half precision, that a call sums where all ranks have the sum (without ZeRO) and calls hold the host: `bucket_cap_mb` of PyTorch's `DistributedDataParallel`. 0: all.
    pub call_mib: f64,
    /// What is started from recorded graphs, without the host: `nothing`, `routers`, `attention`, `whole`.
    pub graphs: Graphs,
    /// Fitted: host time for each instruction of our plan, µs. A framework starts several kernels for one that our plan fuses.
    pub dispatch_us: f64,
    /// Fitted: memory passes of elementwise work, as a multiple of our fused plan's.
    pub vector_passes: f64,
    /// Fitted: host time for each collective of tensor-parallel ranks beside that of a kernel (streams, events, views), µs.
    pub collective_us: f64,
}

/// [`Generation`] in TOML.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum AttentionName {
    /// Scores in memory.
    Unfused,
    /// FlashAttention.
    Flash1,
    /// FlashAttention-2.
    Flash2,
    /// The device's newest.
    Newest,
}

/// Where micro-batches are paired in a run that says nothing of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Pairs {
    /// Nowhere.
    Never,
    /// In interleaved pipelines.
    Interleaved,
    /// In whatever pipeline, and without one.
    Always,
}

impl From<AttentionName> for Generation {
    fn from(name: AttentionName) -> Generation {
        match name {
            AttentionName::Unfused => Generation::Unfused,
            AttentionName::Flash1 => Generation::Flash1,
            AttentionName::Flash2 => Generation::Flash2,
            AttentionName::Newest => Generation::Newest,
        }
    }
}

impl Framework {
    /// What is saved of forward passes.
    pub fn keep(&self) -> Keep {
        if self.keeps_inputs { Keep::Inputs } else { Keep::Fewest }
    }

    /// Bytes of what it calls a GB.
    pub fn gb(&self) -> f64 {
        if self.counts_gib { (1u64 << 30) as f64 } else { 1e9 }
    }

    /// A plan of ours on a measured machine: kernels of a rank run one after another, and the time between them is that of the file.
    pub fn on_machine() -> Framework {
        Framework { name: "plan on this machine".into(), streams: false, dispatch_us: 0.0, ..Framework::default() }
    }

    /// Stages of ZeRO that its users may have switched on where it shares nothing unasked, the least first.
    pub fn stages_of_sharing(&self) -> std::ops::RangeInclusive<u32> {
        // (What has more than a distributed optimizer shares gradients first.)
        self.most_zero.min(2)..=self.most_zero
    }

    /// Is it our own plan as it stands, by whatever numbers?
    pub fn is_ours(&self) -> bool {
        self.name == Framework::default().name
    }

    /// Do experts compute and exchange all rows that they have room for?
    pub fn fills_up(&self) -> bool {
        self.capacity > 0.0
    }

    /// It on a cluster: beside the numbers of a machine that was measured nothing comes to our own plan.
    #[must_use]
    pub fn on(self, cluster: &Cluster) -> Framework {
        if self.is_ours() && cluster.measured.is_some() { Framework::on_machine() } else { self }
    }

    /// What is different in another profile, as it stands there: `hidden_ep = 0.6`.
    pub fn changed_in(&self, other: &Framework) -> Vec<String> {
        let keys = |of: &Framework| {
            serde_json::to_value(of).ok().and_then(|value| value.as_object().cloned()).unwrap_or_default()
        };
        let before = keys(self);
        let changed = keys(other).into_iter().filter(|(key, value)| before.get(key) != Some(value));
        changed.map(|(key, value)| format!("{key} = {}", value.to_string().trim_matches('"'))).collect()
    }

    /// Numbers that can be.
    ///
    /// # Errors
    /// A key whose number cannot: a sentence.
    fn checked(self) -> Result<Framework, String> {
        let wrong = |key: &str, what: &str| Err(format!("`{key}` of `{}` is {what}", self.name));
        let shares = [
            ("hidden_tp", self.hidden_tp),
            ("hidden_cp", self.hidden_cp),
            ("hidden_ep", self.hidden_ep),
            ("scaled_rate", self.scaled_rate),
        ];
        if let Some((key, _)) = shares.iter().find(|(_, share)| !(0.0..=1.0).contains(share)) {
            return wrong(key, "a number from 0 to 1");
        }
        if !(1.0..=MOST).contains(&self.loss_chunks) {
            return wrong("loss_chunks", "a number of parts, from 1");
        }
        let numbers = [
            ("dispatch_us", self.dispatch_us),
            ("vector_passes", self.vector_passes),
            ("expert_depth", self.expert_depth),
            ("capacity", self.capacity),
            ("collective_us", self.collective_us),
            ("expert_us", self.expert_us),
            ("host_optimizer_gbps", self.host_optimizer_gbps),
            ("gradient_bytes", self.gradient_bytes),
            ("gradient_passes", self.gradient_passes),
            ("divide_passes", self.divide_passes),
            ("clip_traffic", self.clip_traffic),
            ("bucket_mb", self.bucket_mb),
            ("accumulate_bytes", self.accumulate_bytes),
            ("loss_traffic", self.loss_traffic),
            ("cast_bytes", self.cast_bytes),
            ("slack", self.slack),
            ("reserved_gb", self.reserved_gb),
        ];
        if let Some((key, _)) = numbers.iter().find(|(_, number)| !(0.0..=MOST).contains(number)) {
            return wrong(key, "a number from 0 to 1e6");
        }
        if let Some((key, _)) = [("zero", self.zero), ("most_zero", self.most_zero)].iter().find(|(_, n)| *n > 3) {
            return wrong(key, "0 to 3");
        }
        if let Some(part) = self.matches.iter().find_map(|parts| unknown_release(parts)) {
            return Err(format!("`{part}` of `{}` is no release: a year and a month, like `from 26.02`", self.name));
        }
        Ok(self)
    }

    /// The profile for models of a kind: recipes for dense ones may cut products up.
    #[must_use]
    pub fn for_models(mut self, dense: bool) -> Framework {
        if self.cuts_up_dense && dense {
            self.cut_up();
        }
        self
    }

    /// Micro-batches are paired, so that expert communication of one runs beside the other's work.
    pub(crate) fn pair(&mut self) {
        self.hidden_ep = self.hidden_ep.max(if self.deduplicates { PAIRED } else { PAIRED_NCCL });
    }

    /// Does it pair micro-batches unasked, with so many chunks of a stage?
    pub(crate) fn pairs_with(&self, chunks: u64) -> bool {
        match self.pairs {
            Pairs::Never => false,
            Pairs::Interleaved => chunks > 1,
            Pairs::Always => true,
        }
    }

    /// The profile as it runs a mixture with so many chunks of a stage where nobody says otherwise.
    #[must_use]
    pub fn for_chunks(mut self, chunks: u64) -> Framework {
        if self.pairs_with(chunks) {
            self.pair();
        }
        self
    }

    /// Products are cut up so that tensor-parallel communication runs beside them.
    pub(crate) fn cut_up(&mut self) {
        self.hidden_tp = self.hidden_tp.max(CUT_UP);
    }

    /// How inputs of products come to fp8, and what its kernels lose in a tile.
    pub fn scaling(&self, of_experts: bool) -> Scaling {
        let before = of_experts && self.scales_experts_before;
        let depth = Some(self.expert_depth).filter(|depth| of_experts && *depth > 0.0);
        Scaling { bytes: if before { 0.0 } else { self.cast_bytes }, rate: self.scaled_rate, depth }
    }

    /// Seconds of the host for a launch. A recorded step is started by a fraction of the work.
    pub fn launch_s(&self) -> f64 {
        if self.graphs == Graphs::Whole { RECORDED * self.dispatch_us * 1e-6 } else { self.dispatch_us * 1e-6 }
    }
}

/// Our own plan, run as it stands: kernels that are launched ahead, collectives that wait.
impl Default for Framework {
    fn default() -> Framework {
        Framework {
            name: "plan".into(),
            matches: vec![],
            keeps_inputs: false,
            adds_in_products: false,
            weighs_first: false,
            holds_sent: false,
            reserved_gb: 0.7,
            streams: true,
            attention: AttentionName::Newest,
            attention_fp8: false,
            caching_allocator: false,
            half_gradient_bytes: 0.0,
            counts_gib: false,
            tells_first_stage: false,
            tells_allocated: false,
            slack: 0.0,
            frees_gathered_late: false,
            fixed_segments: false,
            flash_is_stated: false,
            zero: 0,
            most_zero: 3,
            sequence_parallel: true,
            overlap_gradients: false,
            overlap_parameters: false,
            prefetch: false,
            gathers_once: false,
            gradient_bytes: 4.0,
            loss_bytes: 0.0,
            loss_chunks: 1.0,
            gradient_passes: 0.0,
            divide_passes: 0.0,
            clip_traffic: 0.0,
            bucket_mb: 0.0,
            balances_head: false,
            real_routing: false,
            interleaves: true,
            hidden_tp: 0.0,
            cuts_up_dense: false,
            hidden_cp: 0.0,
            uneven_context: false,
            accumulate_bytes: 0.0,
            loss_traffic: 0.0,
            cast_bytes: Scaling::default().bytes,
            scaled_rate: Scaling::default().rate,
            expert_depth: 0.0,
            scales_experts_before: false,
            gathers_fp8: false,
            host_optimizer_gbps: 0.0,
            expert_us: 0.0,
            limits_apart: false,
            hidden_ep: 0.0,
            pairs: Pairs::Never,
            deduplicates: false,
            dispatch_fp8: false,
            node_limit: 0,
            cuts_experts: false,
            capacity: 0.0,
            experts_wait: false,
            receive_waits: false,
            collective_holds: false,
            call_mib: 0.0,
            graphs: Graphs::Nothing,
            dispatch_us: 5.0,
            vector_passes: 1.0,
            collective_us: 0.0,
        }
    }
}

/// The largest number of a profile that makes any sense.
const MOST: f64 = 1e6;

/// The part of expert communication that is hidden when forward and backward passes of two micro-batches are paired: an assumption.
pub(crate) const PAIRED: f64 = 0.6;

/// The same where NCCL exchanges rows, whose kernels take cores from the work beside them: what makes a published pair of runs (Qwen3-30B-A3B on 16 H100, 41.25 and 31.31 s) differ as it does.
pub(crate) const PAIRED_NCCL: f64 = 0.48;

/// The part of tensor-parallel communication that is hidden when products are cut up to run beside it (arXiv 2305.06942, user buffers, MC2): an assumption.
const CUT_UP: f64 = 0.75;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Table {
    #[serde(default)]
    framework: Vec<toml::Table>,
}

/// The profiles that come with the program.
pub fn known() -> Vec<Framework> {
    parse(BUILT_IN).expect("the table is part of the program")
}

/// Their table.
const BUILT_IN: &str = include_str!("../frameworks.toml");

/// The first profile that is meant by a text; our plan as it stands when none is.
pub fn find(known: &[Framework], text: &str) -> Framework {
    position(known, &About::of(text)).map_or_else(Framework::default, |f| known[f].clone())
}

/// Profiles from a TOML table of `[[framework]]`. One that is `like` another has whatever it does not say itself from there.
///
/// # Errors
/// Text that is no such table; `like` what is not there, or is in the end like itself.
pub fn parse(text: &str) -> Result<Vec<Framework>, String> {
    resolved(&read(text)?)
}

/// The profiles that come with the program, with what a table of a user's says: of one that is named as one of them, or as one before it, what it says counts in place of what was said;
/// others come before all of them.
///
/// # Errors
/// As [`parse`].
pub fn known_with(text: &str) -> Result<Vec<Framework>, String> {
    let mut all = read(BUILT_IN)?;
    let mut others: Vec<toml::Table> = vec![];
    for mut own in read(text)? {
        match all.iter_mut().chain(&mut others).find(|profile| profile.get(NAME) == own.get(NAME)) {
            Some(profile) => profile.extend(own),
            None => {
                if !own.contains_key("matches") {
                    let name = own.get(NAME).and_then(toml::Value::as_str).unwrap_or_default();
                    return Err(format!(
                        "`{name}` has no `matches`, so that no run can mean it, and is none that is built in"
                    ));
                }
                // What is not said is as of systems that nothing is known of, and not as of our plan.
                own.entry(LIKE).or_insert_with(|| "eager".into());
                others.push(own);
            }
        }
    }
    others.extend(all);
    resolved(&others)
}

/// The fitted numbers of profiles, as [`known_with`] reads them.
pub fn fitted_numbers(frameworks: &[Framework]) -> String {
    let of = |f: &Framework| {
        let Framework { name, dispatch_us, vector_passes, collective_us, .. } = f;
        format!(
            "\n[[framework]]\nname = {name:?}\ndispatch_us = {dispatch_us:.4}\nvector_passes = {vector_passes:.4}\ncollective_us = {collective_us:.4}\n"
        )
    };
    frameworks.iter().map(of).collect()
}

fn read(text: &str) -> Result<Vec<toml::Table>, String> {
    Ok(toml::from_str::<Table>(text).map_err(|error| error.to_string())?.framework)
}

fn resolved(profiles: &[toml::Table]) -> Result<Vec<Framework>, String> {
    let of = |own: &toml::Table| -> Result<Framework, String> {
        let mut all = own.clone();
        // As many steps as there are profiles come back to where they began.
        for _ in 0..profiles.len() {
            let Some(name) = all.remove(LIKE) else { break };
            let other = profiles.iter().find(|other| other.get(NAME) == Some(&name));
            let other = other.ok_or_else(|| {
                let names: Vec<&str> = profiles.iter().filter_map(|p| p.get(NAME)?.as_str()).collect();
                format!("`{LIKE}` names {}, which is no profile: there are {}", shown(&name), names.join(", "))
            })?;
            other.iter().for_each(|(key, value)| {
                all.entry(key).or_insert_with(|| value.clone());
            });
        }
        match all.get(LIKE) {
            Some(name) => Err(format!("what is `{LIKE}` {} is in the end like itself", shown(name))),
            None if !own.contains_key(NAME) => Err(format!("a profile has no `{NAME}`")),
            None => {
                let framework: Framework = all.try_into().map_err(|error: toml::de::Error| error.to_string())?;
                framework.checked()
            }
        }
    };
    profiles.iter().map(of).collect()
}

/// A value as it stands in a file.
fn shown(name: &toml::Value) -> String {
    name.as_str().map_or_else(|| format!("{name:?}"), |name| format!("`{name}`"))
}

/// The key that names a profile.
const NAME: &str = "name";

/// The key that names the profile which another is like.
const LIKE: &str = "like";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn profiles_are_found_by_what_runs_say() {
        let known = known();
        assert_eq!(find(&known, "HF nanotron ultra-scale benchmark").name, "nanotron");
        assert_eq!(
            find(&known, "Forebay, our own plan"),
            Framework { matches: vec!["Forebay".into()], ..Framework::default() }
        );
        // Of systems that nobody knows it is known that most are eager; what their sources name goes before what their notes do.
        assert_eq!(["a system", ""].map(|text| find(&known, text).name), ["eager", "eager"]);
        assert_eq!(find(&known, "NeMo AutoModel; torch.compile").name, "megatron-core");
        assert_eq!(find(&known, "a system; torch.compile").name, "pytorch-compile");
        assert_eq!(find(&known, "a system; torch.compile=False").name, "eager");
        let compiled = ["a system; compile_model=true", "a system; Compiler Thunder", "a system; nvFuser"];
        assert_eq!(compiled.map(|text| find(&known, text).name), ["pytorch-compile"; 3]);
        assert_eq!(find(&known, "an extension of Thunder; Eager").name, "eager");
        // The same library, by its own script, by recipes, and by recipes whose experts have as many rows in every step.
        let of = |text: &str| find(&known, text);
        let [script, recipe] = [of("MoE Parallel Folding (2504.14960); token-drop"), of("Megatron-Bridge; dropless")];
        assert_eq!((script.gradient_bytes, script.graphs), (4.0, Graphs::Nothing));
        assert_eq!((recipe.gradient_bytes, recipe.graphs), (2.0, Graphs::Nothing));
        let whole = of("Megatron-Bridge; router force-balanced, token-drop");
        assert!(whole.graphs == Graphs::Whole && whole.dispatch_us == recipe.dispatch_us);
        assert_eq!(of("Megatron-Bridge; token-drop; cuda_graph_impl=\"transformer_engine\"").name, "megatron-graphs");
        // Who pairs micro-batches, and where.
        let hidden = |pairs, chunks| Framework { pairs, ..Framework::default() }.for_chunks(chunks).hidden_ep;
        assert_eq!([hidden(Pairs::Never, 2), hidden(Pairs::Interleaved, 1)], [0.0; 2]);
        assert_eq!([hidden(Pairs::Interleaved, 2), hidden(Pairs::Always, 1)], [PAIRED_NCCL; 2]);
        // What it says itself counts, and nothing of the other's name.
        assert!(
            !whole.matches.contains(&"NeMo".to_string()) && recipe.experts_wait && !of("TE CUDA graph").experts_wait
        );
        assert!(parse("[[framework]]\nname = \"a\"\nlike = \"b\"").is_err());
        assert!(parse("[[framework]]\nname = \"a\"\nlike = \"a\"").is_err());
        // A user's table changes those that are built in, and adds others before them.
        let own = "[[framework]]\nname = \"nanotron\"\nvector_passes = 2.5\n[[framework]]\nname = \"ours\"\nmatches = [\"Our trainer\"]\nlike = \"nanotron\"\nzero = 1\n";
        let with = known_with(own).expect("a table");
        let (changed, ours) = (find(&with, "HF nanotron"), find(&with, "Our trainer, as nanotron"));
        assert_eq!((changed.vector_passes, changed.dispatch_us), (2.5, find(&known, "nanotron").dispatch_us));
        assert_eq!((ours.name.as_str(), ours.vector_passes, ours.zero), ("ours", 2.5, 1));
        assert_eq!(known_with(&fitted_numbers(&with[1..])).expect("a table"), with[1..]);
        for wrong in [
            "name = \"nanotron\"\npasses = 1",
            "name = \"ours\"",
            "name = \"nanotron\"\nvector_passes = nan",
            "name = \"nanotron\"\nzero = 9",
            "name = \"nanotron\"\nloss_chunks = 0",
            "name = \"nanotron\"\nloss_chunks = nan",
        ] {
            assert!(known_with(&format!("[[framework]]\n{wrong}\n")).is_err(), "{wrong}");
        }
        // What a new one does not say is as of unknown systems.
        let new = known_with("[[framework]]\nname = \"ours \\\"2\\\"\"\nmatches = [\"Our trainer\"]\nzero = 2\n")
            .expect("a table");
        let (ours, eager) = (find(&new, "Our trainer"), find(&known, ""));
        assert_eq!((ours.zero, ours.streams, ours.vector_passes), (2, eager.streams, eager.vector_passes));
        assert!(parse(&fitted_numbers(&new)).is_ok());
        assert_eq!(known_with("").expect("nothing"), known);
        let names: std::collections::BTreeSet<&str> = known.iter().map(|f| f.name.as_str()).collect();
        assert_eq!(names.len(), known.len(), "each profile has a name of its own");
    }
}
