//! What profiles of frameworks change in the price of a run, by hand.

use forebay_cost::{Cluster, known};
use forebay_sim::Kind;
use forebay_sim::framework::{Framework, known as frameworks};
use forebay_sim::recorded::Graphs;
use forebay_sim::report::Report;
use forebay_sim::validate::{prepare, price, runs};

/// A layer on 8 devices; micro-batches of one row of 4,096 tokens, 8 of them.
const HEAD: &str = "id,source,layers,hidden,ffn_hidden,heads,head_dim,vocab,seq_len,device,n_devices,tp,dp,mbs,gbs,precision,recompute,step_time_s";

fn report(source: &str, layout: &str, change: impl Fn(&mut Framework)) -> (Report, Cluster) {
    with_vocabulary(64000, source, layout, change)
}

fn with_vocabulary(words: u32, source: &str, layout: &str, change: impl Fn(&mut Framework)) -> (Report, Cluster) {
    let table = runs::read(&format!("{HEAD}\na,{source},1,2048,8192,16,128,{words},4096,H100,8,{layout},none,1\n"))
        .expect("a table");
    assert_eq!(table.bad, []);
    let (clusters, mut frameworks) = (known::clusters(), frameworks());
    frameworks.iter_mut().for_each(change);
    let (cases, skipped) = prepare(&table.runs, &clusters, &frameworks, 1);
    assert_eq!(skipped, []);
    let report = price(&cases, &clusters, &frameworks, 1).rows.remove(0).report;
    (report, clusters.into_iter().find(|c| c.is_called("H100")).expect("a cluster"))
}

fn seconds(report: &Report, kind: Kind) -> f64 {
    report.by_kind.iter().find(|(of, _)| *of == kind).expect("all kinds are there").1
}

/// A loss of several kernels is so many bytes for each logit, and nothing else; also where ranks share the vocabulary, and our plan reads logits once more, and where a rank's part of it
/// is narrower than the model, so that the largest region of the head is a norm.
#[test]
fn the_loss_takes_its_traffic() {
    for (layout, words, of_rank) in
        [("1,8,1,64,BF16", 64000, 64000.0), ("2,4,1,32,BF16", 64000, 32000.0), ("8,1,1,8,BF16", 8000, 1000.0)]
    {
        let with = |traffic: f64| {
            let (report, cluster) =
                with_vocabulary(words, "MindSpeed use-flash-attn", layout, |f| f.loss_traffic = traffic);
            (seconds(&report, Kind::Vector), cluster.memory_rate())
        };
        let ((six, rate), (fifty, _)) = (with(6.0), with(52.0));
        let logits = 8.0 * 4096.0 * of_rank * 46.0 / rate;
        assert!(((fifty - six) / logits - 1.0).abs() < 0.01, "{layout}: {} is not {logits}", fifty - six);
    }
}

/// At the end of a step all gradients that a rank holds are gone through, and those that it updates once more: with ZeRO an eighth of them, if eight ranks share them. They are divided where others have
/// gradients as well.
#[test]
fn gradients_are_gone_through_once_more() {
    // A layer of a dense model: four products of attention, three of its feed-forward part; embedding and head; norms.
    let (hidden, ffn, words) = (2048.0, 8192.0, 64000.0);
    let elements = 4.0 * hidden * hidden + 3.0 * hidden * ffn + 2.0 * words * hidden + 3.0 * hidden;
    for (layout, held, updated, divided) in
        [("1,8,1,64,BF16", 1.0, 0.125, 1.0), ("8,1,1,8,BF16", 0.125, 0.125, 0.0), ("2,4,1,32,BF16", 0.5, 0.125, 1.0)]
    {
        let with = |own: f64, divide: f64, clip: f64| {
            let (report, cluster) = report("MindSpeed use-flash-attn use-distributed-optimizer", layout, |f| {
                (f.gradient_passes, f.divide_passes, f.clip_traffic) = (own / 4.0, divide / 4.0, clip);
            });
            (seconds(&report, Kind::Optimizer), cluster.memory_rate())
        };
        let (none, rate) = with(0.0, 0.0, 0.0);
        for (bytes, part) in [([80.0, 0.0, 0.0], held), ([0.0, 80.0, 0.0], held * divided), ([0.0, 0.0, 80.0], updated)]
        {
            let more = (with(bytes[0], bytes[1], bytes[2]).0 - none) * rate;
            // (Norms are on all ranks; ranges are padded.)
            let want = 80.0 * elements * part;
            assert!((more - want).abs() <= 0.01 * want, "{layout}, {bytes:?}: {more} is not {want}");
        }
    }
}

