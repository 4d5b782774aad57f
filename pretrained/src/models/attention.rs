//! Attention of encoders, and cross-attention of decoders to the output of an encoder: layers for
//! queries, keys, values and outputs, and optionally a learned bias of the scores.
//!
//! `B` batch, `T` positions, `S` keys, `H` heads, `D` features of a head, `C` features of a
//! position.

use lowtide_autograd::{Pass, Var};
use lowtide_nn::parallel::{Branch, Shared};
use lowtide_nn::{Dropout, Linear, Module, NnResult, Node, Nodes, Visitor};
use lowtide_tensor::{AttentionDropout, AttentionOptions, Tensor};

use crate::decoder::Maker;
use crate::error::Result;

/// The sizes and names of the layers of an attention.
#[derive(Clone, Copy)]
pub(super) struct Sizes {
    pub(super) width: usize,
    pub(super) heads: usize,
    pub(super) head_width: usize,
    /// True if queries, keys and values have biases, and true if the output has a bias.
    pub(super) biases: [bool; 2],
    /// The names of the layers of queries, keys, values and outputs.
    pub(super) names: [&'static str; 4],
    /// Factor of the scores; `1 / sqrt(head_width)` if absent.
    pub(super) scale: Option<f64>,
    /// Probability of dropping an attention weight in training.
    pub(super) dropout: f64,
    /// Deviations of the initial weights.
    pub(super) deviations: [f64; 4],
}

#[derive(Clone, Debug)]
pub(super) struct Attention {
    layers: Vec<Linear>,
    names: [&'static str; 4],
    heads: usize,
    scale: Option<f64>,
    dropout: f64,
}

impl Nodes for Attention {
    fn visit_nodes(&mut self, visitor: &mut Visitor<'_>) {
        visitor.node("", Node::Shared(&mut |visitor| self.branches(visitor)));
        visitor.field(self.names, &mut self.layers);
    }
}

impl Attention {
    pub(super) fn new(make: &Maker<'_>, path: &str, sizes: Sizes) -> Result<Self> {
        let Sizes { width, heads, head_width, biases, names, scale, dropout, deviations } = sizes;
        let inner = heads * head_width;
        let layer = |at: usize| {
            let (shape, has_bias) = match at {
                3 => ([inner, width], biases[1]),
                _ => ([width, inner], biases[0]),
            };
            make.linear_with(&format!("{path}.{}", names[at]), shape, has_bias, deviations[at])
        };
        let layers = (0..4).map(layer).collect::<Result<_>>()?;
        Ok(Attention { layers, names, heads, scale, dropout })
    }

    /// The heads, which ranks can share.
    fn branches(&mut self, visitor: &mut dyn FnMut(Shared<'_>)) {
        let [q, k, v, end] = &mut self.layers[..] else { unreachable!("there are four") };
        let width = q.weight().value().shape()[0] / self.heads;
        let branch =
            [q, k, v].into_iter().fold(Branch::new(self.heads, end, width), |branch, layer| {
                branch.made_by(layer, &[(0, width)])
            });
        visitor(Shared::Branch(branch.resizing(|len| self.heads = len)));
    }

    /// Attention of the queries of `x` to the keys and values of `memory` that `mask` allows, with
    /// `bias` added to the scores. If absent, `memory` is `x`. With a bias, the scores and their
    /// gradient exist as whole tensors.
    ///
    /// # Shapes
    /// `x: [B, T, C], memory: [B, S, C], mask` broadcasts to `[B, H, T, S]`, `bias: [1, H, T, S]`
    pub(super) fn forward(
        &self,
        pass: &Pass,
        x: Var,
        memory: Option<Var>,
        mask: Option<&Tensor>,
        bias: Option<Var>,
    ) -> NnResult<Var> {
        let end = &self.layers[3];
        let x = end.branch_input(x)?;
        let memory = memory.map_or(Ok(x.clone()), |memory| end.branch_input(memory))?;
        let q = self.projected(pass, 0, x)?;
        let k = self.projected(pass, 1, memory.clone())?;
        let v = self.projected(pass, 2, memory)?;
        let y = match bias {
            None => q.attention(k, v, mask, self.options(pass))?,
            Some(bias) => {
                let scale = self.scale.unwrap_or(1.0);
                let mut scores = q.matmul(k.transpose(2, 3)?)?;
                if scale != 1.0 {
                    scores = scores.mul_scalar(scale)?;
                }
                scores = scores.add(end.own_units(end.branch_input(bias)?, 1)?)?;
                if let Some(mask) = mask {
                    scores = scores.masked_fill(&mask.logical_not()?, f64::NEG_INFINITY)?;
                }
                let (dropout, weights) = (Dropout::new(self.dropout)?, scores.softmax(3)?);
                let weights = end.within_branch(pass, || dropout.forward(pass, weights))?;
                weights.matmul(v)?
            }
        };
        let (batch, len, width) = (y.shape()[0], y.shape()[2], y.shape()[1] * y.shape()[3]);
        let joined = y.transpose(1, 2)?.reshape([batch, len, width])?;
        pass.within(self.names[3], || end.forward(pass, joined))
    }

    fn options(&self, pass: &Pass) -> AttentionOptions {
        let (probability, first_sample) = (self.dropout, pass.first_sample());
        let drops = pass.is_training() && probability > 0.0;
        let key = || self.layers[3].within_branch(pass, || pass.draw());
        let dropout = drops.then(|| AttentionDropout { key: key(), probability, first_sample });
        AttentionOptions { scale: self.scale, dropout, ..Default::default() }
    }

    /// `[B, T, C] → [B, H, T, D]`
    fn projected(&self, pass: &Pass, at: usize, x: Var) -> NnResult<Var> {
        let x = pass.within(self.names[at], || self.layers[at].forward(pass, x))?;
        let (batch, len, width) = (x.shape()[0], x.shape()[1], x.shape()[2]);
        Ok(x.reshape([batch, len, self.heads, width / self.heads])?.transpose(1, 2)?)
    }
}
