//! The numbers of a loss scaler, and the rule by which an update moves two of them.

use serde::{Deserialize, Serialize};

use crate::error::AmpError;

/// Steps skipped in a row that are still allowed, unless said otherwise: halved so often, the
/// scale of 2^16 is 2^-34, at which nothing overflows that would not overflow unscaled.
const SKIPS_MAX: u32 = 50;

/// Settings of a [`LossScaler`](crate::LossScaler); the defaults are those of PyTorch's
/// `GradScaler`, which has no limit to skipped steps.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct LossScalerOptions {
    /// Scale of the first step (2^16).
    pub initial_scale: f32,
    /// The scale is multiplied by this after `growth_interval` clean updates in a row (2).
    pub growth_factor: f64,
    /// The scale is multiplied by this after an update that found an infinity or NaN (0.5).
    pub backoff_factor: f64,
    /// Clean updates in a row before the scale grows (2000).
    pub growth_interval: u32,
    /// Updates in a row that may find an infinity or NaN before that is an error (50).
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

/// All that a checkpoint has to keep of an enabled [`LossScaler`](crate::LossScaler). The first
/// five have PyTorch's names, and what `GradScaler.state_dict` gives can be read.
///
/// Take it after `update`, between two logical batches.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LossScalerState {
    /// The current scale.
    pub scale: f32,
    /// See [`LossScalerOptions::growth_factor`].
    pub growth_factor: f64,
    /// See [`LossScalerOptions::backoff_factor`].
    pub backoff_factor: f64,
    /// See [`LossScalerOptions::growth_interval`].
    pub growth_interval: u32,
    /// Clean updates since the scale last moved, always below the interval.
    #[serde(alias = "_growth_tracker")]
    pub growth_tracker: u32,
    /// See [`LossScalerOptions::skips_max`].
    #[serde(default = "skips_max", skip_serializing_if = "is_skips_max")]
    pub skips_max: u32,
    /// Updates in a row, up to the last one, that found an infinity or NaN.
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
    /// The first state under `options`.
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

    /// This state, if a scaler can have it. A scale of 0 is one that a scaler can reach.
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

    /// The state after an iteration in which gradients were all finite, or were not.
    ///
    /// Products are taken in f64 and rounded to f32, as PyTorch's `_amp_update_scale_` does. There
    /// is no floor: after enough bad batches in a row the scale passes 1 and at last reaches 0,
    /// whose inverse is infinite, so that every later batch is found infinite as well.
    ///
    /// # Errors
    /// `TooManySkips`.
    pub(crate) fn updated(self, found_infinite: bool) -> Result<Self, AmpError> {
        let moved = |factor| (f64::from(self.scale) * factor) as f32;
        if found_infinite {
            let skipped_in_a_row = self.skipped_in_a_row.saturating_add(1);
            if skipped_in_a_row > self.skips_max {
                let scale = self.scale;
                return Err(AmpError::TooManySkips { skipped: skipped_in_a_row, scale });
            }
            let scale = moved(self.backoff_factor);
            return Ok(Self { scale, growth_tracker: 0, skipped_in_a_row, ..self });
        }
        let clean = Self { skipped_in_a_row: 0, ..self };
        if self.growth_tracker + 1 < self.growth_interval {
            return Ok(Self { growth_tracker: self.growth_tracker + 1, ..clean });
        }
        let grown = moved(self.growth_factor);
        let scale = if grown.is_finite() { grown } else { self.scale };
        Ok(Self { scale, growth_tracker: 0, ..clean })
    }
}
