//! The dataset trait, and the slots that a dataset writes samples and batches into.

use crate::draws::Draws;
use crate::element::{Element, ElementType, Field};
use crate::error::{NotBool, SampleError, TooLong};
use crate::layout::Layout;
use crate::plan::EpochPlan;
use crate::rows::Row;
use std::sync::Arc;

/// A finite, indexed set of samples with fixed fields.
///
/// Several threads read a dataset at once. Batches do not depend on the number of workers if
/// `write` depends only on the index and on [`SampleSlot::epoch`], [`SampleSlot::seed`] and
/// [`SampleSlot::draws`].
pub trait Dataset: Send + Sync {
    /// Number of samples, which never changes.
    fn len(&self) -> usize;

    /// The fields of each sample, which never change.
    fn fields(&self) -> &[Field];

    /// Writes sample `index`, which is below `len`, into its place in the batch.
    ///
    /// The place is zeroed first. Bytes that are not written are therefore padding, not data of an
    /// earlier batch.
    ///
    /// # Errors
    /// Any error, which the loader returns together with the index.
    fn write(&self, index: usize, slot: &mut SampleSlot<'_>) -> Result<(), SampleError>;

    /// Changes a batch after all of its samples are written, for operations on several samples such
    /// as [`Mixed`](crate::Mixed). The method is called once per batch, on any thread.
    ///
    /// The default does nothing. A dataset that wraps another dataset passes the call on, or
    /// refuses a dataset that [changes batches](Self::changes_batches).
    fn finish_batch(&self, _batch: &mut BatchSlot<'_>) {}

    /// True if [`finish_batch`](Self::finish_batch) may change a batch.
    fn changes_batches(&self) -> bool {
        false
    }

    /// Calls `visit` with the address and the size of each block of memory that samples are read
    /// from, so that memory shared by several datasets can be counted once.
    ///
    /// Mapped files do not count, because the system can drop their pages. The default visits
    /// nothing. A dataset that wraps another dataset passes the call on.
    fn visit_memory(&self, _visit: &mut dyn FnMut(*const u8, usize)) {}

    /// True if there are no samples.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// Visits the memory of a slice for [`Dataset::visit_memory`].
pub(crate) fn visit_slice<T>(slice: &[T], visit: &mut dyn FnMut(*const u8, usize)) {
    visit(slice.as_ptr().cast(), size_of_val(slice));
}

impl<D: Dataset + ?Sized> Dataset for Arc<D> {
    fn len(&self) -> usize {
        (**self).len()
    }

    fn fields(&self) -> &[Field] {
        (**self).fields()
    }

    fn write(&self, index: usize, slot: &mut SampleSlot<'_>) -> Result<(), SampleError> {
        (**self).write(index, slot)
    }

    fn finish_batch(&self, batch: &mut BatchSlot<'_>) {
        (**self).finish_batch(batch);
    }

    fn changes_batches(&self) -> bool {
        (**self).changes_batches()
    }

    fn visit_memory(&self, visit: &mut dyn FnMut(*const u8, usize)) {
        (**self).visit_memory(visit);
    }
}

/// The place of one sample in a staging buffer: one run of bytes for each field.
#[derive(Debug)]
pub struct SampleSlot<'a> {
    row: Row<'a>,
    plan: &'a EpochPlan,
    /// Index of the sample in the loader's dataset.
    index: usize,
}

impl<'a> SampleSlot<'a> {
    /// The slot of `row` for sample `index`, zeroed.
    pub(crate) fn new(mut row: Row<'a>, plan: &'a EpochPlan, index: usize) -> Self {
        for place_index in 0..row.layout().places().len() {
            row.bytes(place_index).fill(0);
        }
        Self { row, plan, index }
    }

    /// The epoch that the sample is written for.
    #[must_use]
    pub fn epoch(&self) -> u64 {
        self.plan.end.epoch
    }

    /// The seed of the loader.
    #[must_use]
    pub fn seed(&self) -> u64 {
        self.plan.end.seed
    }

    /// Random numbers for this sample in this epoch.
    ///
    /// Each use, such as a step of an augmentation, takes a `purpose` of its own, so that an
    /// additional use does not change the numbers of other uses. The numbers depend on the sample's
    /// index in the loader's dataset: a sample that occurs twice in an epoch gets equal numbers.
    #[must_use]
    pub fn draws(&self, purpose: u64) -> Draws {
        Draws::new(self.seed(), self.epoch(), self.index as u64, purpose)
    }

    /// True if the epoch was dropped and the sample is not needed. A slow `write` may call this
    /// method from time to time and return early, with any contents.
    #[must_use]
    pub fn is_cancelled(&self) -> bool {
        self.plan.is_cancelled()
    }

    /// The bytes of field `field_index`, in the order of [`Dataset::fields`].
    ///
    /// # Panics
    /// If there is no such field.
    pub fn bytes(&mut self, field_index: usize) -> &mut [u8] {
        let field = self.field(field_index);
        if field.ragged.is_some() {
            self.set_len(field_index, field.shape[0]);
        }
        self.row.bytes(field_index)
    }

    /// The elements of field `field_index`, in the order of [`Dataset::fields`].
    ///
    /// # Panics
    /// If there is no such field, if its element type is not `T`, or if `T` is `bool` and a byte
    /// that was written before is neither 0 nor 1.
    pub fn values<T: Element>(&mut self, field_index: usize) -> &mut [T] {
        self.assert_holds::<T>(field_index);
        // A field starts aligned and a sample is whole elements, so the cast fails only if the
        // dataset has written bytes that are no truth values.
        bytemuck::checked::cast_slice_mut(self.bytes(field_index))
    }

    /// Sets the length of the sample in the ragged field `field_index` to `len` items, and returns
    /// its elements.
    ///
    /// A ragged field has length 0 until it is accessed. [`values`](Self::values) and
    /// [`bytes`](Self::bytes) set its length to the maximum.
    ///
    /// # Errors
    /// [`TooLong`] if `len` exceeds the maximum length of the field.
    ///
    /// # Panics
    /// As for [`values`](Self::values), and if the field is not ragged.
    pub fn ragged<T: Element>(
        &mut self,
        field_index: usize,
        len: usize,
    ) -> Result<&mut [T], TooLong> {
        self.assert_holds::<T>(field_index);
        let field = self.field(field_index);
        assert!(field.ragged.is_some(), "field {} is not ragged", field.name);
        if len > field.shape[0] {
            let name = Arc::clone(&field.name);
            return Err(TooLong { field: name, len, len_max: field.shape[0] });
        }
        self.set_len(field_index, len);
        let len_bytes = len * self.row.layout().places()[field_index].item_bytes();
        Ok(bytemuck::checked::cast_slice_mut(&mut self.row.bytes(field_index)[..len_bytes]))
    }

    /// A zeroed slot in a row of another buffer, for the same sample and epoch.
    pub(crate) fn in_row<'b>(&self, row: Row<'b>) -> SampleSlot<'b>
    where
        'a: 'b,
    {
        SampleSlot::new(row, self.plan, self.index)
    }

    /// Copies a sample with equal fields from row `row` of a buffer.
    pub(crate) fn copy_row(&mut self, layout: &Layout, staging: &[u8], row: usize) {
        for (place_index, place) in layout.places().iter().enumerate() {
            self.row.bytes(place_index).copy_from_slice(&staging[place.rows(row..row + 1)]);
        }
    }

    fn field(&self, field_index: usize) -> &'a Field {
        &self.row.layout().places()[field_index].field
    }

