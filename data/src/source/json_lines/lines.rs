//! Reading of files line by line, with a maximum length of a line.

use crate::error::{DataError, FilePlace};
use crate::source::json_lines::error::LineError;
use lowtide_allocator::files::open_input;
use std::fs::File;
use std::io::{self, BufRead, BufReader, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};

/// The byte order mark, which some editors write before the first line.
const BYTE_ORDER_MARK: &[u8] = b"\xEF\xBB\xBF";

/// A reader of the lines of a file.
#[derive(Debug)]
pub(super) struct Lines {
    path: PathBuf,
    input: BufReader<File>,
    line: Vec<u8>,
    line_bytes_max: usize,
    /// The start of the next line.
    pub(super) next: LineStart,
    /// True if the last line was too long and its rest was not read.
    is_cut: bool,
}

/// The start of a line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct LineStart {
    /// Byte offset in the file.
    pub(super) byte: u64,
    /// Number of earlier lines.
    pub(super) lines_before: u64,
}

impl LineStart {
    pub(super) const FIRST: Self = Self { byte: 0, lines_before: 0 };
}

impl Lines {
    pub(super) fn open(
        path: &Path,
        start: LineStart,
        line_bytes_max: usize,
    ) -> Result<Self, DataError> {
        let opened = open_input(path).and_then(|mut file| {
            file.seek(SeekFrom::Start(start.byte))?;
            Ok(BufReader::with_capacity(1 << 16, file))
        });
        match opened {
            Ok(input) => Ok(Self {
                path: path.to_owned(),
                input,
                line: Vec::new(),
                line_bytes_max,
                next: start,
                is_cut: false,
            }),
            Err(source) => Err(DataError::File { path: path.to_owned(), source }),
        }
    }

    /// The next line that is not blank, without its newline, and its start. `None` at the end of
    /// the file.
    pub(super) fn next_line(&mut self) -> Result<Option<(LineStart, &[u8])>, DataError> {
        loop {
            let start = self.next;
            let len = self.read().map_err(|source| self.failed(source))?;
            if len == 0 {
                return Ok(None);
            }
            self.next = LineStart {
                byte: start.byte + len as u64,
                lines_before: start.lines_before.saturating_add(1),
            };
            if self.is_cut || self.line.len() > self.line_bytes_max {
                let bytes_max = self.line_bytes_max;
                return Err(self.malformed(start, LineError::TooLong { bytes_max }));
            }
            if !self.line.trim_ascii().is_empty() {
                return Ok(Some((start, &self.line)));
            }
        }
    }

    /// Reads a line into `line`, but at most one byte more than is allowed. Returns the number of
    /// bytes that were read.
    fn read(&mut self) -> io::Result<usize> {
        self.line.clear();
        self.is_cut = false;
        let limit = (self.line_bytes_max as u64).saturating_add(1);
        let len = self.input.by_ref().take(limit).read_until(b'\n', &mut self.line)?;
        if self.line.last() == Some(&b'\n') {
            self.line.pop();
        } else {
            self.is_cut = len as u64 == limit;
        }
        if self.next.byte == 0 && self.line.starts_with(BYTE_ORDER_MARK) {
            self.line.drain(..BYTE_ORDER_MARK.len());
        }
        Ok(len)
    }

    /// Skips the rest of a line that was too long.
    pub(super) fn end_line(&mut self) -> Result<(), DataError> {
        if std::mem::take(&mut self.is_cut) {
            let skipped = self.input.skip_until(b'\n').map_err(|source| self.failed(source))?;
            self.next.byte += skipped as u64;
        }
        Ok(())
    }

    /// The error of a line.
    pub(super) fn malformed(&self, line: LineStart, error: LineError) -> DataError {
        let place = FilePlace::Line(line.lines_before.saturating_add(1));
        DataError::Malformed { path: self.path.clone(), place, source: error.into() }
    }

    fn failed(&self, source: io::Error) -> DataError {
        DataError::File { path: self.path.clone(), source }
    }
}
