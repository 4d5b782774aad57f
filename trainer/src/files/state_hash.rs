//! A hash of a run's state, to compare runs bit for bit.

use lowtide_tensor::Tensor;
use xxhash_rust::xxh3::Xxh3;

use crate::error::Result;

/// XXH3 (Yann Collet) over names, shapes and bytes.
#[derive(Default)]
pub(crate) struct StateHasher(Xxh3);

impl StateHasher {
    /// Adds a tensor: its name, shape, type and bytes.
    pub(crate) fn add(&mut self, name: &str, tensor: &Tensor) -> Result<()> {
        self.0.update(name.as_bytes());
        self.0.update(tensor.dtype().to_string().as_bytes());
        tensor.shape().iter().for_each(|dim| self.0.update(&(*dim as u64).to_le_bytes()));
        self.0.update(&tensor.to_bytes()?);
        Ok(())
    }

    /// The hash of everything added, and of `numbers`.
    pub(crate) fn finish(mut self, numbers: &[u64]) -> u64 {
        numbers.iter().for_each(|number| self.0.update(&number.to_le_bytes()));
        self.0.digest()
    }
}
