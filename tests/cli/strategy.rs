//! `--strategy`: several ranks on one machine.

use super::{Bench, SMALL};

fn losses(bench: &Bench, args: &[&str]) -> Vec<f64> {
    let all = [&["--json", "--dtype", "f64", "--steps", "4"], args].concat();
    let run = bench.train(&all).ok();
    run.losses().into_iter().map(|(_, bits)| f64::from_bits(bits)).collect()
}

fn near(have: &[f64], want: &[f64]) {
    assert_eq!(have.len(), want.len());
    let apart = have.iter().zip(want).fold(0.0_f64, |m, (a, b)| m.max((a - b).abs()));
    assert!(apart < 1e-11, "{have:?}, not {want:?}");
}

#[test]
fn ranks_print_the_losses_of_one() {
    let bench = Bench::new();
    let alone = losses(&bench, &["--micro-batches", "2", "--save", "alone"]);
    near(&losses(&bench, &["--strategy", "dp=2,ep=2,zero=1", "--save", "a"]), &alone);
    bench.write("s.toml", "tp = 2\nep = 2\nmicro = 2\n");
    near(&losses(&bench, &["--strategy", "s.toml", "--save", "b"]), &alone);
}

/// A checkpoint does not know how many ranks made it.
#[test]
fn a_run_goes_on_with_another_strategy() {
    let bench = Bench::new();
    let whole = losses(&bench, &["--micro-batches", "2", "--save", "whole"]);
    let first = ["--json", "--dtype", "f64", "--steps", "2", "--strategy", "dp=2,zero=3,ep=2", "--save", "run"];
    let steps = ["--lr-schedule", "constant", "--warmup", "1"];
    let alone = losses(&bench, &[&steps[..], &["--micro-batches", "2", "--save", "constant"]].concat());
    let begun = bench.train(&[&first[..], &steps].concat()).ok();
    let begun: Vec<f64> = begun.losses().into_iter().map(|(_, bits)| f64::from_bits(bits)).collect();
    near(&begun, &alone[..2]);
    // Of ranks with replicas some save what all have.
    let replicas = ["--strategy", "dp=4,ep=2,micro=1,mbs=1,zero=3,hsdp=2", "--resume", "run", "--save", "third"];
    let third = ["--json", "--dtype", "f64", "--steps", "3"];
    let third = bench.train(&[&third[..], &replicas, &steps].concat()).ok();
    let third: Vec<f64> = third.losses().into_iter().map(|(_, bits)| f64::from_bits(bits)).collect();
    near(&third, &alone[2..3]);
    let rest = losses(&bench, &[&steps[..], &["--resume", "third", "--micro-batches", "2"]].concat());
    near(&rest, &alone[3..]);
    let rest = losses(&bench, &[&steps[..], &["--resume", "run", "--strategy", "tp=2,pp=2,micro=2"]].concat());
    near(&rest, &alone[2..]);
    assert_ne!(whole, alone);
}

