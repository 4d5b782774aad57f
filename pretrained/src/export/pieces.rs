//! Tensors for files of other programs, converted one piece at a time.

use lowtide_nn::Parameters;
use lowtide_tensor::{DType, Tensor};

use super::target::Target;
use crate::error::{ExportProblem, Result};

/// Number of elements of a piece: 16 MiB of f32, in addition to the model.
const PIECE_LEN: usize = 4 << 20;

/// Number of elements of the largest piece in which [`save_gguf`](crate::save_gguf) and
/// [`save_onnx`](crate::save_onnx) convert the tensors of `model`. Up to four copies of a piece of
/// at most four bytes an element are on the device at once, and up to two in memory of the process.
pub fn export_piece_len(model: &mut (impl Parameters + ?Sized)) -> usize {
    let mut largest = 0;
    model.visit_tensors(&mut |_, tensor| {
        let (count, len) = slabs(tensor);
        largest = largest.max(len * rows_at_once(len).min(count));
    });
    largest
}

/// Number of slabs along the first dimension, and the number of elements of each.
fn slabs(tensor: &Tensor) -> (usize, usize) {
    let count = tensor.shape().first().copied().unwrap_or(1);
    (count, tensor.shape().iter().skip(1).product())
}

/// Number of slabs of `len` elements in a piece.
fn rows_at_once(len: usize) -> usize {
    (PIECE_LEN / len.max(1)).max(1)
}

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
    let (count, len) = slabs(tensor);
    let step = rows_at_once(len);
    for start in (0..count).step_by(step) {
        let piece = tensor.narrow(0, start, step.min(count - start))?.contiguous()?;
        write(piece.to_dtype(DType::F32)?)?;
    }
    Ok(())
}
