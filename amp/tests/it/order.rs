//! The stages of an iteration: a call out of order is an error that says what to do.

use lowtide_amp::{AmpError, LossScaler, LossScalerOptions, OrderFault, ScaledGradients};

use crate::{iterate, scaler};

/// Gradients that cannot be read.
struct Broken;

impl ScaledGradients for Broken {
    type Error = AmpError;

    fn unscale(&mut self, _: f32) -> Result<bool, AmpError> {
        Err(AmpError::Scale { scale: -7.0 })
    }
}

#[test]
fn errors_name_the_optimizer_and_what_came_before() {
    let mut scaler = scaler(8.0, 2.0, 0.5, 1);
    let mut dw = [1.0];
    let gradients = &mut [&mut dw[..]][..];
    scaler.unscale("critic", gradients).unwrap();
    let twice = scaler.unscale("critic", gradients).unwrap_err();
    assert_eq!(
        twice.to_string(),
        "unscale was already called for optimizer \"critic\" since the last update: its gradients \
         would be divided by the scale twice"
    );
    scaler.step("critic", gradients).unwrap();
    let late = scaler.unscale("critic", gradients).unwrap_err();
    assert_eq!(
        late.to_string(),
        "unscale is called for optimizer \"critic\" after step: call update in between"
    );
    let fault = OrderFault::SteppedTwice;
    let again = scaler.step("critic", gradients).unwrap_err();
    assert_eq!(again, AmpError::Order { optimizer: "critic".to_owned(), fault });
    scaler.update().unwrap();
    let nothing = scaler.update().unwrap_err();
    assert!(nothing.to_string().contains("call step or unscale"), "{nothing}");
    assert!(!again.to_string().contains("the optimizer"), "{again}");
    scaler.step("", gradients).unwrap();
    let unnamed = scaler.step("", gradients).unwrap_err().to_string();
    assert_eq!(unnamed, "step was already called for the optimizer since the last update");
    assert_eq!(dw, [1.0 / 8.0 / 16.0], "divided once an iteration");
}

#[test]
fn gradients_that_fail_leave_the_optimizer_ready() {
    let mut scaler = scaler(8.0, 2.0, 0.5, 1);
    let before = scaler.clone();
    assert_eq!(scaler.step("", &mut Broken), Err(AmpError::Scale { scale: -7.0 }));
    assert_eq!(scaler, before);
    iterate(&mut scaler, false).unwrap();
}

#[test]
fn row_of_skipped_steps_longer_than_allowed_is_an_error_that_changes_nothing() {
    let options = LossScalerOptions { skips_max: 3, ..Default::default() };
    let mut scaler = LossScaler::new(options).unwrap();
    for skips in [2, 3] {
        (0..skips).for_each(|_| iterate(&mut scaler, true).unwrap());
        iterate(&mut scaler, false).unwrap();
    }
    (0..3).for_each(|_| iterate(&mut scaler, true).unwrap());
    let before = (scaler.scale(), scaler.state());
    let error = iterate(&mut scaler, true).unwrap_err();
    assert_eq!(error, AmpError::TooManySkips { skipped: 4, scale: scaler.scale() });
    assert_eq!((scaler.scale(), scaler.state()), before);
    // A checkpoint taken here contains the count of skipped steps.
    let mut resumed = LossScaler::from_state(scaler.state().unwrap()).unwrap();
    assert_eq!(iterate(&mut resumed, true), Err(error));
}

#[test]
fn disabled_scaler_lets_every_call_pass_and_looks_at_nothing() {
    let mut scaler = LossScaler::disabled();
    for _ in 0..2 {
        assert_eq!(scaler.unscale("", &mut Broken), Ok(false));
        assert_eq!(scaler.step("", &mut Broken), Ok(true));
        assert_eq!((scaler.update(), scaler.update_to(3.0)), (Ok(()), Ok(())));
    }
    assert_eq!(scaler, LossScaler::disabled());
}
