//! The snapshot in a pickle: segments, events and settings.

use lowtide_allocator::Category;
use lowtide_allocator::torch::{
    BlockLayout, BlockState, Pool, SegmentLayout, StreamId, TorchSettings,
};

use super::file::Limits;
use super::frames::Sites;
use super::memory::Memory;
use super::pickle::{Document, Kind, Value};
use super::settings::parse_recorded;
use crate::error::{PickleProblem, TraceError, TraceProblem};
use crate::recording::Site;

/// Largest number of keys of a record. A record has about a dozen keys; a look-up walks through all
/// of them.
pub(crate) const RECORD_KEYS_MAX: usize = 64;
/// Bytes that each event and block takes later, in a recording and in its explanation.
const RECORD_BYTES: usize = 512;
/// Bytes that a failed request takes later: an explanation keeps the text of its site.
const FAILURE_BYTES: usize = 2048;

/// A memory snapshot of PyTorch.
#[derive(Clone, Debug, PartialEq)]
pub struct Snapshot {
    /// Every segment at the end, by address within a device.
    pub segments: Vec<RecordedSegment>,
    /// The events before the end, for each device.
    pub device_traces: Vec<Vec<RecordedEvent>>,
    /// The settings that affect placement.
    pub settings: TorchSettings,
    /// The innermost line of every stack that is not PyTorch's own. Events and blocks have an index
    /// into this list.
    pub sites: Vec<Site>,
}

/// A segment at the end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RecordedSegment {
    /// Index of the device of the segment.
    pub device: usize,
    /// The private pool of a graph capture; (0, 0) for the default pool.
    pub pool_id: (i64, i64),
    /// True if the segment grows in place.
    pub is_expandable: bool,
    /// The address and the blocks of the segment.
    pub layout: SegmentLayout,
    /// The site of each block as an index into [`Snapshot::sites`], if it is known.
    pub block_sites: Vec<Option<u32>>,
}

/// One event of a trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecordedEvent {
    /// The kind of event.
    pub action: Action,
    /// Address of the block or segment; 0 for `Snapshot` and `Oom`.
    pub address: u64,
    /// Bytes asked for; for segments, the whole size.
    pub size_bytes: u64,
    /// The stream of the block or segment.
    pub stream: StreamId,
    /// Free bytes of the device, for `Oom`.
    pub device_free_bytes: u64,
    /// Microseconds since 1970 (UTC); 0 if unknown.
    pub time_us: u64,
    /// Category of the memory, if the recorder knew it.
    pub category: Option<Category>,
    /// The source line of the request, as an index into [`Snapshot::sites`], if it is known.
    pub site: Option<u32>,
}

/// The kinds of event.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Action {
    /// A block was allocated.
    Alloc,
    /// The owner of a block gave it back.
    FreeRequested,
    /// A block may be reused.
    FreeCompleted,
    /// A segment was reserved.
    SegmentAlloc,
    /// A segment was released.
    SegmentFree,
    /// A part of an expandable segment got memory.
    SegmentMap,
    /// A part of an expandable segment lost its memory.
    SegmentUnmap,
    /// A snapshot was taken.
    Snapshot,
    /// A request failed.
    Oom,
    /// A note of the user.
    UserDefined,
}

impl Action {
    fn parse(text: &str) -> Option<Action> {
        Some(match text {
            "alloc" => Action::Alloc,
            "free_requested" => Action::FreeRequested,
            "free_completed" => Action::FreeCompleted,
            "segment_alloc" => Action::SegmentAlloc,
            "segment_free" => Action::SegmentFree,
            "segment_map" => Action::SegmentMap,
            "segment_unmap" => Action::SegmentUnmap,
            "snapshot" => Action::Snapshot,
            "oom" => Action::Oom,
            "user_defined" => Action::UserDefined,
            _ => return None,
        })
    }

    /// True if the event has an address.
    fn has_address(self) -> bool {
        !matches!(self, Action::Snapshot | Action::Oom | Action::UserDefined)
    }
}

