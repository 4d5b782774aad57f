//! Lines with a prompt, an answer that was chosen and one that was rejected.

use crate::error::DataError;
use crate::source::documents::{Document, Documents, PreferenceRows};
use crate::source::files::files_of;
use crate::source::json_lines::JsonLines;
use crate::source::json_lines::LineError;
use crate::source::json_lines::chat::{ChatTemplate, EncodedTemplate, Turn};
use crate::source::json_lines::lines::{LineStart, Lines};
use crate::source::json_lines::object::{fields_of, found_fields_of, missing};
use crate::tokenizer::{SpecialRole, Tokenizer};
use std::fmt;
use std::path::Path;
use std::sync::Arc;

/// Reads files with a JSON object on each line: a prompt, the answer that was chosen, and the one
/// that was rejected, as texts or as turns of chats. Of texts prompts are read, and answers
/// learned, with the token for the end of a text if the tokenizer has one; each is encoded by
/// itself. Of chats is learned what their template says. Blank lines are left out.
///
/// # Examples
/// ```
/// use lowtide_data::{Bytes, Dataset, PreferenceLines};
/// use std::sync::Arc;
/// let path = std::env::temp_dir().join(format!("lowtide-pairs-{}.jsonl", std::process::id()));
/// let line = r#"{"prompt": "1 + 1 = ", "chosen": "2", "rejected": "11"}"#;
/// std::fs::write(&path, line).expect("a folder");
/// let pairs = PreferenceLines::new(Arc::new(Bytes::new())).read(&[&path])?;
/// assert_eq!(pairs.len(), 1);
/// assert_eq!(&*pairs.rows(16, 0)?.fields()[0].name, "chosen");
/// # std::fs::remove_file(path).expect("it is there");
/// # Ok::<(), lowtide_data::DataError>(())
/// ```
#[derive(Clone)]
pub struct PreferenceLines {
    names: [String; 3],
    /// Of chats.
    template: Option<EncodedTemplate>,
    tokenizer: Arc<dyn Tokenizer>,
    begin: Option<u32>,
    end: Option<u32>,
    line_bytes_max: usize,
}

impl PreferenceLines {
    /// Lines of `{"prompt": ..., "chosen": ..., "rejected": ...}`.
    pub fn new(tokenizer: Arc<dyn Tokenizer>) -> Self {
        let end = tokenizer.special(SpecialRole::EndOfText);
        let names = ["prompt", "chosen", "rejected"].map(str::to_owned);
        let line_bytes_max = JsonLines::LINE_BYTES_MAX;
        Self { names, template: None, tokenizer, begin: None, end, line_bytes_max }
    }

    /// Lines of `{"prompt": [..], "chosen": [..], "rejected": [..]}`, of turns that are
    /// `{"role": ..., "content": ...}`: both answers follow the prompt, which may be missing where
    /// they begin with it.
    ///
    /// # Errors
    /// [`DataError::Tokenizer`] if the template cannot be encoded.
    pub fn chat(template: &ChatTemplate, tokenizer: Arc<dyn Tokenizer>) -> Result<Self, DataError> {
        let encoded = EncodedTemplate::new(template, tokenizer.as_ref());
        let template = Some(encoded.map_err(|source| DataError::Tokenizer { source })?);
        Ok(Self { template, ..Self::new(tokenizer) })
    }

    /// The same with other names for the prompt, the chosen and the rejected answer.
    #[must_use]
    pub fn with_names(self, names: [&str; 3]) -> Self {
        Self { names: names.map(str::to_owned), ..self }
    }

    /// The same with these tokens before and after each document, as
    /// [`JsonLines::with_frame`] has them.
    #[must_use]
    pub fn with_frame(self, begin: Option<u32>, end: Option<u32>) -> Self {
        Self { begin, end, ..self }
    }

