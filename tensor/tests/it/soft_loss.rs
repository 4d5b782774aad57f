//! Losses of class probabilities against the definition, and the values of PyTorch.

use lowtide_tensor::{DType, Labelling, Tensor, TensorError};
use proptest::prelude::*;

use crate::common::{
    Style, all_floats, assert_close, download, epsilon, sample, shared, strided_labels, styles,
    upload,
};
use crate::golden::fixture;
use crate::naive::{Array, index_of};

const IGNORED: i64 = -100;

/// The place in `[N, C, ..]` of class `c` of the position at `at`, `[n, ..]`.
fn with_class(at: &[usize], c: usize) -> Vec<usize> {
    [&at[..1], &[c], &at[1..]].concat()
}

/// The sum, log-sum-exps and gradient of the logits, position by position.
fn soft_twin(
    [x, target]: [&Array; 2],
    smoothing: f64,
    weight: &[f64],
    dy: f64,
) -> (f64, Array, Array) {
    let classes = x.dims[1];
    let positions = [&x.dims[..1], &x.dims[2..]].concat();
    let log_sum_exp = Array::from_fn(&positions, |at| {
        (0..classes).map(|c| x.at(&with_class(at, c)).exp()).sum::<f64>().ln()
    });
    let mixed = |at: &[usize]| {
        weight[at[1]] * ((1.0 - smoothing) * target.at(at) + smoothing / classes as f64)
    };
    let position = |at: &[usize]| [&at[..1], &at[2..]].concat();
    let losses =
        Array::from_fn(&x.dims, |at| mixed(at) * (log_sum_exp.at(&position(at)) - x.at(at)));
    let dx = Array::from_fn(&x.dims, |at| {
        let position = position(at);
        let lse = log_sum_exp.at(&position);
        let total: f64 = (0..classes).map(|c| mixed(&with_class(&position, c))).sum();
        dy * ((x.at(at) - lse).exp() * total - mixed(at))
    });
    (losses.values.iter().sum(), log_sum_exp, dx)
}

/// `[N, C, ..]` of rank 2 to 4, with few and with many classes and columns.
fn shapes() -> impl Strategy<Value = Vec<usize>> {
    let classes = prop::sample::select(vec![1_usize, 2, 7, 17, 90]);
    let inner = prop::sample::select(vec![vec![], vec![0], vec![3], vec![3, 2], vec![73]]);
    (0..=4_usize, classes, inner).prop_map(|(n, classes, inner)| [vec![n, classes], inner].concat())
}

