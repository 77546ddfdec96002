//! Attention against sums written out in f64.

use crate::kernels::Cpu;
use crate::kernels::testing::harness::{
    Memory, Rng, close, epsilon, indices, layout, offset, pairing_levels, tiling_levels,
};
use forebay_plan::{Attention, AttentionBackward, AttentionInputs, DType, Kernel, Marks, ScorePair, View};

/// What a problem has besides its sizes.
#[derive(Clone, Debug, Default)]
struct Shape {
    /// Size, and whether keys and values, queries, the rotary keys, the sink have the dimension.
    batch: Vec<usize>,
    queries: usize,
    keys: usize,
    sizes: Vec<usize>,
    value_size: usize,
    causal: bool,
    window: usize,
    documents: bool,
    /// The position of the first query, when it is not 0.
    /// Of queries and keys.
    positions: Option<[Vec<i64>; 2]>,
    sink: bool,
    /// For each pair, then for the values: dimensions of the batch that the array of keys lacks.
    lacks: Vec<Vec<bool>>,
    /// Dimensions that queries lack.
    queries_lack: Vec<bool>,
    sink_lacks: Vec<bool>,
}

struct Case {
    memory: Memory,
    shape: Shape,
    forward: Attention,
    backward: AttentionBackward,
}

/// A view of an array that lacks dimensions, in any order in memory; and its elements.
fn array(rng: &mut Rng, batch: &[usize], lacks: &[bool], inner: &[usize]) -> (Vec<u64>, usize) {
    let own = |d: usize| if lacks.get(d) == Some(&true) { 1 } else { batch[d] };
    let sizes: Vec<usize> = (0..batch.len()).map(own).chain(inner.iter().copied()).collect();
    let (mut strides, elements) = layout(rng, &sizes);
    for (d, stride) in strides.iter_mut().enumerate().take(batch.len()) {
        if own(d) != batch[d] {
            *stride = 0;
        }
    }
    (strides, elements)
}

