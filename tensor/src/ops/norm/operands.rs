//! Cost, checks and parameters of all normalisations.

use crate::cost::{Cost, OpClass};
use crate::dtype::{DType, Element};
use crate::error::{Result, TensorError};
use crate::launch::Operands;
use crate::layout::Shape;
use crate::tensor::Tensor;

/// The cost of `passes` over `len` elements of `dtype`.
pub(crate) fn cost(dtype: DType, len: usize, passes: usize) -> Cost {
    Cost {
        class: OpClass::Normalization,
        flops: 4.0 * passes as f64 * len as f64,
        bytes: (passes * len * dtype.size_bytes()) as f64,
    }
}

/// Checks the statistics of an x of `dtype`: this shape, in the type of the computation.
pub(crate) fn check_statistics(
    op: &'static str,
    dtype: DType,
    statistics: &Tensor,
    shape: Shape,
) -> Result<()> {
    statistics.check_shape(op, shape)?;
    let (left, right) = (statistics.dtype(), dtype.computed());
    if left == right { Ok(()) } else { Err(TensorError::DType { op, left, right }) }
}

/// Checks the parameters of a normalisation of x: this shape, in the type of x.
pub(crate) fn check_parameters<const N: usize>(
    op: &'static str,
    x: &Tensor,
    parameters: [Option<&Tensor>; N],
    shape: Shape,
) -> Result<()> {
    for parameter in parameters.into_iter().flatten() {
        x.check_dtype(op, parameter)?;
        parameter.check_shape(op, shape)?;
    }
    Ok(())
}

/// A contiguous parameter for kernels, if there is a parameter.
#[track_caller]
pub(crate) fn contiguous(parameter: Option<&Tensor>) -> Result<Option<Tensor>> {
    parameter.map(Tensor::contiguous).transpose()
}

/// The weight and the bias of a kernel. Its reads are x, then the weight and the bias, each only if
/// the kernel `has` it.
pub(crate) fn parameters<'a, E: Element>(
    operands: &Operands<'a>,
    has: [bool; 2],
) -> [Option<&'a [E]>; 2] {
    let [has_weight, has_bias] = has;
    let read = |index: usize| operands.read::<E>(index).slice();
    [has_weight.then(|| read(1)), has_bias.then(|| read(1 + usize::from(has_weight)))]
}
