//! Rotary position embeddings: queries and keys are rotated by their positions, so that a score
//! depends on the distance between two positions. Nothing is learned.
//!
//! Su et al., "RoFormer: enhanced transformer with rotary position embedding" (2021).
//!
//! `B` batch, `T` positions, `H` heads, `D` features of a head, `R` rotated features of a head.

use lowtide_autograd::{Pass, Var};
use lowtide_tensor::{DType, Device, Tensor};

pub use lowtide_tensor::RotaryPairs;

use crate::checks::check_option;
use crate::error::Result;
use crate::module::Module;
use crate::node::parameters;

/// Rotates pair `i` of a row at position `t`, counted from 0, by the angle `t · base^(-2i / R)`. An
/// attention layer applies the rotation to each head. As a layer of its own it rotates the rows of
/// its input.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RotaryEmbedding {
    /// The base of the angles. A larger base makes later pairs rotate more slowly.
    pub base: f64,
    /// The convention that pairs the features of a head. Weights trained under one convention do
    /// not work under the other.
    pub pairs: RotaryPairs,
    /// Number of rotated features at the start of a head; all features if absent.
    pub turned: Option<usize>,
    /// The rule that scales the angles down for longer sequences, if any.
    pub scaling: Option<RotaryScaling>,
}

/// Rules that scale the angles down, for sequences longer than the sequences in training.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub enum RotaryScaling {
    /// Divides all angles by `factor`, as if positions were closer. Chen et al., "Extending context
    /// window of large language models via positional interpolation" (2023).
    Linear {
        /// The divisor of the angles.
        factor: f64,
    },
    /// The rule of Llama 3.1. A pair that makes at most `turns[0]` turns in `context` positions has
    /// its angles divided by `factor`. A pair that makes at least `turns[1]` turns keeps its
    /// angles. In between, the two are mixed linearly in the number of turns.
    ByTurns {
        /// The divisor of the angles of slow pairs.
        factor: f64,
        /// Length of the sequences of the original training.
        context: usize,
        /// Limits of turns: a pair with at most the first number is slow, a pair with at least the
        /// second number is fast.
        turns: [f64; 2],
    },
    /// YaRN: like [`RotaryScaling::ByTurns`], but between fast and slow pairs the mix is linear in
    /// the index of the pair, with the limits rounded to whole indices. Cosines and sines are
    /// multiplied by `attention`. Peng et al., "YaRN: efficient context window extension of large
    /// language models" (2023).
    Yarn {
        /// The divisor of the angles of slow pairs.
        factor: f64,
        /// Length of the sequences of the original training.
        context: usize,
        /// Limits of turns: a pair with at most the first number is slow, a pair with at least the
        /// second number is fast. 1 and 32 in the paper.
        turns: [f64; 2],
        /// The factor of cosines and sines; `0.1 ln(factor) + 1` in the paper.
        attention: f64,
    },
}

impl RotaryScaling {
    fn factor(&self) -> f64 {
        match *self {
            RotaryScaling::Linear { factor }
            | RotaryScaling::ByTurns { factor, .. }
            | RotaryScaling::Yarn { factor, .. } => factor,
        }
    }

    fn check(&self) -> Result<()> {
        let is_positive = |x: f64| x > 0.0 && x.is_finite();
        check_option("factor", self.factor(), "above 0", is_positive)?;
        if let &(RotaryScaling::ByTurns { turns: [slow, fast], .. }
        | RotaryScaling::Yarn { turns: [slow, fast], .. }) = self
        {
            check_option("turns", fast, "above the turns of slow pairs", |_| fast > slow)?;
        }
        if let &RotaryScaling::Yarn { attention, turns: [slow, _], .. } = self {
            check_option("attention", attention, "above 0", is_positive)?;
            check_option("turns", slow, "above 0", is_positive)?;
        }
        Ok(())
    }

