//! Masks of pruned weights: a byte for each element.

use std::collections::BTreeMap;

use lowtide_autograd::LeafId;
use lowtide_tensor::Tensor;

use crate::error::Result;
use crate::module::{Parameters, visit_once};

/// The masks of a model: one for each parameter that has pruned elements. A mask is a tensor of
/// truth values, true where an element is pruned. Each element takes a byte, a quarter of an
/// element of f32. Clones share the masks, which nothing writes.
#[derive(Clone, Debug, Default)]
pub struct Masks(pub(crate) BTreeMap<LeafId, Tensor>);

impl Masks {
    /// The mask of a parameter, if it has one.
    pub fn get(&self, parameter: LeafId) -> Option<&Tensor> {
        self.0.get(&parameter)
    }

    /// Number of parameters that have a mask.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// True if nothing is pruned.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Bytes of the masks.
    pub fn size_bytes(&self) -> usize {
        self.0.values().map(Tensor::size_bytes).sum()
    }

    /// These masks and the masks of `other`. A parameter with two masks takes the mask of `other`.
    #[must_use]
    pub fn with(mut self, other: Masks) -> Masks {
        self.0.extend(other.0);
        self
    }

    /// Sets the pruned elements to zero, in place. Allocates nothing.
    ///
    /// # Errors
    /// `Frozen`, `ReadOnly`: then nothing is written.
    pub fn apply(&self, model: &mut dyn Parameters) -> Result<()> {
        let mut pruned = Vec::new();
        visit_once(model, &mut |_, parameter| {
            if let Some(mask) = self.get(parameter.id()) {
                pruned.push((parameter.value().clone(), mask.clone()));
            }
        });
        pruned.iter().try_for_each(|(value, _)| value.check_writable("prune"))?;
        for (mut value, mask) in pruned {
            value.masked_fill_(&mask, 0.0)?;
        }
        Ok(())
    }
}
