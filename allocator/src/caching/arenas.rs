//! Allocators of independent threads over one budget.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use crate::caching::reclaim::Registration;
use crate::caching::{CachingAllocator, Shared};
use crate::error::AllocError;
use crate::source::MemorySource;
use crate::source::limit::LimitSource;
use crate::stream::Stream;

/// Opens allocators that share the budget of one source, and no lock.
///
/// An arena is for a thread, or a group of threads, that has nothing to do with the others: a data
/// loader beside a training step ([`open`](Self::open)), or threads that feed a stream each
/// ([`on`](Self::on)). Placement in one arena does not depend on the other arenas. When an arena is
/// short of memory, the caches of the others are trimmed, in the order in which the arenas were
/// opened, until the budget has the missing bytes. Live blocks stay.
///
/// # Why a stream is no shard of one allocator
/// Inside one allocator a free block of one stream serves every other stream, behind a wait, and
/// merges with neighbours of any stream. So the peak of one allocator cannot be undercut. But each
/// request and free reads and changes state that all streams share. Shards that serve each stream
/// from its own freed memory would have a lock each. But then the cached memory of one shard would
/// affect placement in the others, and a place would depend on which thread came first. So the
/// caller chooses: streams that one thread feeds in turn share an allocator and need the least
/// memory; threads that feed a stream each take an arena each, run without a common lock, and keep
/// cached memory until another arena is short of it.
///
/// Other arenas can make a request fail, and a simulation of one arena knows nothing of the others.
/// So give an allocator that must be reproducible a source of its own.
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
    by_stream: Mutex<BTreeMap<Stream, CachingAllocator>>,
}

/// A member of the list of arenas. Its reference is weak, so that an arena goes with its last
/// handle.
struct Member {
    arena: Weak<Shared>,
    _asked: Registration,
}

impl<S: MemorySource + 'static> Arenas<S> {
    /// Arenas that together commit at most `bytes` of `source`.
    pub fn new(source: S, bytes: usize) -> Arenas<S> {
        let (source, by_stream) = (LimitSource::new(source, bytes), Mutex::default());
        Arenas { source, members: Arc::default(), by_stream }
    }

    /// A new arena, which may use all memory that the other arenas leave.
    ///
    /// # Errors
    /// The source cannot reserve the address ranges.
    pub fn open(&self) -> Result<CachingAllocator, AllocError> {
        self.open_on(Stream::DEFAULT)
    }

    /// The arena of a stream, opened at the first call. Its blocks belong to `stream` unless a
    /// request names another stream, and its requests take no lock of another arena. The arena
    /// lives as long as this value: a thread may keep a handle or call again.
    ///
    /// # Errors
    /// The source cannot reserve the address ranges.
    ///
    /// # Examples
    /// ```
    /// use lowtide_allocator::{Arenas, SimSource, SimStreams, Stream};
    ///
    /// let source = SimSource::with_capacity(1 << 30).streams(&SimStreams::new());
    /// let arenas = Arenas::new(source, 1 << 30);
    /// std::thread::scope(|scope| {
    ///     for stream in (1..=2).filter_map(Stream::new) {
    ///         let memory = arenas.on(stream)?;
    ///         scope.spawn(move || assert_eq!(memory.stream(), stream));
    ///     }
    ///     Ok::<(), lowtide_allocator::AllocError>(())
    /// })?;
    /// # Ok::<(), lowtide_allocator::AllocError>(())
    /// ```
    pub fn on(&self, stream: Stream) -> Result<CachingAllocator, AllocError> {
        let mut by_stream = locked(&self.by_stream);
        if let Some(arena) = by_stream.get(&stream) {
            return Ok(arena.clone());
        }
        let arena = self.open_on(stream)?;
        by_stream.insert(stream, arena.clone());
        Ok(arena)
    }

    fn open_on(&self, stream: Stream) -> Result<CachingAllocator, AllocError> {
        let arena = CachingAllocator::on_stream(self.source.clone(), stream)?;
        let (source, members) = (self.source.clone(), Arc::clone(&self.members));
        let asking = Arc::downgrade(arena.shared());
        let page_bytes = source.page_bytes();
        // The caches of other arenas are trimmed last: they are of use to their owners.
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

    /// Bytes that all arenas together have committed.
    pub fn used_bytes(&self) -> usize {
        self.source.used_bytes()
    }

    /// Peak of [`used_bytes`](Self::used_bytes).
    pub fn used_bytes_peak(&self) -> usize {
        self.source.used_bytes_peak()
    }
}

/// The live arenas except the asking one. The lock of the list is free before the caller trims or
/// drops the arenas.
fn others(members: &Mutex<Vec<Member>>, asking: &Weak<Shared>) -> Vec<CachingAllocator> {
    let members = locked(members);
    let others = members.iter().filter(|member| !member.arena.ptr_eq(asking));
    others.filter_map(|member| member.arena.upgrade()).map(CachingAllocator::of).collect()
}

fn locked<T>(guarded: &Mutex<T>) -> MutexGuard<'_, T> {
    guarded.lock().unwrap_or_else(PoisonError::into_inner)
}

impl<S: MemorySource> fmt::Debug for Arenas<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Arenas")
            .field("used_bytes", &self.source.used_bytes())
            .field("left_bytes", &self.source.left_bytes())
            .finish_non_exhaustive()
    }
}