    /// The factor of cosines and sines.
    pub fn attention(&self) -> f64 {
        match *self {
            RotaryScaling::Yarn { attention, .. } => attention,
            RotaryScaling::Linear { .. } | RotaryScaling::ByTurns { .. } => 1.0,
        }
    }

    /// Scales `rates`, the f64 angles of position 1.
    fn scaled(&self, rates: &Tensor, base: f64) -> Result<Tensor> {
        let factor = self.factor();
        let (context, [slow, fast]) = match *self {
            RotaryScaling::Linear { .. } => return Ok(rates.mul_scalar(1.0 / factor)?),
            RotaryScaling::ByTurns { context, turns, .. } => (context, turns),
            RotaryScaling::Yarn { context, turns, .. } => {
                let scales = yarn_scales(factor, context, turns, rates.element_count(), base);
                let scales = Tensor::from_slice(rates.device(), *rates.shape(), &scales)?;
                return Ok(rates.mul(&scales)?);
            }
        };
        let turns = rates.mul_scalar(context as f64 / std::f64::consts::TAU)?;
        let kept = turns.add_scalar(-slow)?.mul_scalar(1.0 / (fast - slow))?.clamp(0.0, 1.0)?;
        let scales = kept.mul_scalar(1.0 - 1.0 / factor)?.add_scalar(1.0 / factor)?;
        Ok(rates.mul(&scales)?)
    }
}

/// YaRN's factor for the angle of each of `pairs` pairs.
fn yarn_scales(factor: f64, context: usize, turns: [f64; 2], pairs: usize, base: f64) -> Vec<f64> {
    let dim = 2.0 * pairs as f64;
    // The fractional index of the pair that makes this number of turns in the context.
    let pair = |turns: f64| {
        let positions = context as f64 / (turns * std::f64::consts::TAU);
        dim * libm::log(positions) / (2.0 * libm::log(base))
    };
    let low = libm::floor(pair(turns[1])).max(0.0);
    let high = libm::ceil(pair(turns[0])).min(dim - 1.0);
    // If both limits are the same pair, the mix jumps at this pair.
    let high = if high == low { high + 0.001 } else { high };
    let scale = |pair: usize| {
        let divided = ((pair as f64 - low) / (high - low)).clamp(0.0, 1.0);
        divided / factor + (1.0 - divided)
    };
    (0..pairs).map(scale).collect()
}

impl RotaryEmbedding {
    /// A rotation of all features of a head, with a base of 10,000.
    pub fn new(pairs: RotaryPairs) -> Self {
        RotaryEmbedding { base: 10_000.0, pairs, turned: None, scaling: None }
    }

    /// `Ok` if heads of `width` features can be rotated.
    ///
    /// # Errors
    /// `Option` unless the base and the factor of the scaling are positive, and the number of
    /// rotated features is even and at most `width`.
    pub fn check(&self, width: usize) -> Result<()> {
        check_option("base", self.base, "above 0", |base| base > 0.0 && base.is_finite())?;
        self.scaling.map_or(Ok(()), |scaling| scaling.check())?;
        let turned = self.turned.unwrap_or(width);
        check_option("turned", turned as f64, "the even numbers up to the width of a head", |_| {
            turned <= width && turned.is_multiple_of(2)
        })
    }

    /// The angle of position 1 for each pair of a head of `width` features, in f64: `[1, R / 2]`.
    ///
    /// # Errors
    /// The errors of [`RotaryEmbedding::check`], `OutOfMemory`.
    pub fn rates(&self, device: &Device, width: usize) -> Result<Tensor> {
        self.check(width)?;
        let turned = self.turned.unwrap_or(width);
        let half = turned / 2;
        let mut rates = Tensor::arange(device, 0.0..half as f64, 1.0, DType::F64)?;
        rates.mul_scalar_(-2.0 * self.base.ln() / turned.max(1) as f64)?;
        let rates = rates.exp()?.reshape([1, half])?;
        match self.scaling {
            Some(scaling) => scaling.scaled(&rates, self.base),
            None => Ok(rates),
        }
    }

