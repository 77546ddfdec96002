//! `forebay check`

use super::{Bench, example};

#[test]
fn a_table_of_blocks() {
    let bench = Bench::new();
    let run = bench.run(&["check", "model.moe"]).ok();
    let heading = run.stdout.lines().nth(2).expect("a heading");
    for column in
        ["block", "parameters", "active per token", "forward FLOPs/token", "training FLOPs/token", "activations"]
    {
        assert!(heading.contains(column), "{heading}");
    }
    assert!(run.stdout.lines().any(|l| l.starts_with("layers.attention ")), "{}", run.stdout);
    assert!(run.stdout.lines().last().expect("a total").starts_with("total "));
}

/// A model that is built in is found by its name, a folder of that name or not (a run may be kept there), and a file of that name goes before it.
#[test]
fn a_built_in_model_has_a_name() {
    let bench = Bench::new();
    let named = |model: &str| bench.run(&["check", "bench-tiny"]).ok().stdout.starts_with(model);
    assert!(named("BenchTiny"));
    bench.write("bench-tiny/step", "");
    assert!(named("BenchTiny"));
    std::fs::remove_dir_all(bench.path("bench-tiny")).expect("it is there");
    bench.write("bench-tiny", bench.read("model.moe"));
    assert!(named("TinyMoE"));
}

#[test]
fn the_same_as_json() {
    let bench = Bench::new();
    let big = example("mixtral-8x7b");
    let run = bench.run(&["check", big.to_str().expect("UTF-8"), "--json"]).ok();
    let report = &run.lines()[0];
    assert_eq!(report["params"], 46_702_792_704u64);
    assert_eq!(report["active_params"], 12_879_925_248u64);
    let blocks = report["blocks"].as_array().expect("a list");
    let sum = |key: &str| blocks.iter().map(|b| b[key].as_f64().expect("a number")).sum::<f64>();
    assert_eq!(sum("params"), 46_702_792_704f64);
    assert_eq!(sum("active_params"), 12_879_925_248f64);
    let flops = report["forward_flops_per_token"].as_f64().expect("a number");
    assert!((sum("forward_flops_per_token") / flops - 1.0).abs() < 1e-9);
    assert_eq!(report["training_flops_per_token"].as_f64(), Some(3.0 * flops));
    assert_eq!(sum("activation_bytes"), report["activation_bytes"].as_f64().expect("a number"));
}

#[test]
fn sizes_can_be_set() {
    let bench = Bench::new();
    let params = |args: &[&str]| {
        let run = bench.run(&[&["check", "--json"], args].concat()).ok();
        run.lines()[0]["params"].as_u64().expect("a number")
    };
    let small = params(&["model.moe", "--set", "d=64", "f=64"]);
    // The file may stand behind the settings.
    assert_eq!(small, params(&["--set", "d=64", "f=64", "model.moe"]));
    assert!(small < params(&["model.moe"]));
    let shapes = bench.run(&["check", "model.moe", "--params", "--set", "d=64"]).ok().stdout;
    assert!(
        shapes.lines().any(|l| l.starts_with("layers.moe.gate") && l.ends_with("[e: 8, d: 64, f: 256]")),
        "{shapes}"
    );
    let report = bench.run(&["check", "model.moe", "--params", "--json", "--set", "d=64"]).ok().lines()[0].clone();
    let listed = report["parameters"].as_array().expect("a list").clone();
    let gate = listed.iter().find(|p| p["name"] == "layers.moe.gate").expect("it is there");
    assert_eq!(gate["shape"], serde_json::json!([["e", 8], ["d", 64], ["f", 256]]));
    assert_eq!(gate["layers"], report["layers"]);
}

/// Parameters that several layers share are counted once, where they are declared.
#[test]
fn shared_parameters_count_once() {
    let bench = Bench::new();
    bench.write(
        "shared.moe",
        "model Shared(batch = 2, seq = 8, d = 8, vocab = 256, layers = 3) {
    input tokens: token[batch, seq], labels: token[batch, seq]
    param embed[vocab, d], bank[d, f: 16]
    x = embed[tokens, d]
    repeat layers { x = x + mix(x, bank) }
    logits[batch, seq, vocab] = x * embed
    output logits
    nll = cross_entropy(logits, labels)
    loss ce = sum(nll over batch, seq) per sum(valid(labels) over batch, seq)
}
block mix(x[.., d], w[d, f]) {
    h = silu((x * w)[.., f])
    return (h * w)[.., d]
}
",
    );
    let run = bench.run(&["check", "shared.moe", "--json"]).ok();
    let report = &run.lines()[0];
    let blocks = report["blocks"].as_array().expect("a list");
    let sum = |key: &str| blocks.iter().map(|b| b[key].as_u64().expect("a count")).sum::<u64>();
    let params = 256 * 8 + 8 * 16;
    assert_eq!((report["params"].as_u64(), sum("params")), (Some(params), params));
    assert_eq!(report["layers"], 3);
}
