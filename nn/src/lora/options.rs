//! How a model is adapted.

#[cfg(feature = "serde")]
use serde::{Deserialize, Serialize};

use crate::checks::check_option;
use crate::error::Result;
use crate::lora::targets::Targets;

/// Ranks above are no adapter's: A and B would be larger than the weights.
pub(super) const RANK_MAX: usize = 1 << 16;

/// How a model is adapted: PEFT's `LoraConfig`.
#[derive(Clone, Debug, PartialEq)]
#[cfg_attr(feature = "serde", derive(Serialize, Deserialize), serde(deny_unknown_fields, default))]
pub struct LoraOptions {
    /// Rows of A, PEFT's `r`.
    pub rank: usize,
    /// The numerator of the scale.
    pub alpha: f64,
    /// Which linear layers get an adapter.
    pub targets: Targets,
    /// Dropout probability of what A sees, in training.
    pub dropout: f64,
    /// How the scale depends on the rank.
    pub scaling: LoraScaling,
    /// True if the magnitudes of the weight's rows are trained beside their directions. It costs a
    /// result of the layer for backward, and a product over the whole weight in each pass.
    pub dora: bool,
}

/// How the scale of an adapter depends on its rank.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(Serialize, Deserialize), serde(rename_all = "kebab-case"))]
pub enum LoraScaling {
    /// `alpha / rank`
    #[default]
    Plain,
    /// `alpha / √rank`, rsLoRA.
    RankStabilised,
}

impl Default for LoraOptions {
    fn default() -> Self {
        LoraOptions {
            rank: 8,
            alpha: 8.0,
            targets: Targets::AllLinear,
            dropout: 0.0,
            scaling: LoraScaling::Plain,
            dora: false,
        }
    }
}

impl LoraOptions {
    /// The factor of what the adapter adds.
    pub fn scale(&self) -> f64 {
        let rank = self.rank as f64;
        match self.scaling {
            LoraScaling::Plain => self.alpha / rank,
            LoraScaling::RankStabilised => self.alpha / rank.sqrt(),
        }
    }

    pub(super) fn check(&self) -> Result<()> {
        let is_rank = |_| (1..=RANK_MAX).contains(&self.rank);
        check_option("rank", self.rank as f64, "[1, 65536]", is_rank)?;
        check_option("alpha", self.alpha, "(0, ∞)", |alpha| alpha > 0.0 && alpha.is_finite())?;
        check_option("dropout", self.dropout, "[0, 1)", |p| (0.0..1.0).contains(&p))
    }
}
