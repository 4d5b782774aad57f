//! Functions of one value without parameters, and softmax, as modules.

use lowtide_autograd::{Pass, Var};

use crate::{Module, Parameters, Result};

macro_rules! activations {
    ($($(#[$doc:meta])* $name:ident($input:ident) $forward:expr;)*) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default)]
        pub struct $name;

        impl Parameters for $name {}

        impl Module for $name {
            fn forward(&self, _: &Pass, $input: Var) -> Result<Var> {
                Ok($forward?)
            }
        }
    )*};
}

activations! {
    /// `x · Φ(x)` with the error function, `torch.nn.GELU`.
    GELU(x) x.gelu();
    /// `x / (1 + exp(-x))`, `torch.nn.SiLU`.
    SiLU(x) x.silu();
    /// The hyperbolic tangent, `torch.nn.Tanh`.
    Tanh(x) x.tanh();
    /// `1 / (1 + exp(-x))`, `torch.nn.Sigmoid`.
    Sigmoid(x) x.sigmoid();
    /// `ln(1 + exp(x))`, and x above 20, `torch.nn.Softplus`.
    Softplus(x) x.softplus(1.0, 20.0);
    /// `x`, and `exp(x) - 1` below 0, `torch.nn.ELU`.
    ELU(x) x.elu(1.0);
}

/// `x`, and `slope · x` below 0, `torch.nn.LeakyReLU`.
#[derive(Clone, Copy, Debug)]
pub struct LeakyReLU(pub f64);

impl Default for LeakyReLU {
    fn default() -> Self {
        LeakyReLU(0.01)
    }
}

impl Parameters for LeakyReLU {}

impl Module for LeakyReLU {
    fn forward(&self, _: &Pass, input: Var) -> Result<Var> {
        Ok(input.leaky_relu(self.0)?)
    }
}

/// `exp(x) / Σ exp(x)` along a dimension, `torch.nn.Softmax`.
#[derive(Clone, Copy, Debug)]
pub struct Softmax(pub usize);

impl Parameters for Softmax {}

impl Module for Softmax {
    fn forward(&self, _: &Pass, input: Var) -> Result<Var> {
        Ok(input.softmax(self.0)?)
    }
}