impl Case {
    fn new(rng: &mut Rng, dtype: DType, shape: Shape) -> Case {
        let mut memory = Memory::default();
        let wide = if dtype == DType::F64 { DType::F64 } else { DType::F32 };
        let mut make = |rng: &mut Rng, dtype, lacks: &[bool], inner: &[usize], values: bool| {
            let (strides, elements) = array(rng, &shape.batch, lacks, inner);
            let start = rng.below(3);
            let numbers = if values { rng.floats(elements + start) } else { vec![f64::NAN; elements + start] };
            View { buffer: memory.add(dtype, &numbers), offset: start as u64, strides }
        };
        let (queries, keys) = (shape.queries, shape.keys);
        let mut pairs = vec![];
        for (size, lacks) in shape.sizes.iter().zip(&shape.lacks) {
            let q = make(rng, dtype, &shape.queries_lack, &[queries, *size], true);
            let k = make(rng, dtype, lacks, &[keys, *size], true);
            pairs.push(ScorePair { size: *size as u64, q, k });
        }
        let lacks = &shape.lacks[shape.sizes.len()];
        let v = make(rng, dtype, lacks, &[keys, shape.value_size], true);
        let sink = shape.sink.then(|| make(rng, dtype, &shape.sink_lacks, &[], true));
        let out = make(rng, dtype, &[], &[queries, shape.value_size], false);
        let lse = make(rng, wide, &[], &[queries], false);
        let d_out = make(rng, dtype, &[], &[queries, shape.value_size], true);
        let gradient = |rng: &mut Rng, make: &mut dyn FnMut(&mut Rng) -> View| (rng.below(8) > 0).then(|| make(rng));
        let (mut d_q, mut d_k) = (vec![], vec![]);
        for (size, lacks) in shape.sizes.iter().zip(&shape.lacks) {
            d_q.push(gradient(rng, &mut |rng| make(rng, dtype, &shape.queries_lack, &[queries, *size], false)));
            d_k.push(gradient(rng, &mut |rng| make(rng, dtype, lacks, &[keys, *size], false)));
        }
        let d_v = Some(make(rng, dtype, lacks, &[keys, shape.value_size], false));
        let d_sink = shape.sink.then(|| make(rng, dtype, &shape.sink_lacks, &[], false));
        let documents = shape.documents.then(|| {
            let whole = vec![true; shape.batch.len().saturating_sub(1)];
            let lacks: Vec<bool> = [false].into_iter().chain(whole).take(shape.batch.len()).collect();
            let mut ids = |rng: &mut Rng, n: usize| {
                let (strides, elements) = array(rng, &shape.batch, &lacks, &[n]);
                let numbers: Vec<f64> = (0..elements).map(|_| rng.below(3) as f64).collect();
                View { buffer: memory.add(DType::I32, &numbers), offset: 0, strides }
            };
            Marks { queries: ids(rng, queries), keys: ids(rng, keys) }
        });
        let positions = shape.positions.as_ref().map(|positions| {
            let [queries, keys] = positions.each_ref().map(|of| {
                let numbers: Vec<f64> = of.iter().map(|p| *p as f64).collect();
                let strides = [vec![0; shape.batch.len()], vec![1]].concat();
                View { buffer: memory.add(DType::I32, &numbers), offset: 0, strides }
            });
            Marks { queries, keys }
        });
        let inputs = AttentionInputs {
            dtype,
            batch: shape.batch.iter().map(|n| *n as u64).collect(),
            queries: queries as u64,
            keys: keys as u64,
            pairs,
            v,
            value_size: shape.value_size as u64,
            scale: if rng.coin() { 1.0 } else { 0.5 + rng.float() },
            causal: shape.causal,
            window: shape.window as u64,
            documents,
            positions,
            sink,
        };
        let forward = Attention { inputs: inputs.clone(), out: out.clone(), lse: lse.clone() };
        let backward = AttentionBackward { inputs, out, lse, d_out, d_q, d_k, d_v, d_sink };
        Case { memory, shape, forward, backward }
    }
}

fn numbers(memory: &Memory, view: &View) -> Vec<f64> {
    memory.get(view.buffer)[view.offset as usize..].to_vec()
}

/// Results and gradients, each in its view's layout, with the sum of the absolute values of the terms.
struct Want {
    out: Vec<(f64, f64)>,
    lse: Vec<(f64, f64)>,
    /// In the order of [`gradients`].
    gradients: Vec<Vec<(f64, f64)>>,
}

/// The gradients' views: of queries, keys, values, sink.
fn gradients(k: &AttentionBackward) -> Vec<Option<&View>> {
    k.d_q.iter().chain(&k.d_k).chain([&k.d_v, &k.d_sink]).map(Option::as_ref).collect()
}

