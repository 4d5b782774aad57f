//! A dataset whose samples are a function of another dataset's samples.

use crate::dataset::{Dataset, SampleSlot};
use crate::element::{Element, Field};
use crate::error::{DataError, SampleError};
use crate::layout::Layout;
use crate::rows::Rows;
use crate::staging::{Ring, Staging};
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

/// A dataset whose samples are a function of another dataset's samples, with other fields, types or
/// values.
///
/// The function must depend only on the index and the sample, as for any [`Dataset`]. Each thread
/// that reads holds one additional sample of the other dataset.
///
/// # Examples
/// ```
/// use lowtide_data::{Dataset, ElementType, Field, InMemory, Mapped};
/// let points = InMemory::new(2).with("x", &[2], vec![1_u8, 2, 3, 4])?;
/// let fields = vec![Field::new("sum", ElementType::F32, &[])];
/// let sums = Mapped::new(points, fields, |_index, point, slot| {
///     let sum: u8 = point.values::<u8>(0).iter().sum();
///     slot.values::<f32>(0)[0] = f32::from(sum);
///     Ok(())
/// })?;
/// assert_eq!(sums.len(), 2);
/// # Ok::<(), lowtide_data::DataError>(())
/// ```
pub struct Mapped<D, F> {
    dataset: D,
    fields: Vec<Field>,
    map: F,
    /// The layout of one sample of `dataset`.
    layout: Arc<Layout>,
    /// Buffers of one sample that no thread uses.
    scratch: Mutex<Vec<Scratch>>,
}

/// A buffer of one sample.
struct Scratch {
    staging: Staging,
    /// The ring of `staging`, its only buffer. Dropping `staging` returns the buffer to the ring.
    _ring: Ring,
}

impl<D, F> Mapped<D, F>
where
    D: Dataset,
    F: Fn(usize, &SampleView<'_>, &mut SampleSlot<'_>) -> Result<(), SampleError> + Send + Sync,
{
    /// The dataset of the samples that `map` makes. `map` gets the index and the sample of
    /// `dataset`, and writes a slot with `fields`.
    ///
    /// # Errors
    /// [`DataError::InvalidOption`] if a sample of `dataset` does not fit the address space.
    /// [`DataError::InvalidMixing`] if `dataset` changes whole batches.
    pub fn new(dataset: D, fields: Vec<Field>, map: F) -> Result<Self, DataError> {
        if dataset.changes_batches() {
            return Err(DataError::InvalidMixing { reason: "mix what is mapped, not the reverse" });
        }
        let layout = Layout::new(dataset.fields(), 1)
            .ok_or(DataError::InvalidOption { option: "fields", value: dataset.fields().len() })?;
        let (layout, scratch) = (Arc::new(layout), Mutex::default());
        Ok(Self { dataset, fields, map, layout, scratch })
    }

    /// The dataset whose samples are mapped.
    #[must_use]
    pub fn dataset(&self) -> &D {
        &self.dataset
    }

    fn take_scratch(&self) -> Result<Scratch, DataError> {
        let unused = self.scratch.lock().unwrap_or_else(PoisonError::into_inner).pop();
        if let Some(scratch) = unused {
            return Ok(scratch);
        }
        let ring = Ring::new(1, self.layout.size_bytes)?;
        let staging = ring.take().expect("a new ring has its buffer");
        Ok(Scratch { staging, _ring: ring })
    }
}

impl<D, F> Dataset for Mapped<D, F>
where
    D: Dataset,
    F: Fn(usize, &SampleView<'_>, &mut SampleSlot<'_>) -> Result<(), SampleError> + Send + Sync,
{
    fn len(&self) -> usize {
        self.dataset.len()
    }

    fn fields(&self) -> &[Field] {
        &self.fields
    }

    fn write(&self, index: usize, slot: &mut SampleSlot<'_>) -> Result<(), SampleError> {
        // After an error or a panic the buffer is dropped, and the next sample allocates another.
        let Scratch { staging, _ring } = self.take_scratch()?;
        let rows = Rows::new(staging, Arc::clone(&self.layout), 1);
        let row = rows.claim().expect("a new buffer has one row");
        let mut input = slot.in_row(row);
        self.dataset.write(index, &mut input)?;
        input.finish()?;
        let staging = rows.into_staging();
        let view = SampleView { layout: &self.layout, bytes: staging.bytes() };
        let mapped = (self.map)(index, &view, slot);
        let mut unused = self.scratch.lock().unwrap_or_else(PoisonError::into_inner);
        unused.push(Scratch { staging, _ring });
        mapped
    }

    fn visit_memory(&self, visit: &mut dyn FnMut(*const u8, usize)) {
        self.dataset.visit_memory(visit);
    }
}

impl<D: fmt::Debug, F> fmt::Debug for Mapped<D, F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Mapped")
            .field("dataset", &self.dataset)
            .field("fields", &self.fields)
            .finish_non_exhaustive()
    }
}

/// A sample that [`Mapped`] reads.
#[derive(Debug, Clone, Copy)]
pub struct SampleView<'a> {
    layout: &'a Layout,
    bytes: &'a [u8],
}

impl<'a> SampleView<'a> {
    /// The bytes of field `field_index`, in the order of [`Dataset::fields`]; for a ragged field,
    /// the items of the sample without padding.
    ///
    /// # Panics
    /// If there is no such field.
    #[must_use]
    pub fn bytes(&self, field_index: usize) -> &'a [u8] {
        let place = &self.layout.places()[field_index];
        let bytes = &self.bytes[place.rows(0..1)];
        match self.layout.lengths(place, self.bytes, 0..1) {
            Some(lengths) => &bytes[..lengths[0] as usize * place.item_bytes()],
            None => bytes,
        }
    }

    /// The elements of field `field_index`; see [`bytes`](Self::bytes).
    ///
    /// # Panics
    /// If there is no such field, or its elements are not of type `T`.
    #[must_use]
    pub fn values<T: Element>(&self, field_index: usize) -> &'a [T] {
        let Field { name, element, .. } = &self.layout.places()[field_index].field;
        assert_eq!(*element, T::TYPE, "field {name} holds {element}, not {}", T::TYPE);
        // The cast cannot fail: a field starts aligned, and `finish` has checked truth values.
        bytemuck::checked::cast_slice(self.bytes(field_index))
    }
}
