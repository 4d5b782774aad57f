//! Reads snapshots: decompression and its limits.

use std::io::{self, BufRead, Read};

use lzma_rust2::XzReader;

use super::memory::Memory;
use super::snapshot::Snapshot;
use crate::error::{TraceError, TraceProblem};

const XZ_MAGIC: [u8; 6] = *b"\xfd7zXZ\0";

/// Number of unpacked bytes that are allowed for each compressed byte. Snapshots of PyTorch have 30
/// to 50. A file with more can be decompressed first, and then be read.
pub const PICKLE_PER_XZ_BYTE: usize = 128;
/// Unpacked bytes that are allowed in addition, for small files.
const XZ_SLACK_BYTES: u64 = 1 << 20;
/// Number of bytes that are decompressed at a time.
const PART_BYTES: u64 = 64 << 10;

/// Limits of the resources that a file may take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Size of the pickle, after decompression. The size of a compressed file is a second limit,
    /// see [`PICKLE_PER_XZ_BYTE`].
    pub pickle_bytes: u64,
    /// Bytes of heap for a pickle and its values, including the later memory of the recording and
    /// its explanation. The size of the pickle is a second limit, see
    /// [`MEMORY_PER_BYTE`](super::pickle::MEMORY_PER_BYTE).
    pub memory_bytes: u64,
    /// Bytes that the decompressor may keep. Files of `xz -9` need 65 MiB.
    pub window_bytes: u64,
    /// Size of a trace in JSON lines. Reading the trace takes up to six times as much memory.
    pub json_bytes: u64,
    /// Size of one line of such a trace.
    pub line_bytes: u64,
}

impl Default for Limits {
    fn default() -> Self {
        Limits {
            pickle_bytes: 1 << 30,
            memory_bytes: 4 << 30,
            window_bytes: 66 << 20,
            json_bytes: 512 << 20,
            line_bytes: 1 << 20,
        }
    }
}

/// Reads a snapshot from a pickle, or from a pickle in an xz stream.
///
/// # Errors
/// The file cannot be read, is malformed, or is larger than `limits`.
pub fn read_snapshot(mut file: impl BufRead, limits: Limits) -> Result<Snapshot, TraceError> {
    let head = file.fill_buf().map_err(|error| TraceError::new(0, error.into()))?;
    // A pickle begins with another byte than an xz stream, so the first byte decides.
    let bytes = if head.first() == XZ_MAGIC.first() {
        let window_kib = u32::try_from(limits.window_bytes >> 10).unwrap_or(u32::MAX - 1);
        let counted = Counted { file, read_bytes: 0 };
        let mut reader = XzReader::new_mem_limit(counted, true, window_kib);
        let allowed_bytes = |reader: &XzReader<Counted<_>>| {
            let read_bytes = reader.inner().read_bytes as u64;
            XZ_SLACK_BYTES + read_bytes.saturating_mul(PICKLE_PER_XZ_BYTE as u64)
        };
        let read = read_within(&mut reader, limits, allowed_bytes);
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
        let read = read_within(&mut file, limits, |_| u64::MAX);
        read.map_err(|problem| TraceError::new(0, problem))?
    };
    let memory_bytes = limits.memory_bytes.saturating_sub(bytes.capacity() as u64);
    Snapshot::from_pickle_within(&bytes, Memory::of(bytes.len(), memory_bytes))
}

/// Reads `file` to its end, unless it unpacks to more than the limit.
fn read_within<R: Read>(
    file: &mut R,
    limits: Limits,
    allowed_bytes: impl Fn(&R) -> u64,
) -> Result<Vec<u8>, TraceProblem> {
    let mut bytes = Vec::new();
    loop {
        let len = bytes.len();
        file.by_ref().take(PART_BYTES).read_to_end(&mut bytes)?;
        if bytes.len() == len {
            return Ok(bytes);
        }
        if bytes.len() as u64 > limits.pickle_bytes {
            let limit = limits.pickle_bytes;
            return Err(TraceProblem::Limit { limit, what: "bytes of pickle" });
        }
        if bytes.len() as u64 > allowed_bytes(file) {
            return Err(TraceProblem::Expansion { limit: PICKLE_PER_XZ_BYTE });
        }
    }
}

/// A file that counts the bytes that were read.
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
