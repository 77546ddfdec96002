//! Ranks as threads of one process and of several: every collective against the naive one, bit for bit, and what happens when a rank gives up.

use super::fleet::{Fleet, Way, ways};
use crate::exec::ExecOptions;
use crate::hash;
use forebay_plan::testing::{RoleScript, exchange, ranks};
use forebay_plan::*;
use std::time::{Duration, Instant};

const SIZES: [u32; 6] = [1, 2, 3, 4, 6, 8];

fn fleet(plan: &Plan, way: Way, threads: usize) -> Fleet<'_> {
    Fleet::new(plan, way, ExecOptions { threads, seed: 5, stall: Duration::from_secs(20), ..ExecOptions::default() })
}

fn elements<T>(bytes: &[u8], from: fn([u8; 4]) -> T) -> Vec<T> {
    bytes.chunks_exact(4).map(|c| from(c.try_into().expect("four bytes"))).collect()
}

/// So many values of a type that are no round numbers, as bytes.
fn values(dtype: DType, n: usize, key: u64) -> Vec<u8> {
    let one = |i: u64| {
        let bits = hash::at(key, i);
        let value = hash::unit(bits) * 2.0 - 0.7;
        match dtype {
            DType::F32 => (value as f32).to_ne_bytes().to_vec(),
            DType::F64 => value.to_ne_bytes().to_vec(),
            DType::Bf16 => half::bf16::from_f64(value).to_ne_bytes().to_vec(),
            DType::I32 => (bits as i32).to_ne_bytes().to_vec(),
            DType::I16 => (bits as i16).to_ne_bytes().to_vec(),
            DType::Bool => vec![(bits & 1) as u8],
        }
    };
    (0..n as u64).flat_map(one).collect()
}

/// The sum of elements in their order, as the format defines it.
fn sum(dtype: DType, elements: &[&[u8]]) -> Vec<u8> {
    macro_rules! sum {
        ($t:ty, $plus:expr) => {{
            let all = elements.iter().map(|e| <$t>::from_ne_bytes((*e).try_into().expect("an element")));
            all.reduce($plus).expect("there are sources").to_ne_bytes().to_vec()
        }};
    }
    match dtype {
        DType::F32 => sum!(f32, |a, b| a + b),
        DType::F64 => sum!(f64, |a, b| a + b),
        DType::I32 => sum!(i32, i32::wrapping_add),
        DType::Bf16 => {
            let all = elements.iter().map(|e| half::bf16::from_ne_bytes((*e).try_into().expect("two bytes")).to_f32());
            half::bf16::from_f32(all.reduce(|a, b| a + b).expect("there are sources")).to_ne_bytes().to_vec()
        }
        DType::I16 | DType::Bool => unreachable!("not combined"),
    }
}

/// `out[d]` for each rank d, from x of each rank of the group of d: `members(d)` in order, `me(d)` its own number.
fn naive(
    kind: ExchangeKind,
    dtype: DType,
    piece: usize,
    x: &[Vec<u8>],
    members: &dyn Fn(usize) -> (Vec<usize>, usize),
) -> Vec<u8> {
    let width = dtype.bytes() as usize;
    let scattered = matches!(kind, ExchangeKind::AllToAll | ExchangeKind::ReduceScatter);
    let mut all = vec![];
    for rank in 0..x.len() {
        let (members, me) = members(rank);
        let first = if scattered { me * piece * width } else { 0 };
        let pieces: Vec<&[u8]> = members.iter().map(|m| &x[*m][first..first + piece * width]).collect();
        if matches!(kind, ExchangeKind::AllReduce | ExchangeKind::ReduceScatter) {
            for i in 0..piece {
                let elements: Vec<&[u8]> = pieces.iter().map(|p| &p[i * width..(i + 1) * width]).collect();
                all.extend(sum(dtype, &elements));
            }
        } else if kind == ExchangeKind::Shift {
            all.extend_from_slice(pieces[(me + members.len() - 1) % members.len()]);
        } else {
            pieces.iter().for_each(|p| all.extend_from_slice(p));
        }
    }
    all
}

const KINDS: [ExchangeKind; 5] = [
    ExchangeKind::AllGather,
    ExchangeKind::AllToAll,
    ExchangeKind::AllReduce,
    ExchangeKind::ReduceScatter,
    ExchangeKind::Shift,
];

/// What is exchanged: how, of what, and elements of a piece.
type Case = (ExchangeKind, DType, usize);

