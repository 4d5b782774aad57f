//! The errors of this crate: invalid options and saved states, calls out of order, and too many
//! skipped steps in a row.

use lowtide_tensor::TensorError;

/// An error of a [`LossScaler`](crate::LossScaler). The scaler stays unchanged.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum AmpError {
    /// The scale is negative or not finite, or an initial scale is zero.
    #[error("the loss scale must be finite and positive, not {scale}")]
    Scale {
        /// The refused scale.
        scale: f32,
    },
    /// The growth factor is not finite or not above 1, so the scale would not grow.
    #[error("the growth factor must be finite and above 1, not {growth_factor}")]
    GrowthFactor {
        /// The refused factor.
        growth_factor: f64,
    },
    /// The backoff factor is not between 0 and 1, so the scale would not shrink.
    #[error("the backoff factor must lie between 0 and 1, not {backoff_factor}")]
    BackoffFactor {
        /// The refused factor.
        backoff_factor: f64,
    },
    /// The growth interval is zero.
    #[error("the growth interval must be at least 1 update")]
    GrowthInterval,
    /// A saved growth tracker is not below its interval, which no scaler reaches.
    #[error("the growth tracker is {growth_tracker}, its interval {growth_interval}")]
    GrowthTracker {
        /// Saved number of clean updates since the last change of the scale.
        growth_tracker: u32,
        /// Saved number of clean updates after which the scale grows.
        growth_interval: u32,
    },
    /// An enabled scaler was given the state of a disabled one.
    #[error("there is no saved loss scale: the run that was saved did not scale losses")]
    NoState,
    /// A call is out of order.
    #[error("{}", .fault.message(optimizer))]
    Order {
        /// The name that the caller gave the optimizer; empty if it has none.
        optimizer: String,
        /// The broken rule.
        fault: OrderFault,
    },
    /// Too many updates in a row found gradients that are not finite.
    #[error(
        "the gradients of {skipped} steps in a row were infinite or NaN, the last at a loss scale \
         of {scale}: what overflows is not the scaled loss"
    )]
    TooManySkips {
        /// Number of steps skipped in a row, including this one.
        skipped: u32,
        /// Scale of the last of these steps.
        scale: f32,
    },
}

/// A broken rule of the order `scale`, `unscale`, `step`, `update`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum OrderFault {
    /// `unscale` was called a second time: the gradients would be divided by the scale twice.
    UnscaledTwice,
    /// `unscale` was called after `step`: the optimizer has used scaled gradients.
    UnscaledAfterStep,
    /// `step` was called a second time.
    SteppedTwice,
    /// `update` was called before any gradients were checked.
    NothingChecked,
}

impl OrderFault {
    /// The error text for the optimizer with this name.
    fn message(self, optimizer: &str) -> String {
        let named = match optimizer {
            "" => "the optimizer".to_owned(),
            name => format!("optimizer {name:?}"),
        };
        match self {
            OrderFault::UnscaledTwice => format!(
                "unscale was already called for {named} since the last update: its gradients would \
                 be divided by the scale twice"
            ),
            OrderFault::UnscaledAfterStep => {
                format!("unscale is called for {named} after step: call update in between")
            }
            OrderFault::SteppedTwice => {
                format!("step was already called for {named} since the last update")
            }
            OrderFault::NothingChecked => "update is called before any gradients were checked: \
                 call step or unscale for an optimizer first"
                .to_owned(),
        }
    }
}

/// An error of unscaling the gradients of an attempt.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum GradientError {
    /// The scaler refuses the call.
    #[error(transparent)]
    Scaler(#[from] AmpError),
    /// A gradient is f16. Unscaling cannot bring back the digits that f16 has rounded away.
    #[error(
        "a gradient is f16: keep the parameters in f32, so that gradients are f32 when they are \
         unscaled, and let autocast make the f16 copies"
    )]
    F16Gradient,
    /// A tensor operation failed.
    #[error(transparent)]
    Tensor(#[from] TensorError),
}
