//! Rules of two-dimensional convolution and of max pooling.

use lowtide_tensor::{Conv2dGeometry, Pool2dGeometry, Tensor};

use crate::error::Result;
use crate::rule::Needs;
use crate::rules::when;
use crate::var::Var;

impl Var {
    /// The convolution of the images `self` with `w`, plus `b`; see [`Tensor::conv2d`].
    #[track_caller]
    pub fn conv2d(self, w: Var, b: Option<Var>, geometry: Conv2dGeometry) -> Result<Var> {
        Var::apply_to(
            "conv2d",
            [Some(self), Some(w), b].into_iter().flatten().collect(),
            |inputs, save| {
                let (x, w, b) = (&inputs[0], &inputs[1], inputs.get(2));
                let y = x.conv2d(w, b, geometry)?;
                let (saved_x, saved_w, has_bias) = (save.keep(x), save.keep(w), b.is_some());
                // With p ∘ k for the input position that output position p reads at kernel place k:
                // dw[o, i, k] = Σ dy[b, o, p] · x[b, i, p ∘ k],
                // dx[b, i, q] = Σ dy[b, o, p] · w[o, i, k] over all p ∘ k = q,
                // db[o] = Σ dy[b, o, p]
                let rule = move |dy: Tensor, needs: Needs| {
                    let (x, w) = (saved_x.unpack()?, saved_w.unpack()?);
                    let (x_shape, w_shape) = (*x.shape(), *w.shape());
                    let dw = when(needs.input(1), || {
                        Ok(dy.conv2d_backward_weight(&x, w_shape, geometry)?)
                    })?;
                    drop(x);
                    let dx = when(needs.input(0), || {
                        Ok(dy.conv2d_backward_input(&w, x_shape, geometry)?)
                    })?;
                    let mut gradients = vec![dx, dw];
                    if has_bias {
                        gradients.push(when(needs.input(2), || Ok(dy.sum(&[0, 2, 3])?))?);
                    }
                    Ok(gradients)
                };
                Ok((y, rule))
            },
        )
    }

    /// The largest value in each window; see [`Tensor::max_pool2d`].
    #[track_caller]
    pub fn max_pool2d(self, geometry: Pool2dGeometry) -> Result<Var> {
        Var::apply("max_pool2d", [self], |[x], save| {
            let x_shape = *x.shape();
            let (y, winners) = x.max_pool2d(geometry)?;
            let saved_winners = save.keep(&winners);
            // dx[q] = Σ dy[p] over the windows p whose largest value is at q
            let rule = move |dy: Tensor, _: Needs| {
                let winners = saved_winners.unpack()?;
                Ok(vec![Some(dy.max_pool2d_backward(&winners, x_shape, geometry)?)])
            };
            Ok((y, rule))
        })
    }
}
