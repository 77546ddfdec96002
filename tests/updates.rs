//! States that are updated in place: all updates of a step see the values from before it, whatever they read and in whatever order they stand.

use crate::common;

use common::options;
use forebay_compiler::pipeline::{CompileOptions, Models, compile};
use forebay_ir::DType;
use forebay_plan::{TensorKind, verify};
use forebay_runtime::data::{Corpus, Dataset};
use forebay_runtime::exec::{ExecOptions, Executor};
use forebay_runtime::init;
use forebay_runtime::train::Trainer;

const N: usize = 6;

/// A model with these statements.
fn model(body: &str) -> String {
    format!(
        "model M(batch = 2, seq = 8, d = 8, vocab = 256, n = {N}, layers = 2) {{
    input tokens: token[batch, seq], labels: token[batch, seq]
    param embed[vocab, d] = normal(1.0), head[d, vocab]
    x = embed[tokens, d]
{body}
    logits[batch, seq, vocab] = narrow(x) * head
    output logits
    nll = cross_entropy(logits, labels)
    loss ce = sum(nll over batch, seq) per sum(valid(labels) over batch, seq)
}}\n"
    )
}

/// The states after some steps, by name.
fn states_after(body: &str, steps: usize) -> Vec<(String, Vec<f32>)> {
    let text = model(body);
    let options: CompileOptions = options(DType::F32, vec![]);
    let check = |training, rows| {
        let accepted = forebay_dsl::load(&text, &options.check_options(training, rows, 1));
        accepted.unwrap_or_else(|d| panic!("{text}\n{d:?}")).model
    };
    let models = Models { train: check(true, None), eval: check(false, None), generate: check(false, Some(1)) };
    let plan = compile(&models, &options).expect("one rank");
    verify(&plan).unwrap_or_else(|v| panic!("{text}\n{v:?}"));
    let corpus = (0..2000).map(|i| (i * i % 251) as u8).collect();
    let dataset = Dataset::new(Corpus::from_bytes("bytes", corpus), &plan.settings).expect("enough");
    let mut executor = Executor::new(&plan, &ExecOptions { threads: 1, ..ExecOptions::default() }).expect("it fits");
    init::initialise(&mut executor).unwrap();
    let mut trainer = Trainer::new(&mut executor, &dataset, None).expect("it trains");
    for _ in 0..steps {
        trainer.step().unwrap_or_else(|e| panic!("{e}"));
    }
    let states = plan.roles[0].tensors.iter().filter(|t| t.kind == TensorKind::State);
    let values = |t| executor.tensor(t).chunks_exact(4).map(|c| f32::from_ne_bytes(c.try_into().expect("4"))).collect();
    states.map(|t| (t.name.clone(), values(t))).collect()
}

/// Each state as a function of all of them, over and over.
fn check(body: &str, next: impl Fn(&[Vec<f32>]) -> Vec<Vec<f32>>) {
    let steps = 4;
    let have = states_after(body, steps);
    let start = have.iter().map(|(_, values)| vec![0.0; values.len()]).collect::<Vec<_>>();
    let want = (0..steps).fold(start, |states, _| next(&states));
    for ((name, have), want) in have.iter().zip(&want) {
        assert_eq!(have, want, "{name} after {steps} steps of\n{body}");
    }
    assert_eq!(have.len(), want.len());
}

fn map(x: &[f32], f: impl Fn(usize, f32) -> f32) -> Vec<f32> {
    x.iter().enumerate().map(|(i, &v)| f(i, v)).collect()
}

#[test]
fn states_change_places() {
    let two = |updates: &str| "    state a[n] = zeros, b[n] = zeros\n".to_string() + updates;
    let three = |updates: &str| "    state a[n] = zeros, b[n] = zeros, c[n] = zeros\n".to_string() + updates;
    check(&two("    update a = b\n    update b = a + 1.0 + index(n)"), |s| {
        vec![s[1].clone(), map(&s[0], |i, v| v + 1.0 + i as f32)]
    });
    check(&two("    update a = b + 1.0\n    update b = a"), |s| vec![map(&s[1], |_, v| v + 1.0), s[0].clone()]);
    check(&three("    update a = b\n    update b = c\n    update c = a + 1.0"), |s| {
        vec![s[1].clone(), s[2].clone(), map(&s[0], |_, v| v + 1.0)]
    });
    check(&three("    update a = b + c + 1.0\n    update b = a * 2.0 + c\n    update c = a + b"), |s| {
        let at = |f: fn(f32, f32, f32) -> f32| map(&s[0], |i, a| f(a, s[1][i], s[2][i]));
        vec![at(|_, b, c| b + c + 1.0), at(|a, _, c| a * 2.0 + c), at(|a, b, _| a + b)]
    });
}

