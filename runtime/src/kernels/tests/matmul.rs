use super::chains::{sum_of_bf16, sum_of_thirds};
use crate::kernels::Cpu;
use crate::kernels::cpu::Bf16;
use crate::kernels::testing::harness::{
    Memory, Rng, bf16_levels, close, epsilon, indices, layout, rounded, tiling_levels,
};
use forebay_plan::{BatchDim, DType, Groups, Kernel, MatDim, Matmul, RaggedDim};

const SIZES: [usize; 22] = [0, 1, 1, 2, 3, 5, 7, 8, 9, 15, 16, 17, 24, 25, 31, 32, 47, 48, 49, 63, 64, 100];

struct Case {
    memory: Memory,
    matmul: Matmul,
    /// The result, and the sum of the absolute values of the terms.
    want: Vec<(f64, f64)>,
    /// The bits: of bf16 where products are summed in pairs, and of it and f32 where in tiles.
    exactly: [Vec<f64>; 2],
}

/// A random product with its result. Dimensions 0.. of the sizes: batch, group, m, n, k_outer, k.
fn case(rng: &mut Rng, dtype: DType, ragged: Option<RaggedDim>) -> Case {
    let batch: Vec<usize> = (0..rng.below(3)).map(|_| rng.pick(&[1, 2, 3])).collect();
    let k_outer: Vec<usize> = (0..rng.below(2)).map(|_| rng.pick(&[1, 2, 5])).collect();
    let (mut m, mut n, mut k) = (rng.pick(&SIZES), rng.pick(&SIZES), rng.pick(&SIZES));
    match rng.below(6) {
        0 => k = rng.pick(&[255, 256, 257, 511, 512, 513, 700, 1025]),
        1 => m = rng.pick(&[130, 256, 257, 300, 520]),
        2 => n = rng.pick(&[96, 97, 130, 300, 520]),
        _ => {}
    }
    let count = if ragged.is_some() { rng.pick(&[1, 2, 3, 5]) } else { 1 };
    let dims = |x: bool, group: bool, middle: &[usize]| {
        let mut sizes: Vec<usize> = batch.iter().map(|&b| if x { b } else { 1 }).collect();
        sizes.push(if group { count } else { 1 });
        sizes.extend(middle);
        sizes
    };
    let kk: Vec<usize> = k_outer.iter().copied().chain([k]).collect();
    // An operand may lack the batch.
    let (a_batch, b_batch) = (rng.below(4) > 0, rng.below(4) > 0);
    let own = |d: RaggedDim| ragged == Some(d);
    let a_sizes = dims(a_batch, own(RaggedDim::N), &[&[m], &kk[..]].concat());
    let b_sizes = dims(b_batch, own(RaggedDim::M), &[&[n], &kk[..]].concat());
    let c_sizes = dims(true, own(RaggedDim::K), &[m, n]);
    let ((sa, ea), (sb, eb), (sc, ec)) = (layout(rng, &a_sizes), layout(rng, &b_sizes), layout(rng, &c_sizes));
    let zeroed = |s: &[u64], has: bool, i: usize| if has { s[i] } else { 0 };
    let offsets = [rng.below(3) as u64, rng.below(3) as u64, rng.below(3) as u64];
    let mut memory = Memory::default();
    let (av, bv, cv) = (rng.floats(ea + 3), rng.floats(eb + 3), rng.floats(ec + 3));
    let (a, b, c) = (memory.add(dtype, &av), memory.add(dtype, &bv), memory.add(dtype, &cv));
    let (av, bv, cv) = (memory.get(a), memory.get(b), memory.get(c));
    let (g, r) = (batch.len(), batch.len() + 1);
    let bound = match ragged {
        Some(RaggedDim::M) => m,
        Some(RaggedDim::N) => n,
        _ => k,
    };
    let starts = rng.offsets(count, bound);
    let groups = ragged.map(|ragged| Groups {
        offsets: memory.add(DType::I32, &starts),
        count: count as u64,
        even: 0,
        ragged,
        strides: [
            zeroed(&sa, own(RaggedDim::N), g),
            zeroed(&sb, own(RaggedDim::M), g),
            zeroed(&sc, own(RaggedDim::K), g),
        ],
    });
    let ko = k_outer.len();
    let matmul = Matmul {
        dtype,
        a,
        b,
        c,
        offsets,
        batch: (0..g)
            .map(|i| BatchDim(batch[i] as u64, zeroed(&sa, a_batch, i), zeroed(&sb, b_batch, i), sc[i]))
            .collect(),
        m: MatDim(m as u64, sa[r], sc[r]),
        n: MatDim(n as u64, sb[r], sc[r + 1]),
        k: MatDim(k as u64, sa[r + 1 + ko], sb[r + 1 + ko]),
        k_outer: (0..ko).map(|i| MatDim(k_outer[i] as u64, sa[r + 1 + i], sb[r + 1 + i])).collect(),
        groups,
        accumulate: rng.below(3) == 0,
        epilogue: None,
    };
    let (want, exactly) = expected(&matmul, &starts, [&av, &bv, &cv]);
    Case { memory, matmul, want, exactly }
}

