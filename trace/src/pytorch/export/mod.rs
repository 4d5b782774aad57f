//! A recording as a memory snapshot of PyTorch, for `torch.cuda._memory_viz` and its viewer.
//!
//! The keys are those of `torch/csrc/cuda/memory_snapshot.cpp`. Viewers rely on three things.
//! Blocks tile their segments, with free room as inactive blocks. Every free finds its block if a
//! viewer goes backwards from the last state. If one event has a category, one event has the
//! category `unknown`. Charges have no address and are left out. The device is number 0.

mod blocks;
mod entries;
mod pickle_writer;
mod segments;

use std::collections::{HashMap, HashSet};
use std::io::{self, Write};

use thiserror::Error;

use crate::recording::{Piece, Recording};
use entries::Phrases;
use pickle_writer::{Memo, PickleWriter, Word};
use segments::Segments;

/// Reasons why a recording cannot be written as a snapshot.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum ExportError {
    /// The file cannot be written.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// A number does not fit into a signed 64-bit integer, as pickles of snapshots need.
    #[error("{number} is too large for a snapshot")]
    Number {
        /// Number of the recording.
        number: u64,
    },
    /// A range is missing after it was reserved, or present after it was released.
    #[error("event {event} contradicts the segments that follow, at {address:#x}")]
    Segment {
        /// Index in the events.
        event: u64,
        /// First address of the range.
        address: u64,
    },
    /// Segments overlap, or blocks lie outside their segment or on each other.
    #[error("what is at {address:#x} at the end cannot be there")]
    End {
        /// First address of the segment or block.
        address: u64,
    },
}

/// The file name of a frame that stands for a module of the model.
const MODULE_FILE: &str = "(module)";

impl Recording {
    /// Writes a pickle of protocol 2 in one piece. The recording has to hold its laws (see
    /// [`check`](Recording::check)); otherwise viewers fail.
    ///
    /// # Errors
    /// Segments and blocks contradict each other, a number does not fit into 63 bits, or writing
    /// fails.
    pub fn write_pickle(&self, mut file: impl Write) -> Result<(), ExportError> {
        let segments = Segments::of(self)?;
        // An event takes about 60 bytes, and a free has two entries.
        let mut export = Export {
            recording: self,
            pickle: PickleWriter::new(4096 + 100 * self.events.len()),
            phrases: Phrases::new(),
            stacks: vec![None; self.sites.len()],
            texts: HashMap::new(),
            no_frames: None,
            pending: self.start_pending.iter().copied().collect(),
            requested: HashMap::new(),
            has_categories: self.events.iter().any(|event| event.category.is_some()),
        };
        export.root(&segments)?;
        let bytes = export.pickle.finish().map_err(|number| ExportError::Number { number })?;
        file.write_all(&bytes)?;
        Ok(file.flush()?)
    }
}

struct Export<'a> {
    recording: &'a Recording,
    pickle: PickleWriter,
    phrases: Phrases,
    /// Memo numbers of the stacks that were written, by site.
    stacks: Vec<Option<Memo>>,
    texts: HashMap<&'a str, Memo>,
    no_frames: Option<Memo>,
    /// Blocks that wait for other streams.
    pending: HashSet<u64>,
    /// Requested bytes of live blocks in pieces, by id.
    requested: HashMap<u64, u64>,
    has_categories: bool,
}

impl<'a> Export<'a> {
    fn root(&mut self, segments: &Segments<'a>) -> Result<(), ExportError> {
        self.pickle.begin_dict();
        self.pickle.word(Word::DeviceTraces);
        let mut traces = self.pickle.begin_list();
        self.pickle.item(&mut traces);
        self.trace(segments);
        self.pickle.end_list(&traces);
        // Segments follow the trace, because the trace shows which blocks are pending.
        self.pickle.word(Word::Segments);
        let mut list = self.pickle.begin_list();
        for segment in &segments.end {
            self.pickle.item(&mut list);
            self.segment(segment)?;
        }
        self.pickle.end_list(&list);
        self.settings(segments);
        self.pickle.word(Word::ExternalAnnotations);
        self.pickle.begin_list();
        self.pickle.end_dict();
        Ok(())
    }

    fn settings(&mut self, segments: &Segments<'a>) {
        let is_expandable = segments.end.iter().any(|segment| segment.kind.is_expandable);
        let pickle = &mut self.pickle;
        pickle.word(Word::AllocatorSettings);
        pickle.begin_dict();
        pickle.word(Word::AllocConf);
        pickle.word(Word::Empty);
        pickle.word(Word::MaxSplitSize);
        pickle.signed(-1);
        pickle.word(Word::CollectionThreshold);
        pickle.fraction(0.0);
        pickle.word(Word::ExpandableSegments);
        pickle.truth(is_expandable.into());
        pickle.word(Word::Overflowed);
        pickle.truth((self.recording.lost_events > 0).into());
        pickle.end_dict();
    }

    /// Writes a stack of the line and, around the line, the module; or an empty stack.
    fn frames(&mut self, site: Option<u32>) {
        let sites = &self.recording.sites;
        let Some((index, site)) = site.and_then(|site| Some((site, sites.get(site as usize)?)))
        else {
            match self.no_frames {
                Some(memo) => self.pickle.recall(memo),
                None => {
                    self.pickle.begin_list();
                    self.no_frames = Some(self.pickle.memorise());
                }
            }
            return;
        };
        if let Some(memo) = self.stacks[index as usize] {
            return self.pickle.recall(memo);
        }
        let mut list = self.pickle.begin_list();
        self.pickle.item(&mut list);
        self.frame(&site.function, &site.file, site.line);
        if !site.module.is_empty() {
            self.pickle.item(&mut list);
            self.frame(&site.module, MODULE_FILE, 0);
        }
        self.pickle.end_list(&list);
        self.stacks[index as usize] = Some(self.pickle.memorise());
    }

    fn frame(&mut self, name: &'a str, file: &'a str, line: u32) {
        self.pickle.begin_dict();
        self.pickle.word(Word::Name);
        self.text(name);
        self.pickle.word(Word::Filename);
        self.text(file);
        self.pickle.word(Word::Line);
        self.pickle.number(line.into());
        self.pickle.end_dict();
    }

    fn text(&mut self, text: &'a str) {
        if let Some(&memo) = self.texts.get(text) {
            return self.pickle.recall(memo);
        }
        self.pickle.text(text);
        let memo = self.pickle.memorise();
        self.texts.insert(text, memo);
    }
}

/// The pieces with their shares of a request: the first pieces are full.
fn shares(pieces: &[Piece], requested_bytes: u64) -> impl Iterator<Item = Piece> + '_ {
    let mut left_bytes = requested_bytes;
    pieces.iter().map(move |piece| {
        let size_bytes = piece.size_bytes.min(left_bytes);
        left_bytes -= size_bytes;
        Piece { size_bytes, ..*piece }
    })
}