fn naive(case: &Case) -> Want {
    let (shape, k, b) = (&case.shape, &case.forward.inputs, &case.backward);
    let get = |view: &View| numbers(&case.memory, view);
    let pairs: Vec<_> = k.pairs.iter().map(|p| (p, get(&p.q), get(&p.k))).collect();
    let (v, d_out) = (get(&k.v), get(&b.d_out));
    let sinks = k.sink.as_ref().map(|s| (s, get(s)));
    let documents = k.documents.as_ref().map(|d| (d, get(&d.queries), get(&d.keys)));
    let blank = |view: &View| vec![(f64::NAN, 0.0); numbers(&case.memory, view).len()];
    let zeros = |view: &View| vec![(0.0, 0.0); numbers(&case.memory, view).len()];
    let views = gradients(b);
    let mut want = Want {
        out: blank(&b.out),
        lse: blank(&b.lse),
        gradients: views.iter().map(|v| v.map(&zeros).unwrap_or_default()).collect(),
    };
    let n = pairs.len();
    let add = |list: &mut Vec<(f64, f64)>, view: Option<&View>, index: &[usize], (term, size): (f64, f64)| {
        if let Some(view) = view {
            let at = &mut list[offset(index, &view.strides)];
            *at = (at.0 + term, at.1 + size.abs());
        }
    };
    for index in indices(&shape.batch) {
        let with = |inner: &[usize]| [&index[..], inner].concat();
        let at = |values: &[f64], view: &View, inner: &[usize]| values[offset(&with(inner), &view.strides)];
        for t in 0..shape.queries {
            let visible = |u: usize| {
                let same = documents.as_ref().is_none_or(|(d, q, k)| at(q, &d.queries, &[t]) == at(k, &d.keys, &[u]));
                let back = shape.positions.as_ref().map_or(t as i64 - u as i64, |[of, keys]| of[t] - keys[u]);
                (!shape.causal || back >= 0) && (shape.window == 0 || back < shape.window as i64) && same
            };
            let score = |u: usize| {
                let dot = |(p, q, k): &(&ScorePair, Vec<f64>, Vec<f64>)| -> f64 {
                    (0..p.size as usize).map(|d| at(q, &p.q, &[t, d]) * at(k, &p.k, &[u, d])).sum()
                };
                k.scale * pairs.iter().map(dot).sum::<f64>()
            };
            let seen: Vec<(usize, f64)> = (0..shape.keys).filter(|&u| visible(u)).map(|u| (u, score(u))).collect();
            let sink = sinks.as_ref().map(|(view, s)| at(s, view, &[]));
            let sum: f64 = seen.iter().map(|(_, s)| s.exp()).chain(sink.map(f64::exp)).sum();
            want.lse[offset(&with(&[t]), &b.lse.strides)] = (sum.ln(), 1.0 + sum.ln().abs().min(99.0));
            let (mut delta, mut delta_size) = (0.0, 0.0);
            for e in 0..shape.value_size {
                let terms = || seen.iter().map(|(u, s)| s.exp() / sum * at(&v, &k.v, &[*u, e]));
                let out: f64 = terms().sum();
                want.out[offset(&with(&[t, e]), &b.out.strides)] = (out, terms().map(f64::abs).sum());
                let term = out * at(&d_out, &b.d_out, &[t, e]);
                (delta, delta_size) = (delta + term, delta_size + term.abs());
            }
            for &(u, s) in &seen {
                let p = s.exp() / sum;
                let terms = || (0..shape.value_size).map(|e| at(&d_out, &b.d_out, &[t, e]) * at(&v, &k.v, &[u, e]));
                let ds = p * (terms().sum::<f64>() - delta) * k.scale;
                let size = p * (terms().map(f64::abs).sum::<f64>() + delta_size) * k.scale;
                for (i, (pair, q, key)) in pairs.iter().enumerate() {
                    for d in 0..pair.size as usize {
                        let (q, k) = (at(q, &pair.q, &[t, d]), at(key, &pair.k, &[u, d]));
                        add(&mut want.gradients[i], views[i], &with(&[t, d]), (ds * k, size * k));
                        add(&mut want.gradients[n + i], views[n + i], &with(&[u, d]), (ds * q, size * q));
                    }
                }
                for e in 0..shape.value_size {
                    let term = p * at(&d_out, &b.d_out, &[t, e]);
                    add(&mut want.gradients[2 * n], views[2 * n], &with(&[u, e]), (term, term));
                }
            }
            if let Some(sink) = sink {
                let p = sink.exp() / sum;
                add(&mut want.gradients[2 * n + 1], views[2 * n + 1], &index, (-p * delta, p * delta_size));
            }
        }
    }
    want
}