/// What a product of these values comes to: each element, with the sum of its terms' absolute values; and its [bits](Case::exactly).
fn expected(k: &Matmul, starts: &[f64], [av, bv, cv]: [&[f64]; 3]) -> (Vec<(f64, f64)>, [Vec<f64>; 2]) {
    let mut want: Vec<(f64, f64)> = cv.iter().map(|&c| (c, 0.0)).collect();
    let mut exactly = [cv.to_vec(), cv.to_vec()];
    each_element(k, starts, [av, bv], |place, terms| {
        let old = if k.accumulate { cv[place] } else { 0.0 };
        let products = || terms.iter().map(|(x, y)| x * y);
        want[place] = (old + products().sum::<f64>(), products().map(f64::abs).sum::<f64>() + old.abs());
        match k.dtype {
            DType::Bf16 => {
                for (exactly, bf16) in exactly.iter_mut().zip([Bf16::Pairs, Bf16::Tiles]) {
                    let sum = old + sum_of_bf16(bf16, terms);
                    exactly[place] = half::bf16::from_f32(sum as f32).to_f64();
                }
            }
            DType::F32 => exactly[1][place] = f64::from((old + sum_of_thirds(terms)) as f32),
            _ => {}
        }
    });
    (want, exactly)
}

/// Calls `f` with the place of each element and its terms.
fn each_element(k: &Matmul, starts: &[f64], [av, bv]: [&[f64]; 2], mut f: impl FnMut(usize, &[(f64, f64)])) {
    let size = |d: &MatDim| d.0 as usize;
    let range = |group: usize, d: RaggedDim, size: usize| match &k.groups {
        Some(groups) if groups.ragged == d => starts[group] as usize..starts[group + 1] as usize,
        _ => 0..size,
    };
    // Where the part of a batch's index and a group begins in an operand.
    let begin = |operand: usize, at: &[usize], group: usize| {
        let of_batch = k.batch.iter().zip(at).map(|(d, &i)| i as u64 * [d.1, d.2, d.3][operand]).sum::<u64>();
        let of_group = k.groups.as_ref().map_or(0, |g| group as u64 * g.strides[operand]);
        (k.offsets[operand] + of_batch + of_group) as usize
    };
    let outer: Vec<usize> = k.k_outer.iter().map(size).collect();
    let sizes: Vec<usize> = k.batch.iter().map(|d| d.0 as usize).collect();
    let groups = k.groups.as_ref().map_or(1, |g| g.count as usize);
    for (at, group) in indices(&sizes).flat_map(|at| (0..groups).map(move |group| (at.clone(), group))) {
        let [a, b, c] = [0, 1, 2].map(|operand| begin(operand, &at, group));
        let columns = range(group, RaggedDim::N, size(&k.n));
        for (i, j) in range(group, RaggedDim::M, size(&k.m)).flat_map(|i| columns.clone().map(move |j| (i, j))) {
            let mut terms = vec![];
            for o in indices(&outer) {
                let of_outer = |part: fn(&MatDim) -> u64| -> usize {
                    k.k_outer.iter().zip(&o).map(|(d, &i)| i * part(d) as usize).sum()
                };
                let row = a + i * k.m.1 as usize + of_outer(|d| d.1);
                let column = b + j * k.n.1 as usize + of_outer(|d| d.2);
                let products = range(group, RaggedDim::K, size(&k.k));
                terms.extend(products.map(|p| (av[row + p * k.k.1 as usize], bv[column + p * k.k.2 as usize])));
            }
            f(c + i * k.m.2 as usize + j * k.n.2 as usize, &terms);
        }
    }
}

