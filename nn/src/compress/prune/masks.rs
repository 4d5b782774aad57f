//! Which weights are pruned: a byte for each element.

use std::collections::BTreeMap;

use lowtide_autograd::LeafId;
use lowtide_tensor::Tensor;

use crate::error::Result;
use crate::module::{Parameters, visit_once};

/// Which elements of which parameters are pruned. Clones share the masks, which nothing writes.
/// They are of truth values, true where an element is pruned, a byte for each: a quarter of a
/// parameter of f32. Parameters of which nothing is pruned have none.
#[derive(Clone, Debug, Default)]
pub struct Masks(pub(crate) BTreeMap<LeafId, Tensor>);

impl Masks {
    /// The mask of a parameter, if it has one.
    pub fn get(&self, parameter: LeafId) -> Option<&Tensor> {
        self.0.get(&parameter)
    }

    /// Parameters that have a mask.
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

    /// These masks and those of `other`, which count for parameters that have both.
    #[must_use]
    pub fn with(mut self, other: Masks) -> Masks {
        self.0.extend(other.0);
        self
    }

    /// Sets what is pruned to zero, in place, and allocates nothing.
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
