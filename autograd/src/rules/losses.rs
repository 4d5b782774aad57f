//! Rules of the losses, which are sums.

use lowtide_tensor::{Labelling, PairLoss, Tensor};

use crate::{Needs, Result, Saved, Var};

/// The gradient of the logits: over them where nothing else needs them, so that there is never a
/// second tensor of their size.
fn cross_entropy_backward(
    dy: &Tensor,
    mut logits: Tensor,
    [labels, log_sum_exp]: [&Tensor; 2],
    labelling: &Labelling<'_>,
) -> Result<Tensor> {
    let mut operands = [labels, log_sum_exp, dy].into_iter().chain(labelling.weight);
    if logits.is_reusable() && operands.all(|x| x.layout().is_contiguous()) {
        logits.cross_entropy_backward_(labels, log_sum_exp, dy, labelling)?;
        return Ok(logits);
    }
    Ok(dy.cross_entropy_with_backward(&logits, labels, log_sum_exp, labelling)?)
}

impl Var {
    /// `-log softmax(self)[label]` summed over the positions whose label is not `ignore_index`, and
    /// how many they are (one element on the device); see [`Tensor::cross_entropy`].
    #[track_caller]
    pub fn cross_entropy(self, labels: &Tensor, ignore_index: i64) -> Result<(Var, Tensor)> {
        self.cross_entropy_with(labels, Labelling { ignore_index, ..Default::default() })
    }

    /// [`Var::cross_entropy`] with smoothing and weights of the classes, and the sum of the
    /// weights; see [`Tensor::cross_entropy_with`]. Beside the logits, one number for each
    /// position is kept.
    #[track_caller]
    pub fn cross_entropy_with(
        self,
        labels: &Tensor,
        labelling: Labelling<'_>,
    ) -> Result<(Var, Tensor)> {
        let mut count = None;
        let Labelling { ignore_index, smoothing, weight } = labelling;
        let sum = Var::apply("cross_entropy", [self], |[logits], save| {
            let forward = logits.cross_entropy_with(labels, &labelling)?;
            count = Some(forward.count);
            let saved = [&logits, labels, &forward.log_sum_exp].map(|x| save.keep(x));
            let saved_weight = weight.map(|weight| save.keep(weight));
            // With weights w, smoothing ε and label l of n:
            // dlogits[n, c] = dy · ((1 - ε) · w[l] · (softmax(logits[n])[c] - [c = l])
            //     + ε / C · (Σ w · softmax(logits[n])[c] - w[c]))
            let rule = move |dy: Tensor, _: Needs| {
                let [logits, labels, log_sum_exp] = saved.map(Saved::unpack);
                let weight = saved_weight.map(Saved::unpack).transpose()?;
                let labelling = Labelling { ignore_index, smoothing, weight: weight.as_ref() };
                let dx =
                    cross_entropy_backward(&dy, logits?, [&labels?, &log_sum_exp?], &labelling)?;
                Ok(vec![Some(dx)])
            };
            Ok((forward.sum, rule))
        })?;
        Ok((sum, count.expect("forward ran")))
    }

    /// `Σ f(x, target)`, without dimensions, for `self = x`; see [`Tensor::pair_loss`]. No gradient
    /// flows to the target.
    #[track_caller]
    pub fn pair_loss(self, target: &Tensor, loss: PairLoss) -> Result<Var> {
        self.pair_loss_weighted(target, loss, None)
    }

    /// [`Var::pair_loss`] with a factor for the term of the target in
    /// [`PairLoss::BinaryCrossEntropyOfLogits`]; see [`Tensor::pair_loss_weighted`].
    #[track_caller]
    pub fn pair_loss_weighted(
        self,
        target: &Tensor,
        loss: PairLoss,
        positive_weight: Option<&Tensor>,
    ) -> Result<Var> {
        Var::apply("pair_loss", [self], |[x], save| {
            let sum = x.pair_loss_weighted(target, loss, positive_weight)?;
            // The gradient of the divergences does not read x.
            let reads_x = !matches!(loss, PairLoss::KlDivergence | PairLoss::KlDivergenceOfLog);
            let (saved_x, x_shape) = (reads_x.then(|| save.keep(&x)), *x.shape());
            let saved_target = save.keep(target);
            let saved_weight = positive_weight.map(|weight| save.keep(weight));
            // dx[i] = dy · f'(x[i], target[i])
            let rule = move |dy: Tensor, _: Needs| {
                let target = saved_target.unpack()?;
                let x = match saved_x {
                    Some(x) => x.unpack()?,
                    None => target.expand(x_shape)?,
                };
                let weight = saved_weight.map(Saved::unpack).transpose()?;
                let dx = dy.pair_loss_weighted_backward(&x, &target, loss, weight.as_ref())?;
                Ok(vec![Some(dx)])
            };
            Ok((sum, rule))
        })
    }
}
