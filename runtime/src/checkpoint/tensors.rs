//! safetensors files, written and read tensor by tensor: no file is ever in memory as a whole.
//!
//! ```text
//! u64 length of the header · header: JSON, padded with spaces to 8 bytes · the tensors, back to back
//! ```

use super::CheckpointError;
use forebay_plan::DType;
use safetensors::Dtype;
use safetensors::tensor::{Metadata, TensorInfo};
use std::borrow::Cow;
use std::collections::HashMap;
use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

/// Headers are at most this long, as in the format's own reader.
const MAX_HEADER: u64 = 100_000_000;

/// A tensor to write.
pub struct Part<'a> {
    pub name: String,
    pub dtype: DType,
    pub dims: &'a [u64],
}

impl Part<'_> {
    fn bytes(&self) -> usize {
        (self.dims.iter().product::<u64>() * self.dtype.bytes()) as usize
    }
}

/// Writes a file of parts, of which `bytes` gives the i-th when its turn comes. Tensors stand by falling size of their elements (so that all are aligned), then by name.
pub fn write<'b>(
    out: &mut impl Write,
    parts: &[Part],
    mut bytes: impl FnMut(usize) -> io::Result<Cow<'b, [u8]>>,
) -> io::Result<()> {
    let mut order: Vec<usize> = (0..parts.len()).collect();
    order.sort_by_key(|&i| (std::cmp::Reverse(parts[i].dtype.bytes()), &parts[i].name));
    let mut end = 0;
    let infos = order.iter().map(|&i| {
        let part = &parts[i];
        let start = end;
        end += part.bytes();
        let shape = part.dims.iter().map(|d| *d as usize).collect();
        (part.name.clone(), TensorInfo { dtype: dtype(part.dtype), shape, data_offsets: (start, end) })
    });
    let notes = HashMap::from([("format".to_string(), "pt".to_string())]);
    let metadata = Metadata::new(Some(notes), infos.collect()).map_err(io::Error::other)?;
    let mut header = serde_json::to_vec(&metadata)?;
    header.resize(header.len().next_multiple_of(8), b' ');
    out.write_all(&(header.len() as u64).to_le_bytes())?;
    out.write_all(&header)?;
    order.iter().try_for_each(|&i| out.write_all(&bytes(i)?))
}

/// The first value that is no finite number, if it is of floats.
pub fn not_finite(bytes: &[u8], dtype: DType) -> Option<f64> {
    fn first<const N: usize>(bytes: &[u8], value: impl Fn([u8; N]) -> f64) -> Option<f64> {
        bytes.as_chunks().0.iter().map(|&chunk| value(chunk)).find(|x| !x.is_finite())
    }
    match dtype {
        DType::F32 => first(bytes, |b| f32::from_le_bytes(b).into()),
        DType::F64 => first(bytes, f64::from_le_bytes),
        DType::Bf16 => first(bytes, |b| half::bf16::from_le_bytes(b).into()),
        _ => None,
    }
}

/// An open file.
pub struct Reader {
    file: File,
    path: PathBuf,
    /// Where the data begin.
    start: u64,
    metadata: Metadata,
}

impl Reader {
    /// Opens a file and reads its header.
    pub fn open(path: &Path) -> Result<Reader, CheckpointError> {
        let read = |error| CheckpointError::Read { path: path.to_path_buf(), error };
        let damaged = |why: String| CheckpointError::Damaged { path: path.to_path_buf(), why };
        let mut file = File::open(path).map_err(read)?;
        let size = file.metadata().map_err(read)?.len();
        let mut length = [0; 8];
        file.read_exact(&mut length).map_err(|_| damaged("it is shorter than 8 bytes".into()))?;
        let length = u64::from_le_bytes(length);
        if length > MAX_HEADER || length > size.saturating_sub(8) {
            return Err(damaged(format!("a header of {length} bytes does not fit into its {size} bytes")));
        }
        let mut header = vec![0; length as usize];
        file.read_exact(&mut header).map_err(read)?;
        let metadata: Metadata = serde_json::from_slice(&header)
            .map_err(|error| damaged(format!("its header is not that of safetensors: {error}")))?;
        let (start, wanted) = (8 + length, metadata.data_len() as u64);
        if start.checked_add(wanted) != Some(size) {
            return Err(damaged(format!("it has {size} bytes, its header says {}", start.saturating_add(wanted))));
        }
        Ok(Reader { file, path: path.to_path_buf(), start, metadata })
    }

