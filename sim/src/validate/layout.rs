//! The strategy of a measured run, and what its row says of recomputation, routing and the network.

use super::runs::Run;
use super::shape::Shape;
use crate::framework::{AttentionName, Framework};
use crate::kind::{ByKind, Kind};
use crate::lower::Recompute;
use forebay_compiler::overlap::Passes;
use forebay_compiler::shard::{CpAlgo, Cut, EtpGather, Strategy};
use forebay_cost::cluster::{Count, NonNegative, Positive};
use forebay_cost::{Cluster, Precision};

/// Rows of the busiest rank where nothing says that routers are forced to balance, as a multiple of the mean: an assumption.
const UNKNOWN_ROUTING: f64 = 1.2;
/// The same where a run says that routing is real: what makes pairs of published runs with real and with forced routing differ as they do (docs/cost-model.md).
const REAL_ROUTING: f64 = 1.5;

/// The strategy.
///
/// # Errors
/// What is missing or does not fit: a sentence.
pub fn strategy(run: &Run, shape: &Shape, framework: &Framework) -> Result<Strategy, String> {
    let degree = |name: &str| u32::try_from(run.degree(name)).map_err(|_| format!("`{name}` is too large"));
    let (tp, pp, cp, vpp) = (degree("tp")?, degree("pp")?, degree("cp")?, degree("vpp")?);
    let ep = degree("ep")?;
    let devices = degree("n_devices")?;
    let model = tp.checked_mul(pp).and_then(|n| n.checked_mul(cp)).ok_or("the degrees are too large")?;
    let dp = match run.number("dp") {
        Some(dp) => dp.max(1) as u32,
        None => devices / model,
    };
    if u64::from(dp) * u64::from(model) != u64::from(devices) {
        return Err(format!("dp {dp} × tp {tp} × pp {pp} × cp {cp} are not its {devices} devices"));
    }
    // What is not said is as the framework has it, where that many ranks can share experts.
    let cut = framework.cuts_experts && u64::from(dp * cp).is_multiple_of(u64::from(ep));
    let unstated = if cut { u64::from(tp) } else { 1 };
    let etp =
        if shape.experts() > 0 { run.number("etp").unwrap_or(unstated).max(1).min(u64::from(tp)) as u32 } else { 1 };
    let batch = run.degree("gbs");
    let mbs = run.number("mbs").map_or(1, |n| n.max(1));
    let micro = batch / (u64::from(dp) * mbs).max(1);
    if micro == 0 || micro * u64::from(dp) * mbs != batch {
        return Err(format!("a batch of {batch} rows is not dp {dp} × whole micro-batches of {mbs} rows"));
    }
    let tokens = mbs * shape.seq() / u64::from(cp * tp).max(1);
    let rows = tokens as f64 * shape.topk() as f64 * f64::from(etp);
    Ok(Strategy {
        dp,
        tp,
        sp: sequence_parallel(run),
        ep,
        etp,
        // As Megatron-Core's dispatcher does.
        etp_gather: if ep > 1 && etp > 1 { EtpGather::After } else { EtpGather::Before },
        cp,
        // Sharing heads does the same work in even parts as balanced rings do, and profiles say how much of their communication is hidden.
        cp_algo: CpAlgo::Ulysses,
        pp,
        vpp: if pp > 1 { vpp } else { 1 },
        micro: Some(u32::try_from(micro).map_err(|_| "there are too many micro-batches")?),
        mbs: Some(u32::try_from(mbs).map_err(|_| "`mbs` is too large")?),
        zero: zero(run),
        keep: framework.keep(),
        stages: (if let Some(stated) = stated_stages(run, shape.layers(), u64::from(pp), vpp) {
            Some(stated)
        } else if framework.balances_head && pp > 1 && vpp == 1 {
            stages_by_work(shape.layers(), u64::from(pp), shape.head_in_layers())
        } else {
            stages(shape.layers(), u64::from(pp) * if pp > 1 { u64::from(vpp) } else { 1 }, shape.tail_in_layers())
        })
        .map_or(Cut::Even, Cut::Given),
        max_tokens_per_rank: (shape.experts() > 0 && ep > 1).then_some((rows * imbalance(run)).ceil() as u64),
        // What overlaps is said by the framework's profile, not by our passes.
        overlap: Passes::none(),
        ..Strategy::default()
    })
}

