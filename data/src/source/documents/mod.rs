//! Documents as tokens, and datasets of their rows.

mod one_per_row;
mod packed;
mod preference_rows;
mod text_files;

pub use one_per_row::{DocumentRows, RowFit};
pub(super) use packed::PackedFields;
pub use packed::PackedRows;
pub use preference_rows::PreferenceRows;

use crate::dataset::visit_slice;
use crate::element::IGNORED_LABEL;
use crate::error::DataError;
use std::ops::Range;
use std::sync::Arc;

/// A token of a document with two flags: for a learned token, and for the first token of a
/// document.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Cell(u32);

impl Cell {
    const LEARNED: u32 = 1 << 31;
    const FIRST: u32 = 1 << 30;
    /// Tokens are below this number. The two bits above it are the flags.
    const TOKEN_END: u32 = Self::FIRST;

    pub(super) fn token(self) -> i64 {
        (self.0 & (Self::TOKEN_END - 1)).into()
    }

    pub(super) fn is_learned(self) -> bool {
        self.0 & Self::LEARNED != 0
    }

    pub(super) fn is_first(self) -> bool {
        self.0 & Self::FIRST != 0
    }

    /// The label at the position before this token.
    fn label(self) -> i64 {
        if self.is_learned() { self.token() } else { IGNORED_LABEL }
    }
}

/// A document as tokens. Each token is either learned, which means that the model is trained to
/// predict it, or context, which the model only reads.
#[derive(Debug, Clone, Default)]
pub struct Document {
    cells: Vec<Cell>,
}

impl Document {
    /// A document without tokens.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Appends tokens that the model learns to predict.
    ///
    /// # Errors
    /// [`TokenTooLarge`].
    pub fn push_learned(&mut self, tokens: &[u32]) -> Result<(), TokenTooLarge> {
        self.push(tokens, Cell::LEARNED)
    }

    /// Appends tokens that the model only reads, such as a prompt.
    ///
    /// # Errors
    /// [`TokenTooLarge`].
    pub fn push_context(&mut self, tokens: &[u32]) -> Result<(), TokenTooLarge> {
        self.push(tokens, 0)
    }

    /// Appends tokens that end the document. The tokens are learned if the token before them is
    /// learned.
    pub(super) fn push_end(&mut self, tokens: &[u32]) -> Result<(), TokenTooLarge> {
        if self.cells.last().is_some_and(|cell| cell.is_learned()) {
            self.push_learned(tokens)
        } else {
            self.push_context(tokens)
        }
    }

    fn push(&mut self, tokens: &[u32], flag: u32) -> Result<(), TokenTooLarge> {
        if let Some(&token) = tokens.iter().find(|&&token| token >= Cell::TOKEN_END) {
            return Err(TokenTooLarge { token });
        }
        for &token in tokens {
            let first = if self.cells.is_empty() { Cell::FIRST } else { 0 };
            self.cells.push(Cell(token | flag | first));
        }
        Ok(())
    }

    /// Number of tokens.
    #[must_use]
    pub fn len(&self) -> usize {
        self.cells.len()
    }

    /// True if there are no tokens.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.cells.is_empty()
    }

    /// The tokens, in order.
    pub fn tokens(&self) -> impl Iterator<Item = u32> {
        self.cells.iter().map(|cell| cell.token() as u32)
    }

    /// For each token, true if it is learned.
    pub fn learned(&self) -> impl Iterator<Item = bool> {
        self.cells.iter().map(|cell| cell.is_learned())
    }

    pub(super) fn cells(&self) -> &[Cell] {
        &self.cells
    }
}

/// A token of 2^30 or more. No vocabulary has such a token.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("token {token} is not below {}", Cell::TOKEN_END)]
pub struct TokenTooLarge {
    /// Number of the token.
    pub token: u32,
}

/// Documents in memory, with 4 bytes per token. [`JsonLines::read`](crate::JsonLines::read) returns
/// documents; [`PackedRows`] and [`DocumentRows`] are datasets of documents. Clones share the
/// tokens.
#[derive(Debug, Clone, Default)]
pub struct Documents {
    cells: Arc<Vec<Cell>>,
    /// The end of each document in `cells`.
    ends: Arc<Vec<usize>>,
    /// The documents of this part.
    range: Range<usize>,
}

impl FromIterator<Document> for Documents {
    /// The documents in this order. Empty documents are left out.
    fn from_iter<I: IntoIterator<Item = Document>>(documents: I) -> Self {
        let (mut cells, mut ends) = (Vec::new(), Vec::new());
        for document in documents {
            if !document.is_empty() {
                cells.extend(document.cells);
                ends.push(cells.len());
            }
        }
        Self::new(cells, ends)
    }
}

impl Documents {
    /// The documents of `cells` that end at `ends`.
    pub(super) fn new(mut cells: Vec<Cell>, mut ends: Vec<usize>) -> Self {
        // The capacity of a vector that has grown may be twice its length.
        cells.shrink_to_fit();
        ends.shrink_to_fit();
        let range = 0..ends.len();
        Self { cells: Arc::new(cells), ends: Arc::new(ends), range }
    }

    fn visit_memory(&self, visit: &mut dyn FnMut(*const u8, usize)) {
        visit_slice(&self.cells, visit);
        visit_slice(&self.ends, visit);
    }

    /// Number of documents.
    #[must_use]
    pub fn len(&self) -> usize {
        self.range.len()
    }

    /// True if there are no documents.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.range.is_empty()
    }

    /// Number of tokens of all documents.
    #[must_use]
    pub fn token_count(&self) -> usize {
        self.all().len()
    }

    /// The tokens of document `index`.
    ///
    /// # Panics
    /// If there is no such document.
    pub fn tokens(&self, index: usize) -> impl Iterator<Item = u32> {
        self.document(index).iter().map(|cell| cell.token() as u32)
    }

    /// For each token of document `index`, true if it is learned.
    ///
    /// # Panics
    /// If there is no such document.
    pub fn learned(&self, index: usize) -> impl Iterator<Item = bool> {
        self.document(index).iter().map(|cell| cell.is_learned())
    }

    /// Splits the documents into a training part, the first nine tenths, and a test part.
    ///
    /// # Errors
    /// [`DataError::SampleCount`] if there are fewer than ten documents.
    pub fn split(&self) -> Result<(Self, Self), DataError> {
        if self.len() < 10 {
            return Err(DataError::SampleCount { sampler: 10, dataset: self.len() });
        }
        let middle = self.range.end - self.len() / 10;
        let part = |range| Self { range, ..self.clone() };
        Ok((part(self.range.start..middle), part(middle..self.range.end)))
    }

    fn document(&self, index: usize) -> &[Cell] {
        assert!(index < self.len(), "document {index} of {}", self.len());
        let at = self.range.start + index;
        &self.cells[self.start(at)..self.ends[at]]
    }

    /// The cells of all documents.
    fn all(&self) -> &[Cell] {
        &self.cells[self.start(self.range.start)..self.start(self.range.end)]
    }

    /// The start of document `at`, which is the end of the document before it.
    fn start(&self, at: usize) -> usize {
        at.checked_sub(1).map_or(0, |before| self.ends[before])
    }
}
