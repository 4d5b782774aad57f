//! The text of `PYTORCH_ALLOC_CONF`, which was `PYTORCH_CUDA_ALLOC_CONF` before.
//!
//! The syntax follows `c10/core/AllocatorConfig.cpp` and `c10/cuda/CUDAAllocatorConfig.cpp` of
//! PyTorch (BSD-3, mid-2026), as published; no code is shared. A number has to be whole here;
//! PyTorch reads the digits before the first other character.

use std::ops::RangeInclusive;

use lowtide_allocator::torch::{
    MADE_TO_MEASURE_BYTES_MIN, POWER2_INTERVALS, REQUEST_BYTES_END, TorchSettings,
};
use thiserror::Error;

const MIB: u64 = 1 << 20;

/// A setting that PyTorch refuses, or that leaves placement to the driver.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("byte {offset}: allocator setting {key}: {problem}")]
pub struct SettingsError {
    /// Name of the setting.
    pub key: String,
    /// Offset of the problem in the text; the length of the text if it ends too early.
    pub offset: usize,
    /// The problem at this offset.
    pub problem: SettingsProblem,
}

/// A problem of a setting.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum SettingsProblem {
    /// The key is unknown.
    #[error("there is no such setting")]
    UnknownKey,
    /// Another text is in the place of a separator.
    #[error("{found:?} instead of {expected}")]
    Unexpected {
        /// The text that was found; empty if the settings end here.
        found: String,
        /// The separator that the format requires at this place.
        expected: &'static str,
    },
    /// The value is not allowed for the key.
    #[error("{value:?} is not {expected}")]
    Value {
        /// Value in the text.
        value: String,
        /// The values that are allowed for the key.
        expected: &'static str,
    },
    /// `backend:cudaMallocAsync`: the driver places the blocks, by rules that are not published.
    #[error("the backend {value} leaves placement to the driver")]
    Backend {
        /// Name of the backend.
        value: String,
    },
}

/// The treatment of unknown keys.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Unknown {
    Refuse,
    Skip,
}

/// Reads the text of `PYTORCH_ALLOC_CONF`, such as `max_split_size_mb:200`. Keys of PyTorch that do
/// not affect placement are checked and ignored.
///
/// # Errors
/// Unknown keys; values that are malformed or out of range; backends other than `native`.
pub fn parse_settings(text: &str) -> Result<TorchSettings, SettingsError> {
    read(text, Unknown::Refuse)
}

/// Reads settings that some version of PyTorch has accepted: unknown keys are ignored.
pub(super) fn parse_recorded(text: &str) -> Result<TorchSettings, SettingsError> {
    read(text, Unknown::Skip)
}

fn read(text: &str, unknown: Unknown) -> Result<TorchSettings, SettingsError> {
    let mut parser = Parser { tokens: tokens(text), next: 0, end: text.len(), key: String::new() };
    let mut settings = TorchSettings::default();
    // The size is a lower bound of two other settings, so it is read first, wherever it stands.
    while parser.next < parser.tokens.len() {
        parser.begin();
        if parser.key == "large_segment_size_mb" {
            settings.large_segment_bytes = parser.large_segment_bytes()?;
        }
    }
    settings.max_non_split_rounding_bytes = settings.large_segment_bytes;
    parser.next = 0;
    while parser.next < parser.tokens.len() {
        parser.begin();
        parser.option(&mut settings, unknown)?;
        if parser.next < parser.tokens.len() {
            parser.expect(",", "a comma")?;
        }
    }
    Ok(settings)
}

struct Token {
    offset: usize,
    text: String,
}

/// The separators of a text, and the texts between them, without white space.
fn tokens(text: &str) -> Vec<Token> {
    let mut tokens: Vec<Token> = Vec::new();
    let mut is_open = false;
    for (offset, c) in text.char_indices().filter(|(_, c)| !c.is_whitespace()) {
        let is_separator = matches!(c, ',' | ':' | '[' | ']');
        match tokens.last_mut().filter(|_| is_open && !is_separator) {
            Some(token) => token.text.push(c),
            None => tokens.push(Token { offset, text: c.into() }),
        }
        is_open = !is_separator;
    }
    tokens
}

