//! JSON lines as they are read, packed into rows.

use crate::dataset::{SampleError, SampleSlot};
use crate::element::Field;
use crate::error::DataError;
use crate::source::documents::{Document, PackedFields};
use crate::source::files::files_of;
use crate::source::json_lines::JsonLines;
use crate::source::json_lines::lines::{LineStart, Lines};
use crate::stream::{Stream, StreamState};
use serde::{Deserialize, Serialize};
use std::collections::VecDeque;
use std::path::{Path, PathBuf};

/// Documents of JSON lines, read and encoded when they are needed, in packed rows: the same rows
/// as those of [`PackedRows`](crate::PackedRows), for files of any size. Memory is that of the
/// documents of one row. The state is a file, a byte, a line and a few counters; the files must be
/// the same when it is resumed.
#[derive(Debug)]
pub struct JsonLinesStream {
    reader: JsonLines,
    files: Vec<PathBuf>,
    fields: PackedFields,
    is_repeated: bool,
    /// The file that is being read.
    lines: Option<Lines>,
    /// Where the next line begins.
    next: Place,
    /// Whether a line of this round was a document.
    has_documents: bool,
    /// Documents of which the next row has a token.
    pending: VecDeque<Pending>,
    /// Tokens of the first document that are in earlier rows.
    used: usize,
    /// Lines after the last document that were no document.
    bad_since: u64,
    /// Such lines that the reader was told of before the state was saved.
    bad_known: u64,
}

/// The beginning of a line.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Place {
    /// Rounds over all files before it.
    round: u64,
    file: usize,
    byte: u64,
    lines_before: u64,
}

#[derive(Debug)]
struct Pending {
    place: Place,
    document: Document,
    /// Lines between the document before and this one that were no document.
    bad_before: u64,
}

/// What is saved of the stream: the line of the first token of the next row.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Position {
    place: Place,
    used: usize,
    bad_known: u64,
}

impl JsonLines {
    /// The documents of `paths` as rows of `context` tokens and the one that follows, read line by
    /// line. Folders stand for their files called `*.jsonl`.
    ///
    /// # Errors
    /// [`DataError::InvalidOption`] for a context of 0, [`DataError::File`] for a folder that
    /// cannot be read. Errors of files and lines come when they are read.
    pub fn stream(
        &self,
        paths: &[impl AsRef<Path>],
        context: usize,
    ) -> Result<JsonLinesStream, DataError> {
        Ok(JsonLinesStream {
            reader: self.clone(),
            files: files_of(paths, "jsonl")?,
            fields: PackedFields::new(context)?,
            is_repeated: false,
            lines: None,
            next: Place { round: 0, file: 0, byte: 0, lines_before: 0 },
            has_documents: false,
            pending: VecDeque::new(),
            used: 0,
            bad_since: 0,
            bad_known: 0,
        })
    }
}

impl JsonLinesStream {
    /// The same, and from the first file again after the last one, without end. The last row of a
    /// round goes on with the first document.
    #[must_use]
    pub fn repeated(self) -> Self {
        Self { is_repeated: true, ..self }
    }

    /// Adds the field `labels`, as [`PackedRows::with_labels`](crate::PackedRows::with_labels).
    #[must_use]
    pub fn with_labels(self) -> Self {
        Self { fields: self.fields.with_labels(), ..self }
    }

    /// Adds the fields of
    /// [`PackedRows::with_boundaries`](crate::PackedRows::with_boundaries).
    #[must_use]
    pub fn with_boundaries(self) -> Self {
        Self { fields: self.fields.with_boundaries(), ..self }
    }

    /// Reads the next document into `pending`; false at the end.
    fn read_document(&mut self) -> Result<bool, SampleError> {
        loop {
            let place = self.next;
            let Some(path) = self.files.get(place.file) else {
                if !self.is_repeated || !self.has_documents {
                    return Ok(false);
                }
                self.next = Place {
                    round: place.round.saturating_add(1),
                    file: 0,
                    byte: 0,
                    lines_before: 0,
                };
                self.has_documents = false;
                continue;
            };
            let lines = match &mut self.lines {
                Some(lines) => lines,
                None => {
                    let Place { byte, lines_before, .. } = place;
                    let start = LineStart { byte, lines_before };
                    self.lines.insert(Lines::open(path, start, self.reader.line_bytes_max)?)
                }
            };
            let read = self.reader.next_document(lines);
            if matches!(read, Err(DataError::Malformed { .. })) {
                lines.end_line()?;
            }
            let LineStart { byte, lines_before } = lines.next;
            self.next = Place { byte, lines_before, ..place };
            match read {
                Ok(Some((start, document))) => {
                    if document.is_empty() {
                        continue;
                    }
                    let LineStart { byte, lines_before } = start;
                    let place = Place { byte, lines_before, ..place };
                    return self.add(place, document);
                }
                Ok(None) => {
                    self.lines = None;
                    self.next = Place { file: place.file + 1, byte: 0, lines_before: 0, ..place };
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

    fn add(&mut self, place: Place, document: Document) -> Result<bool, SampleError> {
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

    /// Tokens of the pending documents that no row had as its own.
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
            // Bad lines are before the next line, so they do not come again.
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
        // Not known, and if there was none, one more round finds none either.
        self.has_documents = true;
        Ok(())
    }
}

/// A document that has become shorter since the state was saved.
#[derive(Debug, thiserror::Error)]
#[error("the state is within a document, {used} tokens from its start, which has {len} tokens now")]
struct ShorterDocument {
    used: usize,
    len: usize,
}
