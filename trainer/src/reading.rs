//! The one look at what a step has computed, before any of it is written.

use lowtide_amp::ScaledGradients;
use lowtide_autograd::Gradients;
use lowtide_tensor::{DType, Device, Tensor, scale_and_check_finite};

use crate::error::{Result, TrainError};
use crate::not_finite::NotFiniteWhat;

/// Loss and gradients of a turn, read together so that the device is waited for once.
pub(crate) struct Reading<'a> {
    pub(crate) device: &'a Device,
    /// One f64 without dimensions.
    pub(crate) loss_sum: &'a Tensor,
    pub(crate) gradients: &'a mut Gradients,
    /// Whether the loss may be infinite or NaN.
    pub(crate) is_ignored: bool,
    /// The sum of the losses, and what may not be committed.
    pub(crate) found: (f64, Option<NotFiniteWhat>),
}

impl ScaledGradients for Reading<'_> {
    type Error = TrainError;

    fn unscale(&mut self, inverse_scale: f32) -> Result<bool> {
        let flag = lowtide_amp::unscale(self.device, self.gradients, inverse_scale)?;
        self.read(flag)
    }
}

impl Reading<'_> {
    /// Looks at gradients that are not scaled.
    pub(crate) fn look(&mut self) -> Result<bool> {
        let flag = scale_and_check_finite(self.device, self.gradients.iter_mut(), 1.0)?;
        self.read(flag)
    }

    /// Whether something may not be committed; `flag` is 1 where that is a gradient, else 0.
    fn read(&mut self, mut flag: Tensor) -> Result<bool> {
        // 0 or infinite: added to the loss, one number tells of both.
        flag.mul_scalar_(1e30)?;
        flag.mul_scalar_(1e30)?;
        let mut both = flag.to_dtype(DType::F64)?.reshape([])?;
        both.add_(self.loss_sum)?;
        let both = both.item_assuming(0.0f64)?;
        if both.is_finite() {
            self.found = (both, None);
            return Ok(false);
        }
        let loss_sum = self.loss_sum.item_assuming(0.0f64)?;
        let is_loss = !loss_sum.is_finite() && !self.is_ignored;
        let what = if is_loss {
            Some(NotFiniteWhat::Loss)
        } else {
            (flag.item_assuming(0.0f32)? > 0.0).then_some(NotFiniteWhat::Gradient)
        };
        self.found = (loss_sum, what);
        Ok(what.is_some())
    }
}
