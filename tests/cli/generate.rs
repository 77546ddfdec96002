//! `forebay generate`

use super::Bench;

#[test]
fn samples() {
    let bench = Bench::new();
    bench.train(&["--steps", "30", "--save", "run", "--lr", "1e-2"]).ok();
    let sample = |args: &[&str]| {
        let run =
            bench.command(&[&["generate", "run", "--prompt", "the "], args].concat()).output().expect("it starts");
        assert!(run.status.success(), "{}", String::from_utf8_lossy(&run.stderr));
        run.stdout
    };
    let one = sample(&["--bytes", "50"]);
    assert!(one.starts_with(b"the ") && one.ends_with(b"\n"));
    assert_eq!(one.len(), 4 + 50 + 1);
    assert_eq!(one, sample(&["--bytes", "50", "--seed", "1", "--threads", "2"]));
    assert_ne!(one, sample(&["--bytes", "50", "--seed", "2"]));
    let greedy = sample(&["--bytes", "20", "--temperature", "0"]);
    assert_eq!(greedy, sample(&["--bytes", "20", "--temperature", "0", "--seed", "5"]));
    // A particular checkpoint, and an empty prompt; the model file is not needed.
    std::fs::remove_file(bench.path("model.moe")).expect("the model");
    let run = bench.run(&["generate", "run/step-000030", "--json", "--bytes", "8"]).ok();
    let object = &run.lines()[0];
    assert_eq!(object["prompt"], "");
    assert!(!object["text"].as_str().expect("a text").is_empty());
    for (temperature, must_be) in [("-1", "0 or more"), ("inf", "finite")] {
        let refused = ["--temperature", &format!("it must be {must_be}")];
        bench.run(&["generate", "run", "--temperature", temperature]).exits(2, &refused);
    }
    bench.run(&["generate", "text.txt"]).fails(&["`text.txt` is not a checkpoint"]);
}
