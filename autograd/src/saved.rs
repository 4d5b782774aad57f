//! A tensor kept for backward, which notices if it is written meanwhile.

use std::panic::Location;

use lowtide_tensor::Tensor;

use crate::{AutogradError, Result};

/// A tensor that a rule needs in backward, with the version it had when it was saved.
#[derive(Debug)]
pub struct Saved {
    tensor: Tensor,
    version: u64,
    op: &'static str,
    site: &'static Location<'static>,
}

impl Saved {
    /// Keeps `tensor` (its storage, not a copy) for the backward of `op`.
    #[track_caller]
    pub fn new(op: &'static str, tensor: &Tensor) -> Self {
        let version = tensor.version();
        Saved { tensor: tensor.clone(), version, op, site: Location::caller() }
    }

    /// The tensor as it was saved.
    ///
    /// # Errors
    /// `Modified` when it was written in place since.
    pub fn unpack(self) -> Result<Tensor> {
        if self.tensor.version() != self.version {
            let written_at = self.tensor.last_write();
            return Err(AutogradError::Modified { op: self.op, saved_at: self.site, written_at });
        }
        Ok(self.tensor)
    }
}
