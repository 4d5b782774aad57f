//! Losses of pairs against the definition, and their gradients against finite differences.

use lowtide_tensor::{DType, PairLoss, Tensor};
use proptest::prelude::*;

use crate::common::{Style, all_floats, download, epsilon, laid_out, shapes, shared, styles};
use crate::naive::Array;

const LOSSES: [PairLoss; 9] = [
    PairLoss::SquaredError,
    PairLoss::AbsoluteError,
    PairLoss::SmoothL1 { beta: 0.75 },
    PairLoss::SmoothL1 { beta: 0.0 },
    PairLoss::Huber { delta: 0.75 },
    PairLoss::BinaryCrossEntropy,
    PairLoss::BinaryCrossEntropyOfLogits,
    PairLoss::KlDivergence,
    PairLoss::KlDivergenceOfLog,
];

fn value(loss: PairLoss, x: f64, t: f64, w: f64) -> f64 {
    let d = (x - t).abs();
    match loss {
        PairLoss::SquaredError => d * d,
        PairLoss::AbsoluteError => d,
        PairLoss::SmoothL1 { beta } if d < beta => 0.5 * d * d / beta,
        PairLoss::SmoothL1 { beta } => d - 0.5 * beta,
        PairLoss::Huber { delta } if d <= delta => 0.5 * d * d,
        PairLoss::Huber { delta } => delta * (d - 0.5 * delta),
        PairLoss::BinaryCrossEntropy => {
            -t * x.ln().max(-100.0) - (1.0 - t) * (1.0 - x).ln().max(-100.0)
        }
        PairLoss::BinaryCrossEntropyOfLogits => {
            let p = 1.0 / (1.0 + (-x).exp());
            -w * t * p.ln() - (1.0 - t) * (1.0 - p).ln()
        }
        PairLoss::KlDivergence if t == 0.0 => 0.0,
        PairLoss::KlDivergence => t * (t.ln() - x),
        PairLoss::KlDivergenceOfLog => t.exp() * (t - x),
    }
}

/// Operands in the loss's domain, far enough from its kinks for finite differences.
fn operands(loss: PairLoss, dims: &[usize]) -> [Array; 3] {
    let [a, b, c] = [1, 2, 3].map(|seed| Array::pattern(dims, seed));
    let unit = |x: &Array| x.map(|x| (x + 2.0) / 4.0);
    let w = c.map(|x| x + 2.0);
    match loss {
        PairLoss::BinaryCrossEntropy => [unit(&a), unit(&b), w],
        PairLoss::BinaryCrossEntropyOfLogits => [a, unit(&b), w],
        PairLoss::KlDivergence => [a, b.map(|x| x.max(0.0)), w],
        PairLoss::KlDivergenceOfLog => [a, b, w],
        // Distances are odd multiples of 1/16; no kink is.
        _ => [a.map(|x| x + 0.0625), b, w],
    }
}

proptest! {
    #[test]
    fn sums_and_gradients_follow_the_definition(
        dims in prop_oneof![4 => shapes(), 1 => Just(vec![3, 700])],
        loss in prop::sample::select(LOSSES.to_vec()),
        x_style in styles(), t_style in styles(), dtype in all_floats(),
        is_weighted in any::<bool>(),
    ) {
        let twins = operands(loss, &dims);
        // An expanded view repeats its first slice.
        let repeat = |array: &Array, style: Style| match (style, &dims[..]) {
            (Style::Expanded, &[first, ..]) if first > 1 => array.narrow(0, 0, 1).expand(&dims),
            _ => array.clone(),
        };
        let twins = [repeat(&twins[0], x_style), repeat(&twins[1], t_style), twins[2].clone()];
        let x = laid_out(&twins[0], x_style, dtype);
        let t = laid_out(&twins[1], t_style, dtype);
        let w = laid_out(&twins[2], Style::Narrowed, dtype);
        let w = is_weighted.then_some(&w);
        // Values of the operands, after rounding to their type.
        let [x_twin, t_twin] = [&x, &t].map(download);
        let terms = |i: usize, x: f64| {
            let w = w.map_or(1.0, |_| twins[2].values[i]);
            value(loss, x, t_twin.values[i], w)
        };
        let expected: Vec<f64> =
            x_twin.values.iter().enumerate().map(|(i, &x)| terms(i, x)).collect();
        let sum: f64 = expected.iter().sum();
        let size: f64 = expected.iter().map(|x| x.abs().max(1.0)).sum();

        let found = x.pair_loss_weighted(&t, loss, w).unwrap();
        prop_assert!(found.shape().is_empty());
        let eps = epsilon(found.dtype());
        let error = (download(&found).values[0] - sum).abs();
        // The twin adds its terms one after the other, in f64.
        let tolerance = 16.0 * eps + x_twin.len() as f64 * f64::EPSILON;
        prop_assert!(error <= tolerance * size, "{} of {}", error, sum);

        let each = x.pair_loss_terms(&t, loss, w).unwrap();
        prop_assert_eq!((&**each.shape(), each.dtype()), (&dims[..], dtype));
        for (expected, found) in expected.iter().zip(download(&each).values) {
            let tolerance = 16.0 * epsilon(dtype) * expected.abs().max(1.0);
            prop_assert!((found - expected).abs() <= tolerance, "{found}, not {expected}");
        }

        let seed = Tensor::full(shared(), [], found.dtype(), 0.75).unwrap();
        let dx = seed.pair_loss_weighted_backward(&x, &t, loss, w).unwrap();
        prop_assert_eq!(&**dx.shape(), &dims[..]);
        for (i, (&x, found)) in x_twin.values.iter().zip(download(&dx).values).enumerate() {
            let step = 1e-6;
            let slope = (terms(i, x + step) - terms(i, x - step)) / (2.0 * step);
            let tolerance = (16.0 * epsilon(dtype) + 1e-7) * slope.abs().max(1.0);
            let expected = 0.75 * slope;
            prop_assert!((found - expected).abs() <= tolerance, "{found}, not {expected}");
        }
    }
}

#[test]
fn target_broadcasts_to_x() {
    let x = Tensor::from_slice(shared(), [2, 2], &[1.0f32, 2.0, 3.0, 4.0]).unwrap();
    let t = Tensor::from_slice(shared(), [2], &[1.0f32, 0.0]).unwrap();
    let sum = x.pair_loss(&t, PairLoss::SquaredError).unwrap();
    assert_eq!(sum.item::<f32>().unwrap(), 24.0);
    assert!(t.pair_loss(&x, PairLoss::SquaredError).is_err());
}

#[test]
fn sum_of_half_types_does_not_overflow_them() {
    let x = Tensor::full(shared(), [300, 300], DType::F16, 100.0).unwrap();
    let t = Tensor::zeros(shared(), [], DType::F16).unwrap();
    let sum = x.pair_loss(&t, PairLoss::SquaredError).unwrap();
    assert_eq!((sum.dtype(), sum.item::<f32>().unwrap()), (DType::F32, 9e8));
}
