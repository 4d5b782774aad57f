//! Page-locked host memory, handed out again only when the device is done with it.
//!
//! A copy between host and device is asynchronous only if the host's block is page-locked, and the
//! copy may still run when the block is dropped. So a dropped block that streams use is *pending*:
//! it goes back to the cache after the host has waited for these streams. The host waits as late as
//! possible: when the cache has nothing else and may not grow. So a capacity of two batches is a
//! ring of two. The moments of the waits follow from the requests alone: nothing asks for the
//! progress of the device.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::caching::CachingAllocator;
use crate::caching::buffer::Buffer;
use crate::caching::reclaim::Registration;
use crate::caching::torch_named::{Names, named};
use crate::category::Category;
use crate::error::AllocError;
use crate::source::fence::Fence;
use crate::source::{MemorySource, SourceError};
use crate::statistics::{Counter, Statistics};
use crate::stream::{Stream, StreamSet};

/// A cache of page-locked blocks. Clones are handles to the same cache.
///
/// # Streams
/// A block is for one stream, and for the streams that [`record_use`](PinnedBuffer::record_use)
/// names. Before the block is handed out again, the host has waited for all of them, so the new
/// owner may write at once.
///
/// # Examples
/// ```
/// use lowtide_allocator::{PinnedCache, SimSource, SimStreams, Stream};
///
/// let streams = SimStreams::new();
/// let cache = PinnedCache::new(SimSource::with_capacity(2 << 20), streams.clone())?;
/// let copies = Stream::new(1).expect("there are 64");
/// for _ in 0..10 {
///     let batch = cache.allocate(copies, 1 << 20)?;
///     streams.touch(&[batch.block()])?; // the host writes
///     streams.launch(copies, &[batch.block()])?; // the device reads
/// }
/// assert_eq!(cache.wait_count(), 4);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct PinnedCache {
    allocator: CachingAllocator,
    shared: Arc<Shared>,
    _asked: Arc<Registration>,
}

struct Shared {
    id: u64,
    fence: Box<dyn Fence>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// Dropped blocks, in the order of their drops.
    pending: Vec<Pending>,
    /// Blocks dropped so far.
    dropped: u64,
    waits: u64,
    /// The failure of a wait inside a reclaimer, which cannot return it.
    failure: Option<SourceError>,
}

/// A dropped block.
struct Pending {
    buffer: Buffer,
    /// Streams that may still use the block.
    users: StreamSet,
    /// Number of blocks that were dropped before this one.
    number: u64,
}

/// Caches made so far.
static CACHES: AtomicU64 = AtomicU64::new(0);

/// Number of contents of page-locked blocks so far: one for each allocation, and one for each
/// mutable borrow of the bytes.
static CONTENTS: AtomicU64 = AtomicU64::new(0);

/// Blocks that a device may still use although the host can no longer wait for the device. They
/// stay until the process ends, here where a leak checker and a debugger find them.
static ABANDONED: Mutex<Vec<Pending>> = Mutex::new(Vec::new());

/// A page-locked block. A dropped block becomes pending.
pub struct PinnedBuffer {
    /// The block; `None` only while the buffer is dropped.
    buffer: Option<Buffer>,
    users: StreamSet,
    contents: u64,
    shared: Arc<Shared>,
}

impl PinnedCache {
    /// A cache over a source of page-locked memory, for the streams of `fence`.
    ///
    /// The source has a host pointer and needs no fence of its own: a
    /// [`LockedSource`](crate::LockedSource) over [`HostSource`](crate::HostSource). The lock is
    /// the operating system's if that is enough, or the driver's registration if the device must
    /// know the pages.
    ///
    /// # Errors
    /// The source cannot reserve the address ranges.
    pub fn new(
        source: impl MemorySource + 'static,
        fence: impl Fence + 'static,
    ) -> Result<PinnedCache, AllocError> {
        let allocator = CachingAllocator::new(source)?;
        let shared = Arc::new(Shared {
            id: CACHES.fetch_add(1, Ordering::Relaxed),
            fence: Box::new(fence),
            state: Mutex::default(),
        });
        // The handle is weak: pending blocks keep the allocator, and the allocator keeps its
        // reclaimers.
        let pending = Arc::downgrade(&shared);
        // Pending blocks are reclaimed first: their owners are gone.
        let asked = allocator.on_shortage(i32::MIN, move |_: usize| {
            let Some(shared) = pending.upgrade() else { return 0 };
            match shared.wait_for_all() {
                Ok(freed_bytes) => freed_bytes,
                Err(error) => {
                    shared.lock().failure = Some(error);
                    0
                }
            }
        });
        Ok(PinnedCache { allocator, shared, _asked: Arc::new(asked) })
    }

