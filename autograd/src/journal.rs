//! What a segment read beside its inputs, so that its recomputation reads the same.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use lowtide_tensor::{StorageWatch, Tensor};

use crate::attempt::LeafId;
use crate::error::{AutogradError, Result};
use crate::tape::Site;

/// The reads of a segment, in order.
#[derive(Default)]
pub(crate) struct Journal {
    buffers: Vec<Tensor>,
    /// With the version each had.
    leaves: Vec<(LeafId, u64)>,
    /// The other tensors that operations used. After the first run only those are left that
    /// something outside of the segment holds as well, such as a mask that it captured.
    others: Vec<StorageWatch>,
}

impl Journal {
    pub(crate) fn note_leaf(&mut self, leaf: LeafId, value: &Tensor) {
        self.leaves.push((leaf, value.version()));
    }

    /// The leaves that were read, some of them more than once.
    pub(crate) fn leaves(&self) -> Vec<LeafId> {
        self.leaves.iter().map(|&(leaf, _)| leaf).collect()
    }

    pub(crate) fn note_buffer(&mut self, value: &Tensor) {
        self.buffers.push(value.clone());
    }

    pub(crate) fn note_other(&mut self, value: &Tensor) {
        self.others.push(value.watch());
    }

    /// Ends the first run: what is written from now on is written between the runs.
    pub(crate) fn end_first_run(&mut self) {
        self.others = self.others.drain(..).filter_map(StorageWatch::renewed).collect();
    }
}

/// A journal being read from its start.
pub(crate) struct Replay {
    journal: Rc<RefCell<Journal>>,
    next_buffer: Cell<usize>,
    next_leaf: Cell<usize>,
    /// What was written between the runs.
    written: Vec<StorageWatch>,
    /// The first use of that, in functions that return no error.
    misuse: RefCell<Option<AutogradError>>,
    /// Where the segment was called.
    site: Site,
}

impl Replay {
    pub(crate) fn new(journal: Rc<RefCell<Journal>>, site: Site) -> Self {
        let is_written = |watch: &&StorageWatch| watch.is_written();
        let written = journal.borrow().others.iter().filter(is_written).cloned().collect();
        let (next_buffer, next_leaf) = (Cell::new(0), Cell::new(0));
        Replay { journal, next_buffer, next_leaf, written, misuse: RefCell::default(), site }
    }

    /// What the segment read here the first time.
    pub(crate) fn next_buffer(&self) -> Option<Tensor> {
        let index = self.next_buffer.replace(self.next_buffer.get() + 1);
        self.journal.borrow().buffers.get(index).cloned()
    }

    /// `Ok` unless the leaf was written since the segment used it.
    pub(crate) fn check_leaf(&self, leaf: LeafId, value: &Tensor) -> Result<()> {
        let index = self.next_leaf.replace(self.next_leaf.get() + 1);
        match self.journal.borrow().leaves.get(index) {
            Some(&(first, version)) if first == leaf && version != value.version() => {
                Err(self.modified(value))
            }
            _ => Ok(()),
        }
    }

    /// Notes if `value` was written between the runs; [`Replay::check_others`] says so.
    pub(crate) fn use_other(&self, value: &Tensor) {
        if self.written.iter().any(|watch| watch.is_of(value)) {
            self.misuse.borrow_mut().get_or_insert_with(|| self.modified(value));
        }
    }

    /// `Ok` unless the second run used what was written after the first one.
    pub(crate) fn check_others(&self) -> Result<()> {
        self.misuse.take().map_or(Ok(()), Err)
    }

    fn modified(&self, value: &Tensor) -> AutogradError {
        let (saved_at, written_at) = (self.site, value.last_write());
        AutogradError::Modified { op: "checkpoint", saved_at, written_at }
    }
}
