//! The loss scaler: the stage of each optimizer in an iteration, around the numbers of
//! [`LossScalerState`].

use std::collections::BTreeMap;

use crate::error::{AmpError, OrderFault};
use crate::gradients::ScaledGradients;
use crate::scale::{LossScalerOptions, LossScalerState};

/// Multiplies the loss so that half-precision gradients do not vanish, and adapts the factor; the
/// state machine of PyTorch's `GradScaler`.
///
/// An iteration is a logical batch, however many micro-batches it has. Every loss in it is
/// multiplied by [`scale`](Self::scale); each optimizer's summed gradients are unscaled once, by
/// [`unscale`](Self::unscale) if something has to happen to them before the step, such as clipping,
/// or else by [`step`](Self::step); [`update`](Self::update) ends it. The scale does not move in
/// between. An iteration that is rolled back puts back a clone from its beginning.
///
/// Optimizers are told apart by names; a single one may be `""`.
///
/// # Examples
/// ```
/// use lowtide_amp::{AmpError, LossScaler};
/// let mut scaler = LossScaler::default();
/// let mut dw = [f32::INFINITY, 3.0];
/// if scaler.step("", &mut [&mut dw[..]][..])? {
///     // the optimizer's step, which an infinity leaves out
/// #   unreachable!();
/// }
/// scaler.update()?;
/// assert_eq!(scaler.scale(), 32_768.0);
/// # Ok::<(), AmpError>(())
/// ```
#[derive(Debug, Clone, PartialEq)]
pub struct LossScaler {
    /// `None` is a disabled scaler.
    state: Option<LossScalerState>,
    /// The optimizers whose gradients were unscaled since the last update.
    optimizers: BTreeMap<String, Unscaled>,
}

/// An optimizer that is not ready for `unscale` any more.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Unscaled {
    found_infinite: bool,
    has_stepped: bool,
}

impl LossScaler {
    /// A scaler at its initial scale.
    ///
    /// # Errors
    /// The first setting that is out of range.
    pub fn new(options: LossScalerOptions) -> Result<Self, AmpError> {
        let state = Some(LossScalerState::first(options)?);
        Ok(Self { state, optimizers: BTreeMap::new() })
    }

    /// A scaler of scale 1 that never moves and looks at nothing, for f32 and bf16: the loop stays
    /// the same.
    #[must_use]
    pub fn disabled() -> Self {
        Self { state: None, optimizers: BTreeMap::new() }
    }

    /// The scaler that was saved.
    ///
    /// # Errors
    /// A state that no scaler can have. A scale of 0 is one that a scaler can have: see
    /// [`update`](Self::update).
    pub fn from_state(state: LossScalerState) -> Result<Self, AmpError> {
        Ok(Self { state: Some(state.checked()?), optimizers: BTreeMap::new() })
    }

    /// What a checkpoint has to keep; `None` if disabled. Between two iterations: what optimizers
    /// have done in this one is not part of it.
    #[must_use]
    pub fn state(&self) -> Option<LossScalerState> {
        self.state
    }

    /// Goes on from what was saved, at the beginning of an iteration. A disabled scaler stays one.
    ///
    /// # Errors
    /// `NoState` for an enabled scaler and the state of a disabled one; a state that no scaler can
    /// have.
    pub fn set_state(&mut self, state: Option<LossScalerState>) -> Result<(), AmpError> {
        if self.is_enabled() {
            *self = Self::from_state(state.ok_or(AmpError::NoState)?)?;
        }
        Ok(())
    }

    /// Whether the scale can be other than 1.
    #[must_use]
    pub fn is_enabled(&self) -> bool {
        self.state.is_some()
    }

    /// The factor for every loss of this iteration.
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

    /// Divides the gradients of `optimizer` by the scale and looks at them, once an iteration;
    /// whether any is infinite or NaN. Only needed where something happens to them before
    /// [`step`](Self::step).
    ///
    /// # Errors
    /// `Order` the second time and after `step`; what the gradients report. Nothing has changed
    /// then.
    pub fn unscale<G: ScaledGradients + ?Sized>(
        &mut self,
        optimizer: &str,
        gradients: &mut G,
    ) -> Result<bool, G::Error> {
        if !self.is_enabled() {
            return Ok(false);
        }
        if let Some(unscaled) = self.optimizers.get(optimizer) {
            let fault = match unscaled.has_stepped {
                true => OrderFault::UnscaledAfterStep,
                false => OrderFault::UnscaledTwice,
            };
            return Err(out_of_order(optimizer, fault).into());
        }
        let found_infinite = gradients.unscale(self.inverse_scale())?;
        let unscaled = Unscaled { found_infinite, has_stepped: false };
        self.optimizers.insert(optimizer.to_owned(), unscaled);
        Ok(found_infinite)
    }

    /// Whether `optimizer` is to make its step, with these gradients, which are unscaled unless
    /// they were before. An optimizer whose gradients are not finite is left out; others of the
    /// iteration are not.
    ///
    /// # Errors
    /// `Order` the second time; what the gradients report. Nothing has changed then.
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

    /// Ends an iteration: the scale backs off if the gradients of any optimizer were not finite,
    /// and grows after enough iterations in a row in which all were. There is no floor: a scale of
    /// 0 is the end of a long row of backoffs.
    ///
    /// # Errors
    /// `Order` if no gradients were looked at; `TooManySkips`. Nothing has changed then.
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

    /// [`update`](Self::update) to a scale of the caller's, whatever was found. The count of clean
    /// updates goes on.
    ///
    /// # Errors
    /// `Scale` unless it is finite and positive.
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
