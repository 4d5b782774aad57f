//! A vocabulary whose rows are split among ranks: tables of tokens, and losses of output layers.

use std::ops::Range;
use std::sync::Arc;

use lowtide_autograd::{Pass, SavedPolicy, Var};
use lowtide_tensor::{DType, Tensor};

use crate::error::{NnError, Result};
use crate::loss::{LinearCrossEntropyOptions, Loss, check_smoothing};
use crate::parallel::features::shard::units_of;
use crate::parallel::features::sum::{Sum, sum_in_place, with_summed_gradient};

/// The rows of a vocabulary on this rank.
#[derive(Clone, Debug)]
pub struct VocabularyShare {
    pub(super) sum: Arc<dyn Sum>,
    pub(super) rank: (usize, usize),
    /// Number of rows of all ranks.
    pub(super) len: usize,
}

/// Largest number of chunks: every chunk adds to the full gradient of the weight.
const CHUNKS_MAX: usize = 8;
/// Smallest number of rows in a chunk: products with fewer rows are slow.
const CHUNK_ROWS_MIN: usize = 16;

impl VocabularyShare {
    /// Number of rows of all ranks.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    fn own(&self) -> Range<usize> {
        units_of(self.rank, self.len)
    }

    /// Converts an index of the vocabulary to an index among the rows of this rank. An index of
    /// another rank's row becomes 0, and the second tensor is true there. An index outside of the
    /// vocabulary becomes one that is out of range here too.
    ///
    /// # Shapes
    /// `index: [..]` of i64 `→ [..]` of i64, `[..]` of bool
    fn own_rows(&self, index: &Tensor) -> Result<(Tensor, Tensor)> {
        let Range { start, end } = self.own();
        let is_before = index.lt_scalar(start as f64)?;
        let is_others = is_before.logical_or(&index.ge_scalar(end as f64)?)?;
        let is_none = index.lt_scalar(0.0)?.logical_or(&index.ge_scalar(self.len as f64)?)?;
        let mut own = index.add_scalar(-(start as f64))?;
        own.masked_fill_(&is_others, 0.0)?;
        own.masked_fill_(&is_none, (end - start) as f64)?;
        Ok((own, is_others))
    }

    /// Looks up rows of the table. `table` holds only the rows of this rank.
    ///
    /// # Shapes
    /// `index: [..]` of i64, `table: [n, D] → [.., D]`
    pub(crate) fn embedding(&self, table: Var, index: &Tensor) -> Result<Var> {
        let (own, is_others) = self.own_rows(index)?;
        let y = table.embedding(&own)?.masked_fill(&is_others.unsqueeze(-1)?, 0.0)?;
        sum_in_place(&*self.sum, &y)?;
        Ok(y)
    }

    /// The logits of all classes.
    ///
    /// # Shapes
    /// `input: [.., D]`, `weight: [n, D] → [.., C]`
    pub(crate) fn logits(&self, input: Var, weight: Var) -> Result<Var> {
        let pass = input.pass().clone();
        let own = with_summed_gradient(&self.sum, input)?.linear(weight, None)?;
        let (device, dtype) = (own.value().device().clone(), own.value().dtype());
        let mut shape = own.shape().to_vec();
        let mut zeros = |len: usize| -> Result<Var> {
            *shape.last_mut().expect("the classes") = len;
            Ok(pass.constant(Tensor::zeros(&device, &shape[..], dtype)?))
        };
        let Range { start, end } = self.own();
        let y = Var::cat(vec![zeros(start)?, own, zeros(self.len - end)?], -1)?;
        sum_in_place(&*self.sum, &y)?;
        Ok(y)
    }

    /// The cross-entropy of rows with their labels. This rank computes the logits of its own
    /// classes in chunks of rows, and recomputes them in backward. Ranks exchange three numbers for
    /// each row: the logarithm of the sum of exponentials, the logit of the label, and the sum of
    /// the logits.
    ///
    /// # Shapes
    /// `input: [.., D]`, `weight: [n, D]`, `labels: [..]` of i64
    pub(crate) fn cross_entropy(
        &self,
        input: Var,
        weight: Var,
        labels: &Tensor,
        options: LinearCrossEntropyOptions,
    ) -> Result<Loss> {
        let LinearCrossEntropyOptions { ignore_index, label_smoothing } = options;
        check_smoothing(label_smoothing)?;
        let pass = input.pass().clone();
        let (rows, width) = (labels.element_count(), *input.shape().last().unwrap_or(&0));
        let input = with_summed_gradient(&self.sum, input.reshape([rows, width])?)?;
        let labels = labels.reshape([rows])?;
        let ignored = labels.eq_scalar(ignore_index as f64)?;
        let mut labels = labels.copied()?;
        labels.masked_fill_(&ignored, 0.0)?;
        let (own_labels, is_others) = self.own_rows(&labels)?;
        let own = numbers_of_rows([input, weight], &own_labels, &is_others)?;

        // [ranks, 3, N]
        let (index, count) = self.rank;
        let like = own.value();
        let mut all = Tensor::zeros(like.device(), [count, 3, rows], like.dtype())?;
        all.select(0, index)?.copy_(like)?;
        self.sum.sum(&mut all)?;
        let number = |at: usize| -> Result<Vec<Var>> {
            let of_rank = |rank: usize| {
                if rank == index {
                    Ok(own.clone().select(0, at)?)
                } else {
                    Ok(pass.constant(all.select(0, rank)?.select(0, at)?))
                }
            };
            (0..count).map(of_rank).collect()
        };
        let total = |terms: Vec<Var>| -> Result<Var> { Ok(Var::stack(terms, 0)?.sum(&[0])?) };
        let logarithm = Var::stack(number(0)?, 0)?.logsumexp(&[0])?;
        let mut loss = logarithm.sub(total(number(1)?)?.mul_scalar(1.0 - label_smoothing)?)?;
        if label_smoothing != 0.0 {
            let mean = total(number(2)?)?.mul_scalar(label_smoothing / self.len as f64)?;
            loss = loss.sub(mean)?;
        }
        let sum = loss.masked_fill(&ignored, 0.0)?.sum_all()?;
        let count = ignored.logical_not()?.to_dtype(sum.value().dtype())?.sum_all()?;
        Ok(Loss { sum, count })
    }
}

