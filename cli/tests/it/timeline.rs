//! The recorded step agrees with the allocator's own counters.

use lowtide_allocator::{Action, Category, Fault, Repeat};
use lowtide_cli::{RecordedStep, Timeline};
use lowtide_tensor::{DType, Device, Tensor};
use lowtide_trace::{EventKind, Recording};
use lowtide_trainer::{Flow, Observer, Options, Result, RunStart, StepReport, Trainer, Training};

use crate::common::{Kind, Probe, Run, cnn};

/// Live bytes by category, charges included, and reserved bytes.
type Levels = (Vec<u64>, u64);

/// Levels that the allocator reports at each phase and at the end of each step, up to the third
/// step.
struct Truth<'a> {
    device: &'a Device,
    at_phase: Vec<(u64, &'static str, Levels)>,
    after_step: Vec<Levels>,
}

impl Truth<'_> {
    fn now(&self) -> Levels {
        let statistics = self.device.allocator().statistics();
        let live = |category| statistics.by_category[category].current_bytes as u64;
        (Category::ALL.map(live).to_vec(), statistics.reserved.current_bytes as u64)
    }
}

impl Observer for Truth<'_> {
    fn on_start(&mut self, _: &RunStart, _: &mut dyn Training) -> Result<()> {
        self.device.allocator().reset_peaks();
        Ok(())
    }

    fn on_phase(&mut self, step: u64, phase: &'static str) {
        self.at_phase.push((step, phase, self.now()));
    }

    fn on_step(&mut self, report: &StepReport, _: &mut dyn Training) -> Result<Flow> {
        self.after_step.push(self.now());
        Ok(if report.step == 3 { Flow::Stop } else { Flow::Continue })
    }
}

/// The levels after every event of a recording, preceded by the levels at its start.
fn levels(recording: &Recording) -> Vec<Levels> {
    let index = |category: Option<Category>| {
        Category::ALL.iter().position(|&c| Some(c) == category).expect("it is recorded")
    };
    let mut live = vec![0; Category::ALL.len()];
    for block in &recording.start {
        live[index(block.category)] += block.size_bytes;
    }
    for &(category, bytes) in &recording.start_charges {
        live[index(Some(category))] += bytes;
    }
    let mut reserved = recording.start_reserved_bytes;
    let mut all = vec![(live.clone(), reserved)];
    for event in &recording.events {
        let level = &mut live[index(event.category)];
        match event.kind {
            EventKind::Allocate { .. } => *level += event.size_bytes,
            EventKind::Free { .. } => *level -= event.size_bytes,
            EventKind::Reserve => reserved += event.size_bytes,
            EventKind::Release => reserved -= event.size_bytes,
            EventKind::Charge => {
                (*level, reserved) = (*level + event.size_bytes, reserved + event.size_bytes);
            }
            EventKind::Discharge => {
                (*level, reserved) = (*level - event.size_bytes, reserved - event.size_bytes);
            }
            EventKind::FreeRequested { .. } | EventKind::OutOfMemory { .. } => {}
        }
        all.push((live.clone(), reserved));
    }
    all
}

/// Checks the recorded step against the allocator at every phase. Returns the step.
fn check(device: &Device, run: impl FnOnce(&mut [&mut dyn Observer])) -> RecordedStep {
    let mut timeline = Timeline::new(device);
    let mut truth = Truth { device, at_phase: Vec::new(), after_step: Vec::new() };
    run(&mut [&mut timeline, &mut truth]);
    let recorded = timeline.into_recorded().expect("a step");
    let levels = levels(&recorded.recording);
    let expected: Vec<_> =
        truth.at_phase.iter().filter(|(step, ..)| *step == recorded.step).collect();
    assert_eq!(recorded.notes.phases.len(), expected.len());
    assert!(recorded.notes.phases.is_sorted_by_key(|(event, _)| *event));
    for ((event, phase), (_, name, at_phase)) in recorded.notes.phases.iter().zip(expected) {
        assert_eq!((phase.as_str(), &levels[*event as usize]), (*name, at_phase), "at {event}");
    }
    assert_eq!(levels.last(), truth.after_step.get(recorded.step as usize - 1), "at its end");
    if recorded.step > 1 {
        let before = &truth.after_step[recorded.step as usize - 2];
        assert_eq!(&levels[0], before, "before it");
    }
    recorded
}

