//! The passes over gradients, for tensors of all layouts.

use lowtide_tensor::{DType, RunningCheck, Tensor, scale_and_check_finite, squared_norm};
use proptest::prelude::*;

use crate::common::{all_floats, assert_same, sample, shapes, shared, styles, writable_styles};
use crate::naive::Array;

proptest! {
    #[test]
    fn scaling_and_norm_see_every_element(
        dims in shapes(), styles in (writable_styles(), styles()), dtype in all_floats(),
    ) {
        let (a, a_twin) = sample(&dims, styles.0, dtype, 1);
        let (b, b_twin) = sample(&[4, 3], styles.1, DType::F64, 2);
        let square = |twin: &Array| twin.values.iter().map(|x| x * x).sum::<f64>();
        let norm = squared_norm(shared(), [&a, &b]).unwrap();
        assert_same(&norm, &Array::new(&[1], vec![square(&a_twin) + square(&b_twin)]));

        // Tensors one by one, in any order, give the same bits.
        let mut running = RunningCheck::new(shared(), 2).unwrap();
        running.add(1, &mut b.copied().unwrap(), 1.0).unwrap();
        running.add(0, &mut a.copied().unwrap(), 1.0).unwrap();
        let (is_finite, sum) = running.read().unwrap();
        prop_assert!(is_finite);
        prop_assert_eq!(sum.to_bits(), norm.item::<f64>().unwrap().to_bits());

        let mut tensors = [a, b.copied().unwrap()];
        let flag = scale_and_check_finite(shared(), &mut tensors, -0.5).unwrap();
        assert_same(&flag, &Array::new(&[1], vec![0.0]));
        assert_same(&tensors[0], &a_twin.map(|x| x * -0.5));
        assert_same(&tensors[1], &b_twin.map(|x| x * -0.5));
    }

    #[test]
    fn one_element_out_of_many_raises_the_flag(
        place in 0..50_000usize,
        value in prop::sample::select(vec![f32::NAN, f32::INFINITY, f32::NEG_INFINITY]),
        is_turned in any::<bool>(),
    ) {
        let mut values = vec![1.0f32; 50_000];
        values[place] = value;
        let whole = Tensor::from_slice(shared(), [100, 500], &values).unwrap();
        let x = if is_turned { whole.transpose(0, 1).unwrap() } else { whole };
        let fine = Tensor::zeros(shared(), [3], DType::F64).unwrap();
        let mut running = RunningCheck::new(shared(), 1).unwrap();
        running.add(0, &mut x.copied().unwrap(), 1.0).unwrap();
        prop_assert!(!running.read().unwrap().0);
        let flag = scale_and_check_finite(shared(), &mut [x, fine], 1.0).unwrap();
        prop_assert_eq!(flag.item::<f32>().unwrap(), 1.0);
    }
}

#[test]
fn overflow_by_the_scale_itself_raises_the_flag() {
    let mut x = [Tensor::full(shared(), [3], DType::F32, 1e38).unwrap()];
    let flag = scale_and_check_finite(shared(), &mut x, 1e3).unwrap();
    assert_eq!(flag.item::<f32>().unwrap(), 1.0);
}

#[test]
fn overflow_of_a_half_type_raises_the_flag_and_its_largest_number_does_not() {
    for (value, expected) in [(60_000.0, 0.0), (33_000.0, 1.0)] {
        let mut x = [Tensor::full(shared(), [1000], DType::F16, value).unwrap()];
        let scale = if expected == 0.0 { 1.0 } else { 2.0 };
        let flag = scale_and_check_finite(shared(), &mut x, scale).unwrap();
        assert_eq!(flag.item::<f32>().unwrap(), expected);
    }
}

#[test]
fn nothing_is_scaled_when_one_of_the_tensors_is_refused() {
    let fine = || Tensor::full(shared(), [2], DType::F32, 3.0).unwrap();
    let frozen = fine();
    frozen.freeze();
    let expanded = Tensor::zeros(shared(), [1], DType::F32).unwrap().expand([4]).unwrap();
    let elsewhere = Tensor::zeros(&crate::common::sim(1), [1], DType::F32).unwrap();
    let integers = Tensor::zeros(shared(), [1], DType::I64).unwrap();
    for refused in [frozen, expanded, elsewhere, integers] {
        let mut tensors = [fine(), refused];
        let error = scale_and_check_finite(shared(), &mut tensors, 2.0).unwrap_err();
        assert!(error.to_string().starts_with("scale_and_check_finite"), "{error}");
        assert_eq!(tensors[0].to_vec::<f32>().unwrap(), [3.0, 3.0]);
    }
}
