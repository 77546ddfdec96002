//! `forebay explain` and `forebay rules`.

use super::{Bench, example};
use serde_json::Value;

/// `explain` of DeepSeek-V3, as JSON.
fn explained(arguments: &[&str]) -> Vec<Value> {
    let model = example("deepseek-v3");
    let model = model.to_str().expect("a path of text");
    let output = Bench::new().run(&[&["explain", model, "--json"], arguments].concat()).ok().stdout;
    serde_json::from_str(&output).expect("JSON")
}

fn rules_of(segments: &[Value], value: &str) -> Vec<String> {
    let stories = segments.iter().flat_map(|s| s["stories"].as_array().unwrap());
    let story = stories.into_iter().find(|s| s["value"] == value).unwrap_or_else(|| panic!("{value}"));
    story["steps"].as_array().unwrap().iter().map(|s| s["rule"].as_str().unwrap().to_string()).collect()
}

/// The chain goes from the primitives to the fused op, and through what stands between them.
#[test]
fn a_chain_leads_from_the_source_to_the_fused_op() {
    let segments = explained(&["--block", "layers_2"]);
    let names: Vec<&str> = segments.iter().map(|s| s["segment"].as_str().unwrap()).collect();
    assert_eq!(names, ["layers_2", "layers_2.backward"]);
    assert_eq!(rules_of(&segments, "layer.norm1.mul_4"), ["normal form", "norm.rms", "norm.rms-norm"]);
    let joint = ["normal form", "norm.rms", "norm.rms-norm", "joint.add-rms-norm"];
    assert_eq!(rules_of(&segments, "layer.h"), joint);
    let attention = rules_of(&segments, "layer.mla.o");
    let at = |rule: &str| attention.iter().position(|r| r == rule).unwrap_or_else(|| panic!("{rule}: {attention:?}"));
    assert!(at("softmax.softmax") < at("attention.attention"), "{attention:?}");
}

#[test]
fn the_optimizer_is_explained() {
    let segments = explained(&["--block", "optimizer"]);
    assert_eq!(rules_of(&segments, "param.next"), ["normal form", "optimizer.adamw"]);
    assert!(segments[0]["seconds"][1].as_f64() < segments[0]["seconds"][0].as_f64());
}

/// Joint choices are rules like others: they can be left out.
#[test]
fn joint_choices_can_be_left_out() {
    let segments = explained(&["--block", "layers_2", "--node", "layer.h", "--rewrite", "without=joint"]);
    assert!(segments[0]["stories"][0]["op"].as_str().unwrap().contains("= rms_norm "), "{segments:?}");
}

#[test]
fn what_is_not_there_is_named() {
    let wanted = ["no fused op is called `nothing`", "attention.o", "param.next"];
    Bench::new().run(&["explain", "model.moe", "--node", "nothing"]).fails(&wanted);
}

/// What goes with each micro-batch goes as often as there are some, whoever says so; replicas are summed once.
#[test]
fn sharding_counts_micro_batches() {
    let sent = |strategy: &str, arguments: &[&str]| -> Vec<(String, u64, u64)> {
        let told = shared(strategy, &[&["--batch", "8"], arguments].concat());
        let step = told["stages"][0]["step"].as_array().expect("a list").clone();
        let number = |of: &Value, key: &str| of[key].as_u64().expect("a number");
        let over = |of: &Value| of["over"].as_str().expect("a group").to_string();
        let reduced = |of: &&Value| of["collective"] == "reduce_scatter";
        step.iter().filter(reduced).map(|of| (over(of), number(of, "times"), number(of, "bytes"))).collect()
    };
    let twice = sent("dp=4,zero=3,hsdp=2,micro=2", &[]);
    assert_eq!(twice, sent("dp=4,zero=3,hsdp=2", &["--micro-batches", "2"]));
    let once = sent("dp=4,zero=3,hsdp=2,micro=1", &[]);
    let bytes = |all: &[(String, u64, u64)], group: &str| all.iter().find(|of| of.0 == group).map(|of| of.2);
    assert!(bytes(&twice, "dp") > bytes(&once, "dp") && bytes(&once, "dp").is_some(), "{twice:?} {once:?}");
    assert_eq!(bytes(&twice, "dp.replicas"), bytes(&once, "dp.replicas"));
    assert!(bytes(&once, "dp.replicas").is_some(), "{once:?}");
}

