//! The order of programs, alone and in pairs: what moves and what does not. That no bit changes is for the tests that train.

use crate::snapshots;

use forebay_compiler::emit::{Joins, standalone};
use forebay_compiler::overlap::{
    Clock, Lanes, Paired, Part, Passes, Same, Sender, Times, across, across_border, capture, spread, within,
};
use forebay_compiler::shard::Strategy;
use forebay_ir::text::{parse_module, render};
use forebay_ir::verify;
use forebay_ir::{Graph, OutputRole, ValueId};
use forebay_plan::verify::Rule;
use forebay_plan::verify::order::summarise;
use forebay_plan::{Access, Kernel, Program, StreamKind};
use snapshots::snapshot;
use std::path::{Path, PathBuf};

fn graphs(path: &Path) -> Vec<Graph> {
    let source = std::fs::read_to_string(path).expect("readable");
    let graphs =
        parse_module(&source).unwrap_or_else(|e| panic!("{}", render(&e, &source, &path.display().to_string())));
    graphs.iter().for_each(|g| verify::verify(g).unwrap_or_else(|v| panic!("{}", verify::render(g, &v))));
    graphs
}

/// The units of two data-parallel ranks, whose vector units do what cubes do.
fn lanes() -> Lanes {
    lanes_of("dp=2", "within/across")
}

fn lanes_of(strategy: &str, passes: &str) -> Lanes {
    lanes_by(Clock::default(), strategy, passes)
}

fn lanes_by(clock: Clock, strategy: &str, passes: &str) -> Lanes {
    Lanes::new(&Strategy::parse(strategy).unwrap().mesh().unwrap(), &Passes::parse(passes).unwrap(), clock)
}

/// The units of the ranks that a graph is for.
fn lanes_for(graph: &Graph, passes: &str) -> Lanes {
    let dims: Vec<String> = graph.mesh.iter().map(|dim| format!("{}={}", dim.name, dim.size)).collect();
    lanes_of(&dims.join(","), passes)
}

fn program(graph: &Graph) -> Program {
    let mut plan = standalone(graph, Joins::All);
    plan.programs.swap_remove(0)
}

/// The same with states changed where they are: what a program reads of one and what it makes of it have one slot.
fn in_place(graph: &Graph) -> Program {
    let mut program = program(graph);
    for output in graph.outputs.iter().filter(|output| output.role == OutputRole::State) {
        let at = |name: &str| program.slots.iter().position(|slot| slot.name == name);
        let read = at(&format!("in.{}", output.name)).expect("a state is an input");
        let end = format!(".{}", output.name);
        let written = program.slots.iter().position(|s| s.access == Access::Write && s.name.ends_with(&end));
        let written = written.expect("a state is an output");
        program.slots[read].access = Access::Update;
        program.slots.remove(written);
        for buffer in &mut program.buffers {
            match buffer.slot as usize {
                slot if slot == written => buffer.slot = read as u32,
                slot if slot > written => buffer.slot -= 1,
                _ => {}
            }
        }
    }
    program
}

/// A program by itself, on the streams of its units.
fn spread_alone(program: &Program, lanes: &Lanes) -> Program {
    let graph = &graphs(&file("within"))[0];
    let mut plan = standalone(graph, Joins::All);
    plan.mesh = vec![forebay_plan::MeshDim { name: "dp".into(), size: 2 }];
    let phase = &mut plan.roles[0].phases[0];
    // Places of slots do not matter to what is within.
    phase.calls[0].slots = (0..program.slots.len() as u64).map(|n| n << 40).collect();
    plan.programs[0] = program.clone();
    spread(&mut plan, lanes);
    plan.programs.swap_remove(0)
}

/// What the verifier of plans finds in a program by itself.
fn found(program: &Program) -> Vec<Rule> {
    let mut rules: Vec<Rule> = summarise(program).err().into_iter().flatten().map(|v| v.rule).collect();
    rules.dedup();
    rules
}

fn names(program: &Program) -> Vec<&str> {
    program.instructions.iter().map(|i| i.name.as_str()).collect()
}

fn position(program: &Program, name: &str) -> usize {
    names(program).iter().position(|n| *n == name).unwrap_or_else(|| panic!("no instruction {name}"))
}

