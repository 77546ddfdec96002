//! Linear attention against sums written out in f64.

use crate::kernels::Cpu;
use crate::kernels::testing::harness::{Memory, Rng, bf16_levels, close, epsilon, indices, layout, offset};
use forebay_plan::{DType, Kernel, LinearAttention, LinearReads, View};

const READS: [LinearReads; 3] = [LinearReads::Inclusive, LinearReads::Exclusive, LinearReads::Solve];
const DTYPES: [DType; 3] = [DType::F32, DType::Bf16, DType::F64];

/// What logarithms of decays are like.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Logs {
    /// All zeros: nothing is forgotten.
    None,
    Weak,
    /// So strong that sums over a chunk leave what exponentials can be multiplied.
    Strong,
    /// Weak, and -∞ or a large number at times.
    Cut,
}

#[derive(Clone, Debug)]
struct Shape {
    reads: LinearReads,
    backward: bool,
    batch: Vec<usize>,
    positions: usize,
    keys: Vec<usize>,
    values: Vec<usize>,
    logs: Logs,
    /// Dimensions of the batch that queries, keys, values and decays lack.
    lacks: [Vec<bool>; 4],
}

impl Shape {
    fn new(batch: &[usize], positions: usize, keys: &[usize], values: &[usize]) -> Shape {
        let lacks = [(); 4].map(|()| vec![false; batch.len()]);
        let (batch, keys, values) = (batch.to_vec(), keys.to_vec(), values.to_vec());
        Shape { reads: READS[0], backward: false, batch, positions, keys, values, logs: Logs::Weak, lacks }
    }
}

struct Case {
    memory: Memory,
    shape: Shape,
    kernel: LinearAttention,
}

fn as_u64(sizes: &[usize]) -> Vec<u64> {
    sizes.iter().map(|&size| size as u64).collect()
}

impl Case {
    fn new(rng: &mut Rng, dtype: DType, shape: Shape) -> Case {
        let mut memory = Memory::default();
        let wide = if dtype == DType::F64 { DType::F64 } else { DType::F32 };
        // In any order in memory, with gaps.
        let mut make = |rng: &mut Rng, dtype, lacks: &[bool], inner: &[usize], number: &dyn Fn(&mut Rng) -> f64| {
            let own = |d: usize| if lacks.get(d) == Some(&true) { 1 } else { shape.batch[d] };
            let sizes = [(0..shape.batch.len()).map(own).collect(), vec![shape.positions], inner.to_vec()].concat();
            let (mut strides, elements) = layout(rng, &sizes);
            (0..shape.batch.len()).filter(|&d| own(d) != shape.batch[d]).for_each(|d| strides[d] = 0);
            let start = rng.below(3);
            let numbers: Vec<f64> = (0..elements + start).map(|_| number(rng)).collect();
            View { buffer: memory.add(dtype, &numbers), offset: start as u64, strides }
        };
        // Scores are so small that results of systems do not grow without bound.
        let size = 8.0 * shape.keys.iter().product::<usize>() as f64;
        let log = |rng: &mut Rng| match shape.logs {
            Logs::None => 0.0,
            Logs::Cut if rng.integer(20) == 0 => rng.pick(&[f64::NEG_INFINITY, -1e30, -800.0]),
            Logs::Weak | Logs::Cut => rng.float().abs() * -0.2,
            Logs::Strong => rng.float().abs() * rng.pick(&[-0.1, -40.0]),
        };
        let result = rng.pick(&[dtype, wide]);
        let kernel = LinearAttention {
            dtype,
            result,
            reads: shape.reads,
            backward: shape.backward,
            batch: as_u64(&shape.batch),
            positions: shape.positions as u64,
            keys: as_u64(&shape.keys),
            values: as_u64(&shape.values),
            q: make(rng, dtype, &shape.lacks[0], &shape.keys, &|rng| rng.float() * 8.0 / size),
            k: make(rng, dtype, &shape.lacks[1], &shape.keys, &Rng::float),
            v: make(rng, dtype, &shape.lacks[2], &shape.values, &Rng::float),
            g: make(rng, wide, &shape.lacks[3], &[], &log),
            out: make(rng, result, &[], &shape.values, &|_| f64::NAN),
        };
        Case { memory, shape, kernel }
    }
}

