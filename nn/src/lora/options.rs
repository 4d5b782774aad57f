//! Options of adapters.

#[cfg(feature = "serde")]
use serde::{Deserialize, Serialize};

use crate::checks::check_option;
use crate::error::Result;
use crate::lora::targets::Targets;

/// Largest rank. With a higher rank, A and B would be larger than the weights.
pub(super) const RANK_MAX: usize = 1 << 16;

/// Options of a model's adapters: PEFT's `LoraConfig`.
#[derive(Clone, Debug, PartialEq)]
#[cfg_attr(feature = "serde", derive(Serialize, Deserialize), serde(deny_unknown_fields, default))]
pub struct LoraOptions {
    /// Number of rows of A, PEFT's `r`.
    pub rank: usize,
    /// The numerator of the scale.
    pub alpha: f64,
    /// The linear layers that get an adapter.
    pub targets: Targets,
    /// Probability of the dropout before A in training.
    pub dropout: f64,
    /// The formula of the scale.
    pub scaling: LoraScaling,
    /// True if the magnitudes of the weight's rows are trained separately from the directions
    /// (DoRA). In addition, backward keeps one output of the layer, and each pass computes a
    /// product over the whole weight.
    pub dora: bool,
}

/// Formulas of the scale of an adapter.
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
    /// The factor s of the adapters.
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