proptest! {
    #[test]
    fn soft_cross_entropy_and_its_gradient_follow_the_definition(
        dims in shapes(),
        smoothing in prop::sample::select(vec![0.0, 0.25, 1.0]),
        has_weight in any::<bool>(),
        styles in [styles(), styles()],
        dtype in all_floats(),
    ) {
        let (x, x_twin) = sample(&dims, styles[0], dtype, 1);
        let (target, target_twin) = sample(&dims, styles[1], dtype, 2);
        let weight = upload(shared(), &Array::pattern(&dims[1..2], 3).map(|w| w + 2.0), dtype);
        let weights = if has_weight { download(&weight).values } else { vec![1.0; dims[1]] };
        let weight = has_weight.then_some(&weight);
        let labelling = Labelling { smoothing, weight, ..Default::default() };
        let (sum, log_sum_exp, dx) =
            soft_twin([&x_twin, &target_twin], smoothing, &weights, 0.75);

        let found = x.soft_cross_entropy(&target, &labelling).unwrap();
        let positions = log_sum_exp.len();
        let roundings = 64 * (1 + positions) * (1 + dims[1] / 8);
        assert_close(&found.sum, &Array::new(&[], vec![sum]), roundings);
        assert_close(&found.count, &Array::new(&[], vec![positions as f64]), 0);
        assert_close(&found.log_sum_exp, &log_sum_exp, 16);
        let lse = &found.log_sum_exp;
        let dy = Tensor::full(shared(), [], lse.dtype(), 0.75).unwrap();
        let gradient = dy.soft_cross_entropy_backward(&x, &target, lse, &labelling).unwrap();
        let size = 1.0 + weights.iter().sum::<f64>();
        let tolerance = 4.0 * epsilon(dtype) + 32.0 * size * epsilon(lse.dtype());
        for (found, expected) in download(&gradient).values.iter().zip(&dx.values) {
            let tolerance = tolerance * expected.abs().max(1.0);
            prop_assert!((found - expected).abs() <= tolerance, "{found}, not {expected}");
        }
        let (mut logits, target) = (x.copied().unwrap(), target.contiguous().unwrap());
        logits.soft_cross_entropy_backward_(&target, lse, &dy, &labelling).unwrap();
        prop_assert_eq!(download(&logits), download(&gradient));
    }

    #[test]
    fn nll_loss_and_its_gradient_follow_the_definition(
        (dims, labels) in shapes().prop_flat_map(|dims| {
            let label = prop_oneof![1 => Just(IGNORED), 3 => 0..dims[1] as i64];
            let len = dims.iter().product::<usize>() / dims[1];
            (Just(dims), prop::collection::vec(label, len))
        }),
        has_weight in any::<bool>(),
        style in styles(),
        dtype in all_floats(),
    ) {
        let (x, x_twin) = sample(&dims, style, dtype, 1);
        let positions = [&dims[..1], &dims[2..]].concat();
        let target = strided_labels(&labels).reshape(&positions[..]).unwrap();
        let weight = upload(shared(), &Array::pattern(&dims[1..2], 3).map(|w| w + 2.0), dtype);
        let weights = if has_weight { download(&weight).values } else { vec![1.0; dims[1]] };
        let weight = has_weight.then_some(&weight);
        let (mut sum, mut count, mut dx) = (0.0, 0.0, x_twin.map(|_| 0.0));
        for (position, &label) in labels.iter().enumerate().filter(|&(_, &l)| l != IGNORED) {
            let at = with_class(&index_of(&positions, position), label as usize);
            let flat = at.iter().zip(&dims).fold(0, |flat, (at, dim)| flat * dim + at);
            sum -= weights[label as usize] * x_twin.at(&at);
            count += weights[label as usize];
            dx.values[flat] = -0.75 * weights[label as usize];
        }
        let (found_sum, found_count) = x.nll_loss(&target, IGNORED, weight).unwrap();
        assert_close(&found_sum, &Array::new(&[], vec![sum]), 1);
        assert_close(&found_count, &Array::new(&[], vec![count]), 1);
        let dy = Tensor::full(shared(), [], found_sum.dtype(), 0.75).unwrap();
        let gradient = dy.nll_loss_backward(*x.shape(), dtype, &target, IGNORED, weight).unwrap();
        assert_close(&gradient, &dx, 1);
    }
}

#[test]
fn soft_cross_entropy_of_one_hot_targets_is_that_of_labels() {
    let (x, _) = sample(&[4, 7], Style::Contiguous, DType::F64, 1);
    let labels = Tensor::from_slice(shared(), [4], &[3_i64, 0, 6, 2]).unwrap();
    let target = labels.one_hot(7, DType::F64).unwrap();
    let soft = x.soft_cross_entropy(&target, &Labelling::default()).unwrap();
    let hard = x.cross_entropy(&labels, IGNORED).unwrap();
    assert_close(&soft.sum, &download(&hard.sum), 4);
    assert_eq!(download(&soft.log_sum_exp), download(&hard.log_sum_exp));
}

#[test]
fn class_without_target_may_have_any_logit() {
    let x = Tensor::from_slice(shared(), [1, 3], &[1.0_f32, f32::NEG_INFINITY, 1.0]).unwrap();
    let target = |values: [f32; 3]| Tensor::from_slice(shared(), [1, 3], &values).unwrap();
    let loss = |target: &Tensor| {
        let found = x.soft_cross_entropy(target, &Labelling::default()).unwrap();
        found.sum.item::<f32>().unwrap()
    };
    assert!((loss(&target([0.5, 0.0, 0.5])) - 2.0_f32.ln()).abs() < 1e-6);
    assert_eq!(loss(&target([0.5, 0.5, 0.0])), f32::INFINITY);
}

