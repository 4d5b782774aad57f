//! A staging buffer whose rows several threads write at once. The thread that claims a row writes
//! it.
#![allow(unsafe_code, reason = "rows of one buffer are lent to several threads")]

use crate::layout::Layout;
use crate::staging::Staging;
use std::ptr::NonNull;
use std::slice;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// The rows of a batch that is being written.
#[derive(Debug)]
pub(crate) struct Rows {
    /// The owner of the bytes, which is not accessed while a [`Row`] is alive.
    staging: Staging,
    /// Address of the first byte.
    base: NonNull<u8>,
    layout: Arc<Layout>,
    count: usize,
    /// Number of calls of `claim`, which may exceed the number of rows.
    claimed: AtomicUsize,
}

// SAFETY: 1. `base` points into memory that `staging` owns wherever it is moved to, and `Staging`
// is `Send`. 2. A shared `Rows` gives access to its bytes only through `claim`, and no two rows
// that `claim` returns have a byte in common.
unsafe impl Send for Rows {}
// SAFETY: as for `Send`. The other shared fields are an atomic counter, and numbers that do not
// change.
unsafe impl Sync for Rows {}

impl Rows {
    /// The first `count` rows of `staging`.
    pub(crate) fn new(mut staging: Staging, layout: Arc<Layout>, count: usize) -> Self {
        let bytes = staging.bytes_mut();
        assert!(count <= layout.rows && layout.size_bytes <= bytes.len(), "the batch fits");
        let base = NonNull::from(bytes).cast();
        Self { staging, base, layout, count, claimed: AtomicUsize::new(0) }
    }

    /// The lowest unclaimed row; `None` if all rows are claimed.
    pub(crate) fn claim(&self) -> Option<Row<'_>> {
        // Relaxed is enough: threads exchange only the number here.
        let index = self.claimed.fetch_add(1, Ordering::Relaxed);
        (index < self.count).then_some(Row { rows: self, index })
    }

    /// The buffer. No thread can hold a row any more, because rows borrow `self`.
    pub(crate) fn into_staging(self) -> Staging {
        self.staging
    }
}

/// One row, which only the thread that claimed the row can access.
#[derive(Debug)]
pub(crate) struct Row<'a> {
    rows: &'a Rows,
    index: usize,
}

impl<'a> Row<'a> {
    pub(crate) fn index(&self) -> usize {
        self.index
    }

    pub(crate) fn layout(&self) -> &'a Layout {
        &self.rows.layout
    }

    /// The bytes of the field at `place_index` of the layout.
    pub(crate) fn bytes(&mut self, place_index: usize) -> &mut [u8] {
        let range = self.layout().places()[place_index].rows(self.index..self.index + 1);
        // SAFETY: 1. `range` is within the layout's `size_bytes`, because `index` is below its
        // `rows`, and `Rows::new` has checked that the buffer has that many bytes.
        let first = unsafe { self.rows.base.add(range.start) };
        // SAFETY: 1. The bytes of every buffer are initialised. 2. No other slice has these bytes:
        // ranges of different rows or places are disjoint, each row is claimed once, `Row` is not
        // `Clone`, and `staging` is not accessed while a row borrows its `Rows`. 3. The slice
        // borrows this row mutably, so there is one slice of it at a time.
        unsafe { slice::from_raw_parts_mut(first.as_ptr(), range.len()) }
    }
}
