//! Files with a JSON object on each line: texts, prompts with completions, and chats.

mod chat;
mod error;
mod lines;
mod object;
mod preference;
mod stream;

pub use chat::{ChatRole, ChatTemplate};
pub use error::LineError;
pub use preference::{PreferenceLines, Preferences};
pub use stream::JsonLinesStream;

use crate::error::DataError;
use crate::source::documents::{Document, Documents};
use crate::source::files::expand_folders;
use crate::tokenizer::{SpecialRole, Tokenizer};
use chat::{EncodedTemplate, Turn};
use lines::{LineStart, Lines};
use object::fields_of;
use std::fmt;
use std::path::Path;
use std::sync::Arc;

/// Reads and encodes files with a JSON object on each line. Each line is a document. Blank lines
/// are ignored.
///
/// # Examples
/// ```
/// use lowtide_data::{Bytes, Dataset, JsonLines, LineFormat, PackedRows};
/// use std::sync::Arc;
/// let path = std::env::temp_dir().join(format!("lowtide-{}.jsonl", std::process::id()));
/// std::fs::write(&path, "{\"text\": \"one\"}\n{\"text\": \"two\"}\n").expect("a folder");
/// let tokenizer = Arc::new(Bytes::new().with_special("<|endoftext|>"));
/// let documents = JsonLines::new(LineFormat::text(), tokenizer)?.read(&[&path])?;
/// assert_eq!(documents.token_count(), 2 * (3 + 1));
/// assert_eq!(PackedRows::new(documents, 3)?.len(), 2);
/// # std::fs::remove_file(path).expect("it is there");
/// # Ok::<(), lowtide_data::DataError>(())
/// ```
#[derive(Clone)]
pub struct JsonLines {
    format: LineFormat,
    template: Option<EncodedTemplate>,
    tokenizer: Arc<dyn Tokenizer>,
    begin: Option<u32>,
    end: Option<u32>,
    line_bytes_max: usize,
}

/// The members of the object on a line. Other members are ignored.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum LineFormat {
    /// A text whose tokens are all learned.
    Text {
        /// Name of the member with the text.
        text: String,
    },
    /// A prompt, which is context, and a completion, which is learned. Prompt and completion are
    /// encoded separately.
    Completion {
        /// Name of the member with the prompt.
        prompt: String,
        /// Name of the member with the completion.
        completion: String,
    },
    /// The turns of a chat: an array of objects with the texts `role` and `content`. The template
    /// determines the roles whose turns are learned.
    Chat {
        /// Name of the member with the turns.
        messages: String,
        /// The template of the chat.
        template: ChatTemplate,
    },
}

impl LineFormat {
    /// The format `{"text": ...}`.
    #[must_use]
    pub fn text() -> Self {
        Self::Text { text: "text".to_owned() }
    }

    /// The format `{"prompt": ..., "completion": ...}`.
    #[must_use]
    pub fn completion() -> Self {
        Self::Completion { prompt: "prompt".to_owned(), completion: "completion".to_owned() }
    }

    /// The format `{"messages": [{"role": ..., "content": ...}, ...]}`.
    #[must_use]
    pub fn chat(template: ChatTemplate) -> Self {
        Self::Chat { messages: "messages".to_owned(), template }
    }
}

/// The progress of [`JsonLines::read_with`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReadProgress {
    /// Number of bytes that were read.
    pub bytes: u64,
    /// Number of bytes of all files.
    pub bytes_total: u64,
    /// Number of documents so far.
    pub documents: usize,
    /// Number of tokens so far.
    pub tokens: usize,
}

impl JsonLines {
    /// Default maximum number of bytes of a line (16 MiB). See
    /// [`with_line_bytes_max`](Self::with_line_bytes_max).
    pub const LINE_BYTES_MAX: usize = 16 << 20;

    /// A reader of lines with this format. Each document ends with the tokenizer's token for the
    /// end of a text, if there is one.
    ///
    /// # Errors
    /// [`DataError::Tokenizer`] if the chat template cannot be encoded.
    pub fn new(format: LineFormat, tokenizer: Arc<dyn Tokenizer>) -> Result<Self, DataError> {
        let template = match &format {
            LineFormat::Chat { template, .. } => {
                let encoded = EncodedTemplate::new(template, tokenizer.as_ref());
                Some(encoded.map_err(|source| DataError::Tokenizer { source })?)
            }
            _ => None,
        };
        let (begin, end) = (None, tokenizer.special(SpecialRole::EndOfText));
        let line_bytes_max = Self::LINE_BYTES_MAX;
        Ok(Self { format, template, tokenizer, begin, end, line_bytes_max })
    }

