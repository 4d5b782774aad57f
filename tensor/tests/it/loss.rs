//! Cross-entropy against the definition, and labels out of range.

use lowtide_tensor::{DType, Labelling, Tensor, TensorError};
use proptest::prelude::*;

use crate::common::{
    Style, all_floats, assert_close, download, epsilon, floats, sample, shared, strided_labels,
    styles, upload,
};
use crate::naive::{self, Array};

const IGNORED: i64 = -100;

proptest! {
    #[test]
    fn cross_entropy_and_its_gradient_follow_the_definition(
        (classes, labels) in (1..=9usize).prop_flat_map(|classes| {
            let label = prop_oneof![1 => Just(IGNORED), 3 => 0..classes as i64];
            (Just(classes), prop::collection::vec(label, 0..40))
        }),
        style in styles(),
        dtype in floats(),
    ) {
        let (x, x_twin) = sample(&[labels.len(), classes], style, dtype, 1);
        let target = strided_labels(&labels);
        let (sum, count, dx) = naive::cross_entropy(&x_twin, &labels, IGNORED, 0.75);
        let found = x.cross_entropy(&target, IGNORED).unwrap();
        // Each row rounds its logarithm, and the sum of the rows rounds once.
        assert_close(&found.sum, &Array::new(&[], vec![sum]), 16 * (1 + labels.len()));
        assert_close(&found.count, &Array::new(&[], vec![count]), 0);
        let dy = Tensor::full(shared(), [], dtype, 0.75).unwrap();
        let lse = &found.log_sum_exp;
        let gradient = dy.cross_entropy_backward(&x, &target, lse, IGNORED).unwrap();
        assert_close(&gradient, &dx, 16);
        let rows = labels.len();
        let lse = lse.expand([2, rows]).unwrap().transpose(0, 1).unwrap().copied().unwrap();
        let lse = lse.select(1, 1).unwrap();
        let again = dy.cross_entropy_backward(&x, &target, &lse, IGNORED).unwrap();
        prop_assert_eq!(crate::common::download(&gradient), crate::common::download(&again));
    }
}

/// The sum, the count and the gradient of the logits `[N, C, inner]`, position by position.
fn twin(x: &Array, labels: &[i64], smoothing: f64, weight: &[f64], dy: f64) -> ([f64; 2], Array) {
    let [_, classes, inner] = x.dims[..] else { unreachable!("three dimensions") };
    let (mut sum, mut count, mut dx) = (0.0, 0.0, x.map(|_| 0.0));
    for (position, &label) in labels.iter().enumerate().filter(|&(_, &label)| label != IGNORED) {
        let place = |c: usize| (position / inner * classes + c) * inner + position % inner;
        let row: Vec<f64> = (0..classes).map(|c| x.values[place(c)]).collect();
        let total: f64 = row.iter().map(|x| x.exp()).sum();
        // The weighted target of each class.
        let target = |c: usize| {
            let own = if c as i64 == label { (1.0 - smoothing) * weight[c] } else { 0.0 };
            own + smoothing / classes as f64 * weight[c]
        };
        let target_sum: f64 = (0..classes).map(target).sum();
        sum += (0..classes).map(|c| target(c) * (total.ln() - row[c])).sum::<f64>();
        count += weight[label as usize];
        for (c, x) in row.iter().enumerate() {
            dx.values[place(c)] = dy * (x.exp() / total * target_sum - target(c));
        }
    }
    ([sum, count], dx)
}

