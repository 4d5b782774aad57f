//! The options and the state of a loss scaler, and the rule by which an update changes the scale.

use serde::{Deserialize, Serialize};

use crate::error::AmpError;

/// Default limit of steps skipped in a row. Halved 50 times, the scale of 2^16 is 2^-34: a gradient
/// that overflows at that scale overflows without scaling, too.
const SKIPS_MAX: u32 = 50;

/// Options of a [`LossScaler`](crate::LossScaler). The defaults are those of PyTorch's
/// `GradScaler`, which has no limit of skipped steps.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct LossScalerOptions {
    /// Scale of the first step (2^16).
    pub initial_scale: f32,
    /// Factor of the scale after `growth_interval` clean updates in a row (2).
    pub growth_factor: f64,
    /// Factor of the scale after an update that found an infinity or NaN (0.5).
    pub backoff_factor: f64,
    /// Number of clean updates in a row after which the scale grows (2000).
    pub growth_interval: u32,
    /// Number of updates in a row that may find an infinity or NaN without an error (50).
    pub skips_max: u32,
}

impl Default for LossScalerOptions {
    fn default() -> Self {
        Self {
            initial_scale: 65_536.0,
            growth_factor: 2.0,
            backoff_factor: 0.5,
            growth_interval: 2000,
            skips_max: SKIPS_MAX,
        }
    }
}

/// The state of an enabled [`LossScaler`](crate::LossScaler), for checkpoints. The first five
/// fields have PyTorch's names; the output of `GradScaler.state_dict` can be read.
///
/// Take the state after `update`, between two logical batches.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LossScalerState {
    /// The current scale.
    pub scale: f32,
    /// As in [`LossScalerOptions::growth_factor`].
    pub growth_factor: f64,
    /// As in [`LossScalerOptions::backoff_factor`].
    pub backoff_factor: f64,
    /// As in [`LossScalerOptions::growth_interval`].
    pub growth_interval: u32,
    /// Number of clean updates since the last change of the scale; always below the interval.
    #[serde(alias = "_growth_tracker")]
    pub growth_tracker: u32,
    /// As in [`LossScalerOptions::skips_max`].
    #[serde(default = "skips_max", skip_serializing_if = "is_skips_max")]
    pub skips_max: u32,
    /// Number of updates in a row, up to the last one, that found an infinity or NaN.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub skipped_in_a_row: u32,
}

fn skips_max() -> u32 {
    SKIPS_MAX
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde calls it with a reference")]
fn is_skips_max(count: &u32) -> bool {
    *count == SKIPS_MAX
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde calls it with a reference")]
fn is_zero(count: &u32) -> bool {
    *count == 0
}

impl LossScalerState {
    /// The state of a new scaler with `options`.
    pub(crate) fn first(options: LossScalerOptions) -> Result<Self, AmpError> {
        let LossScalerOptions {
            initial_scale: scale,
            growth_factor,
            backoff_factor,
            growth_interval,
            skips_max,
        } = options;
        if scale == 0.0 {
            return Err(AmpError::Scale { scale });
        }
        let (growth_tracker, skipped_in_a_row) = (0, 0);
        Self {
            scale,
            growth_factor,
            backoff_factor,
            growth_interval,
            growth_tracker,
            skips_max,
            skipped_in_a_row,
        }
        .checked()
    }

    /// This state, or an error if no scaler can have it. A scaler can reach a scale of 0.
    pub(crate) fn checked(self) -> Result<Self, AmpError> {
        let Self { scale, growth_factor, backoff_factor, growth_interval, growth_tracker, .. } =
            self;
        if !scale.is_finite() || scale < 0.0 {
            return Err(AmpError::Scale { scale });
        }
        if !growth_factor.is_finite() || growth_factor <= 1.0 {
            return Err(AmpError::GrowthFactor { growth_factor });
        }
        if !(backoff_factor > 0.0 && backoff_factor < 1.0) {
            return Err(AmpError::BackoffFactor { backoff_factor });
        }
        if growth_interval == 0 {
            return Err(AmpError::GrowthInterval);
        }
        if growth_tracker >= growth_interval {
            return Err(AmpError::GrowthTracker { growth_tracker, growth_interval });
        }
        Ok(self)
    }

    /// The state after an iteration. `found_infinite` is true if a gradient was infinite or NaN.
    ///
    /// Products are computed in f64 and rounded to f32, as in PyTorch's `_amp_update_scale_`. The
    /// scale has no floor: after enough backoffs in a row it falls below 1 and finally to 0. The
    /// inverse of 0 is infinite, so from then on every gradient counts as infinite.
    ///
    /// # Errors
    /// `TooManySkips`.
    pub(crate) fn updated(self, found_infinite: bool) -> Result<Self, AmpError> {
        let scaled_by = |factor| (f64::from(self.scale) * factor) as f32;
        if found_infinite {
            let skipped_in_a_row = self.skipped_in_a_row.saturating_add(1);
            if skipped_in_a_row > self.skips_max {
                let scale = self.scale;
                return Err(AmpError::TooManySkips { skipped: skipped_in_a_row, scale });
            }
            let scale = scaled_by(self.backoff_factor);
            return Ok(Self { scale, growth_tracker: 0, skipped_in_a_row, ..self });
        }
        let clean = Self { skipped_in_a_row: 0, ..self };
        if self.growth_tracker + 1 < self.growth_interval {
            return Ok(Self { growth_tracker: self.growth_tracker + 1, ..clean });
        }
        let grown = scaled_by(self.growth_factor);
        let scale = if grown.is_finite() { grown } else { self.scale };
        Ok(Self { scale, growth_tracker: 0, ..clean })
    }
}
