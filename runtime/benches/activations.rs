//! What an activation that has no name costs beside SwiGLU: bytes a second through the region engine, as a part of SwiGLU's.
//!
//! `cargo bench -p forebay-runtime --bench activations` prints a table. Each activation takes the place of the sigmoid unit, `act(gate)·up` (three arrays
//! of traffic), and stands alone, `act(x)` (two arrays). Kernels take turns, so that neighbours slow all of them down; the fastest of all turns counts.

use Arg::{Const, Load, Step as S};
use StepOp::{Abs, Add, Cast, Cos, Div, Exp, Gt, Log, Max, Min, Mul, Neg, Select, Sin, Sub, Tanh};
use forebay_plan::{Arg, DType, Kernel, Region, Step, StepOp, Store};
use forebay_runtime::kernels::Cpu;
use memory::{Memory, view};
use std::time::{Duration, Instant};

mod memory;

/// An activation: its name and steps, of which the last is the result. `Load(0)` is the argument.
struct Activation(&'static str, Vec<(StepOp, Vec<Arg>)>);

/// Steps behind a multiple of c·(x + k·x³), which is step 4.
fn behind_cubic(multiple: f64, steps: &[(StepOp, Vec<Arg>)]) -> Vec<(StepOp, Vec<Arg>)> {
    let x = Load(0);
    let cubic = vec![
        (Mul, vec![x, x]),
        (Mul, vec![S(0), x]),
        (Mul, vec![S(1), Const(0.044_715)]),
        (Add, vec![x, S(2)]),
        (Mul, vec![S(3), Const(0.797_884_56 * multiple)]),
    ];
    [&cubic, steps].concat()
}

/// `value·sigmoid(of)` as models have it, from step `first` on: the exponent is cut, so that nothing overflows.
fn times_sigmoid(value: Arg, of: Arg, first: u32) -> Vec<(StepOp, Vec<Arg>)> {
    vec![
        (Neg, vec![of]),
        (Min, vec![S(first), Const(80.0)]),
        (Exp, vec![S(first + 1)]),
        (Add, vec![S(first + 2), Const(1.0)]),
        (Div, vec![Const(1.0), S(first + 3)]),
        (Mul, vec![value, S(first + 4)]),
    ]
}

fn activations() -> Vec<Activation> {
    let x = Load(0);
    vec![
        Activation("silu", times_sigmoid(x, x, 0)),
        Activation(
            "x·tanh(log(1 + eˣ))",
            vec![
                (Exp, vec![x]),
                (Add, vec![S(0), Const(1.0)]),
                (Log, vec![S(1)]),
                (Tanh, vec![S(2)]),
                (Mul, vec![x, S(3)]),
            ],
        ),
        Activation(
            "x·(1 + tanh(c·(x + k·x³)))/2",
            behind_cubic(
                1.0,
                &[
                    (Tanh, vec![S(4)]),
                    (Add, vec![S(5), Const(1.0)]),
                    (Mul, vec![x, S(6)]),
                    (Mul, vec![S(7), Const(0.5)]),
                ],
            ),
        ),
        // What rewriting makes of the last two (`algebra.tanh-log`, `activation.tanh-factor`).
        Activation(
            "x - 2·x/(1 + (1 + eˣ)²)",
            vec![
                (Exp, vec![x]),
                (Add, vec![S(0), Const(1.0)]),
                (Mul, vec![S(1), S(1)]),
                (Add, vec![S(2), Const(1.0)]),
                (Div, vec![Const(1.0), S(3)]),
                (Mul, vec![S(4), Const(-2.0)]),
                (Add, vec![S(5), Const(1.0)]),
                (Mul, vec![x, S(6)]),
            ],
        ),
        Activation("x·sigmoid(2·c·(x + k·x³))", behind_cubic(2.0, &times_sigmoid(x, S(4), 5))),
        Activation(
            "x > 0 ? x : x/(1 + |x|)",
            vec![
                (Abs, vec![x]),
                (Add, vec![S(0), Const(1.0)]),
                (Div, vec![x, S(1)]),
                (Gt, vec![x, Const(0.0)]),
                (Select, vec![S(3), x, S(2)]),
            ],
        ),
        Activation("x + sin(x)²", vec![(Sin, vec![x]), (Mul, vec![S(0), S(0)]), (Add, vec![x, S(1)])]),
        Activation("x·cos(x)", vec![(Cos, vec![x]), (Mul, vec![x, S(0)])]),
        Activation("x·tanh(x)", vec![(Tanh, vec![x]), (Mul, vec![x, S(0)])]),
        Activation(
            "x·min(max(x + 3, 0), 6)/6",
            vec![
                (Add, vec![x, Const(3.0)]),
                (Max, vec![S(0), Const(0.0)]),
                (Min, vec![S(1), Const(6.0)]),
                (Mul, vec![x, S(2)]),
                (Mul, vec![S(3), Const(1.0 / 6.0)]),
            ],
        ),
        Activation(
            "max(x, 0)²·sigmoid(x)",
            [vec![(Max, vec![x, Const(0.0)]), (Mul, vec![S(0), S(0)])], times_sigmoid(S(1), x, 2)].concat(),
        ),
        Activation(
            "x > 0 ? x : eˣ - 1",
            vec![
                (Exp, vec![x]),
                (Sub, vec![S(0), Const(1.0)]),
                (Gt, vec![x, Const(0.0)]),
                (Select, vec![S(2), x, S(1)]),
            ],
        ),
    ]
}

/// The region of an activation over `n` elements, and the bytes that it moves. As the compiler writes expressions of bf16 (`joint.wide-expression`), they
/// are computed in f32 and rounded once.
fn region(activation: &Activation, gated: bool, dtype: DType, n: usize) -> (Memory, Kernel, usize) {
    let mut memory = Memory::default();
    let arrays = 1 + usize::from(gated);
    let mut steps: Vec<Step> = vec![];
    let mut push = |op: StepOp, dtype: DType, args: Vec<Arg>| {
        steps.push(Step { op, dtype, args });
        S(steps.len() as u32 - 1)
    };
    let operands: Vec<Arg> = (0..arrays as u32)
        .map(|array| if dtype == DType::F32 { Load(array) } else { push(Cast, DType::F32, vec![Load(array)]) })
        .collect();
    let mut made: Vec<Arg> = vec![];
    for (op, args) in &activation.1 {
        let find = |arg: &Arg| match *arg {
            Load(array) => operands[array as usize],
            S(step) => made[step as usize],
            other => other,
        };
        let typed = if *op == Gt { DType::Bool } else { DType::F32 };
        made.push(push(*op, typed, args.iter().map(find).collect()));
    }
    let mut value = *made.last().expect("an activation does something");
    if gated {
        value = push(Mul, DType::F32, vec![value, operands[1]]);
    }
    if dtype != DType::F32 {
        value = push(Cast, dtype, vec![value]);
    }
    let mut array = || view(memory.add(dtype, n), &[1]);
    let loads = (0..arrays).map(|_| array().into()).collect();
    let stores = vec![Store { value, view: array() }];
    let region = Region { dims: vec![n as u64], row_dims: 1, ragged: None, loads, steps, stores };
    let bytes = memory.buffers.iter().map(|b| (b.elements * b.dtype.bytes()) as usize).sum();
    (memory, Kernel::Region(region), bytes)
}

/// Seconds of the fastest run, of as many as fit a turn.
fn turn(memory: Memory, kernel: Kernel, workers: usize) -> f64 {
    memory.with(Cpu::detect(), &[kernel], workers, |run| {
        let (begin, mut best) = (Instant::now(), f64::INFINITY);
        while begin.elapsed() < Duration::from_millis(60) {
            let start = Instant::now();
            run();
            best = best.min(start.elapsed().as_secs_f64());
        }
        best
    })
}

fn main() {
    // Bytes of all arrays: of three f32 arrays the first size fits the second-level cache (1 MiB), the second no cache.
    let places = [("second-level cache", 16 * 1024, 1), ("memory", 4096 * 1024, 1), ("memory", 4096 * 1024, 2)];
    for dtype in [DType::F32, DType::Bf16] {
        for (place, n, workers) in places {
            let list = activations();
            let mut best = vec![[f64::INFINITY; 2]; list.len()];
            for _ in 0..6 {
                for (best, activation) in best.iter_mut().zip(&list) {
                    for (best, gated) in best.iter_mut().zip([true, false]) {
                        let (memory, kernel, _) = region(activation, gated, dtype, n);
                        *best = best.min(turn(memory, kernel, workers));
                    }
                }
            }
            let rate = |at: usize, gated: bool| region(&list[at], gated, dtype, n).2 as f64 / best[at][!gated as usize];
            let swiglu = rate(0, true);
            println!("\n{dtype:?}, {place}, {workers} worker(s): SwiGLU {:.1} GB/s", swiglu / 1e9);
            println!("{:<32} {:>8} {:>8}   ns/element, gated", "", "gated", "alone");
            for (at, Activation(name, _)) in list.iter().enumerate() {
                let [gated, alone] = [true, false].map(|gated| rate(at, gated) / swiglu);
                let time = best[at][0] / n as f64 * 1e9;
                println!("{name:<32} {gated:>8.2} {alone:>8.2}   {time:.3}");
            }
        }
    }
}
