//! Cross-entropy against the definition, and labels out of range.

use lowtide_tensor::{DType, Tensor, TensorError};
use proptest::prelude::*;

use crate::common::{Style, assert_close, floats, sample, shared, styles, upload};
use crate::naive::{self, Array};

const IGNORED: i64 = -100;

/// Labels as a tensor that is every other element of its storage.
fn strided(labels: &[i64]) -> Tensor {
    let doubled: Vec<i64> = labels.iter().flat_map(|&label| [label, 12345]).collect();
    let pairs = Tensor::from_slice(shared(), [labels.len(), 2], &doubled).unwrap();
    pairs.select(1, 0).unwrap()
}

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
        let target = strided(&labels);
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

#[test]
fn label_out_of_range_is_an_error_in_both_directions() {
    let (x, _) = sample(&[3, 4], Style::Contiguous, DType::F32, 1);
    let labels = |values: [i64; 3]| Tensor::from_slice(shared(), [3], &values).unwrap();
    let lse = Tensor::zeros(shared(), [3], DType::F32).unwrap();
    let dy = Tensor::zeros(shared(), [], DType::F32).unwrap();
    for (bad, index) in [(4, 4), (-1, usize::MAX), (i64::MIN, i64::MIN as usize)] {
        let labels = labels([0, bad, 1]);
        let forward = x.cross_entropy(&labels, IGNORED).unwrap_err();
        let backward = dy.cross_entropy_backward(&x, &labels, &lse, IGNORED).unwrap_err();
        let found = [forward, backward].map(|error| match error {
            TensorError::Index { op, index, len } => (op, index, len),
            other => panic!("{other}"),
        });
        assert_eq!(found, [("cross_entropy", index, 4), ("cross_entropy_backward", index, 4)]);
        // The label that is bad elsewhere may be the one to ignore.
        assert_eq!(x.cross_entropy(&labels, bad).unwrap().count.item::<f32>().unwrap(), 2.0);
    }
}

#[test]
fn large_logits_do_not_overflow() {
    let x = upload(shared(), &Array::new(&[2, 2], vec![1e4, -1e4, 1e4, -1e4]), DType::F32);
    let labels = Tensor::from_slice(shared(), [2], &[0i64, 1]).unwrap();
    assert_eq!(x.cross_entropy(&labels, IGNORED).unwrap().sum.item::<f32>().unwrap(), 2e4);
}
