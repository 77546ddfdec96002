use crate::kernels::KernelError;
use crate::kernels::testing::harness::{Memory, Rng, close, epsilon, indices, layout, offset};
use forebay_plan::{DType, Gather, Kernel, Negative, RaggedLimit, ScatterAdd, View};

/// Dimensions of an indexed array: which of them the array has (`own`) and which the index has.
struct Shape {
    dims: Vec<usize>,
    own: Vec<bool>,
    index: Vec<bool>,
    axis: usize,
}

fn shape(rng: &mut Rng) -> Shape {
    let n = 1 + rng.below(3);
    let mut dims: Vec<usize> = (0..n).map(|_| rng.pick(&[1, 2, 3, 5, 8, 40])).collect();
    match rng.below(8) {
        0 => dims[n - 1] = rng.pick(&[600, 1100]),
        1 => dims[0] = rng.pick(&[0, 500]),
        _ => {}
    }
    let own = (0..n).map(|_| rng.coin()).collect();
    let index = (0..n).map(|_| rng.coin()).collect();
    Shape { dims, own, index, axis: rng.pick(&[1, 2, 7, 30]) }
}

/// Strides of some of the dimensions, with the axis as the last of them.
fn strides(rng: &mut Rng, shape: &Shape, has: &[bool], axis: usize) -> (Vec<u64>, u64, usize) {
    let sizes: Vec<usize> = shape.dims.iter().zip(has).map(|(&d, &h)| if h { d } else { 1 }).chain([axis]).collect();
    let (mut strides, elements) = layout(rng, &sizes);
    let axis_stride = strides.pop().expect("there is an axis");
    strides.iter_mut().zip(has).for_each(|(s, &h)| *s *= u64::from(h));
    (strides, axis_stride, elements)
}

/// Indices below a limit, and what negative ones mean: in some cases a part of them is negative.
fn chosen(rng: &mut Rng, count: usize, limit: usize) -> (Vec<f64>, Negative) {
    let negative = rng.pick(&[Negative::Wrong, Negative::Nothing]);
    let one = |rng: &mut Rng| match negative == Negative::Nothing && rng.below(3) == 0 {
        true => rng.pick(&[-1.0, -7.0]),
        false => rng.below(limit) as f64,
    };
    ((0..count).map(|_| one(rng)).collect(), negative)
}

fn ragged(rng: &mut Rng, memory: &mut Memory, dims: &[usize]) -> (Option<RaggedLimit>, Vec<usize>) {
    if rng.below(3) > 0 {
        return (None, dims.to_vec());
    }
    let (dim, groups) = (rng.below(dims.len()), rng.pick(&[1, 3]));
    let starts = rng.offsets(groups, dims[dim]);
    let mut sizes = dims.to_vec();
    sizes[dim] = starts[groups] as usize;
    let offsets = memory.add(DType::I32, &starts);
    (Some(RaggedLimit { dim: dim as u32, offsets, groups: groups as u64, even: 0 }), sizes)
}

#[test]
fn gathers() {
    let mut rng = Rng::new(21);
    for _ in 0..600 {
        let mut shape = shape(&mut rng);
        // Every dimension of the result comes from x or from the index.
        shape.own.iter_mut().zip(&shape.index).for_each(|(o, &i)| *o |= !i);
        let dtype = rng.pick(&[DType::F32, DType::Bf16, DType::F64, DType::I32, DType::Bool]);
        let (sx, axis_stride, ex) = strides(&mut rng, &shape, &shape.own.clone(), shape.axis);
        let (si, _, ei) = strides(&mut rng, &shape, &shape.index.clone(), 1);
        let mut memory = Memory::default();
        let values: Vec<f64> = (0..ex + 1).map(|i| (i % 97) as f64).collect();
        let x = memory.add(dtype, &values);
        let (chosen, negative) = chosen(&mut rng, ei + 2, shape.axis);
        let index = memory.add(DType::I32, &chosen);
        let count: usize = shape.dims.iter().product();
        let out = memory.add(dtype, &vec![1.0; count]);
        let (limit, sizes) = ragged(&mut rng, &mut memory, &shape.dims);
        let gather = Gather {
            dtype,
            dims: shape.dims.iter().map(|&d| d as u64).collect(),
            x: View { buffer: x, offset: 1, strides: sx.clone() },
            index: View { buffer: index, offset: 2, strides: si.clone() },
            axis_stride,
            axis_size: shape.axis as u64,
            axis_even: None,
            negative,
            out,
            ragged: limit,
        };
        let values = memory.get(x);
        let mut want = memory.get(out);
        let mut used = vec![];
        for (number, o) in indices(&shape.dims).enumerate() {
            if o.iter().zip(&sizes).all(|(o, s)| o < s) {
                let at = 2 + offset(&o, &si);
                used.push(at);
                want[number] = match chosen[at] < 0.0 {
                    true => 0.0,
                    false => values[1 + offset(&o, &sx) + chosen[at] as usize * axis_stride as usize],
                };
            }
        }
        assert_eq!(memory.done(&Kernel::Gather(gather.clone())).get(out), want, "{gather:?}");
        // Wrong indices are errors that name the first.
        used.sort_unstable();
        if let Some(&at) = used.first() {
            let mut chosen = chosen.clone();
            let first = if negative == Negative::Wrong { 0 } else { 2 };
            let bad = rng.pick(&[-1.0, f64::from(i32::MIN), shape.axis as f64, f64::from(i32::MAX)][first..]);
            (chosen[at], chosen[*used.last().expect("one is used")]) = (bad, bad);
            let index = memory.add(DType::I32, &chosen);
            let mut wrong = gather.clone();
            wrong.index.buffer = index;
            let error = memory.run_everywhere(&Kernel::Gather(wrong), true).err();
            let (limit, element) = (shape.axis as u64, at as u64 - 2);
            assert_eq!(error, Some(KernelError::Index { value: bad as i64, limit, element }), "{gather:?}");
        }
    }
}

