//! Sizes: how requests are rounded and how large segments are.

use thiserror::Error;

use super::block::Pool;

pub(super) const KIB: u64 = 1 << 10;
pub(super) const MIB: u64 = 1 << 20;
/// `kMinBlockSize`: every block is a multiple of it.
pub(super) const BLOCK_BYTES_MIN: u64 = KIB / 2;
/// `kSmallSize`: the largest request of the small pool, and the largest tail that is not split off
/// in the large one.
pub(crate) const SMALL_BYTES_MAX: u64 = MIB;
/// `kSmallBuffer`: segments of the small pool.
pub(crate) const SMALL_SEGMENT_BYTES: u64 = 2 * MIB;
/// `kMinLargeAlloc`: from here on a segment is made to measure.
const MADE_TO_MEASURE_BYTES_MIN: u64 = 10 * MIB;
/// `kRoundLarge`: segments made to measure are multiples of it.
const SEGMENT_GRAIN_BYTES: u64 = 2 * MIB;
/// `kLargeBuffer`: segments of the large pool for lesser requests, and the waste that a request of
/// at least `max_split_bytes` may cause.
const LARGE_SEGMENT_BYTES: u64 = 20 * MIB;
/// PyTorch's "more than 1EB".
pub(super) const REQUEST_BYTES_END: u64 = 1 << 60;
const INTERVALS: usize = 16;

const _: () = assert!(SMALL_SEGMENT_BYTES.is_multiple_of(BLOCK_BYTES_MIN));
const _: () = assert!(LARGE_SEGMENT_BYTES >= MADE_TO_MEASURE_BYTES_MIN);

/// The knobs of `PYTORCH_CUDA_ALLOC_CONF` that decide about placement.
#[derive(Clone, Debug, PartialEq)]
pub struct TorchSettings {
    /// Blocks of at least this size are never split; `None`: all may be.
    pub max_split_bytes: Option<u64>,
    /// What a request of at least `max_split_bytes` may waste of a cached block.
    pub max_non_split_rounding_bytes: u64,
    /// Into how many steps each power of two is divided for rounding: `[0]` below 2 MiB, then one
    /// for each doubling, `[15]` from 32 GiB on. 0 and 1 mean multiples of 512 bytes.
    pub power2_divisions: [u64; INTERVALS],
    /// Segments for requests over 1 and under 10 MiB; at least 10 MiB.
    pub large_segment_bytes: u64,
    /// Reserved bytes over which old segments are collected, as a part of `limit_bytes`; 0 turns
    /// it off, and so does the absence of a limit.
    pub garbage_collection_threshold: f64,
    /// Never reserve more: PyTorch's memory fraction times the device's memory.
    pub limit_bytes: Option<u64>,
}

impl Default for TorchSettings {
    fn default() -> Self {
        TorchSettings {
            max_split_bytes: None,
            max_non_split_rounding_bytes: LARGE_SEGMENT_BYTES,
            power2_divisions: [0; INTERVALS],
            large_segment_bytes: LARGE_SEGMENT_BYTES,
            garbage_collection_threshold: 0.0,
            limit_bytes: None,
        }
    }
}

/// A setting that PyTorch would not take either.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("allocator setting {key} cannot be {value:?}")]
pub struct SettingsError {
    /// The key.
    pub key: String,
    /// The value.
    pub value: String,
}

impl TorchSettings {
    /// Reads the text of `PYTORCH_CUDA_ALLOC_CONF`, such as `max_split_size_mb:200`; keys that have
    /// no say in placement are ignored.
    ///
    /// # Errors
    /// A value that is malformed or out of range.
    pub fn parse(text: &str) -> Result<TorchSettings, SettingsError> {
        let mut settings = TorchSettings::default();
        let text: String = text.chars().filter(|c| !c.is_whitespace()).collect();
        for (key, value) in options(&text) {
            settings
                .set(key, value)
                .ok_or_else(|| SettingsError { key: key.to_owned(), value: value.to_owned() })?;
        }
        Ok(settings)
    }

    fn set(&mut self, key: &str, value: &str) -> Option<()> {
        match key {
            "max_split_size_mb" => {
                self.max_split_bytes =
                    Some(mebibytes(value).filter(|&bytes| bytes > LARGE_SEGMENT_BYTES)?);
            }
            "max_non_split_rounding_mb" => {
                self.max_non_split_rounding_bytes =
                    mebibytes(value).filter(|&bytes| bytes > LARGE_SEGMENT_BYTES)?;
            }
            "large_segment_size_mb" => {
                self.large_segment_bytes =
                    mebibytes(value).filter(|&bytes| bytes >= MADE_TO_MEASURE_BYTES_MIN)?;
            }
            "garbage_collection_threshold" => {
                let threshold: f64 = value.parse().ok()?;
                self.garbage_collection_threshold =
                    Some(threshold).filter(|threshold| *threshold > 0.0 && *threshold < 1.0)?;
            }
            "roundup_power2_divisions" => self.power2_divisions = parse_divisions(value)?,
            _ => {}
        }
        Some(())
    }

