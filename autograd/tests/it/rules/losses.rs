use lowtide_tensor::{Labelling, LinearCrossEntropyOptions, PairLoss, Tensor};

use super::{AROUND_ZERO, Cases, with_weight};
use crate::common::values;

/// Probabilities away from 0 and 1.
const PROBABILITY: [f64; 2] = [0.1, 0.9];

pub(super) fn all(cases: &mut Cases) {
    for labels in [vec![2_i64, 0, 1, 2], vec![-100, 0, -100, 1]] {
        cases.unary("cross_entropy", &[4, 3], AROUND_ZERO, move |x| {
            let labels = Tensor::from_slice(x.value().device(), [4], &labels)?;
            Ok(x.cross_entropy(&labels, -100)?.0)
        });
    }
    with_options(cases);
    soft(cases);
    of_probabilities(cases);
    of_a_linear_layer(cases);
    pairs(cases);
    rows(cases);
}

fn rows(cases: &mut Cases) {
    for order in [0.0, 0.7, 1.0, 1.5, 2.0, 3.0, f64::INFINITY] {
        for shapes in [[&[4, 3][..], &[2, 3]], [&[2, 1, 3, 2], &[4, 2, 2]], [&[2, 0], &[3, 0]]] {
            cases.add("cdist", &shapes, AROUND_ZERO, move |_, x| {
                let [x, y] = <[_; 2]>::try_from(x).unwrap_or_else(|_| panic!("two"));
                x.cdist(y, order)
            });
        }
    }
    // Targets with repeated labels and without labels; inputs shorter than the longest.
    let labels = [1_i64, 1, 2, 3, 9, 9, 9, 9, 9];
    cases.unary("ctc_loss", &[6, 3, 4], AROUND_ZERO, move |x| {
        let device = x.value().device().clone();
        let targets = Tensor::from_slice(&device, [3, 3], &labels)?;
        let steps = Tensor::from_slice(&device, [3], &[6_i64, 4, 5])?;
        let lens = Tensor::from_slice(&device, [3], &[3_i64, 1, 0])?;
        x.ctc_loss(&targets, [&steps, &lens], 0)
    });
}

fn soft(cases: &mut Cases) {
    for shape in [&[6, 3][..], &[2, 3, 3], &[1, 3, 2, 3]] {
        for (smoothing, has_weight) in [(0.0, false), (0.2, false), (0.0, true), (0.3, true)] {
            cases.unary("soft_cross_entropy", shape, AROUND_ZERO, move |x| {
                let (device, dims) = (x.value().device().clone(), *x.shape());
                let target = values("target", dims.iter().product(), 0.1, 0.9);
                let target = Tensor::from_slice(&device, dims, &target)?;
                let weight = Tensor::from_slice(&device, [3], &[0.5, 2.0, 1.25])?;
                let weight = has_weight.then_some(&weight);
                let labelling = Labelling { smoothing, weight, ..Default::default() };
                // Once with shared logits, and once with logits that only the record holds.
                let other = x.clone().exp()?.soft_cross_entropy(&target, labelling)?;
                x.soft_cross_entropy(&target, labelling)?.add(other)
            });
        }
    }
}

fn of_probabilities(cases: &mut Cases) {
    for (shape, has_weight) in [(&[4, 3][..], false), (&[1, 3, 2, 2], true)] {
        cases.unary("nll_loss", shape, AROUND_ZERO, move |x| {
            let device = x.value().device().clone();
            let positions = [&x.shape()[..1], &x.shape()[2..]].concat();
            let labels = Tensor::from_slice(&device, &positions[..], &[2_i64, 7, 1, 2])?;
            let weight = Tensor::from_slice(&device, [3], &[0.5, 2.0, 1.25])?;
            Ok(x.nll_loss(&labels, 7, has_weight.then_some(&weight))?.0)
        });
    }
}

fn of_a_linear_layer(cases: &mut Cases) {
    for (label_smoothing, labels) in [(0.0, [2_i64, 0, 1, 3]), (0.3, [-100, 3, -100, 1])] {
        let options = LinearCrossEntropyOptions { label_smoothing, ..Default::default() };
        for shapes in [&[&[4, 3][..], &[5, 3]][..], &[&[4, 3], &[5, 3], &[5]]] {
            cases.add("linear_cross_entropy", shapes, AROUND_ZERO, move |_, x| {
                let labels = Tensor::from_slice(x[0].value().device(), [4], &labels)?;
                with_weight(x, |x, w, b| Ok(x.linear_cross_entropy(w, b, &labels, options)?.0))
            });
        }
    }
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
                // Once with shared logits, and once with logits that only the record holds.
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
            cases.unary("pair_loss_terms", shape, range, move |x| {
                let numbers = values("target", target.iter().product(), 0.05, 0.95);
                let target = Tensor::from_slice(x.value().device(), target, &numbers)?;
                x.pair_loss_terms(&target, loss, None)
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
