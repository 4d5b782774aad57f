//! Documents as tokens, and rows that are made of them.

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

/// A token of a document, and whether the token is to be learned and is the document's first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Cell(u32);

impl Cell {
    const LEARNED: u32 = 1 << 31;
    const FIRST: u32 = 1 << 30;
    /// Tokens are below this number; the two bits above hold what else is known of a token.
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

    /// The label of this token at the place of the token before it.
    fn label(self) -> i64 {
        if self.is_learned() { self.token() } else { IGNORED_LABEL }
    }
}

/// A document as tokens, each of them to be learned or only to be read.
#[derive(Debug, Clone, Default)]
pub struct Document {
    cells: Vec<Cell>,
}

impl Document {
    /// A document of no tokens yet.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds tokens that a model is to predict.
    ///
    /// # Errors
    /// [`TokenTooLarge`].
    pub fn push_learned(&mut self, tokens: &[u32]) -> Result<(), TokenTooLarge> {
        self.push(tokens, Cell::LEARNED)
    }

    /// Adds tokens that a model is to read and not to predict, such as a prompt.
    ///
    /// # Errors
    /// [`TokenTooLarge`].
    pub fn push_context(&mut self, tokens: &[u32]) -> Result<(), TokenTooLarge> {
        self.push(tokens, 0)
    }

    /// Adds tokens that end the document: they are learned where the token before them is.
    pub(super) fn push_end(&mut self, tokens: &[u32]) -> Result<(), TokenTooLarge> {
        match self.cells.last().is_some_and(|cell| cell.is_learned()) {
            true => self.push_learned(tokens),
            false => self.push_context(tokens),
        }
    }

    fn push(&mut self, tokens: &[u32], mark: u32) -> Result<(), TokenTooLarge> {
        if let Some(&token) = tokens.iter().find(|&&token| token >= Cell::TOKEN_END) {
            return Err(TokenTooLarge { token });
        }
        for &token in tokens {
            let first = if self.cells.is_empty() { Cell::FIRST } else { 0 };
            self.cells.push(Cell(token | mark | first));
        }
        Ok(())
    }

    /// Number of tokens.
    #[must_use]
    pub fn len(&self) -> usize {
        self.cells.len()
    }

    /// Whether there are no tokens.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.cells.is_empty()
    }

    /// The tokens of the document, in order.
    pub fn tokens(&self) -> impl Iterator<Item = u32> {
        self.cells.iter().map(|cell| cell.token() as u32)
    }

    /// Whether each token is to be learned.
    pub fn learned(&self) -> impl Iterator<Item = bool> {
        self.cells.iter().map(|cell| cell.is_learned())
    }

    pub(super) fn cells(&self) -> &[Cell] {
        &self.cells
    }
}

/// A token of 2^30 or more, of which no vocabulary has any.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("token {token} is not below {}", Cell::TOKEN_END)]
pub struct TokenTooLarge {
    /// Number of the token.
    pub token: u32,
}

/// Documents in memory, 4 bytes a token: what [`JsonLines::read`](crate::JsonLines::read) gives,
/// and what [`PackedRows`] and [`DocumentRows`] are made of. Clones share the tokens.
#[derive(Debug, Clone, Default)]
pub struct Documents {
    cells: Arc<Vec<Cell>>,
    /// Where each document ends.
    ends: Arc<Vec<usize>>,
    /// The documents of this part.
    range: Range<usize>,
}

impl FromIterator<Document> for Documents {
    /// The documents in this order, without those of no tokens.
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
        // A vector that has grown may hold twice what it needs.
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

    /// Whether there are no documents.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.range.is_empty()
    }

    /// Tokens of all documents together.
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

    /// Whether each token of document `index` is to be learned.
    ///
    /// # Panics
    /// If there is no such document.
    pub fn learned(&self, index: usize) -> impl Iterator<Item = bool> {
        self.document(index).iter().map(|cell| cell.is_learned())
    }

    /// The first nine tenths of the documents to train on, and the last tenth to test on.
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

    /// One document after the other.
    fn all(&self) -> &[Cell] {
        &self.cells[self.start(self.range.start)..self.start(self.range.end)]
    }

    /// Where document `at` begins, or the one before it ends.
    fn start(&self, at: usize) -> usize {
        at.checked_sub(1).map_or(0, |before| self.ends[before])
    }
}
