//! The parts of an arena: holes, blocks, and the pieces of stitched ones.

use std::panic::Location;

use super::Extent;
use crate::category::Category;
use crate::holes::NONE;
use crate::stream::{Marks, Stream, StreamSet};

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
    /// Nobody's.
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
    /// the first one. Of a block, last, what is not asked for of the whole block: less than blocks
    /// are rounded up by.
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
const SLACK_BYTES: usize = 2;

impl Node {
    /// A hole that nobody used, has no neighbours and is not listed.
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
        self.links[SLACK_BYTES] = slack_bytes as u32;
        debug_assert!(slack_bytes < u32::MAX as usize, "{live:?}");
        self.streams = live.users;
        self.number = live.serial;
        self.site = live.site;
        self.category = live.category;
        self.stream = live.stream;
    }

    /// Of a hole: who may still work on it.
    #[inline]
    pub(super) fn marks(&self) -> Marks {
        debug_assert_eq!(self.kind, Kind::Hole, "{self:?}");
        Marks { streams: self.streams, since: self.number }
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
        Live {
            requested_bytes: size_bytes - self.links[SLACK_BYTES] as usize,
            size_bytes,
            category: self.category,
            stream: self.stream,
            users: self.streams,
            site: self.site,
            serial: self.number,
            view: if self.kind == Kind::First { self.links[VIEW] } else { NONE },
        }
    }
}
