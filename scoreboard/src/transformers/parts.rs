//! What several architectures are made of.
//!
//! `B` batch, `T` positions, `S` keys, `H` heads, `G` heads of keys and values, `D` features of a
//! head.

use lowtide_autograd::{Pass, Var};
use lowtide_nn::fields::Field;
use lowtide_nn::{
    Conv2d, Linear, Module, Parameter, Parameters, RmsNorm, RotaryTables, cross_entropy,
};
use lowtide_tensor::{AttentionOptions, DType, Device, RandomKey, Tensor};

use super::Step;
use super::config::missing;
use crate::call::Result;

/// Weights are loaded: what layers begin with does not matter.
pub(super) const KEY: RandomKey = RandomKey::new(0);

pub(super) fn linear(device: &Device, [inputs, outputs]: [usize; 2], bias: bool) -> Result<Linear> {
    Ok(match bias {
        true => Linear::new(device, KEY, inputs, outputs)?,
        false => Linear::without_bias(device, KEY, inputs, outputs)?,
    })
}

/// An activation, by the name that configurations have for it.
#[derive(Clone, Copy, Debug)]
pub(super) enum Activation {
    Gelu,
    GeluTanh,
    Relu,
    Silu,
    Tanh,
}

impl Activation {
    pub(super) fn named(name: &str) -> Result<Self> {
        Ok(match name {
            "gelu" => Activation::Gelu,
            "gelu_new" | "gelu_pytorch_tanh" => Activation::GeluTanh,
            "relu" => Activation::Relu,
            "silu" | "swish" => Activation::Silu,
            "tanh" => Activation::Tanh,
            other => return Err(missing(&format!("the activation {other}"))),
        })
    }

    pub(super) fn of(self, x: Var) -> Result<Var> {
        Ok(match self {
            Activation::Gelu => x.gelu()?,
            Activation::GeluTanh => x.gelu_tanh()?,
            Activation::Relu => x.relu()?,
            Activation::Silu => x.silu()?,
            Activation::Tanh => x.tanh()?,
        })
    }
}

/// `[B, T, heads · D] → [B, heads, T, D]`
pub(super) fn by_heads(x: Var, heads: usize) -> Result<Var> {
    let (batch, len, width) = (x.shape()[0], x.shape()[1], x.shape()[2]);
    Ok(x.reshape([batch, len, heads, width / heads])?.transpose(1, 2)?)
}

/// `[B, H, T, D] → [B, T, H · D]`
pub(super) fn joined(x: Var) -> Result<Var> {
    let (batch, heads, len, width) = (x.shape()[0], x.shape()[1], x.shape()[2], x.shape()[3]);
    Ok(x.transpose(1, 2)?.reshape([batch, len, heads * width])?)
}

/// Which keys a query sees, and by how much.
#[derive(Clone, Default)]
pub(super) struct Seen {
    /// True where a query sees a key; broadcasts to `[B, H, T, S]`.
    pub(super) mask: Option<Tensor>,
    pub(super) options: AttentionOptions,
    /// Turns queries and keys.
    pub(super) rotary: Option<RotaryTables>,
    /// Added to the scores, with a gradient; `[1, H, T, S]`. Everything is seen that `mask` shows.
    pub(super) bias: Option<Var>,
}

/// Which layers an attention has, under which names.
pub(super) struct AttentionShape {
    pub(super) width: usize,
    pub(super) heads: usize,
    pub(super) groups: usize,
    pub(super) head_width: usize,
    /// Whether queries, keys and values have biases, and whether the result has one.
    pub(super) biases: [bool; 2],
    /// Of the layers of queries, keys, values and results.
    pub(super) names: [&'static str; 4],
    /// Norms of queries and keys, with this addend to the mean square.
    pub(super) norm_eps: Option<f64>,
}

/// Attention with a layer each for queries, keys, values and results.
pub(super) struct Attention {
    layers: Vec<Linear>,
    names: [&'static str; 4],
    q_norm: Option<RmsNorm>,
    k_norm: Option<RmsNorm>,
    heads: [usize; 2],
}

impl Attention {
    pub(super) fn new(device: &Device, shape: AttentionShape) -> Result<Self> {
        let AttentionShape { width, heads, groups, head_width, biases, names, norm_eps } = shape;
        let [inner, shared] = [heads * head_width, groups * head_width];
        let norm = || -> Result<Option<RmsNorm>> {
            let Some(eps) = norm_eps else { return Ok(None) };
            Ok(Some(RmsNorm::new(device, &[head_width])?.with_eps(eps)))
        };
        let layers = vec![
            linear(device, [width, inner], biases[0])?,
            linear(device, [width, shared], biases[0])?,
            linear(device, [width, shared], biases[0])?,
            linear(device, [inner, width], biases[1])?,
        ];
        Ok(Attention { layers, names, q_norm: norm()?, k_norm: norm()?, heads: [heads, groups] })
    }

