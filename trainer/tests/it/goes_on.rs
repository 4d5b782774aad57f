//! `fit` continues from the present position, with a plan for its arguments.

use lowtide_trainer::{Flow, Observer, Position, Result, StepReport, Training};

use crate::common::{KINDS, Run, labelled};

/// Three batches an epoch; the last one is short.
fn run() -> Run {
    Run { train_len: 250, epochs: 3, ..Run::default() }
}

#[test]
fn one_epoch_and_another_are_two() {
    for kind in KINDS {
        let run = Run { kind, ..run() };
        let whole = run.fit(None);
        let (train, test) = run.loaders();
        let mut trainer = run.trainer(&run.device(None));
        let mut scores = Vec::new();
        for epochs in [1, 2] {
            scores.push(trainer.fit(&train, &test, epochs, &mut []).expect("fits"));
        }
        assert_eq!(trainer.state_hash().expect("cpu"), whole.state_hash, "{kind:?}");
        assert_eq!(scores[1], whole.score);
        assert_eq!(trainer.position(), Position { step: 9, epoch: 3, batch: 0 });
    }
}

/// Stops after a step, and records the numbers of epochs.
struct Stop {
    after: u64,
    epochs: Vec<u64>,
}

impl Observer for Stop {
    fn on_step(&mut self, report: &StepReport, _: &mut dyn Training) -> Result<Flow> {
        self.epochs.push(report.epoch);
        Ok(if report.step == self.after { Flow::Stop } else { Flow::Continue })
    }
}

#[test]
fn run_that_was_stopped_anywhere_goes_on_to_the_same_bits() {
    let run = run();
    let whole = run.fit(None);
    for after in 1..=9 {
        let (train, test) = run.loaders();
        let mut trainer = run.trainer(&run.device(None));
        let mut stop = Stop { after, epochs: Vec::new() };
        trainer.fit(&train, &test, 3, &mut [&mut stop]).expect("fits");
        let Position { step, epoch, batch } = trainer.position();
        assert_eq!((step, epoch * 3 + batch as u64), (after, after));
        assert_eq!(epoch, after / 3, "an epoch ends with its last step");
        if epoch < 3 {
            trainer.fit(&train, &test, 3 - epoch, &mut [&mut stop]).expect("fits");
        }
        assert_eq!(trainer.state_hash().expect("cpu"), whole.state_hash, "after {after}");
        assert_eq!(stop.epochs, [1, 1, 1, 2, 2, 2, 3, 3, 3], "after {after}");
    }
}

#[test]
fn other_data_gets_a_plan_of_its_own() {
    let run = Run::default();
    let device = run.device(None);
    let mut trainer = run.trainer(&device);
    let (train, test) = run.loaders();
    trainer.fit(&train, &test, 1, &mut []).expect("fits");
    let first = trainer.current_plan().expect("it has run").clone();
    trainer.fit(&train, &test, 1, &mut []).expect("fits");
    assert_eq!(trainer.current_plan(), Some(&first), "the same data is planned once");

    // Larger batches are not cut into the first plan's micro-batches, and do not exceed the new
    // plan's peak.
    let (large, _) = Run { batch_size: 192, ..run }.loaders();
    trainer.fit(&large, &test, 1, &mut []).expect("fits");
    let plan = trainer.current_plan().expect("it has run");
    assert_eq!((plan.batch_size, plan.knobs.micro_batch, trainer.micro_batch()), (192, 192, 192));
    let measured = device.allocator().statistics().reserved.peak_bytes;
    assert_eq!(plan.predicted_peak_bytes(), measured);

    // Less memory leads to a new plan as well.
    let least = plan.predicted_peak_bytes();
    device.allocator().set_capacity(least - 1);
    trainer.fit(&large, &test, 1, &mut []).expect("fits in parts");
    assert!(trainer.current_plan().expect("it has run").knobs.micro_batch < 192);
}

#[test]
fn single_step_on_a_larger_batch_is_planned_anew() {
    let run = Run::default();
    let mut trainer = run.trainer(&run.device(None));
    for len in [2, 8] {
        let loader = labelled(&vec![1; len], len);
        let report = trainer.step(&crate::common::first_batch(&loader)).expect("fits");
        assert_eq!((report.batch, report.micro_batch), (len, len));
    }
}
