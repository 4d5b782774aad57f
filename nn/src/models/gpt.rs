//! A language model of pre-norm blocks, each with causal attention and a hidden layer with GELU.
//! Radford et al., "Language models are unsupervised multitask learners" (2019), with the exact
//! GELU. Positions are learned embeddings or rotary embeddings.
//!
//! `B` batch, `T` positions, `D` width, `V` vocabulary.

use lowtide_autograd::{Pass, Var};
use lowtide_tensor::{AttentionDropout, AttentionOptions, Causal, Device, RandomKey, Tensor};

use crate::checks::check_option;
use crate::compress::prune::cut::{Group, Prunable};
use crate::error::Result;
use crate::layers::dropout::Dropout;
use crate::layers::embedding::Embedding;
use crate::layers::linear::Linear;
use crate::layers::norm::LayerNorm;
use crate::layers::rotary::{RotaryEmbedding, RotaryTables};
use crate::loss::logits::Logits;
use crate::loss::{LinearCrossEntropyOptions, Loss};
use crate::models::groups::{hidden, packed_heads};
use crate::module::{Module, Parameters, forward_in};
use crate::node::{Nodes, Visitor, parameters};
use crate::parallel::features::branch::{Branch, Shared};
use crate::parallel::features::vocabulary::VocabularyShare;
use crate::segment::{Segment, run_blocks};

/// The sizes of a [`Gpt`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GptShape {
    /// Number of tokens in the vocabulary.
    pub vocabulary: usize,
    /// Largest number of positions: the context length.
    pub context: usize,
    /// Number of features of each position; a multiple of the heads.
    pub width: usize,
    /// Number of attention heads.
    pub heads: usize,
    /// Number of blocks.
    pub blocks: usize,
}

impl GptShape {
    /// GPT-2 small: 124,439,808 parameters with a tied output layer.
    pub const GPT2: GptShape =
        GptShape { vocabulary: 50_257, context: 1024, width: 768, heads: 12, blocks: 12 };
    /// GPT-2 medium: 354,823,168 parameters with a tied output layer.
    pub const GPT2_MEDIUM: GptShape =
        GptShape { width: 1024, heads: 16, blocks: 24, ..GptShape::GPT2 };
    /// GPT-2 large: 774,030,080 parameters with a tied output layer.
    pub const GPT2_LARGE: GptShape =
        GptShape { width: 1280, heads: 20, blocks: 36, ..GptShape::GPT2 };
    /// GPT-2 XL: 1,557,611,200 parameters with a tied output layer.
    pub const GPT2_XL: GptShape = GptShape { width: 1600, heads: 25, blocks: 48, ..GptShape::GPT2 };
}

/// Attention, then a hidden layer of four times the width. Each is added to its input.
#[derive(Clone, Debug)]
struct Block {
    ln1: LayerNorm,
    qkv: Linear,
    proj: Linear,
    ln2: LayerNorm,
    up: Linear,
    down: Linear,
    heads: usize,
    dropout: f64,
}

/// The encoding of positions.
#[derive(Clone, Debug)]
enum Positions {
    /// A table of learned embeddings, which are added to the token embeddings.
    Learned(Embedding),
    /// Rotary embeddings in every block, for heads of this width.
    Rotary(RotaryEmbedding, usize),
}

/// A language model.
#[derive(Clone, Debug)]
pub struct Gpt {
    tok: Embedding,
    pos: Positions,
    blocks: Vec<Segment<Block>>,
    norm: LayerNorm,
    /// The output layer; `None` if the token table is also the output layer.
    head: Option<Linear>,
    dropout: f64,
}

impl Block {
    fn new(device: &Device, key: RandomKey, width: usize, heads: usize) -> Result<Self> {
        let linear = |name, inputs, outputs| Linear::new(device, key.op(name), inputs, outputs);
        Ok(Block {
            ln1: LayerNorm::new(device, &[width])?,
            qkv: linear("qkv", width, 3 * width)?,
            proj: linear("proj", width, width)?,
            ln2: LayerNorm::new(device, &[width])?,
            up: linear("up", width, 4 * width)?,
            down: linear("down", 4 * width, width)?,
            heads,
            dropout: 0.0,
        })
    }

    /// Number of features of a head.
    fn head_width(&self) -> usize {
        self.qkv.weight().value().shape()[0] / (3 * self.heads).max(1)
    }

