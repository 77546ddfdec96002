//! What ranks share, in the words of a row: stages of ZeRO, FSDP in its kinds, options of systems.

use super::Run;
use crate::framework::Framework;
use crate::says::{is_compared, is_denied, number_of, said, said_any, says};
use regex_lite::Regex;
use std::borrow::Cow;
use std::sync::LazyLock;

/// What ranks share: what the row says, else what its system does unasked.
pub fn zero(run: &Run, framework: &Framework) -> u32 {
    let whole = keeps_whole(run, framework);
    said_zero(run, framework).unwrap_or(if whole { framework.zero.min(1) } else { framework.zero })
}

/// The stage of ZeRO that a row says: by a column, by a number in its notes, or by a system's name for it.
pub fn said_zero(run: &Run, framework: &Framework) -> Option<u32> {
    let text = run.text.to_lowercase();
    let options = ["distributed optimizer", "parallel_optimizer"];
    let whole = keeps_whole(run, framework);
    // PyTorch's `SHARD_GRAD_OP`, and what is not sharded again behind its forward pass.
    let once = says(&text, "shard_grad_op") || said(&text, "reshard_after_forward") == Some(false);
    let stage = if whole { 1 } else { 3 - u32::from(once) };
    let sharded = || is_fully_sharded(&text).then_some(stage);
    let shared = || said_any(&text, &options).map(u32::from);
    // (Parameters are gathered where the optimizer has a part of them.)
    let gathered = || {
        let text = without_longer_option(&text);
        GATHERED.iter().any(|words| says(&text, words)).then_some(1)
    };
    numbered_zero(run).or_else(sharded).or_else(shared).or_else(gathered)
}

/// A text without the option that begins as `overlap-param-gather` does, and says nothing of it.
pub fn without_longer_option(text: &str) -> Cow<'_, str> {
    static LONGER: LazyLock<Regex> = LazyLock::new(|| {
        Regex::new(r"overlap[-_]param[-_]gather[-_]with[-_]optimizer[-_]step").expect("the pattern is right")
    });
    LONGER.replace_all(text, "")
}

/// Options of Megatron-Core and NeMo that only a distributed optimizer has.
const GATHERED: [&str; 3] = ["overlap-param-gather", "overlap-param-sync", "distributed_fused_adam"];

/// Does a row say that each rank has everything?
pub fn has_replicas(run: &Run) -> bool {
    said_any(&run.text.to_lowercase(), &["ddp", "distributeddataparallel", "no sharding", "nothing sharded"])
        == Some(true)
}

