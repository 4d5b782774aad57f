//! The handle that keeps an allocator alive while it has buffers.

use std::sync::Arc;

/// One counted handle for all buffers of an allocator, kept in its state while there are buffers.
/// The handle keeps the allocator alive up to its last buffer, so a buffer needs no count of its
/// own.
#[derive(Default)]
pub(crate) struct LastBuffer {
    handle: Option<Arc<dyn Send + Sync>>,
    buffer_count: usize,
}

impl LastBuffer {
    /// Counts a buffer; the first one takes a handle.
    #[inline]
    pub(crate) fn add<T: Send + Sync + 'static>(&mut self, handle: impl FnOnce() -> Arc<T>) {
        if self.buffer_count == 0 {
            self.handle = Some(handle());
        }
        self.buffer_count += 1;
    }

    /// Counts a buffer that is gone. With the last buffer, returns the handle, to be dropped after
    /// the lock.
    #[inline]
    #[must_use = "the last handle goes when the lock is free"]
    pub(crate) fn remove(&mut self) -> Option<Arc<dyn Send + Sync>> {
        self.buffer_count -= 1;
        if self.buffer_count == 0 { self.handle.take() } else { None }
    }
}
