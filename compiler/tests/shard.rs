//! Sharded segments against whole ones: what all ranks compute together is what one computes.

use crate::autodiff_support;
use crate::example_models;
use crate::snapshots;

use autodiff_support::{Results, Values, bind, check_legal, output_gradients, run};
use example_models::reduced;
use forebay_compiler::autodiff::{Options, differentiate};
use forebay_compiler::shard::{Dense, Layout, Mesh, Sharded, Strategy, shard};
use forebay_ir::reference::{Mode, Tensor, evaluate_ranks, sample};
use forebay_ir::text::{parse_module, print, render};
use forebay_ir::{AxisId, Graph, InputRole, Op, OutputRole, ValueId, verify};
use rustc_hash::FxHashMap;
use snapshots::snapshot;
use std::cell::Cell;

/// The ranks of a mesh, as coordinates.
fn ranks(mesh: &Mesh) -> Vec<Vec<usize>> {
    mesh.dims.iter().fold(vec![vec![]], |ranks, dim| {
        let along = |r: Vec<usize>| (0..dim.size as usize).map(move |c| [r.clone(), vec![c]].concat());
        ranks.into_iter().flat_map(along).collect()
    })
}

/// The number of a rank in the group over these dimensions.
fn number(mesh: &Mesh, rank: &[usize], dims: &[u32]) -> usize {
    dims.iter().fold(0, |n, &d| n * mesh.dims[d as usize].size as usize + rank[d as usize])
}

/// A rank's part of a tensor of the whole graph.
fn part(graph: &Graph, value: ValueId, whole: &Tensor, layout: &Layout, mesh: &Mesh, rank: &[usize]) -> Tensor {
    let axes = graph.dims(&graph.ty(value).axes);
    let mut tensor = whole.clone();
    for (at, (axis, _)) in axes.iter().enumerate() {
        let dims = layout.of(*axis);
        let n = mesh.ranks(dims) as usize;
        let inner: usize = tensor.dims[at + 1..].iter().product::<u64>() as usize;
        let size = tensor.dims[at] as usize;
        if in_slots(graph, *axis, dims, mesh) {
            tensor.data = tensor.data.chunks(size * inner).flat_map(|c| balanced(c, inner, mesh)).collect();
        }
        let (own, piece) = (number(mesh, rank, dims), size / n * inner);
        let data: Vec<f64> =
            tensor.data.chunks(size * inner).flat_map(|c| &c[own * piece..(own + 1) * piece]).copied().collect();
        tensor.dims[at] = (size / n) as u64;
        tensor = Tensor::new(tensor.dims.clone(), data);
    }
    tensor
}

/// Do travelling keys cut the axis?
fn in_slots(graph: &Graph, axis: AxisId, dims: &[u32], mesh: &Mesh) -> bool {
    let ring = mesh.ring();
    let is_row = graph.axis(axis).label.as_deref() == Some("seq");
    is_row && !ring.is_empty() && dims.starts_with(&ring) && graph.size(axis).is_multiple_of(2 * mesh.ranks(&ring))
}

/// Rows of positions as ranks of a ring have them: each a chunk from the front and one from the back.
fn balanced(row: &[f64], inner: usize, mesh: &Mesh) -> Vec<f64> {
    let chunks = 2 * mesh.ranks(&mesh.ring()) as usize;
    let chunk = |c: usize| &row[c * row.len() / chunks..(c + 1) * row.len() / chunks];
    assert!((row.len() / chunks).is_multiple_of(inner));
    (0..chunks / 2).flat_map(|r| [chunk(r), chunk(chunks - 1 - r)].concat()).collect()
}

fn near(what: &str, have: &[f64], want: &[f64]) {
    assert_eq!(have.len(), want.len(), "{what}");
    let scale = want.iter().fold(1e-3_f64, |m, x| m.max(x.abs()));
    for (h, w) in have.iter().zip(want) {
        assert!((h - w).abs() <= 1e-10 * scale || h == w, "{what}: {h} is not {w}");
    }
}

