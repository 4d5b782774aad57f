//! A tensor kept for backward, which notices if it is written meanwhile.

use std::rc::Rc;

use lowtide_tensor::{Shape, Tensor};

use crate::error::{AutogradError, Result};
use crate::pass::Pass;
use crate::recipe::Recipe;
use crate::rule::Needs;
use crate::store::{Parked, Store};
use crate::tape::Site;

/// Keeps tensors for the backward of one operation, as the pass's policy says.
pub struct Saver {
    pass: Pass,
    op: &'static str,
    site: Site,
    /// Whether the operation is recorded, and its rule may run.
    is_needed: bool,
    /// Which inputs may be asked for a gradient.
    needs: Needs,
}

impl Saver {
    /// For an operation of `pass`.
    pub(crate) fn new(
        pass: Pass,
        op: &'static str,
        site: Site,
        (is_needed, needs): (bool, Needs),
    ) -> Self {
        Saver { pass, op, site, is_needed, needs }
    }

    /// Whether the rule may run: what only a rule needs is not worth computing otherwise.
    pub fn is_needed(&self) -> bool {
        self.is_needed
    }

    /// Whether the rule may be asked for the gradient of input `index`: what only that needs is
    /// not worth keeping otherwise.
    pub fn needs(&self, index: usize) -> bool {
        self.is_needed && self.needs.input(index)
    }

    /// Keeps `tensor` (its storage, not a copy), an input or an output of the operation.
    pub fn keep(&self, tensor: &Tensor) -> Saved {
        self.pass.note_use(tensor);
        let parked = self.store().and_then(|store| store.park(tensor));
        match parked {
            Some(parked) => self.parked(tensor, parked),
            None => self.saved(tensor, Content::Here(tensor.clone())),
        }
    }

    /// `tensor` as it is kept at that place.
    pub(crate) fn parked(&self, tensor: &Tensor, parked: Rc<Parked>) -> Saved {
        self.saved(tensor, Content::Parked { parked, shape: *tensor.shape() })
    }

    fn saved(&self, tensor: &Tensor, content: Content) -> Saved {
        Saved { content, version: tensor.version(), op: self.op, site: self.site }
    }

    /// What saved tensors leave their device by; `None` where they stay.
    fn store(&self) -> Option<Rc<Store>> {
        self.pass.0.store.borrow().clone().filter(|_| self.is_needed)
    }

    /// The store, where results are dropped that are cheap to compute again.
    pub(crate) fn cheap_store(&self) -> Option<Rc<Store>> {
        self.store().filter(|store| store.drops_cheap())
    }
}

/// A tensor that a rule needs in backward, with the version it had when it was saved.
pub struct Saved {
    content: Content,
    version: u64,
    op: &'static str,
    site: Site,
}

enum Content {
    Here(Tensor),
    /// Perhaps away meanwhile.
    Parked {
        parked: Rc<Parked>,
        shape: Shape,
    },
}

impl Saved {
    /// The tensor as it was saved.
    ///
    /// # Errors
    /// `Modified` when it was written in place since; `OutOfMemory` where it has to be brought
    /// back to its device, or computed again.
    pub fn unpack(self) -> Result<Tensor> {
        let (tensor, version) = match self.content {
            Content::Here(tensor) => (tensor, None),
            Content::Parked { parked, shape } => {
                let (tensor, version) = parked.bring_back()?;
                (tensor.reshape(shape)?, version)
            }
        };
        let version = version.unwrap_or(self.version);
        if tensor.version() != version {
            let (op, saved_at, written_at) = (self.op, self.site, tensor.last_write());
            return Err(AutogradError::Modified { op, saved_at, written_at });
        }
        Ok(tensor)
    }

    /// [`Saved::unpack`] for one that is asked more than once.
    pub(crate) fn tensor(&self) -> Result<Tensor> {
        let content = match &self.content {
            Content::Here(tensor) => Content::Here(tensor.clone()),
            Content::Parked { parked, shape } => {
                Content::Parked { parked: Rc::clone(parked), shape: *shape }
            }
        };
        Saved { content, ..*self }.unpack()
    }

    /// How the tensor is computed again, if it may be.
    pub(crate) fn recipe(&self) -> Option<&Rc<Recipe>> {
        match &self.content {
            Content::Here(_) => None,
            Content::Parked { parked, .. } => parked.recipe(),
        }
    }
}
