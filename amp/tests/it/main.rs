//! Laws of the loss scaler.

mod props;
mod scaler;
mod state;

use lowtide_amp::{LossScaler, LossScalerOptions};

/// What a trainer does with the summed gradients: multiplies them back, says if one is infinite.
fn unscale(gradients: &mut [f32], scaler: &LossScaler) -> bool {
    let mut found_infinite = false;
    for gradient in gradients {
        found_infinite |= !gradient.is_finite();
        *gradient *= scaler.inverse_scale();
    }
    found_infinite
}

fn scaler(initial_scale: f32, growth: f64, backoff: f64, growth_interval: u32) -> LossScaler {
    LossScaler::new(LossScalerOptions {
        initial_scale,
        growth_factor: growth,
        backoff_factor: backoff,
        growth_interval,
    })
    .expect("the options are in range")
}