/// What a graph takes on each rank.
fn bind_ranks(
    graph: &Graph,
    forward: (&Graph, &[Values]),
    saved: &[Results],
    grads: &[FxHashMap<String, Tensor>],
) -> Vec<Values> {
    let given = forward.1.iter().enumerate();
    given
        .map(|(r, values)| bind(graph, (forward.0, values), &saved.get(r).into_iter().collect::<Vec<_>>(), &grads[r]))
        .collect()
}

fn run_ranks(graph: &Graph, given: &[Values]) -> Vec<Results> {
    let all = evaluate_ranks(graph, given, Mode::F64);
    let results = |values: &Vec<Tensor>| {
        graph.outputs.iter().map(|o| ((o.role, o.name.clone()), values[o.value.index()].clone())).collect()
    };
    all.iter().map(results).collect()
}

/// The sum over the ranks of a group, for each rank: what a reduction at the end of a step will make.
fn summed(mesh: &Mesh, dims: &[u32], tensors: &[Tensor]) -> Vec<Tensor> {
    let ranks = ranks(mesh);
    let same = |a: &[usize], b: &[usize]| (0..a.len()).all(|d| dims.contains(&(d as u32)) || a[d] == b[d]);
    let sum = |rank: &Vec<usize>| {
        let members = ranks.iter().zip(tensors).filter(|(other, _)| same(rank, other));
        members.map(|(_, t)| t.clone()).reduce(|mut a, b| {
            a.data.iter_mut().zip(&b.data).for_each(|(a, b)| *a += b);
            a
        })
    };
    ranks.iter().map(|r| sum(r).expect("a rank is in its group")).collect()
}

