//! Sources of segments and pages, and the log of their calls.

use super::block::{AddressRange, StreamId};

/// A source of segments.
pub trait SegmentSource {
    /// The address of a new segment of `size_bytes`; `None` if there is no room.
    fn reserve(&mut self, size_bytes: u64) -> Option<u64>;

    /// Releases a segment from [`reserve`](Self::reserve).
    fn release(&mut self, address: u64, size_bytes: u64);

    /// Waits until every stream that used a pending block is done with it: the policy is about to
    /// make all pending blocks free. A source without streams has nothing to wait for.
    fn synchronize(&mut self) {}

    /// The source of pages; `None` if the source cannot map pages. Then
    /// [`expandable_segments`](crate::torch::TorchSettings::expandable_segments) has no effect, as
    /// on the platforms where PyTorch lacks them.
    fn pages(&mut self) -> Option<&mut dyn PageSource> {
        None
    }
}

/// A source that can put memory behind addresses page by page.
pub trait PageSource {
    /// Reserves addresses without memory for blocks of `stream`: a multiple of `page_bytes`, and
    /// more than the memory of the device, because pages move towards the end while holes are left
    /// behind (PyTorch takes 9/8 of the device's memory). `None` if there are too few addresses.
    fn reserve_range(&mut self, page_bytes: u64, stream: StreamId) -> Option<AddressRange>;

    /// Releases a range without memory.
    fn release_range(&mut self, range: AddressRange);

    /// Puts memory behind whole pages of a range. Returns false if there was too little memory:
    /// then no page has any.
    fn map(&mut self, pages: AddressRange) -> bool;

    /// Takes the memory from pages that were mapped, by one call or by several. The blocks in these
    /// pages are free, but the stream may still use the pages: the source waits for it.
    fn unmap(&mut self, pages: AddressRange);
}

/// A call of a source.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SourceCall {
    /// A segment was reserved.
    Reserve(AddressRange),
    /// A segment was released.
    Release(AddressRange),
    /// Addresses for an expandable segment were reserved.
    ReserveRange(AddressRange),
    /// Addresses of an expandable segment were released.
    ReleaseRange(AddressRange),
    /// Pages were mapped.
    Map(AddressRange),
    /// Pages were unmapped.
    Unmap(AddressRange),
    /// The source waited for all streams.
    Synchronize,
    /// The source had no room for a segment, or for pages, of this size.
    Refuse {
        /// Length in bytes.
        size_bytes: u64,
    },
}

/// A source that notes its calls.
#[derive(Debug)]
pub(super) struct Noted<'a, S: ?Sized> {
    source: &'a mut S,
    pub(super) calls: Vec<SourceCall>,
}

impl<'a, S: SegmentSource + ?Sized> Noted<'a, S> {
    pub(super) fn new(source: &'a mut S) -> Self {
        Noted { source, calls: Vec::new() }
    }

    fn inner(&mut self) -> &mut dyn PageSource {
        self.source.pages().expect("a source that has pages keeps having them")
    }
}

impl<S: SegmentSource + ?Sized> SegmentSource for Noted<'_, S> {
    fn reserve(&mut self, size_bytes: u64) -> Option<u64> {
        let address = self.source.reserve(size_bytes);
        self.calls.push(match address {
            Some(address) => SourceCall::Reserve(AddressRange { address, size_bytes }),
            None => SourceCall::Refuse { size_bytes },
        });
        address
    }

    fn release(&mut self, address: u64, size_bytes: u64) {
        self.source.release(address, size_bytes);
        self.calls.push(SourceCall::Release(AddressRange { address, size_bytes }));
    }

    fn synchronize(&mut self) {
        self.source.synchronize();
        self.calls.push(SourceCall::Synchronize);
    }

    fn pages(&mut self) -> Option<&mut dyn PageSource> {
        if self.source.pages().is_some() { Some(self) } else { None }
    }
}

impl<S: SegmentSource + ?Sized> PageSource for Noted<'_, S> {
    fn reserve_range(&mut self, page_bytes: u64, stream: StreamId) -> Option<AddressRange> {
        let range = self.inner().reserve_range(page_bytes, stream);
        self.calls.push(match range {
            Some(range) => SourceCall::ReserveRange(range),
            None => SourceCall::Refuse { size_bytes: 0 },
        });
        range
    }

    fn release_range(&mut self, range: AddressRange) {
        self.inner().release_range(range);
        self.calls.push(SourceCall::ReleaseRange(range));
    }

    fn map(&mut self, pages: AddressRange) -> bool {
        let is_mapped = self.inner().map(pages);
        self.calls.push(if is_mapped {
            SourceCall::Map(pages)
        } else {
            SourceCall::Refuse { size_bytes: pages.size_bytes }
        });
        is_mapped
    }

    fn unmap(&mut self, pages: AddressRange) {
        self.inner().unmap(pages);
        self.calls.push(SourceCall::Unmap(pages));
    }
}
