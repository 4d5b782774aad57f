//! Rules of one-dimensional and transposed convolutions, of pooling, and of image resizing.

use lowtide_tensor::{
    AvgPool, Conv1dGeometry, ConvTranspose1dGeometry, ConvTranspose2dGeometry, Interpolation,
    MaxPool, Pool1dGeometry, Pool2dGeometry, Resize, Shape, Tensor, TensorResult,
};

use crate::error::Result;
use crate::rule::Needs;
use crate::rules::when;
use crate::var::Var;

/// A convolution and its gradients, each a method of [`Tensor`].
struct Convolution<G> {
    op: &'static str,
    forward: fn(&Tensor, &Tensor, Option<&Tensor>, G) -> TensorResult<Tensor>,
    /// The gradient of x, from dy, w and the shape of x.
    input: fn(&Tensor, &Tensor, Shape, G) -> TensorResult<Tensor>,
    /// The gradient of w, from dy, x and the shape of w.
    weight: fn(&Tensor, &Tensor, Shape, G) -> TensorResult<Tensor>,
}

impl<G: Copy + 'static> Convolution<G> {
    #[track_caller]
    fn apply(self, x: Var, w: Var, b: Option<Var>, geometry: G) -> Result<Var> {
        let inputs = [Some(x), Some(w), b].into_iter().flatten().collect();
        Var::apply_to(self.op, inputs, |inputs, save| {
            let (x, w, b) = (&inputs[0], &inputs[1], inputs.get(2));
            let y = (self.forward)(x, w, b, geometry)?;
            let (saved_x, saved_w, has_bias) = (save.keep(x), save.keep(w), b.is_some());
            // dx and dw as for conv2d, db[o] = Σ dy[b, o, p]
            let rule = move |dy: Tensor, needs: Needs| {
                let (x, w) = (saved_x.unpack()?, saved_w.unpack()?);
                let x_shape = *x.shape();
                let dw =
                    when(needs.input(1), || Ok((self.weight)(&dy, &x, *w.shape(), geometry)?))?;
                drop(x);
                let dx = when(needs.input(0), || Ok((self.input)(&dy, &w, x_shape, geometry)?))?;
                let mut gradients = vec![dx, dw];
                if has_bias {
                    let axes: Vec<usize> =
                        (0..dy.shape().len()).filter(|&axis| axis != 1).collect();
                    gradients.push(when(needs.input(2), || Ok(dy.sum(&axes)?))?);
                }
                Ok(gradients)
            };
            Ok((y, rule))
        })
    }
}

/// An operation that is linear in its input. The rule needs only the shape of the input.
#[track_caller]
fn linear(
    op: &'static str,
    x: Var,
    forward: impl FnOnce(&Tensor) -> TensorResult<Tensor>,
    backward: impl FnOnce(&Tensor, Shape) -> TensorResult<Tensor> + 'static,
) -> Result<Var> {
    Var::apply(op, [x], |[x], _| {
        let x_shape = *x.shape();
        let rule = move |dy: Tensor, _: Needs| Ok(vec![Some(backward(&dy, x_shape)?)]);
        Ok((forward(&x)?, rule))
    })
}

/// The largest values of windows. The rule saves their positions.
#[track_caller]
fn largest(
    op: &'static str,
    x: Var,
    forward: impl FnOnce(&Tensor) -> TensorResult<(Tensor, Tensor)>,
    backward: impl FnOnce(&Tensor, &Tensor, Shape) -> TensorResult<Tensor> + 'static,
) -> Result<Var> {
    Var::apply(op, [x], |[x], save| {
        let (x_shape, (y, winners)) = (*x.shape(), forward(&x)?);
        let saved = save.keep(&winners);
        // dx[q] = Σ dy[p] over the windows p whose largest value is at q
        let rule =
            move |dy: Tensor, _: Needs| Ok(vec![Some(backward(&dy, &saved.unpack()?, x_shape)?)]);
        Ok((y, rule))
    })
}

impl Var {
    /// The convolution of the sequences `self` with `w`, plus `b`; see [`Tensor::conv1d`].
    #[track_caller]
    pub fn conv1d(self, w: Var, b: Option<Var>, geometry: Conv1dGeometry) -> Result<Var> {
        let convolution = Convolution {
            op: "conv1d",
            forward: Tensor::conv1d,
            input: Tensor::conv1d_backward_input,
            weight: Tensor::conv1d_backward_weight,
        };
        convolution.apply(self, w, b, geometry)
    }

