//! Synchronisation of the pool: by `std`, or by loom's models of it under `cfg(lowtide_loom)`.
//!
//! The models in `pool.rs` explore the interleavings of the code that ships, so the pool must use
//! these names and not `std`. The cfg has its own name, as `cfg(loom)` would also switch every
//! dependency that knows it.

#[cfg(not(lowtide_loom))]
pub(super) use std::{
    hint::spin_loop,
    sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, AtomicUsize, fence},
    sync::{Arc, Condvar, Mutex},
    thread,
};

#[cfg(lowtide_loom)]
pub(super) use loom::{
    sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, AtomicUsize, fence},
    sync::{Arc, Condvar, Mutex},
    thread,
};

/// Loom's own `spin_loop` runs a spinning thread only if no other thread can run. The pool spins a
/// bounded number of times and then parks, so the models would see few of the interleavings that
/// lead there.
#[cfg(lowtide_loom)]
pub(super) fn spin_loop() {}
