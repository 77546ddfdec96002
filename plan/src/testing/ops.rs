//! Things that programs do with arrays of `rows × columns`.

use super::Rng;
use super::program::ProgramBuilder;
use crate::kernel::*;
use crate::schema::{Affine, DType};

/// Something to do: takes arrays `[rows, columns]` of f32 and makes another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "the names say it")]
pub enum Op {
    Elementwise,
    InPlace,
    Softmax,
    Matmul,
    Attention,
    LinearAttention,
    Accumulate,
    ColumnSum,
    Scan,
    Experts,
    Dropout,
    AllReduce,
    Halves,
}

impl Op {
    /// All of them: together they use every kernel.
    pub const ALL: &[Op] = &[
        Op::Elementwise,
        Op::InPlace,
        Op::Softmax,
        Op::Matmul,
        Op::Attention,
        Op::LinearAttention,
        Op::Accumulate,
        Op::ColumnSum,
        Op::Scan,
        Op::Experts,
        Op::Dropout,
        Op::AllReduce,
        Op::Halves,
    ];
}

/// A program, and the arrays `[rows, columns]` it has so far.
pub struct Body {
    /// The program.
    pub builder: ProgramBuilder,
    /// Rows; not less than columns.
    pub rows: u64,
    /// Columns.
    pub columns: u64,
    /// Arrays of rows × columns f32 that can be read.
    pub arrays: Vec<BufferId>,
    /// Choices.
    pub rng: Rng,
}

impl Body {
    fn any(&mut self) -> BufferId {
        let arrays = std::mem::take(&mut self.arrays);
        let picked = self.rng.pick(&arrays);
        self.arrays = arrays;
        picked
    }

    fn stream(&mut self) -> usize {
        self.rng.below(self.builder.streams() as u64) as usize
    }

    fn push(&mut self, name: &str, kernel: Kernel) {
        let stream = self.stream();
        self.builder.push(name, stream, kernel);
    }

    fn array(&mut self, name: &str) -> BufferId {
        let id = self.builder.temporary(name, DType::F32, self.rows * self.columns);
        self.arrays.push(id);
        id
    }

    fn integers(&mut self, name: &str, elements: u64) -> BufferId {
        self.builder.temporary(name, DType::I32, elements)
    }

    fn whole(&self, buffer: BufferId) -> View {
        View { buffer, offset: 0, strides: vec![self.columns, 1] }
    }

    /// A region over all elements.
    fn region(&self, loads: Vec<View>, steps: Vec<Step>, stores: Vec<Store>) -> Kernel {
        let dims = vec![self.rows, self.columns];
        let loads = loads.into_iter().map(Load::from).collect();
        Kernel::Region(Region { dims, row_dims: 1, ragged: None, loads, steps, stores })
    }

    /// `out = f(a, b)`, elementwise.
    pub fn combine(&mut self, name: &str, a: BufferId, b: BufferId, out: BufferId) {
        let loads = vec![self.whole(a), self.whole(b)];
        let op = self.rng.pick(&[StepOp::Add, StepOp::Mul, StepOp::Max]);
        let steps = vec![
            step(op, DType::F32, &[Arg::Load(0), Arg::Load(1)]),
            step(StepOp::Mul, DType::F32, &[Arg::Step(0), Arg::Const(0.5)]),
        ];
        let stores = vec![Store { value: Arg::Step(1), view: self.whole(out) }];
        let kernel = self.region(loads, steps, stores);
        self.push(name, kernel);
    }

