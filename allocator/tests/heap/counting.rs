//! The system's allocator, with a count of the bytes that each thread holds.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

struct Counting;

thread_local! {
    static LIVE_BYTES: Cell<isize> = const { Cell::new(0) };
    static PEAK_BYTES: Cell<isize> = const { Cell::new(0) };
}

fn count(bytes: isize) {
    let live_bytes = LIVE_BYTES.get() + bytes;
    LIVE_BYTES.set(live_bytes);
    PEAK_BYTES.set(PEAK_BYTES.get().max(live_bytes));
}

// SAFETY: every method passes its arguments unchanged to `System`, so the caller's promises hold
// there too. Counting touches two cells of the thread and allocates nothing.
unsafe impl GlobalAlloc for Counting {
    // SAFETY: the caller keeps the promises of `System::alloc`.
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size() as isize);
        // SAFETY: the layout is the caller's, unchanged.
        unsafe { System.alloc(layout) }
    }

    // SAFETY: the caller keeps the promises of `System::dealloc`.
    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        count(-(layout.size() as isize));
        // SAFETY: the pointer came from `System` with this layout, see `alloc`.
        unsafe { System.dealloc(pointer, layout) }
    }

    // SAFETY: the caller keeps the promises of `System::alloc_zeroed`.
    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        count(layout.size() as isize);
        // SAFETY: the layout is the caller's, unchanged.
        unsafe { System.alloc_zeroed(layout) }
    }

    // SAFETY: the caller keeps the promises of `System::realloc`.
    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size_bytes: usize) -> *mut u8 {
        count(size_bytes as isize - layout.size() as isize);
        // SAFETY: the pointer came from `System` with this layout, see `alloc`.
        unsafe { System.realloc(pointer, layout, size_bytes) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

/// Bytes that this thread holds.
pub(crate) fn live_bytes() -> isize {
    LIVE_BYTES.get()
}

/// Runs `work`. Returns its result and the peak of the thread's bytes beyond the bytes held before.
pub(crate) fn peak_of<T>(work: impl FnOnce() -> T) -> (T, usize) {
    let before = LIVE_BYTES.get();
    PEAK_BYTES.set(before);
    let done = work();
    (done, (PEAK_BYTES.get() - before) as usize)
}
