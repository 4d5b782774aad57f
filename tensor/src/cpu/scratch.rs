//! Memory on the stack of a thread, which no caller has to allocate or clear.

#![allow(unsafe_code, reason = "the stack is used as it is found")]

use std::mem::MaybeUninit;

use super::math::SimdFloat;

/// Alignment of the parts of scratch: a cache line, so that vectors do not straddle lines.
const LINE_BYTES: usize = 64;

/// Bytes of the largest scratch memory of a task.
pub(super) const SCRATCH_BYTES: usize = 488 << 10;

/// Bytes of scratch memory for small products. Pages of the stack are probed one by one, which for
/// the largest scratch memory would take as long as a small product.
const SMALL_SCRATCH_BYTES: usize = 40 << 10;

/// Scratch memory with arbitrary contents.
pub(super) struct Scratch<'a>(&'a mut [MaybeUninit<u8>]);

#[repr(C, align(64))]
struct Room<const BYTES: usize>([MaybeUninit<u8>; BYTES]);

/// Runs `task` with scratch for `N` slices of these lengths.
pub(super) fn with_scratch<T: SimdFloat, const N: usize>(
    lens: [usize; N],
    task: impl FnOnce(Scratch<'_>),
) {
    let size_bytes: usize = lens.into_iter().map(size_bytes::<T>).sum();
    match size_bytes <= SMALL_SCRATCH_BYTES {
        true => with_room::<SMALL_SCRATCH_BYTES>(task),
        false => with_room::<SCRATCH_BYTES>(task),
    }
}

/// Never inlined, because the caller would then have the room on its stack too.
#[inline(never)]
fn with_room<const BYTES: usize>(task: impl FnOnce(Scratch<'_>)) {
    task(Scratch(&mut Room::<BYTES>([MaybeUninit::uninit(); BYTES]).0));
}

/// Bytes of `len` numbers, rounded up to whole cache lines.
fn size_bytes<T>(len: usize) -> usize {
    (len * size_of::<T>()).next_multiple_of(LINE_BYTES)
}

impl Scratch<'_> {
    /// Slices of these lengths, all 0.
    ///
    /// # Panics
    /// If the scratch memory is too small.
    pub(super) fn zeroed<T: SimdFloat, const N: usize>(
        &mut self,
        lens: [usize; N],
    ) -> [&mut [T]; N] {
        let mut rest = &mut *self.0;
        lens.map(|len| {
            let part = rest.split_off_mut(..size_bytes::<T>(len)).expect("there is as much");
            part.fill(MaybeUninit::new(0));
            let start = part.as_mut_ptr().cast::<T>();
            assert!(start.is_aligned());
            // SAFETY: the numbers are aligned, inside the part and borrowed with it; all of its
            // bytes are 0, which is a number.
            unsafe { std::slice::from_raw_parts_mut(start, len) }
        })
    }
}
