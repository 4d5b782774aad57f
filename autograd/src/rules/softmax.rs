//! Rules of softmax and its logarithm.

use lowtide_tensor::Axis;

use crate::error::Result;
use crate::rules::{from_output, reuse};
use crate::var::Var;

impl Var {
    /// `exp(self) / Σ exp(self)` along `axis`; see [`lowtide_tensor::Tensor::softmax`].
    #[track_caller]
    pub fn softmax(self, axis: impl Into<Axis>) -> Result<Var> {
        // A tensor without dimensions counts as a row of one element.
        let axis = axis.into().index("softmax", self.shape().len().max(1))?;
        // dx = y · (dy - Σ dy·y)
        from_output(
            "softmax",
            self,
            move |x| x.softmax_(axis),
            move |x| x.softmax(axis),
            move |dy, y| {
                reuse(dy, |dy| dy.softmax_backward_(&y, axis), |dy| dy.softmax_backward(&y, axis))
            },
        )
    }

    /// `self - ln Σ exp(self)` along `axis`; see [`lowtide_tensor::Tensor::log_softmax`].
    #[track_caller]
    pub fn log_softmax(self, axis: impl Into<Axis>) -> Result<Var> {
        // A tensor without dimensions counts as a row of one element.
        let axis = axis.into().index("log_softmax", self.shape().len().max(1))?;
        // dx = dy - exp(y) · Σ dy
        from_output(
            "log_softmax",
            self,
            move |x| x.log_softmax_(axis),
            move |x| x.log_softmax(axis),
            move |dy, y| {
                reuse(
                    dy,
                    |dy| dy.log_softmax_backward_(&y, axis),
                    |dy| dy.log_softmax_backward(&y, axis),
                )
            },
        )
    }
}
