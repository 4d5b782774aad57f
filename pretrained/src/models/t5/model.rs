//! The model of a T5: a table of tokens, an encoder, a decoder and an output layer.
//!
//! `B` batch, `S` positions of the encoder, `T` of the decoder, `C` features, `V` vocabulary.

use std::ops::ControlFlow;

use lowtide_autograd::{Pass, Var};
use lowtide_nn::{
    Embedding, Linear, LinearCrossEntropyOptions, Loss, NnResult, RelativeSides,
    linear_cross_entropy, parameters,
};
use lowtide_tensor::{DType, Device, Tensor};

use super::shape::T5Shape;
use super::stack::{Seen, Stack};
use crate::decoder::{Maker, Weights, before, keys_of, run_in};
use crate::error::Result;
use crate::generate::{GenerateOptions, Row, go_on};
use crate::weights::Stored;

/// T5 with its output layer.
#[derive(Clone, Debug)]
pub struct T5 {
    shared: Embedding,
    encoder: Stack,
    decoder: Stack,
    /// Absent if the output layer is the table of tokens.
    head: Option<Linear>,
    shape: T5Shape,
}

parameters!(T5 { shared, encoder, decoder, head as "lm_head" });

impl T5 {
    /// A model of `shape` whose parameters are `weights` of `dtype`.
    ///
    /// # Errors
    /// `DType` unless a float type, `OutOfMemory`.
    pub fn new(
        device: &Device,
        shape: T5Shape,
        weights: impl Into<Weights>,
        dtype: DType,
    ) -> Result<Self> {
        let make = Maker { device, dtype, weights: weights.into(), deviation: shape.factor };
        let (width, vocabulary) = (shape.width, shape.vocabulary);
        let head = if shape.is_tied {
            None
        } else {
            Some(make.linear("lm_head", [width, vocabulary], false)?)
        };
        Ok(T5 {
            shared: make.table("shared", [vocabulary, width])?,
            encoder: Stack::new(&make, &shape, "encoder", RelativeSides::Both)?,
            decoder: Stack::new(&make, &shape, "decoder", RelativeSides::Before)?,
            head,
            shape,
        })
    }

    /// The shape of the model.
    pub fn shape(&self) -> &T5Shape {
        &self.shape
    }

    /// The input of the decoder in training on `labels`: the start token, then each label one
    /// position later.
    ///
    /// # Shapes
    /// `labels: [B, T]` of i64 `→ [B, T]`
    ///
    /// # Errors
    /// `Shape`, `OutOfMemory`.
    pub fn shifted(&self, labels: &Tensor) -> NnResult<Tensor> {
        let (batch, len) = (labels.shape()[0], labels.shape()[1]);
        let (device, start) = (labels.device(), self.shape.start as f64);
        let start = Tensor::full(device, [batch, 1], DType::I64, start)?;
        let ids = Tensor::cat(&[&start, &labels.narrow(1, 0, len.saturating_sub(1))?], 1)?;
        let is_ignored = ids.eq_scalar(-100.0)?;
        Ok(ids.masked_fill(&is_ignored, self.shape.padding as f64)?)
    }

    /// The input of the output layer.
    fn features(
        &self,
        pass: &Pass,
        [tokens, targets]: [&Tensor; 2],
        mask: Option<&Tensor>,
    ) -> NnResult<Var> {
        let keys = mask.map(keys_of).transpose()?;
        let memory = self.encoded(pass, tokens, keys.clone())?;
        self.decoded(pass, targets, memory, keys)
    }

    fn embedded(&self, pass: &Pass, ids: &Tensor) -> NnResult<Var> {
        run_in(pass, "shared", &self.shared, pass.constant(ids.clone()))
    }

    /// The encoder's output for `tokens`, `[B, S, C]`. The mask `keys` is true for visible tokens.
    fn encoded(&self, pass: &Pass, tokens: &Tensor, keys: Option<Tensor>) -> NnResult<Var> {
        let (x, seen) = (self.embedded(pass, tokens)?, Seen { own: keys, memory: None });
        pass.within("encoder", || self.encoder.forward(pass, x, None, seen))
    }

