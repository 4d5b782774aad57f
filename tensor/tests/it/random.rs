//! Random numbers are a function of key and place.

use lowtide_tensor::{DType, Draw, RandomKey, Tensor, TensorError};
use proptest::prelude::*;

use crate::common::{
    all_floats, assert_close, assert_same, cpu, download, floats, laid_out, sample, shapes, shared,
    writable_styles,
};
use crate::naive::Array;

const KEY: RandomKey = RandomKey::new(7).op("weights").step(3);

proptest! {
    #[test]
    fn element_in_row_major_order_is_the_streams(
        dims in shapes(), style in writable_styles(), dtype in floats(),
    ) {
        let mut x = laid_out(&Array::pattern(&dims, 1), style, dtype);
        x.uniform_(KEY, -2.0, 2.0).unwrap();
        let len: usize = dims.iter().product();
        // 24 bits times 4 is exact in f32.
        let expected = (0..len as u64).map(|i| f64::from(KEY.uniform(i)) * 4.0 - 2.0).collect();
        prop_assert_eq!(download(&x), Array::new(&dims, expected));
    }
}

proptest! {
    #[test]
    fn normal_numbers_are_those_of_box_and_muller(
        dims in shapes(), style in writable_styles(), dtype in all_floats(),
    ) {
        let mut x = laid_out(&Array::pattern(&dims, 1), style, dtype);
        x.normal_(KEY, 1.0, 0.5).unwrap();
        let value = |i: usize| {
            let words = KEY.block(i as u64 / 4);
            let pair = i % 4 / 2 * 2;
            let [u, v] = [words[pair], words[pair + 1]].map(|w| f64::from(w) / 2f64.powi(32));
            let radius = (-2.0 * (u + 2f64.powi(-32)).ln()).sqrt();
            let angle = std::f64::consts::TAU * v;
            1.0 + 0.5 * radius * if i.is_multiple_of(2) { angle.cos() } else { angle.sin() }
        };
        let len: usize = dims.iter().product();
        assert_close(&x, &Array::new(&dims, (0..len).map(value).collect()), 4);
    }

    #[test]
    fn draws_below_the_probability_are_ones_of_every_type(
        dims in shapes(), style in writable_styles(), probability in 0.0..1.0f64,
        dtype in prop::sample::select(DType::ALL.to_vec()),
    ) {
        let (mut x, _) = sample(&dims, style, dtype, 1);
        x.bernoulli_(KEY, probability).unwrap();
        let word = |i: usize| f64::from(KEY.block(i as u64 / 4)[i % 4]) / 2f64.powi(32);
        let len: usize = dims.iter().product();
        let expected = (0..len).map(|i| f64::from(u8::from(word(i) < probability))).collect();
        assert_same(&x, &Array::new(&dims, expected));
    }

    #[test]
    fn permutation_has_every_number_once(len in 0..300usize, seed in any::<u64>()) {
        let y = Tensor::permutation(shared(), len, RandomKey::new(seed)).unwrap();
        let mut numbers = y.to_vec::<i64>().unwrap();
        numbers.sort();
        prop_assert!(numbers.into_iter().eq(0..len as i64));
    }
}

#[test]
fn half_types_stay_below_the_end_of_the_interval() {
    for dtype in [DType::F16, DType::BF16] {
        let mut x = Tensor::zeros(shared(), [1 << 16], dtype).unwrap();
        x.uniform_(KEY, 0.0, 1.0).unwrap();
        let values = download(&x).values;
        assert!(values.iter().all(|x| (0.0..1.0).contains(x)));
        let mean = values.iter().sum::<f64>() / values.len() as f64;
        // The deviation of the mean is 0.0011; bf16 draws are 1/512 low on average.
        assert!((mean - 0.5).abs() < 0.008, "{mean}");
    }
}

