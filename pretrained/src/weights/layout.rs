//! Tensors that the files of a family store in another order than the model.

use lowtide_nn::{NnResult, Parameters};
use lowtide_tensor::Tensor;

/// The name of the file with all weights, if there is only one file.
pub(super) const FILE: &str = "model.safetensors";
/// The index of weights in several files: the file of each tensor.
pub(super) const INDEX: &str = "model.safetensors.index.json";

/// A model with weights in files of transformers. Only this crate implements the trait.
pub trait Stored: Parameters {
    /// The layout of the tensor `name` in files.
    #[doc(hidden)]
    fn layout(&self, name: &str) -> Layout {
        let _ = name;
        Layout::Same
    }

    /// The prefix of names that files without an output layer leave out.
    #[doc(hidden)]
    fn base(&self) -> &'static str {
        ""
    }

    /// True if files have a tensor `name` that the model does not need.
    #[doc(hidden)]
    fn is_unused(&self, name: &str) -> bool {
        let _ = name;
        false
    }

    /// True if a tensor belongs to the head, such as a layer of classes, of this model or of
    /// another model with the same body.
    #[doc(hidden)]
    fn is_of_head(&self, name: &str) -> bool {
        let _ = name;
        false
    }
}

/// The relation between a tensor in memory and the tensor in the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[doc(hidden)]
pub enum Layout {
    /// Memory and file have one layout.
    Same,
    /// `[outputs, inputs]` in memory, `[inputs, outputs]` in the file.
    Transposed,
}

impl Layout {
    /// `tensor` in the layout of the file, without copying: `[slabs, ..]`, whose row-major order is
    /// the order of the file.
    pub(super) fn view(self, tensor: &Tensor) -> NnResult<Tensor> {
        Ok(match self {
            Layout::Same => tensor.clone(),
            Layout::Transposed => tensor.t()?,
        })
    }

    /// The shape of the tensor in the file.
    pub(super) fn file_shape(self, tensor: &Tensor) -> Vec<usize> {
        let mut shape = tensor.shape().to_vec();
        if self == Layout::Transposed {
            shape.reverse();
        }
        shape
    }
}