/// Runs a segment whole, once for each data-parallel rank, and sharded; compares everything.
fn check_segment(what: &str, whole: &Graph, mesh: &Mesh, strategy: &Strategy) {
    let sharded = shard(whole, mesh, strategy).unwrap_or_else(|e| panic!("{what}: {e}"));
    check_legal(&sharded.graph);
    let data = mesh.dense(Dense::Dp);
    let replicas = mesh.ranks(&data) as usize;
    let all = ranks(mesh);
    let mut sampler = sample::Sampler::new(1);
    let is_common = |i: &forebay_ir::Input| !matches!(i.role, InputRole::Data | InputRole::Carry);
    let value = |sampler: &mut sample::Sampler, input: &forebay_ir::Input| match input.role {
        InputRole::Param => sampler.input(whole, input.value, &(-0.2..0.2)),
        InputRole::Count => Tensor::scalar(7.0),
        _ => sampler.input(whole, input.value, &(-1.0..1.0)),
    };
    let common: Values =
        whole.inputs.iter().filter(|i| is_common(i)).map(|i| (i.value, value(&mut sampler, i))).collect();
    let given: Vec<Values> = (0..replicas)
        .map(|_| {
            let own = whole.inputs.iter().filter(|i| !is_common(i)).map(|i| (i.value, value(&mut sampler, i)));
            common.clone().into_iter().chain(own.collect::<Vec<_>>()).collect()
        })
        .collect();
    let options = Options::all_floats(whole);
    let grads: Vec<_> = (0..replicas).map(|r| output_gradients(whole, &options, 10 + r as i32)).collect();

    // Whole.
    let d = differentiate(whole, &options);
    let expected: Vec<(Results, Results)> = given
        .iter()
        .zip(&grads)
        .map(|(given, grads)| {
            let forward = run(&d.forward, &bind(&d.forward, (whole, given), &[], grads), Mode::F64);
            let backward = run(&d.backward, &bind(&d.backward, (whole, given), &[&forward], grads), Mode::F64);
            (forward, backward)
        })
        .collect();

    // Sharded.
    let local = &sharded.graph;
    let layouts = &sharded.inputs;
    let replica = |rank: &[usize]| number(mesh, rank, &data);
    let local_given: Vec<Values> = all
        .iter()
        .map(|rank| {
            let inputs = whole.inputs.iter().zip(&local.inputs).zip(layouts);
            inputs
                .map(|((w, l), layout)| {
                    (l.value, part(whole, w.value, &given[replica(rank)][&w.value], layout, mesh, rank))
                })
                .collect()
        })
        .collect();
    let carry = |name: &str| {
        let mut outputs = whole.outputs.iter().zip(&sharded.outputs);
        outputs
            .find(|(o, _)| o.role == OutputRole::Carry && o.name == name)
            .map(|(o, layout)| (o.value, layout.clone()))
    };
    let local_grads: Vec<FxHashMap<String, Tensor>> = all
        .iter()
        .map(|rank| {
            let cut = |(name, tensor): (&String, &Tensor)| {
                let (value, layout) = carry(name.strip_prefix("grad.").unwrap_or(name)).expect("a carry");
                (name.clone(), part(whole, value, tensor, &layout, mesh, rank))
            };
            grads[replica(rank)].iter().map(cut).collect()
        })
        .collect();
    let options = Options::all_floats(local);
    let d = differentiate(local, &options);
    for graph in [&d.forward, &d.backward] {
        check_legal(graph);
    }
    let forward = run_ranks(&d.forward, &bind_ranks(&d.forward, (local, &local_given), &[], &local_grads));
    let backward = run_ranks(&d.backward, &bind_ranks(&d.backward, (local, &local_given), &forward, &local_grads));

    for (output, layout) in whole.outputs.iter().zip(&sharded.outputs) {
        let key = (output.role, output.name.clone());
        let tensors: Vec<Tensor> = forward.iter().map(|r| r[&key].clone()).collect();
        let tensors = summed(mesh, &layout.partial, &tensors);
        for (rank, have) in all.iter().zip(&tensors) {
            let want = &expected[replica(rank)].0[&key];
            let want = part(whole, output.value, want, layout, mesh, rank);
            near(&format!("{what}: {} on {rank:?}", output.name), &have.data, &want.data);
        }
    }
    let mut names: Vec<String> =
        backward[0].keys().filter(|(role, _)| *role == OutputRole::Grad).map(|(_, n)| n.clone()).collect();
    names.sort();
    for name in names {
        let key = (OutputRole::Grad, name.clone());
        let tensors: Vec<Tensor> = backward.iter().map(|r| r[&key].clone()).collect();
        let (value, layout, want) = match name.split_once('.').expect("gradients have a prefix") {
            ("param", param) => {
                let params = whole.inputs.iter().filter(|i| i.role == InputRole::Param);
                let at = params.clone().position(|i| whole.node(i.value).name == param).expect("a parameter");
                let tensors = summed(mesh, &sharded.gradient_sums[at], &tensors);
                let whole_value = whole.input(InputRole::Param, param).expect("a parameter");
                let at = whole.inputs.iter().position(|i| i.value == whole_value).expect("an input");
                let layout = &layouts[at];
                let sum: Tensor = expected
                    .iter()
                    .map(|(_, backward)| backward[&key].clone())
                    .reduce(|mut a, b| {
                        a.data.iter_mut().zip(&b.data).for_each(|(a, b)| *a += b);
                        a
                    })
                    .expect("a replica");
                for (rank, have) in all.iter().zip(&tensors) {
                    let want = part(whole, whole_value, &sum, layout, mesh, rank);
                    near(&format!("{what}: the gradient of {param} on {rank:?}"), &have.data, &want.data);
                }
                continue;
            }
            (_, name) => {
                let value = whole.input(InputRole::Carry, name).expect("a carry");
                let at = whole.inputs.iter().position(|i| i.value == value).expect("an input");
                (value, &layouts[at], |r: usize| expected[r].1[&key].clone())
            }
        };
        for (rank, have) in all.iter().zip(&tensors) {
            let want = part(whole, value, &want(replica(rank)), layout, mesh, rank);
            near(&format!("{what}: {name} on {rank:?}"), &have.data, &want.data);
        }
    }
}

/// Strategies over up to eight ranks, every kind of sharing alone and with others: of tokens,
const TOKENS: [&str; 9] = [
    "dp=2",
    "tp=2",
    "tp=2,sp=0",
    "cp=2",
    "cp=2,cp_algo=gather",
    "cp=4,cp_algo=ring",
    "cp=4,tp=2,cp_algo=ring,ep=4",
    "cp=4,cp_algo=hybrid,ep=2",
    "dp=2,cp=2,tp=2,ep=4",
];
/// and of experts.
const EXPERTS: [&str; 11] = [
    "dp=2,ep=2",
    "tp=2,ep=2",
    "tp=2,ep=2,sp=0",
    "tp=2,etp=2",
    "tp=2,etp=2,sp=0",
    "cp=2,ep=2",
    "dp=2,tp=2,ep=4",
    "dp=2,tp=2,ep=2",
    "dp=2,tp=2,ep=2,etp=2",
    "dp=2,tp=2,ep=2,etp=2,etp_gather=after",
    "cp=2,tp=2,ep=2",
];

