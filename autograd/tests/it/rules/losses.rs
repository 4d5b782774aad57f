use lowtide_tensor::{Labelling, PairLoss, Tensor};

use super::{AROUND_ZERO, Cases};
use crate::common::values;

/// Probabilities away from both ends.
const PROBABILITY: [f64; 2] = [0.1, 0.9];

pub(super) fn all(cases: &mut Cases) {
    for labels in [vec![2_i64, 0, 1, 2], vec![-100, 0, -100, 1]] {
        cases.unary("cross_entropy", &[4, 3], AROUND_ZERO, move |x| {
            let labels = Tensor::from_slice(x.value().device(), [4], &labels)?;
            Ok(x.cross_entropy(&labels, -100)?.0)
        });
    }
    with_options(cases);
    pairs(cases);
}

fn with_options(cases: &mut Cases) {
    const LABELS: [i64; 6] = [2, 7, 1, 2, 0, 7];
    for shape in [&[6, 3][..], &[2, 3, 3], &[1, 3, 2, 3]] {
        for (smoothing, has_weight) in [(0.0, false), (0.2, false), (0.0, true), (0.3, true)] {
            cases.unary("cross_entropy_with", shape, AROUND_ZERO, move |x| {
                let device = x.value().device().clone();
                let positions = [&x.shape()[..1], &x.shape()[2..]].concat();
                let labels = Tensor::from_slice(&device, &positions[..], &LABELS)?;
                let weight = Tensor::from_slice(&device, [3], &[0.5, 2.0, 1.25])?;
                let weight = has_weight.then_some(&weight);
                let labelling = Labelling { ignore_index: 7, smoothing, weight };
                // Both where the logits are somebody else's and where they are the record's.
                let other = x.clone().exp()?.cross_entropy_with(&labels, labelling)?.0;
                x.cross_entropy_with(&labels, labelling)?.0.add(other)
            });
        }
    }
}

fn pairs(cases: &mut Cases) {
    let losses = [
        (PairLoss::SquaredError, AROUND_ZERO),
        (PairLoss::AbsoluteError, AROUND_ZERO),
        (PairLoss::SmoothL1 { beta: 0.5 }, AROUND_ZERO),
        (PairLoss::Huber { delta: 0.4 }, AROUND_ZERO),
        (PairLoss::BinaryCrossEntropy, PROBABILITY),
        (PairLoss::BinaryCrossEntropyOfLogits, AROUND_ZERO),
        (PairLoss::KlDivergence, AROUND_ZERO),
        (PairLoss::KlDivergenceOfLog, AROUND_ZERO),
    ];
    for (loss, range) in losses {
        for (shape, target) in [(&[2, 3][..], &[2, 3][..]), (&[2, 3, 2], &[3, 1]), (&[], &[])] {
            cases.unary("pair_loss", shape, range, move |x| {
                let numbers = values("target", target.iter().product(), 0.05, 0.95);
                let target = Tensor::from_slice(x.value().device(), target, &numbers)?;
                x.pair_loss(&target, loss)
            });
        }
    }
    cases.unary("pair_loss_weighted", &[3, 4], AROUND_ZERO, |x| {
        let device = x.value().device().clone();
        let target = Tensor::from_slice(&device, [3, 4], &values("target", 12, 0.0, 1.0))?;
        let weight = Tensor::from_slice(&device, [4], &[0.5, 1.0, 2.0, 3.0])?;
        x.pair_loss_weighted(&target, PairLoss::BinaryCrossEntropyOfLogits, Some(&weight))
    });
}
