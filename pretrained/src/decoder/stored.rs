//! Differences between the files of a family and a decoder in memory.

use super::model::Decoder;
use super::shape::Family;
use crate::weights::layout::{Layout, Stored};

impl Stored for Decoder {
    fn layout(&self, name: &str) -> Layout {
        let is_matrix_of_layer = name.contains(".h.") && name.ends_with(".weight");
        let is_norm = name.contains(".ln_");
        match self.shape.family {
            Family::Gpt2 if is_matrix_of_layer && !is_norm => Layout::Transposed,
            _ => Layout::Same,
        }
    }

    fn base(&self) -> &'static str {
        self.shape.family.names().base
    }

    /// True for constants, and for the output layer if it is the table of tokens.
    fn is_unused(&self, name: &str) -> bool {
        let (names, layer) = (self.shape.family.names(), name.strip_suffix(".weight"));
        names.unused.iter().any(|end| name.ends_with(end))
            || (self.shape.is_tied && (layer == Some(names.head) || layer == Some("lm_head")))
    }
}
