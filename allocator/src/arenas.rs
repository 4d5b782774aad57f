//! Allocators of independent threads over one budget.

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use crate::caching::{CachingAllocator, Shared};
use crate::error::AllocError;
use crate::limit::LimitSource;
use crate::reclaim::Registration;
use crate::source::MemorySource;

/// Opens allocators that share the budget of one source, and no lock.
///
/// Each is for a thread, or a group of threads, that has nothing to do with the others: a data
/// loader beside a training step. Placement in one does not depend on what the others do. When one
/// is short of memory, the caches of the others are trimmed, in the order in which they were
/// opened, until the budget has what is missing; what is live stays.
///
/// Whether a request fails does depend on the others, and a simulation of one arena knows nothing
/// of them: give allocators that must be reproducible a source of their own.
///
/// # Examples
/// ```
/// use lowtide_allocator::{Arenas, SimSource};
///
/// let arenas = Arenas::new(SimSource::with_capacity(1 << 20), 1 << 20);
/// let (first, second) = (arenas.open()?, arenas.open()?);
/// drop(first.allocate(1 << 20)?); // cached by the first
/// let block = second.allocate(1 << 20)?; // and trimmed for the second
/// assert_eq!(first.statistics().reserved.current_bytes, 0);
/// # Ok::<(), lowtide_allocator::AllocError>(())
/// ```
pub struct Arenas<S> {
    source: LimitSource<S>,
    members: Arc<Mutex<Vec<Member>>>,
}

/// Weak, so that an arena goes with its last handle.
struct Member {
    arena: Weak<Shared>,
    _asked: Registration,
}

impl<S: MemorySource + 'static> Arenas<S> {
    /// Arenas that together commit at most `bytes` of `source`.
    pub fn new(source: S, bytes: usize) -> Arenas<S> {
        Arenas { source: LimitSource::new(source, bytes), members: Arc::default() }
    }

    /// A new arena, which may use all that the others leave.
    ///
    /// # Errors
    /// The source has no such address ranges.
    pub fn open(&self) -> Result<CachingAllocator, AllocError> {
        let arena = CachingAllocator::new(self.source.clone())?;
        let (source, members) = (self.source.clone(), Arc::clone(&self.members));
        let asking = Arc::downgrade(arena.shared());
        let page_bytes = source.page_bytes();
        // Behind every other reclaimer: the caches of others are theirs.
        let asked = arena.on_shortage(i32::MAX, move |missing_bytes: usize| {
            // A block can share its first and its last page.
            let pages_bytes = missing_bytes.saturating_add(2 * page_bytes);
            let mut trimmed_bytes = 0;
            for other in others(&members, &asking) {
                if source.left_bytes() >= pages_bytes {
                    break;
                }
                trimmed_bytes += other.trim();
            }
            trimmed_bytes
        });
        let mut members = locked(&self.members);
        members.retain(|member| member.arena.strong_count() > 0);
        members.push(Member { arena: Arc::downgrade(arena.shared()), _asked: asked });
        drop(members);
        Ok(arena)
    }

    /// What all arenas together have committed.
    pub fn used_bytes(&self) -> usize {
        self.source.used_bytes()
    }
}

/// The arenas that live, but the one that asks. The list's lock is free again when they are
/// trimmed, or dropped.
fn others(members: &Mutex<Vec<Member>>, asking: &Weak<Shared>) -> Vec<CachingAllocator> {
    let members = locked(members);
    let others = members.iter().filter(|member| !member.arena.ptr_eq(asking));
    others.filter_map(|member| member.arena.upgrade()).map(CachingAllocator::of).collect()
}

fn locked(members: &Mutex<Vec<Member>>) -> MutexGuard<'_, Vec<Member>> {
    members.lock().unwrap_or_else(PoisonError::into_inner)
}

impl<S: MemorySource> fmt::Debug for Arenas<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Arenas")
            .field("used_bytes", &self.source.used_bytes())
            .field("left_bytes", &self.source.left_bytes())
            .finish_non_exhaustive()
    }
}
