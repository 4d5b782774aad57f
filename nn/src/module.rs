//! What every layer and every model is.

use lowtide_autograd::{Pass, Var};
use lowtide_tensor::Tensor;

use crate::{Buffer, Parameter, Result};

/// Anything that owns parameters.
pub trait Parameters {
    /// Shows every parameter once, with PyTorch's name for it (`layers.0.weight`), in a fixed
    /// order. Modules without parameters need not implement it.
    fn visit(&mut self, visitor: &mut dyn FnMut(&str, &mut Parameter)) {
        let _ = visitor;
    }

    /// Shows every buffer once, with PyTorch's name for it (`layers.1.running_mean`), in a fixed
    /// order. Modules without buffers need not implement it; containers have to.
    fn visit_buffers(&mut self, visitor: &mut dyn FnMut(&str, &mut Buffer)) {
        let _ = visitor;
    }

    /// Shows the value of every parameter, then that of every buffer: all that is stored.
    fn visit_tensors(&mut self, visitor: &mut dyn FnMut(&str, &mut Tensor)) {
        self.visit(&mut |name, parameter| visitor(name, parameter.value_mut()));
        self.visit_buffers(&mut |name, buffer| visitor(name, buffer.value_mut()));
    }
}

/// A function of one value with parameters.
pub trait Module: Parameters {
    /// The value of the function for `input`, recorded by `pass`.
    ///
    /// # Errors
    /// Shapes that do not fit, `OutOfMemory`.
    fn forward(&self, pass: &Pass, input: Var) -> Result<Var>;
}

/// Shows the parameters of a submodule under `prefix.`; what containers are made of.
pub(crate) fn visit_under(
    prefix: &str,
    module: &mut (impl Parameters + ?Sized),
    visitor: &mut dyn FnMut(&str, &mut Parameter),
) {
    module.visit(&mut |name, parameter| visitor(&format!("{prefix}.{name}"), parameter));
}

/// The same for buffers.
pub(crate) fn visit_buffers_under(
    prefix: &str,
    module: &mut (impl Parameters + ?Sized),
    visitor: &mut dyn FnMut(&str, &mut Buffer),
) {
    module.visit_buffers(&mut |name, buffer| visitor(&format!("{prefix}.{name}"), buffer));
}