/// The row with its blanks of `mbs` and `vpp` filled in the ways that runs mostly have them: micro-batches of 1, 2, 4 or 8 rows; with interleaved schedules
/// chunks of as few layers as divide, of twice and four times as many. The row as it stands is the first.
pub fn filled(run: &Run, shape: &Shape) -> Vec<Run> {
    let pp = run.degree("pp");
    let of = |name: &str, blank: bool, values: &[u64]| if blank { values.to_vec() } else { vec![run.degree(name)] };
    let rows = of("mbs", run.number("mbs").is_none(), &[1, 2, 4, 8]);
    let interleaves = run.number("vpp").is_none() && pp > 1;
    let layers = shape.layers() / pp;
    let mut chunks: Vec<u64> = of("vpp", interleaves, &[1, 2, layers / 4, layers / 2, layers]);
    // Cuts that are not even, and those of steps without whole rounds, are nobody's choice.
    chunks.retain(|&n| n == 1 || !interleaves || (shape.layers().is_multiple_of(pp * n.max(1)) && n > 0));
    chunks.sort_unstable();
    chunks.dedup();
    let with = |mbs: u64| chunks.iter().map(move |&vpp| (mbs, vpp));
    rows.into_iter().flat_map(with).map(|(mbs, vpp)| run.with("mbs", mbs).with("vpp", vpp)).collect()
}

/// What may be computed again: what the row says; nothing, everything between products, or all where it does not. With the words that say what was taken.
///
/// # Errors
/// As [`recompute`].
pub fn recomputes(run: &Run) -> Result<Vec<(Recompute, Option<String>)>, String> {
    if recompute_is_stated(run) {
        return Ok(vec![(recompute(run)?, None)]);
    }
    let elementwise = Recompute { parts: parts_of(&[(Kind::Vector, 0.6)]), layers: vec![] };
    let ways = [(Recompute::default(), "none"), (elementwise, "norm, act"), (Recompute::full(), "full")];
    Ok(ways.map(|(way, name)| (way, Some(format!("recompute = {name}")))).to_vec())
}

/// What was taken for the row's blanks, recomputation left out: `mbs = 1`.
pub fn assumed(run: &Run, filled: &Run, shape: &Shape) -> Vec<String> {
    let pipelined = run.degree("pp") > 1;
    let degrees =
        [("tp", true), ("pp", true), ("cp", true), ("ep", shape.experts() > 0), ("vpp", pipelined), ("mbs", true)];
    let blank = |name: &str| run.number(name).is_none();
    let taken = degrees.iter().filter(|(name, matters)| *matters && blank(name));
    let mut assumed: Vec<String> = taken.map(|(name, _)| format!("{name} = {}", filled.degree(name))).collect();
    let words = [
        (blank("kv_heads") && run.head.parse::<f64>().is_ok(), "kv_heads = heads"),
        (run.precision.is_empty(), "precision = bf16"),
    ];
    assumed.extend(words.iter().filter(|(is_blank, _)| *is_blank).map(|(_, what)| what.to_string()));
    assumed
}

/// Layers of each stage as the run's options give them: `num-layer-list=17,20,22,21`.
fn stated_stages(run: &Run, layers: u64, pp: u64, vpp: u32) -> Option<Vec<u32>> {
    let (_, rest) = run.text.split_once("num-layer-list=")?;
    let listed = rest.split(|c: char| !c.is_ascii_digit() && c != ',').next()?;
    let counts: Vec<u32> = listed.split(',').filter_map(|n| n.parse().ok()).collect();
    let fits = counts.len() as u64 == pp && counts.iter().map(|n| u64::from(*n)).sum::<u64>() == layers;
    (fits && vpp <= 1 && !counts.contains(&0)).then_some(counts)
}

