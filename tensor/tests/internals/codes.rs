use lowtide_tensor::StateRange;
use lowtide_tensor::testing::{BLOCK_BYTES, BLOCK_LEN, Codes};
use proptest::prelude::*;

const RANGES: [StateRange; 2] = [StateRange::Signed, StateRange::Positive];

#[test]
fn maps_are_rising_and_have_the_ends() {
    for range in RANGES {
        let codes = Codes::of(range);
        let (values, zero) = (codes.values(), codes.zero());
        assert!(values.is_sorted_by(|a, b| a < b));
        assert_eq!((values[255], values[zero]), (1.0, 0.0));
        let negatives = if range == StateRange::Signed { 127 } else { 0 };
        assert_eq!(zero, negatives);
        // The paper's values next to 1: the middle of the last part of the top decade.
        let parts = if range == StateRange::Signed { 64.0 } else { 128.0 };
        assert!((values[254] - (1.0 - 0.45 / parts)).abs() < 1e-6);
    }
}

fn nearest_error(map: &Codes, x: f32) -> f32 {
    map.values().iter().map(|value| (value - x).abs()).fold(f32::INFINITY, f32::min)
}

proptest! {
    #[test]
    fn code_is_that_of_the_nearest_value(
        x in -1.0f32..=1.0,
        power in 0..9i32,
        near in 0..255usize,
    ) {
        for range in RANGES {
            let map = Codes::of(range);
            let small = x * 10f32.powi(-power);
            let close = map.middles()[near] * (1.0 + x * 1e-5);
            for x in [x, small, close, map.values()[near]] {
                let x = if range == StateRange::Positive { x.abs() } else { x };
                let error = (map.values()[usize::from(map.code(x))] - x).abs();
                // Halfway between two, rounding decides.
                let rounding = 2.0 * f32::EPSILON * x.abs();
                prop_assert!(error <= nearest_error(&map, x) + rounding, "{x} {range:?}");
            }
        }
    }

    #[test]
    fn block_keeps_its_largest_and_forgets_little(
        values in prop::collection::vec(-1e3f32..1e3, 1..=BLOCK_LEN),
    ) {
        let map = Codes::of(StateRange::Signed);
        let mut block = [7; BLOCK_BYTES];
        map.store(&values, &mut block);
        let mut found = [9.0; BLOCK_LEN];
        map.load(&block, &mut found);
        let largest = values.iter().fold(0.0_f32, |scale, x| scale.max(x.abs()));
        for (found, x) in found.iter().zip(&values) {
            if x.abs() == largest && *x > 0.0 {
                prop_assert_eq!(found, x);
            }
            // Half of the widest part, 0.9 / 64; below -1 there is no code for the end.
            prop_assert!((found - x).abs() <= largest * 0.0071, "{found} {x}");
        }
        prop_assert!(found[values.len()..].iter().all(|&x| x == 0.0));
    }
}

#[test]
fn zeros_infinities_and_nan_have_their_places() {
    let map = Codes::of(StateRange::Signed);
    let cycle = |values: &[f32]| {
        let (mut block, mut found) = ([0; BLOCK_BYTES], vec![5.0; values.len()]);
        map.load(&block, &mut found);
        assert!(found.iter().all(|&x| x == 0.0), "fresh memory is a block of zeros");
        map.store(values, &mut block);
        map.load(&block, &mut found);
        found
    };
    assert_eq!(cycle(&[0.0, -0.0]), [0.0, 0.0]);
    assert_eq!(cycle(&[1e-30, 0.0]), [1e-30, 0.0]);
    let with_nan = cycle(&[f32::NAN, 2.0]);
    assert_eq!(with_nan, [0.0, 2.0]);
}
