//! The one error of this crate: a setting or a saved state that no scaler can have.

/// A setting outside its range, from [`LossScalerOptions`](crate::LossScalerOptions) or from a
/// saved [`LossScalerState`](crate::LossScalerState).
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
}