/// A product that adds to sums in f32 reads and writes four bytes of each instead of the two of a result; of sums in half two.
#[test]
fn sums_in_half_take_a_third() {
    let with = |bytes: f64| {
        let (report, cluster) = report("Megatron-LM", "1,8,1,64,BF16", |f| f.gradient_bytes = bytes);
        seconds(&report, Kind::Products) * cluster.memory_rate()
    };
    // The products of a layer and its head, in seven of eight micro-batches, the first of which has nothing to add to.
    let elements = 4.0 * 2048.0 * 2048.0 + 3.0 * 2048.0 * 8192.0 + 64000.0 * 2048.0;
    let less = with(4.0) - with(2.0);
    let want = 7.0 * 4.0 * elements;
    assert!((less / want - 1.0).abs() < 0.01, "{less} is not {want}");
}

/// What experts' products in fp8 read need not be cast where kernels before them wrote it so: three bytes for each element of their left inputs, and nothing of other products.
#[test]
fn experts_are_scaled_by_the_kernels_before_them() {
    let with = |before: bool| {
        let table = "id,source,model,layers,hidden,ffn_hidden,moe_ffn_hidden,experts,topk,heads,head_dim,vocab,seq_len,device,n_devices,mbs,gbs,precision,recompute,step_time_s\n\
             a,\"Megatron-Bridge performance summary, 26.06; hybridep\",Mixtral,4,2048,4096,4096,8,2,16,128,32000,2048,H100,1,1,1,MXFP8,none,1\n";
        let (clusters, mut frameworks) = (known::clusters(), frameworks());
        frameworks.iter_mut().for_each(|f| f.scales_experts_before &= before);
        let (cases, skipped) = prepare(&runs::read(table).expect("a table").runs, &clusters, &frameworks, 1);
        assert_eq!(skipped, []);
        let report = price(&cases, &clusters, &frameworks, 1).rows.remove(0).report;
        let rate = clusters.iter().find(|c| c.is_called("H100")).expect("a cluster").memory_rate();
        [Kind::ExpertProducts, Kind::Products].map(|kind| seconds(&report, kind) * rate)
    };
    let (apart, before) = (with(false), with(true));
    // Forwards rows as wide as the model twice, and once as wide as experts; for their gradients once and twice; for those of weights twice and once.
    let elements = 4.0 * 2.0 * 2048.0 * (5.0 * 2048.0 + 4.0 * 4096.0);
    let less = apart[0] - before[0];
    assert!((less / (3.0 * elements) - 1.0).abs() < 0.01, "{less} is not {}", 3.0 * elements);
    assert_eq!(apart[1], before[1]);
}

/// Gathers of activations are half of what tensor parallelism sends, sums the other half: in fp8 a quarter less is sent. With scales for rows nothing is, and products take longer.
#[test]
fn tensor_parallel_ranks_gather_in_fp8() {
    let with = |precision: &str, gathers: bool| {
        let change = |f: &mut Framework| (f.gathers_fp8, f.cast_bytes) = (gathers, 3.0);
        report("torch.compile", &format!("8,1,1,8,{precision}"), change).0
    };
    let bytes = |precision: &str, gathers: bool| with(precision, gathers).total_comm_bytes.tp;
    let wide = bytes("FP8", false);
    let part = bytes("FP8", true) / wide;
    assert!((0.7..0.85).contains(&part), "{part}");
    assert_eq!(bytes("BF16", true), wide);
    assert_eq!(bytes("FP8 rowwise", true), wide);
    let products = |precision: &str| seconds(&with(precision, false), Kind::Products);
    // (Most of it is the layer with the vocabulary, which is in bf16.)
    assert!(products("FP8 rowwise") > 1.02 * products("FP8"), "{} {}", products("FP8 rowwise"), products("FP8"));
}

