//! The trace of the snapshot: one or two entries for each event.

use lowtide_allocator::Category;
use lowtide_allocator::torch::StreamId;

use super::pickle_writer::{Batches, Phrase, Word};
use super::segments::Segments;
use super::{Export, shares};
use crate::recording::{EventKind, TraceEvent};

/// The parts of a trace entry that its event does not have.
struct Entry {
    action: Word,
    /// The address and its key.
    address: (Word, u64),
    size_bytes: u64,
}

/// Phrases that many entries share.
pub(super) struct Phrases {
    /// First words of an entry, by action.
    heads: Vec<Phrase>,
    /// Words of the category, by category.
    categories: Vec<Phrase>,
    context: Phrase,
}

impl Phrases {
    pub(super) fn new() -> Self {
        let unknown = || vec![Phrase::default(); Word::COUNT];
        Phrases { heads: unknown(), categories: unknown(), context: Phrase::default() }
    }
}

impl<'a> Export<'a> {
    pub(super) fn trace(&mut self, segments: &Segments<'a>) {
        let recording = self.recording;
        if !recording.pieces.is_empty() {
            let requests = recording.start.iter().map(|block| (block.id, block.requested_bytes));
            self.requested.extend(requests);
        }
        let mut list = self.pickle.begin_list();
        let mut has_unknown = false;
        for event in &recording.events {
            has_unknown |= event.category.is_none() && !is_charge(event);
            let entry = |action| Entry {
                action,
                address: (Word::Addr, event.address),
                size_bytes: event.size_bytes,
            };
            let entry = match event.kind {
                EventKind::Reserve if segments.has_parts => entry(Word::SegmentMap),
                EventKind::Reserve => entry(Word::SegmentAlloc),
                EventKind::Release if segments.has_parts => entry(Word::SegmentUnmap),
                EventKind::Release => entry(Word::SegmentFree),
                EventKind::OutOfMemory { free_bytes } => {
                    Entry { address: (Word::DeviceFree, free_bytes), ..entry(Word::Oom) }
                }
                EventKind::Charge | EventKind::Discharge => continue,
                EventKind::Allocate { id } => {
                    self.moves(&mut list, event, id, &[Word::Alloc]);
                    continue;
                }
                EventKind::FreeRequested { id } => {
                    self.pending.insert(id);
                    self.moves(&mut list, event, id, &[Word::FreeRequested]);
                    continue;
                }
                EventKind::Free { id } => {
                    let is_requested = self.pending.remove(&id);
                    let actions = [Word::FreeRequested, Word::FreeCompleted];
                    self.moves(&mut list, event, id, &actions[usize::from(is_requested)..]);
                    continue;
                }
            };
            self.pickle.item(&mut list);
            self.entry(event, entry);
        }
        if self.has_categories && !has_unknown {
            self.pickle.item(&mut list);
            self.marker();
        }
        self.pickle.end_list(&list);
    }

    /// Writes the entries of an event about a block: `actions` for each of its pieces, each piece
    /// with its share of the request.
    fn moves(&mut self, list: &mut Batches, event: &TraceEvent, id: u64, actions: &[Word]) {
        let recording = self.recording;
        let mut write = |address: u64, size_bytes: u64| {
            for &action in actions {
                self.pickle.item(list);
                self.entry(event, Entry { action, address: (Word::Addr, address), size_bytes });
            }
        };
        let Some(pieces) = recording.pieces.get(&id) else {
            return write(event.address, event.requested_bytes);
        };
        for piece in shares(pieces, event.requested_bytes) {
            write(piece.address, piece.size_bytes);
        }
        if let EventKind::Allocate { .. } = event.kind {
            self.requested.insert(id, event.requested_bytes);
        }
    }

    fn entry(&mut self, event: &TraceEvent, entry: Entry) {
        let Export { pickle, phrases, .. } = self;
        pickle.begin_dict();
        let head = &mut phrases.heads[entry.action as usize];
        pickle.phrase(head, &[Word::Action, entry.action, entry.address.0]);
        pickle.number(entry.address.1);
        pickle.word(Word::Size);
        pickle.number(entry.size_bytes);
        self.rest(event.stream, event.time_us, event.category, event.site);
    }

    /// Writes an event without a category, in a trace where all events have one.
    fn marker(&mut self) {
        let time_us = self.recording.events.last().map_or(0, |event| event.time_us);
        let pickle = &mut self.pickle;
        pickle.begin_dict();
        pickle.word(Word::Action);
        pickle.word(Word::Snapshot);
        for key in [Word::Addr, Word::Size] {
            pickle.word(key);
            pickle.number(0);
        }
        self.rest(StreamId(0), time_us, None, None);
    }

    fn rest(
        &mut self,
        stream: StreamId,
        time_us: u64,
        category: Option<Category>,
        site: Option<u32>,
    ) {
        let Export { pickle, phrases, .. } = self;
        pickle.word(Word::Stream);
        pickle.number(stream.0);
        pickle.word(Word::TimeUs);
        pickle.number(time_us);
        if self.has_categories {
            let category = category.map_or(Word::Unknown, category_word);
            let phrase = &mut phrases.categories[category as usize];
            pickle.phrase(phrase, &[Word::Category, category]);
        }
        let [context, data] = [Word::CompileContext, Word::UserMetadata];
        let words = [context, Word::NotAvailable, data, Word::Empty, Word::Frames];
        pickle.phrase(&mut phrases.context, &words);
        self.frames(site);
        self.pickle.end_dict();
    }
}

fn is_charge(event: &TraceEvent) -> bool {
    matches!(event.kind, EventKind::Charge | EventKind::Discharge)
}

fn category_word(category: Category) -> Word {
    match category {
        Category::Parameter => Word::Parameter,
        Category::Gradient => Word::Gradient,
        Category::OptimizerState => Word::OptimizerState,
        Category::Activation => Word::Activation,
        Category::Workspace => Word::Workspace,
        Category::Input => Word::Input,
        Category::Other => Word::Other,
    }
}
