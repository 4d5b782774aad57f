//! What the scaler asks of gradients, also those of another library.

use lowtide_autograd::Gradients;
use lowtide_tensor::{DType, Device, Tensor, scale_and_check_finite};

use crate::error::{AmpError, GradientError};

/// The gradients of one optimizer, in whatever tensors.
pub trait ScaledGradients {
    /// What can go wrong with them, or with the scaler.
    type Error: From<AmpError>;

    /// Multiplies every gradient by `inverse_scale`, in place, and tells whether any of them was or
    /// became infinite or NaN. A gradient that is not there is finite.
    ///
    /// # Errors
    /// What the tensors report; the gradients are as they were then.
    fn unscale(&mut self, inverse_scale: f32) -> Result<bool, Self::Error>;
}

/// Numbers in host memory, one slice a tensor.
impl ScaledGradients for [&mut [f32]] {
    type Error = AmpError;

    fn unscale(&mut self, inverse_scale: f32) -> Result<bool, AmpError> {
        let mut found_infinite = false;
        for gradient in self.iter_mut().flat_map(|gradients| gradients.iter_mut()) {
            *gradient *= inverse_scale;
            found_infinite |= !gradient.is_finite();
        }
        Ok(found_infinite)
    }
}

/// The gradients of an attempt. Waits for the device, once.
impl ScaledGradients for Gradients {
    type Error = GradientError;

    fn unscale(&mut self, inverse_scale: f32) -> Result<bool, GradientError> {
        let Some(device) = self.iter().next().map(|gradient| gradient.device().clone()) else {
            return Ok(false);
        };
        let flag = unscale(&device, self, inverse_scale)?;
        Ok(flag.item_assuming(0.0f32)? > 0.0)
    }
}

/// Multiplies gradients by `inverse_scale` without waiting for the device: a one-element f32 tensor
/// that is 1 if any result is infinite or NaN, else 0.
///
/// # Errors
/// `F16Gradient`, and those of [`scale_and_check_finite`]; the gradients are as they were then.
#[track_caller]
pub fn unscale(
    device: &Device,
    gradients: &mut Gradients,
    inverse_scale: f32,
) -> Result<Tensor, GradientError> {
    if gradients.iter().any(|gradient| gradient.dtype() == DType::F16) {
        return Err(GradientError::F16Gradient);
    }
    let inverse_scale = f64::from(inverse_scale);
    Ok(scale_and_check_finite(device, gradients.iter_mut(), inverse_scale)?)
}
