//! The mappings of a process, which its allocators share.
//!
//! Linux limits the mappings of a process (`vm.max_map_count`, 65,530 by default). A process that
//! has reached the limit cannot even start a thread. So a quarter is left to the rest of the
//! process, and each allocator takes a fixed share of the remaining mappings when it is made. A
//! share never changes: other allocators have no influence on where an allocator places its blocks,
//! and a simulation copies the share.

use std::sync::{Mutex, OnceLock, PoisonError};

use crate::source::{MAPPINGS_MAX, SourceError};

/// Linux's default, for a system that does not tell its limit.
const LIMIT_COUNT: usize = 65_530;

/// The share of an allocator if another one has a full share. It is enough for a step that stitches
/// a few large blocks.
const SMALL_SHARE: usize = 512;

/// Number of small shares that are left when a full one is taken.
const SMALL_SHARES_MIN: usize = 16;

/// The mappings of one range of views, given back on drop.
#[derive(Debug)]
pub(super) struct Share {
    mapping_count: usize,
}

/// The mappings that the views of all allocators share.
struct Pool {
    limit_count: usize,
    left_count: Mutex<usize>,
}

impl Share {
    /// A full share if enough is left for small shares then, else a small share.
    ///
    /// # Errors
    /// There is neither a full nor a small share left.
    pub(super) fn take() -> Result<Share, SourceError> {
        let pool = Pool::of_this_process();
        let taken = pool.change(|left_count| {
            let mapping_count = share_of(*left_count)?;
            *left_count -= system_count(mapping_count);
            Some(Share { mapping_count })
        });
        taken.ok_or(SourceError::MappingLimit { limit_count: pool.limit_count })
    }

    /// Largest number of pieces of all views together.
    pub(super) fn mapping_count(&self) -> usize {
        self.mapping_count
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        let returned_count = system_count(self.mapping_count);
        Pool::of_this_process().change(|left_count| *left_count += returned_count);
    }
}

impl Pool {
    fn of_this_process() -> &'static Pool {
        static POOL: OnceLock<Pool> = OnceLock::new();
        POOL.get_or_init(|| {
            let text = std::fs::read_to_string("/proc/sys/vm/max_map_count");
            let limit_count = text.ok().and_then(|text| text.trim().parse().ok());
            let limit_count: usize = limit_count.unwrap_or(LIMIT_COUNT);
            Pool { limit_count, left_count: Mutex::new(limit_count - limit_count / 4) }
        })
    }

    fn change<R>(&self, work: impl FnOnce(&mut usize) -> R) -> R {
        work(&mut self.left_count.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

fn share_of(left_count: usize) -> Option<usize> {
    let small_count = system_count(SMALL_SHARE);
    if system_count(MAPPINGS_MAX) + SMALL_SHARES_MIN * small_count <= left_count {
        return Some(MAPPINGS_MAX);
    }
    (small_count <= left_count).then_some(SMALL_SHARE)
}

/// Mappings that the system counts for this number of pieces of views. A view has at least two
/// pieces, and the gap behind it is a mapping as well. Two more are the memory and the gap before
/// all views.
fn system_count(mapping_count: usize) -> usize {
    mapping_count + mapping_count / 2 + 2
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_leave_a_quarter_and_the_first_is_a_full_one() {
        let mut left_count = LIMIT_COUNT - LIMIT_COUNT / 4;
        let mut shares = Vec::new();
        while let Some(share) = share_of(left_count) {
            left_count -= system_count(share);
            shares.push(share);
        }
        assert_eq!(shares[0], MAPPINGS_MAX);
        assert!(shares[1..].iter().all(|&share| share == SMALL_SHARE), "{shares:?}");
        assert_eq!(shares.len(), 32, "as the README says");
    }
}