/// Layers of each part: even where that is possible; else the parts with embedding and loss have one less, where that makes it even; else so that the most work of one is
/// least, `tail` being what is behind the last layer.
fn stages(layers: u64, parts: u64, tail: f64) -> Option<Vec<u32>> {
    let n = parts as usize;
    // Embedding and loss count as layers of their own: 126 layers in 128 parts.
    if layers < parts && parts - layers <= 2 && layers > 0 {
        let mut counts = vec![1; n];
        counts[n - 1] = 0;
        counts[0] -= u32::from(parts - layers == 2);
        return Some(counts);
    }
    if parts <= 1 || layers.is_multiple_of(parts) || layers < parts {
        return None;
    }
    let mut counts: Vec<u32> = vec![(layers / parts) as u32; n];
    match parts - layers % parts {
        1 => {
            counts.iter_mut().for_each(|c| *c += 1);
            counts[n - 1] -= 1;
        }
        2 => {
            counts.iter_mut().for_each(|c| *c += 1);
            counts[0] -= 1;
            counts[n - 1] -= 1;
        }
        _ => return stages_by_work(layers, parts, tail),
    }
    Some(counts)
}

/// Layers of each stage so that the most work of one is least; the last also has the head, which is worth some layers.
fn stages_by_work(layers: u64, parts: u64, head: f64) -> Option<Vec<u32>> {
    if layers < parts {
        return None;
    }
    let most = |last: u64| {
        let others = (layers - last).div_ceil(parts - 1);
        f64::max(others as f64, last as f64 + head)
    };
    let last = (0..=layers - (parts - 1)).min_by(|a, b| most(*a).total_cmp(&most(*b)))?;
    let (rest, n) = (layers - last, parts - 1);
    let mut counts: Vec<u32> = (0..n).map(|i| (rest / n + u64::from(i < rest % n)) as u32).collect();
    counts.push(last as u32);
    Some(counts)
}

fn sequence_parallel(run: &Run) -> bool {
    let text = run.text.to_lowercase();
    let off = ["without sequence parallel", "sequence_parallel=false", "seq_parallel=false", "seq_parallel=none"];
    let on = ["sequence parallel", "sequence-parallel", "sequence_parallel=true", "seq_parallel=true", "tp compile"];
    !off.iter().any(|t| text.contains(t))
        && (on.iter().any(|t| text.contains(t)) || !text.contains("megatron-deepspeed") && !text.contains("1.0.rc"))
}

fn zero(run: &Run) -> u32 {
    let text = run.text.to_lowercase();
    let any = |words: &[&str]| words.iter().any(|w| text.contains(w));
    if any(&["fsdp", "zero-3", "zero stage 3"]) {
        3
    } else if any(&["zero stage 0", "parallel_optimizer=false", "megatron-deepspeed"]) {
        0
    } else if any(&[
        "zero",
        "distributed optimizer",
        "use-distributed-optimizer",
        "parallel_optimizer=true",
        "megatron-bridge",
        "modelzoo",
        "nemo",
        "dgxc",
        "2504.14960",
        "mlperf",
    ]) {
        1
    } else {
        0
    }
}

/// Does a row say what is computed again? Where it says that the source does not, it is as blank as where it says nothing.
pub fn recompute_is_stated(run: &Run) -> bool {
    !run.recompute.is_empty() && !run.recompute.to_lowercase().starts_with("per recipe")
}

/// Runs that do not train the model as a whole are not predicted.
///
/// # Errors
/// What is trained instead: a sentence.
pub fn trains_all(run: &Run) -> Result<(), String> {
    let text = format!("{} {}", run.model, run.text).to_lowercase();
    if text.split(|c: char| !c.is_alphanumeric()).any(|word| word == "lora") {
        return Err(
            "adapters are trained (LoRA), not the model: a step without weight gradients is not simulated".into()
        );
    }
    Ok(())
}

