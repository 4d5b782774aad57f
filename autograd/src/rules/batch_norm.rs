//! Rules of batch normalisation.

use lowtide_tensor::{BatchNorm, BatchNormBackward, Statistics, Tensor};

use crate::error::Result;
use crate::rule::Needs;
use crate::rules::affine;
use crate::saved::Saved;
use crate::var::Var;

/// Batch normalisation by the given kind of statistics. `forward` returns y with the mean and the
/// variance that it used.
#[track_caller]
fn normalize(
    statistics: Statistics,
    [x, weight, bias]: [Option<Var>; 3],
    eps: f64,
    forward: impl FnOnce(&Tensor, [Option<&Tensor>; 2]) -> lowtide_tensor::TensorResult<BatchNorm>,
) -> Result<Var> {
    let op = match statistics {
        Statistics::Batch => "batch_norm",
        Statistics::Fixed => "batch_norm_fixed",
    };
    let has = [weight.is_some(), bias.is_some()];
    let inputs = [x, weight, bias].into_iter().flatten().collect();
    Var::apply_to(op, inputs, |inputs, save| {
        let (x, [weight, bias]) = affine(&inputs, has);
        let BatchNorm { y, mean, variance } = forward(x, [weight, bias])?;
        let saved = [x, &mean, &variance].map(|x| save.keep(x));
        let saved_weight = weight.map(|weight| save.keep(weight));
        let sources = [&mean, &variance].into_iter().chain(&inputs);
        save.add_recipe(&y, sources.map(|x| save.source_kept(x)), move |inputs| {
            let (x, [weight, bias]) = affine(&inputs[2..], has);
            Ok(x.batch_norm_fixed(&inputs[0], &inputs[1], weight, bias, eps)?)
        });
        // With x̂ = (x - mean) · rstd and g = dy · w, means over the channel:
        // dx = rstd · (g - mean(g) - x̂ · mean(g·x̂)), or rstd · g for fixed statistics;
        // dw = Σ dy·x̂, db = Σ dy
        let rule = move |dy: Tensor, _: Needs| {
            let [x, mean, variance] = saved.map(Saved::unpack);
            let (x, mean, variance) = (x?, mean?, variance?);
            let weight = saved_weight.map(Saved::unpack).transpose()?;
            let BatchNormBackward { dx, dweight, dbias } =
                dy.batch_norm_backward(&x, &mean, &variance, weight.as_ref(), statistics, eps)?;
            let parameters = [has[0].then_some(dweight), has[1].then_some(dbias)];
            Ok([Some(dx)].into_iter().chain(parameters).flatten().map(Some).collect())
        };
        Ok((y, rule))
    })
}

impl Var {
    /// Batch normalisation, and the mean and variance of the batch, which carry no gradient; see
    /// [`Tensor::batch_norm`]. Each channel gets mean 0 and variance 1 over the batch, then scale
    /// and shift. The operation couples the samples of the pass.
    #[track_caller]
    pub fn batch_norm(
        self,
        weight: Option<Var>,
        bias: Option<Var>,
        eps: f64,
    ) -> Result<(Var, [Tensor; 2])> {
        self.pass().couple_samples();
        let mut statistics = None;
        let inputs = [Some(self), weight, bias];
        let y = normalize(Statistics::Batch, inputs, eps, |x, [weight, bias]| {
            let found = x.batch_norm(weight, bias, eps)?;
            statistics = Some([found.mean.clone(), found.variance.clone()]);
            Ok(found)
        })?;
        Ok((y, statistics.expect("forward ran")))
    }

    /// Batch normalisation by a given mean and variance; see [`Tensor::batch_norm_fixed`].
    #[track_caller]
    pub fn batch_norm_fixed(
        self,
        [mean, variance]: [&Tensor; 2],
        weight: Option<Var>,
        bias: Option<Var>,
        eps: f64,
    ) -> Result<Var> {
        let inputs = [Some(self), weight, bias];
        normalize(Statistics::Fixed, inputs, eps, |x, [weight, bias]| {
            let y = x.batch_norm_fixed(mean, variance, weight, bias, eps)?;
            Ok(BatchNorm { y, mean: mean.clone(), variance: variance.clone() })
        })
    }
}
