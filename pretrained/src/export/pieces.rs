//! Tensors for files of other programs, converted one piece at a time.

use lowtide_nn::Parameters;
use lowtide_tensor::{DType, Tensor};

use super::target::Target;
use crate::error::{ExportProblem, Result};

/// Number of elements of a piece: 16 MiB of f32, in addition to the model.
const PIECE_LEN: usize = 4 << 20;

/// All parameters and buffers of `model` with their names, in their layout in memory.
///
/// # Errors
/// `Export` unless the parameters are the `count` floats of the configuration. Adapters must be
/// merged, and quantised weights decoded, before.
pub(crate) fn sources(
    model: &mut (impl Parameters + ?Sized),
    count: u128,
    target: Target,
) -> Result<Vec<(String, Tensor)>> {
    let (mut found, mut sources) = (0, Vec::new());
    model.visit(&mut |_, parameter| found += parameter.value().element_count() as u128);
    if found != count {
        return Err(target.error(ExportProblem::Parameters));
    }
    model.visit_tensors(&mut |name, value| sources.push((name.to_owned(), value.clone())));
    Ok(sources)
}

/// Calls `write` with `tensor` in f32, in contiguous pieces along the first dimension, a few
/// megabytes at a time, in order.
///
/// # Errors
/// The errors of `write`, `OutOfMemory`, `ValueUnavailable` on a simulated device.
pub(crate) fn for_each_piece(
    tensor: &Tensor,
    mut write: impl FnMut(Tensor) -> Result<()>,
) -> Result<()> {
    let count = tensor.shape().first().copied().unwrap_or(1);
    let len: usize = tensor.shape().iter().skip(1).product();
    let step = (PIECE_LEN / len.max(1)).clamp(1, count.max(1));
    for start in (0..count).step_by(step) {
        let piece = tensor.narrow(0, start, step.min(count - start))?.contiguous()?;
        write(piece.to_dtype(DType::F32)?)?;
    }
    Ok(())
}
