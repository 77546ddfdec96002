//! The strategy of a measured run.

use super::notes;
use super::runs::Run;
use super::shape::{Shape, is_packed};
use crate::framework::Framework;
use crate::says::{said, said_any};
use forebay_compiler::overlap::Passes;
use forebay_compiler::shard::{CpAlgo, Cut, EtpGather, Order, Strategy};
use forebay_pipeline::{Kind, Placement};

/// The strategy.
///
/// # Errors
/// What is missing or does not fit: a sentence.
pub fn strategy(run: &Run, shape: &Shape, framework: &Framework) -> Result<Strategy, String> {
    let degree = |name: &str| u32::try_from(run.degree(name)).map_err(|_| format!("`{name}` is too large"));
    let (tp, pp, cp) = (degree("tp")?, degree("pp")?, degree("cp")?);
    let schedule = notes::schedule(run).unwrap_or(Kind::OneFOneB);
    let vpp = match schedule.placement() {
        _ if pp == 1 => 1,
        // Whatever parts its stages have, of these the schedule says how many.
        Placement::Wave => 2,
        Placement::TwoWay => 1,
        _ => degree("vpp")?,
    };
    let ep = degree("ep")?;
    let devices = degree("n_devices")?;
    let model = tp.checked_mul(pp).and_then(|n| n.checked_mul(cp)).ok_or("the degrees are too large")?;
    let dp = run.data_parallel() as u32;
    if u64::from(dp) * u64::from(model) != u64::from(devices) {
        return Err(format!("dp {dp} × tp {tp} × pp {pp} × cp {cp} are not its {devices} devices"));
    }
    let ours = framework.is_ours();
    // What is not said is as the framework has it, where that many ranks can share experts.
    let cut = framework.cuts_experts && u64::from(dp * cp).is_multiple_of(u64::from(ep));
    let unstated = if cut { u64::from(tp) } else { 1 };
    // (Experts' tensor-parallel ranks are among those of tensor parallelism: what is more is told of, [`cut_etp`].)
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
    let bound = (rows * notes::imbalance(run, framework)).ceil() as u64;
    let strategy = Strategy {
        dp,
        tp,
        sp: notes::sequence_parallel(run, framework),
        ep,
        etp,
        // As Megatron-Core's dispatcher does.
        etp_gather: if ep > 1 && etp > 1 && !ours { EtpGather::After } else { EtpGather::Before },
        cp,
        cp_algo: context(run, shape, u64::from(tp), u64::from(cp)),
        pp,
        vpp,
        schedule: Order::Published(schedule),
        micro: Some(u32::try_from(micro).map_err(|_| "there are too many micro-batches")?),
        mbs: Some(u32::try_from(mbs).map_err(|_| "`mbs` is too large")?),
        zero: notes::zero(run, framework),
        hsdp: notes::sharing_ranks(run, framework)?,
        keep: framework.keep(),
        stages: (if let Some(stated) = stated_stages(run, shape.layers(), u64::from(pp), vpp) {
            Some(stated)
        } else if ours {
            None
        } else if framework.balances_head && pp > 1 && vpp == 1 {
            stages_by_work(shape.layers(), u64::from(pp), shape.head_in_layers())
        } else {
            stages(shape.layers(), u64::from(pp) * u64::from(vpp), shape.tail_in_layers())
        })
        .map_or(Cut::Even, Cut::Given),
        // Ours has room for the worst case where nothing bounds it.
        max_tokens_per_rank: (shape.experts() > 0 && ep > 1 && !ours).then_some(bound),
        // What overlaps in other systems is said by their profiles, not by our passes.
        overlap: if ours { Passes::default() } else { Passes::none() },
        ..Strategy::default()
    };
    Ok(notes::with_state(&run.text.to_lowercase(), strategy))
}

/// How attention sees positions of other ranks: as the row says; else, and for rings, by sharing heads, which does the same work in even parts as balanced rings do, in as many kernels as other systems have, and
/// profiles say how much of their communication is hidden. Where ranks cannot have whole heads, each gathers the keys, which are as many bytes as go round a ring.
fn context(run: &Run, shape: &Shape, tp: u64, cp: u64) -> CpAlgo {
    let shares_heads = shape.has_heads_for(tp * cp);
    match notes::context(run) {
        Some(CpAlgo::Ulysses | CpAlgo::Ring) | None if shares_heads => CpAlgo::Ulysses,
        Some(CpAlgo::Ulysses | CpAlgo::Ring) | None => CpAlgo::Gather,
        Some(said) => said,
    }
}

