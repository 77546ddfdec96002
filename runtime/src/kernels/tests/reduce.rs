use crate::kernels::testing::harness::{Memory, Rng, close, epsilon, indices, layout, offset};
use forebay_plan::{DType, Kernel, RaggedReduce, Reduce, ReduceOp, Scan, View};

fn fold(op: ReduceOp, a: f64, b: f64) -> f64 {
    match op {
        ReduceOp::Sum => a + b,
        ReduceOp::Max if a.is_nan() || a > b => a,
        ReduceOp::Min if a.is_nan() || a < b => a,
        _ => b,
    }
}

fn start(op: ReduceOp, dtype: DType) -> f64 {
    match (op, dtype) {
        (ReduceOp::Sum, _) => 0.0,
        (ReduceOp::Max, DType::I32) => f64::from(i32::MIN),
        (ReduceOp::Min, DType::I32) => f64::from(i32::MAX),
        (ReduceOp::Max, _) => f64::NEG_INFINITY,
        (ReduceOp::Min, _) => f64::INFINITY,
    }
}

fn random_reduce(rng: &mut Rng, round: usize) {
    let dtype = rng.pick(&[DType::F32, DType::F32, DType::Bf16, DType::F64, DType::I32]);
    let op = rng.pick(&[ReduceOp::Sum, ReduceOp::Sum, ReduceOp::Max, ReduceOp::Min]);
    let small = [0, 1, 1, 2, 3, 5, 8, 17, 70];
    let mut kept: Vec<usize> = (0..rng.below(4)).map(|_| rng.pick(&small[1..])).collect();
    let mut reduced: Vec<usize> = (0..1 + rng.below(2)).map(|_| rng.pick(&small)).collect();
    if rng.below(3) == 0 {
        reduced[0] = rng.pick(&[300, 1023, 1024, 1025, 3000]);
    } else if rng.below(8) == 0 {
        kept.truncate(1);
        reduced = vec![rng.pick(&[10_000, 20_000])];
    }
    // Small enough for many rounds: the largest of the plain dimensions give way.
    while kept.iter().chain(&reduced).product::<usize>() > 50_000 {
        if reduced.len() > 1 { reduced.truncate(1) } else { kept.truncate(kept.len() - 1) }
    }
    let per_group = rng.coin();
    let groups = rng.pick(&[1, 2, 4]);
    let ragged = round.is_multiple_of(3);
    if ragged && per_group {
        kept.insert(0, groups);
    }
    let dims = [&kept[..], &reduced[..]].concat();
    let real = |d: usize| if ragged && per_group && d == 0 { 1 } else { dims[d] };
    let sizes: Vec<usize> = (0..dims.len()).map(real).collect();
    let (mut si, ei) = layout(rng, &sizes);
    if ragged && per_group {
        si[0] = 0;
    }
    let (so, eo) = layout(rng, &kept);
    let mut memory = Memory::default();
    let mut values: Vec<f64> = rng.floats(ei + 2);
    if dtype == DType::I32 {
        values.iter_mut().for_each(|x| *x = (*x * 100.0).trunc());
    } else if rng.below(6) == 0 {
        let at = rng.below(values.len());
        values[at] = f64::NAN;
    }
    let old: Vec<f64> = rng.floats(eo + 1).into_iter().map(|x| (x * 8.0).trunc()).collect();
    let (input, out) = (memory.add(dtype, &values), memory.add(dtype, &old));
    let offsets = rng.offsets(groups, reduced[0]);
    let accumulate = op == ReduceOp::Sum && rng.below(3) == 0;
    let kernel = Reduce {
        op,
        dtype,
        dims: dims.iter().map(|&d| d as u64).collect(),
        kept: kept.len() as u32,
        input: View { buffer: input, offset: 2, strides: si.clone() },
        out: View { buffer: out, offset: 1, strides: so.clone() },
        ragged: ragged.then(|| RaggedReduce {
            offsets: memory.add(DType::I32, &offsets),
            groups: groups as u64,
            per_group,
            even: 0,
        }),
        accumulate,
    };
    let (values, old) = (memory.get(input), memory.get(out));
    let mut want: Vec<(f64, f64)> = old.iter().map(|&x| (x, 0.0)).collect();
    for k in indices(&kept) {
        let (begin, end) = match (ragged, per_group) {
            (false, _) => (0, reduced[0]),
            (true, true) => (offsets[k[0]] as usize, offsets[k[0] + 1] as usize),
            (true, false) => (0, offsets[groups] as usize),
        };
        let mut rest = reduced.clone();
        rest[0] = end - begin;
        let mut sum = (start(op, dtype), 0.0);
        for mut r in indices(&rest) {
            r[0] += begin;
            let x = values[2 + offset(&[&k[..], &r[..]].concat(), &si)];
            sum = (fold(op, sum.0, x), sum.1 + x.abs());
        }
        let place = 1 + offset(&k, &so);
        want[place] = if accumulate { (old[place] + sum.0, sum.1 + old[place].abs()) } else { sum };
    }
    let have = memory.done(&Kernel::Reduce(kernel.clone())).get(out);
    let wide = if dtype == DType::F64 { f64::EPSILON } else { f64::from(f32::EPSILON) };
    for (i, (&have, &(want, size))) in have.iter().zip(&want).enumerate() {
        let tolerance = if op == ReduceOp::Sum && dtype != DType::I32 {
            60.0 * wide * size + 0.51 * epsilon(dtype) * want.abs()
        } else {
            0.0
        };
        assert!(close(have, want, tolerance), "element {i}: {have} instead of {want}: {kernel:?}");
    }
}

