//! Learned numbers that are added to attention scores, by the distance between query and key.
//!
//! Raffel et al., "Exploring the limits of transfer learning with a unified text-to-text
//! transformer" (2020): T5.
//!
//! `H` heads, `T` queries, `S` keys.

use lowtide_allocator::Category;
use lowtide_autograd::{Pass, Var};
use lowtide_tensor::{DType, Device, RandomKey, Tensor};

use crate::checks::check_option;
use crate::error::Result;
use crate::node::parameters;
use crate::parameter::Parameter;

/// Sides of a query on which distances are told apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RelativeSides {
    /// Both sides, with half of the buckets each: for an encoder.
    Both,
    /// Keys before the query. All keys after the query share the bucket of distance 0: for a
    /// decoder, which masks these keys.
    Before,
}

/// Options of a [`RelativePositionBias`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RelativePositionOptions {
    /// Number of attention heads.
    pub heads: usize,
    /// Number of buckets, each with a number for each head. In the first half of a side's buckets,
    /// each bucket holds one distance: 0, 1, and so on. In the second half, each bucket holds a
    /// range of distances, and ranges grow with the distance.
    pub buckets: usize,
    /// From this distance on, all keys of a side share the last bucket of the side.
    pub distance_max: usize,
    /// Sides of a query on which distances are told apart.
    pub sides: RelativeSides,
}

impl RelativePositionOptions {
    /// T5's 32 buckets for distances up to 128.
    pub fn new(heads: usize, sides: RelativeSides) -> Self {
        RelativePositionOptions { heads, buckets: 32, distance_max: 128, sides }
    }

    /// The bucket of a query at position `query` and a key at position `key`.
    fn bucket(&self, query: usize, key: usize) -> usize {
        let after = key.saturating_sub(query);
        let (side, first, distance) = match self.sides {
            RelativeSides::Before => (self.buckets, 0, query.saturating_sub(key)),
            RelativeSides::Both if after > 0 => (self.buckets / 2, self.buckets / 2, after),
            RelativeSides::Both => (self.buckets / 2, 0, query.saturating_sub(key)),
        };
        let exact = side / 2;
        if distance < exact {
            return first + distance;
        }
        // Computed in f32, as in T5: the rounding decides the bucket of a distance between two
        // ranges.
        let growth = libm::logf(distance as f32 / exact as f32);
        let growth_max = libm::log(self.distance_max as f64 / exact as f64) as f32;
        let range = (growth / growth_max * (side - exact) as f32) as usize;
        first + (exact + range).min(side - 1)
    }
}

/// A table of numbers that are added to attention scores, one number for each bucket of distances
/// and each head. `weight` is `[buckets, H]`, T5's `relative_attention_bias`.
///
/// ```
/// use lowtide_autograd::Pass;
/// use lowtide_nn::{RelativePositionBias, RelativePositionOptions, RelativeSides};
/// use lowtide_tensor::{CpuOptions, Device, RandomKey};
///
/// let device = Device::cpu(CpuOptions::default())?;
/// let options = RelativePositionOptions::new(2, RelativeSides::Both);
/// let layer = RelativePositionBias::new(&device, RandomKey::new(0), options)?;
/// let (pass, scores) = (Pass::eval(), [3, 5]);
/// assert_eq!(layer.bias(&pass, scores)?.shape()[..], [1, 2, 3, 5]);
/// # Ok::<(), lowtide_nn::NnError>(())
/// ```
#[derive(Clone, Debug)]
pub struct RelativePositionBias {
    weight: Parameter,
    options: RelativePositionOptions,
}

impl RelativePositionBias {
    /// A table from the standard normal distribution.
    ///
    /// # Errors
    /// `Option` unless a side has at least two buckets and the largest distance is above every
    /// distance with a bucket of its own; `OutOfMemory`.
    pub fn new(device: &Device, key: RandomKey, options: RelativePositionOptions) -> Result<Self> {
        let RelativePositionOptions { heads, buckets, distance_max, sides } = options;
        let side = if sides == RelativeSides::Both { buckets / 2 } else { buckets };
        let is_whole = sides == RelativeSides::Before || buckets.is_multiple_of(2);
        check_option("buckets", buckets as f64, "two or more for each side", |_| {
            is_whole && side >= 2
        })?;
        check_option("distance_max", distance_max as f64, "above half of a side's", |_| {
            distance_max > side / 2
        })?;
        let mut weight =
            Tensor::empty_in(device, Category::Parameter, [buckets, heads], DType::F32)?;
        weight.normal_(key.op("weight"), 0.0, 1.0)?;
        Ok(RelativePositionBias { weight: Parameter::new(weight), options })
    }

    /// The numbers to add to the scores of `queries` and `keys`, both counted from position 0.
    ///
    /// # Shapes
    /// `[1, H, T, S]`
    ///
    /// # Errors
    /// `Consumed` after backward, `OutOfMemory`.
    pub fn bias(&self, pass: &Pass, [queries, keys]: [usize; 2]) -> Result<Var> {
        let places = (0..queries).flat_map(|query| (0..keys).map(move |key| (query, key)));
        let places: Vec<i64> =
            places.map(|(query, key)| self.options.bucket(query, key) as i64).collect();
        let device = self.weight.value().device();
        let places = Tensor::from_slice(device, [queries, keys], &places)?;
        // [T, S, H]
        let bias = self.weight.var(pass)?.embedding(&places)?;
        Ok(bias.permute(&[2, 0, 1])?.unsqueeze(0)?)
    }
}

parameters!(RelativePositionBias { weight });
