//! A plan small enough to write down: y = w₀ + w₁·x for each token x and label y (both divided by 256), with squared error and plain gradient descent.
//!
//! ```text
//! train:     penalty · forward (loss, gradient, norm) · lr ‖ update (w, moments, a counter, the copy)
//! eval:      penalty · forward
//! generate:  logits[row, t, v] = -(v - token - 1)²         the likeliest next byte is the next letter
//! ```
//! The penalty is 0·√(limit - step): NaN from step `limit + 1` on.

use forebay_plan::*;

pub const ROWS: u64 = 2;
pub const SEQ: u64 = 8;
const TOKENS: u64 = ROWS * SEQ;

/// Where things lie; 64 bytes each unless said.
const W: u64 = 0;
const GRADIENT: u64 = 64;
const FIRST: u64 = 128;
const SECOND: u64 = 192;
const COUNT: u64 = 256;
const COPY: u64 = 320;
const PERSISTENT: u64 = 384;
const TEXT: u64 = 384;
const LABELS: u64 = 448;
const STEP: u64 = 512;
const LOSS: u64 = 576;
const NORM: u64 = 640;
const LR: u64 = 704;
const PENALTY: u64 = 768;
const EVAL_GRADIENT: u64 = 832;
const LOGITS: u64 = 896;
const END: u64 = LOGITS + SEQ * 256 * 4;

/// The plan; its penalty is NaN after step `limit`.
pub fn tiny_plan(limit: u64) -> Plan {
    let f32 = DType::F32;
    let tensor = |kind, dtype, dims: &[u64], offset, init| Tensor {
        name: "line.w".into(),
        kind,
        dtype,
        dims: dims.to_vec(),
        block: vec![],
        range: None,
        form: forebay_plan::Form::Whole,
        space: forebay_plan::Space::Device,
        offset,
        init,
    };
    let zero = Init::Constant(0.0);
    Plan {
        format: FORMAT.into(),
        version: VERSION,
        model: "Line".into(),
        settings: Settings {
            compute: f32,
            batch: ROWS,
            micro_batches: 1,
            seq: SEQ,
            vocab: 256,
            packed: false,
            steps: 20,
            params: 5,
            active_params: 5,
            flops_per_step: 0.0,
        },
        mesh: vec![],
        programs: vec![penalty(limit as f64), forward(), rate(), update(), logits()],
        roles: vec![Role {
            name: "rank".into(),
            coordinates: vec![],
            device_bytes: END,
            host_bytes: 0,
            persistent_bytes: PERSISTENT,
            host_persistent_bytes: 0,
            tensors: vec![
                tensor(TensorKind::Param, f32, &[2, 2], W, Init::Normal(0.5)),
                tensor(TensorKind::ComputeCopy, DType::Bf16, &[2, 2], COPY, Init::FromParam),
                tensor(TensorKind::Gradient, f32, &[2, 2], GRADIENT, zero),
                tensor(TensorKind::FirstMoment, f32, &[2, 2], FIRST, zero),
                tensor(TensorKind::SecondMoment, f32, &[2, 2], SECOND, zero),
                Tensor { name: "line.count".into(), ..tensor(TensorKind::State, f32, &[1], COUNT, zero) },
            ],
            layers: vec!["lines.0".into(), "step".into()],
            phases: vec![train(), eval(), generate()],
        }],
    }
}

/// The same, its rows shared out to two data-parallel ranks, which add up losses and gradients (but not the norm).
pub fn parallel_plan(limit: u64) -> Plan {
    let mut plan = tiny_plan(limit);
    let (part_of_gradient, part_of_loss) = (END, END + 64);
    plan.mesh = vec![MeshDim { name: "dp".into(), size: ROWS as u32 }];
    let forward = &mut plan.programs[1];
    forward.buffers[..2].iter_mut().for_each(|b| b.elements = SEQ);
    let Kernel::Region(line) = &mut forward.instructions[0].kernel else { unreachable!("it is a region") };
    line.dims = vec![SEQ];
    let sum = plan.programs.len() as u32;
    plan.programs.extend([sum_program(4), sum_program(1)]);
    let role = &mut plan.roles[0];
    role.coordinates = vec![(0, ROWS as u32)];
    role.device_bytes += 128;
    for phase in &mut role.phases {
        (phase.memory.activations, phase.memory.placed) = (phase.memory.activations + 128, phase.memory.placed + 128);
        if phase.name == "generate" {
            continue;
        }
        for feed in &mut phase.feeds {
            (feed.rows, feed.first_row) = (1, Affine::along(0, 1));
        }
        phase.calls[1].slots[5] = part_of_loss;
        let mut sums = vec![call(sum + 1, &[part_of_loss, LOSS])];
        if phase.name == "train" {
            phase.calls[1].slots[4] = part_of_gradient;
            sums.push(call(sum, &[part_of_gradient, GRADIENT]));
        }
        phase.commit += sums.len() as u32;
        phase.calls.splice(2..2, sums);
    }
    plan
}

