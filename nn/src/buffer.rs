//! A tensor that belongs to a model but is not trained, with an identity.

use lowtide_allocator::Category;
use lowtide_autograd::{BufferId, BufferUpdates, Pass};
use lowtide_tensor::{DType, Device, Shape, Tensor};

use crate::error::Result;
use crate::module::Parameters;
use crate::stages;

/// A shared handle to what a layer keeps from step to step beside its parameters, such as running
/// statistics. Passes read it as their attempt has it, and [`commit_buffers`] writes it.
#[derive(Clone, Debug)]
pub struct Buffer {
    id: BufferId,
    value: Tensor,
    is_constant: bool,
    /// Whether another rank updates it.
    pub(crate) is_elsewhere: bool,
}

impl Buffer {
    /// Every element `value`.
    ///
    /// # Errors
    /// `OutOfMemory`.
    #[track_caller]
    pub fn full(
        device: &Device,
        shape: impl Into<Shape>,
        dtype: DType,
        value: f64,
    ) -> Result<Self> {
        let mut tensor = Tensor::empty_in(device, Category::Parameter, shape, dtype)?;
        tensor.fill_(value)?;
        Ok(Buffer::new(tensor))
    }

    /// A buffer with the storage of `value`.
    pub fn new(value: Tensor) -> Self {
        Buffer { id: BufferId::new(), value, is_constant: false, is_elsewhere: false }
    }

    /// A buffer that no pass updates, such as a weight in few bits.
    pub fn constant(value: Tensor) -> Self {
        Buffer { is_constant: true, ..Buffer::new(value) }
    }

    /// Whether it is one that no pass updates, like a frozen parameter.
    pub fn is_constant(&self) -> bool {
        self.is_constant
    }

    /// Whether it is [another stage](crate::keep_own) of a pipeline that updates it.
    pub fn is_elsewhere(&self) -> bool {
        self.is_elsewhere
    }

    /// The identity: the key of its updates.
    pub fn id(&self) -> BufferId {
        self.id
    }

    /// The tensor with its values.
    pub fn value(&self) -> &Tensor {
        &self.value
    }

    /// The tensor with its values, to write or to replace.
    pub fn value_mut(&mut self) -> &mut Tensor {
        &mut self.value
    }

    /// The value as the attempt of `pass` has it.
    #[track_caller]
    pub fn current(&self, pass: &Pass) -> Tensor {
        stages::note_buffer(self.id);
        pass.buffer(self.id, &self.value)
    }

    /// Sets the value that this buffer gets when the attempt is committed.
    pub fn update(&self, pass: &Pass, value: Tensor) {
        stages::note_buffer(self.id);
        if !self.is_elsewhere {
            pass.update_buffer(self.id, value);
        }
    }
}

/// Writes the buffers of `model` as the passes of an attempt updated them, in place. Allocates
/// nothing.
///
/// # Errors
/// `Frozen`, `Shape` or `DType` for an update that does not fit; then nothing was written.
pub fn commit_buffers(model: &mut dyn Parameters, updates: &BufferUpdates) -> Result<()> {
    check_buffers(model, updates)?;
    let mut result = Ok(());
    model.visit_buffers(&mut |_, buffer| {
        if let (true, Some(value)) = (result.is_ok(), updates.get(buffer.id)) {
            result = buffer.value.copy_(value);
        }
    });
    Ok(result?)
}

/// `Ok` if [`commit_buffers`] will succeed.
///
/// # Errors
/// Those of [`commit_buffers`].
pub fn check_buffers(model: &mut dyn Parameters, updates: &BufferUpdates) -> Result<()> {
    let mut result = Ok(());
    model.visit_buffers(&mut |_, buffer| {
        if let (true, Some(value)) = (result.is_ok(), updates.get(buffer.id)) {
            let writable = buffer.value.check_writable("commit_buffers");
            result = writable.and_then(|()| check_fits(&buffer.value, value));
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
