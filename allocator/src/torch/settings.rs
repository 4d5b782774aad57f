//! Settings and sizes: how requests are rounded and how large segments are.

use super::block::Pool;
use super::policy::Request;

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;
/// `kMinBlockSize`: every block is a multiple of it.
pub(super) const BLOCK_BYTES_MIN: u64 = KIB / 2;
/// `kSmallSize`: the largest request of the small pool, and the largest rest that the large pool
/// does not split off.
pub const SMALL_BYTES_MAX: u64 = MIB;
/// `kSmallBuffer`: size of the segments of the small pool.
pub const SMALL_SEGMENT_BYTES: u64 = 2 * MIB;
/// `kMinLargeAlloc`: from this size on, a segment is as large as its request.
pub const MADE_TO_MEASURE_BYTES_MIN: u64 = 10 * MIB;
/// `kRoundLarge`: granularity of segments that are as large as their request.
const SEGMENT_GRAIN_BYTES: u64 = 2 * MIB;
/// `kLargeBuffer`: size of the segments of the large pool for smaller requests, of the pages of its
/// expandable segments, and of the waste that a request of at least `max_split_bytes` may cause.
const LARGE_SEGMENT_BYTES: u64 = 20 * MIB;
/// PyTorch's "more than 1EB": requests from this size on are refused.
pub const REQUEST_BYTES_END: u64 = 1 << 60;
/// Powers of two that `roundup_power2_divisions` tells apart.
pub const POWER2_INTERVALS: usize = 16;

const _: () = assert!(SMALL_SEGMENT_BYTES.is_multiple_of(BLOCK_BYTES_MIN));
const _: () = assert!(LARGE_SEGMENT_BYTES >= MADE_TO_MEASURE_BYTES_MIN);

/// The knobs of `PYTORCH_CUDA_ALLOC_CONF` that affect placement.
#[derive(Clone, Debug, PartialEq)]
pub struct TorchSettings {
    /// Blocks of at least this size are never split. `None`: every block may be split.
    pub max_split_bytes: Option<u64>,
    /// Bytes of a cached block that a request of at least `max_split_bytes` may waste.
    pub max_non_split_rounding_bytes: u64,
    /// Steps that each power of two is divided into for rounding: `[0]` below 2 MiB, then one for
    /// each doubling, `[15]` from 32 GiB on. 0 and 1 mean multiples of 512 bytes.
    pub power2_divisions: [u64; POWER2_INTERVALS],
    /// Segments for requests over 1 and under 10 MiB, and the pages of expandable segments of the
    /// large pool; more than 10 MiB.
    pub large_segment_bytes: u64,
    /// Reserved bytes above which old segments are collected, as a fraction of `limit_bytes`.
    /// Nothing is collected with 0 or without a limit.
    pub garbage_collection_threshold: f64,
    /// Limit of the reserved bytes: PyTorch's memory fraction times the device's memory.
    pub limit_bytes: Option<u64>,
    /// `per_process_memory_fraction`. [`for_device`](Self::for_device) turns the fraction into a
    /// limit.
    pub memory_fraction: Option<f64>,
    /// True if new memory is mapped page by page into few address ranges that grow, if the source
    /// [can](crate::torch::SegmentSource::pages).
    pub expandable_segments: bool,
}

impl Default for TorchSettings {
    fn default() -> Self {
        TorchSettings {
            max_split_bytes: None,
            max_non_split_rounding_bytes: LARGE_SEGMENT_BYTES,
            power2_divisions: [0; POWER2_INTERVALS],
            large_segment_bytes: LARGE_SEGMENT_BYTES,
            garbage_collection_threshold: 0.0,
            limit_bytes: None,
            memory_fraction: None,
            expandable_segments: false,
        }
    }
}