/// An all-reduce over all ranks.
fn sum_program(elements: u64) -> Program {
    let kernel = testing::exchange(&[0], ROWS, ExchangeKind::AllReduce, DType::F32, elements, 0, 1);
    let instruction =
        Instruction { name: "sum".into(), stream: 0, waits: vec![], records: None, captured: false, kernel };
    let slots = [("part", Access::Read, DType::F32, elements), ("sum", Access::Write, DType::F32, elements)];
    program("sum", &slots, vec![instruction])
}

fn train() -> Phase {
    let (dtype, before_commit) = (DType::F32, true);
    Phase {
        commit: 3,
        calls: vec![
            call(0, &[STEP, PENALTY]),
            call(1, &[TEXT, LABELS, W, PENALTY, GRADIENT, LOSS, NORM]),
            call(2, &[LR]),
            call(3, &[W, GRADIENT, FIRST, SECOND, COUNT, COPY]),
        ],
        reports: vec![
            Report { name: "loss".into(), dtype, offset: LOSS, before_commit },
            Report { name: "grad_norm".into(), dtype, offset: NORM, before_commit },
            Report { name: "lr".into(), dtype: DType::F64, offset: LR, before_commit },
        ],
        ..phase("train", ROWS)
    }
}

fn eval() -> Phase {
    Phase {
        commit: 2,
        calls: vec![call(0, &[STEP, PENALTY]), call(1, &[TEXT, LABELS, W, PENALTY, EVAL_GRADIENT, LOSS, NORM])],
        reports: vec![Report { name: "loss".into(), dtype: DType::F32, offset: LOSS, before_commit: true }],
        ..phase("eval", ROWS)
    }
}

fn generate() -> Phase {
    let logits = OutputTensor { name: "logits".into(), dtype: DType::F32, dims: vec![1, SEQ, 256], offset: LOGITS };
    Phase { commit: 1, calls: vec![call(4, &[TEXT, LOGITS])], outputs: vec![logits], ..phase("generate", 1) }
}

fn phase(name: &str, rows: u64) -> Phase {
    let feed = |input: &str, offset| Feed { input: input.into(), first_row: Affine::default(), rows, offset };
    Phase {
        name: name.into(),
        rows,
        seq: SEQ,
        feeds: vec![feed("tokens", TEXT), feed("labels", LABELS)],
        scalars: vec![ScalarFeed { scalar: Scalar::Step, offset: STEP }],
        calls: vec![],
        commit: 0,
        reports: vec![],
        outputs: vec![],
        memory: MemoryUse {
            weights: 128,
            gradients: 64,
            optimizer: 128,
            other: 64,
            activations: END - PERSISTENT,
            live_peak: END,
            placed: END,
        },
    }
}

fn call(program: u32, slots: &[u64]) -> Call {
    Call { program, layer: 0, micro_batch: 0, slots: slots.to_vec(), waits: vec![] }
}

/// A program whose slots hold one buffer each.
fn program(name: &str, slots: &[(&str, Access, DType, u64)], instructions: Vec<Instruction>) -> Program {
    let slot = |(name, access, dtype, elements): &(&str, Access, DType, u64)| Slot {
        name: name.to_string(),
        access: *access,
        space: Space::Device,
        bytes: (elements * dtype.bytes()).next_multiple_of(64),
    };
    let buffer = |(i, (name, _, dtype, elements)): (usize, &(&str, Access, DType, u64))| Buffer {
        name: name.to_string(),
        dtype: *dtype,
        elements: *elements,
        slot: i as u32,
        offset: 0,
    };
    Program {
        name: name.into(),
        slots: slots.iter().map(slot).collect(),
        buffers: slots.iter().enumerate().map(buffer).collect(),
        streams: vec![StreamKind::Cube],
        events: 0,
        instructions,
    }
}

