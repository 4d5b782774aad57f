//! A batch: named fields in a staging buffer, read as a whole or in slices.

use crate::element::{Collate, Element, ElementType};
use crate::error::DataError;
use crate::job::{Built, Fault};
use crate::layout::Place;
use crate::plan::EpochPlan;
use crate::staging::Staging;
use crate::state::LoaderState;
use lowtide_allocator::PinnedBuffer;
use std::ops::Range;
use std::sync::Arc;

/// The samples of one training step, in staging memory of the loader.
///
/// Dropping a batch returns its memory to the loader. A loader without a free buffer cannot build
/// the next batch.
#[derive(Debug)]
pub struct Batch {
    staging: Staging,
    plan: Arc<EpochPlan>,
    index: usize,
    indices: Vec<usize>,
    skipped: Vec<SkippedSample>,
}

/// A sample that is missing in a [`Batch`] because it could not be read.
#[derive(Debug)]
pub struct SkippedSample {
    /// Index of the sample in the dataset.
    pub index: usize,
    /// The error of the sample.
    pub error: DataError,
}

impl Batch {
    pub(crate) fn new(built: Built, plan: Arc<EpochPlan>, index: usize) -> Self {
        let Built { staging, indices, faults, .. } = built;
        let skipped = |Fault { index, error, .. }| SkippedSample { index, error };
        let skipped = faults.into_iter().map(skipped).collect();
        Self { staging, plan, index, indices, skipped }
    }

    /// Number of samples.
    #[must_use]
    pub fn len(&self) -> usize {
        self.sample_indices().len()
    }

    /// True if there are no samples. A loader never hands out an empty batch.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Index of the batch in its epoch.
    #[must_use]
    pub fn index(&self) -> usize {
        self.index
    }

    /// The index of each sample in the dataset.
    #[must_use]
    pub fn sample_indices(&self) -> &[usize] {
        &self.indices
    }

    /// The samples that are missing because they could not be read, in the order of the epoch.
    /// Empty unless [`OnBadSample::Skip`](crate::OnBadSample::Skip) is set.
    #[must_use]
    pub fn skipped(&self) -> &[SkippedSample] {
        &self.skipped
    }

    /// The state of the loader after this batch, to be saved once the step is done. For a batch of
    /// a stream save [`StreamLoader::state`](crate::StreamLoader::state) instead.
    #[must_use]
    pub fn state_after(&self) -> LoaderState {
        LoaderState { batch: self.index + 1, ..self.plan.end }
    }

    /// The field called `name`, of shape `[B, ...]`, with bytes aligned to 64.
    #[must_use]
    pub fn field(&self, name: &str) -> Option<FieldView<'_>> {
        self.view().field(name)
    }

    /// All fields in the order of the dataset, then the lengths and masks of ragged fields.
    pub fn fields(&self) -> impl Iterator<Item = FieldView<'_>> {
        self.view().fields()
    }

    /// A view of all samples.
    #[must_use]
    pub fn view(&self) -> BatchView<'_> {
        BatchView { batch: self, start: 0, end: self.len() }
    }

    /// A view of the samples `range`: a micro-batch.
    ///
    /// # Panics
    /// If the range is not within the batch.
    #[must_use]
    pub fn slice(&self, range: Range<usize>) -> BatchView<'_> {
        self.view().slice(range)
    }
}

/// A view of consecutive samples of a [`Batch`].
#[derive(Debug, Clone, Copy)]
pub struct BatchView<'a> {
    batch: &'a Batch,
    start: usize,
    end: usize,
}

impl<'a> BatchView<'a> {
    /// Number of samples.
    #[must_use]
    pub fn len(&self) -> usize {
        self.end - self.start
    }