/// Runs one exchange over a group and compares.
fn compare(mesh: &[(&str, u32)], group: &[u32], (kind, dtype, piece): Case, way: Way, threads: usize) {
    let n: u64 = group.iter().map(|d| u64::from(mesh[*d as usize].1)).product();
    let scattered = matches!(kind, ExchangeKind::AllToAll | ExchangeKind::ReduceScatter);
    let combined = matches!(kind, ExchangeKind::AllReduce | ExchangeKind::ReduceScatter);
    let piece64 = piece as u64;
    let one = combined || kind == ExchangeKind::Shift;
    let (x, out) = (if scattered { n * piece64 } else { piece64 }, if one { piece64 } else { n * piece64 });
    let script = RoleScript {
        name: "r".into(),
        coordinates: mesh.iter().map(|(_, size)| (0, *size)).collect(),
        arrays: vec![("x", dtype, x, Access::Read), ("out", dtype, out, Access::Write)],
        kernels: vec![exchange(group, n, kind, dtype, piece64, 0, 1)],
    };
    let plan = ranks(mesh, vec![script]);
    let mut fleet = fleet(&plan, way, threads);
    let count = fleet.executors[0].ranks();
    let given = values(dtype, count * x as usize, 77);
    fleet.set("r.x", &given);
    // Twice: nothing is left over from the first time.
    (0..2).for_each(|_| fleet.runs());
    let x: Vec<Vec<u8>> = given.chunks(given.len() / count).map(<[u8]>::to_vec).collect();
    let places: Vec<Vec<u32>> = (0..count as u32).map(|r| super::coordinates(&plan.mesh, r)).collect();
    let members = |rank: usize| {
        let alike = |other: &usize| {
            let dims = 0..mesh.len() as u32;
            dims.filter(|d| !group.contains(d)).all(|d| places[*other][d as usize] == places[rank][d as usize])
        };
        let mut members: Vec<usize> = (0..count).filter(alike).collect();
        members.sort_by_key(|m| group.iter().map(|d| places[*m][*d as usize]).collect::<Vec<_>>());
        let me = members.iter().position(|m| *m == rank).expect("it is a member");
        (members, me)
    };
    let wanted = naive(kind, dtype, piece, &x, &members);
    assert!(fleet.get("r.out") == wanted, "{mesh:?} {group:?} {kind:?} {dtype} {piece} {way:?}");
}

#[test]
fn collectives_are_what_they_are_called() {
    for ranks in SIZES {
        for kind in KINDS {
            for dtype in [DType::F32, DType::F64, DType::Bf16, DType::I32] {
                compare(&[("dp", ranks)], &[0], (kind, dtype, 7), Way::Threads, 1);
            }
            for way in ways(ranks) {
                compare(&[("dp", ranks)], &[0], (kind, DType::F32, 5), way, 1);
                // Long enough to be shared out.
                compare(&[("dp", ranks)], &[0], (kind, DType::Bf16, 20_001), way, 2 * ranks as usize);
            }
        }
    }
}

#[test]
fn groups_are_those_that_agree_in_all_other_coordinates() {
    let mesh = [("pp", 2), ("dp", 2), ("tp", 2)];
    for group in [&[0][..], &[1], &[2], &[0, 2], &[2, 0], &[1, 2], &[2, 1, 0], &[]] {
        for kind in KINDS {
            for way in [Way::Threads, Way::Processes(3)] {
                compare(&mesh, group, (kind, DType::F32, 3), way, 2);
            }
        }
    }
}

/// Columns of a matrix from everyone, beside each other, transposed on the way.
#[test]
fn pieces_have_strides() {
    let n = 3u64;
    let (rows, columns) = (5u64, 4u64);
    let gather = Exchange {
        dtype: DType::I32,
        group: vec![0],
        ranks: n,
        x: 0,
        out: 1,
        dims: vec![rows, columns],
        x_offset: 2,
        out_offset: 1,
        x_strides: vec![columns, 1],
        x_step: 0,
        out_strides: vec![1, n * rows],
        out_step: rows,
        reduce: None,
        shift: 0,
        ragged: None,
    };
    let script = RoleScript {
        name: "r".into(),
        coordinates: vec![(0, 3)],
        arrays: vec![
            ("x", DType::I32, 2 + rows * columns, Access::Read),
            ("out", DType::I32, 1 + n * rows * columns, Access::Update),
        ],
        kernels: vec![Kernel::Exchange(gather)],
    };
    let plan = ranks(&[("tp", 3)], vec![script]);
    let x: Vec<i32> = (0..3 * (2 + rows * columns) as i32).collect();
    let width = (1 + n * rows * columns) as usize;
    for way in ways(3) {
        let mut fleet = fleet(&plan, way, 3);
        fleet.set("r.x", bytemuck::cast_slice(&x));
        fleet.runs();
        let out = elements(&fleet.get("r.out"), i32::from_ne_bytes);
        for rank in 0..3 {
            let at = |i: u64| out[rank * width + i as usize];
            assert_eq!(at(0), 0);
            for (s, i, j) in (0..n).flat_map(|s| (0..rows).flat_map(move |i| (0..columns).map(move |j| (s, i, j)))) {
                let wanted = x[(s * (2 + rows * columns) + 2 + i * columns + j) as usize];
                assert_eq!(at(1 + s * rows + i + j * n * rows), wanted, "{way:?}");
            }
        }
    }
}

