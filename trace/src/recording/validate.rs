//! Laws of every recording, checked from the first block to the last segment.
//!
//! - Each id belongs to one block. The block is freed at most once, with its address and size.
//! - Live blocks that are not in pieces are disjoint; the pieces of a block add up to its size.
//! - Charges of a category, and reserved bytes, never fall below 0.
//! - At the end the segments hold exactly the live blocks, at their places. Segments and charges
//!   add up to the reserved bytes.

use std::collections::{HashMap, HashSet};
use std::fmt;

use lowtide_allocator::Category;
use thiserror::Error;

use super::spans::Spans;
use crate::recording::{EventKind, Piece, RecordedBlock, RecordedRange, Recording, TraceEvent};

/// A recording that contradicts itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("{part} {index}: {problem}")]
pub struct RecordingError {
    /// The part of the recording.
    pub part: RecordingPart,
    /// Index in the list, from 0.
    pub index: u64,
    /// The kind of contradiction.
    pub problem: RecordingProblem,
}

/// A list in a recording.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RecordingPart {
    /// [`Recording::pieces`].
    Pieces,
    /// [`Recording::start`] and [`Recording::start_pending`].
    Start,
    /// [`Recording::start_charges`].
    Charges,
    /// [`Recording::events`].
    Events,
    /// [`Recording::end`] and [`Recording::segment_kinds`].
    End,
}

impl fmt::Display for RecordingPart {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            RecordingPart::Pieces => "pieces",
            RecordingPart::Start => "block at the start",
            RecordingPart::Charges => "charge at the start",
            RecordingPart::Events => "event",
            RecordingPart::End => "segment",
        })
    }
}

/// Ways in which a recording contradicts itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum RecordingProblem {
    /// An id, a category or a segment occurs twice.
    #[error("{id} was given before")]
    Duplicate {
        /// The id, category or segment that occurs twice.
        id: u64,
    },
    /// A block that is not live is freed, or is present at the end.
    #[error("no live block {id}")]
    NotLive {
        /// Id of the block in the recording.
        id: u64,
    },
    /// A block has another place or size than when it became live, or its pieces do not add up.
    #[error("block {id} has changed")]
    Changed {
        /// Id of the block in the recording.
        id: u64,
    },
    /// A range is empty, ends beyond the last address, overlaps another range, is out of order, or
    /// has a request larger than its size.
    #[error("nothing can be at {address:#x} like this")]
    Place {
        /// First address of the range.
        address: u64,
    },
    /// No site has this number.
    #[error("no site {site}")]
    Site {
        /// Number of the site in the recording.
        site: u32,
    },
    /// More bytes are removed than there were.
    #[error("{what} fall below nothing, or exceed all bounds")]
    Balance {
        /// The kind of bytes.
        what: &'static str,
    },
    /// The end differs from the result of the events.
    #[error("{what} at the end are not those that the events lead to")]
    End {
        /// The things that differ.
        what: &'static str,
    },
}

use RecordingProblem as Problem;

impl Recording {
    /// Checks the laws, in little more than linear time.
    ///
    /// # Errors
    /// The first contradiction.
    pub fn check(&self) -> Result<(), RecordingError> {
        let at = |part, index: usize| {
            move |problem| RecordingError { part, index: index as u64, problem }
        };
        let mut laws = Laws::new(self.start_reserved_bytes);
        self.sites.iter().for_each(|_| laws.add_site());
        for (index, (&id, pieces)) in self.pieces.iter().enumerate() {
            if pieces.is_empty() {
                return Err(at(RecordingPart::Pieces, index)(Problem::Changed { id }));
            }
            for &piece in pieces {
                laws.piece(id, piece).map_err(at(RecordingPart::Pieces, index))?;
            }
        }
        for (index, block) in self.start.iter().enumerate() {
            let is_pending = self.start_pending.contains(&block.id);
            laws.start(block, is_pending).map_err(at(RecordingPart::Start, index))?;
        }
        if let Some(&id) = self.start_pending.iter().find(|id| !laws.live.contains_key(id)) {
            return Err(at(RecordingPart::Start, self.start.len())(Problem::NotLive { id }));
        }
        for (index, &(category, size_bytes)) in self.start_charges.iter().enumerate() {
            laws.charge(category, size_bytes).map_err(at(RecordingPart::Charges, index))?;
        }
        for (index, event) in self.events.iter().enumerate() {
            laws.event(event).map_err(at(RecordingPart::Events, index))?;
        }
        for (index, segment) in self.end.iter().enumerate() {
            laws.segment(segment).map_err(at(RecordingPart::End, index))?;
            for block in &segment.blocks {
                laws.end_block(block).map_err(at(RecordingPart::End, index))?;
            }
        }
        if let Some(&id) = self.segment_kinds.keys().find(|key| !laws.ends_has(**key)) {
            return Err(at(RecordingPart::End, self.end.len())(Problem::Place { address: id }));
        }
        laws.finish().map_err(at(RecordingPart::End, self.end.len()))
    }
}

