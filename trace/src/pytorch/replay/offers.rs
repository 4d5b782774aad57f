//! A source of the recorded segments and pages.

use std::collections::{BTreeMap, VecDeque};

use lowtide_allocator::torch::{
    AddressRange, PageSource, RangeLayout, SegmentSource, StreamId, TorchPolicy,
};

use super::ranges::Era;
use crate::pytorch::replay::error::MADE_UP_ADDRESS;

/// A source that gives the recorded segments, ranges and pages. If the policy asks for others, the
/// source makes them up.
pub(crate) struct Offers {
    /// Segments and ranges: address → size.
    held: BTreeMap<u64, u64>,
    /// Recorded segments that the policy has not asked for yet: address and size.
    pub(crate) segments: VecDeque<(u64, u64)>,
    /// Recorded pages that the policy has not asked for yet.
    pub(crate) pages: VecDeque<AddressRange>,
    /// Ranges that come with an event, in order.
    eras: VecDeque<Era>,
    made_up: u64,
    /// Number of segments and runs of pages that the policy asked for as recorded.
    pub(crate) equal: u64,
}

impl Offers {
    pub(crate) fn new(held: BTreeMap<u64, u64>, eras: VecDeque<Era>) -> Offers {
        let (segments, pages) = (VecDeque::new(), VecDeque::new());
        Offers { held, segments, pages, eras, made_up: MADE_UP_ADDRESS, equal: 0 }
    }

    fn is_vacant(&self, address: u64, size_bytes: u64) -> bool {
        let before = self.held.range(..address.saturating_add(size_bytes)).next_back();
        before.is_none_or(|(at, held_bytes)| at + held_bytes <= address)
    }

    fn make_up(&mut self, size_bytes: u64) -> Option<u64> {
        let address = self.made_up;
        self.made_up = address.checked_add(size_bytes)?;
        Some(address)
    }

    /// Takes the next range that `is_it` accepts. The range is held from now on.
    fn begin_era(&mut self, is_it: impl Fn(&Era) -> bool) -> Option<Era> {
        let at = self.eras.iter().position(is_it)?;
        let AddressRange { address, size_bytes } = self.eras[at].range;
        let era = self.eras.remove(at).filter(|_| self.is_vacant(address, size_bytes))?;
        self.held.insert(address, size_bytes);
        Some(era)
    }

    /// Offers pages. If they begin a second range of their stream and pool, the policy gets the
    /// range at once: the request that reserved it is not recorded if the request failed.
    pub(crate) fn offer(
        &mut self,
        policy: &mut TorchPolicy,
        pages: AddressRange,
        event: usize,
    ) -> bool {
        self.pages.push_back(pages);
        let begins = |era: &Era| era.is_second && era.born == event;
        self.begin_era(begins).is_none_or(|era| restore(policy, &era))
    }

    /// Maps pages for which the recording has no block: their request failed, or went on to release
    /// other pages. Returns true if the pages could be mapped.
    pub(crate) fn force_map(&mut self, policy: &mut TorchPolicy, pages: AddressRange) -> bool {
        if policy.map_pages(pages).is_ok() {
            return true;
        }
        let is_around =
            |era: &Era| era.range.address <= pages.address && pages.address < era.range.end();
        let Some(era) = self.begin_era(is_around) else { return false };
        restore(policy, &era) && policy.map_pages(pages).is_ok()
    }

    /// Unmaps pages that were recorded as unmapped. Returns true on success.
    pub(crate) fn force_unmap(&mut self, policy: &mut TorchPolicy, pages: AddressRange) -> bool {
        let unmapped = policy.unmap_pages(pages);
        if let Ok(Some(empty)) = unmapped {
            self.release_range(empty);
        }
        unmapped.is_ok()
    }
}

/// Gives the policy a range without memory. Returns true if the range fits.
fn restore(policy: &mut TorchPolicy, era: &Era) -> bool {
    let Era { range, page_bytes, stream, pool, .. } = *era;
    let layout = RangeLayout { range, page_bytes, stream, pool, mapped: Vec::new() };
    policy.restore_range(&layout).is_ok()
}

impl SegmentSource for Offers {
    fn reserve(&mut self, size_bytes: u64) -> Option<u64> {
        // The offer need not be the first one: PyTorch can let another thread in while the driver
        // works.
        let fits = |&(_, offered_bytes): &(u64, u64)| offered_bytes == size_bytes;
        let offer = self.segments.iter().position(fits).and_then(|at| self.segments.remove(at));
        let address = match offer {
            Some((address, _)) if self.is_vacant(address, size_bytes) => {
                self.equal += 1;
                address
            }
            _ => self.make_up(size_bytes)?,
        };
        self.held.insert(address, size_bytes);
        Some(address)
    }

    fn release(&mut self, address: u64, _size_bytes: u64) {
        self.held.remove(&address);
    }

    fn pages(&mut self) -> Option<&mut dyn PageSource> {
        Some(self)
    }
}

impl PageSource for Offers {
    fn reserve_range(&mut self, page_bytes: u64, stream: StreamId) -> Option<AddressRange> {
        let is_it = |era: &Era| (era.page_bytes, era.stream) == (page_bytes, stream);
        if let Some(era) = self.begin_era(is_it) {
            return Some(era.range);
        }
        let size_bytes = super::ranges::TAIL_BYTES.next_multiple_of(page_bytes);
        let address = self.make_up(size_bytes)?;
        self.held.insert(address, size_bytes);
        Some(AddressRange { address, size_bytes })
    }

    fn release_range(&mut self, range: AddressRange) {
        self.held.remove(&range.address);
    }

    fn map(&mut self, pages: AddressRange) -> bool {
        if self.pages.front() == Some(&pages) {
            self.pages.pop_front();
            self.equal += 1;
        }
        true
    }

    fn unmap(&mut self, _pages: AddressRange) {}
}
