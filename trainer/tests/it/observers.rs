//! Calls of observers and their order, and the metrics file.

use std::path::Path;

use lowtide_data::{
    Dataset, Digits, Field, Loader, LoaderOptions, OnBadSample, SampleError, SampleSlot,
    Sequential, Subset,
};
use lowtide_nn::Schedule;
use lowtide_nn::optim::{Sgd, SgdOptions};
use lowtide_trainer::{
    EvaluationReport, Fit, Flow, Metrics, Observer, Options, Result, RunStart, StepReport,
    TrainError, Trainer, Training,
};

use crate::common::{Run, cnn, digits, labelled};

/// Records every call. Stops or fails at a given call.
#[derive(Default)]
struct Diary {
    calls: Vec<String>,
    stop_at: Option<&'static str>,
    fail_at: Option<&'static str>,
}

impl Diary {
    fn note(&mut self, call: String) -> Result<Flow> {
        let is = |place: Option<&str>| place == Some(call.as_str());
        let (fails, stops) = (is(self.fail_at), is(self.stop_at));
        self.calls.push(call);
        if fails {
            return Err(TrainError::Setting { place: "diary".into(), problem: "torn".into() });
        }
        Ok(if stops { Flow::Stop } else { Flow::Continue })
    }
}

impl Observer for Diary {
    fn on_start(&mut self, start: &RunStart, _: &mut dyn Training) -> Result<()> {
        let RunStart { step_count, epoch_count, plan, .. } = start;
        let call = format!("start {step_count} {epoch_count} {}", plan.knobs.micro_batch);
        self.note(call).map(drop)
    }

    fn on_phase(&mut self, step: u64, phase: &'static str) {
        self.calls.push(format!("{phase} {step}"));
    }

    fn on_step(&mut self, report: &StepReport, _: &mut dyn Training) -> Result<Flow> {
        self.note(format!("step {} of epoch {}", report.step, report.epoch))
    }

    fn on_evaluation(&mut self, report: &EvaluationReport, _: &mut dyn Training) -> Result<Flow> {
        self.note(format!("epoch {} after {}", report.epoch, report.step))
    }

    fn on_end(&mut self, _: &mut dyn Training) -> Result<()> {
        self.note("end".into()).map(drop)
    }
}

/// Two epochs of one full and one short batch.
fn run() -> Run {
    Run { train_len: 100, epochs: 2, ..Run::default() }
}

/// Runs with two observers. Returns their calls, the number of committed steps, and the result.
fn watch(mut first: Diary) -> (Diary, Diary, u64, Result<()>) {
    let run = run();
    let device = run.device(None);
    let (train, test) = run.loaders();
    let mut trainer = run.trainer(&device);
    let mut second = Diary::default();
    let ended = trainer.fit(&train, &test, 2, &mut [&mut first, &mut second]);
    (first, second, trainer.steps(), ended.map(drop))
}

#[test]
fn calls_come_in_the_order_of_time() {
    let (first, second, steps, ended) = watch(Diary::default());
    ended.expect("memory");
    let mut expected = vec!["start 4 2 96".to_owned()];
    for step in 1..=4 {
        let phases = ["forward", "backward", "optimizer"];
        expected.extend(phases.map(|phase| format!("{phase} {step}")));
        let epoch = (step + 1) / 2;
        expected.push(format!("step {step} of epoch {epoch}"));
        if step % 2 == 0 {
            expected.push(format!("epoch {epoch} after {step}"));
        }
    }
    expected.push("end".to_owned());
    assert_eq!(first.calls, expected);
    assert_eq!(second.calls, expected);
    assert_eq!(steps, 4);
}

#[test]
fn phases_repeat_for_every_part_and_every_attempt() {
    let run = Run { train_len: 96, ..Run::default() };
    let device = run.device(Some(run.budget_for(48)));
    let (train, test) = run.loaders();
    let mut trainer = run.trainer(&device);
    trainer.plan(&train, &test, 1).expect("fits");
    let fault = lowtide_allocator::Fault { nth: 3, repeat: lowtide_allocator::Repeat::Once };
    device.allocator().inject_fault(fault);
    let mut diary = Diary::default();
    trainer.fit(&train, &test, 1, &mut [&mut diary]).expect("recovered");
    let attempts = ["forward 1", "forward 1", "backward 1", "forward 1", "backward 1"];
    assert_eq!(diary.calls[1..6], attempts);
    assert_eq!(diary.calls[6..8], ["optimizer 1", "step 1 of epoch 1"]);
}

