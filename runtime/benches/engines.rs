//! Machine code against loops and chains: how much faster regions of each class are when they are compiled.
//!
//! `cargo bench -p forebay-runtime --bench engines [level…]` prints, for each CPU level, the nanoseconds an element takes without machine code, with it wherever it can be
//! had, and where the rule has it, and the ratios of the first to the others (above 1: code is faster). They take turns, so that neighbours slow all down; the fastest of all turns counts.

use Arg::{Const, Load, Step as S};
use StepOp::*;
use forebay_plan::{Arg, DType, Kernel, Lookup, Negative, Region, Step, StepOp, Store, View};
use forebay_runtime::kernels::{Cpu, Jit, compiled};
use memory::{Memory, view};
use std::time::{Duration, Instant};

mod memory;

/// A region with its memory, and its number of elements.
type Case = (Memory, Region, usize);

fn step(op: StepOp, dtype: DType, args: &[Arg]) -> Step {
    Step { op, dtype, args: args.to_vec() }
}

/// Steps of one type; comparisons are conditions.
fn steps(dtype: DType, list: &[(StepOp, &[Arg])]) -> Vec<Step> {
    let of = |op| if matches!(op, Eq | Ne | Lt | Le | Gt | Ge) { DType::Bool } else { dtype };
    list.iter().map(|(op, args)| step(*op, of(*op), args)).collect()
}

/// Elementwise steps over so many arrays side by side; the last one is stored.
fn flat(dtype: DType, arrays: usize, n: usize, list: &[(StepOp, &[Arg])]) -> Case {
    let mut memory = Memory::default();
    let mut array = || view(memory.add(dtype, n), &[1]);
    let loads = (0..arrays).map(|_| array().into()).collect();
    let steps = steps(dtype, list);
    let stores = vec![Store { value: S(steps.len() as u32 - 1), view: array() }];
    (memory, Region { dims: vec![n as u64], row_dims: 1, ragged: None, loads, steps, stores }, n)
}

fn swiglu(dtype: DType, n: usize) -> Case {
    let list: &[(StepOp, &[Arg])] = &[
        (Neg, &[Load(0)]),
        (Exp, &[S(0)]),
        (Add, &[S(1), Const(1.0)]),
        (Div, &[Load(0), S(2)]),
        (Mul, &[S(3), Load(1)]),
    ];
    flat(dtype, 2, n, list)
}

fn gelu(dtype: DType, n: usize) -> Case {
    let list: &[(StepOp, &[Arg])] = &[
        (Mul, &[Load(0), Load(0)]),
        (Mul, &[S(0), Load(0)]),
        (Mul, &[S(1), Const(0.044_715)]),
        (Add, &[Load(0), S(2)]),
        (Mul, &[S(3), Const(0.797_884_56)]),
        (Tanh, &[S(4)]),
        (Add, &[S(5), Const(1.0)]),
        (Mul, &[Load(0), S(6)]),
        (Mul, &[S(7), Const(0.5)]),
    ];
    flat(dtype, 1, n, list)
}

fn softsign(dtype: DType, n: usize) -> Case {
    let list: &[(StepOp, &[Arg])] = &[
        (Abs, &[Load(0)]),
        (Add, &[S(0), Const(1.0)]),
        (Div, &[Load(0), S(1)]),
        (Gt, &[Load(0), Const(0.0)]),
        (Select, &[S(3), Load(0), S(2)]),
    ];
    flat(dtype, 1, n, list)
}

/// 20 additions of a constant, one after the other.
fn additions(dtype: DType, n: usize) -> Case {
    let args: Vec<[Arg; 2]> = (0..20).map(|i| [if i == 0 { Load(0) } else { S(i - 1) }, Const(1.0)]).collect();
    let list: Vec<(StepOp, &[Arg])> = args.iter().map(|args| (Add, &args[..])).collect();
    flat(dtype, 1, n, &list)
}

fn residual(dtype: DType, n: usize) -> Case {
    flat(dtype, 3, n, &[(Mul, &[Load(0), Load(1)]), (Add, &[S(0), Load(2)])])
}