    /// The input of the output layer, `[B, T, C]`, from the encoder's output `memory`.
    fn decoded(
        &self,
        pass: &Pass,
        targets: &Tensor,
        memory: Var,
        keys: Option<Tensor>,
    ) -> NnResult<Var> {
        let len = targets.shape().last().copied().unwrap_or_default();
        let seen = Seen { own: Some(before(targets.device(), len)?), memory: keys };
        let y = self.embedded(pass, targets)?;
        let y = pass.within("decoder", || self.decoder.forward(pass, y, Some(memory), seen))?;
        if self.shape.is_scaled {
            Ok(y.mul_scalar(1.0 / (self.shape.width as f64).sqrt())?)
        } else {
            Ok(y)
        }
    }

    fn head_weight(&self, pass: &Pass) -> NnResult<Var> {
        match &self.head {
            Some(head) => head.adapted_weight(pass),
            None => self.shared.table(pass),
        }
    }

    /// The logits of the token after each of `targets`, for a decoder that has read `tokens`.
    /// Tokens where `mask` is 0 are padding.
    ///
    /// # Shapes
    /// `tokens: [B, S]` and `targets: [B, T]` of i64, `mask: [B, S]` of any type `→ [B, T, V]`
    ///
    /// # Errors
    /// `Shape`, `DType`, `Index` for a token outside the vocabulary, `OutOfMemory`.
    pub fn logits(
        &self,
        pass: &Pass,
        tokens: &Tensor,
        targets: &Tensor,
        mask: Option<&Tensor>,
    ) -> NnResult<Var> {
        let x = self.features(pass, [tokens, targets], mask)?;
        Ok(x.linear(self.head_weight(pass)?, None)?)
    }

    /// The tokens that the decoder writes after reading each row of `tokens`, without the start
    /// token. Tokens where `mask` is 0 are padding. No gradient is recorded. The encoder runs once;
    /// the decoder reads all earlier tokens again for each token.
    ///
    /// # Shapes
    /// `tokens: [B, S]` of i64, `mask: [B, S]` of any type
    ///
    /// # Errors
    /// `Option` for options out of their ranges, `ValueUnavailable` on a simulated device; the
    /// errors of [`T5::logits`].
    pub fn generate(
        &self,
        tokens: &Tensor,
        mask: Option<&Tensor>,
        options: &GenerateOptions,
    ) -> Result<Vec<Vec<i64>>> {
        options.check()?;
        let (pass, start) = (Pass::eval(), [self.shape.start]);
        let keys = mask.map(keys_of).transpose()?;
        let memory = self.encoded(&pass, tokens, keys.clone())?;
        let count = tokens.shape()[0];
        let row = |index: usize| Row { index, prompt: &start, added: Vec::new() };
        let mut rows: Vec<Row<'_>> = (0..count).map(row).collect();
        let mut written = vec![Vec::new(); count];
        let mut untold = |_: usize, _: i64| ControlFlow::Continue(());
        let _ = go_on(&mut rows, options, &mut untold, |next| {
            written.iter_mut().zip(next).for_each(|(written, &token)| written.push(token));
            let (len, device) = (written[0].len(), tokens.device());
            let targets = Tensor::from_slice(device, [count, len], &written.concat())?;
            let x = self.decoded(&pass, &targets, memory.clone(), keys.clone())?;
            let last = x.narrow(1, len - 1, 1)?.linear(self.head_weight(&pass)?, None)?;
            Ok(last.into_value().reshape([count, self.shape.vocabulary])?)
        })?;
        Ok(rows.into_iter().map(|row| row.added).collect())
    }

    /// The cross-entropy of writing `labels` after reading `tokens`, in chunks, so that the logits
    /// never exist as a whole. A label of -100 is ignored.
    ///
    /// # Shapes
    /// `tokens: [B, S]` and `labels: [B, T]` of i64, `mask: [B, S]` of any type
    ///
    /// # Errors
    /// The errors of [`T5::logits`], and `Label` for a label outside the vocabulary.
    pub fn loss(
        &self,
        pass: &Pass,
        tokens: &Tensor,
        labels: &Tensor,
        mask: Option<&Tensor>,
        options: LinearCrossEntropyOptions,
    ) -> NnResult<Loss> {
        let x = self.features(pass, [tokens, &self.shifted(labels)?], mask)?;
        linear_cross_entropy(x, self.head_weight(pass)?, None, labels, options)
    }
}

impl Stored for T5 {
    fn is_unused(&self, name: &str) -> bool {
        let cross_bias = ".EncDecAttention.relative_attention_bias.weight";
        name.ends_with(".embed_tokens.weight")
            || name.ends_with(cross_bias)
            || (self.shape.is_tied && name == "lm_head.weight")
    }
}