fn view(buffer: u32, offset: u64, strides: &[u64]) -> View {
    View { buffer, offset, strides: strides.to_vec() }
}

fn region(name: &str, dims: &[u64], loads: Vec<View>, steps: Vec<Step>, stores: Vec<(Arg, View)>) -> Instruction {
    let stores = stores.into_iter().map(|(value, view)| Store { value, view }).collect();
    let loads = loads.into_iter().map(Load::from).collect();
    let region = Region { dims: dims.to_vec(), row_dims: 1, ragged: None, loads, steps, stores };
    Instruction {
        name: name.into(),
        stream: 0,
        waits: vec![],
        records: None,
        captured: false,
        kernel: Kernel::Region(region),
    }
}

fn step(op: StepOp, dtype: DType, args: &[Arg]) -> Step {
    Step { op, dtype, args: args.to_vec() }
}

fn penalty(limit: f64) -> Program {
    use Arg::{Const, Load, Step as S};
    let f32 = DType::F32;
    let steps = vec![
        step(StepOp::Cast, f32, &[Load(0)]),
        step(StepOp::Sub, f32, &[Const(limit), S(0)]),
        step(StepOp::Sqrt, f32, &[S(1)]),
        step(StepOp::Mul, f32, &[S(2), Const(0.0)]),
    ];
    let root = region("penalty", &[1], vec![view(0, 0, &[1])], steps, vec![(S(3), view(1, 0, &[1]))]);
    program("penalty", &[("step", Access::Read, DType::I32, 1), ("penalty", Access::Write, f32, 1)], vec![root])
}

fn forward() -> Program {
    use Arg::{Const, Load, Step as S};
    let f = |op, args: &[Arg]| step(op, DType::F32, args);
    let n = TOKENS as f64;
    let steps = vec![
        f(StepOp::Cast, &[Load(0)]),
        f(StepOp::Mul, &[S(0), Const(1.0 / 256.0)]),
        f(StepOp::Cast, &[Load(1)]),
        f(StepOp::Mul, &[S(2), Const(1.0 / 256.0)]),
        f(StepOp::Mul, &[Load(3), S(1)]),
        f(StepOp::Add, &[Load(2), S(4)]),
        f(StepOp::Sub, &[S(5), S(3)]),
        f(StepOp::Mul, &[S(6), S(6)]),
        f(StepOp::RowSum, &[S(7)]),
        f(StepOp::Mul, &[S(8), Const(1.0 / n)]),
        f(StepOp::RowSum, &[S(6)]),
        f(StepOp::Mul, &[S(10), Const(2.0 / n)]),
        f(StepOp::Mul, &[S(6), S(1)]),
        f(StepOp::RowSum, &[S(12)]),
        f(StepOp::Mul, &[S(13), Const(2.0 / n)]),
        f(StepOp::Mul, &[S(11), S(11)]),
        f(StepOp::Mul, &[S(14), S(14)]),
        f(StepOp::Add, &[S(15), S(16)]),
        f(StepOp::Sqrt, &[S(17)]),
        // A row value again, so that the store is one for the row.
        f(StepOp::RowMax, &[Load(4)]),
        f(StepOp::Add, &[S(9), S(19)]),
    ];
    let loads = vec![view(0, 0, &[1]), view(1, 0, &[1]), view(2, 0, &[0]), view(2, 1, &[0]), view(3, 0, &[0])];
    let stores = vec![
        (S(20), view(5, 0, &[0])),
        (S(11), view(4, 0, &[0])),
        (S(14), view(4, 1, &[0])),
        (S(18), view(6, 0, &[0])),
    ];
    let line = region("loss", &[TOKENS], loads, steps, stores);
    let zeros = region("zeros", &[2], vec![], vec![], vec![(Const(0.0), view(4, 2, &[1]))]);
    let slots = [
        ("tokens", Access::Read, DType::I32, TOKENS),
        ("labels", Access::Read, DType::I32, TOKENS),
        ("w", Access::Read, DType::F32, 4),
        ("penalty", Access::Read, DType::F32, 1),
        ("gradient", Access::Write, DType::F32, 4),
        ("loss", Access::Write, DType::F32, 1),
        ("norm", Access::Write, DType::F32, 1),
    ];
    program("line.forward", &slots, vec![line, zeros])
}

