//! Reading files.

use super::DataError;
use crate::checkpoint::Saver;
use crate::hash::Hasher;
use std::ffi::OsStr;
use std::fs;
use std::ops::Range;
use std::path::{Path, PathBuf};

/// The bytes of a file, or of all text files of a folder one after another.
#[derive(Debug)]
pub struct Corpus {
    path: PathBuf,
    bytes: Vec<u8>,
    files: Vec<Range<usize>>,
    skipped: Vec<PathBuf>,
}

impl Corpus {
    /// Reads a file, whatever its bytes are, or a folder: its files and those of its folders in the order of their names. Of a folder, hidden files and
    /// folders are left out, as are folders of runs (which would change the data of the run that is saved there), and files that are not UTF-8 text ([`Corpus::skipped`]).
    /// Links to folders are not followed.
    ///
    /// # Errors
    /// When something cannot be read, or there is nothing.
    pub fn load(path: &Path) -> Result<Corpus, DataError> {
        let kind = fs::metadata(path).map_err(|error| io(path, error))?;
        let mut corpus = Corpus { path: path.to_path_buf(), bytes: vec![], files: vec![], skipped: vec![] };
        let why = if kind.is_file() {
            let text = fs::read(path).map_err(|error| io(path, error))?;
            corpus.add(text);
            "the file has no bytes"
        } else if kind.is_dir() {
            corpus.load_folder(path)?;
            if corpus.skipped.is_empty() {
                "the folder has no text files"
            } else {
                "none of the folder's files is UTF-8 text"
            }
        } else {
            return Err(DataError::Special(path.to_path_buf()));
        };
        if corpus.bytes.is_empty() {
            return Err(DataError::Empty { path: path.to_path_buf(), why: why.into() });
        }
        Ok(corpus)
    }

    /// Is a file, named as it is seen from a folder, one that [`Corpus::load`] reads with that folder, or would if it were there?
    pub fn has(folder: &Path, file: &Path) -> bool {
        let mut folders = file.ancestors().skip(1).map(|inner| folder.join(inner));
        folder.is_dir() && !file.iter().any(is_hidden) && !folders.any(|inner| inner != folder && is_of_a_run(&inner))
    }

    /// A corpus of one text that is there already.
    pub fn from_bytes(name: impl Into<PathBuf>, bytes: Vec<u8>) -> Corpus {
        let mut corpus = Corpus { path: name.into(), bytes: vec![], files: vec![], skipped: vec![] };
        corpus.add(bytes);
        corpus
    }

    /// Where it was read from.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// All bytes.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Where each file is; files without bytes are left out.
    pub fn files(&self) -> &[Range<usize>] {
        &self.files
    }

    /// Files that are not text.
    pub fn skipped(&self) -> &[PathBuf] {
        &self.skipped
    }

    /// A hash of the bytes and of where files begin.
    pub fn fingerprint(&self) -> u64 {
        let mut hasher = Hasher::new();
        for file in &self.files {
            hasher.update(&(file.len() as u64).to_le_bytes());
            hasher.update(&self.bytes[file.clone()]);
        }
        hasher.finish()
    }

    fn add(&mut self, text: Vec<u8>) {
        let start = self.bytes.len();
        if self.bytes.is_empty() {
            self.bytes = text;
        } else {
            self.bytes.extend_from_slice(&text);
        }
        if self.bytes.len() > start {
            self.files.push(start..self.bytes.len());
        }
    }

    fn load_folder(&mut self, folder: &Path) -> Result<(), DataError> {
        let error = |error| io(folder, error);
        let mut entries = fs::read_dir(folder).map_err(error)?.collect::<Result<Vec<_>, _>>().map_err(error)?;
        entries.sort_by_key(fs::DirEntry::file_name);
        for entry in entries {
            let path = entry.path();
            if is_hidden(&entry.file_name()) {
                continue;
            }
            let kind = entry.file_type().map_err(|error| io(&path, error))?;
            // A link that leads nowhere is not text either.
            let is_file = kind.is_file() || kind.is_symlink() && fs::metadata(&path).is_ok_and(|m| m.is_file());
            if kind.is_dir() {
                if !is_of_a_run(&path) {
                    self.load_folder(&path)?;
                }
            } else if is_file {
                let text = fs::read(&path).map_err(|error| io(&path, error))?;
                if std::str::from_utf8(&text).is_ok() { self.add(text) } else { self.skipped.push(path) }
            }
        }
        Ok(())
    }
}

