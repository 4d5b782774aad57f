//! The reads of a segment beside its inputs, so that its recomputation reads the same values.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use lowtide_tensor::{StorageWatch, Tensor};

use crate::attempt::LeafId;
use crate::error::{AutogradError, Result, Site};

/// The reads of a segment, in order.
#[derive(Default)]
pub(crate) struct Journal {
    buffers: Vec<Tensor>,
    leaves: Vec<LeafRead>,
    /// The other tensors that operations used. After the first run the list keeps only tensors
    /// that something outside of the segment holds as well, such as a captured mask.
    others: Vec<StorageWatch>,
}

struct LeafRead {
    leaf: LeafId,
    /// Version of the leaf's storage when it was read.
    version: u64,
}

impl Journal {
    pub(crate) fn note_leaf(&mut self, leaf: LeafId, value: &Tensor) {
        self.leaves.push(LeafRead { leaf, version: value.version() });
    }

    /// The leaves in the order of the reads. A leaf that was read twice occurs twice.
    pub(crate) fn leaves(&self) -> Vec<LeafId> {
        self.leaves.iter().map(|read| read.leaf).collect()
    }

    pub(crate) fn note_buffer(&mut self, value: &Tensor) {
        self.buffers.push(value.clone());
    }

    pub(crate) fn note_other(&mut self, value: &Tensor) {
        self.others.push(value.watch());
    }

    /// Ends the first run. Writes from now on are writes between the runs.
    pub(crate) fn end_first_run(&mut self) {
        self.others = self.others.drain(..).filter_map(StorageWatch::renewed).collect();
    }
}

/// A journal that a recomputation reads from its start.
pub(crate) struct Replay {
    journal: Rc<RefCell<Journal>>,
    next_buffer: Cell<usize>,
    next_leaf: Cell<usize>,
    /// The tensors that were written between the runs.
    written: Vec<StorageWatch>,
    /// The first use of a written tensor. Some functions that use tensors return no error.
    misuse: RefCell<Option<AutogradError>>,
    /// The line that called the segment.
    site: Site,
}

impl Replay {
    pub(crate) fn new(journal: Rc<RefCell<Journal>>, site: Site) -> Self {
        let is_written = |watch: &&StorageWatch| watch.is_written();
        let written = journal.borrow().others.iter().filter(is_written).cloned().collect();
        let (next_buffer, next_leaf) = (Cell::new(0), Cell::new(0));
        Replay { journal, next_buffer, next_leaf, written, misuse: RefCell::default(), site }
    }

    /// The value that the first run read from its next buffer.
    pub(crate) fn next_buffer(&self) -> Option<Tensor> {
        let index = self.next_buffer.replace(self.next_buffer.get() + 1);
        self.journal.borrow().buffers.get(index).cloned()
    }

    /// `Ok` unless the leaf was written since the first run.
    pub(crate) fn check_leaf(&self, leaf: LeafId, value: &Tensor) -> Result<()> {
        let index = self.next_leaf.replace(self.next_leaf.get() + 1);
        match self.journal.borrow().leaves.get(index) {
            Some(read) if read.leaf == leaf && read.version != value.version() => {
                Err(self.modified(value))
            }
            _ => Ok(()),
        }
    }

    /// Notes a use of `value` if it was written between the runs; [`Replay::check_others`] returns
    /// the error.
    pub(crate) fn use_other(&self, value: &Tensor) {
        if self.written.iter().any(|watch| watch.is_of(value)) {
            self.misuse.borrow_mut().get_or_insert_with(|| self.modified(value));
        }
    }

    /// `Ok` unless the second run used a tensor that was written after the first run.
    pub(crate) fn check_others(&self) -> Result<()> {
        self.misuse.take().map_or(Ok(()), Err)
    }

    fn modified(&self, value: &Tensor) -> AutogradError {
        let (saved_at, written_at) = (self.site, value.last_write());
        AutogradError::Modified { op: "checkpoint", saved_at, written_at }
    }
}
