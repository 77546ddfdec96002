//! Plans of made-up models: an embedding, layers, a loss, and an optimizer.

use super::Rng;
use super::ops::{Body, Op};
use super::program::ProgramBuilder;
use crate::kernel::*;
use crate::schema::*;
use std::collections::HashMap;

const ALIGN: u64 = 64;
const ROWS: u64 = 2;
const SEQ: u64 = 16;

/// What a made-up model is like.
#[derive(Clone, Debug)]
pub struct Shape {
    /// Choices.
    pub seed: u64,
    /// Layers between embedding and loss.
    pub layers: u32,
    /// Micro-batches of a step.
    pub micro_batches: u32,
    /// Streams of the layers' programs: 1 to 3.
    pub streams: usize,
    /// Width of a token: 2 to 32.
    pub columns: u64,
    /// What a layer does.
    pub ops: Vec<Op>,
}

impl Default for Shape {
    fn default() -> Shape {
        Shape { seed: 1, layers: 1, micro_batches: 2, streams: 2, columns: 8, ops: vec![Op::Elementwise] }
    }
}

/// Programs by number.
const EMBED: u32 = 0;
const FORWARD: u32 = 1;
const LOSS: u32 = 2;
const BACKWARD: u32 = 3;
const BACKWARD_ADD: u32 = 4;
const NORM: u32 = 5;
const UPDATE: u32 = 6;

/// A plan.
pub fn plan(shape: &Shape) -> Plan {
    let tensors = tensors(shape);
    let persistent_bytes =
        tensors.iter().map(|t| t.offset + tensor_bytes(t)).max().unwrap_or(0).next_multiple_of(ALIGN);
    let programs = vec![
        embed(shape),
        forward(shape),
        loss(shape),
        backward(shape, Access::Write),
        backward(shape, Access::Update),
        norm(shape),
        update(shape),
    ];
    let phases = ["train", "eval", "generate"].map(|name| phase(shape, name, &programs, &tensors, persistent_bytes));
    let mut layers: Vec<String> = (0..shape.layers).map(|l| format!("layers.{l}")).collect();
    layers.push("step".into());
    Plan {
        format: crate::FORMAT.into(),
        version: VERSION,
        model: "made_up".into(),
        settings: Settings {
            compute: DType::F32,
            batch: ROWS * u64::from(shape.micro_batches),
            micro_batches: shape.micro_batches,
            seq: SEQ,
            vocab: SEQ,
            packed: false,
            steps: 100,
            params: shape.columns * SEQ,
            active_params: shape.columns * SEQ,
            flops_per_step: 1.5e6,
        },
        mesh: vec![MeshDim { name: "dp".into(), size: 2 }],
        programs,
        roles: vec![Role {
            name: "rank".into(),
            coordinates: vec![(0, 2)],
            device_bytes: phases.iter().map(|p| p.memory.placed).max().unwrap_or(0),
            host_bytes: 0,
            persistent_bytes,
            host_persistent_bytes: 0,
            tensors,
            layers,
            phases: phases.into(),
        }],
    }
}

fn tensor_bytes(tensor: &Tensor) -> u64 {
    tensor.dims.iter().product::<u64>() * tensor.dtype.bytes()
}

/// The embedding's and each layer's weights, all rows × columns, of each kind; and one state.
fn tensors(shape: &Shape) -> Vec<Tensor> {
    let names = std::iter::once("embed".to_string()).chain((0..shape.layers).map(|l| format!("layers.{l}.w")));
    let kinds = [TensorKind::Param, TensorKind::Gradient, TensorKind::FirstMoment, TensorKind::SecondMoment];
    let mut offset = 0;
    let mut tensor = |name: &str, kind, dims: Vec<u64>| {
        let init = if kind == TensorKind::Param { Init::Normal(0.02) } else { Init::Constant(0.0) };
        let tensor = Tensor {
            name: name.into(),
            kind,
            dtype: DType::F32,
            dims,
            block: vec![],
            range: None,
            space: Space::Device,
            offset,
            init,
            form: Form::Whole,
        };
        offset += tensor_bytes(&tensor).next_multiple_of(ALIGN);
        tensor
    };
    let mut tensors = vec![];
    for name in names {
        tensors.extend(kinds.map(|kind| tensor(&name, kind, vec![ROWS * SEQ, shape.columns])));
    }
    tensors.push(tensor("steps", TensorKind::State, vec![1]));
    tensors
}

fn body(shape: &Shape, name: &str, streams: usize) -> Body {
    let builder = ProgramBuilder::new(name, streams);
    let rng = Rng::new(shape.seed);
    Body { builder, rows: ROWS * SEQ, columns: shape.columns, arrays: vec![], rng }
}

impl Body {
    fn input(&mut self, name: &str) -> BufferId {
        let id = self.builder.operand(name, Access::Read, DType::F32, self.rows * self.columns);
        self.arrays.push(id);
        id
    }

