//! Replays against what they come to by hand.

use crate::pipelines;

use forebay_sim::Kind;
use forebay_sim::log::Why;
use forebay_sim::lower::{Lane, Op, RoleOps};
use forebay_sim::price::Action;
use forebay_sim::replay::{Host, Machine, Outcome, Straggler, replay, replay_logged};
use forebay_sim::routes::Routes;
use forebay_sim::steps::{Step, Timed};
use pipelines::{BACKWARD, FORWARD, interleaved, main_op, program, step};
use std::sync::LazyLock;

const IDLE_HOST: Host = Host { dispatch: 0.0, regain: 0.0 };

/// A second for each byte of a message.
static ROUTES: LazyLock<Routes> = LazyLock::new(|| Routes::alike(0.0, 1.0));

fn machine(host: Host, slowdown: f64) -> Machine<'static> {
    Machine { host, slowdown, routes: &ROUTES, straggler: None }
}

fn run(programs: &[Timed], roles: &[RoleOps], host: Host) -> Vec<Outcome> {
    replay(programs, roles, &vec![vec![]; roles.len()], machine(host, 0.0)).expect("nobody waits for ever")
}

fn near(got: f64, want: f64) {
    assert!((got - want).abs() <= 1e-9 * want.abs().max(1.0), "{got} is not {want}");
}

/// A stage with a slow device takes so many times as long for its work, and the others wait for it: by hand, m + p − 1 passes each way where the last stage is slow by 2, of which its own are
/// twice as long and the other stages' fill and drain are not.
#[test]
fn stages_wait_for_a_straggler() {
    let (stages, micro) = (4, 8);
    let (programs, roles) = one_f_one_b(stages, micro, 0.0);
    let step = |straggler: Option<Straggler>| {
        let machine = Machine { straggler, ..machine(IDLE_HOST, 0.0) };
        let outcomes = replay(&programs, &roles, &vec![vec![]; roles.len()], machine).expect("nobody waits for ever");
        outcomes.iter().map(|o| o.end).fold(0.0, f64::max)
    };
    let slow = |stage: u32| step(Some(Straggler { stage, factor: 2.0 }));
    near(step(None), f64::from(micro + stages - 1) * (FORWARD + BACKWARD));
    let others = f64::from(stages - 1) * (FORWARD + BACKWARD);
    near(slow(stages - 1), 2.0 * f64::from(micro) * (FORWARD + BACKWARD) + others);
    near(step(Some(Straggler { stage: 1, factor: 1.0 })), step(None));
    assert!((0..stages).all(|stage| slow(stage) >= 2.0 * f64::from(micro) * (FORWARD + BACKWARD)));
}

/// 1F1B by its definition: p − 1 − r forward passes, then one forward and one backward at a time.
fn one_f_one_b(stages: u32, micro: u32, transfer: f64) -> (Vec<Timed>, Vec<RoleOps>) {
    let mut programs = vec![program(vec![step(FORWARD, Action::Work)]), program(vec![step(BACKWARD, Action::Work)])];
    let mut message = |action| {
        programs.push(program(vec![step(0.0, action)]));
        main_op(programs.len() - 1)
    };
    let mut roles = vec![];
    for stage in 0..stages {
        let mut ops = vec![];
        let mut pass = |forward: bool, ops: &mut Vec<Op>| {
            let (from, to) =
                if forward { (stage.checked_sub(1), Some(stage + 1)) } else { (Some(stage + 1), stage.checked_sub(1)) };
            let channel = u32::from(forward);
            let there = |s: Option<u32>| s.filter(|s| *s < stages);
            ops.extend(there(from).map(|peer| message(Action::Receive { peer, channel })));
            ops.push(main_op(usize::from(!forward)));
            ops.extend(there(to).map(|peer| message(Action::Send { peer, channel, bytes: transfer, part: 1.0 })));
        };
        let warm_up = (stages - 1 - stage).min(micro);
        (0..warm_up).for_each(|_| pass(true, &mut ops));
        for _ in warm_up..micro {
            pass(true, &mut ops);
            pass(false, &mut ops);
        }
        (0..warm_up).for_each(|_| pass(false, &mut ops));
        roles.push(RoleOps::plain(stage, ops));
    }
    (programs, roles)
}

