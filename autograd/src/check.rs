//! A check of gradients against finite differences, for the rules of this crate and of its users.

use lowtide_tensor::{DType, RandomKey, Tensor};
use thiserror::Error;

use crate::attempt::{Attempt, LeafId};
use crate::error::AutogradError;
use crate::pass::Pass;
use crate::var::Var;

/// The step of the differences, and the allowed deviation of the derivatives. The defaults are
/// those of `torch.autograd.gradcheck`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Tolerance {
    /// Step of the central difference.
    pub step: f64,
    /// Allowed absolute deviation.
    pub absolute: f64,
    /// Allowed deviation relative to the numeric derivative.
    pub relative: f64,
}

impl Default for Tolerance {
    fn default() -> Self {
        Tolerance { step: 1e-6, absolute: 1e-5, relative: 1e-3 }
    }
}

/// The reason why a check failed.
#[derive(Clone, Debug, Error)]
#[non_exhaustive]
pub enum CheckError {
    /// The function itself failed.
    #[error(transparent)]
    Autograd(#[from] AutogradError),
    /// Backward and finite differences disagree.
    #[error(
        "input {input}, element {element}: backward gives {backward}, differences give {numeric}"
    )]
    Mismatch {
        /// Index of the input.
        input: usize,
        /// Index of the element in row-major order.
        element: usize,
        /// The derivative from backward.
        backward: f64,
        /// The derivative from central differences.
        numeric: f64,
    },
    /// Backward gave no gradient, but the output depends on the input.
    #[error("input {input}, element {element}: no gradient, differences give {numeric}")]
    Missing {
        /// Index of the input.
        input: usize,
        /// Index of the element in row-major order.
        element: usize,
        /// The derivative from central differences.
        numeric: f64,
    },
}

impl From<lowtide_tensor::TensorError> for CheckError {
    fn from(error: lowtide_tensor::TensorError) -> Self {
        CheckError::Autograd(error.into())
    }
}

/// Compares the gradients of `f` at f64 `inputs` with central differences.
///
/// The output may have any shape: fixed random weights reduce it to one number, so that every
/// element counts. Inputs may be views; their storages are not written.
///
/// # Errors
/// The first element that deviates, or the error that `f` returns.
pub fn gradients(
    f: impl Fn(&Pass, Vec<Var>) -> crate::error::Result<Var>,
    inputs: &[Tensor],
) -> Result<(), CheckError> {
    gradients_within(Tolerance::default(), f, inputs)
}

/// [`gradients`] with another tolerance.
///
/// # Errors
/// As for [`gradients`].
pub fn gradients_within(
    tolerance: Tolerance,
    f: impl Fn(&Pass, Vec<Var>) -> crate::error::Result<Var>,
    inputs: &[Tensor],
) -> Result<(), CheckError> {
    let key = RandomKey::new(1);
    let attempt = Attempt::new();
    let pass = Pass::train(key, &attempt);
    let leaves: Vec<LeafId> = inputs.iter().map(|_| LeafId::new()).collect();
    let vars = leaves.iter().zip(inputs).map(|(&leaf, input)| pass.leaf(leaf, input));
    let loss = weighted_sum(f(&pass, vars.collect::<crate::error::Result<_>>()?)?)?;
    pass.backward(loss)?;
    let gradients = attempt.into_gradients();

    let value_at = |moved: usize, element: usize, by: f64| -> Result<f64, CheckError> {
        let pass = Pass::no_grad(key);
        let move_one = |(index, input): (usize, &Tensor)| {
            let mut value = input.clone();
            if index == moved {
                let mut values = input.to_vec::<f64>()?;
                values[element] += by;
                value = Tensor::from_slice(input.device(), *input.shape(), &values)?;
            }
            Ok(pass.constant(value))
        };
        let vars = inputs.iter().enumerate().map(move_one);
        let vars = vars.collect::<lowtide_tensor::TensorResult<Vec<_>>>()?;
        Ok(weighted_sum(f(&pass, vars)?)?.value().item::<f64>()?)
    };
    for (input, leaf) in leaves.iter().enumerate() {
        let gradient = gradients.get(*leaf).map(Tensor::to_vec::<f64>).transpose()?;
        for element in 0..inputs[input].element_count() {
            let above = value_at(input, element, tolerance.step)?;
            let below = value_at(input, element, -tolerance.step)?;
            let numeric = (above - below) / (2.0 * tolerance.step);
            let allowed = tolerance.absolute + tolerance.relative * numeric.abs();
            match &gradient {
                None if numeric.abs() <= allowed => {}
                None => return Err(CheckError::Missing { input, element, numeric }),
                Some(gradient) if (gradient[element] - numeric).abs() <= allowed => {}
                Some(gradient) => {
                    let backward = gradient[element];
                    return Err(CheckError::Mismatch { input, element, backward, numeric });
                }
            }
        }
    }
    Ok(())
}

/// `Σ y · weight`, with weights from `[0.5, 1.5)` that are equal in every call.
fn weighted_sum(y: Var) -> crate::error::Result<Var> {
    let mut weights = Tensor::empty(y.value().device(), *y.shape(), DType::F64)?;
    weights.uniform_(RandomKey::new(2).op("weights"), 0.5, 1.5)?;
    let weights = y.pass().constant(weights);
    y.mul(weights)?.sum_all()
}
