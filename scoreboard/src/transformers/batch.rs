//! The tensors of a step. A tensor that no code reads is reported, never ignored.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};

use lowtide_tensor::Tensor;

use crate::call::{Result, Stop};
use crate::outcome::Reason;

/// The tensors of a step, by name.
pub(super) struct Batch {
    tensors: BTreeMap<String, Tensor>,
    read: RefCell<BTreeSet<String>>,
}

impl Batch {
    pub(super) fn new(tensors: BTreeMap<String, Tensor>) -> Self {
        Batch { tensors, read: RefCell::default() }
    }

    pub(super) fn tensor(&self, name: &str) -> Result<&Tensor> {
        self.read.borrow_mut().insert(name.to_owned());
        let missing = || Stop::failure(format!("the batch has no `{name}`"));
        self.tensors.get(name).ok_or_else(missing)
    }

    pub(super) fn check_all_read(&self) -> Result<()> {
        let read = self.read.borrow();
        let unread = self.tensors.keys().find(|name| !read.contains(*name));
        let missing = |name: &String| Stop::NotApplicable(Reason::Argument, name.clone());
        unread.map_or(Ok(()), |name| Err(missing(name)))
    }
}
