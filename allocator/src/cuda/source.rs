//! Memory of a device, in physical pages that are mapped where the allocator wants them.
//!
//! Each page has a physical handle of its own. This costs a few driver calls for each page of
//! growth, and any page can be released or remapped alone: the driver neither unmaps a part of a
//! mapping nor maps a part of a handle. A steady state makes no call.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::device::CudaDevice;
use super::error::CudaError;
use super::streams::CudaStreams;
use super::table::Handle;
use crate::source::fence::Fence;
use crate::source::{Mapping, MemorySource, PageRange, Segment, SourceError, VirtualMemory};

/// Memory of an NVIDIA device.
///
/// The page is the driver's, 2 MiB on today's devices. New memory holds arbitrary bytes. Give the
/// source to an allocator behind an `Arc` to keep a handle for [`report`](Self::report).
#[derive(Debug)]
pub struct CudaSource {
    streams: CudaStreams,
    page_bytes: usize,
    capacity_bytes: usize,
    total_bytes: usize,
    state: Mutex<State>,
}

/// Memory of a device, by owner.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryReport {
    /// Memory that the device has.
    pub total_bytes: usize,
    /// Memory that is free.
    pub free_bytes: usize,
    /// Memory that this source has mapped for its ranges.
    pub committed_bytes: usize,
    /// Memory of all other owners: the context, modules and libraries of this process, other
    /// processes, other sources.
    pub outside_bytes: usize,
}

#[derive(Debug, Default)]
struct State {
    /// The ranges by their address.
    ranges: BTreeMap<u64, Range>,
    /// Physical memory that the driver has refused to take back so far.
    unreleased: Vec<Handle>,
}

#[derive(Debug)]
struct Range {
    size_bytes: usize,
    /// Pages with memory of their own, by offset. Empty for a range of views.
    pages: BTreeMap<usize, Handle>,
    /// Lengths of the views of other ranges in this range, by offset.
    views: BTreeMap<usize, usize>,
}

impl CudaSource {
    /// A source of all memory that is free on the device now, on the streams of that device.
    ///
    /// # Errors
    /// The device does not map memory in pages, or the driver refused.
    pub fn new(streams: &CudaStreams) -> Result<CudaSource, CudaError> {
        let free_bytes = streams.device().memory()?.free_bytes;
        let mut source = CudaSource::with_capacity(streams, free_bytes)?;
        source.capacity_bytes = free_bytes / source.page_bytes * source.page_bytes;
        Ok(source)
    }

    /// A source of at most `bytes`.
    ///
    /// # Errors
    /// The device does not map memory in pages, or the driver refused.
    pub fn with_capacity(streams: &CudaStreams, bytes: usize) -> Result<CudaSource, CudaError> {
        let page_bytes = streams.device().page_bytes()?;
        let total_bytes = streams.device().memory()?.total_bytes;
        Ok(CudaSource {
            streams: streams.clone(),
            page_bytes,
            capacity_bytes: bytes,
            total_bytes,
            state: Mutex::default(),
        })
    }

    /// The device's memory by owner, as it is now.
    ///
    /// # Errors
    /// The driver refused.
    pub fn report(&self) -> Result<MemoryReport, CudaError> {
        let state = self.lock();
        let memory = self.device().memory()?;
        let page_count: usize = state.ranges.values().map(|range| range.pages.len()).sum();
        let committed_bytes = (page_count + state.unreleased.len()) * self.page_bytes;
        let used_bytes = memory.total_bytes.saturating_sub(memory.free_bytes);
        Ok(MemoryReport {
            total_bytes: memory.total_bytes,
            free_bytes: memory.free_bytes,
            committed_bytes,
            outside_bytes: used_bytes.saturating_sub(committed_bytes),
        })
    }