/// A system that keeps what products read makes no norm and no activation again: less elementwise work, in more memory.
#[test]
fn what_products_read_is_not_made_again() {
    let with = |keeps: bool| {
        report("Megatron-LM", "1,8,1,64,BF16", |f| {
            (f.keeps_inputs, f.vector_passes, f.loss_traffic) = (keeps, 1.0, 0.0);
        })
        .0
    };
    let (kept, again) = (with(true), with(false));
    let work = [&kept, &again].map(|r| seconds(r, Kind::Vector));
    // (Most of it is the loss.)
    assert!(work[0] < 0.99 * work[1], "{work:?}");
    let held = [&kept, &again].map(|r| r.memory_bytes[0].activations);
    assert!(held[0] > held[1], "{held:?}");
}

/// Experts' biases that are added one by one cost the host their starts, and memory what they move; other sums of gradients do not.
#[test]
fn biases_of_experts_are_started_one_by_one() {
    let with = |model: &str, expert_us: f64| {
        let table = format!(
            "id,source,model,layers,hidden,ffn_hidden,moe_ffn_hidden,experts,topk,heads,head_dim,vocab,seq_len,device,n_devices,mbs,gbs,precision,recompute,step_time_s\n\
             a,Megatron-LM,{model},4,512,512,512,32,2,8,64,1024,512,H100,1,1,4,BF16,none,1\n"
        );
        let (clusters, mut frameworks) = (known::clusters(), frameworks());
        frameworks.iter_mut().for_each(|f| (f.expert_us, f.limits_apart) = (expert_us, false));
        let (cases, skipped) = prepare(&runs::read(&table).expect("a table").runs, &clusters, &frameworks, 1);
        assert_eq!(skipped, []);
        price(&cases, &clusters, &frameworks, 1).rows.remove(0).report
    };
    let step = |model: &str, expert_us: f64| with(model, expert_us).step_time_s;
    // 3 biases of 32 experts, 8/3 kernels each, in 4 layers and 4 micro-batches; one start of each sum is there in any case. All of it is host time of a small model.
    let each = |model: &str| step(model, 200.0) - step(model, 1e-6);
    let (slow, fast) = (each("GPT OSS"), each("Mixtral"));
    let start = frameworks().iter().find(|f| f.name == "megatron-lm").expect("it is known").dispatch_us * 1e-6;
    let biases = 4.0 * 4.0 * 3.0 * (32.0 * 8.0 / 3.0 * 200e-6 - start);
    assert!(((slow - fast) / biases - 1.0).abs() < 0.02, "{slow} {fast}, {biases} for biases");
    // 64 bytes for each element of the rows of the last of them, and of each kernel its start on the device.
    let cluster = known::clusters().into_iter().find(|c| c.is_called("H100")).expect("a cluster");
    let longer = |model: &str| {
        let [by_expert, at_once] = [1e-6, 0.0].map(|expert_us| seconds(&with(model, expert_us), Kind::Vector));
        (by_expert - at_once) / (4.0 * 4.0)
    };
    let expected = 64.0 * 512.0 * 2.0 * 512.0 / cluster.memory_rate() + 32.0 * 8.0 * cluster.kernel_start();
    assert!((longer("GPT OSS") / expected - 1.0).abs() < 0.02, "{} s, not {expected}", longer("GPT OSS"));
    assert_eq!(longer("Mixtral"), 0.0);
}

