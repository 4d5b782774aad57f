//! Synchronisation for the allocator: `std`, or loom's models of it under `cfg(lowtide_loom)`.
//!
//! The models in `models.rs` explore the interleavings of the very code that ships. So that code
//! must name the types of this module and not those of `std`. `Arc` is always `std`'s: loom's has
//! no `Weak`, and does not turn into an `Arc` of a trait.

#[cfg(not(lowtide_loom))]
pub(crate) use std::{
    sync::atomic::{AtomicBool, AtomicU8, Ordering},
    sync::{Mutex, MutexGuard},
    thread,
};

#[cfg(lowtide_loom)]
pub(crate) use loom::{
    sync::atomic::{AtomicBool, AtomicU8, Ordering},
    sync::{Mutex, MutexGuard},
    thread,
};

/// Number of rounds in which a waiter spins, each twice as long as the round before.
#[cfg(not(lowtide_loom))]
const SPIN_ROUNDS: u32 = 6;
/// Number of rounds in which a waiter yields the processor to other threads.
#[cfg(not(lowtide_loom))]
const YIELD_ROUNDS: u32 = 8;
/// Number of doublings of the sleep, from 1 µs up to about a millisecond.
#[cfg(not(lowtide_loom))]
const SLEEP_DOUBLINGS_MAX: u32 = 10;

/// Waits between two polls of a value that another thread changes.
#[cfg(not(lowtide_loom))]
pub(crate) fn relax(round: u32) {
    if round < SPIN_ROUNDS {
        (0..32 << round).for_each(|_| std::hint::spin_loop());
    } else if round < SPIN_ROUNDS + YIELD_ROUNDS {
        thread::yield_now();
    } else {
        let doublings = (round - SPIN_ROUNDS - YIELD_ROUNDS).min(SLEEP_DOUBLINGS_MAX);
        thread::sleep(std::time::Duration::from_micros(1 << doublings));
    }
}

/// Lets another thread of the model go on.
#[cfg(lowtide_loom)]
pub(crate) fn relax(_round: u32) {
    thread::yield_now();
}
