//! Who gives memory back when it is short.

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

/// Somebody who holds memory that is dear but not needed: a cache of compiled kernels, a pool of
/// staging buffers, another allocator on the same device.
pub trait Reclaim: Send + Sync {
    /// Frees what can be spared, ideally `missing_bytes` or more. Returns the bytes given back, for
    /// the record: the allocator looks for itself whether the request fits now. It is called on the
    /// thread that asked for memory, with no lock of the allocator held, and must not allocate from
    /// it.
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
    /// By priority, then in the order of registration.
    entries: Vec<(i32, u64, Arc<dyn Reclaim>)>,
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

    /// A copy of the list, so that a reclaimer may register and unregister.
    pub(crate) fn in_order(&self) -> Vec<Arc<dyn Reclaim>> {
        locked(&self.list).entries.iter().map(|(.., reclaimer)| Arc::clone(reclaimer)).collect()
    }
}

/// While it lives, its reclaimer is asked.
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
            // Its own drop may come back here: the lock is free by now.
            drop(gone);
        }
    }
}

impl fmt::Debug for Registration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Registration").field("id", &self.id).finish_non_exhaustive()
    }
}

// The list is whole at every unlock, so a poisoned lock is taken over.
fn locked(list: &Mutex<List>) -> MutexGuard<'_, List> {
    list.lock().unwrap_or_else(PoisonError::into_inner)
}
