//! The checker: what models become, and what is said about wrong ones.
//!
//! * `check/*.moe`: one idea each, with the graphs that come of it.
//! * `check_equal/*.moe`: the outputs `left` and `right` are the same numbers, computed in two ways.
//! * `check_errors/*.moe`: the diagnostics of wrong models.
//!
//! Comments at the top of a file give options: `// set: a=1 b="x"` and `// training: true`.

use forebay_dsl::diagnostics::render;
use forebay_dsl::model::{CheckOptions, CheckedModel, Const, Layer, Limits, Tensor};
use forebay_dsl::{Accepted, load, std_library};
use forebay_ir::reference::{Mode, evaluate, sample};
use forebay_ir::{DType, Graph, InputRole, OutputRole, ValueId, verify};
use rustc_hash::FxHashMap;
use std::fmt::Write;
use std::path::Path;
use std::time::{Duration, Instant};

/// Options from the comments of a file.
fn options(text: &str) -> CheckOptions {
    let option = |name: &str| text.lines().find_map(|line| line.strip_prefix(&format!("// {name}: ")));
    CheckOptions {
        overrides: option("set").map(overrides).unwrap_or_default(),
        training: option("training") == Some("true"),
        ..CheckOptions { micro_batches: 2, narrow: DType::BF16, wide: DType::F32, ..plain() }
    }
}

fn plain() -> CheckOptions {
    CheckOptions {
        overrides: vec![],
        narrow: DType::F64,
        wide: DType::F64,
        training: false,
        micro_batches: 1,
        limits: Limits::default(),
    }
}

/// `a=1 b=2.5 c=true d="x"`
fn overrides(text: &str) -> Vec<(String, Const)> {
    let parse = |value: &str| {
        let number = value.parse().map(Const::Int).or_else(|_| value.parse().map(Const::Float));
        number
            .or_else(|_| value.parse().map(Const::Bool))
            .unwrap_or_else(|_| Const::Str(value.trim_matches('"').into()))
    };
    let pairs = text.split_whitespace().filter_map(|pair| pair.split_once('='));
    pairs.map(|(name, value)| (name.to_string(), parse(value))).collect()
}

/// Checks a model that must pass, and the invariants that hold of every checked model.
fn accept(name: &str, text: &str, options: &CheckOptions) -> Accepted {
    match load(text, options) {
        Ok(accepted) => {
            check_invariants(&accepted.model);
            accepted
        }
        Err(diagnostics) => panic!("{}", render(&diagnostics, &std_library::sources(name, text), false)),
    }
}

fn check_invariants(model: &CheckedModel) {
    let updates = model.segments.iter().filter_map(|s| s.update.as_ref());
    for graph in model.segments.iter().map(|s| &s.forward).chain(updates).chain(&model.counts) {
        if let Err(violations) = verify::verify(graph) {
            panic!("{}", verify::render(graph, &violations));
        }
    }
    for (i, layer) in model.layers.iter().enumerate() {
        check_layer(model, i, layer);
    }
    let mut names: Vec<&str> =
        model.params.iter().chain(&model.states).chain(&model.stats).map(|t| t.name.as_str()).collect();
    let n = names.len();
    names.sort_unstable();
    names.dedup();
    assert_eq!(names.len(), n, "tensors have names of their own");
    let used: Vec<usize> = model.layers.iter().flat_map(|l| l.params.clone()).collect();
    assert!((0..model.params.len()).all(|p| used.contains(&p)), "every parameter is used by a layer");
}

fn check_layer(model: &CheckedModel, number: usize, layer: &Layer) {
    let segment = &model.segments[layer.segment];
    let sizes = |graph: &Graph, role| -> Vec<Vec<u64>> { inputs(graph, role).map(|v| dims(graph, v)).collect() };
    let of = |tensors: &[Tensor], list: &[usize]| -> Vec<Vec<u64>> {
        list.iter().map(|&i| tensors[i].axes.iter().map(|a| a.2).collect()).collect()
    };
    assert_eq!(sizes(&segment.forward, InputRole::Param), of(&model.params, &layer.params));
    assert_eq!(sizes(&segment.forward, InputRole::State), of(&model.states, &layer.states));
    assert_eq!(segment.forward.outputs.iter().filter(|o| o.role == OutputRole::Stat).count(), layer.stats.len());
    for (value, source) in inputs(&segment.forward, InputRole::Carry).zip(&layer.carries) {
        assert!(source.layer < number, "a carry comes from an earlier layer");
        let from = &model.segments[model.layers[source.layer].segment].forward;
        let output =
            from.outputs.iter().filter(|o| o.role == OutputRole::Carry).nth(source.output).expect("the output exists");
        assert_eq!(dims(from, output.value), dims(&segment.forward, value));
        assert_eq!(from.ty(output.value).dtype, segment.forward.ty(value).dtype);
    }
    assert_eq!(inputs(&segment.forward, InputRole::Carry).count(), layer.carries.len());
    if let Some(update) = &segment.update {
        assert_eq!(sizes(update, InputRole::State), of(&model.states, &layer.update_states));
        assert_eq!(sizes(update, InputRole::Stat), of(&model.stats, &layer.update_stats));
        let outputs: Vec<Vec<u64>> = update.outputs.iter().map(|o| dims(update, o.value)).collect();
        assert_eq!(outputs, of(&model.states, &layer.update_outputs));
    }
}