fn check(case: &Case) {
    let kernel = Kernel::Matmul(case.matmul.clone());
    let portable = case.memory.run_everywhere(&kernel, false).expect("it has no indices");
    let mut levels = vec![portable];
    for level in ["avx512", "avx2", "avx512bf16", "amx"] {
        let mut memory = case.memory.clone();
        memory.run_on(&kernel, 2, Cpu::named(level).expect("a level")).expect("it has no indices");
        levels.push(memory);
    }
    let accurate = if case.matmul.dtype == DType::F64 { f64::EPSILON } else { f64::from(f32::EPSILON) };
    for memory in &levels {
        let have = memory.get(case.matmul.c);
        for (i, (&have, &(want, size))) in have.iter().zip(&case.want).enumerate() {
            let tolerance = 40.0 * accurate * size + epsilon(case.matmul.dtype) * 0.51 * want.abs();
            assert!(close(have, want, tolerance), "element {i}: {have} instead of {want}: {:?}", case.matmul);
        }
    }
    if Cpu::named("avx2") == Some(Cpu::named("avx2").expect("a level"))
        && Cpu::detect() >= Cpu::named("avx512").expect("a level")
    {
        assert_eq!(levels[1].get(case.matmul.c), levels[2].get(case.matmul.c), "AVX2 and AVX-512 agree");
    }
}

#[test]
fn products_of_all_kinds() {
    let mut rng = Rng::new(1);
    for round in 0..150 {
        let dtype = rng.pick(&[DType::F32, DType::F32, DType::Bf16, DType::F64]);
        let ragged = [None, None, Some(RaggedDim::M), Some(RaggedDim::K), Some(RaggedDim::N)][round % 5];
        check(&case(&mut rng, dtype, ragged));
    }
}

/// Pairs and tiles, packed in all ways, at all tails: every element has the bits of a sum of its own, whatever does the arithmetic.
#[test]
fn pairs_and_tiles_of_products() {
    let mut rng = Rng::new(5);
    for round in 0..150 {
        let ragged = [None, None, Some(RaggedDim::M), Some(RaggedDim::K), Some(RaggedDim::N)][round % 5];
        let case = case(&mut rng, DType::Bf16, ragged);
        for cpu in bf16_levels() {
            let mut memory = case.memory.clone();
            memory.run_on(&Kernel::Matmul(case.matmul.clone()), 1 + round % 3, cpu).expect("it has no indices");
            let have = memory.get(case.matmul.c);
            let want = &case.exactly[usize::from(cpu.bf16() == Bf16::Tiles)];
            for (i, (have, want)) in have.iter().zip(want).enumerate() {
                assert_eq!(have, want, "element {i}, {cpu:?}: {:?}", case.matmul);
            }
        }
    }
}

/// The same for f32 in tiles.
#[test]
fn tiles_of_f32() {
    let mut rng = Rng::new(7);
    for round in 0..75 {
        let ragged = [None, None, Some(RaggedDim::M), Some(RaggedDim::K), Some(RaggedDim::N)][round % 5];
        let case = case(&mut rng, DType::F32, ragged);
        for cpu in tiling_levels() {
            let mut memory = case.memory.clone();
            memory.run_on(&Kernel::Matmul(case.matmul.clone()), 1 + round % 3, cpu).expect("it has no indices");
            let have = memory.get(case.matmul.c);
            for (i, (have, want)) in have.iter().zip(&case.exactly[1]).enumerate() {
                assert_eq!(have, want, "element {i}, {cpu:?}: {:?}", case.matmul);
            }
        }
    }
}

