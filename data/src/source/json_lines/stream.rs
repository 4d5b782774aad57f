//! JSON lines as a stream of packed rows.

use crate::dataset::SampleSlot;
use crate::element::Field;
use crate::error::{DataError, SampleError};
use crate::source::documents::{Document, PackedFields};
use crate::source::files::expand_folders;
use crate::source::json_lines::JsonLines;
use crate::source::json_lines::lines::{LineStart, Lines};
use crate::stream::{Stream, StreamState};
use serde::{Deserialize, Serialize};
use std::collections::VecDeque;
use std::path::{Path, PathBuf};

/// A stream of packed rows from JSON lines, for files of any size. Lines are read and encoded when
/// their row is needed. The rows equal the rows of [`PackedRows`](crate::PackedRows). Only the
/// documents of one row are in memory.
///
/// The state is a file, a byte, a line and a few counters. A stream that is resumed needs the same
/// files.
#[derive(Debug)]
pub struct JsonLinesStream {
    reader: JsonLines,
    files: Vec<PathBuf>,
    fields: PackedFields,
    is_repeated: bool,
    /// The file that is being read.
    lines: Option<Lines>,
    /// The start of the next line.
    next: LinePlace,
    /// True if a line of this round was a document.
    has_documents: bool,
    /// The documents with tokens in the next row.
    pending: VecDeque<Pending>,
    /// Number of tokens of the first pending document that are in earlier rows.
    used: usize,
    /// Number of malformed lines after the last document.
    bad_since: u64,
    /// Number of malformed lines whose errors were returned before the state was saved.
    bad_known: u64,
}

/// The start of a line in the files.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct LinePlace {
    /// Number of completed rounds over all files.
    round: u64,
    /// Index of the file.
    file: usize,
    byte: u64,
    lines_before: u64,
}

/// A document with tokens in the next row.
#[derive(Debug)]
struct Pending {
    place: LinePlace,
    document: Document,
    /// Number of malformed lines between the previous document and this one.
    bad_before: u64,
}

/// The state of the stream. `place` is the line with the first token of the next row.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Position {
    place: LinePlace,
    used: usize,
    bad_known: u64,
}

impl JsonLines {
    /// A stream of the documents of `paths` as rows, each with `context` tokens and the token that
    /// follows. A folder stands for its files `*.jsonl`.
    ///
    /// # Errors
    /// [`DataError::InvalidOption`] if `context` is 0; [`DataError::File`] for a folder that cannot
    /// be read. Errors of files and lines are returned when the stream reads them.
    pub fn stream(
        &self,
        paths: &[impl AsRef<Path>],
        context: usize,
    ) -> Result<JsonLinesStream, DataError> {
        Ok(JsonLinesStream {
            reader: self.clone(),
            files: expand_folders(paths, "jsonl")?,
            fields: PackedFields::new(context)?,
            is_repeated: false,
            lines: None,
            next: LinePlace { round: 0, file: 0, byte: 0, lines_before: 0 },
            has_documents: false,
            pending: VecDeque::new(),
            used: 0,
            bad_since: 0,
            bad_known: 0,
        })
    }
}

impl JsonLinesStream {
    /// Repeats the files without end. A row at the end of a round continues with the first document
    /// of the next round.
    #[must_use]
    pub fn repeated(self) -> Self {
        Self { is_repeated: true, ..self }
    }

    /// Adds the field `labels`; see [`PackedRows::with_labels`](crate::PackedRows::with_labels).
    #[must_use]
    pub fn with_labels(self) -> Self {
        Self { fields: self.fields.with_labels(), ..self }
    }

    /// Adds the fields `labels`, `documents` and `positions`; see
    /// [`PackedRows::with_boundaries`](crate::PackedRows::with_boundaries).
    #[must_use]
    pub fn with_boundaries(self) -> Self {
        Self { fields: self.fields.with_boundaries(), ..self }
    }