/// Moves an instruction to a place in front of it.
fn moved(program: &Program, from: usize, to: usize) -> Program {
    let mut program = program.clone();
    let instruction = program.instructions.remove(from);
    program.instructions.insert(to, instruction);
    program
}

fn file(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("tests/overlap/{name}.ir"))
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

/// Several programs that have become one.
fn as_one(Paired { program, live, awaited }: &Paired) -> String {
    let awaited: Vec<&str> = awaited.iter().map(|&slot| program.slots[slot].name.as_str()).collect();
    format!("{}  live {live} B, waited for: {}\n\n", shown(program, &lanes()), awaited.join(", "))
}

/// The slots of what a program makes.
fn results(program: &Program) -> Vec<usize> {
    (0..program.slots.len()).filter(|&at| program.slots[at].access == Access::Write).collect()
}

#[test]
fn independent_work_moves_beside_exchanges() {
    insta::glob!("overlap/within.ir", |path| {
        let mut all = String::new();
        for graph in graphs(path) {
            let lanes = lanes_for(&graph, "within");
            let before = in_place(&graph);
            let mut after = before.clone();
            let awaited: Vec<usize> =
                (0..before.slots.len()).filter(|&at| before.slots[at].name.ends_with(".awaited")).collect();
            within(&mut after, &awaited, &lanes);
            assert_eq!(names(&before) != names(&after), graph.name.starts_with("moved"), "{}", graph.name);
            let frame = |p: &Program| p.slots.last().expect("a frame").bytes;
            assert!(frame(&after) <= 2 * frame(&before), "{}: a frame is at most twice what it was", graph.name);
            all += &format!("{}{}\n", shown(&before, &lanes), shown(&after, &lanes));
        }
        snapshot(path, &all);
    });
}

/// A state with memory of its own keeps nothing back: what keeps the order is the slot that both change and read.
#[test]
fn what_is_read_is_not_written_over_before() {
    let all = graphs(&file("within"));
    let graph = all.iter().find(|g| g.name == "kept_state").expect("it is there");
    let mut apart = program(graph);
    within(&mut apart, &[], &lanes());
    assert_eq!(names(&apart), ["h", "sum", "new", "old"]);
}

/// Whatever is put in front of something whose result it reads is found, on whichever streams both are.
#[test]
fn orders_that_values_forbid_are_found() {
    let mut tried = 0;
    for name in ["within", "vector"] {
        for (graph, passes) in graphs(&file(name)).iter().flat_map(|g| ["within", "vector/within"].map(|p| (g, p))) {
            let lanes = lanes_for(graph, passes);
            let mut program = in_place(graph);
            within(&mut program, &[], &lanes);
            let program = spread_alone(&program, &lanes);
            assert_eq!(found(&program), [], "{}", graph.name);
            for at in 0..program.instructions.len() {
                let reads: Vec<u32> = program.instructions[at].kernel.reads().collect();
                let made = |before: &usize| program.instructions[*before].kernel.writes().any(|w| reads.contains(&w));
                for before in (0..at).filter(made) {
                    let broken = moved(&program, at, before);
                    assert_ne!(found(&broken), [], "{}: {:?}", graph.name, names(&broken));
                    tried += 1;
                }
            }
        }
    }
    assert!(tried > 20, "{tried} orders");
}

/// Programs with events: an order of instructions that wait for each other is no longer free.
#[test]
fn programs_with_events_are_left_as_they_are() {
    let with_events = |graph: &Graph| spread_alone(&program(graph), &lanes());
    let moves = with_events(&graphs(&file("within"))[0]);
    let mut after = moves.clone();
    assert!(within(&mut after, &[], &lanes()).is_none() && after == moves, "{:?}", names(&after));
    let pair = graphs(&file("across"));
    let [first, second] = [program(&pair[0]), program(&pair[1])];
    for (a, b) in [(with_events(&pair[0]), second), (first, with_events(&pair[1]))] {
        assert!(across((part(&a), part(&b)), &[], &lanes()).is_none());
        let parts = [part(&a), part(&b)];
        assert!(across_border(&parts, &[vec![], vec![]], Sender::First, &lanes()).is_none());
    }
    // Nor are there borders of one program.
    assert!(across_border(&[part(&program(&pair[0]))], &[vec![]], Sender::Last, &lanes()).is_none());
}

