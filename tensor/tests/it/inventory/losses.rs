use lowtide_tensor::{
    DType, Labelling, LinearCrossEntropyOptions, PairLoss, Tensor, TensorResult as Result,
};

use super::{Entry, Inputs, out};

const LOSS: PairLoss = PairLoss::SmoothL1 { beta: 0.5 };
const LOGITS: PairLoss = PairLoss::BinaryCrossEntropyOfLogits;
const SMOOTH: Labelling<'static> = Labelling { ignore_index: -100, smoothing: 0.1, weight: None };

pub(super) fn ops() -> Vec<Entry> {
    [linear(), plain(), of_probabilities(), of_rows()].into_iter().flatten().collect()
}

/// Losses of probabilities. Log-probabilities are `logits`; logits and targets are `a` and `b`.
fn of_probabilities() -> Vec<Entry> {
    vec![
        Entry {
            name: "nll_loss",
            run: |i| {
                let (sum, count) = i.logits.nll_loss(&i.labels, -100, None)?;
                Ok(vec![sum, count])
            },
            half: true,
        },
        out!(nll_loss_backward, i => {
            let (shape, dtype) = (*i.logits.shape(), i.logits.dtype());
            i.seed.nll_loss_backward(shape, dtype, &i.labels, -100, None)
        }),
        Entry {
            name: "soft_cross_entropy",
            run: |i| {
                let found = i.a.soft_cross_entropy(&i.b, &SMOOTH)?;
                Ok(vec![found.sum, found.count, found.log_sum_exp])
            },
            half: true,
        },
        out!(soft_cross_entropy_backward, i => {
            i.seed.soft_cross_entropy_backward(&i.a, &i.b, &i.lse.narrow(0, 0, 65)?, &SMOOTH)
        }),
        Entry {
            name: "soft_cross_entropy_backward_",
            run: |i| {
                let lse = i.lse.narrow(0, 0, 65)?;
                i.a.soft_cross_entropy_backward_(&i.b, &lse, &i.seed, &SMOOTH)?;
                Ok(vec![i.a.clone()])
            },
            half: true,
        },
    ]
}

/// Losses of linear layers, with 40 classes for the rows of `a`.
fn linear() -> Vec<Entry> {
    vec![
        Entry {
            name: "linear_cross_entropy",
            run: |i| {
                let (w, labels) = (i.b.narrow(0, 0, 40)?, i.labels.narrow(0, 0, 65)?);
                let options = LinearCrossEntropyOptions::default();
                let found = i.a.linear_cross_entropy(&w, None, &labels, &options)?;
                Ok(vec![found.sum, found.count])
            },
            half: true,
        },
        Entry {
            name: "linear_cross_entropy_input_gradient",
            run: |i| {
                let options = LinearCrossEntropyOptions::default();
                let (w, dy) = (i.b.narrow(0, 0, 37)?, &i.seed);
                let labels = i.labels.narrow(0, 0, 65)?;
                let found =
                    i.a.linear_cross_entropy_input_gradient(&w, None, &labels, &options, dy)?;
                Ok(vec![found.0.sum, found.0.count, found.1])
            },
            half: true,
        },
        Entry {
            name: "linear_cross_entropy_gradients",
            run: |i| {
                let (w, labels) = (i.b.narrow(0, 0, 40)?, i.labels.narrow(0, 0, 65)?);
                let options = LinearCrossEntropyOptions::default();
                let sum_dtype = i.a.linear_cross_entropy(&w, None, &labels, &options)?.sum.dtype();
                let dy = Tensor::ones(&i.device, [], sum_dtype)?;
                let mut dw = Tensor::zeros(&i.device, *w.shape(), sum_dtype)?;
                let (found, dx) = i.a.linear_cross_entropy_gradients(
                    &w, None, &labels, &options, &dy, &mut dw, None,
                )?;
                Ok(vec![found.sum, found.count, dx, dw])
            },
            half: true,
        },
    ]
}

fn plain() -> Vec<Entry> {
    vec![
        Entry {
            name: "cross_entropy",
            run: |i| {
                let found = i.logits.cross_entropy(&i.labels, -100)?;
                Ok(vec![found.sum, found.count, found.log_sum_exp])
            },
            half: true,
        },
        Entry {
            name: "cross_entropy_with",
            run: |i| {
                let weight = i.positive.select(0, 0)?.narrow(0, 0, 37)?;
                let labelling = Labelling { weight: Some(&weight), ..SMOOTH };
                let found = i.logits.cross_entropy_with(&i.labels, &labelling)?;
                Ok(vec![found.sum, found.count, found.log_sum_exp])
            },
            half: true,
        },
        out!(cross_entropy_backward, i => {
            i.seed.cross_entropy_backward(&i.logits, &i.labels, &i.lse, -100)
        }),
        out!(cross_entropy_with_backward, i => {
            i.seed.cross_entropy_with_backward(&i.logits, &i.labels, &i.lse, &SMOOTH)
        }),
        Entry {
            name: "cross_entropy_backward_",
            run: |i| {
                let mut x = i.a.narrow(0, 0, 40)?;
                let labels = i.labels.narrow(0, 0, 40)?;
                let lse = i.lse.narrow(0, 0, 40)?;
                x.cross_entropy_backward_(&labels, &lse, &i.seed, &SMOOTH)?;
                Ok(vec![i.a.clone()])
            },
            half: true,
        },
        out!(pair_loss, i => i.a.pair_loss(&i.b, LOSS)),
        out!(pair_loss_backward, i => i.seed.pair_loss_backward(&i.a, &i.b, LOSS)),
        out!(pair_loss_terms, i => i.a.pair_loss_terms(&i.b, LOGITS, Some(&i.row))),
        out!(pair_loss_weighted, i => i.a.pair_loss_weighted(&i.b, LOGITS, Some(&i.row))),
        out!(pair_loss_weighted_backward, i => {
            i.seed.pair_loss_weighted_backward(&i.a, &i.b, LOGITS, Some(&i.row))
        }),
    ]
}

/// Losses of rows: 65 steps of 7 samples with 143 classes, and distances of the rows of `left`.
fn of_rows() -> Vec<Entry> {
    fn sequences(i: &Inputs) -> Result<[Tensor; 4]> {
        let x = i.a.reshape([65, 7, 143])?.log_softmax(2)?;
        let targets = i.rows.narrow(0, 0, 140)?.reshape([7, 20])?;
        let steps = i.rows.narrow(0, 30, 7)?;
        let lens = steps.mul_scalar(0.0)?.to_dtype(DType::I64)?.add_scalar(8.0)?;
        Ok([x, targets, steps.add_scalar(20.0)?, lens])
    }
    vec![
        out!(cdist, i => i.left.cdist(&i.left.narrow(0, 30, 70)?, 2.0)),
        out!(cdist_backward, i => {
            let (x, y) = (&i.left, i.left.narrow(0, 30, 70)?);
            let d = x.cdist(&y, 1.5)?;
            d.mul_scalar(0.5)?.cdist_backward(&d, x, &y, 1.5)
        }),
        out!(ctc_loss, i => {
            let [x, targets, steps, lens] = sequences(i)?;
            x.ctc_loss(&targets, [&steps, &lens], 0)
        }),
        out!(ctc_loss_backward, i => {
            let [x, targets, steps, lens] = sequences(i)?;
            let dy = i.lse.narrow(0, 0, 7)?;
            dy.ctc_loss_backward(&x, &targets, [&steps, &lens], 0)
        }),
    ]
}
