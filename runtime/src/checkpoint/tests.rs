//! Saving and loading, and everything that can go wrong with files.

use super::*;
use crate::data::{Corpus, Dataset};
use crate::exec::{ExecOptions, Executor};
use crate::init;
use crate::testing::{holding, parallel_plan, partings, tiny_plan};
use crate::train::{Observer, StepReport, TrainOptions, Trainer, Unobserved};
use forebay_plan::{DType, Init, Plan, Tensor, TensorKind};
use std::fs;

fn executor(plan: &Plan) -> Executor<'_> {
    let options = ExecOptions { threads: 1, seed: 3, ..ExecOptions::default() };
    let mut executor = Executor::new(plan, &options).unwrap_or_else(|error| panic!("{error}"));
    init::initialise(&mut executor).expect("all ranks are well");
    executor
}

fn dataset(plan: &Plan) -> Dataset {
    let text: Vec<u8> = (0..4000u32).map(|i| b'a' + (i * i % 23) as u8).collect();
    Dataset::new(Corpus::from_bytes("letters", text), &plan.settings).expect("enough letters")
}

#[derive(Default)]
struct Losses(Vec<(u64, u64)>);

impl Observer for Losses {
    fn step(&mut self, report: &StepReport) -> io::Result<()> {
        self.0.push((report.step, report.loss.to_bits()));
        Ok(())
    }
}

/// Trains to a step, from a checkpoint or the beginning; the losses by step.
fn train(plan: &Plan, run: &Path, steps: u64, resume: Option<&Checkpoint>) -> Losses {
    let (mut executor, dataset) = (executor(plan), dataset(plan));
    if let Some(checkpoint) = resume {
        checkpoint.load(&mut executor, Contents::All).expect("a whole checkpoint");
    }
    let mut saver = match resume {
        Some(checkpoint) => Saver::resume(run, Some(checkpoint.folder())).expect("a folder of its own"),
        None => Saver::create(run, 3).expect("a new folder"),
    };
    let mut losses = Losses::default();
    let options = TrainOptions { steps, save_every: Some(2), ..TrainOptions::default() };
    let mut trainer = Trainer::new(&mut executor, &dataset, resume).expect("it can train");
    trainer.run(&options, Some(&mut saver), &mut losses).expect("a run");
    losses
}

fn names(folder: &Path) -> Vec<String> {
    let mut names: Vec<String> = fs::read_dir(folder)
        .expect("a folder")
        .flatten()
        .map(|e| e.file_name().to_string_lossy().into_owned())
        .collect();
    names.sort();
    names
}

#[test]
fn a_resumed_run_has_the_same_losses() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let plan = tiny_plan(1000);
    let whole = train(&plan, &folder.path().join("a"), 9, None);
    let run = folder.path().join("b");
    let first = train(&plan, &run, 5, None);
    assert_eq!(names(&run), ["latest", "run.json", "step-000004", "step-000005"]);
    let checkpoint = Checkpoint::open(&run).expect("a checkpoint");
    assert_eq!(checkpoint.index().step, 5);
    assert_eq!(checkpoint.plan().expect("a whole plan"), plan);
    let second = train(&plan, &run, 9, Some(&checkpoint));
    assert_eq!([first.0, second.0].concat(), whole.0);
    assert_eq!(names(&run), ["latest", "run.json", "step-000008", "step-000009"]);
    let files = names(&run.join("step-000009"));
    assert_eq!(files, ["index.json", "model.safetensors", "optimizer.safetensors", "plan.json"]);
    for file in &files {
        let (a, b) = (folder.path().join("a/step-000009").join(file), run.join("step-000009").join(file));
        assert!(fs::read(a).expect("a file") == fs::read(b).expect("a file"), "{file} is the same in both runs");
    }
}

#[test]
fn an_older_checkpoint_can_be_gone_on_from_in_the_same_folder() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let plan = tiny_plan(1000);
    let run = folder.path().join("run");
    let whole = train(&plan, &run, 6, None);
    let checkpoint = Checkpoint::open(&run.join("step-000004")).expect("a checkpoint");
    assert_eq!(checkpoint.run(), fs::canonicalize(&run).expect("it is there"));
    let again = train(&plan, &run, 6, Some(&checkpoint));
    assert_eq!(again.0[..], whole.0[4..]);
    assert_eq!(names(&run), ["latest", "run.json", "step-000004", "step-000006"]);
}

