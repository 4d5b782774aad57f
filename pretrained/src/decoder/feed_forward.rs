//! The feed-forward part of a layer: `down(f(up(x)))`, or with a gate `down(f(gate(x)) · up(x))`.

use lowtide_autograd::{Pass, Var};
use lowtide_nn::parallel::{Branch, Shared};
use lowtide_nn::{Linear, NnResult, Node, Nodes, Visitor};

use super::functions::run_in;
use super::make::Maker;
use super::names::LayerNames;
use super::shape::{Activation, DecoderShape, FeedForwardShape};
use crate::error::Result;

#[derive(Clone, Debug)]
pub(super) struct FeedForward {
    gate: Option<Linear>,
    up: Linear,
    down: Linear,
    activation: Activation,
    names: &'static LayerNames,
}

impl FeedForward {
    /// The feed-forward part of the layer `path` of `model`.
    pub(super) fn new(make: &Maker<'_>, path: &str, model: &DecoderShape) -> Result<Self> {
        let FeedForwardShape { width: hidden, activation, is_gated, has_bias } = model.feed_forward;
        let (names, width) = (model.family.names().layer, model.width);
        let path = |name: &str| format!("{path}.{}.{name}", names.feed_forward);
        let gate = || make.linear(&path(names.gate), [width, hidden], has_bias);
        let deviation = model.branch_deviation();
        Ok(FeedForward {
            gate: is_gated.then(gate).transpose()?,
            up: make.linear(&path(names.up), [width, hidden], has_bias)?,
            down: make.linear_with(&path(names.down), [hidden, width], has_bias, deviation)?,
            activation,
            names,
        })
    }

    /// The hidden features, which ranks can share.
    fn branches(&mut self, visitor: &mut dyn FnMut(Shared<'_>)) {
        let layers = [Some(&self.up), self.gate.as_ref()];
        visitor(Shared::Branch(Branch::hidden(layers.into_iter().flatten(), &mut self.down)));
    }

    /// # Shapes
    /// `x: [.., D] → [.., D]`
    pub(super) fn forward(&self, pass: &Pass, x: Var) -> NnResult<Var> {
        let (names, x) = (self.names, self.down.branch_input(x)?);
        let hidden = match &self.gate {
            None => self.activation.of(run_in(pass, names.up, &self.up, x)?)?,
            Some(gate) => {
                let gate = self.activation.of(run_in(pass, names.gate, gate, x.clone())?)?;
                gate.mul(run_in(pass, names.up, &self.up, x)?)?
            }
        };
        run_in(pass, names.down, &self.down, hidden)
    }
}

impl Nodes for FeedForward {
    fn visit_nodes(&mut self, visitor: &mut Visitor<'_>) {
        visitor.node("", Node::Shared(&mut |visitor| self.branches(visitor)));
        visitor.field(self.names.gate, &mut self.gate);
        visitor.field(self.names.up, &mut self.up);
        visitor.field(self.names.down, &mut self.down);
    }
}

impl Activation {
    pub(crate) fn of(self, x: Var) -> NnResult<Var> {
        Ok(match self {
            Activation::Gelu => x.gelu()?,
            Activation::GeluTanh => x.gelu_tanh()?,
            Activation::Relu => x.relu()?,
            Activation::Silu => x.silu()?,
        })
    }
}
