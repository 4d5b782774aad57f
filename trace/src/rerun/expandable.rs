//! Serves a recording by PyTorch's rules with expandable segments.
//!
//! The allocator's front gives PyTorch's rules no pages. So here the rules run alone, over a device
//! that only counts.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use lowtide_allocator::torch::{
    AddressRange, PageSource, SegmentSource, StreamId, TorchPolicy, TorchSettings,
};
use lowtide_allocator::{Category, Stream, active_bytes};

use super::{Op, RequestSequence, RerunFailure, RerunReport};

/// Memory of a device without a limit on its capacity.
const CAPACITY_BYTES_MAX: u64 = 1 << 50;
/// First address of the first range.
const BASE: u64 = 1 << 30;

impl RequestSequence {
    /// Serves the sequence within a capacity. Returns the report and the time.
    pub(super) fn run_expandable(
        &self,
        settings: &TorchSettings,
        capacity_bytes: Option<u64>,
    ) -> (RerunReport, Duration) {
        let mut run = Run::new(self, settings, capacity_bytes);
        if let Err(failure) = run.start(self) {
            let report = RerunReport { failure: Some(failure), ..RerunReport::default() };
            return (report, Duration::ZERO);
        }
        let calls_before = run.source_calls();
        let given_before = run.device.given.len();
        let clock = Instant::now();
        let served = self.ops.iter().try_for_each(|&(event, op)| run.step(Some(event), op));
        let time = clock.elapsed();
        let given = &run.device.given[given_before..];
        let first = self.start_count;
        let is_as_recorded = |block: &usize| run.offsets[*block] == Some(self.offsets[*block]);
        let live = (0..self.block_count).filter(|&block| !run.live[block].is_empty());
        let report = RerunReport {
            addresses_total: (self.block_count - first) as u64,
            addresses_equal: (first..self.block_count).filter(is_as_recorded).count() as u64,
            segments_total: self.segments.len() as u64,
            segments_equal: self.segments.iter().zip(given).filter(|(a, b)| a == b).count() as u64,
            final_blocks_equal: served.is_ok() && live.clone().all(|block| is_as_recorded(&block)),
            peak_active_bytes: run.peak_active_bytes,
            peak_reserved_bytes: run.peak_reserved_bytes,
            source_calls: run.source_calls() - calls_before,
            failure: served.err(),
            ..RerunReport::default()
        };
        (report, time)
    }
}

/// The state of a run.
struct Run {
    rules: TorchPolicy,
    device: Device,
    /// The addresses of each live block. A block of the start can have several parts.
    live: Vec<Vec<u64>>,
    /// Bytes in use by each live block.
    sizes: Vec<u64>,
    /// First offset of each block since its allocation, counted from the first range.
    offsets: Vec<Option<u64>>,
    charged: BTreeMap<Category, u64>,
    active_bytes: u64,
    peak_active_bytes: u64,
    peak_reserved_bytes: u64,
}

impl Run {
    fn new(
        program: &RequestSequence,
        settings: &TorchSettings,
        capacity_bytes: Option<u64>,
    ) -> Run {
        Run {
            rules: TorchPolicy::new(settings.clone()),
            device: Device::new(capacity_bytes.unwrap_or(CAPACITY_BYTES_MAX)),
            live: vec![Vec::new(); program.block_count],
            sizes: vec![0; program.block_count],
            offsets: vec![None; program.block_count],
            charged: BTreeMap::new(),
            active_bytes: 0,
            peak_active_bytes: 0,
            peak_reserved_bytes: 0,
        }
    }

    fn start(&mut self, program: &RequestSequence) -> Result<(), RerunFailure> {
        let mut gaps = Vec::new();
        for &(number, size_bytes, stream, _) in &program.start {
            match number {
                Some(number) => self.allocate(None, number, size_bytes, stream)?,
                None => gaps.push(self.place(None, size_bytes, stream)?),
            }
        }
        if !gaps.is_empty() {
            gaps.into_iter().for_each(|address| self.free_at(address));
            self.rules.empty_cache(&mut self.device);
        }
        for &(category, size_bytes) in &program.start_charges {
            self.step(None, Op::Charge(category, size_bytes))?;
        }
        self.peak_active_bytes = self.active_bytes;
        self.peak_reserved_bytes = self.device.held_bytes;
        Ok(())
    }

    fn step(&mut self, event: Option<u64>, op: Op) -> Result<(), RerunFailure> {
        match op {
            Op::Allocate { block, size_bytes, stream, .. } => {
                self.allocate(event, block, size_bytes, stream)?;
            }
            Op::Free { block } => {
                for address in std::mem::take(&mut self.live[block]) {
                    self.free_at(address);
                }
                self.active_bytes -= std::mem::take(&mut self.sizes[block]);
            }
            Op::Charge(category, size_bytes) => {
                let size_bytes = size_bytes as u64;
                let missing_bytes = self.device.missing_bytes(size_bytes);
                if missing_bytes > 0 {
                    return Err(RerunFailure { event, requested_bytes: size_bytes, missing_bytes });
                }
                self.device.held_bytes += size_bytes;
                *self.charged.entry(category).or_default() += size_bytes;
            }
            Op::Discharge(category, size_bytes) => {
                let charged_bytes = self.charged.entry(category).or_default();
                let gone_bytes = (size_bytes as u64).min(*charged_bytes);
                *charged_bytes -= gone_bytes;
                self.device.held_bytes -= gone_bytes;
            }
        }
        self.peak_active_bytes = self.peak_active_bytes.max(self.active_bytes);
        self.peak_reserved_bytes = self.peak_reserved_bytes.max(self.device.held_bytes);
        Ok(())
    }