    /// True if there are no samples.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The index of each sample in the dataset.
    #[must_use]
    pub fn sample_indices(&self) -> &'a [usize] {
        &self.batch.sample_indices()[self.start..self.end]
    }

    /// The field called `name`. The bytes of the field are aligned to the size of an element, and
    /// to 64 if the view begins at the first sample of the batch.
    #[must_use]
    pub fn field(&self, name: &str) -> Option<FieldView<'a>> {
        self.fields().find(|field| field.name() == name)
    }

    /// All fields in the order of the dataset, then the lengths and masks of ragged fields.
    pub fn fields(&self) -> impl Iterator<Item = FieldView<'a>> + use<'a> {
        let Self { batch, start, end } = *self;
        let (layout, staging) = (&batch.plan.layout, batch.staging.bytes());
        layout.places().iter().map(move |place| {
            let range = layout.range(place, staging, start..end);
            FieldView {
                place,
                len: end - start,
                lengths: layout.lengths(place, staging, start..end),
                locked: batch.staging.page_locked().map(|block| (block, range.start)),
                bytes: &staging[range],
            }
        })
    }

    /// A view of the samples `range` of this view.
    ///
    /// # Panics
    /// If the range is not within the view.
    #[must_use]
    pub fn slice(&self, range: Range<usize>) -> Self {
        let Range { start, end } = range;
        assert!(start <= end && end <= self.len(), "{start}..{end} of {} samples", self.len());
        Self { batch: self.batch, start: self.start + start, end: self.start + end }
    }
}

/// One field of a batch or of a micro-batch: contiguous bytes with an element type and a shape.
#[derive(Debug, Clone, Copy)]
pub struct FieldView<'a> {
    place: &'a Place,
    len: usize,
    lengths: Option<&'a [i64]>,
    bytes: &'a [u8],
    locked: Option<(&'a PinnedBuffer, usize)>,
}

impl<'a> FieldView<'a> {
    /// Name of the field in the dataset.
    #[must_use]
    pub fn name(&self) -> &'a str {
        &self.place.field.name
    }

    /// Type of the elements.
    #[must_use]
    pub fn element(&self) -> ElementType {
        self.place.field.element
    }

    /// Shape of one sample without the batch dimension; for a ragged field, the shape of the
    /// longest sample that the field allows.
    #[must_use]
    pub fn sample_shape(&self) -> &'a [usize] {
        &self.place.field.shape
    }

    /// Shape with the batch dimension first: `[B, ...]`, or `[sum of lengths, ...]` for a packed
    /// field.
    #[must_use]
    pub fn shape(&self) -> Vec<usize> {
        match (self.place.field.ragged, self.lengths) {
            (Some(Collate::Packed), Some(lengths)) => {
                [&[lengths.iter().sum::<i64>() as usize], &self.sample_shape()[1..]].concat()
            }
            _ => [&[self.len], self.sample_shape()].concat(),
        }
    }

    /// The lengths `[B]` of the samples of a ragged field; `None` for other fields.
    #[must_use]
    pub fn lengths(&self) -> Option<&'a [i64]> {
        self.lengths
    }

    /// The offsets `[B + 1]` of the samples of a packed field, in items: sample i is the items
    /// `offsets[i]..offsets[i + 1]`. `None` for other fields.
    #[must_use]
    pub fn offsets(&self) -> Option<Vec<usize>> {
        let lengths = self.lengths.filter(|_| self.place.field.ragged == Some(Collate::Packed))?;
        let mut end = 0;
        let ends = lengths.iter().map(|&len| {
            end += len as usize;
            end
        });
        Some(std::iter::once(0).chain(ends).collect())
    }

    /// The bytes of all samples, in the machine's byte order.
    #[must_use]
    pub fn bytes(&self) -> &'a [u8] {
        self.bytes
    }

    /// The page-locked block that contains the bytes, and their range in the block. `None` unless
    /// the loader has [page-locked memory](crate::Loader::lock_pages).
    #[must_use]
    pub fn page_locked(&self) -> Option<(&'a PinnedBuffer, Range<usize>)> {
        self.locked.map(|(block, start)| (block, start..start + self.bytes.len()))
    }

    /// The elements of all samples, or `None` if their type is not `T`.
    #[must_use]
    pub fn values<T: Element>(&self) -> Option<&'a [T]> {
        // The cast cannot fail: a field starts aligned, and the loader has checked truth values.
        (self.element() == T::TYPE).then(|| bytemuck::checked::cast_slice(self.bytes))
    }
}
