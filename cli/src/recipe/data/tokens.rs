//! Texts and tokens for a recipe.

use std::path::Path;
use std::sync::Arc;

use lowtide_allocator::files::{TEXT_BYTES_MAX, read_input_text};
use lowtide_data::{
    Bytes, ChatTemplate, DataError, Dataset, Document, DocumentRows, Documents, JsonLines,
    LineFormat, PackedRows, PreferenceLines, Preferences, RowFit, SpecialRole, Text, Tiktoken,
    TokenFile, Tokenizer, TokenizerJson,
};
use lowtide_trainer::{Result, TrainError};

use super::open::{Opened, Samples, Wants};
use super::{JsonLinesRecipe, LineKind, TextRecipe, TokenFileRecipe};
use crate::recipe::setting;

/// The built-in text: the license of this program, 11 KB of English.
const TEXT: &str = include_str!("../../../LICENSE-APACHE");

/// The text between two documents, for byte tokens.
const END_OF_TEXT: &str = "<|endoftext|>";

pub(super) fn text(data: &TextRecipe, wants: Wants) -> Result<Opened> {
    let context = data.context;
    let read = |path: &Path| {
        read_input_text(path, TEXT_BYTES_MAX)
            .map_err(|source| TrainError::File { path: path.to_owned(), source })
    };
    if data.tokenizer != "characters" {
        no_pairs(wants)?;
        let tokenizer = tokenizer(&data.tokenizer)?;
        let text: String = data.file.as_deref().map_or_else(|| Ok(TEXT.to_owned()), read)?;
        let wrong = |error: String| setting("data.tokenizer", &error);
        let tokens = tokenizer.encode(&text).map_err(|error| wrong(error.to_string()))?;
        let middle = tokens.len() - tokens.len() / 10;
        let part = |tokens: &[u32]| {
            let mut document = Document::new();
            document.push_learned(tokens).map_err(|error| wrong(error.to_string()))?;
            Ok::<_, TrainError>(PackedRows::new(Documents::from_iter([document]), context)?)
        };
        let samples = Samples::Tokens { vocabulary: tokenizer.vocabulary_len(), context };
        return Ok(Opened::new(samples, part(&tokens[..middle])?, part(&tokens[middle..])?));
    }
    let text = match &data.file {
        Some(file) => Text::read(file, context)?,
        None => Text::new(TEXT, context)?,
    };
    let text = if wants.pairs { text.in_pairs() } else { text };
    let vocabulary = text.vocabulary().len();
    let (train, test) = text.split()?;
    Ok(Opened::new(Samples::Tokens { vocabulary, context }, train, test))
}

pub(super) fn files(data: &TokenFileRecipe, wants: Wants) -> Result<Opened> {
    let &TokenFileRecipe { vocabulary, context, .. } = data;
    let open = |files: &[_]| {
        let rows = TokenFile::open(files, context)?.with_vocabulary(vocabulary);
        Ok::<_, TrainError>(if wants.pairs { rows.in_pairs() } else { rows })
    };
    let rows = open(&data.files)?;
    let (train, test) = match data.test.as_slice() {
        [] => rows.split()?,
        files => (rows, open(files)?),
    };
    Ok(Opened::new(Samples::Tokens { vocabulary, context }, train, test))
}

