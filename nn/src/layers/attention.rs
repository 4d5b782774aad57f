//! Attention of a sequence to itself or to another sequence.
//!
//! Vaswani et al., "Attention is all you need" (2017); groups of queries that share keys and
//! values: Ainslie et al., "GQA: training generalized multi-query transformer models from
//! multi-head checkpoints" (2023).

use lowtide_allocator::Category;
use lowtide_autograd::{Pass, Var};
use lowtide_tensor::{
    AttentionDropout, AttentionOptions, Causal, DType, Device, RandomKey, Tensor, TensorError,
};

use crate::checks::check_option;
use crate::error::Result;
use crate::init;
use crate::layers::attention_mask::{with_causal, with_open_keys};
use crate::layers::cross_attention::cross_attention;
use crate::layers::dropout::Dropout;
use crate::layers::linear::Linear;
use crate::layers::norm::optional;
use crate::layers::rotary::RotaryEmbedding;
use crate::module::{Module, Parameters, forward_in};
use crate::node::parameters;
use crate::parallel::features::branch::{Branch, Shared};
use crate::parameter::Parameter;

/// Options of a [`MultiHeadAttention`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct MultiHeadOptions {
    /// Number of features of each position; a multiple of the heads.
    pub width: usize,
    /// Number of query heads.
    pub heads: usize,
    /// Number of heads of keys and values, a divisor of `heads`; by default equal to `heads`.
    pub groups: usize,
    /// The causal mask: positions that a position does not attend to.
    pub causal: Causal,
    /// Dropout probability of the attention weights.
    pub dropout: f64,
    /// Rotates the queries and keys of each head by their positions, both counted from 0. Backward
    /// keeps only two more tables, of `T · R / 2` numbers each.
    pub rotary: Option<RotaryEmbedding>,
    /// True if the linear layers have biases.
    pub bias: bool,
    /// True if every query also attends to one learned key and value, `add_bias_kv`.
    pub learned_key: bool,
    /// True if every query also attends to one key and value of zeros, `add_zero_attn`.
    pub zero_key: bool,
}

impl MultiHeadOptions {
    /// Options with no causal mask, no grouped heads, no dropout, no rotation and no added keys.
    pub fn new(width: usize, heads: usize) -> Self {
        MultiHeadOptions {
            width,
            heads,
            groups: heads,
            causal: Causal::No,
            dropout: 0.0,
            rotary: None,
            bias: true,
            learned_key: false,
            zero_key: false,
        }
    }
}

/// The keys that a query does not attend to.
struct Masking {
    mask: Option<Tensor>,
    causal: Causal,
}

/// The keys and values that a sequence attends to.
pub struct AttentionMemory {
    keys: Var,
    /// The sequence of the values, if it is not the sequence of the keys.
    values: Option<Var>,
}

impl AttentionMemory {
    /// Keys and values from two sequences, both `[B, S, D]`.
    pub fn parts(keys: Var, values: Var) -> Self {
        AttentionMemory { keys, values: Some(values) }
    }
}

impl From<Var> for AttentionMemory {
    /// Keys and values from one sequence.
    fn from(keys: Var) -> Self {
        AttentionMemory { keys, values: None }
    }
}

/// Attention with several heads, `torch.nn.MultiheadAttention` with `batch_first=True`.
/// [`Module::forward`] attends to the sequence itself, [`MultiHeadAttention::attend`] to another
/// sequence. The rows of `in_proj_weight` belong to all queries, then all keys, then all values,
/// also with fewer groups than heads.
#[derive(Clone, Debug)]
pub struct MultiHeadAttention {
    in_proj_weight: Parameter,
    in_proj_bias: Option<Parameter>,
    bias_k: Option<Parameter>,
    bias_v: Option<Parameter>,
    out_proj: Linear,
    options: MultiHeadOptions,
}

impl MultiHeadAttention {
    /// A layer with input weights from Glorot's uniform distribution and biases of zero. A learned
    /// key and value are from Glorot's normal distribution.
    ///
    /// # Errors
    /// `Option` unless the groups divide the heads, the heads divide the width, the dropout is in
    /// `[0, 1)` and the rotation fits the width of a head; `OutOfMemory`.
    pub fn new(device: &Device, key: RandomKey, options: MultiHeadOptions) -> Result<Self> {
        let MultiHeadOptions { width, heads, groups, dropout, rotary, bias, .. } = options;
        let learned = options.learned_key;
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
        let learned = |name: &str| -> Result<Option<Parameter>> {
            if !learned {
                return Ok(None);
            }
            let shape = [1, 1, groups * (width / heads)];
            let mut row = Tensor::empty_in(device, Category::Parameter, shape, DType::F32)?;
            init::xavier_normal_(&mut row, key.op(name), 1.0)?;
            Ok(Some(Parameter::new(row)))
        };
        Ok(MultiHeadAttention {
            in_proj_weight: Parameter::new(weight),
            in_proj_bias: bias.then(|| Parameter::full(device, [rows], 0.0)).transpose()?,
            bias_k: learned("bias_k")?,
            bias_v: learned("bias_v")?,
            out_proj,
            options,
        })
    }

