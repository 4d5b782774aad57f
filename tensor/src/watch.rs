//! Detection of writes to a tensor, without keeping its memory.

use std::sync::{Arc, Weak};

use crate::storage::Storage;
use crate::tensor::Tensor;

/// Notices in-place writes to the storage of a tensor, which may be freed meanwhile.
#[derive(Clone)]
pub struct StorageWatch {
    storage: Weak<Storage>,
    version: u64,
}

impl Tensor {
    /// A watch over this tensor's storage from now on. The storage can still be freed, and reused
    /// in place.
    pub fn watch(&self) -> StorageWatch {
        StorageWatch { storage: Arc::downgrade(self.storage()), version: self.version() }
    }
}

impl StorageWatch {
    /// True if `tensor` has the watched storage.
    pub fn is_of(&self, tensor: &Tensor) -> bool {
        std::ptr::eq(self.storage.as_ptr(), Arc::as_ptr(tensor.storage()))
    }

    /// True if the storage was written since the watch began. False after the storage was freed.
    pub fn is_written(&self) -> bool {
        self.storage.upgrade().is_some_and(|storage| storage.version() != self.version)
    }

    /// A watch that begins now; `None` if the storage was freed.
    #[must_use]
    pub fn renewed(self) -> Option<StorageWatch> {
        let version = self.storage.upgrade()?.version();
        Some(StorageWatch { version, ..self })
    }
}