pub(super) fn json_lines(data: &JsonLinesRecipe, wants: Wants) -> Result<Opened> {
    no_pairs(wants)?;
    let tokenizer = tokenizer(&data.tokenizer)?;
    let (vocabulary, context) = (tokenizer.vocabulary_len(), data.context);
    let end = tokenizer.special(SpecialRole::EndOfText);
    let padding = tokenizer.special(SpecialRole::Padding).or(end).unwrap_or(0);
    // Models with this token have seen it before every document. Chats have their own beginning.
    let begin = tokenizer.special(SpecialRole::BeginOfText);
    let is_chat = matches!(data.format, LineKind::Chat | LineKind::ChatPreference);
    let begin = begin.filter(|_| !is_chat);
    let template = ChatTemplate::of(&*tokenizer);
    let format = match data.format {
        LineKind::Text => LineFormat::text(),
        LineKind::Completion => LineFormat::completion(),
        LineKind::Chat => LineFormat::chat(template),
        LineKind::Preference => {
            let lines = PreferenceLines::new(tokenizer).with_frame(begin, end);
            return preferences(data, &lines, vocabulary, padding);
        }
        LineKind::ChatPreference => {
            let lines = PreferenceLines::chat(&template, tokenizer)?.with_frame(begin, end);
            return preferences(data, &lines, vocabulary, padding);
        }
    };
    let lines = JsonLines::new(format, tokenizer)?.with_frame(begin, end);
    let documents = lines.read(&[&data.file])?;
    let (train, test) = match &data.test {
        None => documents.split().map_err(too_few)?,
        Some(test) => (documents, lines.read(&[test])?),
    };
    let samples = Samples::Tokens { vocabulary, context };
    if data.packed {
        let rows = |documents| {
            let rows = PackedRows::new(documents, context)?;
            // If the whole text is learned, the labels are the next tokens.
            Ok::<_, TrainError>(match data.format {
                LineKind::Text => rows,
                _ => rows.with_labels(),
            })
        };
        return Ok(Opened::new(samples, rows(train)?, rows(test)?));
    }
    let rows = |documents| {
        let rows = DocumentRows::new(documents, context, RowFit::Padded(padding))?;
        if rows.is_empty() { Err(nothing_to_learn(context)) } else { Ok(rows) }
    };
    Ok(Opened::new(samples, rows(train)?, rows(test)?))
}

/// Opens lines of preferred answers.
fn preferences(
    data: &JsonLinesRecipe,
    lines: &PreferenceLines,
    vocabulary: usize,
    padding: u32,
) -> Result<Opened> {
    let context = data.context;
    let pairs = lines.read(&[&data.file])?;
    let (train, test) = match &data.test {
        None => pairs.split().map_err(too_few)?,
        Some(test) => (pairs, lines.read(&[test])?),
    };
    let rows = |pairs: Preferences| {
        let rows = pairs.rows(context, padding)?;
        if rows.is_empty() { Err(nothing_to_learn(context)) } else { Ok(rows) }
    };
    Ok(Opened::new(Samples::Preferences { vocabulary, context }, rows(train)?, rows(test)?))
}

/// The error of a file that is too short to be split.
fn too_few(error: DataError) -> TrainError {
    match error {
        DataError::SampleCount { dataset, .. } => {
            let problem = format!(
                "has {dataset}: of ten or more the last tenth is tested on, of fewer data.test"
            );
            setting("data.file", &problem)
        }
        other => other.into(),
    }
}

fn nothing_to_learn(context: usize) -> TrainError {
    let problem = format!("leaves nothing to learn: prompts fill the rows of {context}");
    setting("data.context", &problem)
}

/// Finds the tokenizer of this name or file.
fn tokenizer(name: &str) -> Result<Arc<dyn Tokenizer>> {
    match name {
        "bytes" => Ok(Arc::new(Bytes::new().with_special(END_OF_TEXT))),
        "gpt2" => Ok(Arc::new(Tiktoken::gpt2())),
        "cl100k" => Ok(Arc::new(Tiktoken::cl100k())),
        "o200k" => Ok(Arc::new(Tiktoken::o200k())),
        file if file.ends_with(".json") => Ok(Arc::new(TokenizerJson::open(Path::new(file))?)),
        other => {
            let problem = format!(
                "{other} is none of bytes, gpt2, cl100k and o200k, and no file that ends in .json"
            );
            Err(setting("data.tokenizer", &problem))
        }
    }
}

pub(super) fn no_pairs(wants: Wants) -> Result<()> {
    if wants.pairs {
        Err(setting("data.kind", "has no rows in pairs of source and target"))
    } else {
        Ok(())
    }
}
