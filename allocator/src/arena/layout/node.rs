//! The parts of an arena: holes, blocks, and the pieces of stitched blocks.

use std::panic::Location;

use crate::arena::extent::{BLOCK_BYTES, Extent, GUARD_BYTES};
use crate::category::Category;
use crate::origin::ModulePath;
use crate::stream::{LastUse, Stream, StreamSet};

/// The link that leads to no node.
pub(crate) const NONE: u32 = u32::MAX;

/// Properties of a live block, apart from its place.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Live {
    pub(crate) requested_bytes: usize,
    /// Bytes of all pieces together.
    pub(crate) size_bytes: usize,
    pub(crate) category: Category,
    /// Stream that owns the block.
    pub(crate) stream: Stream,
    /// Streams that have used the block.
    pub(crate) users: StreamSet,
    pub(crate) site: &'static Location<'static>,
    /// Module that the block belongs to.
    pub(crate) module: Option<ModulePath>,
    /// Serial number, unique to the block. It tells the block from a later one in the same slot.
    pub(crate) serial: u64,
    /// View in which a stitched block is mapped as a whole; `NONE` if it is not stitched.
    pub(crate) view: u32,
}

impl Live {
    #[inline]
    pub(crate) fn is_stitched(&self) -> bool {
        self.view != NONE
    }
}

/// The kinds of node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Kind {
    /// A hole.
    Hole,
    /// A block in one piece.
    Block,
    /// The first piece of a stitched block.
    First,
    /// A later piece of a stitched block.
    Piece,
}

/// A part of the arena. A node fills one cache line, so that a request or a free fetches one line
/// for the block and one for each neighbour.
#[derive(Clone, Copy, Debug)]
#[repr(align(64))]
pub(crate) struct Node {
    pub(crate) extent: Extent,
    pub(super) previous: u32,
    pub(super) next: u32,
    /// Three numbers, whose meaning depends on the kind:
    ///
    /// | kind  | 0          | 1           | 2                                |
    /// |-------|------------|-------------|----------------------------------|
    /// | Hole  | left child | right child | parent, in the treap of its bin  |
    /// | Block | unused     | unused      | slack and module                 |
    /// | First | next piece | view        | slack and module                 |
    /// | Piece | next piece | first piece | slack and module                 |
    ///
    /// A slot is `NONE` if there is no such node. The slack is the part of a whole block beyond the
    /// request.
    pub(crate) links: [u32; 3],
    /// Streams that may still work on a hole, which choose its free list. For a block: streams that
    /// have used the block.
    pub(super) streams: StreamSet,
    /// The event at which the last owner of a hole gave it back, or the serial of a block.
    pub(super) number: u64,
    /// The source line of a block's request; holes use neither this field nor the next two.
    pub(super) site: &'static Location<'static>,
    pub(super) category: Category,
    pub(super) stream: Stream,
    pub(crate) kind: Kind,
}

const _: () = assert!(size_of::<Node>() == 64);

/// Indices into the links of pieces and blocks.
pub(super) const NEXT_PIECE: usize = 0;
pub(super) const VIEW: usize = 1;
pub(super) const FIRST_PIECE: usize = 1;
/// Index of the link with the slack in its low bits and the module in its high bits.
const SLACK_AND_MODULE: usize = 2;

/// Bits that hold the slack: the bytes of a block beyond the request, guard bytes included.
const SLACK_BITS: u32 = 10;
const _: () = assert!(SLACK_BITS + ModulePath::BITS == u32::BITS);
const _: () = assert!(BLOCK_BYTES + GUARD_BYTES < 1 << SLACK_BITS);

impl Node {
    /// A hole that was never used, has no neighbours and is in no list.
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

    /// Writes the properties of the block to which this node belongs. Fields are written one by
    /// one: a copy of a node that was just built would wait for the narrow writes to that node.
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

    /// Sets the module of a block. The node is the whole block or its first piece.
    pub(super) fn set_module(&mut self, module: ModulePath) {
        debug_assert!(matches!(self.kind, Kind::Block | Kind::First), "{self:?}");
        let bits = ModulePath::to_bits(Some(module)) << SLACK_BITS;
        let link = &mut self.links[SLACK_AND_MODULE];
        *link = bits | *link & ((1 << SLACK_BITS) - 1);
    }

    /// The streams that may still work on a hole.
    #[inline]
    pub(super) fn last_use(&self) -> LastUse {
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

    /// Properties of a block of `size_bytes`. The node is the whole block or its first piece.
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