fn is_hidden(name: &OsStr) -> bool {
    name.as_encoded_bytes().first() == Some(&b'.')
}

fn is_of_a_run(folder: &Path) -> bool {
    Saver::seed_of(folder).is_some()
}

fn io(path: &Path, error: std::io::Error) -> DataError {
    DataError::Io { path: path.to_path_buf(), error }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn folders_are_read_in_the_order_of_names() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let write = |name: &str, text: &[u8]| {
            let path = folder.path().join(name);
            fs::create_dir_all(path.parent().expect("within the folder")).expect("a folder");
            fs::write(path, text).expect("a file");
        };
        write("b.txt", b"bee");
        write("a/z.txt", b"zed");
        write("a/empty", b"");
        write("c.bin", &[0xff, 0xfe]);
        write(".hidden/x", b"no");
        write(".git", b"no");
        let corpus = Corpus::load(folder.path()).expect("there is text");
        assert_eq!(corpus.bytes(), b"zedbee");
        assert_eq!(corpus.files(), [0..3, 3..6]);
        assert_eq!(corpus.skipped(), [folder.path().join("c.bin")]);
        // What a run has left is not data.
        fs::create_dir(folder.path().join("run")).expect("a folder");
        fs::write(folder.path().join("run/run.json"), r#"{"format":"forebay-run","version":1,"seed":1}"#)
            .expect("a file");
        assert_eq!(Corpus::load(folder.path()).expect("there is text").bytes(), b"zedbee");
        for (file, is_read) in [
            ("new.txt", true),
            ("a/z.txt", true),
            ("new/x", true),
            (".hidden/x", false),
            ("a/.x", false),
            ("run/log", false),
            ("run/logs/x", false),
        ] {
            assert_eq!(Corpus::has(folder.path(), Path::new(file)), is_read, "{file}");
        }
        assert!(!Corpus::has(&folder.path().join("b.txt"), Path::new("")), "it is no folder");
        // A file that is named is read whatever it holds.
        assert_eq!(Corpus::load(&folder.path().join("c.bin")).expect("bytes").bytes(), [0xff, 0xfe]);
    }

    #[test]
    fn the_fingerprint_sees_bytes_and_files() {
        let folder = |files: &[(&str, &str)]| {
            let folder = tempfile::tempdir().expect("a temporary folder");
            files.iter().for_each(|(name, text)| fs::write(folder.path().join(name), text).expect("a file"));
            Corpus::load(folder.path()).expect("there is text").fingerprint()
        };
        let one = folder(&[("a", "xy"), ("b", "z")]);
        assert_eq!(one, folder(&[("a", "xy"), ("b", "z")]));
        assert_ne!(one, folder(&[("a", "x"), ("b", "yz")]));
        assert_ne!(one, folder(&[("a", "xy"), ("b", "w")]));
    }

    #[test]
    fn errors_name_the_path() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let missing = folder.path().join("missing");
        let error = Corpus::load(&missing).expect_err("it is not there");
        assert!(error.to_string().starts_with(&format!("cannot read the data `{}`: ", missing.display())), "{error}");
        let error = Corpus::load(folder.path()).expect_err("it is empty");
        assert!(error.to_string().ends_with("are empty: the folder has no text files"), "{error}");
        fs::write(folder.path().join("x"), [0xff]).expect("a file");
        let error = Corpus::load(folder.path()).expect_err("it has no text");
        assert!(error.to_string().ends_with("are empty: none of the folder's files is UTF-8 text"), "{error}");
        fs::write(folder.path().join("y"), []).expect("a file");
        let error = Corpus::load(&folder.path().join("y")).expect_err("it is empty");
        assert!(error.to_string().ends_with("are empty: the file has no bytes"), "{error}");
    }
}