fn inputs(graph: &Graph, role: InputRole) -> impl Iterator<Item = ValueId> + '_ {
    graph.inputs.iter().filter(move |i| i.role == role).map(|i| i.value)
}

fn dims(graph: &Graph, value: ValueId) -> Vec<u64> {
    graph.ty(value).axes.iter().map(|&a| graph.size(a)).collect()
}

/// The graphs, then how the layers use them.
fn show(model: &CheckedModel) -> String {
    let mut out = String::new();
    for segment in &model.segments {
        writeln!(out, "{}", segment.forward).unwrap();
        segment.update.iter().for_each(|update| writeln!(out, "{update}").unwrap());
    }
    model.counts.iter().for_each(|counts| writeln!(out, "{counts}").unwrap());
    for loss in &model.losses {
        let main = if loss.main { ", main" } else { "" };
        writeln!(out, "loss {} weight {} scope {:?}{main}", loss.name, loss.weight, loss.scope).unwrap();
    }
    let names = |tensors: &[Tensor], list: &[usize]| {
        list.iter().map(|&i| tensors[i].name.clone()).collect::<Vec<_>>().join(" ")
    };
    for (i, layer) in model.layers.iter().enumerate() {
        let segment = &model.segments[layer.segment].name;
        write!(out, "layer {i} {:?} = {segment}", layer.name).unwrap();
        let lists = [
            ("params", names(&model.params, &layer.params)),
            ("states", names(&model.states, &layer.states)),
            ("stats", names(&model.stats, &layer.stats)),
            (
                "carries",
                layer.carries.iter().map(|s| format!("{}.{}", s.layer, s.output)).collect::<Vec<_>>().join(" "),
            ),
            ("update", names(&model.states, &layer.update_outputs)),
        ];
        for (what, list) in lists.iter().filter(|(_, list)| !list.is_empty()) {
            write!(out, "; {what}: {list}").unwrap();
        }
        out.push('\n');
    }
    for tensor in model.params.iter().chain(&model.states).chain(&model.stats) {
        let axes: Vec<String> = tensor.axes.iter().map(|(name, _, n)| format!("{name}: {n}")).collect();
        writeln!(out, "{}[{}] = {:?}", tensor.name, axes.join(", "), tensor.init).unwrap();
    }
    out
}

fn read(path: &Path) -> (String, String) {
    let text = std::fs::read_to_string(path).expect("the file can be read");
    (path.file_name().expect("a file").to_string_lossy().into_owned(), text)
}

/// Compares with the snapshot that lies beside the input.
fn snapshot(path: &Path, shown: &str) {
    let folder = path.parent().expect("a folder");
    let name = path.file_stem().expect("a name").to_string_lossy().into_owned();
    insta::with_settings!({snapshot_path => folder, prepend_module_to_snapshot => false, omit_expression => true}, {
        insta::assert_snapshot!(name, shown);
    });
}

fn files(folder: &str) -> Vec<std::path::PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join(folder);
    let mut files: Vec<_> = std::fs::read_dir(&folder)
        .unwrap_or_else(|e| panic!("{}: {e}", folder.display()))
        .map(|entry| entry.expect("an entry").path())
        .filter(|path| path.extension().is_some_and(|e| e == "moe"))
        .collect();
    files.sort();
    assert!(!files.is_empty(), "{} has models", folder.display());
    files
}

#[test]
fn graphs() {
    for path in files("tests/check") {
        let (name, text) = read(&path);
        let accepted = accept(&name, &text, &options(&text));
        let warnings = render(&accepted.warnings, &std_library::sources(&name, &text), false);
        snapshot(&path, &format!("{warnings}{}", show(&accepted.model)));
    }
}

#[test]
fn errors() {
    for path in files("tests/check_errors") {
        let (name, text) = read(&path);
        let diagnostics = load(&text, &options(&text)).expect_err(&name);
        snapshot(&path, &render(&diagnostics, &std_library::sources(&name, &text), false));
    }
}

