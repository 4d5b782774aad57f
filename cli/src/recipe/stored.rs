//! The types that a recipe's parameters, and what its optimizer keeps of them, are stored in.

use lowtide_nn::Parameters;
use lowtide_tensor::DType;
use lowtide_trainer::Result;
use serde::{Deserialize, Serialize};

/// The type of parameters and of their gradients. What the optimizer keeps is of [`StateType`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum StoredType {
    /// Updates are exact to 24 binary digits.
    #[default]
    F32,
    /// Half the memory. An update is rounded up or down by chance, so that those which are smaller
    /// than a digit of bf16 count on average
    /// ([`Rounding::Stochastic`](lowtide_tensor::Rounding::Stochastic)).
    Bf16,
}

impl StoredType {
    /// A model that was just made, with its parameters in this type.
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

/// The type of the state of the optimizer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum StateType {
    /// Also beside parameters of bf16.
    #[default]
    #[serde(rename = "f32")]
    F32,
    /// A little over a quarter of the memory, for parameters of 4,096 elements and more
    /// ([`PerParameter::with_8bit_states`](lowtide_nn::optim::PerParameter::with_8bit_states)).
    #[serde(rename = "8bit")]
    EightBit,
}
