//! The type that a recipe's parameters are kept in.

use lowtide_nn::Parameters;
use lowtide_tensor::DType;
use serde::{Deserialize, Serialize};

use crate::error::Result;

/// The type of parameters and of their gradients. The state of the optimizer is f32 beside either.
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
