//! The loss scaler: [`LossScalerState`], and the stage of each optimizer in the current iteration.

use std::collections::BTreeMap;

use crate::error::{AmpError, OrderFault};
use crate::gradients::ScaledGradients;
use crate::scale::{LossScalerOptions, LossScalerState};

/// Scales the loss so that half-precision gradients do not vanish, and adapts the scale. It is the
/// state machine of PyTorch's `GradScaler`.
///
/// An iteration is one logical batch with any number of micro-batches:
///
/// 1. Every loss is multiplied by [`scale`](Self::scale).
/// 2. [`unscale`](Self::unscale) divides the summed gradients of an optimizer by the scale. Call it
///    only if the gradients are changed before the step, for example clipped.
/// 3. [`step`](Self::step) says whether the optimizer makes its step. It unscales gradients that
///    are still scaled.
/// 4. [`update`](Self::update) ends the iteration and adapts the scale, which is constant until
///    then.
///
/// To roll an iteration back, restore a clone from its beginning. Optimizers are distinguished by
/// name; a single one may have the name `""`.
///
/// # Examples
/// ```
/// use lowtide_amp::{AmpError, LossScaler};
/// let mut scaler = LossScaler::default();
/// let mut dw = [f32::INFINITY, 3.0];
/// if scaler.step("", &mut [&mut dw[..]][..])? {
///     // the optimizer's step, which is skipped for an infinite gradient
/// #   unreachable!();
/// }
/// scaler.update()?;
/// assert_eq!(scaler.scale(), 32_768.0);
/// # Ok::<(), AmpError>(())
/// ```
#[derive(Debug, Clone, PartialEq)]
pub struct LossScaler {
    /// `None` if the scaler is disabled.
    state: Option<LossScalerState>,
    /// The optimizers whose gradients were unscaled since the last update.
    optimizers: BTreeMap<String, Unscaled>,
}

/// The stage of an optimizer whose gradients were unscaled in this iteration.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Unscaled {
    found_infinite: bool,
    has_stepped: bool,
}

impl LossScaler {
    /// A scaler at its initial scale.
    ///
    /// # Errors
    /// The first option that is out of range.
    pub fn new(options: LossScalerOptions) -> Result<Self, AmpError> {
        let state = Some(LossScalerState::first(options)?);
        Ok(Self { state, optimizers: BTreeMap::new() })
    }

    /// A scaler for f32 and bf16, so that one training loop serves all types. Its scale is always
    /// 1, and it does not look at gradients.
    #[must_use]
    pub fn disabled() -> Self {
        Self { state: None, optimizers: BTreeMap::new() }
    }

    /// The scaler with a saved state.
    ///
    /// # Errors
    /// The first number that no scaler can have. A scale of 0 is valid: see
    /// [`update`](Self::update).
    pub fn from_state(state: LossScalerState) -> Result<Self, AmpError> {
        Ok(Self { state: Some(state.checked()?), optimizers: BTreeMap::new() })
    }

    /// The state for a checkpoint; `None` if the scaler is disabled. Take it between two
    /// iterations, because it does not contain the stages of the optimizers.
    #[must_use]
    pub fn state(&self) -> Option<LossScalerState> {
        self.state
    }

    /// Continues from a saved state, at the beginning of an iteration. A disabled scaler stays
    /// disabled.
    ///
    /// # Errors
    /// `NoState` if an enabled scaler is given `None`; else as for
    /// [`from_state`](Self::from_state).
    pub fn set_state(&mut self, state: Option<LossScalerState>) -> Result<(), AmpError> {
        if self.is_enabled() {
            *self = Self::from_state(state.ok_or(AmpError::NoState)?)?;
        }
        Ok(())
    }

    /// True if the scaler scales; a disabled scaler has scale 1.
    #[must_use]
    pub fn is_enabled(&self) -> bool {
        self.state.is_some()
    }

    /// The factor for every loss of this iteration.
    #[must_use]
    pub fn scale(&self) -> f32 {
        self.state.map_or(1.0, |state| state.scale)
    }