#[derive(Clone, Copy, Debug)]
struct Live {
    address: u64,
    size_bytes: u64,
    is_pending: bool,
}

/// The laws as a state machine. It takes the parts of a recording in the order of the methods
/// below.
#[derive(Debug)]
pub(crate) struct Laws {
    site_count: usize,
    given: HashSet<u64>,
    live: HashMap<u64, Live>,
    /// Live blocks that are not in pieces.
    places: Spans<u64>,
    pieces: HashMap<u64, Vec<Piece>>,
    last_piece: Option<u64>,
    /// Charged bytes by [`Category::index`]. The last entry is for charges without a category.
    charged_bytes: [u64; Category::ALL.len() + 1],
    categories_seen: [bool; Category::ALL.len()],
    reserved_bytes: u64,
    segments: Spans<()>,
    segment_bytes: u64,
    /// The least possible address of the next segment. `block_end` is the least possible address of
    /// the next block in a segment.
    segment_end: u64,
    block_end: u64,
    /// Bytes of live blocks that the segments at the end have not shown yet.
    unseen: HashMap<u64, u64>,
    is_at_end: bool,
}

impl Laws {
    pub(crate) fn new(reserved_bytes: u64) -> Self {
        Laws {
            site_count: 0,
            given: HashSet::new(),
            live: HashMap::new(),
            places: Spans::default(),
            pieces: HashMap::new(),
            last_piece: None,
            charged_bytes: [0; Category::ALL.len() + 1],
            categories_seen: [false; Category::ALL.len()],
            reserved_bytes,
            segments: Spans::default(),
            segment_bytes: 0,
            segment_end: 0,
            block_end: 0,
            unseen: HashMap::new(),
            is_at_end: false,
        }
    }

    pub(crate) fn add_site(&mut self) {
        self.site_count += 1;
    }

    /// Takes the next piece of a block. Blocks come in the order of their ids.
    pub(crate) fn piece(&mut self, id: u64, piece: Piece) -> Result<(), Problem> {
        if self.last_piece.is_some_and(|last| id < last) {
            return Err(Problem::Duplicate { id });
        }
        self.last_piece = Some(id);
        end(piece.address, piece.size_bytes).ok_or(Problem::Place { address: piece.address })?;
        self.pieces.entry(id).or_default().push(piece);
        Ok(())
    }

    pub(crate) fn start(&mut self, block: &RecordedBlock, is_pending: bool) -> Result<(), Problem> {
        self.site(block.site)?;
        if block.address < self.block_end {
            return Err(Problem::Place { address: block.address });
        }
        self.block_end = block.address;
        self.give(block.id, block.address, block.size_bytes, block.requested_bytes)?;
        if let Some(live) = self.live.get_mut(&block.id) {
            live.is_pending = is_pending;
        }
        Ok(())
    }

    pub(crate) fn charge(&mut self, category: Category, size_bytes: u64) -> Result<(), Problem> {
        let index = category.index();
        if std::mem::replace(&mut self.categories_seen[index], true) {
            return Err(Problem::Duplicate { id: index as u64 });
        }
        self.charged_bytes[index] = size_bytes;
        Ok(())
    }

    pub(crate) fn event(&mut self, event: &TraceEvent) -> Result<(), Problem> {
        self.site(event.site)?;
        let TraceEvent { address, size_bytes, .. } = *event;
        match event.kind {
            EventKind::Allocate { id } => {
                self.give(id, address, size_bytes, event.requested_bytes)?;
            }
            EventKind::FreeRequested { id } => {
                let live = self.live.get_mut(&id).filter(|live| !live.is_pending);
                let live = live.ok_or(Problem::NotLive { id })?;
                if (live.address, live.size_bytes) != (address, size_bytes) {
                    return Err(Problem::Changed { id });
                }
                live.is_pending = true;
            }
            EventKind::Free { id } => {
                let live = self.live.remove(&id).ok_or(Problem::NotLive { id })?;
                if (live.address, live.size_bytes) != (address, size_bytes) {
                    return Err(Problem::Changed { id });
                }
                if !self.pieces.contains_key(&id) {
                    self.places.cut(address, address + size_bytes);
                }
            }
            EventKind::Reserve => {
                end(address, size_bytes).ok_or(Problem::Place { address })?;
                add(&mut self.reserved_bytes, size_bytes)?;
            }
            EventKind::Release => {
                end(address, size_bytes).ok_or(Problem::Place { address })?;
                take(&mut self.reserved_bytes, size_bytes, "reserved bytes")?;
            }
            EventKind::Charge => {
                add(&mut self.charged_bytes[charge_index(event.category)], size_bytes)?;
                add(&mut self.reserved_bytes, size_bytes)?;
            }
            EventKind::Discharge => {
                let charged_bytes = &mut self.charged_bytes[charge_index(event.category)];
                take(charged_bytes, size_bytes, "charged bytes")?;
                take(&mut self.reserved_bytes, size_bytes, "reserved bytes")?;
            }
            EventKind::OutOfMemory { .. } => {}
        }
        Ok(())
    }

