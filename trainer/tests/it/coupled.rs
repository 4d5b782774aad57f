//! Batches with coupled samples, and batches that the user forbids to split, are never split.

use std::time::Duration;

use lowtide_allocator::{Fault, Repeat};
use lowtide_nn::optim::{Lamb, LambOptions};
use lowtide_trainer::{Fit, MicroBatches, Options, Remedy, Trainer};

use crate::common::{Probe, Run, cnn, does_not_fit};

/// Checks the two ways to forbid splitting: by the task and by the user.
fn check_never_split(couples_samples: bool, micro_batches: MicroBatches) {
    let run = Run { train_len: 960, ..Run::default() };
    let trainer = |device| {
        let probe = Probe::new(cnn(device, run.channels, run.seed), |_, _| Ok(()));
        let task = Probe { couples_samples, ..probe };
        let options = Options { micro_batches, ..Options::default() };
        // LAMB updates all parameters together, so no plan needs less memory.
        Trainer::new(device, task, Lamb::new(LambOptions::default()).expect("in range"), options)
    };
    let (train, test) = run.loaders();
    let device = run.device(None);
    let plan = trainer(&device).plan(&train, &test, 1).expect("fits");
    assert_eq!(plan.knobs.micro_batch, run.batch_size);
    let peak_bytes = plan.predicted_peak_bytes();
    assert_eq!(
        trainer(&device)
            .survey(&Fit::new(&train).evaluate("test", &test).epochs(1), &Default::default())
            .expect("rehearsed")
            .len(),
        1
    );

    // The plan does not split.
    let device = run.device(Some(peak_bytes - 1));
    let error = does_not_fit(trainer(&device).plan(&train, &test, 1));
    assert_eq!((error.knobs.micro_batch, error.needed_bytes), (run.batch_size, peak_bytes));
    let offers_parts = matches!(error.remedies[0], Remedy::MicroBatch(_));
    assert_eq!(offers_parts, !couples_samples, "{:?}", error.knobs);
    let coupled_in = error.coupling.map(|coupling| coupling.site.file());
    assert_eq!(coupled_in.is_some_and(|file| file.ends_with("common.rs")), couples_samples);

    // The recovery does not split when memory is taken away.
    let device = run.device(Some(peak_bytes));
    let mut squeezed = trainer(&device);
    let ended = run.fit_trainer(&device, &mut squeezed, |device, step| {
        if step == 3 {
            device.allocator().set_capacity(peak_bytes / 2);
        }
    });
    let error = does_not_fit(ended);
    assert_eq!((error.step, error.knobs.micro_batch), (Some(4), run.batch_size));
    assert_eq!(squeezed.micro_batch(), run.batch_size);

    // The recovery does not split after an allocation fails that should not.
    let device = run.device(None);
    let mut failing = trainer(&device);
    failing.set_wait(Some(Duration::ZERO));
    let ended = run.fit_trainer(&device, &mut failing, |device, step| {
        if step == 3 {
            device.allocator().inject_fault(Fault { nth: 5, repeat: Repeat::Forever });
        }
    });
    let error = ended.expect_err("no memory");
    assert!(error.out_of_memory().is_some_and(|ledger| ledger.injected), "{error}");
    assert_eq!((failing.steps(), failing.micro_batch()), (3, run.batch_size));

    // A single failure is still survived.
    let device = run.device(None);
    let mut lucky = trainer(&device);
    let outcome = run.fit_trainer(&device, &mut lucky, |device, step| {
        if step == 3 {
            device.allocator().inject_fault(Fault { nth: 5, repeat: Repeat::Once });
        }
    });
    assert_eq!(outcome.expect("recovered").retried_steps, 1);
}

#[test]
fn coupled_samples_are_never_split() {
    check_never_split(true, MicroBatches::AsNeeded);
}

#[test]
fn batches_are_never_split_when_the_user_says_so() {
    check_never_split(false, MicroBatches::Never);
}
