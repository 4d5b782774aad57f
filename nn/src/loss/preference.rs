//! Losses of pairs of answers, one preferred and one rejected.

use lowtide_autograd::Var;
use lowtide_tensor::Tensor;

use crate::checks::check_option;
use crate::error::Result;
use crate::loss::{Loss, counted};

/// Direct preference optimisation, `-ln sigmoid(beta · ((c - c') - (r - r')))`, summed over the
/// pairs (Rafailov et al., "Direct preference optimization: your language model is secretly a
/// reward model", 2023). c and r are the model's log-probabilities of the chosen and the rejected
/// answer, c' and r' those of a reference model. No gradient flows to the reference. Also returns
/// the argument of the sigmoid for each pair.
///
/// # Shapes
/// All tensors are `[B]`.
///
/// # Errors
/// `Option` unless beta is above 0; `Shape`, `DType`, `OutOfMemory`.
pub fn preference(
    [chosen, rejected]: [Var; 2],
    reference: &[Tensor; 2],
    beta: f64,
) -> Result<(Loss, Tensor)> {
    check_option("beta", beta, "(0, ∞)", |beta| beta > 0.0 && beta.is_finite())?;
    let pass = chosen.pass().clone();
    let reference = pass.constant(reference[0].sub(&reference[1])?);
    let margins = chosen.sub(rejected)?.sub(reference)?.mul_scalar(beta)?;
    let values = margins.value().clone();
    let len = values.element_count();
    let loss = counted(len, margins.logsigmoid()?.sum_all()?.neg()?)?;
    Ok((loss, values))
}
