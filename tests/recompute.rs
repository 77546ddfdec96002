//! Computing again what could have been saved: less memory, the same bits.

use crate::common;

use common::training::{plan, sized_within, train};
use common::{Example, examples};
use forebay_compiler::memory::Aim;
use forebay_compiler::rewrite::Profile;
use forebay_ir::DType;
use forebay_plan::{Kernel, Plan};

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

/// Elementwise work that a step does forwards and backwards, operations.
fn elementwise(plan: &Plan) -> f64 {
    let of_training = plan.programs.iter().filter(|p| p.name.starts_with("train."));
    let regions = of_training.flat_map(|p| &p.instructions).filter(|i| matches!(i.kernel, Kernel::Region(_)));
    regions.map(|i| i.kernel.flops()).sum()
}

#[test]
fn what_products_read_is_kept_in_more_memory_with_less_work() {
    for (name, with) in [
        ("bench-tiny", "micro=4"),
        ("qwen3-30b-a3b", "tp=2,ep=2,micro=4"),
        ("gpt-oss-120b", "micro=4"),
        ("deepseek-v3", "pp=2,micro=4,schedule=zb-h1"),
        ("tiny-moe", "micro=4,recompute=attention"),
    ] {
        let example = Example::named(name);
        let of = |text: &str| plan(&example, text, DType::F32, &[]).unwrap_or_else(|e| panic!("{text}: {e}"));
        let (fewest, inputs) = (of(with), of(&format!("{with},keep=inputs")));
        assert!(train(name, &fewest, 2).bits() == train(name, &inputs, 2).bits(), "{name} {with}: other bits");
        let (before, after) = (activations(&fewest), activations(&inputs));
        assert!(before < after, "{name} {with}: {after} bytes with what products read, {before} without");
        let (before, after) = (elementwise(&fewest), elementwise(&inputs));
        assert!(after < before, "{name} {with}: {after} operations, of {before} where norms are made again");
    }
}

