//! The order of programs, alone and in pairs: what moves and what does not. That no bit changes is for the tests that train.

mod snapshots;

use forebay_compiler::emit::standalone;
use forebay_compiler::overlap::{
    Lanes, Paired, Part, Passes, Same, Sender, across, across_border, capture, spread, within,
};
use forebay_compiler::shard::Strategy;
use forebay_ir::Graph;
use forebay_ir::text::{parse_module, render};
use forebay_ir::verify;
use forebay_plan::{Access, Kernel, Program};
use snapshots::snapshot;
use std::path::Path;

fn graphs(path: &Path) -> Vec<Graph> {
    let source = std::fs::read_to_string(path).expect("readable");
    let graphs =
        parse_module(&source).unwrap_or_else(|e| panic!("{}", render(&e, &source, &path.display().to_string())));
    graphs.iter().for_each(|g| verify::verify(g).unwrap_or_else(|v| panic!("{}", verify::render(g, &v))));
    graphs
}

fn lanes() -> Lanes {
    Lanes::new(&Strategy::parse("dp=2").unwrap().mesh().unwrap(), &Passes::parse("within/across").unwrap())
}

fn program(graph: &Graph) -> Program {
    let mut plan = standalone(graph);
    plan.programs.swap_remove(0)
}

/// A program of which nothing is waited for elsewhere.
fn part(program: &Program) -> Part<'_> {
    (program, &[])
}

/// An instruction a line, each in the column of its unit.
fn shown(program: &Program, lanes: &Lanes) -> String {
    let line = |instruction: &forebay_plan::Instruction| {
        let unit = format!("{:?}", lanes.of(&instruction.kernel));
        format!("  {unit:<10} {}\n", instruction.name)
    };
    let frame = program.slots.last().expect("programs have a frame").bytes;
    format!("{}, frame {frame} B\n{}", program.name, program.instructions.iter().map(line).collect::<String>())
}

#[test]
fn independent_work_moves_beside_exchanges() {
    insta::glob!("overlap/within.ir", |path| {
        let mut all = String::new();
        for graph in graphs(path) {
            let before = program(&graph);
            let mut after = before.clone();
            within(&mut after, &[], &lanes());
            let names = |p: &Program| p.instructions.iter().map(|i| i.name.clone()).collect::<Vec<_>>();
            assert_eq!(names(&before) != names(&after), graph.name.starts_with("moved"), "{}", graph.name);
            let ranges = |p: &Program| p.slots.last().unwrap().bytes;
            assert!(ranges(&after) as f64 <= ranges(&before) as f64 * 1.25, "{}", graph.name);
            all += &format!("{}{}\n", shown(&before, &lanes()), shown(&after, &lanes()));
        }
        snapshot(path, &all);
    });
}

#[test]
fn pairs_take_turns() {
    insta::glob!("overlap/across.ir", |path| {
        let mut all = String::new();
        for pair in graphs(path).chunks(2) {
            let (first, second) = (program(&pair[0]), program(&pair[1]));
            let both = across((part(&first), part(&second)), &[], &lanes());
            assert_eq!(both.is_some(), pair[0].name.starts_with("paired"), "{}", pair[0].name);
            all += &match both {
                Some(Paired { program, live, .. }) => format!("{}  live {live} B\n\n", shown(&program, &lanes())),
                None => format!("{} and {} stay apart\n\n", first.name, second.name),
            };
        }
        snapshot(path, &all);
    });
}

/// What a pair may not be: two that draw random numbers, since a call has one layer and micro-batch; memory that the second writes over what the first was to read.
#[test]
fn pairs_that_would_change_values_are_refused() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/overlap/across.ir");
    let all = graphs(&path);
    let (first, second) = (program(&all[0]), program(&all[1]));
    let slot = |p: &Program, access: Access| p.slots.iter().position(|s| s.access == access).expect("there is one");
    assert!(across((part(&first), part(&second)), &[], &lanes()).is_some());
    let same = [(slot(&first, Access::Read), slot(&second, Access::Write))];
    assert!(across((part(&first), part(&second)), &same, &lanes()).is_none(), "the second writes what the first reads");
    let same = [(slot(&first, Access::Write), slot(&second, Access::Write))];
    assert!(across((part(&first), part(&second)), &same, &lanes()).is_none(), "both write the same");
    let random = |program: &Program| {
        let mut program = program.clone();
        let out = program.buffers.len() as u32;
        let frame = program.slots.len() as u32 - 1;
        let dtype = forebay_plan::DType::I32;
        program.buffers.push(forebay_plan::Buffer { name: "key".into(), dtype, elements: 8, slot: frame, offset: 0 });
        let key = Kernel::RandomKey { out, rows: 1, per_micro_batch: 1, first_row: Default::default() };
        let instruction =
            forebay_plan::Instruction { name: "key".into(), kernel: key, ..program.instructions[0].clone() };
        program.instructions.push(instruction);
        program
    };
    assert!(across((part(&random(&first)), part(&second)), &[], &lanes()).is_some());
    assert!(
        across((part(&random(&first)), part(&random(&second))), &[], &lanes()).is_none(),
        "both draw random numbers"
    );
}