#[test]
fn strategies_that_cannot_be_say_what_can() {
    let bench = Bench::new();
    let compile = |strategy: &str| {
        bench.run(
            &[&["compile", "model.moe", "-o", "x.plan", "--strategy", strategy], &SMALL[..SMALL.len() - 2]].concat(),
        )
    };
    let three = ["compile", "model.moe", "-o", "x.plan", "--set", "experts=4", "--strategy", "dp=3,ep=3,micro=1,mbs=1"];
    bench.run(&three).fails(&["has 4 experts, which do not divide over ep = 3", "use ep = 1"]);
    compile("tp=8").fails(&["do not divide over tp = 8", "use tp = 2, 4"]);
    compile("pp=9").fails(&["2 layers do not fill the 9 parts", "pp × vpp = 2 or less"]);
    compile("pp=2,vpp=2").fails(&["2 layers do not fill the 4 parts"]);
    compile("vpp=2").fails(&["there is one stage"]);
    compile("ep=3,dp=2").fails(&["does not divide the 2 ranks of a stage", "use ep = 1, 2"]);
    compile("etp=4,tp=2,dp=2").fails(&["etp = 4 does not divide tp × cp = 2", "use etp = 1, 2"]);
    let odd = [
        &["--set", "d=68", "--set", "heads=2"][..],
        &["--strategy", "dp=2,cp=4,cp_algo=gather,tp=2,ep=2,etp=8,etp_gather=after", "--batch", "2"],
    ]
    .concat();
    bench
        .run(&[&["compile", "model.moe", "-o", "x.plan"], &odd[..]].concat())
        .fails(&["sends no rows to experts whose elements etp = 8 divides", "leave `etp_gather` out"]);
    compile("tp=4294967295,cp=4294967295,dp=4").fails(&["more than the most"]);
    compile("stages=1/1").fails(&["`stages` has 2 layers in 2 parts", "pp × vpp = 1"]);
    compile("pp=3,stages=1/0/1").fails(&["leaves a part without layers"]);
    compile("dp=4,zero=3,hsdp=3").fails(&["hsdp = 3 does not divide dp = 4", "use hsdp = 1, 2, 4"]);
    compile("cp=2,ulysses=2").fails(&["ulysses says how cp_algo = hybrid cuts cp", "add cp_algo=hybrid"]);
    compile("cp=2,cp_algo=hybrid,ulysses=3").fails(&["ulysses = 3 does not divide cp = 2", "use ulysses = 1, 2"]);
    compile("schedule=dualpipe,vpp=2,pp=2,micro=4").fails(&["one part of the model each way, not 2", "use vpp = 1"]);
    compile("schedule=dualpipe,pp=2,micro=2").fails(&["over 2 stages needs 4 micro-batches"]);
    compile("schedule=dualpipe,pp=3,micro=4").fails(&["two of an even number of stages", "use pp = 4"]);
    compile("schedule=dualpipe,micro=4").fails(&["two of an even number of stages", "use pp = 2"]);
    compile("schedule=dualpipe,pp=2,micro=4,stages=auto").fails(&["layers are not cut for the two-way placement"]);
    compile("dp=3").fails(&["a batch of 4 rows is not dp = 3"]);
    for (strategy, part) in [
        ("dp", "`dp` is not `key=value`"),
        ("dp=0", "`dp` is a number of at least 1, not `0`"),
        ("dp=4294967296", "`dp` is at most 4294967295, not `4294967296`"),
        ("dp=2,dp=2", "`dp` is given twice"),
        ("", "the strategy is empty"),
        (" ", "the strategy is empty"),
        ("dp=2,,tp=2", "`dp=2,,tp=2` has a comma with no `key=value` beside it"),
        ("dp=2,", "leave the comma out"),
        ("dpp=2", "did you mean `dp`?"),
        ("cpalgo=ring", "did you mean `cp_algo`?"),
        ("etp=2,tp=2,etp_gather=after", "for rows that go to experts in parts, but ep = 1 and etp = 2"),
        ("etp_gather=behind", "`etp_gather` is before or after, not `behind`"),
        ("cap=4", "`cap` is for schedule = search, but the schedule is 1f1b"),
        ("schedule=zb-v,nodes=10", "add schedule=search, or leave `nodes` out"),
        ("schedule=search,cap=0", "`cap` is a number of at least 1"),
        ("schedule=search,nodes=-1", "`nodes` is a number of at least 1"),
        ("nodes=99999999999999999999", "`nodes` is at most 18446744073709551615, not `99999999999999999999`"),
        ("schedule=best", "v-min, zb-vpp, dualpipe, dualpipev or search, not `best`"),
        ("stages=some", "`stages` is auto, or numbers of layers such as 4/5/5/4"),
        ("overlap=within/within", "`overlap` is all, none, or some of "),
        ("cp_algo=rings", "`cp_algo` is ulysses, ring, hybrid or gather, not `rings`"),
        ("ulysses=0", "`ulysses` is a number of at least 1"),
        ("zero=4", "`zero` is 0, 1, 2 or 3"),
        ("dp=4,hsdp=2", "hsdp = 2 says how many ranks share what `zero` has them share, but zero = 0"),
        ("dp=4,zero=1,hsdp=0", "`hsdp` is a number of at least 1"),
    ] {
        compile(strategy).exits(2, &[part]);
    }
    compile("mbs=3").fails(&[
        "cannot be done in micro-batches of mbs = 3",
        "use mbs = 1, 2, 4, or a --batch that is a multiple of 3",
    ]);
    compile("dp=3,mbs=1").fails(&["cannot be shared by dp = 3 ranks", "a multiple of 3"]);
    compile("swap=moe.offsets").fails(&["no saved tensor that can leave the device is called `moe.offsets`"]);
    compile("micro=3").fails(&["a batch of 4 rows cannot be done in 3 parts: micro must be one of 1, 2, 4"]);
    bench
        .run(
            &[
                &["compile", "model.moe", "-o", "x.plan", "--strategy", "dp=2", "--devices", "4"],
                &SMALL[..SMALL.len() - 2],
            ]
            .concat(),
        )
        .fails(&["makes 2 ranks", "there are 4 devices", "use dp = 4, or --devices 2"]);
    assert!(!bench.path("x.plan").exists());
}

