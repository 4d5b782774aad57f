//! Laws of the loss scaler and of autocast.

mod attempts;
mod autocast;
mod cast_cache;
mod grad_scaling;
mod order;
mod props;
mod scaler;
mod state;
mod trace;

use lowtide_amp::{AmpError, LossScaler, LossScalerOptions, ScaledGradients};

/// Gradients that report `found_infinite`.
struct Known {
    found_infinite: bool,
}

impl ScaledGradients for Known {
    type Error = AmpError;

    fn unscale(&mut self, _: f32) -> Result<bool, AmpError> {
        Ok(self.found_infinite)
    }
}

/// Runs one iteration of a single optimizer. `found_infinite` is the report of its gradients.
fn iterate(scaler: &mut LossScaler, found_infinite: bool) -> Result<(), AmpError> {
    let steps = scaler.step("", &mut Known { found_infinite })?;
    assert_eq!(steps, !found_infinite || !scaler.is_enabled());
    scaler.update()
}

fn scaler(initial_scale: f32, growth: f64, backoff: f64, growth_interval: u32) -> LossScaler {
    LossScaler::new(LossScalerOptions {
        initial_scale,
        growth_factor: growth,
        backoff_factor: backoff,
        growth_interval,
        skips_max: u32::MAX,
    })
    .expect("the options are in range")
}