    /// Does something.
    pub fn apply(&mut self, op: Op) {
        match op {
            Op::Elementwise => {
                let (a, b, out) = (self.any(), self.any(), self.array("sum"));
                self.combine("sum", a, b, out);
            }
            Op::InPlace => {
                let (a, b) = (self.any(), self.any());
                let out = self.array("gelu");
                self.combine("gelu.in", a, b, out);
                self.combine("gelu", a, out, out);
            }
            Op::Softmax => self.softmax(),
            Op::Matmul => self.matmul(false),
            Op::Attention => self.attention(),
            Op::LinearAttention => self.linear_attention(),
            Op::Accumulate => self.matmul(true),
            Op::ColumnSum => self.column_sum(),
            Op::Scan => {
                let (input, out) = (self.any(), self.array("scan"));
                let (outer, n, inner) = (1, self.rows, self.columns);
                let backward = self.rng.below(2) == 1;
                self.push("scan", Kernel::Scan(Scan { dtype: DType::F32, outer, n, inner, backward, input, out }));
            }
            Op::Experts => self.experts(),
            Op::Dropout => self.dropout(),
            Op::Halves => self.halves(),
            Op::AllReduce => {
                let (x, out) = (self.any(), self.array("summed"));
                let strides = vec![self.columns, 1];
                let all_reduce = Exchange {
                    dtype: DType::F32,
                    group: vec![0],
                    ranks: 2,
                    x,
                    out,
                    dims: vec![self.rows, self.columns],
                    x_offset: 0,
                    out_offset: 0,
                    x_strides: strides.clone(),
                    x_step: 0,
                    out_strides: strides,
                    out_step: 0,
                    reduce: Some(ReduceOp::Sum),
                    shift: 0,
                    ragged: None,
                };
                // All collectives of a group are on one stream.
                self.builder.push("summed", 0, Kernel::Exchange(all_reduce));
            }
        }
    }

    fn softmax(&mut self) {
        let (x, out) = (self.any(), self.array("softmax"));
        let norm = self.builder.temporary("softmax.norm", DType::F32, self.rows);
        let f32 = DType::F32;
        let steps = vec![
            step(StepOp::RowMax, f32, &[Arg::Load(0)]),
            step(StepOp::Sub, f32, &[Arg::Load(0), Arg::Step(0)]),
            step(StepOp::Exp, f32, &[Arg::Step(1)]),
            step(StepOp::RowSum, f32, &[Arg::Step(2)]),
            step(StepOp::Div, f32, &[Arg::Step(2), Arg::Step(3)]),
            step(StepOp::Index(1), DType::I32, &[]),
            step(StepOp::Lt, DType::Bool, &[Arg::Step(5), Arg::Const(3.0)]),
            step(StepOp::Select, f32, &[Arg::Step(6), Arg::Step(4), Arg::Const(f64::NEG_INFINITY)]),
        ];
        let norms = View { buffer: norm, offset: 0, strides: vec![1, 0] };
        let stores = vec![
            Store { value: Arg::Step(7), view: self.whole(out) },
            Store { value: Arg::Step(3), view: norms.clone() },
        ];
        let kernel = self.region(vec![self.whole(x)], steps, stores);
        self.push("softmax", kernel);
        // The norms, repeated along the row.
        let again = self.array("softmax.scaled");
        let steps = vec![step(StepOp::Mul, f32, &[Arg::Load(0), Arg::Load(1)])];
        let stores = vec![Store { value: Arg::Step(0), view: self.whole(again) }];
        let kernel = self.region(vec![self.whole(out), norms], steps, stores);
        self.push("softmax.scaled", kernel);
    }

    fn matmul(&mut self, accumulate: bool) {
        let (a, b, c) = (self.any(), self.any(), self.array("product"));
        if accumulate {
            self.combine("product.start", a, b, c);
        }
        let (m, n) = (self.rows, self.columns);
        // Another array is added to each block.
        let epilogue = (!accumulate).then(|| {
            let other = self.any();
            let (loads, stores) = ([self.whole(c), self.whole(other)], self.whole(c));
            let steps = vec![step(StepOp::Add, DType::F32, &[Arg::Load(0), Arg::Load(1)])];
            let stores = vec![Store { value: Arg::Step(0), view: stores }];
            let loads = loads.into_iter().map(Load::from).collect();
            Box::new(Region { dims: vec![m, n], row_dims: 1, ragged: None, loads, steps, stores })
        });
        // The first rows of b are the square matrix.
        let kernel = Matmul {
            dtype: DType::F32,
            a,
            b,
            c,
            offsets: [0; 3],
            batch: vec![],
            m: MatDim(m, n, n),
            n: MatDim(n, 1, 1),
            k: MatDim(n, 1, n),
            k_outer: vec![],
            groups: None,
            accumulate,
            epilogue,
        };
        self.push("product", Kernel::Matmul(kernel));
    }

