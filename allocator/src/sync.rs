//! What the allocator synchronises with: `std`, or loom's models of it under `cfg(lowtide_loom)`.
//!
//! The models in `models.rs` explore the interleavings of the very code that ships, so that code
//! must name these and not `std`. `Arc` is always `std`'s: loom's has no `Weak`, and does not turn
//! into an `Arc` of a trait.

#[cfg(not(lowtide_loom))]
pub(crate) use std::{
    sync::atomic::{AtomicU8, Ordering},
    sync::{Mutex, MutexGuard},
    thread,
};

#[cfg(lowtide_loom)]
pub(crate) use loom::{
    sync::atomic::{AtomicU8, Ordering},
    sync::{Mutex, MutexGuard},
    thread,
};
