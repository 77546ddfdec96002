//! `forebay compile` and `forebay plan`.

use super::{Bench, example};

#[test]
fn stages_are_printed_and_read_again() {
    let bench = Bench::new();
    let graph = bench.run(&["compile", "model.moe", "--emit", "graph", "--set", "d=32"]).ok().stdout;
    assert!(graph.contains("graph @"), "{graph}");
    bench.write("model.ir", &graph);
    assert_eq!(bench.run(&["compile", "model.ir", "--emit", "graph"]).ok().stdout, graph);
    let grad = bench.run(&["compile", "model.moe", "--emit", "grad", "--set", "d=32"]).ok().stdout;
    assert!(grad.contains(".backward"), "{grad}");
    assert_eq!(bench.run(&["compile", "model.ir", "--emit", "grad"]).ok().stdout, grad);
    // What the strategy keeps shows in both stages.
    let saved = |stage: &str, keep: &str| {
        let args = ["compile", "model.moe", "--emit", stage, "--strategy", &format!("keep={keep}")];
        bench.run(&args).ok().stdout.matches("return saved").count()
    };
    for stage in ["grad", "fused"] {
        assert!(saved(stage, "inputs") > saved(stage, "fewest"), "{stage}");
    }
    bench.write("grad.ir", &grad);
    assert_eq!(bench.run(&["compile", "grad.ir", "--emit", "graph"]).ok().stdout, grad);
    bench.run(&["compile", "grad.ir", "-o", "plan"]).fails(&["`grad.ir` holds graphs alone"]);
    bench.run(&["compile", "model.ir", "-o", "plan"]).ok();
    bench.run(&["plan", "verify", "plan"]).ok();
    bench.write("bad.ir", "graph @x {\n  what\n}\n");
    bench.run(&["compile", "bad.ir", "--emit", "graph"]).fails(&["error: ", "bad.ir:2"]);
}

/// All of 2^31 − 1 elements are chosen, by size.
const CHOOSES_ALL: &str = "\
model All(batch = 2, seq = 3, vocab = 16, d = 4) {
    input tokens: token[batch, seq], labels: token[batch, seq]
    param embed[vocab, d], head[d, vocab], w[u: 8, e: 2147483647]
    best = top(w over e, k: 2147483647)
    logits[batch, seq, vocab] = (embed[tokens, d] * sum(best * 0.5 over k, u)) * head
    output logits
    nll = cross_entropy(logits, labels)
    loss ce = sum(nll over batch, seq) per sum(valid(labels) over batch, seq)
}
";

/// A table may have as many rows as ints number: sizes that belong to one tensor are multiplied once.
#[test]
fn tables_may_be_as_long_as_ints_count() {
    let bench = Bench::new();
    for strategy in ["mbs=8", "dp=2"] {
        bench.run(&["compile", "model.moe", "--set", "vocab=2147483647", "--strategy", strategy, "-o", "plan"]).ok();
    }
    // However often their elements are multiplied, and in however many groups.
    let many = ["experts=16777216", "layers=1", "d=8", "heads=2", "f=8"];
    let large = ["experts=65536", "batch=8388607", "layers=1", "d=1024", "heads=4", "f=1024"];
    for sizes in [many.as_slice(), large.as_slice()] {
        bench.run(&[&["compile", "model.moe", "-o", "plan", "--set"], sizes].concat()).ok();
    }
    bench.write("all.moe", CHOOSES_ALL);
    bench.run(&["compile", "all.moe", "-o", "plan"]).ok();
    for (more, strategy, why) in [
        ("vocab=2147483648", "dp=2", "2147483648 elements are more than an int can count"),
        ("experts=2147483648", "dp=2", "2147483648 elements are more than an int can count"),
        ("experts=16777217", "dp=2", "16777217 groups are more than the 16777216 that are possible"),
        ("vocab=2147483647", "tp=2", "help: use tp = 1"),
    ] {
        bench.run(&["compile", "model.moe", "-o", "no", "--set", more, "--strategy", strategy]).fails(&[why]);
    }
    assert!(!bench.path("no").exists());
}