#[test]
fn the_bubble_of_one_f_one_b_is_exact() {
    for (p, m) in [(1, 1), (2, 2), (4, 8), (8, 8), (16, 40)] {
        let (programs, roles) = one_f_one_b(p, m, 0.0);
        let outcomes = run(&programs, &roles, IDLE_HOST);
        let end = outcomes.iter().map(|o| o.end).fold(0.0, f64::max);
        let work = f64::from(m) * (FORWARD + BACKWARD);
        near(end, work + f64::from(p - 1) * (FORWARD + BACKWARD));
    }
}

/// (p − 1)(F + B) whatever the number of chunks; here with 16 stages, 4 chunks and 512 micro-batches too, 200,000 calls.
#[test]
fn the_bubble_of_an_interleaved_pipeline_is_exact() {
    for (p, v, m) in [(2, 2, 4), (4, 2, 8), (4, 3, 12), (16, 4, 512)] {
        let (programs, roles) = interleaved(p, v, m);
        let end = run(&programs, &roles, IDLE_HOST).iter().map(|o| o.end).fold(0.0, f64::max);
        near(end, f64::from(m * v) * (FORWARD + BACKWARD) + f64::from(p - 1) * (FORWARD + BACKWARD));
    }
}

#[test]
fn work_and_waiting_are_all_of_the_time() {
    for transfer in [0.0, 0.5, 10.0] {
        let (programs, roles) = one_f_one_b(4, 12, transfer);
        for outcome in run(&programs, &roles, Host { dispatch: 0.7, regain: 0.0 }) {
            near(outcome.accounted(), outcome.end);
        }
    }
}

#[test]
fn slower_messages_are_never_faster_and_more_micro_batches_have_a_smaller_bubble() {
    let end = |transfer: f64, m: u32| {
        let (programs, roles) = one_f_one_b(4, m, transfer);
        run(&programs, &roles, IDLE_HOST).iter().map(|o| o.end).fold(0.0, f64::max)
    };
    let times: Vec<f64> = [0.0, 0.1, 1.0, 4.0].into_iter().map(|t| end(t, 8)).collect();
    assert!(times.windows(2).all(|w| w[0] <= w[1]), "{times:?}");
    let shares: Vec<f64> =
        [4, 8, 16, 64].into_iter().map(|m| 1.0 - f64::from(m) * (FORWARD + BACKWARD) / end(0.0, m)).collect();
    assert!(shares.windows(2).all(|w| w[0] >= w[1]), "{shares:?}");
}

#[test]
fn a_slow_host_bounds_the_step() {
    let programs = vec![program(vec![step(1.0, Action::Work)])];
    let ops = RoleOps::plain(0, vec![main_op(0); 10]);
    let outcome = &run(&programs, std::slice::from_ref(&ops), Host { dispatch: 4.0, regain: 0.0 })[0];
    // Every kernel starts when the host has started it; the last one runs for a second after that.
    near(outcome.end, 41.0);
    near(outcome.host, 31.0);
    near(run(&programs, &[ops], Host { dispatch: 0.5, regain: 0.0 })[0].end, 10.5);
}

/// Before two of four calls the host gives memory back, when the device has done what it was given: 0.5 s each, in which the device waits for it.
#[test]
fn memory_is_given_back_when_the_device_has_done() {
    let programs = vec![program(vec![step(1.0, Action::Work)])];
    let ops = RoleOps { regains: vec![1, 3], ..RoleOps::plain(0, vec![main_op(0); 4]) };
    let outcome = &run(&programs, &[ops], Host { dispatch: 0.25, regain: 0.5 })[0];
    // Twice the host gives memory back and launches while the device has nothing to do, and it launches the first kernel.
    near(outcome.end, 4.0 + 0.25 + 2.0 * (0.5 + 0.25));
    near(outcome.host, 0.25 + 2.0 * (0.5 + 0.25));
    assert_eq!(outcome.host_syncs, 2);
}

