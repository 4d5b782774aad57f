//! Attention of a sequence to itself or to another.
//!
//! Vaswani et al., "Attention is all you need" (2017); groups of queries that share keys and
//! values: Ainslie et al., "GQA: training generalized multi-query transformer models from
//! multi-head checkpoints" (2023).

use lowtide_allocator::Category;
use lowtide_autograd::{Pass, Var};
use lowtide_tensor::{
    AttentionDropout, AttentionOptions, Causal, DType, Device, RandomKey, Shape, Tensor,
    TensorError,
};

use crate::error::Result;
use crate::fields::parameters;
use crate::init;
use crate::layers::cross_attention::cross_attention;
use crate::layers::linear::Linear;
use crate::layers::norm::optional;
use crate::layers::rotary::RotaryEmbedding;
use crate::module::{Module, Parameters, forward_in};
use crate::optim::check_option;
use crate::parameter::Parameter;

/// How a [`MultiHeadAttention`] is built.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct MultiHeadOptions {
    /// Features of each position; a multiple of the heads.
    pub width: usize,
    /// Heads of queries.
    pub heads: usize,
    /// Heads of keys and values, a divisor of the heads of queries; as many as those by default.
    pub groups: usize,
    /// Which positions a position attends to.
    pub causal: Causal,
    /// Dropout probability of the attention weights.
    pub dropout: f64,
    /// Rotates the queries and keys of each head by their positions, both counted from 0. Only two
    /// tables of `T · R / 2` numbers are saved for backward in addition.
    pub rotary: Option<RotaryEmbedding>,
    /// Whether the linear layers have biases.
    pub bias: bool,
}

impl MultiHeadOptions {
    /// Every position attends to all, every head has keys of its own, and there is no rotation.
    pub fn new(width: usize, heads: usize) -> Self {
        MultiHeadOptions {
            width,
            heads,
            groups: heads,
            causal: Causal::No,
            dropout: 0.0,
            rotary: None,
            bias: true,
        }
    }
}

/// Attention with several heads, `torch.nn.MultiheadAttention` with `batch_first=True`:
/// [`Module::forward`] to the sequence itself, [`MultiHeadAttention::attend`] to another. With
/// fewer groups than heads the rows of `in_proj_weight` are those of all queries, then of all keys,
/// then of all values.
#[derive(Clone, Debug)]
pub struct MultiHeadAttention {
    in_proj_weight: Parameter,
    in_proj_bias: Option<Parameter>,
    out_proj: Linear,
    options: MultiHeadOptions,
}

impl MultiHeadAttention {
    /// A layer with a weight of Glorot's uniform distribution for the inputs, and biases of zero.
    ///
    /// # Errors
    /// `Option` unless the groups divide the heads, the heads the width, the dropout is in `[0, 1)`
    /// and heads of this width can be rotated; `OutOfMemory`.
    pub fn new(device: &Device, key: RandomKey, options: MultiHeadOptions) -> Result<Self> {
        let MultiHeadOptions { width, heads, groups, dropout, rotary, bias, .. } = options;
        let divides = |part: usize, whole: usize| part > 0 && whole.is_multiple_of(part);
        check_option("heads", heads as f64, "the divisors of the width", |_| {
            divides(heads, width)
        })?;
        check_option("groups", groups as f64, "the divisors of the heads", |_| {
            divides(groups, heads)
        })?;
        check_option("dropout", dropout, "[0, 1)", |p| (0.0..1.0).contains(&p))?;
        rotary.map_or(Ok(()), |rotary| rotary.check(width / heads))?;
        let rows = (heads + 2 * groups) * (width / heads);
        let mut weight = Tensor::empty_in(device, Category::Parameter, [rows, width], DType::F32)?;
        init::xavier_uniform_(&mut weight, key.op("in_proj_weight"), 1.0)?;
        let mut out_proj = Linear::with(device, key.op("out_proj"), [width; 2], bias)?;
        let mut filled = Ok(());
        out_proj.visit(&mut |name, parameter| {
            if name == "bias" {
                filled = parameter.value_mut().fill_(0.0);
            }
        });
        filled?;
        Ok(MultiHeadAttention {
            in_proj_weight: Parameter::new(weight),
            in_proj_bias: bias.then(|| Parameter::full(device, [rows], 0.0)).transpose()?,
            out_proj,
            options,
        })
    }

