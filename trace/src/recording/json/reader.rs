//! A reader of recordings. Each line is checked against the lines before it.

use std::io::{BufRead, Read};

use lowtide_allocator::Category;
use lowtide_allocator::torch::Pool;
use serde::Deserialize;

use super::lines::{Block, Counts, Event, Header, Line, Magic, Range, pool_name};
use super::{FORMAT, VERSION};
use crate::error::{JsonProblem, TraceError, TraceProblem};
use crate::pytorch::file::Limits;
use crate::recording::validate::Laws;
use crate::recording::{EventKind, Piece, Recording, SegmentKind, Site};

pub(super) fn read(file: impl BufRead, limits: Limits) -> Result<Recording, TraceError> {
    let mut lines = Lines { file, limits, line: Vec::new(), start: 0, end: 0 };
    let offset = lines.start;
    let (recording, start_reserved_bytes) = {
        let line = lines.next()?.ok_or_else(|| TraceError::new(0, JsonProblem::Cut.into()))?;
        header(line, offset)?
    };
    let mut reader = Reader {
        recording,
        laws: Laws::new(start_reserved_bytes),
        counts: Counts::default(),
        section: Section::Sites,
    };
    while reader.section != Section::Over {
        let offset = lines.end;
        let cut = || TraceError::new(offset, JsonProblem::Cut.into());
        let bytes = lines.next()?.ok_or_else(cut)?;
        let line = parse(bytes, offset)?;
        reader.take(line).map_err(|problem| TraceError::new(offset, problem))?;
    }
    let offset = lines.end;
    match lines.next()? {
        Some(_) => Err(TraceError::new(offset, JsonProblem::Trailing.into())),
        None => Ok(reader.recording),
    }
}

/// Complete lines with their offsets.
struct Lines<R> {
    file: R,
    limits: Limits,
    line: Vec<u8>,
    start: usize,
    end: usize,
}

impl<R: BufRead> Lines<R> {
    /// The next line without the line feed; `None` at the end of the file.
    fn next(&mut self) -> Result<Option<&[u8]>, TraceError> {
        self.start = self.end;
        self.line.clear();
        let fail = |problem| TraceError::new(self.start, problem);
        let Limits { line_bytes, json_bytes, .. } = self.limits;
        let room_bytes = line_bytes.saturating_add(1);
        let mut part = self.file.by_ref().take(room_bytes);
        let len = part.read_until(b'\n', &mut self.line).map_err(|error| fail(error.into()))?;
        self.end += len;
        if self.end as u64 > json_bytes {
            return Err(fail(TraceProblem::Limit { limit: json_bytes, what: "bytes of trace" }));
        }
        match self.line.as_slice() {
            [] => Ok(None),
            [line @ .., b'\n'] => Ok(Some(line)),
            line if line.len() as u64 > line_bytes => {
                Err(fail(TraceProblem::Limit { limit: line_bytes, what: "bytes in a line" }))
            }
            _ => Err(TraceError::new(self.end, JsonProblem::Cut.into())),
        }
    }
}

/// Parses a line that begins at `offset`.
fn parse<'a, T: Deserialize<'a>>(line: &'a [u8], offset: usize) -> Result<T, TraceError> {
    serde_json::from_slice(line).map_err(|error| {
        let within = error.column().saturating_sub(1).min(line.len());
        TraceError::new(offset + within, JsonProblem::Line(error).into())
    })
}

/// An empty recording, and the reserved bytes at its start.
fn header(line: &[u8], offset: usize) -> Result<(Recording, u64), TraceError> {
    let magic: Magic<'_> = parse(line, offset)?;
    if magic.format != FORMAT || magic.version != u64::from(VERSION) {
        let problem = JsonProblem::Version { expected: VERSION };
        return Err(TraceError::new(offset, problem.into()));
    }
    let header: Header<'_> = parse(line, offset)?;
    let recording = Recording {
        policy: header.policy.into_owned(),
        capacity_bytes: header.capacity_bytes,
        page_bytes: header.page_bytes,
        lost_events: header.lost_events,
        start_reserved_bytes: header.start_reserved_bytes,
        ..Recording::default()
    };
    Ok((recording, header.start_reserved_bytes))
}

/// Parts of a file, in order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Section {
    Sites,
    Pieces,
    Start,
    Charges,
    Events,
    End,
    Over,
}

struct Reader {
    recording: Recording,
    laws: Laws,
    counts: Counts,
    section: Section,
}

type Problem = TraceProblem;