    /// The cosines and sines of positions `0..len` for heads of `width` features, computed in f64
    /// and rounded to `dtype`.
    ///
    /// # Errors
    /// The errors of [`RotaryEmbedding::check`], `DType`, `OutOfMemory`.
    pub fn tables(
        &self,
        device: &Device,
        [len, width]: [usize; 2],
        dtype: DType,
    ) -> Result<RotaryTables> {
        let positions = Tensor::arange(device, 0.0..len as f64, 1.0, DType::F64)?;
        let rates = self.rates(device, width)?;
        let angles = positions.reshape([len, 1])?.mul(&rates)?;
        let (mut cos, mut sin) = (angles.cos()?, angles.sin()?);
        let attention = self.scaling.map_or(1.0, |scaling| scaling.attention());
        if attention != 1.0 {
            cos.mul_scalar_(attention)?;
            sin.mul_scalar_(attention)?;
        }
        let (cos, sin) = (cos.to_dtype(dtype)?, sin.to_dtype(dtype)?);
        Ok(RotaryTables { cos, sin, pairs: self.pairs })
    }

    /// Rotates the first `turned` of `heads` parts of each position.
    pub(crate) fn turn_heads(&self, x: Var, counts: [usize; 2]) -> Result<Var> {
        let shape = *x.shape();
        // Tensors of other ranks fail in the operation, whose error names both shapes.
        let len = shape.get(1).copied().unwrap_or_default();
        let width = shape.last().copied().unwrap_or_default() / counts[1].max(1);
        let value = x.value();
        self.tables(value.device(), [len, width], value.dtype())?.turn_heads(x, counts)
    }
}

parameters!(RotaryEmbedding {});

impl Module for RotaryEmbedding {
    /// # Shapes
    /// `input: [.., T, D] → [.., T, D]`
    fn forward(&self, _: &Pass, input: Var) -> Result<Var> {
        let shape = *input.shape();
        let width = shape.last().copied().unwrap_or_default();
        let len = shape.len().checked_sub(2).map_or(0, |axis| shape[axis]);
        let value = input.value();
        self.tables(value.device(), [len, width], value.dtype())?.turn(input)
    }
}

/// The cosines and sines of some positions, which all layers of a model can share in a pass.
#[derive(Clone, Debug)]
pub struct RotaryTables {
    cos: Tensor,
    sin: Tensor,
    pairs: RotaryPairs,
}

impl RotaryTables {
    /// The tables of `len` positions from `start` on, for positions that continue a sequence.
    ///
    /// # Errors
    /// `Index` for a position beyond these tables.
    pub fn rows(&self, start: usize, len: usize) -> Result<Self> {
        let rows = |table: &Tensor| table.narrow(0, start, len);
        Ok(RotaryTables { cos: rows(&self.cos)?, sin: rows(&self.sin)?, pairs: self.pairs })
    }

    /// Rotates every row by the angles of its position.
    ///
    /// # Shapes
    /// `x: [.., T, D] → [.., T, D]`, with T and D of the tables
    ///
    /// # Errors
    /// `Shape`, `DType`, `OutOfMemory`.
    pub fn turn(&self, x: Var) -> Result<Var> {
        Ok(x.rotary(&self.cos, &self.sin, self.pairs)?)
    }

    /// Rotates the first `turned` of `heads` parts of each position by the angles of the position.
    /// Use this for queries and keys in a tensor that also holds values.
    ///
    /// # Shapes
    /// `x: [B, T, heads · D] → [B, T, heads · D]`, with T and D of the tables
    ///
    /// # Errors
    /// `Shape`, `DType`, `OutOfMemory`.
    pub fn turn_heads(&self, x: Var, [turned, heads]: [usize; 2]) -> Result<Var> {
        Ok(x.rotary_heads(&self.cos, &self.sin, self.pairs, [turned, heads])?)
    }
}
