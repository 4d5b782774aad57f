//! Full rows, cut from concatenated documents.

use super::{Cell, Documents};
use crate::dataset::{Dataset, SampleSlot};
use crate::element::{ElementType, Field, IGNORED_LABEL};
use crate::error::{DataError, SampleError};

/// Rows that are cut from concatenated documents, each with `context` tokens and the token that
/// follows. There is no padding, and a document may continue in the next row.
///
/// The field is `tokens`, i64 `[context + 1]`. The last token of a row is the first token of the
/// next row, as in [`Text`](crate::Text). Tokens at the end that do not fill a row are not used.
///
/// [`with_labels`](Self::with_labels) and [`with_boundaries`](Self::with_boundaries) add fields
/// with one value for each of the first `context` tokens, which the model reads.
#[derive(Debug, Clone)]
pub struct PackedRows {
    documents: Documents,
    fields: PackedFields,
}

impl PackedRows {
    /// The rows of `documents`.
    ///
    /// # Errors
    /// [`DataError::InvalidOption`] if `context` is 0 or the documents are too short for one row.
    pub fn new(documents: Documents, context: usize) -> Result<Self, DataError> {
        let fields = PackedFields::new(context)?;
        if documents.token_count() <= context {
            return Err(DataError::InvalidOption { option: "context", value: context });
        }
        Ok(Self { documents, fields })
    }

    /// Adds the field `labels`, i64 `[context]`. `labels[t]` is the token to predict at
    /// `tokens[t]`: `tokens[t + 1]`, or [`IGNORED_LABEL`] if that token is context.
    #[must_use]
    pub fn with_labels(mut self) -> Self {
        self.fields = self.fields.with_labels();
        self
    }

    /// Adds the fields for a model whose attention does not cross documents. `documents`, i64
    /// `[context]`, is the number of a token's document in the row, from 0 on. `positions`, i64
    /// `[context]`, is the position of a token in its document, counted from the start of the row
    /// if the document began earlier. `labels` is added too, with [`IGNORED_LABEL`] where the next
    /// token begins a document, so that no document predicts the next one.
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

/// The fields of packed rows.
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
