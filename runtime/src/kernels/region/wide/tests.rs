//! Which chains become code, and chains at the limits of registers. (What code computes is tested with all regions as well: `kernels/testing`.)

use super::super::compile::compile;
use super::super::program::{Program, Run};
use crate::kernels::testing::check;
use crate::kernels::testing::harness::{Memory, Rng};
use crate::kernels::tests::region_cases::{step, view};
use crate::kernels::{Cpu, Jit, PrepareCx};
use forebay_plan::{Arg, DType, Region, StepOp, Store};

/// Elementwise steps over arrays of one type, with the stores of some values. Rows follow each other.
fn region(
    dtype: DType,
    columns: usize,
    loads: usize,
    steps: Vec<(StepOp, Vec<Arg>)>,
    stored: &[u32],
) -> (Region, Memory) {
    region_of_rows(dtype, [columns, columns], loads, steps, stored)
}

/// The same with so many columns, and so many elements from one row to the next.
fn region_of_rows(
    dtype: DType,
    [columns, row]: [usize; 2],
    loads: usize,
    steps: Vec<(StepOp, Vec<Arg>)>,
    stored: &[u32],
) -> (Region, Memory) {
    let (mut memory, mut rng) = (Memory::default(), Rng::new(11));
    let rows = 5;
    let mut array = || memory.add(dtype, &rng.floats(rows * row));
    let strides = [row as u64, 1];
    let loads = (0..loads).map(|_| view(array(), &strides).into()).collect();
    let stores = stored.iter().map(|&value| Store { value: Arg::Step(value), view: view(array(), &strides) }).collect();
    let of = |op| if matches!(op, StepOp::Lt | StepOp::Le) { DType::Bool } else { dtype };
    let steps = steps.into_iter().map(|(op, args)| step(op, of(op), &args)).collect();
    (Region { dims: vec![rows as u64, columns as u64], row_dims: 1, ragged: None, loads, steps, stores }, memory)
}

fn compiled((region, memory): &(Region, Memory), level: &str, jit: Jit) -> Program {
    let cpu = Cpu::named(level).expect("a level").with_jit(jit);
    compile(region, &PrepareCx { buffers: &memory.buffers, cpu }).expect("the region is good")
}

/// Chains, and how many of them are code.
fn chains(program: &Program) -> [usize; 2] {
    let runs = program.phases.iter().flat_map(|phase| &phase.runs);
    let chains: Vec<_> = runs.filter_map(|run| if let Run::Chain(chain) = run { Some(chain) } else { None }).collect();
    [chains.len(), chains.iter().filter(|chain| chain.wide.is_some()).count()]
}

fn has_wide_registers() -> bool {
    Cpu::named("avx512").is_some_and(|cpu| cpu.name() == "avx512")
}

/// Where the machine rounds by an instruction, code is other than where it does not.
#[test]
fn what_rounds_is_used() {
    let program = compiled(&gated(DType::Bf16), "avx512", Jit::Auto);
    let mut runs = program.phases.iter().flat_map(|phase| &phase.runs);
    let micros = runs.find_map(|run| if let Run::Chain(chain) = run { Some(&chain.micros) } else { None });
    let micros = micros.expect("there is a chain");
    let list = super::trace::trace(micros, &|_| false).expect("it can be code");
    let code = |rounds| super::emit::emit(&list, micros, 203, rounds).expect("it has registers").code;
    assert_ne!(code(false), code(true));
}

/// SwiGLU.
fn gate() -> Vec<(StepOp, Vec<Arg>)> {
    use Arg::{Load, Step as S};
    vec![
        (StepOp::Neg, vec![Load(0)]),
        (StepOp::Exp, vec![S(0)]),
        (StepOp::Add, vec![S(1), Arg::Const(1.0)]),
        (StepOp::Div, vec![Load(0), S(2)]),
        (StepOp::Mul, vec![S(3), Load(1)]),
    ]
}

fn gated(dtype: DType) -> (Region, Memory) {
    region(dtype, 203, 2, gate(), &[4])
}

