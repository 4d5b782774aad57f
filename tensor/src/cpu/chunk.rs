//! Slices cut into fixed chunks, one task per chunk, so that a kernel writes from many threads.

#![allow(unsafe_code, reason = "disjoint parts of one slice go to different threads")]

use std::marker::PhantomData;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::pool::Pool;

/// A slice and the length of its chunks; the last chunk may be shorter.
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

    /// The number of chunks, the short last one included.
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
/// If `b` has fewer chunks than `a`. Further chunks of `b` are not touched: scratch may be larger
/// than needed.
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

/// Groups of rows, each cut into parts of `chunk_rows` rows. The last part of a group may have
/// fewer rows, and a group without rows is one empty part.
pub(crate) struct Blocks<'a, T> {
    elements: Chunked<'a, T>,
    group_count: usize,
    group_rows: usize,
    chunk_rows: usize,
    row_len: usize,
}

impl<'a, T> Blocks<'a, T> {
    /// # Panics
    /// If `slice` is not `group_count * group_rows * row_len` long.
    pub(crate) fn new(
        slice: &'a mut [T],
        [group_count, group_rows]: [usize; 2],
        chunk_rows: usize,
        row_len: usize,
    ) -> Self {
        assert_eq!(slice.len(), group_count * group_rows * row_len);
        let elements = Chunked::new(slice, 1);
        Blocks { elements, group_count, group_rows, chunk_rows: chunk_rows.max(1), row_len }
    }

    fn group_parts(&self) -> usize {
        self.group_rows.div_ceil(self.chunk_rows).max(1)
    }
}

/// Memory that is cut into disjoint parts for tasks.
pub(crate) trait Parts: Sync {
    /// The part of one task.
    type Part;

    /// The number of parts.
    fn count(&self) -> usize;

    /// # Safety
    /// No two living results may come from the same `index`.
    unsafe fn part(&self, index: usize) -> Self::Part;
}

impl<'a, T: Send> Parts for Blocks<'a, T> {
    type Part = &'a mut [T];

    fn count(&self) -> usize {
        self.group_count * self.group_parts()
    }

    // SAFETY: the contract is the trait's, one living result for each index.
    unsafe fn part(&self, index: usize) -> &'a mut [T] {
        assert!(index < self.count(), "part {index} of {}", self.count());
        let (group, part) = (index / self.group_parts(), index % self.group_parts());
        let first = part * self.chunk_rows;
        let rows = self.chunk_rows.min(self.group_rows - first);
        let begin = (group * self.group_rows + first) * self.row_len;
        // SAFETY: `new` checked that the slice is as long as all rows of all groups, so `begin` is
        // at most its length.
        let start = unsafe { self.elements.start.add(begin) };
        // SAFETY: 1. the part ends inside its group, so inside the slice, which is borrowed
        // mutably for 'a; 2. parts of different indices are different rows; 3. the caller promises
        // one result per index.
        unsafe { std::slice::from_raw_parts_mut(start, rows * self.row_len) }
    }
}

impl<A: Parts, B: Parts> Parts for (A, B) {
    type Part = (A::Part, B::Part);

    fn count(&self) -> usize {
        assert_eq!(self.0.count(), self.1.count());
        self.0.count()
    }

    // SAFETY: the contract is the trait's, one living result for each index.
    unsafe fn part(&self, index: usize) -> Self::Part {
        // SAFETY: the caller promises one living result for each index, so the first has one too.
        let a = unsafe { self.0.part(index) };
        // SAFETY: the promise covers the second as well; both come from different `&mut` borrows.
        (a, unsafe { self.1.part(index) })
    }
}

/// A slice and `N` slices of another type, cut into chunks. Chunks of one index form one part.
pub(crate) struct Cut<'a, T, U, const N: usize> {
    first: Chunked<'a, T>,
    others: [Chunked<'a, U>; N],
}

impl<'a, T, U, const N: usize> Cut<'a, T, U, N> {
    /// # Panics
    /// If one of `others` has fewer chunks than `first`.
    pub(crate) fn new(first: Chunked<'a, T>, others: [Chunked<'a, U>; N]) -> Self {
        assert!(others.iter().all(|other| other.count() >= first.count()), "too few chunks");
        Cut { first, others }
    }
}

impl<'a, T: Send, U: Send, const N: usize> Parts for Cut<'a, T, U, N> {
    type Part = (&'a mut [T], [&'a mut [U]; N]);

    fn count(&self) -> usize {
        self.first.count()
    }

    // SAFETY: the contract is the trait's, one living result for each index.
    unsafe fn part(&self, index: usize) -> Self::Part {
        // SAFETY: the caller promises one living result for each index, so this chunk has one
        // owner.
        let first = unsafe { self.first.chunk(index) };
        // SAFETY: as above; all come from different `&mut` borrows, so they are disjoint.
        (first, self.others.each_ref().map(|other| unsafe { other.chunk(index) }))
    }
}

