//! `forebay compile` and `forebay plan`.

use crate::Bench;

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
    bench.write("grad.ir", &grad);
    assert_eq!(bench.run(&["compile", "grad.ir", "--emit", "graph"]).ok().stdout, grad);
    bench.run(&["compile", "grad.ir", "-o", "plan"]).fails(&["`grad.ir` holds graphs alone"]);
    bench.run(&["compile", "model.ir", "-o", "plan"]).ok();
    bench.run(&["plan", "verify", "plan"]).ok();
    bench.write("bad.ir", "graph @x {\n  what\n}\n");
    bench.run(&["compile", "bad.ir", "--emit", "graph"]).fails(&["error: ", "bad.ir:2"]);
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
    bench.run(&["compile", "model.moe"]).exits(2, &["--output"]);
    bench.run(&["compile", "model.moe", "-o", "no/such/folder"]).fails(&["cannot write `no/such/folder`"]);
}
