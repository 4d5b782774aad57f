//! Fingerprints of files: a file that is damaged, or another one, has another fingerprint.

use std::fmt;
use std::fs;
use std::io::{self, ErrorKind, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};

use lowtide_allocator::files::open_input;
use serde::{Deserialize, Serialize};
use xxhash_rust::xxh3::{Xxh3, xxh3_64};

use crate::error::{Result, TrainError};

/// Bytes of a file that are in memory at once.
const PIECE_BYTES: usize = 1 << 20;

/// Number of samples of a file, and bytes of each. A file of at most 2 MiB is read whole.
const SAMPLES: u64 = 32;
const SAMPLE_BYTES: u64 = 1 << 16;

/// Largest header of a safetensors file, by the format's own limit.
const HEADER_BYTES_MAX: u64 = 100_000_000;

/// A length, and an XXH3 (Yann Collet) of that many bytes or of samples of them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Fingerprint {
    bytes: u64,
    xxh3: String,
}

impl Fingerprint {
    /// The fingerprint of a file with these contents.
    pub fn of_bytes(bytes: &[u8]) -> Fingerprint {
        Fingerprint { bytes: bytes.len() as u64, xxh3: checksum(bytes) }
    }

    /// The fingerprint of a file, which is read in pieces of one MiB.
    ///
    /// # Errors
    /// `File`, also for anything but a regular file.
    pub fn of_file(path: &Path) -> Result<Fingerprint> {
        let mut hash = Hash::default();
        let hashed = open_input(path).and_then(|file| hash.add(file));
        hashed.map_err(|source| TrainError::File { path: path.to_owned(), source })?;
        Ok(hash.finish(hash.bytes))
    }

    /// The fingerprint of files by samples, at the same small cost for files of any size: the
    /// length of each file, 32 pieces from its first to its last byte, and the header of weights. A
    /// change between the pieces is not noticed.
    ///
    /// # Errors
    /// Errors of [`Fingerprint::of_file`].
    pub fn of_samples(paths: &[PathBuf]) -> Result<Fingerprint> {
        let (mut hash, mut bytes) = (Hash::default(), 0);
        for path in paths {
            let sampled = hash.add_samples(path);
            bytes += sampled.map_err(|source| TrainError::File { path: path.clone(), source })?;
        }
        Ok(hash.finish(bytes))
    }

    /// The fingerprint of a file by samples, or of a folder: the names and the lengths of all files
    /// in it, and samples of weights.
    ///
    /// # Errors
    /// `File`.
    pub fn of_contents(path: &Path) -> Result<Fingerprint> {
        let mut hash = Hash::default();
        let found = if path.is_dir() { hash.add_folder(path) } else { hash.add_samples(path) };
        let bytes = found.map_err(|source| TrainError::File { path: path.to_owned(), source })?;
        Ok(hash.finish(bytes))
    }

    /// XXH3 in 16 hexadecimal digits.
    pub fn xxh3(&self) -> &str {
        &self.xxh3
    }

    /// Number of bytes of the files.
    pub fn size_bytes(&self) -> u64 {
        self.bytes
    }
}

impl fmt::Display for Fingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} bytes with XXH3 {}", self.bytes, self.xxh3)
    }
}

/// XXH3 of `bytes` in 16 hexadecimal digits.
pub(crate) fn checksum(bytes: &[u8]) -> String {
    digits(xxh3_64(bytes))
}

fn digits(hash: u64) -> String {
    format!("{hash:016x}")
}

fn is_weights(path: &Path) -> bool {
    path.extension().is_some_and(|extension| extension == "safetensors")
}

/// XXH3 of the bytes that were read so far, and their number.
#[derive(Default)]
struct Hash {
    hash: Xxh3,
    bytes: u64,
}

impl Hash {
    /// Reads `from` to its end.
    fn add(&mut self, mut from: impl Read) -> io::Result<()> {
        let mut piece = vec![0; PIECE_BYTES];
        loop {
            match from.read(&mut piece) {
                Ok(0) => return Ok(()),
                Ok(len) => {
                    self.hash.update(&piece[..len]);
                    self.bytes += len as u64;
                }
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
    }

    /// Reads samples of a file, and returns the length of the file.
    fn add_samples(&mut self, path: &Path) -> io::Result<u64> {
        let mut file = open_input(path)?;
        let len = file.metadata()?.len();
        self.hash.update(&len.to_le_bytes());
        if len <= SAMPLES * SAMPLE_BYTES {
            self.add(&mut file)?;
            return Ok(len);
        }
        if is_weights(path) {
            // The file begins with the length of its header.
            let mut header_len = [0; size_of::<u64>()];
            file.read_exact(&mut header_len)?;
            self.add(file.by_ref().take(u64::from_le_bytes(header_len).min(HEADER_BYTES_MAX)))?;
        }
        let last = len - SAMPLE_BYTES;
        let step = last.div_ceil(SAMPLES - 1);
        for index in 0..SAMPLES {
            file.seek(SeekFrom::Start((index * step).min(last)))?;
            self.add(file.by_ref().take(SAMPLE_BYTES))?;
        }
        Ok(len)
    }

    /// Reads the names and the lengths of all files in a folder, and samples of weights. Returns
    /// the sum of the lengths.
    fn add_folder(&mut self, folder: &Path) -> io::Result<u64> {
        let entries = fs::read_dir(folder)?.map(|entry| Ok(entry?.path()));
        let mut entries = entries.collect::<io::Result<Vec<PathBuf>>>()?;
        entries.sort_unstable();
        let mut bytes = 0;
        for path in entries {
            self.hash.update(path.file_name().unwrap_or_default().as_encoded_bytes());
            let is_link = fs::symlink_metadata(&path)?.is_symlink();
            // A link that leads nowhere counts by its name.
            let Ok(metadata) = fs::metadata(&path) else { continue };
            bytes += if metadata.is_dir() && is_link {
                // Links to folders may lead around in a circle: only their names count.
                0
            } else if metadata.is_dir() {
                self.add_folder(&path)?
            } else if is_weights(&path) {
                self.add_samples(&path)?
            } else {
                self.hash.update(&metadata.len().to_le_bytes());
                metadata.len()
            };
        }
        Ok(bytes)
    }

    fn finish(&self, bytes: u64) -> Fingerprint {
        Fingerprint { bytes, xxh3: digits(self.hash.digest()) }
    }
}
