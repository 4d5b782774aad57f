//! Reclaimers: holders of memory that give it back when memory is short.

use std::fmt;
use std::sync::{Arc, PoisonError, Weak};

use crate::lock::sync::thread::{self, ThreadId};
use crate::lock::sync::{Mutex, MutexGuard};

/// A holder of memory that is useful but not needed: a cache of compiled kernels, a pool of
/// staging buffers, another allocator on the same device.
pub trait Reclaim: Send + Sync {
    /// Frees memory that can be spared, ideally `missing_bytes` or more. Returns the freed bytes,
    /// for the record; the allocator itself searches again. Runs on the thread of the request,
    /// while no lock of the allocator is held. Must not allocate from the allocator: a request of a
    /// reclaimer asks no reclaimer.
    fn reclaim(&self, missing_bytes: usize) -> usize;
}

impl<F: Fn(usize) -> usize + Send + Sync> Reclaim for F {
    fn reclaim(&self, missing_bytes: usize) -> usize {
        self(missing_bytes)
    }
}

#[derive(Default)]
pub(crate) struct Reclaimers {
    list: Arc<Mutex<List>>,
}

#[derive(Default)]
struct List {
    next: u64,
    /// Priority, number and reclaimer, sorted by priority and then by registration.
    entries: Vec<(i32, u64, Arc<dyn Reclaim>)>,
    /// Threads on which reclaimers are being asked.
    asking: Vec<ThreadId>,
}

impl Reclaimers {
    pub(crate) fn register(&self, priority: i32, reclaimer: Arc<dyn Reclaim>) -> Registration {
        let mut list = locked(&self.list);
        let id = list.next;
        list.next += 1;
        list.entries.push((priority, id, reclaimer));
        list.entries.sort_by_key(|&(priority, id, _)| (priority, id));
        Registration { list: Arc::downgrade(&self.list), id }
    }

    /// The reclaimers to ask. The list is copied, so that a reclaimer may register and unregister.
    pub(crate) fn round(&self) -> Round<'_> {
        let thread = thread::current().id();
        let mut list = locked(&self.list);
        let reclaimers = if list.asking.contains(&thread) {
            Vec::new()
        } else {
            list.entries.iter().map(|(.., reclaimer)| Arc::clone(reclaimer)).collect()
        };
        list.asking.push(thread);
        Round { list: &self.list, thread, reclaimers }
    }
}

/// A guard for the time in which reclaimers run on its thread. A reclaimer that allocates then
/// starts no second round.
pub(crate) struct Round<'a> {
    list: &'a Mutex<List>,
    thread: ThreadId,
    reclaimers: Vec<Arc<dyn Reclaim>>,
}

impl Round<'_> {
    /// The reclaimers in the order in which they are to be asked.
    pub(crate) fn reclaimers(&self) -> &[Arc<dyn Reclaim>] {
        &self.reclaimers
    }
}

impl Drop for Round<'_> {
    fn drop(&mut self) {
        let mut list = locked(self.list);
        if let Some(at) = list.asking.iter().rposition(|thread| *thread == self.thread) {
            list.asking.remove(at);
        }
    }
}

/// A guard: its reclaimer is registered while it lives.
#[must_use = "the registration ends with the guard"]
pub struct Registration {
    list: Weak<Mutex<List>>,
    id: u64,
}

impl Drop for Registration {
    fn drop(&mut self) {
        if let Some(list) = self.list.upgrade() {
            let gone = {
                let mut list = locked(&list);
                let at = list.entries.iter().position(|&(_, id, _)| id == self.id);
                at.map(|at| list.entries.remove(at))
            };
            // The drop of a reclaimer may lock the list again, so the lock is free by now.
            drop(gone);
        }
    }
}

impl fmt::Debug for Registration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Registration").field("id", &self.id).finish_non_exhaustive()
    }
}

// The list is whole at every unlock, so a poisoned lock is safe to use.
fn locked(list: &Mutex<List>) -> MutexGuard<'_, List> {
    list.lock().unwrap_or_else(PoisonError::into_inner)
}