/// Rows of two groups, of which `bound` have room, each a part of everyone's columns: put together, added up, added up in parts.
fn ragged(n: u32, bound: u64) -> Plan {
    const COLUMNS: u64 = 3;
    let (members, wide) = (u64::from(n), u64::from(n) * COLUMNS);
    let kernel = |x: (BufferId, u64, u64), out: (BufferId, u64, u64), columns, reduce| {
        Kernel::Exchange(Exchange {
            dtype: DType::F32,
            group: vec![0],
            ranks: members,
            x: x.0,
            out: out.0,
            dims: vec![bound, columns],
            x_offset: 0,
            out_offset: 0,
            x_strides: vec![x.1, 1],
            x_step: x.2,
            out_strides: vec![out.1, 1],
            out_step: out.2,
            reduce,
            shift: 0,
            ragged: Some(RaggedLimit { dim: 0, offsets: 0, groups: 2, even: 0 }),
        })
    };
    let script = RoleScript {
        name: "r".into(),
        coordinates: vec![(0, n)],
        arrays: vec![
            ("offsets", DType::I32, 3, Access::Read),
            ("x", DType::F32, bound * COLUMNS, Access::Read),
            ("all", DType::F32, bound * wide, Access::Update),
            ("sum", DType::F32, bound * wide, Access::Update),
            ("part", DType::F32, bound * COLUMNS, Access::Update),
        ],
        kernels: vec![
            kernel((1, COLUMNS, 0), (2, wide, COLUMNS), COLUMNS, None),
            kernel((2, wide, 0), (3, wide, 0), wide, Some(ReduceOp::Sum)),
            kernel((2, wide, COLUMNS), (4, COLUMNS, 0), COLUMNS, Some(ReduceOp::Sum)),
        ],
    };
    ranks(&[("tp", n)], vec![script])
}

#[test]
fn only_rows_that_are_there_are_exchanged() {
    // The last one long enough that sums are shared out.
    for (n, bound, rows) in [(2, 5, 0), (3, 5, 1), (2, 5, 3), (4, 5, 5), (1, 4, 2), (3, 2000, 1900)] {
        let plan = ragged(n, bound);
        let members = n as usize;
        let (room, wide) = (bound as usize, 3 * members);
        let x: Vec<f32> = (0..members * room * 3).map(|i| (i % 1000) as f32 + 1.0).collect();
        for way in ways(n) {
            let mut fleet = fleet(&plan, way, members);
            fleet.set("r.offsets", bytemuck::cast_slice(&[0, rows / 2, rows].repeat(members)));
            fleet.set("r.x", bytemuck::cast_slice(&x));
            (0..2).for_each(|_| fleet.runs());
            let mut floats = |name: &str| elements(&fleet.get(name), f32::from_ne_bytes);
            let (all, sum, part) = (floats("r.all"), floats("r.sum"), floats("r.part"));
            for (me, row, column) in
                (0..members).flat_map(|m| (0..room).flat_map(move |r| (0..wide).map(move |c| (m, r, c))))
            {
                let what = format!("{way:?} {n} {rows}: rank {me}, row {row}, column {column}");
                let own = x[(column / 3 * room + row) * 3 + column % 3];
                let have = if row < rows as usize { own } else { 0.0 };
                assert_eq!(all[(me * room + row) * wide + column], have, "{what}");
                assert_eq!(sum[(me * room + row) * wide + column], have * n as f32, "{what}");
                if column / 3 == me {
                    assert_eq!(part[(me * room + row) * 3 + column % 3], have * n as f32, "{what}");
                }
            }
        }
    }
}