proptest! {
    #[test]
    fn smoothed_and_weighted_cross_entropy_follows_the_definition(
        (dims, labels) in (0..4usize, prop::sample::select(vec![1usize, 2, 7, 17, 90]), 0..2usize)
            .prop_flat_map(|(outer, classes, is_long)| {
                let label = prop_oneof![1 => Just(IGNORED), 3 => 0..classes as i64];
                let inner = [vec![3, 2], vec![73]][is_long].clone();
                let (inner, len) = (inner.clone(), outer * inner.iter().product::<usize>());
                let dims = [vec![outer, classes], inner].concat();
                (Just(dims), prop::collection::vec(label, len))
            }),
        is_flat in any::<bool>(), has_weight in any::<bool>(),
        smoothing in prop::sample::select(vec![0.0, 0.25, 1.0]),
        style in styles(), dtype in all_floats(),
    ) {
        // Without inner dimensions, the classes lie side by side.
        let inner: usize = dims[2..].iter().product();
        let (dims, label_dims) = if is_flat {
            (vec![labels.len(), dims[1]], vec![labels.len()])
        } else {
            (dims.clone(), [&dims[..1], &dims[2..]].concat())
        };
        let inner = if is_flat { 1 } else { inner };
        let (x, x_twin) = sample(&dims, style, dtype, 1);
        let target = Tensor::from_slice(shared(), &label_dims[..], &labels).unwrap();
        let (weight, weight_twin) = sample(&[dims[1]], Style::Narrowed, dtype, 2);
        let weight_twin = weight_twin.map(|w| w + 2.0);
        let weight = weight.add_scalar(2.0).unwrap();
        let ones = vec![1.0; dims[1]];
        let (weight, w) =
            if has_weight { (Some(&weight), &weight_twin.values) } else { (None, &ones) };
        let labelling = Labelling { ignore_index: IGNORED, smoothing, weight };
        let x_flat = x_twin.reshape(&[labels.len() / inner, dims[1], inner]);
        let ([sum, count], dx) = twin(&x_flat, &labels, smoothing, w, 0.75);

        let found = x.cross_entropy_with(&target, &labelling).unwrap();
        let lse = &found.log_sum_exp;
        // Each position has a few roundings of the type of the sum for each class.
        let roundings = 16 * (1 + labels.len()) * (1 + dims[1] / 8);
        assert_close(&found.sum, &Array::new(&[], vec![sum]), roundings);
        assert_close(&found.count, &Array::new(&[], vec![count]), roundings);
        let dy = Tensor::full(shared(), [], lse.dtype(), 0.75).unwrap();
        let gradient = dy.cross_entropy_with_backward(&x, &target, lse, &labelling).unwrap();
        let size = 1.0 + w.iter().sum::<f64>();
        let tolerance = 4.0 * epsilon(dtype) + 32.0 * size * epsilon(lse.dtype());
        for (found, expected) in download(&gradient).values.iter().zip(&dx.values) {
            let tolerance = tolerance * expected.abs().max(1.0);
            prop_assert!((found - expected).abs() <= tolerance, "{found}, not {expected}");
        }
        let mut logits = x.copied().unwrap();
        let weight = weight.map(|weight| weight.contiguous().unwrap());
        let labelling = Labelling { weight: weight.as_ref(), ..labelling };
        logits.cross_entropy_backward_(&target, lse, &dy, &labelling).unwrap();
        prop_assert_eq!(download(&logits), download(&gradient));
    }
}

#[test]
fn label_out_of_range_leaves_the_logits_as_they_were() {
    let (mut x, twin) = sample(&[3, 4, 5], Style::Contiguous, DType::F32, 1);
    let mut labels = vec![1i64; 15];
    labels[13] = 4;
    let labels = Tensor::from_slice(shared(), [3, 5], &labels).unwrap();
    let lse = Tensor::zeros(shared(), [3, 5], DType::F32).unwrap();
    let dy = Tensor::ones(shared(), [], DType::F32).unwrap();
    let error = x.cross_entropy_backward_(&labels, &lse, &dy, &Labelling::default()).unwrap_err();
    let text = "cross_entropy_backward: label 4 at position 13 is none of 4 classes";
    assert_eq!(error.to_string(), text);
    assert!(x.cross_entropy(&labels, IGNORED).is_err());
    assert_eq!(download(&x), twin);
}