#[test]
fn plans_of_ranks_are_shown_and_run() {
    let bench = Bench::new();
    let settings = &SMALL[..SMALL.len() - 2];
    let strategy = ["--strategy", "dp=2,tp=2,ep=4", "--devices", "4", "--steps", "2", "--dtype", "f64"];
    bench.run(&[&["compile", "model.moe", "-o", "x.plan"], &strategy[..], settings].concat()).ok();
    let shown = bench.run(&["plan", "show", "x.plan", "--rank", "3"]).ok().stdout;
    for part in ["all_to_all_v", "reduce_scatter", "all_gather"] {
        assert!(shown.contains(part), "`{part}` is not in:\n{shown}");
    }
    bench.run(&["plan", "show", "x.plan", "--rank", "4"]).fails(&["it has 4 ranks, from 0"]);
    bench.run(&["plan", "verify", "x.plan"]).ok();
    let run = bench.run(&["run", "x.plan", "--data", "text.txt", "--json", "--save", "r"]).ok();
    assert_eq!(run.losses().len(), 2);
    let sharded = [&["compile", "model.moe", "--emit", "sharded"], &strategy[..2], settings].concat();
    let sharded = bench.run(&sharded).ok().stdout;
    for part in ["mesh dp = 2, tp = 2", "= dispatch ", "= combine ", "= reduce_scatter "] {
        assert!(sharded.contains(part), "`{part}` is not in:\n{sharded}");
    }
    // As it is run: exchanges between nodes in two parts, of which one is within the node.
    let emitted = |way: &str| {
        let strategy = format!("dp=4,ep=4,node=2,dispatch={way}");
        let args = ["compile", "model.moe", "--emit", "sharded", "--strategy", &strategy];
        bench.run(&[&args[..], settings].concat()).ok().stdout
    };
    assert_eq!(emitted("auto"), emitted("flat"));
    let [whole, apart] = ["flat", "hierarchical"].map(emitted);
    assert!(!whole.contains("= all_gather ") && apart.contains("= all_gather "), "{apart}");
}

/// A strategy file is an input like others: where it is wrong, what, and what would be right.
#[test]
fn strategy_files_are_shown_where_they_are_wrong() {
    let bench = Bench::new();
    let compile = || bench.run(&["compile", "model.moe", "-o", "x.plan", "--strategy", "s.toml"]);
    for (text, parts) in [
        (
            "dp = 2\ncpalgo = \"ring\"\n",
            &["s.toml:2:1", "there is no strategy key `cpalgo`", "did you mean `cp_algo`?", "^^^^^^"][..],
        ),
        ("zero = 4\n", &["s.toml:1:8", "`zero` is 0, 1, 2 or 3, not `4`"]),
        ("tp = 2\ntp = 4\n", &["s.toml:2:1", "duplicate key", "tp = 2"]),
        ("tp = \n", &["s.toml:1:"]),
        ("tp = 1.5\n", &["s.toml:1:6", "`tp` is no number, truth value, word or list of numbers"]),
        ("[mesh]\ntp = 2\n", &["`mesh` is no number"]),
        ("# nothing\n", &["s.toml", "the strategy is empty"]),
        ("pp = 2\ncap = 4\n", &["s.toml:2:1", "`cap` is for schedule = search"]),
    ] {
        bench.write("s.toml", text);
        compile().fails(parts);
    }
    // What only the model or the batch can tell.
    for (text, parts) in [
        ("tp = 2\ndp = 3\n", &["a batch of 8 rows", "\n  --> s.toml:2: dp = 3\n"][..]),
        ("dp = 1\nswap = \"nothing\"\n", &["`nothing`", "\n  --> s.toml:2: swap = \"nothing\""]),
        ("pp = 2\npieces = 7 # too many\n", &["--> s.toml:2: pieces = 7"]),
    ] {
        bench.write("s.toml", text);
        compile().fails(parts);
    }
    bench.write("s.toml", [0xff, b'=']);
    compile().fails(&["`s.toml` is not text: byte 0"]);
    bench.run(&["compile", "model.moe", "-o", "x.plan", "--strategy", "no.toml"]).fails(&["cannot read `no.toml`"]);
    assert!(!bench.path("x.plan").exists());
}

