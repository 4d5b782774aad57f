//! The memory timeline of the first steps, from the allocator's history.

use lowtide_allocator::{Action, ByCategory, Category, ModuleShare, Record};
use lowtide_tensor::Device;

use crate::error::Result;
use crate::observer::{Flow, Observer, RunStart, StepReport, Training};
use crate::report::MemoryTimeline;

/// Steps shown: the first, in which optimizer state appears, and one like all that follow.
const STEPS_SHOWN: u64 = 2;

/// Collects the memory timeline of the first two steps.
pub struct Timeline {
    device: Device,
    /// Live bytes before the first of `records`.
    start: ByCategory<u64>,
    reserved_at_start: u64,
    /// Allocator events before the first step, auxiliary ones included.
    first_event: u64,
    /// The number of the first of `records` in a recording of this moment.
    first_number: u64,
    /// Allocator events before each phase.
    phases: Vec<(u64, String)>,
    records: Vec<Record>,
    /// At the fullest of `records`.
    modules: Vec<ModuleShare>,
    steps_seen: u64,
}

impl Timeline {
    /// An observer of `device`.
    pub fn new(device: &Device) -> Self {
        Timeline {
            device: device.clone(),
            start: ByCategory::from_fn(|_| 0),
            reserved_at_start: 0,
            first_event: 0,
            first_number: 0,
            phases: Vec::new(),
            records: Vec::new(),
            modules: Vec::new(),
            steps_seen: 0,
        }
    }

    fn collect(&mut self) {
        let capture = self.device.allocator().capture();
        let history = capture.history();
        let is_event = |record: &&Record| !is_auxiliary(record.action);
        let events: Vec<Record> = history.records().iter().filter(is_event).copied().collect();
        let before = events.partition_point(|record| record.sequence < self.first_event);
        self.first_number = before as u64;
        self.records = events[before..].to_vec();
        // Back from now: the ring may have overwritten the oldest records of very long steps.
        let statistics = capture.statistics();
        self.start =
            ByCategory::from_fn(|category| statistics.by_category[category].current_bytes as u64);
        self.reserved_at_start = statistics.reserved.current_bytes as u64;
        for record in &self.records {
            let (live, reserved) = changes(record);
            self.start[record.category] = plus(self.start[record.category], -live);
            self.reserved_at_start = plus(self.reserved_at_start, -reserved);
        }
        self.modules = capture.modules_at_peak(self.first_event);
    }

    /// The timeline so far, for the report.
    pub fn to_memory_timeline(&self) -> MemoryTimeline {
        let statistics = self.device.allocator().statistics();
        let (mut live, mut reserved) = (self.start, self.reserved_at_start);
        let mut timeline = MemoryTimeline {
            categories: Category::ALL.iter().map(|category| category.to_string()).collect(),
            budget_bytes: Some(statistics.capacity_bytes as u64),
            peak_bytes: statistics.reserved.peak_bytes as u64,
            modules: self.modules.iter().map(|share| (share.name(), share.bytes)).collect(),
            caption: format!("the first {} of the run", steps(self.steps_seen)),
            first_event: self.first_number,
            ..Default::default()
        };
        for record in &self.records {
            let (live_change, reserved_change) = changes(record);
            live[record.category] = plus(live[record.category], live_change);
            reserved = plus(reserved, reserved_change);
            timeline.events.push(Category::ALL.iter().map(|&category| live[category]).collect());
            timeline.reserved.push(reserved);
        }
        let index = |event| self.records.partition_point(|record| record.sequence < event);
        timeline.phases =
            self.phases.iter().map(|(event, name)| (index(*event), name.clone())).collect();
        timeline
    }
}

/// By how many bytes an event changes what is live in its category, and what is reserved.
fn changes(record: &Record) -> (i64, i64) {
    let size = record.size_bytes as i64;
    match record.action {
        Action::Allocate => (size, 0),
        Action::Free => (-size, 0),
        Action::Commit => (0, size),
        Action::Decommit => (0, -size),
        Action::Charge => (size, size),
        Action::Discharge => (-size, -size),
        Action::Piece | Action::Map | Action::Unmap | Action::Wait | Action::OutOfMemory => (0, 0),
    }
}

/// Whether a record belongs to another one, so that recordings do not count it as an event.
fn is_auxiliary(action: Action) -> bool {
    matches!(action, Action::Piece | Action::Map | Action::Unmap | Action::Wait)
}

/// Wraps on the way back to the start, where the order of the changes is not that of time.
fn plus(bytes: u64, change: i64) -> u64 {
    bytes.wrapping_add_signed(change)
}

fn steps(count: u64) -> String {
    if count == 1 { "step".to_owned() } else { format!("{count} steps") }
}

impl Observer for Timeline {
    fn on_start(&mut self, _: &RunStart, _: &mut dyn Training) -> Result<()> {
        self.first_event = self.device.allocator().event_count();
        Ok(())
    }

    fn on_phase(&mut self, step: u64, phase: &'static str) {
        if step <= STEPS_SHOWN {
            self.phases.push((self.device.allocator().event_count(), phase.to_owned()));
        }
    }

    fn on_step(&mut self, report: &StepReport, _: &mut dyn Training) -> Result<Flow> {
        if report.step <= STEPS_SHOWN {
            self.steps_seen = report.step;
            self.collect();
        }
        Ok(Flow::Continue)
    }
}