#[test]
fn a_failed_save_leaves_the_previous_checkpoint() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let plan = tiny_plan(1000);
    let run = folder.path().join("run");
    train(&plan, &run, 2, None);
    let before = Checkpoint::open(&run).expect("a checkpoint");
    let (mut executor, dataset) = (executor(&plan), dataset(&plan));
    before.load(&mut executor, Contents::All).expect("a whole checkpoint");
    let mut saver = Saver::resume(&run, Some(before.folder())).expect("a folder of its own");
    // A file in the way of the folder that is to be written.
    fs::write(run.join(".saving-step-000004"), "in the way").expect("a file");
    let mut trainer = Trainer::new(&mut executor, &dataset, Some(&before)).expect("it can train");
    let options = TrainOptions { steps: 4, ..TrainOptions::default() };
    let error = trainer.run(&options, Some(&mut saver), &mut Unobserved).expect_err("it cannot be saved").to_string();
    let survivor = format!("; the previous checkpoint `{}` is untouched", before.folder().display());
    assert!(error.starts_with("cannot save the checkpoint: writing `") && error.ends_with(&survivor), "{error}");
    let after = Checkpoint::open(&run).expect("the previous checkpoint");
    assert_eq!(after.index(), before.index());
    after.load(&mut executor, Contents::All).expect("it is whole");
    // Going on clears what was left over.
    drop(saver);
    drop(Saver::resume(&run, None).expect("a folder of its own"));
    assert!(!names(&run).iter().any(|n| n.starts_with(".saving")));
}

#[test]
fn a_run_killed_between_renames_is_found() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let plan = tiny_plan(1000);
    let run = folder.path().join("run");
    train(&plan, &run, 4, None);
    let open = || {
        let found = Checkpoint::open(&run).expect("a checkpoint");
        (found.index().step, found.astray().cloned())
    };
    assert_eq!(open(), (4, None));
    fs::remove_file(run.join("latest")).expect("the pointer");
    assert_eq!(open(), (4, None));
    fs::write(run.join("latest"), "step-000009\n").expect("a file");
    assert_eq!(open(), (4, Some(Astray::Missing(run.join("step-000009")))));
    // Killed after the checkpoint of step 2 was moved aside for another one: the one of step 4 is of a future that was given up, and step 2 is not lost.
    fs::write(run.join("latest"), "step-000002\n").expect("a file");
    fs::rename(run.join("step-000002"), run.join(".saving-step-000002.replaced")).expect("a folder");
    let gone = Checkpoint::open(&run).expect_err("nothing up to step 2");
    assert!(matches!(gone, CheckpointError::NotStarted(_)), "{gone}");
    drop(Saver::resume(&run, None).expect("a folder of its own"));
    assert_eq!(Checkpoint::open(&run).expect("a checkpoint").index().step, 2);
    // With the new one in its place, the old one goes.
    fs::create_dir(run.join(".saving-step-000002.replaced")).expect("a folder");
    drop(Saver::resume(&run, None).expect("a folder of its own"));
    assert!(!run.join(".saving-step-000002.replaced").exists());
    for garbage in [&b"../../etc"[..], b"", b"\xff"] {
        fs::write(run.join("latest"), garbage).expect("a file");
        assert_eq!(open(), (4, Some(Astray::NoName(run.join("latest")))));
    }
    fs::write(run.join("latest"), "step-000004\n").expect("a file");
    fs::remove_file(run.join("step-000004/index.json")).expect("a file");
    assert_eq!(open(), (2, Some(Astray::Incomplete(run.join("step-000004")))));
    // Nothing that is whole is left: that is no run which has not begun.
    fs::remove_file(run.join("step-000002/index.json")).expect("a file");
    let lost = Checkpoint::open(&run).expect_err("none is whole");
    assert!(matches!(&lost, CheckpointError::Lost(Astray::Incomplete(_))), "{lost}");
}

#[test]
fn what_is_no_checkpoint_is_refused() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let message = |path: &Path| Checkpoint::open(path).expect_err("it is no checkpoint").to_string();
    let run = folder.path().join("run");
    assert!(message(&run).starts_with(&format!("cannot read the checkpoint: `{}`: ", run.display())));
    let no = format!(
        "`{}` is not a checkpoint: it has neither an `index.json` nor a folder like `step-000150`",
        folder.path().display()
    );
    assert_eq!(message(folder.path()), no);
    Saver::create(&run, 42).expect("a new folder");
    assert_eq!(message(&run), format!("the run in `{}` has no checkpoint yet", run.display()));
    assert_eq!(Saver::seed_of(&run), Some(42));
    let plan = tiny_plan(1000);
    fs::remove_dir_all(&run).expect("the folder");
    train(&plan, &run, 2, None);
    let occupied = Saver::create(&run, 1).expect_err("there is a run").to_string();
    assert!(occupied.contains("holds a run already (saved at step 2): continue it with --resume"), "{occupied}");
}