/// Experts of a rank alone compute all that a capacity has room for, and the model's FLOPs are what tokens need; without padding there are no more rows than come.
#[test]
fn a_capacity_is_filled_up_where_no_expert_is_shared() {
    let with_ranks = |ep: u32, notes: &str| {
        let table = format!(
            "id,source,model,layers,hidden,ffn_hidden,moe_ffn_hidden,experts,topk,heads,head_dim,vocab,seq_len,device,n_devices,ep,mbs,gbs,precision,recompute,notes_config,step_time_s\n\
             a,Megatron-LM,Mixtral,2,2048,4096,4096,8,2,16,128,512,4096,H100,8,{ep},1,8,BF16,none,{notes},1\n"
        );
        let (clusters, frameworks) = (known::clusters(), frameworks());
        let (cases, skipped) = prepare(&runs::read(&table).expect("a table").runs, &clusters, &frameworks, 1);
        assert_eq!(skipped, []);
        price(&cases, &clusters, &frameworks, 1).rows.remove(0).report
    };
    let with = |notes: &str| with_ranks(1, notes);
    let even = with("router forced to balance");
    let [one, twice, bound] =
        ["capacity factor 1 padded", "capacity factor 2 padded", "--moe-expert-capacity-factor 2"].map(with);
    let products = |report: &Report| seconds(report, Kind::ExpertProducts) / seconds(&even, Kind::ExpertProducts);
    assert_eq!((products(&one), products(&bound)), (1.0, 1.0));
    assert!((1.8..2.0).contains(&products(&twice)), "{}", products(&twice));
    let elementwise = seconds(&twice, Kind::Vector) / seconds(&even, Kind::Vector);
    assert!((1.05..1.3).contains(&elementwise), "{elementwise}");
    // As many FLOPs are done for tokens, in more time.
    let done = |report: &Report| report.hfu * report.step_time_s;
    assert!((done(&twice) / done(&even) - 1.0).abs() < 1e-9);
    assert!(twice.mfu < 0.9 * even.mfu);
    // Rows that are shared go to each expert, so many of them; what is sent once for several experts has no more than that.
    let rows = |notes: &str| with_ranks(8, notes).total_comm_bytes.ep;
    let sent = |times: u32| rows(&format!("capacity factor {times} padded"));
    assert!((sent(16) / sent(4) - 4.0).abs() < 0.05, "{} {}", sent(16), sent(4));
    let once = |times: u32| rows(&format!("DeepEP; capacity factor {times} padded"));
    assert_eq!(once(16), once(8));
}

/// Limits of a gate and of its value that are kernels of their own are cut and put beside each other forwards, again where activations are made again, and compared, joined, chosen and
/// put beside each other backwards: three and seven kernels.
#[test]
fn limits_of_experts_are_kernels_of_their_own() {
    let with = |model: &str, how: &str, limits_apart: bool| {
        let table = format!(
            "id,source,model,layers,hidden,ffn_hidden,moe_ffn_hidden,experts,topk,heads,head_dim,vocab,seq_len,device,n_devices,mbs,gbs,precision,recompute,step_time_s\n\
             a,Megatron-Bridge,{model},4,512,512,512,32,2,8,64,1024,512,H100,1,1,4,{how},1\n"
        );
        let (clusters, mut frameworks) = (known::clusters(), frameworks());
        frameworks.iter_mut().for_each(|f| f.limits_apart = limits_apart);
        let (cases, skipped) = prepare(&runs::read(&table).expect("a table").runs, &clusters, &frameworks, 1);
        assert_eq!(skipped, []);
        let report = price(&cases, &clusters, &frameworks, 1).rows.remove(0).report;
        seconds(&report, Kind::Vector) + seconds(&report, Kind::ExpertProducts)
    };
    let cluster = known::clusters().into_iter().find(|c| c.is_called("H100")).expect("a cluster");
    let elements = 512.0 * 2.0 * 512.0;
    // Bytes for an element of the gate and of its value together, and kernels, in 4 layers and 4 micro-batches.
    for (how, bytes, kernels) in
        [("BF16,none", 2.0 * (8.0 + 15.0), 10.0), ("BF16,full", 2.0 * (8.0 + 8.0 + 15.0), 13.0)]
    {
        let longer = |model: &str| (with(model, how, true) - with(model, how, false)) / (4.0 * 4.0);
        let expected = bytes * elements / cluster.memory_rate() + kernels * cluster.kernel_start();
        assert!((longer("GPT OSS") / expected - 1.0).abs() < 1e-3, "{how}: {} s, not {expected}", longer("GPT OSS"));
        assert_eq!(longer("Mixtral"), 0.0);
    }
    // What is a profile's own word on it.
    let apart = |name: &str| frameworks().iter().find(|f| f.name == name).expect("it is known").limits_apart;
    assert!(apart("megatron-core") && apart("megatron-graphs") && !apart("megatron-paired-graphs"));
}