#[test]
fn ranks_that_have_not_as_many_rows_stop() {
    let plan = ragged(2, 5);
    for (starts, whys) in [
        (
            [0, 2, 4, 0, 1, 3],
            ["pieces of 12 elements, another one of its group of 9", "sent 36 bytes where 48 are due"],
        ),
        ([0, 2, 6, 0, 2, 6], ["group offset 6 (number 2) is not within 0..=5"; 2]),
        ([0, 2, -1, 0, 2, -1], ["group offset -1 (number 2) is not within 0..=5"; 2]),
    ] {
        for (way, why) in [(Way::Threads, whys[0]), (Way::Processes(2), whys[1])] {
            let mut fleet = fleet(&plan, way, 2);
            fleet.set("r.offsets", bytemuck::cast_slice(&starts));
            let errors = errors(&mut fleet);
            assert!(errors.iter().any(|error| error.contains(why)), "{way:?} {starts:?}: {errors:?}");
        }
    }
}

/// A plan that tells experts how many rows they get, sends these to them, and back.
fn routed(ranks_: u32, experts: u64, bound: u64, tokens: u64) -> Plan {
    let n = u64::from(ranks_);
    let own = experts / n;
    let rows = |direction, x, out| {
        Kernel::AllToAllV(AllToAllV {
            dtype: DType::F32,
            group: vec![0],
            ranks: n,
            x,
            out,
            row: 3,
            experts,
            offsets: 0,
            counts: 2,
            direction,
            bound,
            tokens,
            even: tokens,
        })
    };
    let script = RoleScript {
        name: "r".into(),
        coordinates: vec![(0, ranks_)],
        arrays: vec![
            ("offsets", DType::I32, experts + 1, Access::Read),
            ("sizes", DType::I32, experts, Access::Read),
            ("counts", DType::I32, experts, Access::Write),
            ("x", DType::F32, tokens * 3, Access::Read),
            ("there", DType::F32, bound * 3, Access::Update),
            ("back", DType::F32, tokens * 3, Access::Update),
        ],
        kernels: vec![
            exchange(&[0], n, ExchangeKind::AllToAll, DType::I32, own, 1, 2),
            rows(Direction::Dispatch, 3, 4),
            rows(Direction::Combine, 4, 5),
        ],
    };
    ranks(&[("ep", ranks_)], vec![script])
}

/// Starts of groups of these sizes.
fn starts(sizes: &[usize]) -> Vec<i32> {
    let mut at = 0;
    std::iter::once(0)
        .chain(sizes.iter().map(|n| {
            at += *n as i32;
            at
        }))
        .collect()
}

fn check_routes(n: u32, sizes: &[Vec<usize>], way: Way) {
    let experts = sizes[0].len();
    let own = experts / n as usize;
    let tokens = sizes.iter().map(|s| s.iter().sum::<usize>()).max().unwrap_or(0).max(1);
    let received =
        |owner: usize| -> usize { sizes.iter().map(|s| s[owner * own..(owner + 1) * own].iter().sum::<usize>()).sum() };
    let bound = (0..n as usize).map(received).max().unwrap_or(0).max(1);
    let plan = routed(n, experts as u64, bound as u64, tokens as u64);
    let mut fleet = fleet(&plan, way, n as usize);
    let offsets: Vec<i32> = sizes.iter().flat_map(|s| starts(s)).collect();
    let numbers: Vec<i32> = sizes.iter().flatten().map(|n| *n as i32).collect();
    // Row r of rank s is [s, r, 1].
    let row = |s: usize, r: usize| [s as f32, r as f32, 1.0];
    let x: Vec<f32> = (0..n as usize).flat_map(|s| (0..tokens).flat_map(move |r| row(s, r))).collect();
    fleet.set("r.offsets", bytemuck::cast_slice(&offsets));
    fleet.set("r.sizes", bytemuck::cast_slice(&numbers));
    fleet.set("r.x", bytemuck::cast_slice(&x));
    fleet.runs();
    let mut floats = |name: &str| elements(&fleet.get(name), f32::from_ne_bytes);
    let there = floats("r.there");
    let mut wanted = vec![];
    for owner in 0..n as usize {
        let first = wanted.len();
        for expert in owner * own..(owner + 1) * own {
            for (s, sizes) in sizes.iter().enumerate() {
                let start = sizes[..expert].iter().sum::<usize>();
                (start..start + sizes[expert]).for_each(|r| wanted.extend(row(s, r)));
            }
        }
        wanted.resize(first + bound * 3, 0.0);
    }
    assert_eq!(there, wanted, "{sizes:?}");
    let mut returned = x;
    for (s, sizes) in sizes.iter().enumerate() {
        returned[(s * tokens + sizes.iter().sum::<usize>()) * 3..(s + 1) * tokens * 3].fill(0.0);
    }
    assert_eq!(floats("r.back"), returned, "{sizes:?}");
}

