//! Fingerprints of files and folders: enough to tell that a run reads something else than before,
//! at a cost that does not grow with the size.

use std::fs::{self, File};
use std::io::{self, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use xxhash_rust::xxh3::Xxh3;

use crate::human::format_bytes;

/// Size up to which a file is read as a whole.
const WHOLE_BYTES: u64 = 64 << 20;

/// Size of each piece that is read of a larger file.
const PIECE_BYTES: u64 = 1 << 20;

/// Number of pieces, from the first to the last bytes of the file.
const PIECE_COUNT: u64 = 33;

/// The fingerprint of a file, or of all files in a folder.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Fingerprint {
    /// Number of files.
    files: u64,
    /// Sum of their sizes.
    bytes: u64,
    /// XXH3 of a file's contents; of a larger file, of pieces of it; of a folder, of the names and
    /// sizes of its files, and of the contents of weights.
    xxh3: String,
}

impl Fingerprint {
    /// The fingerprint of what is at `path` now.
    ///
    /// # Errors
    /// Errors of the system.
    pub(crate) fn of(path: &Path) -> io::Result<Fingerprint> {
        let mut sum = Sum { files: 0, bytes: 0, hasher: Xxh3::new() };
        if fs::metadata(path)?.is_dir() {
            sum.add_folder(path)?
        } else {
            sum.add_file(path)?
        }
        let Sum { files, bytes, hasher } = sum;
        Ok(Fingerprint { files, bytes, xxh3: format!("{:016x}", hasher.digest()) })
    }

    /// The difference between what was and what is, in words; `None` if there is none.
    pub(crate) fn difference(&self, now: &Fingerprint) -> Option<String> {
        let sizes = |of: &Fingerprint| {
            let bytes = format_bytes(of.bytes);
            if of.files == 1 { bytes } else { format!("{bytes} in {} files", of.files) }
        };
        match (self == now, sizes(self) == sizes(now)) {
            (true, _) => None,
            (false, true) => Some("it has other contents".to_owned()),
            (false, false) => Some(format!("it was {}, and is {}", sizes(self), sizes(now))),
        }
    }
}

struct Sum {
    files: u64,
    bytes: u64,
    hasher: Xxh3,
}

impl Sum {
    /// Adds the contents of a file, or pieces of it.
    fn add_file(&mut self, path: &Path) -> io::Result<()> {
        let mut file = File::open(path)?;
        let len = file.metadata()?.len();
        (self.files, self.bytes) = (self.files + 1, self.bytes + len);
        self.hasher.update(&len.to_le_bytes());
        if len <= WHOLE_BYTES {
            return self.add_bytes(&mut file.take(len));
        }
        for piece in 0..PIECE_COUNT {
            file.seek(SeekFrom::Start((len - PIECE_BYTES) / (PIECE_COUNT - 1) * piece))?;
            self.add_bytes(&mut (&mut file).take(PIECE_BYTES))?;
        }
        Ok(())
    }

    fn add_bytes(&mut self, from: &mut impl Read) -> io::Result<()> {
        let mut buffer = [0; 1 << 16];
        loop {
            match from.read(&mut buffer) {
                Ok(0) => return Ok(()),
                Ok(len) => self.hasher.update(&buffer[..len]),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
    }

    /// Adds the names and sizes of all files in a folder, and the contents of weights.
    fn add_folder(&mut self, folder: &Path) -> io::Result<()> {
        let mut entries: Vec<PathBuf> =
            fs::read_dir(folder)?.map(|entry| Ok(entry?.path())).collect::<io::Result<_>>()?;
        entries.sort_unstable();
        for path in entries {
            let metadata = fs::metadata(&path)?;
            self.hasher.update(path.file_name().unwrap_or_default().as_encoded_bytes());
            if metadata.is_dir() {
                self.add_folder(&path)?;
            } else if path.extension().is_some_and(|extension| extension == "safetensors") {
                self.add_file(&path)?;
            } else {
                (self.files, self.bytes) = (self.files + 1, self.bytes + metadata.len());
                self.hasher.update(&metadata.len().to_le_bytes());
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn other_contents_names_and_sizes_have_other_fingerprints() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.bin");
        let of = |bytes: &[u8]| {
            fs::write(&path, bytes).unwrap();
            [Fingerprint::of(&path).unwrap(), Fingerprint::of(folder.path()).unwrap()]
        };
        let [file, all] = of(b"abc");
        assert_eq!(of(b"abc"), [file.clone(), all.clone()]);
        let [other, of_folder] = of(b"abd");
        assert_eq!(file.difference(&other).unwrap(), "it has other contents");
        assert_eq!(all, of_folder, "of data in a folder only names and sizes are read");
        let [longer, of_folder] = of(b"abcd");
        assert_eq!(file.difference(&longer).unwrap(), "it was 3 B, and is 4 B");
        assert_ne!(all, of_folder);
        fs::rename(&path, folder.path().join("b.bin")).unwrap();
        assert_ne!(Fingerprint::of(folder.path()).unwrap(), of_folder);
        fs::write(folder.path().join("model.safetensors"), b"12").unwrap();
        let weights = Fingerprint::of(folder.path()).unwrap();
        assert_eq!(of_folder.difference(&weights).unwrap(), "it was 4 B, and is 6 B in 2 files");
        fs::write(folder.path().join("model.safetensors"), b"13").unwrap();
        assert_ne!(Fingerprint::of(folder.path()).unwrap(), weights);
    }

    #[test]
    fn pieces_of_a_large_file_reach_from_its_first_byte_to_its_last() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let write = |at: u64, byte: u8| {
            let mut file = File::options().write(true).open(file.path()).unwrap();
            file.seek(SeekFrom::Start(at)).unwrap();
            io::Write::write_all(&mut file, &[byte]).unwrap();
        };
        let len = WHOLE_BYTES + 12_345;
        write(len - 1, 1);
        let before = Fingerprint::of(file.path()).unwrap();
        for at in [0, len / 2, len - 1] {
            write(at, 7);
            let after = Fingerprint::of(file.path()).unwrap();
            assert_eq!(before.difference(&after).unwrap(), "it has other contents", "byte {at}");
            write(at, u8::from(at == len - 1));
        }
        assert_eq!(Fingerprint::of(file.path()).unwrap(), before);
    }
}
