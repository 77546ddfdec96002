//! Everything that can be wrong, and what is said about it.

use super::{Bench, SMALL, example};
use std::fs;

/// A model with this body.
fn model(body: &str) -> String {
    format!(
        "model Bad(batch = 2, seq = 8, d = 8, vocab = 256) {{\n    input tokens: token[batch, seq], labels: token[batch, seq]\n    \
         param embed[vocab, d], head[d, vocab]\n    x = embed[tokens, d]\n{body}\n    \
         logits[batch, seq, vocab] = x * head\n    output logits\n    nll = cross_entropy(logits, labels)\n    \
         loss ce = sum(nll over batch, seq) per sum(valid(labels) over batch, seq)\n}}\n"
    )
}

#[test]
fn mistakes_in_models() {
    let bench = Bench::new();
    let check = |text: &str, parts: &[&str]| {
        bench.write("bad.moe", text);
        bench.run(&["check", "bad.moe"]).fails(parts);
        bench.run(&["train", "bad.moe", "--data", "text.txt"]).fails(parts);
    };
    check(&model("    x = sum(x over dd) * x"), &["error[E", "`dd`", "bad.moe:5:"]);
    check(
        &model("    param w[d: 9]\n    x = x * w"),
        &["error[E0204]: axis `d` has size 9 here but 8 at line 3", "bad.moe:5:"],
    );
    check(&model("    x = x + attentoin(x)"), &["error[E", "`attentoin`", "help"]);
    let cyclic = model("    x = a(x)") + "block a(x[.., d]) { return b(x) }\nblock b(x[.., d]) { return a(x) }\n";
    check(&cyclic, &["error[E0305]: the block `a` calls itself", "a → b → a", "bad.moe:"]);
    check(
        &model("    y = embed[tokns, d]\n    x = x + y"),
        &["error[E", "`tokns` became a new axis here", "`tokens`?"],
    );
    check("model {", &["error[E", "bad.moe:1:"]);
    bench.run(&["check", "missing.moe"]).fails(&["cannot read `missing.moe`: "]);
    bench.write("binary.moe", [b'm', 0xff]);
    bench.run(&["check", "binary.moe"]).fails(&["`binary.moe` is not text: byte 1 is not UTF-8"]);
}

#[test]
fn wrong_settings() {
    let bench = Bench::new();
    let check = |set: &str| bench.run(&["check", "model.moe", "--set", set]);
    check("dd=3").fails(&["error[E", "dd", "no such constant"]);
    check("d=wide").fails(&["error[E", "--set d=", "the constant is"]);
    check("d=99999999999999999999")
        .fails(&["--set d=1e20: the constant is an integer, from -9223372036854775808 to 9223372036854775807"]);
    check("d=0.5").fails(&["--set d=0.5: the constant is an integer, not a float"]);
    check("d=10").fails(&["a size must be an integer, this is 2.5", "in this call of `attention`"]);
    check("d").exits(2, &["it is written name=value"]);
    check("3=4").exits(2, &["`3` is not the name of a constant"]);
    bench
        .train(&["--micro-batches", "3"])
        .fails(&["a batch of 4 rows cannot be done in 3 parts: --micro-batches must be one of 1, 2, 4"]);
    bench.train(&["--cpu", "abacus"]).exits(2, &["there are `amx`, `avx512bf16`, `avx512`, `avx2` and `portable`"]);
    bench.train(&["--lr", "-1"]).exits(2, &["it must be 0 or more"]);
    bench.train(&["--lr", "inf"]).exits(2, &["--lr", "it must be finite"]);
    bench.train(&["--epsilon", "nan"]).exits(2, &["--epsilon", "it is not a number"]);
    bench.train(&["--memory-budget", "0"]).exits(2, &["`0` is zero bytes"]);
    bench.train(&["--memory-budget", "99999999999999999TiB"]).exits(2, &["is too large: a size is below 1000000TB"]);
    bench.train(&["--dtype", "f16"]).exits(2, &["f16", "bf16"]);
}

