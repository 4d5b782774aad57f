//! The dataset trait and the slot that a sample is written into.

use crate::draws::Draws;
use crate::element::{Element, ElementType, Field};
use crate::epoch::EpochPlan;
use crate::error::{NotBool, TooLong};
use crate::layout::Layout;
use crate::rows::Row;
use std::error::Error;
use std::sync::Arc;

/// A dataset's own error; the loader adds the sample's index.
pub type SampleError = Box<dyn Error + Send + Sync>;

/// A finite, indexed set of samples of one fixed shape.
///
/// It is read from several threads at once. A batch is the same at any number of workers as long
/// as `write` depends on nothing but the index and what the slot says: [`SampleSlot::epoch`],
/// [`SampleSlot::seed`] and [`SampleSlot::draws`].
pub trait Dataset: Send + Sync {
    /// Number of samples; never changes.
    fn len(&self) -> usize;

    /// What each sample consists of; never changes.
    fn fields(&self) -> &[Field];

    /// Writes sample `index`, which is below `len`, into its place in the batch.
    ///
    /// The place arrives zeroed, so what is not written is padding, not the leftovers of an
    /// earlier batch.
    ///
    /// # Errors
    /// Any error: the loader hands it to the consumer together with the index.
    fn write(&self, index: usize, slot: &mut SampleSlot<'_>) -> Result<(), SampleError>;

    /// Changes a batch once all of its samples are written: for what needs more than one of them,
    /// as [`Mixed`](crate::Mixed) does. Does nothing unless a dataset says otherwise; a dataset
    /// that wraps another passes the call on, or refuses one that
    /// [changes batches](Self::changes_batches). It is called once per batch, on any thread.
    fn finish_batch(&self, _batch: &mut BatchSlot<'_>) {}

    /// Whether [`finish_batch`](Self::finish_batch) does anything.
    fn changes_batches(&self) -> bool {
        false
    }

    /// Tells the address and the bytes of each part of memory that samples are read from, so that
    /// what several datasets share is counted once. Mapped files, of which the system keeps what
    /// fits, are no such part. Tells nothing unless a dataset says otherwise; a dataset that wraps
    /// another passes the call on.
    fn visit_memory(&self, _visit: &mut dyn FnMut(*const u8, usize)) {}

    /// Whether there is no sample at all.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// Tells of a slice, for [`Dataset::visit_memory`].
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

/// The place of one sample inside a staging buffer: one run of bytes per field.
#[derive(Debug)]
pub struct SampleSlot<'a> {
    row: Row<'a>,
    plan: &'a EpochPlan,
    /// The sample's index, as the loader counts.
    index: usize,
}

impl<'a> SampleSlot<'a> {
    /// The zeroed slot of `row`, for sample `index`.
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

    /// Random numbers for this sample in this epoch. Different uses, such as the steps of an
    /// augmentation, take a `purpose` each: adding one does not change the numbers of another.
    ///
    /// The sample is known by its index in the loader's dataset. One that the order repeats within
    /// an epoch gets the same numbers each time.
    #[must_use]
    pub fn draws(&self, purpose: u64) -> Draws {
        Draws::new(self.seed(), self.epoch(), self.index as u64, purpose)
    }

    /// Whether the epoch was dropped, so that the sample will not be read: a slow `write` may ask
    /// now and then, and return early with anything.
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
    /// If there is no such field, if its elements are not of type `T`, or if they are to be truth
    /// values and a byte that was written before is neither 0 nor 1.
    pub fn values<T: Element>(&mut self, field_index: usize) -> &mut [T] {
        self.assert_holds::<T>(field_index);
        // A field starts aligned and a sample is whole elements, so the cast fails only for bytes
        // that the dataset has written and that are no truth values.
        bytemuck::checked::cast_slice_mut(self.bytes(field_index))
    }

    /// The elements of a sample of `len` items in the ragged field `field_index`; this is its
    /// length then. A ragged field that is not asked for has the length 0, and one that is asked
    /// for by [`values`](Self::values) or [`bytes`](Self::bytes) the greatest.
    ///
    /// # Errors
    /// [`TooLong`] if `len` is more than the field's greatest length.
    ///
    /// # Panics
    /// As [`values`](Self::values), and if the field is not ragged.
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

    /// The zeroed slot of a row of another buffer, for the same epoch.
    pub(crate) fn beside<'b>(&self, row: Row<'b>) -> SampleSlot<'b>
    where
        'a: 'b,
    {
        SampleSlot::new(row, self.plan, self.index)
    }

    /// Copies a sample with the same fields from row `row` of a buffer.
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

    /// Looks at what was written.
    ///
    /// # Errors
    /// [`NotBool`] for a byte of a field of truth values that is none.
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

/// The samples of a batch before it is handed out: those that were written, in order.
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

    /// Whether there are no samples; no such batch is handed out.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.indices.is_empty()
    }

    /// Index in the dataset of each sample.
    #[must_use]
    pub fn sample_indices(&self) -> &[usize] {
        self.indices
    }

    /// Random numbers for this batch in this epoch; see [`SampleSlot::draws`].
    #[must_use]
    pub fn draws(&self, purpose: u64) -> Draws {
        Draws::new(self.plan.end.seed, self.plan.end.epoch, self.batch as u64, purpose)
    }

    /// The elements `[B, ...]` of field `field_index`, in the order of [`Dataset::fields`]; of a
    /// ragged field at the greatest length, with zeros.
    ///
    /// # Panics
    /// If there is no such field, or if its elements are not of type `T`.
    pub fn values<T: Element>(&mut self, field_index: usize) -> &mut [T] {
        let place = &self.plan.layout.places()[field_index];
        let Field { name, element, .. } = &place.field;
        assert_eq!(*element, T::TYPE, "field {name} holds {element}, not {}", T::TYPE);
        // Cannot fail: a field starts aligned, and truth values were looked at.
        bytemuck::checked::cast_slice_mut(&mut self.bytes[place.rows(0..self.indices.len())])
    }
}