    /// [`Module::forward`] with a mask of the keys that a query attends to, in addition to the
    /// causal mask of the options. The mask has truth values, true for attended keys, or numbers
    /// that are added to the scores.
    ///
    /// # Shapes
    /// `input: [B, T, D] → [B, T, D]`; the mask broadcasts to `[B, heads, T, T]`
    ///
    /// # Errors
    /// `Shape`, `DType`, `OutOfMemory`.
    pub fn forward_masked(&self, pass: &Pass, input: Var, mask: Option<&Tensor>) -> Result<Var> {
        let MultiHeadOptions { heads, groups, .. } = self.options;
        if self.added_keys() > 0 {
            return self.attend(pass, input.clone(), input, mask);
        }
        let [bias] = optional([&self.in_proj_bias], pass)?;
        let input = self.out_proj.branch_input(input)?;
        let packed = input.linear(self.in_proj_weight.var(pass)?, bias)?;
        let packed = self.turn(packed, [heads + groups, heads + 2 * groups])?;
        let y = packed.self_attention([heads, groups], mask, self.attention_options(pass))?;
        self.project(pass, y)
    }

    /// Attention of the queries of `input` to the keys and values of `memory`. The mask is like the
    /// mask of [`MultiHeadAttention::forward_masked`].
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
        memory: impl Into<AttentionMemory>,
        mask: Option<&Tensor>,
    ) -> Result<Var> {
        let MultiHeadOptions { heads, groups, .. } = self.options;
        let [q, memory] = self.projected(pass, input, memory.into())?;
        let Masking { mask, causal } = self.mask_of_all_keys([&q, &memory], mask)?;
        let options = AttentionOptions { causal, ..self.attention_options(pass) };
        let y = cross_attention(q, memory, [heads, groups], mask.as_ref(), options)?;
        self.project(pass, y)
    }

    /// [`MultiHeadAttention::attend`] with the attention weights as a second result:
    /// `need_weights`. The weights of the learned key and of the key of zeros are last. The weights
    /// are a tensor of their own, which backward keeps: use this to inspect weights, not to train
    /// on long sequences.
    ///
    /// # Shapes
    /// `input: [B, T, D]`, `memory: [B, S, D] → [B, T, D], [B, heads, T, S]`
    ///
    /// # Errors
    /// `Shape`, `DType`, `OutOfMemory`.
    pub fn attend_with_weights(
        &self,
        pass: &Pass,
        input: Var,
        memory: impl Into<AttentionMemory>,
        mask: Option<&Tensor>,
    ) -> Result<(Var, Var)> {
        let MultiHeadOptions { heads, groups, .. } = self.options;
        let [q, memory] = self.projected(pass, input, memory.into())?;
        let Masking { mask, causal } = self.mask_of_all_keys([&q, &memory], mask)?;
        let (shape, keys) = (*q.shape(), memory.shape()[1]);
        let [batch, queries, width] = [shape[0], shape[1], self.head_width()];
        let mask = with_causal(mask, q.value().device(), [queries, keys], causal)?;
        // Repeats the keys and values of a group for each query head of the group.
        let parts = memory.reshape([batch, keys, 2 * groups, width])?.transpose(1, 2)?;
        let of_heads = |first: usize| -> Result<Var> {
            let group = parts.clone().narrow(1, first, groups)?;
            let times = heads / groups;
            Ok(if times == 1 { group } else { group.repeat_interleave(1, times)? })
        };
        let [k, v] = [of_heads(0)?, of_heads(groups)?];
        let q = q.reshape([batch, queries, heads, width])?.transpose(1, 2)?;
        let q = q.mul_scalar(1.0 / (width as f64).sqrt())?;
        let mut scores = q.matmul(k.transpose(2, 3)?)?;
        if let Some(mask) = mask {
            scores = match mask.dtype() {
                DType::Bool => scores.masked_fill(&mask.logical_not()?, f64::NEG_INFINITY)?,
                _ => scores.add(pass.constant(mask))?,
            };
        }
        let weights = scores.softmax(-1)?;
        let dropout = Dropout::new(self.options.dropout)?;
        let weights = self.out_proj.within_branch(pass, || dropout.forward(pass, weights))?;
        let y = weights.clone().matmul(v)?.transpose(1, 2)?.reshape(shape)?;
        Ok((self.project(pass, y)?, weights))
    }

    /// Queries `[B, T, heads · D]`, and keys and values side by side. The keys and values that the
    /// layer adds are last.
    fn projected(&self, pass: &Pass, input: Var, memory: AttentionMemory) -> Result<[Var; 2]> {
        let MultiHeadOptions { heads, groups, zero_key, .. } = self.options;
        let head_width = self.head_width();
        let row = groups * head_width;
        let AttentionMemory { keys, values } = memory;
        let (left, right) = match &values {
            None => (*input.shape(), *keys.shape()),
            Some(values) => (*keys.shape(), *values.shape()),
        };
        if [left.len(), right.len(), input.shape().len()] != [3; 3] || left[0] != right[0] {
            return Err(TensorError::Shape { op: "attention", left, right }.into());
        }
        let own = heads * head_width;
        let sizes = if values.is_some() { vec![own, row, row] } else { vec![own, 2 * row] };
        let given = |x: Var| self.out_proj.branch_input(x);
        let (input, keys) = (given(input)?, given(keys)?);
        let values = values.map(given).transpose()?;
        let parts = |parameter: &Parameter| -> Result<Vec<Var>> {
            Ok(parameter.var(pass)?.split_with_sizes(0, &sizes)?)
        };
        let mut weights = parts(&self.in_proj_weight)?.into_iter();
        let biases = self.in_proj_bias.as_ref().map(parts).transpose()?;
        let mut biases = biases.unwrap_or_default().into_iter();
        let mut part = |x: Var| x.linear(weights.next().expect("a part for each"), biases.next());
        let q = part(input)?;
        let memory = match values {
            None => part(keys)?,
            Some(values) => Var::cat(vec![part(keys)?, part(values)?], -1)?,
        };
        let (q, memory) = (self.turn(q, [heads; 2])?, self.turn(memory, [groups, 2 * groups])?);
        if self.added_keys() == 0 {
            return Ok([q, memory]);
        }
        let [batch, both] = [memory.shape()[0], memory.shape()[2]];
        let dtype = memory.value().dtype();
        let mut rows = vec![memory.clone()];
        if let [Some(k), Some(v)] = optional([&self.bias_k, &self.bias_v], pass)? {
            let learned = Var::cat(vec![k, v], 2)?.expand([batch, 1, both])?;
            let is_same = learned.value().dtype() == dtype;
            rows.push(if is_same { learned } else { learned.to_dtype(dtype)? });
        }
        if zero_key {
            let device = memory.value().device();
            rows.push(pass.constant(Tensor::zeros(device, [batch, 1, both], dtype)?));
        }
        Ok([q, Var::cat(rows, 1)?])
    }

    /// Number of features of a head.
    fn head_width(&self) -> usize {
        let rows = self.in_proj_weight.value().shape()[0];
        rows / (self.options.heads + 2 * self.options.groups)
    }

    /// Shows the heads, by groups, to a visitor. With a learned key and value the layer stays
    /// whole.
    fn branches(&mut self, visitor: &mut dyn FnMut(Shared<'_>)) {
        let (width, is_learned) = (self.head_width(), self.bias_k.is_some());
        let MultiHeadOptions { heads, groups, .. } = self.options;
        let of_group = heads / groups * width;
        let keys = [0, 1].map(|part| ((heads + part * groups) * width, width));
        let runs = [(0, of_group), keys[0], keys[1]];
        let branch = Branch::new(groups, &mut self.out_proj, of_group)
            .with_rows(&self.in_proj_weight, &runs)
            .with_optional_rows(self.in_proj_bias.as_ref(), &runs)
            .resizing(|len| {
                self.options.heads = len * (heads / groups);
                self.options.groups = len;
            });
        visitor(Shared::Branch(if is_learned { branch.whole() } else { branch }));
    }

    /// Number of keys that the layer adds to the keys of the memory.
    fn added_keys(&self) -> usize {
        usize::from(self.bias_k.is_some()) + usize::from(self.options.zero_key)
    }

    /// The masking of all keys. If the layer adds keys, its mask combines the causal mask with
    /// `mask` and is open for the added keys. Otherwise it is `mask` and the causal option.
    fn mask_of_all_keys(&self, [q, memory]: [&Var; 2], mask: Option<&Tensor>) -> Result<Masking> {
        let (causal, added) = (self.options.causal, self.added_keys());
        if added == 0 {
            return Ok(Masking { mask: mask.cloned(), causal });
        }
        let keys = memory.shape()[1] - added;
        let sizes = [q.shape()[1], keys];
        let mask = with_causal(mask.cloned(), q.value().device(), sizes, causal)?;
        let mask = mask.map(|mask| with_open_keys(&mask, keys, added)).transpose()?;
        Ok(Masking { mask, causal: Causal::No })
    }

    /// Rotates the first `turned` of `heads` parts of each position by the angles of the position.
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
        let key = || self.out_proj.within_branch(pass, || pass.draw());
        let dropout = drops.then(|| AttentionDropout { key: key(), probability, first_sample });
        AttentionOptions { causal, dropout, ..Default::default() }
    }

    fn project(&self, pass: &Pass, y: Var) -> Result<Var> {
        forward_in(pass, "out_proj", &self.out_proj, y)
    }
}

parameters!(
    MultiHeadAttention { in_proj_weight, in_proj_bias, bias_k, bias_v, out_proj },
    shared by branches
);

impl Module for MultiHeadAttention {
    /// # Shapes
    /// `input: [B, T, D] → [B, T, D]`
    fn forward(&self, pass: &Pass, input: Var) -> Result<Var> {
        self.forward_masked(pass, input, None)
    }
}
