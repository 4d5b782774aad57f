//! Documents one after the other, cut into full rows.

use super::{Cell, Documents};
use crate::dataset::{Dataset, SampleError, SampleSlot};
use crate::element::{ElementType, Field, IGNORED_LABEL};
use crate::error::DataError;

/// Documents one after the other, cut into rows of `context` tokens and the one that follows: no
/// padding, and a document may begin in one row and end in another. Field: `tokens`, i64
/// `[context + 1]`; the last token of a row is the first of the next one, as in
/// [`Text`](crate::Text). What is left at the end and fills no row is not used.
///
/// [`with_labels`](Self::with_labels) and [`with_boundaries`](Self::with_boundaries) add fields of
/// one value for each of the first `context` tokens, which are the ones that a model reads.
#[derive(Debug, Clone)]
pub struct PackedRows {
    documents: Documents,
    fields: PackedFields,
}

impl PackedRows {
    /// The rows of `documents`.
    ///
    /// # Errors
    /// [`DataError::InvalidOption`] for a context of 0, or one that the documents are too short
    /// for.
    pub fn new(documents: Documents, context: usize) -> Result<Self, DataError> {
        let fields = PackedFields::new(context)?;
        if documents.token_count() <= context {
            return Err(DataError::InvalidOption { option: "context", value: context });
        }
        Ok(Self { documents, fields })
    }

    /// Adds the field `labels`, i64 `[context]`: `labels[t]` is the token that is to be predicted
    /// at `tokens[t]`, which is `tokens[t + 1]`, or [`IGNORED_LABEL`] where that one is not to be
    /// learned.
    #[must_use]
    pub fn with_labels(mut self) -> Self {
        self.fields = self.fields.with_labels();
        self
    }

    /// Adds what a model needs that shall not look from one document into another: `documents`,
    /// i64 `[context]`, the number of the token's document in the row, from 0 on, and `positions`,
    /// i64 `[context]`, the token's place in what the row has of its document. A position may
    /// attend to those of the same document. Adds `labels` too: the first token of a document is
    /// not to be predicted from the document before it.
    #[must_use]
    pub fn with_boundaries(mut self) -> Self {
        self.fields = self.fields.with_boundaries();
        self
    }
}

impl Dataset for PackedRows {
    fn len(&self) -> usize {
        (self.documents.token_count() - 1) / self.fields.context
    }

    fn fields(&self) -> &[Field] {
        &self.fields.fields
    }

    fn write(&self, index: usize, slot: &mut SampleSlot<'_>) -> Result<(), SampleError> {
        let row = &self.documents.all()[index * self.fields.context..][..=self.fields.context];
        self.fields.write(row.iter().copied(), slot);
        Ok(())
    }

    fn visit_memory(&self, visit: &mut dyn FnMut(*const u8, usize)) {
        self.documents.visit_memory(visit);
    }
}

/// What a packed row consists of.
#[derive(Debug, Clone)]
pub(in crate::source) struct PackedFields {
    pub(in crate::source) context: usize,
    pub(in crate::source) fields: Vec<Field>,
    has_labels: bool,
    has_boundaries: bool,
}

impl PackedFields {
    pub(in crate::source) fn new(context: usize) -> Result<Self, DataError> {
        if context == 0 || context == usize::MAX {
            return Err(DataError::InvalidOption { option: "context", value: context });
        }
        let fields = vec![Field::new("tokens", ElementType::I64, &[context + 1])];
        Ok(Self { context, fields, has_labels: false, has_boundaries: false })
    }

    pub(in crate::source) fn with_labels(mut self) -> Self {
        if !self.has_labels {
            self.has_labels = true;
            self.fields.insert(1, Field::new("labels", ElementType::I64, &[self.context]));
        }
        self
    }

    pub(in crate::source) fn with_boundaries(self) -> Self {
        let mut with = self.with_labels();
        if !with.has_boundaries {
            with.has_boundaries = true;
            let names = ["documents", "positions"];
            with.fields
                .extend(names.map(|name| Field::new(name, ElementType::I64, &[with.context])));
        }
        with
    }

    /// Writes a row of `context + 1` cells.
    pub(in crate::source) fn write(
        &self,
        row: impl Iterator<Item = Cell> + Clone,
        slot: &mut SampleSlot<'_>,
    ) {
        for (to, cell) in slot.values(0).iter_mut().zip(row.clone()) {
            *to = cell.token();
        }
        if self.has_labels {
            for (to, cell) in slot.values(1).iter_mut().zip(row.clone().skip(1)) {
                let is_cut = self.has_boundaries && cell.is_first();
                *to = if is_cut { IGNORED_LABEL } else { cell.label() };
            }
        }
        if self.has_boundaries {
            let mut document = 0_i64;
            for (at, (to, cell)) in slot.values(2).iter_mut().zip(row.clone()).enumerate() {
                document += i64::from(at > 0 && cell.is_first());
                *to = document;
            }
            let mut position = 0_i64;
            for (to, cell) in slot.values(3).iter_mut().zip(row) {
                position = if cell.is_first() { 0 } else { position };
                *to = position;
                position += 1;
            }
        }
    }
}
