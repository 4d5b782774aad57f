//! Runs by steps, with several sets, averages, built-in observers, and checkpoint copies.

use lowtide_data::Loader;
use lowtide_nn::Plateau;
use lowtide_nn::PlateauOptions;
use lowtide_nn::optim::{Adam, AdamOptions, Averaged};
use lowtide_trainer::observers::{
    CheckpointEvery, Checkpoints, EarlyStopping, Readings, ReduceOnPlateau, Watched,
};
use lowtide_trainer::{
    CheckpointFolder, EvaluationReport, Every, Fit, Flow, Observer, Options, Result, RunStart,
    TrainError, Trainer, Training, checkpoints_in, evaluate,
};

use crate::common::{KINDS, Run, cnn, labelled, values};

/// Three batches an epoch.
fn run() -> Run {
    Run { train_len: 250, ..Run::default() }
}

/// Records the evaluations of a run: epoch, step and end of epoch of each, and the names of the
/// sets.
#[derive(Default)]
struct Evaluations(Vec<(u64, u64, bool)>, Vec<String>);

impl Observer for Evaluations {
    fn on_start(&mut self, start: &RunStart, _: &mut dyn Training) -> Result<()> {
        self.1.clone_from(&start.sets);
        Ok(())
    }

    fn on_evaluation(
        &mut self,
        report: &EvaluationReport,
        training: &mut dyn Training,
    ) -> Result<Flow> {
        assert!(report.scores.iter().map(|(name, _)| name).eq(&self.1));
        assert_eq!(training.position().step, report.step);
        self.0.push((report.epoch, report.step, report.ends_epoch));
        Ok(Flow::Continue)
    }
}

#[test]
fn run_by_steps_evaluates_its_sets_as_often_as_it_is_told() {
    let (run, other) = (run(), labelled(&[1, 2, 3], 2));
    let (train, test) = run.loaders();
    let evaluations = |every: Option<Every>, steps| {
        let fit = Fit::new(&train).evaluate("test", &test).evaluate("other", &other).steps(steps);
        let fit = every.map_or(fit.clone(), |every| fit.every(every));
        let mut seen = Evaluations::default();
        let mut trainer = run.trainer(&run.device(None));
        let score = trainer.run(&fit, &mut [&mut seen]).expect("fits");
        assert_eq!(trainer.steps(), steps);
        assert_eq!(seen.1, ["test", "other"]);
        let device = trainer.device().clone();
        let part = trainer.current_plan().expect("it ran").evaluation_batch;
        let again = evaluate(trainer.task(), &device, &test, part);
        assert_eq!(score, again.expect("fits"), "the last score of the first set");
        seen.0
    };
    // Evaluations follow each epoch and the last step.
    assert_eq!(evaluations(None, 7), [(1, 3, true), (2, 6, true), (3, 7, false)]);
    let by_steps = evaluations(Some(Every::Steps(2)), 5);
    assert_eq!(by_steps, [(1, 2, false), (2, 4, false), (2, 5, false)]);
    assert_eq!(evaluations(Some(Every::Epochs(2)), 7), [(2, 6, true), (3, 7, false)]);
    assert_eq!(evaluations(Some(Every::Steps(0)), 4), [(2, 4, false)]);
}

#[test]
fn steps_of_a_run_in_pieces_are_those_of_one() {
    for kind in KINDS {
        let run = Run { kind, ..run() };
        let (train, test) = run.loaders();
        let hash = |pieces: &[u64]| {
            let mut trainer = run.trainer(&run.device(None));
            for &steps in pieces {
                let fit = Fit::new(&train).evaluate("test", &test).steps(steps);
                trainer.run(&fit, &mut []).expect("fits");
            }
            trainer.state_hash().expect("cpu")
        };
        assert_eq!(hash(&[1, 3, 2, 1]), hash(&[7]), "{kind:?}");
    }
}

