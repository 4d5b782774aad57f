//! Laws of the numbers: scale, tracker, rounding.

use crate::{iterate, scaler};
use lowtide_amp::LossScaler;

#[test]
fn default_scaler_starts_at_65536_and_moves_after_2000_clean_updates() {
    let mut scaler = LossScaler::default();
    for _ in 0..1999 {
        iterate(&mut scaler, false).unwrap();
        assert_eq!(scaler.scale(), 65_536.0);
    }
    assert_eq!(scaler.growth_tracker(), 1999);
    iterate(&mut scaler, false).unwrap();
    assert_eq!((scaler.scale(), scaler.growth_tracker()), (131_072.0, 0));
}

#[test]
fn infinity_makes_the_count_of_clean_updates_start_over() {
    let mut scaler = scaler(4.0, 2.0, 0.5, 3);
    for found_infinite in [false, false, true, false, false] {
        iterate(&mut scaler, found_infinite).unwrap();
    }
    assert_eq!((scaler.scale(), scaler.growth_tracker()), (2.0, 2));
}

#[test]
fn scale_falls_below_one_without_a_floor_and_ends_at_zero() {
    let mut scaler = scaler(2.0, 2.0, 0.5, 1);
    iterate(&mut scaler, true).unwrap();
    iterate(&mut scaler, true).unwrap();
    assert_eq!((scaler.scale(), scaler.inverse_scale()), (0.5, 2.0));
    for _ in 0..200 {
        iterate(&mut scaler, true).unwrap();
    }
    assert_eq!((scaler.scale(), scaler.inverse_scale()), (0.0, f32::INFINITY));
}

#[test]
fn products_are_taken_in_f64_and_rounded_once() {
    // Rounded to f32 first, the factor would be 1.00000012 and the product one unit larger.
    let growth_factor = 1.000_000_07_f64;
    let mut scaler = scaler(16_000_000.0, growth_factor, 0.5, 1);
    assert_eq!(scaler.scale() * growth_factor as f32, 16_000_002.0);
    iterate(&mut scaler, false).unwrap();
    assert_eq!(scaler.scale(), 16_000_001.0);
}

#[test]
fn disabled_scaler_is_one_and_never_moves() {
    let mut scaler = LossScaler::disabled();
    for found_infinite in [false, true, false] {
        iterate(&mut scaler, found_infinite).unwrap();
        assert_eq!((scaler.scale(), scaler.inverse_scale()), (1.0, 1.0));
    }
    assert_eq!(scaler, LossScaler::disabled());
    assert!(!scaler.is_enabled());
    assert_eq!(scaler.state(), None);
}

#[test]
fn clone_taken_before_a_step_puts_the_step_back() {
    let mut scaler = scaler(4.0, 2.0, 0.5, 2);
    iterate(&mut scaler, false).unwrap();
    let before = scaler.clone();
    iterate(&mut scaler, true).unwrap();
    assert_ne!(scaler, before);
    scaler = before;
    assert_eq!((scaler.scale(), scaler.growth_tracker()), (4.0, 1));
}