    /// Shows the heads and the hidden features to a visitor.
    fn branches(&mut self, visitor: &mut dyn FnMut(Shared<'_>)) {
        let (heads, width) = (self.heads, self.head_width());
        let packed = [0, 1, 2].map(|part| (part * heads * width, width));
        let of_heads = Branch::new(heads, &mut self.proj, width).made_by(&self.qkv, &packed);
        visitor(Shared::Branch(of_heads.resizing(|len| self.heads = len)));
        visitor(Shared::Branch(Branch::hidden([&self.up], &mut self.down)));
    }

    fn drop(&self, name: &str, pass: &Pass, x: Var) -> Result<Var> {
        let dropout = Dropout::new(self.dropout)?;
        pass.within(name, || dropout.forward(pass, x))
    }
}

parameters!(Block { ln1, qkv, proj, ln2, up, down }, shared by branches);

impl Block {
    /// # Shapes
    /// `input: [B, T, D] → [B, T, D]`
    fn forward(&self, pass: &Pass, input: Var, tables: Option<&RotaryTables>) -> Result<Var> {
        let (heads, probability) = (self.heads, self.dropout);
        let drops = pass.is_training() && probability > 0.0;
        let first_sample = pass.first_sample();
        let key = || self.proj.within_branch(pass, || pass.draw());
        let dropout = drops.then(|| AttentionDropout { key: key(), probability, first_sample });
        let causal = Causal::UpperLeft;
        let options = AttentionOptions { causal, dropout, ..Default::default() };
        let mut packed = forward_in(pass, "ln1", &self.ln1, input.clone())?;
        packed = forward_in(pass, "qkv", &self.qkv, self.proj.branch_input(packed)?)?;
        if let Some(tables) = tables {
            packed = tables.turn_heads(packed, [2 * heads, 3 * heads])?;
        }
        let seen = packed.self_attention([heads, heads], None, options)?;
        // The branch comes first: the sum can reuse its buffer.
        let x = self.drop("proj", pass, forward_in(pass, "proj", &self.proj, seen)?)?.add(input)?;
        let hidden = forward_in(pass, "ln2", &self.ln2, x.clone())?;
        let hidden = self.down.branch_input(hidden)?;
        let hidden = forward_in(pass, "up", &self.up, hidden)?.gelu()?;
        Ok(self.drop("down", pass, forward_in(pass, "down", &self.down, hidden)?)?.add(x)?)
    }
}

impl Gpt {
    /// A model of `shape` with a separate output layer without a bias. Each layer is initialised
    /// from `key` with its own default.
    ///
    /// # Errors
    /// `OutOfMemory`.
    pub fn new(device: &Device, key: RandomKey, shape: GptShape) -> Result<Self> {
        let GptShape { vocabulary, context, width, heads, blocks } = shape;
        let block = |index: usize| {
            let key = key.op(&format!("blocks.{index}"));
            Ok(Segment::new(Block::new(device, key, width, heads)?))
        };
        Ok(Gpt {
            tok: Embedding::new(device, key.op("tok"), vocabulary, width)?,
            pos: Positions::Learned(Embedding::new(device, key.op("pos"), context, width)?),
            blocks: (0..blocks).map(block).collect::<Result<_>>()?,
            norm: LayerNorm::new(device, &[width])?,
            head: Some(Linear::without_bias(device, key.op("head"), width, vocabulary)?),
            dropout: 0.0,
        })
    }

    /// A model of `shape` with the token table as output layer, initialised from `key` like GPT-2:
    /// normal with a deviation of 0.02, which is divided by the square root of the number of
    /// branches in layers that end a branch.
    ///
    /// # Errors
    /// `OutOfMemory`.
    pub fn gpt2(device: &Device, key: RandomKey, shape: GptShape) -> Result<Self> {
        const DEVIATION: f64 = 0.02;
        let tied = GptShape { vocabulary: 0, ..shape };
        let mut model = Gpt { head: None, ..Gpt::new(device, key, tied)? };
        model.tok = Embedding::new(device, key.op("tok"), shape.vocabulary, shape.width)?;
        let branches = 2.0 * shape.blocks as f64;
        let mut result = Ok(());
        model.visit(&mut |name, parameter| {
            let (value, key) = (parameter.value_mut(), key.op("gpt2").op(name));
            let ends_branch = name.ends_with("proj.weight") || name.ends_with("down.weight");
            let deviation = if ends_branch { DEVIATION / branches.sqrt() } else { DEVIATION };
            let filled = match value.shape().len() {
                2 => value.normal_(key, 0.0, deviation),
                _ if name.contains("ln") || name.contains("norm") => Ok(()),
                _ => value.fill_(0.0),
            };
            result = std::mem::replace(&mut result, Ok(())).and(filled);
        });
        result?;
        Ok(model)
    }

    /// This model with rotary embeddings instead of the table of positions. Sequences may then have
    /// any length.
    ///
    /// # Errors
    /// `Option` unless heads of this width can be rotated.
    pub fn with_rotary(mut self, rotary: RotaryEmbedding) -> Result<Self> {
        let width = match (&self.pos, self.blocks.first()) {
            (&Positions::Rotary(_, width), _) => width,
            (Positions::Learned(_), Some(segment)) => segment.block().head_width(),
            (Positions::Learned(_), None) => 0,
        };
        rotary.check(width)?;
        self.pos = Positions::Rotary(rotary, width);
        Ok(self)
    }

