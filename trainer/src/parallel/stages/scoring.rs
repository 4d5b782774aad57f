//! Evaluations by a pipeline.

use lowtide_allocator::{Category, ModulePath, Origin};
use lowtide_data::BatchView;
use lowtide_nn::parallel::{StageEnd, run_stage};
use lowtide_ranks::{Collectives, RanksError};
use lowtide_tensor::Device;

use crate::error::Result;
use crate::parallel::division::EvaluationDivision;
use crate::parallel::evaluate::evaluate_together;
use crate::parallel::stages::lane::Lane;
use crate::parallel::stages::pipeline::Pipeline;
use crate::run::evaluation::Evaluation;
use crate::run::score::{Score, decoded, encoded};
use crate::step::context::micro_batches;
use crate::task::contract::Task;

/// Evaluations in which batches go through the stages of a pipeline.
pub(crate) struct InStages<'a, T> {
    pub(crate) ranks: &'a dyn Collectives,
    pub(crate) pipeline: &'a Pipeline<T>,
}

impl<T: Task> EvaluationDivision<T> for InStages<'_, T> {
    fn score(
        &self,
        task: &T,
        device: &Device,
        batch: &BatchView<'_>,
        micro_batch: usize,
    ) -> Result<Score> {
        score_stage(task, device, batch, micro_batch, self)
    }

    fn evaluate(&self, evaluation: &Evaluation<'_, T>) -> Result<Score> {
        let &InStages { ranks, pipeline } = self;
        let &Evaluation { task, device, .. } = evaluation;
        let total = evaluate_together(evaluation, ranks, |batch, part| {
            score_stage(task, device, batch, part, self)
        })?;
        let last = pipeline.stage_count() - 1;
        let said = ranks.exchange(&encoded(&[total]))?;
        let of_last = said.get(last).and_then(|words| decoded(words)?.pop());
        of_last.ok_or_else(|| {
            let reason = "it sent what is no score of this version".to_owned();
            RanksError::Aborted { rank: last, reason }.into()
        })
    }
}

/// Scores a batch, `micro_batch` samples at a time. Only the last stage returns a score.
///
/// # Errors
/// Errors of an evaluation; `Ranks`.
fn score_stage<T: Task>(
    task: &T,
    device: &Device,
    batch: &BatchView<'_>,
    micro_batch: usize,
    &InStages { ranks, pipeline }: &InStages<'_, T>,
) -> Result<Score> {
    let _scope = device.category(Category::Activation);
    let _model = Origin { module: Some(ModulePath::ROOT), site: None }.enter();
    let (mut total, mut lane) = (Score::default(), Lane::new(ranks, device));
    let (before, after) = (lane.before(), lane.after());
    for samples in micro_batches(batch.len(), micro_batch) {
        let part = batch.slice(samples);
        let cuts = lane.attempt(|| pipeline.cuts_of_score(&part));
        let x = lane.trade(before, None, Some(cuts.as_ref().and_then(|cuts| pipeline.input(cuts))));
        let y = lane.attempt(|| {
            let cuts = cuts.as_ref().expect("it was found");
            let (scored, StageEnd { output, .. }) =
                run_stage(pipeline.blocks(), cuts, x, || task.score(device, &part));
            match output {
                Some(output) => Ok(Some(output.into_value().contiguous()?)),
                None => {
                    total.add(scored?);
                    Ok(None)
                }
            }
        });
        lane.trade(after, Some(y.flatten().as_ref()), None);
    }
    lane.finish()?;
    Ok(total)
}
