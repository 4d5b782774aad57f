//! Bytes of a stranger as a memory snapshot: refused or read, never a panic, never much memory.

#![no_main]

use libfuzzer_sys::fuzz_target;
use lowtide_allocator::trace::{Limits, Recording, Replay, read_snapshot};

fuzz_target!(|bytes: &[u8]| {
    let limits = Limits { pickle_bytes: 1 << 20, window_bytes: 1 << 20, ..Limits::default() };
    if let Ok(snapshot) = read_snapshot(bytes, limits) {
        let _ = Recording::from_snapshot(&snapshot, Replay::busiest_device(&snapshot));
    }
});