#[test]
fn rows_go_to_their_experts_and_back() {
    for n in SIZES {
        let experts = 2 * n as usize;
        for round in 0..4u64 {
            let size = |s: u64, e: u64| hash::below(hash::at(round, s * 100 + e), 5) as usize;
            let mut sizes: Vec<Vec<usize>> =
                (0..u64::from(n)).map(|s| (0..experts as u64).map(|e| size(s, e)).collect()).collect();
            match round {
                // All rows to one expert.
                1 => sizes
                    .iter_mut()
                    .for_each(|s| s.iter_mut().enumerate().for_each(|(e, n)| *n = if e == 1 { 4 } else { 0 })),
                // A rank without rows.
                2 => sizes[0].fill(0),
                // Nothing at all.
                3 => sizes.iter_mut().for_each(|s| s.fill(0)),
                _ => {}
            }
            ways(n).into_iter().for_each(|way| check_routes(n, &sizes, way));
        }
    }
}

/// What all processes say at the end of a run, which comes quickly.
fn errors(fleet: &mut Fleet) -> Vec<String> {
    let start = Instant::now();
    let errors = fleet.run().into_iter().map(|result| result.expect_err("a rank gives up").to_string()).collect();
    let seconds = start.elapsed().as_secs_f64();
    assert!(seconds < 1.0, "{seconds}");
    errors
}

#[test]
fn too_many_rows_are_an_error_that_names_the_bound() {
    let plan = routed(2, 2, 3, 4);
    let what = "rank 1: at step 1, `all_to_all_v` all_to_all_v in r (program r) stopped: 4 rows arrive, but there is room for 3 (max_tokens_per_rank): at least 4 would have done here";
    let waited = "\n  rank 0 waited in `all_to_all_v` all_to_all_v in r (program r)";
    for way in ways(2) {
        let mut fleet = fleet(&plan, way, 2);
        // Both ranks send two rows to the second expert.
        fleet.set("r.offsets", bytemuck::cast_slice(&[0, 1, 3, 0, 0, 2]));
        fleet.set("r.sizes", bytemuck::cast_slice(&[1, 2, 0, 2]));
        let errors = errors(&mut fleet);
        assert_eq!(errors[0], format!("{what}{waited}"), "{way:?}");
        assert!(errors.iter().all(|error| error.starts_with(what)), "{way:?} {errors:?}");
        for error in fleet.run().into_iter().map(|result| result.expect_err("it is over").to_string()) {
            assert_eq!(error, "a rank has given up before");
        }
    }
}

#[test]
fn a_kernel_that_stops_on_one_rank_stops_all() {
    let plan = routed(4, 4, 3, 4);
    for way in ways(4) {
        let mut fleet = fleet(&plan, way, 4);
        let mut offsets = [0; 20];
        // Rank 2 has group starts that fall.
        offsets[11] = 1;
        fleet.set("r.offsets", bytemuck::cast_slice(&offsets));
        let errors = errors(&mut fleet);
        let start = "rank 2: at step 1, `all_to_all_v` all_to_all_v in r (program r) stopped: ";
        assert!(errors.iter().all(|error| error.starts_with(start)), "{way:?} {errors:?}");
        // Each process says where its own ranks waited: those that had come so far.
        let waited: usize = errors.iter().map(|error| error.matches(" waited in `").count()).sum();
        assert!((1..=3).contains(&waited), "{way:?} {errors:?}");
    }
}

/// A process that is gone ends the run of all others, which say so.
#[test]
fn a_process_that_goes_away_is_missed() {
    let plan = routed(3, 3, 3, 4);
    let mut fleet = fleet(&plan, Way::Processes(3), 3);
    fleet.runs();
    drop(fleet.executors.pop());
    let wanted = "process 2, which has rank 2, is gone: its connection was closed";
    let errors = errors(&mut fleet);
    assert!(errors.iter().all(|error| error.contains(wanted)), "{errors:?}");
}

