//! The number types that a training computes in.

use std::fmt;
use std::str::FromStr;

use lowtide_amp::{Autocast, LossScaler};
use serde::{Deserialize, Serialize};

/// The number types of the operations in a training step. With every precision, parameters,
/// gradients and the state of the optimizer are f32, and evaluations compute in f32.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Precision {
    /// Everything in f32.
    #[default]
    F32,
    /// Products in bf16, by the lists of [`Autocast`]. Tensors saved for backward take about half
    /// the memory.
    Bf16,
    /// Products in f16, which has three binary digits more than bf16 and needs a scaled loss.
    F16,
}

impl Precision {
    /// The casts of a pass; `None` for f32.
    pub(crate) fn casts(self) -> Option<Autocast> {
        match self {
            Precision::F32 => None,
            Precision::Bf16 => Some(Autocast::bf16()),
            Precision::F16 => Some(Autocast::f16()),
        }
    }

    /// The default loss scaler for this precision.
    pub(crate) fn scaler(self) -> LossScaler {
        match self {
            Precision::F32 | Precision::Bf16 => LossScaler::disabled(),
            Precision::F16 => LossScaler::default(),
        }
    }
}

impl FromStr for Precision {
    type Err = String;

    /// `f32`, `bf16` or `f16`.
    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "f32" => Ok(Precision::F32),
            "bf16" => Ok(Precision::Bf16),
            "f16" => Ok(Precision::F16),
            _ => Err("expected f32, bf16 or f16".to_owned()),
        }
    }
}

impl fmt::Display for Precision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Precision::F32 => "f32",
            Precision::Bf16 => "bf16",
            Precision::F16 => "f16",
        })
    }
}
