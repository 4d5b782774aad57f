//! Text from a model: one token after the other, each from the tokens before.

mod sampling;

use std::collections::BTreeMap;
use std::ops::ControlFlow;

use lowtide_nn::NnError;
use lowtide_tensor::{DType, Device, RandomKey, Tensor};

use crate::decoder::{Decoder, KeyValueCache};
use crate::error::Result;

/// Options of [`Decoder::generate`].
#[derive(Clone, Debug, PartialEq)]
pub struct GenerateOptions {
    /// Maximum number of new tokens.
    pub len_max: usize,
    /// The rule that chooses each token.
    pub sampling: Sampling,
    /// Tokens that end a sequence. The end token is part of the sequence.
    pub stop_tokens: Vec<i64>,
}

/// A rule that chooses each token.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Sampling {
    /// The most likely token; of equally likely tokens, the first.
    Greedy,
    /// A random token, with the probabilities `softmax(logits / temperature)` of the allowed
    /// tokens.
    Random {
        /// The key of the random choices. Equal keys give equal tokens.
        key: RandomKey,
        /// Above 0: near 0 the choice is greedy, at 1 the probabilities are the model's own.
        temperature: f64,
        /// Number of the most likely tokens that are allowed; all if absent.
        top_k: Option<usize>,
        /// Share of the probability: of these tokens, the fewest most likely tokens that reach this
        /// share are allowed.
        top_p: f64,
    },
}

impl GenerateOptions {
    /// Greedy, up to `len_max` tokens.
    pub fn greedy(len_max: usize) -> Self {
        GenerateOptions { len_max, sampling: Sampling::Greedy, stop_tokens: Vec::new() }
    }

    pub(crate) fn check(&self) -> Result<()> {
        let Sampling::Random { temperature, top_k, top_p, .. } = self.sampling else {
            return Ok(());
        };
        let check = |name, value: f64, range, is_in: bool| {
            if is_in { Ok(()) } else { Err(NnError::Option { name, value, range }) }
        };
        let is_positive = temperature > 0.0 && temperature.is_finite();
        check("temperature", temperature, "(0, ∞)", is_positive)?;
        check("top_k", 0.0, "[1, ∞)", top_k != Some(0))?;
        Ok(check("top_p", top_p, "(0, 1]", top_p > 0.0 && top_p <= 1.0)?)
    }
}

impl Decoder {
    /// The tokens that the model adds to each of `prompts`, with a [cache](Decoder::cache) of keys
    /// and values. Prompts of one length run as a batch, other prompts one after the other. Apart
    /// from rounding, the text of a prompt does not depend on other prompts.
    ///
    /// # Errors
    /// `Option` for a prompt without tokens, for options out of their ranges, and for more
    /// positions than the model has learned; `ValueUnavailable` on a simulated device; the errors
    /// of [`Decoder::logits`].
    pub fn generate(
        &self,
        device: &Device,
        prompts: &[Vec<i64>],
        options: &GenerateOptions,
    ) -> Result<Vec<Vec<i64>>> {
        self.generate_with(device, prompts, options, |_, _| ControlFlow::Continue(()))
    }

    /// [`Decoder::generate`] that calls `each` with the index of a prompt and a token as soon as
    /// the token is chosen. If `each` breaks off, the result is the text until then.
    ///
    /// # Errors
    /// The errors of [`Decoder::generate`].
    pub fn generate_with(
        &self,
        device: &Device,
        prompts: &[Vec<i64>],
        options: &GenerateOptions,
        mut each: impl FnMut(usize, i64) -> ControlFlow<()>,
    ) -> Result<Vec<Vec<i64>>> {
        options.check()?;
        let mut of_length: BTreeMap<usize, Vec<usize>> = BTreeMap::new();
        for (index, prompt) in prompts.iter().enumerate() {
            of_length.entry(prompt.len()).or_default().push(index);
        }
        if of_length.is_empty() || of_length.contains_key(&0) {
            let (name, range) = ("prompts", "prompts of at least one token");
            return Err(NnError::Option { name, value: 0.0, range }.into());
        }
        let mut found = vec![Vec::new(); prompts.len()];
        for indices in of_length.values() {
            let mut rows: Vec<Row> = indices
                .iter()
                .map(|&index| Row { index, prompt: &prompts[index], added: Vec::new() })
                .collect();
            let flow = self.extend_rows(device, &mut rows, options, &mut each)?;
            rows.into_iter().for_each(|row| found[row.index] = row.added);
            if flow.is_break() {
                break;
            }
        }
        Ok(found)
    }

