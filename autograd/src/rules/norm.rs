//! Rules of the normalisations of parts of each sample: layer, group and root mean square.
//!
//! The rules keep the input, which the operation before often keeps as well, and two numbers for
//! each row. Backward recomputes the normalised values.

use lowtide_tensor::{Normalized, NormalizedBackward, Tensor};

use crate::error::Result;
use crate::rule::Needs;
use crate::rules::{affine, when};
use crate::saved::Saved;
use crate::var::Var;

/// The statistics of a forward pass.
struct Statistics {
    mean: Option<Tensor>,
    rstd: Tensor,
}

/// A normalisation of x with an optional weight and bias. The gradient of a bias without a weight
/// is the sum of dy over `sample_axes`.
#[track_caller]
fn normalize(
    op: &'static str,
    [x, weight, bias]: [Option<Var>; 3],
    sample_axes: Vec<usize>,
    forward: impl Fn(&Tensor, [Option<&Tensor>; 2]) -> lowtide_tensor::TensorResult<Normalized>
    + 'static,
    backward: impl FnOnce(
        &Tensor,
        &Tensor,
        &Statistics,
        Option<&Tensor>,
    ) -> lowtide_tensor::TensorResult<NormalizedBackward>
    + 'static,
) -> Result<Var> {
    let has = [weight.is_some(), bias.is_some()];
    let inputs = [x, weight, bias].into_iter().flatten().collect();
    Var::apply_to(op, inputs, |inputs, save| {
        let (x, [weight, bias]) = affine(&inputs, has);
        let Normalized { y, mean, rstd } = forward(x, [weight, bias])?;
        let (saved_x, saved_rstd) = (save.keep(x), save.keep(&rstd));
        let [saved_mean, saved_weight] = [mean.as_ref(), weight].map(|x| x.map(|x| save.keep(x)));
        let sources = inputs.iter().map(|x| save.source_kept(x));
        save.add_recipe(&y, sources, move |inputs| {
            let (x, parameters) = affine(&inputs, has);
            Ok(forward(x, parameters)?.y)
        });
        // With x̂ = (x - mean) · rstd and g = dy · w, means over the row:
        // dx = rstd · (g - mean(g) - x̂ · mean(g·x̂)), dw = Σ dy·x̂, db = Σ dy over the samples
        let rule = move |dy: Tensor, needs: Needs| {
            let (x, rstd) = (saved_x.unpack()?, saved_rstd.unpack()?);
            let mean = saved_mean.map(Saved::unpack).transpose()?;
            let weight = saved_weight.map(Saved::unpack).transpose()?;
            let statistics = Statistics { mean, rstd };
            let NormalizedBackward { dx, parameters } =
                backward(&dy, &x, &statistics, weight.as_ref())?;
            let mut gradients = vec![Some(dx)];
            match parameters {
                Some([dw, db]) => {
                    gradients.extend([Some(dw)].into_iter().chain(has[1].then_some(Some(db))))
                }
                None if has[1] => {
                    gradients.push(when(needs.input(1), || Ok(dy.sum(&sample_axes)?))?);
                }
                None => {}
            }
            Ok(gradients)
        };
        Ok((y, rule))
    })
}

impl Var {
    /// Layer normalisation: mean 0 and variance 1 over the last `axis_count` dimensions, then scale
    /// and shift; see [`Tensor::layer_norm`].
    #[track_caller]
    pub fn layer_norm(
        self,
        axis_count: usize,
        weight: Option<Var>,
        bias: Option<Var>,
        eps: f64,
    ) -> Result<Var> {
        let sample_axes = (0..self.shape().len().saturating_sub(axis_count)).collect();
        normalize(
            "layer_norm",
            [Some(self), weight, bias],
            sample_axes,
            move |x, [weight, bias]| x.layer_norm(axis_count, weight, bias, eps),
            |dy, x, statistics, weight| {
                let Statistics { mean, rstd } = statistics;
                let mean = mean.as_ref().expect("a layer norm has means");
                dy.layer_norm_backward(x, mean, rstd, weight)
            },
        )
    }

    /// RMS normalisation: root mean square 1 over the last `axis_count` dimensions, then scale; see
    /// [`Tensor::rms_norm`].
    #[track_caller]
    pub fn rms_norm(self, axis_count: usize, weight: Option<Var>, eps: f64) -> Result<Var> {
        normalize(
            "rms_norm",
            [Some(self), weight, None],
            Vec::new(),
            move |x, [weight, _]| x.rms_norm(axis_count, weight, eps),
            |dy, x, statistics, weight| dy.rms_norm_backward(x, &statistics.rstd, weight),
        )
    }

    /// Group normalisation: mean 0 and variance 1 over each of `groups` groups of channels, then
    /// scale and shift; see [`Tensor::group_norm`].
    #[track_caller]
    pub fn group_norm(
        self,
        groups: usize,
        weight: Option<Var>,
        bias: Option<Var>,
        eps: f64,
    ) -> Result<Var> {
        let sample_axes = (0..self.shape().len()).filter(|&axis| axis != 1).collect();
        normalize(
            "group_norm",
            [Some(self), weight, bias],
            sample_axes,
            move |x, [weight, bias]| x.group_norm(groups, weight, bias, eps),
            |dy, x, statistics, weight| {
                let Statistics { mean, rstd } = statistics;
                let mean = mean.as_ref().expect("a group norm has means");
                dy.group_norm_backward(x, mean, rstd, weight)
            },
        )
    }
}