#[test]
fn chains_become_code() {
    if !has_wide_registers() {
        return;
    }
    for dtype in [DType::F32, DType::Bf16] {
        let case = gated(dtype);
        assert_eq!(chains(&compiled(&case, "avx512", Jit::Auto)), [1, 1], "{dtype:?}");
        assert_eq!(chains(&compiled(&case, "avx512", Jit::Off)), [1, 0], "{dtype:?}");
        assert_eq!(chains(&compiled(&case, "avx2", Jit::Auto)), [1, 0], "{dtype:?}");
    }
    // Powers are left to tiles.
    let power = vec![(StepOp::Pow, vec![Arg::Load(0), Arg::Load(1)]); 3];
    assert_eq!(chains(&compiled(&region(DType::F32, 203, 2, power, &[0, 1, 2]), "avx512", Jit::Auto)), [1, 0]);
}

/// Long chains are several, with the same numbers.
#[test]
fn long_chains_are_cut() {
    use Arg::{Const, Load, Step as S};
    let steps = vec![
        (StepOp::Exp, vec![Load(0)]),
        (StepOp::Add, vec![S(0), Const(1.0)]),
        (StepOp::Log, vec![S(1)]),
        (StepOp::Tanh, vec![S(2)]),
        (StepOp::Mul, vec![S(3), Load(0)]),
        (StepOp::Mul, vec![S(4), Load(1)]),
    ];
    for (dtype, pieces) in [(DType::F32, 2), (DType::Bf16, 3)] {
        for columns in [203, 5000] {
            let case = region(dtype, columns, 2, steps.clone(), &[5, 1]);
            check(&case.0, &case.1);
            if has_wide_registers() {
                assert_eq!(chains(&compiled(&case, "avx512", Jit::Auto)), [pieces; 2], "{dtype:?}");
                assert_eq!(chains(&compiled(&case, "avx512", Jit::Off)), [1, 0], "{dtype:?}");
            }
        }
    }
}

/// A condition that is made before a cut and used behind it, and results over what was loaded.
#[test]
fn cuts_between_conditions_and_in_place() {
    use Arg::{Const, Load, Step as S};
    let steps = vec![
        (StepOp::Lt, vec![Load(0), Load(1)]),
        (StepOp::Exp, vec![Load(0)]),
        (StepOp::Add, vec![S(1), Const(1.0)]),
        (StepOp::Log, vec![S(2)]),
        (StepOp::Tanh, vec![S(3)]),
        (StepOp::Select, vec![S(0), S(4), Load(0)]),
        (StepOp::Mul, vec![S(5), Load(1)]),
    ];
    for dtype in [DType::F32, DType::Bf16] {
        for columns in [16, 203] {
            let (mut region, memory) = region(dtype, columns, 2, steps.clone(), &[6, 4]);
            check(&region, &memory);
            for load in [0, 1] {
                region.stores[0].view = view(load, &[columns as u64, 1]);
                check(&region, &memory);
                if has_wide_registers() {
                    let [all, code] = chains(&compiled(&(region.clone(), memory.clone()), "avx512", Jit::Auto));
                    assert!(all > 1 && code == all, "{dtype:?}: {code} of {all}");
                }
            }
        }
    }
}

/// Functions as code of what is special: ends, denormals, and numbers beside which mantissas begin.
#[test]
fn functions_of_what_is_special() {
    let mut values = vec![0.0, -0.0, f32::INFINITY, f32::NEG_INFINITY, f32::NAN, f32::MAX, f32::MIN, 1e-42, -1e-42];
    values.extend([-1.0, 1.0, 88.8, -87.5, -103.5, -104.5, 9.1, -30.0, 1e-20, f32::from_bits(1)]);
    for power in (0..255).step_by(5) {
        for mantissa in [0, 0x40_0000] {
            values.extend([-1, 0, 1].map(|step| f32::from_bits(((power << 23 | mantissa) + step).max(0) as u32)));
        }
    }
    let values: Vec<f64> = values.into_iter().map(f64::from).collect();
    let columns = values.len() as u64;
    for op in [StepOp::Exp, StepOp::Log, StepOp::Tanh] {
        let mut memory = Memory::default();
        let loads = vec![view(memory.add(DType::F32, &values), &[columns, 1]).into()];
        let steps = vec![step(op, DType::F32, &[Arg::Load(0)]), step(StepOp::Neg, DType::F32, &[Arg::Step(0)])];
        let stores = [0, 1]
            .map(|value| Store { value: Arg::Step(value), view: view(memory.add(DType::F32, &values), &[columns, 1]) });
        let region =
            Region { dims: vec![1, columns], row_dims: 1, ragged: None, loads, steps, stores: stores.to_vec() };
        check(&region, &memory);
        if has_wide_registers() {
            assert_eq!(chains(&compiled(&(region, memory), "avx512", Jit::Auto)), [1, 1], "{op:?}");
        }
    }
}