impl TorchSettings {
    /// The settings on a device with `device_bytes` of memory. A
    /// [`memory_fraction`](Self::memory_fraction) below 1 becomes the limit; 1 removes the limit.
    #[must_use]
    pub fn for_device(mut self, device_bytes: u64) -> TorchSettings {
        if let Some(fraction) = self.memory_fraction {
            let limit_bytes = (fraction * device_bytes as f64) as u64;
            self.limit_bytes = (fraction < 1.0).then_some(limit_bytes);
        }
        self
    }

    /// Size of a block for a request of `requested_bytes`, if the block is split off exactly.
    ///
    /// # Panics
    /// If the request is an EiB or more.
    pub fn round(&self, requested_bytes: u64) -> u64 {
        assert!(requested_bytes < REQUEST_BYTES_END, "{requested_bytes} bytes");
        if requested_bytes < BLOCK_BYTES_MIN {
            return BLOCK_BYTES_MIN;
        }
        let divisions = self.divisions(requested_bytes);
        if divisions > 1 && requested_bytes > BLOCK_BYTES_MIN.saturating_mul(divisions) {
            round_to_power2_division(requested_bytes, divisions)
        } else {
            requested_bytes.next_multiple_of(BLOCK_BYTES_MIN)
        }
    }

    /// Number of divisions for a request of this size.
    pub fn divisions(&self, requested_bytes: u64) -> u64 {
        let doublings = requested_bytes.max(1).ilog2().saturating_sub(MIB.ilog2()) as usize;
        self.power2_divisions[doublings.min(POWER2_INTERVALS - 1)]
    }

    /// Size of the segment that is reserved for a block of `rounded_bytes`.
    pub fn segment_bytes(&self, rounded_bytes: u64) -> u64 {
        if rounded_bytes <= SMALL_BYTES_MAX {
            SMALL_SEGMENT_BYTES
        } else if rounded_bytes < MADE_TO_MEASURE_BYTES_MIN {
            self.large_segment_bytes.max(MADE_TO_MEASURE_BYTES_MIN)
        } else {
            rounded_bytes.next_multiple_of(SEGMENT_GRAIN_BYTES)
        }
    }

    /// True if every segment consists of whole pages of this size.
    pub(crate) fn fill_pages(&self, page_bytes: u64) -> bool {
        let large_bytes = self.page_bytes(Pool::Large);
        let lengths = [SMALL_SEGMENT_BYTES, SEGMENT_GRAIN_BYTES, large_bytes];
        lengths.iter().all(|bytes| bytes.is_multiple_of(page_bytes))
    }

    /// Size of the pages by which expandable segments of a pool grow.
    pub fn page_bytes(&self, pool: Pool) -> u64 {
        match pool {
            Pool::Small => SMALL_SEGMENT_BYTES,
            Pool::Large => self.large_segment_bytes.max(MADE_TO_MEASURE_BYTES_MIN),
        }
    }

    /// True if the rest of a block behind a request becomes a block of its own. With expandable
    /// segments PyTorch splits every block by the rule of the small pool.
    pub(super) fn splits(&self, want: &Request, remainder_bytes: u64) -> bool {
        if want.pool == Pool::Small || want.is_expandable {
            remainder_bytes >= BLOCK_BYTES_MIN
        } else {
            !self.is_oversize(want.size_bytes) && remainder_bytes > SMALL_BYTES_MAX
        }
    }

    /// True if the best fit may be used for a request.
    pub(super) fn accepts(&self, rounded_bytes: u64, block_bytes: u64) -> bool {
        if self.is_oversize(rounded_bytes) {
            block_bytes - rounded_bytes < self.max_non_split_rounding_bytes
        } else {
            !self.is_oversize(block_bytes)
        }
    }

    /// True if blocks of this size are never split.
    pub fn is_oversize(&self, size_bytes: u64) -> bool {
        self.max_split_bytes.is_some_and(|max_split_bytes| size_bytes >= max_split_bytes)
    }

    /// Reserved bytes above which old segments are collected; `None` if nothing is collected.
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
/// If the size is an EiB or more, or `divisions` is 0.
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