#[test]
fn normal_numbers_have_their_moments() {
    let mut x = Tensor::zeros(shared(), [1 << 17], DType::F32).unwrap();
    x.normal_(KEY, 0.0, 1.0).unwrap();
    let values = download(&x).values;
    let moment = |power: i32| values.iter().map(|x| x.powi(power)).sum::<f64>() / 131_072.0;
    // Deviations are 1/362 for the mean, √2/362, √15/362 and √96/362 for the others. The limit is
    // six deviations.
    for (power, expected, deviation) in
        [(1, 0.0, 1.0), (2, 1.0, 2.0), (3, 0.0, 15.0), (4, 3.0, 96.0)]
    {
        let found = moment(power);
        let tolerance = 6.0 * f64::sqrt(deviation) / 362.0;
        assert!((found - expected).abs() < tolerance, "moment {power}: {found}");
    }
}

#[test]
fn permutations_are_equally_likely() {
    let mut counts = std::collections::BTreeMap::<Vec<i64>, usize>::new();
    for seed in 0..2400 {
        let y = Tensor::permutation(shared(), 4, RandomKey::new(seed)).unwrap();
        *counts.entry(y.to_vec().unwrap()).or_default() += 1;
    }
    // 100 of each of the 24 orders are expected, with a deviation of 10.
    assert_eq!(counts.len(), 24);
    assert!(counts.values().all(|count| count.abs_diff(100) < 60), "{counts:?}");
}

#[test]
fn numbers_do_not_depend_on_threads() {
    let draw = |threads: usize| {
        let mut x = Tensor::zeros(&cpu(threads), [70_001], DType::F32).unwrap();
        x.uniform_(KEY, 0.0, 1.0).unwrap();
        x.to_vec::<f32>().unwrap()
    };
    assert_eq!(draw(1), draw(3));
}

#[test]
fn numbers_fill_the_interval_evenly() {
    let mut x = Tensor::zeros(&cpu(2), [1 << 16], DType::F64).unwrap();
    x.uniform_(KEY, 10.0, 12.0).unwrap();
    let mut counts = [0usize; 16];
    for value in x.to_vec::<f64>().unwrap() {
        assert!((10.0..12.0).contains(&value), "{value}");
        counts[((value - 10.0) * 8.0) as usize] += 1;
    }
    // 4096 are expected, with a deviation of 62. Six deviations do not happen by chance.
    assert!(counts.iter().all(|count| count.abs_diff(4096) < 372), "{counts:?}");
}

proptest! {
    #[test]
    fn random_integers_are_blocks_scaled_to_the_range(
        dims in shapes(), style in writable_styles(), low in -90..90i64, count in 1..90i64,
        dtype in prop::sample::select(vec![
            DType::F64, DType::F32, DType::F16, DType::BF16, DType::I64, DType::I32, DType::U8,
        ]),
    ) {
        let low = if dtype == DType::U8 { low.abs() } else { low };
        let (mut x, _) = sample(&dims, style, dtype, 1);
        x.random_integers_(KEY, low..low + count).unwrap();
        let number = |i: usize| {
            let [small, large, ..] = KEY.block(i as u64).map(u128::from);
            low as f64 + (((large << 32 | small) * count as u128) >> 64) as f64
        };
        let len: usize = dims.iter().product();
        assert_same(&x, &Array::new(&dims, (0..len).map(number).collect()));
    }
}

#[test]
fn random_integers_reach_both_ends_of_the_widest_range() {
    let mut x = Tensor::zeros(shared(), [4096], DType::I64).unwrap();
    x.random_integers_(KEY, i64::MIN..i64::MAX).unwrap();
    let numbers = x.to_vec::<i64>().unwrap();
    let quarter = |n: i64| (n >> 62) + 2;
    for part in 0..4 {
        let count = numbers.iter().filter(|&&n| quarter(n) == part).count();
        assert!((900..1150).contains(&count), "{part}: {count}");
    }
    x.random_integers_(KEY, 7..8).unwrap();
    assert!(x.to_vec::<i64>().unwrap().iter().all(|&n| n == 7));
}