#[test]
fn wrong_data() {
    let bench = Bench::new();
    let train = |data: &str| bench.run(&[&["train", "model.moe", "--data", data], SMALL].concat());
    train("missing").fails(&["cannot read the data `missing`: "]);
    bench.write("empty.txt", "");
    train("empty.txt").fails(&["the data `empty.txt` are empty: the file has no bytes"]);
    fs::create_dir(bench.path("folder")).expect("a folder");
    train("folder").fails(&["the data `folder` are empty: the folder has no text files"]);
    bench.write("folder/x.bin", [0xff]);
    train("folder").fails(&["none of the folder's files is UTF-8 text"]);
    bench.write("short.txt", "x".repeat(65));
    train("short.txt").fails(&["the data `short.txt` are too short: 65 bytes", "take 66", "smaller --seq"]);
    train("/dev/null").fails(&["`/dev/null` are neither a file nor a folder"]);
    bench.write("high.txt", "é".repeat(100));
    bench
        .run(&[&["train", "model.moe", "--data", "high.txt"], SMALL, &["--set", "vocab=128"]].concat())
        .fails(&["have the byte 195, but the model's vocabulary has 128 tokens only"]);
    // Nothing was left behind.
    assert!(!bench.path("forebay-runs").exists());
}

#[test]
fn damaged_checkpoints() {
    let bench = Bench::new();
    bench.train(&["--steps", "1", "--save", "run"]).ok();
    let resume = || bench.train(&["--steps", "2", "--resume", "run"]);
    let generate = || bench.run(&["generate", "run", "--bytes", "1"]);
    let step = "run/step-000001/";
    for (file, by_generate) in
        [("index.json", true), ("plan.json", true), ("model.safetensors", true), ("optimizer.safetensors", false)]
    {
        let path = bench.path(&format!("{step}{file}"));
        let whole = fs::read(&path).expect("a file");
        let mut changed = whole.clone();
        let last = whole.len() - 1;
        changed[if file.ends_with("json") { last / 2 } else { last }] ^= 1;
        for bytes in [&whole[..whole.len() / 2], b"", b"{}", b"PK\x03\x04 something else altogether", &changed] {
            fs::write(&path, bytes).expect("a file");
            if by_generate {
                generate().fails(&["error: ", file]);
            }
            if file != "plan.json" {
                resume().fails(&["error: ", file]);
            }
        }
        fs::write(&path, &whole).expect("a file");
    }
    generate().ok();
    bench.train(&["--steps", "2", "--resume", "run", "--set", "d=64"]).fails(&[
        "does not fit the model:",
        "is f32[256, 32] in the checkpoint, f32[256, 64] in the model",
        "… and ",
    ]);
    bench
        .train(&["--steps", "2", "--resume", "run", "--set", "layers=3"])
        .fails(&["`layers.2.", "is not in the checkpoint"]);
    fs::create_dir(bench.path("other")).expect("a folder");
    bench.train(&["--resume", "other"]).fails(&["`other` is not a checkpoint"]);
    bench.train(&["--save", "run"]).fails(&["`run` holds a run already (saved at step 1)", "--resume"]);
}

#[test]
fn damaged_plans() {
    let bench = Bench::new();
    bench.run(&[&["compile", "model.moe", "-o", "plan"], &SMALL[..SMALL.len() - 2]].concat()).ok();
    let whole = fs::read(bench.path("plan")).expect("a plan");
    let run = |bytes: &[u8], parts: &[&str]| {
        bench.write("bad", bytes);
        bench.run(&["run", "bad", "--data", "text.txt"]).fails(&[&["error: `bad`: "], parts].concat());
        bench.run(&["plan", "verify", "bad"]).fails(parts);
    };
    run(&whole[..whole.len() / 2], &["cut off"]);
    run(b"", &["not a Forebay plan"]);
    run(b"model Tiny {", &["not a Forebay plan"]);
    let text = String::from_utf8(whole).expect("text");
    run(
        text.replacen(&format!("\"version\":{}", forebay_plan::VERSION), "\"version\":99", 1).as_bytes(),
        &["version 99"],
    );
    run(text.replacen("\"seq\":32", "\"seq\":33", 1).as_bytes(), &["damaged"]);
    bench.run(&["run", "missing", "--data", "text.txt"]).fails(&["cannot read the plan `missing`"]);
}

#[test]
fn a_loss_that_is_no_number() {
    let bench = Bench::new();
    // A state that falls by one a step, under a root.
    let body = "    state left[d] = constant(2.5)\n    update left = left - 1.0\n    x = x * narrow(sqrt(left))";
    bench.write("nan.moe", model(body));
    let run =
        bench.run(&["train", "nan.moe", "--data", "text.txt", "--steps", "9", "--save", "run", "--save-every", "2"]);
    run.fails(&[
        "loss is NaN at step 4: first produced by `",
        "(program train.",
        "= note: the update of this step was not made; the last checkpoint `run/step-000002` is from before",
        "= help: ",
    ]);
    assert!(bench.path("run/step-000002/index.json").exists());
}

