//! Batches of packed samples, which take more memory the longer the samples are: a step on one that
//! is longer than those before is rehearsed first, and run by a smaller plan if it has to be.

use lowtide_data::BatchView;
use lowtide_nn::optim::Stateful;

use crate::error::{Result, TrainError};
use crate::plan::knobs::Knobs;
use crate::plan::rehearsal::PlannedEvent;
use crate::plan::search::Search;
use crate::run::trainer::Trainer;
use crate::step::context::micro_batches;
use crate::task::Task;

/// The longest parts of a batch that were rehearsed and fit.
#[derive(Debug, Default)]
pub(crate) struct Admitted {
    knobs: Knobs,
    capacity_bytes: usize,
    /// Items of each field.
    lens: Vec<usize>,
}

/// Whether batches of as many samples may differ in size.
pub(crate) fn is_packed(batch: &BatchView<'_>) -> bool {
    batch.fields().any(|field| field.offsets().is_some())
}

/// Items of the longest part, of each field.
fn longest_part(batch: &BatchView<'_>, micro_batch: usize) -> Vec<usize> {
    let mut lens = Vec::new();
    for part in micro_batches(batch.len(), micro_batch) {
        let part = batch.slice(part);
        for (index, field) in part.fields().enumerate() {
            let len = field.shape().first().copied().unwrap_or(1);
            match lens.get_mut(index) {
                Some(longest) => *longest = len.max(*longest),
                None => lens.push(len),
            }
        }
    }
    lens
}

impl<T: Task + Clone, O: Stateful + Clone> Trainer<T, O> {
    /// Takes smaller knobs for a step on `batch` if a rehearsal shows that it does not fit with
    /// those of now. Where none fit it leaves them: the step then says what is missing, or waits.
    ///
    /// # Errors
    /// Those of a rehearsal.
    pub(crate) fn admit(&mut self, batch: &BatchView<'_>) -> Result<()> {
        if !is_packed(batch) {
            return Ok(());
        }
        let capacity_bytes = self.device.allocator().capacity_bytes();
        let (knobs, lens) = (self.knobs, longest_part(batch, self.knobs.micro_batch));
        let Admitted { lens: admitted, .. } = &self.admitted;
        let is_known = (self.admitted.knobs, self.admitted.capacity_bytes)
            == (knobs, capacity_bytes)
            && admitted.len() == lens.len();
        if is_known && lens.iter().zip(admitted).all(|(len, admitted)| len <= admitted) {
            return Ok(());
        }
        let events = [PlannedEvent::Step(*batch)];
        if self.fits_now(&events, knobs)? {
            self.admitted = Admitted { knobs, capacity_bytes, lens };
            return Ok(());
        }
        let search = Search::new(self.run_inputs(), &events, capacity_bytes);
        let len = batch.len();
        match search.find(len, knobs.micro_batch.min(len), self.splitting()) {
            Ok(plan) => self.knobs = plan.knobs,
            Err(TrainError::DoesNotFit(_)) => {}
            Err(error) => return Err(error),
        }
        Ok(())
    }
}