#[test]
fn damaged_files_are_refused() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let plan = tiny_plan(1000);
    let run = folder.path().join("run");
    train(&plan, &run, 2, None);
    let step = run.join("step-000002");
    let load = || -> Result<(), CheckpointError> {
        let checkpoint = Checkpoint::open(&run)?;
        assert_eq!(checkpoint.plan()?, plan);
        checkpoint.load(&mut executor(&plan), Contents::All)
    };
    load().expect("it is whole");
    for file in names(&step) {
        let path = step.join(&file);
        let whole = fs::read(&path).expect("a file");
        for damage in [0, 1, 2, 3] {
            let mut bytes = whole.clone();
            match damage {
                0 => bytes.truncate(whole.len() / 2),
                1 => bytes.clear(),
                2 => bytes = b"{\"format\":\"something else\"}".to_vec(),
                _ => {
                    // The last digit or byte that carries meaning.
                    let at = if file.ends_with("json") {
                        bytes.iter().rposition(u8::is_ascii_digit).expect("a digit")
                    } else {
                        bytes.len() - 1
                    };
                    bytes[at] ^= 1;
                }
            }
            fs::write(&path, &bytes).expect("a file");
            let error = load().expect_err("it is damaged").to_string();
            assert!(error.contains(&file), "{file} {damage}: {error}");
        }
        fs::remove_file(&path).expect("a file");
        load().expect_err("a file is missing");
        fs::write(&path, &whole).expect("a file");
    }
    load().expect("it is whole again");
}

#[test]
fn another_model_is_told_what_differs() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let plan = tiny_plan(1000);
    let run = folder.path().join("run");
    train(&plan, &run, 2, None);
    let checkpoint = Checkpoint::open(&run).expect("a checkpoint");
    // Another plan with the same tensors is fine.
    let same = tiny_plan(2000);
    checkpoint.load(&mut executor(&same), Contents::All).expect("the tensors are the same");
    let mut other = tiny_plan(1000);
    for tensor in &mut other.roles[0].tensors {
        if tensor.name == "line.w" {
            tensor.dims = vec![4];
        } else {
            tensor.name = "line.steps".into();
        }
    }
    let error = checkpoint.load(&mut executor(&other), Contents::All).expect_err("it differs").to_string();
    let lines: Vec<&str> = error.lines().skip(1).collect();
    let want = [
        "  `line.w` is f32[2, 2] in the checkpoint, f32[4] in the model",
        "  `line.steps` is not in the checkpoint",
        "  `line.count` is not in the model",
    ];
    assert_eq!(lines, want);
}

#[test]
fn what_one_mesh_saves_another_loads() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let whole = Tensor {
        name: "w".into(),
        kind: TensorKind::Param,
        dtype: DType::F32,
        dims: vec![6, 4],
        block: vec![],
        range: None,
        form: forebay_plan::Form::Whole,
        space: forebay_plan::Space::Device,
        offset: 0,
        init: Init::Uniform(-1.0, 1.0),
    };
    let mesh = [("a", 2), ("b", 3)];
    let mut plans = vec![holding(&[], vec![whole.clone()])];
    plans.extend(partings(whole.clone()).into_iter().map(|tensors| holding(&mesh, tensors)));
    let data = DataInfo { fingerprint: String::new(), bytes: 0 };
    let mut files = vec![];
    for (number, plan) in plans.iter().enumerate() {
        let run = folder.path().join(number.to_string());
        let saved = executor(plan);
        Saver::create(&run, 3).expect("a new folder").save(&saved, 1, &data, &[]).expect("it is saved");
        let checkpoint = Checkpoint::open(&run).expect("a checkpoint");
        files.push(fs::read(checkpoint.folder().join("model.safetensors")).expect("a file"));
        for plan in &plans {
            let options = ExecOptions { threads: 1, seed: 99, ..ExecOptions::default() };
            let mut other = Executor::new(plan, &options).unwrap_or_else(|error| panic!("{error}"));
            checkpoint.load(&mut other, Contents::All).expect("it fits");
            assert!(
                other.whole(&whole).expect("one process") == saved.whole(&whole).expect("one process"),
                "{:?}",
                plan.roles[0].tensors
            );
        }
    }
    assert!(files.iter().all(|file| *file == files[0]), "the files do not depend on the mesh");
}

#[test]
fn a_run_goes_on_under_another_mesh() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let (one, two) = (tiny_plan(1000), parallel_plan(1000));
    let whole = train(&one, &folder.path().join("whole"), 8, None);
    let run = folder.path().join("run");
    train(&two, &run, 4, None);
    let rest = train(&one, &run, 8, Some(&Checkpoint::open(&run).expect("a checkpoint")));
    let close = |(a, b): (&(u64, u64), &(u64, u64))| {
        let (x, y) = (f64::from_bits(a.1), f64::from_bits(b.1));
        a.0 == b.0 && (x - y).abs() <= 1e-4 * x.abs()
    };
    assert_eq!(rest.0.len(), 4);
    assert!(whole.0[4..].iter().zip(&rest.0).all(close));
}

#[test]
fn two_runs_in_one_folder_are_refused() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let run = folder.path().join("run");
    let first = Saver::create(&run, 1).expect("a new folder");
    for second in [Saver::create(&run, 2), Saver::resume(&run, None)] {
        let error = second.expect_err("it is taken");
        assert!(matches!(error, CheckpointError::Busy(_)), "{error}");
    }
    assert_eq!(Saver::seed_of(&run), Some(1), "the second changes nothing");
    drop(first);
    Saver::create(&run, 2).expect("it is free again");
}
