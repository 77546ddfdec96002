//! What a measured run's row says of its framework, precision and routing, beside its degrees: in words.

mod degrees;
mod hosts;
mod kernels;
mod routing;
mod state;
mod zero;

pub use degrees::with_degrees;
pub use kernels::assumed_attention;
pub use routing::{assumed_imbalance, imbalance, node_limit};
pub use state::with_state;
pub use zero::{has_replicas, said_zero, sharing_ranks, zero};

use super::family::Family;
use super::runs::Run;
use crate::framework::Framework;
use crate::says::{said, said_any, says};
use forebay_compiler::shard::CpAlgo;
use forebay_cost::Precision;
use forebay_pipeline::Kind;
use hosts::host_optimizer;
use kernels::{attention, graphs, loss_chunks};
use regex_lite::Regex;
use routing::{capacity, drops_alone, filled_up, routing};
use std::sync::LazyLock;
use zero::{is_fully_sharded, numbered_zero, without_longer_option};

/// How attention sees positions of other context-parallel ranks, where a row says so.
pub fn context(run: &Run) -> Option<CpAlgo> {
    let text = run.text.to_lowercase();
    let any = |words: &[&str]| run.degree("cp") > 1 && words.iter().any(|words| says(&text, words));
    let is_gather = |part: &str| {
        ["all_gather", "all-gather", "allgather", "all gather"].iter().any(|words| says(part, words))
            && ["context", " kv", "keys"].iter().any(|words| part.contains(words))
    };
    let gather = || run.degree("cp") > 1 && text.split([',', ';', '(', ')']).any(is_gather);
    let types =
        [("a2a+p2p", CpAlgo::Hybrid), ("p2p", CpAlgo::Ring), ("a2a", CpAlgo::Ulysses), ("all_gather", CpAlgo::Gather)];
    let of_type = CP_TYPE
        .captures(&text)
        .filter(|_| run.degree("cp") > 1)
        .and_then(|found| types.iter().find(|(name, _)| *name == &found[1]));
    match () {
        () if of_type.is_some() => of_type.map(|(_, way)| *way),
        () if any(&["usp", "hybrid_cp_algo", "loongtrain", "2d-attention"]) => Some(CpAlgo::Hybrid),
        () if any(&["ulysses", "ulysses_cp_algo"]) => Some(CpAlgo::Ulysses),
        () if gather() || any(&["kvallgather_cp_algo"]) => Some(CpAlgo::Gather),
        () if any(&RINGS) => Some(CpAlgo::Ring),
        () => None,
    }
}

/// What rings of context parallelism are called. (Collectives have rings too.)
const RINGS: [&str; 12] = [
    "context parallelism, ring",
    "context parallelism (ring",
    "cp (ring",
    "attention is computed as a ring",
    "ring attention",
    "ring cp",
    "cp ring",
    "ring context",
    "parallelism by ring",
    "balanced ring",
    "zigzag ring",
    "megatron_cp_algo",
];

