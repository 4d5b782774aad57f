//! Rows of one document each.

use super::{Cell, Documents};
use crate::dataset::{Dataset, SampleSlot, visit_slice};
use crate::element::{Collate, ElementType, Field, IGNORED_LABEL};
use crate::error::{DataError, SampleError};
use std::sync::Arc;

/// The layout of rows that their documents do not fill.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RowFit {
    /// The row is padded with this token. The fields are `tokens`, i64 `[context + 1]`, `labels`,
    /// i64 `[context]`, and `length`, i64 `[]`, the number of tokens without padding.
    Padded(u32),
    /// The field `tokens`, i64, is ragged, with up to `context + 1` tokens. With
    /// [`Collate::Padded`] the field `labels` is i64 `[context]`, because padding has labels too.
    /// With [`Collate::Packed`] the field `labels` is as long as `tokens`, and the label of the
    /// last token of a document is [`IGNORED_LABEL`].
    Ragged(Collate),
}

/// A dataset with one document in each sample, cut off after `context + 1` tokens.
///
/// `labels[t]` is the token to predict at `tokens[t]`: `tokens[t + 1]`, or [`IGNORED_LABEL`] if
/// that token is padding or context. A document without labels in its row, for example if its
/// prompt fills the row, is left out.
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
    /// [`DataError::InvalidOption`] if `context` is 0.
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

    /// Number of documents that are cut off.
    #[must_use]
    pub fn truncated(&self) -> usize {
        self.truncated
    }

    /// Number of documents that are left out, because their row would have no labels.
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
