//! The laws of a layout, checked against a recount.

use crate::arena::extent::BLOCK_BYTES;
use crate::arena::layout::node::{FIRST_PIECE, Kind, NONE};
use crate::arena::layout::{Layout, PIECES_MAX};
use crate::stream::StreamSet;

impl Layout {
    /// Recounts the layout.
    ///
    /// # Panics
    /// If blocks and holes do not tile the range up to the top, two holes of the same streams
    /// touch, a piece belongs to no block, or the free lists do not match the holes.
    pub(crate) fn check(&self) {
        let (mut end, mut count, mut hole_count) = (0, 0, 0);
        // Pages with live bytes, and the first page that no node has counted yet.
        let (mut touched_pages, mut next_page) = (0, 0);
        let mut before: Option<StreamSet> = None;
        let (mut slot, mut previous) = (self.first, NONE);
        while let Some(node) = self.nodes.get(slot as usize) {
            assert_eq!(node.extent.offset, end, "gap or overlap before {}", node.extent.offset);
            assert_eq!(node.previous, previous, "broken link at {end}");
            assert!(node.extent.size_bytes > 0, "empty node at {end}");
            assert_eq!(node.extent.size_bytes % BLOCK_BYTES, 0, "odd size at {end}");
            let mut marked = None;
            if node.kind != Kind::Hole {
                let first = next_page.max(node.extent.offset / self.page_bytes);
                next_page = node.extent.end().div_ceil(self.page_bytes);
                touched_pages += next_page - first;
            }
            match node.kind {
                Kind::Hole => {
                    let last_use = node.last_use();
                    assert!(before != Some(last_use.streams), "two holes meet at {end}");
                    let (_, holes) = &self.free_lists[self.free_list_of(last_use.streams)];
                    let listed = holes.contains(&self.nodes, slot);
                    assert!(listed, "hole at {end} is not listed");
                    hole_count += 1;
                    marked = Some(last_use.streams);
                }
                Kind::Block => {}
                Kind::First => {
                    assert!(self.block(slot).is_stitched(), "the block at {end} has no view");
                    let piece_count = self.pieces(slot).count();
                    assert!(
                        piece_count <= PIECES_MAX,
                        "{piece_count} pieces of the block at {end}"
                    );
                }
                Kind::Piece => {
                    let first = node.links[FIRST_PIECE];
                    assert_eq!(self.nodes[first as usize].kind, Kind::First, "block of {end}");
                    let offset = node.extent.offset;
                    let is_known = self.pieces(first).any(|piece| piece.offset == offset);
                    assert!(is_known, "piece at {end} belongs to no block");
                }
            }
            before = marked;
            end = node.extent.end();
            count += 1;
            previous = slot;
            slot = node.next;
        }
        assert_eq!(touched_pages, self.touched_pages, "touched pages");
        assert!(before.is_none(), "a hole touches the top at {end}");
        assert_eq!(previous, self.last, "the list ends early");
        let listed_count: usize = self.free_lists.iter().map(|(_, holes)| holes.len()).sum();
        assert_eq!(hole_count, listed_count, "more holes listed than there are");
        assert_eq!(count + self.vacant.len(), self.nodes.len(), "lost slots");
    }
}
