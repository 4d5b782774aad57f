//! The fused linear layer and cross-entropy against the definition, and the memory of the fused
//! operation.

use lowtide_tensor::{
    DType, DeviceKind, LinearCrossEntropyOptions, Tensor, TensorError,
    linear_cross_entropy_workspace_bytes,
};
use proptest::prelude::*;

use crate::common::{
    Style, all_floats, assert_close, download, sample, shared, strided_labels, styles,
};
use crate::golden::fixture;
use crate::naive::Array;

const IGNORED: i64 = -100;

/// The cross-entropy of `x wᵀ + b` with smoothing, and its gradients for `dy`, by the definition.
fn linear_loss(
    [x, w, b]: [&Array; 3],
    labels: &[i64],
    smoothing: f64,
    dy: f64,
) -> (f64, [Array; 3]) {
    let logits = x.matmul(&w.permute(&[1, 0])).zip(b, &[x.dims[0], w.dims[0]], |y, b| y + b);
    let classes = w.dims[0];
    let mut sum = 0.0;
    let mut dlogits = logits.map(|_| 0.0);
    for (row, &label) in labels.iter().enumerate().filter(|&(_, &label)| label != IGNORED) {
        let z = |c: usize| logits.at(&[row, c]);
        let lse = (0..classes).map(|c| z(c).exp()).sum::<f64>().ln();
        for c in 0..classes {
            let target =
                smoothing / classes as f64 + if c as i64 == label { 1.0 - smoothing } else { 0.0 };
            sum += target * (lse - z(c));
            dlogits.values[row * classes + c] = dy * ((z(c) - lse).exp() - target);
        }
    }
    let dw = dlogits.permute(&[1, 0]).matmul(x);
    let (dx, db) = (dlogits.matmul(w), dlogits.sum(&[0]));
    (sum, [dx, dw, db])
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn linear_cross_entropy_is_the_loss_of_the_linear_layer(
        (classes, labels) in prop_oneof![1..=9usize, 60..=300usize].prop_flat_map(|classes| {
            let label = prop_oneof![1 => Just(IGNORED), 3 => 0..classes as i64];
            (Just(classes), prop::collection::vec(label, 0..300))
        }),
        dim in 0..=20usize,
        styles in [styles(), styles()],
        dtype in all_floats(),
        is_wide in any::<bool>(),
        has_bias in any::<bool>(),
        smoothing in prop::sample::select(vec![0.0, 0.25]),
    ) {
        let rows = labels.len();
        let (x, x_twin) = sample(&[rows, dim], styles[0], dtype, 1);
        let (w, w_twin) = sample(&[classes, dim], styles[1], dtype, 2);
        let (b, b_twin) = sample(&[classes], Style::Transposed, dtype, 3);
        let b_twin = if has_bias { b_twin } else { b_twin.map(|_| 0.0) };
        let b = has_bias.then_some(&b);
        let target = strided_labels(&labels);
        let dy = 0.75;
        let options =
            LinearCrossEntropyOptions { ignore_index: IGNORED, label_smoothing: smoothing };
        let twins = [&x_twin, &w_twin, &b_twin];
        let (sum, [dx, dw, db]) = linear_loss(twins, &labels, smoothing, dy);
        let count = labels.iter().filter(|&&label| label != IGNORED).count() as f64;
        let found = x.linear_cross_entropy(&w, b, &target, &options).unwrap();
        assert_close(&found.sum, &Array::new(&[], vec![sum]), 64 * (1 + rows));
        assert_close(&found.count, &Array::new(&[], vec![count]), 0);

        let is_half = dtype.size_bytes() == 2;
        let sum_dtype = if is_half && is_wide { DType::F32 } else { dtype };
        let (mut dw_sum, dw_before) = sample(&[classes, dim], Style::Narrowed, sum_dtype, 4);
        let (mut db_sum, db_before) = sample(&[classes], Style::Narrowed, sum_dtype, 5);
        let dy = Tensor::full(shared(), [], found.sum.dtype(), dy).unwrap();
        let db_sum = has_bias.then_some(&mut db_sum);
        let (again, dx_found) = x
            .linear_cross_entropy_gradients(&w, b, &target, &options, &dy, &mut dw_sum, db_sum)
            .unwrap();
        prop_assert_eq!(again.sum.to_bytes().unwrap(), found.sum.to_bytes().unwrap());
        let (again, dx_alone) =
            x.linear_cross_entropy_input_gradient(&w, b, &target, &options, &dy).unwrap();
        prop_assert_eq!(again.sum.to_bytes().unwrap(), found.sum.to_bytes().unwrap());
        prop_assert_eq!(dx_alone.to_bytes().unwrap(), dx_found.to_bytes().unwrap());
        // Sums over classes or rows of terms of a few roundings each; half types round a sum
        // once for each chunk.
        assert_close(&dx_found, &dx, 16 * (4 + classes));
        let expected = dw_before.zip(&dw, &dw.dims, |a, b| a + b);
        assert_close(&dw_sum, &expected, 16 * (4 + rows));
        if has_bias {
            let (mut db_sum, _) = sample(&[classes], Style::Narrowed, sum_dtype, 5);
            let (mut dw_sum, _) = sample(&[classes, dim], Style::Contiguous, sum_dtype, 4);
            x.linear_cross_entropy_gradients(
                &w, b, &target, &options, &dy, &mut dw_sum, Some(&mut db_sum),
            )
            .unwrap();
            let expected = db_before.zip(&db, &db.dims, |a, b| a + b);
            assert_close(&db_sum, &expected, 16 * (4 + rows));
        }
    }
}

