//! What a run writes besides checkpoints: `--log`, `--trace` and `--profile`, none of which may cost the user something else.

use crate::args::SessionArgs;
use crate::failure::Failure;
use crate::files::{are_apart, can_write, is_stdout, link, real};
use forebay_runtime::checkpoint::{Checkpoint, is_of_run};
use forebay_runtime::data::Corpus;
use std::path::{Path, PathBuf};

/// Can all be written, without harm to what is read or to checkpoints? Of each file that is read for the plan what it is, for messages.
pub fn check(args: &SessionArgs, of_plan: impl Iterator<Item = (&'static str, PathBuf)>) -> Result<(), Failure> {
    let data = ("--data", args.data.clone());
    let read: Vec<(&str, PathBuf)> = of_plan.chain([data]).chain(args.hosts.reads()).collect();
    let at_end = at_end(args);
    let written = [&[("--log", args.log.as_deref())][..], &at_end].concat();
    let given = || written.iter().filter_map(|(option, path)| Some((*option, (*path)?)));
    let refuse = |(option, path): (&str, &Path), why: Option<String>| match why {
        Some(why) => Err(Failure::Usage(format!("{option} {}: {why}", path.display()))),
        None => Ok(()),
    };
    given().filter(|(_, path)| is_stdout(path)).try_for_each(|to| refuse(to, no_stdout(args, to.0)))?;
    are_apart(&read, &written)?;
    given().filter(|(_, path)| !is_stdout(path)).try_for_each(|to| refuse(to, harm(args, to.1)))?;
    // The log may go to the folder of the run, which is made later.
    at_end.into_iter().filter_map(|(_, path)| path).filter(|path| !is_stdout(path)).try_for_each(can_write)
}

/// Does a file at the end of the run go to stdout, in place of the summary?
pub fn is_printed(args: &SessionArgs) -> bool {
    at_end(args).iter().any(|(_, path)| path.is_some_and(is_stdout))
}

/// What is written when the run has ended, and by which options.
fn at_end(args: &SessionArgs) -> [(&'static str, Option<&Path>); 2] {
    [("--trace", args.trace.as_deref()), ("--profile", args.profile.as_ref().and_then(Option::as_deref))]
}

/// Why stdout is not for what an option writes.
fn no_stdout(args: &SessionArgs, option: &str) -> Option<String> {
    match option {
        "--log" => Some("--json prints these lines on stdout".into()),
        _ if args.json => Some("on stdout are the lines of --json".into()),
        _ => None,
    }
}

/// What would be lost, or change, with a file in one of the folders that a run uses.
fn harm(args: &SessionArgs, path: &Path) -> Option<String> {
    let checkpoint = args.resume.as_deref().filter(|folder| Checkpoint::is_one(folder));
    if let Some(folder) = checkpoint.filter(|folder| within(path, folder).is_some()) {
        return Some(format!("this is in the checkpoint `{}`", folder.display()));
    }
    let resumed = match checkpoint {
        Some(folder) => real(folder).parent().map(Path::to_path_buf),
        None => args.resume.clone(),
    };
    for run in args.save.iter().chain(&resumed) {
        let Some(inner) = within(path, run) else { continue };
        match inner.iter().next() {
            None => return Some("this is the folder of the run".into()),
            Some(name) if is_of_run(name) => return Some(format!("this belongs to the run in `{}`", run.display())),
            Some(_) => {}
        }
    }
    // Folders of runs are no data, and one is to be made.
    let is_beside_data = args.save.as_deref().is_some_and(|run| within(path, run).is_some());
    let is_data = within(path, &args.data).is_some_and(|inner| Corpus::has(&args.data, &inner));
    (is_data && !is_beside_data).then(|| "this is in the folder of --data, whose files are trained on".into())
}

/// The way from a folder to a file in it, or to a link in it.
fn within(path: &Path, folder: &Path) -> Option<PathBuf> {
    let folder = real(folder);
    [real(path), link(path)].iter().find_map(|path| path.strip_prefix(&folder).map(Path::to_path_buf).ok())
}
