//! Streams in shuffled order, block by block.

use crate::dataset::SampleSlot;
use crate::element::Field;
use crate::error::{DataError, SampleError};
use crate::layout::Layout;
use crate::rows::Rows;
use crate::sampler::order::EpochKey;
use crate::sampler::rng::{epoch_rng, shuffle};
use crate::staging::{Ring, Staging};
use crate::stream::{Stream, StreamState};
use serde::{Deserialize, Serialize};
use std::sync::Arc;

/// The samples of a stream in a seeded order. Each block of `block_len` samples is read first and
/// then handed out in an order that depends on the seed and the number of the block.
///
/// A block can be restored from four numbers: a resumed stream reads the samples of the block
/// again. (A shuffle buffer, where the next sample replaces each sample that is taken, would have
/// to be saved as a whole.) In return no sample moves to another block, and the first sample of a
/// block comes after the whole block was read. The memory of `block_len` samples is allocated when
/// the stream is made.
#[derive(Debug)]
pub struct ShuffledStream<S> {
    stream: S,
    seed: u64,
    block_len: usize,
    layout: Arc<Layout>,
    ring: Ring,
    block: Block,
    position: Position,
}

/// The position of a shuffled stream.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Position {
    /// The position of the underlying stream before the block.
    start: StreamState,
    /// Number of blocks before this one.
    block: u64,
    /// Number of samples of the block that were handed out.
    next: usize,
    /// Number of samples of the block that could not be read and whose errors were returned.
    bad: usize,
    seed: u64,
    block_len: usize,
}

#[derive(Debug)]
enum Block {
    /// The block is not begun.
    None,
    /// The block is being read: `kept` are the rows that were read, and `bad` is the number of
    /// samples that could not be read.
    Filling { rows: Rows, kept: Vec<usize>, bad: usize },
    /// The block is read: `order` are the rows in the order in which they are handed out.
    Full { staging: Staging, order: Vec<usize>, is_last: bool },
}

impl<S: Stream> ShuffledStream<S> {
    /// The samples of `stream` from its current position on, shuffled.
    ///
    /// # Errors
    /// [`DataError::InvalidOption`] if `block_len` is 0 or a block does not fit the address space;
    /// [`DataError::Staging`] if a block does not fit in memory.
    pub fn new(stream: S, block_len: usize, seed: u64) -> Result<Self, DataError> {
        let invalid = DataError::InvalidOption { option: "block_len", value: block_len };
        let layout = (block_len > 0).then(|| Layout::new(stream.fields(), block_len)).flatten();
        let layout = Arc::new(layout.ok_or(invalid)?);
        let ring = Ring::new(1, layout.size_bytes)?;
        let start = stream.state();
        let position = Position { start, block: 0, next: 0, bad: 0, seed, block_len };
        Ok(Self { stream, seed, block_len, layout, ring, block: Block::None, position })
    }

    /// Reads the rest of the block.
    fn fill(&mut self, slot: &SampleSlot<'_>) -> Result<(), SampleError> {
        if matches!(self.block, Block::None) {
            let staging = self.ring.take().expect("no other block holds the buffer");
            let rows = Rows::new(staging, Arc::clone(&self.layout), self.block_len);
            self.block = Block::Filling { rows, kept: Vec::new(), bad: 0 };
        }
        let mut is_last = false;
        if let Block::Filling { rows, kept, bad } = &mut self.block {
            while let Some(row) = rows.claim() {
                let at = row.index();
                let mut place = slot.in_row(row);
                let written = self.stream.write_next(&mut place);
                match written.and_then(|is_written| Ok(place.finish().map(|()| is_written)?)) {
                    Ok(true) => kept.push(at),
                    Ok(false) => {
                        is_last = true;
                        break;
                    }
                    Err(error) => {
                        *bad += 1;
                        if *bad > self.position.bad {
                            self.position.bad = *bad;
                            return Err(error);
                        }
                    }
                }
            }
        }
        if let Block::Filling { rows, kept: mut order, .. } =
            std::mem::replace(&mut self.block, Block::None)
        {
            let key = EpochKey { seed: self.seed, epoch: self.position.block, batch_size: 1 };
            shuffle(&mut order, &mut epoch_rng(key, b"lowtide::streams"));
            self.block = Block::Full { staging: rows.into_staging(), order, is_last };
        }
        Ok(())
    }
}

impl<S: Stream> Stream for ShuffledStream<S> {
    fn fields(&self) -> &[Field] {
        self.stream.fields()
    }

    fn write_next(&mut self, slot: &mut SampleSlot<'_>) -> Result<bool, SampleError> {
        loop {
            let Block::Full { staging, order, is_last } = &self.block else {
                self.fill(slot)?;
                continue;
            };
            if let Some(&row) = order.get(self.position.next) {
                slot.copy_row(&self.layout, staging.bytes(), row);
                self.position.next += 1;
                return Ok(true);
            }
            if *is_last {
                return Ok(false);
            }
            self.block = Block::None;
            let (start, block) = (self.stream.state(), self.position.block.saturating_add(1));
            self.position = Position { start, block, next: 0, bad: 0, ..self.position.clone() };
        }
    }

    fn state(&self) -> StreamState {
        StreamState::new(&self.position)
    }

    fn set_state(&mut self, state: &StreamState) -> Result<(), SampleError> {
        let position: Position = state.content()?;
        for (what, saved, here) in [
            ("seed", position.seed, self.seed),
            ("block_len", position.block_len as u64, self.block_len as u64),
        ] {
            if saved != here {
                return Err(DataError::StateMismatch { what, saved, here }.into());
            }
        }
        self.stream.set_state(&position.start)?;
        self.block = Block::None;
        self.position = position;
        Ok(())
    }
}