/// A copy on another stream that the next kernel waits for.
#[test]
fn streams_run_beside_each_other_until_an_event() {
    let mut beside = step(4.0, Action::Work);
    (beside.stream, beside.records, beside.kind) = (2, Some(0), Kind::Tp);
    let mut after = step(2.0, Action::Work);
    after.waits = vec![0];
    let programs = vec![program(vec![beside, step(3.0, Action::Work), after])];
    let ops = RoleOps::plain(0, vec![main_op(0)]);
    let outcome = &run(&programs, std::slice::from_ref(&ops), IDLE_HOST)[0];
    near(outcome.end, 6.0);
    near(outcome.waited[Kind::Tp.number()], 1.0);
    near(outcome.accounted(), outcome.end);
    // With contention the three seconds that run beside it are half as fast.
    let slower = replay(&programs, &[ops], &[vec![]], machine(IDLE_HOST, 0.5)).expect("it ends");
    assert!(slower[0].end > 6.0);
}

/// A message on a stream of its own waits for what is sent.
#[test]
fn messages_leave_when_what_they_carry_is_there() {
    let mut made = step(3.0, Action::Work);
    made.records = Some(0);
    let mut sent = step(0.0, Action::Send { peer: 1, channel: 0, bytes: 0.5, part: 1.0 });
    (sent.stream, sent.waits) = (2, vec![0]);
    let programs = vec![
        program(vec![made, sent]),
        program(vec![step(0.0, Action::Receive { peer: 0, channel: 0 })]),
        program(vec![step(2.0, Action::Work)]),
    ];
    let role = |coordinate: u32, ops: Vec<Op>| RoleOps::plain(coordinate, ops);
    let roles = [role(0, vec![main_op(0)]), role(1, vec![main_op(1), main_op(2)])];
    let logged = replay_logged(&programs, &roles, &[vec![], vec![]], machine(IDLE_HOST, 0.0)).expect("it ends");
    near(logged[1].0.end, 3.0 + 0.5 + 2.0);
    near(logged[1].0.bubble, 3.0);
    // What is logged is what is reported, and a message joins its two slices.
    let idle: Vec<(Why, f64)> = logged[1].1.idle.iter().map(|i| (i.why, i.end - i.begin)).collect();
    assert_eq!(idle, [(Why::Stage, 3.0), (Why::Communication(Kind::Pp), 0.5)]);
    assert_eq!((&logged[0].1.sent, &logged[1].1.received), (&vec![((0, 1, 0), 1)], &vec![((0, 1, 0), 0)]));
    assert_eq!(replay(&programs, &roles, &[vec![], vec![]], machine(IDLE_HOST, 0.0)).expect("it ends")[1], logged[1].0);
}

/// A collective of several stages begins when the last of them could begin it alone: what it waits for there is part of that.
#[test]
fn a_meeting_begins_when_what_the_last_waits_for_has_happened() {
    let made = |seconds| Step { records: Some(0), ..step(seconds, Action::Work) };
    let sum = Step { stream: 2, waits: vec![0], kind: Kind::Dp, ..step(1.0, Action::Meet) };
    let programs = vec![program(vec![made(3.0), sum.clone()]), program(vec![made(5.0), sum])];
    let role = |coordinate: u32| RoleOps::plain(coordinate, vec![main_op(coordinate as usize)]);
    for roles in [[role(0), role(1)], [role(1), role(0)]] {
        let outcomes = run(&programs, &roles, IDLE_HOST);
        outcomes.iter().for_each(|o| near(o.end, 6.0));
    }
}

/// A role that waits for others at the beginning of a call begins it once.
#[test]
fn what_waits_for_others_is_counted_once() {
    let sum = Step { kind: Kind::Dp, ..step(1.0, Action::Meet) };
    let programs = vec![program(vec![sum]), program(vec![step(5.0, Action::Work)])];
    let roles = [RoleOps::plain(0, vec![main_op(0)]), RoleOps::plain(1, vec![main_op(1), main_op(0)])];
    for outcome in run(&programs, &roles, IDLE_HOST) {
        near(outcome.end, 6.0);
        near(outcome.total[Kind::Dp.number()], 1.0);
    }
}

