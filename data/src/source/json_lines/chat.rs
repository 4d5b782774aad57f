//! Chat templates.

use crate::source::documents::Document;
use crate::source::json_lines::error::LineError;
use crate::tokenizer::{Tokenizer, TokenizerError};
use serde::Deserialize;

/// A chat template makes one document of a chat: `begin`, and for each turn the prefix of the role,
/// the text, the suffix of the role, and `separator`.
///
/// In the texts of the template, the name of a special token is encoded as this token, if the
/// tokenizer has the token. In the text of a turn, such a name is encoded as ordinary text. All
/// texts are encoded separately.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ChatTemplate {
    /// Text before the first turn.
    pub begin: String,
    /// Text after each turn.
    pub separator: String,
    /// The roles of turns.
    pub roles: Vec<ChatRole>,
}

/// A role of a chat template.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ChatRole {
    /// Name of the role in the data.
    pub name: String,
    /// Text before the text of a turn.
    pub prefix: String,
    /// Text after the text of a turn.
    pub suffix: String,
    /// True if the text and the suffix of a turn are learned, as for the role of the model.
    pub is_learned: bool,
}

impl ChatTemplate {
    /// The template ChatML of OpenAI's early chat models, Qwen and others, with the roles `system`,
    /// `user`, `tool` and `assistant`. The turns of `assistant` are learned.
    #[must_use]
    pub fn chat_ml() -> Self {
        let role = |name: &str| ChatRole {
            name: name.to_owned(),
            prefix: format!("<|im_start|>{name}\n"),
            suffix: "<|im_end|>".to_owned(),
            is_learned: name == "assistant",
        };
        let roles = ["system", "user", "tool", "assistant"].map(role).to_vec();
        Self { begin: String::new(), separator: "\n".to_owned(), roles }
    }

    /// The template of Llama 3, with the roles `system`, `user`, `ipython` and `assistant`. The
    /// turns of `assistant` are learned.
    #[must_use]
    pub fn llama3() -> Self {
        let role = |name: &str| ChatRole {
            name: name.to_owned(),
            prefix: format!("<|start_header_id|>{name}<|end_header_id|>\n\n"),
            suffix: "<|eot_id|>".to_owned(),
            is_learned: name == "assistant",
        };
        let roles = ["system", "user", "ipython", "assistant"].map(role).to_vec();
        Self { begin: "<|begin_of_text|>".to_owned(), separator: String::new(), roles }
    }

    /// The template of Gemma, which has no system prompt. The roles are `user` and `assistant`,
    /// whose name in the text is `model`. The turns of `assistant` are learned.
    #[must_use]
    pub fn gemma() -> Self {
        let role = |(name, title): (&str, &str)| ChatRole {
            name: name.to_owned(),
            prefix: format!("<start_of_turn>{title}\n"),
            suffix: "<end_of_turn>".to_owned(),
            is_learned: name == "assistant",
        };
        let roles = [("user", "user"), ("assistant", "model")].map(role).to_vec();
        Self { begin: "<bos>".to_owned(), separator: "\n".to_owned(), roles }
    }

    /// The template whose special tokens the tokenizer has: Llama 3, Gemma, or else ChatML.
    #[must_use]
    pub fn of(tokenizer: &dyn Tokenizer) -> Self {
        let has = |name| tokenizer.special_named(name).is_some();
        if has("<|start_header_id|>") {
            Self::llama3()
        } else if has("<start_of_turn>") {
            Self::gemma()
        } else {
            Self::chat_ml()
        }
    }

    /// The prompt for an answer to `turns`, which are pairs of a role and a text. `None` if the
    /// template lacks one of the roles or has no learned role.
    ///
    /// # Errors
    /// [`TokenizerError`] for text that cannot be encoded.
    pub fn prompt(
        &self,
        tokenizer: &dyn Tokenizer,
        turns: &[(&str, &str)],
    ) -> Result<Option<Vec<u32>>, TokenizerError> {
        let mut tokens = tokenizer.encode_markup(&self.begin)?;
        for (name, content) in turns {
            let Some(role) = self.roles.iter().find(|role| role.name == *name) else {
                return Ok(None);
            };
            tokens.extend(tokenizer.encode_markup(&role.prefix)?);
            tokens.extend(tokenizer.encode(content)?);
            tokens.extend(tokenizer.encode_markup(&role.suffix)?);
            tokens.extend(tokenizer.encode_markup(&self.separator)?);
        }
        let Some(answer) = self.roles.iter().find(|role| role.is_learned) else { return Ok(None) };
        tokens.extend(tokenizer.encode_markup(&answer.prefix)?);
        Ok(Some(tokens))
    }
}

/// A turn of a chat in the data.
#[derive(Debug, Deserialize)]
pub(super) struct Turn {
    role: String,
    content: String,
}

/// A chat template whose texts are encoded.
#[derive(Debug, Clone)]
pub(super) struct EncodedTemplate {
    begin: Vec<u32>,
    separator: Vec<u32>,
    roles: Vec<EncodedRole>,
}

#[derive(Debug, Clone)]
struct EncodedRole {
    name: String,
    prefix: Vec<u32>,
    suffix: Vec<u32>,
    is_learned: bool,
}

impl EncodedTemplate {
    pub(super) fn new(
        template: &ChatTemplate,
        tokenizer: &dyn Tokenizer,
    ) -> Result<Self, TokenizerError> {
        let role = |role: &ChatRole| {
            Ok(EncodedRole {
                name: role.name.clone(),
                prefix: tokenizer.encode_markup(&role.prefix)?,
                suffix: tokenizer.encode_markup(&role.suffix)?,
                is_learned: role.is_learned,
            })
        };
        Ok(Self {
            begin: tokenizer.encode_markup(&template.begin)?,
            separator: tokenizer.encode_markup(&template.separator)?,
            roles: template.roles.iter().map(role).collect::<Result<_, _>>()?,
        })
    }

    /// Appends the turns of a chat to a document.
    pub(super) fn push<'t>(
        &self,
        turns: impl IntoIterator<Item = &'t Turn>,
        tokenizer: &dyn Tokenizer,
        document: &mut Document,
    ) -> Result<(), LineError> {
        document.push_context(&self.begin)?;
        for turn in turns {
            let role = self.roles.iter().find(|role| role.name == turn.role);
            let role = role.ok_or_else(|| LineError::UnknownRole { role: turn.role.clone() })?;
            document.push_context(&role.prefix)?;
            let content = tokenizer.encode(&turn.content)?;
            for tokens in [&content, &role.suffix] {
                if role.is_learned {
                    document.push_learned(tokens)?;
                } else {
                    document.push_context(tokens)?;
                }
            }
            document.push_context(&self.separator)?;
        }
        Ok(())
    }
}
