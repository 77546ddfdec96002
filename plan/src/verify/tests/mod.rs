mod broken;
mod hostile;
mod mutations;
mod order;
mod ranks;

use crate::schema::Plan;
use crate::testing;
use crate::verify::{Rule, list, verify};

#[track_caller]
fn assert_valid(plan: &Plan) {
    if let Err(violations) = verify(plan) {
        panic!("a valid plan is refused:\n{}", list(&violations));
    }
}

#[test]
fn made_up_plans_are_valid() {
    assert_valid(&testing::tiny());
    (0..300).for_each(|seed| assert_valid(&testing::random(seed)));
    assert_valid(&testing::large(200));
    assert_valid(&testing::pipeline());
}

/// The test plans are worth breaking only if they use everything.
#[test]
fn the_tiny_plan_uses_every_kernel_and_several_streams() {
    let plan = testing::tiny();
    let mut kernels: Vec<&str> = plan.programs.iter().flat_map(|p| &p.instructions).map(|i| i.kernel.name()).collect();
    kernels.sort_unstable();
    kernels.dedup();
    assert_eq!(kernels.len(), 17, "{kernels:?}");
    assert!(plan.programs.iter().any(|p| p.events > 3 && p.streams.len() > 1));
}

#[test]
fn the_list_of_violations_is_bounded() {
    let mut plan = testing::large(200);
    plan.roles[0].phases[0].calls.iter_mut().for_each(|c| c.layer = u32::MAX);
    assert_eq!(verify(&plan).unwrap_err().len(), super::MAX_VIOLATIONS);
}
