//! Lives of blocks, and the levels after every event of a recording.
//!
//! A *moment* is the time between two events: moment 0 is before the first event, moment `m` after
//! event `m - 1`. No file makes this code panic: a free of an unknown block is skipped, a second
//! block with the same id ends the first, and sums saturate.

use std::collections::HashMap;

use lowtide_allocator::Category;
use lowtide_allocator::torch::StreamId;

use super::printable::{beginning, end, printable};
use super::recording::{EventKind, RecordedBlock, Recording, Site};

/// Number of bands: one for each category, and one for blocks without a category.
pub(super) const BANDS: usize = Category::ALL.len() + 1;
/// The moment at which no life ends.
pub(super) const NEVER: usize = usize::MAX;

/// The band of a category.
pub(super) fn band(category: Option<Category>) -> usize {
    category.map_or(BANDS - 1, Category::index)
}

/// The name of a band.
pub(super) fn band_name(band: usize) -> &'static str {
    Category::ALL.get(band).map_or("unknown", |category| category.name())
}

/// A block, from its first moment to the moment at which it is gone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Life {
    pub(super) id: u64,
    pub(super) address: u64,
    pub(super) size_bytes: u64,
    pub(super) requested_bytes: u64,
    pub(super) stream: StreamId,
    pub(super) category: Option<Category>,
    /// A valid index into the sites of the recording.
    pub(super) site: Option<u32>,
    pub(super) from: usize,
    /// The moment from which on the block only waits for other streams; [`NEVER`] if none was
    /// recorded.
    pub(super) waits_from: usize,
    pub(super) to: usize,
}

impl Life {
    pub(super) fn is_live_at(&self, moment: usize) -> bool {
        (self.from..self.to).contains(&moment)
    }

    pub(super) fn is_throughout(&self) -> bool {
        self.from == 0 && self.to == NEVER
    }

    /// True if the block was allocated and freed within the recording.
    pub(super) fn is_transient(&self) -> bool {
        self.from > 0 && self.to != NEVER
    }

    /// True if events lie between the owner's free and the end of the block.
    pub(super) fn is_delayed(&self) -> bool {
        self.waits_from != NEVER && self.to > self.waits_from.saturating_add(1)
    }
}

/// The lives that an event starts, turns to waiting, or ends.
#[derive(Clone, Copy, Debug, Default)]
struct Change {
    born: Option<usize>,
    waiting: Option<usize>,
    gone: Option<usize>,
}

/// Bytes in use at a moment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Levels {
    pub(super) live_bytes: u64,
    pub(super) requested_bytes: u64,
    /// Live bytes of blocks that only wait for other streams.
    pub(super) waiting_bytes: u64,
    pub(super) charged_bytes: u64,
    pub(super) charged_by_band: [u64; BANDS],
    pub(super) reserved_bytes: u64,
    pub(super) live_blocks: u64,
}

impl Levels {
    /// Bytes of blocks and charges.
    pub(super) fn in_use_bytes(&self) -> u64 {
        self.live_bytes.saturating_add(self.charged_bytes)
    }
}

/// The lives of a recording: first the blocks that are live at its start, then the others in order
/// of allocation.
#[derive(Debug)]
pub(super) struct Lives<'a> {
    pub(super) recording: &'a Recording,
    pub(super) lives: Vec<Life>,
    changes: Vec<Change>,
}