    /// The size of the block for a request of `requested_bytes`, if it is split off exactly.
    ///
    /// # Panics
    /// From an EiB on.
    pub fn round(&self, requested_bytes: u64) -> u64 {
        assert!(requested_bytes < REQUEST_BYTES_END, "{requested_bytes} bytes");
        if requested_bytes < BLOCK_BYTES_MIN {
            return BLOCK_BYTES_MIN;
        }
        let divisions = self.divisions(requested_bytes);
        if divisions > 1 && requested_bytes > BLOCK_BYTES_MIN * divisions {
            round_to_power2_division(requested_bytes, divisions)
        } else {
            requested_bytes.next_multiple_of(BLOCK_BYTES_MIN)
        }
    }

    /// The divisions that hold for a request of this size.
    pub fn divisions(&self, requested_bytes: u64) -> u64 {
        let doublings = requested_bytes.max(1).ilog2().saturating_sub(MIB.ilog2()) as usize;
        self.power2_divisions[doublings.min(INTERVALS - 1)]
    }

    /// The segment that is reserved for a block of `rounded_bytes`.
    pub fn segment_bytes(&self, rounded_bytes: u64) -> u64 {
        if rounded_bytes <= SMALL_BYTES_MAX {
            SMALL_SEGMENT_BYTES
        } else if rounded_bytes < MADE_TO_MEASURE_BYTES_MIN {
            self.large_segment_bytes.max(MADE_TO_MEASURE_BYTES_MIN)
        } else {
            rounded_bytes.next_multiple_of(SEGMENT_GRAIN_BYTES)
        }
    }

    /// Whether what a request would leave of a block becomes a block of its own.
    pub(super) fn splits(&self, pool: Pool, rounded_bytes: u64, remainder_bytes: u64) -> bool {
        match pool {
            Pool::Small => remainder_bytes >= BLOCK_BYTES_MIN,
            Pool::Large => !self.is_oversize(rounded_bytes) && remainder_bytes > SMALL_BYTES_MAX,
        }
    }

    /// Whether the best fit may be taken at all.
    pub(super) fn accepts(&self, rounded_bytes: u64, block_bytes: u64) -> bool {
        if self.is_oversize(rounded_bytes) {
            block_bytes - rounded_bytes < self.max_non_split_rounding_bytes
        } else {
            !self.is_oversize(block_bytes)
        }
    }

    pub(crate) fn is_oversize(&self, size_bytes: u64) -> bool {
        self.max_split_bytes.is_some_and(|max_split_bytes| size_bytes >= max_split_bytes)
    }

    /// Above how many reserved bytes old segments are collected.
    pub(super) fn collect_above_bytes(&self) -> Option<u64> {
        let threshold = self.garbage_collection_threshold;
        self.limit_bytes.filter(|_| threshold > 0.0).map(|limit| (threshold * limit as f64) as u64)
    }
}

pub(super) fn pool(rounded_bytes: u64) -> Pool {
    if rounded_bytes <= SMALL_BYTES_MAX { Pool::Small } else { Pool::Large }
}

/// `size_bytes` rounded up to the next of the `divisions` equal steps between two powers of two.
///
/// # Panics
/// From an EiB on, or without divisions.
pub fn round_to_power2_division(size_bytes: u64, divisions: u64) -> u64 {
    assert!(size_bytes < REQUEST_BYTES_END && divisions > 0, "{size_bytes} in {divisions}");
    if size_bytes <= 1 || size_bytes.is_power_of_two() {
        return size_bytes;
    }
    let floor_bytes = 1 << size_bytes.ilog2();
    match floor_bytes >> divisions.ilog2() {
        0 => 2 * floor_bytes,
        step_bytes => size_bytes.next_multiple_of(step_bytes),
    }
}

/// `key:value` pairs; a value in brackets holds commas of its own.
fn options(text: &str) -> impl Iterator<Item = (&str, &str)> {
    let mut depth = 0;
    let separators = move |c: char| {
        depth += i32::from(c == '[') - i32::from(c == ']');
        c == ',' && depth == 0
    };
    let parts = text.split(separators).filter(|part| !part.is_empty());
    parts.map(|part| part.split_once(':').unwrap_or((part, "")))
}

fn mebibytes(value: &str) -> Option<u64> {
    value.parse::<u64>().ok()?.checked_mul(MIB).filter(|&bytes| bytes < REQUEST_BYTES_END)
}

/// `4`, or `[64:8,128:2,>:1]`: the first entry holds below its size too, `>` after the last one.
fn parse_divisions(value: &str) -> Option<[u64; INTERVALS]> {
    let divisions =
        |text: &str| text.parse::<u64>().ok().filter(|n| *n == 0 || n.is_power_of_two());
    let Some(list) = value.strip_prefix('[') else {
        return divisions(value).map(|divisions| [divisions; INTERVALS]);
    };
    let mut parsed = [0; INTERVALS];
    let mut next = 0;
    for (position, entry) in list.strip_suffix(']')?.split(',').enumerate() {
        let (size_mib, count) = entry.split_once(':')?;
        let count = divisions(count)?;
        if size_mib == ">" {
            parsed[next..].fill(count);
            next = INTERVALS;
            continue;
        }
        let size_mib = size_mib.parse::<u64>().ok().filter(|size| size.is_power_of_two())?;
        let index = size_mib.ilog2() as usize;
        if index >= INTERVALS {
            continue;
        }
        if position == 0 {
            parsed[..index].fill(count);
        }
        parsed[index] = count;
        next = index + 1;
    }
    Some(parsed)
}