    /// Attention of `x` to itself.
    pub(super) fn forward(&self, pass: &Pass, x: Var, seen: &Seen) -> Result<Var> {
        self.attend(pass, [x.clone(), x], seen)
    }

    /// Attention of the queries of `x` to the keys and values of `memory`.
    pub(super) fn attend(&self, pass: &Pass, [x, memory]: [Var; 2], seen: &Seen) -> Result<Var> {
        let [heads, groups] = self.heads;
        let project = |at: usize, x: Var, heads| by_heads(self.layers[at].forward(pass, x)?, heads);
        let mut q = project(0, x, heads)?;
        let mut k = project(1, memory.clone(), groups)?;
        let v = project(2, memory, groups)?;
        if let (Some(q_norm), Some(k_norm)) = (&self.q_norm, &self.k_norm) {
            (q, k) = (q_norm.forward(pass, q)?, k_norm.forward(pass, k)?);
        }
        if let Some(tables) = &seen.rotary {
            (q, k) = (tables.turn(q)?, tables.turn(k)?);
        }
        let y = match &seen.bias {
            None => q.attention(k, v, seen.mask.as_ref(), seen.options)?,
            // The gradient of the bias is one of all scores, which fused attention does not make.
            Some(bias) => {
                let mut scores = q.matmul(k.transpose(2, 3)?)?.add(bias.clone())?;
                if let Some(mask) = &seen.mask {
                    scores = scores.masked_fill(&mask.logical_not()?, f64::NEG_INFINITY)?;
                }
                scores.softmax(3)?.matmul(v)?
            }
        };
        Ok(self.layers[3].forward(pass, joined(y)?)?)
    }
}

impl Parameters for Attention {
    fn visit(&mut self, visitor: &mut dyn FnMut(&str, &mut Parameter)) {
        for (name, layer) in self.names.into_iter().zip(&mut self.layers) {
            layer.visit_as(name, visitor);
        }
        self.q_norm.visit_as("q_norm", visitor);
        self.k_norm.visit_as("k_norm", visitor);
    }
}

/// The mask of sequences whose padding has a 0 in `mask: [B, S]`, for all heads and queries.
pub(super) fn keys_of(mask: &Tensor) -> Result<Tensor> {
    let (batch, len) = (mask.shape()[0], mask.shape()[1]);
    Ok(mask.ne_scalar(0.0)?.reshape([batch, 1, 1, len])?)
}

/// The cross-entropy of each position with the token after it.
pub(super) fn next_token(logits: Var, labels: &Tensor) -> Result<Step> {
    let len = labels.shape()[1].saturating_sub(1);
    let (shown, labels) = (logits.clone().narrow(1, 0, len)?, labels.narrow(1, 1, len)?);
    Ok(Step { loss: mean_over_positions(shown, &labels)?, logits })
}

/// The cross-entropy of each position with its label.
pub(super) fn same_token(logits: Var, labels: &Tensor) -> Result<Step> {
    Ok(Step { loss: mean_over_positions(logits.clone(), labels)?, logits })
}

/// The cross-entropy of each sample with its class.
pub(super) fn classes(logits: Var, labels: &Tensor) -> Result<Step> {
    Ok(Step { loss: cross_entropy(logits.clone(), labels)?.mean()?, logits })
}

/// `logits: [B, T, V], labels: [B, T]`
fn mean_over_positions(logits: Var, labels: &Tensor) -> Result<Var> {
    let (batch, len, vocabulary) = (logits.shape()[0], logits.shape()[1], logits.shape()[2]);
    let rows = logits.reshape([batch * len, vocabulary])?;
    Ok(cross_entropy(rows, &labels.reshape([batch * len])?)?.mean()?)
}

/// Ones and zeros as a mask: key `j` is seen by query `i` if `i - window < j ≤ i`.
pub(super) fn window(device: &Device, len: usize, window: usize) -> Result<Tensor> {
    let ones = Tensor::full(device, [1, 1, len, len], DType::I64, 1.0)?;
    let seen = ones.tril(0)?.triu(1 - window as isize)?;
    Ok(seen.ne_scalar(0.0)?)
}

/// A convolution without a bias, square windows in the middle of their padding.
pub(super) fn convolution(
    device: &Device,
    channels: [usize; 2],
    kernel: usize,
    stride: usize,
) -> Result<Conv2d> {
    let geometry = lowtide_tensor::Conv2dGeometry {
        stride: [stride; 2],
        padding: [kernel / 2; 2],
        ..Default::default()
    };
    Ok(Conv2d::without_bias(device, KEY, channels, [kernel; 2], geometry)?)
}
