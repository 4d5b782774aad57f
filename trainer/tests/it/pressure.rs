//! Memory that is taken away and given back during a run.

use lowtide_trainer::{Options, Recovery};

use crate::common::{Kind, Run, does_not_fit, reassociation};

/// Many steps: each epoch has several full batches and a short one.
fn run() -> Run {
    Run { train_len: 96 * 13, epochs: 2, ..Run::default() }
}

#[test]
fn lowered_budget_makes_the_parts_smaller_and_changes_nothing_else() {
    let run = run();
    let calm = run.fit(None);
    let lowered_bytes = calm.measured_peak_bytes / 2;
    let squeezed = run.fit_with(None, Options::default(), |device, step| {
        if step == 5 {
            device.allocator().set_capacity(lowered_bytes);
        }
        let reserved_bytes = device.allocator().statistics().reserved.current_bytes;
        assert!(step < 5 || reserved_bytes <= lowered_bytes, "{reserved_bytes} after {step}");
        if step == 6 {
            device.allocator().reset_peaks();
        }
    });
    assert_eq!(squeezed.retried_steps, 1);
    assert!(squeezed.measured_peak_bytes <= lowered_bytes, "the peak since the sixth step");
    let report = &squeezed.reports[5];
    let [retry] = &report.retries[..] else { panic!("{:?}", report.retries) };
    let Recovery::SmallerMicroBatch { micro_batch } = retry.recovery else { panic!("{retry:?}") };
    assert!(micro_batch < run.batch_size);
    for report in &squeezed.reports {
        let expected = if report.step <= 5 { run.batch_size } else { micro_batch };
        assert_eq!(report.micro_batch, expected, "step {}", report.step);
        assert_eq!(report.retries.len(), usize::from(report.step == 6), "step {}", report.step);
    }
    let (a, b) = (squeezed.losses(), calm.losses());
    assert_eq!(a[..5], b[..5]);
    for (step, (a, b)) in (1..).zip(a.iter().zip(&b)) {
        let tolerance = f64::from(step) * reassociation(run.batch_size * 64) * b.max(1.0);
        assert!((a - b).abs() <= tolerance, "step {step}: {a} {b}");
    }
}

#[test]
fn plan_found_under_pressure_is_the_one_that_a_run_starts_with_in_that_budget() {
    let run = Run { kind: Kind::Plain, ..run() };
    let lowered_bytes = run.plan(None).expect("fits").predicted_peak_bytes() / 3;
    let squeezed = run.fit_with(None, Options::default(), |device, step| {
        if step == 3 {
            device.allocator().set_capacity(lowered_bytes);
        }
    });
    let planned = run.plan(Some(lowered_bytes)).expect("fits");
    assert_eq!(squeezed.micro_batch, planned.knobs.micro_batch);
}

#[test]
fn parts_grow_back_after_eight_clean_steps_with_room() {
    let run = run();
    let capacity_bytes = 1 << 30;
    let lowered_bytes = run.plan(None).expect("fits").predicted_peak_bytes() / 2;
    let breathing =
        run.fit_with(Some(capacity_bytes), Options::default(), |device, step| match step {
            2 => device.allocator().set_capacity(lowered_bytes),
            4 => device.allocator().set_capacity(capacity_bytes),
            _ => {}
        });
    // Step 3 was retried; steps 4 to 11 are the eight clean ones.
    let sizes: Vec<usize> = breathing.reports.iter().map(|report| report.micro_batch).collect();
    let small = sizes[2];
    assert!(small < run.batch_size);
    for (step, size) in (1..).zip(sizes) {
        let expected = if (3..=11).contains(&step) { small } else { run.batch_size };
        assert_eq!(size, expected, "step {step}");
    }
    assert_eq!(breathing.retried_steps, 1);
}

#[test]
fn parts_grow_beyond_the_first_plan_where_there_is_more_room_than_at_the_start() {
    let run = run();
    let lowered_bytes = run.plan(None).expect("fits").predicted_peak_bytes() / 2;
    let growing = run.fit_with(Some(lowered_bytes), Options::default(), |device, step| {
        if step == 2 {
            device.allocator().set_capacity(1 << 30);
        }
    });
    let sizes: Vec<usize> = growing.reports.iter().map(|report| report.micro_batch).collect();
    let small = growing.plan.knobs.micro_batch;
    assert!(small < run.batch_size);
    assert_eq!(sizes[..8], [small; 8]);
    assert_eq!(sizes[8..], vec![run.batch_size; sizes.len() - 8]);
    assert_eq!(growing.retried_steps, 0);
}

#[test]
fn parts_stay_small_as_long_as_there_is_no_room() {
    // An epoch has seven steps; the last one is short and would fit at any size. Step 14 is the
    // eighth clean step after the retry.
    let run = Run { train_len: 96 * 6 + 5, epochs: 5, ..Run::default() };
    let lowered_bytes = run.plan(None).expect("fits").predicted_peak_bytes() / 2;
    let squeezed = run.fit_with(None, Options::default(), |device, step| {
        if step == 5 {
            device.allocator().set_capacity(lowered_bytes);
        }
    });
    let retried: Vec<_> =
        squeezed.reports.iter().filter(|report| !report.retries.is_empty()).collect();
    let [report] = &retried[..] else { panic!("{retried:?}") };
    assert_eq!((report.step, squeezed.reports.len()), (6, 35));
}

#[test]
fn budget_below_everything_ends_the_run_with_the_last_committed_step() {
    let run = run();
    let device = run.device(None);
    let mut trainer = run.trainer(&device);
    let mut reports = 0;
    let mut hashes = Vec::new();
    {
        let mut calm = run.trainer(&device);
        let (train, test) = run.loaders();
        calm.plan(&train, &test, 2).expect("fits");
        for batch in train.epoch(0).take(4) {
            calm.step(&batch.expect("readable")).expect("memory");
            hashes.push(calm.state_hash().expect("cpu"));
        }
    }
    let ended = run.fit_trainer(&device, &mut trainer, |device, step| {
        reports = step;
        if step == 4 {
            device.allocator().set_capacity(1000);
        }
    });
    let error = does_not_fit(ended);
    assert_eq!(error.step, Some(5));
    assert_eq!(error.budget_bytes, 1000);
    assert_eq!((reports, trainer.steps()), (4, 4));
    assert_eq!(trainer.state_hash().expect("cpu"), hashes[3]);

    // The error names the missing memory to the byte.
    let (train, _) = run.loaders();
    let batch = train.epoch(0).nth(4).expect("13 steps").expect("readable");
    device.allocator().set_capacity(error.needed_bytes - 1);
    does_not_fit(trainer.step(&batch));
    assert_eq!(trainer.state_hash().expect("cpu"), hashes[3]);
    device.allocator().set_capacity(error.needed_bytes);
    let report = trainer.step(&batch).expect("that is what was missing");
    assert_eq!((report.step, report.micro_batch), (5, error.knobs.micro_batch));
}