    /// This model with dropout of the summed embeddings, of the attention weights and of each
    /// branch.
    ///
    /// # Errors
    /// `Option` outside `[0, 1)`.
    pub fn with_dropout(mut self, probability: f64) -> Result<Self> {
        check_option("dropout", probability, "[0, 1)", |p| (0.0..1.0).contains(&p))?;
        self.dropout = probability;
        for segment in &mut self.blocks {
            segment.block_mut().dropout = probability;
        }
        Ok(self)
    }
}

parameters!(Gpt { tok, pos, blocks as "blocks.", norm, head }, shared by vocabulary);

/// Last parts of the names of a block's groups.
const HEADS: &str = "heads";
const HIDDEN: &str = "up";

impl Prunable for Gpt {
    /// The attention heads of each block, `blocks.0.heads` and so on, and its hidden features,
    /// `blocks.0.up` and so on.
    fn groups(&self) -> Vec<Group> {
        let of_block = |(index, segment): (usize, &Segment<Block>)| {
            let (block, name) = (segment.block(), format!("blocks.{index}"));
            let heads = [block.heads, block.head_width()];
            [packed_heads(HEADS, heads, ["qkv", "proj"]), hidden(HIDDEN, &block.up, ["up", "down"])]
                .map(|group| group.within(&name))
        };
        self.blocks.iter().enumerate().flat_map(of_block).collect()
    }

    fn resized(&mut self, group: &str, len: usize) {
        for (index, segment) in self.blocks.iter_mut().enumerate() {
            if group == format!("blocks.{index}.{HEADS}") {
                segment.block_mut().heads = len;
            }
        }
    }
}

impl Nodes for Positions {
    fn visit_nodes(&mut self, visitor: &mut Visitor<'_>) {
        match self {
            Positions::Learned(table) => visitor.field("", table),
            Positions::Rotary(..) => {}
        }
    }
}

impl Gpt {
    /// The input of the output layer.
    ///
    /// # Shapes
    /// `tokens: [B, T] → [B, T, D]`
    fn features(&self, pass: &Pass, tokens: Var) -> Result<Var> {
        let len = tokens.shape().last().copied().unwrap_or_default();
        let positions =
            match &self.pos {
                // [T, D]
                Positions::Learned(table) => Some(pass.within("pos", || -> Result<Var> {
                    Ok(table.table(pass)?.narrow(0, 0, len)?)
                })?),
                Positions::Rotary(..) => None,
            };
        let mut x = forward_in(pass, "tok", &self.tok, tokens)?;
        if let Some(positions) = positions {
            x = x.add(positions)?;
        }
        let tables = match &self.pos {
            Positions::Learned(_) => None,
            Positions::Rotary(rotary, width) => {
                let (device, dtype) = (x.value().device(), x.value().dtype());
                Some(rotary.tables(device, [len, *width], dtype)?)
            }
        };
        x = pass.within("tok", || Dropout::new(self.dropout)?.forward(pass, x))?;
        x = run_blocks("blocks.", &self.blocks, pass, x, move |block, pass, x| {
            block.forward(pass, x, tables.as_ref())
        })?;
        forward_in(pass, "norm", &self.norm, x)
    }

    /// The cross-entropy of the logits with the next tokens, by
    /// [`linear_cross_entropy`](crate::linear_cross_entropy). The logits, the largest tensor of a
    /// step, never exist as a whole.
    ///
    /// # Shapes
    /// `tokens: [B, T]` of i64, `labels: [B, T]` of i64
    ///
    /// # Errors
    /// `Shape`, `DType`, `Label` for a label outside the vocabulary, `OutOfMemory`.
    pub fn loss(
        &self,
        pass: &Pass,
        tokens: Var,
        labels: &Tensor,
        options: LinearCrossEntropyOptions,
    ) -> Result<Loss> {
        self.logits(pass, tokens)?.cross_entropy_in_chunks(labels, options)
    }

    /// The logits in a form that lets the loss compute them in chunks.
    ///
    /// # Shapes
    /// `tokens: [B, T]` of i64 `→ [B, T, V]`
    ///
    /// # Errors
    /// `Shape`, `DType`, `OutOfMemory`.
    pub fn logits(&self, pass: &Pass, tokens: Var) -> Result<Logits> {
        let (input, weight) = (self.features(pass, tokens)?, self.output_weight(pass)?);
        Ok(Logits::of(input, weight, self.output_share()))
    }

    /// The rows of the output layer on this rank; `None` if ranks do not share the layer.
    fn output_share(&self) -> Option<&VocabularyShare> {
        self.head.as_ref().map_or(self.tok.vocabulary(), Linear::vocabulary)
    }

    /// Shows the token table and the output layer to a visitor.
    fn vocabulary(&mut self, visitor: &mut dyn FnMut(Shared<'_>)) {
        visitor(Shared::Vocabulary { table: &mut self.tok, head: self.head.as_mut() });
    }

    fn output_weight(&self, pass: &Pass) -> Result<Var> {
        match &self.head {
            Some(head) => head.adapted_weight(pass),
            None => self.tok.table(pass),
        }
    }
}

impl Module for Gpt {
    /// # Shapes
    /// `input: [B, T]` of i64 `→ [B, T, V]`. With learned positions T is at most the context.
    fn forward(&self, pass: &Pass, input: Var) -> Result<Var> {
        if self.output_share().is_some() {
            return self.logits(pass, input)?.whole();
        }
        let x = self.features(pass, input)?;
        match &self.head {
            Some(head) => forward_in(pass, "head", head, x),
            None => Ok(x.linear(self.tok.table(pass)?, None)?),
        }
    }
}
