//! `forebay schedule`.

use super::Bench;
use forebay_pipeline::{Costs, Layout, Placement, Schedule, Size, replay, verify};
use serde_json::Value;

/// Two chunks in a V, F=10 I=12 W=8, p2p=2, m = 2p: what published schedules are measured with.
const V4: &[&str] =
    &["--stages", "4", "--chunks", "2", "--microbatches", "8", "--costs", "F=10,I=12,W=8", "--p2p", "2"];

fn schedule(kind: &str, args: &[&str]) -> Value {
    let run = Bench::new().run(&[&["schedule", "--json", "--kind", kind], args].concat()).ok();
    serde_json::from_str(&run.stdout).expect("JSON")
}

/// What a program reads is the schedule: its orders parse, are right, and take as long as it says.
fn checked(value: &Value, placement: Placement, cap: Option<u32>) {
    let layout = Layout { size: Size::new(4, 2, 8).expect("a size"), placement };
    let orders: Vec<&str> =
        value["orders"].as_array().expect("orders").iter().map(|o| o.as_str().expect("text")).collect();
    let schedule = Schedule::parse(layout, &orders).expect("orders");
    assert_eq!(verify(&schedule, cap), Ok(()));
    let makespan = replay(&schedule, &Costs::equal(8, 10, 12, 8).with_p2p(2)).expect("it ends").makespan;
    assert_eq!(value["makespan"], makespan);
    assert_eq!(value["peak_inflight"], Value::from(schedule.peaks()));
}

#[test]
fn a_published_schedule_as_json() {
    let zb_v = schedule("zb-v", V4);
    let keys: Vec<&String> = zb_v.as_object().expect("an object").keys().collect();
    assert_eq!(keys, ["bubble", "ideal_busy", "lower_bound", "makespan", "orders", "peak_inflight"]);
    checked(&zb_v, Placement::Wave, Some(8));
    for (key, wanted) in [("makespan", 542), ("bubble", 62), ("ideal_busy", 480), ("lower_bound", 516)] {
        assert_eq!(zb_v[key], wanted, "{key}");
    }
    // Pairs can take less time than their works one after the other.
    let pairs = schedule("vpp-overlap", &[&V4[..6], &["--costs", "F=1,I=1.5,W=0.5", "--pair", "2"]].concat());
    assert_eq!((&pairs["ideal_busy"], &pairs["makespan"]), (&48.0.into(), &46.0.into()));
    assert_eq!(pairs["bubble"], -2.0);
    assert!(pairs["orders"][0].as_str().expect("text").contains(" F0:7&B"), "{pairs}");
}

#[test]
fn a_search_keeps_to_its_cap_and_reaches_the_bound() {
    let found = schedule("search", &[V4, &["--cap", "8"]].concat());
    checked(&found, Placement::Wave, Some(8));
    assert_eq!((&found["makespan"], &found["lower_bound"]), (&534.into(), &534.into()));
    // And how it was found, beside what a published one has.
    assert_eq!((&found["published"], &found["placement"]), (&Value::Null, &"v".into()));
    assert!(found["nodes"].as_u64() > Some(0) && found["lower_bound_of_cut"].is_null(), "{found}");
    let known = schedule("search", &[V4, &["--cap", "8", "--nodes", "1"]].concat());
    assert_eq!((&known["published"], &known["nodes"]), (&"zb-v".into(), &1.into()));
    let plain = schedule("search", &[V4, &["--cap", "8", "--placement", "plain", "--nodes", "2000"]].concat());
    checked(&plain, Placement::Blocked, Some(8));
    assert!(plain["makespan"].as_u64() > found["makespan"].as_u64());
}

/// A bound says nothing that pairs or another cut of the layers can disprove.
#[test]
fn bounds_of_pairs_and_cuts() {
    let args = ["--stages", "1", "--chunks", "2", "--microbatches", "8", "--costs", "F=10,I=12,W=8"];
    let paired = schedule("search", &[&args[..], &["--pair", "20", "--cap", "2", "--nodes", "4000"]].concat());
    assert_eq!((&paired["makespan"], &paired["published"]), (&410.into(), &Value::Null));
    assert!(paired["lower_bound"].as_u64().is_some_and(|bound| (1..=410).contains(&bound)), "{paired}");
    let layers = "1x8:6:2,1x16:8:6,1x2:5:4,1x11:6:16,1x7:18:2,1x14:15:12";
    let args = ["--stages", "2", "--chunks", "2", "--microbatches", "6", "--nodes", "6000", "--layers", layers];
    let cut = schedule("search", &args);
    assert_eq!((&cut["makespan"], &cut["lower_bound_of_cut"]), (&504.into(), &504.into()));
    // The cut 1, 3, 5, 6 takes 500.
    assert!(cut["lower_bound"].as_u64().is_some_and(|bound| (470..=500).contains(&bound)), "{cut}");
    let text = Bench::new().run(&[&["schedule", "--kind", "search"], &args[..]].concat()).ok().stdout;
    assert!(text.contains(" for any cut of the layers; the makespan is "), "{text}");
    assert!(text.contains("of this cut    504, which it reaches: no other order of it is faster\n"), "{text}");
}

