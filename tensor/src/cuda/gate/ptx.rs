//! PTX that NVRTC made of files of kernels, in one compressed file.

use std::collections::BTreeMap;
use std::io::{self, ErrorKind, Read};

use lzma_rust2::XzReader;

/// Largest text of an archive, which no archive reaches. A damaged file could promise endless text.
const TEXT_BYTES_MAX: u64 = 64 << 20;

/// PTX by the names of its source files. `cargo xtask kernels --write` makes the archive.
#[derive(Clone, Debug)]
pub struct PtxArchive {
    texts: BTreeMap<String, String>,
}

impl PtxArchive {
    /// Name of the file of compiled kernels. The file lies in the folder of the sources or in a
    /// folder above.
    pub const FILE_NAME: &str = "kernels.ptx.xz";

    /// Mark before the name of a file, in the line before its PTX.
    const NAME_MARK: &str = "// file ";

    /// Reads the contents of the file.
    ///
    /// # Errors
    /// The bytes are not compressed text, or the text is no list of files.
    pub fn read(bytes: &[u8]) -> io::Result<PtxArchive> {
        let mut text = String::new();
        XzReader::new(bytes, false).take(TEXT_BYTES_MAX).read_to_string(&mut text)?;
        let mut texts = BTreeMap::new();
        let Some(files) = text.strip_prefix(Self::NAME_MARK) else {
            return Err(io::Error::new(ErrorKind::InvalidData, "it is no archive of PTX"));
        };
        for file in files.split(&format!("\n{}", Self::NAME_MARK)) {
            let (name, ptx) = file.split_once('\n').unwrap_or((file, ""));
            texts.insert(name.to_owned(), format!("{}\n", ptx.trim_end()));
        }
        Ok(PtxArchive { texts })
    }

    /// The PTX of a file, by its name without the ending; `None` if there is no such file.
    pub fn get(&self, file: &str) -> Option<&str> {
        self.texts.get(file).map(String::as_str)
    }
}
