//! Losses as (sum, count): whoever splits a batch divides once, by the count of the whole.

use lowtide_autograd::Var;
use lowtide_tensor::Tensor;

use crate::Result;

/// A loss summed over a batch, and over how much it was summed.
#[derive(Clone)]
pub struct Loss {
    /// The sum over all targets that count.
    pub sum: Var,
    /// How many there were (or the sum of their weights), as one element on the device.
    pub count: Tensor,
}

impl Loss {
    /// `sum / count`. With a count of 0 the mean is NaN, as in PyTorch.
    ///
    /// # Errors
    /// `OutOfMemory`.
    pub fn mean(self) -> Result<Var> {
        let count = self.sum.pass().constant(self.count);
        Ok(self.sum.div(count)?)
    }
}

/// What [`cross_entropy_with`] leaves out; PyTorch's defaults.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CrossEntropyOptions {
    /// Targets with this value do not count.
    pub ignore_index: i64,
}

impl Default for CrossEntropyOptions {
    fn default() -> Self {
        CrossEntropyOptions { ignore_index: -100 }
    }
}

/// `-log softmax(logits)[label]`, summed over the batch, `torch.nn.CrossEntropyLoss`.
///
/// # Shapes
/// `logits: [N, C]`, `labels: [N]` of i64
///
/// # Errors
/// `Shape`, `DType`, `Index` for a label outside `0..C`, `OutOfMemory`.
pub fn cross_entropy(logits: Var, labels: &Tensor) -> Result<Loss> {
    cross_entropy_with(logits, labels, CrossEntropyOptions::default())
}

/// [`cross_entropy`] with options.
///
/// # Errors
/// Those of [`cross_entropy`].
pub fn cross_entropy_with(
    logits: Var,
    labels: &Tensor,
    options: CrossEntropyOptions,
) -> Result<Loss> {
    let (sum, count) = logits.cross_entropy(labels, options.ignore_index)?;
    Ok(Loss { sum, count })
}
