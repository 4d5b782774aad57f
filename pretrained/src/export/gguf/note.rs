//! Notes for the user of a GGUF file.

use std::fmt::{self, Display};

/// Something that a file does not say as the model does, or at all.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum GgufNote {
    /// The model's folder has no `tokenizer.json`: the file has no vocabulary.
    NoTokenizer,
    /// How the tokenizer cuts texts before it merges is none of the ways that llama.cpp knows by
    /// name; its default may give other tokens.
    UnknownPreTokenizer,
    /// Tokens of the tokenizer without a row in the table, which are left out.
    TokensOutside {
        /// The number of such tokens.
        count: usize,
    },
    /// Layers have windows, which the architecture has not. Up to `window` positions they make no
    /// difference, and the file says that the model was made for no more.
    Window {
        /// Positions of the smallest window.
        window: usize,
        /// Positions that the model was made for.
        context: usize,
    },
    /// Tensors whose rows are no whole blocks, which are f16 instead.
    NoBlocks {
        /// The number of such tensors.
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