#[test]
fn stop_ends_the_run_in_good_order() {
    let stop_at = Some("step 3 of epoch 2");
    let (first, second, steps, ended) = watch(Diary { stop_at, ..Diary::default() });
    ended.expect("memory");
    assert_eq!(steps, 3);
    assert_eq!(first.calls[first.calls.len() - 2..], ["step 3 of epoch 2", "end"]);
    assert_eq!(second.calls, first.calls, "the others are told the step too");

    let stop_at = Some("epoch 1 after 2");
    let (first, second, steps, ended) = watch(Diary { stop_at, ..Diary::default() });
    ended.expect("memory");
    assert_eq!(steps, 2);
    assert_eq!(first.calls[first.calls.len() - 2..], ["epoch 1 after 2", "end"]);
    assert_eq!(second.calls, first.calls);
}

#[test]
fn score_of_a_stopped_run_is_that_of_the_model_it_leaves() {
    let run = run();
    let device = run.device(None);
    let (train, test) = run.loaders();
    let mut trainer = run.trainer(&device);
    let mut diary = Diary { stop_at: Some("step 3 of epoch 2"), ..Diary::default() };
    let score = trainer.fit(&train, &test, 2, &mut [&mut diary]).expect("memory");
    let expected = lowtide_trainer::evaluate(trainer.task(), &device, &test, 96).expect("memory");
    assert_eq!(score, expected);
    assert_eq!(score.count, 50.0);
}

#[test]
fn error_of_an_observer_ends_the_run_with_its_step_committed() {
    let cases = [("start 4 2 96", 0), ("step 3 of epoch 2", 3), ("epoch 1 after 2", 2), ("end", 4)];
    for (place, committed) in cases {
        let (first, _, steps, ended) = watch(Diary { fail_at: Some(place), ..Diary::default() });
        assert_eq!(ended.expect_err("the diary is torn").to_string(), "diary: torn");
        assert_eq!(steps, committed, "{place}");
        assert_eq!(first.calls.last().map(String::as_str), Some(place), "nothing came after it");
    }
}

fn lines(path: &Path) -> Vec<serde_json::Value> {
    let text = std::fs::read_to_string(path).expect("readable");
    assert!(text.ends_with('\n'));
    text.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect()
}

#[test]
fn metrics_have_a_line_for_every_step_and_epoch() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("metrics.jsonl");
    let run = run();
    let device = run.device(Some(run.budget_for(48)));
    let (train, test) = run.loaders();
    let mut trainer = run.trainer(&device);
    let mut metrics = Metrics::create(&path).expect("a folder");
    trainer.plan(&train, &test, 2).expect("fits");
    let fault = lowtide_allocator::Fault { nth: 3, repeat: lowtide_allocator::Repeat::Once };
    device.allocator().inject_fault(fault);
    let score = trainer.fit(&train, &test, 2, &mut [&mut metrics]).expect("memory");
    let lines = lines(&path);
    let kinds: Vec<_> = lines
        .iter()
        .map(|line| (line["step"].as_u64(), line["epoch"].as_u64(), line.get("loss").is_some()))
        .collect();
    let step = |step, epoch| (Some(step), Some(epoch), true);
    let epoch = |step, epoch| (Some(step), Some(epoch), false);
    assert_eq!(kinds, [step(1, 1), step(2, 1), epoch(2, 1), step(3, 2), step(4, 2), epoch(4, 2)]);
    assert_eq!(lines[5]["test_accuracy"].as_f64(), Some(score.accuracy()));
    assert_eq!(lines[5]["test_loss"].as_f64(), Some(score.loss()));
    assert_eq!(lines[0]["batch"], 96);
    assert_eq!(lines[0]["micro_batch"], 48);
    assert_eq!(lines[0]["skipped"], false);
    assert_eq!(lines[0]["retries"][0]["recovery"], "same plan");
    assert_eq!(lines[1]["retries"].as_array().map(Vec::len), Some(0));
    let peak_bytes = device.allocator().statistics().reserved.peak_bytes as u64;
    assert_eq!(lines[4]["reserved_peak_bytes"].as_u64(), Some(peak_bytes));
}

