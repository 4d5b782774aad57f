//! The parts of an arena: holes, blocks, and the pieces of stitched ones.

use std::panic::Location;

use crate::arena::extent::{BLOCK_BYTES, Extent, GUARD_BYTES};
use crate::category::Category;
use crate::origin::ModulePath;
use crate::stream::{LastUse, Stream, StreamSet};

/// No node, in a link.
pub(crate) const NONE: u32 = u32::MAX;

/// What is known of a live block beside its place.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Live {
    pub(crate) requested_bytes: usize,
    /// All pieces together.
    pub(crate) size_bytes: usize,
    pub(crate) category: Category,
    /// Whose it is.
    pub(crate) stream: Stream,
    /// Who has used it.
    pub(crate) users: StreamSet,
    pub(crate) site: &'static Location<'static>,
    /// Whose module it is.
    pub(crate) module: Option<ModulePath>,
    /// Never given twice, so that a slot used again is not mistaken for the same block.
    pub(crate) serial: u64,
    /// Where the whole block is mapped, if it has pieces; else `NONE`.
    pub(crate) view: u32,
}

impl Live {
    #[inline]
    pub(crate) fn is_stitched(&self) -> bool {
        self.view != NONE
    }
}

/// What a node is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Kind {
    /// Free: part of a hole.
    Hole,
    /// A block in one piece.
    Block,
    /// The first piece of a stitched block.
    First,
    /// A later piece of it.
    Piece,
}

/// A part of the arena. All that there is to know of it fills one cache line, so that a request or
/// a free fetches one for the block and one for each neighbour.
#[derive(Clone, Copy, Debug)]
#[repr(align(64))]
pub(crate) struct Node {
    pub(crate) extent: Extent,
    pub(super) previous: u32,
    pub(super) next: u32,
    /// Of a hole, what hangs below it in its bin on either side, and what it hangs below itself. Of
    /// a piece, the next one or `NONE`, and then the view of its block, if it is the first one, or
    /// the first one. Of a block, last, the module and what is not asked for of the whole block.
    pub(crate) links: [u32; 3],
    /// Of a hole, who may still work on it, by which it is listed; of a block, who has used it.
    pub(super) streams: StreamSet,
    /// Of a hole, the event at which its last owner gave it back; of a block, its serial.
    pub(super) number: u64,
    /// Of a block, as are the fields below.
    pub(super) site: &'static Location<'static>,
    pub(super) category: Category,
    pub(super) stream: Stream,
    pub(crate) kind: Kind,
}

const _: () = assert!(size_of::<Node>() == 64);

/// The places of the links of a piece and of a block.
pub(super) const NEXT_PIECE: usize = 0;
pub(super) const VIEW: usize = 1;
pub(super) const FIRST_PIECE: usize = 1;
/// What is not asked for in the low bits, the module in those above.
const SLACK_AND_MODULE: usize = 2;

/// Blocks are rounded up by less, also with the guard bytes of a checked allocator.
const SLACK_BITS: u32 = 10;
const _: () = assert!(SLACK_BITS + ModulePath::BITS == u32::BITS);
const _: () = assert!(BLOCK_BYTES + GUARD_BYTES < 1 << SLACK_BITS);

impl Node {
    /// A hole that was never used, has no neighbours and is not listed.
    #[inline]
    pub(crate) fn hole(extent: Extent) -> Node {
        Node {
            extent,
            previous: NONE,
            next: NONE,
            links: [NONE; 3],
            streams: StreamSet::EMPTY,
            number: 0,
            site: Location::caller(),
            category: Category::Other,
            stream: Stream::DEFAULT,
            kind: Kind::Hole,
        }
    }

    /// Says what the block is that this is, or is a piece of. Field by field: a node that is put
    /// together elsewhere and copied has to wait for its own narrow writes.
    #[inline(always)]
    pub(super) fn describe(&mut self, live: &Live) {
        let slack_bytes = live.size_bytes - live.requested_bytes;
        debug_assert!(slack_bytes < 1 << SLACK_BITS, "{live:?}");
        let module = ModulePath::to_bits(live.module);
        self.links[SLACK_AND_MODULE] = module << SLACK_BITS | slack_bytes as u32;
        self.streams = live.users;
        self.number = live.serial;
        self.site = live.site;
        self.category = live.category;
        self.stream = live.stream;
    }

    /// Says which module the block belongs to that this is, or is the first piece of.
    pub(super) fn set_module(&mut self, module: ModulePath) {
        debug_assert!(matches!(self.kind, Kind::Block | Kind::First), "{self:?}");
        let bits = ModulePath::to_bits(Some(module)) << SLACK_BITS;
        let link = &mut self.links[SLACK_AND_MODULE];
        *link = bits | *link & ((1 << SLACK_BITS) - 1);
    }

    /// Of a hole: who may still work on it.
    #[inline]
    pub(super) fn marks(&self) -> LastUse {
        debug_assert_eq!(self.kind, Kind::Hole, "{self:?}");
        LastUse { streams: self.streams, since: self.number }
    }

    /// The next piece of the same block, or `NONE`.
    #[inline]
    pub(super) fn next_piece(&self) -> u32 {
        match self.kind {
            Kind::Hole | Kind::Block => NONE,
            Kind::First | Kind::Piece => self.links[NEXT_PIECE],
        }
    }

    /// What a block of `size_bytes` is, of which this is the first piece or all.
    #[inline]
    pub(super) fn live(&self, size_bytes: usize) -> Live {
        let packed = self.links[SLACK_AND_MODULE];
        let slack_bytes = packed & ((1 << SLACK_BITS) - 1);
        Live {
            requested_bytes: size_bytes - slack_bytes as usize,
            size_bytes,
            category: self.category,
            stream: self.stream,
            users: self.streams,
            site: self.site,
            module: ModulePath::from_bits(packed >> SLACK_BITS),
            serial: self.number,
            view: if self.kind == Kind::First { self.links[VIEW] } else { NONE },
        }
    }
}