fn dense(
    dtype: DType,
    m: usize,
    n: usize,
    k: usize,
    memory: &mut Memory,
    rng: &mut Rng,
    transposed: [bool; 2],
) -> Matmul {
    let (a, b) = (rng.floats(m * k), rng.floats(k * n));
    let (m, n, k) = (m as u64, n as u64, k as u64);
    let (sa, sb) = (if transposed[0] { (1, m) } else { (k, 1) }, if transposed[1] { (1, k) } else { (n, 1) });
    Matmul {
        dtype,
        a: memory.add(dtype, &a),
        b: memory.add(dtype, &b),
        c: memory.add(dtype, &vec![f64::NAN; (m * n) as usize]),
        offsets: [0; 3],
        batch: vec![],
        m: MatDim(m, sa.0, n),
        n: MatDim(n, sb.1, 1),
        k: MatDim(k, sa.1, sb.0),
        k_outer: vec![],
        groups: None,
        accumulate: false,
        epilogue: None,
    }
}

/// The terms of an element of a [`dense`] product.
fn terms(product: &Matmul, [a, b]: [&[f64]; 2], [i, j]: [usize; 2]) -> Vec<(f64, f64)> {
    let at = |x: usize, p: usize, (own, sum): (u64, u64)| x * own as usize + p * sum as usize;
    let term = |p| (a[at(i, p, (product.m.1, product.k.1))], b[at(j, p, (product.n.1, product.k.2))]);
    (0..product.k.0 as usize).map(term).collect()
}

/// A result of a product of some rows and columns is bit for bit that of the whole: which rows a batch has must not matter.
#[test]
fn rows_and_columns_do_not_matter() {
    let mut rng = Rng::new(2);
    for (k, dtype) in [(32, DType::F32), (256, DType::F64), (300, DType::Bf16), (701, DType::Bf16), (777, DType::F32)] {
        for (turned, transposed) in
            [(false, [false, false]), (false, [false, true]), (false, [true, false]), (true, [false, false])]
        {
            let (m, n) = (300, 210);
            let mut memory = Memory::default();
            let mut whole = dense(dtype, m, n, k, &mut memory, &mut rng, transposed);
            // Where elements of C are: columns of it may be what lies side by side.
            let lay = |c: &mut Matmul, [m, n]: [usize; 2]| {
                (c.m.2, c.n.2) = if turned { (1, m as u64) } else { (n as u64, 1) };
            };
            lay(&mut whole, [m, n]);
            let levels = ["avx512", "avx2", "portable"].map(|l| Cpu::named(l).expect("a level"));
            for cpu in levels.into_iter().chain(bf16_levels()) {
                memory.run_on(&Kernel::Matmul(whole.clone()), 2, cpu).expect("no indices");
                let want = memory.get(whole.c);
                for (first, rows) in [(0, 1), (299, 1), (5, 2), (7, 23), (10, 25), (100, 64), (40, 260)] {
                    for (column, columns) in [(0, 1), (3, 48), (209, 1), (17, 190), (0, 210)] {
                        let mut part = whole.clone();
                        let mut memory = memory.clone();
                        part.c = memory.add(dtype, &vec![f64::NAN; rows * columns]);
                        (part.m.0, part.n.0) = (rows as u64, columns as u64);
                        lay(&mut part, [rows, columns]);
                        part.offsets[0] = first as u64 * part.m.1;
                        part.offsets[1] = column as u64 * part.n.1;
                        memory.run_on(&Kernel::Matmul(part.clone()), 2, cpu).expect("no indices");
                        let have = memory.get(part.c);
                        for (i, j) in (0..rows).flat_map(|i| (0..columns).map(move |j| (i, j))) {
                            let at = |c: &Matmul, i: usize, j: usize| i * c.m.2 as usize + j * c.n.2 as usize;
                            let (have, want) = (have[at(&part, i, j)], want[at(&whole, first + i, column + j)]);
                            assert_eq!(have, want, "{cpu:?} row {first}+{i}, column {column}+{j}, {turned}");
                        }
                    }
                }
            }
        }
    }
}

