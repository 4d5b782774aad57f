//! How much memory the `gemm` library takes behind our back, as an upper bound.
//!
//! The library packs the panels of a call in a buffer of its own, which it frees at the end of the
//! call, and keeps for each thread a slab of the size of a second-level cache, which lives as long
//! as the thread. The bound follows `gemm-common` 0.19, `gemm.rs` and `cache.rs`.

use super::gemm::{PANEL_K, PANEL_M, PANEL_N, is_small, panel_len};

/// What the library's appetite depends on. Part of a simulated processor's specification.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CacheSizes {
    /// Bytes of second-level cache per thread: the size of a thread's slab.
    pub l2_bytes: usize,
    /// Bytes of last-level cache, 0 if there is none (the library then packs wider panels).
    pub l3_bytes: usize,
}

impl CacheSizes {
    /// The sizes that the library goes by on this machine.
    pub fn detect() -> Self {
        let [_, l2, l3] = *gemm_common::cache::CACHE_INFO;
        Self { l2_bytes: l2.cache_bytes, l3_bytes: l3.cache_bytes }
    }
}

/// An upper bound of the bytes that products of this shape make the library hold, on all threads
/// together, from the first product until the threads end. 0 if they never reach the library.
pub(crate) fn packing_bytes_bound(
    dtype_bytes: usize,
    m: usize,
    k: usize,
    n: usize,
    threads: usize,
    caches: CacheSizes,
) -> usize {
    /// Alignment of every buffer of the library.
    const ALIGN_BYTES: usize = 128;
    /// No micro-kernel of the library is taller or wider.
    const MR_MAX: usize = 64;
    const NR_MAX: usize = 8;
    /// Columns packed at once where there is no last-level cache to count on.
    const NO_L3_COLUMNS: usize = 128 * NR_MAX;
    if is_small(m, k, n) {
        return 0;
    }
    let k = k.min(PANEL_K);
    // The library exchanges the operands when y is row-major, so either may be "left".
    let packed_bytes = |left: usize, right: usize| {
        let mut right = right.next_multiple_of(NR_MAX);
        if caches.l3_bytes == 0 {
            right = right.max(NO_L3_COLUMNS);
        }
        // Column counts are rounded up to the kernel's width, which need not be a power of two.
        (left + MR_MAX + right + NR_MAX) * k * dtype_bytes
    };
    let (m, n) = (panel_len(m, PANEL_M), panel_len(n, PANEL_N));
    // One flag per strip of the slab; a strip is at least one row of k elements.
    let flags_bytes = caches.l2_bytes / (dtype_bytes * k.max(1));
    let call_bytes = packed_bytes(m, n).max(packed_bytes(n, m)) + flags_bytes + 3 * ALIGN_BYTES;
    threads.max(1) * (caches.l2_bytes + ALIGN_BYTES + call_bytes)
}

#[cfg(test)]
mod tests {
    #![expect(unsafe_code, reason = "an allocator that counts")]

    use std::alloc::{GlobalAlloc, Layout, System};
    use std::cell::Cell;

    use proptest::prelude::*;

    use super::*;
    use crate::cpu::gemm::{Gemm, Matrix, MatrixMut, gemm};
    use crate::cpu::pool::Pool;

    thread_local! {
        /// Bytes this thread holds, and the most it held; other tests run beside this one.
        static HELD_BYTES: Cell<(isize, isize)> = const { Cell::new((0, 0)) };
    }

    fn note(change_bytes: isize) {
        // A thread that is ending has no cell any more; nothing is measured there.
        let _ = HELD_BYTES.try_with(|held| {
            let now = held.get().0 + change_bytes;
            held.set((now, held.get().1.max(now)));
        });
    }

    struct Counting;

