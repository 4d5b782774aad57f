//! Evaluations without values, to measure the memory that they need least.

use lowtide_data::{BatchView, Loader};
use lowtide_tensor::Device;

use crate::error::Result;
use crate::run::evaluation::score_parts;
use crate::step::context::is_packed;
use crate::task::contract::Task;

/// Scores samples of `loader` one at a time on a simulated device, on which `task` is: those that
/// need most. If samples are packed, these are the samples that are longer than all before them;
/// otherwise all samples are alike, and the first is scored.
///
/// # Errors
/// Errors of the data and of the task.
pub fn rehearse_evaluation(
    task: &(impl Task + ?Sized),
    device: &Device,
    loader: &Loader,
) -> Result<()> {
    let mut longest: Vec<usize> = Vec::new();
    for batch in loader.epoch(0) {
        let batch = batch?;
        let batch = batch.view();
        for index in 0..batch.len() {
            let sample = batch.slice(index..index + 1);
            let lens = lens(&sample);
            longest.resize(lens.len(), 0);
            if lens.iter().zip(&longest).any(|(len, most)| len > most) {
                score_parts(task, device, &sample, 1)?;
            }
            longest.iter_mut().zip(lens).for_each(|(most, len)| *most = len.max(*most));
        }
        if !is_packed(&batch) {
            break;
        }
    }
    Ok(())
}

/// Number of items of each field.
fn lens(sample: &BatchView<'_>) -> Vec<usize> {
    sample.fields().map(|field| field.shape().first().copied().unwrap_or(1)).collect()
}
