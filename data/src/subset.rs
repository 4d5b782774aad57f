//! A subset of a dataset.

use crate::dataset::{BatchSlot, Dataset, SampleSlot, visit_slice};
use crate::element::Field;
use crate::error::{IndexOutOfRange, SampleError};
use std::sync::Arc;

/// The samples of a dataset with the given indices, in the order of the indices.
#[derive(Debug, Clone)]
pub struct Subset<D> {
    dataset: D,
    indices: Arc<[usize]>,
}

impl<D: Dataset> Subset<D> {
    /// The subset of `dataset` with the given indices. An index may occur twice.
    ///
    /// # Errors
    /// The first index that the dataset does not have.
    pub fn new(dataset: D, indices: impl Into<Arc<[usize]>>) -> Result<Self, IndexOutOfRange> {
        let (indices, len) = (indices.into(), dataset.len());
        match indices.iter().find(|&&index| index >= len) {
            Some(&index) => Err(IndexOutOfRange { index, len }),
            None => Ok(Self { dataset, indices }),
        }
    }

    /// The whole dataset.
    #[must_use]
    pub fn dataset(&self) -> &D {
        &self.dataset
    }

    /// The index of each sample in the whole dataset.
    #[must_use]
    pub fn indices(&self) -> &[usize] {
        &self.indices
    }
}

impl<D: Dataset> Dataset for Subset<D> {
    fn len(&self) -> usize {
        self.indices.len()
    }

    fn fields(&self) -> &[Field] {
        self.dataset.fields()
    }

    fn write(&self, index: usize, slot: &mut SampleSlot<'_>) -> Result<(), SampleError> {
        self.dataset.write(self.indices[index], slot)
    }

    fn finish_batch(&self, batch: &mut BatchSlot<'_>) {
        self.dataset.finish_batch(batch);
    }

    fn changes_batches(&self) -> bool {
        self.dataset.changes_batches()
    }

    fn visit_memory(&self, visit: &mut dyn FnMut(*const u8, usize)) {
        self.dataset.visit_memory(visit);
        visit_slice(&self.indices, visit);
    }
}