fn check_run(run: &Run, budget_bytes: Option<usize>, fault: Option<u64>) -> RecordedStep {
    let device = run.device(budget_bytes);
    let (train, test) = run.loaders();
    let mut trainer = run.trainer(&device);
    let plan = trainer.plan(&train, &test, run.epochs).expect("fits");
    if let Some(nth) = fault {
        device.allocator().inject_fault(Fault { nth, repeat: Repeat::Once });
    }
    let recorded = check(&device, |observers| {
        trainer.fit(&train, &test, run.epochs, observers).expect("memory");
    });
    let peak_bytes = levels(&recorded.recording).iter().map(|(_, reserved)| *reserved).max();
    let statistics = device.allocator().statistics();
    // After a rollback the cache is empty, and a step's blocks may be placed closer together.
    if fault.is_none() {
        assert_eq!(peak_bytes, Some(statistics.reserved.peak_bytes as u64), "training is the peak");
    }
    let planned = Some(plan.predicted_peak_bytes() as u64);
    assert_eq!(recorded.notes.planned_peak_bytes, planned);
    assert_eq!(recorded.recording.capacity_bytes, statistics.capacity_bytes as u64);
    recorded
}

fn names(recorded: &RecordedStep) -> Vec<&str> {
    recorded.notes.phases.iter().map(|(_, name)| name.as_str()).collect()
}

/// Three steps.
fn run() -> Run {
    Run { train_len: 288, test_len: 10, ..Run::default() }
}

#[test]
fn second_step_is_recorded_as_the_allocator_counts_it() {
    let recorded = check_run(&run(), None, None);
    assert_eq!((recorded.step, recorded.retry_count), (2, 0));
    assert_eq!(names(&recorded), ["forward", "backward", "optimizer"]);
    assert_eq!(recorded.recording.lost_events, 0);
    let modules: Vec<&str> =
        recorded.recording.sites.iter().map(|site| site.module.as_str()).collect();
    assert!(modules.contains(&"conv") && modules.contains(&"linear"), "{modules:?}");
    // The optimizer's state exists from the start.
    let is_state = |category| category == Some(Category::OptimizerState);
    assert!(recorded.recording.start.iter().any(|block| is_state(block.category)));
}

#[test]
fn what_is_charged_counts() {
    let run = run();
    let device = run.device(None);
    let (train, test) = run.loaders();
    let mut trainer = run.trainer(&device);
    trainer.plan(&train, &test, 1).expect("fits");
    let recorded = check(&device, |observers| {
        // A charge stands for memory that a user's library keeps.
        let _charge = device.allocator().charge(Category::Workspace, 5_000).expect("memory");
        trainer.fit(&train, &test, 1, observers).expect("memory");
    });
    let history = device.allocator().history();
    assert!(history.records().iter().any(|record| record.action == Action::Charge));
    assert_eq!(recorded.recording.start_charges, [(Category::Workspace, 5_000)]);
}

#[test]
fn step_in_parts_has_phases_for_each() {
    let run = run();
    let recorded = check_run(&run, Some(run.budget_for(48)), None);
    let step = ["forward", "backward", "forward", "backward", "optimizer"];
    assert_eq!(names(&recorded), step);
}

#[test]
fn first_step_that_was_rolled_back_is_recorded_with_the_reason() {
    for (fault, step) in [(4, 1), (90, 3)] {
        let recorded = check_run(&run(), None, Some(fault));
        assert_eq!((recorded.step, recorded.retry_count), (step, 1), "allocation {fault}");
        let [mark] = &recorded.notes.marks[..] else { panic!("one mark: {:?}", recorded.notes) };
        let kind = recorded.recording.events[mark.event as usize].kind;
        assert!(matches!(kind, EventKind::OutOfMemory { .. }), "{kind:?}");
        assert!(mark.text.contains("again with same plan: out of memory (injected)"), "{mark:?}");
        let forwards = names(&recorded).iter().filter(|name| **name == "forward").count();
        assert_eq!(forwards, 2, "both attempts are there");
    }
}

#[test]
fn step_longer_than_the_history_shows_its_end() {
    // The step has more events than the 131,072 that the allocator remembers.
    let run = Run { train_len: 288, ..Run::default() };
    let device = run.device(None);
    let busy = Probe::new(cnn(&device, 16, 0), |_, device| {
        for _ in 0..70_000 {
            Tensor::empty(device, [1], DType::F32)?;
        }
        Ok(())
    });
    let mut trainer = Trainer::new(&device, busy, Kind::Adam.build(0.01), Options::default());
    let (train, test) = run.loaders();
    let mut timeline = Timeline::new(&device);
    let mut truth = Truth { device: &device, at_phase: Vec::new(), after_step: Vec::new() };
    trainer.fit(&train, &test, 1, &mut [&mut timeline, &mut truth]).expect("fits");
    let recorded = timeline.into_recorded().expect("a step");
    assert!(recorded.recording.lost_events > 0, "nothing was forgotten");
    let levels = levels(&recorded.recording);
    assert_eq!(levels.last(), truth.after_step.get(1));
    // The last phase keeps its position.
    let (event, name) = recorded.notes.phases.last().expect("three");
    let mut of_step = truth.at_phase.iter().filter(|(step, ..)| *step == recorded.step);
    let (_, _, at_phase) = of_step.next_back().expect("three");
    assert_eq!((name.as_str(), &levels[*event as usize]), ("optimizer", at_phase));
}