fn adamw(dtype: DType, n: usize) -> Case {
    let mut memory = Memory::default();
    let [p, m, v, g] = [(); 4].map(|()| view(memory.add(dtype, n), &[1]));
    let rate = view(memory.add(dtype, 1), &[0]);
    let list: &[(StepOp, &[Arg])] = &[
        (Mul, &[Load(1), Const(0.9)]),
        (Mul, &[Load(3), Const(0.1)]),
        (Add, &[S(0), S(1)]),
        (Mul, &[Load(2), Const(0.95)]),
        (Mul, &[Load(3), Load(3)]),
        (Mul, &[S(4), Const(0.05)]),
        (Add, &[S(3), S(5)]),
        (Mul, &[S(6), Load(4)]),
        (Abs, &[S(7)]),
        (Sqrt, &[S(8)]),
        (Add, &[S(9), Const(1e-8)]),
        (Mul, &[S(2), Load(4)]),
        (Div, &[S(11), S(10)]),
        (Mul, &[Load(0), Const(0.01)]),
        (Add, &[S(12), S(13)]),
        (Mul, &[S(14), Load(4)]),
        (Sub, &[Load(0), S(15)]),
    ];
    let at = |value, view: &View| Store { value: S(value), view: view.clone() };
    let stores = vec![at(2, &m), at(6, &v), at(16, &p)];
    let loads = [p, m, v, g, rate].map(Into::into).to_vec();
    (memory, Region { dims: vec![n as u64], row_dims: 1, ragged: None, loads, steps: steps(dtype, list), stores }, n)
}

fn rms_norm(dtype: DType, rows: usize, d: usize) -> Case {
    let mut memory = Memory::default();
    let d64 = d as u64;
    let [x, out] = [(); 2].map(|()| view(memory.add(dtype, rows * d), &[d64, 1]));
    let gain = view(memory.add(dtype, d), &[0, 1]);
    let list: &[(StepOp, &[Arg])] = &[
        (Mul, &[Load(0), Load(0)]),
        (RowSum, &[S(0)]),
        (Mul, &[S(1), Const(1.0 / d as f64)]),
        (Add, &[S(2), Const(1e-6)]),
        (Rsqrt, &[S(3)]),
        (Mul, &[Load(0), S(4)]),
        (Mul, &[S(5), Load(1)]),
    ];
    let stores = vec![Store { value: S(6), view: out }];
    let dims = vec![rows as u64, d64];
    let region = Region {
        dims,
        row_dims: 1,
        ragged: None,
        loads: vec![x.into(), gain.into()],
        steps: steps(dtype, list),
        stores,
    };
    (memory, region, rows * d)
}

fn softmax(dtype: DType, rows: usize, d: usize) -> Case {
    let mut memory = Memory::default();
    let d64 = d as u64;
    let [x, out] = [(); 2].map(|()| view(memory.add(dtype, rows * d), &[d64, 1]));
    let list: &[(StepOp, &[Arg])] =
        &[(RowMax, &[Load(0)]), (Sub, &[Load(0), S(0)]), (Exp, &[S(1)]), (RowSum, &[S(2)]), (Div, &[S(2), S(3)])];
    let stores = vec![Store { value: S(4), view: out }];
    let dims = vec![rows as u64, d64];
    let region = Region { dims, row_dims: 1, ragged: None, loads: vec![x.into()], steps: steps(dtype, list), stores };
    (memory, region, rows * d)
}

/// Rotary embedding, from [t, h, 2, dh/2] to [h, t, 2, dh/2].
fn rope(dtype: DType, half: u64) -> Case {
    let (t, h) = (256u64, 8u64);
    let n = (t * h * half) as usize;
    let mut memory = Memory::default();
    let (x, out) = (memory.add(dtype, 2 * n), memory.add(dtype, 2 * n));
    let [cos, sin] = [(); 2].map(|()| memory.add(dtype, (t * half) as usize));
    let of = |buffer, strides: &[u64], second: u64| View { buffer, offset: second * half, strides: strides.to_vec() };
    let (from, to, table) = ([h * 2 * half, 2 * half, 1], [2 * half, t * 2 * half, 1], [half, 0, 1]);
    let list: &[(StepOp, &[Arg])] = &[
        (Mul, &[Load(0), Load(2)]),
        (Mul, &[Load(1), Load(3)]),
        (Sub, &[S(0), S(1)]),
        (Mul, &[Load(1), Load(2)]),
        (Mul, &[Load(0), Load(3)]),
        (Add, &[S(3), S(4)]),
    ];
    let loads = [of(x, &from, 0), of(x, &from, 1), view(cos, &table), view(sin, &table)].map(Into::into).to_vec();
    let stores = vec![Store { value: S(2), view: of(out, &to, 0) }, Store { value: S(5), view: of(out, &to, 1) }];
    (memory, Region { dims: vec![t, h, half], row_dims: 1, ragged: None, loads, steps: steps(dtype, list), stores }, n)
}

