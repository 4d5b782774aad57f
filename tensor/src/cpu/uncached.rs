//! Stores past the caches. A plain store first reads the old line from memory; for a result that is
//! too large for the caches, this traffic is wasted.

#![allow(unsafe_code, reason = "these stores take a pointer")]

use crate::dtype::Element;

/// Copies `from` to `to` past the caches, where the processor can. [`fence`] has to follow on the
/// same thread before another thread reads.
///
/// # Panics
/// If the lengths differ.
#[cfg(all(target_arch = "x86_64", not(miri)))]
pub(crate) fn copy<T: Element>(from: &[T], to: &mut [T]) {
    use std::arch::x86_64::{__m128i, _mm_loadu_si128, _mm_stream_si128};

    let (from, to): (&[u8], &mut [u8]) = (bytemuck::cast_slice(from), bytemuck::cast_slice_mut(to));
    assert_eq!(from.len(), to.len());
    // SAFETY: any 16 bytes are a vector, and any vector is 16 bytes.
    let (head, lines, tail) = unsafe { to.align_to_mut::<__m128i>() };
    let (from_head, rest) = from.split_at(head.len());
    let (from_lines, from_tail) = rest.split_at(rest.len() - tail.len());
    head.copy_from_slice(from_head);
    tail.copy_from_slice(from_tail);
    for (line, from) in lines.iter_mut().zip(from_lines.chunks_exact(size_of::<__m128i>())) {
        // SAFETY: `from` has 16 bytes, and the load may be unaligned.
        let vector = unsafe { _mm_loadu_si128(from.as_ptr().cast()) };
        // SAFETY: `line` is a reference, so it is aligned and may be written; `fence` orders it.
        unsafe { _mm_stream_si128(line, vector) };
    }
}

#[cfg(not(all(target_arch = "x86_64", not(miri))))]
pub(crate) fn copy<T: Element>(from: &[T], to: &mut [T]) {
    to.copy_from_slice(from);
}

/// Makes the stores of [`copy`] visible to a thread that sees a later store of this thread.
pub(crate) fn fence() {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    // SAFETY: every x86-64 processor has the instruction, and it changes no memory.
    unsafe {
        std::arch::x86_64::_mm_sfence();
    }
}