fn numbers(memory: &Memory, view: &View) -> Vec<f64> {
    memory.get(view.buffer)[view.offset as usize..].to_vec()
}

/// Results in the layout of their view, with the sum of the absolute values of the terms.
fn naive(case: &Case) -> Vec<(f64, f64)> {
    let (shape, k) = (&case.shape, &case.kernel);
    let get = |view: &View| numbers(&case.memory, view);
    let [q, key, v, g] = [&k.q, &k.k, &k.v, &k.g].map(get);
    let mut want = vec![(f64::NAN, 0.0); get(&k.out).len()];
    let n = shape.positions;
    let elements: Vec<Vec<usize>> = indices(&shape.keys).collect();
    for index in indices(&shape.batch) {
        let with = |position: usize, inner: &[usize]| [&index[..], &[position], inner].concat();
        let of = |values: &[f64], view: &View, position: usize, inner: &[usize]| {
            values[offset(&with(position, inner), &view.strides)]
        };
        let walked: Vec<usize> = if shape.backward { (0..n).rev().collect() } else { (0..n).collect() };
        for (number, &t) in walked.iter().enumerate() {
            let read = match shape.reads {
                LinearReads::Inclusive => &walked[..number + 1],
                _ => &walked[..number],
            };
            // The score and its size, for each position that is read.
            let score = |s: usize| {
                let decay = (s.min(t) + 1..s.max(t) + 1).map(|i| of(&g, &k.g, i, &[])).sum::<f64>().exp();
                let terms = || elements.iter().map(|d| of(&q, &k.q, t, d) * of(&key, &k.k, s, d));
                (decay * terms().sum::<f64>(), decay * terms().map(f64::abs).sum::<f64>())
            };
            let scores: Vec<(f64, f64)> = read.iter().map(|&s| score(s)).collect();
            for e in indices(&shape.values) {
                let (mut sum, mut size) = (0.0, 0.0);
                for (&s, score) in read.iter().zip(&scores) {
                    let value = match shape.reads {
                        LinearReads::Solve => want[offset(&with(s, &e), &k.out.strides)],
                        _ => (of(&v, &k.v, s, &e), of(&v, &k.v, s, &e).abs()),
                    };
                    (sum, size) = (sum + score.0 * value.0, size + score.1 * value.1);
                }
                if shape.reads == LinearReads::Solve {
                    let value = of(&v, &k.v, t, &e);
                    (sum, size) = (value - sum, size + value.abs());
                }
                want[offset(&with(t, &e), &k.out.strides)] = (sum, size);
            }
        }
    }
    want
}

fn levels() -> [Cpu; 3] {
    ["avx512", "avx2", "portable"].map(|level| Cpu::named(level).expect("a level"))
}

/// At every level, with one to three workers.
fn run(case: &Case) {
    let (want, dtype) = (naive(case), case.kernel.dtype);
    let kernel = Kernel::LinearAttention(case.kernel.clone());
    let done = |cpu| case.memory.run_with_workers(&kernel, cpu).expect("no indices");
    let results = levels().map(done);
    let wide = if dtype == DType::F64 { f64::EPSILON } else { f64::from(f32::EPSILON) };
    let mut touched = vec![false; want.len()];
    indices(&[&case.shape.batch[..], &[case.shape.positions], &case.shape.values].concat())
        .for_each(|index| touched[offset(&index, &case.kernel.out.strides)] = true);
    for (after, cpu) in results.iter().zip(levels()) {
        for (i, (have, (want, size))) in numbers(after, &case.kernel.out).into_iter().zip(&want).enumerate() {
            let tolerance =
                30.0 * wide * size + 0.51 * epsilon(case.kernel.result) * want.abs() + f64::from(f32::MIN_POSITIVE);
            let fits = if touched[i] { close(have, *want, tolerance) } else { have.is_nan() };
            assert!(fits, "{dtype} {cpu:?} element {i}: {have} instead of {want} ± {tolerance}: {:?}", case.shape);
        }
    }
    // Plain Rust does not fuse; all vectors do, and products of bf16 are those of f32 at every level.
    results[0].assert_same(&results[1], &|| format!("vectors: {:?}", case.shape));
    if dtype == DType::Bf16 {
        for cpu in bf16_levels() {
            let same = if cpu.name() == "portable" { 2 } else { 0 };
            done(cpu).assert_same(&results[same], &|| format!("{cpu:?}: {:?}", case.shape));
        }
    }
}

