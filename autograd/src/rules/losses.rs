//! Rules of the losses, which are sums.

use lowtide_tensor::{Labelling, LinearCrossEntropyOptions, PairLoss, Shape, Tensor};

use crate::error::Result;
use crate::rule::Needs;
use crate::rules::when;
use crate::saved::{Saved, Saver};
use crate::var::Var;

/// The gradient of the logits. If nothing else needs the logits, the gradient overwrites them, so
/// that no second tensor of their size exists.
fn cross_entropy_backward(
    dy: &Tensor,
    mut logits: Tensor,
    labels: &Tensor,
    labelling: &Labelling<'_>,
) -> Result<Tensor> {
    // Recomputed instead of kept: the logits are kept anyway.
    let log_sum_exp = logits.cross_entropy_with(labels, labelling)?.log_sum_exp;
    let mut operands = [labels, &log_sum_exp, dy].into_iter().chain(labelling.weight);
    if logits.is_reusable() && operands.all(|x| x.layout().is_contiguous()) {
        logits.cross_entropy_backward_(labels, &log_sum_exp, dy, labelling)?;
        return Ok(logits);
    }
    Ok(dy.cross_entropy_with_backward(&logits, labels, &log_sum_exp, labelling)?)
}

/// [`cross_entropy_backward`] for probabilities instead of labels.
fn soft_cross_entropy_backward(
    dy: &Tensor,
    mut logits: Tensor,
    target: &Tensor,
    labelling: &Labelling<'_>,
) -> Result<Tensor> {
    let log_sum_exp = logits.soft_cross_entropy(target, labelling)?.log_sum_exp;
    let mut operands = [target, &log_sum_exp, dy].into_iter().chain(labelling.weight);
    if logits.is_reusable() && operands.all(|x| x.layout().is_contiguous()) {
        logits.soft_cross_entropy_backward_(target, &log_sum_exp, dy, labelling)?;
        return Ok(logits);
    }
    Ok(dy.soft_cross_entropy_backward(&logits, target, &log_sum_exp, labelling)?)
}

impl Var {
    /// The cross-entropy `-log softmax(self)[label]` summed over the positions whose label is not
    /// `ignore_index`, and the number of these positions as a tensor of one element; see
    /// [`Tensor::cross_entropy`].
    #[track_caller]
    pub fn cross_entropy(self, labels: &Tensor, ignore_index: i64) -> Result<(Var, Tensor)> {
        self.cross_entropy_with(labels, Labelling { ignore_index, ..Default::default() })
    }

