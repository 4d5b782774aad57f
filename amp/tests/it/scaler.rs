//! The cases of PyTorch's `test_grad_scaling_*`, as laws of the state machine.

use crate::{scaler, unscale};
use lowtide_amp::LossScaler;

#[test]
fn default_scaler_starts_at_65536_and_moves_after_2000_clean_updates() {
    let mut scaler = LossScaler::default();
    for _ in 0..1999 {
        scaler.update(false);
        assert_eq!(scaler.scale(), 65_536.0);
    }
    assert_eq!(scaler.growth_tracker(), 1999);
    scaler.update(false);
    assert_eq!((scaler.scale(), scaler.growth_tracker()), (131_072.0, 0));
}

#[test]
fn scale_grows_after_the_interval_and_backs_off_at_once() {
    let mut scaler = scaler(4.0, 2.0, 0.25, 2);
    scaler.update(false);
    assert_eq!((scaler.scale(), scaler.growth_tracker()), (4.0, 1));
    scaler.update(false);
    assert_eq!((scaler.scale(), scaler.growth_tracker()), (8.0, 0));
    scaler.update(false);
    scaler.update(true);
    assert_eq!((scaler.scale(), scaler.growth_tracker()), (2.0, 0));
}

#[test]
fn infinity_makes_the_count_of_clean_updates_start_over() {
    let mut scaler = scaler(4.0, 2.0, 0.5, 3);
    for found_infinite in [false, false, true, false, false] {
        scaler.update(found_infinite);
    }
    assert_eq!((scaler.scale(), scaler.growth_tracker()), (2.0, 2));
}

#[test]
fn growth_that_would_overflow_keeps_the_scale_and_clears_the_tracker() {
    let mut scaler = scaler(1e38, 16.0, 0.5, 2);
    for tracker in [1, 0, 1, 0] {
        scaler.update(false);
        assert_eq!((scaler.scale(), scaler.growth_tracker()), (1e38, tracker));
    }
}

#[test]
fn scale_falls_below_one_without_a_floor_and_ends_at_zero() {
    let mut scaler = scaler(2.0, 2.0, 0.5, 1);
    scaler.update(true);
    scaler.update(true);
    assert_eq!((scaler.scale(), scaler.inverse_scale()), (0.5, 2.0));
    for _ in 0..200 {
        scaler.update(true);
    }
    assert_eq!((scaler.scale(), scaler.inverse_scale()), (0.0, f32::INFINITY));
}

#[test]
fn products_are_taken_in_f64_and_rounded_once() {
    // Rounded to f32 first, the factor would be 1.00000012 and the product one unit larger.
    let growth_factor = 1.000_000_07_f64;
    let mut scaler = scaler(16_000_000.0, growth_factor, 0.5, 1);
    assert_eq!(scaler.scale() * growth_factor as f32, 16_000_002.0);
    scaler.update(false);
    assert_eq!(scaler.scale(), 16_000_001.0);
}

#[test]
fn unscaled_gradients_are_the_true_ones_and_infinities_are_found() {
    let scaler = scaler(4096.0, 2.0, 0.5, 1);
    let mut gradients = [1.0, -0.25, 3.0].map(|gradient| gradient * scaler.scale());
    assert!(!unscale(&mut gradients, &scaler));
    assert_eq!(gradients, [1.0, -0.25, 3.0]);
    assert!(unscale(&mut [1.0, f32::INFINITY], &scaler));
    assert!(unscale(&mut [1.0, f32::NAN], &scaler));
}

#[test]
fn accumulated_micro_batches_share_one_scale_and_one_update() {
    let mut scaler = scaler(8.0, 2.0, 0.5, 1);
    let mut gradients = [0.0_f32; 2];
    for micro_batch in [[0.5, 1.0], [0.25, -2.0], [1.0, 0.125]] {
        for (sum, gradient) in gradients.iter_mut().zip(micro_batch) {
            *sum += gradient * scaler.scale();
        }
    }
    let found_infinite = unscale(&mut gradients, &scaler);
    scaler.update(found_infinite);
    assert_eq!(gradients, [1.75, -0.875]);
    assert_eq!(scaler.scale(), 16.0);
}

#[test]
fn clipping_after_unscaling_sees_the_true_norm() {
    let scaler = scaler(1024.0, 2.0, 0.5, 1);
    let mut gradients = [3.0, 4.0].map(|gradient| gradient * scaler.scale());
    unscale(&mut gradients, &scaler);
    let norm = gradients.iter().map(|gradient| gradient * gradient).sum::<f32>().sqrt();
    assert_eq!(norm, 5.0);
}

#[test]
fn scaling_a_penalty_and_its_gradient_uses_the_same_factor_twice() {
    // d/dw of (loss + |grad|^2): the inner gradient is unscaled before it enters the penalty.
    let scaler = scaler(256.0, 2.0, 0.5, 1);
    let mut inner = [1.5 * scaler.scale()];
    unscale(&mut inner, &scaler);
    let mut outer = [(0.5 + inner[0] * inner[0]) * scaler.scale()];
    unscale(&mut outer, &scaler);
    assert_eq!(outer, [2.75]);
}

#[test]
fn one_infinity_among_several_optimizers_backs_off_once() {
    let mut scaler = scaler(128.0, 2.0, 0.5, 1);
    let clean = unscale(&mut [128.0], &scaler);
    let infinite = unscale(&mut [f32::NEG_INFINITY], &scaler);
    scaler.update(clean | infinite);
    assert_eq!(scaler.scale(), 64.0);
}

#[test]
fn disabled_scaler_is_one_and_never_moves() {
    let mut scaler = LossScaler::disabled();
    for found_infinite in [false, true, false] {
        scaler.update(found_infinite);
        assert_eq!((scaler.scale(), scaler.inverse_scale()), (1.0, 1.0));
    }
    assert_eq!(scaler, LossScaler::disabled());
    assert!(!scaler.is_enabled());
    assert_eq!(scaler.state(), None);
}

#[test]
fn clone_taken_before_a_step_puts_the_step_back() {
    let mut scaler = scaler(4.0, 2.0, 0.5, 2);
    scaler.update(false);
    let before = scaler.clone();
    scaler.update(true);
    assert_ne!(scaler, before);
    scaler = before;
    assert_eq!((scaler.scale(), scaler.growth_tracker()), (4.0, 1));
}
