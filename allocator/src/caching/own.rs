//! Blocks that one thread has allocated.
//!
//! Several models, a logger and a data loader may share an allocator. The thread that asked, not
//! the time of the request, tells the left-over blocks of a training step from the blocks of the
//! others.

use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::marker::PhantomData;
use std::ptr;

use crate::arena::block_info::BlockInfo;
use crate::caching::CachingAllocator;

thread_local! {
    /// Number of open [`OwnBlocks`] of this thread. Nothing is noted while there are none.
    static OPEN: Cell<usize> = const { Cell::new(0) };
    /// The allocator and the serial number of each block of this thread since the first
    /// [`OwnBlocks`] was opened.
    static NOTES: RefCell<Vec<(*const (), u64)>> = const { RefCell::new(Vec::new()) };
}

/// The blocks that this thread allocates while the value lives; see
/// [`CachingAllocator::own_blocks`].
#[derive(Debug)]
pub struct OwnBlocks {
    allocator: CachingAllocator,
    /// Index of the value's first note.
    start: usize,
    /// The notes are thread-local.
    _not_send: PhantomData<*const ()>,
}

impl CachingAllocator {
    /// Notes the blocks that this thread allocates until the value is dropped. Several values must
    /// be dropped in the opposite order.
    ///
    /// ```
    /// use lowtide_allocator::{CachingAllocator, SimSource};
    ///
    /// let memory = CachingAllocator::new(SimSource::with_capacity(1 << 30))?;
    /// let before = memory.allocate(512)?;
    /// let own = memory.own_blocks();
    /// let forgotten = memory.allocate(1 << 20)?;
    /// drop((before, memory.allocate(3 << 20)?));
    /// let neighbour = memory.clone();
    /// let theirs = std::thread::spawn(move || neighbour.allocate(512)).join().expect("no panic")?;
    /// let live: Vec<u64> = own.live().iter().map(|block| block.serial).collect();
    /// assert_eq!(live, [forgotten.serial()]);
    /// # drop(theirs);
    /// # Ok::<(), lowtide_allocator::AllocError>(())
    /// ```
    #[must_use]
    pub fn own_blocks(&self) -> OwnBlocks {
        OPEN.set(OPEN.get() + 1);
        let start = NOTES.with_borrow(Vec::len);
        OwnBlocks { allocator: self.clone(), start, _not_send: PhantomData }
    }

    /// Notes a block of this thread, if an [`OwnBlocks`] is open.
    #[inline]
    pub(crate) fn note_own(&self, serial: u64) {
        if OPEN.get() > 0 {
            NOTES.with_borrow_mut(|notes| notes.push((self.identity(), serial)));
        }
    }

    fn identity(&self) -> *const () {
        ptr::from_ref(self.core()).cast()
    }
}

impl OwnBlocks {
    /// The own blocks that are still live, in address order. Takes time linear in all live blocks.
    pub fn live(&self) -> Vec<BlockInfo> {
        let identity = self.allocator.identity();
        let own: BTreeSet<u64> = NOTES.with_borrow(|notes| {
            // The notes are gone if an `OwnBlocks` that was opened before was dropped first.
            let own = notes.get(self.start..).unwrap_or_default();
            own.iter().filter(|(of, _)| *of == identity).map(|&(_, serial)| serial).collect()
        });
        let mut live = self.allocator.live_blocks();
        live.retain(|block| own.contains(&block.serial));
        live
    }
}

impl Drop for OwnBlocks {
    fn drop(&mut self) {
        OPEN.set(OPEN.get() - 1);
        NOTES.with_borrow_mut(|notes| notes.truncate(self.start));
    }
}
