//! The memory behind tensors: one buffer, its lock, its version and its frozen bit.

use std::panic::Location;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, RwLock, RwLockReadGuard, RwLockWriteGuard, TryLockError, TryLockResult};

use lowtide_allocator::{AllocError, Buffer, Stream};

use crate::device::Device;
use crate::mapped::MappedBytes;

/// One allocation, which several tensors may view.
pub(crate) struct Storage {
    buffer: Buffer,
    /// The bytes, if they lie in a file. The buffer is then empty and represents the storage in the
    /// allocator.
    mapped: Option<MappedBytes>,
    device: Device,
    lock: RwLock<()>,
    version: AtomicU64,
    frozen: AtomicBool,
    /// True while the memory belongs to the copy stream, which may still write it.
    arriving: AtomicBool,
    last_write: Mutex<Site>,
}

/// A place in the caller's code.
type Site = &'static Location<'static>;

impl Storage {
    #[track_caller]
    pub(crate) fn new(buffer: Buffer, device: Device) -> Self {
        Storage {
            buffer,
            mapped: None,
            device,
            lock: RwLock::new(()),
            version: AtomicU64::new(0),
            frozen: AtomicBool::new(false),
            arriving: AtomicBool::new(false),
            last_write: Mutex::new(Location::caller()),
        }
    }

    pub(crate) fn buffer(&self) -> &Buffer {
        &self.buffer
    }

    /// [`Storage::new`] for bytes in a file.
    #[track_caller]
    pub(crate) fn of_mapped(buffer: Buffer, device: Device, mapped: MappedBytes) -> Self {
        Storage { mapped: Some(mapped), ..Self::new(buffer, device) }
    }

    /// The bytes, if they lie in a file.
    pub(crate) fn mapped(&self) -> Option<&MappedBytes> {
        self.mapped.as_ref()
    }

    pub(crate) fn device(&self) -> &Device {
        &self.device
    }

    /// The number of writes in place so far.
    pub(crate) fn version(&self) -> u64 {
        self.version.load(Ordering::Acquire)
    }

    /// Notes a write by the operation that was called at `site`.
    pub(crate) fn note_write(&self, site: Site) {
        self.version.fetch_add(1, Ordering::AcqRel);
        *self.last_write.lock().unwrap_or_else(|poisoned| poisoned.into_inner()) = site;
    }

    /// The place in the program that last wrote the contents, or made the storage.
    pub(crate) fn last_write(&self) -> Site {
        *self.last_write.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    pub(crate) fn is_frozen(&self) -> bool {
        self.frozen.load(Ordering::Acquire)
    }

    pub(crate) fn set_frozen(&self, frozen: bool) {
        self.frozen.store(frozen, Ordering::Release);
    }

    /// True if a copy on the [copy stream](crate::copy_stream::COPIES) may still write the
    /// contents.
    pub(crate) fn is_arriving(&self) -> bool {
        self.arriving.load(Ordering::Acquire)
    }

    pub(crate) fn set_arriving(&self, arriving: bool) {
        self.arriving.store(arriving, Ordering::Release);
    }

    /// Makes the compute stream wait for the copy that may still write the contents.
    #[track_caller]
    pub(crate) fn await_copy(&self) -> Result<(), AllocError> {
        if self.is_arriving() {
            self.buffer.transfer_to(Stream::DEFAULT)?;
            self.set_arriving(false);
        }
        Ok(())
    }

    // The lock guards plain numbers, which are valid even after a kernel panics. A poisoned lock is
    // therefore taken over.
    pub(crate) fn lock_read(&self) -> RwLockReadGuard<'_, ()> {
        self.lock.read().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    pub(crate) fn lock_write(&self) -> RwLockWriteGuard<'_, ()> {
        self.lock.write().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// [`Storage::lock_read`]; `None` where it would wait.
    pub(crate) fn try_lock_read(&self) -> Option<RwLockReadGuard<'_, ()>> {
        taken(self.lock.try_read())
    }

    /// [`Storage::lock_write`]; `None` where it would wait.
    pub(crate) fn try_lock_write(&self) -> Option<RwLockWriteGuard<'_, ()>> {
        taken(self.lock.try_write())
    }
}

fn taken<G>(lock: TryLockResult<G>) -> Option<G> {
    match lock {
        Ok(guard) => Some(guard),
        Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
        Err(TryLockError::WouldBlock) => None,
    }
}
