//! The strategy of a measured run, and what its row says of its framework, precision and routing.

use super::runs::Run;
use super::shape::Shape;
use crate::framework::{AttentionName, Framework};
use crate::says::{number_of, said, said_any, says};
use forebay_compiler::overlap::Passes;
use forebay_compiler::shard::{CpAlgo, Cut, EtpGather, Strategy};
use forebay_cost::Precision;

/// Rows of the busiest rank where nothing says that routers are forced to balance, as a multiple of the mean: an assumption.
const UNKNOWN_ROUTING: f64 = 1.1;
/// The same where a run says that routing is real: what makes pairs of published runs with real and with forced routing differ as they do (docs/cost-model.md).
const REAL_ROUTING: f64 = 1.6;

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
    let dp = data_parallel(run) as u32;
    if u64::from(dp) * u64::from(model) != u64::from(devices) {
        return Err(format!("dp {dp} × tp {tp} × pp {pp} × cp {cp} are not its {devices} devices"));
    }
    let ours = framework.is_ours();
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
    let bound = (rows * imbalance(run, framework)).ceil() as u64;
    Ok(Strategy {
        dp,
        tp,
        sp: sequence_parallel(run, framework),
        ep,
        etp,
        // As Megatron-Core's dispatcher does.
        etp_gather: if ep > 1 && etp > 1 && !ours { EtpGather::After } else { EtpGather::Before },
        cp,
        // Sharing heads does the same work in even parts as balanced rings do, and profiles say how much of their communication is hidden. Where ranks cannot have whole heads, each
        // gathers the keys, which are as many bytes as go round a ring.
        cp_algo: if shape.has_heads_for(u64::from(tp * cp)) { CpAlgo::Ulysses } else { CpAlgo::Gather },
        pp,
        vpp: if pp > 1 { vpp } else { 1 },
        micro: Some(u32::try_from(micro).map_err(|_| "there are too many micro-batches")?),
        mbs: Some(u32::try_from(mbs).map_err(|_| "`mbs` is too large")?),
        zero: zero(run, framework),
        keep: framework.keep(),
        stages: (if let Some(stated) = stated_stages(run, shape.layers(), u64::from(pp), vpp) {
            Some(stated)
        } else if ours {
            None
        } else if framework.balances_head && pp > 1 && vpp == 1 {
            stages_by_work(shape.layers(), u64::from(pp), shape.head_in_layers())
        } else {
            stages(shape.layers(), u64::from(pp) * if pp > 1 { u64::from(vpp) } else { 1 }, shape.tail_in_layers())
        })
        .map_or(Cut::Even, Cut::Given),
        // Ours has room for the worst case where nothing bounds it.
        max_tokens_per_rank: (shape.experts() > 0 && ep > 1 && !ours).then_some(bound),
        // What overlaps in other systems is said by their profiles, not by our passes.
        overlap: if ours { Passes::default() } else { Passes::none() },
        ..Strategy::default()
    })
}

/// Data-parallel ranks: what the row says, else what other degrees leave of its devices.
fn data_parallel(run: &Run) -> u64 {
    let others = ["tp", "pp", "cp"].map(|name| run.degree(name)).iter().fold(1, |all: u64, n| all.saturating_mul(*n));
    run.number("dp").unwrap_or(run.degree("n_devices") / others)
}