/// Parameters that are not kept are gathered for each pass, and passes that are cut in halves are two.
#[test]
fn sharding_counts_passes() {
    let gathered = |schedule: &str| {
        let told = shared(&format!("pp=2,dp=2,micro=4,zero=3,schedule={schedule}"), &["--batch", "8"]);
        let step = told["stages"][0]["step"].as_array().expect("a list").clone();
        let of =
            step.iter().filter(|of| of["collective"] == "all_gather").map(|of| of["bytes"].as_u64().expect("bytes"));
        of.sum::<u64>() as f64
    };
    let (whole, halves) = (gathered("1f1b"), gathered("zb-h1"));
    assert!(whole > 0.0 && (halves / whole - 1.5).abs() < 0.02, "{whole} {halves}");
}

/// `explain --sharding` of the tiny model, as JSON.
fn shared(strategy: &str, arguments: &[&str]) -> Value {
    let args = [&["explain", "model.moe", "--sharding", "--strategy", strategy, "--json"], arguments].concat();
    serde_json::from_str(&Bench::new().run(&args).ok().stdout).expect("JSON")
}

fn texts(list: &Value, keys: &[&str]) -> Vec<String> {
    let line = |item: &Value| keys.iter().map(|k| item[k].as_str().unwrap()).collect::<Vec<_>>().join(" | ");
    list.as_array().unwrap().iter().map(line).collect()
}

/// Four ranks: heads, hidden widths and the vocabulary over two, experts over all four.
#[test]
fn sharding_says_how_parameters_and_carries_lie() {
    let all = shared("dp=2,tp=2,ep=4,zero=1", &["--block", "layers"]);
    assert_eq!((&all["ranks"], texts(&all["mesh"], &["name"])), (&4.into(), vec!["dp".to_string(), "tp".to_string()]));
    let layers = &all["segments"][0];
    assert_eq!((&layers["segment"], &layers["layers"]), (&"layers".into(), &4.into()));
    let lies = texts(&layers["parameters"], &["name", "lies", "gradient_over"]);
    for line in [
        "rms_norm.gain | whole | dp × tp",
        "attention.wo | kv/tp | dp",
        "moe.up | e/dp × tp | ",
        "moe.shared.up | f_2/tp | dp",
    ] {
        assert!(lies.iter().any(|l| l == line), "{line}: {lies:?}");
    }
    let experts = layers["parameters"].as_array().unwrap().iter().find(|p| p["name"] == "moe.up").unwrap();
    assert_eq!(experts["bytes_on_a_rank"], 8 / 4 * 128 * 256 * 4);
    assert_eq!(texts(&layers["carries"], &["way", "name", "lies"]), ["in | x | seq/tp", "out | x | seq/tp"]);
}

/// The two gathers and two scatters of a layer (arXiv 2205.05198), and the experts' rows there and back.
#[test]
fn sharding_says_what_is_sent_and_why() {
    let all = shared("dp=2,tp=2,ep=4", &[]);
    let segments = all["segments"].as_array().unwrap();
    let layers = segments.iter().find(|s| s["segment"] == "layers").unwrap();
    let sent = texts(&layers["collectives"], &["collective", "over", "wanted_by"]);
    let wanted = [
        "all_gather | tp | attention.q",
        "reduce_scatter | tp | x_2",
        "all_to_all | dp × tp | moe.contract_2",
        "dispatch | dp × tp | moe.contract_2",
        "combine | dp × tp | moe.gather",
        "all_gather | tp | moe.shared.contract",
        "reduce_scatter | tp | moe.add_2",
    ];
    assert_eq!(sent, wanted);
    // Four rows of 128 positions on a data-parallel rank, half of the positions on each of its ranks, 128 numbers of four bytes, two experts a token.
    let positions = 4 * 128 * 128 * 4 / 2;
    let rows = 2 * positions * 3 / 4;
    let bytes: Vec<u64> =
        layers["collectives"].as_array().unwrap().iter().map(|c| c["bytes"].as_u64().unwrap()).collect();
    assert_eq!(bytes, [positions, positions, 3 * 2 * 4, rows, rows, positions, positions]);
    // What a rank sends in all: for the layers, the embedding and the head.
    let total = &all["stages"][0]["micro_batch"];
    let scatter = total.as_array().unwrap().iter().find(|t| t["collective"] == "reduce_scatter").unwrap();
    let scalars = 2 * 4 * 128 * 4 / 2;
    assert_eq!(
        (&scatter["times"], &scatter["bytes"]),
        (&(4 * 2 + 1 + 2).into(), &((4 * 2 + 1) * positions + scalars).into())
    );
}

