//! Evaluations by a pipeline.

use lowtide_allocator::{Category, ModulePath, Origin};
use lowtide_data::{BatchView, Loader};
use lowtide_nn::{StageEnd, run_stage};
use lowtide_ranks::{Collectives, RanksError};
use lowtide_tensor::Device;

use crate::divided::evaluate_together;
use crate::error::Result;
use crate::pipeline::{Lane, Pipeline};
use crate::score::{Score, decoded, encoded};
use crate::step::micro_batches;
use crate::task::Task;

/// The score of a batch, `micro_batch` samples at a time, on the last stage; nothing on the others.
///
/// # Errors
/// Those of an evaluation; `Ranks`.
pub(crate) fn score_stage<T: Task>(
    task: &T,
    device: &Device,
    batch: &BatchView<'_>,
    micro_batch: usize,
    pipeline: &Pipeline<T>,
    ranks: &dyn Collectives,
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

/// The score of everything in `loader`, on all ranks, as [`evaluate_together`] has it.
///
/// # Errors
/// Those of an evaluation; `Ranks`.
pub(crate) fn evaluate_stages<T: Task>(
    task: &T,
    device: &Device,
    loader: &Loader,
    micro_batch: usize,
    pipeline: &Pipeline<T>,
    ranks: &dyn Collectives,
) -> Result<Score> {
    let total = evaluate_together(device, loader, micro_batch, ranks, |batch, part| {
        score_stage(task, device, batch, part, pipeline, ranks)
    })?;
    let last = pipeline.stage_count() - 1;
    let said = ranks.exchange(&encoded(&[total]))?;
    let of_last = said.get(last).and_then(|words| decoded(words)?.pop());
    of_last.ok_or_else(|| {
        let reason = "it sent what is no score of this version".to_owned();
        RanksError::Aborted { rank: last, reason }.into()
    })
}