#[test]
fn metrics_appear_under_their_name_only_when_the_run_has_ended() {
    struct Looks<'a>(&'a Path, Vec<bool>);
    impl Observer for Looks<'_> {
        fn on_evaluation(&mut self, _: &EvaluationReport, _: &mut dyn Training) -> Result<Flow> {
            self.1.push(self.0.exists());
            Ok(Flow::Continue)
        }
    }
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("metrics.jsonl");
    let fit = |diary: &mut Diary| {
        let run = run();
        let (train, test) = run.loaders();
        let mut trainer = run.trainer(&run.device(None));
        let mut metrics = Metrics::create(&path).expect("a folder");
        let mut looks = Looks(&path, Vec::new());
        let ended = trainer.fit(&train, &test, 2, &mut [&mut metrics, &mut looks, diary]);
        (looks.1, ended.map(drop))
    };
    let (seen, ended) = fit(&mut Diary { fail_at: Some("epoch 2 after 4"), ..Diary::default() });
    ended.expect_err("the diary is torn");
    assert_eq!(seen, [false, false]);
    assert!(!path.exists(), "the run did not end");
    let (seen, ended) = fit(&mut Diary::default());
    ended.expect("memory");
    assert_eq!(seen, [false, false]);
    let first = std::fs::read(&path).expect("there now");

    // The file of an earlier run stays whole until the next run has ended.
    let (_, ended) = fit(&mut Diary { fail_at: Some("step 1 of epoch 1"), ..Diary::default() });
    ended.expect_err("the diary is torn");
    assert_eq!(std::fs::read(&path).expect("still there"), first);
}

#[test]
fn metrics_of_a_batch_without_targets_are_json() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("metrics.jsonl");
    let run = Run::default();
    let device = run.device(None);
    let task = cnn(&device, 4, 0);
    let optimizer = crate::common::Kind::Plain.build(0.1);
    let mut trainer = lowtide_trainer::Trainer::new(&device, task, optimizer, Default::default());
    let mut metrics = Metrics::create(&path).expect("a folder");
    let (blank, test) = (labelled(&[-100; 4], 2), labelled(&[-100; 2], 2));
    trainer.fit(&blank, &test, 1, &mut [&mut metrics]).expect("memory");
    let lines = lines(&path);
    assert_eq!(lines.len(), 3);
    assert!(lines[0]["loss"].is_null() && lines[2]["test_accuracy"].is_null());
}

#[test]
fn report_of_a_step_has_the_learning_rate_that_it_was_made_with() {
    let run = Run::default();
    let device = run.device(None);
    let sgd = Sgd::new(SgdOptions::new(0.5)).expect("in range");
    let halving = sgd.with_schedule(Schedule::Step { every: 1, factor: 0.5 }).expect("in range");
    let task = cnn(&device, run.channels, run.seed);
    let mut trainer = Trainer::new(&device, task, halving, Options::default());
    let outcome = run.fit_trainer(&device, &mut trainer, |_, _| {}).expect("memory");
    let rates: Vec<f64> = outcome.reports.iter().map(|report| report.learning_rate).collect();
    assert_eq!(rates, [0.5, 0.25]);
    assert_eq!(outcome.measured_peak_bytes, outcome.plan.predicted_peak_bytes());
}

#[test]
fn samples_that_cannot_be_read_are_left_out_and_told() {
    /// The digits, some of which cannot be read.
    struct Holes(Digits);
    impl Dataset for Holes {
        fn len(&self) -> usize {
            self.0.len()
        }
        fn fields(&self) -> &[Field] {
            self.0.fields()
        }
        fn write(&self, index: usize, slot: &mut SampleSlot<'_>) -> Result<(), SampleError> {
            if [3, 70].contains(&index) {
                return Err("a hole".into());
            }
            self.0.write(index, slot)
        }
    }
    let run = Run::default();
    let holes = Subset::new(Holes(digits()), (0..96).collect::<Vec<_>>()).expect("there are 1797");
    let on_bad_sample = OnBadSample::Skip(2);
    let options = LoaderOptions { batch_size: 48, on_bad_sample, ..Default::default() };
    let holes = Loader::with_sampler(holes, Sequential, options).expect("valid options");
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("metrics.jsonl");
    let mut metrics = Metrics::create(&path).expect("room");
    let mut trainer = run.trainer(&run.device(None));
    let fit = Fit::new(&holes);
    trainer.run(&fit, &mut [&mut metrics]).expect("two may be missing");
    let lines = std::fs::read_to_string(&path).expect("metrics");
    let lines: Vec<serde_json::Value> =
        lines.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    let told: Vec<_> = lines.iter().map(|line| (&line["batch"], &line["bad_samples"])).collect();
    assert_eq!(told[0], (&47.into(), &serde_json::json!([3])));
    assert_eq!(told[1], (&47.into(), &serde_json::json!([70])));
}