/// Kernels of a layer, and bytes of its elementwise ones for an element of its input, forwards and backwards. What frameworks do is fitted as multiples of these (`dispatch_us` and
/// `vector_passes`): where they change because plans became better or worse, frameworks have not, and those with such layers must be fitted again (docs/accuracy.md).
#[test]
fn frameworks_are_multiples_of_these_layers() {
    let layer = |(source, model): (&str, &str), sizes: &str| {
        let with = |layers: u32, change: &dyn Fn(&mut Framework)| {
            let table = format!(
                "id,source,model,layers,hidden,ffn_hidden,moe_ffn_hidden,experts,topk,heads,kv_heads,head_dim,vocab,seq_len,device,n_devices,mbs,gbs,precision,recompute,step_time_s\n\
                 a,{source},{model},{layers},2048,{sizes},128,32000,2048,H100,1,1,1,BF16,none,1\n"
            );
            let (clusters, mut frameworks) = (known::clusters(), frameworks());
            frameworks.iter_mut().for_each(change);
            let (cases, skipped) = prepare(&runs::read(&table).expect("a table").runs, &clusters, &frameworks, 1);
            assert_eq!(skipped, []);
            let rate = clusters.iter().find(|c| c.is_called("H100")).expect("a cluster").memory_rate();
            (price(&cases, &clusters, &frameworks, 1).rows.remove(0).report, rate)
        };
        let one = |change: &dyn Fn(&mut Framework), of: &dyn Fn(&Report) -> f64| {
            let ((more, rate), (less, _)) = (with(6, change), with(2, change));
            ((of(&more) - of(&less)) / 4.0, rate)
        };
        // Hosts so slow that a step is its starts.
        let (kernels, _) = one(&|f| f.dispatch_us = 1e6, &|r| r.step_time_s);
        let elementwise =
            |passes: f64| one(&move |f: &mut Framework| f.vector_passes = passes, &|r| seconds(r, Kind::Vector));
        let ((twice, rate), (once, _)) = (elementwise(2.0), elementwise(1.0));
        let bytes = (twice - once) * rate / (2048.0 * 2048.0);
        // (A quarter of a kernel, and half a byte: sizes round.)
        ((kernels * 4.0).round() / 4.0, (bytes * 2.0).round() / 2.0)
    };
    // Of a system that keeps what products read, and of one that makes it again.
    let have: Vec<_> = [
        ("GPT", "8192,,,,16,16"),
        ("Llama", "5632,,,,16,4"),
        ("Mixtral", "4096,4096,8,2,16,4"),
        ("GPT OSS", "2048,2048,8,2,16,4"),
    ]
    .map(|(model, sizes)| (model, ["PyTorch", "Megatron-DeepSpeed"].map(|source| layer((source, model), sizes))))
    .to_vec();
    let want = [
        ("GPT", [(32.0, 46.0), (32.0, 50.0)]),
        ("Llama", [(41.0, 53.5), (41.0, 57.5)]),
        ("Mixtral", [(68.0, 102.0), (67.0, 102.0)]),
        ("GPT OSS", [(90.0, 183.0), (89.0, 187.0)]),
    ];
    assert_eq!(have, want, "fit what sim/frameworks.toml says of systems with such layers again");
}

/// Sums that all ranks have are one call of a system that is not ours: in half precision they send half as much, both ways.
#[test]
fn gradients_in_half_are_sent_in_half() {
    let with = |bytes: f64| report("Megatron-DeepSpeed ZeRO-0", "1,8,1,8,BF16", |f| f.gradient_bytes = bytes).0;
    let (half, whole) = (with(2.0), with(4.0));
    let part = half.total_comm_bytes.dp / whole.total_comm_bytes.dp;
    assert!((part - 0.5).abs() < 1e-3, "{part} of the bytes");
    let part = half.total_comm_s.dp / whole.total_comm_s.dp;
    assert!((0.5..0.55).contains(&part), "{part} of the time");
}

