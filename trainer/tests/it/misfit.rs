//! Nothing fits: said before the first step, with the exact number of missing bytes.

use lowtide_trainer::{Knob, MicroBatches, Options};

use crate::common::{KINDS, Kind, Run, does_not_fit};

#[test]
fn missing_bytes_are_exactly_what_is_missing() {
    for kind in KINDS {
        let run = Run { kind, ..Run::default() };
        for budget_bytes in [0, 1, 100_000, 200_001] {
            let error = does_not_fit(run.plan(Some(budget_bytes)));
            assert_eq!(error.budget_bytes, budget_bytes);
            let enough_bytes = budget_bytes + error.missing_bytes();
            assert_eq!(enough_bytes, error.needed_bytes);
            let plan = run.plan(Some(enough_bytes)).expect("that is what was missing");
            assert_eq!(plan.micro_batch, error.micro_batch);
            does_not_fit(run.plan(Some(enough_bytes - 1)));
        }
    }
}

#[test]
fn least_memory_may_be_with_whole_batches() {
    // Two samples in a wide network: a second part would need a second set of gradients.
    let run = Run { channels: 2048, batch_size: 2, train_len: 4, test_len: 2, ..Run::default() };
    let needed_bytes = does_not_fit(run.plan(Some(0))).needed_bytes;
    let plan = run.plan(Some(needed_bytes)).expect("that is what was missing");
    assert_eq!(plan.predicted_peak_bytes(), needed_bytes);
    assert_eq!(plan.micro_batch, 2);
    does_not_fit(run.plan(Some(needed_bytes - 1)));
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
    let stateless = Knob::StatelessOptimizer { needed_bytes: stateless_bytes };
    assert_eq!(error.knobs, [Knob::Budget(least_bytes), stateless]);
    let error = does_not_fit(run.plan(Some(stateless_bytes - 1)));
    assert_eq!(error.knobs, [Knob::Budget(least_bytes)], "the other optimizer would not help");
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
    assert_eq!(error.micro_batch, 96);
    assert_eq!(error.missing_bytes(), 1);
    assert_eq!(error.knobs[..2], [Knob::MicroBatch(parts.micro_batch), Knob::Budget(whole_bytes)]);
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
