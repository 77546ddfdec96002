//! Files that users name: text is read up to a limit, and what is written appears at once.

use crate::failure::Failure;
use crate::output::print_bytes;
use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};

/// Bytes of a text that people write by hand: a cluster, a strategy, a list of hosts.
pub const SMALL: u64 = 1 << 20;
/// Bytes of a text that programs write: a table of runs, orders of a schedule, a log.
pub const LARGE: u64 = 1 << 28;

/// Reads text in UTF-8 of at most so many bytes, whatever the file says of its size.
pub fn read_text(path: &Path, most: u64) -> Result<String, Failure> {
    let name = path.display();
    let failed = |error: std::io::Error| Failure::Input(format!("cannot read `{name}`: {error}"));
    let mut bytes = vec![];
    fs::File::open(path).map_err(failed)?.take(most + 1).read_to_end(&mut bytes).map_err(failed)?;
    if bytes.len() as u64 > most {
        return Err(Failure::Input(format!("`{name}` is longer than {most} bytes")));
    }
    String::from_utf8(bytes).map_err(|error| {
        Failure::Input(format!("`{name}` is not text: byte {} is not UTF-8", error.utf8_error().valid_up_to()))
    })
}

/// Can a file be written here? Asked before long work whose result goes there; nothing is written.
pub fn can_write(path: &Path) -> Result<(), Failure> {
    let wrong = |why: &str| Err(Failure::Input(format!("cannot write `{}`: {why}", path.display())));
    match (fs::metadata(path), folder_of(path).metadata()) {
        (Ok(there), _) if there.is_dir() => wrong("it is a folder"),
        (Ok(there), _) if there.permissions().readonly() => wrong("it is read-only"),
        (Ok(_), _) => Ok(()),
        (Err(_), Ok(folder)) if folder.is_dir() => Ok(()),
        (Err(_), Ok(_)) => wrong("what should be its folder is a file"),
        (Err(_), Err(error)) => wrong(&format!("its folder: {error}")),
    }
}

fn folder_of(path: &Path) -> &Path {
    path.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// Is it what options that name a file call stdout?
pub fn is_stdout(path: &Path) -> bool {
    path.as_os_str() == "-"
}

/// Can all these files be written, and is none of them another, or one that is read? Of each what it is, for messages: an option, or what the file holds.
pub fn can_write_all(read: &[(&str, PathBuf)], written: &[(&str, Option<&Path>)]) -> Result<(), Failure> {
    are_apart(read, written)?;
    written.iter().filter_map(|(_, path)| *path).filter(|path| !is_stdout(path)).try_for_each(can_write)
}

/// Is none of these files another, or one that is read?
pub fn are_apart(read: &[(&str, PathBuf)], written: &[(&str, Option<&Path>)]) -> Result<(), Failure> {
    let written: Vec<(&str, &Path)> = written.iter().filter_map(|(option, path)| Some((*option, (*path)?))).collect();
    for (n, (option, path)) in written.iter().enumerate() {
        let others = read.iter().map(|(what, path)| (*what, path.as_path()));
        if let Some((what, _)) = others.chain(written[..n].iter().copied()).find(|(_, other)| is_same(path, other)) {
            let kind = if path.is_dir() { "folder" } else { "file" };
            return Err(Failure::Usage(format!("{option} {}: this is the {kind} of {what}", path.display())));
        }
    }
    Ok(())
}

/// Do two names lead to one file, which need not be there yet?
fn is_same(a: &Path, b: &Path) -> bool {
    real(a) == real(b)
}

/// Where a name leads, without links; nothing need be there yet.
pub fn real(path: &Path) -> PathBuf {
    path.canonicalize().unwrap_or_else(|_| link(path))
}

/// The same, but when it is a link itself, that link.
pub fn link(path: &Path) -> PathBuf {
    let in_folder = || Some(folder_of(path).canonicalize().ok()?.join(path.file_name()?));
    in_folder().or_else(|| std::path::absolute(path).ok()).unwrap_or_else(|| path.to_path_buf())
}

/// Replaces a file as [`replace_file`] does, or writes to stdout.
pub fn write_out(path: &Path, bytes: &[u8]) -> Result<(), Failure> {
    if is_stdout(path) { print_bytes(bytes) } else { replace_file(path, bytes) }
}

/// Replaces a file at once: it is either the old one or the new one, whatever happens. What a link leads to is replaced, not the link; a device or a pipe is
/// written to.
pub fn replace_file(path: &Path, bytes: &[u8]) -> Result<(), Failure> {
    let wrong = |error: std::io::Error| Failure::Input(format!("cannot write `{}`: {error}", path.display()));
    if fs::metadata(path).is_ok_and(|known| !known.is_file() && !known.is_dir()) {
        return fs::write(path, bytes).map_err(wrong);
    }
    let target = fs::canonicalize(path).unwrap_or_else(|_| path.to_path_buf());
    let path = target.as_path();
    let folder = folder_of(path);
    let name = path.file_name().map_or_else(Default::default, |n| n.to_string_lossy().into_owned());
    let unfinished = folder.join(format!(".{name}.{}", std::process::id()));
    let result = fs::write(&unfinished, bytes).and_then(|()| {
        if let Ok(kept) = fs::metadata(path) {
            fs::set_permissions(&unfinished, kept.permissions())?;
        }
        fs::rename(&unfinished, path)
    });
    result.map_err(|error| {
        let _ = fs::remove_file(&unfinished);
        wrong(error)
    })
}