/// B is packed, or read where it is, or one chain is and the next is not: the same bits.
#[test]
fn it_does_not_matter_how_b_lies() {
    let mut rng = Rng::new(12);
    for (dtype, [m, n, k]) in [(DType::F32, [40, 70, 600]), (DType::F64, [9, 33, 600]), (DType::F32, [1, 49, 256])] {
        let mut memory = Memory::default();
        let plain = dense(dtype, m, n, k, &mut memory, &mut rng, [false, false]);
        let values = memory.get(plain.b);
        // Rows side by side; from another element on; columns apart; transposed; rows in two runs, apart.
        let gap = 5;
        let place = |way: usize, p: usize, j: usize| match way {
            0 => p * n + j,
            1 => 3 + p * (n + 2) + j,
            2 => p * 2 * n + 2 * j,
            3 => j * k + p,
            _ => p * n + j + (p / (k / 2)) * gap,
        };
        let laid = |way: usize, memory: &mut Memory| {
            let mut b = vec![f64::NAN; place(way, k - 1, n - 1) + 1];
            (0..k).for_each(|p| (0..n).for_each(|j| b[place(way, p, j)] = values[p * n + j]));
            let step = |from: usize, p: usize, j: usize| (place(way, p, j) - from) as u64;
            let from = place(way, 0, 0);
            let mut product = plain.clone();
            product.b = memory.add(dtype, &b);
            product.offsets[1] = from as u64;
            product.n.1 = step(from, 0, 1);
            product.k.2 = step(from, 1, 0);
            if way == 4 {
                let half = k as u64 / 2;
                product.k.0 = half;
                product.k_outer = vec![MatDim(2, half * product.k.1, step(from, k / 2, 0))];
            }
            product
        };
        let products: Vec<Matmul> = (0..5).map(|way| laid(way, &mut memory)).collect();
        for cpu in ["avx512", "avx2", "portable"].map(|l| Cpu::named(l).expect("a level")) {
            let result = |product: &Matmul| {
                let mut memory = memory.clone();
                memory.run_on(&Kernel::Matmul(product.clone()), 2, cpu).expect("no indices");
                memory.get(product.c)
            };
            let want = result(&plain);
            assert!(want.iter().all(|x| x.is_finite()));
            for (way, product) in products.iter().enumerate() {
                assert_eq!(result(product), want, "{cpu:?} {dtype:?}, way {way}");
            }
        }
    }
}

/// Nothing is read behind A and B, wherever they end: vectors of the last columns are cut.
#[cfg(unix)]
#[test]
fn nothing_is_read_behind_operands() {
    let mut rng = Rng::new(13);
    let levels = ["avx512", "avx2", "portable"].map(|l| Cpu::named(l).expect("a level"));
    for cpu in levels.into_iter().chain(bf16_levels()) {
        for (n, dtype) in (1..50).chain([97, 130]).flat_map(|n| [(n, DType::F32), (n, DType::F64), (n, DType::Bf16)]) {
            let (m, k) = (rng.pick(&[1, 7, 40]), rng.pick(&[1, 5, 33, 257]));
            for transposed in [[false, false], [true, false], [false, true]] {
                let mut memory = Memory::default();
                let product = Kernel::Matmul(dense(dtype, m, n, k, &mut memory, &mut rng, transposed));
                let have = memory.done_at_edges(&product, 2, cpu);
                memory.run_on(&product, 2, cpu).expect("no indices");
                have.assert_same(&memory, &|| format!("{cpu:?}: {product:?}"));
            }
        }
    }
}

/// `accumulate` is an addition after the product: nothing else.
#[test]
fn accumulating_is_adding() {
    let mut rng = Rng::new(3);
    let levels = || tiling_levels().into_iter().chain([Cpu::detect()]);
    for (k, cpu) in [40, 256, 600].into_iter().flat_map(|k| levels().map(move |cpu| (k, cpu))) {
        let mut memory = Memory::default();
        let mut product = dense(DType::F32, 70, 130, k, &mut memory, &mut rng, [true, false]);
        let done = |memory: &Memory, product: &Matmul| {
            let mut memory = memory.clone();
            memory.run_on(&Kernel::Matmul(product.clone()), 2, cpu).expect("no indices");
            memory.get(product.c)
        };
        let plain = done(&memory, &product);
        let old = rng.floats(70 * 130);
        product.c = memory.add(DType::F32, &old);
        let old = memory.get(product.c);
        product.accumulate = true;
        let sum = done(&memory, &product);
        for i in 0..sum.len() {
            assert_eq!(sum[i], f64::from(old[i] as f32 + plain[i] as f32), "{cpu:?}");
        }
    }
}

