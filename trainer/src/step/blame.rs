//! The search for the samples and the operation from which a value that is not finite came.

use lowtide_allocator::Category;
use lowtide_autograd::{Attempt, AutogradError};
use lowtide_data::BatchView;
use lowtide_nn::NnError;
use lowtide_tensor::DType;

use crate::error::{Result, TrainError};
use crate::step::context::micro_batches;
use crate::step::not_finite::{NotFinite, NotFiniteWhat};
use crate::step::pass::PassOptions;
use crate::step::turn::ModelTurn;
use crate::task::contract::Task;

impl NotFinite {
    /// Adds the samples that are to blame and the operation that made the first such value, if they
    /// are found. Computes `batch` again with a check of every value.
    pub(crate) fn explain(
        &mut self,
        task: &mut impl Task,
        passes: PassOptions<'_>,
        batch: &BatchView<'_>,
        micro_batch: usize,
    ) {
        let _scope = passes.device.category(Category::Activation);
        let Ok(turns) = ModelTurn::all_of(task) else { return };
        let parts = || micro_batches(batch.len(), micro_batch);
        for (turn, part) in turns.iter().flat_map(|turn| parts().map(move |part| (turn, part))) {
            let attempt = Attempt::new();
            let pass = passes.pass(&attempt, turn, part.start).with_anomaly_detection();
            let loss = task.loss(&pass, passes.device, &batch.slice(part));
            let computed = loss.and_then(|loss| {
                pass.backward(loss.sum)?;
                Ok(())
            });
            if let Err(TrainError::Nn(NnError::Autograd(AutogradError::NonFinite(anomaly)))) =
                computed
            {
                self.anomaly = Some(anomaly);
                break;
            }
        }
        if self.what == NotFiniteWhat::Loss {
            let is_bad = |&index: &usize| {
                turns.iter().any(|turn| {
                    let loss = loss_of_sample(task, passes, turn, batch, index);
                    // A sample that cannot be computed alone is not blamed.
                    loss.is_ok_and(|loss| !loss.is_finite())
                })
            };
            let bad = (0..batch.len()).filter(is_bad);
            self.samples = bad.map(|index| batch.sample_indices()[index]).collect();
        }
    }
}

/// The loss of a single sample of a batch.
fn loss_of_sample(
    task: &impl Task,
    passes: PassOptions<'_>,
    turn: &ModelTurn,
    batch: &BatchView<'_>,
    index: usize,
) -> Result<f64> {
    let pass = passes.pass(&Attempt::new(), turn, index);
    let loss = task.loss(&pass, passes.device, &batch.slice(index..index + 1))?;
    Ok(loss.sum.value().to_dtype(DType::F64)?.item::<f64>()?)
}
