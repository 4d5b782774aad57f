//! Tokens of files, in rows, without a copy in memory.

use crate::dataset::{Dataset, SampleError, SampleSlot};
use crate::element::Field;
use crate::error::DataError;
use crate::source::token_rows::TokenRows;
use crate::source::token_shard::{Shard, TokenFormat};
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

/// Rows of tokens from files that are mapped into memory: those of nanoGPT and llm.c, or of
/// [`TokenWriter`](crate::TokenWriter). Field: `tokens`, i64 `[context + 1]`; the last token of a
/// row is the first of the next one, as in [`Text`](crate::Text). Rows do not cross files. Clones
/// share the maps.
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
    /// The tokens of `paths`, in this order, in rows of `context` tokens and the one that follows.
    ///
    /// A file that begins with the magic number of llm.c is in that format, any other is
    /// [`TokenFormat::RawU16`]. The files must not be truncated or rewritten in place while they
    /// are open: the system ends a process that reads a mapped page whose file has become shorter.
    /// A file that is renamed over one of them does no harm.
    ///
    /// # Errors
    /// [`DataError::File`] for a file that cannot be opened, [`DataError::Malformed`] for one that
    /// is not what it should be, [`DataError::InvalidOption`] for a context of 0, or one that all
    /// files are too short for.
    pub fn open(paths: &[impl AsRef<Path>], context: usize) -> Result<Self, DataError> {
        Self::with_formats(paths, context, None)
    }

    /// As [`open`](Self::open), with files of a known format.
    ///
    /// # Errors
    /// As [`open`](Self::open).
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
        let file = Self::counted(spans, rows, vocabulary_len);
        if file.is_empty() { Err(file.rows.too_short()) } else { Ok(file) }
    }

    fn counted(spans: Vec<Span>, rows: TokenRows, vocabulary_len: Option<usize>) -> Self {
        let mut first_rows = vec![0];
        let mut count = 0;
        for span in &spans {
            count += rows.count(span.tokens.len());
            first_rows.push(count);
        }
        Self { spans, first_rows, rows, vocabulary_len }
    }

    /// The same tokens in pairs of a row and the row that follows it. Fields: `source`, i64
    /// `[context]`, and `target`, i64 `[context + 1]`, which begins with the last token of the
    /// source.
    #[must_use]
    pub fn in_pairs(self) -> Self {
        Self::counted(self.spans, self.rows.in_pairs(), self.vocabulary_len)
    }

    /// The same tokens, each of which must be below `vocabulary_len`: another one is an error of
    /// its sample that names the file and the byte. A model reads beyond its table without this.
    #[must_use]
    pub fn with_vocabulary(self, vocabulary_len: usize) -> Self {
        Self { vocabulary_len: Some(vocabulary_len), ..self }
    }

    /// The vocabulary that [`with_vocabulary`](Self::with_vocabulary) has named.
    #[must_use]
    pub fn vocabulary_len(&self) -> Option<usize> {
        self.vocabulary_len
    }

    /// The smallest vocabulary that has every token of the files, those of rows that are not in
    /// this part of a [`split`](Self::split) included. Reads all files from end to end.
    #[must_use]
    pub fn find_vocabulary_len(&self) -> usize {
        let largest = self.spans.iter().filter_map(|span| span.shard.token_max()).max();
        largest.map_or(0, |token| token as usize + 1)
    }

    /// The first nine tenths of the tokens to train on, and the last tenth to test on.
    ///
    /// # Errors
    /// [`DataError::InvalidOption`] where a part has no row.
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

    /// Tokens of all files together.
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
        // The last span that begins at or before the row: spans without a row begin there too.
        let at = self.first_rows.partition_point(|&first| first <= index) - 1;
        let Span { shard, tokens } = &self.spans[at];
        let start = tokens.start + (index - self.first_rows[at]) * self.rows.stride();
        let copy = |first, to: &mut [i64]| shard.copy(first, to, self.vocabulary_len);
        Ok(self.rows.write(start, slot, copy)?)
    }
}