    // SAFETY: every call is handed to `System` with its arguments unchanged, and the counting
    // allocates nothing: the cell is constant-initialised and has no destructor.
    unsafe impl GlobalAlloc for Counting {
        // SAFETY: the caller's obligations are those of `System`.
        unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
            note(layout.size().cast_signed());
            // SAFETY: the caller's obligations are those of `System`.
            unsafe { System.alloc(layout) }
        }

        // SAFETY: the caller's obligations are those of `System`.
        unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
            note(-layout.size().cast_signed());
            // SAFETY: the caller's obligations are those of `System`.
            unsafe { System.dealloc(pointer, layout) }
        }
    }

    #[global_allocator]
    static ALLOCATOR: Counting = Counting;

    /// The most that a thread without a past holds during a product, beyond the operands.
    fn taken_bytes<T: Gemm>([m, k, n]: [usize; 3], turned: [bool; 2], y_turned: bool) -> usize {
        let matrix = move |rows: usize, cols: usize, turned: bool| {
            if turned { [1, rows] } else { [cols, 1] }
        };
        let product = move || {
            let pool = Pool::new(1);
            let (a, b) = (vec![T::ONE; m * k], vec![T::ONE; k * n]);
            let mut y = vec![T::ZERO; m * n];
            let [a, b] =
                [(&a, m, k, turned[0]), (&b, k, n, turned[1])].map(|(data, rows, cols, turned)| {
                    let [row_stride, col_stride] = matrix(rows, cols, turned);
                    Matrix { data, row_stride, col_stride }
                });
            let [row_stride, col_stride] = matrix(m, n, y_turned);
            let y = MatrixMut { data: &mut y, row_stride, col_stride };
            let before = HELD_BYTES.get().0;
            HELD_BYTES.set((before, before));
            gemm(&pool, [m, k, n], T::ONE, a, b, T::ZERO, y);
            (HELD_BYTES.get().1 - before).cast_unsigned()
        };
        std::thread::spawn(product).join().expect("the product panicked")
    }

    fn check_bound<T: Gemm>(size: [usize; 3], turned: [bool; 2], y_turned: bool) {
        let caches = CacheSizes::detect();
        let [m, k, n] = size;
        let taken = taken_bytes::<T>(size, turned, y_turned);
        let bound = packing_bytes_bound(size_of::<T>(), m, k, n, 1, caches);
        assert!(taken <= bound, "{size:?} took {taken} bytes of {bound}, {caches:?}");
    }

    fn len() -> impl Strategy<Value = usize> {
        prop_oneof![1..=5usize, 6..=40usize, 60..=70usize, 120..=140usize, 250..=600usize]
    }

    proptest! {
        #[test]
        fn library_takes_no_more_than_the_bound(
            size in [len(), len(), len()],
            turned in any::<[bool; 2]>(),
            y_turned in any::<bool>(),
        ) {
            check_bound::<f32>(size, turned, y_turned);
            check_bound::<f64>(size, turned, y_turned);
        }
    }

    #[test]
    fn counting_sees_the_library() {
        // Otherwise any bound would do. This product packs both operands or fills the slab.
        assert!(taken_bytes::<f32>([200, 600, 200], [true, false], false) > 128 * 1024);
    }

    #[test]
    fn bound_grows_with_threads_and_not_with_size() {
        let caches = CacheSizes { l2_bytes: 1 << 20, l3_bytes: 32 << 20 };
        let bound = |len: usize, threads| packing_bytes_bound(4, len, len, len, threads, caches);
        assert_eq!(bound(1024, 4), 4 * bound(1024, 1));
        assert_eq!(bound(4096, 1), bound(1024, 1));
        assert!(bound(1024, 1) < 2 << 20);
    }

    #[test]
    fn small_products_take_nothing() {
        let caches = CacheSizes { l2_bytes: 1 << 20, l3_bytes: 32 << 20 };
        assert_eq!(packing_bytes_bound(4, 64, 64, 64, 8, caches), 0);
        assert!(packing_bytes_bound(4, 65, 64, 64, 8, caches) > 0);
    }
}
