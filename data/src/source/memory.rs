//! Datasets in memory.

use crate::dataset::{Dataset, SampleSlot, visit_slice};
use crate::element::{Element, Field};
use crate::error::{DataError, SampleError};
use std::sync::Arc;

/// Samples in memory, with one vector per field.
///
/// # Examples
/// ```
/// use lowtide_data::{Dataset, InMemory};
/// let points = InMemory::new(3)
///     .with("x", &[2], vec![0.0_f32, 0.1, 1.0, 1.1, 2.0, 2.1])?
///     .with("y", &[], vec![0_i64, 1, 2])?;
/// assert_eq!(points.len(), 3);
/// # Ok::<(), lowtide_data::DataError>(())
/// ```
#[derive(Debug)]
pub struct InMemory {
    len: usize,
    fields: Vec<Field>,
    /// The bytes of all samples of each field.
    columns: Vec<Vec<u8>>,
}

impl InMemory {
    /// A dataset of `len` samples, without fields.
    #[must_use]
    pub fn new(len: usize) -> Self {
        Self { len, fields: Vec::new(), columns: Vec::new() }
    }

    /// Adds a field with samples of shape `shape`. `values` are the elements of all samples,
    /// concatenated.
    ///
    /// The values are copied once.
    ///
    /// # Errors
    /// [`DataError::FieldLength`] if `values` does not have the elements of `len` samples.
    pub fn with<T: Element>(
        mut self,
        name: impl Into<Arc<str>>,
        shape: &[usize],
        values: Vec<T>,
    ) -> Result<Self, DataError> {
        let field = Field::new(name, T::TYPE, shape);
        let expected = shape.iter().fold(self.len, |len, &side| len.saturating_mul(side));
        if values.len() != expected {
            let (field, actual) = (field.name, values.len());
            return Err(DataError::FieldLength { field, expected, actual });
        }
        self.fields.push(field);
        self.columns.push(bytemuck::cast_slice(&values).to_vec());
        Ok(self)
    }
}

impl Dataset for InMemory {
    fn len(&self) -> usize {
        self.len
    }

    fn fields(&self) -> &[Field] {
        &self.fields
    }

    fn write(&self, index: usize, slot: &mut SampleSlot<'_>) -> Result<(), SampleError> {
        for (field_index, column) in self.columns.iter().enumerate() {
            let bytes = slot.bytes(field_index);
            let start = index * bytes.len();
            bytes.copy_from_slice(&column[start..start + bytes.len()]);
        }
        Ok(())
    }

    fn visit_memory(&self, visit: &mut dyn FnMut(*const u8, usize)) {
        self.columns.iter().for_each(|column| visit_slice(column, visit));
    }
}
