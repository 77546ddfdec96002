//! Plans for several ranks, written down by hand: each role runs one program over arrays that are its tensors, so that tests can set what goes in and look at
//! what comes out.

use super::program::ProgramBuilder;
use crate::kernel::*;
use crate::schema::*;

const ALIGN: u64 = 64;

/// What one role does.
#[derive(Clone, Debug)]
pub struct RoleScript {
    /// Its name; the names of its arrays follow it: `stage.x`.
    pub name: String,
    /// Its ranks.
    pub coordinates: Vec<(u32, u32)>,
    /// Names, types, elements and access of its arrays: buffers 0, 1, … of the program. Every rank has its own; together they are a state of the dimensions
    /// `[ranks along each mesh dimension…, elements]`.
    pub arrays: Vec<(&'static str, DType, u64, Access)>,
    /// What it runs.
    pub kernels: Vec<Kernel>,
}

/// A plan with one phase, `train`, of one call.
pub fn ranks(mesh: &[(&str, u32)], scripts: Vec<RoleScript>) -> Plan {
    let (programs, roles) = (0..).zip(&scripts).map(|(number, script)| (program(script), role(number, script))).unzip();
    Plan {
        format: crate::FORMAT.into(),
        version: VERSION,
        model: "ranks".into(),
        settings: Settings {
            compute: DType::F32,
            batch: 1,
            micro_batches: 1,
            seq: 1,
            vocab: 1,
            packed: false,
            steps: 1,
            params: 0,
            active_params: 0,
            flops_per_step: 0.0,
        },
        mesh: mesh.iter().map(|(name, size)| MeshDim { name: name.to_string(), size: *size }).collect(),
        programs,
        roles,
    }
}

fn program(script: &RoleScript) -> Program {
    let mut builder = ProgramBuilder::new(&script.name, 1);
    for (name, dtype, elements, access) in &script.arrays {
        builder.operand(name, *access, *dtype, *elements);
    }
    for kernel in &script.kernels {
        builder.push(kernel.name(), 0, kernel.clone());
    }
    builder.finish()
}

fn role(number: u32, script: &RoleScript) -> Role {
    let mut bytes = 0;
    let mut slots = vec![];
    let tensors = script.arrays.iter().map(|(name, dtype, elements, _)| {
        let extents = script.coordinates.iter().map(|(lo, hi)| u64::from(hi - lo));
        let own = (0..).zip(&script.coordinates).map(|(dim, (lo, _))| Cut {
            dim,
            size: 1,
            first: Affine { base: -i64::from(*lo), terms: vec![(dim, 1)] },
        });
        let tensor = Tensor {
            name: format!("{}.{name}", script.name),
            kind: TensorKind::State,
            dtype: *dtype,
            dims: extents.chain([*elements]).collect(),
            block: own.collect(),
            range: None,
            form: Form::Whole,
            space: Space::Device,
            offset: bytes,
            init: Init::Constant(0.0),
        };
        slots.push(bytes);
        bytes += tensor.place_bytes().next_multiple_of(ALIGN);
        tensor
    });
    let tensors = tensors.collect();
    // (An empty frame.)
    slots.push(bytes);
    let changes = script.arrays.iter().any(|(_, _, _, access)| *access != Access::Read);
    let phase = Phase {
        name: "train".into(),
        rows: 1,
        seq: 1,
        feeds: vec![],
        scalars: vec![],
        calls: vec![Call { program: number, layer: 0, micro_batch: 0, slots, waits: vec![] }],
        commit: u32::from(!changes),
        reports: vec![],
        outputs: vec![],
        memory: MemoryUse { other: bytes, live_peak: bytes, placed: bytes, ..MemoryUse::default() },
    };
    Role {
        name: script.name.clone(),
        coordinates: script.coordinates.clone(),
        device_bytes: bytes,
        host_bytes: 0,
        persistent_bytes: bytes,
        host_persistent_bytes: 0,
        tensors,
        layers: vec![script.name.clone()],
        phases: vec![phase],
    }
}

/// An all-reduce, all-gather, … of contiguous pieces of so many elements. A shift is by one rank.
pub fn exchange(
    group: &[u32],
    ranks: u64,
    kind: ExchangeKind,
    dtype: DType,
    piece: u64,
    x: BufferId,
    out: BufferId,
) -> Kernel {
    let scattered = matches!(kind, ExchangeKind::AllToAll | ExchangeKind::ReduceScatter);
    let combined = matches!(kind, ExchangeKind::AllReduce | ExchangeKind::ReduceScatter);
    let shifted = kind == ExchangeKind::Shift;
    Kernel::Exchange(Exchange {
        dtype,
        group: group.to_vec(),
        ranks,
        x,
        out,
        dims: vec![piece],
        x_offset: 0,
        out_offset: 0,
        x_strides: vec![1],
        x_step: if scattered { piece } else { 0 },
        out_strides: vec![1],
        out_step: if combined || shifted { 0 } else { piece },
        reduce: combined.then_some(ReduceOp::Sum),
        shift: u64::from(shifted && ranks > 1),
        ragged: None,
    })
}

/// Two stages of a pipeline with two data-parallel ranks each, which own two experts each: every kernel that concerns other ranks.
pub fn pipeline() -> Plan {
    use Access::{Read, Update, Write};
    let (f32, i32) = (DType::F32, DType::I32);
    let message = |buffer, peer, channel| Message { dtype: f32, buffer, elements: 8, dim: 0, peer, channel };
    let rows = |direction, x, out| {
        let (group, offsets, counts) = (vec![1], 3, 4);
        let (row, experts, bound, tokens) = (2, 4, 8, 4);
        Kernel::AllToAllV(AllToAllV {
            dtype: f32,
            group,
            ranks: 2,
            x,
            out,
            row,
            experts,
            offsets,
            counts,
            direction,
            bound,
            tokens,
            even: tokens,
        })
    };
    // 0 x, 1 out, 2 rows, 3 offsets, 4 counts, 5 sizes, 6 where, 7 all, 8 key
    let stage = |number: u32, kernels: Vec<Kernel>| RoleScript {
        name: format!("stage{number}"),
        coordinates: vec![(number, number + 1), (0, 2)],
        arrays: vec![
            ("x", f32, 8, Update),
            ("out", f32, 8, Update),
            ("rows", f32, 16, Update),
            ("offsets", i32, 5, Read),
            ("counts", i32, 4, Write),
            ("sizes", i32, 4, Read),
            ("where", i32, 1, Write),
            ("all", f32, 32, Write),
            ("key", i32, 4, Write),
        ],
        kernels,
    };
    let own = || {
        let first_row = Affine::along(1, 2);
        vec![
            exchange(&[1], 2, ExchangeKind::AllToAll, i32, 2, 5, 4),
            rows(Direction::Dispatch, 0, 2),
            rows(Direction::Combine, 2, 1),
            exchange(&[1], 2, ExchangeKind::ReduceScatter, f32, 4, 1, 0),
            Kernel::Coordinate(Coordinate { out: 6, value: Affine { base: 5, terms: vec![(0, 2), (1, 1)] } }),
            Kernel::RandomKey { out: 8, rows: 2, per_micro_batch: 4, first_row },
        ]
    };
    let together = || {
        vec![
            exchange(&[0, 1], 4, ExchangeKind::AllGather, f32, 8, 0, 7),
            exchange(&[0], 2, ExchangeKind::AllReduce, f32, 8, 0, 1),
        ]
    };
    let first =
        [vec![Kernel::Send(message(0, 1, 0))], own(), vec![Kernel::Recv(message(1, 1, 1))], together()].concat();
    let second =
        [vec![Kernel::Recv(message(0, 0, 0))], own(), vec![Kernel::Send(message(1, 0, 1))], together()].concat();
    ranks(&[("pp", 2), ("dp", 2)], vec![stage(0, first), stage(1, second)])
}