impl<'a> Lives<'a> {
    pub(super) fn of(recording: &'a Recording) -> Lives<'a> {
        let changes = vec![Change::default(); recording.events.len()];
        let mut all = Lives { recording, lives: Vec::new(), changes };
        // The map is never iterated, so the order of a hash has no effect.
        let mut open: HashMap<u64, usize> = HashMap::new();
        for block in &recording.start {
            // The first of two blocks with one id can only end with the recording.
            let life = all.begin(block, 0);
            if recording.start_pending.contains(&block.id) {
                all.lives[life].waits_from = 0;
            }
            open.insert(block.id, life);
        }
        for (index, event) in recording.events.iter().enumerate() {
            match event.kind {
                EventKind::Allocate { id } => {
                    let block = RecordedBlock {
                        id,
                        address: event.address,
                        size_bytes: event.size_bytes,
                        requested_bytes: event.requested_bytes,
                        stream: event.stream,
                        category: event.category,
                        site: event.site,
                    };
                    let life = all.begin(&block, index + 1);
                    all.changes[index].born = Some(life);
                    if let Some(older) = open.insert(id, life) {
                        all.end(older, index);
                    }
                }
                EventKind::FreeRequested { id } => {
                    let life = open.get(&id).copied();
                    if let Some(life) = life.filter(|&life| all.lives[life].waits_from == NEVER) {
                        all.lives[life].waits_from = index + 1;
                        all.changes[index].waiting = Some(life);
                    }
                }
                EventKind::Free { id } => {
                    if let Some(life) = open.remove(&id) {
                        all.end(life, index);
                    }
                }
                _ => {}
            }
        }
        all
    }

    fn begin(&mut self, block: &RecordedBlock, from: usize) -> usize {
        let known = |&site: &u32| (site as usize) < self.recording.sites.len();
        self.lives.push(Life {
            id: block.id,
            address: block.address,
            size_bytes: block.size_bytes,
            requested_bytes: block.requested_bytes,
            stream: block.stream,
            category: block.category,
            site: block.site.filter(known),
            from,
            waits_from: NEVER,
            to: NEVER,
        });
        self.lives.len() - 1
    }

    fn end(&mut self, life: usize, event: usize) {
        self.lives[life].to = event + 1;
        self.changes[event].gone = Some(life);
    }

    /// Calls `see` with the levels at every moment, the first one included.
    pub(super) fn walk(&self, mut see: impl FnMut(usize, &Levels)) {
        let mut levels =
            Levels { reserved_bytes: self.recording.start_reserved_bytes, ..Levels::default() };
        for life in self.lives.iter().take_while(|life| life.from == 0) {
            levels.add(life);
            if life.waits_from == 0 {
                add(&mut levels.waiting_bytes, life.size_bytes);
            }
        }
        for &(category, bytes) in &self.recording.start_charges {
            levels.charge(Some(category), bytes);
        }
        see(0, &levels);
        for (index, event) in self.recording.events.iter().enumerate() {
            let Change { born, waiting, gone } = self.changes[index];
            if let Some(life) = gone {
                levels.remove(&self.lives[life]);
            }
            if let Some(life) = born {
                levels.add(&self.lives[life]);
            }
            if let Some(life) = waiting {
                add(&mut levels.waiting_bytes, self.lives[life].size_bytes);
            }
            match event.kind {
                EventKind::Reserve => add(&mut levels.reserved_bytes, event.size_bytes),
                EventKind::Release => subtract(&mut levels.reserved_bytes, event.size_bytes),
                EventKind::Charge => {
                    levels.charge(event.category, event.size_bytes);
                    add(&mut levels.reserved_bytes, event.size_bytes);
                }
                EventKind::Discharge => {
                    // At most the charged bytes of the category.
                    let level = &mut levels.charged_by_band[band(event.category)];
                    let gone_bytes = event.size_bytes.min(*level);
                    *level -= gone_bytes;
                    subtract(&mut levels.charged_bytes, gone_bytes);
                    subtract(&mut levels.reserved_bytes, event.size_bytes);
                }
                _ => {}
            }
            see(index + 1, &levels);
        }
    }
}

impl Levels {
    fn add(&mut self, life: &Life) {
        add(&mut self.live_bytes, life.size_bytes);
        add(&mut self.requested_bytes, life.requested_bytes);
        self.live_blocks += 1;
    }

    fn remove(&mut self, life: &Life) {
        subtract(&mut self.live_bytes, life.size_bytes);
        subtract(&mut self.requested_bytes, life.requested_bytes);
        self.live_blocks -= 1;
        if life.waits_from != NEVER {
            subtract(&mut self.waiting_bytes, life.size_bytes);
        }
    }

    fn charge(&mut self, category: Option<Category>, bytes: u64) {
        add(&mut self.charged_bytes, bytes);
        add(&mut self.charged_by_band[band(category)], bytes);
    }
}

fn add(level_bytes: &mut u64, bytes: u64) {
    *level_bytes = level_bytes.saturating_add(bytes);
}

fn subtract(level_bytes: &mut u64, bytes: u64) {
    *level_bytes = level_bytes.saturating_sub(bytes);
}

/// Least number of characters of a function's name: a shorter beginning says nothing.
const FUNCTION_LEN_MIN: usize = 8;

impl Site {
    /// The site on one line, in at most `len_max` printable characters: text of a stranger must not
    /// control a terminal or change the direction of the text around it. A long place keeps its
    /// end. If there is room, the beginning of the function follows. If the place is unknown, the
    /// function stands alone.
    pub(super) fn shown(&self, len_max: usize) -> String {
        if self.module.is_empty() {
            return self.line_shown(len_max);
        }
        // The module gets at most half of the room: the line says more than a long path.
        let module = beginning(&printable(&self.module), len_max.div_ceil(2));
        let room = len_max.saturating_sub(module.chars().count() + 1);
        if room == 0 { module } else { format!("{module} {}", self.line_shown(room)) }
    }

    fn line_shown(&self, len_max: usize) -> String {
        let is_nowhere = self.line == 0 && matches!(self.file.as_str(), "" | "??");
        if is_nowhere && !self.function.is_empty() {
            return beginning(&printable(&self.function), len_max);
        }
        let file = if self.file.is_empty() { "?" } else { &self.file };
        let place = match self.line {
            0 => file.to_owned(),
            line => format!("{file}:{line}"),
        };
        let place = end(&printable(&place), len_max);
        let function = printable(&self.function);
        let len = function.chars().count();
        let room = len_max.saturating_sub(place.chars().count() + 1);
        if len == 0 || room < len.min(FUNCTION_LEN_MIN) {
            place
        } else {
            format!("{place} {}", beginning(&function, room))
        }
    }
}