impl Snapshot {
    /// Reads the bytes of a pickle within the memory of [`Limits::default`]. Unknown keys are
    /// ignored.
    ///
    /// # Errors
    /// The pickle is malformed, is not a snapshot, or takes too much memory.
    pub fn from_pickle(bytes: &[u8]) -> Result<Snapshot, TraceError> {
        let memory = Memory::of(bytes.len(), Limits::default().memory_bytes);
        Snapshot::from_pickle_within(bytes, memory)
    }

    pub(crate) fn from_pickle_within(
        bytes: &[u8],
        mut memory: Memory,
    ) -> Result<Snapshot, TraceError> {
        let document = Document::read_within(bytes, &mut memory)?;
        let sites = Sites::new(&document);
        let mut reader = Reader { document: &document, memory, sites };
        let root = reader.record("snapshot", document.root)?;
        let mut segments = Vec::new();
        for &value in reader.list("segments", root.get("segments")?)? {
            let segment = reader.segment(value)?;
            reader.push(&mut segments, segment, value)?;
        }
        segments.sort_by_key(|segment| (segment.device, segment.layout.address));
        let mut device_traces = Vec::new();
        for &trace in reader.list("device_traces", root.get("device_traces")?)? {
            let mut events = Vec::new();
            for &value in reader.list("device_traces", trace)? {
                let event = reader.event(value)?;
                reader.push(&mut events, event, value)?;
            }
            reader.push(&mut device_traces, events, trace)?;
        }
        let settings = match root.find("allocator_settings") {
            Some(settings) => reader.settings(settings)?,
            None => TorchSettings::default(),
        };
        let sites = reader.sites.into_sites();
        Ok(Snapshot { segments, device_traces, settings, sites })
    }
}

/// A dictionary with text for keys.
pub(crate) struct Record<'a> {
    pub(crate) document: &'a Document<'a>,
    pub(crate) offset: usize,
    pub(crate) items: &'a [Value],
}

impl Record<'_> {
    /// The last value of `key`, as in Python.
    pub(crate) fn find(&self, key: &'static str) -> Option<Value> {
        let is_key = |value: Value| match value.kind {
            Kind::Text(index) => self.document.text(index) == key,
            _ => false,
        };
        self.items.chunks_exact(2).rev().find(|pair| is_key(pair[0])).map(|pair| pair[1])
    }

    fn get(&self, key: &'static str) -> Result<Value, TraceError> {
        let missing = || TraceError::new(self.offset, TraceProblem::Missing { key });
        self.find(key).ok_or_else(missing)
    }

    fn size(&self, key: &'static str) -> Result<u64, TraceError> {
        unsigned(key, self.get(key)?)
    }

    fn size_or_0(&self, key: &'static str) -> Result<u64, TraceError> {
        self.find(key).map_or(Ok(0), |value| unsigned(key, value))
    }

    fn text(&self, key: &'static str) -> Result<(&str, usize), TraceError> {
        let value = self.get(key)?;
        match value.kind {
            Kind::Text(index) => Ok((self.document.text(index), value.offset)),
            _ => Err(wrong_type(key, "text", value)),
        }
    }

    fn flag(&self, key: &'static str) -> Result<bool, TraceError> {
        match self.find(key) {
            None => Ok(false),
            Some(Value { kind: Kind::Bool(flag), .. }) => Ok(flag),
            Some(value) => Err(wrong_type(key, "a truth value", value)),
        }
    }
}

struct Reader<'a> {
    document: &'a Document<'a>,
    memory: Memory,
    sites: Sites<'a>,
}

