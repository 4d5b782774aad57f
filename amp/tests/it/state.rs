//! Options and saved states: invalid ones are refused, and a loaded scaler continues the saved one.

use lowtide_amp::{AmpError, LossScaler, LossScalerOptions, LossScalerState};

use crate::iterate;

const STATE: LossScalerState = LossScalerState {
    scale: 12.0,
    growth_factor: 3.0,
    backoff_factor: 0.25,
    growth_interval: 5,
    growth_tracker: 4,
    skips_max: 50,
    skipped_in_a_row: 0,
};

#[test]
fn saved_scaler_continues_where_it_was() {
    let mut scaler = LossScaler::from_state(STATE).unwrap();
    assert_eq!(scaler.state(), Some(STATE));
    iterate(&mut scaler, false).unwrap();
    assert_eq!((scaler.scale(), scaler.growth_tracker()), (36.0, 0));
}

#[test]
fn state_is_written_under_the_names_of_pytorch() {
    let json = serde_json::to_value(STATE).unwrap();
    let expected = serde_json::json!({
        "scale": 12.0, "growth_factor": 3.0, "backoff_factor": 0.25,
        "growth_interval": 5, "growth_tracker": 4,
    });
    assert_eq!(json, expected);
    // Fields that PyTorch does not have are written only if they differ from their defaults.
    let state = LossScalerState { skips_max: 7, skipped_in_a_row: 2, ..STATE };
    let json = serde_json::to_value(state).unwrap();
    assert_eq!((&json["skips_max"], &json["skipped_in_a_row"]), (&7.into(), &2.into()));
    assert_eq!(serde_json::from_value::<LossScalerState>(json).unwrap(), state);
}

#[test]
fn what_pytorch_saved_can_be_read() {
    let text = r#"{"scale": 12.0, "growth_factor": 3.0, "backoff_factor": 0.25,
        "growth_interval": 5, "_growth_tracker": 4}"#;
    assert_eq!(serde_json::from_str::<LossScalerState>(text).unwrap(), STATE);
}

#[test]
fn empty_state_is_refused() {
    assert!(serde_json::from_str::<LossScalerState>("{}").is_err());
}

#[test]
fn states_that_no_scaler_can_have_are_refused() {
    let refused = |state| LossScaler::from_state(state).unwrap_err();
    for scale in [f32::INFINITY, -1.0] {
        assert_eq!(refused(LossScalerState { scale, ..STATE }), AmpError::Scale { scale });
    }
    assert!(matches!(
        refused(LossScalerState { scale: f32::NAN, ..STATE }),
        AmpError::Scale { .. }
    ));
    for growth_factor in [1.0, 0.5, f64::INFINITY] {
        let error = refused(LossScalerState { growth_factor, ..STATE });
        assert_eq!(error, AmpError::GrowthFactor { growth_factor });
    }
    for backoff_factor in [1.0, 2.0, 0.0, -0.5] {
        let error = refused(LossScalerState { backoff_factor, ..STATE });
        assert_eq!(error, AmpError::BackoffFactor { backoff_factor });
    }
    let error = refused(LossScalerState { growth_factor: f64::NAN, ..STATE });
    assert!(matches!(error, AmpError::GrowthFactor { .. }));
    let error = refused(LossScalerState { growth_interval: 0, growth_tracker: 0, ..STATE });
    assert_eq!(error, AmpError::GrowthInterval);
    let error = refused(LossScalerState { growth_tracker: 5, ..STATE });
    assert_eq!(error, AmpError::GrowthTracker { growth_tracker: 5, growth_interval: 5 });
}

#[test]
fn zero_scale_may_be_reached_but_not_begun_with() {
    assert!(LossScaler::from_state(LossScalerState { scale: 0.0, ..STATE }).is_ok());
    let options = LossScalerOptions { initial_scale: 0.0, ..Default::default() };
    assert_eq!(LossScaler::new(options), Err(AmpError::Scale { scale: 0.0 }));
}

#[test]
fn errors_name_the_refused_value() {
    let options = LossScalerOptions { growth_factor: 0.75, ..Default::default() };
    let error = LossScaler::new(options).unwrap_err();
    assert_eq!(error.to_string(), "the growth factor must be finite and above 1, not 0.75");
}
