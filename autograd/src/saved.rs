//! Tensors kept for backward. Each notices a write between saving and use.

use std::rc::Rc;

use lowtide_tensor::{Shape, Tensor};

use crate::error::{AutogradError, Result, Site};
use crate::pass::Pass;
use crate::recipe::Recipe;
use crate::rule::Needs;
use crate::store::{Store, StoredTensor};

/// Keeps tensors for the rule of one operation, in the place that the policy of the pass chooses.
pub struct Saver {
    pass: Pass,
    op: &'static str,
    site: Site,
    /// The inputs that may need a gradient; `None` if the operation is not recorded.
    needs: Option<Needs>,
}

impl Saver {
    /// A saver for an operation of `pass`.
    pub(crate) fn new(pass: Pass, op: &'static str, site: Site, needs: Option<Needs>) -> Self {
        Saver { pass, op, site, needs }
    }

    /// True if the rule may run. If not, tensors that only the rule reads need not be computed.
    pub fn is_needed(&self) -> bool {
        self.needs.is_some()
    }

    /// True if the rule may have to compute the gradient of input `index`. If not, tensors that
    /// only this gradient reads need not be kept.
    pub fn needs(&self, index: usize) -> bool {
        self.needs.is_some_and(|needs| needs.input(index))
    }

    /// Keeps `tensor`, an input or an output of the operation. The storage is shared, not copied.
    pub fn keep(&self, tensor: &Tensor) -> Saved {
        self.pass.note_use(tensor);
        let stored = self.store().and_then(|store| store.track(tensor));
        match stored {
            Some(stored) => self.stored(tensor, stored),
            None => self.saved(tensor, Content::Here(tensor.clone())),
        }
    }

    /// A saved tensor that shares `stored`, which holds the elements of `tensor`.
    pub(crate) fn stored(&self, tensor: &Tensor, stored: Rc<StoredTensor>) -> Saved {
        self.saved(tensor, Content::Stored { stored, shape: *tensor.shape() })
    }

    fn saved(&self, tensor: &Tensor, content: Content) -> Saved {
        Saved { content, version: tensor.version(), op: self.op, site: self.site }
    }

    /// The store that may evict saved tensors; `None` if they stay on the device.
    fn store(&self) -> Option<Rc<Store>> {
        self.pass.0.store.borrow().clone().filter(|_| self.is_needed())
    }

    /// The store, if it drops results that are cheap to recompute.
    pub(crate) fn cheap_store(&self) -> Option<Rc<Store>> {
        self.store().filter(|store| store.drops_cheap())
    }
}

/// A tensor that a rule reads in backward, with its version at the time of saving.
pub struct Saved {
    content: Content,
    version: u64,
    op: &'static str,
    site: Site,
}

enum Content {
    Here(Tensor),
    /// A tensor that may have left its device.
    Stored {
        stored: Rc<StoredTensor>,
        shape: Shape,
    },
}

impl Saved {
    /// The tensor as it was saved.
    ///
    /// # Errors
    /// `Modified` if the tensor was written in place since. `OutOfMemory` if the tensor has to be
    /// brought back to its device or recomputed.
    pub fn unpack(self) -> Result<Tensor> {
        let (tensor, version) = match self.content {
            Content::Here(tensor) => (tensor, None),
            Content::Stored { stored, shape } => {
                let (tensor, version) = stored.take()?;
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

    /// [`Saved::unpack`] that leaves the saved tensor in place for further calls.
    pub(crate) fn tensor(&self) -> Result<Tensor> {
        let content = match &self.content {
            Content::Here(tensor) => Content::Here(tensor.clone()),
            Content::Stored { stored, shape } => {
                Content::Stored { stored: Rc::clone(stored), shape: *shape }
            }
        };
        Saved { content, ..*self }.unpack()
    }

    /// The recipe that recomputes the tensor, if it has one.
    pub(crate) fn recipe(&self) -> Option<&Rc<Recipe>> {
        match &self.content {
            Content::Here(_) => None,
            Content::Stored { stored, .. } => stored.recipe(),
        }
    }
}
