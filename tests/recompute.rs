//! Computing again what could have been saved: less memory, the same bits.

mod common;

use common::training::{plan, train};
use common::{Example, examples};
use forebay_ir::DType;
use forebay_plan::Plan;

/// Bytes that live within a training step, on the rank that has most.
fn activations(plan: &Plan) -> u64 {
    let train = |role: &forebay_plan::Role| role.phases.iter().find(|p| p.name == "train").expect("trains").memory;
    plan.roles.iter().map(|role| train(role).activations).max().expect("a plan has a role")
}

#[test]
fn whole_blocks_again_are_the_same_bits_in_less_memory() {
    for example in examples() {
        let of = |text: &str| plan(&example, text, DType::F32, &[]).unwrap_or_else(|e| panic!("{}: {e}", example.name));
        let (kept, again) = (of("micro=4"), of("micro=4,recompute=full"));
        let name = &example.name;
        let (before, after) = (activations(&kept), activations(&again));
        assert!(after < before, "{name}: {after} bytes, of {before} when everything is kept");
        assert!(train(name, &kept, 2).bits() == train(name, &again, 2).bits(), "{name}: other bits");
    }
}

/// One kind of value after the other, alone and with what else there is.
#[test]
fn named_values_again_are_the_same_bits() {
    let saves = |name: &str, with: &str, what: &str| {
        let example = Example::named(name);
        let of = |text: &str| plan(&example, text, DType::F32, &[]).unwrap_or_else(|e| panic!("{text}: {e}"));
        let kept = of(with);
        let run = train(name, &kept, 2);
        let again = of(&format!("{with},recompute={what}"));
        assert!(train(name, &again, 2).bits() == run.bits(), "{name} {with} {what}: other bits");
        (activations(&kept), activations(&again))
    };
    for (name, with, what) in [
        ("tiny-moe", "micro=4", "attention"),
        ("deepseek-v3", "micro=4", "attention/contract"),
        ("mixtral-8x7b", "micro=4", "permute"),
        ("tiny-moe", "dp=2,tp=2,ep=4,micro=2,zero=1", "dispatch/permute"),
        ("pangu-ultra-moe", "tp=2,pp=2,ep=2,micro=4", "full"),
        ("qwen3-30b-a3b", "cp=2,tp=2,ep=4,micro=4", "full"),
    ] {
        let (before, after) = saves(name, with, what);
        assert!(after < before, "{name} {with} {what}: {after} bytes, of {before} when everything is kept");
    }
}

#[test]
fn names_that_mean_nothing_are_refused() {
    let message = plan(&Example::named("tiny-moe"), "micro=4,recompute=swiglue", DType::F32, &[]).unwrap_err();
    assert!(message.contains("is called `swiglue`"), "{message}");
    assert!(message.contains("what is saved is "), "{message}");
}
