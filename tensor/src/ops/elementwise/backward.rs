//! The methods of the gradients through activations: `dy.gelu_backward(&x)` and its kin.

use super::op::{Gradient, Op};
use crate::error::Result;
use crate::tensor::Tensor;

/// Gradients of `dy = self` and one tensor, each with its form in place.
macro_rules! gradients {
    ($($(#[$doc:meta])+
        pub fn $name:ident, $in_place:ident ($of:ident $(, $number:ident)*) = $op:expr;
    )*) => {$(
        $(#[$doc])+
        ///
        /// # Errors
        /// `Shape` unless both shapes are the same, and those of [`Tensor::add`].
        #[track_caller]
        pub fn $name(&self, $of: &Tensor $(, $number: f64)*) -> Result<Tensor> {
            self.check_shape(stringify!($name), *$of.shape())?;
            Tensor::elementwise(stringify!($name), Op::Gradient($op), &[self, $of], None)
        }

        #[doc = concat!("[`Tensor::", stringify!($name), "`] in place on `self = dy`.")]
        ///
        /// # Errors
        /// `Shape` unless both shapes are the same, and those of [`Tensor::add_`].
        #[track_caller]
        pub fn $in_place(&mut self, $of: &Tensor $(, $number: f64)*) -> Result<()> {
            self.check_shape(stringify!($name), *$of.shape())?;
            self.elementwise_(stringify!($name), Op::Gradient($op), &[$of], None)
        }
    )*};
}

/// Gradients through activations for `dy = self`, in one pass. Floats only.
impl Tensor {
    gradients! {
        /// The gradient through `y = relu(x)`: 0 where `y` is not positive.
        pub fn relu_backward, relu_backward_ (y) = Gradient::Relu;
        /// The gradient through `y = sigmoid(x)`: `dy · y · (1 - y)`.
        pub fn sigmoid_backward, sigmoid_backward_ (y) = Gradient::Sigmoid;
        /// The gradient through `y = tanh(x)`: `dy · (1 - y²)`.
        pub fn tanh_backward, tanh_backward_ (y) = Gradient::Tanh;
        /// The gradient through [`Tensor::gelu`] of `x`.
        pub fn gelu_backward, gelu_backward_ (x) = Gradient::Gelu;
        /// The gradient through [`Tensor::gelu_tanh`] of `x`.
        pub fn gelu_tanh_backward, gelu_tanh_backward_ (x) = Gradient::GeluTanh;
        /// The gradient through [`Tensor::silu`] of `x`.
        pub fn silu_backward, silu_backward_ (x) = Gradient::Silu;
        /// The gradient through [`Tensor::elu`] of `x`.
        pub fn elu_backward, elu_backward_ (x, alpha) = Gradient::Elu(alpha);
        /// The gradient through [`Tensor::leaky_relu`] of `x`.
        pub fn leaky_relu_backward, leaky_relu_backward_ (x, slope) = Gradient::LeakyRelu(slope);
        /// The gradient through [`Tensor::softplus`] of `x`.
        pub fn softplus_backward, softplus_backward_ (x, beta, threshold) =
            Gradient::Softplus { beta, threshold };
        /// The gradient through [`Tensor::mish`] of `x`.
        pub fn mish_backward, mish_backward_ (x) = Gradient::Mish;
        /// The gradient through [`Tensor::hardswish`] of `x`.
        pub fn hardswish_backward, hardswish_backward_ (x) = Gradient::HardSwish;
        /// The gradient through [`Tensor::hardsigmoid`] of `x`.
        pub fn hardsigmoid_backward, hardsigmoid_backward_ (x) = Gradient::HardSigmoid;
        /// The gradient through [`Tensor::selu`] of `x`.
        pub fn selu_backward, selu_backward_ (x) = Gradient::Selu;
        /// The gradient through [`Tensor::softsign`] of `x`.
        pub fn softsign_backward, softsign_backward_ (x) = Gradient::Softsign;
        /// The gradient through [`Tensor::logsigmoid`] of `x`.
        pub fn logsigmoid_backward, logsigmoid_backward_ (x) = Gradient::LogSigmoid;
    }
}
