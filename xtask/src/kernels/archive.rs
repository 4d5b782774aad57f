//! PTX of many files in one compressed file, which `lowtide_tensor::cuda::gate::PtxArchive` reads.

use std::collections::BTreeMap;
use std::io::{self, Read, Write};

use lzma_rust2::{XzOptions, XzReader, XzWriter};

/// The mark before the name of a file, in the line before its PTX.
const NAME_MARK: &str = "// file ";

/// The slowest setting of the compressor, with the smallest file.
const PRESET: u32 = 9;

/// Reads PTX by the names of its files.
///
/// # Errors
/// The bytes are no compressed text.
pub(super) fn read_archive(bytes: &[u8]) -> io::Result<BTreeMap<String, String>> {
    let mut text = String::new();
    XzReader::new(bytes, false).read_to_string(&mut text)?;
    let mut texts: BTreeMap<String, String> = BTreeMap::new();
    let mut name = String::new();
    for line in text.lines() {
        if let Some(next) = line.strip_prefix(NAME_MARK) {
            next.clone_into(&mut name);
            texts.insert(name.clone(), String::new());
        } else if let Some(ptx) = texts.get_mut(&name) {
            ptx.push_str(line);
            ptx.push('\n');
        }
    }
    Ok(texts)
}

/// The contents of an archive.
pub(super) fn compressed(texts: &BTreeMap<String, String>) -> io::Result<Vec<u8>> {
    let mut writer = XzWriter::new(Vec::new(), XzOptions::with_preset(PRESET))?;
    for (name, ptx) in texts {
        write!(writer, "{NAME_MARK}{name}\n{ptx}")?;
    }
    writer.finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn archive_is_read_as_it_was_written() {
        let texts = [("a", "// source 1\n.version 8.0\n"), ("b", ".entry x\n\n.entry y\n")];
        let texts = texts.map(|(name, ptx)| (name.to_owned(), ptx.to_owned())).into();
        assert_eq!(read_archive(&compressed(&texts).expect("room")).expect("an archive"), texts);
        assert!(read_archive(b"no archive").is_err());
    }
}