    /// Changes the tokens before and after each document. `begin` is context; `end` is learned if
    /// the token before it is learned.
    #[must_use]
    pub fn with_frame(self, begin: Option<u32>, end: Option<u32>) -> Self {
        Self { begin, end, ..self }
    }

    /// Changes the maximum number of bytes of a line.
    #[must_use]
    pub fn with_line_bytes_max(self, line_bytes_max: usize) -> Self {
        Self { line_bytes_max, ..self }
    }

    /// Reads and encodes all documents of `paths`. A folder stands for its files `*.jsonl`, sorted
    /// by name. Documents take 4 bytes of memory per token.
    ///
    /// # Errors
    /// [`DataError::File`] for a file that cannot be read; [`DataError::Malformed`] with a
    /// [`LineError`] for a line that does not follow the format.
    pub fn read(&self, paths: &[impl AsRef<Path>]) -> Result<Documents, DataError> {
        self.read_with(paths, |_| {})
    }

    /// Reads like [`read`](Self::read), and calls `progress` after each MiB and at the end.
    ///
    /// # Errors
    /// As for [`read`](Self::read).
    pub fn read_with(
        &self,
        paths: &[impl AsRef<Path>],
        mut progress: impl FnMut(ReadProgress),
    ) -> Result<Documents, DataError> {
        const STEP_BYTES: u64 = 1 << 20;
        let files = expand_folders(paths, "jsonl")?;
        let size = |path| std::fs::metadata(path).map_or(0, |metadata| metadata.len());
        let bytes_total = files.iter().map(size).sum();
        let (mut cells, mut ends) = (Vec::new(), Vec::new());
        let (mut before_file, mut next_step) = (0, STEP_BYTES);
        for path in &files {
            let mut lines = Lines::open(path, LineStart::FIRST, self.line_bytes_max)?;
            while let Some((_, document)) = self.next_document(&mut lines)? {
                if !document.is_empty() {
                    cells.extend_from_slice(document.cells());
                    ends.push(cells.len());
                }
                let bytes = before_file + lines.next.byte;
                if bytes >= next_step {
                    next_step = bytes + STEP_BYTES;
                    let (documents, tokens) = (ends.len(), cells.len());
                    progress(ReadProgress { bytes, bytes_total, documents, tokens });
                }
            }
            before_file += lines.next.byte;
        }
        let (documents, tokens) = (ends.len(), cells.len());
        progress(ReadProgress { bytes: before_file, bytes_total, documents, tokens });
        Ok(Documents::new(cells, ends))
    }

    /// The document of the next line, and the start of the line.
    fn next_document(&self, lines: &mut Lines) -> Result<Option<(LineStart, Document)>, DataError> {
        let Some((start, line)) = lines.next_line()? else { return Ok(None) };
        match self.parse(line) {
            Ok(document) => Ok(Some((start, document))),
            Err(error) => Err(lines.malformed(start, error)),
        }
    }

    /// The document of a line; empty if there are no tokens but `begin` and `end`.
    fn parse(&self, line: &[u8]) -> Result<Document, LineError> {
        let tokenizer = self.tokenizer.as_ref();
        let mut document = Document::new();
        document.push_context(self.begin.as_slice())?;
        let begin_len = document.len();
        match &self.format {
            LineFormat::Text { text } => {
                let [text] = fields_of::<String, 1>(line, [text])?;
                document.push_learned(&tokenizer.encode(&text)?)?;
            }
            LineFormat::Completion { prompt, completion } => {
                let [prompt, completion] = fields_of::<String, 2>(line, [prompt, completion])?;
                document.push_context(&tokenizer.encode(&prompt)?)?;
                document.push_learned(&tokenizer.encode(&completion)?)?;
            }
            LineFormat::Chat { messages, .. } => {
                let [turns] = fields_of::<Vec<Turn>, 1>(line, [messages])?;
                if let Some(template) = &self.template {
                    template.push(&turns, tokenizer, &mut document)?;
                }
            }
        }
        if document.len() == begin_len {
            return Ok(Document::new());
        }
        document.push_end(self.end.as_slice())?;
        Ok(document)
    }
}

impl fmt::Debug for JsonLines {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("JsonLines")
            .field("format", &self.format)
            .field("begin", &self.begin)
            .field("end", &self.end)
            .field("line_bytes_max", &self.line_bytes_max)
            .finish_non_exhaustive()
    }
}
