//! Synchronisation of the pool: by `std`, or by loom's models of it under `cfg(lowtide_loom)`.
//!
//! The models in `pool.rs` explore the interleavings of the very code that ships, so that code
//! must name these and not `std`. The cfg has its own name, as `cfg(loom)` would also switch every
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

/// Loom's own runs a thread that spins only when no other can. The pool spins a bounded number of
/// times and then parks, and the models would see few of the interleavings that lead there.
#[cfg(lowtide_loom)]
pub(super) fn spin_loop() {}