/// What is computed again; nothing where the row does not say.
///
/// # Errors
/// Words that name nothing which could be: a sentence.
pub fn recompute(run: &Run) -> Result<Recompute, String> {
    let text = run.recompute.to_lowercase();
    // What is swapped out is not computed again.
    if !recompute_is_stated(run) || text.starts_with("none") || text.starts_with("swap") {
        return Ok(Recompute::default());
    }
    let stated = stated_recompute(run, &text);
    if stated.is_some() || text.trim() == "selective" {
        // Megatron-Core's `selective` alone is its core attention.
        let attention = || Recompute { parts: parts_of(&[(Kind::Attention, 1.0)]), layers: vec![] };
        return Ok(stated.unwrap_or_else(attention));
    }
    let shown: String = run.recompute.chars().take(60).collect();
    Err(format!(
        "`recompute` is none, full, or `selective:` with names such as core_attn, layernorm, act, mlp, moe, not `{shown}`"
    ))
}

fn parts_of(parts: &[(Kind, f64)]) -> ByKind {
    let mut all = [0.0; Kind::COUNT];
    for (kind, part) in parts {
        let at = &mut all[kind.number()];
        *at = f64::min(*at + part, 1.0);
    }
    all
}

/// What is computed again by words that are not blank; nothing when they say nothing.
fn stated_recompute(run: &Run, text: &str) -> Option<Recompute> {
    let layers = numbers(text);
    if text.starts_with("select [") {
        // MindFormers' select_recompute: activations and multiplications between products.
        return Some(Recompute { layers, parts: parts_of(&[(Kind::Vector, 0.5)]) });
    }
    if text.starts_with("partial list") {
        return Some(Recompute { layers, ..Recompute::full() });
    }
    if text.starts_with("full") {
        let block = text.contains("block") && !layers.is_empty();
        return Some(Recompute { layers: if block { layers[..1].to_vec() } else { vec![] }, ..Recompute::full() });
    }
    if text.contains("every 2nd layer") {
        let half = run.degree("layers").div_ceil(2) / run.degree("pp");
        return Some(Recompute { layers: vec![half as u32], ..Recompute::full() });
    }
    let mut parts = vec![];
    let mut add = |kind: Kind, part: f64| parts.push((kind, part));
    // What Megatron-Core calls these modules; the parts are shares of a layer's work of that kind.
    for word in text.split(|c: char| !c.is_alphanumeric() && c != '_') {
        match word {
            "attention" | "core_attn" => add(Kind::Attention, 1.0),
            "layernorm" | "norm" => add(Kind::Vector, 0.35),
            "act" | "moe_act" => add(Kind::Vector, 0.25),
            "mla_up_proj" => add(Kind::Products, 0.3),
            // Of a mixture only the dense layers have one.
            "mlp" if run.number("experts").unwrap_or(0) > 0 => {
                let dense = run.number("dense_layers").unwrap_or(0) as f64 / run.degree("layers") as f64;
                add(Kind::Products, 0.3 * dense.min(1.0));
            }
            "mlp" | "shared_expert" => add(Kind::Products, 0.3),
            "moe" => {
                add(Kind::ExpertProducts, 1.0);
                add(Kind::Ep, 1.0);
                add(Kind::Vector, 0.4);
            }
            // torchtitan: every second product and all elementwise work.
            "op" => {
                add(Kind::Products, 0.5);
                add(Kind::Vector, 0.8);
            }
            _ => {}
        }
    }
    (!parts.is_empty()).then(|| Recompute { parts: parts_of(&parts), layers: vec![] })
}

fn numbers(text: &str) -> Vec<u32> {
    text.split(|c: char| !c.is_ascii_digit()).filter_map(|n| n.parse().ok()).collect()
}

