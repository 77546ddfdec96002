//! Random regions: every step and type, reductions of rows, loads through an index, ragged dimensions, gaps and turned dimensions in memory, stores in
//! place.

use super::harness::{Memory, Rng, layout, ordered_layout, rounded};
use forebay_plan::{Arg, DType, Load, Lookup, Negative, RaggedLimit, Region, Step, StepOp, Store, View};

const FLOATS: [DType; 3] = [DType::F32, DType::F64, DType::Bf16];

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
    /// Types of loads and casts.
    dtypes: &'static [DType],
    known: Vec<Known>,
    region: Region,
}

impl Builder<'_> {
    fn values(&mut self, dtype: DType, n: usize) -> Vec<f64> {
        match dtype {
            DType::Bool => (0..n).map(|_| self.rng.integer(2) as f64).collect(),
            DType::I32 => (0..n).map(|_| self.rng.integer(21) as f64 - 10.0).collect(),
            _ => (0..n).map(|_| self.number(dtype)).collect(),
        }
    }

    /// Mostly of moderate size; some special, large or denormal.
    fn number(&mut self, dtype: DType) -> f64 {
        const SPECIAL: [f64; 8] = [0.0, -0.0, f64::INFINITY, f64::NEG_INFINITY, f64::NAN, 1e-41, 3e38, -2e7];
        match self.rng.integer(64) {
            0 => rounded(SPECIAL[self.rng.integer(SPECIAL.len())], dtype),
            1 => self.rng.float() * 300.0,
            _ => self.rng.float() * 4.0,
        }
    }

    fn load(&mut self) {
        let dtype = self.rng.pick(self.dtypes);
        let kept: Vec<bool> = match self.rng.below(4) {
            0 => self.dims.iter().map(|_| self.rng.coin()).collect(),
            _ => vec![true; self.dims.len()],
        };
        let sizes: Vec<usize> = self.dims.iter().zip(&kept).map(|(&d, &k)| if k { d } else { 1 }).collect();
        let (mut strides, elements) = if self.rng.coin() {
            let order: Vec<usize> = (0..sizes.len()).collect();
            ordered_layout(self.rng, &sizes, &order)
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
        let dtype = self.rng.pick(self.dtypes);
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
        let negative = self.rng.pick(&[Negative::Wrong, Negative::Wrong, Negative::Nothing]);
        let one = |rng: &mut Rng| match negative == Negative::Nothing && rng.below(3) == 0 {
            true => -1.0,
            false => rng.integer(axis * divide) as f64,
        };
        let chosen: Vec<f64> = (0..indices + 2).map(|_| one(self.rng)).collect();
        let (table, index) = (self.memory.add(dtype, &values), self.memory.add(DType::I32, &chosen));
        let through = Some(Lookup {
            index: View { buffer: index, offset: 2, strides: index_strides },
            divide: divide as u64,
            axis_stride,
            axis_size: axis as u64,
            axis_even: None,
            negative,
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
            1 if self.rng.below(4) == 0 => self.of(float).map(|a| {
                let (b, row) = self.other(a.dtype);
                (Step { op: Pow, dtype: a.dtype, args: vec![a.arg, b] }, a.row && row)
            }),
            1 => self.of(number).map(|a| {
                let op = self.rng.pick(&[Neg, Abs, Sign]);
                (Step { op, dtype: a.dtype, args: vec![a.arg] }, a.row)
            }),
            2..=4 => self.of(number).map(|a| {
                let op = self.rng.pick(&[Add, Sub, Mul, Add, Sub, Mul, Div, Min, Max, Rem]);
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
                let dtype = self.rng.pick(self.dtypes);
                (Step { op: Cast, dtype, args: vec![a.arg] }, a.row)
            }),
            8 if self.rng.coin() => {
                let dim = self.rng.below(self.dims.len());
                let row = dim < self.dims.len() - self.row_dims;
                Some((Step { op: Index(dim as u32), dtype: DType::I32, args: vec![] }, row))
            }
            8 if self.rng.below(3) == 0 => {
                let truth = self.of(|d| d == DType::Bool);
                truth.map(|a| (Step { op: Not, dtype: DType::Bool, args: vec![a.arg] }, a.row))
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

/// Elements of a region at most: the interpreter takes its time.
const MOST: usize = 1 << 16;

/// A region that a plan could have, and memory for it. `wide`: rows of several blocks.
pub(crate) fn random_region(rng: &mut Rng, loads: usize, steps: usize, wide: bool) -> (Region, Memory) {
    use DType::{Bf16, Bool, F32, F64, I32};
    // Regions of few types, so that many steps follow each other in vector registers, and of all.
    let dtypes: &[DType] = match rng.below(5) {
        0 => &[F32],
        1 => &[F32, Bf16, F32, Bool],
        2 => &[Bf16],
        _ => &[F32, F32, Bf16, F64, I32, Bool],
    };
    let n = if wide { rng.below(2) } else { rng.below(4) } + 1;
    let mut dims: Vec<usize> = (0..n).map(|_| rng.pick(&[1, 2, 3, 4, 7, 8, 16, 33])).collect();
    if wide {
        dims[n - 1] = rng.pick(&[1024, 2049, 4095, 4096, 4097, 5001, 9000]);
    } else if rng.below(12) == 0 {
        dims[rng.below(n)] = 0;
    } else if rng.below(4) == 0 {
        dims[rng.below(n)] = rng.pick(&[100, 257, 300]);
    }
    while dims.iter().product::<usize>() > MOST {
        let most = (0..n).max_by_key(|&d| dims[d]).expect("there is a dimension");
        dims[most] /= 2;
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
    let mut b = Builder { rng, memory: Memory::default(), dims, row_dims, dtypes, known: vec![], region };
    if b.rng.below(3) == 0 {
        let dim = b.rng.below(if reduces { n - row_dims } else { n }.max(1));
        if !reduces || n > row_dims {
            let groups = b.rng.pick(&[1, 3]);
            let starts = b.rng.offsets(groups, b.dims[dim]);
            let offsets = b.memory.add(DType::I32, &starts);
            b.region.ragged = Some(RaggedLimit { dim: dim as u32, offsets, groups: groups as u64, even: 0 });
        }
    }
    (0..loads.max(1)).for_each(|_| if b.rng.below(3) == 0 { b.lookup() } else { b.load() });
    (0..steps).for_each(|_| b.step(reduces));
    let reduced = b.region.steps.iter().any(|s| s.op.is_row_reduction());
    (0..1 + b.rng.below(3)).for_each(|_| b.store(reduced));
    (b.region, b.memory)
}
