//! Sorting, counting, random values.

use crate::kernels::KernelError;
use crate::kernels::testing::harness::{Memory, Rng};
use forebay_plan::{DType, Group, Invert, Kernel, Negative, Offsets, Random, RowGroups, TopK, View};

#[test]
fn top_k() {
    let mut rng = Rng::new(31);
    for round in 0..200 {
        let dtype = [DType::F32, DType::F64, DType::Bf16, DType::I32][round % 4];
        let (outer, inner) = (rng.pick(&[0, 1, 3, 40]), rng.pick(&[1, 1, 5]));
        let n = rng.pick(&[1, 2, 8, 33, 64, 200]);
        let k = match rng.below(3) {
            0 => n,
            1 => 1,
            _ => 1 + rng.below(n),
        };
        let mut memory = Memory::default();
        let count = outer * n * inner;
        let special = [0.0, -0.0, f64::NAN, f64::INFINITY, f64::NEG_INFINITY];
        let mut value = || match (rng.below(5), dtype) {
            (0, DType::F32 | DType::F64 | DType::Bf16) => rng.pick(&special),
            // Few values, so that there are ties.
            _ => rng.below(9) as f64 - 4.0,
        };
        let values: Vec<f64> = (0..count).map(|_| value()).collect();
        let (input, out) = (memory.add(dtype, &values), memory.add(DType::I32, &vec![-1.0; outer * k * inner]));
        let (o, n64) = (outer as u64, n as u64);
        let top = TopK { dtype, outer: o, n: n64, inner: inner as u64, k: k as u64, input, out };
        let have = memory.done(&Kernel::TopK(top.clone())).get(out);
        for line in 0..outer * inner {
            let (o, i) = (line / inner, line % inner);
            let at = |p: usize| values[(o * n + p) * inner + i];
            let mut order: Vec<usize> = (0..n).collect();
            order.sort_by(|&a, &b| match (at(a).is_nan(), at(b).is_nan()) {
                (false, false) => at(b).partial_cmp(&at(a)).expect("no NaN"),
                (a, b) => a.cmp(&b),
            });
            let have: Vec<usize> = (0..k).map(|r| have[(o * k + r) * inner + i] as usize).collect();
            assert_eq!(have, order[..k], "{top:?}");
        }
    }
}

#[test]
fn grouping() {
    let mut rng = Rng::new(32);
    for _ in 0..100 {
        let (elements, groups) = (rng.pick(&[0, 1, 2, 100, 3000]), rng.pick(&[1, 2, 8, 100]));
        let chosen: Vec<f64> = match rng.below(3) {
            0 => vec![rng.below(groups) as f64; elements],
            _ => (0..elements).map(|_| rng.below(groups) as f64).collect(),
        };
        // Some are in no group.
        let negative = rng.pick(&[Negative::Wrong, Negative::Nothing]);
        let out = |rng: &mut Rng| negative == Negative::Nothing && rng.below(3) == 0;
        let chosen: Vec<f64> = chosen.into_iter().map(|c| if out(&mut rng) { -1.0 } else { c }).collect();
        let mut memory = Memory::default();
        let c = memory.add(DType::I32, &chosen);
        let grouped = chosen.iter().filter(|&&c| c >= 0.0).count();
        // Sometimes there is just room for those that are in groups.
        let room = (grouped < elements && rng.below(2) == 0).then_some(grouped as u64);
        let rows = memory.add(DType::I32, &vec![-1.0; room.map_or(elements, |room| room as usize)]);
        let starts = memory.add(DType::I32, &vec![-1.0; groups + 1]);
        let inverse = memory.add(DType::I32, &vec![-1.0; elements]);
        let owners = memory.add(DType::I32, &vec![-1.0; elements + 3]);
        let (e, g) = (elements as u64, groups as u64);
        memory = memory.done(&Kernel::Group(Group { chosen: c, elements: e, groups: g, room, rows, negative }));
        memory = memory.done(&Kernel::Offsets(Offsets { chosen: c, elements: e, groups: g, out: starts, negative }));
        memory = memory.done(&Kernel::Invert(Invert { rows, elements: e, room, out: inverse, negative }));
        memory = memory.done(&Kernel::RowGroups(RowGroups { offsets: starts, groups: g, rows: e + 3, out: owners }));
        let mut order: Vec<usize> = (0..elements).filter(|&i| chosen[i] >= 0.0).collect();
        order.sort_by_key(|&i| chosen[i] as usize);
        let absent = if room.is_some() { 0 } else { elements - order.len() };
        let (rows, inverse, owners) = (memory.get(rows), memory.get(inverse), memory.get(owners));
        assert_eq!(rows, order.iter().map(|&i| i as f64).chain(vec![-1.0; absent]).collect::<Vec<_>>());
        assert!(inverse.iter().zip(&chosen).all(|(row, c)| (*row < 0.0) == (*c < 0.0)));
        assert!(order.iter().enumerate().all(|(row, &i)| inverse[i] == row as f64));
        assert!(order.iter().enumerate().all(|(row, &i)| owners[row] == chosen[i]));
        assert_eq!(owners[elements..], [0.0; 3]);
        for (group, start) in memory.get(starts).into_iter().enumerate() {
            assert_eq!(start, chosen.iter().filter(|&&c| c >= 0.0 && (c as usize) < group).count() as f64);
        }
    }
}