/// Switches of the framework that a run states itself.
pub fn stated(run: &Run, mut framework: Framework) -> Framework {
    let text = run.text.to_lowercase();
    framework.deduplicates |= ["deepep", "hybridep"].iter().any(|t| text.contains(t));
    // Their kernels take the number of rows from device memory.
    framework.experts_wait &= !framework.deduplicates;
    // With a capacity for each expert all arrays have sizes that are known beforehand.
    framework.experts_wait &= !["token-drop", "token drop", "capacity factor"].iter().any(|t| text.contains(t));
    let paired = ["overlap_moe_expert_parallel_comm=true", "1f1b a2a overlap", "ep overlap"];
    let not_paired = ["no ep overlap", "ep overlap off", "no a2a overlap"];
    let by_recipe = framework.pairs_interleaved && run.number("vpp").is_some_and(|vpp| vpp > 1);
    if (by_recipe || paired.iter().any(|t| text.contains(t))) && !not_paired.iter().any(|t| text.contains(t)) {
        framework.hidden_ep = framework.hidden_ep.max(if framework.deduplicates { PAIRED } else { PAIRED_NCCL });
    }
    let has = |option: &str| text.contains(option);
    // Gathering ahead is what makes it that (arXiv 2304.11277, section 3.3).
    framework.prefetch |= has("fsdp");
    framework.overlap_gradients |= has("overlap-grad-reduce");
    framework.overlap_parameters |= has("overlap-param-gather");
    if has("grad-reduce-in-bf16") || has("grad_reduce_in_fp32=false") {
        framework.gradient_bytes = 2.0;
    } else if has("accumulate-allreduce-grads-in-fp32") || has("grad_reduce_in_fp32=true") {
        framework.gradient_bytes = 4.0;
    }
    if framework.flash_is_stated && !has("use-flash-attn") && !has("flash_attention=true") {
        framework.attention = AttentionName::Unfused;
    }
    if has("max_memory_allocated") {
        framework.reserved_gb = ALLOCATED_GB;
    }
    let dense = run.number("experts").unwrap_or(0) == 0;
    if framework.cuts_up_dense && dense || ["tp comm overlap", "use-mc2", "use-ascend-coc"].iter().any(|t| has(t)) {
        framework.hidden_tp = framework.hidden_tp.max(CUT_UP);
    }
    if run.precision.to_lowercase().contains("rowwise") {
        (framework.scaled_rate, framework.gathers_fp8) = (ROW_SCALED, false);
    }
    if has("async tp") {
        framework.hidden_tp = framework.hidden_tp.max(ASYNC);
    }
    framework
}

/// GB beside tensors where a row's peak is that of PyTorch's allocated memory, not of what it has reserved: workspaces of products (32 MiB for each of a few streams and libraries).
const ALLOCATED_GB: f64 = 0.15;

/// The part of tensor-parallel communication that is hidden when products are cut up to run beside it (arXiv 2305.06942, user buffers, MC2): an assumption.
const CUT_UP: f64 = 0.75;

/// The part of the rate of products with one scale for a tensor that products with scales for rows reach in PyTorch, and those are gathered in bf16: Llama-3-8B on 8 H100 makes 6,424
/// tokens a second with the second and 7,186 with the first (github.com/pytorch/torchtitan, commit 3537666), a third of whose step is such products.
const ROW_SCALED: f64 = 0.75;

/// The same with PyTorch's asynchronous tensor parallelism: what makes published pairs of runs with and without it differ as they do (docs/cost-model.md).
const ASYNC: f64 = 0.4;

/// The part of expert communication that is hidden when forward and backward passes of two micro-batches are paired: an assumption.
const PAIRED: f64 = 0.6;

/// The same where NCCL exchanges rows, whose kernels take cores from the work beside them: what makes a published pair of runs (Qwen3-30B-A3B on 16 H100, 41.25 and 31.31 s) differ as it does.
const PAIRED_NCCL: f64 = 0.48;

/// Rows of the busiest rank.
pub fn imbalance(run: &Run) -> f64 {
    let text = run.text.to_lowercase();
    let forced = ["force", "capacity factor 1"].iter().any(|t| text.contains(t));
    let dense = run.number("experts").unwrap_or(0) == 0;
    match (dense || forced, text.contains("real routing")) {
        (true, _) => 1.0,
        (false, true) => REAL_ROUTING,
        (false, false) => UNKNOWN_ROUTING,
    }
}