/// Begins at each place of an epoch, also with steps across its end and over a short last batch.
#[test]
fn plan_of_a_few_steps_is_their_run_to_the_byte() {
    let run = run();
    let (train, test) = run.loaders();
    let folder = tempfile::tempdir().expect("a folder");
    for begin in 0..=4 {
        let path = folder.path().join(begin.to_string());
        let mut before = run.trainer(&run.device(None));
        if begin > 0 {
            before.run(&Fit::new(&train).steps(begin), &mut []).expect("fits");
        }
        before.save(&path).expect("room");
        for steps in 1..=5 {
            let mut trainer = run.trainer(&run.device(None));
            trainer.load(&path).expect("whole");
            trainer.device().allocator().reset_peaks();
            let fit = Fit::new(&train).evaluate("test", &test).steps(steps);
            let plan = trainer.plan_run(&fit, &Default::default()).expect("fits");
            assert_eq!(plan.staging_bytes, train.staging_bytes() + test.staging_bytes());
            let planned = plan.predicted_peak_bytes();
            trainer.run(&fit, &mut []).expect("fits");
            let measured = trainer.device().allocator().statistics().reserved.peak_bytes;
            assert_eq!(measured, planned, "{steps} steps after {begin}");
        }
    }
}

#[test]
fn run_of_no_step_is_refused() {
    let run = run();
    let (train, test) = run.loaders();
    for fit in [Fit::new(&train).epochs(0), Fit::new(&train).evaluate("test", &test).steps(0)] {
        let refused = run.trainer(&run.device(None)).run(&fit, &mut []);
        assert!(matches!(refused, Err(TrainError::Setting { .. })), "{refused:?}");
    }
}

#[test]
fn copy_for_checkpoints_is_in_the_plan_or_is_not_made() {
    let options = Options { background_checkpoints: true, ..Options::default() };
    let run = Run { epochs: 2, ..run() };
    let (train, test) = run.loaders();
    let planned = |budget| {
        let mut trainer = run.trainer_with(&run.device(budget), options.clone());
        trainer.plan(&train, &test, 2).expect("fits")
    };
    let plain = run.plan(None).expect("fits");
    let plan = planned(None);
    let copy_bytes = plan.checkpoint_copy_bytes;
    assert!(copy_bytes > 0 && plan.predicted_peak_bytes() > plain.predicted_peak_bytes());
    // One byte less than with the copy: the plan keeps the largest micro-batch and drops the copy.
    let tight = planned(Some(plan.predicted_peak_bytes() - 1));
    assert_eq!((tight.checkpoint_copy_bytes, tight.knobs), (0, plain.knobs));
    assert_eq!(tight.predicted_peak_bytes(), plain.predicted_peak_bytes());
    let whole = run.fit(None);
    for budget in [plan.predicted_peak_bytes(), tight.predicted_peak_bytes()] {
        let folder = tempfile::tempdir().expect("a folder");
        let device = run.device(Some(budget));
        let mut trainer = run.trainer_with(&device, options.clone());
        let expected = planned(Some(budget)).predicted_peak_bytes();
        let kept = CheckpointFolder::new(folder.path());
        let mut checkpoints = Checkpoints::new(kept, CheckpointEvery::Steps(2));
        trainer.fit(&train, &test, 2, &mut [&mut checkpoints]).expect("as planned");
        assert_eq!(device.allocator().statistics().reserved.peak_bytes, expected);
        assert_eq!(trainer.state_hash().expect("cpu"), whole.state_hash);
        let steps: Vec<u64> = checkpoints_in(folder.path())
            .expect("a folder")
            .iter()
            .map(|(step, _)| *step)
            .collect();
        assert_eq!(steps, [6, 4], "the last two");
        // Another trainer continues to the same bits.
        let mut other = run.trainer_with(&run.device(None), options.clone());
        let (_, path) = &checkpoints_in(folder.path()).expect("a folder")[1];
        other.load(path).expect("whole");
        other.fit(&train, &test, 1, &mut []).expect("fits");
        assert_eq!(other.state_hash().expect("cpu"), whole.state_hash);
    }
}

