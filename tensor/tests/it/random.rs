//! Random numbers are a function of key and place.

use lowtide_tensor::{DType, RandomKey, Tensor};
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
    // Deviations: 1/362 for the mean, √2/362, √15/362 and √96/362 for the others; six of them.
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
    // 100 of each of 24 expected, with a deviation of 10.
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
    // 4096 expected with a deviation of 62; six of them do not happen by chance.
    assert!(counts.iter().all(|count| count.abs_diff(4096) < 372), "{counts:?}");
}
