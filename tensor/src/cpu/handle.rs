//! The processor as a kernel sees it.

use super::chunk::for_each_chunk;
use super::pool::Pool;
use super::simd;

/// The CPU as kernels see it: threads to fork to.
pub struct Cpu {
    pool: Pool,
}

impl Cpu {
    pub(crate) fn new(threads: usize) -> Self {
        Cpu { pool: Pool::new(threads) }
    }

    /// The vector instructions that kernels use on this processor: `AVX-512`, `AVX2`, or `portable`
    /// for the instructions of every processor of this architecture. Measured rates are valid for
    /// one instruction set.
    pub fn instruction_set() -> &'static str {
        simd::instruction_set()
    }

    /// Number of threads that compute, the caller included.
    pub fn threads(&self) -> usize {
        self.pool.threads()
    }

    /// Calls `task(index, chunk)` for every `chunk_len` elements of `slice`, on all threads.
    ///
    /// If `chunk_len` depends on the shape alone, results do not depend on the thread count.
    pub fn for_each_chunk<T: Send>(
        &self,
        slice: &mut [T],
        chunk_len: usize,
        task: impl Fn(usize, &mut [T]) + Sync,
    ) {
        for_each_chunk(&self.pool, slice, chunk_len, task);
    }

    pub(crate) fn pool(&self) -> &Pool {
        &self.pool
    }
}
