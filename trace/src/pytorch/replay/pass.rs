//! One run over the events, compared with the recording.

use std::collections::BTreeMap;

use lowtide_allocator::torch::{AddressRange, SegmentSource, TorchPolicy};

use super::offers::Offers;
use super::report::ReplayReport;
use crate::pytorch::snapshot::{Action, RecordedEvent};

/// The policy, with the comparison so far.
pub(crate) struct Pass {
    pub(crate) policy: TorchPolicy,
    offers: Offers,
    /// Recorded address → address of the policy, for blocks whose addresses differ.
    moved: BTreeMap<u64, u64>,
    active_bytes: u64,
    pub(crate) last_address: Option<u64>,
    /// Sizes of the allocated blocks, in order.
    pub(crate) sizes: Vec<u64>,
    pub(crate) report: ReplayReport,
}

impl Pass {
    /// A pass before its first event, while `active_bytes` are in use.
    pub(crate) fn new(policy: TorchPolicy, offers: Offers, active_bytes: u64) -> Pass {
        let report = ReplayReport {
            peak_active_bytes: active_bytes,
            peak_block_bytes: policy.active_bytes(),
            peak_reserved_bytes: policy.reserved_bytes(),
            ..ReplayReport::default()
        };
        let (moved, sizes, last_address) = (BTreeMap::new(), Vec::new(), None);
        Pass { policy, offers, moved, active_bytes, last_address, sizes, report }
    }

    pub(crate) fn step(&mut self, index: usize, event: &RecordedEvent) {
        let RecordedEvent { action, address, size_bytes, .. } = *event;
        let range = AddressRange { address, size_bytes };
        let mut is_as_recorded = true;
        if !matches!(action, Action::SegmentMap | Action::Alloc) {
            is_as_recorded &= self.map_in_vain();
        }
        is_as_recorded &= match action {
            Action::Alloc => self.allocate(event),
            Action::FreeRequested => self.policy.request_free(self.at(event)).is_ok(),
            Action::FreeCompleted => {
                let address = self.at(event);
                self.moved.remove(&event.address);
                let freed_bytes = size_bytes.next_multiple_of(512);
                self.active_bytes = self.active_bytes.saturating_sub(freed_bytes);
                self.policy.complete_free(address).is_ok()
            }
            Action::SegmentAlloc => {
                self.report.segments_total += 1;
                self.offers.segments.push_back((address, size_bytes));
                true
            }
            Action::SegmentFree => {
                let released = self.policy.release_segment(address).is_ok();
                if released {
                    self.offers.release(address, size_bytes);
                }
                released
            }
            Action::SegmentMap => {
                self.report.segments_total += 1;
                self.offers.offer(&mut self.policy, range, index)
            }
            Action::SegmentUnmap => self.offers.force_unmap(&mut self.policy, range),
            Action::Snapshot | Action::Oom | Action::UserDefined => true,
        };
        if !is_as_recorded {
            self.report.first_difference.get_or_insert(index as u64);
        }
        self.report.segments_equal = self.offers.equal;
    }

    /// Maps pages that no block follows. They belong to a request that failed for lack of memory,
    /// and the policy never sees this request.
    fn map_in_vain(&mut self) -> bool {
        let pages = std::mem::take(&mut self.offers.pages);
        self.report.segments_total -= pages.len() as u64;
        pages.into_iter().all(|pages| self.offers.force_map(&mut self.policy, pages))
    }

    /// Address of an event's block in the policy.
    fn at(&self, event: &RecordedEvent) -> u64 {
        self.moved.get(&event.address).copied().unwrap_or(event.address)
    }

    fn allocate(&mut self, event: &RecordedEvent) -> bool {
        self.report.addresses_total += 1;
        let placed = self.policy.allocate(event.size_bytes, event.stream, &mut self.offers);
        // Pages that the policy did not ask for count as a difference, but have memory.
        for pages in std::mem::take(&mut self.offers.pages) {
            self.offers.force_map(&mut self.policy, pages);
        }
        // A request of 0 bytes, or of an exabyte, gets no block; neither is recorded.
        let Ok(Some(address)) = placed else {
            self.last_address = None;
            return false;
        };
        self.last_address = Some(address);
        self.sizes.push(self.policy.block_bytes(address).unwrap_or(0));
        let is_equal = address == event.address;
        if is_equal {
            self.report.addresses_equal += 1;
        } else {
            self.moved.insert(event.address, address);
        }
        // A file may free less than it allocated.
        let taken_bytes = event.size_bytes.next_multiple_of(512);
        self.active_bytes = self.active_bytes.saturating_add(taken_bytes);
        let report = &mut self.report;
        report.peak_active_bytes = report.peak_active_bytes.max(self.active_bytes);
        report.peak_block_bytes = report.peak_block_bytes.max(self.policy.active_bytes());
        report.peak_reserved_bytes = report.peak_reserved_bytes.max(self.policy.reserved_bytes());
        is_equal
    }
}