#[test]
fn segments_with_shared_tokens_compute_what_whole_ones_do() {
    check_models(&TOKENS);
}

#[test]
fn segments_with_shared_experts_compute_what_whole_ones_do() {
    check_models(&EXPERTS);
}

/// All segments of all models under these strategies; of one only, where `FOREBAY_SHARD` names it.
fn check_models(strategies: &[&str]) {
    let only = std::env::var("FOREBAY_SHARD").ok();
    let checked = Cell::new(0);
    insta::glob!("../../examples/models", "*.moe", |path| {
        let model = reduced(&std::fs::read_to_string(path).expect("readable"));
        for text in strategies {
            let strategy = Strategy::parse(text).expect("a strategy");
            let mesh = strategy.mesh().expect("a mesh");
            for segment in &model.segments {
                let what = format!("{} {text} {}", path.file_stem().expect("a file").to_string_lossy(), segment.name);
                if only.as_ref().is_some_and(|o| !what.contains(o.as_str())) {
                    continue;
                }
                eprintln!("{what}");
                check_segment(&what, &segment.forward, &mesh, &strategy);
                checked.set(checked.get() + 1);
            }
        }
    });
    // (Of one that is named, the other half knows nothing.)
    assert!(only.is_some() || checked.get() > 0, "no segment was checked");
}

/// What is inserted into small graphs, and that they compute the same then.
#[test]
fn collectives_stand_where_they_must() {
    insta::glob!("shard/*.ir", |path| {
        let source = std::fs::read_to_string(path).expect("readable");
        let graphs =
            parse_module(&source).unwrap_or_else(|e| panic!("{}", render(&e, &source, &path.display().to_string())));
        graphs.iter().for_each(|g| verify::verify(g).unwrap_or_else(|v| panic!("{}", verify::render(g, &v))));
        let mut text = String::new();
        for strategy in source.lines().filter_map(|l| l.strip_prefix("// strategy: ")) {
            text += &format!("// {strategy}\n\n");
            let strategy = Strategy::parse(strategy).expect("a strategy");
            let mesh = match strategy.mesh() {
                Ok(mesh) => mesh,
                Err(error) => {
                    text += &format!("{error}\n\n");
                    continue;
                }
            };
            for graph in &graphs {
                match shard(graph, &mesh, &strategy) {
                    Ok(sharded) => {
                        check_segment(&format!("{} {strategy}", graph.name), graph, &mesh, &strategy);
                        text += &described(graph, &sharded, &mesh);
                    }
                    Err(error) => text += &format!("{}: {error}\n\n", graph.name),
                }
            }
        }
        snapshot(path, &text);
    });
}

/// The graph of a rank, why each collective is there, and which gradients are sums.
fn described(whole: &Graph, sharded: &Sharded, mesh: &Mesh) -> String {
    let local = &sharded.graph;
    let sends = local.values().filter(|v| matches!(&local.node(*v).op, Op::Comm(comm) if comm.sends()));
    assert_eq!(sends.count(), sharded.notes.len(), "a note for each collective:\n{}", print(local));
    let mut text = print(local);
    for note in &sharded.notes {
        let (before, after) = &note.layouts;
        text += &format!(
            "// {} over {}: %{} for %{}, {before} -> {after}, {} bytes\n",
            note.collective,
            mesh.describe(&note.group),
            note.value,
            note.wanted_by,
            note.bytes
        );
    }
    let params = whole.inputs.iter().filter(|i| i.role == InputRole::Param);
    for (param, sums) in params.zip(&sharded.gradient_sums).filter(|(_, sums)| !sums.is_empty()) {
        text +=
            &format!("// the gradient of %{} is a sum over {}\n", whole.node(param.value).name, mesh.describe(sums));
    }
    text + "\n"
}
