//! Random regions against an interpreter that goes element by element. Arithmetic is exact in both (f64 rounded to f32 after each operation is the f32 operation), so
//! results must be equal bit for bit; elementary functions are taken from [`crate::kernels::math`], whose accuracy has tests of its own.

use super::harness::{Memory, Rng, indices, layout, offset, rounded};
use crate::kernels::math;
use forebay_plan::{Arg, DType, Kernel, Load, Lookup, RaggedLimit, Region, Step, StepOp, Store, View};
use proptest::prelude::*;

/// The order of sums that the kernels document, written once more.
fn row_sum(x: &[f64], dtype: DType) -> f64 {
    let wide = if dtype == DType::Bf16 { DType::F32 } else { dtype };
    let add = |a: f64, b: f64| if dtype == DType::I32 { wrap(a + b) } else { rounded(a + b, wide) };
    let lanes = if x.len() < 256 { x.len().next_power_of_two().min(16) } else { 64 };
    let chunks = x.chunks(1024).map(|chunk| {
        let mut acc = vec![0.0; lanes];
        chunk.iter().enumerate().for_each(|(i, &x)| acc[i % lanes] = add(acc[i % lanes], x));
        while acc.len() > 1 {
            let (low, high) = acc.split_at(acc.len() / 2);
            acc = low.iter().zip(high).map(|(&a, &b)| add(a, b)).collect();
        }
        acc[0]
    });
    chunks.fold(0.0, add)
}

fn wrap(x: f64) -> f64 {
    f64::from(x as i64 as i32)
}

fn unary(op: StepOp, x: f64, dtype: DType) -> f64 {
    let f32_or = |narrow: fn(f32) -> f32, wide: fn(f64) -> f64| {
        if dtype == DType::F64 { wide(x) } else { f64::from(narrow(x as f32)) }
    };
    match op {
        StepOp::Neg if dtype == DType::I32 => wrap(-x),
        StepOp::Neg => -x,
        StepOp::Exp => f32_or(math::exp, f64::exp),
        StepOp::Log => f32_or(math::log, f64::ln),
        StepOp::Tanh => f32_or(math::tanh, f64::tanh),
        StepOp::Sin => f32_or(math::sin_any, f64::sin),
        StepOp::Cos => f32_or(math::cos_any, f64::cos),
        StepOp::Sqrt => x.sqrt(),
        StepOp::Rsqrt => f32_or(|x| 1.0 / x.sqrt(), |x| 1.0 / x.sqrt()),
        StepOp::Abs if dtype == DType::I32 => wrap(x.abs()),
        StepOp::Abs => x.abs(),
        StepOp::Sign if x == 0.0 || x.is_nan() => x,
        StepOp::Sign => x.signum(),
        StepOp::Floor => x.floor(),
        StepOp::Not => f64::from(u8::from(x == 0.0)),
        op => panic!("{op:?}"),
    }
}

fn binary(op: StepOp, a: f64, b: f64, dtype: DType) -> f64 {
    let truth = |t: bool| f64::from(u8::from(t));
    match op {
        StepOp::Add if dtype == DType::I32 => wrap(a + b),
        StepOp::Sub if dtype == DType::I32 => wrap(a - b),
        StepOp::Mul if dtype == DType::I32 => f64::from((a as i32).wrapping_mul(b as i32)),
        StepOp::Div | StepOp::Rem if dtype == DType::I32 && b == 0.0 => 0.0,
        StepOp::Div if dtype == DType::I32 => wrap((a / b).floor()),
        StepOp::Rem if dtype == DType::I32 => wrap(a - b * (a / b).floor()),
        StepOp::Add => a + b,
        StepOp::Sub => a - b,
        StepOp::Mul => a * b,
        StepOp::Div => a / b,
        StepOp::Rem => {
            let rest = a % b;
            if rest != 0.0 && (rest < 0.0) != (b < 0.0) { rounded(rest, dtype) + b } else { rest }
        }
        StepOp::Pow => a.powf(b),
        StepOp::Min => {
            if a < b || a.is_nan() {
                a
            } else {
                b
            }
        }
        StepOp::Max => {
            if a > b || a.is_nan() {
                a
            } else {
                b
            }
        }
        StepOp::Eq => truth(a == b),
        StepOp::Ne => truth(a != b),
        StepOp::Lt => truth(a < b),
        StepOp::Le => truth(a <= b),
        StepOp::Gt => truth(a > b),
        StepOp::Ge => truth(a >= b),
        StepOp::And => truth(a != 0.0 && b != 0.0),
        StepOp::Or => truth(a != 0.0 || b != 0.0),
        op => panic!("{op:?}"),
    }
}