/// Scores behind a causal window: indices, comparisons of integers, conditions.
fn window(dtype: DType, t: usize) -> Case {
    let mut memory = Memory::default();
    let t64 = t as u64;
    let [x, out] = [(); 2].map(|()| view(memory.add(dtype, t * t), &[t64, 1]));
    let int = |op, args: &[Arg]| step(op, DType::I32, args);
    let truth = |op, args: &[Arg]| step(op, DType::Bool, args);
    let steps = vec![
        int(Index(0), &[]),
        int(Index(1), &[]),
        int(Sub, &[S(0), S(1)]),
        truth(Ge, &[S(2), Const(0.0)]),
        truth(Lt, &[S(2), Const(128.0)]),
        truth(And, &[S(3), S(4)]),
        step(Mul, dtype, &[Load(0), Const(0.17)]),
        step(Select, dtype, &[S(5), S(6), Const(f64::NEG_INFINITY)]),
    ];
    let stores = vec![Store { value: S(7), view: out }];
    (memory, Region { dims: vec![t64, t64], row_dims: 1, ragged: None, loads: vec![x.into()], steps, stores }, t * t)
}

/// Arithmetic on integers: of places in a batch, without division.
fn integers(n: usize) -> Case {
    let list: &[(StepOp, &[Arg])] = &[
        (Mul, &[Load(0), Const(3.0)]),
        (Add, &[S(0), Load(1)]),
        (Max, &[S(1), Const(0.0)]),
        (Min, &[S(2), Const(4096.0)]),
        (Gt, &[S(3), Load(0)]),
        (Select, &[S(4), S(3), Load(1)]),
    ];
    flat(DType::I32, 2, n, list)
}

/// The weighted sum of two looked-up rows for each token.
fn unpermute(dtype: DType, tokens: u64, d: u64) -> Case {
    let mut memory = Memory::default();
    let rows = 2 * tokens;
    let place = memory.filled(DType::I32, rows as usize, |i| (i as u64 * 1229 % rows) as u32);
    let (share, x) = (memory.add(dtype, rows as usize), memory.add(dtype, (rows * d) as usize));
    let out = memory.add(dtype, (tokens * d) as usize);
    let part = |buffer, copy| View { buffer, offset: copy, strides: vec![2, 0] };
    let looked_up = |copy| {
        let (index, negative) = (part(place, copy), Negative::Wrong);
        let through = Some(Lookup { index, divide: 1, axis_stride: d, axis_size: rows, axis_even: None, negative });
        forebay_plan::Load { view: view(x, &[0, 1]), through }
    };
    let loads = vec![looked_up(0), part(share, 0).into(), looked_up(1), part(share, 1).into()];
    let list: &[(StepOp, &[Arg])] = &[(Mul, &[Load(0), Load(1)]), (Mul, &[Load(2), Load(3)]), (Add, &[S(0), S(1)])];
    let stores = vec![Store { value: S(2), view: view(out, &[d, 1]) }];
    let dims = vec![tokens, d];
    let region = Region { dims, row_dims: 1, ragged: None, loads, steps: steps(dtype, list), stores };
    (memory, region, (tokens * d) as usize)
}

/// From f32 to bf16 and to f64, turned in memory.
fn turned(dtype: DType, m: u64, n: u64) -> Case {
    let mut memory = Memory::default();
    let x = view(memory.add(dtype, (m * n) as usize), &[1, m]);
    let y = view(memory.add(dtype, (m * n) as usize), &[n, 1]);
    let out = view(memory.add(dtype, (m * n) as usize), &[n, 1]);
    let stores = vec![Store { value: S(0), view: out }];
    let steps = steps(dtype, &[(Mul, &[Load(0), Load(1)])]);
    let loads = vec![x.into(), y.into()];
    (memory, Region { dims: vec![m, n], row_dims: 1, ragged: None, loads, steps, stores }, (m * n) as usize)
}

