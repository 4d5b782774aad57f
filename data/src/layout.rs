//! The layout of a staging buffer.
//!
//! Each field is a contiguous array `[rows, ...]` that starts at a multiple of
//! `FIELD_ALIGN_BYTES`. The fields of the dataset come first, in their order; then the lengths and
//! masks of ragged fields.

use crate::element::{Collate, ElementType, Field};
use std::ops::Range;

/// Alignment of every field: the size of a cache line and of the widest vector register.
pub(crate) const FIELD_ALIGN_BYTES: usize = 64;
const _: () = assert!(lowtide_allocator::BLOCK_BYTES.is_multiple_of(FIELD_ALIGN_BYTES));

#[derive(Debug)]
pub(crate) struct Layout {
    places: Vec<Place>,
    /// Number of rows in a buffer.
    pub(crate) rows: usize,
    pub(crate) size_bytes: usize,
}

/// The array of one field in a buffer.
#[derive(Debug)]
pub(crate) struct Place {
    pub(crate) field: Field,
    pub(crate) sample_bytes: usize,
    /// Index of the place with the lengths of a ragged field.
    pub(crate) lengths: Option<usize>,
    /// Index of the place with the mask of a padded field.
    pub(crate) mask: Option<usize>,
    offset_bytes: usize,
}

impl Layout {
    /// The layout of `rows` samples; `None` if their size overflows.
    pub(crate) fn new(fields: &[Field], rows: usize) -> Option<Self> {
        let mut layout = Self { places: Vec::with_capacity(fields.len()), rows, size_bytes: 0 };
        for field in fields {
            layout.push(field.clone())?;
        }
        for (at, field) in fields.iter().enumerate() {
            let Field { name, shape, ragged: Some(collate), .. } = field else { continue };
            let lengths = Field::new(format!("{name}.length"), ElementType::I64, &[]);
            layout.places[at].lengths = Some(layout.push(lengths)?);
            if *collate == Collate::Padded {
                let mask = Field::new(format!("{name}.mask"), ElementType::Bool, &shape[..1]);
                layout.places[at].mask = Some(layout.push(mask)?);
            }
        }
        Some(layout)
    }

    /// Appends the array of a field and returns its index.
    fn push(&mut self, field: Field) -> Option<usize> {
        let offset_bytes = self.size_bytes.checked_next_multiple_of(FIELD_ALIGN_BYTES)?;
        let sample_bytes = field.sample_bytes()?;
        self.size_bytes = offset_bytes.checked_add(sample_bytes.checked_mul(self.rows)?)?;
        self.places.push(Place { field, sample_bytes, lengths: None, mask: None, offset_bytes });
        Some(self.places.len() - 1)
    }

    pub(crate) fn places(&self) -> &[Place] {
        &self.places
    }

    /// Closes the gaps between the samples of packed fields in the first `count` rows.
    pub(crate) fn pack(&self, staging: &mut [u8], count: usize) {
        for place in self.places.iter().filter(|place| place.is_packed()) {
            let mut end_bytes = place.rows(0..0).start;
            for row in 0..count {
                let len = self.packed_bytes(place, staging, row..row + 1);
                let start_bytes = place.rows(row..row).start;
                staging.copy_within(start_bytes..start_bytes + len, end_bytes);
                end_bytes += len;
            }
        }
    }

    /// The lengths of the samples `rows` of a ragged field; `None` for other fields.
    pub(crate) fn lengths<'a>(
        &self,
        place: &Place,
        staging: &'a [u8],
        rows: Range<usize>,
    ) -> Option<&'a [i64]> {
        place.lengths.map(|at| bytemuck::cast_slice(&staging[self.places[at].rows(rows)]))
    }

    /// The byte range of the samples `rows` in a packed batch.
    pub(crate) fn range(&self, place: &Place, staging: &[u8], rows: Range<usize>) -> Range<usize> {
        if !place.is_packed() {
            return place.rows(rows);
        }
        let before = place.rows(0..0).start + self.packed_bytes(place, staging, 0..rows.start);
        before..before + self.packed_bytes(place, staging, rows)
    }

    /// The number of bytes of the samples `rows` of a packed field.
    fn packed_bytes(&self, place: &Place, staging: &[u8], rows: Range<usize>) -> usize {
        let lengths = self.lengths(place, staging, rows).unwrap_or_default();
        lengths.iter().sum::<i64>() as usize * place.item_bytes()
    }

    /// Moves the rows `kept`, which are in ascending order, to the front of a staging buffer.
    pub(crate) fn keep_rows(&self, staging: &mut [u8], kept: &[usize]) {
        for place in &self.places {
            for (to, &from) in kept.iter().enumerate() {
                staging.copy_within(place.rows(from..from + 1), place.rows(to..to + 1).start);
            }
        }
    }
}

impl Place {
    fn is_packed(&self) -> bool {
        self.field.ragged == Some(Collate::Packed)
    }

    /// Bytes of one item of a ragged field.
    pub(crate) fn item_bytes(&self) -> usize {
        let sides = self.field.shape.iter().skip(1);
        // A field of maximum length 0 may have dimensions whose product overflows.
        sides.fold(self.field.element.size_bytes(), |bytes, &side| bytes.saturating_mul(side))
    }

    /// The byte range of the samples `rows` in a staging buffer.
    pub(crate) fn rows(&self, rows: Range<usize>) -> Range<usize> {
        let at = |row: usize| self.offset_bytes + row * self.sample_bytes;
        at(rows.start)..at(rows.end)
    }
}
