//! Slices cut in fixed chunks, one task per chunk: how a kernel writes from many threads.

#![allow(unsafe_code, reason = "disjoint parts of one slice go to different threads")]

use std::marker::PhantomData;

use super::pool::Pool;

/// A slice and the length of its chunks; the last one may be shorter.
pub(crate) struct Chunked<'a, T> {
    start: *mut T,
    len: usize,
    chunk_len: usize,
    slice: PhantomData<&'a mut [T]>,
}

impl<'a, T> Chunked<'a, T> {
    /// Cuts `slice` every `chunk_len` elements; a `chunk_len` of 0 counts as 1.
    pub(crate) fn new(slice: &'a mut [T], chunk_len: usize) -> Self {
        let (start, len) = (slice.as_mut_ptr(), slice.len());
        Self { start, len, chunk_len: chunk_len.max(1), slice: PhantomData }
    }

    /// How many chunks there are, the short last one included.
    pub(crate) fn count(&self) -> usize {
        self.len.div_ceil(self.chunk_len)
    }

    /// # Safety
    /// No two living results may come from the same `index`.
    unsafe fn chunk(&self, index: usize) -> &'a mut [T] {
        let begin = index * self.chunk_len;
        assert!(begin < self.len, "chunk {index} of {}", self.count());
        let len = self.chunk_len.min(self.len - begin);
        // SAFETY: `begin < len` of the slice, so the pointer stays inside its allocation.
        let start = unsafe { self.start.add(begin) };
        // SAFETY: 1. `begin + len` is within the slice, borrowed mutably for 'a; 2. chunks of
        // different indices do not overlap; 3. the caller promises one result per index.
        unsafe { std::slice::from_raw_parts_mut(start, len) }
    }
}

// SAFETY: sharing this only lets threads call `chunk`, whose contract gives each element to one
// thread at a time: that is sending `&mut [T]`, which `T: Send` permits. Nothing reads through
// a shared reference, so `T: Sync` is not needed.
unsafe impl<T: Send> Sync for Chunked<'_, T> {}

/// Calls `task(chunk_index, chunk)` for every chunk of `slice`.
pub(crate) fn for_each_chunk<T: Send>(
    pool: &Pool,
    slice: &mut [T],
    chunk_len: usize,
    task: impl Fn(usize, &mut [T]) + Sync,
) {
    let chunks = Chunked::new(slice, chunk_len);
    pool.run(chunks.count(), &|index| {
        // SAFETY: `run` calls each index once, so each chunk has one owner.
        task(index, unsafe { chunks.chunk(index) });
    });
}

/// [`for_each_chunk`] over two slices at once.
///
/// # Panics
/// If `b` has fewer chunks than `a`; more are left alone (scratch may be larger than needed).
pub(crate) fn for_each_chunk2<T: Send, U: Send>(
    pool: &Pool,
    a: Chunked<'_, T>,
    b: Chunked<'_, U>,
    task: impl Fn(usize, &mut [T], &mut [U]) + Sync,
) {
    assert!(b.count() >= a.count(), "{} chunks against {}", a.count(), b.count());
    pool.run(a.count(), &|index| {
        // SAFETY: `run` calls each index once, so each chunk has one owner.
        let a = unsafe { a.chunk(index) };
        // SAFETY: as above; `a` and `b` come from two `&mut` borrows, so they are disjoint.
        let b = unsafe { b.chunk(index) };
        task(index, a, b);
    });
}

/// [`for_each_chunk2`] over three slices.
pub(crate) fn for_each_chunk3<T: Send, U: Send, V: Send>(
    pool: &Pool,
    a: Chunked<'_, T>,
    b: Chunked<'_, U>,
    c: Chunked<'_, V>,
    task: impl Fn(usize, &mut [T], &mut [U], &mut [V]) + Sync,
) {
    assert!(c.count() >= a.count(), "{} chunks against {}", a.count(), c.count());
    for_each_chunk2(pool, a, b, |index, a, b| {
        // SAFETY: the outer call gives each index to one task, so this chunk has one owner.
        task(index, a, b, unsafe { c.chunk(index) });
    });
}

/// [`for_each_chunk`] over a slice and `N` of another type.
///
/// # Panics
/// If one of `others` has fewer chunks than `a`.
pub(crate) fn for_each_chunk_with<T: Send, U: Send, const N: usize>(
    pool: &Pool,
    a: Chunked<'_, T>,
    others: [Chunked<'_, U>; N],
    task: impl Fn(usize, &mut [T], [&mut [U]; N]) + Sync,
) {
    assert!(others.iter().all(|other| other.count() >= a.count()), "too few chunks");
    pool.run(a.count(), &|index| {
        // SAFETY: `run` calls each index once, so each chunk has one owner.
        let a = unsafe { a.chunk(index) };
        // SAFETY: as above; all come from different `&mut` borrows, so they are disjoint.
        task(index, a, others.each_ref().map(|other| unsafe { other.chunk(index) }));
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chunks_cover_the_slice_once_and_in_place() {
        let pool = Pool::new(3);
        for len in [0, 1, 5, 16, 97] {
            for chunk_len in [0, 1, 4, 16, 200] {
                let mut a = vec![0; len];
                let mut b = vec![0; len];
                let mut c = vec![0; len];
                let cut = chunk_len.max(1);
                for_each_chunk(&pool, &mut a, chunk_len, |index, a| {
                    a.iter_mut().enumerate().for_each(|(i, a)| *a += index * cut + i);
                });
                for_each_chunk3(
                    &pool,
                    Chunked::new(&mut a, chunk_len),
                    Chunked::new(&mut b, chunk_len),
                    Chunked::new(&mut c, chunk_len),
                    |index, a, b, c| {
                        b.copy_from_slice(a);
                        c.fill(index + 1);
                    },
                );
                assert!(a.iter().copied().eq(0..len));
                assert_eq!(a, b);
                assert!(c.iter().enumerate().all(|(i, &c)| c == i / cut + 1));
            }
        }
    }

    #[test]
    #[should_panic(expected = "3 chunks against 2")]
    fn a_missing_chunk_is_refused() {
        let pool = Pool::new(1);
        let (mut a, mut b) = ([0; 3], [0; 2]);
        let chunks = (Chunked::new(&mut a, 1), Chunked::new(&mut b, 1));
        for_each_chunk2(&pool, chunks.0, chunks.1, |_, _, _| ());
    }
}
