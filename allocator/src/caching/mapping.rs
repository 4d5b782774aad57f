//! Effects on views: pages are mapped at a second address, and unmapped.

use crate::arena::extent::Extent;
use crate::arena::layout::place::Placement;
use crate::arena::state::Request;
use crate::arena::views::View;
use crate::caching::effects::Effects;
use crate::history::Action;
use crate::source::{Mapping, PageRange, SourceError};

impl Effects<'_> {
    /// The view of a stitched place. Maps the view unless an earlier block left it mapped.
    ///
    /// # Errors
    /// There are no addresses for the view, or the source failed; nothing is mapped then.
    pub(crate) fn map_view(
        &mut self,
        place: &Placement,
        request: &Request,
    ) -> Result<u32, SourceError> {
        let page_bytes = self.arena.statistics.page_bytes;
        let row = place.extents().map(|piece| piece.pages_around(page_bytes));
        if let Some(view) = self.arena.views.find(row.clone()) {
            return Ok(view);
        }
        let pages: Vec<Extent> = row.collect();
        let gap = loop {
            let views = &mut self.arena.views;
            if let Some(gap) = views.gap(&pages) {
                break gap;
            }
            let Some(unused) = views.take_longest_idle() else {
                return Err(SourceError::OutOfMemory { size_bytes: request.size_bytes });
            };
            self.unmap_view(&unused, request);
        };
        self.map_pages(&pages, gap.extent.offset, request)?;
        Ok(self.arena.views.insert(pages, gap))
    }

    /// Maps all pages or none.
    fn map_pages(
        &mut self,
        pages: &[Extent],
        start: usize,
        request: &Request,
    ) -> Result<(), SourceError> {
        let Some(views) = &self.segments.views else { unreachable!("stitched without views") };
        let source = self.source.virtual_memory().expect("the source had it when it was asked");
        let mut view_offset = start;
        for (index, run) in pages.iter().enumerate() {
            let shown = PageRange::new(&self.segments.memory, run.offset, run.size_bytes);
            let mapping = Mapping::new(shown, views, view_offset);
            self.arena.statistics.source_calls += 1;
            if let Err(error) = source.map(&self.segments.memory, views, &mapping) {
                self.unmap_pages(&pages[..index], start, request);
                return Err(error);
            }
            self.record(Action::Map, request, run.offset, run.size_bytes, 0);
            view_offset += run.size_bytes;
        }
        Ok(())
    }

    pub(crate) fn unmap_view(&mut self, view: &View, request: &Request) {
        self.unmap_pages(&view.pages, view.offset, request);
    }

    fn unmap_pages(&mut self, pages: &[Extent], start: usize, request: &Request) {
        let Some(views) = &self.segments.views else { unreachable!("unmapped without views") };
        let source = self.source.virtual_memory().expect("the source had it when it was asked");
        let mut view_offset = start;
        for run in pages {
            let shown = PageRange::new(&self.segments.memory, run.offset, run.size_bytes);
            let mapping = Mapping::new(shown, views, view_offset);
            self.arena.statistics.source_calls += 1;
            source.unmap(views, &mapping);
            self.record(Action::Unmap, request, run.offset, run.size_bytes, 0);
            view_offset += run.size_bytes;
        }
    }

    /// Records the pieces of a stitched block. Returns the block's offset in the range of views.
    pub(crate) fn record_pieces(
        &mut self,
        place: &Placement,
        view: u32,
        request: &Request,
        serial: u64,
    ) -> usize {
        self.arena.statistics.stitches += 1;
        for piece in place.extents() {
            self.record(Action::Piece, request, piece.offset, piece.size_bytes, serial);
        }
        self.arena.views.get(view).offset
    }
}