/// The row with its blanks of `mbs` and `vpp` filled in the ways that runs mostly have them: micro-batches of 1, 2, 4 or 8 rows; with interleaved schedules
/// chunks of as few layers as divide, of twice and four times as many. The row as it stands is the first.
pub fn filled(run: &Run, shape: &Shape, framework: &Framework) -> Vec<Run> {
    let pp = run.degree("pp");
    if framework.is_ours() {
        // As `simulate` has it: one micro-batch, one part of each stage.
        let rows = run.number("mbs").unwrap_or(run.degree("gbs") / data_parallel(run).max(1)).max(1);
        return vec![run.with("mbs", rows).with("vpp", run.degree("vpp"))];
    }
    let of = |name: &str, blank: bool, values: &[u64]| if blank { values.to_vec() } else { vec![run.degree(name)] };
    let rows = of("mbs", run.number("mbs").is_none(), &[1, 2, 4, 8]);
    let interleaves = run.number("vpp").is_none() && pp > 1;
    // Embedding and loss may count as layers of their own: 126 layers in 16 stages of 8.
    let whole = [0, 1, 2].map(|ends| shape.layers() + ends).into_iter().find(|n| n.is_multiple_of(pp));
    let layers = whole.unwrap_or(shape.layers()) / pp;
    let mut chunks: Vec<u64> = of("vpp", interleaves, &[1, 2, layers / 4, layers / 2, layers]);
    // Other cuts that are not even, and those of steps without whole rounds, are nobody's choice.
    chunks.retain(|&n| n == 1 || !interleaves || (n > 0 && (layers * pp).is_multiple_of(pp * n)));
    chunks.sort_unstable();
    chunks.dedup();
    let with = |mbs: u64| chunks.iter().map(move |&vpp| (mbs, vpp));
    rows.into_iter().flat_map(with).map(|(mbs, vpp)| run.with("mbs", mbs).with("vpp", vpp)).collect()
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
        (blank("kv_heads") && !shape.is_latent(), "kv_heads = heads"),
        (run.head.is_empty(), "head_dim = hidden / heads"),
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

/// Do tensor-parallel ranks share activations along the sequence? What the row says, else what its system does unasked.
fn sequence_parallel(run: &Run, framework: &Framework) -> bool {
    let text = run.text.to_lowercase();
    let ways = ["sequence parallel", "sequence-parallel", "sequence_parallel", "seq_parallel", "tp compile"];
    said_any(&text, &ways).unwrap_or(framework.sequence_parallel)
}

/// What ranks share: what the row says, else what its system does unasked.
fn zero(run: &Run, framework: &Framework) -> u32 {
    said_zero(run, framework).unwrap_or(framework.zero)
}

/// The stage of ZeRO that a row says: by a column, by a number in its notes, or by a system's name for it.
pub fn said_zero(run: &Run, framework: &Framework) -> Option<u32> {
    let text = run.text.to_lowercase();
    let options = ["distributed optimizer", "use-distributed-optimizer", "parallel_optimizer"];
    // Beneath a pipeline each rank has all parameters while a step's micro-batches run, in some systems.
    let whole = framework.gathers_once && run.degree("pp") > 1;
    let sharded = || is_fully_sharded(&text).then_some(if whole { 1 } else { 3 });
    let shared = || said_any(&text, &options).map(u32::from);
    numbered_zero(run).or_else(sharded).or_else(shared)
}

/// The stage that a column says, or a number in the notes.
fn numbered_zero(run: &Run) -> Option<u32> {
    run.number("zero").map(|stage| stage as u32).or_else(|| stated_zero(&run.text))
}

/// PyTorch's sharding of parameters, within groups of ranks or over all of them.
fn is_fully_sharded(text: &str) -> bool {
    ["fsdp", "hsdp", "fully sharded"].iter().any(|words| says(text, words))
}

/// What may stand between words of an option and its value.
const BETWEEN: [char; 10] = [' ', '-', '_', '=', ':', '"', '\'', '(', '{', '.'];

/// The stage of ZeRO that a text names: `ZeRO-1`, `zero stage 2`, `zero_optimization.stage=3`, `stage 3 ZeRO`, `ZeRO++`; 1 where `ZeRO` stands without a number, 0 where it is denied.
fn stated_zero(original: &str) -> Option<u32> {
    // (Of the same length.)
    let text = original.to_ascii_lowercase();
    text.match_indices("zero").find_map(|(at, word)| {
        let end = at + word.len();
        stage_of(&text[..at], &original[at..end], &text[end..])
    })
}

/// The stage that a `zero` is of, by what stands before and behind it; none where it is another's.
fn stage_of(before: &str, word: &str, after: &str) -> Option<u32> {
    let digit = |text: &str| {
        let text = text.trim_start_matches(BETWEEN);
        let (digit, rest) = text.split_at_checked(1)?;
        let alone = !rest.starts_with(|c: char| c.is_alphanumeric());
        digit.parse::<u32>().ok().filter(|stage| *stage <= 3 && alone)
    };
    let named = after.trim_start_matches(BETWEEN);
    let begins = |words: &[&str]| words.iter().any(|word| named.starts_with(word));
    let other = before.ends_with(|c: char| c.is_alphanumeric()) || before.ends_with("non-");
    if other || after.starts_with(|c: char| c.is_alphabetic()) || begins(&["bubble"]) {
        return None;
    }
    let option = named.strip_prefix("optimization").unwrap_or(named).trim_start_matches(BETWEEN);
    let behind = option.strip_prefix("stage").and_then(digit).or_else(|| digit(after));
    let ahead = || before.trim_end().rsplit_once("stage").and_then(|(_, number)| digit(number));
    match behind.or_else(ahead) {
        Some(stage) => Some(stage),
        None if after.starts_with("++") || begins(&["infinity"]) => Some(3),
        None if begins(&["offload"]) => Some(2),
        None if before.ends_with("no ") || before.ends_with("without ") => Some(0),
        None if begins(&["disabled", "off", "false"]) => Some(0),
        None => (word == "ZeRO").then_some(1),
    }
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

/// Switches of the framework that a run states itself.
pub fn stated(run: &Run, mut framework: Framework) -> Framework {
    let text = run.text.to_lowercase();
    let has = |option: &str| says(&text, option);
    let any = |options: &[&str]| options.iter().any(|option| has(option));
    framework.deduplicates |= any(&["deepep", "hybridep"]);
    // Their kernels take the number of rows from device memory.
    framework.experts_wait &= !framework.deduplicates;
    // With a capacity for each expert all arrays have sizes that are known beforehand.
    framework.experts_wait &= capacity(&text).is_none() && !any(&["token-drop", "token drop"]) && !any(&CAPACITY);
    let pairings = ["overlap_moe_expert_parallel_comm", "a2a overlap", "ep overlap"];
    let by_recipe = framework.pairs_interleaved && run.number("vpp").is_some_and(|vpp| vpp > 1);
    if said_any(&text, &pairings).unwrap_or(by_recipe) {
        framework.hidden_ep = framework.hidden_ep.max(if framework.deduplicates { PAIRED } else { PAIRED_NCCL });
    }
    // Gathering ahead is what makes it that (arXiv 2304.11277, section 3.3), and gradients that are not kept are summed as they come (arXiv 1910.02054, section 5.2).
    let stage = numbered_zero(run);
    framework.prefetch |= is_fully_sharded(&text) && stage.is_none_or(|stage| stage > 1) || stage == Some(2);
    framework.overlap_gradients |= has("overlap-grad-reduce");
    framework.overlap_parameters |= has("overlap-param-gather");
    if has("grad-reduce-in-bf16") || said(&text, "grad_reduce_in_fp32") == Some(false) {
        framework.gradient_bytes = 2.0;
    } else if any(&["accumulate-allreduce-grads-in-fp32", "grad_reduce_in_fp32"]) {
        framework.gradient_bytes = 4.0;
    }
    if framework.flash_is_stated && !any(&["use-flash-attn", "flash_attention"]) {
        framework.attention = AttentionName::Unfused;
    }
    // PyTorch chooses cuDNN's by itself on some devices, in some releases.
    if has("cudnn attention") {
        framework.attention = AttentionName::Newest;
    }
    if has("max_memory_allocated") {
        framework.tells_allocated = true;
    }
    if any(&["tp comm overlap", "use-mc2", "use-ascend-coc"]) {
        framework.cut_up();
    }
    framework = framework.for_models(run.number("experts").unwrap_or(0) == 0);
    if run.precision.to_lowercase().contains("rowwise") {
        (framework.scaled_rate, framework.gathers_fp8) = (ROW_SCALED, false);
    }
    if has("async tp") {
        framework.hidden_tp = framework.hidden_tp.max(ASYNC);
    }
    framework
}

/// The part of the rate of products with one scale for a tensor that products with scales for rows reach in PyTorch, and those are gathered in bf16: Llama-3-8B on 8 H100 makes 6,424
/// tokens a second with the second and 7,186 with the first (github.com/pytorch/torchtitan, commit 3537666), a third of whose step is such products.
const ROW_SCALED: f64 = 0.75;

/// The same with PyTorch's asynchronous tensor parallelism: what makes published pairs of runs with and without it differ as they do (docs/cost-model.md).
const ASYNC: f64 = 0.4;

/// The part of expert communication that is hidden when forward and backward passes of two micro-batches are paired: an assumption.
const PAIRED: f64 = 0.6;

/// The same where NCCL exchanges rows, whose kernels take cores from the work beside them: what makes a published pair of runs (Qwen3-30B-A3B on 16 H100, 41.25 and 31.31 s) differ as it does.
const PAIRED_NCCL: f64 = 0.48;

/// What frameworks call the rows that an expert has room for, as a multiple of those that an even routing brings (`--moe-expert-capacity-factor`, `train_capacity_factor`).
const CAPACITY: [&str; 3] = ["capacity factor", "capacity-factor", "capacity_factor"];

/// The capacity that a row gives its experts. (No number, or none above 0, is dropless.)
fn capacity(text: &str) -> Option<f64> {
    CAPACITY.iter().find_map(|words| number_of(text, words)).filter(|factor| (0.01..=MOST_CAPACITY).contains(factor))
}

/// More than that is another number.
const MOST_CAPACITY: f64 = 64.0;

/// Rows of the busiest rank. With a capacity all experts compute and exchange as many rows as they have room for, used or not (arXiv 2006.16668, 2101.03961). Of our own plan as `simulate` has it where nothing is said: even.
pub fn imbalance(run: &Run, framework: &Framework) -> f64 {
    let text = run.text.to_lowercase();
    let dense = run.number("experts").unwrap_or(0) == 0;
    let real = says(&text, "real routing");
    match capacity(&text) {
        _ if dense => 1.0,
        Some(factor) => factor,
        None if says(&text, "force") || framework.is_ours() && !real => 1.0,
        None if real => REAL_ROUTING,
        None => UNKNOWN_ROUTING,
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::framework::{find, known};

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

    /// Experts with a capacity compute what they have room for; hosts do not wait for what comes.
    #[test]
    fn capacities_are_read() {
        let of = |experts: &str, notes: &str| {
            let columns = "layers,hidden,heads,vocab,seq_len,device,n_devices,gbs,step_time_s,experts,notes_config";
            let table = format!("{columns}\n1,1,1,1,1,H100,1,1,1,{experts},{notes}\n");
            let run = super::super::runs::read(&table).expect("a table").runs.remove(0);
            imbalance(&run, &find(&known(), "megatron-core"))
        };
        assert_eq!((of("8", "capacity factor 1.25; padded"), of("8", "moe_expert_capacity_factor=2")), (1.25, 2.0));
        assert_eq!((of("8", "token-drop capacity factor 1"), of("8", "router forced to balance")), (1.0, 1.0));
        assert_eq!((of("8", "capacity factor 1.5; real routing"), of("8", "real routing")), (1.5, REAL_ROUTING));
        assert_eq!(["", "no capacity factor", "capacity factor -1"].map(|notes| of("8", notes)), [UNKNOWN_ROUTING; 3]);
        assert_eq!(of("0", "capacity factor 1.5"), 1.0);
        let waits =
            |notes: &str| as_stated("8", notes, Framework { experts_wait: true, ..Framework::default() }).experts_wait;
        assert_eq!(
            ["capacity_factor: 1.25", "token-drop", "no capacity factor", ""].map(waits),
            [false, false, true, true]
        );
    }

    /// A stated stage of ZeRO goes before what a system does unasked; names of sharding are read.
    #[test]
    fn what_ranks_share_is_read() {
        let of = |notes: &str| {
            let columns = "layers,hidden,heads,vocab,seq_len,device,n_devices,gbs,step_time_s,notes_config";
            let table = format!("{columns}\n1,1,1,1,1,H100,1,1,1,{notes}\n");
            let run = super::super::runs::read(&table).expect("a table").runs.remove(0);
            zero(&run, &find(&known(), &run.text))
        };
        let stages = ["ZeRO-2", "zero stage 0", "zero_stage=3", "Megatron-DeepSpeed; ZeRO-1", "zero1(dp8)", "ZeRO: 2"];
        assert_eq!(stages.map(of), [2, 0, 3, 1, 1, 2]);
        let spellings = ["ZeRO (stage 3)", "stage 3 ZeRO", "zero_optimization: {stage: 3}", "ZeRO-Infinity", "ZeRO++"];
        assert_eq!(spellings.map(of), [3; 5]);
        let words = ["Megatron-DeepSpeed", "HSDP", "fully sharded", "NeMo", "ZeRO", "ZeRO-Offload", ""];
        assert_eq!(words.map(of), [0, 3, 3, 1, 1, 2, 0]);
        // Eager systems share what they say they do; a column goes before all of that.
        let column = "layers,hidden,heads,vocab,seq_len,device,n_devices,gbs,step_time_s,zero,notes_config\n";
        let table = format!("{column}1,1,1,1,1,H100,1,1,1,2,ZeRO-1\n");
        let run = super::super::runs::read(&table).expect("a table").runs.remove(0);
        assert_eq!(zero(&run, &Framework::default()), 2);
        let denied = ["no ZeRO", "NeMo without ZeRO", "ZeRO disabled", "use_zero=False", "zero=off"];
        assert_eq!(denied.map(of), [0; 5]);
        let others = [
            "zero bubble schedule",
            "zero-bubble",
            "dropout zero; 2 nodes",
            "non-zero 3 things",
            "nonzero 2",
            "zero 3D",
        ];
        assert_eq!(others.map(of), [0; 6]);
    }

    /// Beneath pipelines FSDP has parameters whole while a step's micro-batches run, where a framework does not free them.
    #[test]
    fn pipelines_have_parameters_whole() {
        let of = |pp: u32, notes: &str, gathers_once: bool| {
            let columns = "layers,hidden,heads,vocab,seq_len,device,n_devices,pp,gbs,step_time_s,notes_config";
            let table = format!("{columns}\n2,1,1,1,1,H100,2,{pp},1,1,{notes}\n");
            let run = super::super::runs::read(&table).expect("a table").runs.remove(0);
            let framework = stated(&run, Framework { gathers_once, ..Framework::default() });
            (zero(&run, &framework), framework.prefetch)
        };
        assert_eq!(of(2, "FSDP+PP", true), (1, true));
        assert_eq!([of(1, "FSDP+PP", true), of(2, "FSDP+PP", false)], [(3, true); 2]);
        assert_eq!(of(2, "ZeRO-3", true).0, 3, "that is another system's");
    }

    /// 126 layers are 128 parts with embedding and loss: chunks of 2 and 4 are tried, and those that divide nothing are not.
    #[test]
    fn chunks_are_filled_where_layers_nearly_divide() {
        let chunks = |layers: u32, pp: u32| -> Vec<u64> {
            let columns = "layers,hidden,heads,ffn_hidden,vocab,seq_len,device,n_devices,tp,pp,mbs,gbs,step_time_s";
            let table = format!("{columns}\n{layers},512,8,2048,32000,512,H100,{pp},1,{pp},1,32,1\n");
            let run = super::super::runs::read(&table).expect("a table").runs.remove(0);
            filled(&run, &Shape::of(&run, 1).expect("a shape"), &find(&known(), &run.text))
                .iter()
                .map(|run| run.degree("vpp"))
                .collect()
        };
        assert_eq!((chunks(126, 16), chunks(128, 16)), (vec![1, 2, 4, 8], vec![1, 2, 4, 8]));
        assert_eq!((chunks(24, 4), chunks(13, 8)), (vec![1, 2, 3, 6], vec![1]));
    }

    /// Recipes for dense models overlap tensor parallelism; those for mixtures do where they say so.
    #[test]
    fn dense_recipes_hide_tensor_parallelism() {
        let hidden = |experts: &str, notes: &str| {
            as_stated(experts, notes, Framework { cuts_up_dense: true, ..Framework::default() }).hidden_tp
        };
        assert_eq!((hidden("", ""), hidden("8", ""), hidden("8", "TP comm overlap")), (0.75, 0.0, 0.75));
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
