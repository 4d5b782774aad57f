//! What a segment read beside its inputs, so that its recomputation reads the same.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use lowtide_tensor::Tensor;

use crate::tape::Site;
use crate::{AutogradError, LeafId, Result};

/// The reads of a segment, in order.
#[derive(Default)]
pub(crate) struct Journal {
    buffers: Vec<Tensor>,
    /// With the version each had.
    leaves: Vec<(LeafId, u64)>,
}

impl Journal {
    pub(crate) fn note_leaf(&mut self, leaf: LeafId, value: &Tensor) {
        self.leaves.push((leaf, value.version()));
    }

    pub(crate) fn note_buffer(&mut self, value: &Tensor) {
        self.buffers.push(value.clone());
    }
}

/// A journal being read from its start.
pub(crate) struct Replay {
    journal: Rc<RefCell<Journal>>,
    next_buffer: Cell<usize>,
    next_leaf: Cell<usize>,
    /// Where the segment was called.
    site: Site,
}

impl Replay {
    pub(crate) fn new(journal: Rc<RefCell<Journal>>, site: Site) -> Self {
        Replay { journal, next_buffer: Cell::new(0), next_leaf: Cell::new(0), site }
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
                let written_at = value.last_write();
                Err(AutogradError::Modified { op: "checkpoint", saved_at: self.site, written_at })
            }
            _ => Ok(()),
        }
    }
}