/// Whatever the order and the layers of stages, the step is the same sums: here the same bits, since micro-batches go backward in the same order.
#[test]
fn a_pipeline_that_was_found_prints_the_losses_of_a_published_one() {
    let bench = Bench::new();
    let losses = |strategy: &str, save: &str| {
        let args =
            ["--json", "--dtype", "f64", "--steps", "3", "--set", "layers=6", "--strategy", strategy, "--save", save];
        bench.train(&args).ok()
    };
    let named = losses("pp=2,vpp=2,micro=4,schedule=zb-v", "named").losses();
    let found = losses("pp=2,vpp=2,micro=4,schedule=search,nodes=2000,stages=auto", "found");
    assert!(found.stderr.contains("passes take"), "{}", found.stderr);
    let near = |a: &[(u64, u64)], b: &[(u64, u64)]| {
        let apart = a.iter().zip(b).map(|(a, b)| (f64::from_bits(a.1) - f64::from_bits(b.1)).abs());
        apart.fold(0.0, f64::max)
    };
    assert!(near(&found.losses(), &named) < 1e-11, "{:?}, not {named:?}", found.losses());
    // The same order from a file: the same bits.
    let schedule = ["schedule", "--kind", "zb-v", "--stages", "2", "--microbatches", "4", "--json"];
    bench.write("order.json", bench.run(&schedule).ok().stdout);
    assert_eq!(losses("pp=2,vpp=2,micro=4,schedule=order.json", "read").losses(), named);
    bench.write("s.toml", "pp = 2\nvpp = 2\nmicro = 4\nschedule = \"order.json\"\n");
    assert_eq!(losses("s.toml", "toml").losses(), named);
}

#[test]
fn schedules_that_are_none_are_refused() {
    let bench = Bench::new();
    let compile = |strategy: &str| {
        let model =
            ["compile", "model.moe", "-o", "x.plan", "--set", "layers=6", "--batch", "4", "--strategy", strategy];
        bench.run(&model)
    };
    let given = |orders: &str| {
        bench.write("o.json", format!("{{\"orders\":{orders}}}"));
        compile("pp=2,micro=2,schedule=o.json")
    };
    given("[\"F0:0 F0:1 B0:0 B0:1\", \"F1:0 B1:0 F1:1\"]").fails(&["`o.json`", "B1:1"]);
    given("[\"F0:0 B0:0\", \"F1:0 B1:0\"]").fails(&["2 stages × 1 parts, 1 micro-batches", "use pp=2,vpp=1,micro=1"]);
    given("[\"F0:0 F1:0\", \"F0:0 B1:0\"]").fails(&["`o.json`", "do not lie on the stages"]);
    given("[\"F0:0 X\", \"\"]").fails(&["`X` is no work"]);
    given("[]").fails(&["`o.json`"]);
    given("[\"F4294967295:4294967295\", \"\"]").fails(&["`o.json`"]);
    given("3").fails(&["`o.json` is not a schedule", "forebay schedule"]);
    compile("pp=2,schedule=none.json").fails(&["cannot read `none.json`"]);
    compile("pp=2,vpp=2,micro=4,schedule=zb-h1").fails(&["one part of the model on a stage, not 2", "zb-vpp"]);
    compile("pp=2,vpp=2,micro=4,schedule=search,cap=1").fails(&["cannot hold one micro-batch", "use a cap of 2"]);
}

/// Rows that a rank has no room for stop the run.
#[test]
fn too_many_rows_for_a_rank_stop_the_run() {
    let bench = Bench::new();
    let few = ["--strategy", "dp=2,ep=2,max_tokens_per_rank=8", "--steps", "1", "--save", "r"];
    let room = "there is room for 8 (max_tokens_per_rank)";
    let stopped = bench.train(&few);
    assert!(
        !bench.path("r/step-1").exists() && bench.names("r").iter().all(|n| !n.contains("step")),
        "nothing is saved"
    );
    stopped.exits(1, &["rows arrive", room, "rank ", "would have done here"]);
    let devices = [&few[..4], &["--save", "d", "--backend", "npu-emulated"]].concat();
    bench.train(&devices).exits(1, &["rows arrive", room, "rank "]);
}