    fn output(&mut self, name: &str, access: Access) -> BufferId {
        self.builder.operand(name, access, DType::F32, self.rows * self.columns)
    }

    fn last(&self) -> BufferId {
        *self.arrays.last().expect("programs have arrays")
    }
}

fn embed(shape: &Shape) -> Program {
    let mut body = body(shape, "embed.forward", 1);
    let (rows, columns) = (body.rows, body.columns);
    let tokens = body.builder.operand("tokens", Access::Read, DType::I32, rows);
    let table = body.input("param.embed");
    let out = body.output("x", Access::Write);
    let gather = Gather {
        dtype: DType::F32,
        dims: vec![rows, columns],
        x: View { buffer: table, offset: 0, strides: vec![0, 1] },
        index: View { buffer: tokens, offset: 0, strides: vec![1, 0] },
        axis_stride: columns,
        axis_size: rows,
        axis_even: None,
        negative: Negative::Wrong,
        out,
        ragged: None,
    };
    body.builder.push("x", 0, Kernel::Gather(gather));
    body.builder.finish()
}

fn forward(shape: &Shape) -> Program {
    let mut body = body(shape, "layers.forward", shape.streams);
    let (x, w) = (body.input("x"), body.input("param.w"));
    let y = body.output("y", Access::Write);
    let slot = body.builder.slot("saved", Access::Write);
    let elements = body.rows * body.columns;
    let saved = [0, 1].map(|i| body.builder.buffer(&format!("saved.{i}"), DType::F32, elements, slot));
    body.combine("first", x, w, saved[0]);
    body.arrays.push(saved[0]);
    shape.ops.iter().for_each(|op| body.apply(*op));
    let last = body.last();
    body.combine("saved", last, w, saved[1]);
    body.combine("y", last, saved[1], y);
    body.builder.finish()
}

fn loss(shape: &Shape) -> Program {
    let mut body = body(shape, "loss", 1);
    let x = body.input("x");
    let labels = body.builder.operand("labels", Access::Read, DType::I32, body.rows);
    let loss = body.builder.operand("loss", Access::Write, DType::F32, 1);
    let grad = body.output("grad.x", Access::Write);
    body.combine("grad.x", x, x, grad);
    let picked = body.builder.temporary("picked", DType::F32, body.rows);
    let (rows, columns) = (body.rows, body.columns);
    let gather = Gather {
        dtype: DType::F32,
        dims: vec![rows],
        x: View { buffer: x, offset: 0, strides: vec![columns] },
        index: View { buffer: labels, offset: 0, strides: vec![1] },
        axis_stride: 1,
        axis_size: columns,
        axis_even: None,
        negative: Negative::Wrong,
        out: picked,
        ragged: None,
    };
    body.builder.push("picked", 0, Kernel::Gather(gather));
    let reduce = Reduce {
        op: ReduceOp::Sum,
        dtype: DType::F32,
        dims: vec![rows],
        kept: 0,
        input: View { buffer: picked, offset: 0, strides: vec![1] },
        out: View { buffer: loss, offset: 0, strides: vec![] },
        ragged: None,
        accumulate: false,
    };
    body.builder.push("loss", 0, Kernel::Reduce(reduce));
    body.builder.finish()
}

fn backward(shape: &Shape, access: Access) -> Program {
    let name = if access == Access::Write { "layers.backward" } else { "layers.backward.add" };
    let mut body = body(shape, name, shape.streams);
    let (grad, w) = (body.input("grad.y"), body.input("param.w"));
    let slot = body.builder.slot("saved", Access::Read);
    let elements = body.rows * body.columns;
    let saved = [0, 1].map(|i| body.builder.buffer(&format!("saved.{i}"), DType::F32, elements, slot));
    let out = body.output("grad.x", Access::Write);
    let grad_w = body.output("grad.w", access);
    body.arrays.extend(saved);
    shape.ops.iter().rev().for_each(|op| body.apply(*op));
    let last = body.last();
    body.combine("grad.x", last, grad, out);
    let first = if access == Access::Write { w } else { grad_w };
    body.combine("grad.w", first, last, grad_w);
    body.builder.finish()
}

