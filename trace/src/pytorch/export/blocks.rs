//! The state at the end: segments, and the blocks that tile them.

use lowtide_allocator::torch::Pool;

use super::pickle_writer::Word;
use super::segments::SnapshotSegment;
use super::{Export, ExportError, shares};
use crate::recording::RecordedBlock;

/// A block of the snapshot.
struct Block {
    address: u64,
    size_bytes: u64,
    requested_bytes: u64,
    state: Word,
    site: Option<u32>,
}

impl<'a> Export<'a> {
    pub(super) fn segment(&mut self, segment: &SnapshotSegment<'a>) -> Result<(), ExportError> {
        let blocks = self.tile(segment)?;
        let sum = |states: &[Word], size: fn(&Block) -> u64| {
            blocks.iter().filter(|block| states.contains(&block.state)).map(size).sum::<u64>()
        };
        let active = [Word::ActiveAllocated, Word::ActivePendingFree];
        let segment_type = match segment.kind.pool {
            Pool::Small => Word::Small,
            Pool::Large => Word::Large,
        };
        let pickle = &mut self.pickle;
        pickle.begin_dict();
        for (key, number) in [
            (Word::Device, 0),
            (Word::Address, segment.address),
            (Word::TotalSize, segment.size_bytes),
            (Word::AllocatedSize, sum(&active[..1], |block| block.size_bytes)),
            (Word::ActiveSize, sum(&active, |block| block.size_bytes)),
            (Word::RequestedSize, sum(&active, |block| block.requested_bytes)),
            (Word::Stream, segment.stream.0),
        ] {
            pickle.word(key);
            pickle.number(number);
        }
        pickle.word(Word::SegmentType);
        pickle.word(segment_type);
        pickle.word(Word::SegmentPoolId);
        pickle.signed(segment.kind.pool_id.0);
        pickle.signed(segment.kind.pool_id.1);
        pickle.pair();
        pickle.word(Word::IsExpandable);
        pickle.truth(segment.kind.is_expandable.into());
        pickle.word(Word::Frames);
        self.frames(None);
        self.pickle.word(Word::Blocks);
        let mut list = self.pickle.begin_list();
        for block in &blocks {
            self.pickle.item(&mut list);
            self.block(block);
        }
        self.pickle.end_list(&list);
        self.pickle.end_dict();
        Ok(())
    }

    /// The live blocks of a segment, with free blocks between them.
    fn tile(&self, segment: &SnapshotSegment<'_>) -> Result<Vec<Block>, ExportError> {
        let free = |address: u64, end: u64| Block {
            address,
            size_bytes: end - address,
            requested_bytes: 0,
            state: Word::Inactive,
            site: None,
        };
        let mut blocks = Vec::with_capacity(2 * segment.blocks.len() + 1);
        let segment_end = segment.address.saturating_add(segment.size_bytes);
        let mut at = segment.address;
        for block in &segment.blocks {
            let RecordedBlock { id, address, size_bytes, .. } = **block;
            let end = address.checked_add(size_bytes).filter(|&end| end <= segment_end);
            let end = end.filter(|_| address >= at && size_bytes > 0);
            let end = end.ok_or(ExportError::End { address })?;
            if address > at {
                blocks.push(free(at, address));
            }
            let is_pending = self.pending.contains(&id);
            blocks.push(Block {
                address,
                size_bytes,
                requested_bytes: self.request(block),
                state: if is_pending { Word::ActivePendingFree } else { Word::ActiveAllocated },
                site: block.site,
            });
            at = end;
        }
        if at < segment_end {
            blocks.push(free(at, segment_end));
        }
        Ok(blocks)
    }

    /// Requested bytes of a block, or of its piece at this address.
    fn request(&self, block: &RecordedBlock) -> u64 {
        let RecordedBlock { id, address, size_bytes, requested_bytes, .. } = *block;
        let (Some(pieces), Some(&whole_bytes)) =
            (self.recording.pieces.get(&id), self.requested.get(&id))
        else {
            return requested_bytes.min(size_bytes);
        };
        let mut places = shares(pieces, whole_bytes);
        places.find(|place| place.address == address).map_or(0, |place| place.size_bytes)
    }

    fn block(&mut self, block: &Block) {
        let pickle = &mut self.pickle;
        pickle.begin_dict();
        for (key, number) in [
            (Word::Address, block.address),
            (Word::Size, block.size_bytes),
            (Word::RequestedSize, block.requested_bytes),
        ] {
            pickle.word(key);
            pickle.number(number);
        }
        pickle.word(Word::State);
        pickle.word(block.state);
        pickle.word(Word::Frames);
        self.frames(block.site);
        self.pickle.end_dict();
    }
}
