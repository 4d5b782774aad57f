//! Rows of pairs of documents.

use super::Documents;
use super::one_per_row::{copy_labels, copy_tokens};
use crate::dataset::{Dataset, SampleSlot, visit_slice};
use crate::element::{ElementType, Field};
use crate::error::{DataError, SampleError};
use std::sync::Arc;

/// A dataset with a pair of documents in each sample, both cut off after `context + 1` tokens.
///
/// The fields are i64: `chosen` and `rejected`, `[context + 1]`, padded with a token, and
/// `chosen.labels` and `rejected.labels`, `[context]`, as in [`DocumentRows`](crate::DocumentRows).
/// A pair is left out if one of its rows has no labels.
#[derive(Debug, Clone)]
pub struct PreferenceRows {
    documents: [Documents; 2],
    /// The pairs that have a row.
    kept: Arc<[usize]>,
    context: usize,
    padding: i64,
    fields: Vec<Field>,
}

impl PreferenceRows {
    pub(in crate::source) fn new(
        documents: [Documents; 2],
        context: usize,
        padding: u32,
    ) -> Result<Self, DataError> {
        if context == 0 || context == usize::MAX {
            return Err(DataError::InvalidOption { option: "context", value: context });
        }
        let has_label = |documents: &Documents, index: usize| {
            let row = documents.document(index).iter().take(context + 1);
            row.skip(1).any(|cell| cell.is_learned())
        };
        let [chosen, rejected] = &documents;
        let kept = (0..chosen.len())
            .filter(|&index| has_label(chosen, index) && has_label(rejected, index))
            .collect();
        let field = |name, len| Field::new(name, ElementType::I64, &[len]);
        let fields = vec![
            field("chosen", context + 1),
            field("chosen.labels", context),
            field("rejected", context + 1),
            field("rejected.labels", context),
        ];
        Ok(Self { documents, kept, context, padding: padding.into(), fields })
    }

    /// Number of pairs that are left out, because one of their rows would have no labels.
    #[must_use]
    pub fn left_out(&self) -> usize {
        self.documents[0].len() - self.kept.len()
    }
}

impl Dataset for PreferenceRows {
    fn len(&self) -> usize {
        self.kept.len()
    }

    fn fields(&self) -> &[Field] {
        &self.fields
    }

    fn write(&self, index: usize, slot: &mut SampleSlot<'_>) -> Result<(), SampleError> {
        for (nth, documents) in self.documents.iter().enumerate() {
            let document = documents.document(self.kept[index]);
            let row = &document[..document.len().min(self.context + 1)];
            let tokens = slot.values::<i64>(2 * nth);
            tokens[row.len()..].fill(self.padding);
            copy_tokens(row, tokens);
            copy_labels(row, slot.values(2 * nth + 1));
        }
        Ok(())
    }

    fn visit_memory(&self, visit: &mut dyn FnMut(*const u8, usize)) {
        self.documents.iter().for_each(|documents| documents.visit_memory(visit));
        visit_slice(&self.kept, visit);
    }
}
