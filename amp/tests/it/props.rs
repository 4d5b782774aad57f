//! Random programs against a naive scaler that keeps the whole history instead of a counter.

use crate::{iterate, scaler};
use lowtide_amp::{LossScaler, LossScalerState};
use proptest::prelude::*;

/// The scale after `history`, computed from the beginning of the history.
fn naive_scale(history: &[bool], start: f32, growth: f64, backoff: f64, interval: usize) -> f32 {
    let mut scale = start;
    let mut since_moved = 0;
    for (step, &found_infinite) in history.iter().enumerate() {
        let window = &history[since_moved..=step];
        if found_infinite {
            scale = (f64::from(scale) * backoff) as f32;
            since_moved = step + 1;
        } else if window.len() == interval {
            let grown = (f64::from(scale) * growth) as f32;
            scale = if grown > f32::MAX { scale } else { grown };
            since_moved = step + 1;
        }
    }
    scale
}

/// Factors with few binary digits, which survive text exactly.
fn factors() -> impl Strategy<Value = (f64, f64)> {
    (1025_u32..16_384, 1_u32..1024)
        .prop_map(|(growth, backoff)| (f64::from(growth) / 1024.0, f64::from(backoff) / 1024.0))
}

proptest! {
    #[test]
    fn scaler_equals_its_naive_twin(
        history in prop::collection::vec(prop::bool::weighted(0.2), 0..200),
        start in prop_oneof![1e-40_f32..1e-36, 1.0_f32..1e6, 1e37_f32..f32::MAX],
        (growth, backoff) in factors(),
        interval in 1_u32..6,
    ) {
        let mut scaler = scaler(start, growth, backoff, interval);
        for (step, &found_infinite) in history.iter().enumerate() {
            iterate(&mut scaler, found_infinite).unwrap();
            let expected =
                naive_scale(&history[..=step], start, growth, backoff, interval as usize);
            prop_assert_eq!(scaler.scale(), expected);
            prop_assert!(scaler.growth_tracker() < interval);
            prop_assert!(scaler.scale().is_finite());
        }
    }

    #[test]
    fn saving_anywhere_changes_nothing(
        before in prop::collection::vec(any::<bool>(), 0..20),
        after in prop::collection::vec(any::<bool>(), 0..20),
        (growth, backoff) in factors(),
        interval in 1_u32..6,
    ) {
        let mut kept = scaler(65_536.0, growth, backoff, interval);
        before.iter().for_each(|&found_infinite| iterate(&mut kept, found_infinite).unwrap());
        let text = serde_json::to_string(&kept.state().unwrap()).unwrap();
        let state: LossScalerState = serde_json::from_str(&text).unwrap();
        let mut loaded = LossScaler::from_state(state).unwrap();
        prop_assert_eq!(&loaded, &kept);
        after.iter().for_each(|&found_infinite| iterate(&mut loaded, found_infinite).unwrap());
        after.iter().for_each(|&found_infinite| iterate(&mut kept, found_infinite).unwrap());
        prop_assert_eq!(loaded, kept);
    }

    #[test]
    fn inverse_scale_is_the_quotient_rounded_once(scale in 1e-30_f32..1e30) {
        let inverse = scaler(scale, 2.0, 0.5, 1).inverse_scale();
        prop_assert_eq!(inverse, (1.0 / f64::from(scale)) as f32);
        prop_assert!((inverse * scale - 1.0).abs() <= 2.0 * f32::EPSILON);
    }
}