fn random_shape(rng: &mut Rng) -> Shape {
    let batch: Vec<usize> = (0..rng.below(4)).map(|_| rng.pick(&[1, 2, 3])).collect();
    let dims = |rng: &mut Rng| match rng.below(3) {
        0 => vec![rng.pick(&[1, 2, 3, 4]), rng.pick(&[1, 3, 5, 8])],
        1 => vec![2, 2, 3],
        _ => vec![rng.pick(&[1, 2, 7, 8, 16, 17, 33, 40])],
    };
    let (keys, values) = (dims(rng), dims(rng));
    let lacks = [3, 3, 10, 3].map(|often| batch.iter().map(|_| rng.below(often) == 0).collect());
    Shape {
        reads: rng.pick(&READS),
        backward: rng.coin(),
        positions: rng.pick(&[1, 2, 3, 15, 16, 17, 63, 64, 65, 100, 128, 130]),
        logs: rng.pick(&[Logs::None, Logs::Weak, Logs::Strong, Logs::Cut]),
        batch,
        keys,
        values,
        lacks,
    }
}

#[test]
fn results() {
    let mut rng = Rng::new(81);
    for round in 0..120 {
        let shape = random_shape(&mut rng);
        run(&Case::new(&mut rng, DTYPES[round % 3], shape));
    }
}

/// Every read in both directions, over several chunks, with every kind of decay; queries and keys for all heads.
#[test]
fn all_reads_over_chunks() {
    let mut rng = Rng::new(82);
    for reads in READS {
        for backward in [false, true] {
            for (i, logs) in [Logs::None, Logs::Weak, Logs::Strong, Logs::Cut].into_iter().enumerate() {
                let mut shape = Shape { reads, backward, logs, ..Shape::new(&[2, 2], 150, &[12], &[2, 9]) };
                shape.lacks[0][1] = true;
                shape.lacks[1][1] = true;
                run(&Case::new(&mut rng, DTYPES[i % 3], shape));
            }
        }
    }
}

/// More columns than a task takes, and problems that do not go into workers.
#[test]
fn many_columns() {
    let mut rng = Rng::new(83);
    for (reads, batch) in [(LinearReads::Inclusive, 1), (LinearReads::Solve, 3)] {
        let shape = Shape { reads, ..Shape::new(&[batch], 70, &[20], &[290]) };
        run(&Case::new(&mut rng, DType::F32, shape));
    }
}

/// Nothing is read behind operands, whatever their sizes.
#[cfg(unix)]
#[test]
fn nothing_is_read_behind_operands() {
    let mut rng = Rng::new(87);
    for round in 0..30 {
        let shape = Shape { batch: vec![], ..random_shape(&mut rng) };
        let case = Case::new(&mut rng, DTYPES[round % 3], shape);
        let kernel = Kernel::LinearAttention(case.kernel.clone());
        for cpu in levels() {
            let want = case.memory.run_with_workers(&kernel, cpu).expect("no indices");
            let have = case.memory.done_at_edges(&kernel, 2, cpu);
            have.assert_same(&want, &|| format!("{cpu:?}: {:?}", case.shape));
        }
    }
}