/// Type of the inputs of products; bf16 where the row does not say.
///
/// # Errors
/// A word that is no type which is priced: a sentence.
pub fn precision(run: &Run) -> Result<Precision, String> {
    let text = run.precision.to_lowercase();
    let any = |words: &[&str]| words.iter().any(|w| text.contains(w));
    match () {
        () if any(&["mxfp8", "fp8-mx"]) => Ok(Precision::Mxfp8),
        () if any(&["fp4", "float4"]) => Err(format!("`precision` is {}: fp4 is not priced", run.precision)),
        () if any(&["fp8", "float8", "hif8"]) => Ok(Precision::Fp8),
        () if any(&["bf16", "fp16", "bfloat16", "float16"]) => Ok(Precision::Bf16),
        () if any(&["fp32", "f32", "float32", "tf32"]) => Ok(Precision::F32),
        () if text.is_empty() => Ok(Precision::Bf16),
        () => {
            let shown: String = run.precision.chars().take(40).collect();
            Err(format!("`precision` is one of bf16, fp16, fp32, fp8 and mxfp8, not `{shown}`"))
        }
    }
}

/// The cluster with the network of the run's site, where the row says what it is: devices of a node, `inter-node 800 Gb/s per node`, or collectives that were
/// measured on all its devices.
///
/// Devices of a node are those of the first tier where that is called `node`; a rack of several nodes that one fabric joins is no smaller for it.
///
/// # Errors
/// Nodes that are no part of the tier around them: a sentence.
pub fn site(run: &Run, cluster: &Cluster) -> Result<Cluster, String> {
    let mut cluster = cluster.clone();
    let stated = run.number("devices_per_node");
    if cluster.tiers.len() < 2 {
        return Ok(cluster);
    }
    if let Some(devices) = stated.filter(|_| cluster.tiers[0].name == "node") {
        let outer = cluster.domain(1);
        if outer != u64::MAX && !outer.is_multiple_of(devices) {
            let tier = &cluster.tiers[1].name;
            return Err(format!(
                "`devices_per_node` is {devices}, which does not divide the {outer} devices of a {tier}"
            ));
        }
        cluster.tiers[0].devices = Some(Count(devices as u32));
    }
    // Between slices of a torus there is the network of the data center.
    if let (Some(chips), "torus") = (slice(&run.text), cluster.tiers[1].name.as_str())
        && u64::from(chips).is_multiple_of(cluster.domain(0))
    {
        cluster.tiers[1].devices = Some(Count(chips));
    }
    let node = stated.unwrap_or_else(|| cluster.node().min(8)) as f64;
    if let Some(gigabits) = before(&run.text, " Gb/s per node") {
        // Adapters are those of the cluster file, which has one for each device; a site may have fewer.
        let adapters = (gigabits / 8.0 / cluster.tiers[1].gbps.0).round();
        if adapters >= 1.0 && adapters < node && cluster.tiers[0].name == "node" {
            cluster.tiers[1].adapters = Some(Count(adapters as u32));
        }
        cluster.tiers[1].gbps = Positive(gigabits / 8.0 / node);
    }
    if let Some([gathers, scatters]) = measured_collectives(&run.text)
        && run.degree("n_devices") as f64 > node
    {
        let step = measured_step_us((gathers * scatters).sqrt(), cluster.tiers[0].gbps.0, run.degree("n_devices"));
        // Of the steps round a node one goes to the next node; what that does not explain, all of them take.
        let (outside, inside) = shared_out(step, node);
        let [near, far] = [0, 1].map(|tier| cluster.tiers[tier].latency_us.0);
        cluster.tiers[0].latency_us = NonNegative(near.max(inside));
        for tier in &mut cluster.tiers[1..] {
            tier.latency_us = NonNegative(far.max(outside));
        }
    }
    Ok(cluster)
}

/// Chips of a slice of a torus: "a slice of 256".
fn slice(text: &str) -> Option<u32> {
    let (_, after) = text.split_once("slice of ")?;
    let digits: String = after.chars().take_while(char::is_ascii_digit).collect();
    digits.parse().ok().filter(|chips| *chips > 0)
}

/// MB of the arrays with which sites measure their collectives: sources do not say; fitted, with the time of tensor-parallel collectives on the same site.
const MEASURED_MB: f64 = 880.0;
/// The part of the first tier's bandwidth at which the bytes of such a measurement go, beside latencies: what is left of its runs on 8 to 32 devices.
const MEASURED_RING: f64 = 0.54;
/// µs that a step of a ring takes to another node at most: what a site's collectives show that takes more is in the steps inside of nodes too. Fitted.
const MEASURED_HOP_US: f64 = 450.0;