/// Sines of arguments beyond the limit of the fast functions, in any of the vectors that are side by side and in what is left behind them; what else is in
/// registers stays there.
#[test]
fn sines_of_what_is_far_away() {
    use Arg::{Const, Load, Step as S};
    let limit = f64::from(crate::kernels::math::TRIG_LIMIT);
    let far = [limit, -limit - 1.0, 1e7, f64::INFINITY, -3e38, f64::NAN, 2e6, f64::NEG_INFINITY];
    for dtype in [DType::F32, DType::Bf16] {
        for columns in [16, 31, 64, 65, 203] {
            let (rows, mut memory, mut rng) = (9, Memory::default(), Rng::new(6));
            let mut values = rng.floats(rows * columns);
            for (row, values) in values.chunks_mut(columns).enumerate().skip(1) {
                for i in 0..row {
                    values[(row * 31 + i * 37) % columns] = far[(row + i) % far.len()];
                }
            }
            values[(rows - 1) * columns..].iter_mut().zip(far.iter().cycle()).for_each(|(value, far)| *value = *far);
            let of_rows: Vec<f64> = (0..rows).map(|row| if row % 3 == 1 { 1e9 + row as f64 } else { 0.3 }).collect();
            let others = rng.floats(rows * columns);
            let strides = [columns as u64, 1];
            let own = memory.add(dtype, &values);
            let of_rows = memory.add(dtype, &of_rows);
            let mut loads: Vec<_> = vec![view(own, &strides).into(), view(of_rows, &[1, 0]).into()];
            // So many that not all pointers have registers.
            loads.extend((0..9).map(|_| view(memory.add(dtype, &others), &strides).into()));
            let truth = step(StepOp::Lt, DType::Bool, &[Load(0), Load(2)]);
            let mut steps = vec![truth];
            let mut push = |op, args: &[Arg]| {
                steps.push(step(op, dtype, args));
                S(steps.len() as u32 - 1)
            };
            let sine = push(StepOp::Sin, &[Load(0)]);
            let cosine = push(StepOp::Cos, &[Load(0)]);
            let of_row = push(StepOp::Sin, &[Load(1)]);
            let either = push(StepOp::Select, &[S(0), sine, cosine]);
            let mut sum = push(StepOp::Add, &[either, of_row]);
            for load in 2..11 {
                sum = push(StepOp::Sub, &[sum, Load(load)]);
            }
            let again = push(StepOp::Cos, &[sum]);
            let last = push(StepOp::Mul, &[again, Const(0.5)]);
            let result = memory.add(dtype, &others);
            // The last over what is read.
            let stores = [(sine, result), (last, own)];
            let stores = stores.map(|(value, buffer)| Store { value, view: view(buffer, &strides) }).to_vec();
            let dims = vec![rows as u64, columns as u64];
            let case = (Region { dims, row_dims: 1, ragged: None, loads, steps, stores }, memory);
            check(&case.0, &case.1);
            if has_wide_registers() {
                let [all, code] = chains(&compiled(&case, "avx512", Jit::Auto));
                assert!(all > 0 && code == all, "{columns} columns of {dtype:?}: {code} of {all}");
            }
        }
    }
}

/// Rows that do not follow each other are code from a vector's length on, and have the same numbers whatever is left behind whole vectors.
#[test]
fn short_rows() {
    for dtype in [DType::F32, DType::Bf16] {
        for columns in [15, 16, 17, 31, 32, 47, 63, 64] {
            let case = region_of_rows(dtype, [columns, columns + 3], 2, gate(), &[4, 2]);
            check(&case.0, &case.1);
            if has_wide_registers() {
                let program = compiled(&case, "avx512", Jit::Auto);
                assert_eq!(chains(&program), [usize::from(columns >= 16); 2], "{columns} columns of {dtype:?}");
            }
        }
    }
}

