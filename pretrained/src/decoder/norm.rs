//! The norms of the families; x: `[.., D]`, w: `[D]`.

use lowtide_autograd::{Pass, Var};
use lowtide_nn::{LayerNorm, Module, NnResult, Nodes, Parameter, RmsNorm, Visitor};

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

impl Nodes for Norm {
    fn visit_nodes(&mut self, visitor: &mut Visitor<'_>) {
        match self {
            Norm::Layer(norm) => visitor.field("", norm),
            Norm::Rms(norm) => visitor.field("", norm),
            Norm::RmsPlusOne { weight, .. } => visitor.field("weight", weight),
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