/// Which element of its buffer a load reads.
fn place(load: &Load, element: &[usize], memory: &[Vec<f64>]) -> usize {
    let at = |view: &View| view.offset as usize + offset(element, &view.strides);
    let by_index = load.through.as_ref().map_or(0, |l| {
        // A row without elements may have no index.
        let value = memory[l.index.buffer as usize].get(at(&l.index)).map_or(0, |&v| v as u64);
        value / l.divide * l.axis_stride
    });
    at(&load.view) + by_index as usize
}

/// What the region leaves in the buffers.
fn interpret(region: &Region, memory: &Memory) -> Vec<Vec<f64>> {
    let dims: Vec<usize> = region.dims.iter().map(|&d| d as usize).collect();
    let dtype_of = |arg: Arg| match arg {
        Arg::Load(l) => Some(memory.buffers[region.loads[l as usize].view.buffer as usize].dtype),
        Arg::Step(s) => Some(region.steps[s as usize].dtype),
        Arg::Const(_) => None,
    };
    let before: Vec<Vec<f64>> = (0..memory.buffers.len()).map(|b| memory.get(b as u32)).collect();
    let mut after = before.clone();
    let mut sizes = dims.clone();
    if let Some(ragged) = &region.ragged {
        sizes[ragged.dim as usize] = before[ragged.offsets as usize][ragged.groups as usize] as usize;
    }
    let (outer, row) = sizes.split_at(dims.len() - region.row_dims as usize);
    for at in indices(outer) {
        let mut elements: Vec<Vec<usize>> = indices(row).map(|r| [&at[..], &r[..]].concat()).collect();
        // A row without elements still has values of the row: they are computed for an element that is not stored.
        let empty = elements.is_empty();
        if empty {
            elements.push([&at[..], &vec![0; row.len()][..]].concat());
        }
        let mut steps: Vec<Vec<f64>> = vec![];
        for step in &region.steps {
            let operand = match step.op {
                StepOp::Cast => step.args.iter().find_map(|&a| dtype_of(a)).unwrap_or(step.dtype),
                _ if step.dtype == DType::Bool => step.args.iter().find_map(|&a| dtype_of(a)).unwrap_or(DType::F64),
                _ => step.dtype,
            };
            let value = |arg: Arg, i: usize, want: DType| match arg {
                Arg::Const(c) => rounded(c, want),
                Arg::Step(s) => steps[s as usize][i],
                Arg::Load(l) => {
                    let place = place(&region.loads[l as usize], &elements[i], &before);
                    before[region.loads[l as usize].view.buffer as usize].get(place).copied().unwrap_or(0.0)
                }
            };
            let n = elements.len();
            let reduced = |x: Vec<f64>| if empty { vec![] } else { x };
            let all = |i: usize| (0..n).map(|e| value(step.args[i], e, operand)).collect::<Vec<_>>();
            let result: Vec<f64> = match step.op {
                StepOp::RowSum => vec![row_sum(&reduced(all(0)), step.dtype); n],
                StepOp::RowMax | StepOp::RowMin => {
                    let (op, start) = if step.op == StepOp::RowMax {
                        (StepOp::Max, if step.dtype == DType::I32 { f64::from(i32::MIN) } else { f64::NEG_INFINITY })
                    } else {
                        (StepOp::Min, if step.dtype == DType::I32 { f64::from(i32::MAX) } else { f64::INFINITY })
                    };
                    vec![reduced(all(0)).into_iter().fold(start, |a, b| binary(op, a, b, step.dtype)); n]
                }
                StepOp::Index(d) => elements.iter().map(|e| e[d as usize] as f64).collect(),
                StepOp::Cast => all(0),
                StepOp::Select => (0..n)
                    .map(|e| {
                        let take = value(step.args[0], e, DType::Bool) != 0.0;
                        value(step.args[if take { 1 } else { 2 }], e, step.dtype)
                    })
                    .collect(),
                op if step.args.len() == 1 => all(0).into_iter().map(|x| unary(op, x, operand)).collect(),
                op => all(0).into_iter().zip(all(1)).map(|(a, b)| binary(op, a, b, operand)).collect(),
            };
            // An f32 operation, then a bf16.
            let exact = |x: f64| if step.dtype == DType::Bf16 { rounded(x, DType::F32) } else { x };
            steps.push(result.into_iter().map(|x| rounded(exact(x), step.dtype)).collect());
        }
        for store in &region.stores {
            let dtype = memory.buffers[store.view.buffer as usize].dtype;
            let once = store.view.strides[outer.len()..].iter().all(|&s| s == 0);
            if empty && !(once && region.steps.iter().any(|s| s.op.is_row_reduction())) {
                continue;
            }
            for (i, element) in elements.iter().enumerate() {
                let value = match store.value {
                    Arg::Const(c) => c,
                    Arg::Step(s) => steps[s as usize][i],
                    Arg::Load(l) => {
                        let load = &region.loads[l as usize];
                        before[load.view.buffer as usize][place(load, element, &before)]
                    }
                };
                let place = store.view.offset as usize + offset(element, &store.view.strides);
                after[store.view.buffer as usize][place] = rounded(value, dtype);
            }
        }
    }
    after
}