fn of_three_positions(reads: LinearReads, backward: bool, logs: [f64; 3]) -> Vec<f64> {
    let mut memory = Memory::default();
    let mut array = |numbers: [f64; 3], strides: &[u64]| {
        let buffer = memory.add(DType::F32, &numbers);
        View { buffer, offset: 0, strides: strides.to_vec() }
    };
    let [q, k, v] = [[1.0, 2.0, 3.0], [4.0, 5.0, 6.0], [7.0, 8.0, 9.0]].map(|numbers| array(numbers, &[1, 1]));
    let (g, out) = (array(logs, &[1]), array([0.0; 3], &[1, 1]));
    let result = out.buffer;
    let kernel = LinearAttention {
        dtype: DType::F32,
        result: DType::F32,
        reads,
        backward,
        batch: vec![],
        positions: 3,
        keys: vec![1],
        values: vec![1],
        q,
        k,
        v,
        g,
        out,
    };
    memory.done(&Kernel::LinearAttention(kernel)).get(result)
}

/// Computed by hand.
#[test]
fn three_positions() {
    use LinearReads::{Exclusive, Inclusive, Solve};
    // What came before the first position does not decay, there is nothing.
    let none = [f64::NEG_INFINITY, 0.0, 0.0];
    assert_eq!(of_three_positions(Inclusive, false, none), [28.0, 136.0, 366.0]);
    assert_eq!(of_three_positions(Exclusive, false, none), [0.0, 56.0, 204.0]);
    assert_eq!(of_three_positions(Solve, false, none), [7.0, -48.0, 645.0]);
    assert_eq!(of_three_positions(Inclusive, true, none), [122.0, 188.0, 162.0]);
    assert_eq!(of_three_positions(Exclusive, true, none), [94.0, 108.0, 0.0]);
    assert_eq!(of_three_positions(Solve, true, none), [453.0, -100.0, 9.0]);
    // A position's decay is that between it and the one before, in both directions.
    let cut = [0.0, f64::NEG_INFINITY, 0.0];
    assert_eq!(of_three_positions(Inclusive, false, cut), [28.0, 80.0, 282.0]);
    assert_eq!(of_three_positions(Inclusive, true, cut), [28.0, 188.0, 162.0]);
    let half = [0.0, 0.0, 0.5f64.ln()];
    for (backward, want) in [(false, [28.0, 136.0, 264.0]), (true, [95.0, 134.0, 162.0])] {
        let have = of_three_positions(Inclusive, backward, half);
        let near = have.iter().zip(want).all(|(have, want)| close(*have, want, 1e-4));
        assert!(near, "{have:?} instead of {want:?}");
    }
}

/// A result depends on what it reads: not on other problems, columns or later positions.
#[test]
fn other_problems_and_columns_do_not_matter() {
    let mut rng = Rng::new(84);
    for (round, dtype) in DTYPES.into_iter().cycle().take(6).enumerate() {
        let shape = Shape { reads: READS[round % 3], ..Shape::new(&[3, 2], 200, &[40], &[70]) };
        let case = Case::new(&mut rng, dtype, shape);
        for cpu in levels() {
            let mut whole = case.memory.clone();
            whole.run_on(&Kernel::LinearAttention(case.kernel.clone()), 2, cpu).expect("no indices");
            let want = numbers(&whole, &case.kernel.out);
            for (problem, positions, [first, count]) in
                [([0, 0], 1, [0, 70]), ([2, 1], 200, [69, 1]), ([1, 0], 77, [3, 40]), ([1, 1], 130, [16, 33])]
            {
                let mut part = case.kernel.clone();
                (part.batch, part.positions, part.values) = (vec![1, 1], positions, vec![count]);
                let problem_of = |view: &mut View| {
                    view.offset += view.strides[0] * problem[0] + view.strides[1] * problem[1];
                };
                [&mut part.q, &mut part.k, &mut part.v, &mut part.g, &mut part.out].into_iter().for_each(problem_of);
                [&mut part.v, &mut part.out].into_iter().for_each(|view| view.offset += first * view.strides[3]);
                let mut memory = case.memory.clone();
                memory.run_on(&Kernel::LinearAttention(part.clone()), 3, cpu).expect("no indices");
                let have = numbers(&memory, &part.out);
                let start = (part.out.offset - case.kernel.out.offset) as usize;
                for index in indices(&[positions as usize, count as usize]) {
                    let at = offset(&index, &part.out.strides[2..]);
                    assert_eq!(have[at], want[start + at], "{dtype} {cpu:?} {problem:?} {positions} {index:?}");
                }
            }
        }
    }
}

