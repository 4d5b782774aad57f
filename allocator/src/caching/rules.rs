//! The choice of placement rules, and the only place that branches on it.

use crate::arena::extent::Extent;
use crate::arena::layout::node::Live;
use crate::arena::state::{ArenaState, Request};
use crate::caching::block::BlockRef;
use crate::caching::effects::Effects;
use crate::caching::shortage::Refusal;
use crate::caching::torch::TorchFront;
use crate::origin::ModulePath;
use crate::source::SourceError;
use crate::stream::{Stream, StreamSet};

/// The rules that place blocks. Their decisions depend on the state here and in [`ArenaState`];
/// [`Effects`] carries decisions out.
#[derive(Clone, Debug)]
pub(crate) enum Rules {
    /// The arena's own rules.
    Pages,
    /// PyTorch's rules, over segments of the arena.
    Torch(Box<TorchFront>),
}

impl Rules {
    /// Serves almost every request of a steady state. `None` if the request needs
    /// [`allocate`](Self::allocate).
    #[inline]
    pub(crate) fn allocate_ready(
        &mut self,
        effects: &mut Effects<'_>,
        request: &Request,
    ) -> Result<Option<BlockRef>, SourceError> {
        match self {
            Rules::Pages => effects.allocate_ready(request),
            Rules::Torch(_) => Ok(None),
        }
    }

    /// Serves any request. It may make a stream wait, and call the source.
    pub(crate) fn allocate(
        &mut self,
        effects: &mut Effects<'_>,
        request: &Request,
    ) -> Result<BlockRef, Refusal> {
        match self {
            Rules::Pages => effects.allocate_in_pages(request),
            Rules::Torch(torch) => torch.allocate(effects, request),
        }
    }

    /// Frees the block in a slot. Returns the block's properties.
    #[inline]
    pub(crate) fn free(&mut self, effects: &mut Effects<'_>, slot: u32) -> Live {
        match self {
            Rules::Pages => effects.free_in_pages(slot),
            Rules::Torch(torch) => torch.free(effects, slot),
        }
    }

    /// Gives the cache of the rules themselves back to the arena. Returns the bytes.
    pub(crate) fn empty_cache(&mut self, effects: &mut Effects<'_>, request: &Request) -> usize {
        match self {
            // The arena caches free pages itself, and the rules have no cache of their own.
            Rules::Pages => 0,
            Rules::Torch(torch) => torch.empty_cache(effects, request),
        }
    }

    /// The block in a slot.
    pub(crate) fn block(&self, arena: &ArenaState, slot: u32) -> Live {
        match self {
            Rules::Pages => arena.layout.block(slot),
            Rules::Torch(torch) => torch.block(slot).1,
        }
    }

    /// Sets the module of a live block.
    pub(crate) fn set_module(&mut self, arena: &mut ArenaState, slot: u32, module: ModulePath) {
        match self {
            Rules::Pages => arena.layout.set_module(slot, module),
            Rules::Torch(torch) => torch.block_mut(slot).1.module = Some(module),
        }
    }

    /// The streams that work on a live block.
    pub(crate) fn users_mut<'a>(
        &'a mut self,
        arena: &'a mut ArenaState,
        slot: u32,
    ) -> &'a mut StreamSet {
        match self {
            Rules::Pages => arena.layout.users_mut(slot),
            Rules::Torch(torch) => &mut torch.block_mut(slot).1.users,
        }
    }

    /// The streams that work on a block after a transfer: `stream` uses the block and has waited
    /// for the others. PyTorch's rules go by the stream that allocated the block, so all `users`
    /// stay there.
    pub(crate) fn users_after_transfer(&self, users: StreamSet, stream: Stream) -> StreamSet {
        match self {
            Rules::Pages => StreamSet::of(stream),
            Rules::Torch(_) => users.with(stream),
        }
    }

    /// # Panics
    /// If the state of the rules does not fit the arena.
    pub(crate) fn check(&self, arena: &ArenaState) {
        match self {
            Rules::Pages => arena.layout.check(),
            Rules::Torch(torch) => {
                arena.layout.check();
                torch.check(arena.layout.live().map(|(_, live)| live.size_bytes).sum());
            }
        }
    }

    /// Live blocks in address order, with the offset of each block or of its first piece.
    pub(crate) fn live(&self, arena: &ArenaState) -> Vec<(usize, Live)> {
        match self {
            Rules::Pages => {
                let layout = &arena.layout;
                layout.live().map(|(slot, live)| (layout.offset(slot), live)).collect()
            }
            Rules::Torch(torch) => torch.live(),
        }
    }

    /// Live blocks in address order, with their offset and, if they are stitched, their pieces.
    pub(crate) fn live_with_pieces(&self, arena: &ArenaState) -> Vec<(usize, Live, Vec<Extent>)> {
        match self {
            Rules::Pages => {
                let layout = &arena.layout;
                let block = |(slot, live): (u32, Live)| {
                    let pieces = layout.pieces(slot).filter(|_| live.is_stitched()).collect();
                    (layout.offset(slot), live, pieces)
                };
                layout.live().map(block).collect()
            }
            Rules::Torch(torch) => {
                torch.live().into_iter().map(|(at, live)| (at, live, Vec::new())).collect()
            }
        }
    }

    /// The parts of live blocks, by address.
    pub(crate) fn live_extents(&self, arena: &ArenaState) -> Vec<(Extent, Live)> {
        match self {
            Rules::Pages => arena.layout.live_extents().collect(),
            Rules::Torch(torch) => {
                let whole = |(offset, live): (usize, Live)| {
                    (Extent { offset, size_bytes: live.size_bytes }, live)
                };
                torch.live().into_iter().map(whole).collect()
            }
        }
    }

    /// Size of a large block that the default stream could still get if `left_bytes` are not
    /// reserved yet.
    pub(crate) fn largest_free_bytes(&self, arena: &ArenaState, left_bytes: usize) -> usize {
        match self {
            // The arena knows the capacity, and that it can release its whole cache.
            Rules::Pages => arena.largest_free_bytes(),
            Rules::Torch(torch) => torch.largest_free_bytes(left_bytes),
        }
    }
}