/// The mean latency of a step of a ring, µs, by the GB/s of collectives through all devices of a job.
///
/// On 8 to 512 devices of one site, in either state of its network, 1/rate is `sqrt((1/ring)² + (latency · devices / array)²)` with one latency: the bytes of a step go while the
/// latency of others passes, and the longer of the two counts.
fn measured_step_us(rate: f64, link: f64, devices: u64) -> f64 {
    let of_bytes = 1.0 / (link * MEASURED_RING);
    let of_latency = (rate.powi(-2) - of_bytes.powi(2)).max(0.0).sqrt();
    MEASURED_MB * 1e3 * of_latency / devices as f64
}

/// The latencies of steps to other nodes and inside of them, µs, whose mean round a ring is given.
fn shared_out(step: f64, node: f64) -> (f64, f64) {
    let outside = (node * step).min(MEASURED_HOP_US);
    (outside, (node * step - outside) / (node - 1.0).max(1.0))
}

/// GB/s of all-gathers and reduce-scatters through all devices, where a run's site has measured them.
fn measured_collectives(text: &str) -> Option<[f64; 2]> {
    let (_, rest) = text.split_once("measured AllReduce/AllGather/ReduceScatter GB/s ")?;
    let rates: Vec<f64> =
        rest.split(|c: char| !c.is_ascii_digit() && c != '.').take(3).filter_map(|n| n.parse().ok()).collect();
    (rates.len() == 3 && rates.iter().all(|r| *r > 0.0)).then(|| [rates[1], rates[2]])
}

