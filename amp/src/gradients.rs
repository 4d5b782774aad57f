//! The seam between the scaler and gradients, which may be tensors of another library.

use lowtide_autograd::Gradients;
use lowtide_tensor::{DType, Device, Tensor, scale_and_check_finite};

use crate::error::{AmpError, GradientError};

/// The gradients of one optimizer, in tensors of any library.
pub trait ScaledGradients {
    /// An error of the tensors or of the scaler.
    type Error: From<AmpError>;

    /// Multiplies every gradient by `inverse_scale` in place. Returns true if a gradient was or
    /// became infinite or NaN; a missing gradient counts as finite.
    ///
    /// # Errors
    /// Errors of the tensors, which leave the gradients unchanged.
    fn unscale(&mut self, inverse_scale: f32) -> Result<bool, Self::Error>;
}

/// Gradients in host memory, one slice for each tensor.
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

/// The gradients of an attempt. Unscaling waits for the device once.
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

/// Multiplies gradients by `inverse_scale` without waiting for the device. Returns an f32 tensor of
/// one element that is 1 if a result is infinite or NaN, else 0.
///
/// # Errors
/// `F16Gradient`, and errors of [`scale_and_check_finite`]. Both leave the gradients unchanged.
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
