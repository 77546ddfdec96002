//! Plans made to take the verifier's time, not to run.

use super::*;
use crate::kernel::*;
use crate::schema::*;
use std::time::{Duration, Instant};

/// A program that reads a comb of small pieces through buffers that cover all of them, again and again.
pub(super) fn comb(plan: &mut Plan) {
    let n = 20_000;
    let buffer =
        |name: &str, elements, offset| Buffer { name: name.into(), dtype: DType::Bool, elements, slot: 0, offset };
    let mut buffers: Vec<Buffer> = (0..n).map(|i| buffer("tooth", 1, i * 128)).collect();
    buffers.push(buffer("all", n * 128, 0));
    let view = |buffer| View { buffer, offset: 0, strides: vec![] };
    let region = |load, store| {
        Kernel::Region(Region {
            dims: vec![],
            row_dims: 0,
            ragged: None,
            loads: vec![view(load).into()],
            steps: vec![],
            stores: vec![Store { value: Arg::Load(0), view: view(store) }],
        })
    };
    let instruction =
        |kernel| Instruction { name: "tooth".into(), stream: 0, waits: vec![], records: None, captured: false, kernel };
    plan.programs.push(Program {
        name: "comb".into(),
        slots: vec![
            Slot { name: "pieces".into(), access: Access::Read, space: Space::Device, bytes: n * 128 },
            Slot { name: "out".into(), access: Access::Update, space: Space::Device, bytes: n * 128 },
        ],
        streams: vec![StreamKind::Cube],
        events: 0,
        instructions: (0..n as u32).map(|i| instruction(region(i, i + n as u32 + 1))).collect(),
        buffers: buffers.iter().cloned().chain(buffers.iter().map(|b| Buffer { slot: 1, ..b.clone() })).collect(),
    });
    let all = |i: u32| instruction(region(n as u32 + 1 + n as u32, i));
    let program = plan.programs.last_mut().expect("just added");
    // Reads all of `out` (a different buffer than those written: refused, but only after looking at the pieces).
    program.slots.push(Slot { name: "sink".into(), access: Access::Scratch, space: Space::Device, bytes: 64 });
    program.buffers.push(Buffer { name: "sink".into(), dtype: DType::Bool, elements: 1, slot: 2, offset: 0 });
    let sink = program.buffers.len() as u32 - 1;
    program.instructions.extend((0..n).map(|_| all(sink)));
}

#[test]
fn overlapping_pieces_do_not_take_forever() {
    let mut plan = testing::tiny();
    comb(&mut plan);
    let start = Instant::now();
    assert!(verify(&plan).is_err());
    // Quadratic work would take minutes.
    assert!(start.elapsed() < Duration::from_secs(30));
}

#[test]
fn huge_numbers_neither_overflow_nor_hang() {
    let numbers = [0, 1, 63, u64::from(u32::MAX), 1 << 40, i64::MAX as u64, u64::MAX - 63, u64::MAX];
    let text = String::from_utf8(testing::tiny().to_bytes()).expect("plans are text");
    let value: serde_json::Value = serde_json::from_str(&text).expect("plans are JSON");
    let mut paths = vec![];
    mutations::numbers(&value, &mut vec![], &mut paths);
    let mut rng = testing::Rng::new(7);
    for _ in 0..2000 {
        let mut value = value.clone();
        for _ in 0..1 + rng.below(4) {
            let path = &paths[rng.below(paths.len() as u64) as usize];
            *mutations::at(&mut value, path) = rng.pick(&numbers).into();
        }
        if let Ok(plan) = mutations::parse(&value) {
            let _ = verify(&plan);
        }
    }
}

/// The same among calls: many small values, read together again and again.
#[test]
fn many_small_values_read_together_do_not_take_forever() {
    let n = 20_000u64;
    let mut plan = testing::tiny();
    let slot = |access, bytes| Slot { name: "s".into(), access, space: Space::Device, bytes };
    let buffer = |elements| Buffer { name: "b".into(), dtype: DType::F32, elements, slot: 0, offset: 0 };
    let program = |access, elements: u64, streams: &[StreamKind], kernel| Program {
        name: "p".into(),
        slots: vec![slot(access, elements * 4), slot(Access::Scratch, 64)],
        buffers: vec![buffer(elements), Buffer { slot: 1, ..buffer(1) }],
        streams: streams.to_vec(),
        events: 0,
        instructions: vec![Instruction {
            name: "i".into(),
            stream: 0,
            waits: vec![],
            records: None,
            captured: false,
            kernel,
        }],
    };
    let region = |from, to| {
        let view = |buffer| View { buffer, offset: 0, strides: vec![] };
        let stores = vec![Store { value: Arg::Const(0.0), view: view(to) }];
        let load = |from: Option<u32>| from.map(|l| view(l).into()).into_iter().collect();
        Kernel::Region(Region { dims: vec![], row_dims: 0, ragged: None, loads: load(from), steps: vec![], stores })
    };
    let first = plan.programs.len() as u32;
    plan.programs.push(program(Access::Write, 1, &[StreamKind::Cube], region(None, 0)));
    plan.programs.push(program(Access::Read, n * 16, &[StreamKind::Vector], region(Some(0), 1)));
    let base = plan.roles[0].device_bytes;
    plan.roles[0].device_bytes += (n + 1) * 64;
    let scratch = base + n * 64;
    let call = |program, at| Call { program, layer: 0, micro_batch: 0, slots: vec![at, scratch], waits: vec![] };
    let phase = &mut plan.roles[0].phases[1];
    phase.calls.extend((0..n).map(|i| call(first, base + i * 64)));
    phase.calls.extend((0..n).map(|_| call(first + 1, base)));
    phase.commit = phase.calls.len() as u32;
    let start = Instant::now();
    assert!(verify(&plan).is_err());
    assert!(start.elapsed() < Duration::from_secs(30));
}