    /// Does on a simulated device what [`Decoder::generate`] does for a prompt of `prompt_len`
    /// tokens, to measure its memory: reads the prompt, and then the last input of `len_max` new
    /// tokens. The inputs between them see fewer positions.
    ///
    /// # Errors
    /// `Option` for a prompt without tokens, and for more positions than the model has learned;
    /// the errors of [`Decoder::logits`].
    pub fn rehearse_generation(
        &self,
        device: &Device,
        prompt_len: usize,
        len_max: usize,
    ) -> Result<()> {
        let capacity = cache_capacity(prompt_len, len_max);
        let mut cache = self.cache(1, capacity)?;
        let prompt = vec![0; prompt_len];
        logits(self, device, &mut cache, [1, prompt_len], &prompt)?.to_dtype(DType::F64)?;
        if capacity > prompt_len {
            cache.skip_to_last();
            logits(self, device, &mut cache, [1, 1], &[0])?.to_dtype(DType::F64)?;
        }
        Ok(())
    }

    /// Extends prompts of one length.
    fn extend_rows(
        &self,
        device: &Device,
        rows: &mut [Row<'_>],
        options: &GenerateOptions,
        each: &mut Each<'_>,
    ) -> Result<ControlFlow<()>> {
        let capacity = cache_capacity(rows[0].prompt.len(), options.len_max);
        let (count, mut cache) = (rows.len(), self.cache(rows.len(), capacity)?);
        go_on(rows, options, each, |tokens| {
            logits(self, device, &mut cache, [count, tokens.len() / count], tokens)
        })
    }
}

/// Number of positions in the cache of a prompt with new tokens. The last token is never an input.
fn cache_capacity(prompt_len: usize, len_max: usize) -> usize {
    (prompt_len + len_max).saturating_sub(1).max(prompt_len)
}

/// The logits of the tokens after `tokens`, which have this shape.
fn logits(
    model: &Decoder,
    device: &Device,
    cache: &mut KeyValueCache,
    shape: [usize; 2],
    tokens: &[i64],
) -> Result<Tensor> {
    let tokens = Tensor::from_slice(device, shape, tokens)?;
    Ok(model.extend(cache, &tokens)?)
}

/// The function that is called for each token, with the index of its prompt and the token.
pub(crate) type Each<'a> = dyn FnMut(usize, i64) -> ControlFlow<()> + 'a;

/// A prompt, and the tokens that were added to it.
pub(crate) struct Row<'a> {
    pub(crate) index: usize,
    pub(crate) prompt: &'a [i64],
    pub(crate) added: Vec<i64>,
}

/// Adds tokens to rows whose prompts have one length. `read` gets the new tokens of all rows, first
/// the prompts and then one token of each row, and returns the logits of the next tokens, `[B, V]`.
pub(crate) fn go_on(
    rows: &mut [Row<'_>],
    options: &GenerateOptions,
    each: &mut Each<'_>,
    mut read: impl FnMut(&[i64]) -> Result<Tensor>,
) -> Result<ControlFlow<()>> {
    let is_over =
        |row: &Row<'_>| row.added.last().is_some_and(|token| options.stop_tokens.contains(token));
    let mut next: Vec<i64> = rows.iter().flat_map(|row| row.prompt).copied().collect();
    for step in 0..options.len_max {
        let logits = read(&next)?.to_dtype(DType::F64)?.to_vec::<f64>()?;
        let vocabulary = logits.len() / rows.len();
        next.clear();
        for (row, logits) in rows.iter_mut().zip(logits.chunks(vocabulary)) {
            let place = [step as u64, row.index as u64];
            let token = sampling::choose(logits, options.sampling, place) as i64;
            next.push(token);
            if is_over(row) {
                continue;
            }
            row.added.push(token);
            if each(row.index, token).is_break() {
                return Ok(ControlFlow::Break(()));
            }
        }
        if rows.iter().all(is_over) {
            break;
        }
    }
    Ok(ControlFlow::Continue(()))
}
