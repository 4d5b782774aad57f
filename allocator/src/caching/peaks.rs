//! Peaks of nested watches. Each counter keeps a single peak; the peaks of all watches are computed
//! from it by folds.

use std::collections::BTreeMap;

use crate::statistics::Statistics;

/// Peaks of open watches, and the peaks of the statistics up to the last fold.
#[derive(Debug, Default)]
pub(crate) struct WatchedPeaks {
    last_id: u64,
    /// Peaks of the statistics up to the last fold. `None` while no watch is open: then the
    /// counters have the peaks themselves.
    outer: Option<Box<Statistics>>,
    open: BTreeMap<u64, Peaks>,
}

/// The peaks of a watch up to the last fold.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Peaks {
    pub(crate) allocated_bytes: usize,
    pub(crate) reserved_bytes: usize,
}

impl WatchedPeaks {
    pub(crate) fn open(&mut self, counters: &mut Statistics) -> u64 {
        self.outer.get_or_insert_with(|| Box::new(*counters));
        self.fold(counters);
        let allocated_bytes = counters.allocated.current_bytes;
        let reserved_bytes = counters.reserved.current_bytes;
        self.last_id += 1;
        self.open.insert(self.last_id, Peaks { allocated_bytes, reserved_bytes });
        self.last_id
    }

    /// Adds the peaks since the last fold to all watches and to the statistics. The counters then
    /// begin again.
    pub(crate) fn fold(&mut self, counters: &mut Statistics) {
        for peaks in self.open.values_mut() {
            peaks.allocated_bytes = peaks.allocated_bytes.max(counters.allocated.peak_bytes);
            peaks.reserved_bytes = peaks.reserved_bytes.max(counters.reserved.peak_bytes);
        }
        if let Some(outer) = &mut self.outer {
            outer.raise_peaks_to(counters);
            counters.reset_peaks();
        }
    }

    pub(crate) fn of(&self, id: u64) -> Peaks {
        self.open[&id]
    }

    pub(crate) fn close(&mut self, id: u64, counters: &mut Statistics) {
        self.fold(counters);
        self.open.remove(&id);
        if self.open.is_empty()
            && let Some(outer) = self.outer.take()
        {
            counters.raise_peaks_to(&outer);
        }
    }

    /// The counters with the peaks from before the last fold.
    pub(crate) fn whole(&self, counters: &Statistics) -> Statistics {
        let mut whole = *counters;
        if let Some(outer) = &self.outer {
            whole.raise_peaks_to(outer);
        }
        whole
    }

    /// Sets the peaks of the statistics to the current values; peaks of watches stay.
    pub(crate) fn reset_peaks(&mut self, counters: &mut Statistics) {
        self.fold(counters);
        counters.reset_peaks();
        if let Some(outer) = &mut self.outer {
            **outer = *counters;
        }
    }
}