/// Before the commit all hosts wait for all that was launched, and go on a launch later.
#[test]
fn hosts_stop_before_the_commit() {
    let work = |seconds| program(vec![Step { launches: 1.0, ..step(seconds, Action::Work) }]);
    let programs = vec![work(2.0), work(4.0), work(1.0)];
    let ops = |first| {
        [first, 2].map(|program| Op { program, call: Some(program.min(1)), lane: Lane::Main, reads: true }).to_vec()
    };
    let role = |coordinate: u32, commit| RoleOps { commit, ..RoleOps::plain(coordinate, ops(coordinate)) };
    let host = Host { dispatch: 0.1, regain: 0.0 };
    let ends =
        |commit| run(&programs, &[role(0, commit), role(1, commit)], host).iter().map(|o| o.end).collect::<Vec<_>>();
    // 0.1 to launch, then the work; behind the stop of all at 4.1 another 0.1 to go on, and 0.1 to launch.
    for (end, want) in ends(Some(1)).into_iter().zip([4.1 + 0.2 + 1.0; 2]) {
        near(end, want);
    }
    for (end, want) in ends(None).into_iter().zip([0.1 + 2.0 + 1.0, 0.1 + 4.0 + 1.0]) {
        near(end, want);
    }
}

#[test]
fn parameters_that_are_gathered_ahead_cost_what_does_not_fit_behind_the_layer_before() {
    let mut gather = step(2.0, Action::Work);
    gather.kind = Kind::Dp;
    let programs = vec![program(vec![gather]), program(vec![step(3.0, Action::Work)])];
    let ahead = Op { program: 0, call: None, lane: Lane::Ahead, reads: true };
    let ops = vec![ahead, main_op(1), ahead, main_op(1), ahead, main_op(1)];
    let ops = RoleOps::plain(0, ops);
    // The first gather is seen; the others run behind the layers.
    near(run(&programs, &[ops], IDLE_HOST)[0].end, 2.0 + 3.0 * 3.0);
}

/// Work loses by all that is in flight meanwhile, by what goes through the device: a small collective behind a large one hides nothing of that, and it does not matter which comes first in the plan.
#[test]
fn work_loses_by_all_that_is_in_flight() {
    let work = step(10.0, Action::Work);
    let flight = |stream: usize, seconds: f64, load: f64| Step {
        stream,
        kind: Kind::Dp,
        work: 0.0,
        load,
        ..step(seconds, Action::Work)
    };
    let of = |steps: Vec<Step>| {
        let ops = RoleOps::plain(0, vec![main_op(0)]);
        let outcome = replay(&[program(steps)], &[ops], &[vec![]], machine(IDLE_HOST, 0.5)).expect("it ends").remove(0);
        near(outcome.accounted(), outcome.end);
        (outcome.end, outcome.contention)
    };
    let (large, small) = (flight(2, 8.0, 1.0), flight(2, 0.01, 1.0));
    for steps in [
        vec![large.clone(), small.clone(), work.clone()],
        vec![work.clone(), large.clone(), small.clone()],
        vec![large.clone(), work.clone(), small.clone()],
    ] {
        near(of(steps.clone()).1, 0.5 * 8.01);
        near(of(steps).0, 10.0 + 0.5 * 8.01);
    }
    // A ring with one rank in each node passes an eighth of what one through nodes of eight does.
    near(of(vec![flight(3, 8.0, 0.125), work.clone()]).1, 0.5);
    // Both at once.
    near(of(vec![large, flight(3, 8.0, 0.125), work.clone()]).1, 4.5);
    // What waits for nothing but communication afterwards takes up what work lost.
    let waits = Step { waits: vec![0], ..step(1.0, Action::Work) };
    let long = Step { records: Some(0), ..flight(2, 30.0, 1.0) };
    near(of(vec![work, long, waits]).0, 31.0);
}

