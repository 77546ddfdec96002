//! Every invariant, broken: what is done to the tiny plan, and what the verifier says.

use super::*;
use crate::kernel::*;
use crate::schema::*;

type Break = fn(&mut Plan);

fn program<'p>(plan: &'p mut Plan, name: &str) -> &'p mut Program {
    plan.programs.iter_mut().find(|p| p.name == name).expect("the tiny plan has it")
}

fn forward(plan: &mut Plan) -> &mut Program {
    program(plan, "layers.forward")
}

fn train(plan: &mut Plan) -> &mut Phase {
    &mut plan.roles[0].phases[0]
}

fn eval(plan: &mut Plan) -> &mut Phase {
    &mut plan.roles[0].phases[1]
}

fn instruction<'p>(plan: &'p mut Plan, name: &str) -> &'p mut Instruction {
    forward(plan).instructions.iter_mut().find(|i| i.name == name).expect("the tiny plan has it")
}

fn slot<'p>(plan: &'p mut Plan, name: &str) -> &'p mut Slot {
    forward(plan).slots.iter_mut().find(|s| s.name == name).expect("the tiny plan has it")
}

fn buffer<'p>(plan: &'p mut Plan, name: &str) -> &'p mut Buffer {
    forward(plan).buffers.iter_mut().find(|b| b.name == name).expect("the tiny plan has it")
}

macro_rules! kernel {
    ($plan:expr, $name:literal, $kind:ident) => {
        match &mut instruction($plan, $name).kernel {
            Kernel::$kind(kernel) => kernel,
            other => panic!("{} is a {}", $name, other.name()),
        }
    };
}

fn lookup(plan: &mut Plan) -> &mut Lookup {
    kernel!(plan, "picked", Region).loads[1].through.as_mut().expect("it is looked up")
}

fn epilogue(plan: &mut Plan) -> &mut Region {
    kernel!(plan, "product", Matmul).epilogue.as_mut().expect("it has one")
}

/// Takes an instruction out, and the event that it records with it.
fn remove(program: &mut Program, name: &str) {
    let at = program.instructions.iter().position(|i| i.name == name).expect("the tiny plan has it");
    let removed = program.instructions.remove(at);
    if let Some(event) = removed.records {
        let shift = |e: &mut u32| *e -= u32::from(*e > event);
        program.events -= 1;
        for instruction in &mut program.instructions {
            instruction.waits.retain(|e| *e != event);
            instruction.waits.iter_mut().for_each(shift);
            instruction.records.iter_mut().for_each(shift);
        }
    }
}