/// What a framework hides is communication all the same; it cannot hide more of it than there is work in the program.
#[test]
fn what_is_hidden_is_counted_and_needs_work_to_hide_behind() {
    let with = |hidden: f64| report("Megatron-LM", "8,1,1,8,BF16", |f| f.hidden_tp = hidden).0;
    let (shown, half, all) = (with(0.0), with(0.5), with(1.0));
    for hides in [&half, &all] {
        assert!((hides.total_comm_s.tp / shown.total_comm_s.tp - 1.0).abs() < 1e-9);
        assert_eq!(hides.total_comm_bytes.tp, shown.total_comm_bytes.tp);
    }
    assert!((half.exposed_comm_s.tp / (0.5 * shown.exposed_comm_s.tp) - 1.0).abs() < 0.02);
    // On links that are a thousand times as slow most cannot be hidden.
    let table = format!("{HEAD}\na,Megatron-LM,1,2048,8192,16,128,64000,4096,H100,8,8,1,1,8,BF16,none,1\n");
    let table = runs::read(&table).expect("a table");
    let mut clusters = known::clusters();
    clusters.iter_mut().for_each(|c| c.tiers[0].gbps.0 /= 1e3);
    let slow = |hidden: f64| {
        let mut frameworks = frameworks();
        frameworks.iter_mut().for_each(|f| f.hidden_tp = hidden);
        let (cases, _) = prepare(&table.runs, &clusters, &frameworks, 1);
        price(&cases, &clusters, &frameworks, 1).rows.remove(0).report
    };
    let (shown, all) = (slow(0.0), slow(1.0));
    assert!(all.step_time_s > 0.8 * shown.step_time_s, "{} of {}", all.step_time_s, shown.step_time_s);
    assert!(all.step_time_s < shown.step_time_s);
}

/// Of elementwise work that is made again in part a part of the kernels is started, so that a step that waits for its host waits for these.
#[test]
fn parts_that_are_made_again_start_a_part_of_the_kernels() {
    let with = |recompute: &str| {
        let table = format!("{HEAD}\na,Megatron-LM,1,2048,8192,16,128,64000,4096,H100,8,1,8,1,64,BF16,{recompute},1\n");
        let (clusters, mut frameworks) = (known::clusters(), frameworks());
        frameworks.iter_mut().for_each(|f| f.dispatch_us = 1e4);
        let (cases, skipped) = prepare(&runs::read(&table).expect("a table").runs, &clusters, &frameworks, 1);
        assert_eq!(skipped, []);
        price(&cases, &clusters, &frameworks, 1).rows.remove(0).report.step_time_s
    };
    let more = |recompute: &str| with(recompute) - with("none");
    let (norm, both) = (more("selective: layernorm"), more("selective: layernorm act"));
    assert!((both / norm / (0.6 / 0.35) - 1.0).abs() < 0.02, "{norm} and {both}");
}

/// The first run of a table.
fn priced(table: &str) -> Report {
    let table = runs::read(table).expect("a table");
    let (clusters, frameworks) = (known::clusters(), frameworks());
    let (cases, skipped) = prepare(&table.runs, &clusters, &frameworks, 1);
    assert_eq!(skipped, []);
    price(&cases, &clusters, &frameworks, 1).rows.remove(0).report
}

/// A mixture of 64 experts, four of a token, on eight nodes, with these notes.
fn mixture(notes: &str) -> Report {
    let table = format!(
        "id,source,layers,hidden,moe_ffn_hidden,experts,topk,heads,head_dim,vocab,seq_len,device,n_devices,ep,dp,mbs,gbs,precision,recompute,step_time_s,notes_config\n\
         a,Megatron-LM,2,2048,1024,64,4,16,128,32000,4096,H100,64,64,64,1,64,BF16,none,1,\"force-balanced; {notes}\"\n"
    );
    priced(&table)
}

/// What is sent to experts in fp8 is a little more than half of what comes back; a token that goes once to each node goes to fewer where its router chooses among fewer; room that is not used is computed,
/// and sent, all the same.
#[test]
fn rows_of_experts_are_sent_as_notes_say() {
    let near = |got: f64, want: f64, within: f64| assert!((got / want - 1.0).abs() < within, "{got} is not {want}");
    let plain = mixture("");
    near(mixture("FP8 dispatch").total_comm_bytes.ep / plain.total_comm_bytes.ep, (1.03125 + 2.0) / 4.0, 0.01);
    let nodes = |n: f64| n * (1.0 - (1.0 - 1.0 / n).powi(4)) / 4.0;
    let ep = |notes: &str| mixture(notes).total_comm_s.ep;
    let (all, two) = (ep("DeepEP"), ep("DeepEP; node-limited routing to 2 nodes"));
    near(two / all, nodes(2.0) / nodes(8.0), 0.05);
    assert_eq!(ep("DeepEP; node-limited routing to 8 nodes"), all);
    let double = mixture("capacity factor 2");
    near(double.total_comm_bytes.ep / plain.total_comm_bytes.ep, 2.0, 0.01);
    near(seconds(&double, Kind::ExpertProducts) / seconds(&plain, Kind::ExpertProducts), 2.0, 0.1);
    near(seconds(&double, Kind::Products), seconds(&plain, Kind::Products), 1e-9);
}

