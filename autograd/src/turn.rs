//! Alternating updates: steps that train several models one after the other.

use std::collections::BTreeSet;
use std::rc::Rc;

use crate::attempt::LeafId;

/// The part of a step that trains one of several models, such as the generator of a GAN. The leaves
/// of the other models are constants in its passes: nothing is computed or saved for their
/// gradients.
#[derive(Clone, Debug)]
pub struct Turn {
    model: Rc<str>,
    leaves: Rc<BTreeSet<LeafId>>,
}

impl Turn {
    /// The turn of `model`, which owns `leaves`.
    pub fn new(model: &str, leaves: impl IntoIterator<Item = LeafId>) -> Self {
        Turn { model: model.into(), leaves: Rc::new(leaves.into_iter().collect()) }
    }

    /// The model's name.
    pub fn model(&self) -> &str {
        &self.model
    }

    pub(crate) fn has(&self, leaf: LeafId) -> bool {
        self.leaves.contains(&leaf)
    }
}