    /// The factor for the summed gradients: `1 / scale`, computed in f64 and rounded once.
    #[must_use]
    pub fn inverse_scale(&self) -> f32 {
        (1.0 / f64::from(self.scale())) as f32
    }

    /// The number of clean updates since the last change of the scale.
    #[must_use]
    pub fn growth_tracker(&self) -> u32 {
        self.state.map_or(0, |state| state.growth_tracker)
    }

    /// Divides the gradients of `optimizer` by the scale. Returns true if a gradient is infinite or
    /// NaN. Call it at most once per iteration, and only if the gradients are changed before
    /// [`step`](Self::step).
    ///
    /// # Errors
    /// `Order` for a second call and after `step`; errors of the gradients. Every error leaves the
    /// scaler and the gradients unchanged.
    pub fn unscale<G: ScaledGradients + ?Sized>(
        &mut self,
        optimizer: &str,
        gradients: &mut G,
    ) -> Result<bool, G::Error> {
        if !self.is_enabled() {
            return Ok(false);
        }
        if let Some(unscaled) = self.optimizers.get(optimizer) {
            let fault = if unscaled.has_stepped {
                OrderFault::UnscaledAfterStep
            } else {
                OrderFault::UnscaledTwice
            };
            return Err(out_of_order(optimizer, fault).into());
        }
        let found_infinite = gradients.unscale(self.inverse_scale())?;
        let unscaled = Unscaled { found_infinite, has_stepped: false };
        self.optimizers.insert(optimizer.to_owned(), unscaled);
        Ok(found_infinite)
    }

    /// Unscales the gradients of `optimizer` unless they are unscaled already. Returns true if the
    /// optimizer should make its step, and false if a gradient is infinite or NaN. Other optimizers
    /// of the iteration are not affected.
    ///
    /// # Errors
    /// `Order` for a second call; errors of the gradients. Every error leaves the scaler and the
    /// gradients unchanged.
    pub fn step<G: ScaledGradients + ?Sized>(
        &mut self,
        optimizer: &str,
        gradients: &mut G,
    ) -> Result<bool, G::Error> {
        if !self.is_enabled() {
            return Ok(true);
        }
        if !self.optimizers.contains_key(optimizer) {
            self.unscale(optimizer, gradients)?;
        }
        let unscaled = self.optimizers.get_mut(optimizer).expect("unscaled above or before");
        if unscaled.has_stepped {
            return Err(out_of_order(optimizer, OrderFault::SteppedTwice).into());
        }
        unscaled.has_stepped = true;
        Ok(!unscaled.found_infinite)
    }

    /// Ends an iteration. The scale backs off if the gradients of an optimizer were not finite, and
    /// grows after `growth_interval` iterations in a row with finite gradients. The scale has no
    /// floor: many backoffs in a row end at 0.
    ///
    /// # Errors
    /// `Order` if no gradients were checked; `TooManySkips`. Both leave the scaler unchanged.
    pub fn update(&mut self) -> Result<(), AmpError> {
        let Some(state) = self.state else { return Ok(()) };
        if self.optimizers.is_empty() {
            return Err(out_of_order("", OrderFault::NothingChecked));
        }
        let found_infinite = self.optimizers.values().any(|unscaled| unscaled.found_infinite);
        self.state = Some(state.updated(found_infinite)?);
        self.optimizers.clear();
        Ok(())
    }

    /// Ends an iteration and sets the scale, whatever the gradients were. The number of clean
    /// updates stays.
    ///
    /// # Errors
    /// `Scale` unless `scale` is finite and positive.
    pub fn update_to(&mut self, scale: f32) -> Result<(), AmpError> {
        let Some(state) = &mut self.state else { return Ok(()) };
        if scale == 0.0 {
            return Err(AmpError::Scale { scale });
        }
        *state = LossScalerState { scale, ..*state }.checked()?;
        self.optimizers.clear();
        Ok(())
    }
}

impl Default for LossScaler {
    /// An enabled scaler with the default options.
    fn default() -> Self {
        Self::new(LossScalerOptions::default()).expect("the default options are in range")
    }
}

fn out_of_order(optimizer: &str, fault: OrderFault) -> AmpError {
    AmpError::Order { optimizer: optimizer.to_owned(), fault }
}