    /// [`Var::cross_entropy`] with label smoothing and class weights, and the sum of the weights;
    /// see [`Tensor::cross_entropy_with`]. Backward keeps only the logits, the labels and the
    /// weights.
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
            let saved = [&logits, labels].map(|x| save.keep(x));
            let saved_weight = weight.map(|weight| save.keep(weight));
            // With weights w, smoothing ε and label l of n:
            // dlogits[n, c] = dy · ((1 - ε) · w[l] · (softmax(logits[n])[c] - [c = l])
            //     + ε / C · (Σ w · softmax(logits[n])[c] - w[c]))
            let rule = move |dy: Tensor, _: Needs| {
                let [logits, labels] = saved.map(Saved::unpack);
                let weight = saved_weight.map(Saved::unpack).transpose()?;
                let labelling = Labelling { ignore_index, smoothing, weight: weight.as_ref() };
                let dx = cross_entropy_backward(&dy, logits?, &labels?, &labelling)?;
                Ok(vec![Some(dx)])
            };
            Ok((forward.sum, rule))
        })?;
        Ok((sum, count.expect("forward ran")))
    }

    /// The cross-entropy of the logits `self` with target probabilities, summed over all positions;
    /// see [`Tensor::soft_cross_entropy`]. No gradient flows to the target. Backward keeps only the
    /// logits, the target and the weights.
    #[track_caller]
    pub fn soft_cross_entropy(self, target: &Tensor, labelling: Labelling<'_>) -> Result<Var> {
        let Labelling { ignore_index, smoothing, weight } = labelling;
        Var::apply("soft_cross_entropy", [self], |[logits], save| {
            let forward = logits.soft_cross_entropy(target, &labelling)?;
            let saved = [&logits, target].map(|x| save.keep(x));
            let saved_weight = weight.map(|weight| save.keep(weight));
            // With t[n, c] = w[c] · ((1 - ε) · target[n, c] + ε / C):
            // dlogits[n, c] = dy · (softmax(logits[n])[c] · Σ_c t[n, c] - t[n, c])
            let rule = move |dy: Tensor, _: Needs| {
                let [logits, target] = saved.map(Saved::unpack);
                let weight = saved_weight.map(Saved::unpack).transpose()?;
                let labelling = Labelling { ignore_index, smoothing, weight: weight.as_ref() };
                let dx = soft_cross_entropy_backward(&dy, logits?, &target?, &labelling)?;
                Ok(vec![Some(dx)])
            };
            Ok((forward.sum, rule))
        })
    }

    /// The loss `-weight[label] · self[label]` summed over the positions whose label is not
    /// `ignore_index`, and the sum of the weights as a tensor of one element; see
    /// [`Tensor::nll_loss`]. Backward keeps the labels and the weights, not the input.
    #[track_caller]
    pub fn nll_loss(
        self,
        labels: &Tensor,
        ignore_index: i64,
        weight: Option<&Tensor>,
    ) -> Result<(Var, Tensor)> {
        let mut found_count = None;
        let sum = Var::apply("nll_loss", [self], |[x], save| {
            let (sum, count) = x.nll_loss(labels, ignore_index, weight)?;
            found_count = Some(count);
            let (x_shape, x_dtype, saved_labels) = (*x.shape(), x.dtype(), save.keep(labels));
            let saved_weight = weight.map(|weight| save.keep(weight));
            // dx[n, c] = -dy · w[c] · [c = label of n]
            let rule = move |dy: Tensor, _: Needs| {
                let labels = saved_labels.unpack()?;
                let weight = saved_weight.map(Saved::unpack).transpose()?;
                let weight = weight.as_ref();
                let dx = dy.nll_loss_backward(x_shape, x_dtype, &labels, ignore_index, weight)?;
                Ok(vec![Some(dx)])
            };
            Ok((sum, rule))
        })?;
        Ok((sum, found_count.expect("forward ran")))
    }

    /// The cross-entropy of the logits `self · wᵀ + b` with `labels`, summed over the rows whose
    /// label is not ignored, and the number of these rows as a tensor of one element; see
    /// [`Tensor::linear_cross_entropy`]. The logits never exist as a whole. Backward keeps only the
    /// operands and computes the logits a second time, chunk by chunk.
    #[track_caller]
    pub fn linear_cross_entropy(
        self,
        w: Var,
        b: Option<Var>,
        labels: &Tensor,
        options: LinearCrossEntropyOptions,
    ) -> Result<(Var, Tensor)> {
        let mut found_count = None;
        let inputs = [Some(self), Some(w), b].into_iter().flatten().collect();
        let sum = Var::apply_to("linear_cross_entropy", inputs, |inputs, save| {
            let (x, w, b) = (&inputs[0], &inputs[1], inputs.get(2));
            let forward = x.linear_cross_entropy(w, b, labels, &options)?;
            found_count = Some(forward.count);
            let [saved_x, saved_w, saved_labels] = [x, w, labels].map(|x| save.keep(x));
            let saved_b = b.map(|b| save.keep(b));
            // With dz[n, v] = dy · (softmax(z[n])[v] - target[n, v]) of the logits z:
            // dx = dz w, dw = dzᵀ x, db[v] = Σ dz[n, v]
            let rule = move |dy: Tensor, needs: Needs| {
                let (x, w, labels) = (saved_x.unpack()?, saved_w.unpack()?, saved_labels.unpack()?);
                let b = saved_b.map(Saved::unpack).transpose()?;
                let is_head_trained = needs.input(1) || (b.is_some() && needs.input(2));
                if !is_head_trained {
                    let b = b.as_ref();
                    let (_, dx) =
                        x.linear_cross_entropy_input_gradient(&w, b, &labels, &options, &dy)?;
                    let mut gradients = vec![Some(dx), None];
                    gradients.extend(b.map(|_| None));
                    return Ok(gradients);
                }
                // The sums over chunks have the type of dy, which is f32 for half operands: a half
                // type would round small contributions away.
                let zeros = |like: &Tensor| Tensor::zeros(like.device(), *like.shape(), dy.dtype());
                let (mut dw, mut db) = (zeros(&w)?, b.as_ref().map(zeros).transpose()?);
                let (_, dx) = x.linear_cross_entropy_gradients(
                    &w,
                    b.as_ref(),
                    &labels,
                    &options,
                    &dy,
                    &mut dw,
                    db.as_mut(),
                )?;
                let narrowed = |sum: Tensor| when(true, || Ok(sum.to_dtype(x.dtype())?));
                let mut gradients = vec![Some(dx), narrowed(dw)?];
                if let Some(db) = db {
                    gradients.push(narrowed(db)?);
                }
                let needed = |(input, gradient)| if needs.input(input) { gradient } else { None };
                Ok(gradients.into_iter().enumerate().map(needed).collect())
            };
            Ok((forward.sum, rule))
        })?;
        Ok((sum, found_count.expect("forward ran")))
    }

    /// The loss `Σ f(self, target)` as a number; see [`Tensor::pair_loss`]. No gradient flows to
    /// the target.
    #[track_caller]
    pub fn pair_loss(self, target: &Tensor, loss: PairLoss) -> Result<Var> {
        self.pair_loss_weighted(target, loss, None)
    }

    /// [`Var::pair_loss`] with weights of the positive class for
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
            let saved = SavedPairs::keep(save, &x, target, loss, positive_weight);
            // dx[i] = dy · f'(x[i], target[i])
            let rule = move |dy: Tensor, _: Needs| Ok(vec![Some(saved.unpack()?.gradient(&dy)?)]);
            Ok((sum, rule))
        })
    }

    /// The terms that [`Var::pair_loss_weighted`] sums; see [`Tensor::pair_loss_terms`].
    #[track_caller]
    pub fn pair_loss_terms(
        self,
        target: &Tensor,
        loss: PairLoss,
        positive_weight: Option<&Tensor>,
    ) -> Result<Var> {
        Var::apply("pair_loss_terms", [self], |[x], save| {
            let y = x.pair_loss_terms(target, loss, positive_weight)?;
            let saved = SavedPairs::keep(save, &x, target, loss, positive_weight);
            // dx[i] = dy[i] · f'(x[i], target[i])
            let rule = move |dy: Tensor, _: Needs| {
                let pairs = saved.unpack()?;
                let one = Tensor::ones(dy.device(), [], dy.dtype().computed())?;
                let mut dx = pairs.gradient(&one)?;
                dx.mul_(&dy)?;
                Ok(vec![Some(dx)])
            };
            Ok((y, rule))
        })
    }
}