/// How many neighbours of the data-parallel ranks share what `zero` has them share, where the row says that it is not all of them: so many (`dp_shard=8`), all over so many replicas
/// (`data_parallel_replicate_degree=4`), or those of a node (`HSDP`, without a number).
///
/// # Errors
/// A number that does not divide the data-parallel ranks: a sentence.
pub fn sharing_ranks(run: &Run, framework: &Framework) -> Result<Option<u32>, String> {
    let (text, dp) = (run.text.to_lowercase(), run.data_parallel());
    if zero(run, framework) == 0 || dp <= 1 {
        return Ok(None);
    }
    let number = |phrases: &[&str]| {
        let number = phrases.iter().find_map(|phrase| number_of(&text, phrase));
        number.filter(|n| n.fract() == 0.0 && *n >= 1.0).map(|n| n as u64)
    };
    // Replicas by ranks that share, as PyTorch's meshes of both have them.
    let in_mesh = || {
        let found = HSDP_MESH.captures(&text)?;
        let whole = found.get(0)?;
        let [replicas, shards] = [1, 2].map(|n| found[n].parse::<u64>().unwrap_or(u64::MAX));
        let is_meant = !is_denied(&text[..whole.start()], &text[whole.end()..]);
        (is_meant && found.get(3).is_none()).then_some((replicas, shards))
    };
    // (A 1 switches them on.)
    let sharing = match number(&SHARDS) {
        None => match in_mesh() {
            Some((replicas, shards)) if replicas.checked_mul(shards) != Some(dp) => {
                return Err(format!("HSDP of {replicas} × {shards} ranks is not of its {dp} data-parallel ranks"));
            }
            Some((_, shards)) => Some(shards),
            None => number(&SWITCHES).filter(|n| *n > 1),
        },
        stated => stated,
    };
    // Nobody says how many: as many as are in a node, in whole groups of experts or parts of one.
    let in_node = || {
        let row = run.degree("tp").saturating_mul(run.degree("cp"));
        let room = (run.number("devices_per_node").unwrap_or(8) / row).clamp(1, dp);
        let ep = run.degree("ep");
        let nests = |ranks: u64| {
            [ep, ep.saturating_mul(run.degree("tp"))]
                .iter()
                .all(|all| (ranks * row).is_multiple_of(*all) || all.is_multiple_of(ranks * row))
        };
        let most = (1..=room).rev().find(|ranks| dp.is_multiple_of(*ranks) && nests(*ranks));
        said_any(&text, &["hsdp", "hybrid_shard", "hybrid sharding"]).filter(|said| *said).and(most)
    };
    // MaxText's, in a slice and over slices; what is neither is replicas.
    let in_slices = || {
        let inner = number(&["ici_fsdp_parallelism"])?;
        let ranks = inner.saturating_mul(number(&["dcn_fsdp_parallelism"]).unwrap_or(1));
        (dp.is_multiple_of(ranks) && !text.contains("dcn_fsdp_parallelism=-1")).then_some(ranks)
    };
    let sharing = sharing.or_else(in_slices);
    let ranks = match (sharing, number(&REPLICAS)) {
        (Some(ranks), _) if ranks >= dp => return Ok(None),
        (Some(ranks), _) if !dp.is_multiple_of(ranks) => {
            return Err(format!("{ranks} ranks that share parameters do not divide its {dp} data-parallel ranks"));
        }
        (None, Some(replicas)) if !dp.is_multiple_of(replicas) => {
            return Err(format!("{replicas} replicas of parameters do not divide its {dp} data-parallel ranks"));
        }
        (ranks, replicas) => ranks.or(replicas.map(|replicas| dp / replicas)).or_else(in_node),
    };
    Ok(ranks.filter(|ranks| *ranks < dp).map(|ranks| ranks as u32))
}

/// What systems call the number of ranks that share: torchtitan, DeepSpeed's MiCS and others.
const SHARDS: [&str; 9] = [
    "data_parallel_shard_degree",
    "dp_shard_degree",
    "dp_shard_size",
    "dp_shard",
    "fsdp_size",
    "fsdp_group_size",
    "shard_group_size",
    "sharding_group_size",
    "mics_shard_size",
];
/// The same, or that it is so: InternEvo and others.
const SWITCHES: [&str; 5] = ["zero1=", "zero1 =", "zero1.size", "zero1=dict(size=", "hsdp="];
/// `HSDP 4x16`: four replicas, each of 16 ranks.
static HSDP_MESH: LazyLock<Regex> = LazyLock::new(|| {
    Regex::new(r"\bhsdp[ =:(]*(?:mesh )?(\d+) ?[x×] ?(\d+)\b( nodes)?").expect("the pattern is right")
});

/// And the number of replicas: torchtitan, Megatron-Core, MaxText.
const REPLICAS: [&str; 6] = [
    "data_parallel_replicate_degree",
    "dp_replicate_degree",
    "dp_replicate_size",
    "dp_replicate",
    "num_distributed_optimizer_instances",
    "dcn_data_parallelism",
];

/// Beneath a pipeline each rank has all parameters while a step's micro-batches run, in some systems.
fn keeps_whole(run: &Run, framework: &Framework) -> bool {
    framework.gathers_once && run.degree("pp") > 1
}

/// The stage that a column says, or a number in the notes.
pub(super) fn numbered_zero(run: &Run) -> Option<u32> {
    let in_json = || STAGE_IN_JSON.captures(&run.text).and_then(|found| found[1].parse().ok());
    let of_others = || {
        let text = run.text.to_lowercase();
        let mut stages = STAGE_OF_OTHERS.captures_iter(&text).filter_map(|found| {
            let (whole, stage) = (found.get(0)?, found.get(1)?);
            (!is_denied(&text[..whole.start()], &text[whole.end()..])).then(|| stage.as_str().parse().ok())?
        });
        stages.next()
    };
    let stated = run.number("zero").map(|stage| stage as u32).or_else(in_json);
    stated.or_else(|| stated_zero(&run.text)).or_else(of_others)
}