fn rate() -> Program {
    let constant = region("lr", &[1], vec![], vec![], vec![(Arg::Const(0.1), view(0, 0, &[1]))]);
    program("rate", &[("lr", Access::Write, DType::F64, 1)], vec![constant])
}

fn update() -> Program {
    use Arg::{Const, Load, Step as S};
    let f = |op, args: &[Arg]| step(op, DType::F32, args);
    let steps = vec![
        f(StepOp::Mul, &[Load(1), Const(0.1)]),
        f(StepOp::Sub, &[Load(0), S(0)]),
        f(StepOp::Mul, &[Load(1), Load(1)]),
        step(StepOp::Cast, DType::Bf16, &[S(1)]),
    ];
    let stores =
        vec![(S(1), view(0, 0, &[1])), (Load(1), view(2, 0, &[1])), (S(2), view(3, 0, &[1])), (S(3), view(5, 0, &[1]))];
    let descent = region("descent", &[4], vec![view(0, 0, &[1]), view(1, 0, &[1])], steps, stores);
    let next = vec![f(StepOp::Add, &[Load(0), Const(1.0)])];
    let count = region("count", &[1], vec![view(4, 0, &[1])], next, vec![(S(0), view(4, 0, &[1]))]);
    let slots = [
        ("w", Access::Update, DType::F32, 4),
        ("gradient", Access::Read, DType::F32, 4),
        ("first", Access::Write, DType::F32, 4),
        ("second", Access::Write, DType::F32, 4),
        ("count", Access::Update, DType::F32, 1),
        ("copy", Access::Write, DType::Bf16, 4),
    ];
    program("update", &slots, vec![descent, count])
}

fn logits() -> Program {
    use Arg::{Const, Load, Step as S};
    let f = |op, args: &[Arg]| step(op, DType::F32, args);
    let steps = vec![
        f(StepOp::Cast, &[Load(0)]),
        step(StepOp::Index(1), DType::I32, &[]),
        f(StepOp::Cast, &[S(1)]),
        f(StepOp::Sub, &[S(2), S(0)]),
        f(StepOp::Sub, &[S(3), Const(1.0)]),
        f(StepOp::Mul, &[S(4), S(4)]),
        f(StepOp::Neg, &[S(5)]),
    ];
    let score = region("logits", &[SEQ, 256], vec![view(0, 0, &[1, 0])], steps, vec![(S(6), view(1, 0, &[256, 1]))]);
    let slots = [("tokens", Access::Read, DType::I32, SEQ), ("logits", Access::Write, DType::F32, SEQ * 256)];
    program("logits", &slots, vec![score])
}

/// A plan that does nothing but hold tensors, on every rank of a mesh.
pub fn holding(mesh: &[(&str, u32)], mut tensors: Vec<Tensor>) -> Plan {
    let mut bytes = 0;
    for tensor in &mut tensors {
        tensor.offset = bytes;
        bytes += tensor.place_bytes().next_multiple_of(64);
    }
    let mut plan = testing::ranks(mesh, vec![]);
    plan.roles = vec![Role {
        name: "rank".into(),
        coordinates: mesh.iter().map(|(_, size)| (0, *size)).collect(),
        device_bytes: bytes,
        host_bytes: 0,
        persistent_bytes: bytes,
        host_persistent_bytes: 0,
        tensors,
        layers: vec![],
        phases: vec![],
    }];
    plan
}

/// A `[6, 4]` tensor in different ways on a mesh `[2, 3]`, each with a whole copy of it in bf16.
pub fn partings(whole: Tensor) -> Vec<Vec<Tensor>> {
    let cut = |dim, size, along| Cut { dim, size, first: Affine::along(along, size as i64) };
    let shards = |start, shard, along| Some(FlatRange { start, shard, index: Affine::along(along, 1) });
    let ways = [
        (vec![], None),
        (vec![cut(0, 3, 0)], None),
        (vec![cut(1, 2, 0), cut(0, 2, 1)], None),
        (vec![], shards(0, 8, 1)),
        (vec![], shards(5, 11, 1)),
        (vec![cut(1, 2, 0)], shards(1, 5, 1)),
    ];
    let way = |(block, range)| {
        let copy = Tensor { kind: TensorKind::ComputeCopy, dtype: DType::Bf16, init: Init::FromParam, ..whole.clone() };
        vec![Tensor { block, range, ..whole.clone() }, copy]
    };
    ways.map(way).into()
}