    fn allocate(
        &mut self,
        event: Option<u64>,
        block: usize,
        size_bytes: usize,
        stream: Stream,
    ) -> Result<(), RerunFailure> {
        let address = self.place(event, size_bytes, stream)?;
        self.live[block].push(address);
        self.offsets[block].get_or_insert(address - BASE);
        let size_bytes = active_bytes(size_bytes).expect("it has been placed") as u64;
        self.sizes[block] += size_bytes;
        self.active_bytes += size_bytes;
        Ok(())
    }

    fn place(
        &mut self,
        event: Option<u64>,
        size_bytes: usize,
        stream: Stream,
    ) -> Result<u64, RerunFailure> {
        // PyTorch gives no block for 0 bytes. In a recording a request of 0 bytes has a block.
        let requested_bytes = size_bytes.max(1) as u64;
        let stream = StreamId(stream.index() as u64);
        match self.rules.allocate(requested_bytes, stream, &mut self.device) {
            Ok(Some(address)) => Ok(address),
            _ => {
                let missing_bytes = self.missing_bytes(requested_bytes, stream);
                Err(RerunFailure { event, requested_bytes: size_bytes as u64, missing_bytes })
            }
        }
    }

    /// The capacity that a failed request lacked. Found by bisection, because the request's need
    /// depends on the free memory before the end of its range.
    fn missing_bytes(&self, requested_bytes: u64, stream: StreamId) -> u64 {
        let fits = |more_bytes: u64| {
            let (mut rules, mut device) = (self.rules.clone(), self.device.clone());
            device.capacity_bytes = device.capacity_bytes.saturating_add(more_bytes);
            rules.allocate(requested_bytes, stream, &mut device).is_ok()
        };
        let (mut short, mut enough) = (0, requested_bytes.saturating_mul(2).max(1 << 26));
        if !fits(enough) {
            return requested_bytes;
        }
        while enough - short > 1 {
            let middle = short + (enough - short) / 2;
            if fits(middle) {
                enough = middle;
            } else {
                short = middle;
            }
        }
        enough
    }

    fn free_at(&mut self, address: u64) {
        let freed = self.rules.free(address);
        debug_assert!(freed.is_ok(), "{address:#x} is not a block of the rules");
    }

    fn source_calls(&self) -> u64 {
        let counters = self.rules.counters();
        let whole = counters.reserve_calls + counters.release_calls;
        whole + counters.map_calls + counters.unmap_calls
    }
}

/// A device that counts reserved bytes. Its ranges of addresses lie one after the other.
#[derive(Clone)]
struct Device {
    capacity_bytes: u64,
    /// Bytes of segments, pages and charges.
    held_bytes: u64,
    range_bytes: u64,
    next_address: u64,
    /// Bytes that the source gave, call by call.
    given: Vec<u64>,
}

impl Device {
    fn new(capacity_bytes: u64) -> Device {
        // The length that PyTorch gives a range: 9/8 of the device.
        let device_bytes = capacity_bytes.min(CAPACITY_BYTES_MAX);
        let range_bytes = device_bytes + device_bytes / 8;
        let (held_bytes, next_address, given) = (0, BASE, Vec::new());
        Device { capacity_bytes, held_bytes, range_bytes, next_address, given }
    }

    fn missing_bytes(&self, size_bytes: u64) -> u64 {
        self.held_bytes.saturating_add(size_bytes).saturating_sub(self.capacity_bytes)
    }

    fn give(&mut self, size_bytes: u64) -> bool {
        let is_there = self.missing_bytes(size_bytes) == 0;
        if is_there {
            self.held_bytes += size_bytes;
            self.given.push(size_bytes);
        }
        is_there
    }

    fn addresses(&mut self, size_bytes: u64) -> u64 {
        self.next_address += size_bytes;
        self.next_address - size_bytes
    }
}

impl SegmentSource for Device {
    fn reserve(&mut self, size_bytes: u64) -> Option<u64> {
        self.give(size_bytes).then(|| self.addresses(size_bytes))
    }

    fn release(&mut self, _address: u64, size_bytes: u64) {
        self.held_bytes -= size_bytes;
    }

    fn pages(&mut self) -> Option<&mut dyn PageSource> {
        Some(self)
    }
}

impl PageSource for Device {
    fn reserve_range(&mut self, page_bytes: u64, _stream: StreamId) -> Option<AddressRange> {
        let size_bytes = self.range_bytes.next_multiple_of(page_bytes);
        Some(AddressRange { address: self.addresses(size_bytes), size_bytes })
    }

    fn release_range(&mut self, _range: AddressRange) {}

    fn map(&mut self, pages: AddressRange) -> bool {
        self.give(pages.size_bytes)
    }

    fn unmap(&mut self, pages: AddressRange) {
        self.held_bytes -= pages.size_bytes;
    }
}
