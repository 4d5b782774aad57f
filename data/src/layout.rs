//! Where each field of each sample lies in a staging buffer.
//!
//! Fields one after the other, each a contiguous `[rows, ...]` array that starts at a multiple of
//! `FIELD_ALIGN_BYTES`.

use crate::element::Field;
use std::ops::Range;

/// Alignment of every field: a cache line, and the widest vector register.
pub(crate) const FIELD_ALIGN_BYTES: usize = 64;
const _: () = assert!(lowtide_allocator::BLOCK_BYTES.is_multiple_of(FIELD_ALIGN_BYTES));

#[derive(Debug)]
pub(crate) struct Layout {
    places: Vec<Place>,
    /// Rows that there is room for.
    pub(crate) rows: usize,
    pub(crate) size_bytes: usize,
}

#[derive(Debug)]
pub(crate) struct Place {
    pub(crate) field: Field,
    pub(crate) sample_bytes: usize,
    offset_bytes: usize,
}

impl Layout {
    /// `None` if `rows` samples overflow the address space.
    pub(crate) fn new(fields: &[Field], rows: usize) -> Option<Self> {
        let mut places = Vec::with_capacity(fields.len());
        let mut end_bytes = 0_usize;
        for field in fields {
            let offset_bytes = end_bytes.checked_next_multiple_of(FIELD_ALIGN_BYTES)?;
            let sample_bytes = field.sample_bytes()?;
            end_bytes = offset_bytes.checked_add(sample_bytes.checked_mul(rows)?)?;
            places.push(Place { field: field.clone(), sample_bytes, offset_bytes });
        }
        Some(Self { places, rows, size_bytes: end_bytes })
    }

    pub(crate) fn places(&self) -> &[Place] {
        &self.places
    }

    /// Moves these rows, listed in order, to the front of a staging buffer.
    pub(crate) fn keep_rows(&self, staging: &mut [u8], kept: &[usize]) {
        for place in &self.places {
            for (to, &from) in kept.iter().enumerate() {
                staging.copy_within(place.rows(from..from + 1), place.rows(to..to + 1).start);
            }
        }
    }
}

impl Place {
    /// Bytes of the samples `rows` within the staging buffer.
    pub(crate) fn rows(&self, rows: Range<usize>) -> Range<usize> {
        let at = |row: usize| self.offset_bytes + row * self.sample_bytes;
        at(rows.start)..at(rows.end)
    }
}