/// The program, started by a shell that has done something else before.
#[cfg(unix)]
fn limited(bench: &Bench, before: &str, args: &[&str]) -> super::Run {
    let output = std::process::Command::new("sh")
        .args(["-c", &format!("{before}; exec \"$0\" \"$@\""), env!("CARGO_BIN_EXE_forebay")])
        .args(args)
        .current_dir(bench.folder.path())
        .output()
        .expect("a shell");
    super::Run::new(output)
}

/// A disk that is full, as far as a process can tell: files may not grow beyond a limit.
#[cfg(unix)]
#[test]
fn a_full_disk_leaves_the_previous_checkpoint() {
    let bench = Bench::new();
    bench.train(&["--steps", "1", "--save", "run"]).ok();
    let before = fs::read(bench.path("run/step-000001/model.safetensors")).expect("a file");
    // 64 blocks of 512 or 1024 bytes; the signal for it is ignored, so that writing fails.
    let args = [&["train", "model.moe", "--data", "text.txt", "--steps", "2", "--resume", "run"], SMALL].concat();
    let run = limited(&bench, "trap '' XFSZ; ulimit -f 64", &args);
    run.fails(&["cannot save the checkpoint: writing `", "; the previous checkpoint `", "step-000001` is untouched"]);
    assert_eq!(fs::read(bench.path("run/step-000001/model.safetensors")).expect("a file"), before);
    assert_eq!(bench.names("run"), ["latest", "run.json", "step-000001"]);
    // When there is room again it goes on.
    bench.train(&["--steps", "2", "--resume", "run"]).ok();
}

#[test]
fn more_memory_than_there_is() {
    let bench = Bench::new();
    let big = example("deepseek-v3");
    let model = big.to_str().expect("UTF-8");
    let run = bench.run(&["train", model, "--data", "text.txt", "--set", "seq=64", "--save", "run"]);
    run.fails(&["this plan needs ", " TiB of memory", "weights ", "optimizer "]);
    assert!(!bench.path("run").exists());
    // A batch alone can be too much, although the weights are small.
    let mut sizes = SMALL.to_vec();
    sizes[6] = "20000000";
    let huge = [&["train", "model.moe", "--data", "text.txt", "--save", "run"], &sizes[..]].concat();
    bench.run(&huge).fails(&[
        "this plan needs ",
        " TiB of memory",
        "weights ",
        "gradients ",
        "optimizer ",
        "activations ",
    ]);
    let huge = [&["bench", "model.moe"], &sizes[..]].concat();
    bench.run(&huge).fails(&["this plan needs ", "activations "]);
    assert!(!bench.path("run").exists());
}

/// A limit on the process, far below what the machine has.
#[cfg(target_os = "linux")]
#[test]
fn more_memory_than_is_allowed() {
    let bench = Bench::new();
    let mut sizes = SMALL.to_vec();
    sizes[6] = "4000";
    for kind in ["v", "d"] {
        let limit = format!("ulimit -{kind} 600000");
        for args in [&["train", "model.moe", "--data", "text.txt", "--save", "run"][..], &["bench", "model.moe"]] {
            let run = limited(&bench, &limit, &[args, &sizes].concat());
            run.fails(&["this plan needs ", " MiB of memory, and ", " MiB are available (weights ", "activations "]);
        }
        assert!(!bench.path("run").exists());
        // What fits is done.
        limited(&bench, &limit, &[&["bench", "model.moe", "--steps", "1"], SMALL].concat()).ok();
    }
}

