//! The concatenation of datasets.

use crate::dataset::{Dataset, SampleSlot};
use crate::element::Field;
use crate::error::SampleError;
use std::fmt;
use std::sync::Arc;

/// The concatenation of datasets with equal fields.
pub struct Concat {
    datasets: Vec<Arc<dyn Dataset>>,
    /// For each dataset, the index after its last sample.
    ends: Vec<usize>,
    fields: Vec<Field>,
}

impl Concat {
    /// The concatenation of `datasets`; without datasets, no samples and no fields.
    ///
    /// # Errors
    /// [`ConcatError`] for a dataset whose fields differ from the fields of the first dataset, for
    /// a dataset that changes batches, and for too many samples.
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

    /// The number of the dataset that contains sample `index`, and the index of the sample in this
    /// dataset.
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

/// The reason why datasets cannot be concatenated.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ConcatError {
    /// A dataset has other fields than the first dataset.
    #[error("dataset {dataset} has the fields {other:?}, the first one has {first:?}")]
    Fields {
        /// Index of the dataset.
        dataset: usize,
        /// Fields of the first dataset.
        first: Vec<Field>,
        /// Fields of this dataset.
        other: Vec<Field>,
    },
    /// A dataset changes whole batches, as [`Mixed`](crate::Mixed) does. Concatenate first, then
    /// mix.
    #[error("dataset {dataset} changes whole batches: mix what is joined, not the reverse")]
    ChangesBatches {
        /// Index of the dataset.
        dataset: usize,
    },
    /// The number of samples overflows.
    #[error("the datasets have more samples than an index can count")]
    TooManySamples,
}