#[test]
fn mistakes_of_soft_losses_are_named() {
    let zeros = |dims: &[usize], dtype| Tensor::zeros(shared(), dims, dtype).unwrap();
    let (mut x, default) = (zeros(&[2, 3], DType::F32), Labelling::default());
    let shape = |outcome: lowtide_tensor::TensorResult<Tensor>, name: &str| match outcome {
        Err(TensorError::Shape { op, .. }) => assert_eq!(op, name),
        other => panic!("{other:?}"),
    };
    let dtype = |outcome: lowtide_tensor::TensorResult<Tensor>, name: &str| match outcome {
        Err(TensorError::DType { op, .. }) => assert_eq!(op, name),
        other => panic!("{other:?}"),
    };
    let soft = |x: &Tensor, target: &Tensor| {
        x.soft_cross_entropy(target, &Labelling::default()).map(|found| found.sum)
    };
    shape(soft(&x, &zeros(&[2], DType::F32)), "soft_cross_entropy");
    shape(soft(&zeros(&[2], DType::F32), &zeros(&[2], DType::F32)), "soft_cross_entropy");
    dtype(soft(&x, &zeros(&[2, 3], DType::F64)), "soft_cross_entropy");
    let labels = Tensor::from_slice(shared(), [2], &[0_i64, 3]).unwrap();
    let error = x.nll_loss(&labels, IGNORED, None).unwrap_err();
    assert_eq!(error.to_string(), "nll_loss: label 3 at position 1 is none of 3 classes");
    let (dy, lse) = (zeros(&[], DType::F32), zeros(&[2], DType::F32));
    let backward = |dtype| dy.nll_loss_backward([2, 3].into(), dtype, &labels, 3, None);
    dtype(backward(DType::F64), "nll_loss_backward");
    dtype(backward(DType::I64), "nll_loss_backward");
    let weight = zeros(&[2], DType::F32);
    let outcome = x.nll_loss(&labels, 3, Some(&weight)).map(|found| found.0);
    shape(outcome, "nll_loss");
    let strided = zeros(&[3, 2], DType::F32).t().unwrap();
    let error = x.soft_cross_entropy_backward_(&strided, &lse, &dy, &default).unwrap_err();
    assert!(matches!(error, TensorError::Strided { .. }), "{error}");
}

#[test]
fn soft_losses_agree_with_pytorch() {
    let fixture = fixture("losses");
    let weight = &fixture["weight"];
    let dy = Tensor::full(shared(), [], DType::F32, 0.5).unwrap();
    for shape in ["rows", "image"] {
        for (case, smoothing, weight) in [
            ("plain", 0.0, None),
            ("smooth", 0.2, None),
            ("weighted", 0.0, Some(weight)),
            ("both", 0.3, Some(weight)),
        ] {
            let of = |name: &str| &fixture[&format!("{shape}_{case}.{name}")];
            let labelling = Labelling { smoothing, weight, ..Default::default() };
            let (x, target) = (of("x"), of("target"));
            let found = x.soft_cross_entropy(target, &labelling).unwrap();
            assert_close(&found.sum, &download(of("loss")), 16);
            let lse = &found.log_sum_exp;
            let dx = dy.soft_cross_entropy_backward(x, target, lse, &labelling).unwrap();
            assert_close(&dx, &download(of("dx")), 16);
        }
        for (case, weight) in [("", None), ("_weighted", Some(weight))] {
            let of = |name: &str| &fixture[&format!("nll_{shape}{case}.{name}")];
            let (x, labels) = (of("x"), of("target"));
            let (sum, _) = x.nll_loss(labels, IGNORED, weight).unwrap();
            assert_close(&sum, &download(of("loss")), 16);
            let dx = dy.nll_loss_backward(*x.shape(), DType::F32, labels, IGNORED, weight).unwrap();
            assert_close(&dx, &download(of("dx")), 0);
        }
    }
}
