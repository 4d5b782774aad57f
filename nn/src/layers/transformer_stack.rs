//! Stacks of the layers of encoders and decoders, with a normalisation at the end.
//!
//! `B` batch, `T` positions, `S` positions of the encoder's sequence, `D` width.

use lowtide_autograd::{Pass, Var};
use lowtide_tensor::{Device, RandomKey, Tensor};

use crate::error::Result;
use crate::fields::parameters;
use crate::layers::norm::LayerNorm;
use crate::layers::transformer::{
    TransformerDecoderLayer, TransformerEncoderLayer, TransformerOptions,
};
use crate::module::{Module, forward_in};
use crate::segment::Segment;

macro_rules! stacks {
    ($($(#[$doc:meta])* $name:ident of $layer:ident;)*) => {$(
        $(#[$doc])*
        #[derive(Clone, Debug)]
        pub struct $name {
            layers: Vec<Segment<$layer>>,
            norm: LayerNorm,
        }

        impl $name {
            /// `count` layers and a normalisation of what comes out of the last.
            ///
            /// # Errors
            /// Those of [`TransformerEncoderLayer::new`].
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
                Ok($name { layers, norm: options.layer_norm(device)? })
            }
        }

        parameters!($name { layers as "layers.", norm });
    )*};
}

stacks! {
    /// Encoder layers one after the other, `torch.nn.TransformerEncoder` with a norm.
    TransformerEncoder of TransformerEncoderLayer;
    /// Decoder layers one after the other, `torch.nn.TransformerDecoder` with a norm.
    TransformerDecoder of TransformerDecoderLayer;
}

impl TransformerEncoder {
    /// [`Module::forward`] with a mask of attention, as
    /// [`crate::MultiHeadAttention::forward_masked`] takes it.
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
        forward_in(pass, "norm", &self.norm, x)
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
    /// All layers on `input` with `memory`; see [`TransformerDecoderLayer::decode`].
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
        forward_in(pass, "norm", &self.norm, x)
    }
}
