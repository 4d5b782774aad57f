//! Clipping gradients before an update.

use lowtide_autograd::Gradients;
use lowtide_tensor::{Device, scale_and_check_finite, squared_norm};

use crate::checks::check_option;
use crate::error::Result;

/// The number that PyTorch adds to the norm, against division by zero.
const EPS: f64 = 1e-6;

/// Clips every element to `-limit..=limit`, in place; `torch.nn.utils.clip_grad_value_`. NaN stays
/// NaN.
///
/// # Errors
/// `Option` for a limit below 0.
pub fn clip_value(gradients: &mut Gradients, limit: f64) -> Result<()> {
    check_option("clip_value", limit, "0..", |x| x >= 0.0)?;
    Ok(gradients.iter_mut().try_for_each(|gradient| gradient.clamp_(-limit, limit))?)
}

/// Scales the gradients, taken as one vector, down to the norm `norm_max` if they are longer, in
/// place; `torch.nn.utils.clip_grad_norm_`. Returns the norm before. Waits for the device. On a
/// simulated device the norm is 0.
///
/// # Errors
/// `Option` for a maximum below 0, `OutOfMemory`.
pub fn clip_norm(device: &Device, gradients: &mut Gradients, norm_max: f64) -> Result<f64> {
    check_option("clip_norm", norm_max, "0..", |x| x >= 0.0)?;
    let norm = squared_norm(device, gradients.iter())?.item_assuming(0.0f64)?.sqrt();
    shorten(gradients, norm, norm_max)?;
    Ok(norm)
}

/// [`clip_norm`] for gradients whose norm is known.
///
/// # Errors
/// `Option` for a maximum below 0.
pub fn shorten(gradients: &mut Gradients, norm: f64, norm_max: f64) -> Result<()> {
    check_option("clip_norm", norm_max, "0..", |x| x >= 0.0)?;
    let Some(scale) = clip_scale(norm, norm_max) else { return Ok(()) };
    // One launch scales many gradients. The check for finite values is not needed.
    let device = gradients.iter().next().map(|gradient| gradient.device().clone());
    if let Some(device) = device {
        scale_and_check_finite(&device, gradients.iter_mut(), scale)?;
    }
    Ok(())
}

/// The factor of [`clip_norm`] for gradients of this norm; `None` if the norm is at most
/// `norm_max`.
pub fn clip_scale(norm: f64, norm_max: f64) -> Option<f64> {
    let scale = norm_max / (norm + EPS);
    (scale < 1.0).then_some(scale)
}