    /// [`Module::forward`] with a mask of the keys that a query attends to, beside the causal
    /// mask of the options: true where it does, or numbers that are added to the scores.
    ///
    /// # Shapes
    /// `input: [B, T, D] → [B, T, D]`; the mask broadcasts to `[B, heads, T, T]`
    ///
    /// # Errors
    /// `Shape`, `DType`, `OutOfMemory`.
    pub fn forward_masked(&self, pass: &Pass, input: Var, mask: Option<&Tensor>) -> Result<Var> {
        let MultiHeadOptions { heads, groups, .. } = self.options;
        let [bias] = optional([&self.in_proj_bias], pass)?;
        let packed = input.linear(self.in_proj_weight.var(pass)?, bias)?;
        let packed = self.turn(packed, [heads + groups, heads + 2 * groups])?;
        let y = packed.self_attention([heads, groups], mask, self.attention_options(pass))?;
        self.project(pass, y)
    }

    /// Attention of the queries of `input` to keys and values of `memory`; the mask as in
    /// [`MultiHeadAttention::forward_masked`].
    ///
    /// # Shapes
    /// `input: [B, T, D]`, `memory: [B, S, D] → [B, T, D]`; the mask broadcasts to
    /// `[B, heads, T, S]`
    ///
    /// # Errors
    /// `Shape`, `DType`, `OutOfMemory`.
    pub fn attend(
        &self,
        pass: &Pass,
        input: Var,
        memory: Var,
        mask: Option<&Tensor>,
    ) -> Result<Var> {
        let MultiHeadOptions { width, heads, groups, .. } = self.options;
        let rows = [width, 2 * groups * (width / heads)];
        let parts = |parameter: &Parameter| -> Result<Vec<Var>> {
            Ok(parameter.var(pass)?.split_with_sizes(0, &rows)?)
        };
        let mut weights = parts(&self.in_proj_weight)?.into_iter();
        let biases = self.in_proj_bias.as_ref().map(parts).transpose()?;
        let mut biases = biases.unwrap_or_default().into_iter();
        let mut part = |x: Var| x.linear(weights.next().expect("two parts"), biases.next());
        let (q, memory) = (part(input)?, part(memory)?);
        let (q, memory) = (self.turn(q, [heads; 2])?, self.turn(memory, [groups, 2 * groups])?);
        let y = cross_attention(q, memory, [heads, groups], mask, self.attention_options(pass))?;
        self.project(pass, y)
    }

    /// The first `turned` of `heads` parts of each position, rotated by its angles.
    fn turn(&self, x: Var, counts: [usize; 2]) -> Result<Var> {
        match self.options.rotary {
            Some(rotary) => rotary.turn_heads(x, counts),
            None => Ok(x),
        }
    }

    fn attention_options(&self, pass: &Pass) -> AttentionOptions {
        let MultiHeadOptions { causal, dropout: probability, .. } = self.options;
        let drops = pass.is_training() && probability > 0.0;
        let first_sample = pass.first_sample();
        let dropout =
            drops.then(|| AttentionDropout { key: pass.draw(), probability, first_sample });
        AttentionOptions { causal, dropout, ..Default::default() }
    }

    fn project(&self, pass: &Pass, y: Var) -> Result<Var> {
        forward_in(pass, "out_proj", &self.out_proj, y)
    }
}

/// The attention mask of padded sequences: true where `padding` is false, for all heads and
/// queries.
///
/// # Shapes
/// `padding: [B, S]` of truth values `→ [B, 1, 1, S]`
///
/// # Errors
/// `Shape`, `OutOfMemory`.
pub fn key_padding_mask(padding: &Tensor) -> Result<Tensor> {
    let &[batch, len] = &**padding.shape() else {
        let (left, right) = (*padding.shape(), Shape::new(&[0, 0]));
        return Err(TensorError::Shape { op: "key_padding_mask", left, right }.into());
    };
    Ok(padding.logical_not()?.reshape([batch, 1, 1, len])?)
}

parameters!(MultiHeadAttention { in_proj_weight, in_proj_bias, out_proj });

impl Module for MultiHeadAttention {
    /// # Shapes
    /// `input: [B, T, D] → [B, T, D]`
    fn forward(&self, pass: &Pass, input: Var) -> Result<Var> {
        self.forward_masked(pass, input, None)
    }
}
