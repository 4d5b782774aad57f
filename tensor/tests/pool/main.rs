//! The tests and the models in the files of the pool of threads, which look at its state. These
//! files need nothing else of the library, and are compiled here without it.

#![cfg_attr(lowtide_loom, allow(dead_code, reason = "models look at less than tests"))]

#[cfg(not(lowtide_loom))]
#[path = "../../src/cpu/chunk.rs"]
mod chunk;
#[path = "../../src/cpu/pool.rs"]
mod pool;
#[path = "../../src/cpu/sync.rs"]
mod sync;