#[test]
fn label_out_of_range_is_an_error_in_both_directions() {
    let (x, _) = sample(&[3, 4], Style::Contiguous, DType::F32, 1);
    let labels = |values: [i64; 3]| Tensor::from_slice(shared(), [3], &values).unwrap();
    let lse = Tensor::zeros(shared(), [3], DType::F32).unwrap();
    let dy = Tensor::zeros(shared(), [], DType::F32).unwrap();
    for bad in [4, -1, i64::MIN] {
        let labels = labels([0, bad, 1]);
        let forward = x.cross_entropy(&labels, IGNORED).unwrap_err();
        let backward = dy.cross_entropy_backward(&x, &labels, &lse, IGNORED).unwrap_err();
        let found = [forward, backward].map(|error| match error {
            TensorError::Label { op, position: 1, label, class_count: 4 } => (op, label),
            other => panic!("{other}"),
        });
        assert_eq!(found, [("cross_entropy", bad), ("cross_entropy_backward", bad)]);
        // A label that is wrong elsewhere may be the label to ignore.
        assert_eq!(x.cross_entropy(&labels, bad).unwrap().count.item::<f32>().unwrap(), 2.0);
    }
}

#[test]
fn without_positions_there_is_no_loss() {
    let device = crate::common::cpu(1);
    for dims in [&[2, 3, 0][..], &[0, 3], &[0, 3, 4]] {
        // Leaves old values in memory that workspace may get.
        drop(Tensor::full(&device, [1000], DType::F64, 7.0).unwrap());
        let x = Tensor::zeros(&device, dims, DType::F32).unwrap();
        let positions = [&dims[..1], &dims[2..]].concat();
        let labels = Tensor::zeros(&device, &positions[..], DType::I64).unwrap();
        let found = x.cross_entropy(&labels, IGNORED).unwrap();
        let values = [&found.sum, &found.count].map(|x| x.item::<f32>().unwrap());
        assert_eq!(values, [0.0; 2], "{dims:?}");
    }
}

#[test]
fn large_logits_do_not_overflow() {
    let x = upload(shared(), &Array::new(&[2, 2], vec![1e4, -1e4, 1e4, -1e4]), DType::F32);
    let labels = Tensor::from_slice(shared(), [2], &[0i64, 1]).unwrap();
    assert_eq!(x.cross_entropy(&labels, IGNORED).unwrap().sum.item::<f32>().unwrap(), 2e4);
}

#[test]
fn the_first_label_out_of_range_is_named() {
    let x = Tensor::zeros(shared(), [20_000, 3], DType::F32).unwrap();
    let mut labels = vec![1i64; 20_000];
    let first_of = |labels: &[i64]| {
        let labels = Tensor::from_slice(shared(), [20_000], labels).unwrap();
        match x.cross_entropy(&labels, IGNORED) {
            Ok(_) => None,
            Err(TensorError::Label { position, label, .. }) => Some((position, label)),
            Err(other) => panic!("{other}"),
        }
    };
    assert_eq!(first_of(&labels), None);
    labels[19_000] = 3;
    assert_eq!(first_of(&labels), Some((19_000, 3)));
    labels[2500] = 7;
    assert_eq!(first_of(&labels), Some((2500, 7)));
}

#[test]
fn logits_that_are_not_finite_spoil_their_row_alone() {
    let of = |x: [f32; 2], label: i64| {
        let x = Tensor::from_slice(shared(), [1, 2], &x).unwrap();
        let labels = Tensor::from_slice(shared(), [1], &[label]).unwrap();
        x.cross_entropy(&labels, IGNORED).unwrap().sum.item::<f32>().unwrap()
    };
    assert_eq!(of([1000.0, -1000.0], 0), 0.0);
    assert_eq!(of([1000.0, -1000.0], 1), 2000.0);
    assert!(of([f32::NAN, 0.0], 1).is_nan());
    assert_eq!(of([f32::NEG_INFINITY, 4.0], 1), 0.0);
    assert_eq!(of([f32::NAN, 0.0], IGNORED), 0.0);
}
