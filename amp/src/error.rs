//! The errors of this crate: settings and saved states that no scaler can have, calls out of order,
//! and a run of skipped steps.

use lowtide_tensor::TensorError;

/// What a [`LossScaler`](crate::LossScaler) refuses. It is as before the call then.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum AmpError {
    /// The scale is not finite, or is zero or negative where a run begins.
    #[error("the loss scale must be finite and positive, not {scale}")]
    Scale {
        /// The refused scale.
        scale: f32,
    },
    /// A factor of one or less would never grow the scale.
    #[error("the growth factor must be finite and above 1, not {growth_factor}")]
    GrowthFactor {
        /// The refused factor.
        growth_factor: f64,
    },
    /// A factor of one or more would never leave a scale that overflows; zero or less is no scale.
    #[error("the backoff factor must lie between 0 and 1, not {backoff_factor}")]
    BackoffFactor {
        /// The refused factor.
        backoff_factor: f64,
    },
    /// With an interval of zero the scale would never grow.
    #[error("the growth interval must be at least 1 update")]
    GrowthInterval,
    /// The saved count of clean updates has passed the interval, which no scaler reaches.
    #[error("the growth tracker is {growth_tracker}, its interval {growth_interval}")]
    GrowthTracker {
        /// Clean updates since the scale last moved, as saved.
        growth_tracker: u32,
        /// Clean updates after which the scale grows, as saved.
        growth_interval: u32,
    },
    /// A scaler that is enabled was given the state of one that is disabled.
    #[error("there is no saved loss scale: the run that was saved did not scale losses")]
    NoState,
    /// A call that does not come in its turn.
    #[error("{}", .fault.says(optimizer))]
    Order {
        /// The optimizer, by the name that the caller gives it; empty where it has none.
        optimizer: String,
        /// What was wrong.
        fault: OrderFault,
    },
    /// More updates in a row than allowed found gradients that are not finite.
    #[error(
        "the gradients of {skipped} steps in a row were infinite or NaN, the last at a loss scale \
         of {scale}: what overflows is not the scaled loss"
    )]
    TooManySkips {
        /// Steps skipped in a row, this one included.
        skipped: u32,
        /// The scale of the last one.
        scale: f32,
    },
}

/// Which rule of the order `scale`, `unscale`, `step`, `update` a call breaks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum OrderFault {
    /// `unscale` a second time: the gradients would be divided by the scale twice.
    UnscaledTwice,
    /// `unscale` after `step`: what the optimizer has used were the scaled gradients.
    UnscaledAfterStep,
    /// `step` a second time.
    SteppedTwice,
    /// `update` though no optimizer's gradients were looked at.
    NothingChecked,
}

impl OrderFault {
    /// The text for an optimizer of this name.
    fn says(self, optimizer: &str) -> String {
        let of = match optimizer {
            "" => "the optimizer".to_owned(),
            name => format!("optimizer {name:?}"),
        };
        match self {
            OrderFault::UnscaledTwice => format!(
                "unscale was already called for {of} since the last update: its gradients would be \
                 divided by the scale twice"
            ),
            OrderFault::UnscaledAfterStep => {
                format!("unscale is called for {of} after step: call update in between")
            }
            OrderFault::SteppedTwice => {
                format!("step was already called for {of} since the last update")
            }
            OrderFault::NothingChecked => "update is called though no gradients were looked at: \
                 call step or unscale for an optimizer first"
                .to_owned(),
        }
    }
}

/// What can go wrong when the gradients of an attempt are unscaled.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum GradientError {
    /// The scaler refuses the call.
    #[error(transparent)]
    Scaler(#[from] AmpError),
    /// A gradient is f16: what was lost when it was rounded does not come back by dividing.
    #[error(
        "a gradient is f16: keep the parameters in f32, so that gradients are f32 when they are \
         unscaled, and let autocast make the f16 copies"
    )]
    F16Gradient,
    /// The device reports an error.
    #[error(transparent)]
    Tensor(#[from] TensorError),
}
