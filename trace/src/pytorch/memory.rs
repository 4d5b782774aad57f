//! The memory that a file may take to read, as a budget that vectors grow within.

use crate::error::PickleProblem;

/// Bytes of heap that a byte of pickle may ask for. Snapshots of PyTorch ask for 10 to 30.
pub const MEMORY_PER_BYTE: usize = 48;
/// Small pickles may ask for this much more.
const SLACK_BYTES: usize = 256 << 10;

/// The rest of the budget of one file.
#[derive(Debug)]
pub(crate) struct Memory {
    limit_bytes: usize,
    left_bytes: usize,
}

impl Memory {
    /// The budget of a pickle of `pickle_bytes`: by its size, and never more than `limit_bytes`.
    pub(crate) fn of(pickle_bytes: usize, limit_bytes: u64) -> Memory {
        let by_size_bytes = pickle_bytes.saturating_mul(MEMORY_PER_BYTE) + SLACK_BYTES;
        let limit_bytes = usize::try_from(limit_bytes).unwrap_or(usize::MAX).min(by_size_bytes);
        Memory { limit_bytes, left_bytes: limit_bytes }
    }

    /// Takes `bytes` from the rest.
    pub(crate) fn spend(&mut self, bytes: usize) -> Result<(), PickleProblem> {
        let left_bytes = self.left_bytes.checked_sub(bytes);
        let problem = PickleProblem::Memory { limit_bytes: self.limit_bytes };
        self.left_bytes = left_bytes.ok_or(problem)?;
        Ok(())
    }

    /// Makes room for `more` elements, and pays for it. An empty vector gets exactly `more`, as
    /// most are filled once; others double.
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

    /// Appends an element to a vector that grows one by one.
    pub(crate) fn push<T>(&mut self, vec: &mut Vec<T>, value: T) -> Result<(), PickleProblem> {
        self.reserve(vec, 1)?;
        vec.push(value);
        Ok(())
    }
}