const BROKEN: &[(Rule, &str, Break)] = &[
    (Rule::Header, "version", |p| p.version += 1),
    (Rule::Header, "format", |p| p.format = "forebay-scan".into()),
    (Rule::Settings, "no rows", |p| p.settings.batch = 0),
    (Rule::Settings, "micro-batches", |p| p.settings.micro_batches = 3),
    (Rule::Settings, "integer compute type", |p| p.settings.compute = DType::I32),
    (Rule::Settings, "active parameters", |p| p.settings.active_params += 1),
    (Rule::Settings, "overflow", |p| p.settings.seq = u64::MAX),
    (Rule::Settings, "flops", |p| p.settings.flops_per_step = f64::NAN),
    (Rule::Mesh, "no ranks", |p| p.mesh[0].size = 0),
    (Rule::Mesh, "dimensions", |p| {
        p.mesh = (0..17).map(|i| MeshDim { name: format!("d{i}"), size: 1 }).collect();
    }),
    (Rule::Mesh, "two of a name", |p| p.mesh.push(p.mesh[0].clone())),
    (Rule::TensorShape, "size 0", |p| p.roles[0].tensors[0].dims[0] = 0),
    (Rule::TensorShape, "overflow", |p| p.roles[0].tensors[0].dims[0] = u64::MAX),
    (Rule::TensorShape, "end overflow", |p| p.roles[0].tensors[0].offset = u64::MAX - 63),
    (Rule::TensorShape, "unaligned", |p| p.roles[0].tensors[0].offset += 4),
    (Rule::TensorPart, "cut too far", |p| {
        p.roles[0].tensors[0].block = vec![Cut { dim: 0, size: 17, first: Affine::along(0, 16) }];
    }),
    (Rule::TensorPart, "not all of it", |p| {
        p.roles[0].tensors[0].block = vec![Cut { dim: 0, size: 16, first: Affine::constant(16) }];
    }),
    (Rule::TensorPart, "shards end early", |p| {
        p.roles[0].tensors[0].range = Some(FlatRange { start: 1, shard: 128, index: Affine::along(0, 1) });
    }),
    (Rule::TensorUnique, "twice", |p| {
        let first = p.roles[0].tensors[0].clone();
        p.roles[0].tensors.push(first);
    }),
    (Rule::TensorPlace, "overlap", |p| p.roles[0].tensors[1].offset -= 64),
    (Rule::TensorPlace, "outside", |p| p.roles[0].tensors[0].offset = p.roles[0].persistent_bytes),
    (Rule::TensorPlace, "a few bytes outside", |p| {
        let state = p.roles[0].tensors.last().expect("there are tensors");
        p.roles[0].persistent_bytes = state.offset + state.place_bytes() - 1;
    }),
    (Rule::TensorKind, "of no parameter", |p| p.roles[0].tensors[1].name = "other".into()),
    (Rule::TensorKind, "other sizes", |p| p.roles[0].tensors[1].dims = vec![1]),
    (Rule::TensorKind, "integer gradient", |p| p.roles[0].tensors[1].dtype = DType::I32),
    (Rule::TensorKind, "copy that is none", |p| p.roles[0].tensors[1].init = Init::FromParam),
    (Rule::TensorKind, "half without the rest", |p| p.roles[0].tensors[0].form = Form::LowerHalf),
    (Rule::TensorInit, "deviation", |p| p.roles[0].tensors[0].init = Init::Normal(-1.0)),
    (Rule::TensorInit, "range", |p| p.roles[0].tensors[0].init = Init::Uniform(1.0, 0.0)),
    (Rule::BufferPlace, "no such slot", |p| forward(p).buffers[0].slot = 99),
    (Rule::BufferPlace, "unaligned", |p| buffer(p, "saved.1").offset -= 4),
    (Rule::BufferPlace, "outside", |p| buffer(p, "saved.1").offset += 64),
    (Rule::BufferPlace, "overflow", |p| forward(p).buffers[0].elements = u64::MAX / 2),
    (Rule::BufferPlace, "huge slot", |p| slot(p, "x").bytes = u64::MAX),
    (Rule::Streams, "two alike", |p| forward(p).streams[1] = StreamKind::Cube),
    (Rule::Streams, "no such stream", |p| instruction(p, "softmax").stream = 9),
    (Rule::EventRecorded, "never", |p| forward(p).events += 1),
    (Rule::EventRecorded, "far too many", |p| forward(p).events = u32::MAX),
    (Rule::EventRecorded, "twice", |p| {
        let silent = |i: &&mut Instruction| i.records.is_none();
        forward(p).instructions.iter_mut().find(silent).expect("not all record events").records = Some(0);
    }),
    (Rule::EventRecorded, "no such event", |p| instruction(p, "softmax").records = Some(999)),
    (Rule::EventWait, "later", |p| {
        let last = forward(p).instructions.last().and_then(|i| i.records);
        forward(p).instructions[0].waits.extend(last);
    }),
    (Rule::EventWait, "no such event", |p| forward(p).instructions[0].waits.push(u32::MAX)),
    (Rule::Captured, "first of its stream", |p| forward(p).instructions[0].captured = true),
    (Rule::Captured, "waits", |p| {
        let waiting = forward(p).instructions.iter_mut().find(|i| !i.waits.is_empty());
        waiting.expect("some wait").captured = true;
    }),
    (Rule::Captured, "behind an event", |p| {
        let instructions = &mut forward(p).instructions;
        let recorded = instructions.iter().position(|i| i.records.is_some()).expect("some record");
        let stream = instructions[recorded].stream;
        let next = instructions[recorded + 1..].iter_mut().find(|i| i.stream == stream).expect("not the last");
        next.waits.clear();
        next.captured = true;
    }),
    (Rule::Spaces, "host memory", |p| slot(p, "x").space = Space::Host),
    (Rule::Access, "written", |p| slot(p, "y").access = Access::Read),
    (Rule::BufferExists, "operand", |p| kernel!(p, "product", Matmul).a = u32::MAX),
    (Rule::BufferExists, "view", |p| kernel!(p, "softmax", Region).stores[0].view.buffer = 999),
    (Rule::Sizes, "size 0", |p| kernel!(p, "product", Matmul).m.0 = 0),
    (Rule::Sizes, "product overflow", |p| kernel!(p, "softmax", Region).dims = vec![u64::MAX, 2]),
    (Rule::Sizes, "strides", |p| kernel!(p, "softmax", Region).loads[0].view.strides.truncate(1)),
    (Rule::Sizes, "kept strides", |p| kernel!(p, "sums", Reduce).out.strides.clear()),
    (Rule::Sizes, "dimensions", |p| {
        let region = kernel!(p, "softmax", Region);
        region.dims.resize(17, 1);
        region.loads.iter_mut().for_each(|l| l.view.strides.resize(17, 1));
        region.stores.iter_mut().for_each(|s| s.view.strides.resize(17, 1));
    }),
    (Rule::Sizes, "no rows to count", |p| {
        let random = kernel!(p, "noise", Random);
        (random.dims, random.out.strides) = (vec![], vec![]);
    }),
    (Rule::Sizes, "loads", |p| {
        let region = kernel!(p, "softmax", Region);
        region.loads.resize(257, region.loads[0].clone());
    }),
    (Rule::ViewInside, "offset", |p| kernel!(p, "softmax", Region).loads[0].view.offset += 1),
    (Rule::ViewInside, "overflow", |p| kernel!(p, "softmax", Region).loads[0].view.strides[0] = u64::MAX),
    (Rule::ViewInside, "rows", |p| kernel!(p, "product", Matmul).m.0 += 1),
    (Rule::ViewInside, "groups", |p| kernel!(p, "hidden", Matmul).groups.as_mut().expect("it has groups").count += 1),
    (Rule::Sizes, "divided by 0", |p| lookup(p).divide = 0),
    (Rule::Sizes, "strides of a load's index", |p| lookup(p).index.strides.clear()),
    (Rule::ViewInside, "looked-up axis of a load", |p| lookup(p).axis_size += 1),
    (Rule::ViewInside, "index of a load", |p| lookup(p).index.strides[0] += 2),
    (Rule::ViewInside, "looked-up axis", |p| kernel!(p, "dispatched", Gather).axis_size += 1),
    (Rule::Sizes, "no positions", |p| kernel!(p, "linear", LinearAttention).positions = 0),
    (Rule::Sizes, "huge key", |p| kernel!(p, "linear", LinearAttention).keys[0] = 1 << 20),
    (Rule::Sizes, "strides of decays", |p| kernel!(p, "linear", LinearAttention).g.strides.push(1)),
    (Rule::ViewInside, "positions", |p| kernel!(p, "linear", LinearAttention).positions += 1),
    (Rule::ViewType, "decays", |p| buffer(p, "decays").dtype = DType::Bf16),
    (Rule::Distinct, "linear attention", |p| kernel!(p, "linear", LinearAttention).out.strides[0] = 0),
    (Rule::LinearAttention, "shared keys", |p| kernel!(p, "linear", LinearAttention).k.strides[2] = 0),
    (Rule::LinearAttention, "shared decays", |p| kernel!(p, "linear", LinearAttention).g.strides[1] = 0),
    (Rule::LinearAttention, "narrow result", |p| {
        let linear = kernel!(p, "linear", LinearAttention);
        linear.result = DType::Bf16;
        buffer(p, "remembered").dtype = DType::Bf16;
    }),
    (Rule::LinearAttention, "integers", |p| {
        let linear = kernel!(p, "linear", LinearAttention);
        (linear.dtype, linear.result) = (DType::I32, DType::I32);
        forward(p).buffers.iter_mut().filter(|b| b.name != "decays").for_each(|b| b.dtype = DType::I32);
    }),
    (Rule::ViewInside, "scan", |p| kernel!(p, "scan", Scan).n += 1),
    (Rule::Sizes, "scan overflow", |p| kernel!(p, "scan", Scan).outer = 1 << 60),
    (Rule::ViewInside, "top-k", |p| kernel!(p, "chosen", TopK).outer += 1),
    (Rule::ViewInside, "group", |p| kernel!(p, "rows", Group).elements += 1),
    (Rule::ViewInside, "offsets", |p| kernel!(p, "offsets", Offsets).groups += 1),
    (Rule::ViewInside, "inverse", |p| kernel!(p, "inverse", Invert).elements += 1),
    (Rule::ViewInside, "row groups", |p| kernel!(p, "expert", RowGroups).rows += 1),
    (Rule::ViewInside, "random", |p| kernel!(p, "noise", Random).dims[0] += 1),
    (Rule::ViewInside, "key", |p| buffer(p, "key").elements = 3),
    (Rule::ViewType, "index of a load", |p| lookup(p).index.buffer = kernel!(p, "dispatched", Gather).x.buffer),
    (Rule::ViewType, "index", |p| buffer(p, "source").dtype = DType::F32),
    (Rule::ViewType, "product", |p| kernel!(p, "product", Matmul).dtype = DType::F64),
    (Rule::Distinct, "store", |p| kernel!(p, "softmax", Region).stores[0].view.strides = vec![8, 0]),
    (Rule::Distinct, "product", |p| kernel!(p, "product", Matmul).m.2 -= 1),
    (Rule::Distinct, "reduction", |p| kernel!(p, "sums", Reduce).out.strides[0] = 0),
    (Rule::Distinct, "random", |p| kernel!(p, "noise", Random).out.strides[0] -= 1),
    (Rule::Alias, "product in place", |p| kernel!(p, "product", Matmul).c = kernel!(p, "product", Matmul).a),
    (Rule::Alias, "region in another place", |p| {
        let region = kernel!(p, "gelu", Region);
        region.dims[0] -= 1;
        region.stores[0].view.offset += 8;
    }),
    (Rule::Alias, "where it looks up", |p| {
        let region = kernel!(p, "picked", Region);
        region.stores[0].view.buffer = region.loads[0].view.buffer;
    }),
    (Rule::Alias, "two stores", |p| kernel!(p, "joined.front", Region).stores[1].view.offset -= 1),
    (Rule::Matmul, "integers", |p| {
        kernel!(p, "product", Matmul).dtype = DType::I32;
        forward(p).buffers.iter_mut().for_each(|b| b.dtype = DType::I32);
    }),
    (Rule::Matmul, "groups in the result", |p| {
        let groups = kernel!(p, "hidden", Matmul).groups.as_mut().expect("it has groups");
        (groups.count, groups.strides[2]) = (1, 1);
    }),
    (Rule::Epilogue, "reduction", |p| {
        epilogue(p).steps[0] = Step { op: StepOp::RowMax, dtype: DType::F32, args: vec![Arg::Load(0)] }
    }),
    (Rule::Epilogue, "rows", |p| epilogue(p).dims[0] -= 1),
    (Rule::Epilogue, "transposed", |p| {
        let region = epilogue(p);
        let (rows, columns) = (region.dims[0], region.dims[1]);
        region.dims = vec![columns, rows];
        region
            .loads
            .iter_mut()
            .map(|l| &mut l.view)
            .chain([&mut region.stores[0].view])
            .for_each(|v| v.strides[0] = rows);
    }),
    (Rule::Epilogue, "rows of the result apart", |p| kernel!(p, "product", Matmul).m.2 += 1),
    (Rule::Epilogue, "repeated result", |p| epilogue(p).loads[0].view.strides[0] = 0),
    (Rule::Epilogue, "accumulating", |p| kernel!(p, "product", Matmul).accumulate = true),
    (Rule::StepTypes, "epilogue", |p| epilogue(p).steps[0].dtype = DType::F64),
    (Rule::Alias, "epilogue over an operand", |p| {
        let a = kernel!(p, "product", Matmul).a;
        epilogue(p).stores[0].view.buffer = a;
    }),
    (Rule::Sizes, "no pairs", |p| kernel!(p, "attention", Attention).inputs.pairs.clear()),
    (Rule::Sizes, "pairs", |p| {
        let inputs = &mut kernel!(p, "attention", Attention).inputs;
        inputs.pairs.resize(9, inputs.pairs[0].clone());
    }),
    (Rule::Sizes, "no keys", |p| kernel!(p, "attention", Attention).inputs.keys = 0),
    (Rule::Sizes, "huge head", |p| kernel!(p, "attention", Attention).inputs.value_size = 1 << 20),
    (Rule::Sizes, "attention overflow", |p| kernel!(p, "attention", Attention).inputs.queries = u64::MAX),
    (Rule::Sizes, "strides of values", |p| kernel!(p, "attention", Attention).inputs.v.strides.truncate(2)),
    (Rule::Sizes, "strides of documents", |p| {
        let inputs = &mut kernel!(p, "attention.gradients", AttentionBackward).inputs;
        inputs.documents.as_mut().expect("it has documents").keys.strides.push(1);
    }),
    (Rule::Sizes, "gradients of pairs", |p| kernel!(p, "attention.gradients", AttentionBackward).d_k.clear()),
    (Rule::Sizes, "strides of gradients", |p| {
        let sink = &mut kernel!(p, "attention.gradients", AttentionBackward).d_sink;
        sink.as_mut().expect("it has a sink").strides.clear();
    }),
    (Rule::BufferExists, "gradient", |p| {
        let values = &mut kernel!(p, "attention.gradients", AttentionBackward).d_v;
        values.as_mut().expect("it is wanted").buffer = 999;
    }),
    (Rule::ViewInside, "queries", |p| kernel!(p, "attention", Attention).inputs.queries += 1),
    (Rule::ViewInside, "stride overflow", |p| {
        kernel!(p, "attention", Attention).inputs.pairs[0].k.strides[1] = u64::MAX
    }),
    (Rule::ViewInside, "end overflow", |p| kernel!(p, "attention", Attention).inputs.v.offset = u64::MAX),
    (Rule::ViewType, "lse", |p| buffer(p, "attention.lse").dtype = DType::I32),
    (Rule::ViewType, "documents", |p| buffer(p, "documents").dtype = DType::F32),
    (Rule::Distinct, "attention", |p| kernel!(p, "attention", Attention).out.strides[0] = 0),
    (Rule::Distinct, "gradients of queries", |p| {
        let queries = &mut kernel!(p, "attention.gradients", AttentionBackward).d_q[0];
        queries.as_mut().expect("it is wanted").strides[0] = 1;
    }),
    (Rule::Alias, "attention in place", |p| {
        let k = kernel!(p, "attention.gradients", AttentionBackward);
        k.d_q[0].as_mut().expect("it is wanted").buffer = k.out.buffer;
    }),
    (Rule::Alias, "two gradients", |p| {
        let k = kernel!(p, "attention.gradients", AttentionBackward);
        k.d_v.as_mut().expect("it is wanted").buffer = k.d_k[0].as_ref().expect("it is wanted").buffer;
    }),
    (Rule::Attention, "factor", |p| kernel!(p, "attention", Attention).inputs.scale = f64::NAN),
    (Rule::Attention, "shared elements", |p| kernel!(p, "attention", Attention).inputs.v.strides[2] = 0),
    (Rule::Attention, "shared positions", |p| {
        let keys = &mut kernel!(p, "attention.gradients", AttentionBackward).d_k[0];
        keys.as_mut().expect("it is wanted").strides[1] = 0;
    }),
    (Rule::Attention, "shared lse", |p| {
        kernel!(p, "attention.gradients", AttentionBackward).lse.strides[0] = 0;
    }),
    (Rule::Attention, "no gradient", |p| {
        let k = kernel!(p, "attention.gradients", AttentionBackward);
        (k.d_q, k.d_k, k.d_v, k.d_sink) = (vec![None], vec![None], None, None);
    }),
    (Rule::Attention, "gradient of no sink", |p| {
        kernel!(p, "attention.gradients", AttentionBackward).inputs.sink = None;
    }),
    (Rule::Attention, "integers", |p| {
        kernel!(p, "attention", Attention).inputs.dtype = DType::I32;
        forward(p).buffers.iter_mut().for_each(|b| b.dtype = DType::I32);
    }),
    (Rule::RegionForm, "no row", |p| kernel!(p, "softmax", Region).row_dims = 0),
    (Rule::RegionForm, "long row", |p| kernel!(p, "softmax", Region).row_dims = 3),
    (Rule::RegionForm, "ragged row", |p| {
        let region = kernel!(p, "scaled", Region);
        region.row_dims = 2;
        region.steps.push(Step { op: StepOp::RowSum, dtype: DType::F32, args: vec![Arg::Step(1)] });
    }),
    (Rule::RegionForm, "nothing stored", |p| kernel!(p, "softmax", Region).stores.clear()),
    (Rule::StepArgs, "too few", |p| kernel!(p, "softmax", Region).steps[1].args.truncate(1)),
    (Rule::StepArgs, "itself", |p| kernel!(p, "softmax", Region).steps[1].args[1] = Arg::Step(1)),
    (Rule::StepArgs, "no such load", |p| kernel!(p, "softmax", Region).steps[0].args[0] = Arg::Load(1)),
    (Rule::StepArgs, "no such dimension", |p| kernel!(p, "softmax", Region).steps[5].op = StepOp::Index(2)),
    (Rule::StepTypes, "result", |p| kernel!(p, "softmax", Region).steps[6].dtype = DType::F32),
    (Rule::StepTypes, "argument", |p| kernel!(p, "softmax", Region).steps[7].args[1] = Arg::Step(5)),
    (Rule::StepTypes, "constant", |p| kernel!(p, "softmax", Region).steps[6].args[1] = Arg::Const(0.5)),
    (Rule::StoreType, "no such step", |p| kernel!(p, "softmax", Region).stores[0].value = Arg::Step(99)),
    (Rule::StoreType, "type", |p| kernel!(p, "softmax", Region).stores[0].value = Arg::Step(6)),
    (Rule::Reduce, "kept", |p| {
        let reduce = kernel!(p, "sums", Reduce);
        (reduce.kept, reduce.out.strides) = (3, vec![1, 1, 1]);
    }),
    (Rule::Reduce, "maximum of what is there", |p| {
        let reduce = kernel!(p, "sums", Reduce);
        (reduce.op, reduce.accumulate) = (ReduceOp::Max, true);
    }),
    (Rule::Reduce, "groups", |p| kernel!(p, "load", Reduce).dims[0] -= 1),
    (Rule::Reduce, "nothing to be ragged", |p| {
        let reduce = kernel!(p, "load", Reduce);
        (reduce.kept, reduce.dims, reduce.out.strides) = (1, vec![8], vec![1]);
        reduce.input.strides = vec![0];
    }),
    (Rule::Indexed, "ragged dimension", |p| {
        kernel!(p, "dispatched", Gather).ragged.as_mut().expect("it is ragged").dim = 2;
    }),
    (Rule::Indexed, "outside of the result", |p| kernel!(p, "combined", ScatterAdd).axis_size += 1),
    (Rule::Sorting, "more than all", |p| kernel!(p, "chosen", TopK).n = 1),
    (Rule::Sorting, "no groups", |p| kernel!(p, "rows", Group).groups = 0),
    (Rule::Sorting, "too many groups", |p| kernel!(p, "rows", Group).groups = 1 << 40),
    (Rule::GroupStarts, "fewer", |p| kernel!(p, "expert", RowGroups).groups -= 1),
    (Rule::GroupStarts, "fewer starts", |p| kernel!(p, "offsets", Offsets).groups -= 1),
    (Rule::EvenRows, "region", |p| kernel!(p, "scaled", Region).ragged.as_mut().expect("it has one").even = 1 << 20),
    (Rule::EvenRows, "product", |p| kernel!(p, "hidden", Matmul).groups.as_mut().expect("it has one").even = 1 << 20),
    (Rule::EvenRows, "sums of groups", |p| {
        kernel!(p, "load", Reduce).ragged.as_mut().expect("it has one").even = 1 << 20
    }),
    (Rule::EvenRows, "looked up", |p| kernel!(p, "dispatched", Gather).axis_even = Some(1 << 20)),
    (Rule::EvenRows, "looked up in passing", |p| {
        kernel!(p, "picked", Region).loads[0].through.as_mut().expect("it has one").axis_even = Some(1 << 20);
    }),
    (Rule::Exchange, "combined in several places", |p| kernel!(p, "summed", Exchange).out_step = 1),
    (Rule::Defined, "never written", |p| remove(forward(p), "sums")),
    (Rule::Defined, "half written", |p| remove(forward(p), "joined.back")),
    (Rule::Overwritten, "memory used again", |p| {
        let at = buffer(p, "offsets").offset;
        buffer(p, "inverse").offset = at;
    }),
    (Rule::Ordered, "no waiting", |p| forward(p).instructions.iter_mut().for_each(|i| i.waits.clear())),
    (Rule::SlotWritten, "result", |p| remove(forward(p), "y")),
    (Rule::SlotWritten, "update", |p| remove(program(p, "update"), "second")),
    (Rule::RoleRanks, "too few", |p| p.roles[0].coordinates[0].1 = 1),
    (Rule::RoleRanks, "not of the mesh", |p| p.roles[0].coordinates[0].1 = 3),
    (Rule::RoleRanks, "twice", |p| p.roles.push(p.roles[0].clone())),
    (Rule::RoleRanks, "dimensions", |p| p.roles[0].coordinates.clear()),
    (Rule::Arena, "persistent", |p| p.roles[0].persistent_bytes = p.roles[0].device_bytes + 64),
    (Rule::Arena, "peak", |p| train(p).memory.live_peak = train(p).memory.placed + 1),
    (Rule::Arena, "parts", |p| train(p).memory.other += 1),
    (Rule::Arena, "huge", |p| p.roles[0].device_bytes = u64::MAX),
    (Rule::PhaseName, "unknown", |p| train(p).name = "fit".into()),
    (Rule::PhaseName, "twice", |p| eval(p).name = "generate".into()),
    (Rule::PhaseName, "rows", |p| train(p).rows += 1),
    (Rule::HostPlace, "unaligned", |p| train(p).feeds[0].offset += 4),
    (Rule::HostPlace, "over tensors", |p| train(p).feeds[0].offset = 0),
    (Rule::HostPlace, "overlap", |p| train(p).feeds[0].offset = train(p).feeds[1].offset),
    (Rule::HostPlace, "outside", |p| train(p).reports[0].offset = p.roles[0].device_bytes),
    (Rule::HostPlace, "overflow", |p| p.roles[0].phases[2].outputs[0].dims = vec![u64::MAX, 2]),
    (Rule::FeedRows, "input", |p| train(p).feeds[0].input = "images".into()),
    (Rule::FeedRows, "beyond", |p| train(p).feeds[0].first_row.terms[0].1 = 3),
    (Rule::FeedRows, "negative", |p| train(p).feeds[0].first_row.base = -1),
    (Rule::FeedRows, "mesh dimension", |p| train(p).feeds[0].first_row.terms[0].0 = 1),
    (Rule::HostNames, "twice", |p| train(p).reports[1].name = "loss".into()),
    (Rule::HostNames, "type", |p| train(p).reports[0].dtype = DType::I32),
    (Rule::CallIndex, "program", |p| train(p).calls[1].program = 99),
    (Rule::CallIndex, "layer", |p| train(p).calls[1].layer = 99),
    (Rule::CallIndex, "micro-batch", |p| train(p).calls[1].micro_batch = 99),
    (Rule::Binding, "slots", |p| train(p).calls[1].slots.truncate(3)),
    (Rule::Binding, "unaligned", |p| train(p).calls[1].slots[2] += 32),
    (Rule::Binding, "outside", |p| train(p).calls[1].slots[2] = p.roles[0].device_bytes),
    (Rule::Binding, "overflow", |p| train(p).calls[1].slots[2] = u64::MAX - 63),
    (Rule::CallOverlap, "two slots", |p| train(p).calls[1].slots[2] = train(p).calls[1].slots[0] + 64),
    (Rule::TensorType, "half as wide", |p| p.roles[0].tensors[0].dtype = DType::Bf16),
    (Rule::CallWait, "later", |p| train(p).calls[1].waits[0].call = 1),
    (Rule::CallWait, "no such event", |p| train(p).calls[1].waits[0].event = 99),
    (Rule::TensorKept, "scratch", |p| {
        let moment = p.roles[0].tensors[2].offset;
        train(p).calls.last_mut().expect("an update").slots[5] = moment;
    }),
    (Rule::TensorKept, "cut", |p| {
        // The gradient of x over a part of a moment, where nothing reads it again.
        let moment = p.roles[0].tensors[2].offset;
        train(p).calls.iter_mut().filter(|c| c.program == 4 && c.layer == 0).for_each(|c| c.slots[3] = moment - 64);
        p.roles[0].tensors[2].kind = TensorKind::ComputeCopy;
        p.roles[0].tensors[2].init = Init::FromParam;
    }),
    (Rule::Commit, "late", |p| train(p).commit += 1),
    (Rule::Commit, "early", |p| train(p).commit -= 1),
    (Rule::Commit, "outside", |p| train(p).commit = u32::MAX),
    (Rule::Commit, "in an evaluation", |p| {
        let update = train(p).calls.last().expect("an update").clone();
        let at = eval(p).calls.len() as u32;
        eval(p).commit = at;
        eval(p).calls.push(update);
        eval(p).calls[at as usize].waits.clear();
    }),
    (Rule::CallDefined, "not written", |p| {
        // Layer 1 reads where nothing was put.
        let end = p.roles[0].device_bytes;
        p.roles[0].device_bytes += 1 << 20;
        train(p).calls[2].slots[0] = end;
    }),
    (Rule::CallDefined, "output", |p| {
        p.roles[0].device_bytes += 1 << 20;
        p.roles[0].phases[2].outputs[0].offset = p.roles[0].device_bytes - (1 << 19);
    }),
    (Rule::CallOverwritten, "saved tensors", |p| {
        let calls = &mut train(p).calls;
        let saved = calls[1].slots[3];
        // The next layer's output begins in the middle of what this one saved.
        calls[2].slots[2] = saved + 64;
    }),
    (Rule::CallWhole, "shifted", |p| train(p).calls[2].slots[0] += 64),
    (Rule::CallOrdered, "no waiting", |p| train(p).calls.iter_mut().for_each(|c| c.waits.clear())),
    (Rule::Fragmented, "a comb", super::hostile::comb),
];

#[test]
fn every_broken_invariant_is_found() {
    let (mut messages, mut missed) = (String::new(), String::new());
    for (rule, what, apply) in BROKEN {
        let mut plan = testing::tiny();
        apply(&mut plan);
        let violations = verify(&plan).err().unwrap_or_default();
        match violations.iter().find(|v| v.rule == *rule) {
            Some(found) => messages += &format!("{rule}, {what}\n    {found}\n"),
            None => missed += &format!("{rule}, {what}: found only\n{}\n", list(&violations)),
        }
    }
    assert!(missed.is_empty(), "{missed}");
    insta::assert_snapshot!(messages);
}

#[test]
fn every_rule_is_tried() {
    let tried: Vec<Rule> = BROKEN.iter().chain(super::ranks::BROKEN).map(|(rule, _, _)| *rule).collect();
    let missing: Vec<&Rule> = Rule::ALL.iter().filter(|r| !tried.contains(r)).collect();
    assert!(missing.is_empty(), "{missing:?}");
}