/// Are all elements of a view as they should be, and those beside it untouched?
fn check(memory: &Memory, view: &View, want: &[(f64, f64)], tolerance: f64, sizes: &[usize], what: &str) {
    let have = numbers(memory, view);
    let mut touched = vec![false; have.len()];
    indices(sizes).for_each(|index| touched[offset(&index, &view.strides)] = true);
    for (i, (&have, &(want, size))) in have.iter().zip(want).enumerate() {
        if touched[i] {
            let fits = close(have, want, tolerance * (0.05 + size));
            assert!(fits, "{what}, element {i}: {have} instead of {want} ± {}", tolerance * (0.05 + size));
        } else {
            assert!(have.is_nan(), "{what}: written beside it at {i}");
        }
    }
}

/// Levels that are tested: those of [`pairing_levels`] and [`tiling_levels`] last.
fn levels(dtype: DType) -> Vec<Cpu> {
    let own: &[Cpu] = if dtype == DType::Bf16 { &[pairing_levels(), tiling_levels()].concat() } else { &[] };
    let wide = ["avx512", "avx2", "portable"].map(|l| Cpu::named(l).expect("a level"));
    [&wide, own].concat()
}

fn run(case: &Case) {
    let (want, dtype) = (naive(case), case.forward.inputs.dtype);
    let levels = levels(dtype);
    let results: Vec<Memory> = levels.iter().map(|&cpu| run_at(case, &want, cpu)).collect();
    // Products of pairs or tiles and all that is around them are the same, whatever multiplies; plain Rust does not fuse.
    for (i, own) in results.get(3..).into_iter().flat_map(|own| own.chunks(3)).enumerate() {
        let how = || format!("{:?} and {:?}: {:?}", levels[3 * i + 3], levels[3 * i + 4], case.shape);
        own[0].assert_same(&own[1], &how);
    }
}

/// Both passes at one level.
fn run_at(case: &Case, want: &Want, cpu: Cpu) -> Memory {
    let (b, shape) = (&case.backward, &case.shape);
    let done = |memory: &Memory, kernel: &Kernel| memory.run_with_workers(kernel, cpu).expect("no indices");
    let after = done(&case.memory, &Kernel::Attention(case.forward.clone()));
    let dtype = b.inputs.dtype;
    // bf16 is rounded once, and for gradients the result was before; an error of scores is one of all exponentials.
    let [once, twice] = if dtype == DType::Bf16 { [1.0, 2.0] } else { [60.0, 200.0] }.map(|n| n * epsilon(dtype));
    let sizes = |inner: &[usize]| [&shape.batch[..], inner].concat();
    let what = format!("{dtype} {cpu:?} {shape:?}");
    let out = sizes(&[shape.queries, shape.value_size]);
    check(&after, &b.out, &want.out, once, &out, &format!("out, {what}"));
    let wide = if dtype == DType::F64 { DType::F64 } else { DType::F32 };
    check(&after, &b.lse, &want.lse, 60.0 * epsilon(wide), &sizes(&[shape.queries]), &format!("lse, {what}"));
    if gradients(b).iter().all(Option::is_none) {
        return after;
    }
    let after = done(&after, &Kernel::AttentionBackward(b.clone()));
    let n = b.inputs.pairs.len();
    for (i, view) in gradients(b).into_iter().enumerate() {
        let Some(view) = view else { continue };
        let sizes = match i {
            i if i < n => sizes(&[shape.queries, shape.sizes[i]]),
            i if i < 2 * n => sizes(&[shape.keys, shape.sizes[i - n]]),
            i if i == 2 * n => sizes(&[shape.keys, shape.value_size]),
            _ => shape.batch.clone(),
        };
        check(&after, view, &want.gradients[i], twice, &sizes, &format!("gradient {i}, {what}"));
    }
    after
}

/// Positions that count up from a few first ones, as those of ranks that share a row do.
fn runs(rng: &mut Rng, n: usize, room: usize) -> Vec<i64> {
    let length = n.div_ceil(1 + rng.below(3));
    let firsts: Vec<i64> = (0..n.div_ceil(length)).map(|_| rng.below(2 * room) as i64 - room as i64 / 2).collect();
    (0..n).map(|i| firsts[i / length] + (i % length) as i64).collect()
}