    /// Reads the next document into `pending`. Returns false at the end.
    fn read_document(&mut self) -> Result<bool, SampleError> {
        loop {
            let place = self.next;
            let Some(path) = self.files.get(place.file) else {
                if !self.is_repeated || !self.has_documents {
                    return Ok(false);
                }
                let round = place.round.saturating_add(1);
                self.next = LinePlace { round, file: 0, byte: 0, lines_before: 0 };
                self.has_documents = false;
                continue;
            };
            let lines = match &mut self.lines {
                Some(lines) => lines,
                None => {
                    let LinePlace { byte, lines_before, .. } = place;
                    let start = LineStart { byte, lines_before };
                    self.lines.insert(Lines::open(path, start, self.reader.line_bytes_max)?)
                }
            };
            let read = self.reader.next_document(lines);
            if matches!(read, Err(DataError::Malformed { .. })) {
                lines.end_line()?;
            }
            let LineStart { byte, lines_before } = lines.next;
            self.next = LinePlace { byte, lines_before, ..place };
            match read {
                Ok(Some((start, document))) => {
                    if document.is_empty() {
                        continue;
                    }
                    let LineStart { byte, lines_before } = start;
                    let place = LinePlace { byte, lines_before, ..place };
                    return self.add(place, document);
                }
                Ok(None) => {
                    self.lines = None;
                    self.next =
                        LinePlace { file: place.file + 1, byte: 0, lines_before: 0, ..place };
                }
                Err(DataError::Malformed { .. }) if self.bad_since < self.bad_known => {
                    self.bad_since += 1;
                }
                Err(error) => {
                    self.bad_since += u64::from(matches!(error, DataError::Malformed { .. }));
                    return Err(error.into());
                }
            }
        }
    }

    fn add(&mut self, place: LinePlace, document: Document) -> Result<bool, SampleError> {
        if self.pending.is_empty() && self.used >= document.len() {
            let (used, len) = (self.used, document.len());
            return Err(ShorterDocument { used, len }.into());
        }
        let bad_before = std::mem::take(&mut self.bad_since);
        self.bad_known = self.bad_known.saturating_sub(bad_before);
        self.pending.push_back(Pending { place, document, bad_before });
        self.has_documents = true;
        Ok(true)
    }

    /// Number of tokens of the pending documents that are not in earlier rows.
    fn unused(&self) -> usize {
        self.pending.iter().map(|pending| pending.document.len()).sum::<usize>() - self.used
    }
}

impl Stream for JsonLinesStream {
    fn fields(&self) -> &[Field] {
        &self.fields.fields
    }

    fn write_next(&mut self, slot: &mut SampleSlot<'_>) -> Result<bool, SampleError> {
        while self.pending.is_empty() || self.unused() <= self.fields.context {
            if !self.read_document()? {
                return Ok(false);
            }
        }
        let mut documents = self.pending.iter().map(|pending| pending.document.cells());
        let first = documents.next().unwrap_or_default();
        let row = first[self.used..].iter().chain(documents.flatten());
        self.fields.write(row.take(self.fields.context + 1).copied(), slot);
        self.used += self.fields.context;
        while let Some(first) = self.pending.front()
            && first.document.len() <= self.used
        {
            self.used -= first.document.len();
            self.pending.pop_front();
        }
        Ok(true)
    }

    fn state(&self) -> StreamState {
        let bad = |pending: &Pending| pending.bad_before;
        let bad_known = self.pending.iter().skip(1).map(bad).sum::<u64>() + self.bad_since;
        let position = match self.pending.front() {
            Some(first) => Position { place: first.place, used: self.used, bad_known },
            // All malformed lines are before the next line, so they are not read again.
            None => Position { place: self.next, used: self.used, bad_known: 0 },
        };
        StreamState::new(&position)
    }

    fn set_state(&mut self, state: &StreamState) -> Result<(), SampleError> {
        let Position { place, used, bad_known } = state.content()?;
        if place.file > self.files.len() {
            let (saved, here) = (place.file as u64, self.files.len() as u64);
            return Err(DataError::StateMismatch { what: "file", saved, here }.into());
        }
        (self.lines, self.next, self.used) = (None, place, used);
        (self.bad_since, self.bad_known) = (0, bad_known);
        self.pending.clear();
        // The state does not store `has_documents`. If the round had no document, the next round
        // ends the stream.
        self.has_documents = true;
        Ok(())
    }
}

/// A document that became shorter after the state was saved.
#[derive(Debug, thiserror::Error)]
#[error("the state is at token {used} of a document that has only {len} tokens now")]
struct ShorterDocument {
    used: usize,
    len: usize,
}