    /// Takes the next segment, without its blocks. The blocks follow one by one.
    pub(crate) fn segment(&mut self, segment: &RecordedRange) -> Result<(), Problem> {
        self.begin_end();
        let RecordedRange { address, size_bytes, .. } = *segment;
        let wrong = Problem::Place { address };
        let segment_end = end(address, size_bytes).filter(|_| address >= self.segment_end);
        let segment_end = segment_end.ok_or(wrong)?;
        if !self.segments.insert(address, segment_end, ()) {
            return Err(wrong);
        }
        (self.segment_end, self.block_end) = (segment_end, address);
        add(&mut self.segment_bytes, size_bytes)
    }

    fn ends_has(&self, address: u64) -> bool {
        self.segments.end_of(address).is_some()
    }

    /// Takes a block of the last segment.
    pub(crate) fn end_block(&mut self, block: &RecordedBlock) -> Result<(), Problem> {
        self.site(block.site)?;
        let RecordedBlock { id, address, size_bytes, .. } = *block;
        let live = *self.live.get(&id).ok_or(Problem::NotLive { id })?;
        let block_end = end(address, size_bytes)
            .filter(|&block_end| address >= self.block_end && block_end <= self.segment_end);
        self.block_end = block_end.ok_or(Problem::Place { address })?;
        let is_as_it_was = match self.pieces.get(&id) {
            Some(pieces) => pieces.contains(&Piece { address, size_bytes }),
            None => (live.address, live.size_bytes) == (address, size_bytes),
        };
        let unseen_bytes = self.unseen.get_mut(&id).ok_or(Problem::NotLive { id })?;
        let left = unseen_bytes.checked_sub(size_bytes).filter(|_| is_as_it_was);
        *unseen_bytes = left.ok_or(Problem::Changed { id })?;
        Ok(())
    }

    pub(crate) fn finish(&mut self) -> Result<(), Problem> {
        self.begin_end();
        if self.unseen.values().any(|&bytes| bytes > 0) {
            return Err(Problem::End { what: "blocks" });
        }
        let mut total_bytes = self.segment_bytes;
        for &charged_bytes in &self.charged_bytes {
            add(&mut total_bytes, charged_bytes)?;
        }
        if total_bytes != self.reserved_bytes {
            return Err(Problem::End { what: "reserved bytes" });
        }
        match self.pieces.keys().find(|id| !self.given.contains(id)) {
            Some(&id) => Err(Problem::NotLive { id }),
            None => Ok(()),
        }
    }

    fn begin_end(&mut self) {
        if !std::mem::replace(&mut self.is_at_end, true) {
            self.unseen = self.live.iter().map(|(&id, live)| (id, live.size_bytes)).collect();
        }
    }

    fn give(
        &mut self,
        id: u64,
        address: u64,
        size_bytes: u64,
        requested_bytes: u64,
    ) -> Result<(), Problem> {
        if !self.given.insert(id) {
            return Err(Problem::Duplicate { id });
        }
        let wrong = Problem::Place { address };
        let block_end = end(address, size_bytes).filter(|_| requested_bytes <= size_bytes);
        let block_end = block_end.ok_or(wrong)?;
        match self.pieces.get(&id) {
            Some(pieces) => {
                let sum = pieces.iter().try_fold(0_u64, |sum, p| sum.checked_add(p.size_bytes));
                if sum != Some(size_bytes) {
                    return Err(Problem::Changed { id });
                }
            }
            None if !self.places.insert(address, block_end, id) => return Err(wrong),
            None => {}
        }
        self.live.insert(id, Live { address, size_bytes, is_pending: false });
        Ok(())
    }

    fn site(&self, site: Option<u32>) -> Result<(), Problem> {
        match site {
            Some(site) if site as usize >= self.site_count => Err(Problem::Site { site }),
            _ => Ok(()),
        }
    }
}

fn charge_index(category: Option<Category>) -> usize {
    category.map_or(Category::ALL.len(), Category::index)
}

/// The end of a range; `None` if it is empty or ends beyond the last address.
fn end(address: u64, size_bytes: u64) -> Option<u64> {
    address.checked_add(size_bytes).filter(|_| size_bytes > 0)
}

fn add(to: &mut u64, bytes: u64) -> Result<(), Problem> {
    *to = to.checked_add(bytes).ok_or(Problem::Balance { what: "bytes" })?;
    Ok(())
}

fn take(from: &mut u64, bytes: u64, what: &'static str) -> Result<(), Problem> {
    *from = from.checked_sub(bytes).ok_or(Problem::Balance { what })?;
    Ok(())
}
