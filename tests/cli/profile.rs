//! `--profile` and `--trace`.

use super::Bench;
use serde_json::Value;

#[test]
fn a_table_of_where_the_time_went() {
    let bench = Bench::new();
    let run = bench.train(&["--steps", "3", "--save", "a", "--profile"]).ok();
    let parts = [
        "start-up of ",
        "compile ",
        "initialise ",
        "3 training steps of ",
        "FLOP/s and ",
        "GFLOP/s",
        "roofline",
        "\ngrouped matmul ",
        "\nattention backward ",
        "\noptimizer ",
        "\nsort and top-k ",
        "\ndispatch, between kernels ",
        "\ntraining steps ",
        "train.layers.backward ",
    ];
    parts.iter().for_each(|part| assert!(run.stderr.contains(part), "`{part}` is not in:\n{}", run.stderr));
    // The evaluation at the end is no training step.
    assert!(!run.stderr.contains("eval."), "{}", run.stderr);
    // Into a file; the shares come to the whole.
    let run = bench.train(&["--steps", "2", "--save", "b", "--profile=table.txt"]).ok();
    assert!(!run.stderr.contains("roofline"));
    let table = bench.read("table.txt");
    let kinds = table.split("─\n").nth(1).expect("rows between rules");
    let share = |row: &str| {
        let cells: Vec<&str> = row.split_whitespace().collect();
        let at = cells.iter().position(|c| *c == "%").expect("a percentage");
        cells[at - 1].parse::<f64>().expect("a number")
    };
    let total: f64 = kinds.lines().filter(|l| l.contains('%')).map(share).sum();
    assert!((99.0..101.0).contains(&total), "{total}\n{table}");
    bench
        .train(&["--steps", "1", "--save", "c", "--profile=missing/table.txt"])
        .fails(&["cannot write `missing/table.txt`"]);
}

/// Begin and end of an event, µs.
fn span(event: &Value) -> (f64, f64) {
    let number = |key: &str| event[key].as_f64().expect("a number");
    (number("ts"), number("ts") + number("dur"))
}

#[test]
fn a_trace_of_what_happened_when() {
    let bench = Bench::new();
    bench.train(&["--steps", "3", "--save", "a", "--trace", "trace.json"]).ok();
    let trace: Value = serde_json::from_str(&bench.read("trace.json")).expect("JSON");
    let all = trace["traceEvents"].as_array().expect("events");
    let of = |what: &str| -> Vec<&Value> {
        all.iter().filter(|e| e["ph"] == "X" && e["name"].as_str().is_some_and(|n| n.starts_with(what))).collect()
    };
    // A step has two parts, before and after its commit.
    let steps = of("step ");
    assert_eq!(steps.len(), 6);
    let calls: Vec<&Value> = all.iter().filter(|e| e["cat"] == "call").collect();
    let kernels: Vec<&Value> =
        all.iter().filter(|e| e["ph"] == "X" && e["cat"] != "call" && e["cat"] != "step").collect();
    assert!(of("train.layers.backward").len() > 3 && of("eval.").is_empty());
    // On each level one after the other; each within one of the level above. Times are rounded to a nanosecond.
    for level in [&steps, &calls, &kernels] {
        level.windows(2).for_each(|pair| assert!(span(pair[0]).1 <= span(pair[1]).0 + 0.002, "{pair:?}"));
    }
    let within = |inner: &[&Value], outer: &[&Value]| {
        for event in inner {
            let (start, end) = span(event);
            let holds = |o: &&Value| span(o).0 <= start + 0.002 && end <= span(o).1 + 0.002;
            assert!(outer.iter().any(holds), "{event}");
        }
    };
    within(&calls, &steps);
    within(&kernels, &calls);
    let sum = |events: &[&Value]| events.iter().map(|e| span(e).1 - span(e).0).sum::<f64>();
    let (kernels_sum, steps_sum) = (sum(&kernels), sum(&steps));
    assert!(kernels_sum <= steps_sum && kernels_sum > 0.5 * steps_sum, "{kernels_sum} {steps_sum}");
    // A product knows its work.
    let product = kernels.iter().find(|e| e["cat"] == "grouped matmul").expect("experts");
    assert!(product["args"]["flops"].as_f64() > Some(0.0) && product["args"]["bytes"].as_f64() > Some(0.0));
    let names: Vec<&str> = all.iter().filter(|e| e["ph"] == "M").filter_map(|e| e["args"]["name"].as_str()).collect();
    assert_eq!(names, ["forebay TinyMoE", "steps and calls", "Cube stream"]);
    bench.train(&["--steps", "1", "--save", "b", "--trace", "missing/t"]).fails(&["cannot write `missing/t`"]);
}
