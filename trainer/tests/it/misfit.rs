//! A training that does not fit is reported before the first step, with the exact number of missing
//! bytes.

use lowtide_nn::models::{SimpleCnn, SimpleCnnShape};
use lowtide_nn::optim::Stateful;
use lowtide_tensor::{Device, RandomKey};
use lowtide_trainer::{Classification, MicroBatches, Options, Remedy, Trainer};

use crate::common::{Cnn, KINDS, Kind, Run, does_not_fit, first_batch, labelled};

#[test]
fn missing_bytes_are_exactly_what_is_missing() {
    for kind in KINDS {
        let run = Run { kind, ..Run::default() };
        let least_bytes = does_not_fit(run.plan(Some(0))).needed_bytes;
        for budget_bytes in [0, 1, least_bytes / 2, least_bytes - 1] {
            let error = does_not_fit(run.plan(Some(budget_bytes)));
            assert_eq!(error.budget_bytes, budget_bytes);
            let enough_bytes = budget_bytes + error.missing_bytes();
            let plan = run.plan(Some(enough_bytes)).expect("that is what was missing");
            assert_eq!(plan.knobs.micro_batch, error.knobs.micro_batch);
            does_not_fit(run.plan(Some(enough_bytes - 1)));
        }
    }
}

/// A layer with many outputs: a second micro-batch of a batch of two needs a second set of
/// gradients.
fn many_outputs(device: &Device) -> Trainer<Cnn, Box<dyn Stateful>> {
    let shape = SimpleCnnShape { image: [1, 8, 8], channels: 64, classes: 500 };
    let model = SimpleCnn::new(device, RandomKey::new(0), shape).expect("memory");
    let task = Classification::new(model);
    Trainer::new(device, task, Kind::Plain.build(0.1), Options::default())
}

#[test]
fn least_memory_may_be_with_whole_batches() {
    let data = labelled(&[0; 4], 2);
    let plan = |budget_bytes: usize| {
        let device = Run::default().device(None);
        let mut trainer = many_outputs(&device);
        device.allocator().set_capacity(budget_bytes);
        trainer.plan(&data, &data, 1)
    };
    let error = does_not_fit(plan(0));
    assert_eq!(error.knobs.micro_batch, 2);
    let whole = plan(error.needed_bytes).expect("that is what was missing");
    assert_eq!((whole.knobs.micro_batch, whole.predicted_peak_bytes()), (2, error.needed_bytes));
    does_not_fit(plan(error.needed_bytes - 1));
}

#[test]
fn least_memory_in_mid_run_may_be_with_whole_batches() {
    let batch = first_batch(&labelled(&[0; 2], 2));
    let device = Run::default().device(None);
    let mut trainer = many_outputs(&device);
    trainer.step(&batch).expect("memory");
    device.allocator().set_capacity(1000);
    let error = does_not_fit(trainer.step(&batch));
    assert_eq!((error.knobs.micro_batch, error.step), (2, Some(2)));
    device.allocator().set_capacity(error.needed_bytes - 1);
    does_not_fit(trainer.step(&batch));
    device.allocator().set_capacity(error.needed_bytes);
    assert_eq!(trainer.step(&batch).expect("that is what was missing").micro_batch, 2);
}

#[test]
fn nothing_is_allocated_or_written_when_nothing_fits() {
    let run = Run::default();
    let device = run.device(Some(does_not_fit(run.plan(Some(0))).needed_bytes - 1));
    let mut trainer = run.trainer(&device);
    let (train, test) = run.loaders();
    let (hash, requests) = (trainer.state_hash().expect("cpu"), device.allocator().request_count());
    let error = does_not_fit(trainer.fit(&train, &test, 1, &mut []));
    assert_eq!(error.step, None);
    assert_eq!(trainer.steps(), 0);
    assert_eq!(trainer.state_hash().expect("cpu"), hash);
    assert_eq!(device.allocator().request_count(), requests);
}

