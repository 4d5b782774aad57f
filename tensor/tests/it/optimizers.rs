//! The fused updates and the passes over gradients, wherever their operands lie.

use lowtide_tensor::{
    AdamStep, DType, SgdStep, Tensor, WeightDecay, scale_and_check_finite, squared_norm,
};
use proptest::prelude::*;

use crate::common::{
    all_floats, assert_close, assert_same, floats, sample, shapes, shared, styles, writable_styles,
};
use crate::naive::Array;

/// PyTorch's loop for one element: the new parameter and momentum.
fn sgd(step: SgdStep, p: f64, g: f64, m: f64) -> [f64; 2] {
    let g = g * step.grad_scale + step.weight_decay * p;
    let m = if step.is_first { g } else { step.momentum * m + (1.0 - step.dampening) * g };
    let direction = match (step.momentum != 0.0, step.nesterov) {
        (false, _) => g,
        (true, false) => m,
        (true, true) => g + step.momentum * m,
    };
    [p - step.learning_rate * direction, m]
}

/// PyTorch's loop for one element: the new parameter, mean and mean square.
fn adam(step: AdamStep, mut p: f64, g: f64, m: f64, v: f64) -> [f64; 3] {
    let mut g = g * step.grad_scale;
    match step.weight_decay {
        WeightDecay::Coupled(decay) => g += decay * p,
        WeightDecay::Decoupled(decay) => p -= step.learning_rate * decay * p,
    }
    let m = step.beta1 * m + (1.0 - step.beta1) * g;
    let v = step.beta2 * v + (1.0 - step.beta2) * g * g;
    let (m_hat, v_hat) = (m / step.bias_correction1, v / step.bias_correction2);
    [p - step.learning_rate * m_hat / (v_hat.sqrt() + step.eps), m, v]
}

/// The arrays that `f` makes of the elements of four arrays at the same place.
fn map4<const N: usize>(
    arrays: [&Array; 4],
    f: impl Fn(f64, f64, f64, f64) -> [f64; N],
) -> [Array; N] {
    let at = |i: usize| {
        let [a, b, c, d] = arrays.map(|array| array.values[i]);
        f(a, b, c, d)
    };
    let dims = &arrays[0].dims;
    std::array::from_fn(|k| Array::new(dims, (0..arrays[0].len()).map(|i| at(i)[k]).collect()))
}

proptest! {
    #[test]
    fn sgd_steps_as_the_formula_says(
        dims in shapes(),
        styles in (writable_styles(), styles(), writable_styles()),
        dtype in floats(),
        momentum in prop_oneof![Just(0.0), Just(0.5)],
        flags in any::<[bool; 2]>(),
    ) {
        let step = SgdStep {
            learning_rate: 0.25,
            momentum,
            dampening: if flags[0] { 0.0 } else { 0.25 },
            weight_decay: 0.125,
            nesterov: flags[0],
            is_first: flags[1],
            grad_scale: 0.5,
        };
        let (mut p, p_twin) = sample(&dims, styles.0, dtype, 1);
        let (g, g_twin) = sample(&dims, styles.1, dtype, 2);
        let (mut m, m_twin) = sample(&dims, styles.2, dtype, 3);
        let [expected_p, expected_m] =
            map4([&p_twin, &g_twin, &m_twin, &m_twin], |p, g, m, _| sgd(step, p, g, m));
        let handle = p.clone();
        p.sgd_(&g, (momentum != 0.0).then_some(&mut m), step).unwrap();
        // All factors are powers of two or small: what can round are two sums.
        assert_close(&handle, &expected_p, 8);
        assert_close(&m, if momentum == 0.0 { &m_twin } else { &expected_m }, 8);
    }

    #[test]
    fn adam_steps_as_the_formula_says(
        dims in shapes(),
        styles in (writable_styles(), styles(), writable_styles(), writable_styles()),
        dtype in floats(),
        is_coupled in any::<bool>(),
    ) {
        let step = AdamStep {
            learning_rate: 0.01,
            beta1: 0.9,
            beta2: 0.99,
            eps: 1e-8,
            weight_decay:
                if is_coupled { WeightDecay::Coupled(0.1) } else { WeightDecay::Decoupled(0.1) },
            bias_correction1: 1.0 - 0.81,
            bias_correction2: 1.0 - 0.9801,
            grad_scale: 0.5,
        };
        let (mut p, p_twin) = sample(&dims, styles.0, dtype, 1);
        let (g, g_twin) = sample(&dims, styles.1, dtype, 2);
        let (mut m, m_twin) = sample(&dims, styles.2, dtype, 3);
        let (mut v, v_twin) = sample(&dims, styles.3, dtype, 4);
        // A mean square is positive; away from 0 the quotient is well conditioned.
        add_constant_(&mut v, 2.0);
        let v_twin = v_twin.map(|v| v + 2.0);
        let twins = [&p_twin, &g_twin, &m_twin, &v_twin];
        let expected = map4(twins, |p, g, m, v| adam(step, p, g, m, v));
        p.adam_(&g, &mut m, &mut v, step).unwrap();
        for (found, expected) in [&p, &m, &v].into_iter().zip(&expected) {
            assert_close(found, expected, 64);
        }
    }

    #[test]
    fn scaling_and_norm_see_every_element(
        dims in shapes(), styles in (writable_styles(), styles()), dtype in all_floats(),
    ) {
        let (a, a_twin) = sample(&dims, styles.0, dtype, 1);
        let (b, b_twin) = sample(&[4, 3], styles.1, DType::F64, 2);
        let square = |twin: &Array| twin.values.iter().map(|x| x * x).sum::<f64>();
        let norm = squared_norm(shared(), [&a, &b]).unwrap();
        assert_same(&norm, &Array::new(&[1], vec![square(&a_twin) + square(&b_twin)]));

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
        let flag = scale_and_check_finite(shared(), &mut [x, fine], 1.0).unwrap();
        prop_assert_eq!(flag.item::<f32>().unwrap(), 1.0);
    }
}

fn add_constant_(x: &mut Tensor, value: f64) {
    let constant = Tensor::full(x.device(), [], x.dtype(), value).unwrap();
    x.add_(&constant).unwrap();
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