pub(super) fn check(region: &Region, memory: &Memory) {
    let want = interpret(region, memory);
    let after = memory.done(&Kernel::Region(region.clone()));
    // Which of +0 and -0 is the least of a row depends on the order in which lanes meet.
    let zeros_meet = region.steps.iter().any(|s| matches!(s.op, StepOp::RowMax | StepOp::RowMin));
    for (buffer, want) in want.iter().enumerate() {
        let have = after.get(buffer as u32);
        for (i, (&have, &want)) in have.iter().zip(want).enumerate() {
            let same = have.to_bits() == want.to_bits() || (have.is_nan() && want.is_nan());
            let same = same || (zeros_meet && have == 0.0 && want == 0.0);
            assert!(same, "buffer {buffer}, element {i}: {have:e} instead of {want:e}: {region:?}");
        }
    }
}

pub(super) const FLOATS: [DType; 3] = [DType::F32, DType::F64, DType::Bf16];

/// A value that steps may use.
#[derive(Clone, Copy)]
struct Known {
    arg: Arg,
    dtype: DType,
    /// Is it the same along a row?
    row: bool,
}

struct Builder<'r> {
    rng: &'r mut Rng,
    memory: Memory,
    dims: Vec<usize>,
    row_dims: usize,
    known: Vec<Known>,
    region: Region,
}