#[test]
fn scatters() {
    let mut rng = Rng::new(22);
    for _ in 0..600 {
        let shape = shape(&mut rng);
        let dtype = rng.pick(&[DType::F32, DType::Bf16, DType::F64, DType::I32]);
        let all = vec![true; shape.dims.len()];
        let (sv, _, ev) = strides(&mut rng, &shape, &all, 1);
        let (si, _, ei) = strides(&mut rng, &shape, &shape.index.clone(), 1);
        // Out is contiguous: the axis first, or anywhere.
        let own: Vec<usize> = (0..shape.dims.len()).filter(|&d| shape.own[d]).collect();
        let mut order = own.clone();
        let axis_at = if rng.coin() { 0 } else { rng.below(order.len() + 1) };
        order.insert(axis_at, usize::MAX);
        let (mut so, mut axis_stride, mut stride) = (vec![0u64; shape.dims.len()], 0, 1usize);
        for &d in order.iter().rev() {
            if d == usize::MAX {
                axis_stride = stride;
                stride *= shape.axis;
            } else {
                so[d] = stride as u64;
                stride *= shape.dims[d];
            }
        }
        let mut memory = Memory::default();
        let values: Vec<f64> = rng.floats(ev + 1).into_iter().map(|x| (x * 32.0).trunc()).collect();
        let v = memory.add(dtype, &values);
        let (chosen, negative) = chosen(&mut rng, ei + 2, shape.axis);
        let index = memory.add(DType::I32, &chosen);
        let old: Vec<f64> = (0..stride).map(|i| (i % 13) as f64).collect();
        let out = memory.add(dtype, &old);
        let (limit, sizes) = ragged(&mut rng, &mut memory, &shape.dims);
        let accumulate = rng.coin();
        let scatter = ScatterAdd {
            dtype,
            dims: shape.dims.iter().map(|&d| d as u64).collect(),
            v: View { buffer: v, offset: 1, strides: sv.clone() },
            index: View { buffer: index, offset: 2, strides: si.clone() },
            out: View { buffer: out, offset: 0, strides: so.clone() },
            axis_stride: axis_stride as u64,
            axis_size: shape.axis as u64,
            negative,
            out_elements: stride as u64,
            ragged: limit,
            accumulate,
        };
        let values = memory.get(v);
        let mut want = if accumulate { old.clone() } else { vec![0.0; stride] };
        let mut used = vec![];
        for at in indices(&sizes) {
            let i = 2 + offset(&at, &si);
            used.push(i);
            if chosen[i] >= 0.0 {
                want[offset(&at, &so) + chosen[i] as usize * axis_stride] += values[1 + offset(&at, &sv)];
            }
        }
        let have = memory.done(&Kernel::ScatterAdd(scatter.clone())).get(out);
        for (i, (&have, &want)) in have.iter().zip(&want).enumerate() {
            // Small whole numbers: sums are exact.
            let tolerance = 0.51 * epsilon(dtype) * want.abs();
            assert!(close(have, want, tolerance), "element {i}: {have} instead of {want}: {scatter:?}");
        }
        used.sort_unstable();
        if let Some(&at) = used.first() {
            let mut chosen = chosen.clone();
            let first = if negative == Negative::Wrong { 0 } else { 1 };
            chosen[at] = rng.pick(&[-1.0, shape.axis as f64][first..]);
            let mut wrong = scatter.clone();
            wrong.index.buffer = memory.add(DType::I32, &chosen);
            let error = memory.run_everywhere(&Kernel::ScatterAdd(wrong), true).err();
            let (limit, element) = (shape.axis as u64, at as u64 - 2);
            assert_eq!(error, Some(KernelError::Index { value: chosen[at] as i64, limit, element }), "{scatter:?}");
        }
    }
}

/// The order of additions is that of v's elements, in the precision of the sum.
#[test]
fn scatter_adds_in_order() {
    for dtype in [DType::F32, DType::Bf16] {
        // Summed in f32 in this order, 1 is lost; in the other it is not.
        let terms = [1.0, f64::from(1u32 << 30), -f64::from(1u32 << 30), 0.5];
        for rows in [1, 3] {
            let mut memory = Memory::default();
            let values: Vec<f64> = terms.iter().flat_map(|&t| vec![t; rows]).collect();
            let v = memory.add(dtype, &values);
            let index = memory.add(DType::I32, &[1.0; 4]);
            let out = memory.add(dtype, &vec![9.0; 2 * rows]);
            let scatter = ScatterAdd {
                dtype,
                dims: vec![4, rows as u64],
                v: View { buffer: v, offset: 0, strides: vec![rows as u64, 1] },
                index: View { buffer: index, offset: 0, strides: vec![1, 0] },
                out: View { buffer: out, offset: 0, strides: vec![0, 1] },
                axis_stride: rows as u64,
                axis_size: 2,
                negative: Negative::Wrong,
                out_elements: 2 * rows as u64,
                ragged: None,
                accumulate: false,
            };
            let have = memory.done(&Kernel::ScatterAdd(scatter)).get(out);
            assert_eq!(have, [vec![0.0; rows], vec![0.5; rows]].concat());
        }
    }
}