/// Every model states the same thing twice; the reference interpreter says whether it is the same.
#[test]
fn equal_values() {
    for path in files("tests/check_equal") {
        let (name, text) = read(&path);
        let model = accept(&name, &text, &CheckOptions { overrides: options(&text).overrides, ..plain() }).model;
        let [segment] = &model.segments[..] else { panic!("{name}: one segment") };
        let graph = &segment.forward;
        for seed in 0..3 {
            let values = evaluate(graph, &given(graph, seed), Mode::F64);
            let side =
                |side| graph.output(OutputRole::Output, side).unwrap_or_else(|| panic!("{name}: no output {side}"));
            let (left, right) = (&values[side("left").index()], &values[side("right").index()]);
            assert_eq!(left.dims, right.dims, "{name}");
            assert!(left.data.iter().any(|x| *x != 0.0), "{name}: there is something to compare");
            for (a, b) in left.data.iter().zip(&right.data) {
                assert!((a - b).abs() <= 1e-9 * (1.0 + a.abs()), "{name}: {a} and {b}");
            }
        }
    }
}

/// Random tensors, and tokens from 0 to 9.
fn given(graph: &Graph, seed: i32) -> FxHashMap<ValueId, forebay_ir::reference::Tensor> {
    let mut given = sample::inputs(graph, seed, &(-1.0..1.0));
    for value in inputs(graph, InputRole::Data) {
        let tensor = given.get_mut(&value).expect("every input has a value");
        tensor.data.iter_mut().enumerate().for_each(|(i, x)| *x = ((i as i32 * 7 + seed * 3) % 10) as f64);
    }
    given
}

fn examples() -> Vec<(String, String)> {
    files("../examples/models").iter().map(|path| read(path)).collect()
}

/// `// reduced: --set a=1 b=2`
fn reduced(text: &str) -> Vec<(String, Const)> {
    overrides(
        text.lines().find_map(|line| line.strip_prefix("// reduced: --set ")).expect("a line with the reduced size"),
    )
}

#[test]
fn example_models_pass() {
    for (name, text) in examples() {
        for (narrow, wide) in [(DType::BF16, DType::F32), (DType::F32, DType::F32), (DType::F64, DType::F64)] {
            for training in [true, false] {
                for overrides in [vec![], reduced(&text)] {
                    let accepted = accept(&name, &text, &CheckOptions { overrides, narrow, wide, training, ..plain() });
                    let warnings = render(&accepted.warnings, &std_library::sources(&name, &text), false);
                    assert!(accepted.warnings.is_empty(), "{warnings}");
                }
            }
        }
    }
}

#[test]
fn the_library_is_complete_and_correct() {
    let names: Vec<String> =
        files("std").iter().map(|p| p.file_name().expect("a file").to_string_lossy().into_owned()).collect();
    assert_eq!(
        names,
        std_library::FILES.iter().map(|(name, _)| *name).collect::<Vec<_>>(),
        "the table lists every file"
    );
    for (parsed, (name, text)) in std_library::parsed().iter().zip(std_library::FILES) {
        assert!(
            parsed.diagnostics.is_empty(),
            "{}",
            render(&parsed.diagnostics, &std_library::sources(name, text), false)
        );
    }
}

/// Layers of one kind cost next to nothing: the graphs of a model of many are those of a model of few.
#[test]
fn equal_layers_share_a_segment() {
    let text =
        std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples/models/deepseek-v3.moe"))
            .expect("a model");
    let with_layers = |n: i64| {
        accept("deepseek", &text, &CheckOptions { overrides: vec![("layers".into(), Const::Int(n))], ..plain() }).model
    };
    let (few, many) = (with_layers(5), with_layers(10_000));
    assert_eq!(few.segments.len(), many.segments.len());
    assert_eq!(many.layers.len(), few.layers.len() + 9_995);
    for (a, b) in few.segments.iter().zip(&many.segments) {
        assert_eq!(a.forward.nodes.len(), b.forward.nodes.len());
    }
}

/// The work is counted, not timed: a full-size model stays far below what is allowed.
#[test]
fn a_large_model_is_checked_in_few_steps() {
    let text =
        std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples/models/deepseek-v3.moe"))
            .expect("a model");
    let limits = Limits { nodes: 1_500, ..Limits::default() };
    accept("deepseek-v3.moe", &text, &CheckOptions { limits, training: true, ..plain() });
}