/// What ranks share is one value, whether it is read as each rank's own or as all ranks': it is kept once, not copied.
#[test]
fn what_is_kept_is_kept_once() {
    let example = Example::named("tiny-moe");
    let plan = plan(&example, "tp=2,sp=0,micro=4,keep=inputs", DType::F32, &[]).expect("a plan");
    let layers = plan.programs.iter().filter(|p| p.name == "train.layers.forward");
    let names: Vec<&str> = layers.flat_map(|p| &p.instructions).map(|i| i.name.as_str()).collect();
    assert!(!names.is_empty());
    let copies: Vec<&&str> = names.iter().filter(|name| name.ends_with(".copy")).collect();
    assert!(copies.is_empty(), "{copies:?}");
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
        // (Of programs in their own order: the frame of a better one can be larger by more than what is saved here.)
        let bytes = |text: &str| activations(&of(&format!("{text},overlap=none")));
        (bytes(with), bytes(&format!("{with},recompute={what}")))
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

/// A log-sum-exp of attention is the kernel's, with its result beside it or without: of the same sums, in the same order.
#[test]
fn log_sum_exps_again_are_the_same_bits() {
    // One kind of heads, two (latent attention), windows and sinks, documents.
    for name in ["tiny-moe", "deepseek-v3", "gpt-oss-120b", "packed-docs"] {
        for compute in [DType::F32, DType::F64] {
            let example = Example::named(name);
            let of = |text: &str| plan(&example, text, compute, &[]).unwrap_or_else(|e| panic!("{name} {text}: {e}"));
            let (kept, again) = (of("micro=4"), of("micro=4,recompute=attention_lse"));
            let kernels = |plan: &Plan| {
                let all = plan.programs.iter().filter(|p| p.name.contains(".backward")).flat_map(|p| &p.instructions);
                all.filter(|i| matches!(i.kernel, Kernel::Attention(_))).count()
            };
            assert!(kernels(&kept) == 0 && kernels(&again) > 0, "{name}: {} kernels", kernels(&again));
            assert!(train(name, &kept, 2).bits() == train(name, &again, 2).bits(), "{name} in {compute}: other bits");
        }
    }
}

/// How many calls of each stage make something again before the gradient comes. Behind each of them there is the rest of the layer's backward pass, and a message
/// between the two.
fn made_early(plan: &Plan) -> Vec<usize> {
    let of_role = |role: &forebay_plan::Role| {
        let calls = &role.phases.iter().find(|p| p.name == "train").expect("trains").calls;
        let name = |call: &forebay_plan::Call| plan.programs[call.program as usize].name.as_str();
        let early = (0..calls.len()).filter(|&at| name(&calls[at]).contains(".backward_early"));
        early
            .inspect(|&at| {
                let of = |call: &forebay_plan::Call| (call.layer, call.micro_batch);
                let behind = &calls[at + 1..];
                let rest = behind.iter().position(|c| of(c) == of(&calls[at]) && name(c).contains(".backward_rest"));
                let between = &behind[..rest.expect("the rest of the layer")];
                assert!(between.iter().any(|c| name(c).starts_with("receive.")), "nothing is waited for");
            })
            .count()
    };
    plan.roles.iter().map(of_role).collect()
}

#[test]
fn what_is_made_again_is_made_while_gradients_are_waited_for() {
    for (name, layers, strategy, stages) in [
        // Stages 0 to 2 wait for what those behind them still have to do, the last one for nobody.
        ("tiny-moe", 8, "pp=4,micro=8,recompute=full", [true, true, true, false]),
        ("tiny-moe", 8, "pp=4,micro=8,recompute=attention/contract", [true, true, true, false]),
        // Two stages wait for each other, and for the chunk of their own behind that.
        ("deepseek-v3", 4, "pp=2,vpp=2,ep=2,tp=2,micro=4,recompute=full", [true, true, false, false]),
        // Parameters that are gathered each time, halves of backward passes, nothing again.
        ("tiny-moe", 8, "pp=4,dp=2,micro=4,zero=3,recompute=full", [false; 4]),
        ("tiny-moe", 8, "pp=4,micro=8,schedule=zb-h1,recompute=full", [false; 4]),
        ("tiny-moe", 8, "pp=4,micro=8", [false; 4]),
    ] {
        let example = Example::named(name);
        let sizes = [("layers", layers), ("batch", 8)];
        let of = |overlap: &str, aim: Aim| {
            let text = format!("{strategy},overlap={overlap}");
            let compiled = sized_within(&example, (&text, &sizes), aim, &Profile::cpu());
            compiled.unwrap_or_else(|e| panic!("{text}: {e}")).plan
        };
        let (without, roomy) = (of("none", Aim::Fastest), of("early", Aim::Within(1 << 30)));
        let early = made_early(&roomy);
        let are: Vec<bool> = early.iter().map(|n| *n > 0).collect();
        assert_eq!(are, stages[..early.len()], "{name} {strategy}: {early:?}");
        assert!(made_early(&without).iter().all(|n| *n == 0), "{name} {strategy}: none without the pass");
        // Without a budget there is the room that there is anyway.
        let tight = of("early", Aim::Fastest);
        for (a, b) in without.roles.iter().zip(&tight.roles) {
            assert!(b.device_bytes <= a.device_bytes, "{name} {strategy}: {} of {}", b.device_bytes, a.device_bytes);
        }
        if stages.contains(&true) {
            let bits = train(name, &without, 2).bits();
            assert!(train(name, &roomy, 2).bits() == bits, "{name} {strategy}: other bits");
            assert!(train(name, &tight, 2).bits() == bits, "{name} {strategy}: other bits without a budget");
        }
    }
}

#[test]
fn names_that_mean_nothing_are_refused() {
    let message = plan(&Example::named("tiny-moe"), "micro=4,recompute=swiglue", DType::F32, &[]).unwrap_err();
    assert!(message.contains("is called `swiglue`"), "{message}");
    assert!(message.contains("what is saved is "), "{message}");
}