#[test]
fn bad_label_leaves_the_gradients_of_a_linear_layer_as_they_were() {
    let (x, _) = sample(&[3, 4], Style::Contiguous, DType::F32, 1);
    let (w, _) = sample(&[5, 4], Style::Contiguous, DType::F32, 2);
    let (mut dw, before) = sample(&[5, 4], Style::Contiguous, DType::F32, 3);
    let labels = Tensor::from_slice(shared(), [3], &[0i64, 4, 5]).unwrap();
    let dy = Tensor::ones(shared(), [], DType::F32).unwrap();
    let options = LinearCrossEntropyOptions::default();
    let error = x
        .linear_cross_entropy_gradients(&w, None, &labels, &options, &dy, &mut dw, None)
        .unwrap_err();
    assert!(matches!(error, TensorError::Label { position: 2, label: 5, .. }), "{error}");
    crate::common::assert_same(&dw, &before);
    let error = x.linear_cross_entropy(&w, None, &labels, &options).unwrap_err();
    assert!(matches!(error, TensorError::Label { op: "linear_cross_entropy", .. }), "{error}");
}

#[test]
fn logits_of_a_linear_layer_are_never_all_there() {
    let device = crate::common::cpu(2);
    let [rows, dim, classes] = [512, 8, 4096];
    let x = Tensor::ones(&device, [rows, dim], DType::F32).unwrap();
    let w = Tensor::ones(&device, [classes, dim], DType::F32).unwrap();
    let labels = Tensor::zeros(&device, [rows], DType::I64).unwrap();
    let allocator = device.allocator();
    let options = LinearCrossEntropyOptions::default();
    x.linear_cross_entropy(&w, None, &labels, &options).unwrap();
    allocator.reset_peaks();
    let held = allocator.statistics().allocated.current_bytes;
    x.linear_cross_entropy(&w, None, &labels, &options).unwrap();
    let taken = allocator.statistics().allocated.peak_bytes - held;
    let bound =
        linear_cross_entropy_workspace_bytes(DeviceKind::Cpu, [rows, dim, classes], DType::F32);
    // In addition to the workspace: the sum, the count and the rounding of four blocks.
    assert!(taken <= bound + 4 * 512 && bound * 3 < rows * classes * 4, "{taken} {bound}");
}

#[test]
fn linear_cross_entropy_agrees_with_pytorch() {
    let fixture = fixture("language");
    let [x, w, b, labels] = ["x", "w", "b", "labels"].map(|name| &fixture[name]);
    let ignored = Tensor::full(shared(), [9], DType::I64, IGNORED as f64).unwrap();
    for (case, label_smoothing, has_bias, labels) in [
        ("plain", 0.0, false, labels),
        ("bias", 0.0, true, labels),
        ("smooth", 0.3, true, labels),
        ("ignored", 0.3, true, &ignored),
    ] {
        let of = |name: &str| download(&fixture[&format!("{case}.{name}")]);
        let options = LinearCrossEntropyOptions { label_smoothing, ..Default::default() };
        let dy = Tensor::full(shared(), [], DType::F32, 0.5).unwrap();
        let mut dw = Tensor::zeros(shared(), *w.shape(), DType::F32).unwrap();
        let mut db = Tensor::zeros(shared(), *b.shape(), DType::F32).unwrap();
        let (found, dx) = x
            .linear_cross_entropy_gradients(
                w,
                has_bias.then_some(b),
                labels,
                &options,
                &dy,
                &mut dw,
                has_bias.then_some(&mut db),
            )
            .unwrap();
        assert_close(&found.sum, &of("loss"), 64);
        assert_close(&dx, &of("dx"), 64);
        assert_close(&dw, &of("dw"), 64);
        if has_bias {
            assert_close(&db, &of("db"), 64);
        }
    }
}
