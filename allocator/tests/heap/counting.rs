//! The system's allocator, which counts what each thread holds.

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

// SAFETY: every method hands its arguments on to `System` as they are, so what the caller promised
// of them holds there; counting touches two cells of the thread and allocates nothing.
unsafe impl GlobalAlloc for Counting {
    // SAFETY: the same promises that `System::alloc` asks of its caller.
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size() as isize);
        // SAFETY: the caller's layout, as it is.
        unsafe { System.alloc(layout) }
    }

    // SAFETY: the same promises that `System::dealloc` asks of its caller.
    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        count(-(layout.size() as isize));
        // SAFETY: the pointer came from `System` with this layout, see `alloc`.
        unsafe { System.dealloc(pointer, layout) }
    }

    // SAFETY: the same promises that `System::alloc_zeroed` asks of its caller.
    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        count(layout.size() as isize);
        // SAFETY: the caller's layout, as it is.
        unsafe { System.alloc_zeroed(layout) }
    }

    // SAFETY: the same promises that `System::realloc` asks of its caller.
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

/// The most that this thread holds during `work`, beyond what it held before.
pub(crate) fn peak_of<T>(work: impl FnOnce() -> T) -> (T, usize) {
    let before = LIVE_BYTES.get();
    PEAK_BYTES.set(before);
    let done = work();
    (done, (PEAK_BYTES.get() - before) as usize)
}