/// Whatever runs beside layers of work and communication in line, between messages: parts of the time are all of it, and nothing of a unit overlaps.
#[test]
fn what_moves_overlaps_nothing() {
    let tp = Step { kind: Kind::Tp, work: 0.0, ..step(1.0, Action::Work) };
    let layer = Timed {
        between_nodes: 1.0,
        ..program(vec![step(3.0, Action::Work), tp, step(2.0, Action::Work), step(0.5, Action::Work)])
    };
    let dp = |seconds: f64| Timed {
        between_nodes: seconds,
        ..program(vec![Step { kind: Kind::Dp, ..step(seconds, Action::Work) }])
    };
    let message = |action| program(vec![step(0.25, action)]);
    let send = message(Action::Send { peer: 1, channel: 0, bytes: 0.5, part: 1.0 });
    let receive = message(Action::Receive { peer: 0, channel: 0 });
    let beside = |program, lane| Op { program, call: None, lane, reads: false };
    let between = |program| Op { reads: false, ..main_op(program) };
    for (gathered, summed) in [(0.5, 0.5), (4.0, 1.0), (9.0, 3.0), (2.0, 12.0)] {
        let programs = vec![layer.clone(), dp(gathered), dp(summed), send.clone(), receive.clone()];
        let role = |coordinate: u32| {
            let mut ops = vec![];
            for _ in 0..4 {
                if coordinate == 1 {
                    ops.push(between(4));
                }
                ops.extend([beside(1, Lane::Ahead), main_op(0), beside(1, Lane::Ahead), main_op(0)]);
                ops.push(beside(2, Lane::Behind));
                if coordinate == 0 {
                    ops.push(between(3));
                }
            }
            RoleOps { last_backward: ops.len() - 2, first_forward: vec![1], ..RoleOps::plain(coordinate, ops) }
        };
        let roles = [role(0), role(1)];
        let host = Host { dispatch: 0.05, regain: 0.0 };
        let logged = replay_logged(&programs, &roles, &[vec![], vec![]], machine(host, 0.5)).expect("it ends");
        for (outcome, log) in logged {
            near(outcome.accounted(), outcome.end);
            let mut slices: Vec<(f64, f64)> =
                log.slices.iter().filter(|slice| slice.stream == 0).map(|slice| (slice.begin, slice.end)).collect();
            slices.sort_by(|a, b| a.0.total_cmp(&b.0));
            assert!(slices.windows(2).all(|pair| pair[0].1 <= pair[1].0 + 1e-9), "{gathered} {summed}: {slices:?}");
            assert!(outcome.contention > 0.0);
        }
    }
}

/// What is gathered for a pass is asked for when the pass before begins: messages between them change nothing.
#[test]
fn messages_between_passes_hold_no_gather_up() {
    let dp = |seconds| program(vec![Step { kind: Kind::Dp, ..step(seconds, Action::Work) }]);
    let programs =
        vec![program(vec![step(10.0, Action::Work)]), dp(8.0), dp(3.0), program(vec![step(0.01, Action::Work)])];
    let beside = |program, lane| Op { program, call: None, lane, reads: true };
    let message = Op { reads: false, ..main_op(3) };
    let end = |between: &[Op]| {
        let mut ops = vec![main_op(0), beside(2, Lane::Behind)];
        ops.extend(between);
        ops.extend([beside(1, Lane::Ahead), main_op(0)]);
        run(&programs, &[RoleOps::plain(0, ops)], IDLE_HOST)[0].end
    };
    near(end(&[]), 20.0);
    near(end(&[message]), 20.01);
}

/// Two transfers between nodes at once have half of the links each: both take longer by the time that they share.
#[test]
fn what_is_gathered_between_nodes_slows_a_layers_own_exchanges_down() {
    let ahead = Op { program: 0, call: None, lane: Lane::Ahead, reads: true };
    let ops = RoleOps::plain(0, [ahead, main_op(1)].repeat(3));
    let end = |gathered: f64, between_nodes: f64, slowdown: f64| {
        let gather = Step { kind: Kind::Dp, ..step(gathered, Action::Work) };
        let gather = Timed { between_nodes: gathered, ..program(vec![gather]) };
        let work = 1.0 - between_nodes / 3.0;
        let layer = Timed { between_nodes, ..program(vec![Step { work, ..step(3.0, Action::Work) }]) };
        let outcomes = replay(&[gather, layer], std::slice::from_ref(&ops), &[vec![]], machine(IDLE_HOST, slowdown));
        outcomes.expect("it ends")[0].end
    };
    // The first gather is seen; of the other two, two seconds each are beside a layer, of which half are spent on links.
    near(end(2.0, 0.0, 0.0), 11.0);
    near(end(2.0, 1.5, 0.0), 11.0 + 2.0 * (2.0 * 0.5));
    // The rest is work, which is slowed down as work is.
    near(end(2.0, 0.0, 0.25), 11.0 + 2.0 * (2.0 * 0.25));
    near(end(2.0, 1.5, 0.25), 11.0 + 2.0 * (2.0 * 0.5 + 2.0 * 0.5 * 0.25));
    // Gathers that layers wait for take longer by the same.
    near(end(5.0, 0.0, 0.0), 5.0 + 2.0 * 5.0 + 3.0);
    near(end(5.0, 1.5, 0.0), 5.0 + 2.0 * (5.0 + 3.0 * 0.5) + 3.0);
}

