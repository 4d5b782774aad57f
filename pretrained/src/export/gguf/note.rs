//! Notes for the user of a GGUF file.

use std::fmt::{self, Display};

/// A difference between a file and its model, or a part of the model that the file lacks.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum GgufNote {
    /// The model's folder has no `tokenizer.json`, so the file has no vocabulary.
    NoTokenizer,
    /// llama.cpp has no name for the split of texts by the tokenizer before merging. The default of
    /// llama.cpp may give other tokens.
    UnknownPreTokenizer,
    /// Tokens of the tokenizer without a row in the table are left out.
    TokensOutside {
        /// The number of these tokens.
        count: usize,
    },
    /// Layers have windows, which llama.cpp's architecture lacks. Up to `window` positions a window
    /// makes no difference, and the file states `window` as the context length.
    Window {
        /// Number of positions of the smallest window.
        window: usize,
        /// Number of positions that the model was made for.
        context: usize,
    },
    /// Tensors whose rows are not whole blocks are f16.
    NoBlocks {
        /// The number of these tensors.
        count: usize,
    },
}

impl Display for GgufNote {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            GgufNote::NoTokenizer => {
                write!(f, "there is no tokenizer.json: no vocabulary is in it")
            }
            GgufNote::UnknownPreTokenizer => {
                write!(
                    f,
                    "the pre-tokenizer has no name in GGUF: \"default\" may cut texts otherwise"
                )
            }
            GgufNote::TokensOutside { count } => {
                write!(f, "{count} tokens without a row in the table are left out")
            }
            GgufNote::Window { window, context } => {
                write!(f, "GGUF has no windows for it: its context is {window}, not {context}")
            }
            GgufNote::NoBlocks { count } => {
                write!(f, "{count} tensors are f16: their rows are no whole blocks of 32")
            }
        }
    }
}
