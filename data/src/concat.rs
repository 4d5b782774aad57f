//! Several datasets as one.

use crate::dataset::{Dataset, SampleError, SampleSlot};
use crate::element::Field;
use std::fmt;
use std::sync::Arc;

/// The samples of several datasets with the same fields, one dataset after the other.
pub struct Concat {
    datasets: Vec<Arc<dyn Dataset>>,
    /// The index that follows the last sample of each dataset.
    ends: Vec<usize>,
    fields: Vec<Field>,
}

impl Concat {
    /// The samples of `datasets`; no samples and no fields, if there are none.
    ///
    /// # Errors
    /// [`ConcatError`] for a dataset that has other fields than the first one, and for more samples
    /// than an index can count.
    pub fn new(datasets: Vec<Arc<dyn Dataset>>) -> Result<Self, ConcatError> {
        let fields = datasets.first().map_or(&[][..], |first| first.fields()).to_vec();
        let mut ends = Vec::with_capacity(datasets.len());
        let mut end = 0_usize;
        for (at, dataset) in datasets.iter().enumerate() {
            if dataset.fields() != fields {
                let (first, other) = (fields, dataset.fields().to_vec());
                return Err(ConcatError::Fields { dataset: at, first, other });
            }
            if dataset.changes_batches() {
                return Err(ConcatError::ChangesBatches { dataset: at });
            }
            end = end.checked_add(dataset.len()).ok_or(ConcatError::TooManySamples)?;
            ends.push(end);
        }
        Ok(Self { datasets, ends, fields })
    }

    /// The dataset of sample `index`, and the sample's index there.
    ///
    /// # Panics
    /// If there is no such sample.
    #[must_use]
    pub fn place(&self, index: usize) -> (usize, usize) {
        let at = self.ends.partition_point(|&end| end <= index);
        assert!(at < self.ends.len(), "sample {index} of {}", self.len());
        let start = at.checked_sub(1).map_or(0, |before| self.ends[before]);
        (at, index - start)
    }
}

impl Dataset for Concat {
    fn len(&self) -> usize {
        self.ends.last().copied().unwrap_or(0)
    }

    fn fields(&self) -> &[Field] {
        &self.fields
    }

    fn write(&self, index: usize, slot: &mut SampleSlot<'_>) -> Result<(), SampleError> {
        let (at, index) = self.place(index);
        self.datasets[at].write(index, slot)
    }

    fn visit_memory(&self, visit: &mut dyn FnMut(*const u8, usize)) {
        self.datasets.iter().for_each(|dataset| dataset.visit_memory(visit));
    }
}

impl fmt::Debug for Concat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Concat").field("ends", &self.ends).finish_non_exhaustive()
    }
}

/// Datasets that cannot be one.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ConcatError {
    /// A dataset has other fields than the first one.
    #[error("dataset {dataset} has the fields {other:?}, the first one has {first:?}")]
    Fields {
        /// Place of the dataset.
        dataset: usize,
        /// Fields of the first dataset.
        first: Vec<Field>,
        /// Fields of this one.
        other: Vec<Field>,
    },
    /// A dataset changes whole batches, such as [`Mixed`](crate::Mixed): mix what is joined.
    #[error("dataset {dataset} changes whole batches: mix what is joined, not the reverse")]
    ChangesBatches {
        /// Place of the dataset.
        dataset: usize,
    },
    /// An index cannot count all samples.
    #[error("the datasets have more samples than an index can count")]
    TooManySamples,
}