#[test]
fn a_table_of_all() {
    let bench = Bench::new();
    let run = |args: &[&str]| bench.run(&[&["schedule", "--kind", "all"], V4, args].concat()).ok().stdout;
    let table = run(&["--pair", "25", "--cap", "8"]);
    for line in [
        "\n1f1b         plain             692     212                8    505\n",
        "\nvpp          interleaved       598     118  11 over the cap    441\n",
        "\nv-min        v                 768     288                4    459\n",
        "\ndualpipe holds the weights twice: a stage has 2 chunks of each direction (--chunks 4 when it is named)\n",
    ] {
        assert!(table.contains(line), "{line} is not in:\n{table}");
    }
    let rows: Value = serde_json::from_str(&run(&["--json"])).expect("JSON");
    let vpp = rows.as_array().expect("rows").iter().find(|r| r["kind"] == "vpp").expect("a row");
    assert_eq!((&vpp["makespan"], &vpp["within_cap"]), (&598.into(), &true.into()));
    let orders = |of: &Value| of["orders"].as_array().expect("one a stage").clone();
    let alone = bench.run(&[&["schedule", "--kind", "vpp"], V4, &["--json"]].concat()).ok().stdout;
    assert_eq!(orders(vpp), orders(&serde_json::from_str(&alone).expect("JSON")));
    let drawn = bench.run(&[&["schedule", "--kind", "vpp"], V4, &["--svg", "-"]].concat()).ok().stdout;
    assert!(drawn.starts_with("<svg") && drawn.ends_with("</svg>\n"), "{drawn}");
}

#[test]
fn a_table_and_a_diagram_for_people() {
    let bench = Bench::new();
    let args = ["schedule", "--kind", "1f1b", "--stages", "2", "--microbatches", "3", "--svg", "deep.svg"];
    let text = bench.run(&args).ok().stdout;
    for line in [
        "1f1b: 2 stages × 1 chunk (plain), 3 micro-batches\n",
        "makespan       12\nlower bound    10; the makespan is 20.0 % above it\nbubble         3, 25.0 % of the makespan\n",
        "\n0      0                9     3     2\n",
        "\nstage 1: F1:0 B1:0 F1:1 B1:1 F1:2 B1:2\n",
        "\n1 │············F0─",
    ] {
        assert!(text.contains(line), "{line} is not in:\n{text}");
    }
    let drawn = bench.read("deep.svg");
    assert!(drawn.starts_with("<svg ") && drawn.contains("<title>B1:2</title>") && drawn.ends_with("</svg>\n"));
    assert_eq!(bench.names("."), ["deep.svg", "model.moe", "text.txt"]);
    bench.run(&[&args[..8], &["no/where.svg"]].concat()).fails(&["cannot write `no/where.svg`"]);
}

#[test]
fn costs_of_groups_files_and_layers() {
    let bench = Bench::new();
    bench.write("costs.toml", "F = [8, 10, 10, 13]\nI = 12\nW = 8.5\np2p = 2\n");
    let size = ["--stages", "4", "--microbatches", "8"];
    let json = |args: &[&str]| -> Value {
        let run = bench.run(&[&["schedule", "--json", "--kind", "1f1b"], &size[..], args].concat()).ok();
        serde_json::from_str(&run.stdout).expect("JSON")
    };
    let file = json(&["--costs", "costs.toml"]);
    assert_eq!(file, json(&["--costs", "F=8/10/10/13,I=12,W=8.5", "--p2p", "2"]));
    assert_eq!(file["ideal_busy"], 8.0 * 33.5);
    // The first layer and the last one are cheap, so their stages get more of the others.
    let layers = ["--layers", "1x1:1:1,10x10:12:8,1x2:2:2"];
    let cut = json(&layers);
    assert_eq!(cut["ideal_busy"], 8 * 90);
    assert_eq!(cut["layer_group_ends"].as_array().map(Vec::len), Some(4));
    let text = bench.run(&[&["schedule", "--kind", "search", "--nodes", "500"], &size[..], &layers].concat()).ok();
    assert!(text.stdout.contains("stage  layer groups  layers"), "{}", text.stdout);
}

