//! Every allocation of a step fails, once or for ever.

use std::cell::RefCell;
use std::time::Duration;

use lowtide_allocator::{Fault, Repeat};
use lowtide_trainer::{Observer, Options, Recovery, Result, StepReport, Training};

use crate::common::{Outcome, Run, values, versions};

/// Records the number of requests after each step; at step 0, the number before the first step.
fn count_requests(run: &Run, budget_bytes: Option<usize>) -> (Outcome, Vec<u64>, u64) {
    let counts = RefCell::new(Vec::new());
    let device = run.device(budget_bytes);
    let mut trainer = run.trainer(&device);
    let outcome = run
        .fit_trainer(&device, &mut trainer, |device, _| {
            counts.borrow_mut().push(device.allocator().request_count());
        })
        .expect("an undisturbed run");
    (outcome, counts.into_inner(), device.allocator().request_count())
}

fn fit_with_fault(run: &Run, budget_bytes: Option<usize>, after_step: u64, nth: u64) -> Outcome {
    run.fit_with(budget_bytes, Options::default(), |device, step| {
        if step == after_step {
            device.allocator().inject_fault(Fault { nth, repeat: Repeat::Once });
        }
    })
}

/// The budgets for a batch in one part and for a batch in three.
fn budgets(run: &Run) -> [(Option<usize>, usize); 2] {
    [(None, run.batch_size), (Some(run.budget_for(32)), 32)]
}

#[test]
fn step_survives_the_failure_of_any_of_its_allocations_and_is_the_same() {
    let run = Run::default();
    for (budget_bytes, micro_batch) in budgets(&run) {
        let (calm, counts, _) = count_requests(&run, budget_bytes);
        assert_eq!(calm.plan.knobs.micro_batch, micro_batch);
        for step in 1..=2 {
            let requests = counts[step] - counts[step - 1];
            assert!(requests > 10, "{requests} allocations are no step");
            for nth in 1..=requests {
                let place = format!("allocation {nth} of {requests} of step {step}");
                let stormy = fit_with_fault(&run, budget_bytes, step as u64 - 1, nth);
                assert_eq!(stormy.state_hash, calm.state_hash, "{place}");
                assert_eq!(stormy.layout_hash, calm.layout_hash, "{place}");
                assert_eq!(stormy.retried_steps, 1, "{place}");
                assert_eq!(stormy.micro_batch, micro_batch, "{place}");
                check_reports(&calm.reports, &stormy.reports, step as u64, &place);
                assert_eq!(stormy.score, calm.score, "{place}");
                assert_eq!(stormy.measured_peak_bytes, calm.measured_peak_bytes, "{place}");
            }
        }
    }
}

/// Checks that only step `retried` was tried twice, and that every loss has the same bits.
fn check_reports(calm: &[StepReport], stormy: &[StepReport], retried: u64, place: &str) {
    assert_eq!(calm.len(), stormy.len(), "{place}");
    for (a, b) in calm.iter().zip(stormy) {
        assert_eq!(a.loss.to_bits(), b.loss.to_bits(), "{place}");
        let recoveries: Vec<_> = b.retries.iter().map(|retry| retry.recovery).collect();
        let expected: &[_] = if b.step == retried { &[Recovery::SamePlan] } else { &[] };
        assert_eq!(recoveries, expected, "{place}");
        for retry in &b.retries {
            assert!(retry.failure.injected, "{:?}", retry.failure);
            let line = retry.failure.to_string();
            assert!(line.contains("out of memory (injected)") && !line.contains('\n'), "{line}");
        }
    }
}

#[test]
fn evaluation_survives_the_failure_of_any_of_its_allocations_and_is_the_same() {
    let run = Run::default();
    for (budget_bytes, _) in budgets(&run) {
        let (calm, counts, count_at_end) = count_requests(&run, budget_bytes);
        let requests = count_at_end - counts[2];
        assert!(requests > 5, "{requests} allocations are no evaluation");
        for nth in 1..=requests {
            let stormy = fit_with_fault(&run, budget_bytes, 2, nth);
            assert_eq!(stormy.state_hash, calm.state_hash, "allocation {nth}");
            assert_eq!(stormy.score, calm.score, "allocation {nth}");
            assert_eq!(stormy.retried_steps, 0, "allocation {nth}");
            assert_eq!(stormy.layout_hash, calm.layout_hash, "allocation {nth}");
        }
    }
}