#[test]
fn an_environment_that_asks_for_another_processor() {
    let bench = Bench::new();
    let run = |command: &[&str], level: &str| {
        let output = bench.command(command).env("FOREBAY_CPU", level).output().expect("the program starts");
        super::Run::new(output)
    };
    let train = [&["train", "model.moe", "--data", "text.txt", "--steps", "1"], SMALL].concat();
    let timed = [&["bench", "model.moe", "--steps", "1", "--json"], SMALL].concat();
    let wrong = ["the environment has FOREBAY_CPU=abacus", "`amx`, `avx512bf16`, `avx512`, `avx2` and `portable`"];
    run(&train, "abacus").fails(&wrong);
    run(&timed, "abacus").fails(&wrong);
    bench.run(&[&["compile", "model.moe", "-o", "plan"], &SMALL[..SMALL.len() - 2]].concat()).ok();
    run(&["run", "plan", "--data", "text.txt"], "abacus").fails(&wrong);
    assert_eq!(run(&timed, "portable").ok().lines()[0]["bench"]["cpu"], "portable");
    // What the command line says comes first.
    run(&[&timed[..], &["--cpu", "portable"]].concat(), "abacus").ok();
    run(&timed, "").ok();
}

#[test]
fn an_environment_that_asks_for_machine_code() {
    let bench = Bench::new();
    let timed = [&["bench", "model.moe", "--steps", "1", "--json"], SMALL].concat();
    let run = |jit: &str| {
        let output = bench.command(&timed).env("FOREBAY_JIT", jit).output().expect("the program starts");
        super::Run::new(output)
    };
    run("always").fails(&["the environment has FOREBAY_JIT=always", "`off`, `auto` and `on`"]);
    let functions = |jit: &str| run(jit).ok().lines()[0]["bench"]["compiled"]["functions"].as_u64().expect("a number");
    assert_eq!(functions("off"), 0);
    assert!(functions("on") > 0 || !cfg!(target_arch = "x86_64"));
    assert_eq!(functions(""), functions("auto"));
}

/// What cannot be written is said before the work, not after it.
#[test]
fn places_that_cannot_be_written() {
    let bench = Bench::new();
    fs::create_dir(bench.path("folder")).expect("a folder");
    let wrong =
        [("missing/x", "cannot write `missing/x`: its folder: "), ("folder", "cannot write `folder`: it is a folder")];
    for (place, said) in wrong {
        for option in ["--trace", "--profile"] {
            let option = format!("{option}={place}");
            bench.train(&["--steps", "1000000", "--save", "run", &option]).fails(&[said]);
        }
        for option in ["--trace", "--html"] {
            bench.run(&["simulate", "model.moe", "--cluster", "h100", option, place]).fails(&[said]);
        }
        bench.run(&["memory", "model.moe", "--cluster", "h100", "--svg", place]).fails(&[said]);
        bench.run(&["calibrate", "--cpu", "-o", place]).fails(&[said]);
        bench.run(&["compile", "model.moe", "-o", place]).fails(&[said]);
    }
    assert!(!bench.path("run").exists(), "no run was begun");
}

/// What is priced may be far larger than what runs here.
#[test]
fn more_ranks_than_can_be_run() {
    let bench = Bench::new();
    let sizes = ["--batch", "2048", "--seq", "8", "--set", "layers=1", "d=32", "f=32", "experts=4"];
    bench.run(&[&["compile", "model.moe", "-o", "p.plan", "--strategy", "dp=2048"], &sizes[..]].concat()).ok();
    bench.run(&["run", "p.plan", "--data", "text.txt"]).fails(&[
        "the plan is for 2048 ranks, more than can be run",
        "= help: 1024 ranks can be, in all processes together",
    ]);
}

/// A step of millions of micro-batches would be a plan of gigabytes.
#[test]
fn too_many_micro_batches() {
    let bench = Bench::new();
    bench
        .run(&["simulate", "model.moe", "--cluster", "h100", "--batch", "400000", "--strategy", "pp=4,mbs=1"])
        .fails(&["4 stages × 1 parts × 400000 micro-batches are 1600000 forwards in a step", "mbs"]);
}

/// A plan that cannot be run can be looked at.
#[test]
fn plans_that_are_wrong_are_shown() {
    let bench = Bench::new();
    bench.run(&[&["compile", "model.moe", "-o", "x.plan"], &SMALL[..SMALL.len() - 2]].concat()).ok();
    let mut plan = forebay_plan::Plan::parse(&fs::read(bench.path("x.plan")).expect("a plan")).expect("a plan");
    plan.roles[0].device_bytes = 64;
    bench.write("y.plan", plan.to_bytes());
    bench.run(&["plan", "verify", "y.plan"]).fails(&["y.plan"]);
    for args in [&["plan", "show", "y.plan"][..], &["plan", "show", "y.plan", "--rank", "0"]] {
        assert!(bench.run(args).ok().stdout.contains("matmul"));
    }
}