impl Reader {
    fn take(&mut self, line: Line<'_>) -> Result<(), Problem> {
        match line {
            Line::Site { file, line, function, module } => {
                self.advance_to(Section::Sites, "a site")?;
                self.counts.sites += 1;
                self.laws.add_site();
                let (file, function) = (file.into_owned(), function.into_owned());
                let module = module.into_owned();
                self.recording.sites.push(Site { file, line, function, module });
                Ok(())
            }
            Line::Piece { id, address, size_bytes } => {
                self.advance_to(Section::Pieces, "a piece")?;
                self.counts.pieces += 1;
                self.laws.piece(id, Piece { address, size_bytes })?;
                let pieces = self.recording.pieces.entry(id).or_default();
                pieces.push(Piece { address, size_bytes });
                Ok(())
            }
            Line::Start(block) => self.start(&block),
            Line::ChargeAtStart { category, size_bytes } => {
                self.advance_to(Section::Charges, "a charge at the start")?;
                self.counts.charges += 1;
                let category = category_of(Some(&category))?.ok_or_else(|| key("category"))?;
                self.laws.charge(category, size_bytes)?;
                self.recording.start_charges.push((category, size_bytes));
                Ok(())
            }
            Line::Allocate(event) => self.block(&event, |id| EventKind::Allocate { id }),
            Line::FreeRequested(event) => self.block(&event, |id| EventKind::FreeRequested { id }),
            Line::Free(event) => self.block(&event, |id| EventKind::Free { id }),
            Line::Reserve(event) => self.range(&event, EventKind::Reserve),
            Line::Release(event) => self.range(&event, EventKind::Release),
            Line::Charge(event) => self.range(&event, EventKind::Charge),
            Line::Discharge(event) => self.range(&event, EventKind::Discharge),
            Line::OutOfMemory(event) => {
                let free_bytes = event.free_bytes.ok_or_else(|| key("free_bytes"))?;
                absent("id", event.id)?;
                self.event(&event, EventKind::OutOfMemory { free_bytes })
            }
            Line::Segment(range) => self.segment(&range),
            Line::Live(block) => self.live(&block),
            Line::End(counts) => {
                self.section = Section::Over;
                self.laws.finish()?;
                if counts == self.counts { Ok(()) } else { Err(JsonProblem::Counts.into()) }
            }
        }
    }

    fn advance_to(&mut self, section: Section, found: &'static str) -> Result<(), Problem> {
        if section < self.section {
            return Err(JsonProblem::Order { found }.into());
        }
        self.section = section;
        Ok(())
    }

    fn start(&mut self, block: &Block<'_>) -> Result<(), Problem> {
        self.advance_to(Section::Start, "a block at the start")?;
        self.counts.start += 1;
        let recorded = block.to_block(category_of(block.category.as_deref())?);
        self.laws.start(&recorded, block.pending)?;
        if block.pending {
            self.recording.start_pending.insert(recorded.id);
        }
        self.recording.start.push(recorded);
        Ok(())
    }

    fn block(&mut self, event: &Event<'_>, kind: fn(u64) -> EventKind) -> Result<(), Problem> {
        let id = event.id.ok_or_else(|| key("id"))?;
        absent("free_bytes", event.free_bytes)?;
        self.event(event, kind(id))
    }

    fn range(&mut self, event: &Event<'_>, kind: EventKind) -> Result<(), Problem> {
        absent("id", event.id)?;
        absent("free_bytes", event.free_bytes)?;
        self.event(event, kind)
    }

    fn event(&mut self, event: &Event<'_>, kind: EventKind) -> Result<(), Problem> {
        self.advance_to(Section::Events, "an event")?;
        self.counts.events += 1;
        let event = event.to_event(kind, category_of(event.category.as_deref())?);
        self.laws.event(&event)?;
        self.recording.events.push(event);
        Ok(())
    }

    fn segment(&mut self, range: &Range<'_>) -> Result<(), Problem> {
        self.advance_to(Section::End, "a segment")?;
        self.counts.segments += 1;
        let recorded = range.to_range();
        self.laws.segment(&recorded)?;
        if let Some(kind) = &range.kind {
            let pools = [Pool::Small, Pool::Large];
            let pool = pools.into_iter().find(|&pool| pool_name(pool) == kind.pool);
            let kind = SegmentKind {
                pool: pool.ok_or_else(|| value("pool", &kind.pool))?,
                pool_id: kind.pool_id,
                is_expandable: kind.is_expandable,
            };
            self.recording.segment_kinds.insert(recorded.address, kind);
        }
        self.recording.end.push(recorded);
        Ok(())
    }

    fn live(&mut self, block: &Block<'_>) -> Result<(), Problem> {
        self.advance_to(Section::End, "a live block")?;
        self.counts.live += 1;
        if block.pending {
            return Err(key("pending"));
        }
        let recorded = block.to_block(category_of(block.category.as_deref())?);
        let Some(segment) = self.recording.end.last_mut() else {
            return Err(JsonProblem::Order { found: "a live block before its segment" }.into());
        };
        self.laws.end_block(&recorded)?;
        segment.blocks.push(recorded);
        Ok(())
    }
}

fn category_of(name: Option<&str>) -> Result<Option<Category>, Problem> {
    let Some(name) = name else { return Ok(None) };
    let category = Category::ALL.into_iter().find(|category| category.name() == name);
    category.map(Some).ok_or_else(|| value("category", name))
}

fn absent(name: &'static str, found: Option<u64>) -> Result<(), Problem> {
    found.map_or(Ok(()), |_| Err(key(name)))
}

fn key(key: &'static str) -> Problem {
    JsonProblem::Key { key }.into()
}

fn value(key: &'static str, value: &str) -> Problem {
    Problem::Value { key, value: value.escape_debug().take(60).collect() }
}