impl Builder<'_> {
    fn values(&mut self, dtype: DType, n: usize) -> Vec<f64> {
        match dtype {
            DType::Bool => (0..n).map(|_| self.rng.below(2) as f64).collect(),
            DType::I32 => (0..n).map(|_| self.rng.below(21) as f64 - 10.0).collect(),
            _ => (0..n).map(|_| self.rng.float() * 4.0).collect(),
        }
    }

    fn load(&mut self) {
        let dtype = self.rng.pick(&[DType::F32, DType::F32, DType::Bf16, DType::F64, DType::I32, DType::Bool]);
        let kept: Vec<bool> = match self.rng.below(4) {
            0 => self.dims.iter().map(|_| self.rng.coin()).collect(),
            _ => vec![true; self.dims.len()],
        };
        let sizes: Vec<usize> = self.dims.iter().zip(&kept).map(|(&d, &k)| if k { d } else { 1 }).collect();
        let (mut strides, elements) = if self.rng.coin() {
            let order: Vec<usize> = (0..sizes.len()).collect();
            super::harness::ordered_layout(self.rng, &sizes, &order)
        } else {
            layout(self.rng, &sizes)
        };
        strides.iter_mut().zip(&kept).for_each(|(s, &k)| *s *= u64::from(k));
        let start = self.rng.below(3);
        let values = self.values(dtype, elements + start);
        let buffer = self.memory.add(dtype, &values);
        self.push_load(Load { view: View { buffer, offset: start as u64, strides }, through: None }, dtype);
    }

    fn push_load(&mut self, load: Load, dtype: DType) {
        let outer = self.dims.len() - self.row_dims;
        let still = |view: &View| view.strides[outer..].iter().all(|&s| s == 0);
        let row = still(&load.view) && load.through.as_ref().is_none_or(|l| still(&l.index));
        self.known.push(Known { arg: Arg::Load(self.region.loads.len() as u32), dtype, row });
        self.region.loads.push(load);
    }

    /// A load through an index: both have some of the dimensions, in any order in memory.
    fn lookup(&mut self) {
        let dtype = self.rng.pick(&[DType::F32, DType::Bf16, DType::F64, DType::I32, DType::Bool]);
        let (axis, divide) = (self.rng.pick(&[1, 2, 7, 30]), self.rng.pick(&[1, 1, 2, 3]));
        let mut some = |extra: &[usize]| {
            let has: Vec<bool> = self.dims.iter().map(|_| self.rng.coin()).collect();
            let sizes: Vec<usize> = self.dims.iter().zip(&has).map(|(&d, &h)| if h { d } else { 1 }).collect();
            let (mut strides, elements) = layout(self.rng, &[&sizes[..], extra].concat());
            strides.iter_mut().zip(&has).for_each(|(s, &h)| *s *= u64::from(h));
            (strides, elements)
        };
        let ((mut strides, elements), (index_strides, indices)) = (some(&[axis]), some(&[]));
        let axis_stride = strides.pop().expect("there is an axis");
        let values = self.values(dtype, elements + 1);
        let chosen: Vec<f64> = (0..indices + 2).map(|_| self.rng.below(axis * divide) as f64).collect();
        let (table, index) = (self.memory.add(dtype, &values), self.memory.add(DType::I32, &chosen));
        let through = Some(Lookup {
            index: View { buffer: index, offset: 2, strides: index_strides },
            divide: divide as u64,
            axis_stride,
            axis_size: axis as u64,
        });
        self.push_load(Load { view: View { buffer: table, offset: 1, strides }, through }, dtype);
    }

    fn of(&mut self, want: impl Fn(DType) -> bool) -> Option<Known> {
        let fitting: Vec<Known> = self.known.iter().copied().filter(|k| want(k.dtype)).collect();
        (!fitting.is_empty()).then(|| self.rng.pick(&fitting))
    }

    fn constant(&mut self) -> Arg {
        Arg::Const(self.rng.pick(&[0.0, 1.0, -2.0, 0.5, 3.0, 1e-3]))
    }

    /// A second operand of a type.
    fn other(&mut self, dtype: DType) -> (Arg, bool) {
        if self.rng.below(4) == 0 {
            return (self.constant(), true);
        }
        let known = self.of(|d| d == dtype).expect("the first operand is of the type");
        (known.arg, known.row)
    }

    fn step(&mut self, reduces: bool) {
        use StepOp::*;
        let float = |d: DType| FLOATS.contains(&d);
        let number = |d: DType| d != DType::Bool;
        let made = match self.rng.below(if reduces { 10 } else { 9 }) {
            0 => self.of(float).map(|a| {
                let op = self.rng.pick(&[Exp, Log, Sqrt, Rsqrt, Tanh, Sin, Cos, Floor]);
                (Step { op, dtype: a.dtype, args: vec![a.arg] }, a.row)
            }),
            1 => self.of(number).map(|a| {
                let op = self.rng.pick(&[Neg, Abs, Sign]);
                (Step { op, dtype: a.dtype, args: vec![a.arg] }, a.row)
            }),
            2..=4 => self.of(number).map(|a| {
                let op = self.rng.pick(&[Add, Sub, Mul, Add, Sub, Mul, Div, Min, Max]);
                let (b, row) = self.other(a.dtype);
                let args = if self.rng.coin() { vec![a.arg, b] } else { vec![b, a.arg] };
                (Step { op, dtype: a.dtype, args }, a.row && row)
            }),
            5 => self.of(|_| true).map(|a| {
                let op = self.rng.pick(&[Eq, Ne, Lt, Le, Gt, Ge]);
                let (b, row) = self.other(a.dtype);
                (Step { op, dtype: DType::Bool, args: vec![a.arg, b] }, a.row && row)
            }),
            6 => match (self.of(|d| d == DType::Bool), self.of(|_| true)) {
                (Some(c), Some(a)) => {
                    let (b, row) = self.other(a.dtype);
                    Some((Step { op: Select, dtype: a.dtype, args: vec![c.arg, a.arg, b] }, c.row && a.row && row))
                }
                (Some(a), None) => Some((Step { op: Not, dtype: DType::Bool, args: vec![a.arg] }, a.row)),
                _ => None,
            },
            7 => self.of(|_| true).map(|a| {
                let dtype = self.rng.pick(&[DType::F32, DType::F64, DType::Bf16, DType::I32, DType::Bool]);
                (Step { op: Cast, dtype, args: vec![a.arg] }, a.row)
            }),
            8 if self.rng.coin() => {
                let dim = self.rng.below(self.dims.len());
                let row = dim < self.dims.len() - self.row_dims;
                Some((Step { op: Index(dim as u32), dtype: DType::I32, args: vec![] }, row))
            }
            8 => self.of(|d| d == DType::Bool).map(|a| {
                let op = self.rng.pick(&[And, Or]);
                let (b, row) = self.other(DType::Bool);
                (Step { op, dtype: DType::Bool, args: vec![a.arg, b] }, a.row && row)
            }),
            _ => self.of(number).map(|a| {
                let op = self.rng.pick(&[RowSum, RowMax, RowMin]);
                (Step { op, dtype: a.dtype, args: vec![a.arg] }, true)
            }),
        };
        if let Some((step, row)) = made {
            let arg = Arg::Step(self.region.steps.len() as u32);
            self.known.push(Known { arg, dtype: step.dtype, row });
            self.region.steps.push(step);
        }
    }

    fn store(&mut self, reduces: bool) {
        let recent = self.known.len().saturating_sub(4);
        let value = if self.rng.below(4) > 0 {
            self.known[recent + self.rng.below(self.known.len() - recent)]
        } else {
            self.rng.pick(&self.known)
        };
        let outer = self.dims.len() - self.row_dims;
        if self.rng.below(3) == 0 {
            // In place of a load of the same type, none of whose strides repeat.
            let whole = |v: &View| v.strides.iter().zip(&self.dims).all(|(&s, &d)| s != 0 || d == 1);
            let taken = |v: &View| self.region.stores.iter().any(|s| s.view.buffer == v.buffer);
            let fits = |v: &&View| self.memory.buffers[v.buffer as usize].dtype == value.dtype && whole(v) && !taken(v);
            if let Some(view) = self.region.loads.iter().filter(|l| l.through.is_none()).map(|l| &l.view).find(fits) {
                let view = view.clone();
                self.region.stores.push(Store { value: value.arg, view });
                return;
            }
        }
        let once = reduces && value.row && self.rng.below(4) > 0;
        let sizes: Vec<usize> =
            self.dims.iter().enumerate().map(|(i, &d)| if once && i >= outer { 1 } else { d }).collect();
        let (mut strides, elements) = layout(self.rng, &sizes);
        if once {
            strides[outer..].fill(0);
        }
        let old = self.values(value.dtype, elements);
        let buffer = self.memory.add(value.dtype, &old);
        self.region.stores.push(Store { value: value.arg, view: View { buffer, offset: 0, strides } });
    }
}

