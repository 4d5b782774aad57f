//! Text as rows of characters.

use crate::dataset::{Dataset, SampleError, SampleSlot};
use crate::element::{ElementType, Field};
use crate::error::DataError;
use std::collections::BTreeSet;
use std::fs;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

/// Rows of the tokens of a text, whose vocabulary are its characters in order. Field: `tokens`, i64
/// `[context + 1]`; the last token of a row is the first of the next one, so that each is predicted
/// once. Clones share their tokens.
#[derive(Debug, Clone)]
pub struct Text {
    tokens: Arc<Vec<i64>>,
    vocabulary: Arc<Vec<char>>,
    range: Range<usize>,
    context: usize,
    in_pairs: bool,
    fields: Vec<Field>,
}

impl Text {
    /// A text in rows of `context` characters and the one that follows.
    ///
    /// # Errors
    /// [`DataError::InvalidOption`] for a context of 0, or one that the text is too short for.
    pub fn new(text: &str, context: usize) -> Result<Self, DataError> {
        let vocabulary: Vec<char> = text.chars().collect::<BTreeSet<_>>().into_iter().collect();
        let place = |c: char| vocabulary.binary_search(&c).map_or(0, |place| place as i64);
        let tokens: Vec<i64> = text.chars().map(place).collect();
        if context == 0 || tokens.len() <= context {
            return Err(DataError::InvalidOption { option: "context", value: context });
        }
        let range = 0..tokens.len();
        let (tokens, vocabulary) = (Arc::new(tokens), Arc::new(vocabulary));
        let mut text =
            Self { tokens, vocabulary, range, context, in_pairs: false, fields: Vec::new() };
        text.set_fields();
        Ok(text)
    }

    /// A text file in UTF-8.
    ///
    /// # Errors
    /// [`DataError::File`]; those of [`Text::new`].
    pub fn read(path: &Path, context: usize) -> Result<Self, DataError> {
        let text = fs::read_to_string(path);
        Text::new(
            &text.map_err(|source| DataError::File { path: path.to_owned(), source })?,
            context,
        )
    }

    /// The first nine tenths to train on, and the last tenth to test on.
    ///
    /// # Errors
    /// [`DataError::InvalidOption`] where the tenth has no row.
    pub fn split(&self) -> Result<(Self, Self), DataError> {
        let Range { start, end } = self.range;
        let middle = end - (end - start) / 10;
        let part = |range: Range<usize>| {
            if range.len() <= self.row_len() {
                return Err(DataError::InvalidOption { option: "context", value: self.context });
            }
            Ok(Self { range, ..self.clone() })
        };
        Ok((part(start..middle)?, part(middle..end)?))
    }

    /// The same text in pairs of a row and the row that follows it. Fields: `source`, i64
    /// `[context]`, and `target`, i64 `[context + 1]`, which begins with the last token of the
    /// source.
    #[must_use]
    pub fn in_pairs(mut self) -> Self {
        self.in_pairs = true;
        self.set_fields();
        self
    }

    /// The characters that the tokens stand for.
    #[must_use]
    pub fn vocabulary(&self) -> &[char] {
        &self.vocabulary
    }

    /// The tokens of a text; `None` for a character that is not in the vocabulary.
    #[must_use]
    pub fn encode(&self, text: &str) -> Option<Vec<i64>> {
        let place = |c: char| self.vocabulary.binary_search(&c).ok().map(|place| place as i64);
        text.chars().map(place).collect()
    }

    /// The text of tokens; those that are not in the vocabulary are left out.
    #[must_use]
    pub fn decode(&self, tokens: &[i64]) -> String {
        let character = |&token: &i64| self.vocabulary.get(usize::try_from(token).ok()?).copied();
        tokens.iter().filter_map(character).collect()
    }

    /// Tokens that a sample takes beside the one that follows it.
    fn row_len(&self) -> usize {
        if self.in_pairs { 2 * self.context } else { self.context }
    }

    fn set_fields(&mut self) {
        let field = |name, len| Field::new(name, ElementType::I64, &[len]);
        self.fields = match self.in_pairs {
            false => vec![field("tokens", self.context + 1)],
            true => vec![field("source", self.context), field("target", self.context + 1)],
        };
    }
}

impl Dataset for Text {
    fn len(&self) -> usize {
        (self.range.len() - 1) / self.row_len()
    }

    fn fields(&self) -> &[Field] {
        &self.fields
    }

    fn write(&self, index: usize, slot: &mut SampleSlot<'_>) -> Result<(), SampleError> {
        let start = self.range.start + index * self.row_len();
        if self.in_pairs {
            let middle = start + self.context;
            slot.values::<i64>(0).copy_from_slice(&self.tokens[start..middle]);
            let target = &self.tokens[middle - 1..middle + self.context];
            slot.values::<i64>(1).copy_from_slice(target);
        } else {
            slot.values::<i64>(0).copy_from_slice(&self.tokens[start..=start + self.context]);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::batch::Batch;
    use crate::loader::{Loader, LoaderOptions};
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