#[test]
fn more_rows_than_there_is_room_for_are_an_error() {
    let mut memory = Memory::default();
    let chosen = memory.add(DType::I32, &[0.0, -1.0, 1.0, 0.0, -1.0]);
    let of = |memory: &mut Memory, room: u64| {
        let rows = memory.add(DType::I32, &vec![7.0; room as usize]);
        let kernel = Group { chosen, elements: 5, groups: 2, negative: Negative::Nothing, room: Some(room), rows };
        memory.run_everywhere(&Kernel::Group(kernel), true).map(|_| ())
    };
    assert_eq!(of(&mut memory, 3), Ok(()));
    assert_eq!(of(&mut memory, 2), Err(KernelError::Rows { rows: 3, bound: 2 }));
}

#[test]
fn wrong_values_are_errors() {
    let mut memory = Memory::default();
    for bad in [-1.0, 4.0] {
        let chosen = memory.add(DType::I32, &[0.0, 3.0, bad, 9.0]);
        let out = memory.add(DType::I32, &[0.0; 5]);
        let want = Err(KernelError::Index { value: bad as i64, limit: 4, element: 2 });
        for kernel in [
            Kernel::Group(Group { chosen, elements: 4, groups: 4, room: None, rows: out, negative: Negative::Wrong }),
            Kernel::Offsets(Offsets { chosen, elements: 4, groups: 4, out, negative: Negative::Wrong }),
            Kernel::Invert(Invert { rows: chosen, elements: 4, room: None, out, negative: Negative::Wrong }),
        ] {
            assert_eq!(memory.run_everywhere(&kernel, true).map(|_| ()), want);
        }
    }
    for (offsets, value, least) in [([0.0, 3.0, 2.0], 2, 3), ([0.0, 1.0, 6.0], 6, 1), ([-1.0, 0.0, 0.0], -1, 0)] {
        let offsets = memory.add(DType::I32, &offsets);
        let out = memory.add(DType::I32, &[0.0; 5]);
        let kernel = Kernel::RowGroups(RowGroups { offsets, groups: 2, rows: 5, out });
        let error = memory.run_everywhere(&kernel, true).err();
        let element = if value == -1 { 0 } else { 2 };
        assert_eq!(error, Some(KernelError::Offsets { value, element, least, limit: 5 }));
    }
}

#[test]
fn random_values_depend_on_their_place() {
    let mut memory = Memory::default();
    let key = memory.add(DType::I32, &[0.0; 4]);
    memory = memory.done(&Kernel::RandomKey {
        out: key,
        rows: 6,
        per_micro_batch: 6,
        first_row: forebay_plan::Affine::default(),
    });
    assert_eq!(memory.get(key), [-7.0, 3.0, 2.0, 30.0]);
    let dims = vec![5u64, 7, 100];
    let contiguous = memory.add(DType::F32, &[-1.0; 3500]);
    let turned = memory.add(DType::F32, &[-1.0; 3500]);
    let random = |out, strides: Vec<u64>, batched| {
        let out = View { buffer: out, offset: 0, strides };
        Kernel::Random(Random { key, site: 9, dims: dims.clone(), batched, out })
    };
    let a = memory.done(&random(contiguous, vec![700, 100, 1], true)).get(contiguous);
    let b = memory.done(&random(turned, vec![1, 5, 35], true)).get(turned);
    for i in 0..5 {
        for j in 0..7 {
            for k in 0..100 {
                assert_eq!(a[i * 700 + j * 100 + k], b[i + j * 5 + k * 35]);
            }
        }
    }
    assert!(a.iter().all(|x| (0.0..1.0).contains(x)));
    assert!((a.iter().sum::<f64>() / 3500.0 - 0.5).abs() < 0.02);
    // The first row of the batched array is the 31st of the whole one: offset 30, without it 0.
    let shifted = memory.add(DType::I32, &[-7.0, 3.0, 2.0, 29.0]);
    let Kernel::Random(mut other) = random(contiguous, vec![700, 100, 1], true) else { unreachable!() };
    other.key = shifted;
    let c = memory.done(&Kernel::Random(other)).get(contiguous);
    assert_eq!(c[700..], a[..2800]);
    let plain = memory.done(&random(contiguous, vec![700, 100, 1], false)).get(contiguous);
    assert_ne!(plain, a);
}
