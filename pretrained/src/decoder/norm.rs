//! The norms of the families; x: `[.., D]`, w: `[D]`.

use lowtide_autograd::{Pass, Var};
use lowtide_nn::{LayerNorm, Module, NnResult, Parameter, Parameters, RmsNorm};

/// A norm over the last dimension.
#[derive(Clone, Debug)]
#[expect(clippy::large_enum_variant, reason = "a layer has a few")]
pub(super) enum Norm {
    Layer(LayerNorm),
    Rms(RmsNorm),
    /// `x / rms(x) · (1 + w)`.
    RmsPlusOne {
        weight: Parameter,
        eps: f64,
    },
}

impl Parameters for Norm {
    fn visit(&mut self, visitor: &mut dyn FnMut(&str, &mut Parameter)) {
        match self {
            Norm::Layer(norm) => norm.visit(visitor),
            Norm::Rms(norm) => norm.visit(visitor),
            Norm::RmsPlusOne { weight, .. } => visitor("weight", weight),
        }
    }
}

impl Module for Norm {
    fn forward(&self, pass: &Pass, x: Var) -> NnResult<Var> {
        match self {
            Norm::Layer(norm) => norm.forward(pass, x),
            Norm::Rms(norm) => norm.forward(pass, x),
            Norm::RmsPlusOne { weight, eps } => {
                let weight = weight.var(pass)?.add_scalar(1.0)?;
                Ok(x.rms_norm(1, Some(weight), *eps)?)
            }
        }
    }
}