/// The row with its blanks of `mbs` and `vpp` filled in the ways that runs mostly have them: micro-batches of 1, 2, 4 or 8 rows; with interleaved schedules
/// chunks of as few layers as divide, of twice and four times as many. The row as it stands is the first.
pub fn filled(run: &Run, shape: &Shape, framework: &Framework) -> Vec<Run> {
    let pp = run.degree("pp");
    if framework.is_ours() {
        // As `simulate` has it: one micro-batch, one part of each stage.
        let rows = run.number("mbs").unwrap_or(run.degree("gbs") / run.data_parallel().max(1)).max(1);
        return vec![run.with("mbs", rows).with("vpp", run.degree("vpp"))];
    }
    let of = |name: &str, blank: bool, values: &[u64]| if blank { values.to_vec() } else { vec![run.degree(name)] };
    let rows = of("mbs", run.number("mbs").is_none(), &[1, 2, 4, 8]);
    // (Schedules that a row names have the parts that they have.)
    let listed = stated_stages(run, shape.layers(), pp, 1).is_some();
    let usual = interleaving(&run.text).unwrap_or(framework.interleaves);
    let interleaves = usual && run.number("vpp").is_none() && pp > 1 && notes::schedule(run).is_none() && !listed;
    // Embedding and loss may count as layers of their own: 126 layers in 16 stages of 8.
    let whole = [0, 1, 2].map(|ends| shape.layers() + ends).into_iter().find(|n| n.is_multiple_of(pp));
    let layers = whole.unwrap_or(shape.layers()) / pp;
    let parts = [1, 2, layers / 4, layers / 2, layers];
    let mut chunks: Vec<u64> = of("vpp", interleaves, &parts);
    // Other cuts that are not even, and those of steps without whole rounds, are nobody's choice.
    chunks.retain(|&n| n == 1 || !interleaves || (n > 0 && (layers * pp).is_multiple_of(pp * n)));
    chunks.sort_unstable();
    chunks.dedup();
    let with = |mbs: u64| chunks.iter().map(move |&vpp| (mbs, vpp));
    rows.into_iter().flat_map(with).map(|(mbs, vpp)| run.with("mbs", mbs).with("vpp", vpp)).collect()
}

/// Does a text say, or deny, that stages have several parts?
pub fn interleaving(text: &str) -> Option<bool> {
    let text = text.to_lowercase();
    let denied = said(&text, "interleaving").filter(|is| !is);
    denied.or_else(|| said_any(&text, &INTERLEAVED))
}

/// What says that a stage has several parts. (Other things are interleaved too: windows, positions, experts.)
const INTERLEAVED: [&str; 5] =
    ["interleaved 1f1b", "interleaved1f1b", "1f1b interleaved", "interleaved pipeline", "interleaved schedule"];

/// What was taken for the row's blanks, recomputation left out: `mbs = 1`.
pub fn assumed(run: &Run, filled: &Run, shape: &Shape, strategy: &Strategy) -> Vec<String> {
    let pipelined = run.degree("pp") > 1 && notes::schedule(run).is_none();
    let degrees =
        [("tp", true), ("pp", true), ("cp", true), ("ep", shape.experts() > 0), ("vpp", pipelined), ("mbs", true)];
    let blank = |name: &str| run.number(name).is_none();
    let taken = degrees.iter().filter(|(name, matters)| *matters && blank(name));
    let mut assumed: Vec<String> = taken.map(|(name, _)| format!("{name} = {}", filled.degree(name))).collect();
    let sp = run.degree("tp") > 1 && !notes::says_sequence_parallel(run);
    assumed.extend(sp.then(|| format!("sp = {}", u8::from(strategy.sp))));
    let packed = is_packed(&run.text) && shape.documents().is_none();
    let words = [
        (blank("kv_heads") && !shape.is_latent(), "kv_heads = heads"),
        (run.head.is_empty(), "head_dim = hidden / heads"),
        (run.precision.is_empty(), "precision = bf16"),
        (packed, "documents as long as rows"),
    ];
    assumed.extend(words.iter().filter(|(is_blank, _)| *is_blank).map(|(_, what)| what.to_string()));
    assumed
}