/// What is summed beside the last backward pass, and gathered beside the next step's first forward pass, slows them down.
#[test]
fn what_is_beside_the_ends_of_a_step_slows_them_down() {
    let dp = |seconds| program(vec![Step { kind: Kind::Dp, ..step(seconds, Action::Work) }]);
    let beside = |program, lane| Op { program, call: None, lane, reads: true };
    let of = |sum: f64, gather: f64, slowdown: f64| {
        let programs = vec![program(vec![step(10.0, Action::Work)]), dp(sum), dp(gather)];
        let calls = vec![main_op(0), main_op(0), beside(1, Lane::LateBackward), beside(2, Lane::NextForward)];
        // The first is the forward pass, the second the backward pass.
        let ops = RoleOps { last_backward: 1, first_forward: vec![0], ..RoleOps::plain(0, calls) };
        let outcome = replay(&programs, &[ops], &[vec![]], machine(IDLE_HOST, slowdown)).expect("it ends").remove(0);
        near(outcome.accounted(), outcome.end);
        (outcome.end, outcome.contention)
    };
    // A twentieth of each is seen, however much there is to hide behind.
    let hidden = |got: (f64, f64), seen: f64, slowed: f64| {
        near(got.0, 20.0 + seen + slowed);
        near(got.1, slowed);
    };
    hidden(of(4.0, 8.0, 0.0), 0.2 + 0.4, 0.0);
    hidden(of(4.0, 8.0, 0.25), 0.2 + 0.4, 3.8 * 0.25 + 2.0);
    // Beyond ten seconds there is nothing to slow down.
    hidden(of(16.0, 12.0, 0.0), 6.0 + 2.0, 0.0);
    let both = of(16.0, 12.0, 0.25);
    near(both.1, 2.5 + 2.5);
    // (The sum went on while the backward pass took longer, and so does what is gathered: of 12 seconds 12.5 hide all but the first bucket.)
    near(both.0, 20.0 + 6.0 + 2.5 + 0.6);
}

/// Sums beside the last backward pass follow on each other; of all of them a twentieth is left when it has ended.
#[test]
fn sums_beside_the_last_backward_pass_follow_on_each_other() {
    let dp = |seconds| program(vec![Step { kind: Kind::Dp, ..step(seconds, Action::Work) }]);
    let late = |program| Op { program, call: None, lane: Lane::LateBackward, reads: true };
    let programs = vec![program(vec![step(10.0, Action::Work)]), dp(3.0), dp(5.0)];
    let ops = RoleOps { last_backward: 1, ..RoleOps::plain(0, vec![main_op(0), main_op(0), late(1), late(2)]) };
    let outcome = run(&programs, &[ops], IDLE_HOST).remove(0);
    near(outcome.end, 20.0 + 0.05 * 8.0);
    near(outcome.waited[Kind::Dp.number()], 0.05 * 8.0);
    near(outcome.total[Kind::Dp.number()], 8.0);
}

/// What is beside work that waits for the host slows nothing down, and is hidden behind that waiting too.
#[test]
fn a_host_that_is_late_hides_what_is_beside() {
    let work = program(vec![Step { launches: 1.0, ..step(1.0, Action::Work) }; 5]);
    let dp = program(vec![Step { kind: Kind::Dp, ..step(8.0, Action::Work) }]);
    let beside = |lane| Op { program: 1, call: None, lane, reads: true };
    let calls = vec![main_op(0), main_op(0), beside(Lane::LateBackward), beside(Lane::NextForward)];
    let ops = RoleOps { last_backward: 1, first_forward: vec![0], ..RoleOps::plain(0, calls) };
    let of = |slowdown: f64| {
        let host = Host { dispatch: 2.0, regain: 0.0 };
        replay(&[work.clone(), dp.clone()], std::slice::from_ref(&ops), &[vec![]], machine(host, slowdown))
            .expect("it ends")
            .remove(0)
    };
    // A slower host never makes a step shorter.
    let ends: Vec<f64> = (0..40)
        .map(|tenths| {
            let host = Host { dispatch: 0.1 * f64::from(tenths), regain: 0.0 };
            let programs = [work.clone(), dp.clone()];
            let outcome = replay(&programs, std::slice::from_ref(&ops), &[vec![]], machine(host, 0.5));
            outcome.expect("it ends")[0].end
        })
        .collect();
    assert!(ends.windows(2).all(|pair| pair[1] >= pair[0] - 1e-9), "{ends:?}");
    // Kernels of a second are started every two: ten take twenty, and the last its second.
    for slowdown in [0.0, 0.5] {
        let outcome = of(slowdown);
        near(outcome.end, 20.0 + 1.0 + 2.0 * 0.05 * 8.0);
        near(outcome.waited[Kind::Dp.number()], 2.0 * 0.05 * 8.0);
        near(outcome.host, 20.0 + 1.0 - 10.0);
        near(outcome.contention, 0.0);
    }
}

