//! Encoder and decoder layers of transformers.
//!
//! Vaswani et al., "Attention is all you need" (2017); normalisation before the branches instead of
//! after the sums: Xiong et al., "On layer normalization in the transformer architecture" (2020).
//!
//! `B` batch, `T` positions, `S` positions of the encoder's sequence, `D` width.

use lowtide_autograd::{Pass, Var};
use lowtide_tensor::{Causal, Device, RandomKey, Tensor};

use crate::error::Result;
use crate::layers::attention::{MultiHeadAttention, MultiHeadOptions};
use crate::layers::dropout::Dropout;
use crate::layers::linear::Linear;
use crate::layers::norm::LayerNorm;
use crate::layers::rotary::RotaryEmbedding;
use crate::module::{Module, forward_in};
use crate::node::parameters;
use crate::parallel::features::branch::{Branch, Shared};

/// The place of the normalisations in a layer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum NormPlace {
    /// Normalises the sum of input and branch; PyTorch's default (`norm_first=False`).
    #[default]
    After,
    /// Normalises the input of the branch (`norm_first=True`). Trains without a warm-up.
    Before,
}

/// Activation functions between the two linear layers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum HiddenActivation {
    /// `max(x, 0)`; PyTorch's default.
    #[default]
    Relu,
    /// `x · Φ(x)`.
    Gelu,
}

/// Options of the layers of a transformer.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TransformerOptions {
    /// Number of features of each position; a multiple of the heads.
    pub width: usize,
    /// Number of attention heads.
    pub heads: usize,
    /// Number of hidden features between the two linear layers.
    pub hidden: usize,
    /// Dropout probability of the attention weights, of the hidden features and of each branch.
    pub dropout: f64,
    /// The activation function between the two linear layers.
    pub activation: HiddenActivation,
    /// The place of the normalisations in a layer.
    pub norm: NormPlace,
    /// The number that is added to the variance in a normalisation.
    pub eps: f64,
    /// The causal mask of self-attention.
    pub causal: Causal,
    /// Rotates queries and keys by their positions in self-attention.
    pub rotary: Option<RotaryEmbedding>,
    /// True if linear layers and normalisations have biases.
    pub bias: bool,
}

impl TransformerOptions {
    /// PyTorch's defaults: 2048 hidden features, dropout 0.1, ReLU, normalisation after the sums,
    /// no causal mask.
    pub fn new(width: usize, heads: usize) -> Self {
        TransformerOptions {
            width,
            heads,
            hidden: 2048,
            dropout: 0.1,
            activation: HiddenActivation::Relu,
            norm: NormPlace::After,
            eps: 1e-5,
            causal: Causal::No,
            rotary: None,
            bias: true,
        }
    }

    /// The options of self-attention.
    fn self_attention(&self) -> MultiHeadOptions {
        let &TransformerOptions { causal, rotary, .. } = self;
        MultiHeadOptions { causal, rotary, ..self.cross_attention() }
    }

    /// The options of cross-attention, which has no rotation and no causal mask.
    fn cross_attention(&self) -> MultiHeadOptions {
        let plain = MultiHeadOptions::new(self.width, self.heads);
        MultiHeadOptions { dropout: self.dropout, bias: self.bias, ..plain }
    }

    pub(crate) fn layer_norm(&self, device: &Device) -> Result<LayerNorm> {
        let layer = if self.bias {
            LayerNorm::new(device, &[self.width])?
        } else {
            LayerNorm::without_bias(device, &[self.width])?
        };
        Ok(layer.with_eps(self.eps))
    }
}

/// The normalisation and the dropout of a branch that is added to its input.
struct Residual<'a> {
    norm: &'a LayerNorm,
    /// The names of the normalisation and of the dropout.
    names: [&'static str; 2],
    dropout: &'a Dropout,
    place: NormPlace,
}

impl Residual<'_> {
    /// The sum of x and the branch of x. The normalisation comes before or after, by `place`.
    fn around(self, pass: &Pass, x: Var, branch: impl FnOnce(Var) -> Result<Var>) -> Result<Var> {
        let [norm_name, dropout_name] = self.names;
        let normed = |x| forward_in(pass, norm_name, self.norm, x);
        let input = match self.place {
            NormPlace::After => x.clone(),
            NormPlace::Before => normed(x.clone())?,
        };
        let y = branch(input)?;
        // The branch comes first: the sum can reuse its buffer.
        let sum = pass.within(dropout_name, || self.dropout.forward(pass, y))?.add(x)?;
        match self.place {
            NormPlace::After => normed(sum),
            NormPlace::Before => Ok(sum),
        }
    }
}

/// The two linear layers. Their names have no prefix within the layer that contains them.
#[derive(Clone, Debug)]
struct FeedForward {
    linear1: Linear,
    linear2: Linear,
    dropout: Dropout,
    activation: HiddenActivation,
}

impl FeedForward {
    fn new(device: &Device, key: RandomKey, options: &TransformerOptions) -> Result<Self> {
        let &TransformerOptions { width, hidden, dropout, activation, bias, .. } = options;
        Ok(FeedForward {
            linear1: Linear::with(device, key.op("linear1"), [width, hidden], bias)?,
            linear2: Linear::with(device, key.op("linear2"), [hidden, width], bias)?,
            dropout: Dropout::new(dropout)?,
            activation,
        })
    }

