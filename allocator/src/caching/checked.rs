//! Checked mode: guard bytes behind blocks, a pattern in freed memory, and owners of addresses.
//!
//! Checked mode finds bugs in code that reaches memory by its address: kernels, C libraries,
//! `unsafe` code of the user. Such a bug is a panic that names the sites of all blocks in question.
//! Safe code cannot cause the panic.

use std::backtrace::Backtrace;
use std::fmt;
use std::sync::Arc;

use crate::arena::block_info::BlockInfo;
use crate::arena::extent::Extent;
use crate::arena::freed::FreedBlock;
use crate::caching::CachingAllocator;
use crate::caching::buffer::Buffer;

/// Patterns of two bytes. A value read from freed memory is a NaN in f16, bf16, f32 and f64, and a
/// negative integer, so reads of memory that was never written show in the results.
const FREED: [u8; 2] = 0xfffd_u16.to_le_bytes();
const GUARD: [u8; 2] = 0xfff9_u16.to_le_bytes();

/// The owner of an address; see [`CachingAllocator::owner_of`].
#[derive(Clone, Debug)]
pub enum Owner {
    /// A live block.
    Live(BlockInfo),
    /// The guard of a live block: the bytes behind the requested bytes.
    Guard(BlockInfo),
    /// Freed memory, with the last block that lay there. Only in checked mode.
    Freed(Arc<FreedBlock>),
}

/// A law that unsafe code broke.
enum Violation {
    GuardBroken { block: BlockInfo, index: usize, next: Option<BlockInfo> },
    WriteAfterFree { freed: Arc<FreedBlock>, index: usize, found_by: BlockInfo },
}

impl CachingAllocator {
    /// The owner of the byte at an address: a live block or, in checked mode, the last block that
    /// was freed there. `None` if the address is neither in this allocator's memory nor in its
    /// views, or has no known owner. Takes time linear in the blocks.
    ///
    /// A simulation answers for its own addresses, which differ from the addresses of the original.
    pub fn owner_of(&self, address: u64) -> Option<Owner> {
        let segments = &self.core().segments;
        let within = |start: u64, size_bytes: usize| {
            let offset = usize::try_from(address.checked_sub(start)?).ok()?;
            (offset < size_bytes).then_some(offset)
        };
        let locked = self.core().lock();
        let arena = &locked.state.arena;
        let memory = within(segments.memory.address(), segments.memory.size_bytes());
        let offset = memory.or_else(|| {
            let views = segments.views.as_ref()?;
            arena.views.page_offset(within(views.address(), views.size_bytes())?)
        })?;
        for (slot, _) in arena.layout.live() {
            let mut before_bytes = 0;
            for piece in arena.layout.pieces(slot) {
                if (piece.offset..piece.end()).contains(&offset) {
                    let (block, index) =
                        (arena.block_info(slot), before_bytes + offset - piece.offset);
                    let is_guard = index >= block.requested_bytes;
                    return Some(if is_guard { Owner::Guard(block) } else { Owner::Live(block) });
                }
                before_bytes += piece.size_bytes;
            }
        }
        arena.checks.as_ref()?.last_at(offset).map(Owner::Freed)
    }
}

/// Checks that the memory of a new block was not written to while it was free. Sets the guard.
///
/// # Panics
/// If the memory was written to.
#[cold]
pub(crate) fn set_guard(mut buffer: Buffer) -> Buffer {
    let allocator = buffer.allocator().clone();
    let (block, freed) = {
        let mut locked = allocator.core().lock();
        let arena = &mut locked.state.arena;
        let slot = buffer.block().slot;
        (arena.block_info(slot), arena.take_freed(slot))
    };
    if allocator.core().has_streams {
        return buffer;
    }
    let violation = buffer.with_block(block.size_bytes, |bytes| {
        let written = freed.iter().find_map(|(at, freed)| {
            let index = first_other(&bytes[*at..at + freed.size_bytes], FREED)?;
            Some((freed.index + index, Arc::clone(&freed.block)))
        });
        fill(&mut bytes[block.requested_bytes..], block.requested_bytes, GUARD);
        let (index, freed) = written?;
        Some(Violation::WriteAfterFree { freed, index, found_by: block })
    });
    raise(violation.flatten());
    buffer
}

/// Checks the guard of a block, and returns the block with the pattern of freed memory.
///
/// # Panics
/// If the guard was written to. The block is free by then.
#[cold]
pub(crate) fn take_back(buffer: &mut Buffer) {
    let allocator = buffer.allocator().clone();
    let slot = buffer.block().slot;
    let block = allocator.core().lock().state.arena.block_info(slot);
    let mut broken = None;
    if !allocator.core().has_streams {
        let end = block.requested_bytes;
        let first = buffer.with_block(block.size_bytes, |bytes| {
            let shifted = if end.is_multiple_of(2) { GUARD } else { [GUARD[1], GUARD[0]] };
            let first = first_other(&bytes[end..], shifted);
            fill(bytes, 0, FREED);
            first
        });
        broken = first.flatten();
    }
    let freed_at = Backtrace::capture();
    let mut locked = allocator.core().lock();
    let event = locked.state.history.event_count();
    let arena = &mut locked.state.arena;
    let next = broken.and_then(|_| arena.block_after(slot));
    let pieces: Vec<Extent> = arena.layout.pieces(slot).collect();
    if let Some(checks) = &mut arena.checks {
        checks.note(&pieces, &Arc::new(FreedBlock { block, event, freed_at }));
    }
    locked.free(slot);
    let last = locked.state.last_buffer.remove();
    drop(locked);
    drop(last);
    raise(broken.map(|index| Violation::GuardBroken { block, index, next }));
}

/// Fills bytes with a pattern. The bytes begin at `index` of a block; the pattern begins with the
/// block.
fn fill(bytes: &mut [u8], index: usize, pattern: [u8; 2]) {
    for (byte, index) in bytes.iter_mut().zip(index..) {
        *byte = pattern[index % 2];
    }
}

/// Index of the first byte that differs from a pattern. The pattern begins with the bytes.
fn first_other(bytes: &[u8], pattern: [u8; 2]) -> Option<usize> {
    bytes.iter().zip(pattern.iter().cycle()).position(|(byte, expected)| byte != expected)
}

fn raise(violation: Option<Violation>) {
    if let Some(violation) = violation
        && !std::thread::panicking()
    {
        panic!("{violation}");
    }
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Violation::GuardBroken { block, index, next } => {
                let BlockInfo { serial, requested_bytes, site, .. } = block;
                write!(f, "somebody wrote {index} bytes behind the {requested_bytes} of block ")?;
                write!(f, "{serial}, allocated at {site}")?;
                let Some(next) = next else { return Ok(()) };
                write!(f, ", or below block {}, allocated at {}", next.serial, next.site)
            }
            Violation::WriteAfterFree { freed, index, found_by } => {
                let BlockInfo { serial, site, .. } = freed.block;
                write!(
                    f,
                    "somebody wrote to byte {index} of block {serial}, allocated at {site}, "
                )?;
                write!(f, "after it was freed (event {}); found by the allocation ", freed.event)?;
                write!(f, "at {}; freed at: {}", found_by.site, freed.freed_at)
            }
        }
    }
}