/// The sum of the squares of a gradient, in f64.
fn norm(shape: &Shape) -> Program {
    let mut body = body(shape, "norm", 1);
    let elements = body.rows * body.columns;
    let grad = body.input("grad.w");
    let norm = body.builder.operand("norm", Access::Write, DType::F64, 1);
    let step = |op, args: &[Arg]| Step { op, dtype: DType::F64, args: args.to_vec() };
    let region = Region {
        dims: vec![elements],
        row_dims: 1,
        ragged: None,
        loads: vec![View { buffer: grad, offset: 0, strides: vec![1] }.into()],
        steps: vec![
            step(StepOp::Cast, &[Arg::Load(0)]),
            step(StepOp::Mul, &[Arg::Step(0), Arg::Step(0)]),
            step(StepOp::RowSum, &[Arg::Step(1)]),
            step(StepOp::Sqrt, &[Arg::Step(2)]),
        ],
        stores: vec![Store { value: Arg::Step(3), view: View { buffer: norm, offset: 0, strides: vec![0] } }],
    };
    body.builder.push("norm", 0, Kernel::Region(region));
    body.builder.finish()
}

fn update(shape: &Shape) -> Program {
    let mut body = body(shape, "update", 1);
    let step = body.builder.operand("step", Access::Read, DType::I32, 1);
    let grad = body.input("grad.w");
    let [w, first, second] = ["param.w", "first.w", "second.w"].map(|name| body.output(name, Access::Update));
    let rate = body.builder.temporary("rate", DType::F32, 1);
    let view = |buffer| View { buffer, offset: 0, strides: vec![] };
    let region = Region {
        dims: vec![],
        row_dims: 0,
        ragged: None,
        loads: vec![view(step).into()],
        steps: vec![Step { op: StepOp::Cast, dtype: DType::F32, args: vec![Arg::Load(0)] }],
        stores: vec![Store { value: Arg::Step(0), view: view(rate) }],
    };
    body.builder.push("rate", 0, Kernel::Region(region));
    body.combine("first", first, grad, first);
    body.combine("second", second, grad, second);
    body.combine("param", w, first, w);
    body.builder.finish()
}

/// Memory of a phase: bytes, and the first and last call that use it.
struct Item {
    bytes: u64,
    life: (usize, usize),
}

/// What a slot is bound to.
#[derive(Clone, Copy)]
enum Bind {
    Fixed(u64),
    Item(usize),
}

struct Timeline<'a> {
    programs: &'a [Program],
    items: Vec<Item>,
    calls: Vec<(u32, u32, u32, Vec<Bind>)>,
}

impl Timeline<'_> {
    fn item(&mut self, bytes: u64, kept: bool) -> Bind {
        let life = if kept { (0, usize::MAX) } else { (usize::MAX, 0) };
        self.items.push(Item { bytes: bytes.next_multiple_of(ALIGN), life });
        Bind::Item(self.items.len() - 1)
    }

    /// A call; the frame is added.
    fn call(&mut self, program: u32, layer: u32, micro_batch: u32, binds: &[Bind]) {
        let slots = &self.programs[program as usize].slots;
        let frame = slots.last().map_or(0, |s| s.bytes);
        let mut binds = binds.to_vec();
        binds.push(self.item(frame, false));
        for bind in &binds {
            if let Bind::Item(i) = bind {
                let life = &mut self.items[*i].life;
                *life = (life.0.min(self.calls.len()), life.1.max(self.calls.len()));
            }
        }
        self.calls.push((program, layer, micro_batch, binds));
    }

    /// Offsets above `base`: first fit in the order of creation; when there are many items (it is quadratic) one behind the other.
    fn place(&self, base: u64) -> (Vec<u64>, u64) {
        let (mut offsets, mut end) = (vec![], base);
        if self.items.len() > 10_000 {
            for item in &self.items {
                offsets.push(end);
                end += item.bytes;
            }
            return (offsets, end);
        }
        let mut alive: Vec<usize> = vec![];
        for (i, item) in self.items.iter().enumerate() {
            // Items are created in the order in which their lives begin, but for those that are alive throughout.
            alive.retain(|&other: &usize| self.items[other].life.1 >= item.life.0);
            let mut others: Vec<(u64, u64)> = alive.iter().map(|&o| (offsets[o], self.items[o].bytes)).collect();
            others.sort_unstable();
            let mut offset = base;
            for (start, bytes) in others {
                if start >= offset + item.bytes {
                    break;
                }
                offset = offset.max(start + bytes);
            }
            offsets.push(offset);
            end = end.max(offset + item.bytes);
            alive.push(i);
        }
        (offsets, end)
    }
}

