//! Each document in a row of its own.

use super::{Cell, Documents};
use crate::dataset::{Dataset, SampleError, SampleSlot, visit_slice};
use crate::element::{Collate, ElementType, Field, IGNORED_LABEL};
use crate::error::DataError;
use std::sync::Arc;

/// What becomes of a row that its document does not fill.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RowFit {
    /// It is filled with this token. Fields: `tokens`, i64 `[context + 1]`, `labels`, i64
    /// `[context]`, and `length`, i64 `[]`, the number of tokens before the filling.
    Padded(u32),
    /// `tokens`, i64, is a ragged field of up to `context + 1` tokens. With [`Collate::Padded`]
    /// `labels` is i64 `[context]`, as the filling has labels too. With [`Collate::Packed`]
    /// `labels` is as long as `tokens`, and the label of a document's last token is
    /// [`IGNORED_LABEL`].
    Ragged(Collate),
}

/// Each document in a row of its own, of which the first `context + 1` tokens are used.
///
/// `labels[t]` is the token that is to be predicted at `tokens[t]`, which is `tokens[t + 1]`, or
/// [`IGNORED_LABEL`] where that one is filling or not to be learned. Documents without any label in
/// their row, such as those whose prompt fills it, are left out.
#[derive(Debug, Clone)]
pub struct DocumentRows {
    documents: Documents,
    /// The documents that have a row.
    kept: Arc<[usize]>,
    context: usize,
    fit: RowFit,
    fields: Vec<Field>,
    truncated: usize,
}

impl DocumentRows {
    /// The rows of `documents`.
    ///
    /// # Errors
    /// [`DataError::InvalidOption`] for a context of 0.
    pub fn new(documents: Documents, context: usize, fit: RowFit) -> Result<Self, DataError> {
        if context == 0 || context == usize::MAX {
            return Err(DataError::InvalidOption { option: "context", value: context });
        }
        let kept: Arc<[usize]> = (0..documents.len())
            .filter(|&index| {
                let row = documents.document(index).iter().take(context + 1);
                row.skip(1).any(|cell| cell.is_learned())
            })
            .collect();
        let is_long = |&&index: &&usize| documents.document(index).len() > context + 1;
        let truncated = kept.iter().filter(is_long).count();
        let plain = |name: &str, shape: &[usize]| Field::new(name, ElementType::I64, shape);
        let ragged =
            |name, collate| Field::ragged(name, ElementType::I64, context + 1, &[], collate);
        let fields = match fit {
            RowFit::Padded(_) => vec![
                plain("tokens", &[context + 1]),
                plain("labels", &[context]),
                plain("length", &[]),
            ],
            RowFit::Ragged(Collate::Padded) => {
                vec![ragged("tokens", Collate::Padded), plain("labels", &[context])]
            }
            RowFit::Ragged(Collate::Packed) => {
                vec![ragged("tokens", Collate::Packed), ragged("labels", Collate::Packed)]
            }
        };
        Ok(Self { documents, kept, context, fit, fields, truncated })
    }

    /// Documents of which a row does not have all tokens.
    #[must_use]
    pub fn truncated(&self) -> usize {
        self.truncated
    }

    /// Documents without a row, as there is nothing to learn in it.
    #[must_use]
    pub fn left_out(&self) -> usize {
        self.documents.len() - self.kept.len()
    }
}

impl Dataset for DocumentRows {
    fn len(&self) -> usize {
        self.kept.len()
    }

    fn fields(&self) -> &[Field] {
        &self.fields
    }

    fn write(&self, index: usize, slot: &mut SampleSlot<'_>) -> Result<(), SampleError> {
        let document = self.documents.document(self.kept[index]);
        let row = &document[..document.len().min(self.context + 1)];
        match self.fit {
            RowFit::Padded(padding) => {
                let tokens = slot.values::<i64>(0);
                tokens[row.len()..].fill(padding.into());
                copy_tokens(row, tokens);
                copy_labels(row, slot.values(1));
                slot.values::<i64>(2)[0] = row.len() as i64;
            }
            RowFit::Ragged(collate) => {
                copy_tokens(row, slot.ragged(0, row.len())?);
                let labels = match collate {
                    Collate::Padded => slot.values(1),
                    Collate::Packed => slot.ragged(1, row.len())?,
                };
                copy_labels(row, labels);
            }
        }
        Ok(())
    }

    fn visit_memory(&self, visit: &mut dyn FnMut(*const u8, usize)) {
        self.documents.visit_memory(visit);
        visit_slice(&self.kept, visit);
    }
}

pub(super) fn copy_tokens(row: &[Cell], tokens: &mut [i64]) {
    for (to, cell) in tokens.iter_mut().zip(row) {
        *to = cell.token();
    }
}

pub(super) fn copy_labels(row: &[Cell], labels: &mut [i64]) {
    labels.fill(IGNORED_LABEL);
    for (to, cell) in labels.iter_mut().zip(&row[1..]) {
        *to = cell.label();
    }
}