    fn device(&self) -> &CudaDevice {
        self.streams.device()
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn reserve_range(&self, size_bytes: usize) -> Result<Segment, SourceError> {
        let size_bytes = size_bytes.checked_next_multiple_of(self.page_bytes);
        let size_bytes = size_bytes.ok_or(SourceError::OutOfMemory { size_bytes: usize::MAX })?;
        let reserved = self.device().reserve(size_bytes, self.page_bytes);
        let address = reserved.map_err(|error| error.of_source(size_bytes))?;
        let range = Range { size_bytes, pages: BTreeMap::new(), views: BTreeMap::new() };
        self.lock().ranges.insert(address, range);
        Ok(Segment::opaque(address, size_bytes))
    }

    /// Maps new memory for one page.
    fn add_page(&self, state: &mut State, address: u64, offset: usize) -> Result<(), CudaError> {
        let handle = self.device().create(self.page_bytes)?;
        if let Err(error) = self.device().show(address + offset as u64, self.page_bytes, handle) {
            self.release_handle(state, handle);
            return Err(error);
        }
        state.range_at(address).pages.insert(offset, handle);
        Ok(())
    }

    /// Releases the memory of pages that no work uses any more. Pages that the driver does not
    /// unmap keep their memory for the next commit.
    fn remove_pages(&self, state: &mut State, address: u64, offset: usize, size_bytes: usize) {
        let pages = &mut state.range_at(address).pages;
        let inside: Vec<usize> =
            pages.range(offset..offset + size_bytes).map(|(&at, _)| at).collect();
        // Neighbours are unmapped in one call. There are gaps where a commit failed half way.
        for run in inside.chunk_by(|one, next| one + self.page_bytes == *next) {
            if self.device().hide(address + run[0] as u64, run.len() * self.page_bytes).is_err() {
                continue;
            }
            for at in run {
                let handle = state.range_at(address).pages.remove(at).expect("it was listed");
                self.release_handle(state, handle);
            }
        }
    }

    fn release_handle(&self, state: &mut State, handle: Handle) {
        if self.device().release(handle).is_err() {
            state.unreleased.push(handle);
        }
    }

    /// Releases the memory that the driver has refused to take back so far.
    fn release_rest(&self, state: &mut State) {
        state.unreleased.retain(|&handle| self.device().release(handle).is_err());
    }

    /// Unmaps views that overlap a place. No work uses them any more.
    fn remove_views(&self, state: &mut State, address: u64, offset: usize, size_bytes: usize) {
        let views = &mut state.range_at(address).views;
        let overlaps = |(&at, &len): (&usize, &usize)| {
            (at < offset + size_bytes && offset < at + len).then_some((at, len))
        };
        let inside: Vec<(usize, usize)> = views.iter().filter_map(overlaps).collect();
        for (at, len) in inside {
            if self.device().hide(address + at as u64, len).is_ok() {
                state.range_at(address).views.remove(&at);
            }
        }
    }

    /// Removes all pages and views of a range, and the range itself. If the driver refuses a part,
    /// the source tries again when it is dropped.
    fn remove_range(&self, state: &mut State, address: u64) {
        let Some(range) = state.ranges.get(&address) else { return };
        let size_bytes = range.size_bytes;
        if !(range.pages.is_empty() && range.views.is_empty()) && self.settled().is_err() {
            return;
        }
        self.remove_views(state, address, 0, size_bytes);
        self.remove_pages(state, address, 0, size_bytes);
        self.release_rest(state);
        let range = state.range_at(address);
        let is_empty = range.pages.is_empty() && range.views.is_empty();
        if is_empty && self.device().free_range(address, size_bytes).is_ok() {
            state.ranges.remove(&address);
        }
    }

    /// Waits for all work: a page must not go while some work uses it.
    fn settled(&self) -> Result<(), CudaError> {
        self.device().synchronize().or_else(|_| self.device().synchronize())
    }
}

impl State {
    fn range_at(&mut self, address: u64) -> &mut Range {
        self.ranges.get_mut(&address).expect("a segment of this source")
    }
}

impl MemorySource for CudaSource {
    fn capacity_bytes(&self) -> usize {
        self.capacity_bytes
    }

    fn page_bytes(&self) -> usize {
        self.page_bytes
    }

    fn outside_bytes(&self) -> usize {
        self.report().map_or(0, |report| report.outside_bytes)
    }

    fn reserve(&self, size_bytes: usize) -> Result<Segment, SourceError> {
        self.reserve_range(size_bytes.max(self.total_bytes))
    }

    fn release(&self, segment: &Segment) {
        self.remove_range(&mut self.lock(), segment.address());
    }

