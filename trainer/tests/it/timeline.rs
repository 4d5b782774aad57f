//! The memory timeline agrees with the allocator's own counters.

use lowtide_allocator::{Action, Category, Fault, Repeat};
use lowtide_tensor::{DType, Device, Tensor};
use lowtide_trainer::report::MemoryTimeline;
use lowtide_trainer::{
    Flow, Observer, Options, Result, RunStart, StepReport, Timeline, Trainer, Training,
};

use crate::common::{Kind, Probe, Run, cnn};

/// What the allocator says at each phase and at the end of each step.
struct Truth<'a> {
    device: &'a Device,
    at_phase: Vec<(Vec<u64>, u64)>,
    after_step: Vec<(Vec<u64>, u64)>,
}

impl Truth<'_> {
    fn now(&self) -> (Vec<u64>, u64) {
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

    fn on_phase(&mut self, step: u64, _: &'static str) {
        if step <= 2 {
            self.at_phase.push(self.now());
        }
    }

    fn on_step(&mut self, report: &StepReport, _: &mut dyn Training) -> Result<Flow> {
        self.after_step.push(self.now());
        Ok(if report.step == 2 { Flow::Stop } else { Flow::Continue })
    }
}

/// Checks the timeline against the allocator at every phase; returns it.
fn check(device: &Device, run: impl FnOnce(&mut [&mut dyn Observer])) -> MemoryTimeline {
    let mut timeline = Timeline::new(device);
    let mut truth = Truth { device, at_phase: Vec::new(), after_step: Vec::new() };
    run(&mut [&mut timeline, &mut truth]);
    let memory = timeline.to_memory_timeline();
    assert_eq!(memory.events.len(), memory.reserved.len());
    assert_eq!(memory.phases.len(), truth.at_phase.len());
    assert!(memory.phases.is_sorted_by_key(|(event, _)| *event));
    for ((event, phase), (live, reserved)) in memory.phases.iter().zip(&truth.at_phase) {
        // A phase begins before its first event.
        if let Some(before) = event.checked_sub(1) {
            assert_eq!(&memory.events[before], live, "{phase} at {event}");
            assert_eq!(memory.reserved[before], *reserved, "{phase} at {event}");
        }
    }
    let (live, reserved) = truth.after_step.last().expect("a step");
    assert_eq!(memory.events.last(), Some(live), "at the end of the second step");
    assert_eq!(memory.reserved.last(), Some(reserved), "at the end of the second step");
    for (live, reserved) in memory.events.iter().zip(&memory.reserved) {
        assert!(live.iter().sum::<u64>() <= *reserved, "{live:?} in {reserved}");
    }
    memory
}

fn check_run(run: &Run, budget_bytes: Option<usize>, fault: Option<u64>) -> MemoryTimeline {
    let device = run.device(budget_bytes);
    let (train, test) = run.loaders();
    let mut trainer = run.trainer(&device);
    trainer.plan(&train, &test, run.epochs).expect("fits");
    if let Some(nth) = fault {
        device.allocator().inject_fault(Fault { nth, repeat: Repeat::Once });
    }
    let memory = check(&device, |observers| {
        // The score of a stopped run is the caller's to see; its events come after the two steps.
        trainer.fit(&train, &test, run.epochs, observers).expect("memory");
    });
    let peak_bytes = memory.reserved.iter().max().copied();
    let statistics = device.allocator().statistics();
    assert_eq!(memory.peak_bytes, statistics.reserved.peak_bytes as u64);
    assert_eq!(peak_bytes, Some(memory.peak_bytes), "training is the peak here");
    assert_eq!(memory.budget_bytes, Some(statistics.capacity_bytes as u64));
    memory
}

fn names(memory: &MemoryTimeline) -> Vec<&str> {
    memory.phases.iter().map(|(_, name)| name.as_str()).collect()
}

#[test]
fn timeline_is_what_the_allocator_counts() {
    let run = Run { train_len: 288, test_len: 10, ..Run::default() };
    let memory = check_run(&run, None, None);
    let phases = ["forward", "backward", "optimizer"];
    assert_eq!(names(&memory), [phases, phases].concat());
    assert_eq!(memory.categories.len(), Category::ALL.len());
    // The optimizer's state appears in the first step and stays.
    let state = Category::ALL.iter().position(|&c| c == Category::OptimizerState).expect("one");
    assert_eq!(memory.events[0][state], 0);
    assert!(memory.events[memory.phases[3].0][state] > 0);
}

#[test]
fn timeline_counts_what_is_charged() {
    let run = Run { train_len: 288, test_len: 10, ..Run::default() };
    let device = run.device(None);
    let (train, test) = run.loaders();
    let mut trainer = run.trainer(&device);
    trainer.plan(&train, &test, 1).expect("fits");
    check(&device, |observers| {
        // What a library of the user's keeps for itself.
        let _charge = device.allocator().charge(Category::Workspace, 5_000).expect("memory");
        trainer.fit(&train, &test, 1, observers).expect("memory");
    });
    let history = device.allocator().history();
    assert!(history.records().iter().any(|record| record.action == Action::Charge));
}

#[test]
fn timeline_of_parts_has_phases_for_each() {
    let run = Run { train_len: 288, test_len: 10, ..Run::default() };
    let memory = check_run(&run, Some(run.budget_for(48)), None);
    let step = ["forward", "backward", "forward", "backward", "optimizer"];
    assert_eq!(names(&memory), [step, step].concat());
}

#[test]
fn timeline_shows_attempts_that_were_rolled_back() {
    let run = Run { train_len: 288, test_len: 10, ..Run::default() };
    let memory = check_run(&run, None, Some(4));
    assert_eq!(names(&memory)[..3], ["forward", "forward", "backward"]);
}

#[test]
fn timeline_of_steps_longer_than_the_history_shows_their_end() {
    // More events in a step than the 65,536 that the allocator remembers.
    let run = Run { train_len: 288, ..Run::default() };
    let device = run.device(None);
    let busy = Probe::new(cnn(&device, 16, 0), |_, device| {
        for _ in 0..40_000 {
            Tensor::empty(device, [1], DType::F32)?;
        }
        Ok(())
    });
    let mut trainer = Trainer::new(&device, busy, Kind::Adam.build(0.01), Options::default());
    let (train, test) = run.loaders();
    let mut timeline = Timeline::new(&device);
    let mut truth = Truth { device: &device, at_phase: Vec::new(), after_step: Vec::new() };
    trainer.fit(&train, &test, 1, &mut [&mut timeline, &mut truth]).expect("fits");
    assert!(device.allocator().history().overwritten() > 0, "nothing was forgotten");
    let memory = timeline.to_memory_timeline();
    let (live, reserved) = truth.after_step.last().expect("a step");
    assert_eq!(memory.events.last(), Some(live));
    assert_eq!(memory.reserved.last(), Some(reserved));
    assert!(memory.events.iter().zip(&memory.reserved).all(|(e, r)| e.iter().sum::<u64>() <= *r));
    // The last phases are all there.
    let (event, name) = memory.phases.last().expect("six");
    let (live, reserved) = truth.at_phase.last().expect("six");
    assert_eq!(name, "optimizer");
    assert_eq!((&memory.events[event - 1], &memory.reserved[event - 1]), (live, reserved));
}
