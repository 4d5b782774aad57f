//! The lock of an allocator.
//!
//! Work under the lock takes some ten nanoseconds, so taking the lock must cost little. One atomic
//! exchange takes it and a plain store releases it. A lock that wakes its waiters needs a second
//! exchange to find out if there are any. The price is that waiters have to poll. They poll less
//! and less often, which also leaves the owner's cache lines alone, and sleep at last: a source may
//! take milliseconds. A panic releases the lock and poisons nothing.

#![allow(unsafe_code, reason = "a lock hands out the one reference to what it guards")]

pub(crate) mod sync;

use std::cell::UnsafeCell;
use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};

use crate::lock::sync::{AtomicBool, Ordering, relax};

/// A value for one thread at a time.
pub(crate) struct Lock<T> {
    taken: Alone,
    value: UnsafeCell<T>,
    /// A cell with which loom detects two owners at once.
    #[cfg(lowtide_loom)]
    owner: loom::cell::UnsafeCell<()>,
}

/// The flag that waiters read. Its cache line, and the pair that is fetched with it, hold nothing
/// that the owner works on.
#[repr(align(128))]
struct Alone(AtomicBool);

// SAFETY: the value is reached through `Locked` alone, and at most one `Locked` exists: `taken`
// goes from false to true for one thread, and back when its `Locked` is dropped. Acquire and
// release order the threads' accesses to the value. So the value moves between threads, and is
// never shared: `Send` is enough.
unsafe impl<T: Send> Sync for Lock<T> {}

/// A guard that holds the lock until it is dropped.
pub(crate) struct Locked<'a, T> {
    lock: &'a Lock<T>,
    /// The guard may be sent and shared where a reference may.
    value: PhantomData<&'a mut T>,
    #[cfg(lowtide_loom)]
    owner: Option<loom::cell::MutPtr<()>>,
}

impl<T> Lock<T> {
    pub(crate) fn new(value: T) -> Lock<T> {
        Lock {
            taken: Alone(AtomicBool::new(false)),
            value: UnsafeCell::new(value),
            #[cfg(lowtide_loom)]
            owner: loom::cell::UnsafeCell::new(()),
        }
    }

    /// Waits until no other thread has the lock. A thread that has the lock already waits for ever.
    #[inline]
    pub(crate) fn lock(&self) -> Locked<'_, T> {
        if !self.try_take() {
            self.wait();
        }
        Locked {
            lock: self,
            value: PhantomData,
            #[cfg(lowtide_loom)]
            owner: Some(self.owner.get_mut()),
        }
    }

    #[inline]
    fn try_take(&self) -> bool {
        let exchanged =
            self.taken.0.compare_exchange(false, true, Ordering::Acquire, Ordering::Relaxed);
        exchanged.is_ok()
    }

    #[cold]
    fn wait(&self) {
        let mut round = 0;
        while self.looks_taken() || !self.try_take() {
            relax(round);
            round += 1;
        }
    }

    /// Polls the flag without taking its cache line. A loom model may return the same old value for
    /// ever, so under loom every waiter tries to take the lock.
    fn looks_taken(&self) -> bool {
        !cfg!(lowtide_loom) && self.taken.0.load(Ordering::Relaxed)
    }
}

impl<T> Deref for Locked<'_, T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        // SAFETY: this thread has the lock, and `&self` excludes `deref_mut`.
        unsafe { &*self.lock.value.get() }
    }
}

impl<T> DerefMut for Locked<'_, T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: this thread has the lock, and `&mut self` excludes every other reference.
        unsafe { &mut *self.lock.value.get() }
    }
}

impl<T> Drop for Locked<'_, T> {
    #[inline]
    fn drop(&mut self) {
        #[cfg(lowtide_loom)]
        drop(self.owner.take());
        self.lock.taken.0.store(false, Ordering::Release);
    }
}
