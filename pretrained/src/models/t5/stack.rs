//! The encoder and the decoder of a T5: attention and hidden layers, each after a norm.
//!
//! `B` batch, `S` positions of the encoder, `T` of the decoder, `C` features.

use std::rc::Rc;

use lowtide_autograd::{Pass, Var};
use lowtide_nn::parallel::{Branch, Shared};
use lowtide_nn::{
    Linear, Module, NnResult, Node, Nodes, RelativePositionBias, RelativePositionOptions,
    RelativeSides, RmsNorm, Segment, Visitor, parameters,
};
use lowtide_tensor::Tensor;

use super::shape::T5Shape;
use crate::decoder::{Activation, Maker, run_in};
use crate::error::Result;
use crate::models::attention::{Attention, Sizes};
use crate::models::functions::dropped;

/// Attention after a norm, added to its input.
#[derive(Clone, Debug)]
struct Attending {
    attention: Attention,
    norm: RmsNorm,
    names: [&'static str; 2],
}

impl Nodes for Attending {
    fn visit_nodes(&mut self, visitor: &mut Visitor<'_>) {
        visitor.field(self.names[0], &mut self.attention);
        visitor.field(self.names[1], &mut self.norm);
    }
}

const OWN: [&str; 2] = ["layer.0.SelfAttention", "layer.0.layer_norm"];
const CROSS: [&str; 2] = ["layer.1.EncDecAttention", "layer.1.layer_norm"];

/// Hidden layers after a norm, added to their input: plain, or with a gate.
#[derive(Clone, Debug)]
struct Hidden {
    wi: Vec<Linear>,
    wo: Linear,
    norm: RmsNorm,
    activation: Activation,
    names: &'static HiddenNames,
}

impl Nodes for Hidden {
    fn visit_nodes(&mut self, visitor: &mut Visitor<'_>) {
        visitor.node("", Node::Shared(&mut |visitor| self.branches(visitor)));
        visitor.field(self.names.wi, &mut self.wi);
        visitor.field(self.names.wo, &mut self.wo);
        visitor.field(self.names.norm, &mut self.norm);
    }
}

impl Hidden {
    fn branches(&mut self, visitor: &mut dyn FnMut(Shared<'_>)) {
        visitor(Shared::Branch(Branch::hidden(&self.wi, &mut self.wo)));
    }
}

#[derive(Debug)]
struct HiddenNames {
    wi: [&'static str; 2],
    wo: &'static str,
    norm: &'static str,
}

/// The names of hidden layers after one attention and after two, plain and gated.
const HIDDEN: [[HiddenNames; 2]; 2] = [
    [
        HiddenNames { wi: ["layer.1.DenseReluDense.wi", ""], ..AFTER_ONE },
        HiddenNames {
            wi: ["layer.1.DenseReluDense.wi_0", "layer.1.DenseReluDense.wi_1"],
            ..AFTER_ONE
        },
    ],
    [
        HiddenNames { wi: ["layer.2.DenseReluDense.wi", ""], ..AFTER_TWO },
        HiddenNames {
            wi: ["layer.2.DenseReluDense.wi_0", "layer.2.DenseReluDense.wi_1"],
            ..AFTER_TWO
        },
    ],
];
const AFTER_ONE: HiddenNames =
    HiddenNames { wi: [""; 2], wo: "layer.1.DenseReluDense.wo", norm: "layer.1.layer_norm" };
const AFTER_TWO: HiddenNames =
    HiddenNames { wi: [""; 2], wo: "layer.2.DenseReluDense.wo", norm: "layer.2.layer_norm" };

/// A layer of the encoder, or with `cross` a layer of the decoder.
#[derive(Clone, Debug)]
struct Layer {
    own: Attending,
    cross: Option<Attending>,
    hidden: Hidden,
    dropout: f64,
}

parameters!(Layer { own as "", cross as "", hidden as "" });

/// The masks of a stack: the visible keys of its own positions, and the visible keys of the
/// encoder's output.
pub(super) struct Seen {
    pub(super) own: Option<Tensor>,
    pub(super) memory: Option<Tensor>,
}

impl Layer {
    /// `memory` is the output of an encoder, for a layer of a decoder.
    fn forward(
        &self,
        pass: &Pass,
        [x, bias]: [Var; 2],
        memory: Option<Var>,
        seen: &Seen,
    ) -> NnResult<Var> {
        let normed = run_in(pass, OWN[1], &self.own.norm, x.clone())?;
        let y = pass.within(OWN[0], || {
            let mask = seen.own.as_ref();
            let y = self.own.attention.forward(pass, normed, None, mask, Some(bias))?;
            dropped(pass, self.dropout, y)
        })?;
        let mut x = y.add(x)?;
        if let (Some(cross), Some(memory)) = (&self.cross, memory) {
            let normed = run_in(pass, CROSS[1], &cross.norm, x.clone())?;
            let y = pass.within(CROSS[0], || {
                let mask = seen.memory.as_ref();
                let y = cross.attention.forward(pass, normed, Some(memory), mask, None)?;
                dropped(pass, self.dropout, y)
            })?;
            x = y.add(x)?;
        }
        let Hidden { wi, wo, norm, activation, names } = &self.hidden;
        let normed = wo.branch_input(run_in(pass, names.norm, norm, x.clone())?)?;
        let mut hidden = activation.of(run_in(pass, names.wi[0], &wi[0], normed.clone())?)?;
        if let Some(up) = wi.get(1) {
            hidden = hidden.mul(run_in(pass, names.wi[1], up, normed)?)?;
        }
        let y = pass.within(names.wo, || {
            let hidden = wo.within_branch(pass, || dropped(pass, self.dropout, hidden))?;
            let y = wo.forward(pass, hidden)?;
            pass.within("branch", || dropped(pass, self.dropout, y))
        })?;
        Ok(y.add(x)?)
    }
}

#[derive(Clone, Debug)]
pub(super) struct Stack {
    layers: Vec<Segment<Layer>>,
    bias: RelativePositionBias,
    norm: RmsNorm,
    dropout: f64,
}

parameters!(Stack {
    layers as "block.",
    bias as "block.0.layer.0.SelfAttention.relative_attention_bias",
    norm as "final_layer_norm",
});

impl Stack {
    pub(super) fn new(
        make: &Maker<'_>,
        shape: &T5Shape,
        path: &str,
        sides: RelativeSides,
    ) -> Result<Self> {
        let (width, heads, head_width) = (shape.width, shape.heads, shape.head_width);
        let root = |count: usize| shape.factor / (count as f64).sqrt();
        let norm = || make.rms_norm(width, shape.eps);
        let attending = |path: &str, names: [&'static str; 2]| -> Result<Attending> {
            let sizes = Sizes {
                width,
                heads,
                head_width,
                biases: [false; 2],
                names: ["q", "k", "v", "o"],
                scale: Some(1.0),
                dropout: shape.dropout,
                deviations: [
                    root(width.saturating_mul(head_width)),
                    root(width),
                    root(width),
                    root(heads.saturating_mul(head_width)),
                ],
            };
            let path = format!("{path}.{}", names[0]);
            let attention = Attention::new(make, &path, sizes)?;
            Ok(Attending { attention, norm: norm()?, names })
        };
        let is_decoder = sides == RelativeSides::Before;
        let layer = |index: usize| -> Result<Segment<Layer>> {
            let path = format!("{path}.block.{index}");
            let cross = if is_decoder { Some(attending(&path, CROSS)?) } else { None };
            let wi = |at: usize| {
                let name = format!("{path}.wi_{at}");
                make.linear_with(&name, [width, shape.hidden], false, root(width))
            };
            let wo = [shape.hidden, width];
            let hidden = Hidden {
                wi: (0..1 + usize::from(shape.is_gated)).map(wi).collect::<Result<_>>()?,
                wo: make.linear_with(&format!("{path}.wo"), wo, false, root(shape.hidden))?,
                norm: norm()?,
                activation: shape.activation,
                names: &HIDDEN[usize::from(is_decoder)][usize::from(shape.is_gated)],
            };
            let own = attending(&path, OWN)?;
            Ok(Segment::new(Layer { own, cross, hidden, dropout: shape.dropout }))
        };
        let (buckets, distance_max) = (shape.buckets, shape.distance_max);
        let options = RelativePositionOptions { heads, buckets, distance_max, sides };
        let count = shape.layers[usize::from(is_decoder)];
        Ok(Stack {
            layers: (0..count).map(layer).collect::<Result<_>>()?,
            bias: make.made(&format!("{path}.bias"), |key| {
                RelativePositionBias::new(make.device, key, options)
            })?,
            norm: norm()?,
            dropout: shape.dropout,
        })
    }

    pub(super) fn forward(
        &self,
        pass: &Pass,
        x: Var,
        memory: Option<Var>,
        seen: Seen,
    ) -> NnResult<Var> {
        let len = x.shape()[1];
        let bias = self.bias.bias(pass, [len, len])?;
        let (mut x, seen) = (dropped(pass, self.dropout, x)?, Rc::new(seen));
        for (index, layer) in self.layers.iter().enumerate() {
            let (seen, bias) = (Rc::clone(&seen), bias.clone());
            // Every value with a gradient is an input, so that the layer can be recomputed.
            x = pass.within(&format!("block.{index}"), || match memory.clone() {
                Some(memory) => layer.run(pass, [x, bias, memory], move |layer, pass, inputs| {
                    let [x, bias, memory] = inputs;
                    layer.forward(pass, [x, bias], Some(memory), &seen)
                }),
                None => layer.run(pass, [x, bias], move |layer, pass, inputs| {
                    layer.forward(pass, inputs, None, &seen)
                }),
            })?;
        }
        let x = run_in(pass, "final_layer_norm", &self.norm, x)?;
        pass.within("final_layer_norm", || dropped(pass, self.dropout, x))
    }
}