    /// All pairs of `paths`, of which folders stand for their files called `*.jsonl`, in the order
    /// of their names.
    ///
    /// # Errors
    /// [`DataError::File`] for a file that cannot be read, [`DataError::Malformed`] with a
    /// [`LineError`] for a line that is not of the format.
    pub fn read(&self, paths: &[impl AsRef<Path>]) -> Result<Preferences, DataError> {
        let (mut chosen, mut rejected) = (Vec::new(), Vec::new());
        for path in files_of(paths, "jsonl")? {
            let mut lines = Lines::open(&path, LineStart::FIRST, self.line_bytes_max)?;
            while let Some((start, line)) = lines.next_line()? {
                match self.parse(line) {
                    // Documents of no tokens are left out: both or none.
                    Ok([one, other]) if !one.is_empty() && !other.is_empty() => {
                        chosen.push(one);
                        rejected.push(other);
                    }
                    Ok(_) => {}
                    Err(error) => return Err(lines.malformed(start, error)),
                }
            }
        }
        let [chosen, rejected] = [chosen, rejected].map(Documents::from_iter);
        Ok(Preferences { chosen, rejected })
    }

    /// The chosen and the rejected document of a line.
    fn parse(&self, line: &[u8]) -> Result<[Document; 2], LineError> {
        let names = self.names.each_ref().map(String::as_str);
        if let Some(template) = &self.template {
            return self.parse_chats(template, found_fields_of(line, names)?);
        }
        let [prompt, chosen, rejected] = fields_of::<String, 3>(line, names)?;
        let prompt = self.tokenizer.encode(&prompt)?;
        let document = |answer: &str| -> Result<Document, LineError> {
            let mut document = Document::new();
            document.push_context(self.begin.as_slice())?;
            document.push_context(&prompt)?;
            document.push_learned(&self.tokenizer.encode(answer)?)?;
            document.push_learned(self.end.as_slice())?;
            Ok(document)
        };
        Ok([document(&chosen)?, document(&rejected)?])
    }

    /// The documents of a line of chats.
    fn parse_chats(
        &self,
        template: &EncodedTemplate,
        [prompt, chosen, rejected]: [Option<Vec<Turn>>; 3],
    ) -> Result<[Document; 2], LineError> {
        let prompt = prompt.unwrap_or_default();
        let document = |name: &str, answer: Option<Vec<Turn>>| -> Result<Document, LineError> {
            let answer = answer.ok_or_else(|| missing(name))?;
            let mut document = Document::new();
            document.push_context(self.begin.as_slice())?;
            let turns = prompt.iter().chain(&answer);
            template.push(turns, self.tokenizer.as_ref(), &mut document)?;
            document.push_end(self.end.as_slice())?;
            Ok(document)
        };
        Ok([document(&self.names[1], chosen)?, document(&self.names[2], rejected)?])
    }
}

impl fmt::Debug for PreferenceLines {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PreferenceLines")
            .field("names", &self.names)
            .field("is_chat", &self.template.is_some())
            .field("begin", &self.begin)
            .field("end", &self.end)
            .finish_non_exhaustive()
    }
}

/// Pairs of documents in memory: a prompt with the answer that was chosen, and with the one that
/// was rejected. Clones share the tokens.
#[derive(Debug, Clone)]
pub struct Preferences {
    chosen: Documents,
    rejected: Documents,
}

impl Preferences {
    /// Number of pairs.
    #[must_use]
    pub fn len(&self) -> usize {
        self.chosen.len()
    }

    /// Whether there are no pairs.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.chosen.is_empty()
    }

    /// The documents with the chosen answers, and those with the rejected ones.
    #[must_use]
    pub fn documents(&self) -> [&Documents; 2] {
        [&self.chosen, &self.rejected]
    }

    /// The first nine tenths of the pairs to train on, and the last tenth to test on.
    ///
    /// # Errors
    /// [`DataError::SampleCount`] if there are fewer than ten.
    pub fn split(&self) -> Result<(Self, Self), DataError> {
        let ((a, c), (b, d)) = (self.chosen.split()?, self.rejected.split()?);
        Ok((Self { chosen: a, rejected: b }, Self { chosen: c, rejected: d }))
    }

    /// A pair in each sample: see [`PreferenceRows`].
    ///
    /// # Errors
    /// [`DataError::InvalidOption`] for a context of 0.
    pub fn rows(&self, context: usize, padding: u32) -> Result<PreferenceRows, DataError> {
        PreferenceRows::new([self.chosen.clone(), self.rejected.clone()], context, padding)
    }
}