    /// Shows the hidden features to a visitor.
    fn branches(&mut self, visitor: &mut dyn FnMut(Shared<'_>)) {
        visitor(Shared::Branch(Branch::hidden([&self.linear1], &mut self.linear2)));
    }

    fn forward(&self, pass: &Pass, x: Var) -> Result<Var> {
        let x = forward_in(pass, "linear1", &self.linear1, self.linear2.branch_input(x)?)?;
        let x = match self.activation {
            HiddenActivation::Relu => x.relu()?,
            HiddenActivation::Gelu => x.gelu()?,
        };
        let drop = || pass.within("dropout", || self.dropout.forward(pass, x));
        let x = self.linear2.within_branch(pass, drop)?;
        forward_in(pass, "linear2", &self.linear2, x)
    }
}

parameters!(FeedForward { linear1, linear2 }, shared by branches);

/// Self-attention, then two linear layers, `torch.nn.TransformerEncoderLayer`
/// with `batch_first=True`.
#[derive(Clone, Debug)]
pub struct TransformerEncoderLayer {
    self_attn: MultiHeadAttention,
    feed_forward: FeedForward,
    norm1: LayerNorm,
    norm2: LayerNorm,
    dropout: Dropout,
    place: NormPlace,
}

impl TransformerEncoderLayer {
    /// A layer initialised from `key`.
    ///
    /// # Errors
    /// `Option` unless the heads divide the width and the dropout is in `[0, 1)`; `OutOfMemory`.
    pub fn new(device: &Device, key: RandomKey, options: TransformerOptions) -> Result<Self> {
        let attention = options.self_attention();
        Ok(TransformerEncoderLayer {
            self_attn: MultiHeadAttention::new(device, key.op("self_attn"), attention)?,
            feed_forward: FeedForward::new(device, key, &options)?,
            norm1: options.layer_norm(device)?,
            norm2: options.layer_norm(device)?,
            dropout: Dropout::new(options.dropout)?,
            place: options.norm,
        })
    }

    /// [`Module::forward`] with an attention mask, as in [`MultiHeadAttention::forward_masked`].
    ///
    /// # Errors
    /// `Shape`, `DType`, `OutOfMemory`.
    pub fn forward_masked(&self, pass: &Pass, input: Var, mask: Option<&Tensor>) -> Result<Var> {
        let residual =
            |norm, names| Residual { norm, names, dropout: &self.dropout, place: self.place };
        let x = residual(&self.norm1, ["norm1", "dropout1"]).around(pass, input, |x| {
            pass.within("self_attn", || self.self_attn.forward_masked(pass, x, mask))
        })?;
        residual(&self.norm2, ["norm2", "dropout2"])
            .around(pass, x, |x| self.feed_forward.forward(pass, x))
    }
}

parameters!(TransformerEncoderLayer { self_attn, feed_forward as "", norm1, norm2 });

impl Module for TransformerEncoderLayer {
    /// # Shapes
    /// `input: [B, T, D] → [B, T, D]`
    fn forward(&self, pass: &Pass, input: Var) -> Result<Var> {
        self.forward_masked(pass, input, None)
    }
}

/// Self-attention, then cross-attention, then two linear layers,
/// `torch.nn.TransformerDecoderLayer` with `batch_first=True`.
#[derive(Clone, Debug)]
pub struct TransformerDecoderLayer {
    self_attn: MultiHeadAttention,
    multihead_attn: MultiHeadAttention,
    feed_forward: FeedForward,
    norm1: LayerNorm,
    norm2: LayerNorm,
    norm3: LayerNorm,
    dropout: Dropout,
    place: NormPlace,
}

impl TransformerDecoderLayer {
    /// A layer initialised from `key`. Cross-attention has no causal mask.
    ///
    /// # Errors
    /// The errors of [`TransformerEncoderLayer::new`].
    pub fn new(device: &Device, key: RandomKey, options: TransformerOptions) -> Result<Self> {
        let attention = |name, options| MultiHeadAttention::new(device, key.op(name), options);
        Ok(TransformerDecoderLayer {
            self_attn: attention("self_attn", options.self_attention())?,
            multihead_attn: attention("multihead_attn", options.cross_attention())?,
            feed_forward: FeedForward::new(device, key, &options)?,
            norm1: options.layer_norm(device)?,
            norm2: options.layer_norm(device)?,
            norm3: options.layer_norm(device)?,
            dropout: Dropout::new(options.dropout)?,
            place: options.norm,
        })
    }

    /// Runs the layer on `input` and `memory`, the encoder's output. The first mask is for
    /// self-attention, the second for cross-attention, as in [`MultiHeadAttention::attend`].
    ///
    /// # Shapes
    /// `input: [B, T, D]`, `memory: [B, S, D] → [B, T, D]`
    ///
    /// # Errors
    /// `Shape`, `DType`, `OutOfMemory`.
    pub fn decode(
        &self,
        pass: &Pass,
        input: Var,
        memory: Var,
        [mask, memory_mask]: [Option<&Tensor>; 2],
    ) -> Result<Var> {
        let residual =
            |norm, names| Residual { norm, names, dropout: &self.dropout, place: self.place };
        let x = residual(&self.norm1, ["norm1", "dropout1"]).around(pass, input, |x| {
            pass.within("self_attn", || self.self_attn.forward_masked(pass, x, mask))
        })?;
        let attend = |x| self.multihead_attn.attend(pass, x, memory, memory_mask);
        let x = residual(&self.norm2, ["norm2", "dropout2"])
            .around(pass, x, |x| pass.within("multihead_attn", || attend(x)))?;
        residual(&self.norm3, ["norm3", "dropout3"])
            .around(pass, x, |x| self.feed_forward.forward(pass, x))
    }
}

parameters!(TransformerDecoderLayer {
    self_attn,
    multihead_attn,
    feed_forward as "",
    norm1,
    norm2,
    norm3,
});