/// The parts of several things, one thing after the other.
pub(crate) struct Joined<P> {
    things: Vec<P>,
    /// The number of parts up to the end of each thing.
    ends: Vec<usize>,
}

impl<P: Parts> Joined<P> {
    pub(crate) fn new(things: Vec<P>) -> Self {
        let mut end = 0;
        let count = |thing: &P| {
            end += thing.count();
            end
        };
        let ends = things.iter().map(count).collect();
        Joined { things, ends }
    }
}

/// Calls `task(thing, index, part)` for every part of every thing, all as one job.
pub(crate) fn for_each_joined_part<P: Parts>(
    pool: &Pool,
    joined: Joined<P>,
    task: impl Fn(usize, usize, P::Part) + Sync,
) {
    pool.run(joined.ends.last().copied().unwrap_or(0), &|index| {
        let thing = joined.ends.partition_point(|&end| end <= index);
        let index = index - if thing == 0 { 0 } else { joined.ends[thing - 1] };
        // SAFETY: `run` calls each index once, and the ends map it to one part of one thing.
        task(thing, index, unsafe { joined.things[thing].part(index) });
    });
}

/// Calls `task(index, part, scratch)` for every part, on at most one thread per chunk of scratch.
/// The scratch of a task holds whatever an earlier task left in it.
pub(crate) fn for_each_part_with_scratch<P: Parts, S: Send>(
    pool: &Pool,
    parts: P,
    scratch: Chunked<'_, S>,
    task: impl Fn(usize, P::Part, &mut [S]) + Sync,
) {
    let (next, count) = (AtomicUsize::new(0), parts.count());
    assert!(count == 0 || scratch.count() > 0, "no scratch for {count} parts");
    pool.run(scratch.count(), &|slot| {
        // SAFETY: `run` calls each slot once, so each chunk has one owner.
        let scratch = unsafe { scratch.chunk(slot) };
        loop {
            let index = next.fetch_add(1, Ordering::Relaxed);
            if index >= count {
                return;
            }
            // SAFETY: the counter gives each index out once.
            task(index, unsafe { parts.part(index) }, scratch);
        }
    });
}

// Compiled by `tests/pool/main.rs`.
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
    fn parts_cover_every_group_once_and_scratch_has_one_user() {
        let pool = Pool::new(3);
        for (groups, rows, chunk_rows, row_len) in
            [(3, 10, 4, 2), (2, 4, 4, 1), (4, 1, 9, 3), (3, 0, 4, 2), (0, 5, 2, 1), (2, 6, 4, 0)]
        {
            let mut a = vec![0; groups * rows * row_len];
            let mut b = vec![usize::MAX; groups * rows];
            let mut scratch = vec![0; 3 * 5];
            let cut = [groups, rows];
            let parts = (
                Blocks::new(&mut a, cut, chunk_rows, row_len),
                Blocks::new(&mut b, cut, chunk_rows, 1),
            );
            let used = AtomicUsize::new(0);
            for_each_part_with_scratch(
                &pool,
                parts,
                Chunked::new(&mut scratch, 5),
                |index, (a, b), scratch| {
                    scratch.iter_mut().for_each(|x| *x += 1);
                    used.fetch_add(1, Ordering::Relaxed);
                    assert_eq!(a.len(), b.len() * row_len);
                    a.iter_mut().for_each(|a| *a += 1);
                    b.fill(index);
                },
            );
            assert!(a.iter().all(|&a| a == 1));
            let per_group = rows.div_ceil(chunk_rows).max(1);
            let part = |at: usize| at / rows * per_group + at % rows / chunk_rows;
            assert!(b.iter().enumerate().all(|(at, &b)| b == part(at)));
            assert_eq!(used.into_inner(), groups * per_group);
            assert_eq!(scratch.iter().sum::<usize>(), 5 * groups * per_group);
        }
    }

    #[test]
    fn joined_things_are_each_cut_once() {
        let pool = Pool::new(3);
        let lens = [0, 5, 16, 0, 0, 1, 33, 0];
        let mut a = lens.map(|len| vec![0; len]);
        let mut b = lens.map(|len| vec![(0, 0); 2 * len]);
        let cut = |(a, b)| Cut::new(Chunked::new(a, 4), [Chunked::new(b, 8)]);
        let pairs = a.iter_mut().map(Vec::as_mut_slice).zip(b.iter_mut().map(Vec::as_mut_slice));
        for_each_joined_part(
            &pool,
            Joined::new(pairs.map(cut).collect()),
            |thing, index, (a, [b])| {
                assert_eq!(b.len(), 2 * a.len());
                a.iter_mut().for_each(|a| *a += 1);
                b.fill((thing, index));
            },
        );
        assert!(a.iter().flatten().all(|&a| a == 1));
        for (thing, b) in b.iter().enumerate() {
            assert!(b.iter().enumerate().all(|(i, &at)| at == (thing, i / 8)));
        }
        for_each_joined_part(&pool, Joined::<Blocks<'_, u8>>::new(Vec::new()), |_, _, _| {
            unreachable!("nothing has no parts")
        });
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
