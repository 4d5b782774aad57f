//! Writing the buffers of a model when a step is committed.

use lowtide_autograd::BufferUpdates;
use lowtide_tensor::Tensor;

use crate::error::Result;
use crate::module::Parameters;

/// Writes the updates of an attempt to the buffers of `model`, in place. Allocates nothing.
///
/// # Errors
/// `Frozen`, `Shape` or `DType` for an update that does not fit; then nothing was written.
pub fn commit_buffers(model: &mut dyn Parameters, updates: &BufferUpdates) -> Result<()> {
    check_buffers(model, updates)?;
    let mut result = Ok(());
    model.visit_buffers(&mut |_, buffer| {
        if let (true, Some(value)) = (result.is_ok(), updates.get(buffer.id())) {
            result = buffer.value_mut().copy_(value);
        }
    });
    Ok(result?)
}

/// `Ok` if [`commit_buffers`] will succeed.
///
/// # Errors
/// The errors of [`commit_buffers`].
pub fn check_buffers(model: &mut dyn Parameters, updates: &BufferUpdates) -> Result<()> {
    let mut result = Ok(());
    model.visit_buffers(&mut |_, buffer| {
        if let (true, Some(value)) = (result.is_ok(), updates.get(buffer.id())) {
            let writable = buffer.value().check_writable("commit_buffers");
            result = writable.and_then(|()| check_fits(buffer.value(), value));
        }
    });
    Ok(result?)
}

fn check_fits(buffer: &Tensor, value: &Tensor) -> lowtide_tensor::TensorResult<()> {
    let op = "commit_buffers";
    if buffer.shape() != value.shape() {
        let (left, right) = (*buffer.shape(), *value.shape());
        return Err(lowtide_tensor::TensorError::Shape { op, left, right });
    }
    if buffer.dtype() != value.dtype() {
        let (left, right) = (buffer.dtype(), value.dtype());
        return Err(lowtide_tensor::TensorError::DType { op, left, right });
    }
    Ok(())
}
