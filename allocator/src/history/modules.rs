//! Live bytes by module: now, and at the peak.

use std::collections::HashMap;

use crate::history::Action;
use crate::history::capture::Capture;
use crate::origin::ModulePath;
use crate::statistics::{ModuleShare, shares};

impl Capture {
    /// The live blocks by module at the peak of the bytes in use, charges included. Takes the
    /// earliest such moment after event `first_event`, as far back as the history goes. Without
    /// such an event, takes the state now.
    pub fn modules_at_peak(&self, first_event: u64) -> Vec<ModuleShare> {
        let records = self.history.records();
        let first = records.partition_point(|record| record.sequence < first_event);
        let statistics = &self.statistics;
        let now = statistics.allocated.current_bytes + statistics.charged.current_bytes;
        let (mut level, mut peak, mut peak_event) = (now, 0, records.len());
        for (index, record) in records.iter().enumerate().skip(first).rev() {
            if level >= peak {
                (peak, peak_event) = (level, index + 1);
            }
            match record.action {
                Action::Allocate | Action::Charge => level -= record.size_bytes,
                Action::Free | Action::Discharge => level += record.size_bytes,
                _ => {}
            }
        }
        // Walks back from now: only a live block, or the free of a block, knows the module that was
        // set last.
        let mut live: HashMap<u64, (Option<ModulePath>, u64)> = self
            .blocks
            .iter()
            .map(|block| &block.record)
            .map(|record| (record.serial, (record.module, record.size_bytes as u64)))
            .collect();
        for record in records[peak_event.min(records.len())..].iter().rev() {
            match record.action {
                Action::Allocate => drop(live.remove(&record.serial)),
                Action::Free => {
                    live.insert(record.serial, (record.module, record.size_bytes as u64));
                }
                _ => {}
            }
        }
        shares(live.into_values())
    }
}