    fn assert_holds<T: Element>(&self, field_index: usize) {
        let Field { name, element, .. } = self.field(field_index);
        assert_eq!(*element, T::TYPE, "field {name} holds {element}, not {}", T::TYPE);
    }

    /// Writes the length and the mask of a ragged field.
    fn set_len(&mut self, field_index: usize, len: usize) {
        let place = &self.row.layout().places()[field_index];
        if let Some(lengths) = place.lengths {
            self.row.bytes(lengths).copy_from_slice(&(len as i64).to_ne_bytes());
        }
        if let Some(mask) = place.mask {
            let (there, padding) = self.row.bytes(mask).split_at_mut(len);
            there.fill(1);
            padding.fill(0);
        }
    }

    /// Checks the written bytes.
    ///
    /// # Errors
    /// [`NotBool`] for a byte of a `bool` field that is neither 0 nor 1.
    pub(crate) fn finish(mut self) -> Result<(), NotBool> {
        for (place_index, place) in self.row.layout().places().iter().enumerate() {
            if place.field.element == ElementType::Bool {
                let bytes = self.row.bytes(place_index);
                if let Some(&byte) = bytes.iter().find(|&&byte| byte > 1) {
                    return Err(NotBool { field: Arc::clone(&place.field.name), byte });
                }
            }
        }
        Ok(())
    }
}

/// The samples of a batch, in order, before the batch is handed out. Skipped samples are left out.
#[derive(Debug)]
pub struct BatchSlot<'a> {
    plan: &'a EpochPlan,
    bytes: &'a mut [u8],
    indices: &'a [usize],
    batch: usize,
}

impl<'a> BatchSlot<'a> {
    pub(crate) fn new(
        plan: &'a EpochPlan,
        bytes: &'a mut [u8],
        indices: &'a [usize],
        batch: usize,
    ) -> Self {
        Self { plan, bytes, indices, batch }
    }

    /// Number of samples.
    #[must_use]
    pub fn len(&self) -> usize {
        self.indices.len()
    }

    /// True if there are no samples. An empty batch is never handed out.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.indices.is_empty()
    }

    /// The index of each sample in the dataset.
    #[must_use]
    pub fn sample_indices(&self) -> &[usize] {
        self.indices
    }

    /// Random numbers for this batch in this epoch, as [`SampleSlot::draws`].
    #[must_use]
    pub fn draws(&self, purpose: u64) -> Draws {
        Draws::new(self.plan.end.seed, self.plan.end.epoch, self.batch as u64, purpose)
    }

    /// The elements `[B, ...]` of one field; `field_index` counts in the order of
    /// [`Dataset::fields`]. Samples of a ragged field are filled with zeros to the maximum length.
    ///
    /// # Panics
    /// If there is no such field, or if its element type is not `T`.
    pub fn values<T: Element>(&mut self, field_index: usize) -> &mut [T] {
        let place = &self.plan.layout.places()[field_index];
        let Field { name, element, .. } = &place.field;
        assert_eq!(*element, T::TYPE, "field {name} holds {element}, not {}", T::TYPE);
        // The cast cannot fail: a field starts aligned, and truth values were checked.
        bytemuck::checked::cast_slice_mut(&mut self.bytes[place.rows(0..self.indices.len())])
    }
}