impl<'a> Reader<'a> {
    fn record(&mut self, key: &'static str, value: Value) -> Result<Record<'a>, TraceError> {
        let Kind::Dict(index) = value.kind else {
            return Err(wrong_type(key, "a dictionary", value));
        };
        let items = self.document.items(index);
        if items.len() > 2 * RECORD_KEYS_MAX {
            let limit = RECORD_KEYS_MAX as u64;
            let problem = TraceProblem::Limit { limit, what: "keys in a record" };
            return Err(TraceError::new(value.offset, problem));
        }
        // Lists can refer to one record many times, with a byte or two for each reference.
        self.spend(RECORD_BYTES, value)?;
        Ok(Record { document: self.document, offset: value.offset, items })
    }

    fn spend(&mut self, bytes: usize, value: Value) -> Result<(), TraceError> {
        self.memory.spend(bytes).map_err(|problem| too_much(value, problem))
    }

    /// Appends an item that was read from `value`.
    fn push<T>(&mut self, vec: &mut Vec<T>, item: T, value: Value) -> Result<(), TraceError> {
        self.memory.push(vec, item).map_err(|problem| too_much(value, problem))
    }

    fn list(&self, key: &'static str, value: Value) -> Result<&'a [Value], TraceError> {
        match value.kind {
            Kind::List(index) => Ok(self.document.items(index)),
            _ => Err(wrong_type(key, "a list", value)),
        }
    }

    fn segment(&mut self, value: Value) -> Result<RecordedSegment, TraceError> {
        let record = self.record("segment", value)?;
        let (address, size_bytes) = (record.size("address")?, record.size("total_size")?);
        let (kind, kind_offset) = record.text("segment_type")?;
        let pool = match kind {
            "small" => Pool::Small,
            "large" => Pool::Large,
            _ => return Err(wrong_value("segment_type", kind, kind_offset)),
        };
        let (mut blocks, mut block_sites) = (Vec::new(), Vec::new());
        let mut at = address;
        for &value in self.list("blocks", record.get("blocks")?)? {
            let (block, site) = self.block(value, at)?;
            at = at.saturating_add(block.size_bytes);
            self.push(&mut blocks, block, value)?;
            self.push(&mut block_sites, site, value)?;
        }
        let end = address.checked_add(size_bytes).filter(|&end| end == at && size_bytes > 0);
        if end.is_none() {
            return Err(wrong_value("total_size", size_bytes, record.offset));
        }
        let stream = StreamId(record.size_or_0("stream")?);
        Ok(RecordedSegment {
            device: record.size_or_0("device")? as usize,
            pool_id: self.pool_id(record.find("segment_pool_id"))?,
            is_expandable: record.flag("is_expandable")?,
            layout: SegmentLayout { address, size_bytes, stream, pool, blocks },
            block_sites,
        })
    }

    /// The block that must begin at `address`, with its site.
    fn block(
        &mut self,
        value: Value,
        address: u64,
    ) -> Result<(BlockLayout, Option<u32>), TraceError> {
        let record = self.record("block", value)?;
        if let Some(at) = record.find("address")
            && unsigned("address", at)? != address
        {
            return Err(wrong_value("address", unsigned("address", at)?, at.offset));
        }
        let size_bytes = record.size("size")?;
        if size_bytes == 0 {
            return Err(wrong_value("size", 0, record.offset));
        }
        let (state, state_offset) = record.text("state")?;
        let state = match state {
            "active_allocated" => BlockState::Active,
            "active_pending_free" | "active_awaiting_free" => BlockState::Pending,
            "inactive" => BlockState::Free,
            _ => return Err(wrong_value("state", state, state_offset)),
        };
        // PyTorch leaves the size of the last request in a free block; old versions write no size.
        let requested_bytes = match record.find("requested_size") {
            _ if state == BlockState::Free => 0,
            Some(requested) => unsigned("requested_size", requested)?,
            None => size_bytes,
        };
        if requested_bytes > size_bytes {
            return Err(wrong_value("requested_size", requested_bytes, record.offset));
        }
        let site = match state {
            BlockState::Free => None,
            _ => self.sites.innermost(record.find("frames"), &mut self.memory)?,
        };
        Ok((BlockLayout { address, size_bytes, requested_bytes, state }, site))
    }

    fn pool_id(&self, value: Option<Value>) -> Result<(i64, i64), TraceError> {
        let Some(value) = value else { return Ok((0, 0)) };
        if let Kind::Tuple(index) | Kind::List(index) = value.kind
            && let [Value { kind: Kind::Int(a), .. }, Value { kind: Kind::Int(b), .. }] =
                *self.document.items(index)
        {
            return Ok((a, b));
        }
        Err(wrong_type("segment_pool_id", "a pair of whole numbers", value))
    }

    fn event(&mut self, value: Value) -> Result<RecordedEvent, TraceError> {
        let record = self.record("event", value)?;
        let (text, offset) = record.text("action")?;
        let action = Action::parse(text).ok_or_else(|| wrong_value("action", text, offset))?;
        if action == Action::Oom {
            self.spend(FAILURE_BYTES, value)?;
        }
        let address = if action.has_address() { record.size("addr")? } else { 0 };
        let size_bytes =
            if action.has_address() { record.size("size")? } else { record.size_or_0("size")? };
        let category = match record.find("category") {
            None | Some(Value { kind: Kind::None, .. }) => None,
            Some(_) => category(record.text("category")?.0),
        };
        Ok(RecordedEvent {
            action,
            address,
            size_bytes,
            stream: StreamId(record.size_or_0("stream")?),
            device_free_bytes: match action {
                Action::Oom => record.size_or_0("device_free")?,
                _ => 0,
            },
            time_us: record.size_or_0("time_us")?,
            category,
            site: self.sites.innermost(record.find("frames"), &mut self.memory)?,
        })
    }

    fn settings(&mut self, value: Value) -> Result<TorchSettings, TraceError> {
        let record = self.record("allocator_settings", value)?;
        let mut settings = TorchSettings::default();
        for key in ["PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"] {
            if record.find(key).is_some_and(|value| value.kind != Kind::None) {
                let (text, offset) = record.text(key)?;
                settings =
                    parse_recorded(text).map_err(|error| TraceError::new(offset, error.into()))?;
            }
        }
        if let Some(value) = record.find("max_split_size") {
            let max_split_bytes = match value.kind {
                Kind::Int(-1) => None,
                _ => Some(unsigned("max_split_size", value)?),
            };
            settings.max_split_bytes = max_split_bytes;
        }
        match record.find("garbage_collection_threshold").map(|value| (value.kind, value)) {
            None => {}
            Some((Kind::Float(threshold), _)) => settings.garbage_collection_threshold = threshold,
            Some((Kind::Int(threshold), _)) => {
                settings.garbage_collection_threshold = threshold as f64;
            }
            Some((_, value)) => {
                return Err(wrong_type("garbage_collection_threshold", "a number", value));
            }
        }
        settings.expandable_segments |= record.flag("expandable_segments")?;
        if let Some(value) = record.find("roundup_power2_divisions") {
            settings.power2_divisions = self.divisions(value)?;
        }
        Ok(settings)
    }

    /// A dictionary from mebibytes, as text, to divisions.
    fn divisions(&mut self, value: Value) -> Result<[u64; 16], TraceError> {
        const KEY: &str = "roundup_power2_divisions";
        let record = self.record(KEY, value)?;
        let mut divisions = [0; 16];
        for pair in record.items.chunks_exact(2) {
            let Kind::Text(text) = pair[0].kind else {
                return Err(wrong_type(KEY, "text for keys", pair[0]));
            };
            let text = self.document.text(text);
            let size_mib = text.parse::<u64>().ok().filter(|size| size.is_power_of_two());
            let slot = size_mib.and_then(|size| divisions.get_mut(size.ilog2() as usize));
            let slot = slot.ok_or_else(|| wrong_value(KEY, text, pair[0].offset))?;
            *slot = unsigned(KEY, pair[1])?;
        }
        Ok(divisions)
    }
}

fn too_much(value: Value, problem: PickleProblem) -> TraceError {
    TraceError::new(value.offset, problem.into())
}

/// The category of a name: a category of this crate, or one of two more from PyTorch's profiler;
/// `None` for `unknown`.
fn category(text: &str) -> Option<Category> {
    match text {
        "temporary" => Some(Category::Workspace),
        "autograd_detail" => Some(Category::Other),
        _ => Category::ALL.into_iter().find(|category| category.name() == text),
    }
}

fn unsigned(key: &'static str, value: Value) -> Result<u64, TraceError> {
    let Kind::Int(number) = value.kind else {
        return Err(wrong_type(key, "a whole number", value));
    };
    u64::try_from(number).map_err(|_| wrong_value(key, number, value.offset))
}

pub(crate) fn wrong_type(key: &'static str, expected: &'static str, value: Value) -> TraceError {
    let found = value.kind.name();
    TraceError::new(value.offset, TraceProblem::Type { key, expected, found })
}

fn wrong_value(key: &'static str, value: impl ToString, offset: usize) -> TraceError {
    // Text of a stranger is quoted, cut to a short length and a single line.
    let value: String = value.to_string().escape_debug().take(60).collect();
    TraceError::new(offset, TraceProblem::Value { key, value })
}