    /// The transposed convolution of the sequences `self` with `w`, plus `b`; see
    /// [`Tensor::conv_transpose1d`].
    #[track_caller]
    pub fn conv_transpose1d(
        self,
        w: Var,
        b: Option<Var>,
        geometry: ConvTranspose1dGeometry,
    ) -> Result<Var> {
        let convolution = Convolution {
            op: "conv_transpose1d",
            forward: Tensor::conv_transpose1d,
            input: Tensor::conv_transpose1d_backward_input,
            weight: Tensor::conv_transpose1d_backward_weight,
        };
        convolution.apply(self, w, b, geometry)
    }

    /// The transposed convolution of the images `self` with `w`, plus `b`; see
    /// [`Tensor::conv_transpose2d`].
    #[track_caller]
    pub fn conv_transpose2d(
        self,
        w: Var,
        b: Option<Var>,
        geometry: ConvTranspose2dGeometry,
    ) -> Result<Var> {
        let convolution = Convolution {
            op: "conv_transpose2d",
            forward: Tensor::conv_transpose2d,
            input: Tensor::conv_transpose2d_backward_input,
            weight: Tensor::conv_transpose2d_backward_weight,
        };
        convolution.apply(self, w, b, geometry)
    }

    /// The largest value in each window of sequences; see [`Tensor::max_pool1d`].
    #[track_caller]
    pub fn max_pool1d(self, window: Pool1dGeometry) -> Result<Var> {
        largest(
            "max_pool1d",
            self,
            |x| x.max_pool1d(window),
            move |dy, winners, x| dy.max_pool1d_backward(winners, x, window),
        )
    }

    /// The largest value in each window, with dilated windows and windows that reach over the edge;
    /// see [`Tensor::max_pool2d_with`].
    #[track_caller]
    pub fn max_pool2d_with(self, window: Pool2dGeometry, options: MaxPool) -> Result<Var> {
        largest(
            "max_pool2d_with",
            self,
            |x| x.max_pool2d_with(window, options),
            move |dy, winners, x| dy.max_pool2d_with_backward(winners, x, window, options),
        )
    }

    /// The largest value in each of `out_size` windows that cover the image; see
    /// [`Tensor::adaptive_max_pool2d`].
    #[track_caller]
    pub fn adaptive_max_pool2d(self, out_size: [usize; 2]) -> Result<Var> {
        largest(
            "adaptive_max_pool2d",
            self,
            |x| x.adaptive_max_pool2d(out_size),
            |dy, winners, x| dy.adaptive_max_pool2d_backward(winners, x),
        )
    }

    /// The mean of each window of sequences; see [`Tensor::avg_pool1d`].
    #[track_caller]
    pub fn avg_pool1d(self, window: Pool1dGeometry, options: AvgPool) -> Result<Var> {
        // dx[q] = Σ dy[p] / n[p] over the windows p that contain q
        linear(
            "avg_pool1d",
            self,
            |x| x.avg_pool1d(window, options),
            move |dy, x| dy.avg_pool1d_backward(x, window, options),
        )
    }

    /// The mean of each window; see [`Tensor::avg_pool2d`].
    #[track_caller]
    pub fn avg_pool2d(self, window: Pool2dGeometry, options: AvgPool) -> Result<Var> {
        // dx[q] = Σ dy[p] / n[p] over the windows p that contain q
        linear(
            "avg_pool2d",
            self,
            |x| x.avg_pool2d(window, options),
            move |dy, x| dy.avg_pool2d_backward(x, window, options),
        )
    }

    /// The mean of each of `out_size` windows that cover the image; see
    /// [`Tensor::adaptive_avg_pool2d`].
    #[track_caller]
    pub fn adaptive_avg_pool2d(self, out_size: [usize; 2]) -> Result<Var> {
        // dx[q] = Σ dy[p] / n[p] over the windows p that contain q
        linear(
            "adaptive_avg_pool2d",
            self,
            |x| x.adaptive_avg_pool2d(out_size),
            |dy, x| dy.adaptive_avg_pool2d_backward(x),
        )
    }

    /// The image resized; see [`Tensor::upsample2d`].
    #[track_caller]
    pub fn upsample2d(self, size: Resize, interpolation: Interpolation) -> Result<Var> {
        // dx[q] = Σ weight[p, q] · dy[p] over the pixels p that q contributes to
        linear(
            "upsample2d",
            self,
            |x| x.upsample2d(size, interpolation),
            move |dy, x| dy.upsample2d_backward(x, size, interpolation),
        )
    }
}
