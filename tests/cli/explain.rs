//! `forebay explain` and `forebay rules`.

use crate::{Bench, example};
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