    /// A block that the host may write at once, for work on `stream`.
    ///
    /// # Errors
    /// Out of memory, with nothing pending; a lock that the system refuses; a wait that failed.
    /// Pending blocks may have gone back to the cache.
    #[track_caller]
    pub fn allocate(&self, stream: Stream, size_bytes: usize) -> Result<PinnedBuffer, AllocError> {
        let mut allocated = self.allocator.allocate_in(Category::Input, size_bytes);
        // A source that refuses is not short of its capacity, so no reclaimer was asked yet.
        if let Err(AllocError::Source(_)) = allocated
            && self.synchronize()? > 0
        {
            allocated = self.allocator.allocate_in(Category::Input, size_bytes);
        }
        let failure = self.shared.lock().failure.take();
        let buffer = match (allocated, failure) {
            (Err(_), Some(failure)) => return Err(failure.into()),
            (allocated, _) => Some(allocated?),
        };
        let (users, shared) = (StreamSet::of(stream), Arc::clone(&self.shared));
        Ok(PinnedBuffer { buffer, users, contents: new_contents(), shared })
    }

    /// A number that no other cache of this process has.
    pub fn id(&self) -> u64 {
        self.shared.id
    }

    /// Waits for the streams of all pending blocks. Returns the bytes that went back to the cache.
    ///
    /// # Errors
    /// A wait failed. The blocks that needed this wait are still pending.
    pub fn synchronize(&self) -> Result<usize, AllocError> {
        Ok(self.shared.wait_for_all()?)
    }

    /// The allocator below, for its statistics, history, budget and `trim`. The allocator counts
    /// pending blocks as live.
    pub fn allocator(&self) -> &CachingAllocator {
        &self.allocator
    }

    /// Calls `wait`, in which the host waits for all work enqueued on `stream` so far. The cache
    /// makes use of the wait: blocks of the stream that were dropped before need no other wait.
    ///
    /// # Errors
    /// The errors of `wait`. After an error no block counts as finished.
    pub fn while_waiting<R, E>(
        &self,
        stream: Stream,
        wait: impl FnOnce() -> Result<R, E>,
    ) -> Result<R, E> {
        let end = self.shared.lock().dropped;
        let waited = wait()?;
        self.shared.take_back(self.shared.lock(), stream, end);
        Ok(waited)
    }

    /// Number of dropped blocks that streams may still use.
    pub fn pending_count(&self) -> usize {
        self.shared.lock().pending.len()
    }

    /// Number of waits of the host for a stream.
    pub fn wait_count(&self) -> u64 {
        self.shared.lock().waits
    }

    /// The counters as `torch.cuda.host_memory_stats` names them.
    ///
    /// `allocated_bytes` counts page-locked bytes. `active_bytes` and `active_requests` count
    /// pending blocks and blocks with an owner, as PyTorch does. Left out are `allocations`,
    /// `num_host_alloc` and `num_host_free`, which count blocks that the system was asked for (this
    /// cache asks for pages); the `peak` of `active_requests`; and the times, because nothing here
    /// reads a clock.
    pub fn torch_named(&self) -> impl Iterator<Item = (&'static str, u64)> {
        let Statistics { allocations, frees, allocated, reserved, .. } =
            self.allocator.statistics();
        let requests = [
            ("active_requests.current", allocations - frees),
            ("active_requests.allocated", allocations),
            ("active_requests.freed", frees),
        ];
        let bytes: [(Names, Counter); 2] = [(ALLOCATED, reserved), (ACTIVE, allocated)];
        let bytes = bytes.into_iter().flat_map(|(names, counter)| named(names, counter));
        requests.into_iter().chain(bytes)
    }
}

const ALLOCATED: Names = [
    "allocated_bytes.current",
    "allocated_bytes.peak",
    "allocated_bytes.allocated",
    "allocated_bytes.freed",
];
const ACTIVE: Names =
    ["active_bytes.current", "active_bytes.peak", "active_bytes.allocated", "active_bytes.freed"];