/// A program that passes a value of as many bytes as a slot to another stage, or gets it from there.
fn message(of: &Program, slot: usize, sends: bool) -> Program {
    let slot = of.slots[slot].clone();
    let access = if sends { Access::Read } else { Access::Write };
    let buffer = of.buffers.iter().find(|b| b.bytes() == slot.bytes).expect("a value fills the slot").clone();
    let message = forebay_plan::Message {
        dtype: buffer.dtype,
        buffer: 0,
        elements: buffer.elements,
        dim: 0,
        peer: 1,
        channel: u32::from(sends),
    };
    let kernel = if sends { Kernel::Send(message) } else { Kernel::Recv(message) };
    let (name, frame) = (if sends { "send" } else { "receive" }, of.slots.last().expect("a frame"));
    let instruction = forebay_plan::Instruction { name: name.into(), kernel, ..of.instructions[0].clone() };
    Program {
        name: name.into(),
        slots: vec![forebay_plan::Slot { access, ..slot }, forebay_plan::Slot { bytes: 0, ..frame.clone() }],
        buffers: vec![forebay_plan::Buffer { name: "x".into(), slot: 0, offset: 0, ..buffer }],
        instructions: vec![instruction],
        ..of.clone()
    }
}

/// The last layer of a pass, its message, that of the next pass and its first layer.
#[test]
fn borders_are_crossed_beside_exchanges() {
    insta::glob!("overlap/border.ir", |path| {
        let mut all = String::new();
        for pair in graphs(path).chunks(2) {
            let (last, first) = (program(&pair[0]), program(&pair[1]));
            let of = |p: &Program, name: &str| {
                p.buffers.iter().find(|b| b.name == name).expect("there is one").slot as usize
            };
            let (result, input) = (of(&last, &pair[0].node(pair[0].outputs[0].value).name), of(&first, "x"));
            let (send, receive) = (message(&last, result, true), message(&first, input, false));
            let awaited = [result];
            let parts = [(&last, &awaited[..]), part(&send), part(&receive), part(&first)];
            // Slots of the last layer, without its frame; what is sent is one of them; what is received; the first layer's.
            let received = last.slots.len() - 1;
            let same: [Vec<Same>; 3] = [vec![(result, 0)], vec![], vec![(received, input)]];
            let one = across_border(&parts, &same, Sender::First, &lanes());
            assert_eq!(one.is_some(), pair[0].name.starts_with("crossed"), "{}", pair[0].name);
            all += &match one {
                Some(Paired { program, live, .. }) => format!("{}  live {live} B\n\n", shown(&program, &lanes())),
                None => format!("{} and {} stay apart\n\n", last.name, first.name),
            };
        }
        snapshot(path, &all);
    });
}

/// The last two layers of a backward pass.
#[test]
fn gradients_of_parameters_come_behind_what_is_sent() {
    insta::glob!("overlap/hurry.ir", |path| {
        let mut all = String::new();
        for pair in graphs(path).chunks(2) {
            let (before, last) = (program(&pair[0]), program(&pair[1]));
            let of = |p: &Program, name: &str| {
                p.buffers.iter().find(|b| b.name == name).expect("there is one").slot as usize
            };
            let awaited = [[of(&before, "gx")], [of(&last, "gx")]];
            let parts = [(&before, &awaited[0][..]), (&last, &awaited[1][..])];
            let same: [Vec<Same>; 1] = [vec![(of(&before, "gx"), of(&last, "gy"))]];
            let one = across_border(&parts, &same, Sender::Last, &lanes());
            assert_eq!(one.is_some(), pair[0].name.starts_with("hurried"), "{}", pair[0].name);
            all += &match one {
                Some(Paired { program, live, .. }) => format!("{}  live {live} B\n\n", shown(&program, &lanes())),
                None => format!("{} and {} stay apart\n\n", before.name, last.name),
            };
        }
        snapshot(path, &all);
    });
}

/// What is launched with the instruction before it has a `+`; each region has one launch.
#[test]
fn what_nothing_comes_between_is_launched_as_one() {
    insta::glob!("overlap/capture.ir", |path| {
        let mut all = String::new();
        for graph in graphs(path) {
            let mut plan = standalone(&graph);
            plan.mesh = vec![forebay_plan::MeshDim { name: "dp".into(), size: 2 }];
            spread(&mut plan, &lanes());
            let before = plan.clone();
            capture(&mut plan);
            let captured = plan.programs[0].instructions.iter().filter(|i| i.captured).count();
            assert_eq!(captured == 0, graph.name.starts_with("near_miss"), "{}", graph.name);
            all += &format!("{}\n", forebay_plan::print::program(&plan.programs[0]));
            // Nothing else changes.
            plan.programs[0].instructions.iter_mut().for_each(|i| i.captured = false);
            assert_eq!(plan, before);
        }
        snapshot(path, &all);
    });
}
