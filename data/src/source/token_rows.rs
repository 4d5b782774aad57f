//! Rows of a run of tokens, for a language model.

use crate::dataset::SampleSlot;
use crate::element::{ElementType, Field};
use crate::error::DataError;

/// Rows of `context` tokens and the token that follows. Neighbouring rows share one token, so that
/// every token after the first is predicted once.
#[derive(Debug, Clone)]
pub(super) struct TokenRows {
    context: usize,
    in_pairs: bool,
    fields: Vec<Field>,
}

impl TokenRows {
    /// Rows with the field `tokens`, i64 `[context + 1]`.
    pub(super) fn new(context: usize) -> Result<Self, DataError> {
        let longest = context.checked_mul(2).and_then(|len| len.checked_add(1));
        if context == 0 || longest.is_none() {
            return Err(DataError::InvalidOption { option: "context", value: context });
        }
        Ok(Self { context, in_pairs: false, fields: vec![field("tokens", context + 1)] })
    }

    /// Rows of twice the length, with the fields `source`, i64 `[context]`, and `target`, i64
    /// `[context + 1]`, which begins with the last token of the source.
    pub(super) fn in_pairs(self) -> Self {
        let fields = vec![field("source", self.context), field("target", self.context + 1)];
        Self { context: self.context, in_pairs: true, fields }
    }

    pub(super) fn fields(&self) -> &[Field] {
        &self.fields
    }

    /// Number of tokens from the start of a row to the start of the next row.
    pub(super) fn stride(&self) -> usize {
        if self.in_pairs { 2 * self.context } else { self.context }
    }

    /// Number of rows of a run of `token_count` tokens.
    pub(super) fn count(&self, token_count: usize) -> usize {
        token_count.saturating_sub(1) / self.stride()
    }

    /// The error for a run that is too short for one row.
    pub(super) fn too_short(&self) -> DataError {
        DataError::InvalidOption { option: "context", value: self.context }
    }

    /// Writes the row that begins at token `start`. `copy(first, out)` copies the tokens from
    /// number `first` on to `out`.
    pub(super) fn write<E>(
        &self,
        start: usize,
        slot: &mut SampleSlot<'_>,
        copy: impl Fn(usize, &mut [i64]) -> Result<(), E>,
    ) -> Result<(), E> {
        copy(start, slot.values(0))?;
        if self.in_pairs {
            copy(start + self.context - 1, slot.values(1))?;
        }
        Ok(())
    }
}

fn field(name: &str, len: usize) -> Field {
    Field::new(name, ElementType::I64, &[len])
}