impl Shared {
    /// Waits once for each stream with pending blocks, in the order in which the blocks were
    /// dropped, and frees blocks that no stream uses any more. Returns the freed bytes.
    fn wait_for_all(&self) -> Result<usize, SourceError> {
        let mut freed_bytes = 0;
        loop {
            let mut state = self.lock();
            let next = state.pending.iter().find_map(|pending| pending.users.iter().next());
            let Some(stream) = next else { break };
            // The lock is held: this wait does not cover a block that is dropped meanwhile.
            self.fence.wait_host(stream)?;
            state.waits += 1;
            freed_bytes += self.take_back(state, stream, u64::MAX);
        }
        Ok(freed_bytes)
    }

    /// Frees the blocks before number `end` that no stream but `stream` used. Returns the freed
    /// bytes.
    fn take_back(&self, mut state: MutexGuard<'_, State>, stream: Stream, end: u64) -> usize {
        for pending in state.pending.iter_mut().filter(|pending| pending.number < end) {
            pending.users = pending.users.without(stream);
        }
        let is_done = |pending: &mut Pending| pending.users == StreamSet::EMPTY;
        let done: Vec<_> = state.pending.extract_if(.., is_done).collect();
        // A drop takes the allocator's lock, so the lock of this state must be free.
        drop(state);
        done.iter().map(|pending| pending.buffer.size_bytes()).sum()
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        // The memory goes with the last block, so the device must be done with it. The first wait
        // may report the failure of other work, so there is a second one.
        if self.wait_for_all().is_err() && self.wait_for_all().is_err() {
            let pending = std::mem::take(&mut self.lock().pending);
            ABANDONED.lock().unwrap_or_else(PoisonError::into_inner).extend(pending);
        }
    }
}

fn new_contents() -> u64 {
    CONTENTS.fetch_add(1, Ordering::Relaxed)
}

impl PinnedBuffer {
    /// Notes that work enqueued on `stream` uses the block, beside the stream that it is for.
    pub fn record_use(&mut self, stream: Stream) {
        self.users = self.users.union(StreamSet::of(stream));
    }

    /// True if the block is for `stream`, or [its use](Self::record_use) there was noted.
    pub fn is_for(&self, stream: Stream) -> bool {
        self.users.without(stream) != self.users
    }

    /// The [number](PinnedCache::id) of the cache that the block belongs to.
    pub fn cache_id(&self) -> u64 {
        self.shared.id
    }

    /// A number for the current contents: it changes with each
    /// [`as_mut_slice`](Self::as_mut_slice), and no other block of this process ever has it.
    pub fn contents_id(&self) -> u64 {
        self.contents
    }

    /// Makes the host wait until no stream works on the block, so that the host may read and write
    /// it.
    ///
    /// # Errors
    /// The device failed.
    pub fn wait(&self) -> Result<(), SourceError> {
        self.users.iter().try_for_each(|stream| self.shared.fence.wait_host(stream))
    }

    /// The bytes. Must not be read while the device writes them: see [`wait`](Self::wait).
    ///
    /// # Panics
    /// If the processor cannot reach the source's memory.
    pub fn as_slice(&self) -> &[u8] {
        self.block().as_slice().expect("page-locked memory is the host's")
    }

    /// The bytes, writable. Must not be written while the device reads them: see
    /// [`wait`](Self::wait).
    ///
    /// # Panics
    /// If the processor cannot reach the source's memory.
    pub fn as_mut_slice(&mut self) -> &mut [u8] {
        self.contents = new_contents();
        let buffer = self.buffer.as_mut().expect("a buffer that is not dropped");
        buffer.as_mut_slice().expect("page-locked memory is the host's")
    }

    /// The block, for its address and size.
    pub fn block(&self) -> &Buffer {
        self.buffer.as_ref().expect("a buffer that is not dropped")
    }
}

impl Drop for PinnedBuffer {
    fn drop(&mut self) {
        if let Some(buffer) = self.buffer.take() {
            let mut state = self.shared.lock();
            let (users, number) = (self.users, state.dropped);
            state.dropped += 1;
            state.pending.push(Pending { buffer, users, number });
        }
    }
}

impl fmt::Debug for PinnedBuffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PinnedBuffer").field("block", self.block()).finish_non_exhaustive()
    }
}

impl fmt::Debug for PinnedCache {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PinnedCache")
            .field("allocator", &self.allocator)
            .field("pending_count", &self.pending_count())
            .finish_non_exhaustive()
    }
}
