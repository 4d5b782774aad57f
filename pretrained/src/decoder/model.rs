//! The model of all decoders of text: a table, layers, a norm and an output layer.
//!
//! `B` batch, `T` positions, `C` features of a position, `V` vocabulary.

use std::rc::Rc;

use lowtide_autograd::{Pass, Var};
use lowtide_nn::parallel::{Shared, VocabularyShare};
use lowtide_nn::{
    Dropout, Embedding, Linear, LinearCrossEntropyOptions, Logits, Loss, Module, NnResult, Node,
    Nodes, Parameters, RotaryEmbedding, Segment, Visitor, run_blocks,
};
use lowtide_tensor::{DType, Device, Tensor};

use super::attention::Seen;
use super::functions::{before, capped, keys_of, near, rounded, run_in};
use super::layer::Layer;
use super::make::{Maker, Weights};
use super::norm::Norm;
use super::part::Part;
use super::shape::{DecoderShape, Positions};
use crate::error::Result;

/// A language model, whose parameters have the names of its files.
#[derive(Clone, Debug)]
pub struct Decoder {
    pub(super) table: Embedding,
    positions: Option<Embedding>,
    pub(super) layers: Vec<Segment<Layer>>,
    pub(super) norm: Norm,
    /// Absent if the output layer is the table of tokens.
    head: Option<Linear>,
    /// The distinct windows and angles of the layers.
    pub(super) kinds: Vec<(Option<usize>, Option<RotaryEmbedding>)>,
    pub(super) shape: DecoderShape,
}

impl Decoder {
    /// A model of `shape` whose parameters are `weights` of `dtype`.
    ///
    /// # Errors
    /// `DType` unless a float type, `OutOfMemory`.
    pub fn new(
        device: &Device,
        shape: DecoderShape,
        weights: impl Into<Weights>,
        dtype: DType,
    ) -> Result<Self> {
        Self::by_parts(device, shape, weights.into(), dtype, &mut |_| Ok(()))
    }