/// A token whose experts are all on one node goes to each rank of it once: of eight experts a rank and four of a token, to 8 (1 − (7/8)⁴) of eight ranks. A pair takes two micro-batches.
#[test]
fn tokens_go_once_to_each_rank_of_a_node() {
    let ep = |batch: u32, notes: &str| {
        let table = format!(
            "id,source,layers,hidden,moe_ffn_hidden,experts,topk,heads,head_dim,vocab,seq_len,device,n_devices,ep,dp,mbs,gbs,precision,recompute,step_time_s,notes_config\n\
             a,Megatron-LM,2,2048,1024,64,4,16,128,32000,16384,H100,8,8,8,1,{batch},BF16,none,1,\"force-balanced; {notes}\"\n"
        );
        let report = priced(&table);
        (report.total_comm_s.ep, report.exposed_comm_s.ep)
    };
    assert_eq!(ep(8, "DeepEP; EP overlap"), ep(8, "DeepEP"), "a single micro-batch has none to be paired with");
    let once = 8.0 * (1.0 - 0.875f64.powi(4)) / 4.0;
    let part = ep(8, "DeepEP").0 / ep(8, "").0;
    assert!((part / once - 1.0).abs() < 0.03, "{part} is not {once}");
    assert!(ep(16, "DeepEP; EP overlap").1 < 0.6 * ep(16, "DeepEP").1);
}

/// Hosts that run the optimizer go through 28 bytes of each parameter of a node, and have its state; devices have what is left.
#[test]
fn hosts_run_the_optimizer_where_notes_say_so() {
    let with = |notes: &str| report(&format!("DeepSpeed ZeRO-2{notes}"), "1,8,1,64,BF16", |_| {}).0;
    let (here, there) = (with(""), with("; offload_optimizer: cpu"));
    let parameters = 2048.0 * (2.0 * 64000.0 + 4.0 * 2048.0 + 3.0 * 8192.0);
    let want = 28.0 * parameters / 9e9;
    let took = seconds(&there, Kind::Optimizer);
    assert!((took / want - 1.0).abs() < 0.02, "{took} is not {want}");
    assert!((there.step_time_s - here.step_time_s - took).abs() < 0.1 * took);
    let (on_device, on_host) = (&here.memory_bytes[0], &there.memory_bytes[0]);
    assert_eq!((on_host.optimizer, on_host.host), (0.0, on_device.optimizer));
    assert!((on_device.peak - on_host.peak - on_device.optimizer).abs() < 1.0);
    let nowhere = [
        "; offload_optimizer: none",
        "; offload_optimizer_device: none",
        "; offload_optimizer={device=none}",
        "; optimizer_offload_fraction=0.0",
        "; optimizer_cpu_offload=False; optimizer_offload_fraction=0.0",
    ];
    assert_eq!(nowhere.map(|notes| with(notes).step_time_s), [here.step_time_s; 5]);
}

/// A rack whose devices are one domain has many hosts, each of them for eight devices at most.
#[test]
fn racks_have_many_hosts() {
    let table = "id,source,layers,hidden,ffn_hidden,heads,head_dim,vocab,seq_len,device,n_devices,dp,mbs,gbs,precision,recompute,step_time_s\n\
         a,ZeRO-1; offload_optimizer,1,2048,8192,16,128,64000,2048,GB200,64,64,1,64,BF16,none,1\n";
    let took = seconds(&priced(table), Kind::Optimizer);
    let want = 28.0 * 2048.0 * (2.0 * 64000.0 + 4.0 * 2048.0 + 3.0 * 8192.0) / 64.0 * 8.0 / 9e9;
    assert!((took / want - 1.0).abs() < 0.02, "{took} is not {want}");
}