/// `deepspeed stage 3`, `sharding="stage2"` (Paddle), `group sharded stage 2`.
static STAGE_OF_OTHERS: LazyLock<Regex> = LazyLock::new(|| {
    Regex::new(r#"\b(?:deepspeed|sharding|group[- _]sharded)["' _=:-]*stage[ _=:-]?([1-3])\b"#)
        .expect("the pattern is right")
});

/// `"zero_optimization": {"overlap_comm": true, "stage": 3}`, of which other keys may stand before the stage.
static STAGE_IN_JSON: LazyLock<Regex> = LazyLock::new(|| {
    Regex::new(r#"(?i)zero_optimization["' ]*[:=]\s*\{[^}]*stage["' ]*[:=]\s*([0-3])\b"#).expect("the pattern is right")
});

/// PyTorch's sharding of parameters, within groups of ranks or over all of them.
pub(super) fn is_fully_sharded(text: &str) -> bool {
    let alone =
        ["no_shard"].iter().any(|words| says(text, words)) || number_of(text, "ici_fsdp_parallelism") == Some(1.0);
    !alone && FULLY_SHARDED.iter().any(|words| says(text, words))
        || number_of(text, "mics_shard_size").is_some_and(|ranks| ranks > 0.0)
}

/// What it is called.
const FULLY_SHARDED: [&str; 10] = [
    "fsdp",
    "hsdp",
    "yafsdp",
    "fully sharded",
    "fully_shard",
    "fullyshardeddataparallel",
    "fsdpstrategy",
    "shard_grad_op",
    "full_shard",
    "hybrid_shard",
];

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
    let number = |text: &str| {
        let text = text.trim_start_matches(BETWEEN);
        let (digit, rest) = text.split_at_checked(1)?;
        let alone = !rest.starts_with(|c: char| c.is_alphanumeric());
        let stage = digit.parse::<u32>().ok().filter(|stage| *stage <= 3 && alone)?;
        Some((stage, is_denied("", rest)))
    };
    // (`ZeRO-DP` is all of it.)
    let after = after.strip_prefix("-dp").filter(|rest| !rest.starts_with(char::is_alphanumeric)).unwrap_or(after);
    let named = after.trim_start_matches(BETWEEN);
    let begins = |words: &[&str]| words.iter().any(|word| named.starts_with(word));
    let other = before.ends_with(|c: char| c.is_alphanumeric()) || before.ends_with("non-") || is_compared(before);
    // (`ZeRO: no offload` denies what comes next.)
    let denied = is_denied(before, after) && !begins(&["no offload"]) || begins(&["disabled", "off", "false"]);
    if other || after.starts_with(|c: char| c.is_alphabetic()) || begins(&["bubble"]) {
        return None;
    }
    let option = named.strip_prefix("optimization").unwrap_or(named).trim_start_matches(BETWEEN);
    let behind = ["stage", "o"].iter().find_map(|word| option.strip_prefix(word).and_then(number));
    let behind = behind.or_else(|| number(after));
    let ahead = || before.trim_end().rsplit_once("stage").and_then(|(_, text)| number(text));
    match behind.or_else(ahead) {
        // (That it is not this stage says of no other.)
        Some((stage, off)) if stage > 0 && (off || is_denied(before, "")) => None,
        Some((stage, _)) => Some(stage),
        None if after.starts_with("++") || begins(&["infinity"]) => Some(3),
        None if begins(&["offload"]) && !is_denied(before, "") => Some(2),
        None if denied => Some(0),
        None => (word == "ZeRO").then_some(1),
    }
}

#[cfg(test)]
mod tests {
    use super::super::stated;
    use super::*;
    use crate::framework::{find, known};

    /// A stated stage of ZeRO goes before what a system does unasked; names of sharding are read.
    #[test]
    fn what_ranks_share_is_read() {
        let of = |notes: &str| {
            let columns = "layers,hidden,heads,vocab,seq_len,device,n_devices,gbs,step_time_s,notes_config";
            let table = format!("{columns}\n1,1,1,1,1,H100,1,1,1,{notes}\n");
            let run = crate::validate::runs::read(&table).expect("a table").runs.remove(0);
            zero(&run, &find(&known(), &run.text))
        };
        let stages = ["ZeRO-2", "zero stage 0", "zero_stage=3", "Megatron-DeepSpeed; ZeRO-1", "zero1(dp8)", "ZeRO: 2"];
        assert_eq!(stages.map(of), [2, 0, 3, 1, 1, 2]);
        let spellings = ["ZeRO (stage 3)", "stage 3 ZeRO", "zero_optimization: {stage: 3}", "ZeRO-Infinity", "ZeRO++"];
        assert_eq!(spellings.map(of), [3; 5]);
        let others = ["ZeRO-DP O3", "ZeRO-DP stage 3", "YaFSDP", "fully_shard", "FSDPStrategy", "deepspeed stage 3"];
        assert_eq!(others.map(of), [3; 6]);
        assert_eq!(["Paddle sharding=stage2", "group sharded stage 2", "ZeRO-1; deepspeed"].map(of), [2, 2, 1]);
        let others = [
            "faster than DeepSpeed stage 3",
            "no sharding stage 2",
            "sharding=stage2 off",
            "DeepSpeed O2",
            "2D sharding o1",
        ];
        assert_eq!(others.map(of), [0; 5]);
        let words = ["Megatron-DeepSpeed", "HSDP", "fully sharded", "NeMo", "ZeRO", "ZeRO-Offload", ""];
        assert_eq!(words.map(of), [0, 3, 3, 1, 1, 2, 0]);
        assert_eq!(["ZeRO: no offload", "ZeRO: no; DeepSpeed", "ZeRO: no"].map(of), [1, 0, 0]);
        // Eager systems share what they say they do; a column goes before all of that.
        let column = "layers,hidden,heads,vocab,seq_len,device,n_devices,gbs,step_time_s,zero,notes_config\n";
        let table = format!("{column}1,1,1,1,1,H100,1,1,1,2,ZeRO-1\n");
        let run = crate::validate::runs::read(&table).expect("a table").runs.remove(0);
        assert_eq!(zero(&run, &Framework::default()), 2);
        let denied = ["no ZeRO", "NeMo without ZeRO", "ZeRO disabled", "use_zero=False", "zero=off"];
        assert_eq!(denied.map(of), [0; 5]);
        let gathered = ["Megatron-LM --overlap-param-gather", "Megatron-LM overlap_param_gather=False", "Megatron-LM"];
        assert_eq!(gathered.map(of), [1, 0, 0]);
        assert_eq!(of("Megatron-LM overlap_param_gather_with_optimizer_step=False"), 0);
        let numbers = ["no ZeRO-3", "DeepSpeed without ZeRO-3", "ZeRO-3 disabled", "ZeRO-3: off", "no ZeRO-3; ZeRO-1"];
        assert_eq!(numbers.map(of), [0, 0, 0, 0, 1]);
        let denied = [
            "NeMo; disable ZeRO",
            "NeMo (neither FSDP nor ZeRO)",
            "NeMo: not ZeRO",
            "NeMo ZeRO: none",
            "not ZeRO-Offload",
        ];
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

    /// Sharing goes on among neighbours where a row says so; a number of ranks that cannot be is told.
    #[test]
    fn groups_that_share_are_read() {
        let of = |dp: u32, tp: u32, notes: &str| {
            let columns = "layers,hidden,heads,vocab,seq_len,device,n_devices,dp,tp,gbs,step_time_s,notes_config";
            let table = format!("{columns}\n1,1,1,1,1,H100,{},{dp},{tp},1,1,\"{notes}\"\n", dp * tp);
            let run = crate::validate::runs::read(&table).expect("a table").runs.remove(0);
            sharing_ranks(&run, &find(&known(), &run.text))
        };
        let some = |notes: &str| of(64, 1, notes).unwrap_or_else(|e| panic!("{notes}: {e}"));
        assert_eq!(["HSDP", "FSDP HYBRID_SHARD", "HSDP, dp_shard=16"].map(some), [Some(8), Some(8), Some(16)]);
        let replicas = ["FSDP data_parallel_replicate_degree=4", "NeMo num-distributed-optimizer-instances 2"];
        assert_eq!(replicas.map(some), [Some(16), Some(32)]);
        assert_eq!(["InternEvo zero1=dict(size=8)", "zero1=8; interleaved", "zero1 = 8"].map(some), [Some(8); 3]);
        let others = ["DeepSpeed MiCS mics_shard_size=16", "FSDP dp_replicate_size=4", "FSDP2 dcn_data_parallelism=4"];
        assert_eq!(others.map(some), [Some(16); 3]);
        assert_eq!(["HYBRID_SHARD", "FSDP hsdp=1", "FSDP use_hsdp=1"].map(some), [Some(8); 3]);
        let meshes = ["HSDP 4x16", "FSDP hsdp=4x16", "HSDP (4 × 16)", "HSDP 2x32, dp_shard=16", "HSDP mesh 4x16"];
        assert_eq!(meshes.map(some), [Some(16); 5]);
        assert_eq!(some("HSDP 16x8 nodes"), Some(8), "that is no mesh");
        assert_eq!(["no HSDP 4x16; FSDP", "FSDP instead of HSDP 4x16"].map(some), [None; 2]);
        assert!(of(64, 1, "HSDP 3x16").is_err_and(|e| e.contains("3 × 16 ranks is not of its 64")));
        let slices = ["MaxText FSDP ici_fsdp_parallelism=8 ici_data_parallelism=2 dcn_data_parallelism=4"];
        assert_eq!(slices.map(some), [Some(8)]);
        let all = ["MaxText FSDP ici_fsdp_parallelism=8 dcn_fsdp_parallelism=8", "DeepSpeed ZeRO-3 mics_shard_size=-1"];
        assert_eq!(all.map(some), [None; 2]);
        assert_eq!(["zero1=1, Megatron-Core", "FSDP dp_shard=128", "FSDP, HSDP not used"].map(some), [None; 3]);
        let all = [
            "FSDP",
            "ZeRO-3",
            "no HSDP; ZeRO-3",
            "FSDP dp_shard=64",
            "FSDP data_parallel_shard_degree=-1",
            "zero1(dp8)",
        ];
        assert_eq!(all.map(some), [None; 6]);
        assert_eq!([of(64, 4, "HSDP"), of(8, 1, "HSDP"), of(1, 8, "HSDP")], [Ok(Some(2)), Ok(None), Ok(None)]);
        assert_eq!(some("dp_shard=8"), None, "nothing is shared without ZeRO");
        assert_eq!(of(12, 1, "HSDP"), Ok(Some(6)), "as many as can be in a node");
        assert!(of(12, 1, "FSDP dp_shard=8").is_err_and(|e| e.contains("8 ranks that share parameters do not divide")));
        assert!(of(64, 1, "FSDP dp_replicate=3").is_err_and(|e| e.contains("3 replicas")));
    }

    /// Beneath pipelines FSDP has parameters whole while a step's micro-batches run, where a framework does not free them.
    #[test]
    fn pipelines_have_parameters_whole() {
        let of = |pp: u32, notes: &str, gathers_once: bool| {
            let columns = "layers,hidden,heads,vocab,seq_len,device,n_devices,pp,gbs,step_time_s,notes_config";
            let table = format!("{columns}\n2,1,1,1,1,H100,2,{pp},1,1,{notes}\n");
            let run = crate::validate::runs::read(&table).expect("a table").runs.remove(0);
            let framework = stated(&run, Framework { gathers_once, name: "another".into(), ..Framework::default() });
            (zero(&run, &framework), framework.prefetch)
        };
        assert_eq!([of(1, "HYBRID_SHARD", false), of(1, "FSDP", false)], [(3, true); 2]);
        assert_eq!(of(2, "FSDP+PP", true), (1, true));
        assert_eq!([of(1, "FSDP+PP", true), of(2, "FSDP+PP", false)], [(3, true); 2]);
        assert_eq!(of(2, "ZeRO-3", true).0, 3, "that is another system's");
    }
}
