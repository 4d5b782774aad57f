//! Lines of preferences: a prompt, the chosen answer and the rejected answer.

use crate::error::DataError;
use crate::source::documents::{Document, Documents, PreferenceRows};
use crate::source::files::expand_folders;
use crate::source::json_lines::JsonLines;
use crate::source::json_lines::chat::{ChatTemplate, EncodedTemplate, Turn};
use crate::source::json_lines::error::LineError;
use crate::source::json_lines::lines::{LineStart, Lines};
use crate::source::json_lines::object::{fields_of, found_fields_of, missing};
use crate::tokenizer::{SpecialRole, Tokenizer};
use std::fmt;
use std::path::Path;
use std::sync::Arc;

/// Reads files with a JSON object on each line: a prompt, the chosen answer and the rejected
/// answer, as texts or as turns of chats. Blank lines are ignored.
///
/// In texts, the prompt is context. The answer is learned, with the tokenizer's token for the end
/// of a text, if there is one. Prompt and answer are encoded separately. In chats, the template
/// determines the roles whose turns are learned.
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
    /// `None` for lines of texts.
    template: Option<EncodedTemplate>,
    tokenizer: Arc<dyn Tokenizer>,
    begin: Option<u32>,
    end: Option<u32>,
    line_bytes_max: usize,
}

impl PreferenceLines {
    /// A reader of the format `{"prompt": ..., "chosen": ..., "rejected": ...}`.
    pub fn new(tokenizer: Arc<dyn Tokenizer>) -> Self {
        let end = tokenizer.special(SpecialRole::EndOfText);
        let names = ["prompt", "chosen", "rejected"].map(str::to_owned);
        let line_bytes_max = JsonLines::LINE_BYTES_MAX;
        Self { names, template: None, tokenizer, begin: None, end, line_bytes_max }
    }

    /// A reader of the format `{"prompt": [..], "chosen": [..], "rejected": [..]}`, with turns
    /// `{"role": ..., "content": ...}`. The chosen and the rejected answer follow the prompt. A
    /// line whose answers begin with the prompt needs no `prompt`.
    ///
    /// # Errors
    /// [`DataError::Tokenizer`] if the template cannot be encoded.
    pub fn chat(template: &ChatTemplate, tokenizer: Arc<dyn Tokenizer>) -> Result<Self, DataError> {
        let encoded = EncodedTemplate::new(template, tokenizer.as_ref());
        let template = Some(encoded.map_err(|source| DataError::Tokenizer { source })?);
        Ok(Self { template, ..Self::new(tokenizer) })
    }

    /// Changes the names of the members for the prompt, the chosen and the rejected answer.
    #[must_use]
    pub fn with_names(self, names: [&str; 3]) -> Self {
        Self { names: names.map(str::to_owned), ..self }
    }

    /// Changes the tokens before and after each document; see [`JsonLines::with_frame`].
    #[must_use]
    pub fn with_frame(self, begin: Option<u32>, end: Option<u32>) -> Self {
        Self { begin, end, ..self }
    }

    /// Reads and encodes all pairs of `paths`. A folder stands for its files `*.jsonl`, sorted by
    /// name.
    ///
    /// # Errors
    /// [`DataError::File`] for a file that cannot be read; [`DataError::Malformed`] with a
    /// [`LineError`] for a line that does not follow the format.
    pub fn read(&self, paths: &[impl AsRef<Path>]) -> Result<Preferences, DataError> {
        let (mut chosen, mut rejected) = (Vec::new(), Vec::new());
        for path in expand_folders(paths, "jsonl")? {
            let mut lines = Lines::open(&path, LineStart::FIRST, self.line_bytes_max)?;
            while let Some((start, line)) = lines.next_line()? {
                match self.parse(line) {
                    // A pair with an empty document is left out.
                    Ok([yes, no]) if !yes.is_empty() && !no.is_empty() => {
                        chosen.push(yes);
                        rejected.push(no);
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

    /// The chosen and the rejected document of a line of chats.
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

/// Pairs of documents in memory: a prompt with the chosen answer, and with the rejected answer.
/// Clones share the tokens.
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

    /// True if there are no pairs.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.chosen.is_empty()
    }

    /// The documents with the chosen answers, and the documents with the rejected answers.
    #[must_use]
    pub fn documents(&self) -> [&Documents; 2] {
        [&self.chosen, &self.rejected]
    }

    /// Splits the pairs into a training part, the first nine tenths, and a test part.
    ///
    /// # Errors
    /// [`DataError::SampleCount`] if there are fewer than ten pairs.
    pub fn split(&self) -> Result<(Self, Self), DataError> {
        let (train_chosen, test_chosen) = self.chosen.split()?;
        let (train_rejected, test_rejected) = self.rejected.split()?;
        let train = Self { chosen: train_chosen, rejected: train_rejected };
        Ok((train, Self { chosen: test_chosen, rejected: test_rejected }))
    }

    /// The dataset with one pair in each sample; see [`PreferenceRows`].
    ///
    /// # Errors
    /// [`DataError::InvalidOption`] if `context` is 0.
    pub fn rows(&self, context: usize, padding: u32) -> Result<PreferenceRows, DataError> {
        PreferenceRows::new([self.chosen.clone(), self.rejected.clone()], context, padding)
    }
}