/// DeepSeek's routers choose among four of eight nodes, whatever their rows say, unless they deny it.
#[test]
fn routers_of_a_family_choose_among_few_nodes() {
    let ep = |model: &str, notes: &str| {
        let table = format!(
            "id,source,model,layers,hidden,moe_ffn_hidden,experts,topk,heads,head_dim,vocab,seq_len,device,n_devices,ep,dp,mbs,gbs,precision,recompute,step_time_s,notes_config\n\
             a,Megatron-LM,{model},2,2048,1024,64,8,16,128,32000,4096,H100,64,64,64,1,64,BF16,none,1,\"force-balanced; DeepEP; {notes}\"\n"
        );
        priced(&table).total_comm_s.ep
    };
    let four = ep("Mixture", "node-limited routing to 4 nodes");
    assert_eq!(ep("DeepSeek-V3", ""), four);
    assert_eq!(ep("DeepSeek-V3", "no node-limited routing"), ep("Mixture", ""));
    assert!(four < 0.9 * ep("Mixture", ""));
}

/// Of n context-parallel ranks with neighbouring positions the last has (2n − 1) / n of the mean's attention, in each step of the ring.
#[test]
fn the_last_of_a_ring_has_the_most_keys() {
    let ring = |notes: &str| {
        let table = format!(
            "id,source,layers,hidden,ffn_hidden,heads,head_dim,vocab,seq_len,device,n_devices,cp,dp,mbs,gbs,precision,recompute,step_time_s,notes_config\n\
             a,MaxText,1,2048,8192,16,128,32000,65536,H100,8,8,1,1,1,BF16,none,1,{notes}\n"
        );
        priced(&table)
    };
    let (even, uneven) = (ring("balanced ring"), ring("unbalanced ring"));
    let times = seconds(&uneven, Kind::Attention) / seconds(&even, Kind::Attention);
    assert!((times - 1.875).abs() < 1e-9, "{times}");
    let needed = |report: &Report| report.mfu * report.step_time_s;
    assert!((needed(&uneven) / needed(&even) - 1.0).abs() < 1e-9, "nobody needs more FLOPs for it");
    // Messages of rings are hidden in part, those of other ways as the profile says.
    assert!(even.exposed_comm_s.cp < 0.3 * even.total_comm_s.cp, "{:?}", even.exposed_comm_s);
}

/// A mixture on 16 devices, experts over all: of a layer's kernels the host starts all, those with rows of experts alone, or a tenth of each.
#[test]
fn recorded_kernels_are_not_started() {
    let with = |graphs: Graphs, precision: &str| {
        let table = format!(
            "id,source,layers,hidden,moe_ffn_hidden,experts,topk,heads,head_dim,vocab,seq_len,device,n_devices,ep,mbs,gbs,precision,recompute,step_time_s\n\
             a,Megatron-Bridge; hybridep,12,2048,768,128,8,32,128,32000,1024,H100,16,16,1,64,{precision},none,1\n"
        );
        let (clusters, mut frameworks) = (known::clusters(), frameworks());
        // A host that is late with everything.
        frameworks.iter_mut().for_each(|f| (f.graphs, f.dispatch_us) = (graphs, 3000.0));
        let (cases, skipped) = prepare(&runs::read(&table).expect("a table").runs, &clusters, &frameworks, 1);
        assert_eq!(skipped, []);
        price(&cases, &clusters, &frameworks, 1).rows.remove(0).report.step_time_s
    };
    let nothing = with(Graphs::Nothing, "BF16");
    let [routers, attention, whole] =
        [Graphs::Routers, Graphs::Attention, Graphs::Whole].map(|graphs| with(graphs, "BF16") / nothing);
    // A layer has some 90 kernels, 15 to 20 of which have rows of experts or move them, and 40 of which are as narrow as what routers write.
    assert!((0.55..0.75).contains(&routers), "{routers}");
    assert!((0.2..0.4).contains(&attention), "{attention}");
    assert!((0.1..0.2).contains(&whole), "{whole}");
    // What makes inputs fp8 is started as well: two kernels for three products.
    let fp8 = with(Graphs::Nothing, "FP8") / nothing;
    assert!((1.08..1.2).contains(&fp8), "{fp8}");
}
