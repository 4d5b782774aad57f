//! The types that a recipe's parameters and its optimizer's states are stored in.

use lowtide_nn::Parameters;
use lowtide_tensor::DType;
use lowtide_trainer::Result;
use serde::{Deserialize, Serialize};

/// The type of parameters and of their gradients. The optimizer's states have a [`StateType`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum StoredType {
    /// Updates are exact to 24 binary digits.
    #[default]
    F32,
    /// Half the memory. Updates are rounded up or down at random, so that updates smaller than a
    /// digit of bf16 count on average
    /// ([`Rounding::Stochastic`](lowtide_tensor::Rounding::Stochastic)).
    Bf16,
}

impl StoredType {
    /// Converts the parameters of a newly made model to this type.
    ///
    /// # Errors
    /// `OutOfMemory`.
    pub(super) fn convert<M: Parameters>(self, mut model: M) -> Result<M> {
        if self == StoredType::Bf16 {
            model.set_dtype(DType::BF16)?;
        }
        Ok(model)
    }
}

/// The type of the optimizer's states.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum StateType {
    /// States in f32, also for parameters in bf16.
    #[default]
    #[serde(rename = "f32")]
    F32,
    /// A little over a quarter of the memory, for parameters of 4,096 elements and more
    /// ([`PerParameter::with_8bit_states`](lowtide_nn::optim::PerParameter::with_8bit_states)).
    #[serde(rename = "8bit")]
    EightBit,
}
