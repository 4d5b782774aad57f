//! Steps in which several models are trained in turn.

use std::collections::BTreeSet;
use std::rc::Rc;

use crate::attempt::LeafId;

/// One of the turns of a training step: the model that is trained in it. All other leaves are
/// constants in its passes, so that nothing is computed or saved for gradients of theirs.
#[derive(Clone, Debug)]
pub struct Turn {
    model: Rc<str>,
    leaves: Rc<BTreeSet<LeafId>>,
}

impl Turn {
    /// The turn of `model`, whose leaves these are.
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
