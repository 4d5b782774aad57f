//! The index of the members of a tar archive: POSIX.1-1988 (ustar) with the long names of GNU tar
//! and of POSIX.1-2001 (pax).
//!
//! A member is a header of 512 bytes and its content, padded to a multiple of 512 bytes. In the
//! header, bytes 0..100 are the name, 124..136 the size in octal digits, 148..156 a checksum, 156
//! the type, and 345..500 a prefix of the name. Two blocks of zeros end the archive.

use std::ops::Range;

const BLOCK_BYTES: usize = 512;
/// Maximum number of bytes of a name. The rest of a longer name is cut off.
const NAME_BYTES_MAX: usize = 4096;

/// A regular file in an archive.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Member {
    pub(crate) name: String,
    pub(crate) range: Range<usize>,
}

/// An archive that cannot be read; the cause of a [`DataError::File`](crate::DataError::File).
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TarError {
    /// A header is damaged: its checksum or its size is wrong.
    #[error("byte {offset} does not begin a header of a tar archive")]
    Header {
        /// Byte offset of the header.
        offset: usize,
    },
    /// A member extends beyond the end of the file.
    #[error("member {name:?} of {size_bytes} bytes ends after the archive")]
    Truncated {
        /// Name of the member in the archive.
        name: String,
        /// Size of the member, from its header.
        size_bytes: u64,
    },
    /// A name leads out of the folder: it is absolute or has a part `..`.
    #[error("member {name:?} has a name that leads outside")]
    Name {
        /// Name of the member in the archive.
        name: String,
    },
    /// A member is neither a file nor a folder, for example a link.
    #[error("member {name:?} is of type {kind:?}, not a file")]
    Kind {
        /// Name of the member in the archive.
        name: String,
        /// Letter of the type.
        kind: char,
    },
    /// A sample has no image or no class, or has two images or two classes.
    #[error("sample {key:?} does not have one member of suffix {suffix}")]
    Part {
        /// The name without its suffix.
        key: String,
        /// The suffix that is missing or occurs twice.
        suffix: String,
    },
    /// A class is not an integer from 0 on.
    #[error("member {name:?} holds no class")]
    Class {
        /// Name of the member in the archive.
        name: String,
    },
}

/// The files of an archive, in order, without folders.
pub(crate) fn members(archive: &[u8]) -> Result<Vec<Member>, TarError> {
    let mut members = Vec::new();
    let mut offset = 0;
    // The name of the next member, if an extension header states it.
    let mut long_name: Option<String> = None;
    while offset < archive.len() {
        let header = archive.get(offset..offset + BLOCK_BYTES).filter(|header| is_sound(header));
        let Some(header) = header else {
            // Blocks of zeros end the archive. Without such blocks, the archive ends after its last
            // member.
            let rest = &archive[offset..];
            if rest.iter().take(BLOCK_BYTES).all(|&byte| byte == 0) {
                break;
            }
            return Err(TarError::Header { offset });
        };
        let name = long_name.take().unwrap_or_else(|| name_of(header));
        let size_bytes = number(&header[124..136]).ok_or(TarError::Header { offset })?;
        let start = offset + BLOCK_BYTES;
        let end = usize::try_from(size_bytes).ok().and_then(|size| start.checked_add(size));
        let content = end.and_then(|end| archive.get(start..end));
        let truncated = || TarError::Truncated { name: name.clone(), size_bytes };
        let content = content.ok_or_else(truncated)?;
        let range = start..start + content.len();
        offset = range.end.next_multiple_of(BLOCK_BYTES);
        match header[156] {
            b'L' => long_name = Some(text(&content[..content.len().min(NAME_BYTES_MAX)])),
            b'x' => long_name = path_of_pax(content),
            // Global pax attributes and folders are ignored.
            b'g' | b'5' => {}
            b'0' | 0 | b'7' => {
                let is_outside = name.starts_with(['/', '\\'])
                    || name.as_bytes().get(1) == Some(&b':')
                    || name.split(['/', '\\']).any(|part| part == "..");
                if is_outside {
                    return Err(TarError::Name { name });
                }
                members.push(Member { name, range });
            }
            kind => return Err(TarError::Kind { name, kind: char::from(kind) }),
        }
    }
    Ok(members)
}

/// True if the checksum of a header is right: the sum of the header's bytes, with blanks in place
/// of the checksum itself.
fn is_sound(header: &[u8]) -> bool {
    let sum = |bytes: &[u8]| bytes.iter().map(|&byte| u64::from(byte)).sum::<u64>();
    let expected = sum(&header[..148]) + 8 * u64::from(b' ') + sum(&header[156..]);
    number(&header[148..156]) == Some(expected)
}

/// Parses a number in octal digits, or in big-endian binary if the highest bit is set.
fn number(field: &[u8]) -> Option<u64> {
    if field[0] & 0x80 != 0 {
        let (zeros, bytes) = field.split_at(field.len().saturating_sub(8));
        let is_small = zeros.iter().skip(1).all(|&byte| byte == 0) && zeros.first() == Some(&0x80);
        return is_small
            .then(|| bytes.iter().fold(0, |number, &byte| number << 8 | u64::from(byte)));
    }
    let digits = std::str::from_utf8(field).ok()?.trim_matches(['\0', ' ']);
    u64::from_str_radix(digits, 8).ok()
}

fn text(bytes: &[u8]) -> String {
    let end = bytes.iter().position(|&byte| byte == 0).unwrap_or(bytes.len());
    String::from_utf8_lossy(&bytes[..end]).into_owned()
}

fn name_of(header: &[u8]) -> String {
    let (name, prefix) = (text(&header[..100]), text(&header[345..500]));
    let is_posix = &header[257..263] == b"ustar\0";
    if is_posix && !prefix.is_empty() { format!("{prefix}/{name}") } else { name }
}

/// The attribute `path` of pax lines `<length> <key>=<value>`. The length counts the whole line.
fn path_of_pax(mut lines: &[u8]) -> Option<String> {
    while let Some(blank) = lines.iter().take(20).position(|&byte| byte == b' ') {
        let len: usize = std::str::from_utf8(&lines[..blank]).ok()?.parse().ok()?;
        let line = lines.get(blank + 1..len)?;
        if let Some(path) = line.strip_prefix(b"path=") {
            return Some(text(&path[..path.len().min(NAME_BYTES_MAX)]).trim_end().to_owned());
        }
        lines = &lines[len..];
    }
    None
}