    /// Two heads of queries that are the columns of each row, one of keys and values; and the gradients.
    fn attention(&mut self) {
        let (rows, columns, heads) = (self.rows, self.columns, 2);
        let view = |buffer, strides: &[u64]| View { buffer, offset: 0, strides: strides.to_vec() };
        let [q, k, v, d_out] = [(); 4].map(|()| self.any());
        let documents = self.integers("documents", rows);
        let index = vec![step(StepOp::Index(0), DType::I32, &[])];
        let stores = vec![Store { value: Arg::Step(0), view: view(documents, &[1]) }];
        let region = Region { dims: vec![rows], row_dims: 1, ragged: None, loads: vec![], steps: index, stores };
        self.push("documents", Kernel::Region(region));
        let sink = self.builder.temporary("sink", DType::F32, heads);
        let stores = vec![Store { value: Arg::Const(0.5), view: view(sink, &[1]) }];
        let region = Region { dims: vec![heads], row_dims: 1, ragged: None, loads: vec![], steps: vec![], stores };
        self.push("sink", Kernel::Region(region));
        let shared = [0, columns, 1];
        let of_documents = view(documents, &[0, 1]);
        let inputs = AttentionInputs {
            dtype: DType::F32,
            batch: vec![heads],
            queries: rows,
            keys: rows,
            pairs: vec![ScorePair { size: columns, q: view(q, &shared), k: view(k, &shared) }],
            v: view(v, &shared),
            value_size: columns,
            scale: 0.5,
            causal: true,
            window: 3,
            documents: Some(Marks { queries: of_documents.clone(), keys: of_documents.clone() }),
            positions: Some(Marks { queries: of_documents.clone(), keys: of_documents }),
            sink: Some(view(sink, &[1])),
        };
        let lse = self.builder.temporary("attention.lse", DType::F32, heads * rows);
        let lse = view(lse, &[rows, 1]);
        let wide = [rows * columns, columns, 1];
        let out = view(self.wide("attention.heads"), &wide);
        let forward = Attention { inputs: inputs.clone(), out: out.clone(), lse: lse.clone() };
        self.push("attention", Kernel::Attention(forward));
        let d_q = view(self.wide("attention.dq"), &wide);
        let (d_k, d_v) = (self.array("attention.dk"), self.array("attention.dv"));
        let d_sink = self.builder.temporary("attention.dsink", DType::F32, heads);
        let backward = AttentionBackward {
            inputs,
            out,
            lse,
            d_out: view(d_out, &shared),
            d_q: vec![Some(d_q)],
            d_k: vec![Some(view(d_k, &shared))],
            d_v: Some(view(d_v, &shared)),
            d_sink: Some(view(d_sink, &[1])),
        };
        self.push("attention.gradients", Kernel::AttentionBackward(backward));
    }

    /// Rows are positions; two heads share queries and keys, and forget by themselves.
    fn linear_attention(&mut self) {
        let (rows, columns, heads) = (self.rows, self.columns, 2);
        let view = |buffer, strides: &[u64]| View { buffer, offset: 0, strides: strides.to_vec() };
        let [q, k, v] = [(); 3].map(|()| self.any());
        let decays = self.builder.temporary("decays", DType::F32, heads * rows);
        let stores = vec![Store { value: Arg::Const(-0.5), view: view(decays, &[rows, 1]) }];
        let dims = vec![heads, rows];
        let region = Region { dims, row_dims: 1, ragged: None, loads: vec![], steps: vec![], stores };
        self.push("decays", Kernel::Region(region));
        let shared = [0, columns, 1];
        let all = [LinearReads::Inclusive, LinearReads::Exclusive, LinearReads::Solve];
        let reads = all[self.rng.below(3) as usize];
        let kernel = LinearAttention {
            dtype: DType::F32,
            result: DType::F32,
            reads,
            backward: self.rng.below(2) == 1,
            batch: vec![heads],
            positions: rows,
            keys: vec![columns],
            values: vec![columns],
            q: view(q, &shared),
            k: view(k, &shared),
            v: view(v, &shared),
            g: view(decays, &[rows, 1]),
            out: view(self.wide("remembered"), &[rows * columns, columns, 1]),
        };
        self.push("linear", Kernel::LinearAttention(kernel));
    }

