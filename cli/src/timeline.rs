//! One step of a run as a recording of the allocator, with its phases and its rollbacks.

use lowtide_tensor::Device;
use lowtide_trace::timeline::{TimelineMark, TimelineNotes};
use lowtide_trace::{EventKind, Recording};
use lowtide_trainer::{
    EvaluationReport, Flow, Observer, Result, Retry, RunStart, StepReport, Training, recovery_name,
};

/// Largest number of recorded events of a step. Earlier events count as lost. A recording takes 80
/// bytes an event, and two recordings exist at once.
pub(crate) const EVENTS_MAX: u64 = 1 << 15;

/// All allocations of one step, for [`Recording::write_timeline`] and related functions.
#[derive(Clone, Debug, PartialEq)]
pub struct RecordedStep {
    /// The step, counted from 1.
    pub step: u64,
    /// Number of times that the step was rolled back and tried again.
    pub retry_count: usize,
    /// True if the step was committed; otherwise the run ended in this step.
    pub is_committed: bool,
    /// The memory before the step, and the step's events: of a long step, its last 32,768.
    pub recording: Recording,
    /// The step's phases, the reasons for its rollbacks, and the planned peak.
    pub notes: TimelineNotes,
}

/// Records the memory of the most informative step: the first step that was rolled back and
/// retried. Without such a step, the second step of the run is recorded, which is like all later
/// ones (the first creates the optimizer's state). Before the second step, the first is recorded.
///
/// Each recorded step costs a copy of the allocator's history, at most three times a run.
pub struct Timeline {
    device: Device,
    planned_peak_bytes: Option<u64>,
    /// Number of allocator events before the step.
    first_event: u64,
    /// The step in progress.
    step: u64,
    /// Number of allocator events before each phase of the step, with the phase.
    phases: Vec<(u64, &'static str)>,
    steps_seen: u64,
    recorded: Option<RecordedStep>,
}

impl Timeline {
    /// An observer of `device`.
    pub fn new(device: &Device) -> Self {
        Timeline {
            device: device.clone(),
            planned_peak_bytes: None,
            first_event: 0,
            step: 0,
            phases: Vec::new(),
            steps_seen: 0,
            recorded: None,
        }
    }

    /// The most informative step so far; `None` before the first step.
    pub fn recorded(&self) -> Option<&RecordedStep> {
        self.recorded.as_ref()
    }

    /// Returns the recorded step and ends the recording.
    pub fn into_recorded(self) -> Option<RecordedStep> {
        self.recorded
    }

    /// The step in progress, up to now, for a run that ended in it. `None` between two steps, and
    /// if no request for memory failed in the step.
    pub fn unfinished(&self) -> Option<RecordedStep> {
        let recorded = (!self.phases.is_empty()).then(|| self.record(self.step, &[]))?;
        let is_failure = |kind| matches!(kind, EventKind::OutOfMemory { .. });
        let has_failure = recorded.recording.events.iter().any(|event| is_failure(event.kind));
        has_failure.then_some(RecordedStep { is_committed: false, ..recorded })
    }

    fn record(&self, step: u64, retries: &[Retry]) -> RecordedStep {
        let allocator = self.device.allocator();
        let first_event = self.first_event.max(allocator.event_count().saturating_sub(EVENTS_MAX));
        let capture = allocator.capture();
        let mut recording = Recording::since(&capture, first_event);
        recording.lost_events += first_event - self.first_event;
        let phase = |&(event, name): &(u64, &str)| {
            (Recording::index_since(&capture, first_event, event), name.to_owned())
        };
        let notes = TimelineNotes {
            planned_peak_bytes: self.planned_peak_bytes,
            phases: self.phases.iter().map(phase).collect(),
            marks: marks(&recording, retries),
        };
        RecordedStep { step, retry_count: retries.len(), is_committed: true, recording, notes }
    }
}

/// The marks of the failed requests behind the retries.
fn marks(recording: &Recording, retries: &[Retry]) -> Vec<TimelineMark> {
    let mut events = (0..).zip(&recording.events);
    let mark = |retry: &Retry| {
        let requested_bytes = retry.failure.requested_bytes as u64;
        let (event, _) = events.by_ref().find(|(_, event)| {
            let is_failure = matches!(event.kind, EventKind::OutOfMemory { .. });
            is_failure && event.size_bytes == requested_bytes
        })?;
        let (failure, recovery) = (&retry.failure, recovery_name(retry.recovery));
        let text = format!("Rolled back, again with {recovery}: {failure}");
        Some(TimelineMark { event, label: "tried again".to_owned(), text })
    };
    retries.iter().filter_map(mark).collect()
}

impl Observer for Timeline {
    fn on_start(&mut self, start: &RunStart, _: &mut dyn Training) -> Result<()> {
        self.planned_peak_bytes = Some(start.plan.predicted_peak_bytes() as u64);
        self.first_event = self.device.allocator().event_count();
        self.phases.clear();
        Ok(())
    }

    fn on_phase(&mut self, step: u64, phase: &'static str) {
        self.step = step;
        self.phases.push((self.device.allocator().event_count(), phase));
    }

    fn on_step(&mut self, report: &StepReport, _: &mut dyn Training) -> Result<Flow> {
        self.steps_seen += 1;
        let has_retry = self.recorded.as_ref().is_some_and(|step| step.retry_count > 0);
        if !has_retry && (self.steps_seen <= 2 || !report.retries.is_empty()) {
            self.recorded = Some(self.record(report.step, &report.retries));
        }
        self.phases.clear();
        self.first_event = self.device.allocator().event_count();
        Ok(Flow::Continue)
    }

    fn on_evaluation(&mut self, _: &EvaluationReport, _: &mut dyn Training) -> Result<Flow> {
        // The evaluation is not a part of a step.
        self.first_event = self.device.allocator().event_count();
        Ok(Flow::Continue)
    }
}