/// So many values are alive at once, and so many places are read and written, that vectors side by side become fewer, places do not fit registers, and at last
/// nothing is compiled: always the same numbers.
#[test]
fn more_than_there_are_registers() {
    for dtype in [DType::F32, DType::Bf16] {
        for values in [3, 6, 8, 12, 17, 28, 33] {
            // All values, then their sum from the first to the last: all are alive before the first addition.
            let mut steps: Vec<_> = (0..values as u32).map(|i| (StepOp::Sqrt, vec![Arg::Load(i)])).collect();
            for i in 1..values as u32 {
                let sum = if i == 1 { 0 } else { values as u32 + i - 2 };
                steps.push((StepOp::Sub, vec![Arg::Step(sum), Arg::Step(i)]));
            }
            let last = steps.len() as u32 - 1;
            let case = region(dtype, 150, values, steps, &[last, 0, last - 1]);
            check(&case.0, &case.1);
            if has_wide_registers() && values == 12 {
                let [all, code] = chains(&compiled(&case, "avx512", Jit::Auto));
                assert!(all > 0 && code == all, "{dtype:?}: {code} of {all}");
            }
        }
    }
}

/// Conditions of several comparisons at once, chosen by, negated, stored.
#[test]
fn conditions() {
    use Arg::{Load, Step as S};
    for columns in [17, 33, 64, 65, 79, 80, 127, 300] {
        let steps = vec![
            (StepOp::Lt, vec![Load(0), Load(1)]),
            (StepOp::Le, vec![Load(1), Load(2)]),
            (StepOp::Lt, vec![Load(2), Load(0)]),
            (StepOp::Select, vec![S(0), Load(0), Load(1)]),
            (StepOp::Select, vec![S(1), S(3), Load(2)]),
            (StepOp::Select, vec![S(2), S(4), S(3)]),
            (StepOp::Max, vec![S(5), Arg::Const(0.25)]),
        ];
        for row in [columns, columns + 3] {
            let case = region_of_rows(DType::F32, [columns, row], 3, steps.clone(), &[6, 4]);
            check(&case.0, &case.1);
        }
    }
}

/// Rounding to bf16 keeps denormals, zeros with signs, infinities and NaN, wherever they are among the vectors that are rounded together.
#[test]
fn rounding_of_what_is_special() {
    // Denormals, one that is rounded to the least normal number, that number, what is rounded to infinity, halfway cases.
    const SPECIAL: [f64; 12] = [
        1e-38,
        -3e-39,
        1.1e-41,
        -1.175_494_2e-38,
        1.175_494_35e-38,
        -0.0,
        f64::INFINITY,
        f64::NAN,
        3.4e38,
        -3.4e38,
        1.003_906_25,
        1.011_718_75,
    ];
    for columns in [16, 31, 32, 33, 63, 64, 65, 128, 203] {
        let (rows, mut memory, mut rng) = (9, Memory::default(), Rng::new(5));
        let mut values = rng.floats(rows * columns);
        // No, one and then more vectors of a row have something special; the last row has nothing else.
        for (row, values) in values.chunks_mut(columns).enumerate().skip(1) {
            for i in 0..row {
                values[(row * 29 + i * 37) % columns] = SPECIAL[(row + i) % SPECIAL.len()];
            }
        }
        let last = (rows - 1) * columns;
        values[last..].iter_mut().zip(SPECIAL.iter().cycle()).for_each(|(value, special)| *value = *special);
        let strides = [columns as u64, 1];
        let loads = vec![view(memory.add(DType::F32, &values), &strides).into()];
        let mut stored = |value| Store { value, view: view(memory.add(DType::Bf16, &values), &strides) };
        let stores = [1, 3, 1, 5].map(|value| stored(Arg::Step(value))).to_vec();
        let steps = vec![
            step(StepOp::Mul, DType::F32, &[Arg::Load(0), Arg::Const(0.7)]),
            step(StepOp::Cast, DType::Bf16, &[Arg::Step(0)]),
            // The first is needed after it has been rounded.
            step(StepOp::Sub, DType::F32, &[Arg::Step(0), Arg::Load(0)]),
            step(StepOp::Cast, DType::Bf16, &[Arg::Step(2)]),
            // As it is.
            step(StepOp::Mul, DType::F32, &[Arg::Load(0), Arg::Const(1.0)]),
            step(StepOp::Cast, DType::Bf16, &[Arg::Step(4)]),
        ];
        let dims = vec![rows as u64, columns as u64];
        let case = (Region { dims, row_dims: 1, ragged: None, loads, steps, stores }, memory);
        check(&case.0, &case.1);
        if has_wide_registers() {
            let [all, code] = chains(&compiled(&case, "avx512bf16", Jit::Auto));
            assert!(all > 0 && code == all, "{columns} columns: {code} of {all}");
        }
    }
}