/// With AMX f32 is multiplied in tiles from 32 terms on, and in vectors below, whatever else the sizes are.
#[test]
fn tiles_begin_with_a_step() {
    let amx = Cpu::named("amx").expect("a level");
    if amx.name() != "amx" {
        return;
    }
    let mut rng = Rng::new(11);
    for (m, n, k) in [(1, 70, 31), (70, 1, 32), (40, 50, 31), (40, 50, 32), (5, 3, 33)] {
        let mut memory = Memory::default();
        let product = dense(DType::F32, m, n, k, &mut memory, &mut rng, [false, false]);
        let of = |cpu: Cpu| {
            let mut memory = memory.clone();
            memory.run_on(&Kernel::Matmul(product.clone()), 1, cpu).expect("no indices");
            memory.get(product.c)
        };
        let way = if k < 32 { Cpu::named("avx512").expect("a level") } else { amx.emulating(Bf16::Tiles) };
        assert_eq!(of(amx), of(way), "{m} × {n} of {k}");
    }
}

/// Products so large that they are cut into many tasks, of several chains.
#[test]
fn large_products() {
    let mut rng = Rng::new(4);
    let sizes = [(300, 2500, 1100), (700, 60, 3000), (40, 500, 50_000), (520, 96, 45_000)];
    for ((m, n, k), turned) in sizes.into_iter().flat_map(|size| [(size, true), (size, false)]) {
        let mut memory = Memory::default();
        let mut product = dense(DType::F32, m, n, k, &mut memory, &mut rng, [false, turned]);
        product.accumulate = false;
        let (a, b) = (memory.get(product.a), memory.get(product.b));
        let after = memory.done_on_best(&Kernel::Matmul(product.clone()));
        let have = after.get(product.c);
        for _ in 0..200 {
            let (i, j) = (rng.below(m), rng.below(n));
            let of_b = |p: usize| if turned { b[j * k + p] } else { b[p * n + j] };
            let want: f64 = (0..k).map(|p| a[i * k + p] * of_b(p)).sum();
            assert!(close(have[i * n + j], want, 1e-5 * (k as f64).sqrt() * 3.0), "{} {want}", have[i * n + j]);
        }
        let mut other = memory.clone();
        other.run_on(&Kernel::Matmul(product.clone()), 3, Cpu::detect()).expect("no indices");
        assert_eq!(have, other.get(product.c));
    }
}

/// The same for f32 in tiles: rows and columns of several tasks, many steps.
#[test]
fn large_products_of_f32_in_tiles() {
    let cases = [
        ([300, 1100, 1101], [false, true], 2),
        ([270, 300, 701], [false, false], 3),
        ([600, 130, 511], [true, true], 2),
        // As much as one task does at most.
        ([512, 1024, 256], [true, false], 1),
    ];
    check_large(DType::F32, &cases, &tiling_levels(), |_, terms| sum_of_thirds(terms));
}

/// Sums in tiles are nearer to what they should be than chains of multiply-adds of f32.
#[test]
fn tiles_of_f32_are_more_accurate_than_vectors() {
    let mut rng = Rng::new(9);
    for (k, scales) in [(64, (0.0, 0.0)), (512, (0.0, 0.0)), (2000, (-60.0, 60.0)), (300, (-80.0, -10.0))] {
        let (m, n) = (48, 64);
        let mut memory = Memory::default();
        let mut product = dense(DType::F32, m, n, k, &mut memory, &mut rng, [false, true]);
        let mut scaled = |id: u32, scale: f64| {
            let values: Vec<f64> = memory.get(id).iter().map(|x| x * scale.exp2()).collect();
            memory.add(DType::F32, &values)
        };
        (product.a, product.b) = (scaled(product.a, scales.0), scaled(product.b, scales.1));
        let (a, b) = (memory.get(product.a), memory.get(product.b));
        let error = |cpu: Cpu| {
            let mut memory = memory.clone();
            memory.run_on(&Kernel::Matmul(product.clone()), 2, cpu).expect("no indices");
            let have = memory.get(product.c);
            let of = |i: usize, j: usize| {
                let want: f64 = (0..k).map(|p| a[i * k + p] * b[j * k + p]).sum();
                (have[i * n + j] - want).powi(2)
            };
            (0..m).flat_map(|i| (0..n).map(move |j| (i, j))).map(|(i, j)| of(i, j)).sum::<f64>().sqrt()
        };
        let vectors = error(Cpu::named("avx512").expect("a level"));
        for cpu in tiling_levels() {
            let tiles = error(cpu);
            assert!(tiles < 0.5 * vectors, "{k} products: {tiles:e} in tiles, {vectors:e} in vectors, {cpu:?}");
        }
    }
}

