//! Stacks of encoder and decoder layers with a normalisation at the end, and a transformer of both
//! stacks.
//!
//! `B` batch, `T` positions, `S` positions of the encoder's sequence, `D` width.

use lowtide_autograd::{Pass, Var};
use lowtide_tensor::{Causal, Device, RandomKey, Tensor};

use crate::error::Result;
use crate::init;
use crate::layers::norm::LayerNorm;
use crate::layers::transformer::{
    TransformerDecoderLayer, TransformerEncoderLayer, TransformerOptions,
};
use crate::module::{Module, Parameters, forward_in};
use crate::node::parameters;
use crate::segment::Segment;

macro_rules! stacks {
    ($($(#[$doc:meta])* $name:ident of $layer:ident;)*) => {$(
        $(#[$doc])*
        #[derive(Clone, Debug)]
        pub struct $name {
            layers: Vec<Segment<$layer>>,
            norm: Option<LayerNorm>,
        }

        impl $name {
            /// A stack of `count` layers, with a normalisation of the last layer's output.
            ///
            /// # Errors
            /// The errors of [`TransformerEncoderLayer::new`].
            pub fn new(
                device: &Device,
                key: RandomKey,
                count: usize,
                options: TransformerOptions,
            ) -> Result<Self> {
                let layer = |index: usize| {
                    let key = key.op(&format!("layers.{index}"));
                    Ok(Segment::new($layer::new(device, key, options)?))
                };
                let layers = (0..count).map(layer).collect::<Result<_>>()?;
                Ok($name { layers, norm: Some(options.layer_norm(device)?) })
            }

            /// This stack without the normalisation at the end, PyTorch's default.
            pub fn without_norm(self) -> Self {
                $name { norm: None, ..self }
            }

            /// `x`, normalised if the stack has a normalisation.
            fn normalised(&self, pass: &Pass, x: Var) -> Result<Var> {
                match &self.norm {
                    Some(norm) => forward_in(pass, "norm", norm, x),
                    None => Ok(x),
                }
            }
        }

        parameters!($name { layers as "layers.", norm });
    )*};
}

stacks! {
    /// A chain of encoder layers, `torch.nn.TransformerEncoder`.
    TransformerEncoder of TransformerEncoderLayer;
    /// A chain of decoder layers, `torch.nn.TransformerDecoder`.
    TransformerDecoder of TransformerDecoderLayer;
}

impl TransformerEncoder {
    /// [`Module::forward`] with an attention mask, as in
    /// [`crate::MultiHeadAttention::forward_masked`].
    ///
    /// # Errors
    /// `Shape`, `DType`, `OutOfMemory`.
    pub fn forward_masked(&self, pass: &Pass, input: Var, mask: Option<&Tensor>) -> Result<Var> {
        let x = self.layers.iter().enumerate().try_fold(input, |x, (index, layer)| {
            let mask = mask.cloned();
            pass.within(&format!("layers.{index}"), || {
                layer.run(pass, [x], move |layer, pass, [x]| {
                    layer.forward_masked(pass, x, mask.as_ref())
                })
            })
        })?;
        self.normalised(pass, x)
    }
}

impl Module for TransformerEncoder {
    /// # Shapes
    /// `input: [B, T, D] → [B, T, D]`
    fn forward(&self, pass: &Pass, input: Var) -> Result<Var> {
        self.forward_masked(pass, input, None)
    }
}

impl TransformerDecoder {
    /// Runs all layers on `input` and `memory`; see [`TransformerDecoderLayer::decode`].
    ///
    /// # Errors
    /// `Shape`, `DType`, `OutOfMemory`.
    pub fn decode(
        &self,
        pass: &Pass,
        input: Var,
        memory: Var,
        masks: [Option<&Tensor>; 2],
    ) -> Result<Var> {
        let x = self.layers.iter().enumerate().try_fold(input, |x, (index, layer)| {
            let masks = masks.map(Option::<&Tensor>::cloned);
            pass.within(&format!("layers.{index}"), || {
                layer.run(pass, [x, memory.clone()], move |layer, pass, [x, memory]| {
                    layer.decode(pass, x, memory, masks.each_ref().map(Option::as_ref))
                })
            })
        })?;
        self.normalised(pass, x)
    }
}

/// The attention masks of a [`Transformer`], each in the form of
/// [`crate::MultiHeadAttention::forward_masked`].
#[derive(Clone, Copy, Debug, Default)]
pub struct TransformerMasks<'a> {
    /// Mask of the self-attention in the encoder.
    pub source: Option<&'a Tensor>,
    /// Mask of the self-attention in the decoder.
    pub target: Option<&'a Tensor>,
    /// Mask of the decoder's attention to the encoder's output.
    pub memory: Option<&'a Tensor>,
}

/// An encoder of one sequence and a decoder of another, `torch.nn.Transformer` with
/// `batch_first=True`.
#[derive(Clone, Debug)]
pub struct Transformer {
    encoder: TransformerEncoder,
    decoder: TransformerDecoder,
}

impl Transformer {
    /// A model with these numbers of encoder and decoder layers; PyTorch's default is 6 and 6. All
    /// matrices are drawn from Glorot's uniform distribution. A causal mask in the options is used
    /// only in the decoder.
    ///
    /// # Errors
    /// The errors of [`TransformerEncoderLayer::new`].
    pub fn new(
        device: &Device,
        key: RandomKey,
        [encoders, decoders]: [usize; 2],
        options: TransformerOptions,
    ) -> Result<Self> {
        let open = TransformerOptions { causal: Causal::No, ..options };
        let mut model = Transformer {
            encoder: TransformerEncoder::new(device, key.op("encoder"), encoders, open)?,
            decoder: TransformerDecoder::new(device, key.op("decoder"), decoders, options)?,
        };
        let mut outcome = Ok(());
        model.visit(&mut |name, parameter| {
            let value = parameter.value_mut();
            if outcome.is_ok() && value.shape().len() > 1 {
                outcome = init::xavier_uniform_(value, key.op(name), 1.0);
            }
        });
        outcome?;
        Ok(model)
    }

    /// The output of the decoder for `target`, which attends to the encoder's output for `source`.
    ///
    /// # Shapes
    /// `source: [B, S, D]`, `target: [B, T, D] → [B, T, D]`
    ///
    /// # Errors
    /// `Shape`, `DType`, `OutOfMemory`.
    pub fn run(
        &self,
        pass: &Pass,
        source: Var,
        target: Var,
        masks: TransformerMasks<'_>,
    ) -> Result<Var> {
        let memory =
            pass.within("encoder", || self.encoder.forward_masked(pass, source, masks.source))?;
        pass.within("decoder", || {
            self.decoder.decode(pass, target, memory, [masks.target, masks.memory])
        })
    }
}

parameters!(Transformer { encoder, decoder });
