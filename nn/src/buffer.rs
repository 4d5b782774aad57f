//! A tensor that belongs to a model but is not trained, with an identity.

use lowtide_allocator::Category;
use lowtide_autograd::{BufferId, Pass};
use lowtide_tensor::{DType, Device, IntoShape, Tensor};

use crate::error::Result;
use crate::parallel::stages::run::note_buffer;

/// A shared handle to a tensor that a layer keeps between steps without training it, such as
/// running statistics. A pass reads the value in its attempt, and
/// [`commit_buffers`](crate::commit_buffers) writes the attempt's value to the tensor.
#[derive(Clone, Debug)]
pub struct Buffer {
    id: BufferId,
    value: Tensor,
    is_constant: bool,
    /// True if another rank updates the buffer.
    pub(crate) is_elsewhere: bool,
}

impl Buffer {
    /// A buffer whose elements are all `value`.
    ///
    /// # Errors
    /// `OutOfMemory`.
    #[track_caller]
    pub fn full(device: &Device, shape: impl IntoShape, dtype: DType, value: f64) -> Result<Self> {
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

    /// True if no pass updates the buffer, like a frozen parameter.
    pub fn is_constant(&self) -> bool {
        self.is_constant
    }

    /// True if [another stage](crate::parallel::keep_own) of a pipeline updates the buffer.
    pub fn is_elsewhere(&self) -> bool {
        self.is_elsewhere
    }

    /// Identity of the buffer, and key of its updates.
    pub fn id(&self) -> BufferId {
        self.id
    }

    /// The tensor of the buffer.
    pub fn value(&self) -> &Tensor {
        &self.value
    }

    /// The tensor of the buffer, to write or to replace.
    pub fn value_mut(&mut self) -> &mut Tensor {
        &mut self.value
    }

    /// The value of the buffer in the attempt of `pass`.
    #[track_caller]
    pub fn current(&self, pass: &Pass) -> Tensor {
        note_buffer(self.id);
        pass.buffer(self.id, &self.value)
    }

    /// Sets the value that this buffer gets when the attempt is committed.
    pub fn update(&self, pass: &Pass, value: Tensor) {
        note_buffer(self.id);
        if !self.is_elsewhere {
            pass.update_buffer(self.id, value);
        }
    }
}