/// Seconds of the fastest run, of as many as fit a turn.
fn turn((memory, region, _): Case, cpu: Cpu) -> f64 {
    memory.with(cpu, &[Kernel::Region(region)], 1, |run| {
        let (begin, mut best) = (Instant::now(), f64::INFINITY);
        while begin.elapsed() < Duration::from_millis(25) {
            let start = Instant::now();
            run();
            best = best.min(start.elapsed().as_secs_f64());
        }
        best
    })
}

/// All cases, by name.
fn cases() -> Vec<(String, Box<dyn Fn() -> Case>)> {
    use DType::{Bf16, F32, F64};
    const SMALL: usize = 16 * 1024;
    const LARGE: usize = 4096 * 1024;
    let mut all: Vec<(String, Box<dyn Fn() -> Case>)> = vec![];
    let mut add = |name: String, case: Box<dyn Fn() -> Case>| all.push((name, case));
    type Flat = fn(DType, usize) -> Case;
    let list: [(&str, Flat); 6] = [
        ("swiglu", swiglu),
        ("gelu", gelu),
        ("softsign", softsign),
        ("20 additions", additions),
        ("a·b + c", residual),
        ("adamw", adamw),
    ];
    for (name, of) in list {
        for dtype in [F32, Bf16, F64] {
            add(format!("{name} {dtype:?}, cache"), Box::new(move || of(dtype, SMALL)));
        }
        add(format!("{name} F32, memory"), Box::new(move || of(F32, LARGE)));
    }
    add("integers, cache".into(), Box::new(|| integers(SMALL)));
    add("integers, memory".into(), Box::new(|| integers(LARGE)));
    for dtype in [F32, Bf16] {
        for d in [16, 64, 256, 1024] {
            add(format!("rms norm {dtype:?}, rows of {d}"), Box::new(move || rms_norm(dtype, SMALL / d, d)));
        }
        for d in [8, 64, 256, 4096] {
            add(format!("softmax {dtype:?}, rows of {d}"), Box::new(move || softmax(dtype, SMALL / d, d)));
        }
        for half in [16, 32, 64] {
            add(format!("rope {dtype:?}, rows of {half}"), Box::new(move || rope(dtype, half)));
        }
        add(format!("window {dtype:?}"), Box::new(move || window(dtype, 128)));
        for d in [64, 256] {
            add(format!("unpermute {dtype:?}, rows of {d}"), Box::new(move || unpermute(dtype, 512, d)));
        }
        add(format!("turned {dtype:?}"), Box::new(move || turned(dtype, 128, 128)));
    }
    all
}

fn main() {
    let wanted: Vec<String> = std::env::args().skip(1).filter(|a| !a.starts_with('-')).collect();
    let levels = ["avx512", "avx2", "portable"].into_iter();
    for level in levels.filter(|level| wanted.is_empty() || wanted.iter().any(|w| w == level)) {
        let cpu = Cpu::named(level).expect("a level");
        println!("\n{:<32} {:>8} {:>8} {:>8} {:>8} {:>8}", cpu.name(), "off", "on", "ratio", "auto", "ratio");
        for (name, case) in cases() {
            let mut best = [f64::INFINITY; 3];
            for _ in 0..3 {
                for (best, jit) in best.iter_mut().zip([Jit::Off, Jit::On, Jit::Auto]) {
                    *best = best.min(turn(case(), cpu.with_jit(jit)));
                }
            }
            let [off, on, auto] = best.map(|seconds| seconds / case().2 as f64 * 1e9);
            println!("{name:<32} {off:>8.3} {on:>8.3} {:>8.2} {auto:>8.3} {:>8.2}", off / on, off / auto);
        }
    }
    let (functions, time) = compiled();
    println!("\n{functions} functions compiled, {:.0} µs each", time.as_secs_f64() / functions.max(1) as f64 * 1e6);
}