/// Outside of what parts hold: a row with an infinity or nearly one comes to NaN, one without does not notice.
#[test]
fn tiles_of_f32_and_infinities() {
    // (The second NaN has all bits set; the last number is just small enough.)
    let specials = [f64::INFINITY, f64::NEG_INFINITY, f64::NAN, f64::from_bits(u64::MAX), 3.3965e38, 3.396e38];
    for (special, stride) in specials.into_iter().flat_map(|special| [(special, 1), (special, 2)]) {
        let mut rng = Rng::new(10);
        let mut memory = Memory::default();
        let mut product = dense(DType::F32, 40, 33, 50, &mut memory, &mut rng, [false, false]);
        let (mut a, mut b) = (rng.floats(40 * 50 * stride), memory.get(product.b));
        a[(7 * 50 + 3) * stride] = special;
        b[20 * 33 + 5] = special;
        (product.a, product.b) = (memory.add(DType::F32, &a), memory.add(DType::F32, &b));
        (product.m.1, product.k.1) = (50 * stride as u64, stride as u64);
        for cpu in tiling_levels() {
            let mut memory = memory.clone();
            memory.run_on(&Kernel::Matmul(product.clone()), 1, cpu).expect("no indices");
            for (at, have) in memory.get(product.c).iter().enumerate() {
                let (row, column) = (at / 33, at % 33);
                let lost = special != 3.396e38 && (row == 7 || column == 5);
                assert_eq!(have.is_nan(), lost, "{special}, {row}, {column}, {cpu:?}");
            }
        }
    }
}

/// The same for pairs and tiles: one chain, two, and many.
#[test]
fn large_products_of_bf16() {
    let cases = [
        ([300, 2500, 1101], [false, true], 2),
        ([520, 96, 45_000], [true, false], 2),
        ([270, 1100, 701], [false, false], 2),
        ([700, 130, 511], [true, true], 2),
        // As much as one task does at most: of two chains together, and one after the other.
        ([512, 1024, 1024], [true, false], 1),
        ([512, 256, 1540], [false, true], 1),
    ];
    let levels: Vec<Cpu> = bf16_levels().collect();
    check_large(DType::Bf16, &cases, &levels, |cpu, terms| sum_of_bf16(cpu.bf16(), terms));
}

/// Products of these sizes, layouts and workers: of a hundred elements the bits.
fn check_large(
    dtype: DType,
    cases: &[([usize; 3], [bool; 2], usize)],
    levels: &[Cpu],
    sum: impl Fn(Cpu, &[(f64, f64)]) -> f64,
) {
    let mut rng = Rng::new(6);
    for &([m, n, k], transposed, workers) in cases {
        let mut memory = Memory::default();
        let product = dense(dtype, m, n, k, &mut memory, &mut rng, transposed);
        let (a, b) = (memory.get(product.a), memory.get(product.b));
        for &cpu in levels {
            let mut memory = memory.clone();
            memory.run_on(&Kernel::Matmul(product.clone()), workers, cpu).expect("no indices");
            let have = memory.get(product.c);
            for _ in 0..100 {
                let (i, j) = (rng.below(m), rng.below(n));
                let want = rounded(sum(cpu, &terms(&product, [&a, &b], [i, j])), dtype);
                assert_eq!(have[i * n + j], want, "{i}, {j}, {cpu:?}");
            }
        }
    }
}

impl Memory {
    fn done_on_best(&self, kernel: &Kernel) -> Memory {
        let mut memory = self.clone();
        memory.run_on(kernel, 2, Cpu::detect()).expect("no indices");
        memory
    }
}