/// Megatron-Core's option for it.
static CP_TYPE: LazyLock<Regex> = LazyLock::new(|| {
    Regex::new(r#"cp[-_]comm[-_]type["':= ]+(a2a\+p2p|p2p|a2a|all_gather)"#).expect("the pattern is right")
});

/// The order of passes in a pipeline, where a row names one that is not 1F1B.
pub fn schedule(run: &Run) -> Option<Kind> {
    // (A source may be called after a schedule.)
    let text = run.notes.to_lowercase();
    let named = SCHEDULES.iter().find(|(_, words)| words.iter().any(|words| says(&text, words)));
    named.map(|(kind, _)| *kind).filter(|_| run.degree("pp") > 1)
}

/// What schedules are called; the first that is named counts.
const SCHEDULES: [(Kind, &[&str]); 8] = [
    (Kind::VHalf, &["v-half", "vhalf"]),
    (Kind::VMin, &["v-min", "vmin"]),
    (Kind::ZbV, &["zb-v", "zbv", "zbvzerobubble"]),
    (Kind::ZbH2, &["zb-h2", "zbh2", "zb-2p", "zb2p"]),
    (Kind::ZbH1, &["zb-h1", "zbh1", "zb-1p", "zb1p", "zero bubble", "zero-bubble", "zero_bubble"]),
    (Kind::DualPipeV, &["dualpipev", "dualpipe-v"]),
    (Kind::DualPipe, &["dualpipe"]),
    (Kind::GPipe, &["gpipe"]),
];

/// Do tensor-parallel ranks share activations along the sequence? What the row says, else what its system does unasked.
pub fn sequence_parallel(run: &Run, framework: &Framework) -> bool {
    let text = run.text.to_lowercase();
    said_any(&text, &SEQUENCE_PARALLEL).unwrap_or(framework.sequence_parallel)
}

/// Does the row say whether they do?
pub fn says_sequence_parallel(run: &Run) -> bool {
    said_any(&run.text.to_lowercase(), &SEQUENCE_PARALLEL).is_some()
}

/// What says that they do.
const SEQUENCE_PARALLEL: [&str; 3] = ["sequence parallel", "seq_parallel", "tp compile"];

/// Runs that do not train the model as a whole are not predicted.
///
/// # Errors
/// What is trained instead: a sentence.
pub fn trains_all(run: &Run) -> Result<(), String> {
    // (Latent attention has ranks that are called so too: `q_lora_rank`.)
    let text = format!("{} {}", run.model, run.text).to_lowercase();
    let text = LATENT.replace_all(&text, "");
    if let Some(what) = ADAPTERS.iter().find(|words| says(&text, words)) {
        return Err(format!(
            "adapters are trained (`{what}`), not the model: a step without weight gradients is not simulated"
        ));
    }
    Ok(())
}

/// What trains adapters beside a model.
const ADAPTERS: [&str; 4] = ["lora", "qlora", "dora", "peft"];
/// Sizes of latent attention.
static LATENT: LazyLock<Regex> = LazyLock::new(|| Regex::new(r"\b(?:q|kv)[-_ ]lora").expect("the pattern is right"));

/// Switches of the framework that a run states itself.
pub fn stated(run: &Run, mut framework: Framework) -> Framework {
    let text = run.text.to_lowercase();
    let has = |option: &str| says(&text, option);
    let any = |options: &[&str]| options.iter().any(|option| has(option));
    framework.deduplicates |= any(&["deepep", "hybridep"]);
    // Their kernels take the number of rows from device memory.
    framework.experts_wait &= !framework.deduplicates;
    // With a capacity for each expert all arrays have sizes that are known beforehand.
    let dense = run.number("experts").unwrap_or(0) == 0;
    framework.experts_wait &= dense || (capacity(&text).is_none() || drops_alone(&text)) && !has("token-drop");
    framework.capacity = filled_up(run, &framework).unwrap_or(0.0);
    let in_fp8 = said_any(&text, &["fp8 dispatch", "dispatch in fp8", "dispatch_fp8"]);
    let unasked = framework.dispatch_fp8 && run.precision.to_lowercase().contains("fp8") && !has("bf16 dispatch");
    framework.dispatch_fp8 = in_fp8.unwrap_or(unasked);
    let groups =
        || Family::of(&run.model).nodes_of_token(run.degree("ep"), run.number("devices_per_node").unwrap_or(8));
    framework.node_limit = match node_limit(&text) {
        Some(said) => said,
        None => groups().unwrap_or(framework.node_limit),
    };
    // Keys go round while blocks of scores are computed, whatever the system.
    if context(run) == Some(CpAlgo::Ring) {
        framework.hidden_cp = framework.hidden_cp.max(RING);
    }
    let uneven = said_any(&text, &EVEN_CONTEXT) == Some(false) || any(&["unbalanced ring", "contiguous ring"]);
    // (Ranks that share heads have all positions.)
    framework.uneven_context |= uneven && !matches!(context(run), Some(CpAlgo::Ulysses | CpAlgo::Hybrid));
    let pairings = [
        "overlap_moe_expert_parallel_comm",
        "moe-fb-overlap",
        "a2a overlap",
        "ep overlap",
        "ep communication overlap",
        "ep all-to-all overlap",
        "overlapped ep",
        "dualpipe",
        "dualpipev",
    ];
    let by_recipe = framework.pairs_with(run.number("vpp").unwrap_or(1));
    if said_any(&text, &pairings).unwrap_or(by_recipe) {
        framework.pair();
    }
    // Gathering ahead is what makes it that (arXiv 2304.11277, section 3.3), and gradients that are not kept are summed as they come (arXiv 1910.02054, section 5.2).
    let stage = numbered_zero(run);
    // (DeepSpeed's third stage does so unless it is told not to: `overlap_comm` and `stage3_prefetch_bucket_size` of its configuration. For systems that sum gradients in line it is not known.) Our own
    // plan has passes for it.
    let ahead = said(&text, "overlap_comm").unwrap_or(has("deepspeed") || framework.overlap_gradients);
    let sharded = is_fully_sharded(&text) && stage.is_none_or(|stage| stage > 1);
    framework.prefetch |= !framework.is_ours() && (sharded || stage == Some(2) || stage == Some(3) && ahead);
    framework.overlap_gradients = said(&text, "overlap-grad-reduce").unwrap_or(framework.overlap_gradients);
    let gathers = said(&without_longer_option(&text), "overlap-param-gather");
    framework.overlap_parameters = gathers.unwrap_or(framework.overlap_parameters);
    if has("grad-reduce-in-bf16") || said(&text, "grad_reduce_in_fp32") == Some(false) {
        framework.gradient_bytes = 2.0;
    } else if any(&["accumulate-allreduce-grads-in-fp32", "grad_reduce_in_fp32"]) {
        framework.gradient_bytes = 4.0;
    }
    // (What was looked up in a later release may not be what the run did: profiles that go by releases count before, and those that go by such words have it.)
    if !has("graph settings from head") {
        framework.graphs = graphs(&text).unwrap_or(framework.graphs);
    }
    framework.host_optimizer_gbps = host_optimizer(&text).unwrap_or(framework.host_optimizer_gbps);
    framework.attention = attention(&text, &framework);
    framework.loss_chunks = loss_chunks(&text).unwrap_or(framework.loss_chunks);
    let in_fp8 = ["fp8 dot product attention", "fp8 attention", "attention in fp8"];
    framework.attention_fp8 = said_any(&text, &in_fp8).unwrap_or(framework.attention_fp8);
    if has("max_memory_allocated") {
        framework.tells_allocated = true;
    }
    match said_any(&text, &["tp comm overlap", "use-mc2", "use-ascend-coc"]) {
        Some(true) => framework.cut_up(),
        Some(false) => framework.hidden_tp = 0.0,
        None => framework = framework.for_models(run.number("experts").unwrap_or(0) == 0),
    }
    if run.precision.to_lowercase().contains("rowwise") {
        (framework.scaled_rate, framework.gathers_fp8) = (ROW_SCALED, false);
    }
    if any(&["async tp", "async tensor parallel"]) {
        framework.hidden_tp = framework.hidden_tp.max(ASYNC);
    }
    framework
}

/// What says, or denies, that context-parallel ranks have positions from both ends.
const EVEN_CONTEXT: [&str; 3] = ["context parallel load balance", "cp load balance", "balanced ring"];

/// The part of the rate of products with one scale for a tensor that products with scales for rows reach in PyTorch, and those are gathered in bf16: Llama-3-8B on 8 H100 makes 6,424
/// tokens a second with the second and 7,186 with the first (github.com/pytorch/torchtitan, commit 3537666), a third of whose step is such products.
const ROW_SCALED: f64 = 0.75;

/// The same with PyTorch's asynchronous tensor parallelism: what makes published pairs of runs with and without it differ as they do (docs/cost-model.md).
const ASYNC: f64 = 0.4;

/// The part of a ring's messages that is hidden behind blocks of scores: an assumption, that of the profiles of systems that have rings.
const RING: f64 = 0.8;

/// What a row's notes changed, for those who wrote them: in its system's profile, in the strategy, and in the rows of experts.
pub fn heard(run: &Run, profile: &Framework) -> Vec<String> {
    // (Against the same row without notes: what a system does with such models unasked nobody said.)
    let silent = run.silent();
    let mut heard = stated(&silent, profile.clone()).changed_in(&stated(run, profile.clone()));
    heard.extend(degrees::heard(run));
    let text = run.text.to_lowercase();
    let shares = said_any(&text, &SEQUENCE_PARALLEL).filter(|_| run.degree("tp") > 1);
    let shared = said_zero(run, profile).filter(|_| run.number("zero").is_none());
    heard.extend(shared.map(|stage| format!("zero = {stage}")));
    heard.extend(sharing_ranks(run, profile).ok().flatten().map(|ranks| format!("hsdp = {ranks}")));
    heard.extend(state::heard(&text, zero(run, profile)));
    heard.extend(shares.map(|shares| format!("sp = {}", u8::from(shares))));
    heard.extend(context(run).map(|way| format!("cp_algo = {}", way.name())));
    heard.extend(schedule(run).map(|kind| format!("schedule = {}", kind.name())));
    if (routing(&text).is_some() || capacity(&text).is_some()) && run.number("experts").unwrap_or(0) > 0 {
        heard.push(format!("rows of the busiest rank = {} of the mean", imbalance(run, profile)));
    }
    heard
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
        // (What is mixed is mixed with sixteen bits.)
        () if text.is_empty() || says(&text, "amp") || says(&text, "mixed precision") => Ok(Precision::Bf16),
        () => {
            let shown: String = run.precision.chars().take(40).collect();
            Err(format!("`precision` is one of bf16, fp16, fp32, fp8 and mxfp8, not `{shown}`"))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::framework::{AttentionName, PAIRED, PAIRED_NCCL, Pairs, find, known};
    use crate::recorded::Graphs;

    /// A framework, as a run with so many experts and these notes has it.
    pub(super) fn as_stated(experts: &str, notes: &str, framework: Framework) -> Framework {
        let columns = "layers,hidden,heads,vocab,seq_len,device,n_devices,gbs,step_time_s,experts,notes_config";
        let table = format!("{columns}\n1,1,1,1,1,H100,1,2,1,{experts},\"{notes}\"\n");
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

    /// A system that is not ours.
    fn another() -> Framework {
        Framework { name: "another".into(), ..Framework::default() }
    }

    /// Losses in parts have one part of the logits at a time.
    #[test]
    fn losses_in_parts_are_read() {
        let parts = |notes: &str| as_stated("", notes, another()).loss_chunks;
        let notes = [
            "ChunkedCELoss num_chunks=4",
            "chunked cross entropy",
            "liger_fused_linear_cross_entropy=True",
            "fused linear cross-entropy; num_chunks=0",
            "chunked loss; num_chunks=1.5",
            "chunked loss; num_chunks=5000",
        ];
        assert_eq!(notes.map(parts), [4.0, 8.0, 8.0, 8.0, 8.0, 8.0]);
        let whole = [
            "",
            "no chunked loss",
            "num_chunks=4",
            "vocab parallel cross entropy",
            "Liger without fused linear cross entropy",
            "use_liger_kernel=True, liger_fused_linear_cross_entropy=False, chunked loss",
        ];
        assert_eq!(whole.map(parts), [1.0; 6]);
    }

    /// DeepSpeed's third stage gathers ahead unless it is told not to; of systems that nobody knows it is not known.
    #[test]
    fn gathers_ahead_are_read() {
        let ahead = |notes: &str| as_stated("", notes, another()).prefetch;
        let notes =
            ["DeepSpeed ZeRO-3", "DeepSpeed ZeRO-3; overlap_comm=false", "ZeRO-3", "ZeRO-3; overlap_comm", "ZeRO-1"];
        assert_eq!(notes.map(ahead), [true, false, false, true, false]);
        // Who sums gradients beside work gathers ahead, and our own plan has passes for either.
        let sums = |notes: &str, framework: Framework| {
            as_stated("", notes, Framework { overlap_gradients: true, ..framework }).prefetch
        };
        assert_eq!(["ZeRO-3", "ZeRO-3; overlap_comm=false"].map(|notes| sums(notes, another())), [true, false]);
        assert_eq!(["ZeRO-3", "ZeRO-2", "FSDP"].map(|notes| sums(notes, Framework::default())), [false; 3]);
    }

    /// Recipes for dense models overlap tensor parallelism; those for mixtures do where they say so.
    #[test]
    fn dense_recipes_hide_tensor_parallelism() {
        let hidden = |experts: &str, notes: &str| {
            as_stated(experts, notes, Framework { cuts_up_dense: true, ..Framework::default() }).hidden_tp
        };
        assert_eq!((hidden("", ""), hidden("8", ""), hidden("8", "TP comm overlap")), (0.75, 0.0, 0.75));
    }

    pub(super) fn run_of(columns: &str, values: &str, notes: &str) -> Run {
        let table = format!(
            "layers,hidden,heads,vocab,seq_len,device,n_devices,gbs,step_time_s,{columns},notes_config\n8,64,8,64,64,H100,8,16,1,{values},\"{notes}\"\n"
        );
        super::super::runs::read(&table).expect("a table").runs.remove(0)
    }

    #[test]
    fn attention_is_read() {
        use AttentionName::{Flash1, Flash2, Newest, Unfused};
        let of = |notes: &str, attention: AttentionName, flash_is_stated: bool| {
            attention_of(notes, Framework { attention, flash_is_stated, ..Framework::default() })
        };
        for notes in ["flash attention 2", "FlashAttention-2", "flash_attn v2.5", "attn: fa2"] {
            assert_eq!(of(notes, Newest, false), Flash2, "{notes}");
        }
        let newest =
            ["FlashAttention 3", "cuDNN SDPA", "SDPA with the cuDNN backend", "PyTorch's SDPA prefers cuDNN on Hopper"];
        for notes in newest.into_iter().chain(["cudnn attention", "fa3", "flash-attn-3"]) {
            assert_eq!(of(notes, Flash2, false), Newest, "{notes}");
        }
        for notes in [
            "no flash attention",
            "unfused attention",
            "attention=dot_product",
            "unfused dot product attention",
            "use-flash-attn=false",
        ] {
            assert_eq!(of(notes, Flash2, false), Unfused, "{notes}");
        }
        // Fused kernels have names of what they compute.
        for notes in ["fp8_dot_product_attention=True", "scaled_dot_product_attention", "scaled dot-product attention"]
        {
            assert_eq!(of(notes, Newest, false), Newest, "{notes}");
        }
        let in_fp8 = |notes: &str| as_stated("", notes, Framework::default()).attention_fp8;
        assert_eq!(
            ["fp8_dot_product_attention=True", "fp8 attention", "fp8_dot_product_attention=False", ""].map(in_fp8),
            [true, true, false, false]
        );
        // A name alone says that scores are not in memory, and no more.
        assert_eq!([of("flash attention", Unfused, false), of("use-flash-attn", Newest, true)], [Flash2, Newest]);
        assert_eq!(
            [of("flash attention, 2 nodes", Flash1, false), of("FlashAttention 2024", Flash1, false)],
            [Flash1; 2]
        );
        assert_eq!([of("", Newest, true), of("", Flash1, false)], [Unfused, Flash1]);
    }

    fn attention_of(notes: &str, framework: Framework) -> AttentionName {
        as_stated("", notes, framework).attention
    }

    #[test]
    fn schedules_and_context_parallelism_are_read() {
        let order = |notes: &str| schedule(&run_of("pp", "4", notes));
        assert_eq!(order("ZB-2p, no recomputation"), Some(Kind::ZbH2));
        assert_eq!(
            [order("zero bubble schedule"), order("zb-v"), order("DualPipe")],
            [Some(Kind::ZbH1), Some(Kind::ZbV), Some(Kind::DualPipe)]
        );
        let mut named = run_of("pp", "4", "1F1B");
        named.text = "Zero Bubble Pipeline Parallelism; 1F1B".into();
        assert_eq!(schedule(&named), None, "papers are called after schedules");
        assert_eq!([order("V-Half"), order("v-min")], [Some(Kind::VHalf), Some(Kind::VMin)]);
        assert_eq!([order("1F1B"), order("no zero bubble"), schedule(&run_of("pp", "1", "zb-v"))], [None; 3]);
        let algorithm = |notes: &str| context(&run_of("cp", "4", notes));
        let of = [
            ("ring attention", CpAlgo::Ring),
            ("megatron_cp_algo", CpAlgo::Ring),
            ("DeepSpeed-Ulysses", CpAlgo::Ulysses),
            ("context parallelism by all-gather of keys", CpAlgo::Gather),
            ("cp_comm_type=all_gather", CpAlgo::Gather),
            ("USP: ring and Ulysses", CpAlgo::Hybrid),
        ];
        for (notes, want) in of {
            assert_eq!(algorithm(notes), Some(want), "{notes}");
        }
        assert_eq!(
            [algorithm("all-gather of parameters"), algorithm(""), context(&run_of("cp", "1", "ring"))],
            [None; 3]
        );
        // Rings hide their messages; ranks with neighbouring positions do not have the same work.
        let framework = |notes: &str| stated(&run_of("cp", "4", notes), Framework::default());
        assert_eq!((framework("ring attention").hidden_cp, framework("Ulysses").hidden_cp), (RING, 0.0));
        assert!(
            framework("context_parallel_load_balance=false").uneven_context
                && framework("unbalanced ring").uneven_context
        );
        assert!(!framework("no load balancing loss").uneven_context && !framework("cp load balance").uneven_context);
    }

    #[test]
    fn adapters_are_not_sizes_of_latent_attention() {
        let of = |notes: &str| trains_all(&run_of("pp", "1", notes)).is_ok();
        assert_eq!(["LoRA", "QLoRA, rank 16", "peft"].map(of), [false; 3]);
        assert_eq!(["q_lora_rank=1536 kv_lora_rank=512", "full fine-tuning, not LoRA", "explored"].map(of), [true; 3]);
    }

    #[test]
    fn exchanges_of_rows_are_read() {
        let of = |notes: &str| as_stated("64", notes, Framework::default());
        let v3 = of("FP8 dispatch, DeepEP; node-limited routing to 4 nodes; DualPipe");
        assert!(v3.dispatch_fp8 && v3.deduplicates && v3.node_limit == 4 && v3.hidden_ep == PAIRED);
        let few = ["node-limited routing (4 nodes)", "node-limited routing", "no node-limited routing"].map(of);
        assert_eq!(few.map(|of| (of.node_limit, of.deduplicates)), [(4, false), (0, false), (0, false)]);
        let in_fp8 = |precision: &str, notes: &str| {
            let run = run_of("experts,precision", &format!("64,{precision}"), notes);
            stated(&run, Framework { dispatch_fp8: true, ..Framework::default() }).dispatch_fp8
        };
        assert_eq!((in_fp8("FP8", ""), in_fp8("BF16", ""), in_fp8("BF16", "fp8 dispatch")), (true, false, true));
        assert_eq!((in_fp8("FP8", "no fp8 dispatch"), in_fp8("FP8", "bf16 dispatch")), (false, false));
        let none = of("no fp8 dispatch");
        assert!(!none.dispatch_fp8 && none.node_limit == 0 && none.hidden_ep == 0.0);
    }

    /// What is recorded is what a row says, and where that was looked up in another release what its system does.
    #[test]
    fn recorded_graphs_are_read() {
        let of =
            |notes: &str| as_stated("8", notes, Framework { graphs: Graphs::Whole, ..Framework::default() }).graphs;
        for (notes, want) in [
            ("cuda_graph_impl='full_iteration'", Graphs::Whole),
            ("TE CUDA graph moe_router+moe_preprocess", Graphs::Routers),
            ("cuda_graph_impl='transformer_engine'; cuda_graph_scope=['attn' 'moe_router']", Graphs::Attention),
            ("CUDA graphs", Graphs::Whole),
            ("no CUDA graphs", Graphs::Nothing),
            ("cuda_graph_impl=None", Graphs::Nothing),
            ("full_iteration=False", Graphs::Nothing),
            ("FULL_CUDA_GRAPH=1 MCORE_CUDA_GRAPH=1", Graphs::Whole),
            ("FULL_CUDA_GRAPH=0; MCORE_CUDA_GRAPH=1", Graphs::Attention),
            ("LAYER_CUDA_GRAPH=1", Graphs::Attention),
            ("MCORE_CUDA_GRAPH=False", Graphs::Nothing),
            ("TE CUDA graph moe_router+moe_preprocess; use-flash-attn", Graphs::Routers),
            ("CUDA graph, flash-attn", Graphs::Whole),
            ("cuda_graph_scope=['attn']; graph settings from HEAD (26.08) recipe", Graphs::Whole),
            ("", Graphs::Whole),
        ] {
            assert_eq!(of(&notes.replace('\'', "\"\"")), want, "{notes}");
        }
    }

    /// Micro-batches are paired where a row says so, and else where its system's recipes do.
    #[test]
    fn pairs_are_read() {
        use Pairs::{Always, Interleaved, Never};
        let of = |vpp: &str, notes: &str, pairs| {
            stated(&run_of("vpp,experts", &format!("{vpp},8"), notes), Framework { pairs, ..Framework::default() })
                .hidden_ep
        };
        assert_eq!([of("1", "", Never), of("2", "", Interleaved), of("1", "", Interleaved)], [0.0, PAIRED_NCCL, 0.0]);
        assert_eq!([of("1", "hybridep", Always), of("1", "ep overlap off", Always)], [PAIRED, 0.0]);
        assert_eq!(of("1", "overlap_moe_expert_parallel_comm=True", Never), PAIRED_NCCL);
    }

    /// Options as scripts and configurations have them.
    #[test]
    fn options_are_read_in_their_spellings() {
        let with = |notes: &str| as_stated("", notes, find(&known(), notes));
        for notes in ["NeMo tp_comm_overlap: false", "NeMo; no TP comm overlap", "NeMo TP comm overlap off"] {
            assert_eq!(with(notes).hidden_tp, 0.0, "{notes}");
        }
        let nemo = with("NeMo overlap_grad_reduce=False overlap_param_gather=False");
        assert!(!nemo.overlap_gradients && !nemo.overlap_parameters && with("NeMo").overlap_gradients);
        let gathers = ["overlap_param_gather", "overlap_param_gather_with_optimizer_step=False", ""];
        assert_eq!(gathers.map(|notes| with(notes).overlap_parameters), [true, false, false]);
        assert_eq!(
            (with("Megatron-LM --tp-comm-overlap").hidden_tp, with("enable_async_tensor_parallel=true").hidden_tp),
            (0.75, ASYNC)
        );
        let stage = |notes: &str| said_zero(&run_of("pp", "1", &notes.replace('"', "'")), &Framework::default());
        for (notes, want) in [
            (r#"{"zero_optimization":{"overlap_comm":true,"stage":3}}"#, Some(3)),
            ("use_distributed_optimizer=True", Some(1)),
            ("FSDP SHARD_GRAD_OP", Some(2)),
            ("FSDP2 reshard_after_forward=False", Some(2)),
            ("FSDP2", Some(3)),
            ("use_distributed_optimizer: False", Some(0)),
            ("ours is faster than DeepSpeed ZeRO-3", None),
            ("FSDP sharding_strategy=NO_SHARD", None),
            ("ici_fsdp_parallelism=1 ici_tensor_parallelism=8", None),
        ] {
            assert_eq!(stage(notes), want, "{notes}");
        }
        assert!(with("ZeRO-3 overlap_comm=true").prefetch && !with("ZeRO-3").prefetch);
        let way = |notes: &str| context(&run_of("cp", "4", notes));
        for (notes, want) in [
            ("--cp-comm-type p2p", CpAlgo::Ring),
            ("cp_comm_type: a2a", CpAlgo::Ulysses),
            ("cp-comm-type=a2a+p2p", CpAlgo::Hybrid),
            ("kvallgather_cp_algo", CpAlgo::Gather),
        ] {
            assert_eq!(way(notes), Some(want), "{notes}");
        }
        let name = |notes: &str| find(&known(), notes).name;
        assert_eq!(
            (name("torchtitan FSDP2 compile.enable=false"), name("Megatron Core 0.12")),
            ("torchtitan-eager".into(), "megatron-lm".into())
        );
        assert_eq!(
            (name("Megatron-DeepSpeed"), name("faster than Megatron-LM")),
            ("megatron-deepspeed".into(), "eager".into())
        );
        // Beneath a pipeline what a system shards unasked stays whole within a step.
        let sharded = |pp: &str| zero(&run_of("pp", pp, "torchtitan"), &find(&known(), "torchtitan"));
        assert_eq!((sharded("1"), sharded("2")), (3, 1));
    }

    /// What notes changed is told, and what they did not is not.
    #[test]
    fn what_was_read_is_told() {
        let profile = find(&known(), "megatron-core");
        let run = run_of(
            "cp,experts,pp,tp",
            "2,8,4,2",
            "DeepEP, ring attention; ZeRO-1; zb-h1; sequence parallel; capacity factor 2",
        );
        let want = [
            "deduplicates = true",
            "zero = 1",
            "sp = 1",
            "cp_algo = ring",
            "schedule = zb-h1",
            "rows of the busiest rank = 2 of the mean",
        ];
        let heard = heard(&run, &profile);
        assert!(want.iter().all(|what| heard.contains(&what.to_string())), "{heard:?}");
        let nothing = super::heard(&run_of("cp,experts,pp,tp", "2,8,4,2", "deeep, sequence-parallell"), &profile);
        assert_eq!(nothing, Vec::<String>::new());
    }
}