/// What no position can read again is gone, whatever it was.
#[test]
fn nothing_passes_a_cut() {
    let mut rng = Rng::new(85);
    let shape = Shape { logs: Logs::None, ..Shape::new(&[], 200, &[3], &[4]) };
    let mut case = Case::new(&mut rng, DType::F32, shape);
    // The keys of the second chunk are infinite; it ends with a cut, before which whoever reads them finds no number.
    let k = &case.kernel;
    let mut keys = numbers(&case.memory, &k.k);
    let (strides, g) = (k.k.strides.clone(), k.g.strides.clone());
    (64..128).for_each(|t| (0..3).for_each(|d| keys[offset(&[t, d], &strides)] = f64::INFINITY));
    let mut logs = numbers(&case.memory, &k.g);
    logs[offset(&[127], &g)] = f64::NEG_INFINITY;
    logs[offset(&[128], &g)] = f64::NEG_INFINITY;
    let (keys, logs) = (case.memory.add(DType::F32, &keys), case.memory.add(DType::F32, &logs));
    case.kernel.k = View { buffer: keys, offset: 0, strides };
    case.kernel.g = View { buffer: logs, offset: 0, strides: g };
    let mut memory = case.memory.clone();
    memory.run_on(&Kernel::LinearAttention(case.kernel.clone()), 1, Cpu::detect()).expect("no indices");
    let out = numbers(&memory, &case.kernel.out);
    let row = |t: usize| (0..4).map(|e| out[offset(&[t, e], &case.kernel.out.strides)]).collect::<Vec<f64>>();
    assert!(row(63).iter().all(|x| x.is_finite()));
    assert!(!row(100).iter().all(|x| x.is_finite()));
    assert!((192..200).all(|t| row(t).iter().all(|x| x.is_finite())), "{:?}", row(192));
}

/// A value that is no number is for positions that read it alone, in its block as well.
#[test]
fn values_that_are_no_numbers_are_not_read_early() {
    let mut rng = Rng::new(88);
    for reads in READS {
        let shape = Shape { reads, ..Shape::new(&[], 100, &[3], &[4]) };
        let mut case = Case::new(&mut rng, DType::F32, shape);
        let (mut values, strides) = (numbers(&case.memory, &case.kernel.v), case.kernel.v.strides.clone());
        values[offset(&[70, 0], &strides)] = f64::NAN;
        values[offset(&[70, 1], &strides)] = f64::INFINITY;
        case.kernel.v = View { buffer: case.memory.add(DType::F32, &values), offset: 0, strides };
        for cpu in levels() {
            let mut memory = case.memory.clone();
            memory.run_on(&Kernel::LinearAttention(case.kernel.clone()), 1, cpu).expect("no indices");
            let out = numbers(&memory, &case.kernel.out);
            let finite = |t: usize, e: usize| out[offset(&[t, e], &case.kernel.out.strides)].is_finite();
            let first = if reads == LinearReads::Exclusive { 71 } else { 70 };
            assert!((0..first).all(|t| (0..4).all(|e| finite(t, e))), "{reads:?} {cpu:?}: read before");
            assert!(!finite(first, 0) && !finite(first, 1) && finite(first, 2), "{reads:?} {cpu:?}");
        }
    }
}

#[test]
fn nothing_to_attend_to() {
    let mut rng = Rng::new(86);
    for (positions, size) in [(0, 5), (5, 0)] {
        let Case { memory, kernel, .. } = Case::new(&mut rng, DType::F32, Shape::new(&[2], positions, &[size], &[4]));
        let refusal = memory.refusal(&Kernel::LinearAttention(kernel));
        assert_eq!(refusal.as_deref(), Some("there is nothing to attend to"));
    }
}