#[test]
fn random_integers_that_the_type_does_not_hold_are_an_error() {
    let backwards = std::ops::Range { start: 3, end: 2 };
    let cases = [
        (DType::I64, 3..3),
        (DType::I64, backwards),
        (DType::U8, -1..4),
        (DType::U8, 0..257),
        (DType::BF16, 0..258),
        (DType::I32, 0..1 << 32),
    ];
    for (dtype, range) in cases {
        let mut x = Tensor::zeros(shared(), [4], dtype).unwrap();
        let found = x.random_integers_(KEY, range.clone());
        assert!(matches!(found, Err(TensorError::Index { .. })), "{dtype} {range:?}: {found:?}");
    }
    let mut truths = Tensor::zeros(shared(), [4], DType::Bool).unwrap();
    let found = truths.random_integers_(KEY, 0..2);
    assert!(matches!(found, Err(TensorError::DType { .. })), "{found:?}");
}

#[test]
fn classes_are_drawn_as_often_as_their_weights_are_large() {
    let weights = [3.0_f32, 0.0, 1.0, 0.0, 4.0, 0.0];
    for dtype in [DType::F64, DType::F32, DType::F16, DType::BF16] {
        for (draw, rows, count) in [(Draw::Replaced, 1, 8000), (Draw::Distinct, 8000, 1)] {
            let weights = Tensor::from_slice(shared(), [1, 6], &weights).unwrap();
            let weights = weights.to_dtype(dtype).unwrap().expand([rows, 6]).unwrap();
            let drawn = weights.multinomial(KEY, count, draw).unwrap();
            assert_eq!(drawn.shape()[..], [rows, count]);
            let drawn = drawn.to_vec::<i64>().unwrap();
            for (class, share) in [0.375_f64, 0.0, 0.125, 0.0, 0.5, 0.0].into_iter().enumerate() {
                let found = drawn.iter().filter(|&&drawn| drawn == class as i64).count() as f64;
                // The limit is five deviations of a count.
                let near = 5.0 * (8000.0 * share * (1.0 - share)).sqrt();
                assert!((found - 8000.0 * share).abs() <= near, "{draw:?} {class}: {found}");
            }
        }
    }
}

#[test]
fn distinct_classes_are_distinct_and_those_without_weight_come_last() {
    let weights: Vec<f64> = (0..40).map(|i| f64::from(i % 3) + f64::from(i % 7 == 0)).collect();
    let with_weight = weights.iter().filter(|&&weight| weight > 0.0).count();
    let weights = Tensor::from_slice(shared(), [40], &weights).unwrap();
    let mut drawn = weights.multinomial(KEY, 40, Draw::Distinct).unwrap().to_vec().unwrap();
    let is_weighted = |class: &i64| (class % 3) + i64::from(class % 7 == 0) > 0;
    assert!(drawn[..with_weight].iter().all(is_weighted), "{drawn:?}");
    drawn.sort_unstable();
    assert_eq!(drawn, (0..40).collect::<Vec<i64>>());
}

#[test]
fn draws_that_there_cannot_be_are_errors() {
    let x = Tensor::full(shared(), [2, 3], DType::F32, 1.0).unwrap();
    let found = x.multinomial(KEY, 4, Draw::Distinct);
    assert!(matches!(found, Err(TensorError::Index { index: 4, len: 3, .. })), "{found:?}");
    assert_eq!(x.multinomial(KEY, 4, Draw::Replaced).unwrap().shape()[..], [2, 4]);
    assert_eq!(x.multinomial(KEY, 0, Draw::Distinct).unwrap().shape()[..], [2, 0]);
    for empty in [Tensor::zeros(shared(), [2, 0], DType::F32), x.sum_all()] {
        let found = empty.unwrap().multinomial(KEY, 1, Draw::Replaced);
        assert!(matches!(found, Err(TensorError::Shape { .. })), "{found:?}");
    }
    let whole = Tensor::zeros(shared(), [3], DType::I64).unwrap();
    let found = whole.multinomial(KEY, 1, Draw::Distinct);
    assert!(matches!(found, Err(TensorError::DType { .. })), "{found:?}");
}
