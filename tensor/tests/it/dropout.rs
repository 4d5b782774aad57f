//! Dropout is a function of key and place.

use lowtide_tensor::{DType, Dropout, RandomKey, Tensor};
use proptest::prelude::*;

use crate::common::{
    all_floats, assert_close, cpu, download, sample, shapes, shared, styles, writable_styles,
};
use crate::naive::Array;

const KEY: RandomKey = RandomKey::new(11).op("dropout").step(2);

fn twin(x: &Array, Dropout { probability, key, first }: Dropout) -> Array {
    let word = |place: u64| key.block(place / 4)[(place % 4) as usize];
    let value = |(place, x): (u64, f64)| {
        let is_dropped = f64::from(word(place)) / 2f64.powi(32) < probability;
        if is_dropped { 0.0 } else { x / (1.0 - probability) }
    };
    Array::new(&x.dims, (first..).zip(x.values.iter().copied()).map(value).collect())
}

proptest! {
    #[test]
    fn elements_are_dropped_by_the_words_of_the_stream(
        dims in prop_oneof![3 => shapes(), 1 => Just(vec![7, 201])],
        style in styles(), in_place_style in writable_styles(), dtype in all_floats(),
        probability in prop_oneof![Just(0.0), Just(1.0), 0.0..1.0f64],
        first in prop_oneof![Just(0), 0..100u64, Just(u64::from(u32::MAX) * 4 - 5)],
    ) {
        let dropout = Dropout { probability, key: KEY, first };
        let (x, x_twin) = sample(&dims, style, dtype, 1);
        assert_close(&x.dropout(dropout).unwrap(), &twin(&x_twin, dropout), 2);
        let (mut x, x_twin) = sample(&dims, in_place_style, dtype, 1);
        x.dropout_(dropout).unwrap();
        assert_close(&x, &twin(&x_twin, dropout), 2);
    }
}

#[test]
fn parts_of_a_batch_drop_what_the_whole_drops() {
    let x = Tensor::ones(shared(), [10, 333], DType::F32).unwrap();
    let dropout = Dropout { probability: 0.5, key: KEY, first: 0 };
    let whole = x.dropout(dropout).unwrap();
    for (start, len) in [(0, 3), (3, 1), (4, 6)] {
        let part = x.narrow(0, start, len).unwrap();
        let part = part.dropout(Dropout { first: 333 * start as u64, ..dropout }).unwrap();
        assert_eq!(download(&part), download(&whole.narrow(0, start, len).unwrap()));
    }
}

#[test]
fn share_of_dropped_elements_is_the_probability() {
    let x = Tensor::ones(&cpu(2), [1 << 16], DType::F32).unwrap();
    let y = x.dropout(Dropout { probability: 0.25, key: KEY, first: 0 }).unwrap();
    let dropped = download(&y).values.iter().filter(|&&y| y == 0.0).count();
    // 16384 zeros are expected, with a deviation of 111.
    assert!(dropped.abs_diff(16_384) < 666, "{dropped}");
}

#[test]
fn every_key_drops_others() {
    let x = Tensor::ones(shared(), [256], DType::F32).unwrap();
    let of = |key| download(&x.dropout(Dropout { probability: 0.5, key, first: 0 }).unwrap());
    assert_ne!(of(KEY), of(KEY.step(3)));
}
