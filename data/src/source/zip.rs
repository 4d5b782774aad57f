//! Places of the members in a zip archive, after PKWARE's APPNOTE.TXT 6.3, with the 64-bit fields
//! of large archives. Only members that are not compressed can be mapped.

use crate::source::npy::NpyError;
use std::ops::Range;

const ENTRY: &[u8] = b"PK\x01\x02";
const LOCAL: &[u8] = b"PK\x03\x04";
const END: &[u8] = b"PK\x05\x06";
const END_64: &[u8] = b"PK\x06\x06";
const LOCATOR_64: &[u8] = b"PK\x06\x07";
/// Number of bytes of the end record without its comment.
const END_BYTES: usize = 22;
/// Value of a 32-bit field whose number is in the 64-bit fields.
const ELSEWHERE: u64 = 0xffff_ffff;

/// The range of bytes of the member `name`.
pub(crate) fn member(archive: &[u8], name: &str) -> Result<Range<usize>, NpyError> {
    let (mut at, count) = directory(archive).ok_or(NpyError::Archive)?;
    for _ in 0..count {
        let entry = entry(archive, at).ok_or(NpyError::Archive)?;
        if entry.name == name.as_bytes() {
            if entry.is_packed {
                return Err(NpyError::Packed { member: name.to_owned() });
            }
            return entry.content(archive).ok_or(NpyError::Archive);
        }
        at = entry.end;
    }
    Err(NpyError::Member { member: name.to_owned() })
}

/// The start and the number of entries of the central directory.
fn directory(archive: &[u8]) -> Option<(usize, u64)> {
    let last = archive.len().checked_sub(END_BYTES)?;
    let first = last.saturating_sub(usize::from(u16::MAX));
    let end = (first..=last).rev().find(|&at| archive[at..].starts_with(END))?;
    let (count, offset) = (number(archive, end + 10, 2)?, number(archive, end + 16, 4)?);
    let locator = end.checked_sub(20).filter(|&at| archive[at..].starts_with(LOCATOR_64));
    let Some(locator) = locator else { return Some((usize::try_from(offset).ok()?, count)) };
    let end = usize::try_from(number(archive, locator + 8, 8)?).ok()?;
    archive.get(end..)?.starts_with(END_64).then_some(())?;
    let offset = number(archive, end.checked_add(48)?, 8)?;
    Some((usize::try_from(offset).ok()?, number(archive, end + 32, 8)?))
}

struct Entry<'a> {
    name: &'a [u8],
    is_packed: bool,
    size_bytes: u64,
    /// Byte offset of the local header.
    local: u64,
    /// Byte offset of the next entry.
    end: usize,
}

fn entry(archive: &[u8], at: usize) -> Option<Entry<'_>> {
    archive.get(at..)?.starts_with(ENTRY).then_some(())?;
    let field = |offset: usize, len: usize| number(archive, at + offset, len);
    let [name_len, extra_len, comment_len] =
        [field(28, 2)?, field(30, 2)?, field(32, 2)?].map(|len| len as usize);
    let name_end = at + 46 + name_len;
    let extra_end = name_end + extra_len;
    let name = archive.get(at + 46..name_end)?;
    let (mut size_bytes, mut local) = (field(24, 4)?, field(42, 4)?);
    let mut extra = archive.get(name_end..extra_end)?;
    while let (Some(kind), Some(len)) = (number(extra, 0, 2), number(extra, 2, 2)) {
        let mut content = extra.get(4..4 + len as usize)?;
        if kind == 1 {
            // The 64-bit fields are the numbers that do not fit in 32 bits, in this order. The
            // compressed size is skipped.
            for (value, is_kept) in
                [(&mut size_bytes, true), (&mut field(20, 4)?, false), (&mut local, true)]
            {
                if *value == ELSEWHERE {
                    let wide = number(content, 0, 8)?;
                    content = &content[8..];
                    if is_kept {
                        *value = wide;
                    }
                }
            }
        }
        extra = &extra[4 + len as usize..];
    }
    // Bit 0 of the flags marks an encrypted member.
    let is_packed = field(10, 2)? != 0 || field(8, 2)? & 1 == 1;
    Some(Entry { name, is_packed, size_bytes, local, end: extra_end + comment_len })
}

impl Entry<'_> {
    fn content(&self, archive: &[u8]) -> Option<Range<usize>> {
        let local = usize::try_from(self.local).ok()?;
        archive.get(local..)?.starts_with(LOCAL).then_some(())?;
        let [name_len, extra_len] =
            [number(archive, local + 26, 2)?, number(archive, local + 28, 2)?];
        let start = local.checked_add(30 + name_len as usize + extra_len as usize)?;
        let end = start.checked_add(usize::try_from(self.size_bytes).ok()?)?;
        archive.get(start..end).map(|_| start..end)
    }
}

/// The little-endian number of `len` bytes at `at`. `len` is at most 8.
fn number(bytes: &[u8], at: usize, len: usize) -> Option<u64> {
    let bytes = bytes.get(at..at.checked_add(len)?)?;
    Some(bytes.iter().rev().fold(0, |number, &byte| number << 8 | u64::from(byte)))
}