struct Parser {
    tokens: Vec<Token>,
    next: usize,
    end: usize,
    /// The key whose value is read.
    key: String,
}

impl Parser {
    fn peek(&self) -> &str {
        self.tokens.get(self.next).map_or("", |token| &token.text)
    }

    fn take(&mut self) -> String {
        let text = self.peek().to_owned();
        self.next += 1;
        text
    }

    /// Takes a key.
    fn begin(&mut self) {
        self.key = self.take();
    }

    /// An error at the previous token.
    fn error(&self, problem: SettingsProblem) -> SettingsError {
        let token = self.tokens.get(self.next.saturating_sub(1));
        let offset = token.map_or(self.end, |token| token.offset);
        SettingsError { key: self.key.clone(), offset, problem }
    }

    fn expect(&mut self, text: &str, expected: &'static str) -> Result<(), SettingsError> {
        let found = self.take();
        if found == text {
            return Ok(());
        }
        Err(self.error(SettingsProblem::Unexpected { found, expected }))
    }

    /// Takes the next token and returns its value. An error if `read` does not accept the token.
    fn value<T>(
        &mut self,
        expected: &'static str,
        read: impl FnOnce(&str) -> Option<T>,
    ) -> Result<T, SettingsError> {
        let value = self.take();
        read(&value).ok_or_else(|| self.error(SettingsProblem::Value { value, expected }))
    }

    fn colon(&mut self) -> Result<(), SettingsError> {
        self.expect(":", "a colon")
    }

    fn option(
        &mut self,
        settings: &mut TorchSettings,
        unknown: Unknown,
    ) -> Result<(), SettingsError> {
        let large_bytes = settings.large_segment_bytes;
        match self.key.as_str() {
            "large_segment_size_mb" => settings.large_segment_bytes = self.large_segment_bytes()?,
            "max_split_size_mb" => settings.max_split_bytes = Some(self.mebibytes(large_bytes)?),
            "max_non_split_rounding_mb" => {
                settings.max_non_split_rounding_bytes = self.mebibytes(large_bytes)?;
            }
            "garbage_collection_threshold" => {
                settings.garbage_collection_threshold = self.number(
                    "a number between 0 and 1",
                    f64::MIN_POSITIVE..=1.0 - f64::EPSILON / 2.0,
                )?;
            }
            "per_process_memory_fraction" => {
                settings.memory_fraction = Some(self.number("a number from 0 to 1", 0.0..=1.0)?);
            }
            "roundup_power2_divisions" => settings.power2_divisions = self.divisions()?,
            "expandable_segments" => settings.expandable_segments = self.truth()?,
            "backend" => self.backend()?,
            _ => self.ignored(unknown)?,
        }
        Ok(())
    }

    /// Settings about locks, events and pinned memory.
    fn ignored(&mut self, unknown: Unknown) -> Result<(), SettingsError> {
        match self.key.as_str() {
            "release_lock_on_cudamalloc"
            | "release_lock_on_hipmalloc"
            | "pinned_use_cuda_host_register"
            | "pinned_use_hip_host_register"
            | "pinned_use_background_threads"
            | "pinned_free_catch_all"
            | "graph_capture_record_stream_reuse"
            | "throw_on_cudamalloc_oom" => self.truth().map(drop),
            "pinned_num_register_threads" => {
                self.whole("a power of two up to 128", |n| n.is_power_of_two() && n <= 128)
            }
            "pinned_reserve_segment_size_mb" => self.whole("more than 0", |n| n > 0),
            // The source decides the length of a range. PyTorch only warns about values that it
            // cannot read.
            "expandable_segments_reserve" | "expandable_segments_reserve_by_class" => self.skip(),
            _ if unknown == Unknown::Skip => self.skip(),
            _ => Err(self.error(SettingsProblem::UnknownKey)),
        }
    }