/// Three numbers for each row: the logarithm of the sum of exponentials of this rank's logits, the
/// logit of the label (0 if another rank has the label), and the sum of this rank's logits.
///
/// # Shapes
/// `input: [N, D]`, `weight: [n, D]`, `labels: [N] → [3, N]`
fn numbers_of_rows([input, weight]: [Var; 2], labels: &Tensor, is_others: &Tensor) -> Result<Var> {
    let (pass, rows) = (input.pass().clone(), labels.element_count());
    let chunk = rows.div_ceil(CHUNKS_MAX).max(CHUNK_ROWS_MIN);
    let mut chunks = Vec::new();
    for first in (0..rows.max(1)).step_by(chunk) {
        let len = chunk.min(rows - first);
        let of_chunk = |x: &Tensor| x.narrow(0, first, len);
        let (labels, is_others) = (of_chunk(labels)?.unsqueeze(1)?, of_chunk(is_others)?);
        let segment = move |_: &Pass, inputs: Vec<Var>| {
            let [input, weight] =
                inputs.try_into().unwrap_or_else(|_| unreachable!("as many as there were"));
            let run = || -> Result<Var> {
                let z = input.linear(weight, None)?;
                let z = if z.value().dtype() == DType::F64 { z } else { z.to_dtype(DType::F32)? };
                let logarithm = z.clone().logsumexp(&[1])?;
                let label = z.clone().gather(1, &labels)?.squeeze(1)?;
                let label = label.masked_fill(&is_others, 0.0)?;
                Ok(Var::stack(vec![logarithm, label, z.sum(&[1])?], 0)?)
            };
            Ok(vec![run().map_err(NnError::into_autograd)?])
        };
        let inputs = vec![input.clone().narrow(0, first, len)?, weight.clone()];
        let own = pass.segment_many(&SavedPolicy::Recompute, inputs, segment)?;
        chunks.extend(own);
    }
    Ok(Var::cat(chunks, 1)?)
}
