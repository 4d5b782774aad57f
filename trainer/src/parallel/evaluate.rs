//! Evaluations by several ranks.

use lowtide_data::BatchView;
use lowtide_ranks::{Collectives, Rank, RanksError};

use crate::error::{Result, TrainError};
use crate::parallel::division::EvaluationDivision;
use crate::parallel::knobs::smallest;
use crate::parallel::vote::{agree, agree_in_calls, is_of_another};
use crate::run::evaluation::{Evaluation, score_parts};
use crate::run::score::{Score, decoded, encoded};
use crate::run::waiting::Patience;
use crate::task::contract::Task;

/// Evaluations in which each rank scores a share of the batches. Scores are added in the order of
/// the batches. With deterministic shards the parts of a batch do not depend on the number of
/// ranks, and the sum has the bits of one rank alone.
pub(crate) struct SharedBatches<'a>(pub(crate) &'a dyn Collectives);

impl<T: Task> EvaluationDivision<T> for SharedBatches<'_> {
    fn share(&self) -> Rank {
        self.0.rank()
    }

    fn evaluate(&self, evaluation: &Evaluation<'_, T>) -> Result<Score> {
        let own = agree(Some(self.0), evaluation.score_share(self.0.rank()))?;
        let mut total = Score::default();
        for (rank, words) in self.0.exchange(&encoded(&own))?.iter().enumerate() {
            let scores = decoded(words).ok_or_else(|| {
                let reason = "it sent what are no scores of this version".to_owned();
                RanksError::Aborted { rank, reason }
            })?;
            scores.into_iter().for_each(|score| total.add(score));
        }
        Ok(total)
    }
}

/// Evaluations in which all ranks score the same parts of all batches at the same time, because
/// their passes contain collectives.
pub(crate) struct SameBatches<'a>(pub(crate) &'a dyn Collectives);

impl<T: Task> EvaluationDivision<T> for SameBatches<'_> {
    fn evaluate(&self, evaluation: &Evaluation<'_, T>) -> Result<Score> {
        let &Evaluation { task, device, .. } = evaluation;
        evaluate_together(evaluation, self.0, |batch, part| score_parts(task, device, batch, part))
    }
}

/// The score of a set that all ranks score together, in the same parts at the same time. The part
/// size is the smallest of all ranks. `score` scores a batch in parts of a given size. If one rank
/// lacks memory, all ranks try again; the rank that failed decides about the part size.
///
/// # Errors
/// Errors of `score` with a single sample; `Ranks`.
pub(crate) fn evaluate_together<T: Task>(
    evaluation: &Evaluation<'_, T>,
    ranks: &dyn Collectives,
    score: impl Fn(&BatchView<'_>, usize) -> Result<Score>,
) -> Result<Score> {
    let mut part = smallest(ranks, evaluation.micro_batch)?;
    let (mut total, mut patience) = (Score::default(), Patience::new(evaluation.wait));
    for batch in evaluation.loader.epoch(0) {
        let batch = agree_in_calls(ranks, batch.map_err(TrainError::from))?;
        let score = loop {
            let own = match agree_in_calls(ranks, score(&batch.view(), part)) {
                Ok(score) => break score,
                Err(error) if is_of_another(&error) => part,
                Err(error) => evaluation.after(error, part, &mut patience)?,
            };
            part = smallest(ranks, own)?;
        };
        total.add(score);
    }
    Ok(total)
}