#[test]
fn failure_after_the_last_allocation_never_comes() {
    let run = Run::default();
    let (calm, counts, count_at_end) = count_requests(&run, None);
    let stormy = fit_with_fault(&run, None, 0, count_at_end - counts[0] + 1);
    assert_eq!(stormy.state_hash, calm.state_hash);
    assert_eq!(stormy.retried_steps, 0);
}

#[test]
fn memory_that_never_comes_back_ends_the_run_at_the_last_committed_step() {
    let run = Run::default();
    for (budget_bytes, _) in budgets(&run) {
        let (_, counts, _) = count_requests(&run, budget_bytes);
        for step in 1..=2 {
            for nth in 1..=counts[step] - counts[step - 1] {
                check_forever(&run, budget_bytes, step, nth);
            }
        }
    }
}

fn check_forever(run: &Run, budget_bytes: Option<usize>, step: usize, nth: u64) {
    let device = run.device(budget_bytes);
    let mut trainer = run.trainer(&device);
    let (train, test) = run.loaders();
    trainer.plan(&train, &test, 1).expect("fits");
    let mut batches = train.epoch(0).map(|batch| batch.expect("readable"));
    for batch in batches.by_ref().take(step - 1) {
        trainer.step(&batch).expect("undisturbed");
    }
    let state_hash = trainer.state_hash().expect("cpu");
    let blocks = device.allocator().live_blocks();
    let written = versions(trainer.task_mut());
    trainer.set_wait(Some(Duration::ZERO));
    device.allocator().inject_fault(Fault { nth, repeat: Repeat::Forever });

    let error = trainer.step(&batches.next().expect("two batches")).expect_err("no memory");
    let place = format!("allocation {nth} of step {step}");
    assert!(error.out_of_memory().is_some_and(|ledger| ledger.injected), "{place}: {error}");
    assert_eq!(trainer.state_hash().expect("cpu"), state_hash, "{place}");
    assert_eq!(device.allocator().live_blocks(), blocks, "{place}");
    assert_eq!(versions(trainer.task_mut()), written, "{place}");
    assert_eq!((trainer.steps(), trainer.retried_steps()), (step as u64 - 1, 0), "{place}");
    device.allocator().check_invariants();
}

#[test]
fn run_goes_on_where_it_was_once_memory_is_back() {
    let run = Run::default();
    let device = run.device(None);
    let mut trainer = run.trainer(&device);
    let (train, test) = run.loaders();
    trainer.plan(&train, &test, 1).expect("fits");
    let calm = run.fit(None);
    let mut batches = train.epoch(0).map(|batch| batch.expect("readable"));
    trainer.step(&batches.next().expect("two")).expect("undisturbed");
    let batch = batches.next().expect("two");
    trainer.set_wait(Some(Duration::ZERO));
    device.allocator().inject_fault(Fault { nth: 5, repeat: Repeat::Forever });
    trainer.step(&batch).expect_err("no memory");
    device.allocator().clear_fault();
    let report = trainer.step(&batch).expect("memory is back");
    assert_eq!(report.step, 2);
    // The recovery made the parts smaller before it gave up, and the plan's size must be restored.
    assert_eq!(report.micro_batch, 96);
    assert_eq!(trainer.state_hash().expect("cpu"), calm.state_hash);
}

#[test]
fn evaluation_without_memory_is_an_error_that_changes_nothing() {
    struct Cut<'a>(&'a lowtide_tensor::Device, u64);
    impl Observer for Cut<'_> {
        fn on_step(
            &mut self,
            report: &StepReport,
            _: &mut dyn Training,
        ) -> Result<lowtide_trainer::Flow> {
            if report.step == 2 {
                let fault = Fault { nth: self.1, repeat: Repeat::Forever };
                self.0.allocator().inject_fault(fault);
            }
            Ok(lowtide_trainer::Flow::Continue)
        }
    }
    let run = Run::default();
    let (calm, counts, count_at_end) = count_requests(&run, None);
    for nth in 1..=count_at_end - counts[2] {
        let device = run.device(None);
        let mut trainer = run.trainer(&device);
        let (train, test) = run.loaders();
        trainer.set_wait(Some(Duration::ZERO));
        let mut cut = Cut(&device, nth);
        let error = trainer.fit(&train, &test, 1, &mut [&mut cut]).expect_err("no memory");
        assert!(error.out_of_memory().is_some_and(|ledger| ledger.injected), "{error}");
        assert_eq!(trainer.state_hash().expect("cpu"), calm.state_hash, "allocation {nth}");
        assert_eq!(device.allocator().layout_hash(), calm.layout_hash, "allocation {nth}");
        assert!(values(trainer.task_mut()).iter().all(|value| value.is_finite()));
    }
}
