//! A decoder of text: pre-norm blocks of causal attention and a GELU layer, with learned positions.
//! Radford et al., "Language models are unsupervised multitask learners" (2019), with an output
//! layer of its own, without a bias.
//!
//! `B` batch, `T` positions, `D` width, `V` vocabulary.

use lowtide_autograd::{Pass, Var};
use lowtide_tensor::{AttentionOptions, Causal, Device, RandomKey};

use crate::module::visit_under;
use crate::{Embedding, LayerNorm, Linear, Module, Parameter, Parameters, Result};

/// How large a [`Gpt`] is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GptShape {
    /// Different tokens.
    pub vocabulary: usize,
    /// Positions at most.
    pub context: usize,
    /// Numbers for each position; a multiple of the heads.
    pub width: usize,
    /// Heads of attention.
    pub heads: usize,
    /// Blocks.
    pub blocks: usize,
}

/// Attention and a hidden layer of four times the width, each added to its input.
#[derive(Clone, Debug)]
struct Block {
    ln1: LayerNorm,
    qkv: Linear,
    proj: Linear,
    ln2: LayerNorm,
    up: Linear,
    down: Linear,
    heads: usize,
}

/// A language model.
#[derive(Clone, Debug)]
pub struct Gpt {
    tok: Embedding,
    pos: Embedding,
    blocks: Vec<Block>,
    norm: LayerNorm,
    head: Linear,
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
        })
    }
}

impl Parameters for Block {
    fn visit(&mut self, visitor: &mut dyn FnMut(&str, &mut Parameter)) {
        visit_under("ln1", &mut self.ln1, visitor);
        visit_under("qkv", &mut self.qkv, visitor);
        visit_under("proj", &mut self.proj, visitor);
        visit_under("ln2", &mut self.ln2, visitor);
        visit_under("up", &mut self.up, visitor);
        visit_under("down", &mut self.down, visitor);
    }
}

impl Module for Block {
    /// # Shapes
    /// `input: [B, T, D] → [B, T, D]`
    fn forward(&self, pass: &Pass, input: Var) -> Result<Var> {
        let options = AttentionOptions { causal: Causal::UpperLeft, ..Default::default() };
        let packed = self.qkv.forward(pass, self.ln1.forward(pass, input.clone())?)?;
        let seen = packed.self_attention([self.heads, self.heads], None, options)?;
        // Added to the branch, whose buffer nothing else needs.
        let x = self.proj.forward(pass, seen)?.add(input)?;
        let hidden = self.up.forward(pass, self.ln2.forward(pass, x.clone())?)?.gelu()?;
        Ok(self.down.forward(pass, hidden)?.add(x)?)
    }
}

impl Gpt {
    /// A model of `shape`, initialised from `key`.
    ///
    /// # Errors
    /// `OutOfMemory`.
    pub fn new(device: &Device, key: RandomKey, shape: GptShape) -> Result<Self> {
        let GptShape { vocabulary, context, width, heads, blocks } = shape;
        let block =
            |index: usize| Block::new(device, key.op(&format!("blocks.{index}")), width, heads);
        Ok(Gpt {
            tok: Embedding::new(device, key.op("tok"), vocabulary, width)?,
            pos: Embedding::new(device, key.op("pos"), context, width)?,
            blocks: (0..blocks).map(block).collect::<Result<_>>()?,
            norm: LayerNorm::new(device, &[width])?,
            head: Linear::without_bias(device, key.op("head"), width, vocabulary)?,
        })
    }
}

impl Parameters for Gpt {
    fn visit(&mut self, visitor: &mut dyn FnMut(&str, &mut Parameter)) {
        visit_under("tok", &mut self.tok, visitor);
        visit_under("pos", &mut self.pos, visitor);
        for (index, block) in self.blocks.iter_mut().enumerate() {
            visit_under(&format!("blocks.{index}"), block, visitor);
        }
        visit_under("norm", &mut self.norm, visitor);
        visit_under("head", &mut self.head, visitor);
    }
}

impl Module for Gpt {
    /// # Shapes
    /// `input: [B, T]` of i64, T at most the context, `→ [B, T, V]`
    fn forward(&self, pass: &Pass, input: Var) -> Result<Var> {
        let len = input.shape().last().copied().unwrap_or_default();
        let positions = self.pos.table(pass)?.narrow(0, 0, len)?; // [T, D]
        let x = self.tok.forward(pass, input)?.add(positions)?;
        let x = self.blocks.iter().try_fold(x, |x, block| block.forward(pass, x))?;
        self.head.forward(pass, self.norm.forward(pass, x)?)
    }
}
