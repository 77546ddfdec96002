//! `forebay fmt`

use super::{Bench, example};

#[test]
fn files_are_formatted_once_and_for_all() {
    let bench = Bench::new();
    let untidy = "// A comment.\nmodel   X(d=4,batch=2,  seq=8) { // another\n\n\n  input tokens:token[batch,seq]\n x=tokens+1 }\n";
    bench.write("x.moe", untidy);
    bench.run(&["fmt", "--check", "x.moe"]).fails(&["x.moe is not formatted", "help"]);
    assert_eq!(bench.read("x.moe"), untidy);
    bench.run(&["fmt", "x.moe"]).ok();
    let tidy = bench.read("x.moe");
    assert!(tidy.contains("// A comment.") && tidy.contains("// another") && tidy != untidy, "{tidy}");
    bench.run(&["fmt", "--check", "x.moe"]).ok();
    bench.run(&["fmt", "x.moe"]).ok();
    assert_eq!(bench.read("x.moe"), tidy);
    assert_eq!(bench.names("."), ["model.moe", "text.txt", "x.moe"]);
}

#[test]
fn files_with_errors_stay_as_they_are() {
    let bench = Bench::new();
    bench.write("bad.moe", "model X( {");
    bench.write("good.moe", "model X(d=4) { }");
    bench.run(&["fmt", "bad.moe", "missing.moe", "good.moe"]).fails(&[
        "error[E",
        "bad.moe:1:",
        "error: cannot read `missing.moe`",
    ]);
    assert_eq!(bench.read("bad.moe"), "model X( {");
    // The others are formatted all the same.
    bench.run(&["fmt", "--check", "good.moe"]).ok();
}

#[test]
fn what_ships_is_formatted() {
    let bench = Bench::new();
    let folder = example("tiny-moe");
    let folder = folder.parent().expect("a folder").to_str().expect("UTF-8");
    let files: Vec<String> =
        std::fs::read_dir(folder).expect("a folder").flatten().map(|e| e.path().display().to_string()).collect();
    let args: Vec<&str> = ["fmt", "--check"].into_iter().chain(files.iter().map(String::as_str)).collect();
    bench.run(&args).ok();
}
