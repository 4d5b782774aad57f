//! Rows of the characters of a text.

use crate::dataset::{Dataset, SampleSlot, visit_slice};
use crate::element::Field;
use crate::error::{DataError, SampleError};
use crate::source::token_rows::TokenRows;
use crate::tokenizer::Characters;
use lowtide_allocator::files::{TEXT_BYTES_MAX, read_input_text};
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

/// Rows of the characters of a text, for a character-level language model. The vocabulary is the
/// set of the text's characters, in Unicode order.
///
/// The field is `tokens`, i64 `[context + 1]`. The last token of a row is the first token of the
/// next row, so that every token after the first is predicted once. Clones share the tokens.
#[derive(Debug, Clone)]
pub struct Text {
    tokens: Arc<Vec<i64>>,
    characters: Arc<Characters>,
    range: Range<usize>,
    rows: TokenRows,
}

impl Text {
    /// The rows of `text`, each with `context` characters and the character that follows.
    ///
    /// # Errors
    /// [`DataError::InvalidOption`] if `context` is 0 or the text is too short for one row.
    pub fn new(text: &str, context: usize) -> Result<Self, DataError> {
        let characters = Characters::new(text);
        let tokens: Vec<i64> =
            text.chars().filter_map(|c| characters.token(c)).map(i64::from).collect();
        let (rows, range) = (TokenRows::new(context)?, 0..tokens.len());
        if rows.count(range.len()) == 0 {
            return Err(rows.too_short());
        }
        let (tokens, characters) = (Arc::new(tokens), Arc::new(characters));
        Ok(Self { tokens, characters, range, rows })
    }

    /// The rows of a text file in UTF-8.
    ///
    /// # Errors
    /// [`DataError::File`] if the file cannot be read; as for [`Text::new`].
    pub fn read(path: &Path, context: usize) -> Result<Self, DataError> {
        let text = read_input_text(path, TEXT_BYTES_MAX);
        Text::new(
            &text.map_err(|source| DataError::File { path: path.to_owned(), source })?,
            context,
        )
    }

    /// Splits the text into a training part, the first nine tenths, and a test part.
    ///
    /// # Errors
    /// [`DataError::InvalidOption`] if a part has no row.
    pub fn split(&self) -> Result<(Self, Self), DataError> {
        let Range { start, end } = self.range;
        let middle = end - (end - start) / 10;
        let part = |range: Range<usize>| {
            if self.rows.count(range.len()) == 0 {
                return Err(self.rows.too_short());
            }
            Ok(Self { range, ..self.clone() })
        };
        Ok((part(start..middle)?, part(middle..end)?))
    }

    /// Changes samples to pairs of a row and the row after it, for a sequence-to-sequence model.
    /// The fields are `source`, i64 `[context]`, and `target`, i64 `[context + 1]`, which begins
    /// with the last token of the source.
    #[must_use]
    pub fn in_pairs(self) -> Self {
        Self { rows: self.rows.in_pairs(), ..self }
    }

    /// The tokenizer of the characters of the text.
    #[must_use]
    pub fn tokenizer(&self) -> &Characters {
        &self.characters
    }

    /// The characters of the vocabulary, in the order of their tokens.
    #[must_use]
    pub fn vocabulary(&self) -> &[char] {
        self.characters.characters()
    }

    /// The tokens of a text; `None` if the text has a character outside the vocabulary.
    #[must_use]
    pub fn encode(&self, text: &str) -> Option<Vec<i64>> {
        text.chars().map(|c| self.characters.token(c).map(i64::from)).collect()
    }

    /// The text of tokens. Tokens outside the vocabulary are left out.
    #[must_use]
    pub fn decode(&self, tokens: &[i64]) -> String {
        let character = |&token: &i64| self.vocabulary().get(usize::try_from(token).ok()?).copied();
        tokens.iter().filter_map(character).collect()
    }
}

impl Dataset for Text {
    fn len(&self) -> usize {
        self.rows.count(self.range.len())
    }

    fn fields(&self) -> &[Field] {
        self.rows.fields()
    }

    fn write(&self, index: usize, slot: &mut SampleSlot<'_>) -> Result<(), SampleError> {
        let start = self.range.start + index * self.rows.stride();
        self.rows.write(start, slot, |first, to| {
            to.copy_from_slice(&self.tokens[first..first + to.len()]);
            Ok(())
        })
    }

    fn visit_memory(&self, visit: &mut dyn FnMut(*const u8, usize)) {
        visit_slice(&self.tokens, visit);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::batch::Batch;
    use crate::loader::Loader;
    use crate::options::LoaderOptions;
    use crate::sampler::Sequential;

    fn rows(text: Text, field: &str) -> Vec<Vec<i64>> {
        let options = LoaderOptions { batch_size: 1, ..Default::default() };
        let loader = Loader::with_sampler(text, Sequential, options).expect("options");
        let row = |batch: Result<Batch, DataError>| {
            let batch = batch.expect("readable");
            batch.field(field).expect("there").values::<i64>().expect("i64").to_vec()
        };
        loader.epoch(0).map(row).collect()
    }

    #[test]
    fn every_character_but_the_first_is_predicted_once() {
        let text = Text::new("abcabcb", 2).expect("long enough");
        assert_eq!(text.vocabulary(), ['a', 'b', 'c']);
        assert_eq!(rows(text.clone(), "tokens"), [[0, 1, 2], [2, 0, 1], [1, 2, 1]]);
        assert_eq!(text.decode(&text.encode("cab").expect("known")), "cab");
        assert_eq!(text.encode("abd"), None);
    }

    #[test]
    fn pairs_go_on_where_their_source_ends() {
        let text = Text::new("abcdefgh", 2).expect("long enough").in_pairs();
        assert_eq!(rows(text.clone(), "source"), [[0, 1]]);
        assert_eq!(rows(text, "target"), [[1, 2, 3]]);
    }

    #[test]
    fn parts_do_not_overlap_and_short_texts_are_refused() {
        let text = Text::new(&"ab".repeat(100), 4).expect("long enough");
        let (train, test) = text.split().expect("long enough");
        assert_eq!((train.len(), test.len()), (44, 4));
        assert!(Text::new("abc", 4).is_err() && Text::new("abc", 0).is_err());
        assert!(Text::new("abcdefgh", 4).expect("long enough").split().is_err());
    }
}
