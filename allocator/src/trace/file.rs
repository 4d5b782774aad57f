//! From bytes to a snapshot: decompression and its limits.

use std::io::{self, BufRead, Read};

use lzma_rust2::XzReader;

use super::error::{TraceError, TraceProblem};
use super::snapshot::Snapshot;

const XZ_MAGIC: [u8; 6] = *b"\xfd7zXZ\0";

/// How much a file may ask of this machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Size of the pickle, after decompression. Reading it takes about ten times as much memory in
    /// a usual case, and at worst a few times [`MEMORY_PER_BYTE`](super::pickle::MEMORY_PER_BYTE).
    pub pickle_bytes: u64,
    /// What the decompressor may keep.
    pub window_bytes: u64,
    /// Size of a trace in JSON lines. Reading it takes up to four times as much memory.
    pub json_bytes: u64,
    /// Size of one of its lines.
    pub line_bytes: u64,
}

impl Default for Limits {
    fn default() -> Self {
        Limits {
            pickle_bytes: 1 << 30,
            window_bytes: 256 << 20,
            json_bytes: 1 << 32,
            line_bytes: 1 << 20,
        }
    }
}

/// Reads a snapshot from a pickle, or from a pickle in an xz stream.
///
/// # Errors
/// If it cannot be read, is malformed, or is larger than `limits`.
pub fn read_snapshot(mut file: impl BufRead, limits: Limits) -> Result<Snapshot, TraceError> {
    let head = file.fill_buf().map_err(|error| TraceError::new(0, error.into()))?;
    // A pickle begins with another byte, so the first one is enough to tell.
    let bytes = if head.first() == XZ_MAGIC.first() {
        let window_kib = u32::try_from(limits.window_bytes >> 10).unwrap_or(u32::MAX - 1);
        let counted = Counted { file, read_bytes: 0 };
        let mut reader = XzReader::new_mem_limit(counted, true, window_kib);
        let read = read_within(&mut reader, limits);
        read.map_err(|problem| {
            let problem = match problem {
                TraceProblem::Io(error) if error.kind() == io::ErrorKind::UnexpectedEof => {
                    TraceProblem::Cut
                }
                other => other,
            };
            TraceError::new(reader.inner().read_bytes, problem)
        })?
    } else {
        read_within(&mut file, limits).map_err(|problem| TraceError::new(0, problem))?
    };
    Snapshot::from_pickle(&bytes)
}

fn read_within(file: &mut impl Read, limits: Limits) -> Result<Vec<u8>, TraceProblem> {
    let mut bytes = Vec::new();
    file.by_ref().take(limits.pickle_bytes).read_to_end(&mut bytes)?;
    if bytes.len() as u64 == limits.pickle_bytes && file.read(&mut [0])? > 0 {
        return Err(TraceProblem::Limit { limit: limits.pickle_bytes, what: "bytes of pickle" });
    }
    Ok(bytes)
}

/// Knows how far a file was read.
struct Counted<R> {
    file: R,
    read_bytes: usize,
}

impl<R: Read> Read for Counted<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read_bytes = self.file.read(buffer)?;
        self.read_bytes += read_bytes;
        Ok(read_bytes)
    }
}