/// One that has done its work is not missed, unless somebody waits for it.
#[test]
fn a_process_that_is_done_may_go() {
    let plan = routed(2, 2, 3, 4);
    let mut fleet = fleet(&plan, Way::Processes(2), 2);
    fleet.runs();
    fleet.each(|executor| executor.part()).into_iter().for_each(|parted| parted.expect("all are well"));
    drop(fleet.executors.pop());
    let error = errors(&mut fleet).remove(0);
    assert!(error.contains("process 1, which has rank 1, is gone: it has done its work"), "{error}");
}

#[test]
fn a_process_that_gives_up_says_why() {
    let plan = routed(3, 3, 3, 4);
    let mut fleet = fleet(&plan, Way::Processes(3), 3);
    fleet.runs();
    let lookout = fleet.executors[2].lookout().expect("several processes");
    assert_eq!(lookout.failure(), None);
    fleet.executors[1].fail("the disk is full");
    let errors = errors(&mut fleet);
    assert_eq!(lookout.failure().as_deref(), Some("process 1: the disk is full"));
    assert!(lookout.goes_on());
    drop(fleet);
    assert!(!lookout.goes_on() && lookout.failure().is_none());
    assert!(errors.iter().all(|error| error.starts_with("process 1: the disk is full")), "{errors:?}");
}

#[test]
fn messages_go_round() {
    for n in [1u32, 2, 3, 4, 6, 8] {
        // Everyone adds nothing: what rank 0 sends comes back to it, through all others, on two channels whose messages must not mix.
        let message = |buffer, peer, channel| Message { dtype: DType::I32, buffer, elements: 5, dim: 0, peer, channel };
        let stage = |number: u32| {
            let (next, before) = ((number + 1) % n, (number + n - 1) % n);
            let send = |buffer, channel| Kernel::Send(message(buffer, next, channel));
            let recv = |buffer, channel| Kernel::Recv(message(buffer, before, channel));
            let mut kernels = vec![recv(0, 1), recv(1, 1), recv(2, 0), send(0, 1), send(1, 1), send(2, 0)];
            if number == 0 {
                kernels.rotate_left(3);
                kernels[..3].clone_from_slice(&[send(3, 0), send(4, 1), send(5, 1)]);
            }
            let mut arrays: Vec<(&'static str, DType, u64, Access)> =
                ["a", "b", "c"].map(|name| (name, DType::I32, 5, Access::Write)).to_vec();
            arrays.extend(["x", "y", "z"].map(|name| (name, DType::I32, 5, Access::Read)));
            RoleScript { name: format!("s{number}"), coordinates: vec![(number, number + 1)], arrays, kernels }
        };
        let plan = ranks(&[("pp", n)], (0..n).map(stage).collect());
        if n == 1 {
            // One role is all: nobody to talk to.
            assert!(forebay_plan::verify(&plan).is_err());
            continue;
        }
        for way in ways(n) {
            let mut fleet = fleet(&plan, way, n as usize);
            for (i, name) in ["x", "y", "z"].into_iter().enumerate() {
                fleet.set(&format!("s0.{name}"), bytemuck::cast_slice(&[i as i32, 1, 2, 3, 4]));
            }
            (0..3).for_each(|_| fleet.runs());
            let mut first = |name: &str| fleet.get(name)[0];
            assert_eq!([first("s0.a"), first("s0.b"), first("s0.c")], [1, 2, 0], "{way:?}");
        }
    }
}

/// All kernels together, on two stages of two ranks.
#[test]
fn a_pipeline_runs() {
    let plan = forebay_plan::testing::pipeline();
    for way in ways(4) {
        let mut fleet = fleet(&plan, way, 4);
        for stage in ["stage0", "stage1"] {
            fleet.set(&format!("{stage}.offsets"), bytemuck::cast_slice(&[0, 1, 1, 3, 4, 0, 2, 2, 2, 4]));
            fleet.set(&format!("{stage}.sizes"), bytemuck::cast_slice(&[1, 0, 2, 1, 2, 0, 0, 2]));
        }
        (0..10).for_each(|_| fleet.runs());
        let mut ints = |name: &str| elements(&fleet.get(name), i32::from_ne_bytes);
        assert_eq!([ints("stage0.where"), ints("stage1.where")].concat(), [5, 6, 7, 8]);
        assert_eq!(ints("stage0.key"), [5, 1, 0, 0, 5, 1, 0, 2]);
        assert_eq!(ints("stage0.counts"), [1, 0, 2, 0, 2, 1, 0, 2]);
    }
}
