//! Outputs of a classifier, and their targets.

use lowtide_nn::{CrossEntropyOptions, Logits, Loss, soft_cross_entropy};
use lowtide_tensor::Tensor;

use crate::error::Result;

/// The logits of a part of a batch, and their targets.
#[derive(Clone)]
pub struct Outputs {
    /// `[N, C]`, or `[B, T, C]` for sequences.
    pub logits: Logits,
    /// The target classes, `[N]` or `[B, T]` of i64; -100 does not count.
    pub labels: Tensor,
    /// The share of each class, `[N, C]`, which replaces the labels if samples were mixed.
    pub shares: Option<Tensor>,
}

impl Outputs {
    /// The cross-entropy of logits and targets, summed over the targets that count.
    ///
    /// # Errors
    /// Errors of [`Logits::cross_entropy`] and [`soft_cross_entropy`].
    pub fn loss(self) -> Result<Loss> {
        Ok(match self.shares {
            Some(shares) => {
                let options = CrossEntropyOptions::default();
                soft_cross_entropy(self.logits.whole()?, &shares, options)?
            }
            None => self.logits.cross_entropy(&self.labels)?,
        })
    }
}