#[test]
fn reductions_of_all_kinds() {
    let mut rng = Rng::new(11);
    (0..500).for_each(|round| random_reduce(&mut rng, round));
}

/// The bits of a sum depend on its length, not on how the elements lie in memory.
#[test]
fn layout_does_not_matter() {
    let mut rng = Rng::new(12);
    for n in [7usize, 100, 300, 1500] {
        let rows = 70;
        let values = rng.floats(rows * n);
        let mut memory = Memory::default();
        let turned: Vec<f64> = (0..n * rows).map(|i| values[i % rows * n + i / rows]).collect();
        let (x, t) = (memory.add(DType::F32, &values), memory.add(DType::F32, &turned));
        let outs = [(); 3].map(|()| memory.add(DType::F32, &vec![0.0; rows]));
        let reduce = |buffer, strides: Vec<u64>, out| {
            Kernel::Reduce(Reduce {
                op: ReduceOp::Sum,
                dtype: DType::F32,
                dims: vec![rows as u64, n as u64],
                kept: 1,
                input: View { buffer, offset: 0, strides },
                out: View { buffer: out, offset: 0, strides: vec![1] },
                ragged: None,
                accumulate: false,
            })
        };
        let lines = memory.done(&reduce(x, vec![n as u64, 1], outs[0])).get(outs[0]);
        let columns = memory.done(&reduce(t, vec![1, rows as u64], outs[1])).get(outs[1]);
        assert_eq!(lines, columns);
    }
}

#[test]
fn scans() {
    let mut rng = Rng::new(13);
    for round in 0..60 {
        let dtype = [DType::F32, DType::F64, DType::Bf16, DType::I32][round % 4];
        let (outer, n, inner) = (rng.pick(&[0, 1, 3]), rng.pick(&[0, 1, 2, 50]), rng.pick(&[1, 2, 63, 65, 130]));
        let mut memory = Memory::default();
        let values: Vec<f64> = rng.floats(outer * n * inner).into_iter().map(|x| (x * 64.0).trunc() / 8.0).collect();
        let (input, out) = (memory.add(dtype, &values), memory.add(dtype, &vec![0.0; outer * n * inner]));
        let values = memory.get(input);
        let backward = rng.coin();
        let scan = Scan { dtype, outer: outer as u64, n: n as u64, inner: inner as u64, backward, input, out };
        let have = memory.done(&Kernel::Scan(scan.clone())).get(out);
        for o in 0..outer {
            for c in 0..inner {
                let at = |i: usize| (o * n + i) * inner + c;
                for i in 0..n {
                    let range = if backward { i..n } else { 0..i + 1 };
                    // Small multiples of 1/8: sums are exact in f32.
                    let sum: f64 = range.map(|j| values[at(j)]).sum();
                    assert_eq!(have[at(i)], crate::kernels::testing::harness::rounded(sum, dtype), "{scan:?}");
                }
            }
        }
    }
}