    fn column_sum(&mut self) {
        let (x, out) = (self.any(), self.array("centred"));
        let sums = self.builder.temporary("sums", DType::F32, self.columns);
        let kernel = Reduce {
            op: ReduceOp::Sum,
            dtype: DType::F32,
            dims: vec![self.columns, self.rows],
            kept: 1,
            input: View { buffer: x, offset: 0, strides: vec![1, self.columns] },
            out: View { buffer: sums, offset: 0, strides: vec![1] },
            ragged: None,
            accumulate: false,
        };
        self.push("sums", Kernel::Reduce(kernel));
        let loads = vec![self.whole(x), View { buffer: sums, offset: 0, strides: vec![0, 1] }];
        let steps = vec![step(StepOp::Sub, DType::F32, &[Arg::Load(0), Arg::Load(1)])];
        let stores = vec![Store { value: Arg::Step(0), view: self.whole(out) }];
        let kernel = self.region(loads, steps, stores);
        self.push("centred", kernel);
    }

    /// Routing, dispatch, grouped products and combination.
    fn experts(&mut self) {
        let (x, weights) = (self.any(), self.any());
        let (rows, columns, k) = (self.rows, self.columns, 2);
        let (groups, sent) = (columns, rows * k);
        let chosen = self.integers("chosen", sent);
        let top = TopK { dtype: DType::F32, outer: rows, n: columns, inner: 1, k, input: x, out: chosen };
        self.push("chosen", Kernel::TopK(top));
        let sorted = self.integers("rows", sent);
        self.push(
            "rows",
            Kernel::Group(Group {
                chosen,
                elements: sent,
                groups,
                room: None,
                rows: sorted,
                negative: Negative::Wrong,
            }),
        );
        let offsets = self.integers("offsets", groups + 1);
        self.push(
            "offsets",
            Kernel::Offsets(Offsets { chosen, elements: sent, groups, out: offsets, negative: Negative::Wrong }),
        );
        let inverse = self.integers("inverse", sent);
        self.push(
            "inverse",
            Kernel::Invert(Invert {
                rows: sorted,
                elements: sent,
                room: None,
                out: inverse,
                negative: Negative::Wrong,
            }),
        );
        let expert = self.integers("expert", sent);
        self.push("expert", Kernel::RowGroups(RowGroups { offsets, groups, rows: sent, out: expert }));
        let (dispatched, hidden) = (self.wide("dispatched"), self.wide("hidden"));
        let ragged = Some(RaggedLimit { dim: 0, offsets, groups, even: sent });
        let source = self.integers("source", sent);
        let view = |buffer, strides: &[u64]| View { buffer, offset: 0, strides: strides.to_vec() };
        // Element number / k is the token.
        let steps = vec![
            step(StepOp::Div, DType::I32, &[Arg::Load(0), Arg::Const(k as f64)]),
            step(StepOp::Min, DType::I32, &[Arg::Step(0), Arg::Const((rows - 1) as f64)]),
        ];
        let stores = vec![Store { value: Arg::Step(1), view: view(source, &[1]) }];
        let region = Region {
            dims: vec![sent],
            row_dims: 1,
            ragged: None,
            loads: vec![view(sorted, &[1]).into()],
            steps,
            stores,
        };
        self.push("source", Kernel::Region(region));
        let gather = Gather {
            dtype: DType::F32,
            dims: vec![sent, columns],
            x: view(x, &[0, 1]),
            index: view(source, &[1, 0]),
            axis_stride: columns,
            axis_size: rows,
            axis_even: None,
            negative: Negative::Wrong,
            out: dispatched,
            ragged: ragged.clone(),
        };
        self.push("dispatched", Kernel::Gather(gather));
        // One row of the weights for each expert: an outer product is enough here.
        let grouped = Matmul {
            dtype: DType::F32,
            a: dispatched,
            b: weights,
            c: hidden,
            offsets: [0; 3],
            batch: vec![],
            m: MatDim(sent, columns, columns),
            n: MatDim(columns, 1, 1),
            k: MatDim(1, 1, 0),
            k_outer: vec![],
            groups: Some(Groups { offsets, count: groups, even: sent, ragged: RaggedDim::M, strides: [0, columns, 0] }),
            accumulate: false,
            epilogue: None,
        };
        self.push("hidden", Kernel::Matmul(grouped));
        let scaled = Region {
            dims: vec![sent, columns],
            row_dims: 1,
            ragged: ragged.clone(),
            loads: vec![view(hidden, &[columns, 1]).into(), view(expert, &[1, 0]).into()],
            steps: vec![
                step(StepOp::Cast, DType::F32, &[Arg::Load(1)]),
                step(StepOp::Mul, DType::F32, &[Arg::Load(0), Arg::Step(0)]),
            ],
            stores: vec![Store { value: Arg::Step(1), view: view(hidden, &[columns, 1]) }],
        };
        self.push("scaled", Kernel::Region(scaled));
        // Each token's first row, plus the row that it was sent as: looked up where they are.
        let picked = self.array("picked");
        let through = |index, divide, axis_size| {
            Some(Lookup { index, divide, axis_stride: columns, axis_size, axis_even: None, negative: Negative::Wrong })
        };
        let picks = Region {
            dims: vec![rows, columns],
            row_dims: 1,
            ragged: None,
            loads: vec![
                Load { view: view(dispatched, &[0, 1]), through: through(view(inverse, &[k, 0]), 1, sent) },
                Load { view: view(x, &[0, 1]), through: through(view(sorted, &[1, 0]), k, rows) },
            ],
            steps: vec![step(StepOp::Add, DType::F32, &[Arg::Load(0), Arg::Load(1)])],
            stores: vec![Store { value: Arg::Step(0), view: view(picked, &[columns, 1]) }],
        };
        self.push("picked", Kernel::Region(picks));
        let combined = self.array("combined");
        let scatter = ScatterAdd {
            dtype: DType::F32,
            dims: vec![sent, columns],
            v: view(hidden, &[columns, 1]),
            index: view(source, &[1, 0]),
            out: view(combined, &[0, 1]),
            axis_stride: columns,
            axis_size: rows,
            negative: Negative::Wrong,
            out_elements: rows * columns,
            ragged,
            accumulate: false,
        };
        self.push("combined", Kernel::ScatterAdd(scatter));
        let load = self.builder.temporary("load", DType::F32, groups);
        let per_group = Reduce {
            op: ReduceOp::Sum,
            dtype: DType::F32,
            dims: vec![groups, sent, columns],
            kept: 1,
            input: view(hidden, &[0, columns, 1]),
            out: view(load, &[1]),
            ragged: Some(RaggedReduce { offsets, groups, per_group: true, even: sent }),
            accumulate: false,
        };
        self.push("load", Kernel::Reduce(per_group));
    }