fn random_shape(rng: &mut Rng) -> Shape {
    let batch: Vec<usize> = (0..rng.below(4)).map(|_| rng.pick(&[1, 2, 3])).collect();
    let positions = [1, 1, 2, 3, 7, 13, 16, 17, 31, 47, 48, 49, 61, 64, 65, 97];
    let long = rng.below(10) == 0;
    let position = |rng: &mut Rng| if long { rng.pick(&[127, 150, 193]) } else { rng.pick(&positions) };
    let queries = position(rng);
    let keys = if rng.coin() { queries } else { position(rng) };
    let size = |rng: &mut Rng| rng.pick(&[1, 2, 3, 5, 8, 13, 16, 17, 32, 50]);
    let sizes: Vec<usize> = (0..1 + rng.below(3) / 2).map(|_| size(rng)).collect();
    let value_size = if rng.coin() { sizes[0] } else { size(rng) };
    let lack = |rng: &mut Rng, often: usize| batch.iter().map(|_| rng.below(often) == 0).collect::<Vec<bool>>();
    Shape {
        queries,
        keys,
        value_size,
        causal: rng.below(3) > 0,
        window: if rng.below(3) == 0 { 1 + rng.below(40) } else { 0 },
        documents: rng.below(4) == 0,
        positions: (rng.below(3) == 0).then(|| [queries, keys].map(|n| runs(rng, n, queries + keys))),
        sink: rng.below(3) == 0,
        lacks: (0..=sizes.len()).map(|_| lack(rng, 3)).collect(),
        queries_lack: lack(rng, 10),
        sink_lacks: lack(rng, 2),
        sizes,
        batch,
    }
}

#[test]
fn results_and_gradients() {
    let mut rng = Rng::new(51);
    for round in 0..150 {
        let dtype = [DType::F32, DType::F64, DType::Bf16][round % 3];
        let shape = random_shape(&mut rng);
        run(&Case::new(&mut rng, dtype, shape));
    }
}

/// Without queries or without keys there is no attention: refused, not run.
#[test]
fn nothing_to_attend_from_or_to() {
    let mut rng = Rng::new(53);
    for dtype in [DType::F32, DType::F64, DType::Bf16] {
        for (queries, keys) in [(0, 5), (5, 0), (0, 0), (0, 70), (50, 0)] {
            let shape = Shape { queries, keys, positions: None, ..random_shape(&mut rng) };
            let Case { memory, forward, backward, .. } = Case::new(&mut rng, dtype, shape);
            for kernel in [Kernel::Attention(forward), Kernel::AttentionBackward(backward)] {
                assert_eq!(memory.refusal(&kernel).as_deref(), Some("there is nothing to attend to"));
            }
        }
    }
}

/// Grouped queries, a rotary key that heads share, long sequences, a sink of each head: the shapes of real models.
#[test]
fn shapes_of_models() {
    let mut rng = Rng::new(52);
    let base = Shape { queries: 100, keys: 100, causal: true, ..Shape::default() };
    let shapes = [
        // Grouped queries: [batch, kv_head, group].
        Shape {
            batch: vec![1, 2, 3],
            sizes: vec![32],
            value_size: 32,
            lacks: vec![vec![false, false, true]; 2],
            sink: true,
            sink_lacks: vec![true, false, false],
            ..base.clone()
        },
        // Latent attention: [batch, head], the second key for all heads.
        Shape {
            batch: vec![2, 4],
            sizes: vec![24, 16],
            value_size: 20,
            lacks: vec![vec![false; 2], vec![false, true], vec![false; 2]],
            ..base.clone()
        },
        // One key for the whole batch, and no mask.
        Shape {
            batch: vec![10],
            sizes: vec![8],
            value_size: 8,
            causal: false,
            lacks: vec![vec![true]; 2],
            ..base.clone()
        },
        // A window much shorter than the sequence.
        Shape {
            batch: vec![2],
            queries: 250,
            keys: 250,
            sizes: vec![8],
            value_size: 8,
            window: 70,
            lacks: vec![vec![false]; 2],
            ..base.clone()
        },
    ];
    for shape in shapes {
        for dtype in [DType::F32, DType::Bf16, DType::F64] {
            run(&Case::new(&mut rng, dtype, shape.clone()));
        }
    }
}