/// What is called a ring is one in the plan: keys and values of fused attention, whether or not their chunks are balanced.
#[test]
fn a_ring_is_called_so_where_keys_travel() {
    let bench = Bench::new();
    for (seq, strategy) in [("seq=16", "cp=2,cp_algo=ring"), ("seq=18", "cp=2,cp_algo=ring")] {
        let explained = shared(strategy, &["--set", seq]);
        let all = explained["segments"].as_array().unwrap().iter().flat_map(|s| s["collectives"].as_array().unwrap());
        let kinds: Vec<&str> = all.map(|c| c["collective"].as_str().unwrap()).collect();
        assert_eq!(kinds.iter().filter(|k| **k == "ring").count(), 2, "{seq}: {kinds:?}");
        let args = ["compile", "model.moe", "--strategy", strategy, "--emit", "plan", "--set", seq];
        let plan = bench.run(&args).ok().stdout;
        assert!(plan.contains("shift over cp"), "{seq}");
    }
    // What is not one op that takes parts gathers its keys.
    let explained = shared("cp=2,cp_algo=ring", &["--set", "seq=16", "--rewrite", "no-fusion"]);
    let all = explained["segments"].as_array().unwrap().iter().flat_map(|s| s["collectives"].as_array().unwrap());
    let kinds: Vec<&str> = all.map(|c| c["collective"].as_str().unwrap()).collect();
    assert_eq!(kinds.iter().filter(|k| **k == "all_gather").count(), 2, "{kinds:?}");
    assert!(!kinds.contains(&"ring"), "{kinds:?}");
}

/// What is not as the strategy says is said.
#[test]
fn rings_that_are_uneven_or_longer_are_explained() {
    let remarks = |strategy: &str, args: &[&str]| {
        let explained = shared(strategy, args);
        let segments = explained["segments"].as_array().unwrap().iter();
        let remarks = segments.flat_map(|s| s["remarks"].as_array().cloned().unwrap_or_default());
        remarks.map(|r| r.as_str().unwrap().to_string()).collect::<Vec<_>>()
    };
    assert!(remarks("cp=2,cp_algo=ring", &["--set", "seq=16"]).is_empty());
    let uneven = remarks("cp=2,cp_algo=ring", &["--set", "seq=18"]);
    assert!(
        uneven.len() == 1 && uneven[0].contains("18 positions, which do not divide into 2 × 2 chunks"),
        "{uneven:?}"
    );
    assert!(remarks("cp=4,cp_algo=hybrid", &["--set", "seq=16"]).is_empty());
    // Four heads are too few for eight ranks that share them.
    let longer = remarks("cp=8,cp_algo=hybrid,ulysses=4,tp=2", &["--set", "seq=64"]);
    assert!(longer.iter().any(|r| r.contains("ulysses × tp = 8") && r.contains("all 8 ranks")), "{longer:?}");
    let text = Bench::new()
        .run(&["explain", "model.moe", "--sharding", "--strategy", "cp=2,cp_algo=ring", "--set", "seq=18"])
        .ok()
        .stdout;
    assert!(text.contains("\nnote: `seq` has 18 positions"), "{text}");
}

#[test]
fn sharding_is_a_table_for_people() {
    let bench = Bench::new();
    let one = bench.run(&["explain", "model.moe", "--sharding"]).ok().stdout;
    assert!(one.starts_with("TinyMoE with dp=1: 1 rank\n") && one.contains("\na rank sends nothing\n"), "{one}");
    let piped = bench.run(&["explain", "model.moe", "--sharding", "--strategy", "pp=2,tp=2"]).ok().stdout;
    for line in [
        "TinyMoE with tp=2,pp=2: 4 ranks, a mesh of pp = 2 × tp = 2\n",
        "\nlayers, 4 layers\n",
        "attention.wq     [d 128, kv 4, g 1, dh 32]  kv/tp   -                16,384    32.8 kB\n",
        "\na rank of stage 0 sends  over  when                  times    bytes\n",
        "\nsend                     pp    micro-batch, forward      1   262 kB\n",
        "\na rank of stage 1 keeps ",
    ] {
        assert!(piped.contains(line), "{line} is not in:\n{piped}");
    }
}

#[test]
fn what_cannot_be_shared_is_refused() {
    let bench = Bench::new();
    let explain = |args: &[&str]| bench.run(&[&["explain", "model.moe", "--sharding"], args].concat());
    explain(&["--strategy", "tp=3"]).fails(&["`vocab`", "do not divide over tp = 3", "use tp = 2, 4"]);
    explain(&["--block", "layer"]).fails(&["no segment of the name `layer`", "prologue, layers, epilogue"]);
    explain(&["--node", "x"]).exits(2, &["--sharding"]);
    // No rows of such experts go anywhere: the ranks of `tp` share them, and no part of these.
    let choosing = example("expert-choice");
    let choosing = choosing.to_str().expect("a path of text");
    bench.run(&["explain", choosing, "--sharding", "--strategy", "tp=4,ep=2"]).fails(&[
        "ep = 2 with tp = 4",
        "choose tokens",
        "tp=4,ep=4",
    ]);
}
