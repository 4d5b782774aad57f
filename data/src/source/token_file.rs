//! Rows of the tokens of files, without a copy in memory.

use crate::dataset::{Dataset, SampleSlot};
use crate::element::Field;
use crate::error::{DataError, SampleError};
use crate::source::token_rows::TokenRows;
use crate::source::token_shard::{Shard, TokenFormat};
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

/// Rows of tokens from files that are mapped into memory: files of nanoGPT, of llm.c, or of
/// [`TokenWriter`](crate::TokenWriter).
///
/// The field is `tokens`, i64 `[context + 1]`. The last token of a row is the first token of the
/// next row, as in [`Text`](crate::Text). Rows do not cross files. Clones share the mappings.
///
/// # Examples
/// ```
/// use lowtide_data::{Dataset, TokenFile, TokenFormat, write_tokens};
/// let path = std::env::temp_dir().join(format!("lowtide-{}.bin", std::process::id()));
/// write_tokens(&path, TokenFormat::RawU16, &[1, 2, 3, 4, 5])?;
/// let rows = TokenFile::open(&[&path], 2)?;
/// assert_eq!((rows.len(), rows.token_count()), (2, 5));
/// # std::fs::remove_file(path).expect("it is there");
/// # Ok::<(), lowtide_data::DataError>(())
/// ```
#[derive(Debug, Clone)]
pub struct TokenFile {
    spans: Vec<Span>,
    /// The first row of each span, and the number of all rows.
    first_rows: Vec<usize>,
    rows: TokenRows,
    vocabulary_len: Option<usize>,
}

/// A part of a file.
#[derive(Debug, Clone)]
struct Span {
    shard: Arc<Shard>,
    tokens: Range<usize>,
}

impl TokenFile {
    /// The rows of the files `paths`, in this order, each with `context` tokens and the token that
    /// follows.
    ///
    /// A file that begins with a magic number of llm.c is read in the format of that number, any
    /// other file as [`TokenFormat::RawU16`]. The files must not be truncated or rewritten in place
    /// while they are open: the system ends a process that reads beyond the new end of a mapped
    /// file. Renaming another file over an open file does no harm.
    ///
    /// # Errors
    /// [`DataError::File`] for a file that cannot be opened; [`DataError::Malformed`] for a file
    /// that does not follow its format; [`DataError::InvalidOption`] if `context` is 0 or every
    /// file is too short for one row.
    pub fn open(paths: &[impl AsRef<Path>], context: usize) -> Result<Self, DataError> {
        Self::with_formats(paths, context, None)
    }

    /// Opens files of a given format; see [`open`](Self::open).
    ///
    /// # Errors
    /// As for [`open`](Self::open).
    pub fn open_as(
        paths: &[impl AsRef<Path>],
        context: usize,
        format: TokenFormat,
    ) -> Result<Self, DataError> {
        Self::with_formats(paths, context, Some(format))
    }

    fn with_formats(
        paths: &[impl AsRef<Path>],
        context: usize,
        format: Option<TokenFormat>,
    ) -> Result<Self, DataError> {
        let rows = TokenRows::new(context)?;
        let span = |path: &_| {
            let shard = Arc::new(Shard::open(AsRef::as_ref(path), format)?);
            let tokens = 0..shard.len;
            Ok(Span { shard, tokens })
        };
        let spans = paths.iter().map(span).collect::<Result<_, _>>()?;
        Self::new(spans, rows, None)
    }

    fn new(
        spans: Vec<Span>,
        rows: TokenRows,
        vocabulary_len: Option<usize>,
    ) -> Result<Self, DataError> {
        let file = Self::from_spans(spans, rows, vocabulary_len);
        if file.is_empty() { Err(file.rows.too_short()) } else { Ok(file) }
    }

    fn from_spans(spans: Vec<Span>, rows: TokenRows, vocabulary_len: Option<usize>) -> Self {
        let mut first_rows = vec![0];
        let mut count = 0;
        for span in &spans {
            count += rows.count(span.tokens.len());
            first_rows.push(count);
        }
        Self { spans, first_rows, rows, vocabulary_len }
    }

    /// Changes samples to pairs of a row and the row after it, for a sequence-to-sequence model.
    /// The fields are `source`, i64 `[context]`, and `target`, i64 `[context + 1]`, which begins
    /// with the last token of the source.
    #[must_use]
    pub fn in_pairs(self) -> Self {
        Self::from_spans(self.spans, self.rows.in_pairs(), self.vocabulary_len)
    }

    /// Checks that each token is below `vocabulary_len`, so that a model does not read beyond its
    /// embedding table. A larger token is an error of its sample, which names the file and the
    /// byte.
    #[must_use]
    pub fn with_vocabulary(self, vocabulary_len: usize) -> Self {
        Self { vocabulary_len: Some(vocabulary_len), ..self }
    }

    /// The length that was given to [`with_vocabulary`](Self::with_vocabulary).
    #[must_use]
    pub fn vocabulary_len(&self) -> Option<usize> {
        self.vocabulary_len
    }

    /// The length of the smallest vocabulary with all tokens of the files, including the other part
    /// of a [`split`](Self::split). Reads all files completely.
    #[must_use]
    pub fn find_vocabulary_len(&self) -> usize {
        let largest = self.spans.iter().filter_map(|span| span.shard.token_max()).max();
        largest.map_or(0, |token| token as usize + 1)
    }

    /// Splits the tokens into a training part, the first nine tenths, and a test part.
    ///
    /// # Errors
    /// [`DataError::InvalidOption`] if a part has no row.
    pub fn split(&self) -> Result<(Self, Self), DataError> {
        let token_count = self.token_count();
        let mut left = token_count - token_count / 10;
        let (mut train, mut test) = (Vec::new(), Vec::new());
        for span in &self.spans {
            let middle = span.tokens.start + span.tokens.len().min(left);
            left -= middle - span.tokens.start;
            for (part, tokens) in
                [(&mut train, span.tokens.start..middle), (&mut test, middle..span.tokens.end)]
            {
                if !tokens.is_empty() {
                    part.push(Span { shard: Arc::clone(&span.shard), tokens });
                }
            }
        }
        let part = |spans| Self::new(spans, self.rows.clone(), self.vocabulary_len);
        Ok((part(train)?, part(test)?))
    }

    /// Number of tokens of all files.
    #[must_use]
    pub fn token_count(&self) -> usize {
        self.spans.iter().map(|span| span.tokens.len()).sum()
    }
}

impl Dataset for TokenFile {
    fn len(&self) -> usize {
        self.first_rows[self.spans.len()]
    }

    fn fields(&self) -> &[Field] {
        self.rows.fields()
    }

    fn write(&self, index: usize, slot: &mut SampleSlot<'_>) -> Result<(), SampleError> {
        // Spans without a row begin at the same row as the next span, so the last span is taken.
        let at = self.first_rows.partition_point(|&first| first <= index) - 1;
        let Span { shard, tokens } = &self.spans[at];
        let start = tokens.start + (index - self.first_rows[at]) * self.rows.stride();
        let copy = |first, to: &mut [i64]| shard.copy(first, to, self.vocabulary_len);
        Ok(self.rows.write(start, slot, copy)?)
    }
}
