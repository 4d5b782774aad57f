//! A recording as lines of JSON, without loss.
//!
//! The first line names the format. One line each follows for sites, pieces, blocks at the start,
//! charges at the start, events, and segments with their live blocks, in this order. The last line
//! counts the lines, so that a cut file is not taken for a shorter one. Every line ends with a line
//! feed. Keys without a value are left out. Unknown keys are an error: a reader must not lose data
//! that it does not understand.

mod lines;
mod reader;

use std::io::{self, BufRead, Write};

use crate::error::TraceError;
use crate::pytorch::file::Limits;
use crate::recording::Recording;
use lines::{Block, Counts, Header, Line, Range};

/// The format that the first line names.
const FORMAT: &str = "lowtide-trace";
/// The version of the format. Readers refuse every other version.
const VERSION: u32 = 1;
/// Number of bytes that are written at once.
const BUFFER_BYTES: usize = 64 << 10;

impl Recording {
    /// Writes the recording as lines of JSON. A recording that holds its laws (see
    /// [`check`](Recording::check)) is read back unchanged.
    ///
    /// # Errors
    /// Writing fails.
    pub fn write_json_lines(&self, file: impl Write) -> io::Result<()> {
        let mut writer = Writer { file, buffer: Vec::with_capacity(2 * BUFFER_BYTES) };
        writer.json(&Header::of(self))?;
        for site in &self.sites {
            writer.json(&Line::of_site(site))?;
        }
        for (&id, pieces) in &self.pieces {
            for piece in pieces {
                writer.json(&Line::of_piece(id, piece))?;
            }
        }
        for block in &self.start {
            let mut line = Block::of(block);
            line.pending = self.start_pending.contains(&block.id);
            writer.json(&Line::Start(line))?;
        }
        for &(category, size_bytes) in &self.start_charges {
            writer.json(&Line::ChargeAtStart { category: category.name().into(), size_bytes })?;
        }
        for event in &self.events {
            writer.json(&Line::of_event(event))?;
        }
        for range in &self.end {
            let kind = self.segment_kinds.get(&range.address).copied();
            writer.json(&Line::Segment(Range::of(range, kind)))?;
            for block in &range.blocks {
                writer.json(&Line::Live(Block::of(block)))?;
            }
        }
        writer.json(&Line::End(Counts::of(self)))?;
        writer.finish()
    }

    /// Reads the lines of [`write_json_lines`](Recording::write_json_lines).
    ///
    /// # Errors
    /// The file cannot be read, is malformed, contradicts itself, or is larger than `limits`. The
    /// error has the offset in the file.
    pub fn read_json_lines(file: impl BufRead, limits: Limits) -> Result<Recording, TraceError> {
        reader::read(file, limits)
    }
}

struct Writer<W> {
    file: W,
    buffer: Vec<u8>,
}

impl<W: Write> Writer<W> {
    fn json(&mut self, line: &impl serde::Serialize) -> io::Result<()> {
        serde_json::to_writer(&mut self.buffer, line)?;
        self.buffer.push(b'\n');
        if self.buffer.len() >= BUFFER_BYTES {
            self.file.write_all(&self.buffer)?;
            self.buffer.clear();
        }
        Ok(())
    }

    fn finish(mut self) -> io::Result<()> {
        self.file.write_all(&self.buffer)?;
        self.file.flush()
    }
}