#[test]
fn refused() {
    let bench = Bench::new();
    let run = |args: &[&str]| bench.run(&[&["schedule"], args].concat());
    let of = |kind: &'static str, size: [&'static str; 3], more: &[&str]| {
        let [p, v, m] = size;
        run(&[&["--kind", kind, "--stages", p, "--chunks", v, "--microbatches", m], more].concat())
    };
    // Hostile sizes, before anything is allocated.
    of("1f1b", ["1000000000", "1", "8"], &[]).fails(&["1000000000 stages are too many", "at most 4096"]);
    of("search", ["4294967295", "4294967295", "4294967295"], &[]).fails(&["a schedule has at most"]);
    of("gpipe", ["4000", "60", "60000"], &[]).fails(&["14400000000 forwards", "at most 2097152"]);
    of("search", ["64", "2", "4096"], &[]).fails(&["too many to search over", "= help: "]);
    // Sizes that a kind does not have.
    of("zb-v", ["4", "3", "8"], &[]).fails(&["zb-v has 2 chunks a stage, not 3", "= help: use 2 chunks"]);
    of("vpp", ["4", "2", "11"], &[]).fails(&["11 micro-batches", "use 8 or 12"]);
    of("dualpipe", ["4", "2", "6"], &[]).fails(&["needs 8 micro-batches"]);
    // Memory.
    of("zb-v", ["4", "2", "8"], &["--cap", "6"])
        .fails(&["zb-v holds up to 8 activations at once; the cap is 6 (stages over it: 0-3)\n", "--kind search"]);
    of("search", ["4", "2", "8"], &["--cap", "1"]).fails(&["use a cap of 2 or more"]);
    // Costs.
    of("1f1b", ["4", "1", "8"], &["--costs", "F=1/2,I=1,W=1"]).fails(&["F has 2 costs, and there are 4 layer groups"]);
    of("1f1b", ["4", "1", "8"], &["--costs", "F=9000000000000000000,I=1,W=1"]).fails(&["too large"]);
    of("dualpipev", ["4", "2", "8"], &["--pair", "0.5"])
        .fails(&["a pair of 0.5 is shorter than one of its parts, which takes 2\n"]);
    for kind in ["dualpipev", "1f1b", "search", "all"] {
        of(kind, ["4", "2", "8"], &["--pair", "1000"])
            .fails(&["a pair of 1000 is longer than its parts one after the other, which take 3\n"]);
    }
    for flag in ["--p2p", "--pair"] {
        of("1f1b", ["4", "1", "8"], &[flag, "-1"]).exits(2, &[flag, "`-1` is no cost", "not negative"]);
    }
    of("1f1b", ["4", "1", "8"], &["--layers", "3x1:1:1"]).fails(&["3 layers do not fill 4 layer groups"]);
    of("zb-v", ["16", "2", "512"], &["--svg", "x.svg"]).fails(&["cannot be read"]);
    // The command line.
    of("1f1b", ["0", "1", "8"], &[]).exits(2, &["--stages"]);
    of("2f2b", ["4", "1", "8"], &[]).exits(2, &["1f1b", "zb-v"]);
    for (costs, part) in [
        ("F=1,I=1", "`W` is missing"),
        ("F=-1,I=1,W=1", "no cost"),
        ("G=1", "`G`"),
        ("F=1,F=1", "twice"),
        (
            "F=1e308,I=1,W=1",
            "`1e308` is no cost: it is a number like 12 or 0.25, not negative and without an exponent, of at most 18446744073709551615",
        ),
        ("F=99999999999999999999,I=1,W=1", "too large a cost: without its point it is at most 18446744073709551615"),
    ] {
        of("1f1b", ["4", "1", "8"], &["--costs", costs]).exits(2, &[part]);
    }
    of("1f1b", ["4", "1", "8"], &["--costs", "no.toml"]).fails(&["cannot read `no.toml`"]);
    bench.write("costs.toml", "F = 1\nI = 1\n");
    of("1f1b", ["4", "1", "8"], &["--costs", "costs.toml"]).fails(&["`costs.toml`: `W` is missing"]);
    // One cost has one value.
    let costs = "F = 1\nI = 1\nW = 1\np2p = 2\n";
    bench.write("costs.toml", costs);
    of("1f1b", ["4", "1", "8"], &["--costs", "costs.toml", "--p2p", "3"]).fails(&["--p2p is another number", "= help"]);
    of("1f1b", ["4", "1", "8"], &["--costs", "F=1,I=1,W=1,pair=2", "--pair", "1"]).fails(&["--pair is another number"]);
    of("1f1b", ["4", "1", "8"], &["--costs", "costs.toml", "--p2p", "2"]).ok();
    // Costs are not drawn over.
    let over = of("1f1b", ["4", "1", "8"], &["--costs", "costs.toml", "--svg", "costs.toml"]);
    over.exits(2, &["--svg costs.toml: this is the file of --costs"]);
    assert_eq!(bench.read("costs.toml"), costs);
    for (layers, part) in
        [("3x1:1", "F, I and W"), ("ax1:1:1", "COUNTxF:I:W"), ("9999999x1:1:1", "more than 1024"), ("", "no cost")]
    {
        of("1f1b", ["4", "1", "8"], &["--layers", layers]).exits(2, &[part]);
    }
    of("zb-v", ["4", "2", "8"], &["--nodes", "5"]).exits(2, &["--nodes is for --kind search"]);
    of("zb-v", ["4", "2", "8"], &["--placement", "v"]).exits(2, &["--placement is for --kind search"]);
    of("all", ["4", "2", "8"], &["--svg", "x.svg"]).exits(2, &["name its --kind"]);
    of("all", ["4", "2", "8"], &["--layers", "9x1:1:1"]).exits(2, &["name its --kind"]);
}
