//! The memory that a file may take while it is read, as a budget for growing vectors.

use crate::error::PickleProblem;

/// Bytes of heap for each byte of pickle. Snapshots of PyTorch take 10 to 30.
pub const MEMORY_PER_BYTE: usize = 48;
/// Bytes of heap in addition, for small pickles.
const SLACK_BYTES: usize = 256 << 10;

/// The rest of the budget of one file.
#[derive(Debug)]
pub(crate) struct Memory {
    limit_bytes: usize,
    left_bytes: usize,
}

impl Memory {
    /// The budget of a pickle of `pickle_bytes`, in proportion to its size, at most `limit_bytes`.
    pub(crate) fn of(pickle_bytes: usize, limit_bytes: u64) -> Memory {
        let by_size_bytes = pickle_bytes.saturating_mul(MEMORY_PER_BYTE) + SLACK_BYTES;
        let limit_bytes = usize::try_from(limit_bytes).unwrap_or(usize::MAX).min(by_size_bytes);
        Memory { limit_bytes, left_bytes: limit_bytes }
    }

    /// Takes `bytes` from the budget.
    pub(crate) fn spend(&mut self, bytes: usize) -> Result<(), PickleProblem> {
        let left_bytes = self.left_bytes.checked_sub(bytes);
        let problem = PickleProblem::Memory { limit_bytes: self.limit_bytes };
        self.left_bytes = left_bytes.ok_or(problem)?;
        Ok(())
    }

    /// Reserves room for `more` elements and takes it from the budget. An empty vector gets room
    /// for exactly `more` elements, because most vectors are filled once; other vectors double.
    pub(crate) fn reserve<T>(
        &mut self,
        vec: &mut Vec<T>,
        more: usize,
    ) -> Result<(), PickleProblem> {
        let len = vec.len().saturating_add(more);
        if len <= vec.capacity() {
            return Ok(());
        }
        let capacity = len.max(2 * vec.capacity());
        self.spend((capacity - vec.capacity()).saturating_mul(size_of::<T>()))?;
        vec.reserve_exact(capacity - vec.len());
        Ok(())
    }

    /// Appends an element to a vector that grows one element at a time.
    pub(crate) fn push<T>(&mut self, vec: &mut Vec<T>, value: T) -> Result<(), PickleProblem> {
        self.reserve(vec, 1)?;
        vec.push(value);
        Ok(())
    }
}
