//! The sum over alignments against a loop over all alignments.

use lowtide_tensor::{DType, Tensor, TensorError};

use crate::common::{download, shared};
use crate::naive::Array;

const CLASSES: usize = 3;

/// The labels that an alignment spells: repeated classes merged, then blanks left out.
fn spelled(alignment: &[usize], blank: usize) -> Vec<usize> {
    let mut labels = alignment.to_vec();
    labels.dedup();
    labels.retain(|&label| label != blank);
    labels
}

/// `-ln Σ Π p` over all alignments of `steps` steps that spell the target.
fn brute_force(x: &Array, [sample, steps]: [usize; 2], target: &[usize], blank: usize) -> f64 {
    let samples = x.dims[1];
    let mut sum = 0.0;
    for number in 0..CLASSES.pow(steps as u32) {
        let alignment: Vec<usize> =
            (0..steps).map(|step| number / CLASSES.pow(step as u32) % CLASSES).collect();
        if spelled(&alignment, blank) == target {
            let at = |(step, &class): (usize, &usize)| {
                x.values[(step * samples + sample) * CLASSES + class]
            };
            sum += alignment.iter().enumerate().map(at).sum::<f64>().exp();
        }
    }
    -sum.ln()
}

#[test]
fn ctc_loss_is_the_sum_over_all_alignments() {
    let device = shared();
    let targets: [&[i64]; 6] = [&[1, 2], &[1, 1], &[2, 1, 2], &[], &[2], &[1, 1, 2]];
    for (blank, swap) in [(0_usize, [0, 1, 2]), (2, [2, 1, 0])] {
        let padded: Vec<i64> = (targets.iter())
            .flat_map(|labels| (0..3).map(|i| labels.get(i).map_or(77, |&l| swap[l as usize])))
            .collect();
        let lens: Vec<i64> = targets.iter().map(|labels| labels.len() as i64).collect();
        let steps = [5_i64, 4, 3, 2, 0, 1];
        let x = Array::pattern(&[5, 6, CLASSES], 3).map(|x| x / 3.0 - 1.0);
        let numbers = Tensor::from_slice(device, [5, 6, CLASSES], &x.values).unwrap();
        let padded = Tensor::from_slice(device, [6, 3], &padded).unwrap();
        let [step, len] =
            [&steps[..], &lens].map(|lens| Tensor::from_slice(device, [6], lens).unwrap());
        let loss = numbers.ctc_loss(&padded, [&step, &len], blank).unwrap();
        let found = download(&loss).values;
        for (sample, labels) in targets.iter().enumerate() {
            let target: Vec<usize> =
                labels.iter().map(|&label| swap[label as usize] as usize).collect();
            let expected = brute_force(&x, [sample, steps[sample] as usize], &target, blank);
            let found = found[sample];
            let is_near = (found - expected).abs() <= 64.0 * f64::EPSILON * expected.abs().max(1.0);
            assert!(is_near || found == expected, "{sample}: {found}, not {expected}");
        }
        // The last two samples have too few steps, so their gradient is NaN unless their dy is 0.
        let seed = Tensor::from_slice(device, [6], &[1.0, 2.0, 1.0, 1.0, 1.0, 0.0]).unwrap();
        let dx = seed.ctc_loss_backward(&numbers, &padded, [&step, &len], blank).unwrap();
        let dx = download(&dx).values;
        for sample in 0..4 {
            for t in 0..5 {
                let row = &dx[(t * 6 + sample) * CLASSES..][..CLASSES];
                // At each step that counts, the gradients of all classes sum to -dy.
                let expected =
                    if t < steps[sample] as usize { -[1.0, 2.0, 1.0, 1.0][sample] } else { 0.0 };
                let found: f64 = row.iter().sum();
                assert!((found - expected).abs() < 1e-13, "{sample} {t}: {found}, not {expected}");
            }
        }
        assert!(dx[5 * CLASSES..6 * CLASSES].iter().all(|&x| x == 0.0), "{dx:?}");
    }
}

#[test]
fn lengths_and_labels_that_do_not_fit_are_errors() {
    let device = shared();
    let x = Tensor::zeros(device, [4, 2, CLASSES], DType::F32).unwrap();
    let loss = |targets: &[i64; 4], steps: &[i64; 2], lens: &[i64; 2], blank| {
        let targets = Tensor::from_slice(device, [2, 2], targets).unwrap();
        let [steps, lens] = [steps, lens].map(|x| Tensor::from_slice(device, [2], x).unwrap());
        x.ctc_loss(&targets, [&steps, &lens], blank)
    };
    assert!(loss(&[1, 2, 2, 9], &[4, 4], &[2, 1], 0).is_ok());
    let error = loss(&[1, 2, 2, 9], &[4, 4], &[2, 2], 0).unwrap_err();
    assert!(matches!(error, TensorError::Label { position: 3, label: 9, .. }), "{error}");
    for (steps, lens, blank) in
        [([5, 4], [2, 1], 0), ([4, -1], [2, 1], 0), ([4, 4], [3, 1], 0), ([4, 4], [2, 1], 3)]
    {
        let error = loss(&[1, 2, 2, 9], &steps, &lens, blank).unwrap_err();
        assert!(matches!(error, TensorError::Index { .. }), "{error}");
    }
    let floats = Tensor::zeros(device, [2, 2], DType::F32).unwrap();
    let lens = Tensor::from_slice(device, [2], &[1_i64, 1]).unwrap();
    let error = x.ctc_loss(&floats, [&lens, &lens], 0).unwrap_err();
    assert!(matches!(error, TensorError::DType { .. }), "{error}");
    let error = x.ctc_loss(&lens, [&lens, &lens], 0).unwrap_err();
    assert!(matches!(error, TensorError::Shape { .. }), "{error}");
}