/// For each instruction: has each one before it surely ended when it begins?
fn ended(program: &Program) -> Vec<Vec<bool>> {
    let mut ended: Vec<Vec<bool>> = vec![];
    for (at, instruction) in program.instructions.iter().enumerate() {
        let waits_for = |before: &usize| {
            let other = &program.instructions[*before];
            other.stream == instruction.stream || other.records.is_some_and(|event| instruction.waits.contains(&event))
        };
        let mut before = vec![false; at];
        for known in (0..at).filter(waits_for).collect::<Vec<_>>() {
            before[known] = true;
            before.iter_mut().zip(&ended[known]).for_each(|(mine, theirs)| *mine |= theirs);
        }
        ended.push(before);
    }
    ended
}

/// Elementwise work has a stream of its own, and waits for products no longer than values ask for. On a device whose units are one, it stays where it is.
#[test]
fn elementwise_work_runs_beside_products() {
    insta::glob!("overlap/vector.ir", |path| {
        let mut all = String::new();
        for graph in graphs(path) {
            let two = lanes_for(&graph, "vector/within");
            let mut program = in_place(&graph);
            within(&mut program, &[], &two);
            let program = spread_alone(&program, &two);
            assert_eq!(found(&program), [], "{}", graph.name);
            let unit = |at: usize| program.streams[program.instructions[at].stream as usize];
            let mut beside = vec![];
            for (at, ended) in ended(&program).iter().enumerate() {
                for before in (0..at).filter(|&before| !ended[before] && unit(before) != unit(at)) {
                    let [a, b] = [before, at].map(|at| &program.instructions[at].name);
                    beside.push(format!("{a} beside {b}"));
                }
            }
            assert_eq!(!beside.is_empty(), graph.name.starts_with("beside"), "{}: {beside:?}", graph.name);
            all += &format!("{}{}\n\n", forebay_plan::print::program(&program), beside.join(", "));
            // Each wait is for something.
            for at in 0..program.instructions.len() {
                for wait in 0..program.instructions[at].waits.len() {
                    let mut broken = program.clone();
                    broken.instructions[at].waits.remove(wait);
                    assert_eq!(found(&broken), [Rule::Ordered], "{} {at}", graph.name);
                }
            }
            // A plan for one rank has one stream.
            let rank = lanes_of("micro=1", "vector/within");
            assert!(program.instructions.iter().all(|i| rank.of(&i.kernel) != StreamKind::Vector), "{}", graph.name);
            // Nor is there another one where one unit does all: without exchanges nothing changes at all.
            let before = in_place(&graph);
            let one = lanes_for(&graph, "within");
            let mut after = before.clone();
            let changed = within(&mut after, &[], &one).is_some();
            let alone = spread_alone(&after, &one);
            assert!(!alone.streams.contains(&StreamKind::Vector), "{}: one unit", graph.name);
            let is_free = alone.streams.len() > 1;
            assert!(is_free || (!changed && after == before && alone.events == 0), "{}: one unit", graph.name);
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
            let made = [&first, &second].map(results);
            let both = across(((&first, &made[0]), (&second, &made[1])), &[], &lanes());
            assert_eq!(both.is_some(), pair[0].name.starts_with("paired"), "{}", pair[0].name);
            all += &match both {
                Some(paired) => as_one(&paired),
                None => format!("{} and {} stay apart\n\n", first.name, second.name),
            };
        }
        snapshot(path, &all);
    });
}

/// Seconds of whatever moves something between ranks, of everything else, and of each that is hidden.
#[derive(Debug)]
struct Simple {
    exchange: f64,
    other: f64,
    slowdown: f64,
}

impl Times for Simple {
    fn instructions(&self, program: &Program, _: &Lanes) -> Vec<f64> {
        let moves = |kernel: &Kernel| matches!(kernel, Kernel::Exchange(_) | Kernel::AllToAllV(_));
        program.instructions.iter().map(|i| if moves(&i.kernel) { self.exchange } else { self.other }).collect()
    }