/// The operands of a pair loss's gradient, kept for backward.
struct SavedPairs {
    loss: PairLoss,
    weight: Option<Saved>,
    /// The input x. `None` for a divergence, because its gradient does not read x.
    x: Option<Saved>,
    x_shape: Shape,
    target: Saved,
}

/// The operands of a pair loss's gradient.
struct Pairs {
    loss: PairLoss,
    weight: Option<Tensor>,
    x: Tensor,
    target: Tensor,
}

impl SavedPairs {
    fn keep(
        save: &Saver,
        x: &Tensor,
        target: &Tensor,
        loss: PairLoss,
        weight: Option<&Tensor>,
    ) -> Self {
        let reads_x = !matches!(loss, PairLoss::KlDivergence | PairLoss::KlDivergenceOfLog);
        let (saved_x, x_shape) = (reads_x.then(|| save.keep(x)), *x.shape());
        let target = save.keep(target);
        let weight = weight.map(|weight| save.keep(weight));
        SavedPairs { loss, weight, x: saved_x, x_shape, target }
    }

    fn unpack(self) -> Result<Pairs> {
        let target = self.target.unpack()?;
        let x = match self.x {
            Some(x) => x.unpack()?,
            None => target.expand(self.x_shape)?,
        };
        let weight = self.weight.map(Saved::unpack).transpose()?;
        Ok(Pairs { loss: self.loss, weight, x, target })
    }
}

impl Pairs {
    /// `dy · f'(x[i], target[i])`, for a dy without dimensions.
    fn gradient(&self, dy: &Tensor) -> Result<Tensor> {
        let Pairs { loss, weight, x, target } = self;
        Ok(dy.pair_loss_weighted_backward(x, target, *loss, weight.as_ref())?)
    }
}