#[test]
fn plans_are_printed() {
    let bench = Bench::new();
    let args = ["compile", "model.moe", "--set", "d=32", "--emit", "plan", "-o", "plan"];
    let printed = bench.run(&args).ok().stdout;
    assert!(printed.contains("program train.layers.forward"), "{printed}");
    assert_eq!(bench.run(&["plan", "show", "plan"]).ok().stdout, printed);
    let summary = bench.run(&["plan", "show", "plan", "--summary"]).ok().stdout;
    assert!(summary.len() < printed.len() && summary.contains("activations"));
    // The same input gives the same bytes.
    let first = std::fs::read(bench.path("plan")).expect("a plan");
    bench.run(&args).ok();
    assert_eq!(std::fs::read(bench.path("plan")).expect("a plan"), first);
    let to_stdout = bench.run(&["compile", "model.moe", "--set", "d=32", "-o", "-"]).ok().stdout;
    assert!(to_stdout.into_bytes() == first && !bench.path("-").exists());
    bench.run(&["compile", "model.moe", "--emit", "plan", "-o", "-"]).exits(2, &["leave --emit or `-o -` out"]);
    bench.run(&["compile", "model.moe"]).exits(2, &["--output"]);
    bench.run(&["compile", "model.moe", "-o", "no/such/folder"]).fails(&["cannot write `no/such/folder`"]);
}

/// Textual IR is the whole model: all forms of it (dropout is off in evaluation, generation has one row) and its types.
#[test]
fn a_plan_from_text_is_the_same_plan() {
    let bench = Bench::new();
    let model = example("packed-docs");
    let model = model.to_str().expect("UTF-8");
    let options =
        ["--set", "layers=2", "d=64", "experts=4", "f=32", "--batch", "4", "--micro-batches", "2", "--dtype", "bf16"];
    let compile = |args: &[&str]| bench.run(&[&["compile"], args].concat());
    compile(&[&[model, "-o", "from.model"], &options[..]].concat()).ok();
    let printed = compile(&[&[model, "--emit", "graph", "-o", "model.ir"], &options[..]].concat()).ok().stdout;
    assert_eq!(printed, "", "the stage is in the file");
    compile(&["model.ir", "-o", "from.text"]).ok();
    let bytes = |name: &str| std::fs::read(bench.path(name)).expect("a plan");
    assert!(bytes("from.model") == bytes("from.text"));
    let text = bench.read("model.ir");
    assert!(text.contains("form train") && text.contains("form eval") && text.contains("form generate"));
    for fixed in ["--batch", "--micro-batches", "--seq"] {
        compile(&["model.ir", "-o", "x", fixed, "2"]).fails(&["`model.ir` is textual IR", "are fixed"]);
    }
    compile(&["model.ir", "-o", "x", "--dtype", "f32"]).fails(&["are fixed"]);
    bench.run(&["check", "model.ir"]).ok();
    bench.run(&["check", "from.text"]).fails(&["`from.text` is a plan, not a model", "forebay plan show"]);
    bench.write("other.ir", text.replace("  dtype bf16", "  dtype f32"));
    compile(&["other.ir", "-o", "x"]).fails(&["the dtype is f32, but `"]);
    let (before, generate) = text.split_once("form generate").expect("a form");
    bench.write(
        "apart.ir",
        format!("{before}form generate{}", generate.replacen("  param embed ", "  param table ", 1)),
    );
    compile(&["apart.ir", "-o", "x"])
        .fails(&["the form `generate` does not fit the form `train`: `table` is not there"]);
    bench.write("twice.ir", text.replace("form eval", "form train"));
    compile(&["twice.ir", "-o", "x"]).fails(&["the form `train` is there twice"]);
}

/// Heads that the attention kernel has no room for go without it.
#[test]
fn heads_may_be_longer_than_the_kernel_knows() {
    let bench = Bench::new();
    let sizes = ["--batch", "1", "--seq", "4", "--set", "layers=1", "heads=1", "f=4", "experts=2", "d=4098"];
    bench.run(&[&["compile", "model.moe", "-o", "a.plan"], &sizes[..]].concat()).ok();
    let plan = bench.run(&["plan", "show", "a.plan"]).ok().stdout;
    assert!(plan.contains("program train.layers.forward") && !plan.contains(" attention   "), "{plan}");
}