    fn value(&self, _: &Graph, _: ValueId, _: &Lanes) -> f64 {
        unreachable!("programs are no graphs")
    }

    fn start(&self) -> f64 {
        0.0
    }

    fn memory_rate(&self) -> f64 {
        f64::INFINITY
    }

    fn slowdown(&self) -> f64 {
        self.slowdown
    }
}

/// What is a pair depends on the device: there is none where exchanges take no time, and none where what is hidden is lost again.
#[test]
fn pairs_are_for_a_device() {
    let all = graphs(&file("across"));
    let (first, second) = (program(&all[0]), program(&all[1]));
    for (exchange, slowdown, is_worth) in
        [(1.0, 0.0, true), (0.0, 0.0, false), (1.0, 1.0, false), (10_000.0, 0.0, false)]
    {
        let clock = Clock::new(Simple { exchange, other: 1.0, slowdown });
        let paired = across((part(&first), part(&second)), &[], &lanes_by(clock, "dp=2", "within/across"));
        assert_eq!(paired.is_some(), is_worth, "exchanges of {exchange} s, {slowdown} lost");
    }
}

/// A program that draws random numbers besides.
fn random(program: &Program) -> Program {
    let mut program = program.clone();
    let out = program.buffers.len() as u32;
    let frame = program.slots.len() as u32 - 1;
    let dtype = forebay_plan::DType::I32;
    program.buffers.push(forebay_plan::Buffer { name: "key".into(), dtype, elements: 8, slot: frame, offset: 0 });
    let key = Kernel::RandomKey { out, rows: 1, per_micro_batch: 1, first_row: Default::default() };
    let instruction = forebay_plan::Instruction { name: "key".into(), kernel: key, ..program.instructions[0].clone() };
    program.instructions.push(instruction);
    program
}