/// A parameter with very many axes takes a moment, not minutes: what is written twice is not looked for among all before it.
#[test]
fn a_declaration_may_have_many_axes() {
    let axes: Vec<String> = (0..400_000).map(|n| format!("a{n}:2")).collect();
    let text = format!("model M(batch = 1) {{\n    param w[{}]\n}}\n", axes.join(", "));
    let started = Instant::now();
    let diagnostics = load(&text, &plain()).expect_err("it is too large");
    let found = diagnostics.iter().find(|d| d.code == "E0405").expect("too many elements");
    assert_eq!(found.label, format!("{}…", "2 × ".repeat(16)));
    assert!(started.elapsed() < Duration::from_secs(8), "took {:?}", started.elapsed());
}

mod mutations {
    use super::{examples, overrides, plain, reduced};
    use forebay_dsl::diagnostics::render;
    use forebay_dsl::model::{CheckOptions, Limits};
    use forebay_dsl::{load, std_library};
    use proptest::prelude::*;
    use std::sync::OnceLock;

    /// Example models, each with the whole library in its file, so that blocks are mutated as well.
    fn seeds() -> &'static [(String, Vec<String>)] {
        static SEEDS: OnceLock<Vec<(String, Vec<String>)>> = OnceLock::new();
        SEEDS.get_or_init(|| {
            let own = super::files("tests/check").iter().map(|path| super::read(path).1).collect::<Vec<_>>();
            let models = examples().into_iter().map(|(_, text)| text).chain(own);
            models
                .map(|text| {
                    let library = std_library::FILES.iter().map(|(_, text)| *text).filter(|t| !defines_same(&text, t));
                    let whole = std::iter::once(text.as_str()).chain(library).collect::<Vec<_>>().join("\n");
                    (text, pieces(&whole))
                })
                .collect()
        })
    }

    /// Does the file define a block of the library?
    fn defines_same(text: &str, library: &str) -> bool {
        let blocks = |t: &str| {
            t.lines()
                .filter_map(|l| l.strip_prefix("block "))
                .map(|l| l.split('(').next().unwrap_or("").to_string())
                .collect::<Vec<_>>()
        };
        blocks(text).iter().any(|b| blocks(library).contains(b))
    }

    /// Words, numbers and single characters.
    fn pieces(text: &str) -> Vec<String> {
        let mut pieces: Vec<String> = Vec::new();
        let mut word = false;
        for c in text.chars() {
            let in_word = c.is_alphanumeric() || c == '_' || c == '.';
            match pieces.last_mut() {
                Some(last) if in_word && word => last.push(c),
                _ => pieces.push(c.to_string()),
            }
            word = in_word;
        }
        pieces
    }

    /// Some thousands, or more with `FOREBAY_TEST_ALL=1`.
    fn cases() -> u32 {
        if std::env::var_os("FOREBAY_TEST_ALL").is_some() { 8000 } else { 3000 }
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: cases(), failure_persistence: None, ..ProptestConfig::default() })]

        /// Whatever is changed in a model, the answer is a model or diagnostics that can be shown.
        #[test]
        fn never_panic(seed in any::<prop::sample::Index>(), edits in prop::collection::vec((any::<prop::sample::Index>(), any::<prop::sample::Index>(), 0..6u8), 1..6)) {
            let (original, pieces) = seed.get(seeds());
            let mut mutated = pieces.clone();
            for (at, from, what) in edits {
                let (at, piece) = (at.index(mutated.len()), from.get(pieces).clone());
                match what {
                    0 => drop(mutated.remove(at)),
                    1 => mutated.insert(at, piece),
                    2 => mutated[at] = "0".into(),
                    _ => {
                        // A word for a word, mostly: what still parses reaches the checker.
                        let words: Vec<usize> = (0..mutated.len()).filter(|&i| mutated[i].chars().all(char::is_alphabetic)).collect();
                        let others: Vec<&String> = pieces.iter().filter(|p| p.chars().all(char::is_alphabetic)).collect();
                        let target = words[at % words.len()];
                        mutated[target] = others[from.index(others.len())].clone();
                    }
                }
            }
            let text = mutated.concat();
            let has_reduced = original.lines().any(|l| l.starts_with("// reduced: "));
            let overrides = if has_reduced { reduced(original) } else { overrides("") };
            let limits = Limits { nodes: 20_000, layers: 1_000 };
            let options = CheckOptions { overrides, limits, training: true, ..plain() };
            match load(&text, &options) {
                Ok(accepted) => super::check_invariants(&accepted.model),
                Err(diagnostics) => {
                    prop_assert!(!diagnostics.is_empty());
                    render(&diagnostics, &std_library::sources("mutated.moe", &text), false);
                }
            }
        }
    }
}