/// A stage that waits for another whose host is late waits for that host: more micro-batches leave less of a step to the bubble.
#[test]
fn waiting_for_a_late_host_is_no_bubble() {
    let of = |micro: u32, dispatch: f64| {
        let (mut programs, roles) = one_f_one_b(2, micro, 0.0);
        let steps = programs.iter_mut().flat_map(|program| &mut program.steps);
        steps.filter(|step| step.seconds > 0.0).for_each(|step| step.launches = 1.0);
        let outcomes = run(&programs, &roles, Host { dispatch, regain: 0.0 });
        outcomes.iter().for_each(|o| near(o.accounted(), o.end));
        outcomes
    };
    let share = |outcomes: &[Outcome]| {
        outcomes.iter().map(|o| o.bubble).sum::<f64>() / outcomes.iter().map(|o| o.end).sum::<f64>()
    };
    // A host that takes ten times as long as its device: nearly all of the step is its, waiting for the first stage's first kernel included.
    let late = 10.0 * (FORWARD + BACKWARD);
    let shares: Vec<f64> = [2, 4, 8, 16, 32].map(|micro| share(&of(micro, late))).to_vec();
    assert!(shares.windows(2).all(|pair| pair[1] <= pair[0] + 1e-12), "{shares:?}");
    assert!(shares[0] < 0.05, "{shares:?}");
    // Without it the bubble is 1F1B's.
    let idle = of(8, 0.0);
    near(idle[0].bubble, FORWARD + BACKWARD);
    assert!(idle.iter().all(|o| o.host == 0.0));
}

/// The parameters of the next layer were asked for when this one began, its gradients when it had ended: as FSDP's backward prefetch has it.
#[test]
fn what_is_gathered_goes_before_sums_that_come_later() {
    let programs: Vec<Timed> =
        [4.0, 10.0, 5.0].map(|seconds| program(vec![step(seconds, Action::Work)])).into_iter().collect();
    let beside = |program, lane| Op { program, call: None, lane, reads: true };
    let layer = [beside(0, Lane::Ahead), main_op(1), beside(2, Lane::Behind)];
    let ops = RoleOps::plain(0, layer.repeat(3));
    let (outcome, log) =
        replay_logged(&programs, &[ops], &[vec![]], machine(IDLE_HOST, 0.0)).expect("it ends").remove(0);
    // The first layer waits for its parameters, the last for the sum of its gradients.
    near(outcome.end, 4.0 + 3.0 * 10.0 + 5.0);
    let begins = |program: u32| -> Vec<f64> {
        let of_program = |slice: &&forebay_sim::log::Slice| slice.op % 3 == program;
        log.slices.iter().filter(of_program).map(|slice| slice.begin).collect()
    };
    assert_eq!((begins(0), begins(2)), (vec![0.0, 4.0, 19.0], vec![14.0, 24.0, 34.0]));
}

#[test]
fn roles_that_wait_for_each_other_are_found() {
    let receive = |peer| program(vec![step(0.0, Action::Receive { peer, channel: 0 })]);
    let programs = vec![receive(1), receive(0)];
    let role = |coordinate: u32| RoleOps::plain(coordinate, vec![main_op(coordinate as usize)]);
    let stuck = replay(&programs, &[role(0), role(1)], &[vec![], vec![]], machine(IDLE_HOST, 0.0));
    assert_eq!(stuck.expect_err("nobody sends").role, 0);
}