/// Layers of each stage as the run's options give them: `num-layer-list=17,20,22,21`.
fn stated_stages(run: &Run, layers: u64, pp: u64, vpp: u32) -> Option<Vec<u32>> {
    let (_, rest) = run.text.split_once("num-layer-list")?;
    let rest = rest.trim_start_matches(['=', ' ', ':', '"', '[']);
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

/// That a run's experts have fewer tensor-parallel ranks than it says, where it says more than there are.
pub fn cut_etp(run: &Run, shape: &Shape) -> Option<String> {
    let (etp, tp) = (run.number("etp")?, run.degree("tp"));
    (shape.experts() > 0 && etp > tp).then(|| format!("etp = {tp} (the row says {etp}, which is more than tp)"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::framework::{find, known};

    /// 126 layers are 128 parts with embedding and loss: chunks of 2 and 4 are tried, and those that divide nothing are not.
    #[test]
    fn chunks_are_filled_where_layers_nearly_divide() {
        let of = |source: &str, layers: u32, pp: u32| -> Vec<u64> {
            let columns =
                "layers,hidden,heads,ffn_hidden,vocab,seq_len,device,n_devices,tp,pp,mbs,gbs,step_time_s,source";
            let table = format!("{columns}\n{layers},512,8,2048,32000,512,H100,{pp},1,{pp},1,32,1,{source}\n");
            let run = super::super::runs::read(&table).expect("a table").runs.remove(0);
            filled(&run, &Shape::of(&run, 1).expect("a shape"), &find(&known(), &run.text))
                .iter()
                .map(|run| run.degree("vpp"))
                .collect()
        };
        let chunks = |layers, pp| of("Megatron-LM", layers, pp);
        assert_eq!((chunks(126, 16), chunks(128, 16)), (vec![1, 2, 4, 8], vec![1, 2, 4, 8]));
        // Systems whose pipelines have one part a stage, unless they are told otherwise.
        assert_eq!([of("Megatron-DeepSpeed", 24, 4), of("a system", 24, 4)], [vec![1], vec![1]]);
        assert_eq!(of("torchtitan Interleaved1F1B", 24, 4), [1, 2, 3, 6]);
        assert_eq!(of("torchtitan interleaved RoPE", 24, 4), [1]);
        assert_eq!(of("Megatron-LM non-interleaved 1F1B", 24, 4), [1]);
        assert_eq!(of("Megatron-LM 1F1B (no interleaving)", 24, 4), [1]);
        assert_eq!((chunks(24, 4), chunks(13, 8)), (vec![1, 2, 3, 6], vec![1]));
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

    /// A schedule that a row names has the parts that it has, and none are guessed; listed layers are of stages with one part.
    #[test]
    fn named_schedules_have_their_parts() {
        let of = |notes: &str| {
            let columns =
                "layers,hidden,heads,ffn_hidden,vocab,seq_len,device,n_devices,pp,mbs,gbs,step_time_s,notes_config";
            let table = format!("{columns}\n32,512,8,2048,32000,512,H100,4,4,1,32,1,\"{notes}\"\n");
            let run = super::super::runs::read(&table).expect("a table").runs.remove(0);
            let framework = find(&known(), &run.text);
            let shape = Shape::of(&run, 1).expect("a shape");
            let filled = filled(&run, &shape, &framework);
            let strategy = strategy(&filled[0], &shape, &framework).expect("a strategy");
            (filled.len(), strategy.vpp, strategy.schedule)
        };
        assert_eq!(of("ZB-V"), (1, 2, Order::Published(Kind::ZbV)));
        assert_eq!(of("DualPipe"), (1, 1, Order::Published(Kind::DualPipe)));
        assert_eq!(of("num-layer-list=7,8,8,9"), (1, 1, Order::Published(Kind::OneFOneB)));
        assert!(of("Megatron-LM").0 > 1);
    }
}