    fn commit(&self, segment: &Segment, pages: &PageRange) -> Result<(), SourceError> {
        assert!(pages.is_of(segment), "{pages:?} are pages of another segment than {segment:?}");
        let (address, start, size_bytes) = (segment.address(), pages.offset(), pages.size_bytes());
        let mut state = self.lock();
        let mut added = Vec::new();
        let mut result = Ok(());
        for offset in (start..start + size_bytes).step_by(self.page_bytes) {
            // A page that the driver did not take back still has memory.
            if state.range_at(address).pages.contains_key(&offset) {
                continue;
            }
            result = self.add_page(&mut state, address, offset);
            if result.is_err() {
                break;
            }
            added.push(offset);
        }
        let allowed = result.and_then(|()| self.device().allow(address + start as u64, size_bytes));
        allowed.map_err(|error| {
            for offset in added {
                self.remove_pages(&mut state, address, offset, self.page_bytes);
            }
            error.of_source(size_bytes)
        })
    }

    fn decommit(&self, segment: &Segment, pages: &PageRange) {
        assert!(pages.is_of(segment), "{pages:?} are pages of another segment than {segment:?}");
        let mut state = self.lock();
        if self.settled().is_ok() {
            self.remove_pages(&mut state, segment.address(), pages.offset(), pages.size_bytes());
            self.release_rest(&mut state);
        }
    }

    fn virtual_memory(&self) -> Option<&dyn VirtualMemory> {
        Some(self)
    }

    fn fence(&self) -> Option<&dyn Fence> {
        Some(&self.streams)
    }
}

// SAFETY: the processor reads no range of this source: all ranges are opaque, and `map` refuses a
// range that the processor could read.
unsafe impl VirtualMemory for CudaSource {
    fn reserve_views(&self, capacity_bytes: usize) -> Result<Segment, SourceError> {
        // Room for every page in a few views at once, and for gaps between idle views.
        self.reserve_range(capacity_bytes.max(self.total_bytes).saturating_mul(4))
    }

    fn map(
        &self,
        segment: &Segment,
        views: &Segment,
        mapping: &Mapping,
    ) -> Result<(), SourceError> {
        let pages = mapping.pages();
        assert!(pages.is_of(segment) && mapping.is_in(views), "{mapping:?} is of other segments");
        assert!(views.host_pointer().is_none(), "{views:?} is not the device's");
        let (size_bytes, view_offset) = (pages.size_bytes(), mapping.view_offset());
        let view_address = views.address();
        let mut state = self.lock();
        // A view that the driver did not unmap may be in the way.
        self.remove_views(&mut state, view_address, view_offset, size_bytes);
        let shown = &state.range_at(segment.address()).pages;
        let inside = pages.offset()..pages.offset() + size_bytes;
        let handles: Vec<Handle> = shown.range(inside).map(|(_, &handle)| handle).collect();
        assert_eq!(handles.len() * self.page_bytes, size_bytes, "{mapping:?} shows no memory");
        let at = |index: usize| view_offset + index * self.page_bytes;
        let mut result = Ok(());
        for (index, &handle) in handles.iter().enumerate() {
            let address = view_address + at(index) as u64;
            result = self.device().show(address, self.page_bytes, handle);
            if result.is_err() {
                break;
            }
            state.range_at(view_address).views.insert(at(index), self.page_bytes);
        }
        let place = view_address + view_offset as u64;
        let allowed = result.and_then(|()| self.device().allow(place, size_bytes));
        allowed.map_err(|error| {
            self.remove_views(&mut state, view_address, view_offset, size_bytes);
            error.of_source(size_bytes)
        })
    }

    fn unmap(&self, views: &Segment, mapping: &Mapping) {
        assert!(mapping.is_in(views), "{mapping:?} is of other segments");
        let mut state = self.lock();
        let size_bytes = mapping.pages().size_bytes();
        if self.settled().is_ok() {
            self.remove_views(&mut state, views.address(), mapping.view_offset(), size_bytes);
        }
    }
}

impl Drop for CudaSource {
    fn drop(&mut self) {
        // Allocators release their segments. Ranges that were reserved by hand are left.
        let mut state = self.lock();
        let addresses: Vec<u64> = state.ranges.keys().copied().collect();
        for address in addresses {
            self.remove_range(&mut state, address);
        }
        self.release_rest(&mut state);
    }
}
