//! How the files of a family lay out what the model has in another order.

use lowtide_nn::{NnResult, Parameters};
use lowtide_tensor::Tensor;

/// The file of weights that are in one.
pub(super) const FILE: &str = "model.safetensors";
/// Which file each tensor is in, of weights that are in several.
pub(super) const INDEX: &str = "model.safetensors.index.json";

/// A model whose weights are in files of transformers. Only models of this crate are.
pub trait Stored: Parameters {
    /// How files lay out the tensor `name`.
    #[doc(hidden)]
    fn layout(&self, name: &str) -> Layout {
        let _ = name;
        Layout::Same
    }

    /// The prefix of names that files of the model without its output layer leave out.
    #[doc(hidden)]
    fn base(&self) -> &'static str {
        ""
    }

    /// True if files have a tensor `name` that the model has no use for.
    #[doc(hidden)]
    fn is_unused(&self, name: &str) -> bool {
        let _ = name;
        false
    }

    /// True if a tensor belongs to what a model is trained for, such as a layer of classes, of this
    /// model or of another one with the same body.
    #[doc(hidden)]
    fn is_of_head(&self, name: &str) -> bool {
        let _ = name;
        false
    }
}

/// From a tensor in memory to the one in the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[doc(hidden)]
pub enum Layout {
    /// One layout in both.
    Same,
    /// `[outputs, inputs]` in memory, `[inputs, outputs]` in the file.
    Transposed,
}

impl Layout {
    /// `tensor` as it lies in the file, without copying: `[slabs, ..]`, which row-major is what is
    /// in the file.
    pub(super) fn view(self, tensor: &Tensor) -> NnResult<Tensor> {
        Ok(match self {
            Layout::Same => tensor.clone(),
            Layout::Transposed => tensor.t()?,
        })
    }

    /// The shape that the file says.
    pub(super) fn file_shape(self, tensor: &Tensor) -> Vec<usize> {
        let mut shape = tensor.shape().to_vec();
        if self == Layout::Transposed {
            shape.reverse();
        }
        shape
    }
}
