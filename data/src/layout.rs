//! Where each field of each sample lies in a staging buffer.
//!
//! Fields one after the other, each a contiguous `[rows, ...]` array that starts at a multiple of
//! `FIELD_ALIGN_BYTES`. The fields of the dataset come first, in its order; lengths and masks of
//! ragged ones follow.

use crate::element::{Collate, ElementType, Field};
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
    /// Where the lengths of a ragged field are.
    pub(crate) lengths: Option<usize>,
    /// Where the mask of a padded field is.
    pub(crate) mask: Option<usize>,
    offset_bytes: usize,
}

impl Layout {
    /// `None` if `rows` samples overflow the address space.
    pub(crate) fn new(fields: &[Field], rows: usize) -> Option<Self> {
        let mut fields: Vec<(Field, [Option<usize>; 2])> =
            fields.iter().map(|field| (field.clone(), [None; 2])).collect();
        for at in 0..fields.len() {
            let Field { name, shape, ragged: Some(collate), .. } = &fields[at].0 else { continue };
            let lengths = Field::new(format!("{name}.length"), ElementType::I64, &[]);
            let mask = (*collate == Collate::Padded)
                .then(|| Field::new(format!("{name}.mask"), ElementType::Bool, &shape[..1]));
            let next = fields.len();
            fields[at].1 = [Some(next), mask.is_some().then_some(next + 1)];
            fields.extend([Some(lengths), mask].into_iter().flatten().map(|own| (own, [None; 2])));
        }
        let mut places = Vec::with_capacity(fields.len());
        let mut end_bytes = 0_usize;
        for (field, [lengths, mask]) in fields {
            let offset_bytes = end_bytes.checked_next_multiple_of(FIELD_ALIGN_BYTES)?;
            let sample_bytes = field.sample_bytes()?;
            end_bytes = offset_bytes.checked_add(sample_bytes.checked_mul(rows)?)?;
            places.push(Place { field, sample_bytes, lengths, mask, offset_bytes });
        }
        Some(Self { places, rows, size_bytes: end_bytes })
    }

    pub(crate) fn places(&self) -> &[Place] {
        &self.places
    }

    /// Moves the samples of packed fields of the first `count` rows together.
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

    /// Lengths of the samples `rows` of a ragged field.
    pub(crate) fn lengths<'a>(
        &self,
        place: &Place,
        staging: &'a [u8],
        rows: Range<usize>,
    ) -> Option<&'a [i64]> {
        place.lengths.map(|at| bytemuck::cast_slice(&staging[self.places[at].rows(rows)]))
    }

    /// Where the samples `rows` are, once the batch is packed.
    pub(crate) fn range(&self, place: &Place, staging: &[u8], rows: Range<usize>) -> Range<usize> {
        if !place.is_packed() {
            return place.rows(rows);
        }
        let before = place.rows(0..0).start + self.packed_bytes(place, staging, 0..rows.start);
        before..before + self.packed_bytes(place, staging, rows)
    }

    /// Bytes of the samples `rows` of a packed field.
    fn packed_bytes(&self, place: &Place, staging: &[u8], rows: Range<usize>) -> usize {
        let lengths = self.lengths(place, staging, rows).unwrap_or_default();
        lengths.iter().sum::<i64>() as usize * place.item_bytes()
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
    fn is_packed(&self) -> bool {
        self.field.ragged == Some(Collate::Packed)
    }

    /// Bytes of one item of a ragged field.
    pub(crate) fn item_bytes(&self) -> usize {
        let sides = self.field.shape.iter().skip(1);
        // A field of length 0 may have sides whose product overflows.
        sides.fold(self.field.element.size_bytes(), |bytes, &side| bytes.saturating_mul(side))
    }

    /// Bytes of the samples `rows` within the staging buffer.
    pub(crate) fn rows(&self, rows: Range<usize>) -> Range<usize> {
        let at = |row: usize| self.offset_bytes + row * self.sample_bytes;
        at(rows.start)..at(rows.end)
    }
}