/// A result depends on the query and what it sees: not on how many queries, problems or later keys there are.
#[test]
fn other_queries_and_problems_do_not_matter() {
    let mut rng = Rng::new(53);
    let shape = Shape {
        batch: vec![3, 2],
        queries: 200,
        keys: 200,
        sizes: vec![40],
        value_size: 24,
        causal: true,
        lacks: vec![vec![false, true]; 2],
        ..Shape::default()
    };
    for dtype in [DType::F32, DType::Bf16, DType::F64] {
        let case = Case::new(&mut rng, dtype, shape.clone());
        for cpu in levels(dtype) {
            let mut whole = case.memory.clone();
            whole.run_on(&Kernel::Attention(case.forward.clone()), 2, cpu).expect("no indices");
            let want = numbers(&whole, &case.forward.out);
            for (problem, queries) in [([0, 0], 1), ([2, 1], 48), ([1, 0], 77), ([1, 1], 199)] {
                let mut part = case.forward.clone();
                let strides = |view: &mut View| {
                    view.offset += view.strides[0] * problem[0] + view.strides[1] * problem[1];
                };
                let k = &mut part.inputs;
                (k.batch, k.queries, k.keys) = (vec![1, 1], queries, queries);
                let pair = &mut k.pairs[0];
                [&mut pair.q, &mut pair.k, &mut k.v, &mut part.out, &mut part.lse].into_iter().for_each(strides);
                let mut memory = case.memory.clone();
                memory.run_on(&Kernel::Attention(part.clone()), 1, cpu).expect("no indices");
                let have = numbers(&memory, &part.out);
                let first = (part.out.offset - case.forward.out.offset) as usize;
                for index in indices(&[queries as usize, 24]) {
                    let at = offset(&index, &part.out.strides[2..]);
                    assert_eq!(have[at], want[first + at], "{dtype} {cpu:?} {problem:?} {queries} {index:?}");
                }
            }
        }
    }
}

/// Queries that see nothing: zeros, and gradients of zero.
#[test]
fn queries_that_see_nothing() {
    let mut rng = Rng::new(54);
    for (dtype, sink) in [(DType::F32, false), (DType::F32, true), (DType::Bf16, false), (DType::F64, true)] {
        let shape = Shape {
            batch: vec![2],
            queries: 70,
            keys: 70,
            sizes: vec![9],
            value_size: 5,
            causal: true,
            documents: true,
            sink,
            lacks: vec![vec![false]; 2],
            ..Shape::default()
        };
        let mut case = Case::new(&mut rng, dtype, shape);
        // Documents of keys that no query has.
        let others = case.memory.add(DType::I32, &[7.0; 200]);
        for inputs in [&mut case.forward.inputs, &mut case.backward.inputs] {
            let documents = inputs.documents.as_mut().expect("there are documents");
            (documents.keys.buffer, documents.keys.strides) = (others, vec![100, 1]);
        }
        run(&case);
        let mut memory = case.memory.clone();
        memory.run_on(&Kernel::Attention(case.forward.clone()), 2, Cpu::detect()).expect("no indices");
        let (out, lse) = (numbers(&memory, &case.forward.out), numbers(&memory, &case.forward.lse));
        assert!(out.iter().all(|x| *x == 0.0 || x.is_nan()), "{out:?}");
        assert!(sink || lse.iter().all(|x| *x == f64::NEG_INFINITY || x.is_nan()), "{lse:?}");
    }
}