fn random_region(seed: u64, loads: usize, steps: usize, wide: bool) -> (Region, Memory) {
    let mut rng = Rng(seed);
    let n = if wide { rng.below(2) } else { rng.below(4) } + 1;
    let mut dims: Vec<usize> = (0..n).map(|_| rng.pick(&[1, 2, 3, 4, 7, 8, 16, 33])).collect();
    if wide {
        dims[n - 1] = rng.pick(&[1024, 2047, 2048, 2049, 3000, 4096, 5001]);
    } else if rng.below(12) == 0 {
        dims[rng.below(n)] = 0;
    } else if rng.below(4) == 0 {
        dims[rng.below(n)] = rng.pick(&[100, 257, 300]);
    }
    let row_dims = 1 + rng.below(n);
    let reduces = rng.coin();
    let region = Region {
        dims: dims.iter().map(|&d| d as u64).collect(),
        row_dims: row_dims as u32,
        ragged: None,
        loads: vec![],
        steps: vec![],
        stores: vec![],
    };
    let mut b = Builder { rng: &mut rng, memory: Memory::default(), dims, row_dims, known: vec![], region };
    if b.rng.below(3) == 0 {
        let dim = b.rng.below(if reduces { n - row_dims } else { n }.max(1));
        if !reduces || n > row_dims {
            let groups = b.rng.pick(&[1, 3]);
            let starts = b.rng.offsets(groups, b.dims[dim]);
            let offsets = b.memory.add(DType::I32, &starts);
            b.region.ragged = Some(RaggedLimit { dim: dim as u32, offsets, groups: groups as u64 });
        }
    }
    (0..loads.max(1)).for_each(|_| if b.rng.below(3) == 0 { b.lookup() } else { b.load() });
    (0..steps).for_each(|_| b.step(reduces));
    let stores = 1 + b.rng.below(3);
    (0..stores).for_each(|_| b.store(reduces && b_has_reduction(&b_steps(&b))));
    (b.region, b.memory)
}

fn b_steps(b: &Builder) -> Vec<Step> {
    b.region.steps.clone()
}

fn b_has_reduction(steps: &[Step]) -> bool {
    steps.iter().any(|s| s.op.is_row_reduction())
}

/// A few hundred, or many with `FOREBAY_TEST_ALL=1`.
fn cases() -> u32 {
    if std::env::var_os("FOREBAY_TEST_ALL").is_some() { 3_000 } else { 300 }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: cases(), max_shrink_iters: 300, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn narrow_regions(seed: u64, loads in 1usize..5, steps in 0usize..14) {
        let (region, memory) = random_region(seed, loads, steps, false);
        check(&region, &memory);
    }

    #[test]
    fn wide_regions(seed: u64, loads in 1usize..4, steps in 0usize..12) {
        let (region, memory) = random_region(seed, loads, steps, true);
        check(&region, &memory);
    }
}
