//! The arena's own rules: a block goes into any hole, or is stitched from the pages of several
//! holes if no hole is large enough.

use std::cell::Cell;

use crate::arena::extent::Extent;
use crate::arena::layout::node::{Live, NONE};
use crate::arena::layout::place::{Placement, Position};
use crate::arena::state::Request;
use crate::caching::block::BlockRef;
use crate::caching::effects::Effects;
use crate::caching::shortage::Refusal;
use crate::error::Tried;
use crate::history::{Action, Record};
use crate::source::SourceError;
use crate::stream::StreamSet;

impl Effects<'_> {
    /// Serves almost every request of a steady state: from a hole of the request's own stream, or
    /// at the top, on committed pages. `None` if the request needs
    /// [`allocate_in_pages`](Self::allocate_in_pages).
    #[inline]
    pub(crate) fn allocate_ready(
        &mut self,
        request: &Request,
    ) -> Result<Option<BlockRef>, SourceError> {
        let arena = &mut *self.arena;
        let Some(size_bytes) = arena.block_bytes(request.size_bytes) else { return Ok(None) };
        let own = StreamSet::of(request.stream);
        let found = match arena.layout.own_hole(size_bytes, own) {
            Some((hole, extent)) if arena.pages.reach(extent.end()) => {
                Some((arena.layout.insert_in_hole(hole, extent), extent))
            }
            Some(_) => None,
            None => self.insert_on_ready_top(size_bytes, request)?,
        };
        let Some((slot, Extent { offset, size_bytes })) = found else { return Ok(None) };
        let serial = self.arena.describe_block(slot, size_bytes, request);
        self.record(Action::Allocate, request, offset, size_bytes, serial);
        Ok(Some(BlockRef::whole(offset, slot, serial, request)))
    }

    /// Inserts a block at the top if no own hole fits. Returns its slot; the caller describes the
    /// block.
    #[inline(always)]
    fn insert_on_ready_top(
        &mut self,
        size_bytes: usize,
        request: &Request,
    ) -> Result<Option<(u32, Extent)>, SourceError> {
        let arena = &*self.arena;
        let Some((extent, waits)) = arena.own_top(size_bytes, request.stream) else {
            return Ok(None);
        };
        if !arena.pages.reach(extent.end()) {
            return Ok(None);
        }
        if waits != StreamSet::EMPTY {
            self.wait_in_order(waits, request)?;
        }
        let arena = &mut *self.arena;
        let (users, event) = (StreamSet::of(request.stream), arena.current_event());
        Ok(Some((arena.layout.insert_on_top(extent, users, event), extent)))
    }

    /// Serves any request. It may make a stream wait, and call the source.
    pub(crate) fn allocate_in_pages(&mut self, request: &Request) -> Result<BlockRef, Refusal> {
        let (arena, tried) = (&*self.arena, Cell::default());
        let size_bytes = arena.block_bytes(request.size_bytes);
        let mut place = size_bytes.and_then(|bytes| arena.place(bytes, request.stream, &tried));
        let (Some(size_bytes), Some(place)) = (size_bytes, place.as_mut()) else {
            return Err(self.shortage(usize::MAX, tried.get(), request));
        };
        if !self.arena.pages.reach(place.end()) {
            self.commit_for(place, tried.get(), request)?;
        }
        if !matches!(place.position, Position::Stitched(_)) {
            return self.make_live(place, size_bytes, NONE, request);
        }
        match self.map_view(place, request) {
            Ok(view) => self.make_live(place, size_bytes, view, request),
            Err(_) => self.allocate_whole(size_bytes, &tried, request),
        }
    }

    /// Serves a request without stitching, after the source could not map the pages at a second
    /// address.
    #[cold]
    fn allocate_whole(
        &mut self,
        size_bytes: usize,
        tried: &Cell<Tried>,
        request: &Request,
    ) -> Result<BlockRef, Refusal> {
        let mut place = self.arena.place_whole(size_bytes, request.stream, tried);
        let Some(place) = place.as_mut() else {
            return Err(self.shortage(usize::MAX, tried.get(), request));
        };
        if !self.arena.pages.reach(place.end()) {
            self.commit_for(place, tried.get(), request)?;
        }
        self.make_live(place, size_bytes, NONE, request)
    }

    /// Turns a place with committed pages into a live block. The stream of the block is made to
    /// wait for the streams that used the place.
    fn make_live(
        &mut self,
        place: &mut Placement,
        size_bytes: usize,
        view: u32,
        request: &Request,
    ) -> Result<BlockRef, Refusal> {
        if place.waits != StreamSet::EMPTY {
            self.wait_for(place.waits, request)?;
        }
        let (slot, serial) = self.arena.insert(place, size_bytes, view, request);
        self.record(Action::Allocate, request, place.offset(), size_bytes, serial);
        let block = BlockRef::whole(place.offset(), slot, serial, request);
        if view == NONE {
            return Ok(block);
        }
        let range_offset = self.record_pieces(place, view, request, serial);
        Ok(block.stitched_at(range_offset))
    }

    /// Frees the block in a slot. Returns the block's properties.
    #[inline]
    pub(crate) fn free_in_pages(&mut self, slot: u32) -> Live {
        let Effects { arena, history, .. } = self;
        let offset = arena.layout.offset(slot);
        let live = arena.layout.block(slot);
        let record = Record::of_block(Action::Free, offset, &live);
        history.push(record);
        if live.is_stitched() {
            for Extent { offset, size_bytes } in arena.layout.pieces(slot) {
                history.push(Record { action: Action::Piece, offset, size_bytes, ..record });
            }
        }
        arena.remove(slot, &live);
        live
    }
}
