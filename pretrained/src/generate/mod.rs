//! Text from a model: one token after the other, each from those before.

mod sampling;

use lowtide_nn::NnError;
use lowtide_tensor::{DType, Device, RandomKey, Tensor};

use crate::decoder::Decoder;
use crate::error::Result;

/// How [`Decoder::generate`] goes on.
#[derive(Clone, Debug, PartialEq)]
pub struct GenerateOptions {
    /// New tokens at most.
    pub len_max: usize,
    /// How a token is chosen.
    pub sampling: Sampling,
    /// Tokens that end a sequence. They are part of it.
    pub stop_tokens: Vec<i64>,
}

/// How a token is chosen.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Sampling {
    /// The most likely one; of several the first.
    Greedy,
    /// At random, by `softmax(logits / temperature)` of those that are left.
    Random {
        /// Of the choices: the same key, the same tokens.
        key: RandomKey,
        /// Above 0: near 0 the choice is greedy, at 1 the model's own.
        temperature: f64,
        /// How many of the most likely tokens are left; all if absent.
        top_k: Option<usize>,
        /// Of those, the fewest most likely ones that are this share of the probability are left.
        top_p: f64,
    },
}

impl GenerateOptions {
    /// Greedy, up to `len_max` tokens.
    pub fn greedy(len_max: usize) -> Self {
        GenerateOptions { len_max, sampling: Sampling::Greedy, stop_tokens: Vec::new() }
    }

    fn check(&self) -> Result<()> {
        let Sampling::Random { temperature, top_k, top_p, .. } = self.sampling else {
            return Ok(());
        };
        let check = |name, value: f64, range, is_in: bool| match is_in {
            true => Ok(()),
            false => Err(NnError::Option { name, value, range }),
        };
        let is_positive = temperature > 0.0 && temperature.is_finite();
        check("temperature", temperature, "(0, ∞)", is_positive)?;
        check("top_k", 0.0, "[1, ∞)", top_k != Some(0))?;
        Ok(check("top_p", top_p, "(0, 1]", top_p > 0.0 && top_p <= 1.0)?)
    }
}

impl Decoder {
    /// The tokens that the model adds to each of `prompts`, which are of one length, with a
    /// [cache](Decoder::cache) of keys and values.
    ///
    /// # Errors
    /// `Option` for prompts without tokens or of several lengths, for options out of their ranges,
    /// and for more positions than the model has learned; `ValueUnavailable` on a simulated
    /// device; those of [`Decoder::logits`].
    pub fn generate(
        &self,
        device: &Device,
        prompts: &[Vec<i64>],
        options: &GenerateOptions,
    ) -> Result<Vec<Vec<i64>>> {
        options.check()?;
        let len = prompts.first().map_or(0, Vec::len);
        if len == 0 || prompts.iter().any(|prompt| prompt.len() != len) {
            let (name, range) = ("prompts", "prompts of one length, of at least one token");
            return Err(NnError::Option { name, value: len as f64, range }.into());
        }
        let mut found = vec![Vec::new(); prompts.len()];
        let is_over = |tokens: &Vec<i64>| {
            tokens.last().is_some_and(|token| options.stop_tokens.contains(token))
        };
        // The last token is never read.
        let capacity = (len + options.len_max).saturating_sub(1).max(len);
        let mut cache = self.cache(prompts.len(), capacity)?;
        let mut next = prompts.concat();
        for step in 0..options.len_max {
            let shape = [prompts.len(), next.len() / prompts.len()];
            let tokens = Tensor::from_slice(device, shape, &next)?;
            let logits = self.extend(&mut cache, &tokens)?.to_dtype(DType::F64)?.to_vec::<f64>()?;
            let rows = logits.chunks(self.shape().vocabulary);
            let chosen = rows.enumerate().map(|(row, logits)| {
                sampling::choose(logits, options.sampling, [step as u64, row as u64]) as i64
            });
            next = chosen.collect();
            for (tokens, &token) in found.iter_mut().zip(&next) {
                if !is_over(tokens) {
                    tokens.push(token);
                }
            }
            if found.iter().all(is_over) {
                break;
            }
        }
        Ok(found)
    }
}