    /// [`Decoder::new`] that calls `finish` with each part right after the part is made: the
    /// tables, each layer, the norm and the output layer.
    pub(crate) fn by_parts(
        device: &Device,
        shape: DecoderShape,
        weights: Weights,
        dtype: DType,
        finish: &mut dyn FnMut(&mut Part<'_>) -> Result<()>,
    ) -> Result<Self> {
        let names = shape.family.names();
        let make = Maker { device, dtype, weights, deviation: shape.deviation };
        let (width, vocabulary) = (shape.width, shape.vocabulary);
        let mut finish =
            |name: &str, parameters: &mut dyn Parameters| finish(&mut Part { name, parameters });
        let mut table = make.table(names.table, [vocabulary, width])?;
        finish(names.table, &mut table)?;
        let mut positions = match shape.positions {
            Positions::Learned => Some(make.table(names.positions, [shape.context, width])?),
            Positions::Rotary => None,
        };
        if let Some(positions) = &mut positions {
            finish(names.positions, positions)?;
        }
        let (mut kinds, mut layers) = (Vec::new(), Vec::with_capacity(shape.layers.len()));
        for (index, &of_layer) in shape.layers.iter().enumerate() {
            let kind = (of_layer.window, of_layer.rotary);
            let known = kinds.iter().position(|known| *known == kind);
            let seen_index = known.unwrap_or(kinds.len());
            if known.is_none() {
                kinds.push(kind);
            }
            let path = format!("{}{index}", names.layers);
            let mut layer = Layer::new(&make, &path, &shape, of_layer, seen_index)?;
            finish(&path, &mut layer)?;
            layers.push(Segment::new(layer));
        }
        let mut norm = make.norm(shape.norm, width)?;
        finish(names.norm, &mut norm)?;
        let head = || make.linear(names.head, [width, vocabulary], false);
        let mut head = (!shape.is_tied).then(head).transpose()?;
        if let Some(head) = &mut head {
            finish(names.head, head)?;
        }
        Ok(Decoder { table, positions, layers, norm, head, kinds, shape })
    }

    /// The shape of the model.
    pub fn shape(&self) -> &DecoderShape {
        &self.shape
    }

    /// The input of the output layer.
    ///
    /// # Shapes
    /// `tokens: [B, T], mask: [B, T] → [B, T, C]`
    fn features(&self, pass: &Pass, tokens: Var, mask: Option<&Tensor>) -> NnResult<Var> {
        let names = self.shape.family.names();
        let len = tokens.shape().last().copied().unwrap_or_default();
        let mut x = self.embedded(pass, tokens, 0)?;
        let seen = Rc::new(self.seen(&x, mask, len)?);
        x = run_blocks(names.layers, &self.layers, pass, x, move |layer, pass, x| {
            layer.forward(pass, x, &seen[layer.seen_index])
        })?;
        run_in(pass, names.norm, &self.norm, x)
    }

    /// The rows of the tables, for tokens at the positions from `start` on.
    pub(super) fn embedded(&self, pass: &Pass, tokens: Var, start: usize) -> NnResult<Var> {
        let names = self.shape.family.names();
        let len = tokens.shape().last().copied().unwrap_or_default();
        let mut x = run_in(pass, names.table, &self.table, tokens)?;
        if self.shape.table_scale != 1.0 {
            // Rounded to the type of the table, as in the training of the model.
            let scale = rounded(self.shape.table_scale, x.value().dtype());
            x = pass.within(names.table, || x.mul_scalar(scale))?;
        }
        if let Some(positions) = &self.positions {
            // [T, C]
            let rows = || -> NnResult<Var> { Ok(positions.table(pass)?.narrow(0, start, len)?) };
            x = x.add(pass.within(names.positions, rows)?)?;
        }
        let dropout = Dropout::new(self.shape.dropout.embedding)?;
        pass.within(names.table, || dropout.forward(pass, x))
    }

    /// Masks and angles of each kind of layer, for an input `x` of `len` positions.
    fn seen(&self, x: &Var, mask: Option<&Tensor>, len: usize) -> NnResult<Vec<Seen>> {
        let (device, dtype) = (x.value().device(), x.value().dtype());
        let keys = mask.map(keys_of).transpose()?;
        let kind = |&(window, rotary): &(Option<usize>, Option<RotaryEmbedding>)| {
            let mask = self.mask(device, window, keys.as_ref(), len)?;
            let width = self.shape.attention.head_width;
            let tables = rotary.map(|rotary| rotary.tables(device, [len, width], dtype));
            NnResult::Ok(Seen { mask, tables: tables.transpose()? })
        };
        self.kinds.iter().map(kind).collect()
    }

    /// True where a query sees a key; `None` if only the causal order decides.
    pub(super) fn mask(
        &self,
        device: &Device,
        window: Option<usize>,
        keys: Option<&Tensor>,
        len: usize,
    ) -> NnResult<Option<Tensor>> {
        let near = match window.filter(|&window| window < len) {
            Some(window) => Some(near(device, len, window)?),
            None => None,
        };
        let before = match self.shape.attention.score_cap {
            Some(_) => Some(before(device, len)?),
            None => None,
        };
        let parts = [near.as_ref(), before.as_ref(), keys].into_iter().flatten();
        parts.cloned().map(Ok).reduce(|a, b| Ok(a?.logical_and(&b?)?)).transpose()
    }

    /// The output layer's weight, `[V, C]`.
    fn head_weight(&self, pass: &Pass) -> NnResult<Var> {
        match &self.head {
            Some(head) => head.adapted_weight(pass),
            None => self.table.table(pass),
        }
    }

    /// The rows of the output layer on this rank, if ranks share the layer.
    fn output_share(&self) -> Option<&VocabularyShare> {
        self.head.as_ref().map_or(self.table.vocabulary(), Linear::vocabulary)
    }

    /// The table of tokens and the output layer, which ranks can share.
    fn vocabulary(&mut self, visitor: &mut dyn FnMut(Shared<'_>)) {
        visitor(Shared::Vocabulary { table: &mut self.table, head: self.head.as_mut() });
    }

    /// The logits of the token after each position. Positions where `mask` is 0 are padding, which
    /// no other position sees.
    ///
    /// # Shapes
    /// `tokens: [B, T]` of i64, `mask: [B, T]` of any type `→ [B, T, V]`
    ///
    /// # Errors
    /// `Shape`, `DType`, `Index` for a token outside the vocabulary, `OutOfMemory`.
    pub fn logits(&self, pass: &Pass, tokens: Var, mask: Option<&Tensor>) -> NnResult<Var> {
        let x = self.features(pass, tokens, mask)?;
        self.logits_of(pass, x)
    }

    pub(super) fn logits_of(&self, pass: &Pass, x: Var) -> NnResult<Var> {
        let name = self.shape.family.names().head;
        let logits = match &self.head {
            _ if self.output_share().is_some() => {
                let weight = self.head_weight(pass)?;
                pass.within(name, || Logits::of(x, weight, self.output_share()).whole())?
            }
            Some(head) => run_in(pass, name, head, x)?,
            None => {
                let table = self.table.table(pass)?;
                pass.within(name, || x.linear(table, None))?
            }
        };
        match self.shape.logit_cap {
            Some(cap) => capped(logits, 1.0, cap),
            None => Ok(logits),
        }
    }

    /// [`Decoder::logits`] of sequences without padding. Unless the model caps logits, losses
    /// compute the logits in chunks.
    ///
    /// # Errors
    /// The errors of [`Decoder::logits`].
    pub fn linear_logits(&self, pass: &Pass, tokens: Var) -> NnResult<Logits> {
        self.linear_logits_with_mask(pass, tokens, None)
    }

    fn linear_logits_with_mask(
        &self,
        pass: &Pass,
        tokens: Var,
        mask: Option<&Tensor>,
    ) -> NnResult<Logits> {
        let input = self.features(pass, tokens, mask)?;
        Ok(match self.shape.logit_cap {
            Some(_) => Logits::Whole(self.logits_of(pass, input)?),
            None => Logits::of(input, self.head_weight(pass)?, self.output_share()),
        })
    }

    /// The cross-entropy of each position with its label, the token that follows, in chunks: unless
    /// logits are capped, the logits, the largest tensor of a step, never exist as a whole. `mask`
    /// is the mask of [`Decoder::logits`]; a label of -100 is ignored.
    ///
    /// # Shapes
    /// `tokens: [B, T]` of i64, `labels: [B, T]` of i64, `mask: [B, T]` of any type
    ///
    /// # Errors
    /// `Shape`, `DType`, `Label` for a label outside the vocabulary, `OutOfMemory`.
    pub fn loss_with_mask(
        &self,
        pass: &Pass,
        tokens: Var,
        labels: &Tensor,
        mask: Option<&Tensor>,
        options: LinearCrossEntropyOptions,
    ) -> NnResult<Loss> {
        self.linear_logits_with_mask(pass, tokens, mask)?.cross_entropy_in_chunks(labels, options)
    }

    /// [`Decoder::loss_with_mask`] of sequences without padding.
    ///
    /// # Errors
    /// The errors of [`Decoder::loss_with_mask`].
    pub fn loss(
        &self,
        pass: &Pass,
        tokens: Var,
        labels: &Tensor,
        options: LinearCrossEntropyOptions,
    ) -> NnResult<Loss> {
        self.loss_with_mask(pass, tokens, labels, None, options)
    }
}

impl Nodes for Decoder {
    fn visit_nodes(&mut self, visitor: &mut Visitor<'_>) {
        visitor.node("", Node::Shared(&mut |visitor| self.vocabulary(visitor)));
        let names = self.shape.family.names();
        visitor.field(names.table, &mut self.table);
        visitor.field(names.positions, &mut self.positions);
        visitor.field(names.layers, &mut self.layers);
        visitor.field(names.norm, &mut self.norm);
        visitor.field(names.head, &mut self.head);
    }
}

impl Module for Decoder {
    /// [`Decoder::logits`] of sequences without padding.
    fn forward(&self, pass: &Pass, input: Var) -> NnResult<Var> {
        self.logits(pass, input, None)
    }
}
