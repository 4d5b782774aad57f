//! The loss scaler: five numbers and the rule by which an update moves two of them.

use crate::error::AmpError;
use serde::{Deserialize, Serialize};

/// Settings of a [`LossScaler`]; the defaults are those of PyTorch's `GradScaler`.
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
}

impl Default for LossScalerOptions {
    fn default() -> Self {
        Self {
            initial_scale: 65_536.0,
            growth_factor: 2.0,
            backoff_factor: 0.5,
            growth_interval: 2000,
        }
    }
}

/// All that a checkpoint has to keep of an enabled [`LossScaler`]; the names are PyTorch's.
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
    pub growth_tracker: u32,
}

/// Multiplies the loss so that half-precision gradients do not vanish, and adapts the factor.
///
/// The order per logical batch, however many micro-batches it has: every loss is multiplied by
/// [`scale`](Self::scale), the summed gradients once by [`inverse_scale`](Self::inverse_scale),
/// then [`update`](Self::update) once. The scale does not move in between. A step that is rolled
/// back puts its clone back; it never calls `update`.
///
/// # Examples
/// ```
/// use lowtide_amp::LossScaler;
/// let mut scaler = LossScaler::default();
/// assert_eq!(scaler.scale(), 65_536.0);
/// scaler.update(true); // an infinity was found: the step was skipped
/// assert_eq!(scaler.scale(), 32_768.0);
/// ```
#[derive(Debug, Clone, PartialEq)]
pub struct LossScaler {
    /// `None` is a disabled scaler.
    state: Option<LossScalerState>,
}

impl LossScaler {
    /// A scaler at its initial scale.
    ///
    /// # Errors
    /// The first setting that is out of range.
    pub fn new(options: LossScalerOptions) -> Result<Self, AmpError> {
        let LossScalerOptions { initial_scale, growth_factor, backoff_factor, growth_interval } =
            options;
        if initial_scale == 0.0 {
            return Err(AmpError::Scale { scale: initial_scale });
        }
        Self::from_state(LossScalerState {
            scale: initial_scale,
            growth_factor,
            backoff_factor,
            growth_interval,
            growth_tracker: 0,
        })
    }

    /// A scaler of scale 1 that never moves, for f32 and bf16: the loop stays the same.
    #[must_use]
    pub fn disabled() -> Self {
        Self { state: None }
    }

    /// The scaler that was saved.
    ///
    /// # Errors
    /// A state that no scaler can have. A scale of 0 is one that a scaler can have: see `update`.
    pub fn from_state(state: LossScalerState) -> Result<Self, AmpError> {
        check(&state)?;
        Ok(Self { state: Some(state) })
    }

    /// What a checkpoint has to keep; `None` if disabled.
    #[must_use]
    pub fn state(&self) -> Option<LossScalerState> {
        self.state
    }

    /// Whether the scale can be other than 1.
    #[must_use]
    pub fn is_enabled(&self) -> bool {
        self.state.is_some()
    }

    /// The factor for every loss of this logical batch.
    #[must_use]
    pub fn scale(&self) -> f32 {
        self.state.map_or(1.0, |state| state.scale)
    }

    /// The factor for the summed gradients: `1 / scale`, divided in f64 and rounded once.
    #[must_use]
    pub fn inverse_scale(&self) -> f32 {
        (1.0 / f64::from(self.scale())) as f32
    }

    /// Clean updates since the scale last moved.
    #[must_use]
    pub fn growth_tracker(&self) -> u32 {
        self.state.map_or(0, |state| state.growth_tracker)
    }

    /// Ends a logical batch; `found_infinite` says that a gradient held an infinity or NaN.
    ///
    /// Products are taken in f64 and rounded to f32, as PyTorch's `_amp_update_scale_` does. There
    /// is no floor: after enough bad batches in a row the scale passes 1 and at last reaches 0,
    /// whose inverse is infinite, so that every later batch is found infinite as well.
    pub fn update(&mut self, found_infinite: bool) {
        let Some(state) = &mut self.state else { return };
        if found_infinite {
            state.scale = (f64::from(state.scale) * state.backoff_factor) as f32;
            state.growth_tracker = 0;
            return;
        }
        state.growth_tracker += 1;
        if state.growth_tracker == state.growth_interval {
            let grown = (f64::from(state.scale) * state.growth_factor) as f32;
            if grown.is_finite() {
                state.scale = grown;
            }
            state.growth_tracker = 0;
        }
    }
}

impl Default for LossScaler {
    /// An enabled scaler with the default options.
    fn default() -> Self {
        Self::new(LossScalerOptions::default()).expect("the default options are in range")
    }
}

fn check(state: &LossScalerState) -> Result<(), AmpError> {
    let &LossScalerState { scale, growth_factor, backoff_factor, growth_interval, growth_tracker } =
        state;
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
    Ok(())
}