fn phase(shape: &Shape, name: &str, programs: &[Program], tensors: &[Tensor], base: u64) -> Phase {
    let train = name == "train";
    let array = ROWS * SEQ * shape.columns * 4;
    let step = shape.layers;
    let places: HashMap<(&str, TensorKind), u64> =
        tensors.iter().map(|t| ((t.name.as_str(), t.kind), t.offset)).collect();
    let find = |name: &str, kind| Bind::Fixed(places[&(name, kind)]);
    let weight = |l: u32| format!("layers.{l}.w");
    let mut line = Timeline { programs, items: vec![], calls: vec![] };
    let data: Vec<[Bind; 2]> =
        (0..shape.micro_batches).map(|_| [0, 1].map(|_| line.item(ROWS * SEQ * 4, true))).collect();
    let scalar = line.item(4, true);
    let losses: Vec<Bind> = (0..shape.micro_batches).map(|_| line.item(4, true)).collect();
    let norm = line.item(8, true);
    let output = line.item(array, true);
    let embed = find("embed", TensorKind::Param);
    for m in 0..shape.micro_batches {
        let (mut x, mut saved) = (line.item(array, false), vec![]);
        line.call(EMBED, step, m, &[data[m as usize][0], embed, x]);
        for l in 0..shape.layers {
            let last = name == "generate" && l + 1 == shape.layers && m + 1 == shape.micro_batches;
            let y = if last { output } else { line.item(array, false) };
            saved.push(line.item(programs[FORWARD as usize].slots[3].bytes, false));
            line.call(FORWARD, l, m, &[x, find(&weight(l), TensorKind::Param), y, saved[l as usize]]);
            x = y;
        }
        if name == "generate" {
            continue;
        }
        let mut grad = line.item(array, false);
        line.call(LOSS, step, m, &[x, data[m as usize][1], losses[m as usize], grad]);
        for l in (0..shape.layers).rev().filter(|_| train) {
            let below = line.item(array, false);
            let (w, grad_w) = (find(&weight(l), TensorKind::Param), find(&weight(l), TensorKind::Gradient));
            let program = if m == 0 { BACKWARD } else { BACKWARD_ADD };
            line.call(program, l, m, &[grad, w, saved[l as usize], below, grad_w]);
            grad = below;
        }
    }
    if train {
        line.call(NORM, step, 0, &[find(&weight(0), TensorKind::Gradient), norm]);
    }
    let commit = line.calls.len() as u32;
    for l in (0..shape.layers).filter(|_| train) {
        let kinds = [TensorKind::Gradient, TensorKind::Param, TensorKind::FirstMoment, TensorKind::SecondMoment];
        let [grad, w, first, second] = kinds.map(|kind| find(&weight(l), kind));
        line.call(UPDATE, l, 0, &[scalar, grad, w, first, second]);
    }
    let (offsets, end) = line.place(base);
    let at = |bind: Bind| match bind {
        Bind::Fixed(offset) => offset,
        Bind::Item(i) => offsets[i],
    };
    let feeds = (0..).zip(&data).flat_map(|(m, binds)| {
        let feed = move |input: &str, offset| {
            let first_row = Affine { base: m * ROWS as i64, terms: vec![(0, 0)] };
            Feed { input: input.into(), first_row, rows: ROWS, offset }
        };
        [feed("tokens", at(binds[0])), feed("labels", at(binds[1]))]
    });
    let report = |(m, bind): (usize, &Bind)| {
        let name = if m == 0 { "loss".into() } else { format!("loss.{m}") };
        Report { name, dtype: DType::F32, offset: at(*bind), before_commit: m % 2 == 0 }
    };
    let mut reports: Vec<Report> =
        if name == "generate" { vec![] } else { losses.iter().enumerate().map(report).collect() };
    reports.extend(train.then(|| Report {
        name: "grad_norm".into(),
        dtype: DType::F64,
        offset: at(norm),
        before_commit: true,
    }));
    let outputs = (name == "generate").then(|| OutputTensor {
        name: "logits".into(),
        dtype: DType::F32,
        dims: vec![ROWS, SEQ, shape.columns],
        offset: at(output),
    });
    Phase {
        name: name.into(),
        rows: ROWS * u64::from(shape.micro_batches),
        seq: SEQ,
        feeds: feeds.collect(),
        scalars: vec![ScalarFeed { scalar: Scalar::Step, offset: at(scalar) }],
        calls: calls(&line, &offsets),
        commit,
        reports,
        outputs: outputs.into_iter().collect(),
        memory: MemoryUse {
            weights: base,
            activations: end - base,
            live_peak: base,
            placed: end,
            ..MemoryUse::default()
        },
    }
}

/// The calls, each after the last event of the one before.
fn calls(line: &Timeline, offsets: &[u64]) -> Vec<Call> {
    let mut calls: Vec<Call> = vec![];
    for (program, layer, micro_batch, binds) in &line.calls {
        let at = |bind: &Bind| match *bind {
            Bind::Fixed(offset) => offset,
            Bind::Item(i) => offsets[i],
        };
        let before = calls.last().map(|call| {
            let program = &line.programs[call.program as usize];
            let event =
                program.instructions.last().and_then(|i| i.records).expect("the last instruction records an event");
            CallEvent { call: calls.len() as u32 - 1, event }
        });
        calls.push(Call {
            program: *program,
            layer: *layer,
            micro_batch: *micro_batch,
            slots: binds.iter().map(at).collect(),
            waits: before.into_iter().collect(),
        });
    }
    calls
}