    /// An array for the rows that are sent to experts.
    fn wide(&mut self, name: &str) -> BufferId {
        self.builder.temporary(name, DType::F32, 2 * self.rows * self.columns)
    }

    fn dropout(&mut self) {
        let (x, out) = (self.any(), self.array("dropped"));
        let key = self.integers("key", 4);
        self.push("key", Kernel::RandomKey { out: key, rows: 1, per_micro_batch: 2, first_row: Affine::along(0, 1) });
        let noise = self.array("noise");
        let dims = vec![self.rows, self.columns];
        let random = Random { key, site: 0, dims, batched: true, out: self.whole(noise) };
        self.push("noise", Kernel::Random(random));
        self.combine("dropped", x, noise, out);
    }

    /// Two instructions fill one array; one of them stores two parts.
    fn halves(&mut self) {
        let (x, y, out) = (self.any(), self.any(), self.array("joined"));
        let columns = self.columns;
        let rows = self.rows;
        let half =
            |buffer, from: u64, n: u64| (View { buffer, offset: from, strides: vec![columns, 1] }, vec![rows, n]);
        let mut copy = |name: &str, input, parts: &[(u64, u64)]| {
            let dims = half(input, 0, parts[0].1).1;
            let loads = parts.iter().map(|(from, n)| half(input, *from, *n).0.into()).collect();
            let stores =
                (0..).zip(parts).map(|(i, (from, n))| Store { value: Arg::Load(i), view: half(out, *from, *n).0 });
            let region = Region { dims, row_dims: 1, ragged: None, loads, steps: vec![], stores: stores.collect() };
            self.push(name, Kernel::Region(region));
        };
        let third = columns / 3;
        if third > 0 {
            copy("joined.front", x, &[(0, third), (third, third)]);
            copy("joined.back", y, &[(2 * third, columns - 2 * third)]);
        } else {
            copy("joined.front", x, &[(0, 1)]);
            copy("joined.back", y, &[(1, columns - 1)]);
        }
    }
}

fn step(op: StepOp, dtype: DType, args: &[Arg]) -> Step {
    Step { op, dtype, args: args.to_vec() }
}