/// The number that stands before some words.
fn before(text: &str, words: &str) -> Option<f64> {
    let (head, _) = text.split_once(words)?;
    head.rsplit(|c: char| !c.is_ascii_digit() && c != '.').next()?.parse().ok().filter(|v: &f64| *v > 0.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// 1 GB/s less on more devices is one latency, whatever their number; small ones are those of steps between nodes alone.
    #[test]
    fn a_sites_collectives_are_a_latency() {
        let rate = |latency_us: f64, devices: f64| {
            let (bytes, latency) = (1.0 / (450.0 * MEASURED_RING), latency_us * devices / (MEASURED_MB * 1e3));
            1.0 / f64::hypot(bytes, latency)
        };
        for (latency, devices) in [(240.0, 16), (240.0, 512), (40.0, 128)] {
            let got = measured_step_us(rate(latency, devices as f64), 450.0, devices);
            assert!((got / latency - 1.0).abs() < 1e-9, "{got} is not {latency}");
        }
        assert_eq!(measured_step_us(260.0, 450.0, 8), 0.0);
        assert_eq!(shared_out(40.0, 8.0), (320.0, 0.0));
        let (outside, inside) = shared_out(240.0, 8.0);
        assert!(outside == MEASURED_HOP_US && (outside + 7.0 * inside - 8.0 * 240.0).abs() < 1e-9);
    }

    /// A torus is as large as a row says its slices are, where that is whole axes.
    #[test]
    fn slices_are_read() {
        assert_eq!(slice("FSDP within a slice of 64, data parallel over 2 slices"), Some(64));
        assert_eq!((slice("a slice of 0"), slice("a slice of bread"), slice("FSDP")), (None, None, None));
        let torus = |device: &str, notes: &str| {
            let columns = "layers,hidden,heads,vocab,seq_len,device,n_devices,gbs,step_time_s,notes_config";
            let table = format!("{columns}\n1,1,1,1,1,{device},1,1,1,{notes}\n");
            let run = super::super::runs::read(&table).expect("a table").runs.remove(0);
            let clusters = forebay_cost::known::clusters();
            let cluster = clusters.iter().find(|c| c.is_called(device)).expect("it is known");
            site(&run, cluster).expect("a site").domain(1)
        };
        assert_eq!((torus("TPU v5p", "in a slice of 128"), torus("TPU v5p", "")), (128, 8960));
        assert_eq!(torus("TPU v5p", "in a slice of 24"), 8960);
        assert_eq!(torus("H100", "in a slice of 128"), u64::MAX);
    }

    /// A framework, as a run with so many experts and these notes has it.
    fn as_stated(experts: &str, notes: &str, framework: Framework) -> Framework {
        let columns = "layers,hidden,heads,vocab,seq_len,device,n_devices,gbs,step_time_s,experts,notes_config";
        let table = format!("{columns}\n1,1,1,1,1,H100,1,1,1,{experts},{notes}\n");
        stated(&super::super::runs::read(&table).expect("a table").runs.remove(0), framework)
    }

    #[test]
    fn how_gradients_are_summed_is_read() {
        let bytes = |notes: &str, gradient_bytes: f64| {
            as_stated("", notes, Framework { gradient_bytes, ..Framework::default() }).gradient_bytes
        };
        assert_eq!((bytes("--grad-reduce-in-bf16", 4.0), bytes("grad_reduce_in_fp32=True", 2.0)), (2.0, 4.0));
        assert_eq!((bytes("", 4.0), bytes("", 2.0)), (4.0, 2.0));
    }

    /// Recipes for dense models overlap tensor parallelism; those for mixtures do where they say so.
    #[test]
    fn dense_recipes_hide_tensor_parallelism() {
        let hidden = |experts: &str, notes: &str| {
            as_stated(experts, notes, Framework { cuts_up_dense: true, ..Framework::default() }).hidden_tp
        };
        assert_eq!((hidden("", ""), hidden("8", ""), hidden("8", "TP comm overlap")), (CUT_UP, 0.0, CUT_UP));
    }

    /// Megatron-Core has tensor-parallel ranks share the width of experts unless a run says otherwise, and sends parts of rows.
    #[test]
    fn experts_are_cut_as_the_framework_does_it() {
        let cut = |source: &str, degrees: &str| {
            let table = format!(
                "source,layers,hidden,heads,vocab,seq_len,device,devices_per_node,n_devices,moe_ffn_hidden,experts,topk,gbs,mbs,step_time_s,tp,ep,etp\n\
                 {source},4,512,8,32000,512,H100,8,16,1024,8,2,32,1,1,{degrees}\n"
            );
            let run = super::super::runs::read(&table).expect("a table").runs.remove(0);
            let framework = crate::framework::find(&crate::framework::known(), &run.text);
            let strategy = strategy(&run, &Shape::of(&run, 1).expect("a shape"), &framework).expect("a strategy");
            (strategy.etp, strategy.etp_gather)
        };
        assert_eq!(cut("Megatron-Bridge", "4,4,"), (4, EtpGather::After));
        assert_eq!(cut("Megatron-Bridge", "4,4,1"), (1, EtpGather::Before));
        assert_eq!(cut("Megatron-Bridge", "4,4,2"), (2, EtpGather::After));
        // All ranks of a stage have experts of their own: nobody is left to share one.
        assert_eq!(cut("Megatron-Bridge", "4,16,"), (1, EtpGather::Before));
        assert_eq!(cut("Megatron-Bridge", "4,1,"), (4, EtpGather::Before));
        assert_eq!(cut("torchtitan", "4,4,"), (1, EtpGather::Before));
    }

    #[test]
    fn layers_are_shared_out() {
        assert_eq!(stages(6, 8, 0.5), Some(vec![0, 1, 1, 1, 1, 1, 1, 0]));
        assert_eq!(stages(3, 4, 0.5), Some(vec![1, 1, 1, 0]));
        assert_eq!((stages(8, 4, 0.5), stages(2, 8, 0.5)), (None, None));
        assert_eq!(stages(7, 4, 0.5), Some(vec![2, 2, 2, 1]));
        // What is behind the last layer is worth three and a half of them: 61 = 15 · 4 + 1, and the last has the work of 4.5.
        assert_eq!(stages(61, 16, 3.5), Some([vec![4; 15], vec![1]].concat()));
        // A head that is worth three layers stands alone.
        assert_eq!(stages_by_work(6, 3, 3.0), Some(vec![3, 3, 0]));
    }
}