/// What a pair may not be: two that draw random numbers, since a call has one layer and micro-batch; memory that the second writes over what the first was to read.
#[test]
fn pairs_that_would_change_values_are_refused() {
    let all = graphs(&file("across"));
    let (first, second) = (program(&all[0]), program(&all[1]));
    let slot = |p: &Program, access: Access| p.slots.iter().position(|s| s.access == access).expect("there is one");
    assert!(across((part(&first), part(&second)), &[], &lanes()).is_some());
    let same = [(slot(&first, Access::Read), slot(&second, Access::Write))];
    assert!(across((part(&first), part(&second)), &same, &lanes()).is_none(), "the second writes what the first reads");
    let same = [(slot(&first, Access::Write), slot(&second, Access::Write))];
    assert!(across((part(&first), part(&second)), &same, &lanes()).is_none(), "both write the same");
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

/// The slot of a buffer.
fn slot_of(program: &Program, name: &str) -> usize {
    program.buffers.iter().find(|b| b.name == name).expect("there is one").slot as usize
}

/// The last layer of a pass, its message, that of the next pass and its first layer; and which of their slots are the same.
fn at_border(pair: &[Graph]) -> ([Program; 4], [Vec<Same>; 3], [usize; 1]) {
    let (last, first) = (program(&pair[0]), program(&pair[1]));
    let result = slot_of(&last, &pair[0].node(pair[0].outputs[0].value).name);
    let input = slot_of(&first, "x");
    let (send, receive) = (message(&last, result, true), message(&first, input, false));
    // Slots of the last layer, without its frame; what is sent is one of them; what is received; the first layer's.
    let received = last.slots.len() - 1;
    ([last, send, receive, first], [vec![(result, 0)], vec![], vec![(received, input)]], [result])
}

fn crossed([last, send, receive, first]: &[Program; 4], same: &[Vec<Same>; 3], awaited: &[usize]) -> Option<Paired> {
    across_border(&[(last, awaited), part(send), part(receive), part(first)], same, Sender::First, &lanes())
}

#[test]
fn borders_are_crossed_beside_exchanges() {
    insta::glob!("overlap/border.ir", |path| {
        let mut all = String::new();
        for pair in graphs(path).chunks(2) {
            let (programs, same, awaited) = at_border(pair);
            let one = crossed(&programs, &same, &awaited);
            assert_eq!(one.is_some(), pair[0].name.starts_with("crossed"), "{}", pair[0].name);
            let [last, .., first] = &programs;
            all += &match one {
                Some(paired) => as_one(&paired),
                None => format!("{} and {} stay apart\n\n", last.name, first.name),
            };
        }
        snapshot(path, &all);
    });
}

/// What a border may not be: layers that draw random numbers both, since a call has one layer and micro-batch; memory that the next pass writes over what this one was to read, or makes as well.
#[test]
fn borders_that_would_change_values_are_refused() {
    let (programs, same, awaited) = at_border(&graphs(&file("border"))[..2]);
    assert!(crossed(&programs, &same, &awaited).is_some());
    let [last, send, receive, first] = programs.clone();
    let one_draws = [last.clone(), send.clone(), receive.clone(), random(&first)];
    assert!(crossed(&one_draws, &same, &awaited).is_some(), "one draws");
    let both_draw = [random(&last), send, receive, random(&first)];
    assert!(crossed(&both_draw, &same, &awaited).is_none(), "both draw");
    let slot = |p: &Program, access: Access| p.slots.iter().position(|s| s.access == access).expect("there is one");
    let written = slot(&first, Access::Write);
    for (of_last, why) in [(Access::Read, "what is still to be read"), (Access::Write, "what is made twice")] {
        let mut same = same.clone();
        same[2].push((slot(&last, of_last), written));
        assert!(crossed(&programs, &same, &awaited).is_none(), "{why}");
    }
}

/// Two messages through one channel: whoever takes them out goes by the order in which they were sent. The second could leave at once, and stays behind the first.
#[test]
fn messages_of_a_channel_keep_their_order() {
    let pair = graphs(&file("border"));
    let (last, next) = (program(&pair[0]), program(&pair[1]));
    let result = slot_of(&last, "y");
    // What the layer got is passed on: the message is for nobody here to wait for.
    let (first, second) = (message(&last, result, true), message(&last, slot_of(&last, "x"), true));
    let sends = |second: &Program| {
        let parts = [(&last, &[][..]), part(&first), part(second), part(&next)];
        let same = [vec![(result, 0)], vec![], vec![]];
        let one = across_border(&parts, &same, Sender::First, &lanes()).expect("it is worth it").program;
        let sends = one.instructions.iter().filter_map(|i| match &i.kernel {
            Kernel::Send(m) => Some((one.buffers[m.buffer as usize].name.clone(), m.channel)),
            _ => None,
        });
        sends.collect::<Vec<_>>()
    };
    let named = |mut message: Program, channel: u32| {
        message.buffers[0].name = "passed on".into();
        let Kernel::Send(m) = &mut message.instructions[0].kernel else { panic!("it sends") };
        m.channel = channel;
        message
    };
    assert_eq!(sends(&named(second.clone(), 1))[1].0, "passed on", "one channel");
    assert_eq!(sends(&named(second, 2))[0].0, "passed on", "each its own channel");
}

/// Two messages that come through one channel are taken out in the order in which they were sent, though the second is needed first.
#[test]
fn messages_that_come_keep_their_order() {
    let pair = graphs(&file("border"));
    let (last, next) = (program(&pair[0]), program(&pair[1]));
    let input = slot_of(&next, "x");
    let comes = |name: &str, channel: u32| {
        let mut message = message(&next, input, false);
        message.instructions[0].name = name.into();
        let Kernel::Recv(m) = &mut message.instructions[0].kernel else { panic!("it receives") };
        m.channel = channel;
        message
    };
    let received = |channel: u32| {
        let (late, soon) = (comes("late", channel), comes("soon", 1));
        let parts = [part(&last), part(&late), part(&soon), part(&next)];
        let same = [vec![], vec![], vec![(last.slots.len(), input)]];
        let one = across_border(&parts, &same, Sender::First, &lanes()).expect("it is worth it").program;
        position(&one, "late") < position(&one, "soon")
    };
    assert!(received(1), "one channel");
    assert!(!received(2), "each its own channel");
}

/// A message that leaves before it is made, and one that is read before it has come, are found in the program that was made of both passes.
#[test]
fn messages_out_of_turn_are_found() {
    let (programs, same, awaited) = at_border(&graphs(&file("border"))[..2]);
    let one = crossed(&programs, &same, &awaited).expect("it is crossed").program;
    let one = spread_alone(&one, &lanes());
    assert_eq!(found(&one), []);
    for (name, before) in [("send", "y"), ("next", "receive")] {
        let broken = moved(&one, position(&one, name), position(&one, before));
        assert_ne!(found(&broken), [], "{name} in front of {before}");
        // Not even the wait is missed, but the value.
        let mut broken = broken;
        broken.instructions.iter_mut().for_each(|i| i.waits.clear());
        assert!(found(&broken).contains(&Rule::Ordered) || found(&broken).contains(&Rule::Defined), "{name}");
    }
}

/// The last two layers of a backward pass.
#[test]
fn gradients_of_parameters_come_behind_what_is_sent() {
    insta::glob!("overlap/hurry.ir", |path| {
        let mut all = String::new();
        for pair in graphs(path).chunks(2) {
            let (before, last) = (program(&pair[0]), program(&pair[1]));
            let awaited = [[slot_of(&before, "gx")], [slot_of(&last, "gx")]];
            let parts = [(&before, &awaited[0][..]), (&last, &awaited[1][..])];
            let same: [Vec<Same>; 1] = [vec![(slot_of(&before, "gx"), slot_of(&last, "gy"))]];
            let one = across_border(&parts, &same, Sender::Last, &lanes());
            assert_eq!(one.is_some(), pair[0].name.starts_with("hurried"), "{}", pair[0].name);
            all += &match one {
                Some(paired) => as_one(&paired),
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
            let mut plan = standalone(&graph, Joins::All);
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

/// Nothing more can be launched as one: whatever else is marked is found, be it that it waits, that it begins a stream, or that something is told of the one before it.
#[test]
fn regions_that_reach_over_events_are_found() {
    let mut tried = 0;
    for graph in graphs(&file("capture")) {
        let mut plan = standalone(&graph, Joins::All);
        plan.mesh = vec![forebay_plan::MeshDim { name: "dp".into(), size: 2 }];
        spread(&mut plan, &lanes());
        capture(&mut plan);
        let program = &plan.programs[0];
        assert_eq!(found(program), [], "{}", graph.name);
        for at in (0..program.instructions.len()).filter(|&at| !program.instructions[at].captured) {
            let mut broken = program.clone();
            broken.instructions[at].captured = true;
            assert_eq!(found(&broken), [Rule::Captured], "{} {at}", graph.name);
            tried += 1;
        }
    }
    assert!(tried > 5, "{tried} instructions");
}

/// Illegal to capture: what the host does. It begins when the host has come to it, and no launch of the device stands for that.
#[test]
fn what_the_host_does_is_not_launched() {
    let graph = &graphs(&file("capture"))[0];
    let of = |kind: StreamKind| {
        let mut plan = standalone(graph, Joins::All);
        plan.programs[0].streams = vec![kind];
        capture(&mut plan);
        plan.programs.swap_remove(0)
    };
    let captured = |p: &Program| p.instructions.iter().map(|i| i.captured).collect::<Vec<_>>();
    assert_eq!(captured(&of(StreamKind::Cube)), [false, true, true]);
    let mut host = of(StreamKind::Host);
    assert_eq!(captured(&host), [false; 3]);
    host.instructions[1].captured = true;
    assert_eq!(found(&host), [Rule::Captured]);
}

/// Illegal to capture: a program whose events are still to come. What is told of an instruction within a region is found.
#[test]
fn regions_are_of_final_events() {
    let all = graphs(&file("capture"));
    let graph = all.iter().find(|g| g.name == "between_events").expect("it is there");
    let mut early = standalone(graph, Joins::All);
    capture(&mut early);
    let mut program = spread_alone(&program(graph), &lanes());
    let marked = program.instructions.iter_mut().zip(&early.programs[0].instructions);
    marked.for_each(|(instruction, early)| instruction.captured = early.captured);
    assert_eq!(found(&program), [Rule::Captured]);
}
