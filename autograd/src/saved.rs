//! A tensor kept for backward, which notices if it is written meanwhile.

use std::rc::Rc;

use lowtide_tensor::{Shape, Tensor};

use crate::error::{AutogradError, Result};
use crate::offload::Parked;
use crate::pass::Pass;
use crate::tape::Site;

/// Keeps tensors for the backward of one operation, as the pass's policy says.
pub struct Saver {
    pass: Pass,
    op: &'static str,
    site: Site,
    /// Whether the operation is recorded, and its rule may run.
    is_needed: bool,
}

impl Saver {
    /// For an operation of `pass`.
    pub(crate) fn new(pass: Pass, op: &'static str, site: Site, is_needed: bool) -> Self {
        Saver { pass, op, site, is_needed }
    }

    /// Whether the rule may run: what only a rule needs is not worth computing otherwise.
    pub fn is_needed(&self) -> bool {
        self.is_needed
    }

    /// Keeps `tensor` (its storage, not a copy), an input or an output of the operation.
    pub fn keep(&self, tensor: &Tensor) -> Saved {
        self.pass.note_use(tensor);
        // Where the tensors go instead of staying; absent where they stay.
        let store = self.pass.0.store.borrow();
        let store = store.as_ref().filter(|_| self.is_needed);
        let parked = store.and_then(|store| store.park(tensor));
        let content = match parked {
            Some(parked) => Content::Parked { parked, shape: *tensor.shape() },
            None => Content::Here(tensor.clone()),
        };
        Saved { content, version: tensor.version(), op: self.op, site: self.site }
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
    /// Perhaps moved to the host meanwhile.
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
    /// back to its device.
    pub fn unpack(self) -> Result<Tensor> {
        let (tensor, version) = match self.content {
            Content::Here(tensor) => (tensor, self.version),
            Content::Parked { parked, shape } => {
                let (tensor, version) = parked.bring_back()?;
                (tensor.reshape(shape)?, version.unwrap_or(self.version))
            }
        };
        if tensor.version() != version {
            let (op, saved_at, written_at) = (self.op, self.site, tensor.last_write());
            return Err(AutogradError::Modified { op, saved_at, written_at });
        }
        Ok(tensor)
    }
}