    /// Reads a tensor, which must be as large as `bytes`.
    pub fn read(&mut self, name: &str, wanted: DType, dims: &[u64], bytes: &mut [u8]) -> Result<(), CheckpointError> {
        let damaged = |why: String| CheckpointError::Damaged { path: self.path.clone(), why };
        let info = self.metadata.info(name).ok_or_else(|| damaged(format!("it lacks the tensor `{name}`")))?;
        let same_shape = info.shape.iter().map(|d| *d as u64).eq(dims.iter().copied());
        let (first, end) = info.data_offsets;
        if info.dtype != dtype(wanted) || !same_shape || end - first != bytes.len() {
            return Err(damaged(format!("its tensor `{name}` is not what the index says")));
        }
        let at = SeekFrom::Start(self.start + first as u64);
        let result = self.file.seek(at).and_then(|_| self.file.read_exact(bytes));
        result.map_err(|error| CheckpointError::Read { path: self.path.clone(), error })
    }
}

fn dtype(dtype: DType) -> Dtype {
    match dtype {
        DType::F64 => Dtype::F64,
        DType::F32 => Dtype::F32,
        DType::Bf16 => Dtype::BF16,
        DType::I32 => Dtype::I32,
        DType::I16 => Dtype::I16,
        DType::Bool => Dtype::BOOL,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write_both(out: &mut impl Write, a: &[u8], b: &[u8]) -> io::Result<()> {
        let parts = [
            Part { name: "x.b".into(), dtype: DType::Bf16, dims: &[1] },
            Part { name: "a".into(), dtype: DType::F32, dims: &[2, 1] },
        ];
        write(out, &parts, |i| Ok(Cow::Borrowed([b, a][i])))
    }

    #[test]
    fn the_library_reads_what_we_write() {
        let (a, b) = ([1, 2, 3, 4, 5, 6, 7, 8], [9, 10]);
        let mut file = vec![];
        write_both(&mut file, &a, &b).expect("memory does not fail");
        let read = safetensors::SafeTensors::deserialize(&file).expect("a valid file");
        let tensor = read.tensor("a").expect("it is there");
        assert_eq!((tensor.dtype(), tensor.shape(), tensor.data()), (Dtype::F32, &[2, 1][..], &a[..]));
        assert_eq!(read.tensor("x.b").expect("it is there").data(), b);
    }

    #[test]
    fn every_truncation_and_every_short_write_is_noticed() {
        let (a, b) = ([1, 2, 3, 4, 5, 6, 7, 8], [9, 10]);
        let mut file = vec![];
        write_both(&mut file, &a, &b).expect("memory does not fail");
        let folder = tempfile::tempdir().expect("a temporary folder");
        let path = folder.path().join("x.safetensors");
        for length in 0..file.len() {
            std::fs::write(&path, &file[..length]).expect("a file");
            assert!(matches!(Reader::open(&path), Err(CheckpointError::Damaged { .. })), "{length}");
            let mut full_disk = &mut vec![0; length][..];
            assert!(write_both(&mut full_disk, &a, &b).is_err());
        }
        std::fs::write(&path, &file).expect("a file");
        let mut reader = Reader::open(&path).expect("a whole file");
        let mut bytes = [0; 2];
        reader.read("x.b", DType::Bf16, &[1], &mut bytes).expect("the tensor is there");
        assert_eq!(bytes, b);
        assert!(reader.read("x.c", DType::Bf16, &[1], &mut bytes).is_err());
        assert!(reader.read("x.b", DType::Bf16, &[1, 1], &mut bytes).is_err());
        assert!(reader.read("a", DType::Bf16, &[1], &mut bytes).is_err());
    }

    #[test]
    fn hostile_headers_are_refused() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let path = folder.path().join("x.safetensors");
        let long = u64::MAX.to_le_bytes();
        let deep = {
            let mut file = 200u64.to_le_bytes().to_vec();
            file.extend([b'['; 200]);
            file
        };
        for bytes in [&long[..], &deep, b"\x02\0\0\0\0\0\0\0{}tail", b"PK\x03\x04 a zip file, as torch writes"] {
            std::fs::write(&path, bytes).expect("a file");
            assert!(matches!(Reader::open(&path), Err(CheckpointError::Damaged { .. })));
        }
    }
}