#[test]
fn states_are_read_out_of_place() {
    let vector = "    state a[n] = zeros\n";
    let with = |update: &str| vector.to_string() + update;
    // Turned around, moved by one, summed up: each reads elements that it has written over.
    check(&with("    update a = a[u][n - 1 - index(n)] + 1.0 + index(n)"), |s| {
        vec![map(&s[0], |i, _| s[0][N - 1 - i] + 1.0 + i as f32)]
    });
    check(&with("    update a = concat(a[p: 1..n] over p, a[q: 0..1] + 1.0 over q as n)"), |s| {
        let a = &s[0];
        vec![map(a, |i, _| if i + 1 < N { a[i + 1] } else { a[0] + 1.0 })]
    });
    check(&with("    update a = scan(a over n) + 1.0"), |s| {
        let mut sum = 0.0;
        let mut next = vec![];
        for v in &s[0] {
            // The running sum, one element after the other.
            sum += v;
            next.push(sum + 1.0);
        }
        vec![next]
    });
    let matrix = "    state a[n, m: 6] = zeros\n";
    let at = |a: &[f32], i: usize, j: usize| a[i * N + j];
    let each = |f: &dyn Fn(usize, usize) -> f32| (0..N * N).map(|i| f(i / N, i % N)).collect::<Vec<f32>>();
    check(&(matrix.to_string() + "    update a = (a[m, n] + index(n))[n, m]"), |s| {
        vec![each(&|i, j| at(&s[0], j, i) + i as f32)]
    });
    check(&(matrix.to_string() + "    update a = (a[n, o] * a[o, m])[n, m] * 0.125 + 1.0"), |s| {
        vec![each(&|i, j| (0..N).map(|k| at(&s[0], i, k) * at(&s[0], k, j)).sum::<f32>() * 0.125 + 1.0)]
    });
}

#[test]
fn states_may_stay() {
    check("    state a[n] = zeros\n    update a = a", |s| s.to_vec());
    check("    state a[n] = zeros, b[n] = zeros\n    update a = a\n    update b = a + b + 1.0", |s| {
        vec![s[0].clone(), map(&s[1], |i, b| s[0][i] + b + 1.0)]
    });
}

#[test]
fn layers_see_the_states_from_before() {
    let body = "    state g[n] = zeros\n    update g = g + 1.0\n    repeat layers {\n        state s[n] = zeros\n        param w[d] = ones\n        \
                x = x * w\n        update s = g + s\n    }";
    check(body, |s| {
        let layer = |l: usize| map(&s[l], |i, v| s[0][i] + v);
        vec![map(&s[0], |_, v| v + 1.0), layer(1), layer(2)]
    });
    let text = model(
        "    state a[n] = zeros\n    update a = a + 1.0\n    repeat layers {\n        param w[d] = ones\n        x = x * w\n    }\n    state b[n] = zeros\n    \
         update b = a",
    );
    assert!(forebay_dsl::load(&text, &CompileOptions::default().check_options(true, None, 1)).is_ok());
}

/// Positions are computed where they are needed, and stored for kernels that read them from memory: by the same model.
#[test]
fn positions_are_read_and_computed() {
    for body in [
        "    param w[d], tbl[m: 8, u: 4]\n    i = index(d)\n    g = tbl[i, u]\n    y = where(i < 3, w, w * 2.0)\n    s = scan(y over d)\n    j = i * s\n    \
         x = x + j + sum(g over u)",
        "    param w[d], tbl[m: 8, u: 4]\n    y = where(index(d) < 3, w, w * 2.0)\n    s = scan(y over d)\n    j = index(d) * s\n    g = tbl[index(d), u]\n    \
         x = x + j + sum(g over u)",
    ] {
        assert!(states_after(body, 2).is_empty());
    }
}
