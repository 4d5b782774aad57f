//! The predicted peak equals the measured peak to the byte.

use lowtide_trainer::{Options, Trainer};

use crate::common::{KINDS, Kind, Probe, Run, cnn, does_not_fit};

#[track_caller]
fn check(run: Run, budget_bytes: Option<usize>) -> usize {
    let outcome = run.fit(budget_bytes);
    let predicted_bytes = outcome.plan.predicted_peak_bytes();
    assert_eq!(predicted_bytes, outcome.measured_peak_bytes, "{run:?} within {budget_bytes:?}");
    assert_eq!(outcome.retried_steps, 0, "{run:?} within {budget_bytes:?}");
    assert!(budget_bytes.is_none_or(|budget_bytes| predicted_bytes <= budget_bytes));
    predicted_bytes
}

/// Batch sizes that divide the data, that do not divide it, that equal it, and that exceed it.
const BATCH_SIZES: [usize; 5] = [40, 50, 64, 100, 1000];

fn check_budgets(run: Run) {
    let whole_bytes = check(run, None);
    let tightest = |bytes| match run.plan(Some(bytes)) {
        Ok(plan) => plan.predicted_peak_bytes(),
        Err(_) => whole_bytes,
    };
    // A budget between the need of the whole batch and the need of a single sample.
    let least_bytes = does_not_fit(run.plan(Some(0))).needed_bytes;
    check(run, Some(tightest((least_bytes + whole_bytes) / 2)));
    check(run, Some(least_bytes));
}

#[test]
fn predicted_peak_is_the_measured_one_for_every_batch_size_budget_optimizer_and_length() {
    for kind in KINDS {
        for epochs in [1, 3] {
            for batch_size in BATCH_SIZES {
                // So wide that the optimizer's state takes separate pages.
                let channels = 64;
                let run = Run { train_len: 100, batch_size, epochs, kind, ..Run::default() };
                check_budgets(Run { channels, ..run });
            }
        }
    }
}

#[test]
fn predicted_peak_is_the_measured_one_when_the_short_batch_is_dropped() {
    for batch_size in [40, 64, 100] {
        let run = Run { train_len: 100, batch_size, drop_last: true, ..Run::default() };
        check_budgets(run);
        check_budgets(Run { epochs: 3, ..run });
    }
}

#[test]
fn predicted_peak_is_the_measured_one_without_a_full_batch_to_train_on() {
    let run = Run { train_len: 30, batch_size: 40, ..Run::default() };
    check(run, None);
}

#[test]
fn single_step_is_planned_without_the_forward_pass_after_it() {
    // From the second step on, the optimizer's state and the activations exist at the same time.
    let run = Run { train_len: 96, channels: 128, ..Run::default() };
    let single_bytes = check(run, None);
    assert!(single_bytes < check(Run { train_len: 192, ..run }, None));
    // The second step may be in the next epoch, and a little smaller than the first.
    assert!(single_bytes < check(Run { epochs: 2, ..run }, None));
    assert!(single_bytes < check(Run { train_len: 96 + 95, ..run }, None));
}

#[test]
fn evaluation_can_be_the_peak() {
    let run = Run { train_len: 200, ..Run::default() };
    let device = run.device(None);
    let probe = Probe::new(cnn(&device, run.channels, run.seed), |_, _| Ok(()));
    let task = Probe { score_bytes: 10 << 20, ..probe };
    let mut trainer = Trainer::new(&device, task, run.kind.build(0.01), Options::default());
    let outcome = run.fit_trainer(&device, &mut trainer, |_, _| {}).expect("memory");
    assert_eq!(outcome.measured_peak_bytes, outcome.plan.predicted_peak_bytes());
    let before_bytes = outcome.reports.last().expect("three").reserved_peak_bytes;
    assert!(before_bytes < outcome.measured_peak_bytes, "training was the peak");
}

#[test]
fn budget_of_the_predicted_peak_gives_the_same_plan_and_a_byte_less_another() {
    for kind in KINDS {
        let run = Run { kind, epochs: 2, ..Run::default() };
        let mut budget_bytes = None;
        let mut plans = 0;
        loop {
            let Ok(plan) = run.plan(budget_bytes) else { break };
            let peak_bytes = plan.predicted_peak_bytes();
            let exact = run.fit(Some(peak_bytes));
            assert_eq!(exact.plan.knobs.micro_batch, plan.knobs.micro_batch, "{kind:?}");
            assert_eq!(exact.plan.forecast, plan.forecast, "{kind:?}");
            assert_eq!((exact.measured_peak_bytes, exact.retried_steps), (peak_bytes, 0));
            if let Ok(less) = run.plan(Some(peak_bytes - 1)) {
                assert_ne!(less.knobs, plan.knobs, "{kind:?}: {less} after {plan}");
                let [slow, fast] = [&less, &plan].map(|plan| plan.forecast.seconds);
                assert!(slow >= fast, "{kind:?}: {less} in {slow}, {plan} in {fast}");
                let over = |(_, bytes): &(_, usize)| *bytes >= peak_bytes;
                assert!(!less.rejected.is_empty() && less.rejected.iter().all(over));
            }
            budget_bytes = Some(peak_bytes - 1);
            plans += 1;
        }
        assert!(plans >= 4, "only {plans} plans with {kind:?}");
        does_not_fit(run.plan(budget_bytes));
    }
}

#[test]
fn second_fit_needs_no_more_than_the_plan() {
    let run = Run { kind: Kind::Adam, epochs: 2, ..Run::default() };
    let device = run.device(None);
    let (train, test) = run.loaders();
    let mut trainer = run.trainer(&device);
    let plan = trainer.plan(&train, &test, 2).expect("fits");
    for _ in 0..2 {
        trainer.fit(&train, &test, 2, &mut []).expect("fits");
        let peak_bytes = device.allocator().statistics().reserved.peak_bytes;
        assert_eq!(peak_bytes, plan.predicted_peak_bytes());
    }
}