    fn whole(
        &mut self,
        expected: &'static str,
        is_valid: impl FnOnce(u64) -> bool,
    ) -> Result<(), SettingsError> {
        self.colon()?;
        let read = |text: &str| text.parse().ok().filter(|&number| is_valid(number));
        self.value(expected, read).map(drop)
    }

    /// Skips any value, or any list in brackets.
    fn skip(&mut self) -> Result<(), SettingsError> {
        self.colon()?;
        if self.take() == "[" {
            while !matches!(self.peek(), "]" | "") {
                self.next += 1;
            }
            self.expect("]", "a closing bracket")?;
        }
        Ok(())
    }

    fn truth(&mut self) -> Result<bool, SettingsError> {
        self.colon()?;
        self.value("True or False", |text| match text {
            "True" => Some(true),
            "False" => Some(false),
            _ => None,
        })
    }

    fn number(
        &mut self,
        expected: &'static str,
        range: RangeInclusive<f64>,
    ) -> Result<f64, SettingsError> {
        self.colon()?;
        self.value(expected, |text| text.parse().ok().filter(|number| range.contains(number)))
    }

    fn mebibytes(&mut self, bytes_min: u64) -> Result<u64, SettingsError> {
        self.colon()?;
        self.value("a whole number of at least large_segment_size_mb", |text| {
            mebibytes(text).filter(|&bytes| bytes >= bytes_min)
        })
    }

    fn large_segment_bytes(&mut self) -> Result<u64, SettingsError> {
        self.colon()?;
        self.value("a whole number above 10", |text| {
            mebibytes(text).filter(|&bytes| bytes > MADE_TO_MEASURE_BYTES_MIN)
        })
    }

    fn backend(&mut self) -> Result<(), SettingsError> {
        self.colon()?;
        let value = self.take();
        Err(self.error(match value.as_str() {
            "native" => return Ok(()),
            "cudaMallocAsync" | "hipMallocAsync" => SettingsProblem::Backend { value },
            _ => SettingsProblem::Value { value, expected: "native" },
        }))
    }

    /// `4`, or `[64:8,128:2,>:1]`: the first entry holds below its size too, `>` after the last.
    fn divisions(&mut self) -> Result<[u64; POWER2_INTERVALS], SettingsError> {
        const COUNT: &str = "a power of two";
        let count = |text: &str| text.parse::<u64>().ok().filter(|n| n.is_power_of_two());
        self.colon()?;
        if self.peek() != "[" {
            return self.value(COUNT, count).map(|count| [count; POWER2_INTERVALS]);
        }
        self.next += 1;
        let mut divisions = [0; POWER2_INTERVALS];
        let mut last: Option<usize> = None;
        while self.peek() != "]" {
            let boundary = self.value("a power of two, or >", |text| match text {
                ">" => Some(None),
                _ => count(text).map(Some),
            })?;
            self.colon()?;
            let steps = self
                .value("a power of two, or 0", |text| count(text).or((text == "0").then_some(0)))?;
            match boundary.map(|mib| (mib.ilog2() as usize).min(POWER2_INTERVALS - 1)) {
                // The first interval keeps its steps if no entry comes before.
                None => divisions[last.unwrap_or(0) + 1..].fill(steps),
                Some(index) => {
                    if last.is_none() {
                        divisions[..index].fill(steps);
                    }
                    divisions[index] = steps;
                    last = Some(index);
                }
            }
            if self.peek() != "]" {
                self.expect(",", "a comma or a closing bracket")?;
            }
        }
        self.next += 1;
        Ok(divisions)
    }
}

/// Bytes of a number of mebibytes, at most the largest request.
fn mebibytes(text: &str) -> Option<u64> {
    let mebibytes: u64 = text.parse().ok()?;
    Some(mebibytes.saturating_mul(MIB).min(REQUEST_BYTES_END))
}
