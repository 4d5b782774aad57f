//! A writer of pickles of plain data, with the few instructions that every reader of snapshots
//! supports.
//!
//! The protocol is 2. Frequent words are written once and recalled by number.

/// Largest number of items in a batch. PyTorch's viewer passes a batch as the arguments of one
/// call, and the number of arguments is limited.
const BATCH_ITEMS_MAX: usize = 1000;

/// The number under which a value can be recalled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Memo(u32);

/// A list that is being written, with the number of its items so far.
#[derive(Debug, Default)]
pub(super) struct Batches(usize);

/// The bytes of a row of words, once the row has been written.
#[derive(Clone, Debug, Default)]
pub(super) struct Phrase(Vec<u8>);

/// The bytes of a pickle, and the values that can be recalled.
#[derive(Debug)]
pub(super) struct PickleWriter {
    bytes: Vec<u8>,
    memo_count: u32,
    /// Memo numbers of words.
    words: [Option<Memo>; Word::COUNT],
    too_large: Option<u64>,
}

macro_rules! words {
    ($($name:ident $text:literal)*) => {
        /// A text of the format.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub(super) enum Word { $($name),* }

        impl Word {
            const TEXTS: &[&str] = &[$($text),*];
            pub(super) const COUNT: usize = Word::TEXTS.len();
        }
    };
}

words! {
    Action "action" Addr "addr" Size "size" Stream "stream" TimeUs "time_us" Frames "frames"
    Category "category" CompileContext "compile_context" UserMetadata "user_metadata"
    NotAvailable "N/A" Empty "" DeviceFree "device_free"
    Alloc "alloc" FreeRequested "free_requested" FreeCompleted "free_completed"
    SegmentAlloc "segment_alloc" SegmentFree "segment_free"
    SegmentMap "segment_map" SegmentUnmap "segment_unmap" Snapshot "snapshot" Oom "oom"
    Parameter "parameter" Gradient "gradient" OptimizerState "optimizer_state"
    Activation "activation" Workspace "workspace" Input "input" Other "other" Unknown "unknown"
    Name "name" Filename "filename" Line "line"
    Segments "segments" DeviceTraces "device_traces" AllocatorSettings "allocator_settings"
    ExternalAnnotations "external_annotations"
    Device "device" Address "address" TotalSize "total_size" AllocatedSize "allocated_size"
    ActiveSize "active_size" RequestedSize "requested_size" SegmentType "segment_type"
    SegmentPoolId "segment_pool_id" IsExpandable "is_expandable" Blocks "blocks"
    Large "large" Small "small" State "state" ActiveAllocated "active_allocated"
    ActivePendingFree "active_pending_free" Inactive "inactive"
    AllocConf "PYTORCH_CUDA_ALLOC_CONF" MaxSplitSize "max_split_size"
    CollectionThreshold "garbage_collection_threshold"
    ExpandableSegments "expandable_segments" Overflowed "trace_alloc_overflowed"
}

impl PickleWriter {
    /// A writer with room for about `capacity_bytes`.
    pub(super) fn new(capacity_bytes: usize) -> Self {
        let mut bytes = Vec::with_capacity(capacity_bytes);
        bytes.extend([0x80, 2]);
        PickleWriter { bytes, memo_count: 0, words: [None; Word::COUNT], too_large: None }
    }

    /// The whole pickle. The error is a number that does not fit into a signed 64-bit integer.
    pub(super) fn finish(mut self) -> Result<Vec<u8>, u64> {
        self.bytes.push(b'.');
        self.too_large.map_or(Ok(self.bytes), Err)
    }

    pub(super) fn word(&mut self, word: Word) {
        match self.words[word as usize] {
            Some(memo) => self.recall(memo),
            None => {
                self.text(Word::TEXTS[word as usize]);
                self.words[word as usize] = Some(self.memorise());
            }
        }
    }

