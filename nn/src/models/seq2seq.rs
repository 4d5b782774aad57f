//! A transformer from one sequence to another: Vaswani et al., "Attention is all you need" (2017).
//!
//! `B` batch, `S` source positions, `T` target positions, `D` width, `V` target vocabulary.

use lowtide_allocator::Category;
use lowtide_autograd::{Pass, Var};
use lowtide_tensor::{Causal, DType, Device, RandomKey, Tensor, TensorError};

use crate::buffer::Buffer;
use crate::error::Result;
use crate::init;
use crate::layers::attention_mask::key_padding_mask;
use crate::layers::dropout::Dropout;
use crate::layers::embedding::Embedding;
use crate::layers::linear::Linear;
use crate::layers::transformer::TransformerOptions;
use crate::layers::transformer_stack::{TransformerDecoder, TransformerEncoder};
use crate::module::{Module, Parameters, forward_in};
use crate::node::parameters;

/// The sizes of a [`Seq2Seq`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Seq2SeqShape {
    /// Number of tokens in the source vocabulary.
    pub source_vocabulary: usize,
    /// Number of tokens in the target vocabulary.
    pub target_vocabulary: usize,
    /// Largest number of positions of a source or target.
    pub context: usize,
    /// Number of layers of the encoder and of the decoder.
    pub layers: [usize; 2],
    /// Options of each layer. The decoder is always causal.
    pub options: TransformerOptions,
}

/// Sines and cosines of positions, which are added to token embeddings scaled by `√D`.
#[derive(Clone, Debug)]
struct Positions {
    table: Buffer,
    dropout: Dropout,
    scale: f64,
}

impl Positions {
    /// Alternates `sin(t / 10000^(2k / D))` and `cos(t / 10000^(2k / D))`, as `[context, 1, D]`.
    fn new(device: &Device, shape: &Seq2SeqShape) -> Result<Self> {
        let &Seq2SeqShape { context, options: TransformerOptions { width, dropout, .. }, .. } =
            shape;
        let mut table =
            Tensor::empty_in(device, Category::Parameter, [context, 1, width], DType::F32)?;
        let pairs = width.div_ceil(2);
        let positions = Tensor::arange(device, 0.0..context as f64, 1.0, DType::F64)?;
        let mut rates = Tensor::arange(device, 0.0..pairs as f64, 1.0, DType::F64)?;
        rates.mul_scalar_(-2.0 * 10_000f64.ln() / width as f64)?;
        let rates = rates.exp()?;
        let angles = positions.reshape([context, 1])?.mul(&rates.reshape([1, pairs])?)?;
        let waves = Tensor::stack(&[&angles.sin()?, &angles.cos()?], 2)?;
        let waves = waves.reshape([context, 1, 2 * pairs])?.narrow(2, 0, width)?;
        table.copy_(&waves.to_dtype(DType::F32)?)?;
        let (table, scale) = (Buffer::new(table), (width as f64).sqrt());
        Ok(Positions { table, dropout: Dropout::new(dropout)?, scale })
    }

    /// Embeds `tokens: [B, T]` as `[B, T, D]`, with positions and dropout.
    fn embed(&self, pass: &Pass, table: &Embedding, tokens: &Tensor) -> Result<Var> {
        let (left, all) = (*tokens.shape(), self.table.current(pass));
        let &[_, len] = &*left else {
            let right = *all.shape();
            return Err(TensorError::Shape { op: "seq2seq", left, right }.into());
        };
        let x = forward_in(pass, "embedding", table, pass.constant(tokens.clone()))?
            .mul_scalar(self.scale)?;
        let positions = all.narrow(0, 0, len)?.transpose(0, 1)?.to_dtype(x.value().dtype())?;
        self.dropout.forward(pass, x.add(pass.constant(positions))?)
    }
}

/// An encoder and a decoder with token tables, under the names of PyTorch's translation tutorial
/// (`Seq2SeqTransformer`). The model has 33,570,389 parameters with 512 features, 8 heads, 512
/// hidden features, 3 layers each and vocabularies of 19,214 and 10,837 tokens.
#[derive(Clone, Debug)]
pub struct Seq2Seq {
    encoder: TransformerEncoder,
    decoder: TransformerDecoder,
    generator: Linear,
    source: Embedding,
    target: Embedding,
    positions: Positions,
}

impl Seq2Seq {
    /// A model of `shape`, initialised from `key`. Matrices are from Glorot's uniform distribution.
    ///
    /// # Errors
    /// `Option` unless the heads divide the width and the dropout is in `[0, 1)`; `OutOfMemory`.
    pub fn new(device: &Device, key: RandomKey, shape: Seq2SeqShape) -> Result<Self> {
        let Seq2SeqShape { source_vocabulary, target_vocabulary, layers, options, .. } = shape;
        let table = |name: &str, rows| Embedding::new(device, key.op(name), rows, options.width);
        let causal = TransformerOptions { causal: Causal::UpperLeft, ..options };
        let stack_key = |name: &str| key.op("transformer").op(name);
        let mut model = Seq2Seq {
            encoder: TransformerEncoder::new(device, stack_key("encoder"), layers[0], options)?,
            decoder: TransformerDecoder::new(device, stack_key("decoder"), layers[1], causal)?,
            generator: Linear::new(device, key.op("generator"), options.width, target_vocabulary)?,
            source: table("src_tok_emb", source_vocabulary)?,
            target: table("tgt_tok_emb", target_vocabulary)?,
            positions: Positions::new(device, &shape)?,
        };
        let mut result = Ok(());
        model.visit(&mut |name, parameter| {
            if result.is_ok() && parameter.value().shape().len() > 1 {
                result = init::xavier_uniform_(parameter.value_mut(), key.op(name), 1.0);
            }
        });
        result?;
        Ok(model)
    }

    /// The logits of the next token at each position of `target`. `padding` is true at the padding
    /// of source and target; no position attends to padding.
    ///
    /// # Shapes
    /// `source: [B, S]`, `target: [B, T]` of i64 `→ [B, T, V]`; `padding: [B, S], [B, T]` of truth
    /// values
    ///
    /// # Errors
    /// `Shape`; `Index` for a token outside of the vocabulary or a position outside of the context;
    /// `OutOfMemory`.
    pub fn logits(
        &self,
        pass: &Pass,
        [source, target]: [&Tensor; 2],
        padding: [Option<&Tensor>; 2],
    ) -> Result<Var> {
        let [source_mask, target_mask] = padding.map(|x| x.map(key_padding_mask).transpose());
        let (source_mask, target_mask) = (source_mask?, target_mask?);
        let x = pass.within("src_tok_emb", || self.positions.embed(pass, &self.source, source))?;
        let memory = pass.within("transformer.encoder", || {
            self.encoder.forward_masked(pass, x, source_mask.as_ref())
        })?;
        let x = pass.within("tgt_tok_emb", || self.positions.embed(pass, &self.target, target))?;
        let masks = [target_mask.as_ref(), source_mask.as_ref()];
        let x =
            pass.within("transformer.decoder", || self.decoder.decode(pass, x, memory, masks))?;
        forward_in(pass, "generator", &self.generator, x)
    }
}

parameters!(Positions { table as "pos_embedding" });

parameters!(Seq2Seq {
    encoder as "transformer.encoder",
    decoder as "transformer.decoder",
    generator,
    source as "src_tok_emb.embedding",
    target as "tgt_tok_emb.embedding",
    positions as "positional_encoding",
});
