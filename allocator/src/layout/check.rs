//! The laws of a layout, checked against a recount.

use std::collections::BTreeSet;

use super::{BLOCK_BYTES, Kind, Layout};
use crate::holes::NONE;
use crate::stream::StreamSet;

impl Layout {
    /// # Panics
    /// If blocks and holes do not tile the range up to the top, if two holes of the same streams
    /// touch, if pieces are not a block's, or if the index of holes is not the holes.
    pub(crate) fn check(&self) {
        let (mut end, mut count, mut hole_count) = (0, 0, 0);
        let mut touched = BTreeSet::new();
        let mut before: Option<StreamSet> = None;
        let (mut slot, mut previous) = (self.first, NONE);
        while let Some(node) = self.nodes.get(slot as usize) {
            assert_eq!(node.extent.offset, end, "gap or overlap before {}", node.extent.offset);
            assert_eq!(node.previous, previous, "broken link at {end}");
            assert!(node.extent.size_bytes > 0, "empty node at {end}");
            assert_eq!(node.extent.size_bytes % BLOCK_BYTES, 0, "odd size at {end}");
            let mut marked = None;
            if node.kind != Kind::Hole {
                let last = (node.extent.end() - 1) / self.page_bytes;
                touched.extend(node.extent.offset / self.page_bytes..=last);
            }
            match node.kind {
                Kind::Hole => {
                    let marks = node.marks;
                    assert!(before != Some(marks.streams), "two holes meet at {end}");
                    let (set, holes) = &self.holes[node.list as usize];
                    assert_eq!(*set, marks.streams, "the list of the hole at {end}");
                    let listed = holes.contains(&self.nodes, slot);
                    assert!(listed, "hole at {end} is not listed");
                    hole_count += 1;
                    marked = Some(marks.streams);
                }
                Kind::Block => {
                    let live = self.block(slot);
                    let total_bytes: usize = self.pieces(slot).map(|piece| piece.size_bytes).sum();
                    assert_eq!(total_bytes, live.size_bytes, "pieces of the block at {end}");
                    let is_whole = live.next_piece == NONE;
                    assert!(live.is_stitched() || is_whole, "the block at {end} has no view");
                }
                Kind::Piece => {
                    let first = self.lives[slot as usize].first_piece;
                    let offset = node.extent.offset;
                    let is_known = self.pieces(first).any(|piece| piece.offset == offset);
                    assert!(is_known, "piece at {end} is nobody's");
                }
            }
            before = marked;
            end = node.extent.end();
            count += 1;
            previous = slot;
            slot = node.next;
        }
        assert_eq!(touched.len(), self.touched_pages, "touched pages");
        assert!(before.is_none(), "a hole touches the top at {end}");
        assert_eq!(previous, self.last, "the list ends early");
        let listed_count: usize = self.holes.iter().map(|(_, holes)| holes.len()).sum();
        assert_eq!(hole_count, listed_count, "more holes listed than there are");
        assert_eq!(count + self.vacant.len(), self.nodes.len(), "lost slots");
    }
}
