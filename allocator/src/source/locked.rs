//! Locks on host pages: the seam to the system or the driver, which lock the memory.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

use crate::source::adaptor::{Adaptor, SourceCall, Upstream};
use crate::source::{MemorySource, SourceError, VirtualMemory};

/// Locks host pages in memory or for a device: `mlock`, or the driver's registration
/// (`cuMemHostRegister`).
///
/// Ranges are whole pages of the source, at their host address, and do not overlap.
pub trait PageLock: Send + Sync {
    /// Locks pages that are not locked.
    ///
    /// # Errors
    /// The system or the driver refuses. Nothing is locked then.
    fn lock(&self, address: u64, size_bytes: usize) -> Result<(), SourceError>;

    /// Unlocks pages that are locked: all or a part of the pages of one `lock` call, never parts of
    /// two calls.
    fn unlock(&self, address: u64, size_bytes: usize);
}

/// An adaptor over a source of host memory that locks committed pages.
///
/// The source maps no pages at a second address, because a lock belongs to one address.
#[derive(Debug)]
pub struct LockedSource<S, L> {
    inner: S,
    lock: L,
    /// Locked ranges, one for each call: start to end.
    locked: Mutex<BTreeMap<u64, u64>>,
}

impl<S: MemorySource, L: PageLock> LockedSource<S, L> {
    /// Locks the pages of `inner`. The processor must be able to read its segments.
    pub fn new(inner: S, lock: L) -> LockedSource<S, L> {
        LockedSource { inner, lock, locked: Mutex::default() }
    }

    /// Unlocks a range of addresses, with one call for each lock that the range meets.
    fn unlock(&self, address: u64, end: u64) {
        let mut locked = self.locked.lock().unwrap_or_else(PoisonError::into_inner);
        let meets = locked.range(..end).filter(|&(_, &locked_end)| locked_end > address);
        let met: Vec<(u64, u64)> = meets.map(|(&start, &end)| (start, end)).collect();
        for (start, locked_end) in met {
            locked.remove(&start);
            if start < address {
                locked.insert(start, address);
            }
            if end < locked_end {
                locked.insert(end, locked_end);
            }
            let (from, to) = (start.max(address), locked_end.min(end));
            self.lock.unlock(from, (to - from) as usize);
        }
    }
}

impl<S: MemorySource, L: PageLock> Adaptor for LockedSource<S, L> {
    type Inner = S;

    fn inner(&self) -> &S {
        &self.inner
    }

    fn attempt(&self, call: SourceCall, upstream: &mut Upstream<'_>) -> Result<(), SourceError> {
        let SourceCall::Commit { segment, offset, size_bytes } = call else { return upstream() };
        let address = segment + offset as u64;
        // The lock comes first, because it can be undone. Host memory has its addresses before the
        // commit.
        self.lock.lock(address, size_bytes)?;
        if let Err(error) = upstream() {
            self.lock.unlock(address, size_bytes);
            return Err(error);
        }
        let mut locked = self.locked.lock().unwrap_or_else(PoisonError::into_inner);
        locked.insert(address, address + size_bytes as u64);
        Ok(())
    }

    fn give_back(&self, call: SourceCall, upstream: &mut dyn FnMut()) {
        // Pages are unlocked first: the system takes no locked page back.
        match call {
            SourceCall::Decommit { segment, offset, size_bytes } => {
                let address = segment + offset as u64;
                self.unlock(address, address + size_bytes as u64);
            }
            SourceCall::Release { segment, size_bytes } => {
                self.unlock(segment, segment + size_bytes as u64);
            }
            _ => {}
        }
        upstream();
    }

    fn pages(&self) -> Option<&dyn VirtualMemory> {
        None
    }
}