    /// Writes words. Copies them from `phrase` if it has them: most of a trace consists of a few
    /// phrases.
    pub(super) fn phrase(&mut self, phrase: &mut Phrase, words: &[Word]) {
        if phrase.0.is_empty() {
            words.iter().for_each(|&word| self.word(word));
            let start = self.bytes.len();
            words.iter().for_each(|&word| self.word(word));
            phrase.0 = self.bytes.split_off(start);
        } else {
            self.bytes.extend_from_slice(&phrase.0);
        }
    }

    pub(super) fn text(&mut self, text: &str) {
        self.bytes.push(b'X');
        match u32::try_from(text.len()) {
            Ok(len) => self.bytes.extend(len.to_le_bytes()),
            Err(_) => self.too_large = Some(text.len() as u64),
        }
        self.bytes.extend(text.as_bytes());
    }

    pub(super) fn number(&mut self, number: u64) {
        match i64::try_from(number) {
            Ok(number) => self.signed(number),
            Err(_) => {
                self.too_large = Some(number);
                self.signed(0);
            }
        }
    }

    pub(super) fn signed(&mut self, number: i64) {
        if let Ok(small) = u8::try_from(number) {
            self.bytes.extend([b'K', small]);
        } else if let Ok(small) = u16::try_from(number) {
            self.bytes.push(b'M');
            self.bytes.extend(small.to_le_bytes());
        } else if let Ok(small) = i32::try_from(number) {
            self.bytes.push(b'J');
            self.bytes.extend(small.to_le_bytes());
        } else {
            // The fewest bytes that hold the number and its sign.
            let magnitude = if number < 0 { !number } else { number };
            let len = (72 - magnitude.leading_zeros()) as usize / 8;
            self.bytes.extend([0x8a, len as u8]);
            self.bytes.extend(&number.to_le_bytes()[..len]);
        }
    }

    pub(super) fn fraction(&mut self, fraction: f64) {
        self.bytes.push(b'G');
        self.bytes.extend(fraction.to_be_bytes());
    }

    pub(super) fn truth(&mut self, truth: Truth) {
        self.bytes.push(match truth {
            Truth::True => 0x88,
            Truth::False => 0x89,
        });
    }

    /// Makes a pair of the last two values.
    pub(super) fn pair(&mut self) {
        self.bytes.push(0x86);
    }

    /// Begins a dictionary. Keys and values follow in turns, then [`end_dict`](Self::end_dict).
    pub(super) fn begin_dict(&mut self) {
        self.bytes.extend(b"}(");
    }

    pub(super) fn end_dict(&mut self) {
        self.bytes.push(b'u');
    }

    pub(super) fn begin_list(&mut self) -> Batches {
        self.bytes.push(b']');
        Batches(0)
    }

    /// Begins an item of a list.
    pub(super) fn item(&mut self, batches: &mut Batches) {
        if batches.0.is_multiple_of(BATCH_ITEMS_MAX) {
            if batches.0 > 0 {
                self.bytes.push(b'e');
            }
            self.bytes.push(b'(');
        }
        batches.0 += 1;
    }

    pub(super) fn end_list(&mut self, batches: &Batches) {
        if batches.0 > 0 {
            self.bytes.push(b'e');
        }
    }

    /// Memorises the value that was written last.
    pub(super) fn memorise(&mut self) -> Memo {
        let memo = Memo(self.memo_count);
        self.memo_count += 1;
        match u8::try_from(memo.0) {
            Ok(small) => self.bytes.extend([b'q', small]),
            Err(_) => {
                self.bytes.push(b'r');
                self.bytes.extend(memo.0.to_le_bytes());
            }
        }
        memo
    }

    pub(super) fn recall(&mut self, memo: Memo) {
        match u8::try_from(memo.0) {
            Ok(small) => self.bytes.extend([b'h', small]),
            Err(_) => {
                self.bytes.push(b'j');
                self.bytes.extend(memo.0.to_le_bytes());
            }
        }
    }
}

/// A boolean with a readable name at the call site.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Truth {
    True,
    False,
}

impl From<bool> for Truth {
    fn from(is_true: bool) -> Self {
        if is_true { Truth::True } else { Truth::False }
    }
}