#[test]
fn averages_are_evaluated_and_the_training_does_not_notice() {
    let run = run();
    let (train, test) = run.loaders();
    let adam = || Adam::new(AdamOptions { learning_rate: 0.01, ..Default::default() });
    let trained = |device: &lowtide_tensor::Device, train: &Loader| {
        let task = cnn(device, run.channels, run.seed);
        let averaged = Averaged::new(adam().expect("in range"), 0.5).expect("in range");
        let mut trainer =
            Trainer::new(device, task, averaged, Options { seed: run.seed, ..Options::default() });
        let plan = trainer.plan(train, &test, 2).expect("fits");
        let score = trainer.fit(train, &test, 2, &mut []).expect("fits");
        let peak_bytes = device.allocator().statistics().reserved.peak_bytes;
        assert_eq!(peak_bytes, plan.predicted_peak_bytes(), "the swap is in the plan");
        (trainer, score)
    };
    let device = run.device(None);
    let (mut trainer, score) = trained(&device, &train);
    let plain = Run { epochs: 2, ..run }.fit(None);
    let parameters = values(trainer.task_mut());
    assert_ne!(score, plain.score, "it is the score of the averages");
    // The parameters are those of a training without averages.
    let raw = evaluate(trainer.task(), &device, &test, 50).expect("fits");
    assert_eq!(raw, plain.score);
    // Swapping the averages by hand gives the same score.
    let mut optimizer = trainer.optimizer().clone();
    optimizer.swap(lowtide_trainer::Task::parameters(trainer.task_mut())).expect("memory");
    let part = trainer.current_plan().expect("it ran").evaluation_batch;
    let by_hand = evaluate(trainer.task(), &device, &test, part);
    assert_eq!(by_hand.expect("fits"), score);
    optimizer.swap(lowtide_trainer::Task::parameters(trainer.task_mut())).expect("memory");
    assert_eq!(values(trainer.task_mut()), parameters);
}

#[test]
fn early_stopping_waits_as_long_as_it_is_told() {
    let run = run();
    let (train, test) = run.loaders();
    let steps = |learning_rate: f64| {
        let mut trainer = run.trainer(&run.device(None));
        trainer.optimizer_mut().set_learning_rate(learning_rate);
        let mut stop = EarlyStopping::new(Watched::new("test", "loss"), 1);
        trainer.fit(&train, &test, 6, &mut [&mut stop]).expect("fits");
        trainer.steps()
    };
    // With a rate of 0 nothing improves: the first evaluation is followed by two that are not
    // better.
    assert_eq!(steps(0.0), 9);
    assert_eq!(steps(0.01), 18, "it becomes better each time");
}

#[test]
fn plateau_lowers_the_rate_and_readings_read() {
    let run = run();
    let (train, test) = run.loaders();
    let options = Options { gradient_norm: true, ..Options::default() };
    let mut trainer = run.trainer_with(&run.device(None), options);
    trainer.optimizer_mut().set_learning_rate(1e-4);
    // Only a value below half of the best one counts as better.
    let plateau = PlateauOptions { threshold: 0.5, patience: 0, ..PlateauOptions::default() };
    let plateau = Plateau::new(plateau).expect("in range");
    let mut reduce = ReduceOnPlateau::new(Watched::new("test", "loss"), plateau);
    let mut readings = Readings::default();
    trainer.fit(&train, &test, 3, &mut [&mut reduce, &mut readings]).expect("fits");
    let learning_rate = lowtide_nn::optim::Scheduled::learning_rate(trainer.optimizer());
    assert!((learning_rate - 1e-6).abs() < 1e-12, "two evaluations of three: {learning_rate}");
    assert!(readings.samples_per_second() > 0.0);
    assert_eq!(readings.gradient_norms().len(), 9);
    assert!(readings.gradient_norms().iter().all(|norm| norm.is_finite() && *norm > 0.0));
}