#[test]
fn cheapest_knob_is_the_first_that_helps() {
    let run = Run { channels: 128, ..Run::default() };
    let least_bytes = does_not_fit(run.plan(Some(0))).needed_bytes;
    let stateless_bytes = does_not_fit(Run { kind: Kind::Plain, ..run }.plan(Some(0))).needed_bytes;
    assert!(stateless_bytes < least_bytes);

    let error = does_not_fit(run.plan(Some(least_bytes - 1)));
    let stateless = Remedy::StatelessOptimizer { needed_bytes: stateless_bytes };
    let [Remedy::Budget(budget), Remedy::EightBitStates { needed_bytes }, other] =
        &error.remedies[..]
    else {
        panic!("{:?}", error.remedies);
    };
    assert_eq!((*budget, other), (least_bytes, &stateless));
    assert!((stateless_bytes..least_bytes).contains(needed_bytes), "{:?}", error.remedies);
    let error = does_not_fit(run.plan(Some(stateless_bytes - 1)));
    assert_eq!(error.remedies, [Remedy::Budget(least_bytes)], "the other optimizer would not help");
}

#[test]
fn whoever_forbids_parts_is_told_of_parts_that_would_fit() {
    let run = Run { channels: 32, ..Run::default() };
    let whole_bytes = run.plan(None).expect("fits").predicted_peak_bytes();
    let parts = run.plan(Some(whole_bytes - 1)).expect("halves fit");
    let device = run.device(Some(whole_bytes - 1));
    let (train, test) = run.loaders();
    let options = Options { micro_batches: MicroBatches::Never, ..Options::default() };
    let error = does_not_fit(run.trainer_with(&device, options).plan(&train, &test, 1));
    assert_eq!(error.knobs.micro_batch, 96);
    assert_eq!(error.missing_bytes(), 1);
    assert_eq!(
        error.remedies[..2],
        [Remedy::MicroBatch(parts.knobs.micro_batch), Remedy::Budget(whole_bytes)]
    );
}

#[test]
fn message_is_one_line_with_the_missing_bytes_and_the_cheapest_knob() {
    let run = Run::default();
    let error = does_not_fit(run.plan(Some(100_000)));
    let text = error.to_string();
    assert!(!text.contains('\n'), "{text}");
    assert!(text.contains(&format!("{} bytes more", error.missing_bytes())), "{text}");
    assert!(text.contains(&format!("cheapest: --budget {}B", error.needed_bytes)), "{text}");
}

#[test]
fn data_without_a_batch_is_an_error_that_says_why() {
    let run = Run::default();
    let (train, test) = run.loaders();
    let fit = |train: &_, test: &_| {
        let device = run.device(None);
        let error = run.trainer(&device).fit(train, test, 1, &mut []).expect_err("no batch");
        error.to_string()
    };
    let empty = labelled(&[], 2);
    assert_eq!(fit(&empty, &test), "training data: there is no sample");
    assert_eq!(fit(&train, &empty), "test data: there is no sample");
    let (short, _) = Run { train_len: 95, drop_last: true, ..run }.loaders();
    let why = "training data: 95 samples are less than a batch of 96, and drop_last is set";
    assert_eq!(fit(&short, &test), why);
}

#[test]
fn failed_step_tells_the_allocation_that_failed_and_what_is_needed() {
    let batch = first_batch(&labelled(&[0; 2], 2));
    let device = Run::default().device(None);
    let mut trainer = many_outputs(&device);
    trainer.step(&batch).expect("memory");
    device.allocator().set_capacity(1000);
    let error = does_not_fit(trainer.step(&batch));
    let ledger = error.ledger.expect("an allocation failed");
    assert_eq!((ledger.capacity_bytes, ledger.injected), (1000, false));
    assert!(ledger.missing_bytes > 0 && !ledger.tried.is_empty(), "{ledger:?}");
    let peaks: usize = error.category_peaks.iter().map(|(_, bytes)| bytes).sum();
    assert!(peaks >= error.needed_bytes / 2, "{:?}", error.category_peaks);
}
